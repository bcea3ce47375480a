//! Record batches: as they are, and as the payload of a header that is right in all else. First byte: bit 7 for a header
//! around it, bits 0–2 the codec, bits 3–6 how many records it announces.
#![no_main]

use broker_protocol::record::{
    BatchBuilder, BatchHeader, Compression, RecordBatch, Records, batches, retain_records,
    without_records,
};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

/// Bytes that a payload may have when it is unpacked.
const LIMIT: usize = 1 << 20;

/// `payload` behind a header with the codec and number of records of `shape`, its length and checksum right.
fn wrapped(shape: u8, payload: &[u8]) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(1_000, None, None, &[]).expect("a record");
    let mut bytes = builder.build().expect("a batch").to_vec();
    bytes.truncate(61);
    bytes.extend_from_slice(payload);
    let length = i32::try_from(bytes.len() - 12).expect("inputs are small");
    let count = i32::from(shape >> 3 & 15);
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[22] = shape & 7;
    bytes[23..27].copy_from_slice(&count.max(1).wrapping_sub(1).to_be_bytes());
    bytes[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}

fn look_at(batch: &RecordBatch) {
    drop(batch.check_crc());
    let _filled = batch.is_filled();
    drop(batch.control_record());
    let header = batch.header();
    let emptied = without_records(header).expect("a header that was read");
    let emptied = RecordBatch::parse(emptied).expect("what was written can be read");
    assert_eq!(emptied.header().last_offset(), header.last_offset());
    let Ok(records) = batch.records(LIMIT) else {
        return;
    };
    assert!(records.size_in_bytes() <= LIMIT.max(batch.bytes().len()));
    let mut offsets = Vec::new();
    for record in &records {
        let Ok(record) = record else { return };
        assert!(record.offset >= header.base_offset && record.offset <= header.last_offset());
        assert!(offsets.last().is_none_or(|last| *last < record.offset));
        offsets.push(record.offset);
        assert_eq!(record.headers.iter().count(), record.headers.len());
    }
    for every in [3, 1] {
        let keep: Vec<bool> = (0..offsets.len()).map(|at| at % every != 0).collect();
        retain(header, &records, &offsets, &keep);
    }
}

/// What is kept of a batch's `offsets` is there, and can be read.
fn retain(header: &BatchHeader, records: &Records, offsets: &[i64], keep: &[bool]) {
    let Ok(kept) = retain_records(header, records, keep, Some(5)) else {
        return;
    };
    let kept = RecordBatch::parse(kept).expect("what was written can be read");
    kept.check_crc().expect("its checksum is right");
    let again = kept.records(2 * LIMIT).expect("its payload can be read");
    let again: Vec<i64> = again
        .iter()
        .map(|record| record.expect("a record that was kept").offset)
        .collect();
    let expected = offsets.iter().zip(keep).filter(|(_, keep)| **keep);
    assert_eq!(
        again,
        expected.map(|(offset, _)| *offset).collect::<Vec<_>>()
    );
}

fuzz_target!(|input: &[u8]| {
    let Some((shape, rest)) = input.split_first() else {
        return;
    };
    let bytes = if shape & 0x80 == 0 {
        Bytes::copy_from_slice(rest)
    } else {
        wrapped(*shape, rest)
    };
    let mut left = bytes.len();
    let mut all = batches(bytes);
    while let Some(batch) = all.next() {
        let Ok(batch) = batch else { break };
        look_at(&batch);
        assert!(all.remaining() < left, "no headway");
        left = all.remaining();
    }
    let _cut = all.is_partial_tail();
});
