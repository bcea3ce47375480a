//! The fixed 61 bytes at the head of a batch.

use super::{Compression, Error, Result};

/// What a record's timestamp means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// When the producer made the record.
    CreateTime,
    /// When the broker appended the batch; all its records have it.
    LogAppendTime,
}

/// A batch's header, field by field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record the batch was written with.
    pub base_offset: i64,
    /// Bytes after this field.
    pub batch_length: i32,
    /// Epoch of the leader that appended it, −1 before that.
    pub partition_leader_epoch: i32,
    /// Record format, 2.
    pub magic: i8,
    /// CRC-32C of everything from `attributes` on.
    pub crc: u32,
    /// Bits 0–2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon.
    pub attributes: i16,
    /// Offset of the last record the batch was written with, less the base offset. Compaction keeps it.
    pub last_offset_delta: i32,
    /// Timestamp the records' deltas count from, in milliseconds since 1970.
    pub base_timestamp: i64,
    /// Highest timestamp, or the append time.
    pub max_timestamp: i64,
    /// Producer id, −1 for none.
    pub producer_id: i64,
    /// Producer epoch, −1 for none.
    pub producer_epoch: i16,
    /// Sequence number of the first record, −1 for none.
    pub base_sequence: i32,
    /// Records in the batch.
    pub records_count: i32,
}

pub(super) const COMPRESSION_MASK: i16 = 0x07;
pub(super) const LOG_APPEND_TIME: i16 = 0x08;
pub(super) const TRANSACTIONAL: i16 = 0x10;
pub(super) const CONTROL: i16 = 0x20;
pub(super) const DELETE_HORIZON: i16 = 0x40;

/// Bytes of base offset and length, which the length does not count.
pub(super) const LENGTH_OVERHEAD: usize = 12;
/// Where the magic byte stands, in this format and those before it.
const MAGIC_AT: usize = 16;
/// Where the checksum starts.
pub(super) const CRC_FROM: usize = 21;

/// Reads big-endian fields one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    #[inline]
    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }
}

impl BatchHeader {
    /// Bytes of a header.
    pub const LEN: usize = 61;

    /// Reads the header at the start of `bytes` and checks that it can be one. The rest of the batch need not
    /// be there.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::UnsupportedMagic`], or [`Error::Header`] for a length, count or offset that no
    /// batch can have.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if let Some(&magic) = bytes.get(MAGIC_AT)
            && magic != 2
        {
            let base_offset = bytes
                .first_chunk::<8>()
                .map_or(-1, |at| i64::from_be_bytes(*at));
            return Err(Error::UnsupportedMagic {
                magic: magic.cast_signed(),
                base_offset,
            });
        }
        let truncated = Error::Truncated {
            needed: Self::LEN,
            available: bytes.len(),
        };
        let header = Self::read(bytes).ok_or(truncated)?;
        header.check()?;
        Ok(header)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        Some(Self {
            base_offset: i64::from_be_bytes(fields.next()?),
            batch_length: i32::from_be_bytes(fields.next()?),
            partition_leader_epoch: i32::from_be_bytes(fields.next()?),
            magic: i8::from_be_bytes(fields.next()?),
            crc: u32::from_be_bytes(fields.next()?),
            attributes: i16::from_be_bytes(fields.next()?),
            last_offset_delta: i32::from_be_bytes(fields.next()?),
            base_timestamp: i64::from_be_bytes(fields.next()?),
            max_timestamp: i64::from_be_bytes(fields.next()?),
            producer_id: i64::from_be_bytes(fields.next()?),
            producer_epoch: i16::from_be_bytes(fields.next()?),
            base_sequence: i32::from_be_bytes(fields.next()?),
            records_count: i32::from_be_bytes(fields.next()?),
        })
    }

    fn check(&self) -> Result<()> {
        let impossible = |field, value| {
            Err(Error::Header {
                field,
                value,
                base_offset: self.base_offset,
            })
        };
        if !usize::try_from(self.batch_length)
            .is_ok_and(|length| length >= Self::LEN - LENGTH_OVERHEAD)
        {
            return impossible("length", i64::from(self.batch_length));
        }
        if self.last_offset_delta < 0 {
            return impossible("last offset delta", i64::from(self.last_offset_delta));
        }
        if self.records_count < 0 {
            return impossible("record count", i64::from(self.records_count));
        }
        // Leaves room for `next_offset`.
        if self
            .base_offset
            .checked_add(i64::from(self.last_offset_delta) + 1)
            .is_none()
        {
            return impossible("base offset", self.base_offset);
        }
        Ok(())
    }

    /// Bytes of the whole batch, header included.
    #[inline]
    pub fn size_in_bytes(&self) -> usize {
        LENGTH_OVERHEAD + usize::try_from(self.batch_length).unwrap_or(0)
    }

    /// Offset of the last record the batch was written with, inclusive.
    #[inline]
    pub fn last_offset(&self) -> i64 {
        self.base_offset
            .saturating_add(i64::from(self.last_offset_delta))
    }

    /// Offset after the batch: where the next one may start.
    #[inline]
    pub fn next_offset(&self) -> i64 {
        self.last_offset().saturating_add(1)
    }

    /// The codec of the records.
    ///
    /// # Errors
    /// [`Error::UnknownCodec`] for 5, 6 and 7.
    pub fn compression(&self) -> Result<Compression> {
        let codec = (self.attributes & COMPRESSION_MASK).to_be_bytes()[1];
        Compression::from_code(codec).ok_or(Error::UnknownCodec {
            codec,
            base_offset: self.base_offset,
        })
    }

    /// What the records' timestamps mean.
    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes & LOG_APPEND_TIME == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }

    /// Whether the batch belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Whether the batch ends a transaction instead of holding data.
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Until when compaction keeps the batch's tombstones, in milliseconds since 1970; `None` before their first
    /// compaction (KIP-534).
    pub fn delete_horizon_ms(&self) -> Option<i64> {
        (self.attributes & DELETE_HORIZON != 0).then_some(self.base_timestamp)
    }

    /// Whether the producer numbers its batches.
    pub fn has_producer_id(&self) -> bool {
        self.producer_id >= 0
    }
}
