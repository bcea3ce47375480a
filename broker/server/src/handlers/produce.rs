//! Produce 3–13; offered from 0, and 0–2 answered with `UNSUPPORTED_VERSION` for each partition. Topics by id from 13,
//! one that is not there is `UNKNOWN_TOPIC_ID`.
//!
//! Exactly one batch of record format 2 a partition, kept as the bytes it came as. Deviations from Apache Kafka:
//! compressed records are not looked into unless the topic is compacted; a codec number that does not exist is
//! `UNSUPPORTED_COMPRESSION_TYPE`, not an unknown server error; transactions are refused, a transactional id
//! with `UNSUPPORTED_VERSION`, a transactional batch with `INVALID_TXN_STATE`.

use std::sync::Arc;

use broker_protocol::{
    ByteString, DecodeError, ErrorCode, TopicName,
    frame::RequestHeader,
    messages::{
        ProduceRequest, ProduceResponse,
        produce::{
            BatchIndexAndErrorMessage, PartitionProduceData, PartitionProduceResponse,
            TopicProduceResponse,
        },
    },
    primitives::{LengthForm, get_bytes, get_i16, get_i32, get_length, get_string},
    record::{BatchHeader, Compression, RecordBatch},
};
use bytes::{BufMut, Bytes, BytesMut};
use tracing::warn;

use super::{Context, Refused, Reply};
use crate::{pool::Failed, topics::Topic};

/// Lowest version that appends.
pub(super) const MIN_VERSION: i16 = 3;
/// Highest version that is served.
pub(super) const MAX_VERSION: i16 = 13;
/// First version that names topics by id.
const BY_ID: i16 = 13;
/// First version that may carry zstd.
const ZSTD: i16 = 7;
/// Where the record format's number lies in every format.
const MAGIC_OFFSET: usize = 16;
/// Bound on the memory of one batch of a compacted topic while its keys are checked, in bytes.
const MAX_DECOMPRESSED: usize = 128 << 20;

/// Why a batch is not appended.
#[derive(Debug, PartialEq)]
struct Refusal {
    code: ErrorCode,
    message: String,
    records: Vec<BatchIndexAndErrorMessage>,
}

fn refuse<T>(code: ErrorCode, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        code,
        message: message.into(),
        records: Vec::new(),
    })
}

/// Appends each batch. `None` for acks=0, unless something failed: then the connection is closed.
pub(super) async fn handle(
    context: &Context<'_>,
    version: i16,
    request: ProduceRequest,
) -> Result<Option<ProduceResponse>, Refused> {
    let acks = request.acks;
    let transactional = request.transactional_id.is_some();
    let mut failure = None;
    let mut responses = Vec::with_capacity(request.topic_data.len());
    for topic_data in request.topic_data {
        let by_id = version >= BY_ID;
        let topic = if by_id {
            context.broker.topics.by_id(topic_data.topic_id)
        } else {
            context.broker.topics.get(&topic_data.name)
        };
        let mut partition_responses = Vec::with_capacity(topic_data.partition_data.len());
        for data in topic_data.partition_data {
            let index = data.index;
            let appended = match &topic {
                _ if transactional => refuse(
                    ErrorCode::UnsupportedVersion,
                    "this broker has no transactions; produce without a transactional id",
                ),
                Some(topic) if topic.is_internal() => refuse(
                    ErrorCode::InvalidTopicException,
                    "only the broker writes to its own topics",
                ),
                Some(topic) => append(context, version, acks, topic, data).await,
                None if by_id => refuse(ErrorCode::UnknownTopicId, "no topic of this id"),
                None if TopicName::try_from(topic_data.name.clone()).is_err() => {
                    refuse(ErrorCode::InvalidTopicException, "not a topic name")
                }
                None => refuse(ErrorCode::UnknownTopicOrPartition, "no such topic"),
            };
            partition_responses.push(appended.unwrap_or_else(|refusal| {
                let Refusal {
                    code,
                    message,
                    records,
                } = refusal;
                let response = PartitionProduceResponse {
                    index,
                    error_code: code.code(),
                    base_offset: -1,
                    record_errors: records,
                    error_message: Some(message.clone().into()),
                    ..PartitionProduceResponse::default()
                };
                failure.get_or_insert(message);
                response
            }));
        }
        responses.push(TopicProduceResponse {
            name: topic_data.name,
            topic_id: topic_data.topic_id,
            partition_responses,
        });
    }
    match failure {
        Some(reason) if acks == 0 => Err(Refused::Unacknowledged { reason }),
        None if acks == 0 => Ok(None),
        _ => Ok(Some(ProduceResponse {
            responses,
            ..ProduceResponse::default()
        })),
    }
}

