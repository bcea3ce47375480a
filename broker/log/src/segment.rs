//! One segment: `<base offset, 20 digits>.log` and its two indexes.
//!
//! A segment is shared between the partition's owner, who appends to the last one, and its readers, who never look
//! behind the size their view of the partition publishes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use broker_protocol::record::BatchHeader;
use tracing::warn;

use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::file_pool::{FilePool, PooledFile};
use crate::index::{Entry, Index, OffsetEntry, TimeEntry};
use crate::scan::{BadBatch, HeaderWalk, Stop, end_offset_of, size_of};
use crate::topic_partition::TopicPartition;

/// Largest segment the index format can address, in bytes.
pub(crate) const MAX_SEGMENT_BYTES: u64 = 0x7fff_ffff;
/// Suffixes of the files of a segment.
pub(crate) const LOG_SUFFIX: &str = ".log";
pub(crate) const OFFSET_INDEX_SUFFIX: &str = ".index";
pub(crate) const TIME_INDEX_SUFFIX: &str = ".timeindex";

/// Bytes read at once while looking for one batch.
const LOOKUP_WINDOW: usize = 8 << 10;

/// The name of a segment's file.
pub(crate) fn file_name(base_offset: i64, suffix: &str) -> String {
    format!("{base_offset:020}{suffix}")
}

/// The base offset in a file name with this suffix.
pub(crate) fn base_offset_of(name: &str, suffix: &str) -> Option<i64> {
    let digits = name.strip_suffix(suffix)?;
    let all_digits = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| all_digits)
}

#[derive(Debug)]
pub(crate) struct Segment {
    id: Arc<TopicPartition>,
    base_offset: i64,
    log: PooledFile,
    offset_index: Index<OffsetEntry>,
    time_index: Index<TimeEntry>,
    /// A leaf lock, never held over I/O.
    state: Mutex<SegmentState>,
    removed: AtomicBool,
    /// True if the indexes may hold entries that have not been synced.
    indexes_unsynced: AtomicBool,
}

/// What the owner knows about a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentState {
    /// Bytes of whole batches.
    pub(crate) size: u64,
    /// Behind the last offset.
    pub(crate) end_offset: i64,
    /// The largest timestamp and the last offset of the first batch that has it; none without timestamps.
    pub(crate) largest: Option<TimeEntry>,
    /// Bytes since the last index entry.
    since_index_entry: u64,
    /// The broker's time at the first append; after a restart, a guess.
    pub(crate) first_ms: Option<i64>,
}

/// Index entries made by batches that are being appended.
#[derive(Debug, Default)]
pub(crate) struct NewEntries {
    pub(crate) offsets: Vec<OffsetEntry>,
    pub(crate) times: Vec<TimeEntry>,
}

impl SegmentState {
    pub(crate) fn empty(base_offset: i64) -> Self {
        Self {
            size: 0,
            end_offset: base_offset,
            largest: None,
            since_index_entry: 0,
            first_ms: None,
        }
    }

    /// Of a segment up to the batch an index entry points to; `largest` is the largest timestamp up to and with that.
    pub(crate) fn before_entry(
        position: u64,
        base_offset: i64,
        largest: Option<TimeEntry>,
    ) -> Self {
        Self {
            size: position,
            end_offset: base_offset,
            largest,
            since_index_entry: 0,
            first_ms: None,
        }
    }

    /// Adds the batch that begins at `self.size`, as Kafka's `LogSegment.append` does.
    pub(crate) fn add(&mut self, header: &BatchHeader, index_interval: u64, new: &mut NewEntries) {
        let last_offset = end_offset_of(header) - 1;
        let timestamp_ms = header.max_timestamp;
        let larger = self
            .largest
            .is_none_or(|largest| largest.timestamp_ms < timestamp_ms);
        if timestamp_ms >= 0 && larger {
            self.largest = Some(TimeEntry {
                timestamp_ms,
                offset: last_offset,
            });
        }
        if self.since_index_entry > index_interval {
            new.offsets.push(OffsetEntry {
                offset: last_offset,
                position: self.size,
            });
            let last_time = new.times.last().copied();
            new.times.extend(
                self.largest
                    .filter(|time| last_time.is_none_or(|last| time.follows(last))),
            );
            self.since_index_entry = 0;
        }
        let size = size_of(header);
        self.size += size;
        self.since_index_entry += size;
        self.end_offset = last_offset + 1;
    }
}

/// A batch found by a lookup.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) position: u64,
    pub(crate) header: BatchHeader,
}

