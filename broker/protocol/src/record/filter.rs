//! What compaction leaves of a batch: some of its records, or none but its bounds.
//!
//! Base offset, last offset delta, producer, epoch and sequence stay, so that offsets and the sequences of idempotent
//! producers are as before. A delete horizon (KIP-534) takes the place of the base timestamp, and says until when
//! tombstones stay. As Kafka's `MemoryRecords.filterTo` and `DefaultRecordBatch.writeEmptyHeader` do.

use bytes::{BufMut, Bytes, BytesMut};

use super::batch::checksum;
use super::codec::compress;
use super::header::{COMPRESSION_MASK, DELETE_HORIZON, LENGTH_OVERHEAD};
use super::{BatchHeader, Compression, Error, Record, Records, Result, TimestampType};
use crate::primitives::{put_varint, put_varlong};

/// Makes the batch anew with those records for which `keep` says so, by their order, in the codec it had. With
/// `delete_horizon_ms` it gets that horizon, unless it has one already. `header` and `records` are those of one batch;
/// records beyond the end of `keep` go. With none kept it is [`without_records`]: no codec writes nothing, and readers
/// refuse what says otherwise.
///
/// # Errors
/// A malformed record, an unknown codec, or a batch of more than 2 GiB.
pub fn retain_records(
    header: &BatchHeader,
    records: &Records,
    keep: &[bool],
    delete_horizon_ms: Option<i64>,
) -> Result<Bytes> {
    let compression = header.compression()?;
    let horizon = header.delete_horizon_ms().or(delete_horizon_ms);
    let mut kept = BytesMut::with_capacity(records.size_in_bytes());
    let mut body = BytesMut::new();
    let mut base_timestamp = horizon;
    let mut max_timestamp = i64::MIN;
    let mut count = 0;
    for (record, keep) in records.iter().zip(keep) {
        let record = record?;
        if *keep {
            let base = *base_timestamp.get_or_insert(record.timestamp);
            put_record(&mut kept, &mut body, &record, header.base_offset, base)?;
            max_timestamp = max_timestamp.max(record.timestamp);
            count += 1;
        }
    }
    if count == 0 {
        return without_records(header);
    }
    let header = BatchHeader {
        attributes: header.attributes | horizon.map_or(0, |_| DELETE_HORIZON),
        base_timestamp: base_timestamp.unwrap_or(header.max_timestamp),
        max_timestamp: match header.timestamp_type() {
            TimestampType::CreateTime => max_timestamp,
            TimestampType::LogAppendTime => header.max_timestamp,
        },
        records_count: count,
        ..header.clone()
    };
    assemble(&header, compression, &kept)
}

/// The batch's header as a batch without records.
///
/// # Errors
/// None for a header that was read from a batch.
pub fn without_records(header: &BatchHeader) -> Result<Bytes> {
    let header = BatchHeader {
        attributes: header.attributes & !COMPRESSION_MASK & !DELETE_HORIZON,
        base_timestamp: header.max_timestamp,
        records_count: 0,
        ..header.clone()
    };
    assemble(&header, Compression::None, &[])
}

fn put_record(
    out: &mut BytesMut,
    body: &mut BytesMut,
    record: &Record<'_>,
    base_offset: i64,
    base_timestamp: i64,
) -> Result<()> {
    body.clear();
    body.put_i8(0);
    put_varlong(body, record.timestamp.wrapping_sub(base_timestamp));
    // It came as a delta of 32 bits.
    let delta = record.offset.wrapping_sub(base_offset);
    put_varint(body, i32::try_from(delta).unwrap_or(i32::MAX));
    put_nullable(body, record.key)?;
    put_nullable(body, record.value)?;
    let (headers, count) = record.headers.raw();
    put_varint(body, length(count)?);
    body.put_slice(headers);
    put_varint(out, length(body.len())?);
    out.put_slice(body);
    Ok(())
}

fn put_nullable(out: &mut BytesMut, bytes: Option<&[u8]>) -> Result<()> {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varint(out, length(bytes.len())?);
            out.put_slice(bytes);
        }
    }
    Ok(())
}

fn length(size: usize) -> Result<i32> {
    let what = "record";
    i32::try_from(size).map_err(|_| Error::TooLarge { what, size })
}

/// A batch of this header, but for length and checksum, which are computed.
fn assemble(header: &BatchHeader, compression: Compression, records: &[u8]) -> Result<Bytes> {
    let mut batch = Vec::with_capacity(BatchHeader::LEN + records.len());
    batch.resize(BatchHeader::LEN, 0);
    if !records.is_empty() {
        compress(compression, records, &mut batch)?;
    }
    let size = batch.len();
    let batch_length = i32::try_from(size - LENGTH_OVERHEAD).map_err(|_| Error::TooLarge {
        what: "batch",
        size,
    })?;
    let header = BatchHeader {
        batch_length,
        ..header.clone()
    };
    put_header(&mut batch, &header);
    let crc = checksum(&batch);
    put_header(&mut batch, &BatchHeader { crc, ..header });
    Ok(batch.into())
}

