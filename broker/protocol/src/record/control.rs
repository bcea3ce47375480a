//! Control batches: the markers that end a transaction.
//!
//! Key and value as in Kafka's `ControlRecordType` and `EndTxnMarker`: `int16 version, int16 type` and
//! `int16 version, int32 coordinator epoch`.

use bytes::Bytes;

use super::{BatchBuilder, Compression, Error, RecordBatch, Result};

/// What a control batch says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ControlType {
    /// The producer's open transaction in this partition is aborted.
    Abort,
    /// It is committed.
    Commit,
    /// Something else, such as the markers of Kafka's own metadata log.
    Other(i16),
}

impl ControlType {
    /// The type with this number.
    pub const fn from_code(code: i16) -> Self {
        match code {
            0 => Self::Abort,
            1 => Self::Commit,
            other => Self::Other(other),
        }
    }

    /// Its number.
    pub const fn code(self) -> i16 {
        match self {
            Self::Abort => 0,
            Self::Commit => 1,
            Self::Other(code) => code,
        }
    }
}

/// The one record of a control batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlRecord {
    /// What it says.
    pub control_type: ControlType,
    /// Epoch of the transaction coordinator that wrote it; `None` unless it ends a transaction.
    pub coordinator_epoch: Option<i32>,
}

/// A control batch has one small record; this is more than any.
const MAX_BYTES: usize = 64 * 1024;

impl ControlRecord {
    pub(super) fn of(batch: &RecordBatch) -> Result<Self> {
        let records = batch.records(MAX_BYTES)?;
        let missing = Error::ControlRecord {
            base_offset: batch.header().base_offset,
        };
        let Some(record) = records.iter().next().transpose()? else {
            return Err(missing);
        };
        let code = record
            .key
            .and_then(|key| key.get(2..)?.first_chunk::<2>())
            .ok_or(missing)?;
        let control_type = ControlType::from_code(i16::from_be_bytes(*code));
        let coordinator_epoch = match control_type {
            ControlType::Abort | ControlType::Commit => record
                .value
                .and_then(|value| value.get(2..)?.first_chunk::<4>())
                .map(|epoch| i32::from_be_bytes(*epoch)),
            ControlType::Other(_) => None,
        };
        Ok(Self {
            control_type,
            coordinator_epoch,
        })
    }
}

/// The batch that ends a producer's transaction in a partition, as a coordinator has it written.
///
/// # Errors
/// Only as [`BatchBuilder::build`].
pub fn control_batch(
    control_type: ControlType,
    producer_id: i64,
    producer_epoch: i16,
    coordinator_epoch: i32,
    timestamp: i64,
) -> Result<Bytes> {
    let mut key = [0; 4];
    key[2..].copy_from_slice(&control_type.code().to_be_bytes());
    let mut value = [0; 6];
    value[2..].copy_from_slice(&coordinator_epoch.to_be_bytes());
    let mut builder = BatchBuilder::new(Compression::None)
        .with_producer(producer_id, producer_epoch, -1)
        .transactional(true)
        .control();
    builder.push(timestamp, Some(&key), Some(&value), &[])?;
    builder.build()
}
