//! `DescribeLogDirs` 1–4: the one data directory, its partitions and their sizes.
//!
//! A partition that is off line is not in it, as in Apache Kafka. There a failure takes the whole directory off line, here
//! the partition that met it, so the directory is `KAFKA_STORAGE_ERROR` when no partition is left.

use std::sync::Arc;

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{
        DescribeLogDirsRequest, DescribeLogDirsResponse,
        describe_log_dirs::{
            DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
        },
    },
};

use super::Context;
use crate::{broker::Shared, pool::Failed, topics::Topic};

pub(super) async fn handle(
    context: &Context<'_>,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    let broker = Arc::clone(context.broker);
    let described = context
        .broker
        .pool
        .run(move || describe(&broker, request))
        .await;
    let result = described.unwrap_or_else(|Failed| DescribeLogDirsResult {
        error_code: ErrorCode::KafkaStorageError.code(),
        ..DescribeLogDirsResult::default()
    });
    DescribeLogDirsResponse {
        results: vec![result],
        ..DescribeLogDirsResponse::default()
    }
}

fn describe(broker: &Shared, request: DescribeLogDirsRequest) -> DescribeLogDirsResult {
    let (online, offline) = broker.topics.count_partitions();
    let error = match online {
        0 if offline > 0 => ErrorCode::KafkaStorageError,
        _ => ErrorCode::None,
    };
    // Null asks for everything.
    let topics = match request.topics {
        None => broker
            .topics
            .all()
            .iter()
            .filter_map(|topic| sizes(topic, |_| true))
            .collect(),
        Some(wanted) => wanted
            .into_iter()
            .filter_map(|wanted| {
                let topic = broker.topics.get(&wanted.topic)?;
                sizes(&topic, |index| wanted.partitions.contains(&index))
            })
            .collect(),
    };
    let path = &broker.config.data_dir;
    // −1 stands for unknown.
    let (total_bytes, usable_bytes) = rustix::fs::statvfs(path).map_or((-1, -1), |space| {
        let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(space.f_frsize));
        (
            bytes(space.f_blocks).unwrap_or(i64::MAX),
            bytes(space.f_bavail).unwrap_or(i64::MAX),
        )
    });
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
    DescribeLogDirsResult {
        error_code: error.code(),
        log_dir: absolute.display().to_string().into(),
        topics,
        total_bytes,
        usable_bytes,
    }
}

fn sizes(topic: &Topic, wanted: impl Fn(i32) -> bool) -> Option<DescribeLogDirsTopic> {
    let partitions = topic.indexed().filter(|(index, _)| wanted(*index));
    let partitions = partitions.filter_map(|(partition_index, partition)| {
        let size = partition?.reader().size_in_bytes();
        Some(DescribeLogDirsPartition {
            partition_index,
            partition_size: i64::try_from(size).unwrap_or(i64::MAX),
            offset_lag: 0,
            is_future_key: false,
        })
    });
    let partitions: Vec<_> = partitions.collect();
    let name = ByteString::from(topic.name.clone());
    (!partitions.is_empty()).then_some(DescribeLogDirsTopic { name, partitions })
}
