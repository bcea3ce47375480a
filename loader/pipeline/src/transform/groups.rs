//! A decoded batch, its rows in order of their directories.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::ArrowError;
use arrow_select::take::take_record_batch;

use super::Piece;
use crate::partitioner::Assignment;

/// The rows of one directory.
#[derive(Debug)]
pub struct GroupRows {
    /// Path below the run's directory, `dt=2026-11-30/hour=13`; empty where nothing is grouped.
    pub directory: Arc<str>,
    /// Where they are in the chunk's batch (half open), in input order.
    pub rows: Range<usize>,
    /// Least and greatest event time, both inclusive, milliseconds since 1970; None if no row has
    /// one.
    pub event_time_ms: Option<(i64, i64)>,
    /// Which offsets the rows come from, sorted by topic and partition.
    pub spans: Vec<PartitionSpan>,
}

/// Where rows of one partition begin and end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionSpan {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// Least offset of a row.
    pub first_offset: i64,
    /// Greatest offset of a row, inclusive; offsets between may be in other groups.
    pub last_offset: i64,
    /// Rows.
    pub rows: u64,
}

/// Where rows come from.
pub(super) struct Spans<'a> {
    pieces: &'a [Piece],
    offsets: &'a [i64],
}

impl<'a> Spans<'a> {
    pub(super) const fn new(pieces: &'a [Piece], offsets: &'a [i64]) -> Self {
        Self { pieces, offsets }
    }
}

/// Brings the rows of `batch` into the order of their directories, input order within each; rejected rows
/// are left out. Rows that are in that order already are not copied.
pub(super) fn sort(
    batch: RecordBatch,
    assignment: &Assignment,
    from: &Spans<'_>,
) -> Result<(RecordBatch, Vec<GroupRows>), ArrowError> {
    let mut groups: Vec<Group> = Vec::new();
    groups.resize_with(assignment.directories.len(), Group::default);
    for (index, piece) in from.pieces.iter().enumerate() {
        for run in runs(&assignment.group_of_row, piece.rows.clone()) {
            let group = usize::try_from(run.group).ok();
            if let Some(group) = group.and_then(|group| groups.get_mut(group)) {
                group.add(run.rows, assignment, from.offsets, (index, piece));
            }
        }
    }
    let mut sorted = Vec::with_capacity(groups.len());
    let mut runs = Vec::new();
    let mut start = 0;
    for (directory, mut group) in assignment.directories.iter().zip(groups) {
        let count: usize = group.runs.iter().map(ExactSizeIterator::len).sum();
        if count == 0 {
            continue;
        }
        let spans = &mut group.spans;
        spans.sort_by(|one, two| (&one.topic, one.partition).cmp(&(&two.topic, two.partition)));
        sorted.push(GroupRows {
            directory: Arc::clone(directory),
            rows: start..start + count,
            event_time_ms: group.event_time_ms,
            spans: group.spans,
        });
        start += count;
        runs.append(&mut group.runs);
    }
    Ok((in_order(batch, &runs)?, sorted))
}

/// The rows of `runs`, one run after the other.
fn in_order(batch: RecordBatch, runs: &[Range<usize>]) -> Result<RecordBatch, ArrowError> {
    let mut next = 0;
    let already = runs.iter().all(|run| {
        let follows = run.start == next;
        next = run.end;
        follows
    });
    if already && next == batch.num_rows() {
        return Ok(batch);
    }
    let rows = runs.iter().flat_map(Clone::clone);
    let rows = rows.map(|row| u64::try_from(row).unwrap_or(u64::MAX));
    take_record_batch(&batch, &UInt64Array::from_iter_values(rows))
}

/// Rows that follow each other and have one group.
struct Run {
    group: u32,
    rows: Range<usize>,
}

fn runs(group_of_row: &[u32], rows: Range<usize>) -> impl Iterator<Item = Run> {
    let mut start = rows.start;
    let groups = group_of_row.get(rows).unwrap_or_default();
    groups.chunk_by(PartialEq::eq).map(move |run| {
        let rows = start..start + run.len();
        start = rows.end;
        Run {
            group: run.first().copied().unwrap_or(Assignment::REJECTED),
            rows,
        }
    })
}

#[derive(Default)]
struct Group {
    runs: Vec<Range<usize>>,
    event_time_ms: Option<(i64, i64)>,
    spans: Vec<PartitionSpan>,
    /// The piece that the last span was last extended from.
    last_piece: Option<usize>,
}

impl Group {
    fn add(
        &mut self,
        rows: Range<usize>,
        assignment: &Assignment,
        offsets: &[i64],
        (piece_index, piece): (usize, &Piece),
    ) {
        let times = assignment.event_time_ms.get(rows.clone());
        for time in times.unwrap_or_default().iter().flatten() {
            let (least, greatest) = self.event_time_ms.unwrap_or((*time, *time));
            self.event_time_ms = Some((least.min(*time), greatest.max(*time)));
        }
        // Offsets rise within a piece.
        let of_rows = offsets.get(rows.clone()).unwrap_or_default();
        let (Some(first), Some(last)) = (of_rows.first(), of_rows.last()) else {
            return;
        };
        let count = rows.len();
        match self.runs.last_mut() {
            Some(run) if run.end == rows.start => run.end = rows.end,
            Some(_) | None => self.runs.push(rows),
        }
        if self.last_piece != Some(piece_index) {
            self.last_piece = Some(piece_index);
            self.begin_span(piece, *first);
        }
        if let Some(span) = self.spans.last_mut() {
            span.first_offset = span.first_offset.min(*first);
            span.last_offset = span.last_offset.max(*last);
            span.rows += u64::try_from(count).unwrap_or(u64::MAX);
        }
    }

    /// Makes the piece's span the last.
    fn begin_span(&mut self, piece: &Piece, offset: i64) {
        let same =
            |span: &PartitionSpan| span.partition == piece.partition && span.topic == piece.topic;
        let span = match self.spans.iter().position(same) {
            Some(position) => self.spans.remove(position),
            None => PartitionSpan {
                topic: Arc::clone(&piece.topic),
                partition: piece.partition,
                first_offset: offset,
                last_offset: offset,
                rows: 0,
            },
        };
        self.spans.push(span);
    }
}
