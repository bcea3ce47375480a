//! Appending: judge each batch, stamp a copy of its header, write all that was accepted in one vectored write.
//!
//! ```text
//! batches ──judge──► Rejected (CRC, counts, size, sequence)        nothing written
//!    │    └────────► duplicate of one of the last five             nothing written, old offsets answered
//!    └─ stage: [61 stamped bytes][the batch's own bytes from 61 on] ──pwritev──► segment ──► indexes ──► publish
//! ```
//! The batches are not copied or changed. Indexes come after the log, and only the log can make an append fail.

use std::io::IoSlice;
use std::sync::Arc;

use broker_protocol::record::{BatchHeader, Compression, RecordBatch, TimestampType, stamp};

use crate::disk::write_all_vectored;
use crate::error::{Error, Rejected, Result};
use crate::partition_log::PartitionLog;
use crate::producer_state::{Judgement, SavedProducer};
use crate::scan::{end_offset_of, size_of};
use crate::segment::{NewEntries, Segment, SegmentState};

/// Where a batch is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Offset of its first record.
    pub base_offset: i64,
    /// Behind its last record.
    pub end_offset: i64,
    /// The time the broker stamped in milliseconds; -1 if the producer's time counts.
    pub log_append_time_ms: i64,
    /// First offset in the log at the time of the append.
    pub log_start_offset: i64,
    /// True if it had been appended before and has not been appended again.
    pub duplicate: bool,
}

/// Attribute bit of a batch that has the broker's time.
const LOG_APPEND_TIME: i16 = 0x08;

/// A batch about to be written: its own header, then the rest of its bytes.
#[derive(Debug)]
struct Staged<'a> {
    header: BatchHeader,
    head: [u8; BatchHeader::LEN],
    body: &'a [u8],
}

/// What an append has changed so far, to be undone if a write fails.
#[derive(Debug)]
struct Undo {
    segments: usize,
    active: SegmentState,
    log_end: i64,
    producers: Vec<SavedProducer>,
}

