//! Compaction: of each key only the last record stays, at its offset.
//!
//! ```text
//!  compacted before        dirty: its keys go into the map          not yet
//! ┌─────────┬─────────┐┌─────────┬─────────┬─────────┐┌───────────┬─────────────┐
//! └─────────┴─────────┘└─────────┴─────────┴─────────┘└───────────┴─────────────┘
//! log start           cleaned_to                     min.compaction.lag   active
//!  └──── written anew, small segments merged ───────┘
//!
//!  owner  prepare_compaction ─────────────────────► swap_in ─► … ─► finish_compaction
//!  pool          └─► index ─► next_segment ─► …  ──────┘
//! ```
//! - Only what has been flushed is compacted: a crash must not take the record that made others superfluous.
//! - The owner's lock is held for looking and for renaming only; reading and writing happen without it. A truncation or
//!   a deletion meanwhile makes what was written void.
//! - Memory is bounded by [`CompactionLimits`]; a log with more keys than fit is compacted in several passes.
//! - Offsets, order and the bounds of batches stay. A batch without records stays as an empty one if it holds a
//!   producer's last sequence, or is the last of its segment, so that segments stay contiguous.
//! - Tombstones stay for `delete.retention.ms` after the first compaction that met them (KIP-534: the time stands in the
//!   batch), and go with the next compaction after that.
//!
//! Deviations from Apache Kafka: batches of transactions are kept whole, since this broker has no index of aborted ones; a
//! batch that decompresses to more than is allowed is kept whole instead of stopping the compaction; not only the last
//! batch of a pass but of every segment is kept; groups of segments are merged by what is left of them.

mod offset_map;
mod output;
mod pass;
mod source;
mod swap;

use std::sync::Arc;

use offset_map::OffsetMap;
use output::Output;
pub use pass::Compaction;
pub(crate) use swap::finish_swaps;
use swap::{CLEANED, SUFFIXES, SWAP, put_in_place};
use tracing::info;

use crate::error::{Error, Result};
use crate::file_pool::remove_if_there;
use crate::partition_log::PartitionLog;
use crate::segment::{Segment, SegmentState, file_name};

/// Bounds of one compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionLimits {
    /// Memory for the keys, in bytes; 32 a key (`log.cleaner.dedupe.buffer.size`, 128 MiB).
    pub map_bytes: usize,
}

impl Default for CompactionLimits {
    fn default() -> Self {
        Self {
            map_bytes: 128 << 20,
        }
    }
}

/// How much of a partition waits for compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dirtiness {
    /// Bytes that can be compacted and have not been.
    pub dirty_bytes: u64,
    /// Their part of all that can be compacted, in millionths.
    pub millionths: u32,
    /// True if compacting is worth while, or `max.compaction.lag.ms` demands it.
    pub is_due: bool,
}

/// What a compaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactionReport {
    /// Bytes of the segments that were looked at.
    pub bytes_before: u64,
    /// Bytes that are left of them.
    pub bytes_after: u64,
    /// Records that went.
    pub records_removed: u64,
    /// Those among them that had no key.
    pub records_without_key: u64,
    /// Batches that could not be taken apart.
    pub batches_kept_whole: u64,
    /// Offset of the first of those.
    pub first_kept_whole: Option<i64>,
    /// False if the map was too small for all keys: another pass is due.
    pub is_complete: bool,
}

/// A segment that may be compacted, and its state: it gets no more appends.
type Source = (Arc<Segment>, SegmentState);

/// A segment that has been written aside, for [`PartitionLog::swap_in`]. Dropped, its files are removed.
#[derive(Debug)]
pub struct CompactedSegment {
    sources: Vec<Arc<Segment>>,
    truncations: u64,
    output: Output,
}

impl PartitionLog {
    /// How much waits for compaction; `None` if the topic is not compacted or nothing does. `now_ms` is a clock that does
    /// not jump ahead.
    ///
    /// # Errors
    /// [`Error::Io`] from looking at a file's time.
    pub fn dirtiness(&self, now_ms: i64) -> Result<Option<Dirtiness>> {
        if !self.config.compacted || self.is_offline() {
            return Ok(None);
        }
        let (first_dirty, cleanable) = self.cleanable(now_ms)?;
        let (mut clean_bytes, mut dirty_bytes, mut oldest_ms) = (0u64, 0u64, i64::MAX);
        for (segment, state) in &cleanable {
            if state.end_offset <= first_dirty {
                clean_bytes += state.size;
            } else {
                dirty_bytes += state.size;
                oldest_ms = oldest_ms.min(self.newest_ms(segment, now_ms)?);
            }
        }
        if dirty_bytes == 0 {
            return Ok(None);
        }
        let part = dirty_bytes.saturating_mul(1_000_000) / (clean_bytes + dirty_bytes).max(1);
        let millionths = u32::try_from(part).unwrap_or(1_000_000);
        let config = &self.config.compaction;
        let overdue = now_ms.saturating_sub(oldest_ms) > config.max_lag_ms;
        Ok(Some(Dirtiness {
            dirty_bytes,
            millionths,
            is_due: overdue || millionths >= config.min_dirty_millionths,
        }))
    }

    /// Where the dirty part begins, and the segments that may be compacted: flushed, committed and old enough.
    fn cleanable(&self, now_ms: i64) -> Result<(i64, Vec<Source>)> {
        let min_lag_ms = self.config.compaction.min_lag_ms;
        let active = self.segments.len().saturating_sub(1);
        // What makes an older record superfluous must outlive a crash.
        let end = self.high_watermark.min(self.recovery_point);
        let mut cleanable = Vec::new();
        for segment in self.segments.iter().take(active) {
            let state = segment.state();
            let young = min_lag_ms > 0
                && now_ms.saturating_sub(self.newest_ms(segment, now_ms)?) < min_lag_ms;
            if young || state.end_offset > end {
                break;
            }
            cleanable.push((Arc::clone(segment), state));
        }
        Ok((self.cleaned_to.max(self.log_start), cleanable))
    }

