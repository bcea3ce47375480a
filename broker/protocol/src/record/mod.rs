//! Record batches, version 2, as Kafka writes them to the wire and to disk.
//!
//! ```text
//!  0             8       12      16 17    21     23           27
//!  │ base offset │ length │ epoch │2│ crc │ attrs │ last delta │ times, producer, sequence, count │ records …
//!  │             │        │ leader│ │     │                                                       61
//!  └── stamp() ──┘        └stamp()┘       └──────────── the CRC-32C covers this ────────────────────────►
//! ```
//!
//! The batch is the unit: it is checked where it enters and copied as bytes from there on. Base offset and leader
//! epoch lie outside the checksum, so giving offsets rewrites twelve bytes. Only who needs records calls
//! [`RecordBatch::records`], which decompresses once into one bounded buffer; iterating it allocates nothing.
//!
//! Format: Kafka's `DefaultRecordBatch` and `DefaultRecord` (KIP-98), codecs as in `CompressionType`.

mod batch;
mod builder;
mod codec;
mod control;
mod filter;
mod header;
mod records;
#[cfg(test)]
mod tests;

pub use batch::{Batches, RecordBatch, batches, stamp, stamp_log_append_time};
pub use builder::BatchBuilder;
pub use codec::{Compression, UnknownCompression};
pub use control::{ControlRecord, ControlType, control_batch};
pub use filter::{retain_records, without_records};
pub use header::{BatchHeader, TimestampType};
pub use records::{Headers, HeadersIter, Record, Records, RecordsIter};

/// What is wrong with a batch, or with what should become one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fewer bytes than the batch says it has.
    #[error("record batch is truncated: {needed} bytes needed, {available} there")]
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes there.
        available: usize,
    },
    /// More bytes than one batch.
    #[error("{extra} bytes follow the record batch")]
    ExtraBytes {
        /// Bytes after its end.
        extra: usize,
    },
    /// A message set of before Kafka 0.11, or no record batch at all.
    #[error("record format {magic} at offset {base_offset} is not supported, only 2 is")]
    UnsupportedMagic {
        /// The format's number.
        magic: i8,
        /// Offset of the batch.
        base_offset: i64,
    },
    /// A field of the header that no batch can have.
    #[error("record batch at offset {base_offset} has the impossible {field} {value}")]
    Header {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: i64,
        /// Offset of the batch.
        base_offset: i64,
    },
    /// The checksum does not match.
    #[error(
        "record batch at offset {base_offset} is corrupt: its CRC-32C says {stored:#010x}, its bytes {computed:#010x}"
    )]
    Crc {
        /// Checksum in the header.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
        /// Offset of the batch.
        base_offset: i64,
    },
    /// A compression codec that does not exist.
    #[error("record batch at offset {base_offset} has the unknown compression codec {codec}")]
    UnknownCodec {
        /// The codec's number.
        codec: u8,
        /// Offset of the batch.
        base_offset: i64,
    },
    /// The records would take more memory than allowed.
    #[error("records decompress to more than the limit of {limit} bytes")]
    DecompressedTooLarge {
        /// Bytes allowed.
        limit: usize,
    },
    /// The compressed records cannot be decompressed.
    #[error("cannot decompress {compression} records")]
    Decompress {
        /// The codec.
        compression: Compression,
        /// What the codec says.
        #[source]
        source: std::io::Error,
    },
    /// The records cannot be compressed.
    #[error("cannot compress records with {compression}")]
    Compress {
        /// The codec.
        compression: Compression,
        /// What the codec says.
        #[source]
        source: std::io::Error,
    },
    /// A record that is not one.
    #[error("record {index} of the batch at offset {base_offset} is malformed: {fault}")]
    Record {
        /// Index of the record in its batch, from 0.
        index: i32,
        /// Offset of the batch.
        base_offset: i64,
        /// What is wrong with it.
        fault: RecordFault,
    },
    /// A control batch without a control record.
    #[error("control batch at offset {base_offset} has no control record")]
    ControlRecord {
        /// Offset of the batch.
        base_offset: i64,
    },
    /// A record or batch that the format has no room for.
    #[error("{what} of {size} bytes or entries exceeds the record format's limit")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        size: usize,
    },
}

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFault {
    /// The records end where the batch announces more.
    #[error("records end early")]
    Missing,
    /// Bytes after the last record.
    #[error("{0} bytes follow the last record")]
    TrailingBytes(usize),
    /// A value that reaches beyond its record.
    #[error("{0} does not fit into the record")]
    Overrun(&'static str),
    /// A length or count below what is allowed.
    #[error("{0} is negative")]
    Negative(&'static str),
    /// A varint longer than its type allows.
    #[error("{0} is no varint of its width")]
    Varint(&'static str),
    /// Bytes that belong to the record but to none of its fields.
    #[error("{0} bytes of the record are left over")]
    LeftOver(usize),
    /// An offset that does not follow the one before, or exceeds the batch's last.
    #[error("offset delta {delta} does not lie between {above} (exclusive) and {last} (inclusive)")]
    OffsetDelta {
        /// The delta as read.
        delta: i32,
        /// The delta of the record before, −1 at the start.
        above: i32,
        /// The batch's last offset delta.
        last: i32,
    },
}

/// A result with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
