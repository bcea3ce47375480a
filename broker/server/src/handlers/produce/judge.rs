//! What can be said about one partition's data before it is appended, without decompression where that is possible.

use std::sync::Arc;

use broker_protocol::{
    ByteString, ErrorCode,
    messages::produce::{BatchIndexAndErrorMessage, PartitionProduceData},
    record::{BatchHeader, Compression, RecordBatch},
};
use bytes::Bytes;
use tracing::warn;

use super::{
    super::{
        Context,
        timestamps::{self, Window},
    },
    Piece, Refusal, refuse,
};
use crate::{
    partition::{Now, Partition},
    pool::Failed,
    topics::Topic,
};

/// First version that may carry zstd.
const ZSTD: i16 = 7;
/// Where the record format's number lies in every format.
const MAGIC_OFFSET: usize = 16;
/// Bound on the memory of one batch of a compacted topic while its keys are checked, in bytes.
const MAX_DECOMPRESSED: usize = 128 << 20;

/// Everything that can be said about one partition's data before it is appended.
pub(super) async fn judge(
    context: &Context<'_>,
    version: i16,
    acks: i16,
    now: Now,
    topic: &Arc<Topic>,
    data: PartitionProduceData,
) -> Result<Piece, Refusal> {
    check_acks(acks, topic)?;
    let partition = match topic.partition(data.index) {
        Ok(partition) => partition,
        Err(code @ ErrorCode::KafkaStorageError) => {
            return refuse(
                code,
                "the partition is off line after a failure of the disk; see the broker's log, and start it again",
            );
        }
        Err(code) => return refuse(code, "no such partition here"),
    };
    let batch = check(data.records, version, topic)?;
    if topic.config.compacted {
        let keyed = batch.clone();
        let checked = context.broker.pool.run(move || check_keys(&keyed)).await;
        checked.unwrap_or_else(|Failed| {
            refuse(
                ErrorCode::InvalidRecord,
                "the records could not be looked into",
            )
        })?;
    }
    check_times(context, &batch, topic, partition, now).await?;
    let free = || context.broker.topics.dir().free_bytes().ok();
    if let Err(full) = context
        .broker
        .space
        .take(batch.bytes().len(), now.monotonic, free)
    {
        return refuse(ErrorCode::KafkaStorageError, full.to_string());
    }
    Ok(Piece {
        partition: Arc::clone(partition),
        batch,
        acks_all: acks == -1,
    })
}

fn check_acks(acks: i16, topic: &Topic) -> Result<(), Refusal> {
    if !(-1..=1).contains(&acks) {
        return refuse(
            ErrorCode::InvalidRequiredAcks,
            format!("acks {acks} is not -1, 0 or 1"),
        );
    }
    let wanted = topic.config.min_insync_replicas;
    if acks == -1 && wanted > 1 {
        let message = format!("min.insync.replicas is {wanted} and this broker has one replica");
        return refuse(ErrorCode::NotEnoughReplicas, message);
    }
    Ok(())
}

/// Everything about a batch that needs no decompression. The log checks size and CRC when it appends.
fn check(records: Option<Bytes>, version: i16, topic: &Topic) -> Result<RecordBatch, Refusal> {
    let records = records.unwrap_or_default();
    if records.is_empty() {
        return refuse(
            ErrorCode::InvalidRecord,
            "a produce request has one batch a partition, not none",
        );
    }
    let Some(&magic) = records.get(MAGIC_OFFSET) else {
        return refuse(ErrorCode::CorruptMessage, "shorter than any record batch");
    };
    if magic != 2 {
        let message = format!("record format {magic} is not 2, the only one in this version");
        return refuse(ErrorCode::InvalidRecord, message);
    }
    // Bytes that changed on the way are the client's to send again, a batch that never was right is not.
    let sent = records.clone();
    parse(records, version, topic).map_err(|refusal| match crc_fits(&sent) {
        true => refusal,
        false => Refusal {
            code: ErrorCode::CorruptMessage,
            ..refusal
        },
    })
}

/// Whether the CRC is that of the batch the bytes begin with.
fn crc_fits(records: &[u8]) -> bool {
    let length = records.get(8..12).and_then(|length| length.try_into().ok());
    let end = length.and_then(|length| usize::try_from(i32::from_be_bytes(length)).ok());
    let body = end.and_then(|end| records.get(21..end.saturating_add(12)));
    let stored = records
        .get(17..21)
        .and_then(|crc| crc.try_into().ok())
        .map(u32::from_be_bytes);
    body.is_some_and(|body| stored == Some(crc32c::crc32c(body)))
}

