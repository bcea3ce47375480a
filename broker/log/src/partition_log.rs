//! The log of one partition: segments in order, and the offsets of a partition.
//!
//! ```text
//!   deleted          committed                       not yet on all in-sync replicas
//! ───────────┬──────────────────────┬───────────────┬──────────────────────┬─────────► offset
//!            │                      │               │                      │
//!     log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset
//!            │                                                             │
//!            └── advance_log_start moves it up      append moves it up, ───┘
//!                                                   truncate_to down
//!
//! files:  00000000000000000000.log   00000000000000001042.log   00000000000000002100.log  (active)
//!         [0, 1042)                  [1042, 2100)               [2100, log_end_offset)
//! recovery_point: everything below it has been synced
//! ```
//! All ranges are half open. A new segment's base offset is the log end at that moment, so segments are contiguous; a
//! hole between two is the trace of a crash and is dealt with in `recovery.rs`.
//!
//! One owner holds the [`PartitionLog`] and calls it with `&mut`; any number of [`PartitionReader`]s read meanwhile. What
//! must not happen here: waiting, threads, the wall clock (times come in as arguments).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker_protocol::TopicId;
use tracing::{info, warn};

use crate::checkpoint::{PARTITION_METADATA, write_topic_id};
use crate::config::LogConfig;
use crate::error::{Error, Result};
use crate::file_pool::FilePool;
use crate::leader_epochs::{EpochEnd, LeaderEpochs};
use crate::log_dir::Checkpoints;
use crate::producer_state::{ActiveProducer, ProducerStates, SavedProducer};
use crate::reader::{Offsets, PartitionReader, Shared};
use crate::recovery::walk_headers;
use crate::segment::{MAX_SEGMENT_BYTES, Segment};
use crate::snapshots::{self, Snapshots};
use crate::topic_partition::TopicPartition;

/// Bytes read at once while walking over a whole segment's headers.
pub(crate) const WALK_WINDOW: usize = 32 << 10;

/// How much is appended between two producer snapshots at least (but for rolls), and read by an open that has to go back
/// to one: a sixteenth of a segment, at most 16 MiB.
pub(crate) fn snapshot_due_bytes(config: &LogConfig) -> u64 {
    (config.segment_bytes / 16).min(16 << 20)
}

/// A partition's log, for its one owner. See the module for the picture of its offsets.
///
/// Every method blocks on the file system. Dropping it loses nothing that was appended, but without
/// [`crate::LogDir::shutdown`] the next open has to recover.
#[derive(Debug)]
pub struct PartitionLog {
    pub(crate) id: Arc<TopicPartition>,
    pub(crate) dir: PathBuf,
    pub(crate) topic_id: Option<TopicId>,
    pub(crate) pool: Arc<FilePool>,
    pub(crate) config: LogConfig,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) shared: Arc<Shared>,
    /// Never empty; the last one is active.
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) epochs: LeaderEpochs,
    pub(crate) producers: ProducerStates,
    pub(crate) snapshots: Snapshots,
    pub(crate) log_start: i64,
    pub(crate) high_watermark: i64,
    pub(crate) log_end: i64,
    pub(crate) recovery_point: i64,
    /// Everything below has been compacted.
    pub(crate) cleaned_to: i64,
    /// Counts changes of names in the directory; those up to `names_synced` survive a crash.
    pub(crate) names_changed: u64,
    pub(crate) names_synced: u64,
    /// Counts cuts of the tail, so that a flush that ran meanwhile proves nothing.
    pub(crate) truncations: u64,
}

