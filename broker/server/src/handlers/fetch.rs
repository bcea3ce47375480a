//! Fetch 4–18: whole batches from an offset on, waiting for them up to `max_wait_ms`; in sessions from 7, topics by
//! id from 13.
//!
//! A topic id that stood for a topic which was made again since is `INCONSISTENT_TOPIC_ID` in a session that knew it,
//! any other that is not there `UNKNOWN_TOPIC_ID`. Deviations from Apache Kafka: followers are served like consumers;
//! records end at a batch's end, never within one; a request without partitions opens no session, and sessions hold
//! a bounded number of partitions (see `fetch_sessions`).
//!
//! ```text
//!  session ─► resolve ─► slice (index only) ─► enough? ─no─► wait for an append ─┐
//!                 ▲                    │ yes, or time is up           │
//!                 └────────────────────┼───────────────────────────────┘
//!                                      ▼
//!                           permit for the bytes ─► read ─► session ─► answer
//! ```

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use broker_log::{LogSlice, Offsets, PartitionReader, ReadLimits};
use broker_protocol::{
    ByteString, ErrorCode,
    messages::{
        FetchRequest, FetchResponse, Hole, Payload,
        fetch::{EpochEndOffset, FetchPartition, FetchableTopicResponse, PartitionData},
    },
};
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tracing::warn;
use uuid::Uuid;

use super::Context;
use crate::{
    fetch_sessions::{Answered, Asked, TopicRef},
    partition::{Partition, Watch},
    pool::Failed,
    topics::Topic,
};

/// Up to so many bytes are read on the runtime thread, if they are in the page cache: less than a hop to the pool costs.
const INLINE_READ: usize = 256 * 1024;
/// From so many bytes on a partition's records are sent from their file: below, the calls cost more than the copy.
const SEND_FROM_FILE: usize = 32 * 1024;
/// First version that names topics by id.
const BY_ID: i16 = 13;
/// Isolation level that reads only below the last stable offset.
const READ_COMMITTED: i8 = 1;

/// One partition of the request or its session, looked up.
struct Wanted {
    partition: Result<Arc<Partition>, ErrorCode>,
    asked: Asked,
}

/// What one partition gives, before its bytes are read.
enum Found {
    Error(ErrorCode, Option<Offsets>),
    Diverging(EpochEndOffset, Offsets),
    Slice {
        slice: Option<LogSlice>,
        offsets: Offsets,
    },
}

impl Found {
    fn slice(&self) -> Option<&LogSlice> {
        match self {
            Self::Slice { slice, .. } => slice.as_ref(),
            Self::Error(..) | Self::Diverging(..) => None,
        }
    }
}

/// One look at all partitions.
struct Round {
    found: Vec<Found>,
    bytes: usize,
    /// Something that the client should hear of at once.
    urgent: bool,
}

/// The answer, and what of it is elsewhere.
pub(super) struct Fetched {
    pub(super) response: FetchResponse,
    /// Kept until the answer has been written.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// Records that are sent from their files, by the number of their place in the response.
    apart: Vec<Option<LogSlice>>,
}

impl Fetched {
    fn refused(code: ErrorCode) -> Self {
        Self {
            response: FetchResponse {
                error_code: code.code(),
                ..FetchResponse::default()
            },
            permit: None,
            apart: Vec::new(),
        }
    }

    /// What is to be sent from files, and before which byte of the response, which has been encoded.
    pub(super) fn files(&mut self) -> Vec<(usize, LogSlice)> {
        let topics = self.response.responses.iter();
        let records = topics.flat_map(|topic| topic.partitions.iter().map(|data| &data.records));
        let holes = records.filter_map(|records| records.as_ref()?.hole());
        let files = holes.filter_map(|hole| {
            let slice = self.apart.get_mut(hole.number())?.take()?;
            Some((hole.position()?, slice))
        });
        files.collect()
    }
}

pub(super) async fn handle(
    context: &Context<'_>,
    version: i16,
    mut request: FetchRequest,
) -> Fetched {
    let sessions = &context.broker.fetch_sessions;
    let begun = sessions.begin(&mut request, version >= BY_ID, Instant::now());
    let (turn, asked) = match begun {
        Ok(begun) => begun,
        Err(code) => return Fetched::refused(code),
    };
    let committed = request.isolation_level == READ_COMMITTED;
    let max_bytes = at_most(
        request.max_bytes,
        context.broker.config.fetch_max_bytes.as_u64(),
    );
    let wanted = resolve(context, asked);
    let (max_wait_ms, min_bytes) = (request.max_wait_ms, request.min_bytes);
    let round = wait_for_enough(context, &wanted, max_wait_ms, min_bytes, max_bytes).await;
    let Read {
        records,
        apart,
        permit,
    } = read(context, &wanted, round).await;
    let bytes: usize = records.iter().map(|(_, records)| records.len()).sum();
    context.broker.metrics.fetch_bytes.inc_by(bytes as u64);

    let answered = wanted.into_iter().zip(records);
    let answered = answered.map(|(wanted, (found, records))| Answered {
        data: describe(&wanted, &found, records, committed),
        asked: wanted.asked,
    });
    let answer = sessions.finish(turn, answered.collect(), Instant::now());
    let response = FetchResponse {
        error_code: answer.error.code(),
        session_id: answer.session_id,
        responses: by_topic(answer.partitions),
        ..FetchResponse::default()
    };
    Fetched {
        response,
        permit,
        apart,
    }
}

