//! Arrow rows to the bytes of a file.
//!
//! ```text
//! batches of any size ─► FixedRows (cuts by rows and bytes of the input) ─► file writer ─► bytes
//! ```
//! A file's bytes follow from its rows alone, not from how they were handed over: every encoder
//! keeps [`FixedRows`] in front, writes no clock and no build.

mod dictionary;
mod fixed_rows;
pub mod parquet;

use std::fmt::Debug;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use bytes::Bytes;
use thiserror::Error;

pub use fixed_rows::FixedRows;

/// Writes the rows of one file. Not async and CPU-bound: run it off the runtime's threads.
pub trait FileEncoder: Send + Debug {
    /// Appends rows.
    ///
    /// # Errors
    /// Another schema than the file's, or a value the format cannot hold. The encoder is then of
    /// no further use.
    fn write(&mut self, batch: &RecordBatch) -> Result<(), EncodeError>;

    /// The bytes ready since the last call, in file order; often none.
    fn take_output(&mut self) -> Bytes;

    /// An estimate of the bytes held: rows waiting, pages of the open row group, output not taken.
    fn buffered_bytes(&self) -> usize;

    /// Rows appended so far.
    fn rows(&self) -> u64;

    /// Ends the file.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn close(self: Box<Self>) -> Result<EncodedTail, EncodeError>;
}

/// The end of a file.
#[derive(Debug, Clone)]
pub struct EncodedTail {
    /// The last bytes, behind everything `take_output` gave.
    pub bytes: Bytes,
    /// Rows of the whole file.
    pub rows: u64,
    /// Row groups (blocks) of the whole file.
    pub row_groups: usize,
}

/// An encoder's failure: a defect of this program, since decoded rows fit their schema.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Rows could not be cut or put together.
    #[error("rows could not be prepared for the file")]
    Arrow(#[from] ArrowError),
    /// The Parquet writer refused.
    #[error("the Parquet writer failed")]
    Parquet(#[from] ::parquet::errors::ParquetError),
    /// A level or size out of its range.
    #[error("invalid Parquet option: {problem}")]
    Options {
        /// What is wrong.
        problem: String,
    },
}
