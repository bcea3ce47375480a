//! Produce 3–13; offered from 0, and 0–2 answered with `UNSUPPORTED_VERSION` for each partition. Topics by id from 13,
//! one that is not there is `UNKNOWN_TOPIC_ID`.
//!
//! Exactly one batch of record format 2 a partition, kept as the bytes it came as. Deviations from Apache Kafka:
//! compressed records are not looked into unless the topic is compacted; a codec number that does not exist is
//! `UNSUPPORTED_COMPRESSION_TYPE`, not an unknown server error; transactions are refused, a transactional id
//! with `UNSUPPORTED_VERSION`, a transactional batch with `INVALID_TXN_STATE`. Of times see `timestamps`. Where
//! `flush.messages` is reached, or acks=all meets a topic that shows only what is flushed, the answer comes after a
//! flush, which all requests that wait for one share; the request's time-out does not end that wait.

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
use futures::future::join_all;
use tracing::warn;

use super::{
    Context, Refused, Reply,
    timestamps::{self, Window},
};
use crate::{
    partition::{Partition, Placed, Unavailable},
    pool::Failed,
    topics::Topic,
};

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

impl Refusal {
    fn response(self, index: i32) -> PartitionProduceResponse {
        PartitionProduceResponse {
            index,
            error_code: self.code.code(),
            base_offset: -1,
            record_errors: self.records,
            error_message: Some(self.message.into()),
            ..PartitionProduceResponse::default()
        }
    }
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
    let mut owing = Vec::new();
    let mut answers = Vec::with_capacity(request.topic_data.len());
    for topic_data in request.topic_data {
        let by_id = version >= BY_ID;
        let topic = if by_id {
            context.broker.topics.by_id(topic_data.topic_id)
        } else {
            context.broker.topics.get(&topic_data.name)
        };
        let mut partitions = Vec::with_capacity(topic_data.partition_data.len());
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
            let appended = appended.map(|Answer { response, owes }| {
                let owes = owes.map(|owes| {
                    owing.push(owes);
                    owing.len() - 1
                });
                (response, owes)
            });
            partitions.push((index, appended));
        }
        answers.push((topic_data.name, topic_data.topic_id, partitions));
    }
    let mut flushes = flush(context, owing).await;
    let mut failure = None;
    let mut respond = |(index, appended): (i32, Result<_, Refusal>)| {
        let flushed = appended.and_then(|(response, owes): (_, Option<usize>)| {
            let flushed = owes.and_then(|at| flushes.get_mut(at)).map(std::mem::take);
            flushed.flatten().map_or(Ok(response), Err)
        });
        flushed.unwrap_or_else(|refusal| {
            failure.get_or_insert_with(|| refusal.message.clone());
            refusal.response(index)
        })
    };
    let responses = answers
        .into_iter()
        .map(|(name, topic_id, partitions)| TopicProduceResponse {
            name,
            topic_id,
            partition_responses: partitions.into_iter().map(&mut respond).collect(),
        })
        .collect();
    match failure {
        Some(reason) if acks == 0 => Err(Refused::Unacknowledged { reason }),
        None if acks == 0 => Ok(None),
        _ => Ok(Some(ProduceResponse {
            responses,
            ..ProduceResponse::default()
        })),
    }
}

/// What one partition answers, and the flush that comes first.
struct Answer {
    response: PartitionProduceResponse,
    owes: Option<Owes>,
}

/// A flush up to an offset, owed before the answer.
struct Owes {
    partition: Arc<Partition>,
    end_offset: i64,
}

/// Pays all that is owed, at once; for each why it failed, if it did.
async fn flush(context: &Context<'_>, owing: Vec<Owes>) -> Vec<Option<Refusal>> {
    let monotonic = context.broker.clock.monotonic();
    let flush = |owes: Owes| async move {
        let Owes {
            partition,
            end_offset,
        } = owes;
        let flushed = partition.flush_to(&context.broker.pool, end_offset, monotonic);
        flushed.await.err().map(|error| failed(&partition, &error))
    };
    join_all(owing.into_iter().map(flush)).await
}

fn failed(partition: &Partition, error: &Unavailable) -> Refusal {
    let (code, message) = (error.error_code(), error.message());
    if code == ErrorCode::KafkaStorageError {
        warn!(partition = %partition.id(), error = message, "append failed");
    }
    Refusal {
        code,
        message,
        records: Vec::new(),
    }
}

async fn append(
    context: &Context<'_>,
    version: i16,
    acks: i16,
    topic: &Arc<Topic>,
    data: PartitionProduceData,
) -> Result<Answer, Refusal> {
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
    let now = context.broker.now();
    check_times(context, &batch, topic, partition, now.wall_ms).await?;
    let free = || context.broker.topics.dir().free_bytes().ok();
    if let Err(full) = context.broker.space.take(batch.bytes().len(), free) {
        return refuse(ErrorCode::KafkaStorageError, full.to_string());
    }
    let placed = partition
        .append(&batch, acks == -1, now)
        .map_err(|error| failed(partition, &error))?;
    let Placed {
        appended,
        owes_flush,
    } = placed;
    if !appended.duplicate {
        let metrics = &context.broker.metrics;
        let records = u64::try_from(batch.header().records_count);
        metrics.produce_records.inc_by(records.unwrap_or(0));
        metrics.produce_bytes.inc_by(batch.bytes().len() as u64);
    }
    Ok(Answer {
        response: PartitionProduceResponse {
            index: data.index,
            base_offset: appended.base_offset,
            log_append_time_ms: appended.log_append_time_ms,
            log_start_offset: appended.log_start_offset,
            ..PartitionProduceResponse::default()
        },
        owes: owes_flush.then(|| Owes {
            partition: Arc::clone(partition),
            end_offset: appended.end_offset,
        }),
    })
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
    if plain && !batch.is_filled() {
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

/// Refuses times that the topic does not take; warns of those that retention will not keep.
async fn check_times(
    context: &Context<'_>,
    batch: &RecordBatch,
    topic: &Topic,
    partition: &Partition,
    now_ms: i64,
) -> Result<(), Refusal> {
    let window = Window::new(topic.config.log(), now_ms);
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
    if window.is_expired(stamp_ms) && partition.may_warn(context.broker.clock.monotonic()) {
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

/// Answers versions 0–2 in their own form; the codec does not know them.
pub(super) fn refuse_old(body: Bytes, header: &RequestHeader) -> Result<Option<Reply>, Refused> {
    let (acks, topics) = parse_old(body)?;
    if acks == 0 {
        let reason = format!("produce version {} is too old", header.api_version);
        return Err(Refused::Unacknowledged { reason });
    }
    let refused = topics.iter().map(|(_, partitions)| partitions.len()).sum();
    let errors = vec![ErrorCode::UnsupportedVersion.code(); refused];
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
        errors,
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
    fn old_requests_are_read_without_trusting_their_counts() {
        let mut body = BytesMut::new();
        body.put_i16(1);
        body.put_i32(1000);
        body.put_i32(i32::MAX);
        assert!(parse_old(body.freeze()).is_err());
    }
}
