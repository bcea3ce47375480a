//! Reading one range, and counting by batch headers where its offsets went (I2).

use std::ops::Range;

use broker_client::protocol::record::{RecordBatch as KafkaRecordBatch, Records};
use broker_client::{BatchKind, FetchOptions, FetchedBatch, RangeFetch};

use super::TaskContext;
use crate::error::Error;
use crate::manifest::{LoadedRange, OffsetCounts};
use crate::plan::TaskRange;
use crate::snapshot::isolation;
use crate::transform::Counts;

/// Data records of one batch, and which of its offsets belong to the range.
pub(super) struct RangeRecords {
    pub(super) records: Records,
    pub(super) wanted: Range<i64>,
}

/// Walks a range in offset order.
pub(super) struct RangeReader<'a> {
    context: &'a TaskContext,
    range: &'a TaskRange,
    fetch: RangeFetch,
    tally: Tally,
}

impl<'a> RangeReader<'a> {
    pub(super) fn new(context: &'a TaskContext, range: &'a TaskRange) -> Self {
        let options = FetchOptions {
            isolation: isolation(context.plan.source.isolation),
            prefetch_bytes: Some(context.memory.prefetch_bytes),
        };
        let fetch = context.client.fetch_range(
            range.topic.clone(),
            range.partition,
            range.start..range.end,
            options,
        );
        Self {
            context,
            range,
            fetch,
            tally: Tally::new(range),
        }
    }

    /// The next batch with data; `None` at the range's end. An empty answer is never an end.
    pub(super) async fn next(&mut self) -> Result<Option<RangeRecords>, Error> {
        while let Some(FetchedBatch { batch, kind }) = self.fetch.next().await? {
            let size = u64::try_from(batch.bytes().len()).unwrap_or(u64::MAX);
            let before = self.tally.position;
            let taken = self.take(&batch, kind)?;
            let moved = u64::try_from(self.tally.position - before).unwrap_or(0);
            self.context.progress.advanced(moved, size);
            if taken.is_some() {
                return Ok(taken);
            }
        }
        Ok(None)
    }

    fn take(
        &mut self,
        batch: &KafkaRecordBatch,
        kind: BatchKind,
    ) -> Result<Option<RangeRecords>, Error> {
        let header = batch.header();
        let Some(wanted) = self.tally.enter(header.base_offset..header.next_offset()) else {
            return Ok(None);
        };
        let whole = wanted == (header.base_offset..header.next_offset());
        if kind != BatchKind::Data && whole {
            let records = u64::try_from(header.records_count).unwrap_or(0);
            self.tally
                .leave(&wanted, kind, records, header.partition_leader_epoch);
            return Ok(None);
        }
        let most = usize::try_from(self.context.plan.source.max_batch_bytes).unwrap_or(usize::MAX);
        let records = records_of(self.range, batch, most)?;
        let count = if whole {
            u64::try_from(header.records_count).unwrap_or(0)
        } else {
            count_in(&records, &wanted).map_err(|error| bad_batch(self.range, batch, error))?
        };
        self.tally
            .leave(&wanted, kind, count, header.partition_leader_epoch);
        Ok((kind == BatchKind::Data).then_some(RangeRecords { records, wanted }))
    }

    /// Ends the range.
    ///
    /// # Errors
    /// Offsets without a record on a topic where there may be none.
    pub(super) fn finish(self) -> Result<Tally, Error> {
        self.tally.finish(self.range)
    }
}

/// The records of a batch, decompressed within a bound.
pub(crate) fn records_of(
    range: &TaskRange,
    batch: &KafkaRecordBatch,
    max_batch_bytes: usize,
) -> Result<Records, Error> {
    batch
        .records(decompressed_cap(max_batch_bytes))
        .map_err(|error| bad_batch(range, batch, error))
}

fn bad_batch(
    range: &TaskRange,
    batch: &KafkaRecordBatch,
    source: broker_client::protocol::record::Error,
) -> Error {
    Error::Source(broker_client::Error::CorruptBatch {
        topic: range.topic.clone(),
        partition: range.partition,
        offset: batch.header().base_offset,
        source: source.into(),
    })
}

/// A batch may decompress to a multiple of its size; beyond this it is refused as a bomb.
const fn decompressed_cap(max_batch_bytes: usize) -> usize {
    let floor = 256 << 20;
    let cap = max_batch_bytes.saturating_mul(4);
    if cap > floor { cap } else { floor }
}

fn count_in(
    records: &Records,
    wanted: &Range<i64>,
) -> Result<u64, broker_client::protocol::record::Error> {
    let mut count = 0;
    for record in records {
        count += u64::from(wanted.contains(&record?.offset));
    }
    Ok(count)
}

/// Where the offsets of a range went so far.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) loaded: LoadedRange,
    position: i64,
    /// Records in data batches: what the transform must account for.
    data: u64,
}

impl Tally {
    fn new(range: &TaskRange) -> Self {
        Self {
            loaded: LoadedRange {
                topic: range.topic.clone(),
                partition: range.partition,
                start: range.start,
                end: range.end,
                counts: OffsetCounts::default(),
                leader_epoch: -1,
            },
            position: range.start,
            data: 0,
        }
    }

    /// Moves to a batch that covers `offsets`; returns those of them that are in the range and new.
    fn enter(&mut self, offsets: Range<i64>) -> Option<Range<i64>> {
        let start = offsets.start.clamp(self.position, self.loaded.end);
        let end = offsets.end.clamp(self.position, self.loaded.end);
        self.loaded.counts.holes += (start - self.position).unsigned_abs();
        self.position = start;
        (start < end).then_some(start..end)
    }

