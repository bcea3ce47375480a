//! Opening a partition: what is on disk is believed as far as it has been synced, and checked beyond.
//!
//! ```text
//!               recovery point
//! ───────────────────┬──────────────────────────✗···········  ┌─────────────┐
//!   headers only     │  every CRC, offsets growing  cut        │ set aside   │
//! ───────────────────┴──────────────────────────✗···········  └─────────────┘
//!   segments that were synced                                  later segments
//! ```
//! - After a clean shutdown no CRC is checked. After any other stop everything beyond the recovery point is, and the log is
//!   cut at the first place that is no whole batch: a torn tail, zeros, a flipped bit, a hole between segments.
//! - Segments behind a cut are removed; those that begin with a sound batch are only renamed (`….log.<uuid>.cut`).
//! - Headers of all batches are walked, which rebuilds the producers' state and checks every index entry. An index that
//!   says anything untrue is written anew.
//! - A bad header in what had been synced is damage, not a torn write: it is stepped over with the help of the index and
//!   reported; reads there fail with [`Error::Corrupt`].

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock};

use broker_protocol::record::BatchHeader;
use tracing::warn;
use uuid::Uuid;

use crate::checkpoint::{LEADER_EPOCHS, PARTITION_METADATA, read_topic_id};
use crate::compaction::finish_swaps;
use crate::config::LogConfig;
use crate::disk::{DiskFile, FileInfo};
use crate::error::{Error, Result};
use crate::file_pool::{FilePool, remove_if_there};
use crate::index::{OffsetEntry, TimeEntry};
use crate::leader_epochs::LeaderEpochs;
use crate::log_dir::Checkpoints;
use crate::partition_log::{PartitionLog, WALK_WINDOW};
use crate::producer_state::ProducerStates;
use crate::reader::{Shared, View};
use crate::scan::{BadBatch, CheckedWalk, HeaderWalk, Stop, end_offset_of, size_of};
use crate::segment::{
    LOG_SUFFIX, NewEntries, OFFSET_INDEX_SUFFIX, Segment, SegmentState, TIME_INDEX_SUFFIX,
    base_offset_of, file_name,
};
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
    /// Damaged places in what had been synced: segment, byte, reason. They have been left alone.
    pub damaged: Vec<(PathBuf, u64, String)>,
    /// First offset.
    pub log_start_offset: i64,
    /// Behind the last offset.
    pub log_end_offset: i64,
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: [{}, {}), {} bytes scanned from offset {}",
            self.partition,
            self.log_start_offset,
            self.log_end_offset,
            self.bytes_scanned,
            self.recovery_point
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
        Ok(())
    }
}

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
        let id = Arc::new(self.id.clone());
        let mut recovery = Recovery::new(&self, id);
        let found = recovery.list_segments()?;
        recovery.load_segments(&found)?;
        recovery.fit_to_log_start()?;
        recovery.finish(topic_id)
    }
}

/// A segment file in the directory.
#[derive(Debug, Clone, Copy)]
struct FoundSegment {
    base_offset: i64,
    len: u64,
    modified_ms: i64,
}

/// Opening in progress.
#[derive(Debug)]
struct Recovery<'a> {
    params: &'a OpenPartition,
    id: Arc<TopicPartition>,
    segments: Vec<Arc<Segment>>,
    producers: ProducerStates,
    /// Epochs as the batches say.
    walked_epochs: LeaderEpochs,
    report: RecoveryReport,
}

/// A segment being walked.
#[derive(Debug)]
struct Loading {
    segment: Arc<Segment>,
    file: Arc<dyn DiskFile>,
    /// Length of the file.
    len: u64,
    state: SegmentState,
    /// The largest timestamp of the first batch.
    first_timestamp_ms: Option<i64>,
    /// Entries as they should be.
    made: NewEntries,
    offsets: Claims<OffsetEntry>,
    times: Claims<TimeEntry>,
}

/// The entries of an index file, ticked off while walking over the batches they should point to.
#[derive(Debug)]
struct Claims<E> {
    /// `None` if the file was missing or insane.
    entries: Option<Vec<E>>,
    confirmed: usize,
}

