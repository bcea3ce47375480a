//! Opening a partition: what has been synced is believed, and only the rest is read.
//!
//! ```text
//!                        snapshot     recovery point
//! ──────────┬──────────┬─────┬─────────────┬─────────────────────✗·········  ┌─────────────┐
//!  last     │ last     │     │  headers    │  every CRC, growing   cut       │ set aside   │
//!  entries  │ entries  │     │             │  offsets                        └─────────────┘
//! ──────────┴──────────┴─────┴─────────────┴─────────────────────✗·········   later segments
//!  segments that were synced   the segment that was written, and later ones
//! ```
//! - **Segments at or below the recovery point**, and all after a clean shutdown: their indexes by length and last entry, and
//!   the batches from that entry on (`load.rs`). An index that cannot be right is made anew from all headers of its segment;
//!   what is wrong inside one is noticed by the lookup that meets it, since each verifies the entry it takes. A flipped bit in
//!   the middle of such a segment is noticed by who reads it.
//! - **The segment with the recovery point**: its headers from the newest producer snapshot on, since that stands for synced
//!   index entries too (`snapshots.rs`), or from its start; and every CRC from the recovery point on. The log is cut at the
//!   first place that is no whole batch: a torn tail, zeros, a flipped bit, a hole between segments.
//! - Segments behind a cut are removed; those that begin with a sound batch are only renamed (`….log.<uuid>.cut`).
//! - **Producers** come from the newest snapshot at or below the recovery point and the headers behind it; leader epochs from
//!   their file, which is written before any batch of a new epoch. Without either, all headers are read.
//! - **Holes**: a segment that was synced ends before the next one begins, or the log ends before the recovery point. That is
//!   lost data and reported as such ([`RecoveryReport::holes`]); reads go on at the next batch there is. The ends of compacted
//!   segments are no evidence, so nothing is said of a topic that is compacted.
//! - A bad header in what had been synced is damage, not a torn write: it is stepped over with the help of the index and
//!   reported; reads there fail with [`Error::Corrupt`].

mod headers;
mod load;
mod report;

pub(crate) use headers::walk_headers;
use load::{Belief, FoundSegment, Loading};
pub use report::{Cut, RecoveryReport};

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock};
use std::thread;

use tracing::warn;
use uuid::Uuid;

use crate::checkpoint::{LEADER_EPOCHS, PARTITION_METADATA, read_topic_id};
use crate::compaction::finish_swaps;
use crate::config::LogConfig;
use crate::disk::FileInfo;
use crate::error::{Error, Result};
use crate::file_pool::{FilePool, remove_if_there};
use crate::leader_epochs::LeaderEpochs;
use crate::log_dir::Checkpoints;
use crate::partition_log::{PartitionLog, snapshot_due_bytes};
use crate::producer_state::ProducerStates;
use crate::reader::{Shared, View};
use crate::scan::{BadBatch, CheckedWalk, Stop};
use crate::segment::{
    LOG_SUFFIX, OFFSET_INDEX_SUFFIX, Segment, SegmentState, TIME_INDEX_SUFFIX, base_offset_of,
    file_name,
};
use crate::snapshots::Snapshots;
use crate::topic_partition::TopicPartition;

/// Segments of one partition that are scanned at the same time, beside those of other partitions.
const PARALLEL_SEGMENTS: usize = 4;

/// Where a partition is and what the log directory knows about it.
#[derive(Debug)]
pub(crate) struct OpenPartition {
    pub(crate) id: TopicPartition,
    pub(crate) dir: PathBuf,
    pub(crate) pool: Arc<FilePool>,
    pub(crate) config: LogConfig,
    pub(crate) checkpoints: Arc<Checkpoints>,
    /// True after a clean shutdown, and for a new partition.
    pub(crate) clean: bool,
    pub(crate) recovery_point: i64,
    /// From the checkpoint; 0 without.
    pub(crate) log_start: i64,
}

