//! Produce: what is appended as it came, and what is refused how.

use std::sync::{Arc, atomic::AtomicI64};

use broker_protocol::{
    messages::{
        InitProducerIdRequest, ProduceRequest,
        produce::{PartitionProduceData, PartitionProduceResponse},
    },
    record::{BatchBuilder, Compression, ControlType, TimestampType, control_batch},
};
use bytes::{BufMut, Bytes, BytesMut};

use crate::support::{
    StillClock, TestBroker, batch, batches_of, compressed, edited, fill, name, produce_request,
    sequenced, values_of,
};

#[tokio::test]
async fn batches_of_every_codec_come_back_as_they_were_sent() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let mut end = 0;
    for codec in Compression::ALL {
        let sent = compressed(codec, &["one", "two", "three"]);
        let base_offset = wire.append("orders", 0, sent.clone()).await;
        assert_eq!(base_offset, end);
        end += 3;
        let data = wire.fetch("orders", 0, base_offset).await;
        let batches = batches_of(&data);
        assert_eq!(batches.len(), 1);
        // All but base offset and leader epoch, which the CRC leaves out.
        assert_eq!(batches[0].bytes()[16..], sent[16..], "{codec:?}");
        assert_eq!(batches[0].header().base_offset, base_offset);
        let expected = ["one", "two", "three"].map(str::to_owned);
        let expected: Vec<_> = (base_offset..).zip(expected).collect();
        assert_eq!(values_of(&data), expected, "{codec:?}");
        assert_eq!(data.high_watermark, end);
    }
}

/// Sends one batch; the name of the code and the message of the answer.
async fn refused(broker: &TestBroker, topic: &str, records: Bytes) -> (&'static str, String) {
    let response = broker.connect().await.produce(topic, 0, records).await;
    assert_eq!(response.base_offset, -1);
    (
        name(response.error_code),
        response.error_message.unwrap().to_string(),
    )
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
async fn batches_that_are_not_right_are_refused_and_nothing_is_appended() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let good = batch(&["one", "two"]);
    let flipped = |at: usize| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1;
        Bytes::from(bytes)
    };
    let last = good.len() - 1;
    let count = |count: i32, delta: i32| {
        edited(&good, |bytes| {
            bytes[57..61].copy_from_slice(&count.to_be_bytes());
            bytes[23..27].copy_from_slice(&delta.to_be_bytes());
        })
    };
    let attributes = |attributes: u8| edited(&good, |bytes| bytes[22] = attributes);
    let length = |length: i32| {
        edited(&good, |bytes| {
            bytes[8..12].copy_from_slice(&length.to_be_bytes());
        })
    };
    let gzip = compressed(Compression::Gzip, &["one", "two"]);
    let mut torn_gzip = gzip.to_vec();
    torn_gzip[70] ^= 1;
    let control = control_batch(ControlType::Commit, 1, 0, 0, 0);
    for (what, records, code) in [
        (
            "a flipped bit in the last record",
            flipped(last),
            "CORRUPT_MESSAGE",
        ),
        ("a flipped bit in the time", flipped(30), "CORRUPT_MESSAGE"),
        (
            "a flipped bit in the checksum",
            flipped(18),
            "CORRUPT_MESSAGE",
        ),
        (
            "a flipped bit in compressed records",
            torn_gzip.into(),
            "CORRUPT_MESSAGE",
        ),
        ("no batch", Bytes::new(), "INVALID_RECORD"),
        (
            "a few bytes",
            Bytes::from_static(b"hello"),
            "CORRUPT_MESSAGE",
        ),
        ("a header cut short", good.slice(..40), "CORRUPT_MESSAGE"),
        ("a batch cut short", good.slice(..last), "CORRUPT_MESSAGE"),
        ("a length below zero", length(-1), "CORRUPT_MESSAGE"),
        ("a length below a header's", length(10), "CORRUPT_MESSAGE"),
        (
            "two batches",
            [&good[..], &good[..]].concat().into(),
            "INVALID_RECORD",
        ),
        (
            "a batch and a byte",
            [&good[..], &[0]].concat().into(),
            "INVALID_RECORD",
        ),
        (
            "format 0",
            edited(&good, |bytes| bytes[16] = 0),
            "INVALID_RECORD",
        ),
        (
            "format 1",
            edited(&good, |bytes| bytes[16] = 1),
            "INVALID_RECORD",
        ),
        (
            "format 3",
            edited(&good, |bytes| bytes[16] = 3),
            "INVALID_RECORD",
        ),
        ("codec 5", attributes(5), "UNSUPPORTED_COMPRESSION_TYPE"),
        ("codec 7", attributes(7), "UNSUPPORTED_COMPRESSION_TYPE"),
        ("a control batch", control.unwrap(), "INVALID_RECORD"),
        (
            "a transactional batch",
            attributes(0x10),
            "INVALID_TXN_STATE",
        ),
        (
            "a base offset",
            edited(&good, |bytes| bytes[7] = 9),
            "INVALID_RECORD",
        ),
        ("a count above the records", count(3, 2), "INVALID_RECORD"),
        ("a count below the records", count(1, 0), "INVALID_RECORD"),
        (
            "a count that is not the delta's",
            count(2, 5),
            "INVALID_RECORD",
        ),
        ("no records", count(0, -1), "INVALID_RECORD"),
        ("records below zero", count(-1, -2), "INVALID_RECORD"),
        (
            "a producer without sequence",
            sequenced(5, 0, -1, &["one"]),
            "INVALID_RECORD",
        ),
        (
            "a producer without epoch",
            sequenced(5, -1, 0, &["one"]),
            "INVALID_RECORD",
        ),
    ] {
        let (answered, message) = refused(&broker, "orders", records).await;
        assert_eq!(answered, code, "{what}: {message}");
        assert!(!message.is_empty(), "{what}");
    }
    assert_eq!(wire.fetch("orders", 0, 0).await.high_watermark, 0);
    assert_eq!(wire.append("orders", 0, good).await, 0);
}

