//! Loading one segment: what it holds, by its index where that is believed, by its batches where not.
//!
//! [`Loading::run`] only reads, so segments may be loaded in any order; [`Loading::settle`] then writes what has to change.

use std::sync::Arc;

use broker_protocol::record::BatchHeader;
use tracing::warn;

use crate::disk::DiskFile;
use crate::error::Result;
use crate::index::{OffsetEntry, TimeEntry};
use crate::partition_log::WALK_WINDOW;
use crate::recovery::RecoveryReport;
use crate::scan::{BadBatch, CheckedWalk, HeaderWalk, Stop, end_offset_of};
use crate::segment::{NewEntries, Segment, SegmentState, batch_at};

/// A segment file in the directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundSegment {
    pub(super) base_offset: i64,
    pub(super) len: u64,
    pub(super) modified_ms: i64,
    /// `None` if it is missing.
    pub(super) offset_index_len: Option<u64>,
    /// `None` if it is missing.
    pub(super) time_index_len: Option<u64>,
}

/// How much of a segment is believed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Belief {
    /// All of it: it has been synced, with its indexes.
    Whole,
    /// Batches that end at or below `recovery_point`, and index entries below `indexed`, which is not above it.
    Below { recovery_point: i64, indexed: i64 },
}

/// A segment being loaded.
#[derive(Debug)]
pub(super) struct Loading {
    pub(super) segment: Arc<Segment>,
    pub(super) found: FoundSegment,
    /// Where the next segment begins; `None` for the last one.
    pub(super) next_base: Option<i64>,
    belief: Belief,
    index_interval: u64,
    file: Arc<dyn DiskFile>,
    pub(super) state: SegmentState,
    /// Where the log has to be cut.
    pub(super) bad: Option<BadBatch>,
    /// Places in what is believed where no batch begins.
    damaged: Vec<BadBatch>,
    /// Entries as they should be, of the batches looked at.
    made: NewEntries,
    offsets: Claims<OffsetEntry>,
    times: Claims<TimeEntry>,
    bytes_scanned: u64,
    batches_scanned: u64,
    bytes_walked: u64,
    first_timestamp_ms: Option<i64>,
}

/// Entries of an index file, ticked off while walking over the batches they should point to.
#[derive(Debug)]
struct Claims<E> {
    entries: Vec<E>,
    confirmed: usize,
    /// True if the file has to be written anew.
    anew: bool,
}

impl<E: Copy> Claims<E> {
    fn none() -> Self {
        Self {
            entries: Vec::new(),
            confirmed: 0,
            anew: false,
        }
    }

    /// The next entry not confirmed yet.
    fn next(&self) -> Option<E> {
        self.entries.get(self.confirmed).copied()
    }

    /// True if all entries are true. There may be fewer than there should be: the newest wait in memory, and a crash
    /// loses them.
    fn hold(&self) -> bool {
        self.confirmed == self.entries.len()
    }
}

impl Loading {
    pub(super) fn new(
        segment: Arc<Segment>,
        found: FoundSegment,
        next_base: Option<i64>,
        belief: Belief,
        index_interval: u64,
    ) -> Result<Self> {
        Ok(Self {
            file: segment.file()?,
            segment,
            found,
            next_base,
            belief,
            index_interval,
            state: SegmentState::empty(found.base_offset),
            bad: None,
            damaged: Vec::new(),
            made: NewEntries::default(),
            offsets: Claims::none(),
            times: Claims::none(),
            bytes_scanned: 0,
            batches_scanned: 0,
            bytes_walked: 0,
            first_timestamp_ms: None,
        })
    }

    /// Finds out what the segment holds. Writes nothing.
    pub(super) fn run(&mut self) -> Result<()> {
        match self.belief {
            Belief::Whole => self.believe()?,
            Belief::Below {
                recovery_point,
                indexed,
            } => self.check(recovery_point, indexed)?,
        }
        if self.next_base.is_none() {
            self.first_timestamp_ms = self.segment.first_timestamp_ms(self.state.size)?;
        }
        Ok(())
    }