impl PartitionLog {
    /// Which partition this is.
    #[must_use]
    pub fn id(&self) -> &TopicPartition {
        &self.id
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The id its topic had when it was created, if one was given.
    #[must_use]
    pub fn topic_id(&self) -> Option<TopicId> {
        self.topic_id
    }

    /// Gives a partition that has no topic id one, durably. One that is there is not replaced.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`].
    pub fn set_topic_id(&mut self, topic_id: TopicId) -> Result<()> {
        if self.topic_id.is_none() {
            write_topic_id(
                self.pool.disk(),
                &self.dir.join(PARTITION_METADATA),
                topic_id,
            )?;
            self.topic_id = Some(topic_id);
        }
        Ok(())
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Changes the settings for what is appended from now on (the decompression bound excepted, which stays).
    pub fn set_config(&mut self, config: LogConfig) {
        self.config = config;
    }

    /// First offset that may be read.
    #[must_use]
    pub fn log_start_offset(&self) -> i64 {
        self.log_start
    }

    /// Behind the last record that is decided; the high watermark until there are transactions.
    #[must_use]
    pub fn last_stable_offset(&self) -> i64 {
        self.high_watermark
    }

    /// Behind the last record that all in-sync replicas have.
    #[must_use]
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    /// Behind the last record.
    #[must_use]
    pub fn log_end_offset(&self) -> i64 {
        self.log_end
    }

    /// All four.
    #[must_use]
    pub fn offsets(&self) -> Offsets {
        Offsets {
            log_start: self.log_start,
            last_stable: self.high_watermark,
            high_watermark: self.high_watermark,
            log_end: self.log_end,
        }
    }

    /// Sets the high watermark, clamped to `[log start, log end]`. Appends do not move it: a single replica sets it to
    /// the log end after each append. After opening it is the log end.
    pub fn set_high_watermark(&mut self, offset: i64) {
        self.high_watermark = offset.clamp(self.log_start, self.log_end);
        let high_watermark = self.high_watermark;
        self.shared
            .publish(|view| view.high_watermark = high_watermark);
    }

    /// A handle for concurrent reads.
    #[must_use]
    pub fn reader(&self) -> PartitionReader {
        PartitionReader::new(&self.shared)
    }

    /// Below it everything has been synced.
    #[must_use]
    pub fn recovery_point(&self) -> i64 {
        self.recovery_point
    }

    /// Bytes of all segments, without indexes.
    #[must_use]
    pub fn size_in_bytes(&self) -> u64 {
        self.segments
            .iter()
            .map(|segment| segment.state().size)
            .sum()
    }

    /// Number of segments, at least 1.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Bytes that the next flush has to sync at most: all of the segments that reach behind the recovery point.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        let states = self.segments.iter().map(|segment| segment.state());
        let unflushed = states.filter(|state| state.end_offset > self.recovery_point);
        unflushed.map(|state| state.size).sum()
    }

    /// The newest leader epoch in the log.
    #[must_use]
    pub fn leader_epoch(&self) -> Option<i32> {
        self.epochs.latest()
    }

    /// Where the largest leader epoch that is not above `leader_epoch` ends, by Kafka's rules.
    #[must_use]
    pub fn end_offset_for_leader_epoch(&self, leader_epoch: i32) -> EpochEnd {
        self.epochs.end_offset_for(leader_epoch, self.log_end)
    }

    /// The idempotent producers that are remembered, in no order; about 32 bytes each.
    #[must_use]
    pub fn active_producers(&self) -> Vec<ActiveProducer> {
        self.producers.active()
    }

    /// Forgets idempotent producers that have been idle for [`LogConfig::producer_id_expiration_ms`].
    pub fn expire_producers(&mut self, now_ms: i64) {
        self.producers
            .expire(now_ms.saturating_sub(self.config.producer_id_expiration_ms));
    }

    pub(crate) fn active(&self) -> Result<&Arc<Segment>> {
        self.segments.last().ok_or_else(|| self.offline())
    }

    pub(crate) fn offline(&self) -> Error {
        Error::Offline {
            topic: self.id.topic.clone(),
            partition: self.id.partition,
        }
    }

    pub(crate) fn go_offline(&self, error: &Error) {
        warn!(
            topic = %self.id.topic, partition = self.id.partition,
            error = error as &dyn std::error::Error,
            "taking no more writes until the log has been opened again"
        );
        self.shared.offline.store(true, Ordering::Release);
    }

    pub(crate) fn check_online(&self) -> Result<()> {
        if self.shared.offline.load(Ordering::Acquire) {
            Err(self.offline())
        } else {
            Ok(())
        }
    }

    /// True if a failure has taken the log off line: [`Error::Offline`] for every further write.
    #[must_use]
    pub fn is_offline(&self) -> bool {
        self.shared.offline.load(Ordering::Acquire)
    }

    /// Shows readers the present segments and offsets.
    pub(crate) fn publish(&self) {
        let segments = Arc::new(self.segments.clone());
        let epochs = Arc::new(self.epochs.clone());
        let active_size = self
            .segments
            .last()
            .map_or(0, |segment| segment.state().size);
        self.shared.publish(|view| {
            view.segments = segments;
            view.epochs = epochs;
            view.active_size = active_size;
            view.log_start = self.log_start;
            view.high_watermark = self.high_watermark;
            view.log_end = self.log_end;
        });
    }

    /// Notes recovery point and log start for the checkpoints.
    pub(crate) fn note_points(&self) {
        let base = self
            .segments
            .first()
            .map_or(0, |segment| segment.base_offset());
        let log_start = Some(self.log_start).filter(|start| *start > base);
        // An open believes the indexes of segments that end at or below the recovery point. Those of a segment that was
        // closed while it was being synced need the next flush.
        let unsynced = self
            .sealed()
            .iter()
            .find(|segment| segment.indexes_unsynced());
        let recovery_point = unsynced.map_or(self.recovery_point, |segment| {
            self.recovery_point.min(segment.state().end_offset - 1)
        });
        self.checkpoints.note(&self.id, recovery_point, log_start);
    }

    /// All segments but the active one.
    fn sealed(&self) -> &[Arc<Segment>] {
        self.segments.split_last().map_or(&[], |(_, sealed)| sealed)
    }

    /// Closes the active segment if its first batch is older than [`LogConfig::segment_ms`], so that retention can take
    /// it even when nothing is written any more (KAFKA-15047). Returns true if it did.
    ///
    /// # Errors
    /// [`Error::Offline`], [`Error::DiskFull`], [`Error::Io`]; the log is unchanged.
    pub fn roll_if_due(&mut self, now_ms: i64) -> Result<bool> {
        self.check_online()?;
        let state = self.active()?.state();
        let due = state.size > 0 && self.is_aged(state.first_ms, now_ms);
        if due {
            self.roll(&[])?;
            self.publish();
        }
        Ok(due)
    }

    pub(crate) fn is_aged(&self, first_ms: Option<i64>, now_ms: i64) -> bool {
        // A clock that went back gives a negative age, which is no age.
        first_ms.is_some_and(|first| now_ms.saturating_sub(first) > self.config.segment_ms)
    }

    /// Largest segment by configuration and format, in bytes.
    pub(crate) fn max_segment_bytes(&self) -> u64 {
        self.config.segment_bytes.min(MAX_SEGMENT_BYTES)
    }

    /// Makes a new, empty active segment at the log end. Not published. After an error the log is unchanged. `unwritten`
    /// are the states that producers had before batches which have been recorded but not written yet, oldest first.
    pub(crate) fn roll(&mut self, unwritten: &[SavedProducer]) -> Result<()> {
        self.active()?.seal();
        if self.recovery_point >= self.log_end {
            // No flush will come back to it.
            self.active()?.sync(true)?;
        }
        let segment = Arc::new(Segment::new(&self.id, &self.pool, &self.dir, self.log_end));
        self.names_changed += 1;
        if let Err(error) = segment.create() {
            // An empty segment left behind would look like a hole once the present one has grown past it.
            if let Err(remove_error) = segment.remove() {
                self.go_offline(&remove_error);
            }
            return Err(error);
        }
        self.segments.push(segment);
        let mut producers = self.producers.clone();
        for saved in unwritten.iter().rev() {
            producers.restore(saved.clone());
        }
        self.snapshots
            .take(self.pool.disk(), self.log_end, &producers);
        Ok(())
    }

    /// Makes everything durable that has been appended: [`PartitionLog::prepare_flush`], run here.
    ///
    /// # Errors
    /// As [`Flush::run`].
    pub fn flush(&mut self) -> Result<i64> {
        let flushed = self.prepare_flush().run()?;
        Ok(self.finish_flush(&flushed))
    }

    /// What has to be synced now, to be run on another thread while appends go on. From time to time that includes a
    /// snapshot of the producers, which is written here.
    pub fn prepare_flush(&mut self) -> Flush {
        let due = self.snapshots.bytes_since() > snapshot_due_bytes(&self.config);
        if self.log_end > self.recovery_point && due {
            self.names_changed += 1;
            self.snapshots
                .take(self.pool.disk(), self.log_end, &self.producers);
        }
        let unsynced = self.snapshots.unsynced();
        let active = self.segments.len().saturating_sub(1);
        let mut segments = Vec::new();
        for (at, segment) in self.segments.iter().enumerate() {
            let sealed = at < active;
            // A snapshot stands for index entries below it too.
            let indexes = sealed || unsynced.is_some();
            if segment.state().end_offset > self.recovery_point
                || (indexes && segment.indexes_unsynced())
            {
                segments.push((Arc::clone(segment), indexes));
            }
        }
        Flush {
            segments,
            snapshot: unsynced.map(|offset| self.snapshots.path(offset)),
            dir: (self.names_changed > self.names_synced).then(|| self.dir.clone()),
            pool: Arc::clone(&self.pool),
            shared: Arc::clone(&self.shared),
            flushed: Flushed {
                end_offset: self.log_end,
                truncations: self.truncations,
                names: self.names_changed,
                snapshot: unsynced,
            },
        }
    }

    /// Takes note of a flush that succeeded; returns the new recovery point.
    pub fn finish_flush(&mut self, flushed: &Flushed) -> i64 {
        self.names_synced = self.names_synced.max(flushed.names);
        if flushed.truncations == self.truncations {
            self.recovery_point = self.recovery_point.max(flushed.end_offset);
            if let Some(snapshot) = flushed.snapshot {
                self.snapshots.synced(snapshot);
            }
            self.note_points();
            let on_disk = self.checkpoints.written_recovery_point(&self.id);
            let pruned = self
                .snapshots
                .prune(self.pool.disk(), &self.segments, on_disk);
            if let Err(error) = pruned {
                warn!(
                    topic = %self.id.topic, partition = self.id.partition,
                    error = &error as &dyn std::error::Error, "cannot remove an old producer snapshot"
                );
            }
        }
        self.recovery_point
    }

    /// Cuts the tail: afterwards the log ends with the last batch that ends at or before `offset`, durably.
    /// No-op if the log ends before.
    ///
    /// # Errors
    /// [`Error::OffsetOutOfRange`] below the log start; [`Error::Offline`]; other errors take the log off line.
    pub fn truncate_to(&mut self, offset: i64) -> Result<()> {
        self.check_online()?;
        if offset >= self.log_end {
            return Ok(());
        }
        if offset < self.log_start {
            return Err(self
                .shared
                .out_of_range(offset, self.log_start, self.log_end));
        }
        self.cut_tail(offset)
            .inspect_err(|error| self.go_offline(error))
    }

    fn cut_tail(&mut self, offset: i64) -> Result<()> {
        let keep = self
            .segments
            .partition_point(|segment| segment.base_offset() <= offset)
            .max(1);
        let Some(active) = self.segments.get(keep - 1).map(Arc::clone) else {
            return Err(self.offline());
        };
        let found = active.find(offset, active.state().size)?;
        let size = found.map_or_else(|| active.state().size, |found| found.position);
        let log_end = active.end_of_last_batch(size)?;
        if log_end < self.log_start {
            // The log start is inside the batch that goes: there is nothing left.
            return self.start_anew(self.log_start);
        }
        self.lower_recovery_point(log_end)?;
        let removed = self.segments.split_off(keep);
        self.log_end = log_end;
        self.high_watermark = self.high_watermark.min(self.log_end);
        self.epochs.truncate_to(self.log_end);
        // Readers first, so that none finds the end of a file it still believes to be longer.
        self.shared.publish(|view| {
            view.segments = Arc::new(self.segments.clone());
            view.active_size = size;
            view.log_end = self.log_end;
            view.high_watermark = self.high_watermark;
        });
        // The newest first: a crash in between leaves no hole.
        for segment in removed.iter().rev() {
            segment.remove()?;
        }
        self.snapshots
            .remove_behind(self.pool.disk(), self.log_end)?;
        self.sync_names()?;
        active.truncate(size, self.log_end)?;
        self.epochs.write_if_dirty(self.pool.disk())?;
        self.rebuild_producers()?;
        self.publish();
        info!(
            topic = %self.id.topic, partition = self.id.partition, offset,
            log_end_offset = self.log_end, "truncated the log"
        );
        Ok(())
    }

    /// Makes sure that no crash finds a recovery point above `offset`: bytes written there later are not synced.
    fn lower_recovery_point(&mut self, offset: i64) -> Result<()> {
        self.truncations += 1;
        self.cleaned_to = self.cleaned_to.min(offset);
        if self.recovery_point > offset {
            self.recovery_point = offset;
            self.note_points();
            self.checkpoints.write_recovery_points()?;
        }
        Ok(())
    }

    pub(crate) fn sync_names(&mut self) -> Result<()> {
        let disk = self.pool.disk();
        disk.sync_dir(&self.dir)
            .map_err(|source| Error::io("sync", &self.dir, source))?;
        self.names_synced = self.names_changed;
        Ok(())
    }

    /// Builds the producers' state anew from the newest snapshot and the headers behind it.
    fn rebuild_producers(&mut self) -> Result<()> {
        let disk = self.pool.disk();
        // The caller's log end says what is left, so what a bad snapshot says does not matter.
        let newest = self.snapshots.newest(disk, self.log_end, |_, _| ())?;
        let (from, producers) = newest.unwrap_or_default();
        self.producers = producers;
        let producers = &mut self.producers;
        for segment in &self.segments {
            walk_headers(segment, from, |header| {
                producers.record(header, header.max_timestamp);
            })?;
        }
        Ok(())
    }

    /// Forgets everything and begins again, empty, at `offset`: for a follower or mirror whose end is not in the
    /// source's log any more. The log start, high watermark and log end are `offset` afterwards, durably.
    ///
    /// # Errors
    /// [`Error::OffsetOutOfRange`] if negative; [`Error::Offline`]; other errors take the log off line.
    pub fn truncate_fully_and_start_at(&mut self, offset: i64) -> Result<()> {
        self.check_online()?;
        if offset < 0 {
            return Err(self
                .shared
                .out_of_range(offset, self.log_start, self.log_end));
        }
        self.start_anew(offset)
            .inspect_err(|error| self.go_offline(error))
    }

    fn start_anew(&mut self, offset: i64) -> Result<()> {
        self.lower_recovery_point(offset.min(self.log_start))?;
        let removed = std::mem::take(&mut self.segments);
        for segment in removed.iter().rev() {
            segment.remove()?;
        }
        self.snapshots.remove_below(self.pool.disk(), i64::MAX)?;
        self.epochs.clear();
        self.epochs.write_if_dirty(self.pool.disk())?;
        self.producers.clear();
        let segment = Arc::new(Segment::new(&self.id, &self.pool, &self.dir, offset));
        segment.create()?;
        self.segments.push(segment);
        self.sync_names()?;
        self.log_start = offset;
        self.high_watermark = offset;
        self.log_end = offset;
        self.recovery_point = offset;
        self.publish();
        self.note_points();
        self.checkpoints.write_log_starts()
    }

    /// Cuts the head: records below `offset` are not readable any more, durably; segments that lie wholly below it are
    /// removed. Returns the log start, which never goes back.
    ///
    /// # Errors
    /// [`Error::OffsetOutOfRange`] above the high watermark; [`Error::Offline`]; [`Error::DiskFull`] or [`Error::Io`]
    /// from the checkpoint (nothing has changed then) or from removing files (the log start has moved; the files go at
    /// the next start).
    pub fn advance_log_start(&mut self, offset: i64) -> Result<i64> {
        self.check_online()?;
        if offset > self.high_watermark {
            return Err(self
                .shared
                .out_of_range(offset, self.log_start, self.high_watermark));
        }
        if offset <= self.log_start {
            return Ok(self.log_start);
        }
        let before = std::mem::replace(&mut self.log_start, offset);
        self.note_points();
        if let Err(error) = self.checkpoints.write_log_starts() {
            self.log_start = before;
            self.note_points();
            return Err(error);
        }
        self.epochs.advance_start(offset);
        if offset == self.log_end && self.active()?.state().size > 0 {
            // So that the space of the last segment becomes free too.
            self.roll(&[])?;
        }
        let active = self.segments.len().saturating_sub(1);
        let below = |segment: &Arc<Segment>| segment.state().end_offset <= offset;
        let count = self
            .segments
            .iter()
            .take(active)
            .take_while(|segment| below(segment))
            .count();
        let removed: Vec<_> = self.segments.drain(..count).collect();
        self.publish();
        for segment in &removed {
            segment.remove()?;
        }
        if let Some(first) = self.segments.first() {
            self.snapshots
                .remove_below(self.pool.disk(), first.base_offset())?;
        }
        self.epochs.write_if_dirty(self.pool.disk())?;
        // Only segments that are gone for good make the checkpointed log start superfluous.
        self.names_changed += 1;
        self.sync_names()?;
        self.note_points();
        Ok(self.log_start)
    }

    /// Flushes everything, indexes and producers included, for a clean shutdown.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.check_online()?;
        self.active()?.seal();
        self.flush()?;
        self.active()?.sync(true)?;
        let disk = self.pool.disk();
        self.snapshots.take(disk, self.log_end, &self.producers);
        self.snapshots.sync(disk)?;
        self.sync_names()?;
        self.epochs.write_if_dirty(self.pool.disk())
    }
}

