//! Arrow rows to the bytes of a file.
//!
//! ```text
//! rows of a directory ─► RowGroupCut (by rows and bytes of the input) ─► FileEncoder ─► bytes
//! ```
//! A file's bytes follow from its rows alone, not from how they were handed over: row groups end where
//! [`RowGroupCut`] says, each is encoded in one step, and an encoder writes no clock and no build.
//! Between row groups an encoder holds nothing but the footer's entries, so that the rows waiting for
//! the next one may lie anywhere, on disk too.

mod dictionary;
pub mod parquet;
mod row_groups;

use std::fmt::Debug;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use bytes::Bytes;
use thiserror::Error;

pub(crate) use row_groups::bytes_of;
pub use row_groups::{GroupPiece, RowGroupCut};

/// Writes the rows of one file. Not async and CPU-bound: run it off the runtime's threads.
pub trait FileEncoder: Send + Debug {
    /// Encodes one row group (block) from batches that follow each other, and returns the bytes that
    /// are ready for the file. How the rows are spread over batches changes nothing.
    ///
    /// # Errors
    /// Another schema than the file's, or a value the format cannot hold. The encoder is then of
    /// no further use.
    fn write_row_group(&mut self, rows: &[RecordBatch]) -> Result<Bytes, EncodeError>;

    /// Ends the file.
    ///
    /// # Errors
    /// As [`Self::write_row_group`].
    fn close(self: Box<Self>) -> Result<EncodedTail, EncodeError>;
}

/// The end of a file.
#[derive(Debug, Clone)]
pub struct EncodedTail {
    /// The last bytes, behind everything that row groups gave.
    pub bytes: Bytes,
    /// Rows of the whole file.
    pub rows: u64,
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
