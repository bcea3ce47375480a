//! The records of one batch: the loader's hot path. Iterating borrows from one buffer and allocates nothing.

use std::iter::FusedIterator;

use bytes::Bytes;

use super::{BatchHeader, Error, RecordFault, Result, TimestampType};

/// The records of one batch, decompressed.
#[derive(Debug, Clone)]
pub struct Records {
    payload: Bytes,
    base_offset: i64,
    base_timestamp: i64,
    /// The one timestamp of a batch with append time.
    append_time: Option<i64>,
    last_offset_delta: i32,
    count: i32,
}

impl Records {
    pub(super) fn new(header: &BatchHeader, payload: Bytes) -> Self {
        let append_time = match header.timestamp_type() {
            TimestampType::CreateTime => None,
            TimestampType::LogAppendTime => Some(header.max_timestamp),
        };
        Self {
            payload,
            base_offset: header.base_offset,
            base_timestamp: header.base_timestamp,
            append_time,
            last_offset_delta: header.last_offset_delta,
            count: header.records_count,
        }
    }

    /// Records the header announces.
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(0)
    }

    /// Whether the header announces none, as compaction leaves it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of all records, decompressed.
    pub fn size_in_bytes(&self) -> usize {
        self.payload.len()
    }

    /// The records in order. Each is checked as it is read: lengths, that offsets increase and stay within the
    /// batch; at the end, that there were as many as announced and nothing follows. After an error it ends.
    #[inline]
    pub fn iter(&self) -> RecordsIter<'_> {
        RecordsIter {
            records: self,
            rest: &self.payload,
            index: 0,
            last_delta: -1,
            done: false,
        }
    }
}

impl<'a> IntoIterator for &'a Records {
    type Item = Result<Record<'a>>;
    type IntoIter = RecordsIter<'a>;

    fn into_iter(self) -> RecordsIter<'a> {
        self.iter()
    }
}

/// One record. Key and value borrow from [`Records`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset in the partition.
    pub offset: i64,
    /// Time in milliseconds since 1970, any number: whatever the producer wrote, or the append time.
    pub timestamp: i64,
    /// The key, `None` for null.
    pub key: Option<&'a [u8]>,
    /// The value, `None` for null (a tombstone).
    pub value: Option<&'a [u8]>,
    /// The headers.
    pub headers: Headers<'a>,
}

/// A record's headers in the order written, duplicates included. Already checked; reading them is lazy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Headers<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes as they stand in the record, and how many headers they are.
    pub(super) fn raw(&self) -> (&'a [u8], usize) {
        (self.bytes, self.count)
    }

    /// Key and value of each. Keys should be UTF-8, but no broker checks that.
    pub fn iter(&self) -> HeadersIter<'a> {
        HeadersIter {
            cursor: Cursor(self.bytes),
            left: self.count,
        }
    }
}

impl<'a> IntoIterator for Headers<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);
    type IntoIter = HeadersIter<'a>;

    fn into_iter(self) -> HeadersIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Headers<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);
    type IntoIter = HeadersIter<'a>;

    fn into_iter(self) -> HeadersIter<'a> {
        self.iter()
    }
}

/// Iterator over the headers of a record.
#[derive(Debug, Clone)]
pub struct HeadersIter<'a> {
    cursor: Cursor<'a>,
    left: usize,
}

impl<'a> Iterator for HeadersIter<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        // The record's own reading has checked every header.
        self.cursor.header().ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for HeadersIter<'_> {}

/// Iterator over the records of a batch; see [`Records::iter`].
#[derive(Debug, Clone)]
pub struct RecordsIter<'a> {
    records: &'a Records,
    rest: &'a [u8],
    index: i32,
    last_delta: i32,
    done: bool,
}

impl<'a> RecordsIter<'a> {
    #[inline]
    fn read(&mut self) -> Result<Record<'a>, RecordFault> {
        let mut cursor = Cursor(self.rest);
        if cursor.0.is_empty() {
            return Err(RecordFault::Missing);
        }
        let length = cursor.length("record length")?;
        let mut body = Cursor(cursor.take(length, "record")?);
        self.rest = cursor.0;

        body.take(1, "attributes")?;
        let timestamp_delta = body.varlong("timestamp delta")?;
        let delta = body.varint("offset delta")?;
        let key = body.nullable_bytes("key")?;
        let value = body.nullable_bytes("value")?;
        let headers = body.headers()?;

        let records = self.records;
        if delta <= self.last_delta || delta > records.last_offset_delta {
            let (above, last) = (self.last_delta, records.last_offset_delta);
            return Err(RecordFault::OffsetDelta { delta, above, last });
        }
        self.last_delta = delta;
        Ok(Record {
            offset: records.base_offset.wrapping_add(i64::from(delta)),
            // Java's arithmetic: a delta that overflows wraps, on both sides.
            timestamp: records
                .append_time
                .unwrap_or_else(|| records.base_timestamp.wrapping_add(timestamp_delta)),
            key,
            value,
            headers,
        })
    }

    #[cold]
    fn fail(&mut self, fault: RecordFault) -> Option<Result<Record<'a>>> {
        self.done = true;
        let (index, base_offset) = (self.index, self.records.base_offset);
        Some(Err(Error::Record {
            index,
            base_offset,
            fault,
        }))
    }
}

