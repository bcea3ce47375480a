//! `ElectLeaders` 0–2: one broker leads what it can lead, so no election is ever needed.
//!
//! A partition whose log could not be opened, or has failed since, has no leader and no other replica to become one.

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{
        ElectLeadersRequest, ElectLeadersResponse,
        elect_leaders::{PartitionResult, ReplicaElectionResult},
    },
};

use super::Context;

/// Elects the first replica of the assignment.
const PREFERRED: i8 = 0;
/// Elects any replica that lives.
const UNCLEAN: i8 = 1;

const NOT_NEEDED: &str = "this broker leads the partition, its only replica";
const OFF_LINE: &str = "the only replica is off line after a failure of the disk; see the broker's log, and start it again";

pub(super) fn handle(context: &Context<'_>, request: ElectLeadersRequest) -> ElectLeadersResponse {
    if !(PREFERRED..=UNCLEAN).contains(&request.election_type) {
        return ElectLeadersResponse {
            error_code: ErrorCode::InvalidRequest.code(),
            ..ElectLeadersResponse::default()
        };
    }
    let code = if request.election_type == PREFERRED {
        ErrorCode::PreferredLeaderNotAvailable
    } else {
        ErrorCode::EligibleLeadersNotAvailable
    };
    let off_line = (code, OFF_LINE);
    let topics = &context.broker.topics;
    let elect = |found: Result<(), ErrorCode>| match found {
        Ok(()) => (ErrorCode::ElectionNotNeeded, NOT_NEEDED),
        Err(ErrorCode::KafkaStorageError) => off_line,
        Err(code) => (code, "no such partition here"),
    };
    let results: Vec<_> = match request.topic_partitions {
        Some(named) => named
            .into_iter()
            .map(|named| {
                let topic = topics.get(&named.topic);
                let results = named.partitions.iter().map(|&index| {
                    let topic = topic.as_ref().ok_or(ErrorCode::UnknownTopicOrPartition);
                    let found = topic.and_then(|topic| topic.partition(index).map(|_| ()));
                    result(index, elect(found))
                });
                ReplicaElectionResult {
                    partition_result: results.collect(),
                    topic: named.topic,
                }
            })
            .collect(),
        // Of all, only those where an election would be needed are told.
        None => {
            let all = topics.all();
            let results = all.iter().map(|topic| {
                let lost = topic.indexed().filter(|(_, found)| found.is_none());
                ReplicaElectionResult {
                    topic: ByteString::from(topic.name.clone()),
                    partition_result: lost.map(|(index, _)| result(index, off_line)).collect(),
                }
            });
            results
                .filter(|topic| !topic.partition_result.is_empty())
                .collect()
        }
    };
    ElectLeadersResponse {
        replica_election_results: results,
        ..ElectLeadersResponse::default()
    }
}

fn result(partition_id: i32, (code, message): (ErrorCode, &'static str)) -> PartitionResult {
    PartitionResult {
        partition_id,
        error_code: code.code(),
        error_message: Some(message.into()),
    }
}
