//! Reading, concurrently with the owner's appends.
//!
//! The owner publishes a [`View`] after each change; a reader copies it (a few words and two reference counts under a
//! lock that is never held over I/O) and works on the copy. So a reader sees whole appends only, and the bytes below
//! its view never change, unless the owner truncates: what a reader got from above the high watermark may be
//! overwritten, as in Kafka.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use broker_protocol::record::{RecordBatch, Records};
use bytes::Bytes;
use tracing::debug;

use crate::disk::{DiskFile, read_exact_at};
use crate::error::{Error, Result};
use crate::leader_epochs::{EpochEnd, LeaderEpochs};
use crate::scan::{BadBatch, end_offset_of, size_of};
use crate::segment::{Found, Segment};
use crate::topic_partition::TopicPartition;

/// Bytes read at once only to have them in the page cache.
const WARM_STEP: usize = 64 << 10;

/// The offsets of a partition at one moment; see [`crate::PartitionLog`] for the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    /// First offset that may be read.
    pub log_start: i64,
    /// Behind the last record of which it is decided whether it is committed. Equals the high watermark until there
    /// are transactions.
    pub last_stable: i64,
    /// Behind the last record that all in-sync replicas have.
    pub high_watermark: i64,
    /// Behind the last record; the offset the next one gets.
    pub log_end: i64,
}

/// Bounds of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// No more than this many bytes, batches being whole.
    pub max_bytes: usize,
    /// The first batch is returned whole even above `max_bytes` (KIP-74), so that a consumer always gets on.
    pub min_one_batch: bool,
    /// Nothing at or behind this offset; `i64::MAX` for the end of the log. Pass the high watermark or the last
    /// stable offset for consumers.
    pub up_to_offset: i64,
}

/// The record a timestamp leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampedOffset {
    /// The record's offset.
    pub offset: i64,
    /// Its timestamp in milliseconds.
    pub timestamp_ms: i64,
    /// Epoch of the leader that appended it, if known.
    pub leader_epoch: Option<i32>,
}

/// Whole batches of one segment, by file and range (for `sendfile`) or read into memory.
///
/// Holds the file open. Valid as long as it lives, even when the segment is deleted meanwhile.
#[derive(Debug, Clone)]
pub struct LogSlice {
    segment: Option<(Arc<Segment>, Arc<dyn DiskFile>)>,
    position: u64,
    len: usize,
    base_offset: i64,
    end_offset: i64,
}

impl LogSlice {
    fn empty(offset: i64) -> Self {
        Self {
            segment: None,
            position: 0,
            len: 0,
            base_offset: offset,
            end_offset: offset,
        }
    }

    /// True if there is nothing to read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// First offset of the first batch, which may be before the offset asked for; the offset asked for if empty.
    #[must_use]
    pub fn base_offset(&self) -> i64 {
        self.base_offset
    }

    /// Where to read on: behind the last batch; the offset asked for if empty.
    #[must_use]
    pub fn end_offset(&self) -> i64 {
        self.end_offset
    }

    /// Bytes from the start of [`LogSlice::file`].
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The segment's file, `None` for an empty slice.
    #[must_use]
    pub fn file(&self) -> Option<&File> {
        self.segment.as_ref().map(|(_, file)| file.file())
    }

    /// Whether reading it will not wait for the disk, as far as samples tell. Costs some system calls a megabyte.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        let Some((_, file)) = &self.segment else {
            return true;
        };
        file.is_cached(self.position, self.len)
    }

    /// Brings it into the page cache, so that sending it from there will not wait for the disk. Allocates 64 KiB.
    ///
    /// # Errors
    /// As [`LogSlice::read`].
    pub fn warm(&self) -> Result<()> {
        let Some((segment, file)) = &self.segment else {
            return Ok(());
        };
        let mut scratch = vec![0; WARM_STEP];
        let mut done = 0;
        while done < self.len {
            let step = WARM_STEP.min(self.len - done);
            let scratch = scratch.get_mut(..step).unwrap_or_default();
            read_exact_at(&**file, scratch, self.position + done as u64)
                .map_err(|source| segment.io("read", source))?;
            done += step;
        }
        Ok(())
    }

    /// The bytes. Allocates [`LogSlice::len`] bytes.
    ///
    /// # Errors
    /// [`Error::Io`]; of kind `UnexpectedEof` if the log was truncated meanwhile.
    pub fn read(&self) -> Result<Bytes> {
        let Some((segment, file)) = &self.segment else {
            return Ok(Bytes::new());
        };
        let mut bytes = vec![0; self.len];
        read_exact_at(&**file, &mut bytes, self.position)
            .map_err(|source| segment.io("read", source))?;
        Ok(bytes.into())
    }
}

