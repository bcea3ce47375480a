//! Cuts a stream of rows at places that depend on the rows alone.

use std::collections::VecDeque;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch, UInt64Array};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;

/// Re-cuts batches to chunks of exactly `rows` rows, or fewer where their values reach `bytes`
/// bytes first: the smallest number of rows that does. A chunk therefore holds less than `bytes`
/// plus one row, and where it ends follows from the rows, not from the batches.
#[derive(Debug)]
pub struct FixedRows {
    schema: SchemaRef,
    rows: usize,
    bytes: usize,
    waiting: VecDeque<RecordBatch>,
    waiting_rows: usize,
    waiting_bytes: usize,
}

impl FixedRows {
    /// Chunks of `rows` rows (at least 1) or `bytes` bytes.
    #[must_use]
    pub fn new(schema: SchemaRef, rows: usize, bytes: usize) -> Self {
        let rows = rows.max(1);
        Self {
            schema,
            rows,
            bytes,
            waiting: VecDeque::new(),
            waiting_rows: 0,
            waiting_bytes: 0,
        }
    }

    /// Adds rows and hands every chunk that became complete to `chunk`.
    ///
    /// # Errors
    /// The first of `chunk`'s errors, or Arrow's when the schemas differ.
    pub fn push<E: From<ArrowError>>(
        &mut self,
        batch: &RecordBatch,
        mut chunk: impl FnMut(RecordBatch) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut start = 0;
        while start < batch.num_rows() {
            let (rows, full) = self.fitting(batch, start);
            let piece = batch.slice(start, rows);
            self.waiting_rows += rows;
            self.waiting_bytes += bytes_of(batch, start, start + rows);
            // A slice keeps the whole batch in memory; a copy of a small one does not.
            let small = rows * 2 < batch.num_rows();
            let kept = if small && !full {
                copy_of(&piece)?
            } else {
                piece
            };
            self.waiting.push_back(kept);
            start += rows;
            if full {
                chunk(self.take_waiting()?)?;
            }
        }
        Ok(())
    }

    /// The rows that wait for more, as the last chunk; None if there are none.
    ///
    /// # Errors
    /// Arrow's, when the batches pushed had other schemas.
    pub fn finish(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        if self.waiting_rows == 0 {
            return Ok(None);
        }
        self.take_waiting().map(Some)
    }

    /// Bytes of the values that wait.
    #[must_use]
    pub const fn buffered_bytes(&self) -> usize {
        self.waiting_bytes
    }

    fn take_waiting(&mut self) -> Result<RecordBatch, ArrowError> {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_rows = 0;
        self.waiting_bytes = 0;
        concat_batches(&self.schema, &waiting)
    }

    /// How many rows from `start` go into the chunk at hand, at least one, and whether it is then
    /// full. The size grows with each row, so that a binary search finds the first that fills it.
    fn fitting(&self, batch: &RecordBatch, start: usize) -> (usize, bool) {
        let most = (self.rows - self.waiting_rows).min(batch.num_rows() - start);
        let fills =
            |rows: usize| self.waiting_bytes + bytes_of(batch, start, start + rows) >= self.bytes;
        if !fills(most) {
            return (most, self.waiting_rows + most == self.rows);
        }
        let (mut below, mut fitting) = (0, most);
        while fitting - below > 1 {
            let middle = below + (fitting - below) / 2;
            if fills(middle) {
                fitting = middle;
            } else {
                below = middle;
            }
        }
        (fitting, true)
    }
}

fn copy_of(slice: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let rows = u64::try_from(slice.num_rows()).unwrap_or(u64::MAX);
    take_record_batch(slice, &UInt64Array::from_iter_values(0..rows))
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
