//! Batches against the reference crate, in both directions and all codecs; then what no batch should be.

use bytes::{Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records as theirs;

use super::batch::checksum;
use super::*;
use crate::primitives::put_varint;
use crate::testing::allocated;

mod payloads;

const LIMIT: usize = 16 << 20;

/// The codecs that have something to decompress.
const COMPRESSED: [Compression; 4] = [
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];

type OwnedHeader = (String, Option<Vec<u8>>);

/// A record that owns its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owned {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<OwnedHeader>,
}

impl Owned {
    fn of(record: &Record<'_>) -> Self {
        let headers = record.headers.iter().map(|(key, value)| {
            (
                String::from_utf8(key.to_vec()).unwrap(),
                value.map(<[u8]>::to_vec),
            )
        });
        Self {
            timestamp: record.timestamp,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: headers.collect(),
        }
    }

    fn value(text: &str) -> Self {
        Self {
            timestamp: 1000,
            key: None,
            value: Some(text.into()),
            headers: Vec::new(),
        }
    }
}

fn push(builder: &mut BatchBuilder, record: &Owned) {
    let headers: Vec<_> = record
        .headers
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_deref()))
        .collect();
    builder
        .push(
            record.timestamp,
            record.key.as_deref(),
            record.value.as_deref(),
            &headers,
        )
        .unwrap();
}

fn build(compression: Compression, records: &[Owned]) -> Bytes {
    let mut builder = BatchBuilder::new(compression);
    for record in records {
        push(&mut builder, record);
    }
    assert_eq!(builder.len(), records.len());
    builder.build().unwrap()
}

fn read(batch: &RecordBatch) -> Result<Vec<Owned>> {
    batch
        .records(LIMIT)?
        .iter()
        .map(|record| Ok(Owned::of(&record?)))
        .collect()
}

fn varied() -> Vec<Owned> {
    let header = |key: &str, value: Option<&[u8]>| (key.to_owned(), value.map(<[u8]>::to_vec));
    vec![
        Owned::value("first"),
        Owned {
            timestamp: 1_700_000_000_123,
            key: Some(b"key".into()),
            value: None,
            headers: vec![],
        },
        Owned {
            timestamp: 1000,
            key: Some(vec![]),
            value: Some(vec![]),
            headers: vec![],
        },
        Owned {
            timestamp: 1001,
            key: Some(vec![0xff; 70]),
            value: Some(vec![b'x'; 100_000]),
            headers: vec![
                header("a", Some(b"1")),
                header("b", None),
                header("", Some(b"")),
            ],
        },
        Owned::value(&"long ".repeat(20_000)),
    ]
}

fn their_codec(compression: Compression) -> theirs::Compression {
    match compression {
        Compression::None => theirs::Compression::None,
        Compression::Gzip => theirs::Compression::Gzip,
        Compression::Snappy => theirs::Compression::Snappy,
        Compression::Lz4 => theirs::Compression::Lz4,
        Compression::Zstd => theirs::Compression::Zstd,
    }
}

fn to_theirs(records: &[Owned]) -> Vec<theirs::Record> {
    let headers = |headers: &[OwnedHeader]| -> IndexMap<StrBytes, Option<Bytes>> {
        headers
            .iter()
            .map(|(key, value)| {
                (
                    StrBytes::from_string(key.clone()),
                    value.clone().map(Bytes::from),
                )
            })
            .collect()
    };
    let record = |(offset, record): (i32, &Owned)| theirs::Record {
        transactional: true,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: 42,
        producer_epoch: 3,
        timestamp_type: theirs::TimestampType::Creation,
        offset: i64::from(offset),
        sequence: 17 + offset,
        timestamp: record.timestamp,
        key: record.key.clone().map(Bytes::from),
        value: record.value.clone().map(Bytes::from),
        headers: headers(&record.headers),
    };
    (0..).zip(records).map(record).collect()
}

fn their_encoding(records: &[Owned], compression: Compression) -> Bytes {
    let mut out = BytesMut::new();
    let options = theirs::RecordEncodeOptions {
        version: 2,
        compression: their_codec(compression),
    };
    theirs::RecordBatchEncoder::encode(&mut out, &to_theirs(records), &options).unwrap();
    out.freeze()
}

fn our_encoding(records: &[Owned], compression: Compression) -> Bytes {
    let mut builder = BatchBuilder::new(compression)
        .with_producer(42, 3, 17)
        .transactional(true);
    for record in records {
        push(&mut builder, record);
    }
    builder.build().unwrap()
}

