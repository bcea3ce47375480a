//! The manifest of a run: what was published, and from where the next run goes on.
//!
//! The newest manifest alone is the state of a dataset. It lists every partition that was ever loaded
//! into it, whether or not this run moved it.

use broker_client::protocol::ids::{TopicId, TopicName};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::layout::RunNumber;
use crate::partitioner::Grouping;
use crate::schema::TableSchema;
use crate::sealed::Document;

/// A published run, named so that a number taken by another run cannot be mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRef {
    /// Number of the run.
    pub number: RunNumber,
    /// Unique id of the run.
    pub uuid: Uuid,
}

/// Names a partition of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionKey {
    /// Cluster id as the brokers give it.
    pub cluster_id: String,
    /// Topic.
    #[serde(with = "crate::text")]
    pub topic: TopicName,
    /// Partition.
    pub partition: i32,
}

impl std::fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

/// Position of one partition after a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionState {
    /// Which partition.
    #[serde(flatten)]
    pub key: PartitionKey,
    /// Topic id, where the source has them.
    #[serde(with = "crate::text::option")]
    pub topic_id: Option<TopicId>,
    /// First offset of this run; equals `end` where the run did not touch the partition.
    pub start: i64,
    /// Offset from which the next run goes on (exclusive end).
    pub end: i64,
    /// Leader epoch of the last batch before `end`; −1 when unknown.
    pub leader_epoch: i32,
}

/// Where the offsets of a range went (I2). All counts are offsets, so that they add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffsetCounts {
    /// Rows in data files.
    pub rows: u64,
    /// Records set aside in `_rejected`.
    pub rejected: u64,
    /// Records without a value, left out by policy.
    pub tombstones_skipped: u64,
    /// Records of aborted transactions.
    pub aborted: u64,
    /// Control records (transaction markers).
    pub control: u64,
    /// Offsets without a record (compaction), counted from the batch headers.
    pub holes: u64,
}

impl OffsetCounts {
    /// All offsets accounted for. A manifest from outside may say anything: sums stop at the largest number.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.rows
            .saturating_add(self.rejected)
            .saturating_add(self.tombstones_skipped)
            .saturating_add(self.aborted)
            .saturating_add(self.control)
            .saturating_add(self.holes)
    }

    /// Adds another range's counts.
    pub const fn add(&mut self, other: &Self) {
        self.rows = self.rows.saturating_add(other.rows);
        self.rejected = self.rejected.saturating_add(other.rejected);
        self.tombstones_skipped = self
            .tombstones_skipped
            .saturating_add(other.tombstones_skipped);
        self.aborted = self.aborted.saturating_add(other.aborted);
        self.control = self.control.saturating_add(other.control);
        self.holes = self.holes.saturating_add(other.holes);
    }
}

/// One range of offsets `[start, end)` that a run loaded, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadedRange {
    /// Topic.
    #[serde(with = "crate::text")]
    pub topic: TopicName,
    /// Partition.
    pub partition: i32,
    /// First offset.
    pub start: i64,
    /// Exclusive end.
    pub end: i64,
    /// Where the offsets went.
    pub counts: OffsetCounts,
    /// Leader epoch of the last batch; −1 when the range held none.
    pub leader_epoch: i32,
}

/// One published file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedFile {
    /// Path below the run's directory, e.g. `dt=2026-11-30/hour=13/part-….parquet`.
    pub path: String,
    /// Whether it holds rows or records set aside.
    pub kind: FileKind,
    /// Rows.
    pub rows: u64,
    /// Length.
    pub bytes: u64,
    /// CRC-32C of the whole file.
    pub checksum: String,
    /// The task that wrote it.
    pub task: u32,
    /// Smallest event time in milliseconds, where rows have one.
    pub min_event_time_ms: Option<i64>,
    /// Largest event time in milliseconds (inclusive), where rows have one.
    pub max_event_time_ms: Option<i64>,
    /// Which offsets it may hold: one entry a partition, `[start, end)` spanned by its rows.
    pub ranges: Vec<FileRange>,
}