fn put_header(batch: &mut [u8], header: &BatchHeader) {
    let mut fields = BytesMut::with_capacity(BatchHeader::LEN);
    fields.put_i64(header.base_offset);
    fields.put_i32(header.batch_length);
    fields.put_i32(header.partition_leader_epoch);
    fields.put_i8(header.magic);
    fields.put_u32(header.crc);
    fields.put_i16(header.attributes);
    fields.put_i32(header.last_offset_delta);
    fields.put_i64(header.base_timestamp);
    fields.put_i64(header.max_timestamp);
    fields.put_i64(header.producer_id);
    fields.put_i16(header.producer_epoch);
    fields.put_i32(header.base_sequence);
    fields.put_i32(header.records_count);
    if let Some(place) = batch.get_mut(..BatchHeader::LEN) {
        place.copy_from_slice(&fields);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BatchBuilder, RecordBatch, stamp};
    use super::*;

    fn batch(compression: Compression) -> RecordBatch {
        let mut builder = BatchBuilder::new(compression).with_producer(7, 1, 40);
        for (at, value) in [Some("a"), None, Some("c")].into_iter().enumerate() {
            let time = 1000 + 10 * i64::try_from(at).unwrap();
            let key = format!("key {at}");
            let value = value.map(str::as_bytes);
            let headers = [("h", Some(b"v".as_slice())), ("h", None)];
            builder
                .push(time, Some(key.as_bytes()), value, &headers)
                .unwrap();
        }
        let mut bytes = builder.build().unwrap().to_vec();
        stamp(&mut bytes, 500, 3).unwrap();
        RecordBatch::parse(bytes.into()).unwrap()
    }

    fn reparse(bytes: Bytes) -> RecordBatch {
        let batch = RecordBatch::parse(bytes).unwrap();
        batch.check_crc().unwrap();
        batch
    }

    #[test]
    fn kept_records_are_as_before_and_so_are_the_bounds() {
        for compression in Compression::ALL {
            let before = batch(compression);
            let records = before.records(1 << 20).unwrap();
            let bytes =
                retain_records(before.header(), &records, &[false, true, true], None).unwrap();
            let after = reparse(bytes);
            let left = after.records(1 << 20).unwrap();
            let expected: Vec<_> = records.iter().skip(1).map(Result::unwrap).collect();
            let got: Vec<_> = left.iter().map(Result::unwrap).collect();
            for (expected, got) in expected.iter().zip(&got) {
                assert_eq!(
                    (expected.offset, expected.timestamp),
                    (got.offset, got.timestamp)
                );
                assert_eq!((expected.key, expected.value), (got.key, got.value));
                assert!(expected.headers.iter().eq(got.headers.iter()));
            }
            assert_eq!(got.len(), expected.len());
            let (old, new) = (before.header(), after.header());
            assert_eq!(new.attributes, old.attributes);
            assert_eq!((new.base_offset, new.last_offset()), (500, 502));
            assert_eq!(
                (new.producer_id, new.producer_epoch, new.base_sequence),
                (7, 1, 40)
            );
            assert_eq!((new.partition_leader_epoch, new.max_timestamp), (3, 1020));
        }
    }

    #[test]
    fn a_delete_horizon_is_set_once_and_changes_no_timestamp() {
        let before = batch(Compression::None);
        let records = before.records(1 << 20).unwrap();
        let bytes = retain_records(before.header(), &records, &[true; 3], Some(9999)).unwrap();
        let once = reparse(bytes);
        assert_eq!(before.header().delete_horizon_ms(), None);
        assert_eq!(once.header().delete_horizon_ms(), Some(9999));
        let records = once.records(1 << 20).unwrap();
        let times = |records: &Records| -> Vec<i64> {
            records
                .iter()
                .map(|record| record.unwrap().timestamp)
                .collect()
        };
        assert_eq!(times(&records), [1000, 1010, 1020]);
        let twice = retain_records(once.header(), &records, &[true, true, false], Some(5)).unwrap();
        let twice = reparse(twice);
        assert_eq!(twice.header().delete_horizon_ms(), Some(9999));
        assert_eq!(times(&twice.records(1 << 20).unwrap()), [1000, 1010]);
        assert_eq!(twice.header().max_timestamp, 1010);
    }

    #[test]
    fn an_emptied_batch_is_a_header_with_its_bounds() {
        let before = batch(Compression::Zstd);
        let after = reparse(without_records(before.header()).unwrap());
        assert_eq!(after.bytes().len(), BatchHeader::LEN);
        assert_eq!(
            (after.header().records_count, after.header().last_offset()),
            (0, 502)
        );
        assert_eq!(after.header().base_sequence, 40);
        assert_eq!(after.header().compression().unwrap(), Compression::None);
        assert!(after.records(10).unwrap().is_empty());
        assert_eq!(after.records(10).unwrap().iter().count(), 0);
    }

    #[test]
    fn a_batch_of_which_nothing_is_kept_can_be_read_in_every_codec() {
        for compression in Compression::ALL {
            let before = batch(compression);
            let records = before.records(1 << 20).unwrap();
            let bytes = retain_records(before.header(), &records, &[false; 3], Some(9)).unwrap();
            let after = reparse(bytes.clone());
            assert!(after.records(10).unwrap().is_empty(), "{compression}");
            assert_eq!(bytes, without_records(before.header()).unwrap());
        }
    }

    #[test]
    fn an_emptied_batch_that_still_names_its_codec_has_no_records() {
        let mut bytes = without_records(batch(Compression::None).header())
            .unwrap()
            .to_vec();
        for compression in Compression::ALL {
            bytes[22] = compression.code();
            let emptied = RecordBatch::parse(bytes.clone().into()).unwrap();
            let records = emptied.records(10).unwrap();
            assert_eq!(records.iter().count(), 0, "{compression}");
        }
    }
}