#[test]
fn built_batches_have_the_bytes_of_the_reference_crate() {
    let ours = our_encoding(&varied(), Compression::None);
    assert_eq!(ours, their_encoding(&varied(), Compression::None));
}

#[test]
fn the_reference_crate_reads_what_we_build_in_every_codec() {
    for compression in Compression::ALL {
        let mut ours = our_encoding(&varied(), compression);
        let set = theirs::RecordBatchDecoder::decode(&mut ours).unwrap();
        assert_eq!(set.compression, their_codec(compression));
        assert_eq!(set.records, to_theirs(&varied()), "{compression}");
        assert!(ours.is_empty());
    }
}

#[test]
fn we_read_what_the_reference_crate_builds_in_every_codec() {
    for compression in Compression::ALL {
        let batch = RecordBatch::parse(their_encoding(&varied(), compression)).unwrap();
        batch.check_crc().unwrap();
        let header = batch.header();
        assert_eq!(header.compression().unwrap(), compression);
        assert_eq!(
            (
                header.producer_id,
                header.producer_epoch,
                header.base_sequence
            ),
            (42, 3, 17)
        );
        assert!(header.is_transactional() && !header.is_control());
        assert_eq!(read(&batch).unwrap(), varied(), "{compression}");
    }
}

#[test]
fn header_fields_are_those_of_the_records() {
    let batch = RecordBatch::parse(build(Compression::None, &varied())).unwrap();
    let header = batch.header();
    assert_eq!(header.size_in_bytes(), batch.bytes().len());
    assert_eq!(
        (
            header.base_offset,
            header.last_offset(),
            header.next_offset()
        ),
        (0, 4, 5)
    );
    assert_eq!(
        (header.base_timestamp, header.max_timestamp),
        (1000, 1_700_000_000_123)
    );
    assert_eq!(
        (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence
        ),
        (-1, -1, -1)
    );
    assert_eq!(header.partition_leader_epoch, -1);
    assert_eq!(header.records_count, 5);
    assert_eq!(header.timestamp_type(), TimestampType::CreateTime);
    assert!(!header.has_producer_id() && !header.is_transactional());
}

#[test]
fn size_estimate_is_the_size_without_compression() {
    let mut builder = BatchBuilder::new(Compression::None);
    assert_eq!(
        (builder.size_estimate(), builder.is_empty()),
        (BatchHeader::LEN, true)
    );
    for record in varied() {
        push(&mut builder, &record);
    }
    let estimate = builder.size_estimate();
    assert_eq!(builder.build().unwrap().len(), estimate);
}

#[test]
fn duplicate_headers_keep_their_order() {
    let twice = ("trace", Some(&b"1"[..]));
    let mut builder = BatchBuilder::new(Compression::None);
    builder
        .push(
            0,
            None,
            None,
            &[twice, ("other", None), twice, ("trace", Some(b"2"))],
        )
        .unwrap();
    let records = RecordBatch::parse(builder.build().unwrap())
        .unwrap()
        .records(LIMIT)
        .unwrap();
    let record = records.iter().next().unwrap().unwrap();
    assert_eq!(record.headers.len(), 4);
    let values: Vec<_> = record
        .headers
        .iter()
        .filter(|(key, _)| *key == b"trace")
        .collect();
    assert_eq!(
        values,
        [
            (&b"trace"[..], Some(&b"1"[..])),
            (b"trace", Some(b"1")),
            (b"trace", Some(b"2")),
        ]
    );
}

#[test]
fn stamping_gives_offsets_and_leaves_the_checksum_valid() {
    let mut bytes = build(Compression::Lz4, &varied()).to_vec();
    stamp(&mut bytes, 1_000_000_000_000, 7).unwrap();
    let batch = RecordBatch::parse(bytes.into()).unwrap();
    batch.check_crc().unwrap();
    assert_eq!(batch.header().base_offset, 1_000_000_000_000);
    assert_eq!(batch.header().partition_leader_epoch, 7);
    let records = batch.records(LIMIT).unwrap();
    let offsets: Vec<_> = records
        .iter()
        .map(|record| record.unwrap().offset)
        .collect();
    assert_eq!(
        offsets,
        (1_000_000_000_000..1_000_000_000_005).collect::<Vec<_>>()
    );
    assert!(stamp(&mut [0; 60], 0, 0).is_err());
}