impl Segment {
    /// Names the files; touches none.
    pub(crate) fn new(
        id: &Arc<TopicPartition>,
        pool: &Arc<FilePool>,
        dir: &Path,
        base_offset: i64,
    ) -> Self {
        let file = |suffix| pool.file(dir.join(file_name(base_offset, suffix)));
        Self {
            id: Arc::clone(id),
            base_offset,
            log: file(LOG_SUFFIX),
            offset_index: Index::new(base_offset, file(OFFSET_INDEX_SUFFIX)),
            time_index: Index::new(base_offset, file(TIME_INDEX_SUFFIX)),
            state: Mutex::new(SegmentState::empty(base_offset)),
            removed: AtomicBool::new(false),
            indexes_unsynced: AtomicBool::new(false),
        }
    }

    /// Makes the files, empty. Their names are durable after the directory has been synced.
    pub(crate) fn create(&self) -> Result<()> {
        let log = self.log.create()?;
        log.truncate(0)
            .map_err(|source| self.io("truncate", source))?;
        self.offset_index.replace(&[])?;
        self.time_index.replace(&[])
    }

    pub(crate) fn base_offset(&self) -> i64 {
        self.base_offset
    }

    pub(crate) fn path(&self) -> &Path {
        self.log.path()
    }

    pub(crate) fn offset_index(&self) -> &Index<OffsetEntry> {
        &self.offset_index
    }

    pub(crate) fn time_index(&self) -> &Index<TimeEntry> {
        &self.time_index
    }

    pub(crate) fn state(&self) -> SegmentState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_state(&self, state: SegmentState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    pub(crate) fn file(&self) -> Result<Arc<dyn DiskFile>> {
        self.log.open()
    }

    pub(crate) fn io(&self, operation: &'static str, source: std::io::Error) -> Error {
        Error::io(operation, self.log.path(), source)
    }

    pub(crate) fn corrupt(&self, offset: i64, bad: BadBatch) -> Error {
        Error::Corrupt {
            topic: self.id.topic.clone(),
            partition: self.id.partition,
            offset,
            path: self.log.path().to_owned(),
            position: bad.position,
            reason: bad.reason,
        }
    }

    pub(crate) fn stopped(&self, offset: i64, stop: Stop) -> Error {
        match stop {
            Stop::Io(source) => self.io("read", source),
            Stop::Bad(bad) => self.corrupt(offset, bad),
        }
    }

    /// Adds entries to the indexes. A failure is logged and costs speed only: an index may have gaps.
    pub(crate) fn add_entries(&self, new: &NewEntries) {
        let offsets = || {
            if new.offsets.is_empty() {
                Ok(())
            } else {
                self.offset_index.append(&new.offsets)
            }
        };
        let times = || {
            if new.times.is_empty() {
                Ok(())
            } else {
                self.time_index.append(&new.times)
            }
        };
        let lens = || (self.offset_index.len(), self.time_index.len());
        let before = lens();
        let result = offsets().and_then(|()| times());
        if lens() != before {
            self.indexes_unsynced.store(true, Ordering::Release);
        }
        self.warn_of_index(result);
    }

    fn warn_of_index(&self, result: Result<()>) {
        if let Err(error) = result {
            warn!(
                topic = %self.id.topic, partition = self.id.partition,
                error = &error as &dyn std::error::Error,
                "cannot extend an index, lookups will be slower"
            );
        }
    }

    /// Notes the largest timestamp in the time index; called when the segment gets no more appends.
    pub(crate) fn seal(&self) {
        let times = self.state().largest.into_iter().collect();
        self.add_entries(&NewEntries {
            offsets: Vec::new(),
            times,
        });
        let written = self.offset_index.write_waiting();
        self.warn_of_index(written.and_then(|()| self.time_index.write_waiting()));
    }

    /// Makes the log durable, and the indexes too when `with_indexes`.
    pub(crate) fn sync(&self, with_indexes: bool) -> Result<()> {
        let result = self.sync_files(with_indexes);
        // Removed while it was being synced: there is nothing left to lose.
        if self.removed.load(Ordering::Acquire) {
            Ok(())
        } else {
            result
        }
    }

    fn sync_files(&self, with_indexes: bool) -> Result<()> {
        self.file()?
            .sync()
            .map_err(|source| self.io("sync", source))?;
        if with_indexes {
            self.indexes_unsynced.store(false, Ordering::Release);
            self.offset_index.sync()?;
            self.time_index.sync()?;
        }
        Ok(())
    }

    /// Keeps the files as they are now for those that look at this segment: their names may go to others.
    pub(crate) fn pin(&self) -> Result<()> {
        self.log.pin()?;
        self.offset_index.pin()?;
        self.time_index.pin()
    }

    /// Notes that the names of its files are another segment's now.
    pub(crate) fn retire(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// True if a crash may find the indexes shorter than they are.
    pub(crate) fn indexes_unsynced(&self) -> bool {
        self.indexes_unsynced.load(Ordering::Acquire)
    }

    /// Removes the files: the log first, since indexes without a log are removed at the next start.
    pub(crate) fn remove(&self) -> Result<()> {
        self.removed.store(true, Ordering::Release);
        self.log.remove()?;
        self.offset_index.remove()?;
        self.time_index.remove()
    }

    /// The first batch in the first `size` bytes that ends behind `offset`.
    pub(crate) fn find(&self, offset: i64, size: u64) -> Result<Option<Found>> {
        let entry = self
            .offset_index
            .last_where(|entry| entry.offset <= offset)?;
        let file = self.file()?;
        let mut walk = self.walk_from_entry(&*file, entry, size);
        while let Some((position, header)) =
            walk.next().map_err(|stop| self.stopped(offset, stop))?
        {
            if end_offset_of(&header) > offset {
                return Ok(Some(Found { position, header }));
            }
        }
        Ok(None)
    }

    /// A walk from the batch an index entry points to, or from the start if there is no entry or it is wrong.
    fn walk_from_entry<'a>(
        &self,
        file: &'a dyn DiskFile,
        entry: Option<OffsetEntry>,
        size: u64,
    ) -> HeaderWalk<'a> {
        if let Some(entry) = entry.filter(|entry| entry.position < size) {
            if batch_at(file, entry, size).is_some() {
                return HeaderWalk::new(file, entry.position, size, LOOKUP_WINDOW);
            }
            warn!(
                topic = %self.id.topic, partition = self.id.partition, position = entry.position,
                "index entry points at no batch, searching from the start of the segment"
            );
        }
        HeaderWalk::new(file, 0, size, LOOKUP_WINDOW)
    }