impl PartitionLog {
    /// Appends batches as the partition's leader. Each is judged alone: it gets the next offset, or is refused, or is
    /// recognised as a repetition. All accepted ones are written with one vectored write (one per segment, if a new
    /// one is begun). Nothing is synced; readers see them when this returns.
    ///
    /// Checked per batch: CRC-32C, record format 2, record count against offsets, that uncompressed records fill it,
    /// `max.message.bytes`, no control batch, producer epoch and sequence. `now_ms` is the broker's clock, for log append time and the age of segments.
    ///
    /// # Errors
    /// [`Error::Offline`]; [`Error::DiskFull`] or [`Error::Io`] from writing: none of the batches is in the log then.
    pub fn append(
        &mut self,
        batches: &[RecordBatch],
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<Vec<Result<Appended, Rejected>>> {
        self.check_online()?;
        let mut undo = self.begin()?;
        let mut staged = Vec::with_capacity(batches.len());
        let mut outcomes = Vec::with_capacity(batches.len());
        let mut next_offset = self.log_end;
        for batch in batches {
            let outcome = match self.judge(batch, next_offset) {
                Ok(Judgement::Append) => {
                    let appended = self.appended(batch.header(), next_offset, now_ms);
                    let stage = self.stage(batch, next_offset, leader_epoch, now_ms);
                    undo.producers
                        .push(self.producers.save(stage.header.producer_id));
                    self.producers.record(&stage.header, now_ms);
                    next_offset = end_offset_of(&stage.header);
                    staged.push(stage);
                    Ok(appended)
                }
                Ok(Judgement::Duplicate {
                    base_offset,
                    end_offset,
                    timestamp_ms,
                }) => Ok(self.duplicate(base_offset, end_offset, timestamp_ms)),
                Err(rejected) => Err(rejected),
            };
            outcomes.push(outcome);
        }
        self.commit(&staged, undo, now_ms)?;
        Ok(outcomes)
    }

    /// [`PartitionLog::append`] of one batch.
    ///
    /// # Errors
    /// As [`PartitionLog::append`], and [`Error::Rejected`].
    pub fn append_one(
        &mut self,
        batch: &RecordBatch,
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<Appended> {
        let mut outcomes = self.append(std::slice::from_ref(batch), leader_epoch, now_ms)?;
        match outcomes.pop() {
            Some(outcome) => outcome.map_err(|source| self.rejected(source)),
            None => Err(self.offline()),
        }
    }

    /// Appends batches that have their offsets and leader epochs already, as a follower or mirror: they must be at or
    /// behind the log end and in order (gaps are kept). CRCs are checked; sequences are recorded, not judged. All or
    /// nothing. Returns where the whole of them is, `None` if there were none.
    ///
    /// # Errors
    /// [`Error::Rejected`] for the first bad batch; otherwise as [`PartitionLog::append`].
    pub fn append_replicated(
        &mut self,
        batches: &[RecordBatch],
        now_ms: i64,
    ) -> Result<Option<Appended>> {
        self.check_online()?;
        let mut next_offset = self.log_end;
        let mut staged = Vec::with_capacity(batches.len());
        for batch in batches {
            let stage = Self::stage_replicated(batch, next_offset)
                .map_err(|source| self.rejected(source))?;
            next_offset = end_offset_of(&stage.header);
            staged.push(stage);
        }
        let Some(base_offset) = staged.first().map(|stage| stage.header.base_offset) else {
            return Ok(None);
        };
        let mut undo = self.begin()?;
        for stage in &staged {
            undo.producers
                .push(self.producers.save(stage.header.producer_id));
            self.producers.record(&stage.header, now_ms);
        }
        self.commit(&staged, undo, now_ms)?;
        Ok(Some(Appended {
            base_offset,
            end_offset: self.log_end,
            log_append_time_ms: -1,
            log_start_offset: self.log_start,
            duplicate: false,
        }))
    }

    fn rejected(&self, source: Rejected) -> Error {
        Error::Rejected {
            topic: self.id.topic.clone(),
            partition: self.id.partition,
            source,
        }
    }

    fn appended(&self, header: &BatchHeader, base_offset: i64, now_ms: i64) -> Appended {
        let broker_time = self.config.timestamp_type == TimestampType::LogAppendTime;
        Appended {
            base_offset,
            end_offset: base_offset + i64::from(header.last_offset_delta) + 1,
            log_append_time_ms: if broker_time { now_ms } else { -1 },
            log_start_offset: self.log_start,
            duplicate: false,
        }
    }

    fn duplicate(&self, base_offset: i64, end_offset: i64, timestamp_ms: i64) -> Appended {
        let broker_time = self.config.timestamp_type == TimestampType::LogAppendTime;
        Appended {
            base_offset,
            end_offset,
            log_append_time_ms: if broker_time { timestamp_ms } else { -1 },
            log_start_offset: self.log_start,
            duplicate: true,
        }
    }

    /// Checks a producer's batch, cheap things first.
    fn judge(&self, batch: &RecordBatch, next_offset: i64) -> Result<Judgement, Rejected> {
        let header = batch.header();
        let size = batch.bytes().len();
        if header.magic != 2 {
            return Err(Rejected::UnsupportedMagic {
                magic: header.magic,
            });
        }
        if size > self.config.max_batch_bytes {
            return Err(Rejected::TooLarge {
                size,
                limit: self.config.max_batch_bytes,
            });
        }
        if header.is_control() {
            return Err(Rejected::ControlBatch);
        }
        if header.timestamp_type() == TimestampType::LogAppendTime
            && self.config.timestamp_type == TimestampType::CreateTime
        {
            return Err(Rejected::TimestampType);
        }
        if header.records_count < 1 || header.last_offset_delta != header.records_count - 1 {
            let reason = "the record count does not fit the offsets";
            return Err(Rejected::Malformed { reason });
        }
        if header.producer_id >= 0 && (header.base_sequence < 0 || header.producer_epoch < 0) {
            let reason = "a producer id needs an epoch and a sequence";
            return Err(Rejected::Malformed { reason });
        }
        if next_offset
            .checked_add(i64::from(header.records_count))
            .is_none()
        {
            return Err(Rejected::OffsetOverflow {
                base_offset: next_offset,
            });
        }
        batch
            .check_crc()
            .map_err(|source| Rejected::BadCrc { source })?;
        // While its bytes are still in the processor's cache.
        if matches!(header.compression(), Ok(Compression::None)) && !batch.is_filled() {
            let reason = "the records do not fill the batch";
            return Err(Rejected::Malformed { reason });
        }
        self.producers.judge(header)
    }

    fn stage<'a>(
        &self,
        batch: &'a RecordBatch,
        base_offset: i64,
        leader_epoch: i32,
        now_ms: i64,
    ) -> Staged<'a> {
        let mut header = batch.header().clone();
        let (mut head, body) = split(batch);
        header.base_offset = base_offset;
        header.partition_leader_epoch = leader_epoch;
        // The only error is a slice shorter than a header.
        let stamped = stamp(&mut head, base_offset, leader_epoch);
        debug_assert!(stamped.is_ok(), "a header can always be stamped");
        if self.config.timestamp_type == TimestampType::LogAppendTime {
            header.attributes |= LOG_APPEND_TIME;
            header.max_timestamp = now_ms;
            head[21..23].copy_from_slice(&header.attributes.to_be_bytes());
            head[35..43].copy_from_slice(&now_ms.to_be_bytes());
            header.crc = crc32c::crc32c_append(crc32c::crc32c(&head[21..]), body);
            head[17..21].copy_from_slice(&header.crc.to_be_bytes());
        }
        Staged { header, head, body }
    }

