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

    /// Takes the first of `rows` of `batch` into the group at hand, as many as fit; returns how many. If
    /// some are left over, the group is full: [`Self::start_group`], then offer the rest.
    pub fn take(&mut self, batch: &RecordBatch, rows: Range<usize>) -> usize {
        let most = (self.most_rows - self.rows).min(rows.len());
        let size = |count: usize| bytes_of(batch, rows.start, rows.start + count);
        let fits = |count: usize| self.bytes + size(count) <= self.most_bytes;
        let mut taken = most;
        if !fits(most) {
            // The size grows with each row, so that a binary search finds the last that fits.
            let mut above = most;
            taken = 0;
            while above - taken > 1 {
                let middle = taken + (above - taken) / 2;
                if fits(middle) {
                    taken = middle;
                } else {
                    above = middle;
                }
            }
            if taken == 0 && self.rows == 0 {
                taken = most.min(1);
            }
        }
        self.bytes += size(taken);
        self.rows += taken;
        taken
    }

    /// Begins the next group.
    pub const fn start_group(&mut self) {
        self.rows = 0;
        self.bytes = 0;
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
            let mut rows = start..(start + piece).min(lengths.len());
            start = rows.end;
            while !rows.is_empty() {
                let taken = cut.take(&batch, rows.clone());
                *sizes.last_mut().unwrap() += taken;
                rows.start += taken;
                if !rows.is_empty() {
                    assert!(*sizes.last().unwrap() > 0, "an empty group");
                    cut.start_group();
                    sizes.push(0);
                }
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