    /// True if something in it is not believed.
    pub(super) fn is_checked(&self) -> bool {
        matches!(self.belief, Belief::Below { .. })
    }

    pub(super) fn is_damaged(&self) -> bool {
        !self.damaged.is_empty()
    }

    fn end_bound(&self) -> i64 {
        self.next_base.unwrap_or(i64::MAX)
    }

    /// Takes a segment by the last entries of its indexes and the batches from there on, or by all its headers if the
    /// indexes cannot be right.
    fn believe(&mut self) -> Result<()> {
        let (end, found) = (self.end_bound(), self.found);
        let (offset_index, time_index) = (self.segment.offset_index(), self.segment.time_index());
        let offsets = offset_index.adopt_unread(found.offset_index_len, end, found.len)?;
        let times = time_index.adopt_unread(found.time_index_len, end, found.len)?;
        let (entry, time) = (offset_index.last(), time_index.last());
        self.times.entries.extend(time);
        if let Some(entry) = entry {
            let time = time.filter(|time| time.offset <= entry.offset);
            self.state = SegmentState::before_entry(entry.position, found.base_offset, time);
            if let Some(time) = time {
                self.times.confirmed = usize::from(self.segment.is_true(time, found.len)?);
            }
        }
        let from_start = entry.is_none();
        let points = self.walk(i64::MAX, entry)?;
        let entries = self.segment.offset_index().len();
        let offsets = offsets && points && self.made.offsets.len() as u64 <= entries;
        let times = times && self.times_hold(time);
        let sound = offsets && times;
        if !sound && !from_start {
            self.walk_anew()?;
        }
        self.offsets.anew = !offsets;
        self.times.anew = !times;
        Ok(())
    }

    /// True if the last time entry is of a batch there is, or missing because no batch has a timestamp.
    fn times_hold(&self, last: Option<TimeEntry>) -> bool {
        match last {
            Some(_) => self.times.confirmed == self.times.entries.len(),
            None => self.state.largest.is_none(),
        }
    }

    /// Forgets what has been found and walks over all headers.
    fn walk_anew(&mut self) -> Result<()> {
        self.state = SegmentState::empty(self.found.base_offset);
        self.made = NewEntries::default();
        self.damaged.clear();
        self.bad = None;
        self.walk(i64::MAX, None)?;
        Ok(())
    }

    /// Takes what is believed by its headers, from the last index entry that is believed on, and checks the rest.
    fn check(&mut self, recovery_point: i64, indexed: i64) -> Result<()> {
        let (end, len) = (self.end_bound(), self.found.len);
        let (offset_index, time_index) = (self.segment.offset_index(), self.segment.time_index());
        let offsets = offset_index.load(end, len)?;
        let times = time_index.load(end, len)?;
        (self.offsets.anew, self.times.anew) = (offsets.is_none(), times.is_none());
        self.offsets.entries = offsets.unwrap_or_default();
        self.times.entries = times.unwrap_or_default();
        if !self.offsets.anew && !self.times.anew {
            self.begin_at_index(indexed)?;
        }
        self.walk(recovery_point, None)?;
        if self.bad.is_none() {
            self.scan()?;
        }
        Ok(())
    }

    /// Begins at the last index entry below `indexed`, if it is true.
    fn begin_at_index(&mut self, indexed: i64) -> Result<()> {
        let len = self.found.len;
        let believed = self.offsets.entries.iter();
        let confirmed = believed.take_while(|entry| entry.offset < indexed).count();
        let Some(entry) = confirmed
            .checked_sub(1)
            .and_then(|last| self.offsets.entries.get(last))
        else {
            return Ok(());
        };
        let Some(header) = batch_at(&*self.file, *entry, len) else {
            return Ok(());
        };
        let times = self.times.entries.iter();
        let times = times.take_while(|time| time.offset <= entry.offset).count();
        let largest = times
            .checked_sub(1)
            .and_then(|last| self.times.entries.get(last))
            .copied();
        // Its own lookups go by the entries that are believed.
        self.segment
            .offset_index()
            .adopt(self.offsets.entries.get(..confirmed).unwrap_or_default());
        if let Some(time) = largest
            && !self.segment.is_true(time, len)?
        {
            return Ok(());
        }
        self.state = SegmentState::before_entry(entry.position, header.base_offset, largest);
        self.offsets.confirmed = confirmed;
        self.times.confirmed = times;
        let kept = self.offsets.entries.iter().take(confirmed);
        self.made.offsets.extend(kept);
        self.made
            .times
            .extend(self.times.entries.iter().take(times));
        Ok(())
    }