#[tokio::test]
async fn a_null_batch_is_refused() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let mut request = produce_request("orders", 0, Bytes::new());
    request.topic_data[0].partition_data[0].records = None;
    let response = wire.call(&request, 9).await;
    assert_eq!(
        name(response.responses[0].partition_responses[0].error_code),
        "INVALID_RECORD"
    );
}

#[tokio::test]
async fn topics_and_partitions_that_are_not_there_are_named() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let long = "x".repeat(250);
    for (topic, partition, code) in [
        ("missing", 0, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("orders", 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("orders", -1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("orders", i32::MAX, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("..", 0, "INVALID_TOPIC_EXCEPTION"),
        ("../orders", 0, "INVALID_TOPIC_EXCEPTION"),
        ("a/b", 0, "INVALID_TOPIC_EXCEPTION"),
        ("", 0, "INVALID_TOPIC_EXCEPTION"),
        (&long, 0, "INVALID_TOPIC_EXCEPTION"),
    ] {
        let response = wire.produce(topic, partition, batch(&["x"])).await;
        assert_eq!(name(response.error_code), code, "{topic}-{partition}");
    }
}

#[tokio::test]
async fn one_bad_partition_does_not_hold_up_the_others() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    let mut request = produce_request("orders", 0, Bytes::from_static(b"garbage"));
    request.topic_data[0]
        .partition_data
        .push(PartitionProduceData {
            index: 1,
            records: Some(batch(&["x"])),
        });
    let response = wire.call(&request, 9).await;
    let codes: Vec<_> = response.responses[0]
        .partition_responses
        .iter()
        .map(|p| name(p.error_code))
        .collect();
    assert_eq!(codes, ["CORRUPT_MESSAGE", "NONE"]);
    assert_eq!(wire.fetch("orders", 1, 0).await.high_watermark, 1);
}

#[tokio::test]
async fn batches_above_the_topics_limit_are_too_large() {
    let broker = TestBroker::start_with(|config| {
        config.max_message_bytes = bytesize::ByteSize::b(200);
    })
    .await;
    let mut wire = broker.connect().await;
    wire.create_topic("small", 1).await;
    wire.create_topic_with("large", 1, &[("max.message.bytes", "2000000")])
        .await;
    wire.create_topic_with(
        "segments",
        1,
        &[("max.message.bytes", "3000"), ("segment.bytes", "1024")],
    )
    .await;
    let value = "x".repeat(1500);
    let large = batch(&[&value]);
    assert_eq!(
        refused(&broker, "small", large.clone()).await.0,
        "MESSAGE_TOO_LARGE"
    );
    assert_eq!(
        refused(&broker, "segments", large.clone()).await.0,
        "RECORD_LIST_TOO_LARGE"
    );
    assert_eq!(wire.append("large", 0, large).await, 0);
    assert_eq!(wire.append("small", 0, batch(&["x"])).await, 0);
}

#[tokio::test]
async fn a_repeated_idempotent_batch_gets_its_first_offset_and_a_gap_is_out_of_order() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    assert_eq!(wire.append("orders", 0, batch(&["before"])).await, 0);
    for sequence in 0..5 {
        let sent = sequenced(77, 0, sequence * 2, &["a", "b"]);
        assert_eq!(
            wire.append("orders", 0, sent).await,
            i64::from(1 + sequence * 2)
        );
    }
    for sequence in 0..5 {
        let sent = sequenced(77, 0, sequence * 2, &["a", "b"]);
        assert_eq!(
            wire.append("orders", 0, sent).await,
            i64::from(1 + sequence * 2)
        );
    }
    assert_eq!(wire.fetch("orders", 0, 0).await.high_watermark, 11);
    let gap = refused(&broker, "orders", sequenced(77, 0, 12, &["c"]))
        .await
        .0;
    assert_eq!(gap, "OUT_OF_ORDER_SEQUENCE_NUMBER");
    assert_eq!(
        wire.append("orders", 0, sequenced(77, 1, 0, &["new epoch"]))
            .await,
        11
    );
    let fenced = refused(&broker, "orders", sequenced(77, 0, 10, &["c"]))
        .await
        .0;
    assert_eq!(fenced, "INVALID_PRODUCER_EPOCH");
}

#[tokio::test]
async fn producer_ids_are_never_given_twice_even_over_a_restart() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    let request = InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: 1000,
        ..InitProducerIdRequest::default()
    };
    let mut ids = Vec::new();
    for version in [0, 1, 2, 3, 4] {
        let response = wire.call(&request, version).await;
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        ids.push(response.producer_id);
    }
    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    ids.push(broker.connect().await.call(&request, 4).await.producer_id);
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
}

