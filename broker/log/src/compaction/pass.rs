//! One pass over a partition: first the keys, then the segments anew.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use broker_protocol::record::{RecordBatch, Records, retain_records, without_records};
use tracing::warn;

use super::offset_map::OffsetMap;
use super::output::Output;
use super::source::{Batches, Item};
use super::{CompactedSegment, CompactionLimits, CompactionReport, Source};
use crate::config::LogConfig;
use crate::error::{Error, Result};
use crate::file_pool::FilePool;
use crate::scan::size_of;
use crate::segment::{MAX_SEGMENT_BYTES, Segment};
use crate::topic_partition::TopicPartition;

/// A compaction of one partition: see the module [`crate::compaction`] for its steps.
///
/// Dropping it at any point leaves the log as it is.
#[derive(Debug)]
pub struct Compaction {
    pub(super) id: Arc<TopicPartition>,
    pub(super) dir: PathBuf,
    pub(super) pool: Arc<FilePool>,
    pub(super) config: LogConfig,
    pub(super) limits: CompactionLimits,
    pub(super) now_ms: i64,
    /// Those that may be compacted, from the first segment of the log on.
    pub(super) sources: Vec<Source>,
    /// The first that has not been written anew.
    pub(super) next: usize,
    /// The first offset whose key is not known to be the last before it.
    pub(super) first_dirty: i64,
    /// Behind the last batch of each producer.
    pub(super) producer_ends: HashMap<i64, i64>,
    pub(super) truncations: u64,
    pub(super) map: OffsetMap,
    /// Behind the last batch whose keys are in the map.
    pub(super) map_end: i64,
    pub(super) report: CompactionReport,
}

/// What is left of a batch.
enum Left {
    All,
    Some {
        keep: Vec<bool>,
        /// Tombstones are among what is kept.
        tombstones: bool,
    },
    None,
}