/// Work of a flush, detached from the log so that a pool can do it while appends go on.
#[derive(Debug)]
#[must_use = "nothing is synced before it is run"]
pub struct Flush {
    /// With true for those whose indexes have to be synced too.
    segments: Vec<(Arc<Segment>, bool)>,
    snapshot: Option<PathBuf>,
    dir: Option<PathBuf>,
    pool: Arc<FilePool>,
    shared: Arc<Shared>,
    flushed: Flushed,
}

/// Proof of a flush, for [`PartitionLog::finish_flush`].
#[derive(Debug)]
pub struct Flushed {
    end_offset: i64,
    truncations: u64,
    names: u64,
    snapshot: Option<i64>,
}

impl Flush {
    /// True if there is nothing to sync.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.snapshot.is_none() && self.dir.is_none()
    }

    /// The log end when it was prepared: the recovery point after it.
    #[must_use]
    pub fn end_offset(&self) -> i64 {
        self.flushed.end_offset
    }

    /// Syncs.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`]. The log is off line then: after a failed sync nobody knows what is on disk.
    pub fn run(self) -> Result<Flushed> {
        self.sync().inspect_err(|error| {
            warn!(
                topic = %self.shared.id.topic, partition = self.shared.id.partition,
                error = error as &dyn std::error::Error,
                "cannot sync, taking no more writes until the log has been opened again"
            );
            self.shared.offline.store(true, Ordering::Release);
        })?;
        Ok(self.flushed)
    }

    fn sync(&self) -> Result<()> {
        for (segment, indexes) in &self.segments {
            segment.sync(*indexes)?;
        }
        if let Some(path) = &self.snapshot {
            snapshots::sync(self.pool.disk(), path)?;
        }
        if let Some(dir) = &self.dir {
            self.pool
                .disk()
                .sync_dir(dir)
                .map_err(|source| Error::io("sync", dir, source))?;
        }
        Ok(())
    }
}
