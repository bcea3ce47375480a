//! Makes batches as Kafka's producers make them.

use bytes::{BufMut, Bytes, BytesMut};

use super::batch::checksum;
use super::codec::compress;
use super::header::{CONTROL, LENGTH_OVERHEAD, TRANSACTIONAL};
use super::{BatchHeader, Compression, Error, Result};
use crate::primitives::{put_varint, put_varlong, varint_len, varlong_len};

/// Collects records into one batch. Base offset 0 and leader epoch −1 are the broker's to change.
#[derive(Debug, Clone)]
pub struct BatchBuilder {
    compression: Compression,
    attributes: i16,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    base_timestamp: i64,
    max_timestamp: i64,
    count: i32,
    /// The records, not yet compressed.
    records: BytesMut,
}

/// Largest payload whose batch length still is an `int32`.
const MAX_PAYLOAD: usize = i32::MAX as usize - (BatchHeader::LEN - LENGTH_OVERHEAD);

impl BatchBuilder {
    /// An empty batch of records to be compressed with `compression`.
    pub fn new(compression: Compression) -> Self {
        Self {
            compression,
            attributes: i16::from(compression.code()),
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            base_timestamp: -1,
            max_timestamp: -1,
            count: 0,
            records: BytesMut::new(),
        }
    }

    /// Numbers the batch, for producers that are idempotent or transactional.
    #[must_use]
    pub fn with_producer(
        mut self,
        producer_id: i64,
        producer_epoch: i16,
        base_sequence: i32,
    ) -> Self {
        self.producer_id = producer_id;
        self.producer_epoch = producer_epoch;
        self.base_sequence = base_sequence;
        self
    }

    /// Marks the batch as part of a transaction, or not.
    #[must_use]
    pub fn transactional(mut self, transactional: bool) -> Self {
        self.set(TRANSACTIONAL, transactional);
        self
    }

    /// Marks the batch as a control batch.
    pub(super) fn control(mut self) -> Self {
        self.set(CONTROL, true);
        self
    }

    fn set(&mut self, bit: i16, on: bool) {
        if on {
            self.attributes |= bit;
        } else {
            self.attributes &= !bit;
        }
    }

    /// Adds a record; `timestamp` in milliseconds since 1970.
    ///
    /// # Errors
    /// [`Error::TooLarge`] when the batch would exceed 2 GiB before compression. The batch is unchanged then.
    pub fn push(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) -> Result<()> {
        let base_timestamp = if self.count == 0 {
            timestamp
        } else {
            self.base_timestamp
        };
        let timestamp_delta = timestamp.wrapping_sub(base_timestamp);
        let size = record_size(timestamp_delta, self.count, key, value, headers);
        let length = i32::try_from(size)
            .ok()
            .filter(|_| fits(self.records.len(), size))
            .filter(|_| self.count < i32::MAX)
            .ok_or(Error::TooLarge {
                what: "record",
                size,
            })?;

        let out = &mut self.records;
        out.reserve(size + varint_len(length));
        put_varint(out, length);
        out.put_i8(0);
        put_varlong(out, timestamp_delta);
        put_varint(out, self.count);
        put_nullable(out, key);
        put_nullable(out, value);
        put_varint(out, as_length(headers.len()));
        for (name, value) in headers {
            put_nullable(out, Some(name.as_bytes()));
            put_nullable(out, *value);
        }
        self.base_timestamp = base_timestamp;
        self.max_timestamp = if self.count == 0 {
            timestamp
        } else {
            self.max_timestamp.max(timestamp)
        };
        self.count += 1;
        Ok(())
    }

    /// Bytes of the batch if it is not compressed.
    pub fn size_estimate(&self) -> usize {
        BatchHeader::LEN + self.records.len()
    }

    /// Records so far.
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(0)
    }

    /// Whether there are no records yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The batch. Brokers refuse one without records; look at [`Self::is_empty`].
    ///
    /// # Errors
    /// [`Error::Compress`], or [`Error::TooLarge`] when it exceeds 2 GiB after compression.
    pub fn build(self) -> Result<Bytes> {
        let mut batch = Vec::with_capacity(self.size_estimate());
        batch.resize(BatchHeader::LEN, 0);
        compress(self.compression, &self.records, &mut batch)?;
        let size = batch.len();
        let batch_length = i32::try_from(size - LENGTH_OVERHEAD).map_err(|_| Error::TooLarge {
            what: "batch",
            size,
        })?;

        let mut header = BytesMut::with_capacity(BatchHeader::LEN);
        header.put_i64(0);
        header.put_i32(batch_length);
        header.put_i32(-1);
        header.put_i8(2);
        header.put_u32(0);
        header.put_i16(self.attributes);
        header.put_i32((self.count - 1).max(0));
        header.put_i64(self.base_timestamp);
        header.put_i64(self.max_timestamp);
        header.put_i64(self.producer_id);
        header.put_i16(self.producer_epoch);
        header.put_i32(self.base_sequence);
        header.put_i32(self.count);
        write_at(&mut batch, 0, &header);
        let crc = checksum(&batch);
        write_at(&mut batch, 17, &crc.to_be_bytes());
        // The room was for records that do not shrink.
        batch.shrink_to_fit();
        Ok(batch.into())
    }
}

/// Whether a record of `size` bytes and its length still go into a batch whose records have `used` bytes.
fn fits(used: usize, size: usize) -> bool {
    used.saturating_add(size).saturating_add(5) <= MAX_PAYLOAD
}

fn write_at(batch: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = batch.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Bytes of a record after its length; saturates, and what saturates is refused.
fn record_size(
    timestamp_delta: i64,
    offset_delta: i32,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[(&str, Option<&[u8]>)],
) -> usize {
    let fixed = 1 + varlong_len(timestamp_delta) + varint_len(offset_delta);
    let headers = headers.iter().fold(
        varint_len(as_length(headers.len())),
        |size, (name, value)| {
            size.saturating_add(nullable_size(Some(name.as_bytes())))
                .saturating_add(nullable_size(*value))
        },
    );
    fixed
        .saturating_add(nullable_size(key))
        .saturating_add(nullable_size(value))
        .saturating_add(headers)
}

fn nullable_size(bytes: Option<&[u8]>) -> usize {
    let length = bytes.map_or(0, <[u8]>::len);
    length.saturating_add(varint_len(as_length(length)))
}

/// A length as the format has it. One beyond `int32` makes the record too large before it is written.
fn as_length(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

fn put_nullable(out: &mut BytesMut, bytes: Option<&[u8]>) {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varint(out, as_length(bytes.len()));
            out.put_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_stop_where_the_batch_length_would_overflow() {
        let largest = i32::MAX as usize + LENGTH_OVERHEAD - BatchHeader::LEN;
        assert!(fits(largest - 105, 100));
        assert!(!fits(largest - 104, 100));
        assert!(!fits(1, usize::MAX));
    }
}
