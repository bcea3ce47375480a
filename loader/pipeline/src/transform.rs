//! Kafka records to Arrow rows, sorted by output directory: decode, group, set aside, count.
//!
//! ```text
//! push(topic, partition, records, wanted)            drain()
//!   ├─ value ─► JsonDecoder ─► row ─────────────────► Partitioner ─► rows in order of directories
//!   ├─ bad, or a tombstone by policy ───────────────► rejected batch, in input order
//!   └─ offset, timestamp, key ─► coordinate columns
//! ```
//! What comes out depends on the records pushed alone: cut into other pushes and drains, the same
//! rows reach each directory in the same order. Records are kept until the drain, which is where
//! rejected ones are copied out.

mod groups;
mod policy;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow_buffer::ScalarBuffer;
use arrow_schema::{ArrowError, SchemaRef};
use broker_client::protocol::record::{self, Record, Records};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use groups::{GroupRows, PartitionSpan};
pub use policy::{BadRecordPolicy, PolicyProblem, RecordPolicy, TombstonePolicy};

use crate::decode::builder::{ColumnBuilder, take_with_room};
use crate::decode::json::JsonDecoder;
use crate::partitioner::{Assignment, Grouping, GroupingProblems, Partitioner};
use crate::rejected::RejectedBuilder;
use crate::schema::{ColumnType, SchemaProblems, TableSchema};

/// Default of [`RecordTransform::with_max_pending`].
const MAX_PENDING_BYTES: usize = 32 << 20;

/// Bound of what one push may hold at all: Arrow's arrays count bytes in 31 bits.
const MAX_PAYLOAD_BYTES: usize = 1 << 30;

/// Rejected records named in a [`Chunk`], for the log.
const SAMPLES: usize = 10;

/// Rows between two exact counts of the bytes decoded.
const COUNT_EVERY: usize = 256;

/// What records become. Pinned in the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformSpec {
    /// The columns.
    pub schema: TableSchema,
    /// The directories.
    pub grouping: Grouping,
    /// What happens to tombstones and bad records.
    pub policy: RecordPolicy,
    /// Time of the plan, milliseconds since 1970: the event time window lies around it.
    pub plan_time_ms: i64,
}

/// Counts of one partition's records.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Counts {
    /// Rows in data batches.
    pub rows: u64,
    /// Records in the rejected batch.
    pub rejected: u64,
    /// Tombstones left out by policy.
    pub tombstones_skipped: u64,
    /// Tombstones written as rows of nulls; counted in `rows` too.
    pub tombstones_written: u64,
    /// Fields of decoded records that no column takes, dropped or kept in the rest column.
    pub unknown_fields: u64,
    /// Of `rows`, how many took their event time from each source; the last entry has none.
    pub time_from: Vec<u64>,
}

impl Counts {
    /// Adds the counts of other records of the same grouping.
    pub fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.rejected += other.rejected;
        self.tombstones_skipped += other.tombstones_skipped;
        self.tombstones_written += other.tombstones_written;
        self.unknown_fields += other.unknown_fields;
        if self.time_from.len() < other.time_from.len() {
            self.time_from.resize(other.time_from.len(), 0);
        }
        for (sum, count) in self.time_from.iter_mut().zip(&other.time_from) {
            *sum += count;
        }
    }

    /// Records accounted for: rows, rejected and tombstones skipped.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.rows + self.rejected + self.tombstones_skipped
    }
}

/// One rejected record, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectSample {
    /// Its topic.
    pub topic: Arc<str>,
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Why.
    pub reason: String,
}

/// What [`RecordTransform::drain`] hands out.
#[derive(Debug)]
pub struct Chunk {
    /// The rows, those of one directory beside each other.
    pub rows: RecordBatch,
    /// The directories, in order of their first row.
    pub groups: Vec<GroupRows>,
    /// Records set aside, in input order, in the schema of
    /// [`rejected_schema`](crate::rejected::rejected_schema).
    pub rejected: Option<RecordBatch>,
    /// The first few of them.
    pub samples: Vec<RejectSample>,
    /// Counts per topic and partition pushed since the last drain.
    pub counts: BTreeMap<(Arc<str>, i32), Counts>,
}

