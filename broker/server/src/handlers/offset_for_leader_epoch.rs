//! `OffsetForLeaderEpoch` 2–4: where a leader epoch ended, so that a reader learns of a cut.

use broker_protocol::{
    ErrorCode,
    messages::{
        OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
        offset_for_leader_epoch::{EpochEndOffset, OffsetForLeaderTopicResult},
    },
};

use super::Context;

pub(super) fn handle(
    context: &Context<'_>,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|wanted| {
            let partition = context
                .broker
                .topics
                .partition(&topic.topic, wanted.partition);
            let end = partition.and_then(|partition| {
                partition.check_leader_epoch(wanted.current_leader_epoch)?;
                Ok(partition.end_of_leader_epoch(wanted.leader_epoch))
            });
            let (code, leader_epoch, end_offset) = match end {
                Ok(end) => (ErrorCode::None, end.leader_epoch, end.end_offset),
                Err(code) => (code, -1, -1),
            };
            EpochEndOffset {
                error_code: code.code(),
                partition: wanted.partition,
                leader_epoch,
                end_offset,
            }
        });
        OffsetForLeaderTopicResult {
            partitions: partitions.collect(),
            topic: topic.topic,
        }
    });
    let topics = topics.collect();
    OffsetForLeaderEpochResponse {
        topics,
        ..OffsetForLeaderEpochResponse::default()
    }
}