#[tokio::test]
async fn transactions_are_refused_in_so_many_words() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let request = InitProducerIdRequest {
        transactional_id: Some("tx".into()),
        transaction_timeout_ms: 1000,
        ..InitProducerIdRequest::default()
    };
    let response = wire.call(&request, 4).await;
    assert_eq!(
        (name(response.error_code), response.producer_id),
        ("UNSUPPORTED_VERSION", -1)
    );
    let mut request = produce_request("orders", 0, batch(&["x"]));
    request.transactional_id = Some("tx".into());
    let response = wire.call(&request, 9).await;
    let response = &response.responses[0].partition_responses[0];
    assert_eq!(name(response.error_code), "UNSUPPORTED_VERSION");
    assert_eq!(wire.fetch("orders", 0, 0).await.high_watermark, 0);
}

#[tokio::test]
async fn without_acknowledgement_there_is_no_answer() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let request = ProduceRequest {
        acks: 0,
        ..produce_request("orders", 0, batch(&["x"]))
    };
    wire.send(&request, 9).await;
    // The next answer is the fetch's, and the record is there.
    assert_eq!(
        values_of(&wire.fetch("orders", 0, 0).await),
        [(0, "x".to_owned())]
    );
}

#[tokio::test]
async fn without_acknowledgement_an_error_closes_the_connection() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    let request = ProduceRequest {
        acks: 0,
        ..produce_request("missing", 0, batch(&["x"]))
    };
    wire.send(&request, 9).await;
    wire.assert_closed().await;
}

#[tokio::test]
async fn acknowledgements_are_zero_one_or_all() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.create_topic_with("safe", 1, &[("min.insync.replicas", "2")])
        .await;
    for (topic, acks, code) in [
        ("orders", 1, "NONE"),
        ("orders", -1, "NONE"),
        ("orders", 2, "INVALID_REQUIRED_ACKS"),
        ("orders", -2, "INVALID_REQUIRED_ACKS"),
        ("safe", 1, "NONE"),
        ("safe", -1, "NOT_ENOUGH_REPLICAS"),
    ] {
        let request = ProduceRequest {
            acks,
            ..produce_request(topic, 0, batch(&["x"]))
        };
        let response = wire.call(&request, 9).await;
        let answered = name(response.responses[0].partition_responses[0].error_code);
        assert_eq!(answered, code, "{topic} acks={acks}");
    }
}