/// Puts neighbours of one topic together.
fn by_topic(partitions: Vec<Answered>) -> Vec<FetchableTopicResponse> {
    let mut topics: Vec<FetchableTopicResponse> = Vec::new();
    let mut last: Option<TopicRef> = None;
    for Answered { asked, data } in partitions {
        if last.as_ref() != Some(&asked.topic) {
            let (topic, topic_id) = match &asked.topic {
                TopicRef::Name(name) => (name.clone(), Uuid::nil()),
                TopicRef::Id(id) => (ByteString::new(), *id),
            };
            topics.push(FetchableTopicResponse {
                topic,
                topic_id,
                ..FetchableTopicResponse::default()
            });
            last = Some(asked.topic);
        }
        if let Some(topic) = topics.last_mut() {
            topic.partitions.push(data);
        }
    }
    topics
}

/// About the bytes that a response takes in memory, so that records are copied once.
pub(super) fn size_of(response: &FetchResponse) -> usize {
    let topics = response.responses.iter();
    let partitions = topics.clone().flat_map(|topic| &topic.partitions);
    let records = partitions.map(|data| match &data.records {
        Some(Payload::Bytes(records)) => 100 + records.len(),
        Some(Payload::Apart(_)) | None => 100,
    });
    topics.map(|topic| 20 + topic.topic.len()).sum::<usize>() + records.sum::<usize>() + 30
}

/// A limit from the wire, where a negative one means nothing, under our own.
fn at_most(limit: i32, cap: u64) -> usize {
    let cap = usize::try_from(cap).unwrap_or(usize::MAX);
    usize::try_from(limit).unwrap_or(0).min(cap)
}

/// Looks each topic up once, as long as its partitions come one after the other.
fn resolve(context: &Context<'_>, asked: Vec<Asked>) -> Vec<Wanted> {
    let mut last: Option<(TopicRef, Result<Arc<Topic>, ErrorCode>)> = None;
    let resolved = asked.into_iter().map(|mut asked| {
        let found = match &last {
            Some((topic, found)) if *topic == asked.topic => found.clone(),
            _ => {
                let found = find(context, &asked);
                last = Some((asked.topic.clone(), found.clone()));
                found
            }
        };
        let partition = found.and_then(|topic| {
            let partition = topic.partition(asked.request.partition)?;
            partition.check_leader_epoch(asked.request.current_leader_epoch)?;
            asked.known_as = Some(topic.name.clone());
            Ok(Arc::clone(partition))
        });
        Wanted { partition, asked }
    });
    resolved.collect()
}

fn find(context: &Context<'_>, asked: &Asked) -> Result<Arc<Topic>, ErrorCode> {
    let topics = &context.broker.topics;
    match &asked.topic {
        TopicRef::Name(name) => topics.get(name).ok_or(ErrorCode::UnknownTopicOrPartition),
        TopicRef::Id(id) => topics.by_id(*id).ok_or_else(|| {
            let known = asked.known_as.as_ref();
            match known.and_then(|name| topics.get(name.as_str())) {
                Some(_) => ErrorCode::InconsistentTopicId,
                None => ErrorCode::UnknownTopicId,
            }
        }),
    }
}

