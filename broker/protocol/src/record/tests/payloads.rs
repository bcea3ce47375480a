//! Payloads: limits of decompression, codecs' dialects, and hostile bytes.

use std::io::Write;

use proptest::prelude::*;

use super::*;
use crate::primitives::put_varlong;

fn zeros(length: usize) -> Vec<u8> {
    raw_record(&{
        let mut body = BytesMut::from(&[0][..]);
        put_varlong(&mut body, 0);
        put_varint(&mut body, 0);
        put_varint(&mut body, -1);
        put_varint(&mut body, i32::try_from(length).unwrap());
        body.resize(body.len() + length, 0);
        body.extend_from_slice(&[0]);
        body
    })
}

fn compressed(compression: Compression, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    codec::compress(compression, payload, &mut out).unwrap();
    out
}

#[test]
fn decompression_stops_at_the_limit_and_holds_little_more() {
    let payload = zeros(8 << 20);
    for compression in COMPRESSED {
        let batch = with_payload(&compressed(compression, &payload), compression, 1, 0);
        let exact = batch.records(payload.len()).unwrap();
        assert_eq!(exact.size_in_bytes(), payload.len());
        assert_eq!(
            exact.iter().next().unwrap().unwrap().value.unwrap().len(),
            8 << 20
        );

        for limit in [payload.len() - 1, 1 << 20, 1000, 0] {
            let (result, allocated) = allocated(|| batch.records(limit));
            let error = result.unwrap_err();
            assert!(matches!(error, Error::DecompressedTooLarge { limit: l } if l == limit));
            assert!(error.to_string().contains(&limit.to_string()));
            // The codecs' own buffers, and an old and a new buffer while growing.
            assert!(
                allocated.peak < 2 * limit + (1 << 20),
                "{compression} {limit}: {allocated:?}"
            );
        }
    }
}

#[test]
fn raw_snappy_is_read_too() {
    let payload = zeros(100_000);
    let raw = snap::raw::Encoder::new().compress_vec(&payload).unwrap();
    let batch = with_payload(&raw, Compression::Snappy, 1, 0);
    assert_eq!(
        read(&batch).unwrap()[0].value.as_ref().unwrap().len(),
        100_000
    );
}

#[test]
fn snappy_is_written_in_xerials_framing_of_32_kib_blocks() {
    let bytes = build(Compression::Snappy, &[Owned::value(&"ab".repeat(40_000))]);
    let payload = &bytes[BatchHeader::LEN..];
    assert_eq!(&payload[..16], b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01");
    let first = usize::try_from(i32::from_be_bytes(payload[16..20].try_into().unwrap())).unwrap();
    assert_eq!(
        snap::raw::decompress_len(&payload[20..20 + first]).unwrap(),
        32 * 1024
    );
}

#[test]
fn snappy_that_claims_more_than_it_can_hold_allocates_nothing() {
    // A preamble of 4 GiB less one, then nothing.
    let claim = [0xff, 0xff, 0xff, 0xff, 0x0f, 0];
    let xerial = [
        &b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"[..],
        &[0, 0, 0, 6],
        &claim,
    ]
    .concat();
    for payload in [&claim[..], &xerial] {
        let batch = with_payload(payload, Compression::Snappy, 1, 0);
        let (result, allocated) = allocated(|| batch.records(usize::MAX));
        assert!(matches!(result, Err(Error::Decompress { .. })));
        assert!(allocated.peak < 10_000, "{allocated:?}");
    }
}

#[test]
fn gzip_of_several_members_and_lz4_of_linked_blocks_are_read() {
    let payload = zeros(300_000);
    let (head, tail) = payload.split_at(100_000);
    let members = [
        compressed(Compression::Gzip, head),
        compressed(Compression::Gzip, tail),
    ]
    .concat();
    assert!(read(&with_payload(&members, Compression::Gzip, 1, 0)).is_ok());

    let frame = lz4_flex::frame::FrameInfo::new()
        .block_mode(lz4_flex::frame::BlockMode::Linked)
        .content_checksum(true)
        .block_size(lz4_flex::frame::BlockSize::Max4MB);
    let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(frame, Vec::new());
    encoder.write_all(&payload).unwrap();
    let linked = encoder.finish().unwrap();
    assert!(read(&with_payload(&linked, Compression::Lz4, 1, 0)).is_ok());
}

#[test]
fn truncated_and_garbled_payloads_name_the_codec() {
    let payload = zeros(100_000);
    for compression in COMPRESSED {
        let whole = compressed(compression, &payload);
        let good = with_payload(&whole, compression, 1, 0);
        for bytes in [&whole[..whole.len() - 5], &[0xa5; 100], &[]] {
            match with_payload(bytes, compression, 1, 0).records(LIMIT) {
                Err(Error::Decompress { compression: c, .. }) => assert_eq!(c, compression),
                other => panic!("{compression}: {other:?}"),
            }
            // What a decoder keeps between batches does not remember the bad one.
            assert_eq!(good.records(LIMIT).unwrap().size_in_bytes(), payload.len());
        }
    }
}

#[test]
fn too_large_a_record_is_refused_and_leaves_the_batch_as_it_was() {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.push(1, None, Some(b"x"), &[]).unwrap();
    let estimate = builder.size_estimate();
    let chunk = vec![0; 64 << 20];
    let value = Some(&chunk[..]);
    let headers = vec![("h", value); 40];
    let error = builder.push(1, None, None, &headers).unwrap_err();
    assert!(
        matches!(error, Error::TooLarge { what: "record", .. }),
        "{error}"
    );
    assert_eq!((builder.size_estimate(), builder.len()), (estimate, 1));
    assert_eq!(builder.build().unwrap().len(), estimate);
}

#[test]
fn codec_names_are_kafkas() {
    for compression in Compression::ALL {
        assert_eq!(compression.to_string().parse(), Ok(compression));
        assert_eq!(
            Compression::from_code(compression.code()),
            Some(compression)
        );
        let theirs = format!("{:?}", their_codec(compression)).to_lowercase();
        assert_eq!(theirs, compression.name());
    }
    assert_eq!("LZ4".parse::<Compression>().unwrap_err().name, "LZ4");
}

fn any_bytes() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop::option::weighted(
        0.8,
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            (any::<u8>(), 0..20_000usize).prop_map(|(byte, length)| vec![byte; length]),
        ],
    )
}