#[tokio::test]
async fn a_compacted_topic_refuses_records_without_a_key_by_index() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("table", 1, &[("cleanup.policy", "compact")])
        .await;
    for codec in [Compression::None, Compression::Zstd] {
        let mut builder = BatchBuilder::new(codec);
        builder.push(1, Some(b"k"), Some(b"v"), &[]).unwrap();
        builder.push(2, None, Some(b"v"), &[]).unwrap();
        let response = wire.produce("table", 0, builder.build().unwrap()).await;
        assert_eq!(name(response.error_code), "INVALID_RECORD");
        let indexes: Vec<_> = response
            .record_errors
            .iter()
            .map(|e| e.batch_index)
            .collect();
        assert_eq!(indexes, [1], "{codec:?}");
    }
    let mut builder = BatchBuilder::new(Compression::Lz4);
    builder.push(1, Some(b"k"), None, &[]).unwrap();
    assert_eq!(wire.append("table", 0, builder.build().unwrap()).await, 0);
}

#[tokio::test]
async fn log_append_time_is_the_brokers_and_the_checksum_fits() {
    let clock = Arc::new(StillClock(AtomicI64::new(5_000_000)));
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let broker = TestBroker::start_clocked(folder, |_| {}, clock).await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("clicks", 1, &[("message.timestamp.type", "LogAppendTime")])
        .await;
    let response = wire
        .produce("clicks", 0, compressed(Compression::Snappy, &["a", "b"]))
        .await;
    assert_eq!(
        (response.error_code, response.log_append_time_ms),
        (0, 5_000_000)
    );
    let data = wire.fetch("clicks", 0, 0).await;
    let batches = batches_of(&data);
    assert_eq!(
        batches[0].header().timestamp_type(),
        TimestampType::LogAppendTime
    );
    assert_eq!(batches[0].header().max_timestamp, 5_000_000);
    assert_eq!(values_of(&data).len(), 2);
}

#[tokio::test]
async fn zstd_needs_the_version_that_knows_it() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let request = produce_request("orders", 0, compressed(Compression::Zstd, &["x"]));
    for (version, code) in [
        (3, "UNSUPPORTED_COMPRESSION_TYPE"),
        (6, "UNSUPPORTED_COMPRESSION_TYPE"),
        (7, "NONE"),
    ] {
        let response = wire.call(&request, version).await;
        let partition: &PartitionProduceResponse = &response.responses[0].partition_responses[0];
        assert_eq!(name(partition.error_code), code, "version {version}");
    }
}

#[tokio::test]
async fn versions_below_three_are_refused_in_their_own_form() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    for version in 0_i16..=2 {
        let mut body = BytesMut::new();
        body.put_i16(0);
        body.put_i16(version);
        body.put_i32(100 + i32::from(version));
        body.put_i16(-1);
        body.put_i16(1);
        body.put_i32(1000);
        body.put_i32(1);
        body.put_i16(6);
        body.put_slice(b"orders");
        body.put_i32(1);
        body.put_i32(3);
        body.put_i32(5);
        body.put_slice(b"bytes");
        let mut frame = BytesMut::new();
        frame.put_u32(body.len().try_into().unwrap());
        frame.put_slice(&body);
        wire.raw(&frame).await;

        let mut expected = BytesMut::new();
        expected.put_i32(100 + i32::from(version));
        expected.put_i32(1);
        expected.put_i16(6);
        expected.put_slice(b"orders");
        expected.put_i32(1);
        expected.put_i32(3);
        expected.put_i16(35);
        expected.put_i64(-1);
        if version == 2 {
            expected.put_i64(-1);
        }
        if version >= 1 {
            expected.put_i32(0);
        }
        assert_eq!(wire.frame().await, expected, "version {version}");
    }
}

#[tokio::test]
async fn producers_on_many_connections_lose_and_double_nothing() {
    let broker = TestBroker::start().await;
    broker.connect().await.create_topic("orders", 1).await;
    let mut producers = Vec::new();
    for producer in 0..8 {
        let mut wire = broker.connect().await;
        producers.push(async move {
            for number in 0..50 {
                let value = format!("{producer}/{number}");
                let records = fill(BatchBuilder::new(Compression::None), &[&value]);
                wire.append("orders", 0, records).await;
            }
        });
    }
    let mut tasks = tokio::task::JoinSet::new();
    for producer in producers {
        tasks.spawn(producer);
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let values = values_of(&broker.connect().await.fetch("orders", 0, 0).await);
    let offsets: Vec<_> = values.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, (0..400).collect::<Vec<_>>());
    for producer in 0..8 {
        let prefix = format!("{producer}/");
        let own = values
            .iter()
            .filter_map(|(_, value)| value.strip_prefix(&prefix));
        let own: Vec<u32> = own.map(|number| number.parse().unwrap()).collect();
        assert_eq!(
            own,
            (0..50).collect::<Vec<_>>(),
            "order of producer {producer}"
        );
    }
}