/// Looks until there are `min_bytes`, something urgent, no time left or the broker stops. Sleeps in between;
/// every append to one of the partitions wakes it.
async fn wait_for_enough(
    context: &Context<'_>,
    wanted: &[Wanted],
    max_wait_ms: i32,
    min_bytes: i32,
    max_bytes: usize,
) -> Round {
    // By the clock that it sleeps by.
    let began = tokio::time::Instant::now();
    let max_wait = Duration::from_millis(u64::try_from(max_wait_ms).unwrap_or(0));
    let min_bytes = usize::try_from(min_bytes).unwrap_or(0).min(max_bytes);
    let mut watch: Option<Watch> = None;
    loop {
        let appended = watch.as_ref().map(Watch::appended_bytes);
        let round = look(wanted, max_bytes);
        let enough = round.urgent || round.bytes >= min_bytes || wanted.is_empty();
        if enough || began.elapsed() >= max_wait || context.stop.is_cancelled() {
            return round;
        }
        let (Some(watch), Some(appended)) = (&watch, appended) else {
            // Registered first and looked at again: an append in between is not missed.
            let partitions = wanted
                .iter()
                .filter_map(|wanted| wanted.partition.clone().ok());
            watch = Some(Watch::new(partitions.collect()));
            continue;
        };
        let missing = (min_bytes - round.bytes) as u64;
        // Lets go of the files while it waits.
        drop(round);
        let mut seen = appended;
        loop {
            let left = max_wait.saturating_sub(began.elapsed());
            let woken = tokio::select! {
                () = context.stop.cancelled() => false,
                woken = watch.changed(left) => woken,
            };
            let now = watch.appended_bytes();
            // Woken without more bytes: a partition was closed, or only the watermark moved.
            if !woken || now - appended >= missing || now == seen {
                break;
            }
            seen = now;
        }
    }
}

/// Finds what each partition would give within the limits, without reading it. The first partition that has
/// anything gives one whole batch, however large (KIP-74).
fn look(wanted: &[Wanted], max_bytes: usize) -> Round {
    let mut round = Round {
        found: Vec::with_capacity(wanted.len()),
        bytes: 0,
        urgent: false,
    };
    for Wanted { partition, asked } in wanted {
        let request = &asked.request;
        let found = match partition {
            Ok(partition) => {
                let left = max_bytes.saturating_sub(round.bytes);
                let max_bytes = at_most(request.partition_max_bytes, left as u64);
                let min_one_batch = round.bytes == 0;
                look_at(
                    partition,
                    request,
                    ReadLimits {
                        max_bytes,
                        min_one_batch,
                        up_to_offset: i64::MAX,
                    },
                )
            }
            Err(code) => Found::Error(*code, None),
        };
        match &found {
            Found::Slice {
                slice: Some(slice), ..
            } => round.bytes += slice.len(),
            Found::Slice { slice: None, .. } => {}
            Found::Error(..) | Found::Diverging(..) => round.urgent = true,
        }
        round.found.push(found);
    }
    round
}

fn look_at(partition: &Partition, request: &FetchPartition, limits: ReadLimits) -> Found {
    if partition.is_closed() {
        return Found::Error(ErrorCode::UnknownTopicOrPartition, None);
    }
    if partition.is_offline() {
        return Found::Error(ErrorCode::KafkaStorageError, None);
    }
    let reader = partition.reader();
    if request.last_fetched_epoch >= 0 {
        let end = partition.end_of_leader_epoch(request.last_fetched_epoch);
        if end.leader_epoch < 0 || end.end_offset < 0 {
            // An epoch that the log cannot place: Kafka has the client start over, too.
            return Found::Error(ErrorCode::OffsetOutOfRange, Some(reader.offsets()));
        }
        if end.leader_epoch < request.last_fetched_epoch || end.end_offset < request.fetch_offset {
            let end = EpochEndOffset {
                epoch: end.leader_epoch,
                end_offset: end.end_offset,
            };
            return Found::Diverging(end, reader.offsets());
        }
    }
    let offset = request.fetch_offset;
    let before = reader.offsets();
    if offset < before.log_start || offset > before.high_watermark {
        return Found::Error(ErrorCode::OffsetOutOfRange, Some(before));
    }
    if offset == before.high_watermark || (limits.max_bytes == 0 && !limits.min_one_batch) {
        return Found::Slice {
            slice: None,
            offsets: before,
        };
    }
    // All below the high watermark is decided: there are no transactions, so both isolation levels read the same.
    match reader.slice(
        offset,
        ReadLimits {
            up_to_offset: before.high_watermark,
            ..limits
        },
    ) {
        Ok(slice) => {
            let slice = Some(slice).filter(|slice| !slice.is_empty());
            Found::Slice {
                slice,
                offsets: before,
            }
        }
        Err(error) => failed(partition, &error),
    }
}

fn failed(partition: &Partition, error: &broker_log::Error) -> Found {
    let code = error.error_code();
    if code == ErrorCode::KafkaStorageError {
        let error = error as &dyn std::error::Error;
        warn!(partition = %partition.id(), error, "read failed");
    }
    Found::Error(code, Some(partition.reader().offsets()))
}

/// The records of a round, in memory or apart.
struct Read {
    records: Vec<(Found, Payload)>,
    apart: Vec<Option<LogSlice>>,
    permit: Option<OwnedSemaphorePermit>,
}