/// What readers see.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) segments: Arc<Vec<Arc<Segment>>>,
    /// Bytes of the last segment that may be read.
    pub(crate) active_size: u64,
    pub(crate) log_start: i64,
    pub(crate) high_watermark: i64,
    pub(crate) log_end: i64,
    pub(crate) epochs: Arc<LeaderEpochs>,
    pub(crate) deleted: bool,
}

impl View {
    /// Index of the segment that holds `offset` or the gap before it.
    fn segment_index(&self, offset: i64) -> usize {
        self.segments
            .partition_point(|segment| segment.base_offset() <= offset)
            .saturating_sub(1)
    }

    /// Bytes of the segment at `index` that may be read.
    fn size_of_segment(&self, index: usize) -> u64 {
        if index + 1 == self.segments.len() {
            self.active_size
        } else {
            self.segments
                .get(index)
                .map_or(0, |segment| segment.state().size)
        }
    }

    fn size(&self) -> u64 {
        (0..self.segments.len())
            .map(|index| self.size_of_segment(index))
            .sum()
    }
}

/// What the owner and the readers of a partition share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: Arc<TopicPartition>,
    pub(crate) view: RwLock<View>,
    /// Set for good when it is not known what is on disk.
    pub(crate) offline: AtomicBool,
    pub(crate) max_decompressed_bytes: usize,
}

