//! Record values to Arrow columns.
//!
//! ```text
//! value bytes ─► Decoder (JSON now; Avro, text and raw as further variants)
//!                  ├─ one row appended to the builders, or
//!                  └─ Reject, and the builders as they were before the record
//! ```
//! A decoder is strict by construction: it reads each value in one pass along the target schema,
//! keeps no document tree and allocates nothing per record once its buffers have grown.

pub(crate) mod builder;
mod cursor;
mod decimal;
pub mod json;
mod object;
pub(crate) mod time;

pub(crate) use cursor::{Cursor, Fault, FaultKind, MAX_DEPTH};

/// Why a record was set aside, for the operator: names the column and shows the start of the
/// offending value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// One line, lower case, no offset or topic (the caller knows them).
    pub reason: String,
}