impl OpenPartition {
    /// Opens the log, recovering it as far as it needs it.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`], [`Error::MalformedFile`] for the topic's id. Bad segments and indexes are no
    /// error.
    pub(crate) fn open(self) -> Result<(PartitionLog, RecoveryReport)> {
        let topic_id = read_topic_id(self.pool.disk(), &self.dir.join(PARTITION_METADATA))?;
        finish_swaps(self.pool.disk(), &self.dir)?;
        let (mut recovery, found) = Recovery::begin(&self)?;
        let believed = if self.clean {
            i64::MAX
        } else {
            self.recovery_point
        };
        let (indexed, _) = recovery.newest_snapshot(believed)?;
        recovery.load_segments(&found, indexed)?;
        recovery.fit_to_log_start()?;
        recovery.finish(topic_id)
    }
}

/// Opening in progress.
#[derive(Debug)]
struct Recovery<'a> {
    params: &'a OpenPartition,
    id: Arc<TopicPartition>,
    segments: Vec<Arc<Segment>>,
    snapshots: Snapshots,
    report: RecoveryReport,
}

impl<'a> Recovery<'a> {
    /// Lists the directory; begins with its segments, in order. Removes what a crash left half done: indexes without a
    /// log, files marked deleted.
    fn begin(params: &'a OpenPartition) -> Result<(Self, Vec<FoundSegment>)> {
        let OpenPartition { id, dir, pool, .. } = params;
        let disk = pool.disk();
        let files = disk
            .list(dir)
            .map_err(|source| Error::io("list", dir, source))?;
        let len_of = |base_offset, suffix| {
            let name = file_name(base_offset, suffix);
            let at = files.binary_search_by(|file| file.name.cmp(&name)).ok()?;
            files.get(at).map(|file| file.len)
        };
        let segment_of = |file: &FileInfo| {
            let base_offset = base_offset_of(&file.name, LOG_SUFFIX).filter(|_| !file.is_dir)?;
            Some(FoundSegment {
                base_offset,
                len: file.len,
                modified_ms: file.modified_ms,
                offset_index_len: len_of(base_offset, OFFSET_INDEX_SUFFIX),
                time_index_len: len_of(base_offset, TIME_INDEX_SUFFIX),
            })
        };
        // Names have 20 digits, so their order is that of the offsets.
        let found: Vec<FoundSegment> = files.iter().filter_map(segment_of).collect();
        for file in &files {
            let index_of = base_offset_of(&file.name, OFFSET_INDEX_SUFFIX)
                .or_else(|| base_offset_of(&file.name, TIME_INDEX_SUFFIX));
            let is_orphan = index_of.is_some_and(|base| {
                let segment = found.binary_search_by_key(&base, |segment| segment.base_offset);
                segment.is_err()
            });
            if is_orphan || file.name.ends_with(".deleted") || file.name.ends_with(".tmp") {
                remove_if_there(disk, &dir.join(&file.name))?;
            }
        }
        let recovery = Self {
            params,
            id: Arc::new(id.clone()),
            segments: Vec::new(),
            snapshots: Snapshots::found(dir, &files),
            report: RecoveryReport::new(id.clone(), params.clean, params.recovery_point),
        };
        Ok((recovery, found))
    }

    fn io(&self, operation: &'static str, source: std::io::Error) -> Error {
        Error::io(operation, &self.params.dir, source)
    }

    /// The newest snapshot at or below `at_most`, offset 0 without one; those that are bad go into the report.
    fn newest_snapshot(&mut self, at_most: i64) -> Result<(i64, ProducerStates)> {
        let disk = self.params.pool.disk();
        let bad = &mut self.report.bad_snapshots;
        let newest = self
            .snapshots
            .newest(disk, at_most, |path, reason| bad.push((path, reason)))?;
        Ok(newest.unwrap_or_default())
    }