impl<E: Copy> Claims<E> {
    /// The next entry not confirmed yet.
    fn next(&self) -> Option<E> {
        self.entries.as_ref()?.get(self.confirmed).copied()
    }

    /// The entries, if all of them are true and there are enough of them to be of use.
    fn if_true(&self, made: usize) -> Option<&[E]> {
        let entries = self.entries.as_deref()?;
        let useful = entries.len().saturating_mul(2) >= made;
        (self.confirmed == entries.len() && useful).then_some(entries)
    }
}

impl Loading {
    /// Takes the batch at the present end of the segment.
    fn add(&mut self, header: &BatchHeader, index_interval: u64) {
        let position = self.state.size;
        let last_offset = end_offset_of(header) - 1;
        self.first_timestamp_ms = self.first_timestamp_ms.or(Some(header.max_timestamp));
        self.state.add(header, index_interval, &mut self.made);
        if self.offsets.next()
            == Some(OffsetEntry {
                offset: last_offset,
                position,
            })
        {
            self.offsets.confirmed += 1;
        }
        if self
            .times
            .next()
            .is_some_and(|time| Some(time) == self.state.largest)
        {
            self.times.confirmed += 1;
        }
    }
}

impl<'a> Recovery<'a> {
    fn new(params: &'a OpenPartition, id: Arc<TopicPartition>) -> Self {
        let report = RecoveryReport {
            partition: params.id.clone(),
            clean: params.clean,
            recovery_point: params.recovery_point,
            bytes_scanned: 0,
            batches_scanned: 0,
            cut: None,
            set_aside: Vec::new(),
            removed_segments: 0,
            rebuilt_indexes: 0,
            damaged: Vec::new(),
            log_start_offset: 0,
            log_end_offset: 0,
        };
        Self {
            params,
            id,
            segments: Vec::new(),
            producers: ProducerStates::default(),
            walked_epochs: LeaderEpochs::empty(params.dir.join(LEADER_EPOCHS)),
            report,
        }
    }

    fn io(&self, operation: &'static str, source: std::io::Error) -> Error {
        Error::io(operation, &self.params.dir, source)
    }

    /// The segments in order. Removes what a crash left half done: indexes without a log, files marked deleted.
    fn list_segments(&self) -> Result<Vec<FoundSegment>> {
        let disk = self.params.pool.disk();
        let files = disk
            .list(&self.params.dir)
            .map_err(|source| self.io("list", source))?;
        let segment_of = |file: &FileInfo| {
            let base_offset = base_offset_of(&file.name, LOG_SUFFIX).filter(|_| !file.is_dir)?;
            Some(FoundSegment {
                base_offset,
                len: file.len,
                modified_ms: file.modified_ms,
            })
        };
        let found: Vec<FoundSegment> = files.iter().filter_map(segment_of).collect();
        for file in &files {
            let index_of = base_offset_of(&file.name, OFFSET_INDEX_SUFFIX)
                .or_else(|| base_offset_of(&file.name, TIME_INDEX_SUFFIX));
            let orphan = index_of
                .is_some_and(|base| found.iter().all(|segment| segment.base_offset != base));
            if orphan || file.name.ends_with(".deleted") || file.name.ends_with(".tmp") {
                remove_if_there(disk, &self.params.dir.join(&file.name))?;
            }
        }
        // Names have 20 digits, so their order is that of the offsets.
        Ok(found)
    }