#[test]
fn append_time_replaces_every_timestamp_and_corrects_the_checksum() {
    let mut bytes = build(Compression::Gzip, &varied()).to_vec();
    stamp_log_append_time(&mut bytes, 99).unwrap();
    let batch = RecordBatch::parse(bytes.into()).unwrap();
    batch.check_crc().unwrap();
    assert_eq!(
        batch.header().timestamp_type(),
        TimestampType::LogAppendTime
    );
    assert_eq!(batch.header().compression().unwrap(), Compression::Gzip);
    assert!(
        read(&batch)
            .unwrap()
            .iter()
            .all(|record| record.timestamp == 99)
    );
}

#[test]
fn any_changed_byte_from_the_attributes_on_fails_the_checksum() {
    let bytes = build(Compression::None, &[Owned::value("payload")]);
    for at in 21..bytes.len() {
        let mut changed = bytes.to_vec();
        changed[at] ^= 0x10;
        // Some changes are impossible headers already.
        if let Ok(batch) = RecordBatch::parse(changed.into()) {
            assert!(matches!(batch.check_crc(), Err(Error::Crc { .. })), "{at}");
        }
    }
}

#[test]
fn control_batches_tell_what_they_end() {
    for control_type in [
        ControlType::Abort,
        ControlType::Commit,
        ControlType::Other(5),
    ] {
        let mut bytes = control_batch(control_type, 42, 3, 11, 1000).unwrap();
        let batch = RecordBatch::parse(bytes.clone()).unwrap();
        batch.check_crc().unwrap();
        assert_eq!(batch.control_type().unwrap(), Some(control_type));
        let epoch = batch.control_record().unwrap().unwrap().coordinator_epoch;
        let expected = if control_type == ControlType::Other(5) {
            None
        } else {
            Some(11)
        };
        assert_eq!(epoch, expected);

        let set = theirs::RecordBatchDecoder::decode(&mut bytes).unwrap();
        let [record] = &set.records[..] else {
            panic!("{set:?}")
        };
        assert!(record.control && record.transactional);
        assert_eq!((record.producer_id, record.producer_epoch), (42, 3));
        let key = [&[0, 0][..], &control_type.code().to_be_bytes()].concat();
        assert_eq!(record.key.as_deref(), Some(&key[..]));
        assert_eq!(record.value.as_deref(), Some(&[0, 0, 0, 0, 0, 11][..]));
    }
    let data = RecordBatch::parse(build(Compression::None, &[Owned::value("x")])).unwrap();
    assert_eq!(data.control_type().unwrap(), None);
}

#[test]
fn control_batch_without_a_control_record_is_an_error() {
    let mut bytes = build(Compression::None, &[Owned::value("x")]).to_vec();
    bytes[22] |= 0x20;
    let batch = RecordBatch::parse(bytes.into()).unwrap();
    assert!(matches!(
        batch.control_type(),
        Err(Error::ControlRecord { base_offset: 0 })
    ));
}

#[test]
fn uncompressed_records_borrow_the_batch_and_iterating_allocates_nothing() {
    let batch = RecordBatch::parse(build(Compression::None, &varied())).unwrap();
    let range = batch.bytes().as_ptr_range();
    let (records, before) = allocated(|| batch.records(LIMIT).unwrap());
    // Sharing the bytes for the first time takes a counter.
    assert!(before.peak < 64, "{before:?}");
    let (values, during) = allocated(|| {
        let mut values = 0;
        for record in &records {
            let record = record.unwrap();
            values += usize::from(
                record
                    .value
                    .is_some_and(|value| value.is_empty() || range.contains(&value.as_ptr())),
            );
            assert!(record.headers.iter().all(|(key, _)| key.len() < 2));
        }
        values
    });
    assert_eq!(values, 4);
    assert_eq!(during.calls, 0);
}

#[test]
fn batches_come_one_by_one_and_a_cut_tail_is_announced() {
    let first = build(Compression::None, &varied());
    let second = build(Compression::Zstd, &[Owned::value("second")]);
    let both = Bytes::from([&first[..], &second].concat());
    for cut in 0..=second.len() {
        let mut batches = batches(both.slice(..first.len() + cut));
        assert_eq!(batches.next().unwrap().unwrap().bytes(), &first);
        if cut == second.len() {
            assert_eq!(batches.next().unwrap().unwrap().bytes(), &second);
        }
        assert!(batches.next().is_none(), "{cut}");
        let partial = cut > 0 && cut < second.len();
        assert_eq!(batches.is_partial_tail(), partial, "{cut}");
        let announced = (partial && cut >= 12).then_some(second.len());
        assert_eq!(batches.partial_size(), announced, "{cut}");
        assert_eq!(batches.remaining(), if partial { cut } else { 0 });
    }
}

