//! Kafka's wire protocol and record batches: bytes to types and back.
//!
//! ```text
//!  socket ──► frame ──► RequestHeader / ResponseHeader ──► messages::FetchRequest, …
//!                                                             │ records: Bytes
//!                                                             ▼
//!                                       record::batches ──► RecordBatch ──► Records ──► Record
//! ```
//!
//! Nothing here knows sockets, clocks or files. Every decoder takes hostile input: it never panics, checks
//! every length against the bytes that remain before it allocates, and hands out slices of its input.
//!
//! - [`ids`]: everybody's vocabulary.
//! - [`primitives`]: integers, varints, strings as Kafka writes them.
//! - [`frame`]: length prefix, request and response headers.
//! - [`messages`]: one file per API, each a table of fields with their versions.
//! - [`record`]: record batches, version 2.
//! - [`sasl`]: the tokens of PLAIN and SCRAM, both sides of them.
//! - [`error_code`]: Kafka's error codes, and which of them are worth a retry.
//! - [`partitioning`]: the Java client's choice of a partition for a key.

pub mod error_code;
pub mod frame;
pub mod ids;
pub mod messages;
pub mod partitioning;
pub mod primitives;
pub mod record;
pub mod sasl;
#[cfg(test)]
mod testing;

pub use error_code::ErrorCode;
pub use ids::{InvalidTopicId, InvalidTopicName, TopicId, TopicName};
pub use partitioning::{murmur2, partition_for_key};
pub use primitives::{DecodeError, DecodeFault, EncodeError, EncodeFault};

/// The string type of messages: a UTF-8 checked slice of a [`bytes::Bytes`].
pub use bytestring::ByteString;