    /// Begins a compaction; `None` if there is nothing to compact. At most one at a time a partition.
    ///
    /// # Errors
    /// [`Error::Offline`], [`Error::Io`].
    pub fn prepare_compaction(
        &self,
        now_ms: i64,
        limits: CompactionLimits,
    ) -> Result<Option<Compaction>> {
        self.check_online()?;
        let (first_dirty, sources) = self.cleanable(now_ms)?;
        let end = sources.last().map_or(0, |(_, state)| state.end_offset);
        if end <= first_dirty {
            return Ok(None);
        }
        Ok(Some(Compaction {
            id: Arc::clone(&self.id),
            dir: self.dir.clone(),
            pool: Arc::clone(&self.pool),
            config: self.config.clone(),
            limits,
            now_ms,
            sources,
            next: 0,
            first_dirty,
            producer_ends: self.producers.last_ends(),
            truncations: self.truncations,
            map: OffsetMap::new(0),
            map_end: first_dirty,
            report: CompactionReport::default(),
        }))
    }

    /// Puts a compacted segment in the place of those it was made from, durably. False if the log has been changed
    /// meanwhile (truncated, or its head deleted): then nothing is done, and the compaction must be given up.
    ///
    /// # Errors
    /// [`Error::Offline`]; [`Error::DiskFull`] or [`Error::Io`] leave the log as it was, or take it off line once the
    /// swap has been decided: it is finished when the log is opened again.
    pub fn swap_in(&mut self, mut compacted: CompactedSegment) -> Result<bool> {
        self.check_online()?;
        let Some(at) = self.place_of(&compacted) else {
            return Ok(false);
        };
        for segment in &compacted.sources {
            // Readers that look at the old segments go on with the old files, whatever has their names.
            segment.pin()?;
        }
        self.decide(&mut compacted.output)?;
        self.replace(at, &compacted)
            .inspect_err(|error| self.go_offline(error))?;
        Ok(true)
    }

    /// Index of the first source, if all are still there.
    fn place_of(&self, compacted: &CompactedSegment) -> Option<usize> {
        let first = compacted.sources.first()?;
        let at = self
            .segments
            .iter()
            .position(|segment| Arc::ptr_eq(segment, first))?;
        let here = self.segments.get(at..at + compacted.sources.len())?;
        let same = here
            .iter()
            .zip(&compacted.sources)
            .all(|(a, b)| Arc::ptr_eq(a, b));
        let is_inactive = at + compacted.sources.len() < self.segments.len();
        (same && is_inactive && compacted.truncations == self.truncations).then_some(at)
    }

    /// Renames what was written aside so that it will replace the sources, durably.
    fn decide(&mut self, output: &mut Output) -> Result<()> {
        let disk = self.pool.disk();
        let base_offset = output.base_offset();
        let swap = |suffix: &str| self.dir.join(file_name(base_offset, suffix) + SWAP);
        let renamed = SUFFIXES.iter().try_for_each(|suffix| {
            let from = output.path(suffix);
            debug_assert!(from.to_string_lossy().ends_with(CLEANED), "not decided yet");
            disk.rename(&from, &swap(suffix))
                .map_err(|source| Error::io("rename", &from, source))
        });
        let synced = renamed.and_then(|()| {
            disk.sync_dir(&self.dir)
                .map_err(|source| Error::io("sync", &self.dir, source))
        });
        let Err(error) = synced else {
            output.keep();
            return Ok(());
        };
        // The log first: its name decides.
        let taken_back = SUFFIXES
            .iter()
            .rev()
            .try_for_each(|suffix| remove_if_there(disk, &swap(suffix)));
        if let Err(remove_error) = taken_back {
            self.go_offline(&remove_error);
        }
        Err(error)
    }

    fn replace(&mut self, at: usize, compacted: &CompactedSegment) -> Result<()> {
        for (index, segment) in compacted.sources.iter().enumerate() {
            if index == 0 {
                segment.retire();
            } else {
                segment.remove()?;
            }
        }
        self.names_changed += 1;
        self.sync_names()?;
        let base_offset = compacted.output.base_offset();
        put_in_place(self.pool.disk(), &self.dir, base_offset)?;
        let segment = Segment::new(&self.id, &self.pool, &self.dir, base_offset);
        let (state, offsets, times) = compacted.output.state();
        segment.set_state(state);
        segment.offset_index().adopt(offsets);
        segment.time_index().adopt(times);
        let end = at + compacted.sources.len();
        self.segments.splice(at..end, [Arc::new(segment)]);
        self.publish();
        Ok(())
    }

    /// Takes note of a compaction whose segments have all been swapped in, durably.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`] from the checkpoint: the next start compacts again.
    pub fn finish_compaction(&mut self, compaction: &Compaction) -> Result<CompactionReport> {
        let report = compaction.report;
        if compaction.truncations == self.truncations {
            self.cleaned_to = self.cleaned_to.max(compaction.map_end);
            self.checkpoints.write_cleaned(&self.id, self.cleaned_to)?;
        }
        info!(
            topic = %self.id.topic, partition = self.id.partition, cleaned_to = self.cleaned_to,
            bytes_before = report.bytes_before, bytes_after = report.bytes_after,
            records_removed = report.records_removed, is_complete = report.is_complete, "compacted"
        );
        compaction.warn_of_batches_kept_whole();
        Ok(report)
    }

    /// Everything below has been compacted.
    #[must_use]
    pub fn cleaned_to(&self) -> i64 {
        self.cleaned_to
    }
}