async fn append(
    context: &Context<'_>,
    version: i16,
    acks: i16,
    topic: &Arc<Topic>,
    data: PartitionProduceData,
) -> Result<PartitionProduceResponse, Refusal> {
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
    let partition = match topic.partition(data.index) {
        Ok(partition) => partition,
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
    let free = || context.broker.topics.dir().free_bytes().ok();
    if let Err(full) = context.broker.space.take(batch.bytes().len(), free) {
        return refuse(ErrorCode::KafkaStorageError, full.to_string());
    }
    match partition.append(&batch, context.broker.clock.now_ms()) {
        Ok(appended) => Ok(PartitionProduceResponse {
            index: data.index,
            base_offset: appended.base_offset,
            log_append_time_ms: appended.log_append_time_ms,
            log_start_offset: appended.log_start_offset,
            ..PartitionProduceResponse::default()
        }),
        Err(error) => {
            let (code, message) = (error.error_code(), error.message());
            if code == ErrorCode::KafkaStorageError {
                warn!(partition = %partition.id(), error = message, "append failed");
            }
            refuse(code, message)
        }
    }
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
    let plain = header
        .compression()
        .is_ok_and(|codec| codec == Compression::None);
    if plain && !records_fill(&batch, header.records_count) {
        return refuse(
            ErrorCode::InvalidRecord,
            "the records do not fill the batch",
        );
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

/// Whether exactly `count` records, by their own lengths, fill an uncompressed batch.
fn records_fill(batch: &RecordBatch, count: i32) -> bool {
    let mut rest = batch.bytes().get(BatchHeader::LEN..).unwrap_or_default();
    for _ in 0..count {
        let Some((length, used)) = zigzag_varint(rest) else {
            return false;
        };
        let Some(after) = usize::try_from(length)
            .ok()
            .and_then(|length| used.checked_add(length))
        else {
            return false;
        };
        let Some(next) = rest.get(after..) else {
            return false;
        };
        rest = next;
    }
    rest.is_empty()
}

/// A zigzag varint of at most five bytes, and how many it took.
fn zigzag_varint(bytes: &[u8]) -> Option<(i32, usize)> {
    let mut value = 0_u32;
    for (index, &byte) in bytes.iter().take(5).enumerate() {
        value |= u32::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            let sign = 0_u32.wrapping_sub(value & 1);
            return Some((((value >> 1) ^ sign).cast_signed(), index + 1));
        }
    }
    None
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

/// Answers versions 0–2 in their own form; the codec does not know them.
pub(super) fn refuse_old(body: Bytes, header: &RequestHeader) -> Result<Option<Reply>, Refused> {
    let (acks, topics) = parse_old(body)?;
    if acks == 0 {
        let reason = format!("produce version {} is too old", header.api_version);
        return Err(Refused::Unacknowledged { reason });
    }
    let mut frame = BytesMut::new();
    frame.put_i32(0);
    frame.put_i32(header.correlation_id);
    put_count(&mut frame, topics.len());
    for (name, partitions) in topics {
        // A string of the request, whose length had two bytes there, too.
        frame.put_i16(i16::try_from(name.len()).unwrap_or(i16::MAX));
        frame.put_slice(name.as_bytes());
        put_count(&mut frame, partitions.len());
        for index in partitions {
            frame.put_i32(index);
            frame.put_i16(ErrorCode::UnsupportedVersion.code());
            frame.put_i64(-1);
            if header.api_version >= 2 {
                frame.put_i64(-1);
            }
        }
    }
    if header.api_version >= 1 {
        frame.put_i32(0);
    }
    let length = i32::try_from(frame.len() - size_of::<i32>()).unwrap_or(i32::MAX);
    if let Some(prefix) = frame.first_chunk_mut() {
        *prefix = length.to_be_bytes();
    }
    Ok(Some(Reply {
        frame,
        permit: None,
    }))
}

/// A count or length that came out of a request, whose own length has 31 bits.
fn put_count(frame: &mut BytesMut, count: usize) {
    frame.put_i32(i32::try_from(count).unwrap_or(i32::MAX));
}

type OldTopics = Vec<(ByteString, Vec<i32>)>;

/// `acks i16, timeout i32, [topic [partition i32, records bytes]]`.
fn parse_old(mut body: Bytes) -> Result<(i16, OldTopics), DecodeError> {
    let acks = get_i16(&mut body)?;
    get_i32(&mut body)?;
    let mut topics = Vec::new();
    for _ in 0..get_length(&mut body, LengthForm::Int32)?.unwrap_or(0) {
        let name = get_string(&mut body, LengthForm::Int16)?.unwrap_or_default();
        let mut partitions = Vec::new();
        for _ in 0..get_length(&mut body, LengthForm::Int32)?.unwrap_or(0) {
            partitions.push(get_i32(&mut body)?);
            get_bytes(&mut body, LengthForm::Int32)?;
        }
        topics.push((name, partitions));
    }
    Ok((acks, topics))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_read_as_they_are_written() {
        for value in [0, 1, -1, 63, 64, -65, 300, i32::MAX, i32::MIN] {
            let mut bytes = BytesMut::new();
            broker_protocol::primitives::put_varint(&mut bytes, value);
            assert_eq!(zigzag_varint(&bytes), Some((value, bytes.len())));
        }
        assert_eq!(zigzag_varint(&[0x80; 5]), None);
        assert_eq!(zigzag_varint(&[]), None);
    }

    #[test]
    fn old_requests_are_read_without_trusting_their_counts() {
        let mut body = BytesMut::new();
        body.put_i16(1);
        body.put_i32(1000);
        body.put_i32(i32::MAX);
        assert!(parse_old(body.freeze()).is_err());
    }
}