    /// Loads the segments, those that have to be checked a few at a time; ends the log at the first bad place.
    fn load_segments(&mut self, found: &[FoundSegment], indexed: i64) -> Result<()> {
        let bases: Vec<i64> = found.iter().map(|segment| segment.base_offset).collect();
        let mut at = 0;
        while let Some(rest) = found.get(at..).filter(|rest| !rest.is_empty()) {
            let width = if self.is_believed(bases.get(at + 1)) {
                1
            } else {
                PARALLEL_SEGMENTS
            };
            let mut loadings = Vec::new();
            for (segment, at) in rest.iter().take(width).zip(at..) {
                loadings.push(self.begin_loading(*segment, bases.get(at + 1), indexed)?);
            }
            run_all(&mut loadings)?;
            for loading in loadings {
                let segment = loading.found;
                at += 1;
                if let Some(bad) = self.settle(loading)? {
                    return self.cut(bad, segment, found.get(at..).unwrap_or_default());
                }
            }
        }
        Ok(())
    }

    /// True if the segment that ends at `next_base`, the last one without, has been synced with its indexes.
    fn is_believed(&self, next_base: Option<&i64>) -> bool {
        // The last segment may get appends, so its end must be certain.
        self.params.clean || next_base.is_some_and(|next| *next <= self.params.recovery_point)
    }

    fn begin_loading(
        &self,
        found: FoundSegment,
        next_base: Option<&i64>,
        indexed: i64,
    ) -> Result<Loading> {
        let OpenPartition { pool, dir, .. } = self.params;
        let belief = if self.is_believed(next_base) {
            Belief::Whole
        } else {
            Belief::Below {
                recovery_point: self.params.recovery_point,
                indexed,
            }
        };
        let segment = Arc::new(Segment::new(&self.id, pool, dir, found.base_offset));
        let interval = self.params.config.index_interval_bytes;
        Loading::new(segment, found, next_base.copied(), belief, interval)
    }

    /// Adds a loaded segment to the log. Returns the place to cut at, if there is one.
    fn settle(&mut self, mut loading: Loading) -> Result<Option<BadBatch>> {
        if let Some(next) = loading.next_base.filter(|_| loading.bad.is_none()) {
            if loading.is_checked() {
                loading.bad = hole_before(next, &loading.state);
            } else {
                // Damage or a compacted tail: the next segment says where this one ends.
                let end = std::mem::replace(&mut loading.state.end_offset, next);
                if end < next && !loading.is_damaged() {
                    self.note_hole(end..next);
                }
            }
        }
        let bad = loading.bad.clone();
        self.segments.push(loading.settle(&mut self.report)?);
        Ok(bad)
    }

    fn note_hole(&mut self, hole: Range<i64>) {
        if !self.params.config.compacted {
            self.report.holes.push(hole);
        }
    }

    /// Ends the log in the segment loaded last.
    fn cut(&mut self, bad: BadBatch, found: FoundSegment, later: &[FoundSegment]) -> Result<()> {
        let Some(segment) = self.segments.last() else {
            return Ok(());
        };
        let state = segment.state();
        let later_bytes: u64 = later.iter().map(|segment| segment.len).sum();
        let cut = Cut {
            at_offset: state.end_offset,
            bytes: found.len.saturating_sub(state.size) + later_bytes,
            path: segment.path().to_owned(),
            position: bad.position,
            reason: bad.reason,
        };
        warn!(
            topic = %self.id.topic, partition = self.id.partition,
            offset = cut.at_offset, bytes = cut.bytes, path = %cut.path.display(),
            position = cut.position, reason = %cut.reason, "cut the end off a log"
        );
        self.report.cut = Some(cut);
        for segment in later.iter().rev() {
            self.put_away(*segment)?;
        }
        Ok(())
    }

    /// Removes a segment behind the cut, or renames it if it begins with a sound batch.
    fn put_away(&mut self, found: FoundSegment) -> Result<()> {
        let OpenPartition { pool, dir, .. } = self.params;
        let segment = Segment::new(&self.id, pool, dir, found.base_offset);
        let file = segment.file()?;
        let sound = CheckedWalk::new(&*file, 0, found.len).next();
        drop(file);
        match sound {
            Err(Stop::Io(source)) => return Err(segment.io("read", source)),
            Ok(Some(_)) => {
                let unique = Uuid::new_v4();
                let name = format!("{}.{unique}.cut", file_name(found.base_offset, LOG_SUFFIX));
                let aside = dir.join(name);
                pool.disk()
                    .rename(segment.path(), &aside)
                    .map_err(|source| segment.io("rename", source))?;
                self.report.set_aside.push(aside);
            }
            Ok(None) | Err(Stop::Bad(_)) => self.report.removed_segments += 1,
        }
        segment.remove()
    }

