//! `DeleteRecords` 0–2: moves the start of a log up to an offset, −1 for all there is.
//!
//! Not of the broker's own topics, which would lose groups, as in Apache Kafka.

use std::sync::Arc;

use broker_protocol::{
    ErrorCode,
    messages::{
        DeleteRecordsRequest, DeleteRecordsResponse,
        delete_records::{
            DeleteRecordsPartition, DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
        },
    },
};
use tracing::warn;

use super::Context;
use crate::pool::Failed;

/// The offset that stands for the high watermark.
const ALL: i64 = -1;

pub(super) async fn handle(
    context: &Context<'_>,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in topic.partitions {
            let deleted = delete(context, &topic.name, &wanted).await;
            let (low_watermark, code) = match deleted {
                Ok(log_start) => (log_start, ErrorCode::None),
                Err(code) => (-1, code),
            };
            partitions.push(DeleteRecordsPartitionResult {
                partition_index: wanted.partition_index,
                low_watermark,
                error_code: code.code(),
            });
        }
        topics.push(DeleteRecordsTopicResult {
            name: topic.name,
            partitions,
        });
    }
    DeleteRecordsResponse {
        topics,
        ..DeleteRecordsResponse::default()
    }
}

/// Moves the start; where it is then.
async fn delete(
    context: &Context<'_>,
    topic: &str,
    wanted: &DeleteRecordsPartition,
) -> Result<i64, ErrorCode> {
    let topic = context.broker.topics.get(topic);
    let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if topic.is_internal() {
        return Err(ErrorCode::InvalidTopicException);
    }
    let partition = Arc::clone(topic.partition(wanted.partition_index)?);
    let offset = wanted.offset;
    if offset < ALL {
        return Err(ErrorCode::OffsetOutOfRange);
    }
    let changed = Arc::clone(&partition);
    let change = move || {
        changed.with_log(|log| {
            let offset = if offset == ALL {
                log.high_watermark()
            } else {
                offset
            };
            log.advance_log_start(offset)
        })
    };
    match context.broker.pool.run(change).await {
        Ok(Ok(log_start)) => Ok(log_start),
        Ok(Err(error)) => {
            let code = error.error_code();
            if code == ErrorCode::KafkaStorageError {
                warn!(partition = %partition.id(), error = error.message(), "records not deleted");
            }
            Err(code)
        }
        Err(Failed) => Err(ErrorCode::KafkaStorageError),
    }
}
