//! `DescribeCluster` (key 60): brokers and controller, without topics.

use super::prelude::*;

api! {
    DescribeCluster = 60, versions 0..=2, flexible 0..,
    DescribeClusterRequest => DescribeClusterResponse;

    /// Asks for the cluster.
    pub struct DescribeClusterRequest {
        /// Whether to list what the client may do with the cluster.
        include_cluster_authorized_operations: bool [..],
        /// 1 for brokers, 2 for controllers.
        endpoint_type: i8 [1..] = 1,
        /// Whether to list brokers that are fenced.
        include_fenced_brokers: bool [2..],
    }

    /// The cluster.
    pub struct DescribeClusterResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong, in words.
        error_message: Option<ByteString> [..] nullable = None,
        /// As in the request.
        endpoint_type: i8 [1..] = 1,
        /// Cluster id.
        cluster_id: ByteString [..],
        /// Node id of the controller, −1 when unknown.
        controller_id: i32 [..] = -1,
        /// The brokers.
        brokers: Vec<DescribeClusterBroker> [..],
        /// Bit set of what the client may do with the cluster.
        cluster_authorized_operations: i32 [..] = i32::MIN,
    }

    /// A broker.
    pub struct DescribeClusterBroker {
        /// Node id.
        broker_id: i32 [..],
        /// Host name.
        host: ByteString [..],
        /// TCP port.
        port: i32 [..],
        /// Rack, null when none is configured.
        rack: Option<ByteString> [..] nullable = None,
        /// Whether it is fenced.
        is_fenced: bool [2..],
    }
}
