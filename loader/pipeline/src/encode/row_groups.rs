//! Where row groups end: at places that depend on the rows alone.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch};
use arrow_schema::DataType;

/// Cuts a file's rows into row groups: the most rows whose values stay within `bytes` bytes, and never
/// more than `rows`; a single row may be larger. Where a group ends follows from the rows, not from the
/// batches they come in.
#[derive(Debug, Clone)]
pub struct RowGroupCut {
    most_rows: usize,
    most_bytes: usize,
    rows: usize,
    bytes: usize,
}

/// Rows of a batch that go into one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPiece {
    /// Which rows (half open).
    pub rows: Range<usize>,
    /// Whether the group before them is full, so that they begin the next.
    pub starts_group: bool,
}

impl RowGroupCut {
    /// Groups of `rows` rows (at least 1) or `bytes` bytes of values.
    #[must_use]
    pub fn new(rows: usize, bytes: usize) -> Self {
        Self {
            most_rows: rows.max(1),
            most_bytes: bytes,
            rows: 0,
            bytes: 0,
        }
    }

    /// Splits `rows` of `batch` into pieces that each lie in one group.
    pub fn split(&mut self, batch: &RecordBatch, mut rows: Range<usize>) -> Vec<GroupPiece> {
        let mut pieces = Vec::new();
        let mut starts_group = false;
        while !rows.is_empty() {
            let taken = self.take(batch, rows.clone());
            if taken > 0 {
                let end = rows.start + taken;
                pieces.push(GroupPiece {
                    rows: rows.start..end,
                    starts_group,
                });
                rows.start = end;
            }
            if !rows.is_empty() {
                (self.rows, self.bytes) = (0, 0);
                starts_group = true;
            }
        }
        pieces
    }

    /// Takes the first of `rows` into the group at hand, as many as fit; returns how many. A group without
    /// rows takes at least one.
    fn take(&mut self, batch: &RecordBatch, rows: Range<usize>) -> usize {
        let room = self.most_bytes.saturating_sub(self.bytes);
        let size = |count: usize| bytes_of(batch, rows.start, rows.start + count);
        let mut taken = (self.most_rows - self.rows).min(rows.len());
        let mut bytes = size(taken);
        if bytes > room {
            // The size grows with each row, so that a binary search finds the last that fits.
            let mut above = std::mem::take(&mut taken);
            let least = above.min(usize::from(self.rows == 0));
            while above - taken > 1 {
                let middle = taken + (above - taken) / 2;
                if size(middle) <= room {
                    taken = middle;
                } else {
                    above = middle;
                }
            }
            taken = taken.max(least);
            bytes = size(taken);
        }
        self.bytes += bytes;
        self.rows += taken;
        taken
    }
}

/// Bytes of the values in rows `start..end`: a sum over the rows, whatever batch they are in.
pub(crate) fn bytes_of(batch: &RecordBatch, start: usize, end: usize) -> usize {
    batch
        .columns()
        .iter()
        .map(|column| column_bytes(column, start, end))
        .sum()
}

fn column_bytes(array: &ArrayRef, start: usize, end: usize) -> usize {
    let rows = end - start;
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "types that no schema here makes count as eight bytes a row"
    )]
    match array.data_type() {
        DataType::Boolean => rows,
        DataType::Utf8 => rows * 4 + extent(array.as_string::<i32>().value_offsets(), start, end).1,
        DataType::Binary => {
            rows * 4 + extent(array.as_binary::<i32>().value_offsets(), start, end).1
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let (first, count) = extent(list.value_offsets(), start, end);
            rows * 4 + column_bytes(list.values(), first, first + count)
        }
        DataType::Struct(_) => {
            let columns = array.as_struct().columns().iter();
            rows + columns
                .map(|column| column_bytes(column, start, end))
                .sum::<usize>()
        }
        other => rows * other.primitive_width().unwrap_or(8),
    }
}

/// Where the values of rows `start..end` begin, and how many there are.
fn extent<O: OffsetSizeTrait>(offsets: &[O], start: usize, end: usize) -> (usize, usize) {
    let at = |row: usize| offsets.get(row).map_or(0, |offset| offset.as_usize());
    (at(start), at(end).saturating_sub(at(start)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::StringArray;

    use super::*;

    /// Sizes of the groups of strings of these lengths, offered in pieces of `piece` rows.
    fn groups(lengths: &[usize], piece: usize, mut cut: RowGroupCut) -> Vec<usize> {
        let texts: StringArray = lengths.iter().map(|n| Some("x".repeat(*n))).collect();
        let batch = RecordBatch::try_from_iter([("t", Arc::new(texts) as ArrayRef)]).unwrap();
        let mut sizes = vec![0];
        let mut start = 0;
        while start < lengths.len() {
            let rows = start..(start + piece).min(lengths.len());
            start = rows.end;
            for piece in cut.split(&batch, rows) {
                if piece.starts_group {
                    assert!(*sizes.last().unwrap() > 0, "an empty group");
                    sizes.push(0);
                }
                *sizes.last_mut().unwrap() += piece.rows.len();
            }
        }
        sizes
    }

    #[test]
    fn groups_end_where_the_rows_say_whatever_the_pieces() {
        // Four bytes of offset a row: 14, 14, 104, 14, 14, 4 …
        let lengths = [10, 10, 100, 10, 10, 0, 0, 50, 7, 200, 1];
        for piece in 1..=lengths.len() {
            let sizes = groups(&lengths, piece, RowGroupCut::new(4, 60));
            assert_eq!(sizes, [2, 1, 4, 1, 1, 1, 1], "pieces of {piece}");
        }
    }

    #[test]
    fn a_row_beyond_the_bound_is_a_group_of_its_own() {
        assert_eq!(
            groups(&[1, 500, 1], 3, RowGroupCut::new(100, 60)),
            [1, 1, 1]
        );
    }
}