/// What a published file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// Rows of the table.
    Data,
    /// Records set aside.
    Rejected,
}

/// The span of offsets of one partition in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRange {
    /// Topic.
    #[serde(with = "crate::text")]
    pub topic: TopicName,
    /// Partition.
    pub partition: i32,
    /// Smallest offset.
    pub start: i64,
    /// Largest offset + 1.
    pub end: i64,
}

/// A jump that the operator accepted (I6).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptedGap {
    /// Topic.
    #[serde(with = "crate::text")]
    pub topic: TopicName,
    /// Partition.
    pub partition: i32,
    /// What happened at the source.
    pub reason: GapReason,
    /// Where the runs before had ended.
    pub previous_end: i64,
    /// Where this run starts.
    pub start: i64,
}

/// Why offsets could not go on where the last run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapReason {
    /// The log start lies beyond our end: `[previous_end, start)` is lost.
    Retention,
    /// The log was cut below our end; what follows `start` is new data at offsets used before.
    Truncation,
    /// The topic was deleted and made again; offsets start anew.
    TopicRecreated,
}

/// A partition that a run had to leave out (I7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Topic.
    #[serde(with = "crate::text")]
    pub topic: TopicName,
    /// Partition.
    pub partition: i32,
    /// Why.
    pub reason: String,
}

/// Claim that no more records of an hour are expected: all partitions were loaded past it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HourClaim {
    /// Directory of the hour below a run, e.g. `dt=2026-11-30/hour=13`.
    pub directory: String,
    /// Start of the hour, milliseconds since the epoch.
    pub hour_start_ms: i64,
}

/// See the module documentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Number of this run.
    pub number: RunNumber,
    /// Unique id of this run.
    pub uuid: Uuid,
    /// The run before it.
    pub previous: Option<RunRef>,
    /// Name of the job that published it.
    pub job: String,
    /// Build that planned and wrote it.
    pub build: String,
    /// Plan time, milliseconds since the epoch.
    pub planned_at_ms: i64,
    /// Columns of the data files of this run.
    pub schema: TableSchema,
    /// How rows are grouped into directories.
    pub grouping: Grouping,
    /// Every partition ever loaded, sorted by key.
    pub partitions: Vec<PartitionState>,
    /// What this run loaded, sorted; a range without offsets is not listed.
    pub ranges: Vec<LoadedRange>,
    /// Cluster the ranges came from.
    pub cluster_id: String,
    /// Files of this run, sorted by path.
    pub files: Vec<PublishedFile>,
    /// Gaps accepted by this run.
    pub accepted_gaps: Vec<AcceptedGap>,
    /// Partitions left out.
    pub left_out: Vec<LeftOut>,
    /// Fields of records that no column took.
    pub unknown_fields: u64,
    /// Rows by the source of their event time, in the order of `grouping.event_time`; last, those without.
    pub event_time_from: Vec<u64>,
    /// Whether fewer ranges than planned were published (time budget).
    pub partial: bool,
    /// Hours that became complete with this run.
    pub complete_hours: Vec<HourClaim>,
    /// Every hour before this one (milliseconds) has been claimed complete by this run or one before.
    pub complete_before_ms: Option<i64>,
}

impl Document for Manifest {
    const FORMAT: &'static str = "logferry-manifest";
    const VERSION: u32 = 1;
}

impl Manifest {
    /// How other documents refer to this run.
    #[must_use]
    pub const fn run_ref(&self) -> RunRef {
        RunRef {
            number: self.number,
            uuid: self.uuid,
        }
    }

    /// The state of one partition.
    #[must_use]
    pub fn partition(&self, key: &PartitionKey) -> Option<&PartitionState> {
        self.partitions.iter().find(|state| state.key == *key)
    }

    /// Sum over all ranges of this run.
    #[must_use]
    pub fn counts(&self) -> OffsetCounts {
        let mut sum = OffsetCounts::default();
        for range in &self.ranges {
            sum.add(&range.counts);
        }
        sum
    }
}