fn parse(records: Bytes, version: i16, topic: &Topic) -> Result<RecordBatch, Refusal> {
    let header = match BatchHeader::parse(&records) {
        Ok(header) => header,
        Err(error) => return refuse(ErrorCode::InvalidRecord, error.to_string()),
    };
    if header.size_in_bytes() < records.len() {
        return refuse(
            ErrorCode::InvalidRecord,
            "more than one record batch a partition",
        );
    }
    let batch = match RecordBatch::parse(records) {
        Ok(batch) => batch,
        Err(error) => return refuse(ErrorCode::InvalidRecord, error.to_string()),
    };
    check_header(&header, version)?;
    if batch.bytes().len() as u64 > topic.config.segment_bytes {
        let message = format!(
            "a batch of {} bytes is larger than a segment of {} bytes",
            batch.bytes().len(),
            topic.config.segment_bytes
        );
        return refuse(ErrorCode::RecordListTooLarge, message);
    }
    Ok(batch)
}

fn check_header(header: &BatchHeader, version: i16) -> Result<(), Refusal> {
    match header.compression() {
        Err(error) => return refuse(ErrorCode::UnsupportedCompressionType, error.to_string()),
        Ok(Compression::Zstd) if version < ZSTD => {
            let message = format!("zstd needs produce version {ZSTD} or above, not {version}");
            return refuse(ErrorCode::UnsupportedCompressionType, message);
        }
        Ok(_) => {}
    }
    if header.is_control() {
        return refuse(
            ErrorCode::InvalidRecord,
            "clients may not write control batches",
        );
    }
    if header.is_transactional() {
        return refuse(
            ErrorCode::InvalidTxnState,
            "this broker has no transactions",
        );
    }
    if header.base_offset != 0 {
        let message = format!(
            "the base offset of a produced batch is 0, not {}",
            header.base_offset
        );
        return refuse(ErrorCode::InvalidRecord, message);
    }
    if header.records_count < 1
        || i64::from(header.last_offset_delta) + 1 != i64::from(header.records_count)
    {
        let message = format!(
            "{} records do not fit a last offset delta of {}",
            header.records_count, header.last_offset_delta
        );
        return refuse(ErrorCode::InvalidRecord, message);
    }
    if header.producer_id >= 0 && (header.base_sequence < 0 || header.producer_epoch < 0) {
        let message = format!(
            "sequence {} and epoch {} do not go with producer id {}",
            header.base_sequence, header.producer_epoch, header.producer_id
        );
        return refuse(ErrorCode::InvalidRecord, message);
    }
    Ok(())
}

/// Refuses times that the topic does not take; warns of those that retention will not keep.
async fn check_times(
    context: &Context<'_>,
    batch: &RecordBatch,
    topic: &Topic,
    partition: &Partition,
    now: Now,
) -> Result<(), Refusal> {
    let window = Window::new(topic.config.log(), now.wall_ms);
    if window.is_doubtful(batch.header()) {
        let doubtful = batch.clone();
        let look = move || {
            if let Err(error) = doubtful.check_crc() {
                return refuse(ErrorCode::CorruptMessage, error.to_string());
            }
            window
                .check(&doubtful, MAX_DECOMPRESSED)
                .map_err(|(message, records)| Refusal {
                    code: ErrorCode::InvalidTimestamp,
                    message,
                    records,
                })
        };
        let looked = context.broker.pool.run(look).await;
        looked.unwrap_or_else(|Failed| {
            refuse(
                ErrorCode::InvalidTimestamp,
                "the records could not be looked into",
            )
        })?;
    }
    let stamp_ms = batch.header().max_timestamp;
    if window.is_expired(stamp_ms) && partition.may_warn(now.monotonic) {
        let unit = timestamps::likely_unit(stamp_ms);
        warn!(
            partition = %partition.id(), stamp_ms, unit,
            "a producer's records are older than retention.ms already: retention will delete them soon"
        );
    }
    Ok(())
}

/// Compaction keeps the last record of each key, so each record needs one.
fn check_keys(batch: &RecordBatch) -> Result<(), Refusal> {
    let unreadable =
        |error: &dyn std::error::Error| refuse(ErrorCode::InvalidRecord, error.to_string());
    if let Err(error) = batch.check_crc() {
        return refuse(ErrorCode::CorruptMessage, error.to_string());
    }
    let records = match batch.records(MAX_DECOMPRESSED) {
        Ok(records) => records,
        Err(error) => return unreadable(&error),
    };
    let mut keyless = Vec::new();
    for (batch_index, record) in (0..).zip(records.iter()) {
        match record {
            Ok(record) if record.key.is_some() => {}
            Ok(_) => keyless.push(BatchIndexAndErrorMessage {
                batch_index,
                batch_index_error_message: Some(ByteString::from_static(
                    "a record of a compacted topic needs a key",
                )),
            }),
            Err(error) => return unreadable(&error),
        }
    }
    if keyless.is_empty() {
        return Ok(());
    }
    Err(Refusal {
        code: ErrorCode::InvalidRecord,
        message:
            "one or more records have been refused: the topic is compacted and they have no key"
                .to_owned(),
        records: keyless,
    })
}
