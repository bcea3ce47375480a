//! What opening a partition found and did.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use crate::topic_partition::TopicPartition;

/// Where and why the end of a log was cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The log end since.
    pub at_offset: i64,
    /// Bytes that are not in the log any more, later segments included.
    pub bytes: u64,
    /// The segment that ends at the cut.
    pub path: PathBuf,
    /// Bytes from its start.
    pub position: u64,
    /// What was wrong there.
    pub reason: String,
}

/// What opening a partition found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The partition.
    pub partition: TopicPartition,
    /// True if the log was opened after a clean shutdown, so that nothing had to be scanned.
    pub clean: bool,
    /// The recovery point the scan began at.
    pub recovery_point: i64,
    /// Bytes whose checksums were computed.
    pub bytes_scanned: u64,
    /// Bytes of the log over which only the headers of batches were read, or read again.
    pub bytes_walked: u64,
    /// Batches whose checksums were right.
    pub batches_scanned: u64,
    /// What was cut off the end.
    pub cut: Option<Cut>,
    /// Segments behind the cut that hold batches, under their new names.
    pub set_aside: Vec<PathBuf>,
    /// Segments behind the cut, or before the log start, that are gone.
    pub removed_segments: usize,
    /// Index files that were missing or untrue and have been written anew.
    pub rebuilt_indexes: usize,
    /// Damaged places in what had been synced: segment, byte, reason. They have been left alone. Only what is looked at
    /// can be noticed: the end of each segment, and the headers that are walked over.
    pub damaged: Vec<(PathBuf, u64, String)>,
    /// Offsets that had been synced and are not there, in whole segments or at the end of one; reads go on behind
    /// them. Empty if [`crate::LogConfig::compacted`], since compaction leaves such holes; who opens a directory
    /// without knowing which topics are compacted has to drop theirs.
    pub holes: Vec<Range<i64>>,
    /// Producer snapshots that could not be used, with what is wrong. They are gone; more headers were read instead.
    pub bad_snapshots: Vec<(PathBuf, String)>,
    /// First offset.
    pub log_start_offset: i64,
    /// Behind the last offset.
    pub log_end_offset: i64,
}

impl RecoveryReport {
    pub(super) fn new(partition: TopicPartition, clean: bool, recovery_point: i64) -> Self {
        Self {
            partition,
            clean,
            recovery_point,
            bytes_scanned: 0,
            bytes_walked: 0,
            batches_scanned: 0,
            cut: None,
            set_aside: Vec::new(),
            removed_segments: 0,
            rebuilt_indexes: 0,
            damaged: Vec::new(),
            holes: Vec::new(),
            bad_snapshots: Vec::new(),
            log_start_offset: 0,
            log_end_offset: 0,
        }
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: [{}, {}), {} bytes scanned from offset {}, headers of {} bytes read",
            self.partition,
            self.log_start_offset,
            self.log_end_offset,
            self.bytes_scanned,
            self.recovery_point,
            self.bytes_walked
        )?;
        if let Some(cut) = &self.cut {
            write!(
                f,
                ", {} bytes cut at offset {} ({} byte {}: {})",
                cut.bytes,
                cut.at_offset,
                cut.path.display(),
                cut.position,
                cut.reason
            )?;
        }
        if !self.set_aside.is_empty() {
            write!(f, ", {} segments set aside", self.set_aside.len())?;
        }
        if self.rebuilt_indexes > 0 {
            write!(f, ", {} indexes rebuilt", self.rebuilt_indexes)?;
        }
        if !self.damaged.is_empty() {
            write!(f, ", {} damaged places", self.damaged.len())?;
        }
        for hole in &self.holes {
            write!(f, ", [{}, {}) is missing", hole.start, hole.end)?;
        }
        if !self.bad_snapshots.is_empty() {
            let count = self.bad_snapshots.len();
            write!(f, ", {count} bad producer snapshots")?;
        }
        Ok(())
    }
}