impl<'a> Iterator for RecordsIter<'a> {
    type Item = Result<Record<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if self.index == self.records.count {
            self.done = true;
            if self.rest.is_empty() {
                return None;
            }
            return self.fail(RecordFault::TrailingBytes(self.rest.len()));
        }
        match self.read() {
            Ok(record) => {
                self.index += 1;
                Some(Ok(record))
            }
            Err(fault) => self.fail(fault),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An error may end it early, or follow the last record.
        let left = usize::try_from(self.records.count - self.index).unwrap_or(0);
        (
            0,
            if self.done {
                Some(0)
            } else {
                left.checked_add(1)
            },
        )
    }
}

impl FusedIterator for RecordsIter<'_> {}

/// Whether `count` records, each as long as it says, fill `payload`.
pub(super) fn filled_by(payload: &[u8], count: i32) -> bool {
    let mut cursor = Cursor(payload);
    let mut skip = || {
        let length = cursor.length("record length")?;
        cursor.take(length, "record")
    };
    (0..count).all(|_| skip().is_ok()) && cursor.0.is_empty()
}

/// Reads the parts of a record off the front of a slice.
#[derive(Debug, Clone, Copy)]
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    #[inline]
    fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], RecordFault> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(RecordFault::Overrun(what))?;
        self.0 = rest;
        Ok(taken)
    }

    #[inline]
    fn varint(&mut self, what: &'static str) -> Result<i32, RecordFault> {
        let zigzag = match *self.0 {
            [byte, ref rest @ ..] if byte < 0x80 => {
                self.0 = rest;
                u32::from(byte)
            }
            // The length of most records.
            [low, high, ref rest @ ..] if high < 0x80 => {
                self.0 = rest;
                u32::from(low & 0x7f) | u32::from(high) << 7
            }
            _ => {
                let long = self.long_varint(5, what)?;
                u32::try_from(long).map_err(|_| RecordFault::Varint(what))?
            }
        };
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    #[inline]
    fn varlong(&mut self, what: &'static str) -> Result<i64, RecordFault> {
        let zigzag = match *self.0 {
            [byte, ref rest @ ..] if byte < 0x80 => {
                self.0 = rest;
                u64::from(byte)
            }
            _ => self.long_varint(10, what)?,
        };
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    /// A varint of more than one byte.
    fn long_varint(&mut self, max_bytes: usize, what: &'static str) -> Result<u64, RecordFault> {
        let mut value = 0u64;
        for (index, &byte) in self.0.iter().take(max_bytes).enumerate() {
            let group = u64::from(byte & 0x7f);
            let shift = 7 * index;
            // The tenth byte has room for one bit.
            if shift == 63 && group > 1 {
                return Err(RecordFault::Varint(what));
            }
            value |= group << shift;
            if byte < 0x80 {
                self.0 = self.0.get(index + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        if self.0.len() < max_bytes {
            Err(RecordFault::Overrun(what))
        } else {
            Err(RecordFault::Varint(what))
        }
    }

    /// A length or count that may not be negative.
    #[inline]
    fn length(&mut self, what: &'static str) -> Result<usize, RecordFault> {
        usize::try_from(self.varint(what)?).map_err(|_| RecordFault::Negative(what))
    }

    /// A byte string; any negative length is null, as in Java.
    #[inline]
    fn nullable_bytes(&mut self, what: &'static str) -> Result<Option<&'a [u8]>, RecordFault> {
        match usize::try_from(self.varint(what)?) {
            Ok(length) => self.take(length, what).map(Some),
            Err(_) => Ok(None),
        }
    }

    #[inline]
    fn header(&mut self) -> Result<(&'a [u8], Option<&'a [u8]>), RecordFault> {
        let length = self.length("header key")?;
        let key = self.take(length, "header key")?;
        Ok((key, self.nullable_bytes("header value")?))
    }

    /// The rest of a record: its headers, which must fill it.
    #[inline]
    fn headers(&mut self) -> Result<Headers<'a>, RecordFault> {
        let count = self.length("header count")?;
        let headers = Headers {
            bytes: self.0,
            count,
        };
        if count != 0 {
            self.skip_headers(count)?;
        }
        if self.0.is_empty() {
            Ok(headers)
        } else {
            Err(RecordFault::LeftOver(self.0.len()))
        }
    }

    fn skip_headers(&mut self, count: usize) -> Result<(), RecordFault> {
        // Ends with the bytes, whatever the count says: a header takes at least two.
        for _ in 0..count {
            self.header()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::primitives::put_varint;

    fn record_length(bytes: &[u8]) -> Option<(usize, usize)> {
        let mut cursor = Cursor(bytes);
        let length = cursor.length("record length").ok()?;
        Some((length, bytes.len() - cursor.0.len()))
    }

    #[test]
    fn lengths_of_records_are_read_as_they_are_written() {
        for length in [0, 1, 63, 64, 100, 8191, 8192, 1 << 20, i32::MAX] {
            let mut bytes = BytesMut::new();
            put_varint(&mut bytes, length);
            let expected = (usize::try_from(length).unwrap(), bytes.len());
            assert_eq!(record_length(&bytes), Some(expected), "{length}");
            assert_eq!(record_length(&bytes[..bytes.len() - 1]), None, "{length}");
        }
        for negative in [-1, -64, -65, i32::MIN] {
            let mut bytes = BytesMut::new();
            put_varint(&mut bytes, negative);
            assert_eq!(record_length(&bytes), None, "{negative}");
        }
        assert_eq!(record_length(&[0x80; 6]), None);
    }
}