/// Why records cannot be transformed. The transform is then of no further use: its attempt fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransformError {
    /// A bad record, and the policy is `fail`.
    #[error("bad record in {topic}-{partition} at offset {offset}: {reason}")]
    BadRecord {
        /// Its topic.
        topic: Arc<str>,
        /// Its partition.
        partition: i32,
        /// Its offset.
        offset: i64,
        /// Why it is bad.
        reason: String,
    },
    /// A record without a value, and the policy is `fail`.
    #[error("tombstone (null value) in {topic}-{partition} at offset {offset}")]
    Tombstone {
        /// Its topic.
        topic: Arc<str>,
        /// Its partition.
        partition: i32,
        /// Its offset.
        offset: i64,
    },
    /// A batch whose records cannot be told apart.
    #[error("malformed record batch in {topic}-{partition}")]
    Undecodable {
        /// Its topic.
        topic: Arc<str>,
        /// Its partition.
        partition: i32,
        /// What is wrong.
        source: record::Error,
    },
    /// A batch too large to be decoded.
    #[error("a record batch in {topic}-{partition} holds {bytes} bytes, more than 1 GiB")]
    TooLarge {
        /// Its topic.
        topic: Arc<str>,
        /// Its partition.
        partition: i32,
        /// Its decompressed size.
        bytes: usize,
    },
    /// The schema cannot be used.
    #[error("the schema cannot be used")]
    Schema(#[from] SchemaProblems),
    /// The grouping cannot be used.
    #[error("the grouping cannot be used")]
    Grouping(#[from] GroupingProblems),
    /// The policy does not fit the schema.
    #[error("the record policy cannot be used")]
    Policy(#[from] PolicyProblem),
    /// Arrays that do not fit together: a defect of this program.
    #[error("decoded columns do not fit together")]
    Arrow(#[from] ArrowError),
}

impl Chunk {
    /// The rows of one of its groups.
    #[must_use]
    pub fn rows_of(&self, group: &GroupRows) -> RecordBatch {
        self.rows.slice(group.rows.start, group.rows.len())
    }
}

/// Decodes and groups the records of one task, piece by piece. CPU-bound: run it off the runtime's
/// threads.
///
/// Memory: what is pending, bounded by [`Self::with_max_pending`] plus one record, and the same
/// again while [`Self::drain`] sorts it into groups.
#[derive(Debug)]
pub struct RecordTransform {
    spec: Arc<TransformSpec>,
    schema: SchemaRef,
    decoder: JsonDecoder,
    partitioner: Partitioner,
    max_pending_bytes: usize,
    sources: usize,
    topic: Arc<str>,
    pieces: Vec<Piece>,
    counts: BTreeMap<(Arc<str>, i32), Counts>,
    rows: Rows,
    rejects: Vec<Reject>,
    pending: Pending,
}

/// Rows and rejects that one push added.
#[derive(Debug)]
struct Piece {
    topic: Arc<str>,
    partition: i32,
    records: Records,
    rows: Range<usize>,
}

impl Piece {
    fn run(&self) -> (&str, i32, usize) {
        (&self.topic, self.partition, self.rows.len())
    }
}

/// Coordinates of each row.
#[derive(Debug)]
struct Rows {
    offsets: Vec<i64>,
    timestamps: Vec<i64>,
    keys: Option<ColumnBuilder>,
}

/// A record set aside; its content stays in its piece until the drain.
#[derive(Debug)]
struct Reject {
    piece: usize,
    offset: i64,
    reason: String,
}

/// Bytes held, as estimated.
#[derive(Debug, Default)]
struct Pending {
    payloads: usize,
    decoded: usize,
    rejects: usize,
}

impl RecordTransform {
    /// A transform by this specification.
    ///
    /// # Errors
    /// Every problem of the schema, else of the grouping, else of the policy.
    pub fn new(spec: Arc<TransformSpec>) -> Result<Self, TransformError> {
        spec.schema.validate(spec.grouping.key_names())?;
        spec.policy.validate(&spec.schema)?;
        let partitioner = Partitioner::new(&spec.grouping, &spec.schema, spec.plan_time_ms)?;
        let keys = spec
            .schema
            .coordinates
            .then(|| ColumnBuilder::new(&ColumnType::Binary));
        Ok(Self {
            schema: spec.schema.to_arrow(),
            decoder: JsonDecoder::new(&spec.schema),
            partitioner,
            max_pending_bytes: MAX_PENDING_BYTES,
            sources: spec.grouping.event_time.len(),
            topic: Arc::from(""),
            pieces: Vec::new(),
            counts: BTreeMap::new(),
            rows: Rows {
                offsets: Vec::new(),
                timestamps: Vec::new(),
                keys,
            },
            rejects: Vec::new(),
            pending: Pending::default(),
            spec,
        })
    }

    /// Sets the bytes pending at which [`Self::push`] stops taking records. Default 32 MiB.
    #[must_use]
    pub fn with_max_pending(self, bytes: usize) -> Self {
        Self {
            max_pending_bytes: bytes,
            ..self
        }
    }

    /// The schema of data batches.
    #[must_use]
    pub const fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Takes the records of one batch whose offsets are in `wanted` (half open). Returns None when
    /// it took them all, or the offset of the first one it did not take because the bound on
    /// pending bytes was reached: drain, and push the same records again from there. After a drain
    /// at least one record is taken.
    ///
    /// # Errors
    /// [`TransformError`]; the transform is then of no further use.
    pub fn push(
        &mut self,
        topic: &str,
        partition: i32,
        records: &Records,
        wanted: Range<i64>,
    ) -> Result<Option<i64>, TransformError> {
        if *topic != *self.topic {
            self.topic = Arc::from(topic);
        }
        let topic = Arc::clone(&self.topic);
        let bytes = records.size_in_bytes();
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(TransformError::TooLarge {
                topic,
                partition,
                bytes,
            });
        }
        let first_row = self.decoder.rows();
        let first_reject = self.rejects.len();
        self.pending.payloads += bytes;
        let mut counts = Counts::default();
        let mut left_from = None;
        for record in records {
            let record = record.map_err(|source| TransformError::Undecodable {
                topic: Arc::clone(&topic),
                partition,
                source,
            })?;
            if !wanted.contains(&record.offset) {
                continue;
            }
            if self.is_full() {
                left_from = Some(record.offset);
                break;
            }
            self.take(&record, partition, &mut counts)?;
        }
        let rows = first_row..self.decoder.rows();
        if rows.is_empty() && self.rejects.len() == first_reject {
            self.pending.payloads -= bytes;
        } else {
            let records = records.clone();
            self.pieces.push(Piece {
                topic: Arc::clone(&topic),
                partition,
                records,
                rows,
            });
        }
        self.counts
            .entry((topic, partition))
            .or_default()
            .add(&counts);
        Ok(left_from)
    }

    /// Whether the bound is reached; never before one record was taken.
    #[inline]
    fn is_full(&self) -> bool {
        let any = !self.rows.offsets.is_empty() || !self.rejects.is_empty();
        any && self.bytes_pending() >= self.max_pending_bytes
    }

    #[inline]
    fn take(
        &mut self,
        record: &Record<'_>,
        partition: i32,
        counts: &mut Counts,
    ) -> Result<(), TransformError> {
        let Some(value) = record.value else {
            return self.take_tombstone(record, partition, counts);
        };
        match self.decoder.decode(value) {
            Ok(unknown_fields) => {
                counts.unknown_fields += unknown_fields;
                self.count_bytes(value.len());
                self.end_row(record);
                Ok(())
            }
            Err(reject) => match self.spec.policy.bad_records {
                BadRecordPolicy::Reject => {
                    counts.rejected += 1;
                    self.set_aside(record.offset, reject.reason);
                    Ok(())
                }
                BadRecordPolicy::Fail => Err(TransformError::BadRecord {
                    topic: Arc::clone(&self.topic),
                    partition,
                    offset: record.offset,
                    reason: reject.reason,
                }),
            },
        }
    }

    fn take_tombstone(
        &mut self,
        record: &Record<'_>,
        partition: i32,
        counts: &mut Counts,
    ) -> Result<(), TransformError> {
        let offset = record.offset;
        match self.spec.policy.tombstones {
            TombstonePolicy::Fail => {
                let topic = Arc::clone(&self.topic);
                return Err(TransformError::Tombstone {
                    topic,
                    partition,
                    offset,
                });
            }
            TombstonePolicy::Skip => counts.tombstones_skipped += 1,
            TombstonePolicy::Reject => {
                counts.rejected += 1;
                self.set_aside(offset, "tombstone (null value)".to_owned());
            }
            TombstonePolicy::Write => {
                counts.tombstones_written += 1;
                self.decoder.push_nulls();
                self.count_bytes(0);
                self.end_row(record);
            }
        }
        Ok(())
    }

    #[inline]
    fn end_row(&mut self, record: &Record<'_>) {
        self.rows.offsets.push(record.offset);
        self.rows.timestamps.push(record.timestamp);
        if let Some(keys) = &mut self.rows.keys {
            keys.push_bytes(record.key);
            self.pending.decoded += record.key.map_or(0, <[u8]>::len);
        }
    }

    /// Counts what a row added: by its length, and now and then exactly, since nested values may
    /// take more room than their text.
    #[inline]
    fn count_bytes(&mut self, value_bytes: usize) {
        let rows = self.decoder.rows();
        if rows.is_multiple_of(COUNT_EVERY) || value_bytes > 1 << 16 {
            let keys = self.rows.keys.as_ref().map_or(0, ColumnBuilder::bytes);
            self.pending.decoded = self.decoder.bytes() + keys;
        } else {
            self.pending.decoded += value_bytes;
        }
    }

    fn set_aside(&mut self, offset: i64, reason: String) {
        self.pending.rejects += reason.len() + size_of::<Reject>();
        // The piece being pushed is not in the list yet.
        self.rejects.push(Reject {
            piece: self.pieces.len(),
            offset,
            reason,
        });
    }

    /// Rows decoded since the last drain.
    #[must_use]
    pub const fn rows_pending(&self) -> usize {
        self.decoder.rows()
    }

    /// An estimate of the bytes held since the last drain, payloads of the pushed batches included.
    #[must_use]
    pub const fn bytes_pending(&self) -> usize {
        let Pending {
            payloads,
            decoded,
            rejects,
        } = self.pending;
        payloads + decoded + rejects + self.rows.offsets.len() * 2 * size_of::<i64>()
    }

    /// Groups what is pending and hands it out; after it nothing is pending.
    ///
    /// # Errors
    /// [`TransformError::BadRecord`] for an event time outside the window where the policy is
    /// `fail`; the transform is then of no further use.
    pub fn drain(&mut self) -> Result<Chunk, TransformError> {
        let mut columns = self.decoder.finish()?;
        let pieces = std::mem::take(&mut self.pieces);
        let offsets = ScalarBuffer::from(take_with_room(&mut self.rows.offsets));
        let timestamps = take_with_room(&mut self.rows.timestamps);
        let mut rejects = std::mem::take(&mut self.rejects);
        let mut counts = std::mem::take(&mut self.counts);
        self.pending = Pending::default();

        let assignment = self
            .partitioner
            .assign(&self.spec.schema, &columns, &timestamps);
        self.reject_outside_window(&assignment, &pieces, &offsets, &mut rejects)?;
        self.count_rows(&assignment, &pieces, &mut counts);
        if let Some(keys) = &mut self.rows.keys {
            let keys = keys.finish()?;
            let runs = pieces.iter().map(Piece::run).collect::<Vec<_>>();
            columns.extend(coordinates(&runs, offsets.clone(), timestamps)?);
            columns.push(keys);
        }
        let batch = RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            columns,
            &arrow_array::RecordBatchOptions::new().with_row_count(Some(offsets.len())),
        )?;
        let spans = groups::Spans::new(&pieces, &offsets);
        let (rows, groups) = groups::sort(batch, &assignment, &spans)?;
        let (rejected, samples) = rejected(&pieces, rejects)?;
        Ok(Chunk {
            rows,
            groups,
            rejected,
            samples,
            counts,
        })
    }

    /// Adds the rows that the partitioner rejected to those the decoder did.
    fn reject_outside_window(
        &self,
        assignment: &Assignment,
        pieces: &[Piece],
        offsets: &[i64],
        rejects: &mut Vec<Reject>,
    ) -> Result<(), TransformError> {
        for (row, reason) in &assignment.rejects {
            let index = pieces.partition_point(|piece| piece.rows.end <= *row);
            let (Some(piece), Some(offset)) = (pieces.get(index), offsets.get(*row)) else {
                continue;
            };
            let (offset, reason) = (*offset, reason.clone());
            if self.spec.policy.bad_records == BadRecordPolicy::Fail {
                let (topic, partition) = (Arc::clone(&piece.topic), piece.partition);
                return Err(TransformError::BadRecord {
                    topic,
                    partition,
                    offset,
                    reason,
                });
            }
            rejects.push(Reject {
                piece: index,
                offset,
                reason,
            });
        }
        rejects.sort_by_key(|reject| (reject.piece, reject.offset));
        Ok(())
    }

    fn count_rows(
        &self,
        assignment: &Assignment,
        pieces: &[Piece],
        counts: &mut BTreeMap<(Arc<str>, i32), Counts>,
    ) {
        for piece in pieces {
            let mut found = Counts {
                time_from: vec![0; self.sources + 1],
                ..Counts::default()
            };
            let groups = assignment
                .group_of_row
                .get(piece.rows.clone())
                .unwrap_or_default();
            let sources = assignment
                .source_of_row
                .get(piece.rows.clone())
                .unwrap_or_default();
            for (group, source) in groups.iter().zip(sources) {
                if *group == Assignment::REJECTED {
                    found.rejected += 1;
                    continue;
                }
                found.rows += 1;
                if let Some(count) = found.time_from.get_mut(usize::from(*source)) {
                    *count += 1;
                }
            }
            counts
                .entry((Arc::clone(&piece.topic), piece.partition))
                .or_default()
                .add(&found);
        }
    }
}

/// Topic, partition, offset and timestamp columns of runs of rows, each of one topic and partition; the key
/// follows.
pub(crate) fn coordinates(
    runs: &[(&str, i32, usize)],
    offsets: ScalarBuffer<i64>,
    timestamps: Vec<i64>,
) -> Result<Vec<ArrayRef>, ArrowError> {
    let rows = offsets.len();
    let bytes = runs.iter().map(|(topic, _, rows)| topic.len() * rows).sum();
    if i32::try_from(bytes).is_err() {
        return Err(ArrowError::OffsetOverflowError(bytes));
    }
    let mut topics = StringBuilder::with_capacity(rows, bytes);
    let mut partitions: Vec<i32> = Vec::with_capacity(rows);
    for (topic, partition, rows) in runs {
        topics.append_value_n(topic, *rows);
        partitions.extend(std::iter::repeat_n(*partition, *rows));
    }
    Ok(vec![
        Arc::new(topics.finish()),
        Arc::new(Int32Array::from(partitions)),
        Arc::new(Int64Array::new(offsets, None)),
        Arc::new(record_timestamps(timestamps)),
    ])
}

/// Milliseconds since 1970; null for -1, which is none.
fn record_timestamps(timestamps: Vec<i64>) -> TimestampMillisecondArray {
    let timestamps = if timestamps.contains(&-1) {
        timestamps
            .into_iter()
            .map(|time| (time != -1).then_some(time))
            .collect()
    } else {
        TimestampMillisecondArray::from(timestamps)
    };
    timestamps.with_timezone("UTC")
}

/// Copies the rejected records out of their pieces; `rejects` are in input order.
fn rejected(
    pieces: &[Piece],
    rejects: Vec<Reject>,
) -> Result<(Option<RecordBatch>, Vec<RejectSample>), TransformError> {
    if rejects.is_empty() {
        return Ok((None, Vec::new()));
    }
    let mut builder = RejectedBuilder::new();
    let mut samples = Vec::new();
    let mut rejects = rejects.into_iter().peekable();
    for (index, piece) in pieces.iter().enumerate() {
        if rejects.peek().is_none_or(|reject| reject.piece != index) {
            continue;
        }
        let Piece {
            topic, partition, ..
        } = piece;
        for record in &piece.records {
            let record = record.map_err(|source| TransformError::Undecodable {
                topic: Arc::clone(topic),
                partition: *partition,
                source,
            })?;
            let next = |reject: &Reject| reject.piece == index && reject.offset == record.offset;
            let Some(Reject { offset, reason, .. }) = rejects.next_if(next) else {
                continue;
            };
            builder.push(topic, *partition, &record, &reason);
            if samples.len() < SAMPLES {
                let (topic, partition) = (Arc::clone(topic), *partition);
                samples.push(RejectSample {
                    topic,
                    partition,
                    offset,
                    reason,
                });
            }
        }
    }
    Ok((Some(builder.finish()?), samples))
}

#[cfg(test)]
mod tests;