    /// Removes segments below the log start; begins a new log if there is nothing behind it.
    fn fit_to_log_start(&mut self) -> Result<()> {
        let log_start = self.params.log_start;
        let ends_before = self
            .segments
            .last()
            .is_some_and(|last| last.state().end_offset < log_start);
        let below = self
            .segments
            .iter()
            .enumerate()
            .take_while(|(at, segment)| {
                ends_before
                    || (at + 1 < self.segments.len() && segment.state().end_offset <= log_start)
            });
        let count = below.count();
        for segment in self.segments.drain(..count) {
            segment.remove()?;
            self.report.removed_segments += 1;
        }
        if self.segments.is_empty() {
            let OpenPartition { pool, dir, .. } = self.params;
            // What producers sent last is lost: they may go on wherever they are.
            self.snapshots.remove_below(pool.disk(), i64::MAX)?;
            let segment = Segment::new(&self.id, pool, dir, log_start);
            segment.create()?;
            self.segments.push(Arc::new(segment));
        }
        Ok(())
    }

    /// The producers' state and the leader epochs at the log end: from the newest snapshot and the epochs' file, and the
    /// headers behind the snapshot. Without a sound file of epochs all headers are read.
    fn producers_and_epochs(
        &mut self,
        log_start: i64,
        log_end: i64,
    ) -> Result<(ProducerStates, LeaderEpochs)> {
        let OpenPartition { pool, dir, .. } = self.params;
        let believed = if self.params.clean {
            log_end
        } else {
            log_end.min(self.params.recovery_point)
        };
        let (snapshot, mut producers) = self.newest_snapshot(believed)?;
        self.drop_later_snapshots(believed)?;
        let path = dir.join(LEADER_EPOCHS);
        let (mut epochs, from) = match self.load_epochs(&path)? {
            Some(loaded) => (loaded, snapshot),
            None => (LeaderEpochs::empty_and_dirty(path.clone()), 0),
        };
        let mut walked_epochs = LeaderEpochs::empty(path);
        let base = self.segments.first().map_or(0, |first| first.base_offset());
        if snapshot < base && self.segments.len() > 1 {
            warn!(
                topic = %self.id.topic, partition = self.id.partition,
                "no producer snapshot, reading the headers of the whole log"
            );
        }
        for segment in &self.segments {
            if segment.base_offset() > snapshot.max(base) {
                self.snapshots
                    .take(pool.disk(), segment.base_offset(), &producers);
            }
            let walked = walk_headers(segment, from, |header| {
                if header.base_offset >= snapshot {
                    producers.record(header, header.max_timestamp);
                }
                walked_epochs.assign(header.partition_leader_epoch, header.base_offset);
            })?;
            self.report.bytes_walked += walked.bytes;
            self.snapshots.appended(walked.bytes);
            for damaged in walked.damaged {
                if !self.report.damaged.contains(&damaged) {
                    self.report.damaged.push(damaged);
                }
            }
        }
        epochs.truncate_to(log_end);
        epochs.assign_all(&walked_epochs);
        epochs.advance_start(log_start);
        epochs.write_if_dirty(pool.disk())?;
        Ok((producers, epochs))
    }

    /// Removes the snapshots behind `believed`. After a clean shutdown there should be none.
    fn drop_later_snapshots(&mut self, believed: i64) -> Result<()> {
        if self.params.clean {
            for path in self.snapshots.behind(believed) {
                let reason = format!("the log ends at {believed}");
                warn!(path = %path.display(), reason, "ignoring a producer snapshot");
                self.report.bad_snapshots.push((path, reason));
            }
        }
        self.snapshots
            .remove_behind(self.params.pool.disk(), believed)
    }