    fn load_segments(&mut self, found: &[FoundSegment]) -> Result<()> {
        for (at, segment) in found.iter().enumerate() {
            let next = found.get(at + 1);
            let bad = self.load_segment(*segment, next.map(|next| next.base_offset))?;
            if let Some(bad) = bad {
                return self.cut(bad, *segment, found.get(at + 1..).unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Walks one segment and adds it to the log. Returns the place to cut at, if there is one.
    fn load_segment(
        &mut self,
        found: FoundSegment,
        next_base: Option<i64>,
    ) -> Result<Option<BadBatch>> {
        let mut loading = self.begin_loading(found, next_base)?;
        let beyond = |offset: i64| !self.params.clean && offset > self.params.recovery_point;
        // The last segment may get appends, so its end must be certain.
        let scanned = beyond(next_base.unwrap_or(i64::MAX));
        let may_cut = scanned || next_base.is_none();
        let mut bad = self.walk_synced(&mut loading, scanned, may_cut)?;
        if scanned && bad.is_none() {
            bad = self.scan(&mut loading)?;
        }
        if bad.is_none() {
            bad = next_base
                .filter(|_| scanned)
                .and_then(|next| hole_before(next, &loading.state));
        }
        if bad.is_none()
            && !scanned
            && let Some(next) = next_base
        {
            // Damage or a compacted tail: the next segment says where this one ends.
            loading.state.end_offset = next;
        }
        let cut = bad.is_some() && loading.state.size < found.len;
        self.finish_loading(
            loading,
            found,
            cut,
            scanned,
            next_base.is_some() && bad.is_none(),
        )?;
        Ok(bad)
    }

    fn begin_loading(&self, found: FoundSegment, next_base: Option<i64>) -> Result<Loading> {
        let OpenPartition { pool, dir, .. } = self.params;
        let segment = Arc::new(Segment::new(&self.id, pool, dir, found.base_offset));
        let end_offset = next_base.unwrap_or(i64::MAX);
        Ok(Loading {
            file: segment.file()?,
            len: found.len,
            state: SegmentState::empty(found.base_offset),
            first_timestamp_ms: None,
            made: NewEntries::default(),
            offsets: Claims {
                entries: segment.offset_index().load(end_offset, found.len)?,
                confirmed: 0,
            },
            times: Claims {
                entries: segment.time_index().load(end_offset, found.len)?,
                confirmed: 0,
            },
            segment,
        })
    }

    /// Takes the batches that have been synced, by their headers: all of the segment, or those before the recovery
    /// point if the rest will be scanned.
    fn walk_synced(
        &mut self,
        loading: &mut Loading,
        scanned: bool,
        may_cut: bool,
    ) -> Result<Option<BadBatch>> {
        let file = Arc::clone(&loading.file);
        let mut walk = HeaderWalk::new(&*file, 0, loading.len, WALK_WINDOW);
        loop {
            match walk.next() {
                Ok(None) => return Ok(None),
                Ok(Some((_, header))) => {
                    if scanned && end_offset_of(&header) > self.params.recovery_point {
                        return Ok(None);
                    }
                    if header.base_offset < loading.state.end_offset && may_cut {
                        return Ok(Some(BadBatch {
                            position: loading.state.size,
                            reason: offset_goes_back(&header, &loading.state),
                        }));
                    }
                    self.take(loading, &header);
                }
                Err(Stop::Io(source)) => return Err(loading.segment.io("read", source)),
                Err(Stop::Bad(bad)) => {
                    let Some(entry) = resync(loading, bad.position) else {
                        if may_cut {
                            // Beyond the recovery point `scan` finds the same place again.
                            return Ok((!scanned).then_some(bad));
                        }
                        self.note_damage(loading, bad);
                        loading.state.size = loading.len;
                        return Ok(None);
                    };
                    self.note_damage(loading, bad);
                    loading.state.size = entry.position;
                    walk = HeaderWalk::new(&*file, entry.position, loading.len, WALK_WINDOW);
                }
            }
        }
    }

    fn note_damage(&mut self, loading: &Loading, bad: BadBatch) {
        let path = loading.segment.path().to_owned();
        self.report.damaged.push((path, bad.position, bad.reason));
    }

    /// Takes the rest of the segment, checking everything, up to the first bad place.
    fn scan(&mut self, loading: &mut Loading) -> Result<Option<BadBatch>> {
        let file = Arc::clone(&loading.file);
        let start = loading.state.size;
        let mut walk = CheckedWalk::new(&*file, start, loading.len);
        let bad = loop {
            match walk.next() {
                Ok(None) => break None,
                Ok(Some((position, header))) => {
                    if header.base_offset < loading.state.end_offset {
                        let reason = offset_goes_back(&header, &loading.state);
                        break Some(BadBatch { position, reason });
                    }
                    self.take(loading, &header);
                    self.report.batches_scanned += 1;
                }
                Err(Stop::Io(source)) => return Err(loading.segment.io("read", source)),
                Err(Stop::Bad(bad)) => break Some(bad),
            }
        };
        let looked_at = bad.as_ref().map_or(loading.len, |bad| bad.position);
        self.report.bytes_scanned += looked_at - start;
        Ok(bad)
    }

    fn take(&mut self, loading: &mut Loading, header: &BatchHeader) {
        loading.add(header, self.params.config.index_interval_bytes);
        self.producers.record(header, header.max_timestamp);
        self.walked_epochs
            .assign(header.partition_leader_epoch, header.base_offset);
    }

    /// Settles a segment's length, indexes and state.
    fn finish_loading(
        &mut self,
        mut loading: Loading,
        found: FoundSegment,
        cut: bool,
        scanned: bool,
        sealed: bool,
    ) -> Result<()> {
        let segment = loading.segment;
        if cut {
            let size = loading.state.size;
            loading
                .file
                .truncate(size)
                .map_err(|source| segment.io("truncate", source))?;
        }
        let made = &loading.made;
        if let Some(entries) = loading.offsets.if_true(made.offsets.len()) {
            segment.offset_index().adopt(entries);
        } else {
            segment.offset_index().replace(&made.offsets)?;
            self.report.rebuilt_indexes += 1;
        }
        if let Some(entries) = loading.times.if_true(made.times.len()) {
            segment.time_index().adopt(entries);
        } else {
            segment.time_index().replace(&made.times)?;
            self.report.rebuilt_indexes += 1;
        }
        // When the first batch was appended is not stored. Its own time serves unless it is in the file's future; the
        // file's time alone would make a segment young again with every restart.
        let first_ms = loading.first_timestamp_ms.map(|timestamp_ms| {
            if (1..=found.modified_ms).contains(&timestamp_ms) {
                timestamp_ms
            } else {
                found.modified_ms
            }
        });
        loading.state.first_ms = first_ms.filter(|_| loading.state.size > 0);
        segment.set_state(loading.state);
        if sealed {
            segment.seal();
        }
        if scanned || cut {
            segment.sync(true)?;
        }
        self.segments.push(segment);
        Ok(())
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
            let segment = Segment::new(&self.id, pool, dir, log_start);
            segment.create()?;
            self.segments.push(Arc::new(segment));
        }
        Ok(())
    }

    /// The leader epochs: from the file if it is sound, completed or replaced by what the batches say.
    fn leader_epochs(&self, log_start: i64, log_end: i64) -> Result<LeaderEpochs> {
        let disk = self.params.pool.disk();
        let path = self.params.dir.join(LEADER_EPOCHS);
        let loaded = match LeaderEpochs::load(disk, path.clone()) {
            Ok(loaded) => loaded,
            Err(Error::MalformedFile { .. }) => None,
            Err(error) => return Err(error),
        };
        let mut epochs = loaded.unwrap_or_else(|| {
            warn!(
                topic = %self.id.topic, partition = self.id.partition, path = %path.display(),
                "malformed leader epochs, rebuilding them from the batches"
            );
            LeaderEpochs::empty_and_dirty(path.clone())
        });
        epochs.truncate_to(log_end);
        epochs.assign_all(&self.walked_epochs);
        epochs.advance_start(log_start);
        epochs.write_if_dirty(disk)?;
        Ok(epochs)
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
        let epochs = self.leader_epochs(log_start, log_end)?;
        let disk = self.params.pool.disk();
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
            producers: self.producers,
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

fn offset_goes_back(header: &BatchHeader, state: &SegmentState) -> String {
    format!(
        "offset {} follows {}",
        header.base_offset,
        state.end_offset - 1
    )
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

/// The first index entry behind a damaged place that points to a batch.
fn resync(loading: &mut Loading, position: u64) -> Option<OffsetEntry> {
    let entries = loading.offsets.entries.as_ref()?;
    let behind = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.position > position);
    for (at, entry) in behind {
        let mut walk = HeaderWalk::new(
            &*loading.file,
            entry.position,
            loading.len,
            BatchHeader::LEN,
        );
        if let Ok(Some((_, header))) = walk.next()
            && end_offset_of(&header) - 1 == entry.offset
            && size_of(&header) > 0
        {
            let entry = *entry;
            loading.offsets.confirmed = at;
            return Some(entry);
        }
    }
    None
}