    /// Where the last batch ends that begins at or behind `first`, ends at or before byte `limit` and before or at
    /// `up_to_offset`: its end position and end offset. `first` itself is always taken.
    pub(crate) fn end_of_batches(
        &self,
        first: &Found,
        limit: u64,
        size: u64,
        up_to_offset: i64,
    ) -> Result<(u64, i64)> {
        let mut end = (
            first.position + size_of(&first.header),
            end_offset_of(&first.header),
        );
        if end.0 >= limit.min(size) || end.1 >= up_to_offset {
            return Ok(end);
        }
        let fits = |entry: OffsetEntry| entry.position <= limit && entry.offset < up_to_offset;
        let entry = self
            .offset_index
            .last_where(fits)?
            .filter(|entry| entry.position > end.0);
        let file = self.file()?;
        let start = match entry {
            Some(entry) if batch_at(&*file, entry, size).is_some() => entry.position,
            Some(_) | None => end.0,
        };
        if start > end.0 {
            // The batch an entry points to may itself be the one too many: the end before it is not known, so the
            // entry before is needed then. Its offset is: batches are contiguous.
            end = self.end_before(&*file, start, size, end)?;
        }
        let mut walk = HeaderWalk::new(&*file, end.0, size, LOOKUP_WINDOW);
        while let Some((_, header)) = walk.next().map_err(|stop| self.stopped(end.1, stop))? {
            if walk.position() > limit || end_offset_of(&header) > up_to_offset {
                break;
            }
            end = (walk.position(), end_offset_of(&header));
        }
        Ok(end)
    }

    /// The end before the batch at `position`: offsets between two batches, if any, belong to neither, so the base
    /// offset of the batch serves.
    fn end_before(
        &self,
        file: &dyn DiskFile,
        position: u64,
        size: u64,
        fallback: (u64, i64),
    ) -> Result<(u64, i64)> {
        let mut walk = HeaderWalk::new(file, position, size, BatchHeader::LEN);
        let next = walk.next().map_err(|stop| self.stopped(fallback.1, stop))?;
        Ok(next.map_or(fallback, |(position, header)| {
            (position, header.base_offset)
        }))
    }

    /// Offset behind the last batch in the first `size` bytes, which must end with a batch.
    pub(crate) fn end_of_last_batch(&self, size: u64) -> Result<i64> {
        let entry = self
            .offset_index
            .last_where(|entry| entry.position < size)?;
        let file = self.file()?;
        let mut walk = self.walk_from_entry(&*file, entry, size);
        let mut end_offset = self.base_offset;
        while let Some((_, header)) = walk.next().map_err(|stop| self.stopped(end_offset, stop))? {
            end_offset = end_offset_of(&header);
        }
        Ok(end_offset)
    }