fn any_record() -> impl Strategy<Value = Owned> {
    let timestamp = prop_oneof![
        Just(-1),
        Just(0),
        1_700_000_000_000..1_700_000_100_000i64,
        any::<i64>(),
    ];
    let header = (
        "[a-zü]{0,6}",
        prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
    );
    (
        timestamp,
        any_bytes(),
        any_bytes(),
        prop::collection::vec(header, 0..4),
    )
        .prop_map(|(timestamp, key, value, headers)| Owned {
            timestamp,
            key,
            value,
            headers,
        })
}

fn any_codec() -> impl Strategy<Value = Compression> {
    prop::sample::select(&Compression::ALL[..])
}

/// Reads whatever it is to the end.
fn read_hostile(bytes: &Bytes, limit: usize) {
    let ((), allocated) = allocated(|| {
        for batch in batches(bytes.clone()) {
            let Ok(batch) = batch else { continue };
            let _control = batch.control_type();
            if let Ok(records) = batch.records(limit) {
                let mut last = i64::MIN;
                for record in records.iter().flatten() {
                    assert!(record.offset > last);
                    last = record.offset;
                    assert_eq!(record.headers.iter().count(), record.headers.len());
                }
            }
        }
    });
    // An old and a new buffer while growing, and the codecs' own. (zstd's come from C and are not counted.)
    assert!(allocated.peak < 3 * limit + (16 << 20), "{allocated:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn batches_round_trip(
        records in prop::collection::vec(any_record(), 1..20),
        compression in any_codec(),
        base_offset in 0..i64::MAX - 100,
    ) {
        let mut bytes = build(compression, &records).to_vec();
        stamp(&mut bytes, base_offset, 5).unwrap();
        let batch = RecordBatch::parse(bytes.into()).unwrap();
        batch.check_crc().unwrap();
        prop_assert_eq!(read(&batch).unwrap(), records.clone());
        let read_back = batch.records(LIMIT).unwrap();
        let offsets = read_back.iter().map(|record| record.unwrap().offset);
        prop_assert!(offsets.eq(base_offset..base_offset + i64::try_from(records.len()).unwrap()));
    }

    #[test]
    fn random_bytes_never_panic_or_allocate_wildly(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        length in 0..300i32,
        codec in 0..8u8,
    ) {
        let mut bytes = bytes;
        // Most of the time far enough to be taken for a batch.
        if let Some(head) = bytes.get_mut(..61) {
            head[8..12].copy_from_slice(&length.to_be_bytes());
            head[16] = 2;
            head[22] = codec | (head[22] & 0xf8);
            head[23] &= 0x7f;
            head[57..59].fill(0);
            head[0] &= 0x7f;
        }
        read_hostile(&bytes.into(), 1 << 20);
    }

    #[test]
    fn mutated_batches_never_panic_or_allocate_wildly(
        records in prop::collection::vec(any_record(), 1..6),
        compression in any_codec(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = build(compression, &records).to_vec();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_hostile(&bytes.into(), 1 << 20);
    }

    #[test]
    fn mutated_payloads_never_panic_or_allocate_wildly(
        records in prop::collection::vec(any_record(), 1..6),
        compression in any_codec(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut payload = build(Compression::None, &records)[BatchHeader::LEN..].to_vec();
        for (index, byte) in changes {
            let at = index.index(payload.len());
            payload[at] = byte;
        }
        let count = i32::try_from(records.len()).unwrap();
        let payload = compressed(compression, &payload);
        read_hostile(with_payload(&payload, compression, count, count - 1).bytes(), 1 << 20);
    }
}
