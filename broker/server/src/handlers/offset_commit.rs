//! `OffsetCommit` 2–9: a group's offsets, with a note and the leader epoch; written before it is answered.
//!
//! Partitions that do not exist and notes that are too long are refused each for itself; what is left of a request is
//! committed whole or not at all. Deviation from Apache Kafka: the retention time of versions 2–4 is ignored, as
//! Kafka does with its default setting; `groups.offsets_retention` counts.

use broker_protocol::{
    ErrorCode,
    messages::{
        OffsetCommitRequest, OffsetCommitResponse,
        offset_commit::{
            OffsetCommitRequestPartition, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
        },
    },
};

use super::Context;
use crate::group::{Caller, Committed, own};

pub(super) async fn handle(
    context: &Context<'_>,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let caller = Caller {
        member_id: request.member_id,
        instance_id: request.group_instance_id,
        generation: request.generation_id_or_member_epoch,
    };
    let now_ms = context.broker.clock.now_ms();
    let mut offsets = Vec::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let name = own(&topic.name);
        let partitions = topic.partitions.into_iter().map(|partition| {
            let index = partition.partition_index;
            let checked = check(context, &name, &partition);
            if checked.is_ok() {
                offsets.push((name.clone(), index, committed(partition, now_ms)));
            }
            (index, checked)
        });
        let partitions: Vec<_> = partitions.collect();
        topics.push((topic.name, partitions));
    }
    let groups = &context.broker.groups;
    let stored = groups.commit(&request.group_id, &caller, offsets).await;
    let topics = topics.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|(partition_index, checked)| {
            let code = checked.and(stored).err().unwrap_or(ErrorCode::None);
            OffsetCommitResponsePartition {
                partition_index,
                error_code: code.code(),
            }
        });
        OffsetCommitResponseTopic {
            name,
            partitions: partitions.collect(),
        }
    });
    OffsetCommitResponse {
        topics: topics.collect(),
        ..OffsetCommitResponse::default()
    }
}

fn check(
    context: &Context<'_>,
    topic: &str,
    partition: &OffsetCommitRequestPartition,
) -> Result<(), ErrorCode> {
    let limit = context.broker.config.groups.max_offset_metadata_bytes;
    let note = partition.committed_metadata.as_ref();
    if note.is_some_and(|note| note.len() > limit) {
        return Err(ErrorCode::OffsetMetadataTooLarge);
    }
    match context
        .broker
        .topics
        .partition(topic, partition.partition_index)
    {
        // A partition that is off line for now has a place all the same.
        Ok(_) | Err(ErrorCode::KafkaStorageError) => Ok(()),
        Err(code) => Err(code),
    }
}

fn committed(partition: OffsetCommitRequestPartition, committed_ms: i64) -> Committed {
    let note = partition.committed_metadata.unwrap_or_default();
    Committed {
        offset: partition.committed_offset,
        leader_epoch: partition.committed_leader_epoch,
        metadata: own(&note),
        committed_ms,
    }
}
