//! Rows that wait for their row group: in memory up to a bound, beyond it on local disk.
//!
//! ```text
//! sorted batch ─► Arc<HeldBatch> ◄── pieces of file A, B, C …    (memory goes with the last of them)
//!                      │ over the bound
//!                      ▼
//!                 spill file: one segment per file, in the order of its rows
//! ```
//! What lies where changes nothing in the output: a file's pieces are taken back in the order in which
//! they were added.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;

use super::spill::{Segment, SpillFile};
use crate::encode::{EncodeError, bytes_of};
use crate::error::Error;
use crate::memory::TaskMemory;

/// Pieces are put together on disk up to this size.
const SMALL_BYTES: usize = 1 << 20;

/// The rows of an attempt that wait.
pub(super) struct HeldRows {
    bytes: Arc<AtomicUsize>,
    most_bytes: usize,
    spill: SpillFile,
}

/// A batch in memory; its bytes are counted until its last piece is gone.
pub(super) struct HeldBatch {
    pub(super) rows: RecordBatch,
    /// Memory that it takes.
    pub(super) bytes: usize,
    total: Arc<AtomicUsize>,
}

/// Rows of one file that follow each other.
enum Piece {
    Memory {
        batch: Arc<HeldBatch>,
        rows: Range<usize>,
    },
    Disk(Segment),
}

/// The rows of one file that wait, in order: what is on disk, then what is in memory.
#[derive(Default)]
pub(super) struct WaitingRows {
    pieces: Vec<Piece>,
}

impl HeldRows {
    pub(super) fn new(memory: &TaskMemory) -> Self {
        Self {
            bytes: Arc::new(AtomicUsize::new(0)),
            most_bytes: memory.held_bytes,
            spill: SpillFile::new(memory.spill_dir.clone()),
        }
    }

    /// Takes a batch in, for files to hold pieces of.
    pub(super) fn hold(&self, rows: RecordBatch) -> Arc<HeldBatch> {
        let bytes = rows.get_array_memory_size();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Arc::new(HeldBatch {
            rows,
            bytes,
            total: Arc::clone(&self.bytes),
        })
    }

    /// Whether so many bytes more would be too many.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.bytes.load(Ordering::Relaxed).saturating_add(more) > self.most_bytes
    }

    /// Bytes that went to local disk.
    pub(super) const fn spilled_bytes(&self) -> u64 {
        self.spill.bytes()
    }

    /// Moves a file's rows from memory to disk: small pieces together, large ones as they are, so that no
    /// second copy of them is made. Blocks.
    pub(super) fn spill(
        &mut self,
        waiting: &mut WaitingRows,
        schema: &SchemaRef,
    ) -> Result<(), Error> {
        let on_disk = |piece: &Piece| matches!(piece, Piece::Disk(_));
        let first = waiting.pieces.partition_point(on_disk);
        let in_memory = waiting.pieces.split_off(first);
        let mut small = Vec::new();
        let mut small_bytes = 0;
        for slice in in_memory.into_iter().filter_map(Piece::slice) {
            let bytes = bytes_of(&slice, 0, slice.num_rows());
            if small_bytes + bytes > SMALL_BYTES {
                self.spill_together(&mut small, waiting, schema)?;
                small_bytes = 0;
            }
            small.push(slice);
            small_bytes += bytes;
        }
        self.spill_together(&mut small, waiting, schema)
    }

    fn spill_together(
        &mut self,
        slices: &mut Vec<RecordBatch>,
        waiting: &mut WaitingRows,
        schema: &SchemaRef,
    ) -> Result<(), Error> {
        let segment = match slices.as_slice() {
            [] => return Ok(()),
            [only] => self.spill.append(only)?,
            several => {
                let joined = concat_batches(schema, several).map_err(EncodeError::Arrow)?;
                self.spill.append(&joined)?
            }
        };
        slices.clear();
        waiting.pieces.push(Piece::Disk(segment));
        Ok(())
    }

    /// Takes a file's rows back, in order. Blocks where they are on disk.
    pub(super) fn take(
        &mut self,
        waiting: WaitingRows,
        schema: &SchemaRef,
    ) -> Result<Vec<RecordBatch>, Error> {
        waiting
            .pieces
            .into_iter()
            .map(|piece| match piece {
                Piece::Memory { batch, rows } => Ok(batch.rows.slice(rows.start, rows.len())),
                Piece::Disk(segment) => self.spill.read(segment, schema),
            })
            .collect()
    }
}

impl Drop for HeldBatch {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Piece {
    fn slice(self) -> Option<RecordBatch> {
        match self {
            Self::Memory { batch, rows } => Some(batch.rows.slice(rows.start, rows.len())),
            Self::Disk(_) => None,
        }
    }
}

impl WaitingRows {
    pub(super) const fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn push(&mut self, batch: &Arc<HeldBatch>, rows: Range<usize>) {
        let batch = Arc::clone(batch);
        self.pieces.push(Piece::Memory { batch, rows });
    }
}
