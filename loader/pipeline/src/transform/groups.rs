//! A decoded batch, split by directory.

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
    /// The rows, in input order.
    pub batch: RecordBatch,
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

#[derive(Default)]
struct Group {
    rows: Vec<u64>,
    event_time_ms: Option<(i64, i64)>,
    spans: Vec<PartitionSpan>,
    /// The piece that the last span was last extended from.
    last_piece: Option<usize>,
}

impl<'a> Spans<'a> {
    pub(super) const fn new(pieces: &'a [Piece], offsets: &'a [i64]) -> Self {
        Self { pieces, offsets }
    }
}

/// Splits `batch` by the assignment; rejected rows are left out.
pub(super) fn split(
    batch: &RecordBatch,
    assignment: &Assignment,
    from: &Spans<'_>,
) -> Result<Vec<GroupRows>, ArrowError> {
    let mut groups: Vec<Group> = Vec::new();
    groups.resize_with(assignment.directories.len(), Group::default);
    for (piece_index, piece) in from.pieces.iter().enumerate() {
        for row in piece.rows.clone() {
            let group = assignment
                .group_of_row
                .get(row)
                .copied()
                .unwrap_or(Assignment::REJECTED);
            let group = usize::try_from(group)
                .ok()
                .and_then(|group| groups.get_mut(group));
            if let (Some(group), Some(offset)) = (group, from.offsets.get(row)) {
                let time = assignment.event_time_ms.get(row).copied().flatten();
                group.add(row, *offset, time, (piece_index, piece));
            }
        }
    }
    let named = assignment.directories.iter().zip(groups);
    let filled = named.filter(|(_, group)| !group.rows.is_empty());
    filled
        .map(|(directory, group)| group.finish(Arc::clone(directory), batch))
        .collect()
}

impl Group {
    #[inline]
    fn add(&mut self, row: usize, offset: i64, time: Option<i64>, from: (usize, &Piece)) {
        self.rows.push(u64::try_from(row).unwrap_or(u64::MAX));
        if let Some(time) = time {
            let (least, greatest) = self.event_time_ms.unwrap_or((time, time));
            self.event_time_ms = Some((least.min(time), greatest.max(time)));
        }
        let (piece_index, piece) = from;
        if self.last_piece != Some(piece_index) {
            self.last_piece = Some(piece_index);
            let same = |span: &PartitionSpan| {
                span.partition == piece.partition && span.topic == piece.topic
            };
            match self.spans.iter().position(same) {
                // The span at hand is always the last.
                Some(position) => {
                    let span = self.spans.remove(position);
                    self.spans.push(span);
                }
                None => self.spans.push(PartitionSpan {
                    topic: Arc::clone(&piece.topic),
                    partition: piece.partition,
                    first_offset: offset,
                    last_offset: offset,
                    rows: 0,
                }),
            }
        }
        if let Some(span) = self.spans.last_mut() {
            span.first_offset = span.first_offset.min(offset);
            span.last_offset = span.last_offset.max(offset);
            span.rows += 1;
        }
    }

    fn finish(self, directory: Arc<str>, batch: &RecordBatch) -> Result<GroupRows, ArrowError> {
        let Self {
            rows,
            event_time_ms,
            mut spans,
            ..
        } = self;
        spans.sort_by(|one, two| (&one.topic, one.partition).cmp(&(&two.topic, two.partition)));
        let batch = match run_of(&rows) {
            // A slice shares the whole batch's memory, so that only a large one is kept as such.
            Some((start, length)) if length * 2 >= batch.num_rows() => batch.slice(start, length),
            Some(_) | None => take_record_batch(batch, &UInt64Array::from(rows))?,
        };
        Ok(GroupRows {
            directory,
            batch,
            event_time_ms,
            spans,
        })
    }
}

/// Start and length, if the rows follow each other without a gap.
fn run_of(rows: &[u64]) -> Option<(usize, usize)> {
    let (first, last) = (rows.first()?, rows.last()?);
    let length = usize::try_from(last - first + 1).ok()?;
    (length == rows.len()).then_some((usize::try_from(*first).ok()?, length))
}