    /// The file of leader epochs; `None` if there is none, or none that is sound.
    fn load_epochs(&self, path: &Path) -> Result<Option<LeaderEpochs>> {
        let disk = self.params.pool.disk();
        let there = disk
            .info(path)
            .map_err(|source| Error::io("look at", path, source))?;
        let loaded = match LeaderEpochs::load(disk, path.to_owned()) {
            Ok(loaded) => loaded,
            Err(Error::MalformedFile { .. }) => None,
            Err(error) => return Err(error),
        };
        if loaded.is_none() {
            warn!(
                topic = %self.id.topic, partition = self.id.partition, path = %path.display(),
                "malformed leader epochs, rebuilding them from the batches"
            );
        }
        let is_empty = self
            .segments
            .iter()
            .all(|segment| segment.state().size == 0);
        Ok(loaded.filter(|_| there.is_some() || is_empty))
    }

    fn finish(
        mut self,
        topic_id: Option<broker_protocol::TopicId>,
    ) -> Result<(PartitionLog, RecoveryReport)> {
        let base = self
            .segments
            .first()
            .map_or(0, |segment| segment.base_offset());
        let active = self.segments.last().map(|segment| segment.state());
        let log_end = active.map_or(base, |state| state.end_offset);
        let log_start = self.params.log_start.clamp(base, log_end);
        if log_end < self.params.recovery_point {
            self.report.holes.push(log_end..self.params.recovery_point);
        }
        let (producers, epochs) = self.producers_and_epochs(log_start, log_end)?;
        let disk = self.params.pool.disk();
        self.snapshots.remove_below(disk, base)?;
        if self.snapshots.bytes_since() > snapshot_due_bytes(&self.params.config) {
            // So that the next open need not read as much.
            self.snapshots.take(disk, log_end, &producers);
        }
        self.snapshots.sync(disk)?;
        disk.sync_dir(&self.params.dir)
            .map_err(|source| self.io("sync", source))?;
        self.report.log_start_offset = log_start;
        self.report.log_end_offset = log_end;
        let view = View {
            segments: Arc::new(self.segments.clone()),
            active_size: active.map_or(0, |state| state.size),
            log_start,
            high_watermark: log_end,
            log_end,
            epochs: Arc::new(epochs.clone()),
            deleted: false,
        };
        let shared = Shared {
            id: Arc::clone(&self.id),
            view: RwLock::new(view),
            offline: AtomicBool::new(false),
            max_decompressed_bytes: self.params.config.max_decompressed_bytes,
        };
        let log = PartitionLog {
            cleaned_to: self.params.checkpoints.cleaned_to(&self.id).min(log_end),
            id: self.id,
            dir: self.params.dir.clone(),
            topic_id,
            pool: Arc::clone(&self.params.pool),
            config: self.params.config.clone(),
            checkpoints: Arc::clone(&self.params.checkpoints),
            shared: Arc::new(shared),
            segments: self.segments,
            epochs,
            producers,
            snapshots: self.snapshots,
            log_start,
            high_watermark: log_end,
            log_end,
            // What was scanned has been synced since.
            recovery_point: log_end,
            names_changed: 0,
            names_synced: 0,
            truncations: 0,
        };
        log.note_points();
        Ok((log, self.report))
    }
}

/// Finds out what the segments hold, each on a thread of its own.
fn run_all(loadings: &mut [Loading]) -> Result<()> {
    if let [loading] = loadings {
        return loading.run();
    }
    thread::scope(|scope| {
        let threads: Vec<_> = loadings
            .iter_mut()
            .map(|loading| scope.spawn(|| loading.run()))
            .collect();
        for thread in threads {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    })
}

/// A hole (or an overlap) between the end of a segment and the next one.
fn hole_before(next_base: i64, state: &SegmentState) -> Option<BadBatch> {
    (state.end_offset != next_base).then(|| BadBatch {
        position: state.size,
        reason: format!(
            "the segment ends at {}, the next one begins at {next_base}",
            state.end_offset
        ),
    })
}