    /// Ends a batch of which `records` lie in `wanted`; the other offsets of `wanted` are holes.
    fn leave(&mut self, wanted: &Range<i64>, kind: BatchKind, records: u64, leader_epoch: i32) {
        let counts = &mut self.loaded.counts;
        match kind {
            BatchKind::Data => self.data += records,
            BatchKind::Aborted => counts.aborted += records,
            BatchKind::Control => counts.control += records,
        }
        let offsets = (wanted.end - wanted.start).unsigned_abs();
        counts.holes += offsets.saturating_sub(records);
        self.position = wanted.end;
        self.loaded.leader_epoch = leader_epoch;
    }

    fn finish(mut self, range: &TaskRange) -> Result<Self, Error> {
        self.loaded.counts.holes += (self.loaded.end - self.position).unsigned_abs();
        if self.loaded.counts.holes > 0 && !range.holes_allowed {
            return Err(Error::Range {
                topic: range.topic.clone(),
                partition: range.partition,
                offset: range.start,
                problem: format!(
                    "{} of the offsets {} to {} (exclusive) have no record, and the topic is not compacted",
                    self.loaded.counts.holes, range.start, range.end
                ),
            });
        }
        Ok(self)
    }

    /// Takes over what the transform did with the data records.
    pub(super) const fn take_counts(&mut self, counts: &Counts) {
        self.loaded.counts.rows = counts.rows;
        self.loaded.counts.rejected = counts.rejected;
        self.loaded.counts.tombstones_skipped = counts.tombstones_skipped;
    }
}

/// The ranges of a task, once every offset is accounted for (I2).
///
/// # Errors
/// When the sums do not match: a bug, and better found here than in an audit.
pub(super) fn settle(tallies: Vec<Tally>) -> Result<Vec<LoadedRange>, Error> {
    for tally in &tallies {
        let loaded = &tally.loaded;
        let counts = &loaded.counts;
        let data = counts.rows + counts.rejected + counts.tombstones_skipped;
        let offsets = (loaded.end - loaded.start).unsigned_abs();
        if data != tally.data || counts.total() != offsets {
            return Err(Error::Internal {
                what: format!(
                    "{}-{} from offset {}: the counts do not add up: {counts:?} for {offsets} offsets with {} data records",
                    loaded.topic, loaded.partition, loaded.start, tally.data
                ),
                source: None,
            });
        }
    }
    Ok(tallies.into_iter().map(|tally| tally.loaded).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: i64, end: i64, holes_allowed: bool) -> TaskRange {
        TaskRange {
            topic: "t".parse().unwrap(),
            partition: 0,
            start,
            end,
            holes_allowed,
        }
    }

    #[test]
    fn batches_that_overlap_the_ends_count_only_inside() {
        let range = range(5, 12, false);
        let mut tally = Tally::new(&range);
        assert_eq!(tally.enter(0..8), Some(5..8));
        tally.leave(&(5..8), BatchKind::Data, 3, 4);
        assert_eq!(tally.enter(8..20), Some(8..12));
        tally.leave(&(8..12), BatchKind::Aborted, 4, 6);
        let tally = tally.finish(&range).unwrap();
        assert_eq!(
            (
                tally.data,
                tally.loaded.counts.aborted,
                tally.loaded.leader_epoch
            ),
            (3, 4, 6)
        );
        assert_eq!(tally.loaded.counts.holes, 0);
    }

    #[test]
    fn holes_before_inside_and_after_batches_are_counted() {
        let range = range(0, 20, true);
        let mut tally = Tally::new(&range);
        assert_eq!(tally.enter(3..8), Some(3..8));
        tally.leave(&(3..8), BatchKind::Data, 2, 0);
        assert_eq!(tally.enter(10..11), Some(10..11));
        tally.leave(&(10..11), BatchKind::Control, 1, 0);
        // A batch wholly behind the end still proves the hole before it.
        assert_eq!(tally.enter(25..30), None);
        let tally = tally.finish(&range).unwrap();
        assert_eq!(tally.loaded.counts.holes, 3 + 3 + 2 + 9);
        assert_eq!(tally.loaded.counts.total() + tally.data, 20);
    }

    #[test]
    fn a_hole_on_a_topic_that_is_not_compacted_fails() {
        let range = range(0, 4, false);
        let mut tally = Tally::new(&range);
        assert_eq!(tally.enter(0..3), Some(0..3));
        tally.leave(&(0..3), BatchKind::Data, 3, 0);
        let error = tally.finish(&range).unwrap_err().to_string();
        assert!(error.contains("1 of the offsets 0 to 4"), "{error}");
    }

    #[test]
    fn a_batch_that_was_already_taken_is_not_counted_twice() {
        let range = range(0, 10, false);
        let mut tally = Tally::new(&range);
        tally.enter(0..5);
        tally.leave(&(0..5), BatchKind::Data, 5, 0);
        assert_eq!(tally.enter(0..5), None);
        assert_eq!(tally.enter(2..10), Some(5..10));
    }

    #[test]
    fn sums_that_do_not_match_are_an_error() {
        let range = range(0, 3, false);
        let mut tally = Tally::new(&range);
        tally.enter(0..3);
        tally.leave(&(0..3), BatchKind::Data, 3, 0);
        let mut tally = tally.finish(&range).unwrap();
        tally.take_counts(&Counts {
            rows: 2,
            ..Counts::default()
        });
        assert!(settle(vec![tally.clone()]).is_err());
        tally.take_counts(&Counts {
            rows: 2,
            rejected: 1,
            ..Counts::default()
        });
        assert!(settle(vec![tally]).is_ok());
    }
}