    /// Takes the batches that end at or below `below`, by their headers. False, and nothing taken, if the first is not
    /// the one that the index entry `first` points to.
    fn walk(&mut self, below: i64, mut first: Option<OffsetEntry>) -> Result<bool> {
        let file = Arc::clone(&self.file);
        let (begin, len) = (self.state.size, self.found.len);
        let may_cut = self.is_checked() || self.next_base.is_none();
        let window = if begin == 0 { WALK_WINDOW } else { TAIL_WINDOW };
        let mut walk = HeaderWalk::new(&*file, begin, len, window);
        loop {
            match walk.next().and_then(|next| self.within_reach(next)) {
                Ok(None) => break,
                Err(Stop::Bad(_)) if first.is_some() => return Ok(false),
                Ok(Some((position, header))) => {
                    if first.is_some_and(|first| first.offset + 1 != end_offset_of(&header)) {
                        return Ok(false);
                    }
                    first = None;
                    if end_offset_of(&header) > below {
                        break;
                    }
                    if header.base_offset < self.state.end_offset && may_cut {
                        let reason = offset_goes_back(&header, &self.state);
                        self.bad = Some(BadBatch { position, reason });
                        break;
                    }
                    self.take(&header);
                }
                Err(Stop::Io(source)) => return Err(self.segment.io("read", source)),
                Err(Stop::Bad(bad)) => {
                    let Some(entry) = self.resync(bad.position) else {
                        if !may_cut {
                            self.damaged.push(bad);
                            self.state.size = len;
                        } else if !self.is_checked() {
                            self.bad = Some(bad);
                        }
                        // Otherwise `scan` finds the same place again.
                        break;
                    };
                    self.damaged.push(bad);
                    self.state.size = entry.position;
                    walk = HeaderWalk::new(&*file, entry.position, len, window);
                }
            }
        }
        self.bytes_walked += self.state.size.saturating_sub(begin);
        Ok(true)
    }

    /// Refuses a batch that ends further behind the start of the segment than any is appended to it. Its checksum does not
    /// cover its offset, and a log that ended there would take no more.
    fn within_reach(
        &self,
        next: Option<(u64, BatchHeader)>,
    ) -> Result<Option<(u64, BatchHeader)>, Stop> {
        if let Some((position, header)) = &next {
            let (first, last) = (self.found.base_offset, header.last_offset());
            if last.saturating_sub(first) > i64::from(i32::MAX) {
                let position = *position;
                let reason =
                    format!("it ends at offset {last}, too far from {first}, the segment's first");
                return Err(Stop::Bad(BadBatch { position, reason }));
            }
        }
        Ok(next)
    }

    /// The first index entry behind a damaged place that points to a batch.
    fn resync(&mut self, position: u64) -> Option<OffsetEntry> {
        let behind = self.offsets.entries.iter().enumerate();
        let mut behind = behind.filter(|(_, entry)| entry.position > position);
        let (at, entry) =
            behind.find(|(_, entry)| batch_at(&*self.file, **entry, self.found.len).is_some())?;
        self.offsets.confirmed = at;
        Some(*entry)
    }