    fn stage_replicated(batch: &RecordBatch, next_offset: i64) -> Result<Staged<'_>, Rejected> {
        let header = batch.header().clone();
        if header.base_offset < next_offset {
            return Err(Rejected::OffsetBehindLogEnd {
                base_offset: header.base_offset,
                log_end_offset: next_offset,
            });
        }
        batch
            .check_crc()
            .map_err(|source| Rejected::BadCrc { source })?;
        let (head, body) = split(batch);
        Ok(Staged { header, head, body })
    }

    fn begin(&self) -> Result<Undo> {
        Ok(Undo {
            segments: self.segments.len(),
            active: self.active()?.state(),
            log_end: self.log_end,
            producers: Vec::new(),
        })
    }

    /// Writes and publishes, or undoes everything.
    fn commit(&mut self, staged: &[Staged<'_>], undo: Undo, now_ms: i64) -> Result<()> {
        if staged.is_empty() {
            return Ok(());
        }
        match self.write(staged, &undo.producers, now_ms) {
            Ok(()) if self.segments.len() == undo.segments => {
                let active_size = self.active()?.state().size;
                let log_end = self.log_end;
                self.shared.publish(|view| {
                    view.active_size = active_size;
                    view.log_end = log_end;
                });
                Ok(())
            }
            Ok(()) => {
                self.publish();
                Ok(())
            }
            Err(error) => {
                if let Err(undo_error) = self.undo(undo) {
                    self.go_offline(&undo_error);
                }
                Err(error)
            }
        }
    }

    /// `saved` are the producers' states before each of the batches.
    fn write(&mut self, staged: &[Staged<'_>], saved: &[SavedProducer], now_ms: i64) -> Result<()> {
        let mut new_epoch = false;
        for stage in staged {
            let header = &stage.header;
            new_epoch |= self
                .epochs
                .assign(header.partition_leader_epoch, header.base_offset);
        }
        if new_epoch {
            self.epochs.write_if_dirty(self.pool.disk())?;
            let epochs = Arc::new(self.epochs.clone());
            self.shared.publish(|view| view.epochs = epochs);
        }
        let mut rest = staged;
        while let Some(first) = rest.first() {
            let mut state = self.active()?.state();
            if self.must_roll(&state, &first.header, now_ms)? {
                let written = staged.len() - rest.len();
                self.roll(saved.get(written..).unwrap_or_default())?;
                state = self.active()?.state();
            }
            let fitting = self.fitting(state, rest, now_ms)?;
            let (run, later) = rest.split_at_checked(fitting).unwrap_or((rest, &[]));
            self.write_run(run, state, now_ms)?;
            rest = later;
        }
        Ok(())
    }

    /// How many of the batches go into the active segment; at least one.
    fn fitting(
        &self,
        mut state: SegmentState,
        staged: &[Staged<'_>],
        now_ms: i64,
    ) -> Result<usize> {
        let mut count = 0;
        for stage in staged {
            if count > 0 && self.must_roll(&state, &stage.header, now_ms)? {
                break;
            }
            state.size += size_of(&stage.header);
            count += 1;
        }
        Ok(count)
    }

    fn must_roll(&self, state: &SegmentState, header: &BatchHeader, now_ms: i64) -> Result<bool> {
        let relative = end_offset_of(header) - 1 - self.active()?.base_offset();
        Ok(state.size > 0
            && (state.size + size_of(header) > self.max_segment_bytes()
                || relative > i64::from(i32::MAX)
                || self.is_aged(state.first_ms, now_ms)))
    }

    fn write_run(
        &mut self,
        run: &[Staged<'_>],
        mut state: SegmentState,
        now_ms: i64,
    ) -> Result<()> {
        let segment = Arc::clone(self.active()?);
        let mut slices: Vec<IoSlice<'_>> = run
            .iter()
            .flat_map(|stage| [IoSlice::new(&stage.head), IoSlice::new(stage.body)])
            .collect();
        let file = segment.file()?;
        write_all_vectored(&*file, &mut slices, state.size)
            .map_err(|source| segment.io("append to", source))?;
        let mut entries = NewEntries::default();
        for stage in run {
            state.add(
                &stage.header,
                self.config.index_interval_bytes,
                &mut entries,
            );
        }
        state.first_ms = state.first_ms.or(Some(now_ms));
        segment.set_state(state);
        segment.add_entries(&entries);
        self.snapshots
            .appended(run.iter().map(|stage| size_of(&stage.header)).sum());
        self.log_end = state.end_offset;
        Ok(())
    }

    /// Takes back whatever a failed append has written.
    fn undo(&mut self, undo: Undo) -> Result<()> {
        for saved in undo.producers.into_iter().rev() {
            self.producers.restore(saved);
        }
        let newer: Vec<Arc<Segment>> = self.segments.split_off(undo.segments);
        self.log_end = undo.log_end;
        self.epochs.truncate_to(undo.log_end);
        let active = Arc::clone(self.active()?);
        active.set_state(undo.active);
        for segment in newer.iter().rev() {
            self.names_changed += 1;
            segment.remove()?;
        }
        self.snapshots
            .remove_behind(self.pool.disk(), undo.log_end)?;
        let file = active.file()?;
        file.truncate(undo.active.size)
            .map_err(|source| active.io("truncate", source))?;
        active
            .offset_index()
            .truncate_while(|entry| entry.position < undo.active.size)?;
        active
            .time_index()
            .truncate_while(|entry| entry.offset < undo.log_end)?;
        self.publish();
        Ok(())
    }
}

/// A batch's header bytes, copied, and the rest of it.
fn split(batch: &RecordBatch) -> ([u8; BatchHeader::LEN], &[u8]) {
    let bytes: &[u8] = batch.bytes();
    match bytes.split_first_chunk::<{ BatchHeader::LEN }>() {
        Some((head, body)) => (*head, body),
        // A parsed batch is never shorter than its header.
        None => ([0; BatchHeader::LEN], &[]),
    }
}
