//! `AlterPartitionReassignments` 0–1: to the replicas that a partition has, which is this broker, and no others.

use broker_protocol::{
    ErrorCode,
    messages::{
        AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
        alter_partition_reassignments::{
            ReassignablePartition, ReassignablePartitionResponse, ReassignableTopicResponse,
        },
    },
};

use super::Context;

/// A code and its sentence.
type Refusal = (ErrorCode, String);

pub(super) fn handle(
    context: &Context<'_>,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    let may_change_factor = request.allow_replication_factor_change;
    let responses = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|wanted| {
            let found = context
                .broker
                .topics
                .get(&topic.name)
                .ok_or(ErrorCode::UnknownTopicOrPartition);
            let found = found.and_then(|topic| topic.partition(wanted.partition_index).map(|_| ()));
            let moved = match found {
                // The assignment of a partition that is off line is the same.
                Ok(()) | Err(ErrorCode::KafkaStorageError) => {
                    check(context.broker.config.node_id, wanted, may_change_factor)
                }
                Err(code) => Err((code, "no such partition here".to_owned())),
            };
            let (code, message) = match moved {
                Ok(()) => (ErrorCode::None, None),
                Err((code, message)) => (code, Some(message)),
            };
            ReassignablePartitionResponse {
                partition_index: wanted.partition_index,
                error_code: code.code(),
                error_message: message.map(Into::into),
            }
        });
        ReassignableTopicResponse {
            partitions: partitions.collect(),
            name: topic.name,
        }
    });
    AlterPartitionReassignmentsResponse {
        error_message: None,
        responses: responses.collect(),
        allow_replication_factor_change: may_change_factor,
        ..AlterPartitionReassignmentsResponse::default()
    }
}

fn check(
    node_id: i32,
    wanted: &ReassignablePartition,
    may_change_factor: bool,
) -> Result<(), Refusal> {
    match wanted.replicas.as_deref() {
        None => {
            let message = "the partition is not moving, so there is nothing to cancel";
            Err((ErrorCode::NoReassignmentInProgress, message.to_owned()))
        }
        Some([replica]) if *replica == node_id => Ok(()),
        Some(replicas) if replicas.len() != 1 && !may_change_factor => {
            let message = format!("the partition has one replica, not {}", replicas.len());
            Err((ErrorCode::InvalidReplicationFactor, message))
        }
        Some(_) => {
            let message = format!("node {node_id} is the only broker: it is the only replica");
            Err((ErrorCode::InvalidReplicaAssignment, message))
        }
    }
}