/// Reads the bytes of a round, within the broker's bytes in flight: when those are used up, only the first
/// batch of the first partition, so that every client gets on. What is large is left in its file, but within TLS.
async fn read(context: &Context<'_>, wanted: &[Wanted], round: Round) -> Read {
    let Round { mut found, .. } = round;
    let tls = context.listener.protocol.has_tls();
    let is_apart = move |slice: &LogSlice| !tls && slice.len() >= SEND_FROM_FILE;
    let in_memory = found.iter().filter_map(Found::slice);
    let bytes = in_memory
        .filter(|slice| !is_apart(slice))
        .map(LogSlice::len);
    let mut bytes: usize = bytes.sum();
    let mut permit = None;
    if bytes > 0 {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let budget = Arc::clone(&context.broker.fetch_budget);
        permit = budget.try_acquire_many_owned(permits).ok();
        if permit.is_none() {
            bytes = keep_one_batch(wanted, &mut found);
        }
    }
    let slices = found.iter_mut().map(|found| match found {
        Found::Slice { slice, .. } => slice.take(),
        Found::Error(..) | Found::Diverging(..) => None,
    });
    let slices: Vec<Option<LogSlice>> = slices.collect();
    let is_cached = bytes <= INLINE_READ && slices.iter().flatten().all(LogSlice::is_cached);
    let get = move |slice: Option<LogSlice>| match slice {
        None => Ok(Got::Bytes(Bytes::new())),
        Some(slice) if !is_apart(&slice) => slice.read().map(Got::Bytes),
        Some(slice) if is_cached => Ok(Got::Apart(slice)),
        Some(slice) => slice.warm().map(|()| Got::Apart(slice)),
    };
    let get = move || slices.into_iter().map(get).collect::<Vec<_>>();
    let results = if is_cached {
        Ok(get())
    } else {
        context.broker.pool.run(get).await
    };
    let results = results.unwrap_or_else(|Failed| {
        warn!("a read failed inside the broker");
        found.iter().map(|_| Ok(Got::Bytes(Bytes::new()))).collect()
    });
    let mut apart = Vec::new();
    let records = found.into_iter().zip(results).zip(wanted);
    let records = records.map(|((found, got), wanted)| match (got, &wanted.partition) {
        (Ok(Got::Bytes(bytes)), _) => (found, bytes.into()),
        (Ok(Got::Apart(slice)), _) => {
            let hole = Hole::new(slice.len(), apart.len());
            apart.push(Some(slice));
            (found, Payload::Apart(hole))
        }
        (Err(error), Ok(partition)) => (failed(partition, &error), Payload::default()),
        (Err(error), Err(_)) => (Found::Error(error.error_code(), None), Payload::default()),
    });
    Read {
        records: records.collect(),
        apart,
        permit,
    }
}

/// A slice's bytes.
enum Got {
    Bytes(Bytes),
    Apart(LogSlice),
}

/// Cuts a round down to the first batch it holds; its size in bytes.
fn keep_one_batch(wanted: &[Wanted], found: &mut [Found]) -> usize {
    let mut kept = 0;
    for (wanted, found) in wanted.iter().zip(found) {
        let Found::Slice { slice, offsets } = found else {
            continue;
        };
        let first = slice.take().filter(|_| kept == 0);
        let one = first.and_then(|_| {
            let reader: &PartitionReader = wanted.partition.as_ref().ok()?.reader();
            let up_to_offset = offsets.high_watermark;
            let limits = ReadLimits {
                max_bytes: 0,
                min_one_batch: true,
                up_to_offset,
            };
            reader.slice(wanted.asked.request.fetch_offset, limits).ok()
        });
        kept += one.as_ref().map_or(0, LogSlice::len);
        *slice = one;
    }
    kept
}

fn describe(wanted: &Wanted, found: &Found, records: Payload, committed: bool) -> PartitionData {
    let answer = PartitionData {
        partition_index: wanted.asked.request.partition,
        aborted_transactions: committed.then(Vec::new),
        records: Some(records),
        ..PartitionData::default()
    };
    let placed = |offsets: &Offsets| PartitionData {
        high_watermark: offsets.high_watermark,
        last_stable_offset: offsets.last_stable,
        log_start_offset: offsets.log_start,
        ..answer.clone()
    };
    match found {
        Found::Error(code, offsets) => {
            let unplaced = || PartitionData {
                high_watermark: -1,
                ..answer.clone()
            };
            let placed = offsets.as_ref().map_or_else(unplaced, placed);
            PartitionData {
                error_code: code.code(),
                aborted_transactions: None,
                ..placed
            }
        }
        Found::Diverging(end, offsets) => PartitionData {
            diverging_epoch: end.clone(),
            ..placed(offsets)
        },
        Found::Slice { offsets, .. } => placed(offsets),
    }
}