impl Compaction {
    /// Reads the keys of what has not been compacted yet, as far as the map holds them: the rest is for the next pass.
    /// Blocks for as long as it takes to read and decompress that part of the log.
    ///
    /// Memory: [`CompactionLimits::map_bytes`], a batch and its records within
    /// [`LogConfig::max_decompressed_bytes`]. A single batch with more keys than fit makes the map larger by 32 bytes a
    /// record of it.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub fn index(&mut self) -> Result<()> {
        let end = self
            .sources
            .last()
            .map_or(self.first_dirty, |(_, state)| state.end_offset);
        let most = usize::try_from(end - self.first_dirty).unwrap_or(usize::MAX);
        let entries = OffsetMap::entries_in(self.limits.map_bytes).max(1);
        self.map = OffsetMap::new(most.min(entries));
        self.map_end = self.first_dirty;
        for (segment, state) in self.sources.clone() {
            if state.end_offset > self.first_dirty && !self.index_segment(&segment)? {
                return Ok(());
            }
        }
        self.map_end = end;
        self.report.is_complete = true;
        Ok(())
    }

    /// False if the map is full.
    fn index_segment(&mut self, segment: &Arc<Segment>) -> Result<bool> {
        let mut batches = Batches::new(segment, self.config.max_decompressed_bytes)?;
        while let Some(item) = batches.next()? {
            let next_offset = item.header().next_offset();
            if next_offset <= self.first_dirty {
                continue;
            }
            if let Item::Batch(batch) = item
                && let Some(records) = self.decode(&batch)
            {
                if self.map.len() + records.len() > self.map.capacity() {
                    if self.map.len() > 0 {
                        return Ok(false);
                    }
                    self.map = OffsetMap::new(records.len());
                }
                let records = records.iter().filter_map(Result::ok);
                for record in records.filter(|record| record.offset >= self.first_dirty) {
                    if let Some(key) = record.key {
                        self.map.put(key, record.offset);
                    }
                }
            }
            self.map_end = next_offset;
        }
        Ok(true)
    }

    /// The records of a batch that may be taken apart: none of control and transactional batches, nor of those that
    /// are malformed or decompress to more than is allowed.
    fn decode(&self, batch: &RecordBatch) -> Option<Records> {
        let header = batch.header();
        if header.is_control() || header.is_transactional() {
            return None;
        }
        let records = batch.records(self.config.max_decompressed_bytes).ok()?;
        records
            .iter()
            .all(|record| record.is_ok())
            .then_some(records)
    }

    /// Writes the next segment anew, merged with those behind it as long as they fit into one; `None` when all have been
    /// written. Segments in which nothing changes are passed over. Blocks for as long as it takes to read and write them.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`], [`Error::Corrupt`]. What was written aside is removed.
    pub fn next_segment(&mut self) -> Result<Option<CompactedSegment>> {
        while let Some((first, _)) = self.source(self.next) {
            let begin = self.next;
            let interval = self.config.index_interval_bytes;
            let mut output = Output::create(&self.pool, &self.dir, first.base_offset(), interval)?;
            let mut kept_whole = true;
            loop {
                let Some((segment, state)) = self.source(self.next) else {
                    break;
                };
                kept_whole &= self.rewrite(&segment, &mut output)?;
                self.report.bytes_before += state.size;
                self.next += 1;
                if !self.fits(&output) {
                    break;
                }
            }
            let sources = self.sources.get(begin..self.next).unwrap_or_default();
            let before: u64 = sources.iter().map(|(_, state)| state.size).sum();
            let after = output.end()?;
            self.report.bytes_after += after;
            if after == 0 || (sources.len() == 1 && kept_whole && after == before) {
                continue;
            }
            let modified = self.modified_ms(sources)?;
            output.sync(
                sources.first().and_then(|(_, state)| state.first_ms),
                modified,
            )?;
            return Ok(Some(CompactedSegment {
                sources: sources
                    .iter()
                    .map(|(segment, _)| Arc::clone(segment))
                    .collect(),
                truncations: self.truncations,
                output,
            }));
        }
        Ok(None)
    }

    /// The segment at an index, if it holds anything that the map knows about.
    fn source(&self, at: usize) -> Option<Source> {
        let (segment, state) = self.sources.get(at)?;
        (segment.base_offset() < self.map_end).then(|| (Arc::clone(segment), *state))
    }

    /// Whether the next source goes into the same output.
    fn fits(&self, output: &Output) -> bool {
        let Some((_, next)) = self.source(self.next) else {
            return false;
        };
        let most = self.config.segment_bytes.min(MAX_SEGMENT_BYTES);
        output.size() + next.size <= most
            && next.end_offset - output.base_offset() <= i64::from(i32::MAX)
    }

    fn modified_ms(&self, sources: &[Source]) -> Result<Option<i64>> {
        let Some((last, _)) = sources.last() else {
            return Ok(None);
        };
        let info = self.pool.disk().info(last.path());
        let info = info.map_err(|source| last.io("look at", source))?;
        Ok(info.map(|info| info.modified_ms))
    }

    /// Writes what is left of a segment; true if that is every batch as it was.
    fn rewrite(&mut self, segment: &Arc<Segment>, output: &mut Output) -> Result<bool> {
        let mut batches = Batches::new(segment, self.config.max_decompressed_bytes)?;
        let mut as_it_was = true;
        while let Some(item) = batches.next()? {
            match item {
                Item::Large { header, position } => {
                    self.keep_whole(header.base_offset);
                    output.copy(&header, batches.file(), position)?;
                }
                Item::Batch(batch) => {
                    as_it_was &= self.rewrite_batch(&batch, output, batches.bytes_left())?;
                }
            }
        }
        Ok(as_it_was)
    }

    fn keep_whole(&mut self, base_offset: i64) {
        self.report.batches_kept_whole += 1;
        self.report.first_kept_whole.get_or_insert(base_offset);
    }

    fn rewrite_batch(
        &mut self,
        batch: &RecordBatch,
        output: &mut Output,
        bytes_left: u64,
    ) -> Result<bool> {
        let header = batch.header();
        let Some(records) = self.decode(batch) else {
            self.keep_whole(header.base_offset);
            output.append(header, batch.bytes())?;
            return Ok(true);
        };
        let malformed = |error: broker_protocol::record::Error| Error::Io {
            operation: "compact into",
            path: output.path(crate::segment::LOG_SUFFIX),
            source: std::io::Error::other(error),
        };
        let (keep, tombstones) = match self.judge(batch, &records) {
            Left::All => {
                output.append(header, batch.bytes())?;
                return Ok(true);
            }
            Left::Some { keep, tombstones } => (keep, tombstones),
            Left::None => {
                let is_last =
                    self.producer_ends.get(&header.producer_id) == Some(&header.next_offset());
                if is_last && header.has_producer_id() {
                    let bytes = without_records(header).map_err(malformed)?;
                    let emptied = RecordBatch::parse(bytes).map_err(malformed)?;
                    output.append(emptied.header(), emptied.bytes())?;
                } else {
                    output.leave_out(header);
                }
                return Ok(header.records_count == 0);
            }
        };
        let horizon = self
            .now_ms
            .saturating_add(self.config.compaction.delete_retention_ms);
        let bytes = retain_records(header, &records, &keep, tombstones.then_some(horizon))
            .map_err(malformed)?;
        // Compressed anew a batch may grow; all that is still to come must fit behind it.
        let end = output.size() + bytes.len() as u64 + bytes_left;
        if bytes.len() as u64 > size_of(header) && end > MAX_SEGMENT_BYTES {
            output.append(header, batch.bytes())?;
            return Ok(true);
        }
        let left = RecordBatch::parse(bytes).map_err(malformed)?;
        output.append(left.header(), left.bytes())?;
        Ok(false)
    }

    /// What stays of a batch, by Kafka's rules (`Cleaner.shouldRetainRecord`).
    fn judge(&mut self, batch: &RecordBatch, records: &Records) -> Left {
        let horizon = batch.header().delete_horizon_ms();
        // An older record of a key may be in a batch that cannot be taken apart: then the tombstone must stay.
        let keeps_tombstones = self.report.batches_kept_whole > 0
            || horizon.is_none_or(|horizon| self.now_ms < horizon);
        let mut keep = Vec::with_capacity(records.len());
        let (mut kept, mut tombstones) = (0, false);
        for record in records.iter().filter_map(Result::ok) {
            let stays = if record.offset >= self.map_end {
                true
            } else if let Some(key) = record.key {
                self.map.get(key).is_none_or(|last| record.offset >= last)
                    && (record.value.is_some() || keeps_tombstones)
            } else {
                self.report.records_without_key += 1;
                false
            };
            keep.push(stays);
            kept += usize::from(stays);
            tombstones |= stays && record.value.is_none();
        }
        self.report.records_removed += (keep.len() - kept) as u64;
        if kept == 0 {
            Left::None
        } else if kept == keep.len() && (!tombstones || horizon.is_some()) {
            Left::All
        } else {
            Left::Some { keep, tombstones }
        }
    }

    /// What it has done so far.
    #[must_use]
    pub fn report(&self) -> &CompactionReport {
        &self.report
    }

    pub(super) fn warn_of_batches_kept_whole(&self) {
        if let Some(offset) = self.report.first_kept_whole {
            warn!(
                topic = %self.id.topic, partition = self.id.partition, offset,
                batches = self.report.batches_kept_whole,
                "compaction kept batches whole that it cannot take apart (too large, malformed or of a transaction)"
            );
        }
    }
}
