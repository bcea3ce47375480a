//! Produce 3–13; offered from 0, and 0–2 answered with `UNSUPPORTED_VERSION` for each partition. Topics by id from 13,
//! one that is not there is `UNKNOWN_TOPIC_ID`.
//!
//! Exactly one batch of record format 2 a partition, kept as the bytes it came as. Deviations from Apache Kafka:
//! compressed records are not looked into unless the topic is compacted; a codec number that does not exist is
//! `UNSUPPORTED_COMPRESSION_TYPE`, not an unknown server error; transactions are refused, a transactional id
//! with `UNSUPPORTED_VERSION`, a transactional batch with `INVALID_TXN_STATE`. Of times see `timestamps`. Where
//! `flush.messages` is reached, or acks=all meets a topic that shows only what is flushed, the answer comes after a
//! flush, which all requests that wait for one share; the request's time-out does not end that wait.

//!
//! ```text
//!  requests ─► judge each partition's data ─► append, partition by partition ─► flush what is owed ─► answers
//! ```

use std::sync::Arc;

use broker_protocol::{
    ByteString, ErrorCode, TopicName,
    messages::{
        ProduceRequest, ProduceResponse,
        produce::{
            BatchIndexAndErrorMessage, PartitionProduceResponse, TopicProduceData,
            TopicProduceResponse,
        },
    },
    record::RecordBatch,
};
use futures::future::join_all;
use tracing::warn;
use uuid::Uuid;

use self::judge::judge;
pub(super) use self::old_versions::refuse_old;
use super::{Context, Refused};
use crate::{
    partition::{Now, Partition, Placed, Unavailable},
    topics::Topic,
};

mod judge;
mod old_versions;

/// Lowest version that appends.
pub(super) const MIN_VERSION: i16 = 3;
/// Highest version that is served.
pub(super) const MAX_VERSION: i16 = 13;
/// First version that names topics by id.
const BY_ID: i16 = 13;

/// Why a batch is not appended.
#[derive(Debug, Clone, PartialEq)]
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

/// A batch that is to be appended.
struct Piece {
    partition: Arc<Partition>,
    batch: RecordBatch,
    acks_all: bool,
}

/// What one partition's data has become.
enum Outcome {
    Refused(Refusal),
    /// The piece with this number is still to be asked for.
    Piece(usize),
}

/// A request whose pieces are being appended.
struct Waiting {
    acks: i16,
    topics: Vec<WaitingTopic>,
}

struct WaitingTopic {
    name: ByteString,
    topic_id: Uuid,
    /// By partition.
    outcomes: Vec<(i32, Outcome)>,
}

/// Appends each batch of each request, those of one partition in one write and in their order; the answers are in the
/// order of the requests. `None` for acks=0, unless something failed: then the connection is to be closed.
pub(super) async fn handle(
    context: &Context<'_>,
    requests: Vec<(i16, ProduceRequest)>,
) -> Vec<Result<Option<ProduceResponse>, Refused>> {
    let now = context.broker.now();
    let mut pieces = Vec::with_capacity(requests.len());
    let mut waiting = Vec::with_capacity(requests.len());
    for (version, request) in requests {
        waiting.push(take_apart(context, version, request, now, &mut pieces).await);
    }
    let (mut appended, owing) = append(context, &pieces, now);
    flush(context, &mut appended, owing).await;
    let answers = waiting
        .into_iter()
        .map(|request| answer(request, &mut appended));
    answers.collect()
}

/// Judges each partition's data by itself; what may be appended goes to the pieces.
async fn take_apart(
    context: &Context<'_>,
    version: i16,
    request: ProduceRequest,
    now: Now,
    pieces: &mut Vec<Piece>,
) -> Waiting {
    let acks = request.acks;
    let transactional = request.transactional_id.is_some();
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for topic_data in request.topic_data {
        let TopicProduceData { name, topic_id, .. } = topic_data;
        let topic = if transactional {
            refuse(
                ErrorCode::UnsupportedVersion,
                "this broker has no transactions; produce without a transactional id",
            )
        } else {
            find(context, version, &name, topic_id)
        };
        let mut outcomes = Vec::with_capacity(topic_data.partition_data.len());
        for data in topic_data.partition_data {
            let index = data.index;
            let piece = match &topic {
                Ok(topic) => judge(context, version, acks, now, topic, data).await,
                Err(refusal) => Err(refusal.clone()),
            };
            let outcome = match piece {
                Ok(piece) => {
                    pieces.push(piece);
                    Outcome::Piece(pieces.len() - 1)
                }
                Err(refusal) => Outcome::Refused(refusal),
            };
            outcomes.push((index, outcome));
        }
        topics.push(WaitingTopic {
            name,
            topic_id,
            outcomes,
        });
    }
    Waiting { acks, topics }
}

fn find(
    context: &Context<'_>,
    version: i16,
    name: &ByteString,
    topic_id: Uuid,
) -> Result<Arc<Topic>, Refusal> {
    let topics = &context.broker.topics;
    let by_id = version >= BY_ID;
    let topic = if by_id {
        topics.by_id(topic_id)
    } else {
        topics.get(name)
    };
    match topic {
        Some(topic) if topic.is_internal() => refuse(
            ErrorCode::InvalidTopicException,
            "only the broker writes to its own topics",
        ),
        Some(topic) => Ok(topic),
        None if by_id => refuse(ErrorCode::UnknownTopicId, "no topic of this id"),
        None if TopicName::try_from(name.clone()).is_err() => {
            refuse(ErrorCode::InvalidTopicException, "not a topic name")
        }
        None => refuse(ErrorCode::UnknownTopicOrPartition, "no such topic"),
    }
}