impl Shared {
    pub(crate) fn view(&self) -> View {
        self.view
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn publish(&self, change: impl FnOnce(&mut View)) {
        change(&mut self.view.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn out_of_range(&self, offset: i64, start: i64, end: i64) -> Error {
        Error::OffsetOutOfRange {
            topic: self.id.topic.clone(),
            partition: self.id.partition,
            offset,
            log_start_offset: start,
            log_end_offset: end,
        }
    }
}

/// Reads a partition while its owner writes. Cheap to clone; never sees beyond what the owner has published. Calls
/// block on the file system (briefly, if the pages are cached).
#[derive(Debug, Clone)]
pub struct PartitionReader {
    shared: Arc<Shared>,
}

impl PartitionReader {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
        }
    }

    /// Which partition this is.
    #[must_use]
    pub fn id(&self) -> &TopicPartition {
        &self.shared.id
    }

    /// The offsets, all of the same moment.
    #[must_use]
    pub fn offsets(&self) -> Offsets {
        let view = self
            .shared
            .view
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        Offsets {
            log_start: view.log_start,
            last_stable: view.high_watermark,
            high_watermark: view.high_watermark,
            log_end: view.log_end,
        }
    }

    /// Bytes of all segments, without indexes.
    #[must_use]
    pub fn size_in_bytes(&self) -> u64 {
        self.shared.view().size()
    }

    /// True if a failure has taken the log off line, see [`crate::PartitionLog::is_offline`].
    #[must_use]
    pub fn is_offline(&self) -> bool {
        self.shared.offline.load(Ordering::Acquire)
    }

    /// The newest leader epoch in the log.
    #[must_use]
    pub fn leader_epoch(&self) -> Option<i32> {
        self.shared.view().epochs.latest()
    }

    /// Where the largest leader epoch that is not above `leader_epoch` ends, by Kafka's rules.
    #[must_use]
    pub fn end_offset_for_leader_epoch(&self, leader_epoch: i32) -> EpochEnd {
        let view = self.shared.view();
        view.epochs.end_offset_for(leader_epoch, view.log_end)
    }

    /// Finds the batches from the one that contains `offset` on, within the limits and within one segment.
    ///
    /// Empty if `offset` is at the log end or at or behind `up_to_offset`, or if the batch that contains it reaches
    /// behind `up_to_offset`, or if it is larger than `max_bytes` and `min_one_batch` is false. Never empty
    /// otherwise.
    ///
    /// # Errors
    /// [`Error::OffsetOutOfRange`] outside `[log start, log end]`, [`Error::Deleted`], [`Error::Corrupt`] where no batch is
    /// found in the file, [`Error::Io`].
    pub fn slice(&self, offset: i64, limits: ReadLimits) -> Result<LogSlice> {
        self.with_view(|view| self.slice_in(view, offset, limits))
    }

    /// [`PartitionReader::slice`] read into memory: at most `max_bytes`, or one batch.
    ///
    /// # Errors
    /// As [`PartitionReader::slice`].
    pub fn read(&self, offset: i64, limits: ReadLimits) -> Result<Bytes> {
        self.slice(offset, limits)?.read()
    }

    /// Runs `read` on the present view, and once more on a newer one if a segment was removed under it.
    fn with_view<T>(&self, read: impl Fn(&View) -> Result<T>) -> Result<T> {
        let deleted = || Error::Deleted {
            topic: self.shared.id.topic.clone(),
            partition: self.shared.id.partition,
        };
        let view = self.shared.view();
        if view.deleted {
            return Err(deleted());
        }
        match read(&view) {
            Err(error) if error.is_not_found() => {
                let view = self.shared.view();
                if view.deleted {
                    Err(deleted())
                } else {
                    read(&view)
                }
            }
            result => result,
        }
    }

    fn slice_in(&self, view: &View, offset: i64, limits: ReadLimits) -> Result<LogSlice> {
        if offset < view.log_start || offset > view.log_end {
            return Err(self
                .shared
                .out_of_range(offset, view.log_start, view.log_end));
        }
        let up_to = limits.up_to_offset.min(view.log_end);
        if offset >= up_to {
            return Ok(LogSlice::empty(offset));
        }
        let first_index = view.segment_index(offset);
        for (index, segment) in view.segments.iter().enumerate().skip(first_index) {
            let size = view.size_of_segment(index);
            let Some(found) = segment.find(offset, size)? else {
                continue;
            };
            return Self::slice_of(
                view,
                segment,
                size,
                &found,
                ReadLimits {
                    up_to_offset: up_to,
                    ..limits
                },
            )
            .map(|slice| slice.unwrap_or_else(|| LogSlice::empty(offset)));
        }
        let segment = view.segments.get(first_index);
        let position = view.size_of_segment(first_index);
        let reason = "the log ends before the offset it published".to_owned();
        match segment {
            Some(segment) => Err(segment.corrupt(offset, BadBatch { position, reason })),
            None => Ok(LogSlice::empty(offset)),
        }
    }

    fn slice_of(
        view: &View,
        segment: &Arc<Segment>,
        size: u64,
        found: &Found,
        limits: ReadLimits,
    ) -> Result<Option<LogSlice>> {
        let max_bytes = limits.max_bytes as u64;
        let first_size = size_of(&found.header);
        check_end(view, segment, found)?;
        let first_end = end_offset_of(&found.header);
        if first_end > limits.up_to_offset || (first_size > max_bytes && !limits.min_one_batch) {
            return Ok(None);
        }
        let limit = found.position.saturating_add(max_bytes);
        let is_active = view
            .segments
            .last()
            .is_some_and(|last| Arc::ptr_eq(last, segment));
        let (end, end_offset) = if limit >= size && is_active && limits.up_to_offset >= view.log_end
        {
            (size, view.log_end)
        } else {
            segment.end_of_batches(found, limit, size, limits.up_to_offset)?
        };
        let len = usize::try_from(end - found.position).unwrap_or(usize::MAX);
        Ok(Some(LogSlice {
            segment: Some((Arc::clone(segment), segment.file()?)),
            position: found.position,
            len,
            base_offset: found.header.base_offset,
            end_offset,
        }))
    }

    /// The largest timestamp in the log in milliseconds; `None` if no record has one.
    #[must_use]
    pub fn max_timestamp_ms(&self) -> Option<i64> {
        let view = self.shared.view();
        let largest = view
            .segments
            .iter()
            .filter_map(|segment| segment.state().largest);
        largest.map(|largest| largest.timestamp_ms).max()
    }

    /// The first record whose timestamp is at or after `timestamp_ms`, in the order of offsets; `None` if there is
    /// none. Decompresses one batch at a time, within [`crate::LogConfig::max_decompressed_bytes`]; a batch that
    /// cannot be decoded is answered by its first offset. Up to the log end: the caller compares the answer with the
    /// high watermark.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Corrupt`], [`Error::Io`].
    pub fn offset_for_timestamp(&self, timestamp_ms: i64) -> Result<Option<TimestampedOffset>> {
        self.with_view(|view| self.offset_for_timestamp_in(view, timestamp_ms))
    }

    fn offset_for_timestamp_in(
        &self,
        view: &View,
        timestamp_ms: i64,
    ) -> Result<Option<TimestampedOffset>> {
        for (index, segment) in view.segments.iter().enumerate() {
            let largest = segment.state().largest;
            if timestamp_ms >= 0
                && largest.is_none_or(|largest| largest.timestamp_ms < timestamp_ms)
            {
                continue;
            }
            let size = view.size_of_segment(index);
            let mut from = None;
            while let Some(found) = segment.find_timestamp(timestamp_ms, from, size)? {
                check_end(view, segment, &found)?;
                let record = self.record_at(segment, &found, timestamp_ms, view.log_start)?;
                if record.is_some() {
                    return Ok(record);
                }
                from = Some(found.position + size_of(&found.header));
            }
        }
        Ok(None)
    }

    /// The first record of a batch at or after the timestamp and at or behind the log start.
    fn record_at(
        &self,
        segment: &Arc<Segment>,
        found: &Found,
        timestamp_ms: i64,
        log_start: i64,
    ) -> Result<Option<TimestampedOffset>> {
        let header = &found.header;
        let end_offset = end_offset_of(header);
        if end_offset <= log_start {
            return Ok(None);
        }
        let leader_epoch = Some(header.partition_leader_epoch).filter(|epoch| *epoch >= 0);
        let answer = |offset, timestamp_ms| {
            Some(TimestampedOffset {
                offset,
                timestamp_ms,
                leader_epoch,
            })
        };
        let batch_start = header.base_offset.max(log_start);
        // Log append time: the header has the time of all of them.
        if header.attributes & 0x08 != 0 {
            return Ok(answer(batch_start, header.max_timestamp));
        }
        let slice = LogSlice {
            segment: Some((Arc::clone(segment), segment.file()?)),
            position: found.position,
            len: usize::try_from(size_of(header)).unwrap_or(usize::MAX),
            base_offset: header.base_offset,
            end_offset,
        };
        let Some(records) = self.decode(slice.read()?) else {
            return Ok(answer(batch_start, header.max_timestamp));
        };
        for record in &records {
            match record {
                Ok(record) if record.offset >= log_start && record.timestamp >= timestamp_ms => {
                    return Ok(answer(record.offset, record.timestamp));
                }
                Ok(_) => {}
                Err(_) => return Ok(answer(batch_start, header.max_timestamp)),
            }
        }
        Ok(None)
    }

    fn decode(&self, bytes: Bytes) -> Option<Records> {
        let records = RecordBatch::parse(bytes)
            .and_then(|batch| batch.records(self.shared.max_decompressed_bytes));
        records
            .inspect_err(|error| {
                debug!(
                    topic = %self.shared.id.topic, partition = self.shared.id.partition,
                    error = error as &dyn std::error::Error,
                    "cannot look for a timestamp inside a batch, answering its first offset"
                );
            })
            .ok()
    }
}

/// Refuses a batch that ends behind the log: its checksum does not cover its offset, and a consumer would wait there for
/// ever, or be told such an offset.
fn check_end(view: &View, segment: &Segment, found: &Found) -> Result<()> {
    let (end, log_end) = (end_offset_of(&found.header), view.log_end);
    if end <= log_end {
        return Ok(());
    }
    let bad = BadBatch {
        position: found.position,
        reason: format!("it ends at offset {end}, the log at {log_end}"),
    };
    Err(segment.corrupt(found.header.base_offset, bad))
}
