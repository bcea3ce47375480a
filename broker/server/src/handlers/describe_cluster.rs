//! `DescribeCluster` 0–2: this broker, which is never fenced. There are no separate controllers to ask for.

use broker_protocol::{
    ErrorCode,
    messages::{
        DescribeClusterRequest, DescribeClusterResponse, describe_cluster::DescribeClusterBroker,
    },
};

use super::{Context, cluster_operations};

/// Endpoints of brokers, as opposed to controllers.
const BROKERS: i8 = 1;

pub(super) fn handle(
    context: &Context<'_>,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    if request.endpoint_type != BROKERS {
        return DescribeClusterResponse {
            error_code: ErrorCode::UnsupportedEndpointType.code(),
            error_message: Some("this broker has no separate controllers".into()),
            endpoint_type: request.endpoint_type,
            ..DescribeClusterResponse::default()
        };
    }
    let node_id = context.broker.config.node_id;
    let (host, port) = context.advertised();
    DescribeClusterResponse {
        error_message: None,
        cluster_id: context.broker.topics.cluster_id().into(),
        controller_id: node_id,
        brokers: vec![DescribeClusterBroker {
            broker_id: node_id,
            host: host.into(),
            port,
            ..DescribeClusterBroker::default()
        }],
        cluster_authorized_operations: if request.include_cluster_authorized_operations {
            cluster_operations()
        } else {
            i32::MIN
        },
        ..DescribeClusterResponse::default()
    }
}
