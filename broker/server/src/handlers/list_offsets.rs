//! `ListOffsets` 1–10: the offset of a time, and the special ones: −1 latest, −2 earliest, −3 of the largest time,
//! −4 earliest on this broker's disk, −5 latest in tiered storage.
//!
//! As in Apache Kafka without tiered storage −4 is the earliest and −5 finds nothing, a special time below the
//! version that brought it is `UNSUPPORTED_VERSION`, and a partition named twice is `INVALID_REQUEST`. Deviation:
//! the time-out of version 10 is not used, since nothing is asked of other machines.

use std::{collections::HashMap, sync::Arc};

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{
        ListOffsetsRequest, ListOffsetsResponse,
        list_offsets::{
            ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
        },
    },
};
use tracing::warn;

use super::Context;
use crate::{partition::Partition, pool::Failed};

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
/// First version that tells leader epochs.
const WITH_LEADER_EPOCH: i16 = 4;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
/// The version that brought each special time.
const SPECIAL: [(i64, i16); 5] = [
    (LATEST, 1),
    (EARLIEST, 1),
    (MAX_TIMESTAMP, 7),
    (EARLIEST_LOCAL, 8),
    (LATEST_TIERED, 9),
];

pub(super) async fn handle(
    context: &Context<'_>,
    version: i16,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let committed = request.isolation_level == 1;
    let mut topics = Vec::with_capacity(request.topics.len());
    let mut times: HashMap<(ByteString, i32), usize> = HashMap::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            let named = (topic.name.clone(), partition.partition_index);
            *times.entry(named).or_default() += 1;
        }
    }
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in topic.partitions {
            let partition = context
                .broker
                .topics
                .partition(&topic.name, wanted.partition_index);
            let named = (topic.name.clone(), wanted.partition_index);
            let found = match partition {
                _ if times.get(&named).is_some_and(|times| *times > 1) => {
                    Err(ErrorCode::InvalidRequest)
                }
                Ok(partition) => find(context, version, committed, partition, &wanted).await,
                Err(code) => Err(code),
            };
            let answer = ListOffsetsPartitionResponse {
                partition_index: wanted.partition_index,
                ..ListOffsetsPartitionResponse::default()
            };
            partitions.push(match found {
                Ok(found) => ListOffsetsPartitionResponse {
                    offset: found.offset,
                    timestamp: found.timestamp,
                    leader_epoch: if version >= WITH_LEADER_EPOCH {
                        found.leader_epoch
                    } else {
                        -1
                    },
                    ..answer
                },
                Err(code) => ListOffsetsPartitionResponse {
                    error_code: code.code(),
                    offset: -1,
                    timestamp: -1,
                    leader_epoch: -1,
                    ..answer
                },
            });
        }
        topics.push(ListOffsetsTopicResponse {
            name: topic.name,
            partitions,
        });
    }
    ListOffsetsResponse {
        topics,
        ..ListOffsetsResponse::default()
    }
}

#[derive(Debug, Clone, Copy)]
struct Listed {
    offset: i64,
    timestamp: i64,
    leader_epoch: i32,
}

impl Listed {
    const NOTHING: Self = Self {
        offset: -1,
        timestamp: -1,
        leader_epoch: -1,
    };
}

async fn find(
    context: &Context<'_>,
    version: i16,
    committed: bool,
    partition: Arc<Partition>,
    wanted: &ListOffsetsPartition,
) -> Result<Listed, ErrorCode> {
    let offered = |(time, since): &(i64, i16)| *time == wanted.timestamp && *since <= version;
    if wanted.timestamp < 0 && !SPECIAL.iter().any(offered) {
        return Err(ErrorCode::UnsupportedVersion);
    }
    partition.check_leader_epoch(wanted.current_leader_epoch)?;
    let offsets = partition.reader().offsets();
    let at = |offset, leader_epoch| {
        Ok(Listed {
            offset,
            timestamp: -1,
            leader_epoch,
        })
    };
    let timestamp = match wanted.timestamp {
        LATEST if committed => return at(offsets.last_stable, partition.leader_epoch()),
        LATEST => return at(offsets.high_watermark, partition.leader_epoch()),
        LATEST_TIERED => return Ok(Listed::NOTHING),
        EARLIEST | EARLIEST_LOCAL => {
            return at(offsets.log_start, epoch_at(&partition, offsets.log_start));
        }
        MAX_TIMESTAMP => match partition.reader().max_timestamp_ms() {
            Some(timestamp) if timestamp >= 0 => timestamp,
            _ => return Ok(Listed::NOTHING),
        },
        timestamp => timestamp,
    };
    let searched = Arc::clone(&partition);
    let found = context
        .broker
        .pool
        .run(move || searched.reader().offset_for_timestamp(timestamp))
        .await
        .map_err(|Failed| ErrorCode::KafkaStorageError)?;
    match found {
        Ok(Some(found)) => Ok(Listed {
            offset: found.offset,
            timestamp: found.timestamp_ms,
            leader_epoch: found.leader_epoch.unwrap_or(-1),
        }),
        Ok(None) => Ok(Listed::NOTHING),
        Err(error) => {
            let code = error.error_code();
            let error = &error as &dyn std::error::Error;
            warn!(partition = %partition.id(), error, "search by time failed");
            Err(code)
        }
    }
}

/// The epoch under which the record at `offset` was written; −1 when the log does not say.
fn epoch_at(partition: &Partition, offset: i64) -> i32 {
    let reader = partition.reader();
    let Some(latest) = reader.leader_epoch() else {
        return -1;
    };
    let holds = |epoch: &i32| reader.end_offset_for_leader_epoch(*epoch).end_offset > offset;
    (0..=latest).find(holds).unwrap_or(-1)
}