#[test]
fn batches_end_after_an_error() {
    let good = build(Compression::None, &[Owned::value("x")]);
    let mut old = good.to_vec();
    old[16] = 1;
    let mut batches = batches(Bytes::from([&old[..], &good].concat()));
    let error = batches.next().unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            Error::UnsupportedMagic {
                magic: 1,
                base_offset: 0
            }
        ),
        "{error}"
    );
    assert!(batches.next().is_none());
    assert!(!batches.is_partial_tail());
}

/// Sets bytes of the header.
fn with_header(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut changed = batch.to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    changed.into()
}

#[test]
fn impossible_headers_are_refused_by_name() {
    let good = build(Compression::None, &[Owned::value("x")]);
    let field = |at, bytes: &[u8]| match RecordBatch::parse(with_header(&good, at, bytes)) {
        Err(Error::Header { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(8, &48i32.to_be_bytes()), "length");
    assert_eq!(field(8, &(-1i32).to_be_bytes()), "length");
    assert_eq!(field(23, &(-1i32).to_be_bytes()), "last offset delta");
    assert_eq!(field(57, &(-1i32).to_be_bytes()), "record count");
    assert_eq!(field(0, &i64::MAX.to_be_bytes()), "base offset");

    let extra = RecordBatch::parse([&good[..], &[0]].concat().into());
    assert!(matches!(extra, Err(Error::ExtraBytes { extra: 1 })));
    for length in 0..good.len() {
        let cut = RecordBatch::parse(good.slice(..length));
        assert!(matches!(cut, Err(Error::Truncated { .. })), "{length}");
    }
}

#[test]
fn a_length_shorter_than_a_header_is_an_error_also_at_the_end() {
    let bytes = [&0i64.to_be_bytes()[..], &10i32.to_be_bytes(), &[0; 10]].concat();
    let mut batches = batches(bytes.into());
    assert!(batches.next().unwrap().is_err());
    assert!(batches.next().is_none());
}

#[test]
fn unknown_codecs_are_named() {
    for codec in 5..8u8 {
        let bytes = with_header(&build(Compression::None, &varied()), 22, &[codec]);
        let error = RecordBatch::parse(bytes)
            .unwrap()
            .records(LIMIT)
            .unwrap_err();
        assert!(matches!(error, Error::UnknownCodec { codec: c, base_offset: 0 } if c == codec));
    }
}

/// A batch around any payload.
fn with_payload(
    payload: &[u8],
    compression: Compression,
    count: i32,
    last_delta: i32,
) -> RecordBatch {
    let empty = BatchBuilder::new(compression).build().unwrap();
    let mut bytes = [&empty[..BatchHeader::LEN], payload].concat();
    let length = i32::try_from(bytes.len() - 12).unwrap();
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[23..27].copy_from_slice(&last_delta.to_be_bytes());
    bytes[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = checksum(&bytes);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    let batch = RecordBatch::parse(bytes.into()).unwrap();
    batch.check_crc().unwrap();
    batch
}

/// A record around any body.
fn raw_record(body: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    put_varint(&mut out, i32::try_from(body.len()).unwrap());
    out.extend_from_slice(body);
    out.to_vec()
}

/// A record with an offset delta and nothing else.
fn plain_record(offset_delta: i32) -> Vec<u8> {
    let mut body = BytesMut::from(&[0, 0][..]);
    put_varint(&mut body, offset_delta);
    body.extend_from_slice(&[1, 1, 0]);
    raw_record(&body)
}

fn fault(payload: &[u8], count: i32, last_delta: i32) -> (i32, RecordFault) {
    let batch = with_payload(payload, Compression::None, count, last_delta);
    let records = batch.records(LIMIT).unwrap();
    let mut iter = records.iter();
    let error = iter.by_ref().find_map(Result::err).expect("an error");
    assert!(iter.next().is_none(), "an error ends the records");
    let Error::Record { index, fault, .. } = error else {
        panic!("{error}")
    };
    (index, fault)
}

#[test]
fn counts_and_lengths_must_agree() {
    let two = [plain_record(0), plain_record(1)].concat();
    assert!(read(&with_payload(&two, Compression::None, 2, 1)).is_ok());
    assert_eq!(fault(&two, 3, 2), (2, RecordFault::Missing));
    assert_eq!(fault(&two, 1, 1), (1, RecordFault::TrailingBytes(7)));
    assert_eq!(fault(&two[..13], 2, 1), (1, RecordFault::Overrun("record")));
    assert_eq!(
        fault(&[two, vec![0]].concat(), 2, 1),
        (2, RecordFault::TrailingBytes(1))
    );
    assert!(
        read(&with_payload(&[], Compression::None, 0, 9))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn offsets_must_increase_and_stay_within_the_batch() {
    let of = |deltas: &[i32]| {
        deltas
            .iter()
            .flat_map(|&delta| plain_record(delta))
            .collect::<Vec<_>>()
    };
    // Compaction leaves holes.
    let batch = with_payload(&of(&[2, 5, 900]), Compression::None, 3, 1000);
    let records = batch.records(LIMIT).unwrap();
    let offsets: Vec<_> = records
        .iter()
        .map(|record| record.unwrap().offset)
        .collect();
    assert_eq!(offsets, [2, 5, 900]);

    let delta = |delta, above, last| RecordFault::OffsetDelta { delta, above, last };
    assert_eq!(fault(&of(&[0, 0]), 2, 1), (1, delta(0, 0, 1)));
    assert_eq!(fault(&of(&[1, 0]), 2, 1), (1, delta(0, 1, 1)));
    assert_eq!(fault(&of(&[0, 2]), 2, 1), (1, delta(2, 0, 1)));
    assert_eq!(fault(&of(&[-1]), 1, 0), (0, delta(-1, -1, 0)));
}

#[test]
fn malformed_records_are_named() {
    let one = |body: &[u8]| fault(&raw_record(body), 1, 0).1;
    assert_eq!(one(&[]), RecordFault::Overrun("attributes"));
    assert_eq!(one(&[0]), RecordFault::Overrun("timestamp delta"));
    assert_eq!(one(&[0, 0, 0, 10]), RecordFault::Overrun("key"));
    assert_eq!(one(&[0, 0, 0, 1, 20, 7]), RecordFault::Overrun("value"));
    assert_eq!(
        one(&[0, 0, 0, 1, 1, 1]),
        RecordFault::Negative("header count")
    );
    assert_eq!(one(&[0, 0, 0, 1, 1, 0, 9]), RecordFault::LeftOver(1));
    assert_eq!(
        one(&[0, 0, 0, 1, 1, 2, 1, 0]),
        RecordFault::Negative("header key")
    );
    assert_eq!(
        one(&[0, 0, 0, 1, 1, 4, 2, b'k', 1]),
        RecordFault::Overrun("header key")
    );
    assert_eq!(
        one(&[0, 0, 0, 1, 1, 2, 2, b'k', 4, 0]),
        RecordFault::Overrun("header value")
    );
    // A count of two thousand million headers ends with the bytes.
    assert_eq!(
        one(&[0, 0, 0, 1, 1, 0xfe, 0xff, 0xff, 0xff, 0x0f]),
        RecordFault::Overrun("header key")
    );

    let eleven = [&[0][..], &[0xff; 10], &[1]].concat();
    assert_eq!(one(&eleven), RecordFault::Varint("timestamp delta"));
    let six = [&[0, 0][..], &[0xff; 5], &[1]].concat();
    assert_eq!(one(&six), RecordFault::Varint("offset delta"));
    let beyond_32_bits = [0, 0, 0xff, 0xff, 0xff, 0xff, 0x1f];
    assert_eq!(one(&beyond_32_bits), RecordFault::Varint("offset delta"));
    assert_eq!(fault(&[1], 1, 0).1, RecordFault::Negative("record length"));
}

#[test]
fn extreme_timestamps_come_back() {
    let records: Vec<_> = [i64::MAX, i64::MIN, -1, 0, 3_093_527_980_799_000]
        .map(|timestamp| Owned {
            timestamp,
            ..Owned::value("x")
        })
        .into();
    let batch = RecordBatch::parse(build(Compression::Zstd, &records)).unwrap();
    assert_eq!(read(&batch).unwrap(), records);
    assert_eq!(batch.header().max_timestamp, i64::MAX);
}