    /// The first batch whose largest timestamp is at or after `timestamp_ms`, at or behind position `from`.
    pub(crate) fn find_timestamp(
        &self,
        timestamp_ms: i64,
        from: Option<u64>,
        size: u64,
    ) -> Result<Option<Found>> {
        let file = self.file()?;
        let mut walk = match from {
            Some(position) => HeaderWalk::new(&*file, position, size, LOOKUP_WINDOW),
            None => {
                let time = self
                    .time_index
                    .last_where(|entry| entry.timestamp_ms <= timestamp_ms)?;
                let time = match time {
                    Some(time) if self.is_true(time, size)? => Some(time),
                    Some(_) | None => None,
                };
                let entry = match time {
                    Some(time) => self
                        .offset_index
                        .last_where(|entry| entry.offset <= time.offset)?,
                    None => None,
                };
                self.walk_from_entry(&*file, entry, size)
            }
        };
        while let Some((position, header)) = walk
            .next()
            .map_err(|stop| self.stopped(self.base_offset, stop))?
        {
            if header.max_timestamp >= timestamp_ms {
                return Ok(Some(Found { position, header }));
            }
        }
        Ok(None)
    }

    /// True if the batch that ends with the entry's offset has the entry's timestamp.
    pub(crate) fn is_true(&self, time: TimeEntry, size: u64) -> Result<bool> {
        let found = match self.find(time.offset, size) {
            Err(Error::Corrupt { .. }) => None,
            found => found?,
        };
        let is_true = found.is_some_and(|Found { header, .. }| {
            end_offset_of(&header) - 1 == time.offset && header.max_timestamp == time.timestamp_ms
        });
        if !is_true {
            warn!(
                topic = %self.id.topic, partition = self.id.partition, offset = time.offset,
                timestamp_ms = time.timestamp_ms, "time index entry fits no batch"
            );
        }
        Ok(is_true)
    }

    /// The largest timestamp of the first batch, if there is a first batch.
    pub(crate) fn first_timestamp_ms(&self, size: u64) -> Result<Option<i64>> {
        let file = self.file()?;
        match HeaderWalk::new(&*file, 0, size, BatchHeader::LEN).next() {
            Ok(first) => Ok(first.map(|(_, header)| header.max_timestamp)),
            Err(Stop::Bad(_)) => Ok(None),
            Err(Stop::Io(source)) => Err(self.io("read", source)),
        }
    }

    /// The first batch behind a damaged place in the first `size` bytes that the index leads to.
    pub(crate) fn resync(&self, position: u64, size: u64) -> Result<Option<OffsetEntry>> {
        let Some(entries) = self.offset_index.load(i64::MAX, size)? else {
            return Ok(None);
        };
        let file = self.file()?;
        let mut behind = entries
            .into_iter()
            .filter(|entry| entry.position > position);
        Ok(behind.find(|entry| batch_at(&*file, *entry, size).is_some()))
    }

    /// Cuts the log at `size` bytes, where a batch ends at `end_offset`, durably, and the indexes with it.
    pub(crate) fn truncate(&self, size: u64, end_offset: i64) -> Result<()> {
        let file = self.file()?;
        file.truncate(size)
            .map_err(|source| self.io("truncate", source))?;
        file.sync().map_err(|source| self.io("sync", source))?;
        self.indexes_unsynced.store(true, Ordering::Release);
        self.offset_index
            .truncate_while(|entry| entry.position < size)?;
        self.time_index
            .truncate_while(|entry| entry.offset < end_offset)?;
        let from = match self.time_index.last() {
            Some(time) => self
                .offset_index
                .last_where(|entry| entry.offset <= time.offset)?,
            None => None,
        };
        let mut largest = self.time_index.last();
        let mut walk = self.walk_from_entry(&*file, from, size);
        while let Some((_, header)) = walk.next().map_err(|stop| self.stopped(end_offset, stop))? {
            let time = TimeEntry {
                timestamp_ms: header.max_timestamp,
                offset: end_offset_of(&header) - 1,
            };
            if time.timestamp_ms >= 0
                && largest.is_none_or(|largest| largest.timestamp_ms < time.timestamp_ms)
            {
                largest = Some(time);
            }
        }
        let indexed = self.offset_index.last().map_or(0, |entry| entry.position);
        let since_index_entry = size.saturating_sub(indexed);
        let first_ms = match self.state().first_ms.filter(|_| size > 0) {
            Some(first_ms) => Some(first_ms),
            None => self.first_timestamp_ms(size)?,
        };
        self.set_state(SegmentState {
            size,
            end_offset,
            largest,
            since_index_entry,
            first_ms,
        });
        Ok(())
    }
}

/// The batch at the entry's position, if it has the entry's last offset.
pub(crate) fn batch_at(file: &dyn DiskFile, entry: OffsetEntry, size: u64) -> Option<BatchHeader> {
    let mut walk = HeaderWalk::new(file, entry.position, size, BatchHeader::LEN);
    match walk.next() {
        Ok(Some((_, header))) if end_offset_of(&header) - 1 == entry.offset => Some(header),
        Ok(_) | Err(_) => None,
    }
}