    /// Takes the rest of the segment, checking everything, up to the first bad place.
    fn scan(&mut self) -> Result<()> {
        let file = Arc::clone(&self.file);
        let (start, len) = (self.state.size, self.found.len);
        let mut walk = CheckedWalk::new(&*file, start, len);
        self.bad = loop {
            match walk.next().and_then(|next| self.within_reach(next)) {
                Ok(None) => break None,
                Ok(Some((position, header))) => {
                    if header.base_offset < self.state.end_offset {
                        let reason = offset_goes_back(&header, &self.state);
                        break Some(BadBatch { position, reason });
                    }
                    self.take(&header);
                    self.batches_scanned += 1;
                }
                Err(Stop::Io(source)) => return Err(self.segment.io("read", source)),
                Err(Stop::Bad(bad)) => break Some(bad),
            }
        };
        let looked_at = self.bad.as_ref().map_or(len, |bad| bad.position);
        self.bytes_scanned += looked_at - start;
        Ok(())
    }

    /// Takes the batch at the present end of the segment.
    fn take(&mut self, header: &BatchHeader) {
        let entry = OffsetEntry {
            offset: end_offset_of(header) - 1,
            position: self.state.size,
        };
        self.state.add(header, self.index_interval, &mut self.made);
        if self.offsets.next() == Some(entry) {
            self.offsets.confirmed += 1;
        }
        let largest = self.state.largest;
        if self.times.next().is_some_and(|time| Some(time) == largest) {
            self.times.confirmed += 1;
        }
    }

    /// Settles the segment's length, indexes and state, and adds to the report.
    pub(super) fn settle(mut self, report: &mut RecoveryReport) -> Result<Arc<Segment>> {
        let segment = self.segment;
        let cut = self.bad.is_some() && self.state.size < self.found.len;
        if cut {
            self.file
                .truncate(self.state.size)
                .map_err(|source| segment.io("truncate", source))?;
        }
        let checked = matches!(self.belief, Belief::Below { .. });
        if checked {
            self.offsets.anew |= !self.offsets.hold();
            self.times.anew |= !self.times.hold();
            segment.offset_index().adopt(&self.offsets.entries);
            segment.time_index().adopt(&self.times.entries);
        }
        let rebuilt = usize::from(self.offsets.anew) + usize::from(self.times.anew);
        if self.offsets.anew {
            segment.offset_index().replace(&self.made.offsets)?;
            self.made.offsets.clear();
        }
        if self.times.anew {
            segment.time_index().replace(&self.made.times)?;
            self.made.times.clear();
        }
        // Those behind the last one there: a crash, or a write that failed, has left the end without.
        segment.add_entries(&self.made);
        self.state.first_ms = first_ms(self.first_timestamp_ms, self.found.modified_ms)
            .filter(|_| self.state.size > 0);
        segment.set_state(self.state);
        if self.next_base.is_some() && self.bad.is_none() {
            segment.seal();
        }
        if checked || cut || rebuilt > 0 || segment.indexes_unsynced() {
            segment.sync(true)?;
        }
        report.rebuilt_indexes += rebuilt;
        report.bytes_scanned += self.bytes_scanned;
        report.batches_scanned += self.batches_scanned;
        report.bytes_walked += self.bytes_walked;
        for bad in self.damaged {
            let path = segment.path().to_owned();
            warn!(
                path = %path.display(), position = bad.position, reason = %bad.reason,
                "damaged place in a log"
            );
            report.damaged.push((path, bad.position, bad.reason));
        }
        Ok(segment)
    }
}

/// Bytes read at once from the last index entry on.
const TAIL_WINDOW: usize = 8 << 10;

/// When the first batch was appended is not stored. Its own time serves unless it is in the file's future; the file's time
/// alone would make a segment young again with every restart.
fn first_ms(timestamp_ms: Option<i64>, modified_ms: i64) -> Option<i64> {
    timestamp_ms.map(|timestamp_ms| {
        if (1..=modified_ms).contains(&timestamp_ms) {
            timestamp_ms
        } else {
            modified_ms
        }
    })
}

fn offset_goes_back(header: &BatchHeader, state: &SegmentState) -> String {
    format!(
        "offset {} follows {}",
        header.base_offset,
        state.end_offset - 1
    )
}