/// A flush up to an offset, owed before the answers for some pieces.
struct Owing {
    partition: Arc<Partition>,
    end_offset: i64,
    pieces: Vec<usize>,
}

/// What became of each piece, by its number.
type Appended = Vec<Option<Result<broker_log::Appended, Refusal>>>;

/// Appends all pieces, those of one partition in one write.
fn append(context: &Context<'_>, pieces: &[Piece], now: Now) -> (Appended, Vec<Owing>) {
    let mut appended: Appended = Vec::new();
    appended.resize_with(pieces.len(), || None);
    let mut order: Vec<(usize, &Piece)> = pieces.iter().enumerate().collect();
    // Stable: those of one partition stay in their order.
    order.sort_by_key(|(_, piece)| Arc::as_ptr(&piece.partition));
    let mut owing = Vec::new();
    for run in order.chunk_by(|(_, one), (_, next)| Arc::ptr_eq(&one.partition, &next.partition)) {
        let Some((_, Piece { partition, .. })) = run.first() else {
            continue;
        };
        let mut owes = Owing {
            partition: Arc::clone(partition),
            end_offset: -1,
            pieces: Vec::new(),
        };
        for ((at, piece), outcome) in run.iter().zip(append_run(partition, run, now)) {
            if let Ok(placed) = &outcome {
                count(context, &piece.batch, placed);
                if placed.owes_flush(piece.acks_all) {
                    owes.end_offset = owes.end_offset.max(placed.appended.end_offset);
                    owes.pieces.push(*at);
                }
            }
            if let Some(slot) = appended.get_mut(*at) {
                *slot = Some(outcome.map(|placed| placed.appended));
            }
        }
        if !owes.pieces.is_empty() {
            owing.push(owes);
        }
    }
    (appended, owing)
}

/// Appends pieces of one partition.
fn append_run(
    partition: &Partition,
    run: &[(usize, &Piece)],
    now: Now,
) -> Vec<Result<Placed, Refusal>> {
    let batches: Vec<RecordBatch> = run.iter().map(|(_, piece)| piece.batch.clone()).collect();
    match partition.append(&batches, now) {
        Ok(outcomes) => {
            let outcomes = outcomes.into_iter();
            let outcomes =
                outcomes.map(|outcome| outcome.map_err(|error| failed(partition, &error)));
            outcomes.collect()
        }
        Err(error) => {
            let refusal = failed(partition, &error);
            run.iter().map(|_| Err(refusal.clone())).collect()
        }
    }
}

fn count(context: &Context<'_>, batch: &RecordBatch, placed: &Placed) {
    if placed.appended.duplicate {
        return;
    }
    let metrics = &context.broker.metrics;
    let records = u64::try_from(batch.header().records_count);
    metrics.produce_records.inc_by(records.unwrap_or(0));
    metrics.produce_bytes.inc_by(batch.bytes().len() as u64);
}

/// Pays all that is owed, at once; a piece whose flush failed is refused.
async fn flush(context: &Context<'_>, appended: &mut Appended, owing: Vec<Owing>) {
    if owing.is_empty() {
        return;
    }
    let monotonic = context.broker.clock.monotonic();
    let flush = |owes: Owing| async move {
        let Owing {
            partition,
            end_offset,
            pieces,
        } = owes;
        let flushed = partition.flush_to(&context.broker.pool, end_offset, monotonic);
        let error = flushed.await.err()?;
        Some((failed(&partition, &error), pieces))
    };
    for (refusal, pieces) in join_all(owing.into_iter().map(flush))
        .await
        .into_iter()
        .flatten()
    {
        for at in pieces {
            if let Some(slot) = appended.get_mut(at) {
                *slot = Some(Err(refusal.clone()));
            }
        }
    }
}

/// What one request is answered.
fn answer(request: Waiting, appended: &mut Appended) -> Result<Option<ProduceResponse>, Refused> {
    let mut failure = None;
    let mut respond = |(index, outcome): (i32, Outcome)| {
        let appended = match outcome {
            Outcome::Refused(refusal) => Err(refusal),
            Outcome::Piece(at) => {
                let slot = appended.get_mut(at).and_then(Option::take);
                slot.unwrap_or_else(|| refuse(ErrorCode::UnknownServerError, "not appended"))
            }
        };
        match appended {
            Ok(appended) => PartitionProduceResponse {
                index,
                base_offset: appended.base_offset,
                log_append_time_ms: appended.log_append_time_ms,
                log_start_offset: appended.log_start_offset,
                ..PartitionProduceResponse::default()
            },
            Err(refusal) => {
                failure.get_or_insert_with(|| refusal.message.clone());
                refusal.response(index)
            }
        }
    };
    let topics = request.topics.into_iter();
    let responses = topics.map(|topic| TopicProduceResponse {
        name: topic.name,
        topic_id: topic.topic_id,
        partition_responses: topic.outcomes.into_iter().map(&mut respond).collect(),
    });
    let responses = responses.collect();
    match failure {
        Some(reason) if request.acks == 0 => Err(Refused::Unacknowledged { reason }),
        None if request.acks == 0 => Ok(None),
        _ => Ok(Some(ProduceResponse {
            responses,
            ..ProduceResponse::default()
        })),
    }
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
