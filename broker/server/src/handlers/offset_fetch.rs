//! `OffsetFetch` 1–9: a group's committed offsets, −1 where there is none. Up to version 7 of one group, then of several.
//!
//! There are no transactions, so every offset is stable.

use std::collections::BTreeMap;

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{
        OffsetFetchRequest, OffsetFetchResponse,
        offset_fetch::{
            OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponseGroup,
            OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
            OffsetFetchResponseTopics,
        },
    },
};

use super::Context;
use crate::group::{Committed, Group};

/// First version that asks for several groups.
const SEVERAL: i16 = 8;
/// First version with an error of the group as a whole.
const GROUP_ERROR: i16 = 2;

pub(super) fn handle(
    context: &Context<'_>,
    version: i16,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    if version >= SEVERAL {
        let groups = request.groups.iter().map(|group| fetch(context, group));
        return OffsetFetchResponse {
            groups: groups.collect(),
            ..OffsetFetchResponse::default()
        };
    }
    let topics = request.topics.map(|topics| {
        let topics = topics.into_iter().map(|topic| OffsetFetchRequestTopics {
            name: topic.name,
            partition_indexes: topic.partition_indexes,
        });
        topics.collect()
    });
    let group = OffsetFetchRequestGroup {
        group_id: request.group_id,
        topics,
        ..OffsetFetchRequestGroup::default()
    };
    respond_to_one(version, &group, fetch(context, &group))
}

fn fetch(context: &Context<'_>, wanted: &OffsetFetchRequestGroup) -> OffsetFetchResponseGroup {
    let groups = &context.broker.groups;
    let found = groups.look(&wanted.group_id, |group| topics(Some(group), wanted));
    let (error_code, topics) = match found {
        Ok(Some(topics)) => (ErrorCode::None, topics),
        Ok(None) => (ErrorCode::None, topics(None, wanted)),
        Err(code) => (code, Vec::new()),
    };
    OffsetFetchResponseGroup {
        group_id: wanted.group_id.clone(),
        topics,
        error_code: error_code.code(),
    }
}

fn topics(
    group: Option<&Group>,
    wanted: &OffsetFetchRequestGroup,
) -> Vec<OffsetFetchResponseTopics> {
    let Some(wanted) = &wanted.topics else {
        let all = group.into_iter().flat_map(|group| group.offsets.topics());
        return all
            .map(|(name, partitions)| whole(name, partitions))
            .collect();
    };
    let found = |topic: &str, partition| group?.offsets.get(topic, partition);
    let topics = wanted.iter().map(|topic| OffsetFetchResponseTopics {
        name: topic.name.clone(),
        partitions: topic
            .partition_indexes
            .iter()
            .map(|&partition| describe(partition, found(&topic.name, partition)))
            .collect(),
    });
    topics.collect()
}

fn whole(name: &ByteString, partitions: &BTreeMap<i32, Committed>) -> OffsetFetchResponseTopics {
    let partitions = partitions
        .iter()
        .map(|(&partition, committed)| describe(partition, Some(committed)));
    OffsetFetchResponseTopics {
        name: name.clone(),
        partitions: partitions.collect(),
    }
}

fn describe(partition_index: i32, committed: Option<&Committed>) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: committed.map_or(-1, |committed| committed.offset),
        committed_leader_epoch: committed.map_or(-1, |committed| committed.leader_epoch),
        metadata: Some(committed.map_or_else(ByteString::new, |c| c.metadata.clone())),
        error_code: ErrorCode::None.code(),
    }
}

/// The form of versions 1–7. Version 1 has no error of the group, so each partition carries it.
fn respond_to_one(
    version: i16,
    wanted: &OffsetFetchRequestGroup,
    group: OffsetFetchResponseGroup,
) -> OffsetFetchResponse {
    let error_code = group.error_code;
    let failed = version < GROUP_ERROR && error_code != ErrorCode::None.code();
    let topics = if failed {
        topics(None, wanted)
    } else {
        group.topics
    };
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter();
        let partitions = partitions.map(|partition| OffsetFetchResponsePartition {
            partition_index: partition.partition_index,
            committed_offset: partition.committed_offset,
            committed_leader_epoch: partition.committed_leader_epoch,
            metadata: partition.metadata,
            error_code: if failed { error_code } else { 0 },
        });
        OffsetFetchResponseTopic {
            name: topic.name,
            partitions: partitions.collect(),
        }
    });
    OffsetFetchResponse {
        topics: topics.collect(),
        error_code,
        ..OffsetFetchResponse::default()
    }
}
