//! Requests that are under way together: read, appended and answered together, yet each by itself.

use broker_protocol::{
    frame,
    messages::{FetchRequest, MetadataRequest, ProduceRequest, Request, fetch::FetchTopic},
};
use bytes::{Bytes, BytesMut};

use crate::support::{
    TestBroker, Wire, batch, edited, fetch_topic, name, produce_request, read_all, sequenced,
    values_of,
};

const VERSION: i16 = 9;

/// Sends requests with one write.
async fn send_together<R: Request>(wire: &mut Wire, requests: &[R]) {
    let mut bytes = BytesMut::new();
    for (correlation_id, request) in (0..).zip(requests) {
        frame::encode_request(&mut bytes, request, VERSION, correlation_id, None).unwrap();
    }
    wire.raw(&bytes).await;
}

/// The next answer: the error and base offset of its only partition.
async fn produced(wire: &mut Wire, correlation_id: i32) -> (&'static str, i64) {
    let (id, response) = wire.receive::<ProduceRequest>(VERSION).await;
    assert_eq!(id, correlation_id);
    let answer = &response.responses[0].partition_responses[0];
    (name(answer.error_code), answer.base_offset)
}

#[tokio::test]
async fn each_of_many_together_has_its_own_answer() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    let bad = edited(&batch(&["x"]), |bytes| bytes[22] = 7);
    let first = || sequenced(7, 0, 0, &["c", "d"]);
    let requests = [
        produce_request("orders", 0, batch(&["a", "b"])),
        produce_request("orders", 1, batch(&["other"])),
        produce_request("nowhere", 0, batch(&["x"])),
        produce_request("orders", 0, first()),
        produce_request("orders", 0, bad),
        produce_request("orders", 0, first()),
        produce_request("orders", 0, sequenced(7, 0, 5, &["gap"])),
        produce_request("orders", 0, sequenced(7, 0, 2, &["e"])),
    ];
    send_together(&mut wire, &requests).await;
    let expected = [
        ("NONE", 0),
        ("NONE", 0),
        ("UNKNOWN_TOPIC_OR_PARTITION", -1),
        ("NONE", 2),
        ("UNSUPPORTED_COMPRESSION_TYPE", -1),
        ("NONE", 2),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", -1),
        ("NONE", 4),
    ];
    for (correlation_id, expected) in (0..).zip(expected) {
        assert_eq!(
            produced(&mut wire, correlation_id).await,
            expected,
            "{correlation_id}"
        );
    }
    let values: Vec<_> = values_of(&wire.fetch("orders", 0, 0).await);
    let values: Vec<_> = values.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn other_requests_between_them_are_answered_in_their_turn() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let mut bytes = BytesMut::new();
    let produce = |value| produce_request("orders", 0, batch(&[value]));
    frame::encode_request(&mut bytes, &produce("a"), VERSION, 0, None).unwrap();
    let metadata = MetadataRequest::default();
    frame::encode_request(&mut bytes, &metadata, VERSION, 1, None).unwrap();
    frame::encode_request(&mut bytes, &produce("b"), VERSION, 2, None).unwrap();
    wire.raw(&bytes).await;
    assert_eq!(produced(&mut wire, 0).await, ("NONE", 0));
    assert_eq!(wire.receive::<MetadataRequest>(VERSION).await.0, 1);
    assert_eq!(produced(&mut wire, 2).await, ("NONE", 1));
}

#[tokio::test]
async fn what_came_before_a_request_that_is_none_is_appended_and_answered() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let mut unanswered = produce_request("nowhere", 0, batch(&["x"]));
    unanswered.acks = 0;
    let good = produce_request("orders", 0, batch(&["a"]));
    send_together(&mut wire, &[good.clone(), unanswered]).await;
    assert_eq!(produced(&mut wire, 0).await, ("NONE", 0));
    wire.assert_closed().await;

    let mut wire = broker.connect().await;
    let mut bytes = BytesMut::new();
    frame::encode_request(&mut bytes, &good, VERSION, 0, None).unwrap();
    let whole = bytes.len();
    frame::encode_request(&mut bytes, &good, VERSION, 1, None).unwrap();
    // More partitions than there are.
    bytes[whole + 30..whole + 40].fill(0xff);
    wire.raw(&bytes).await;
    assert_eq!(produced(&mut wire, 0).await, ("NONE", 1));
    wire.assert_closed().await;
}

/// Sizes around those at which buffers change, in an order that changes them often.
const SIZES: [usize; 14] = [
    1, 16_000, 70_000, 2, 16_300, 262_000, 3, 262_144, 900_000, 65_536, 16_384, 400_000, 400_001, 5,
];

#[tokio::test]
async fn requests_of_all_sizes_are_read_whole_however_they_arrive() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let values = SIZES.map(|size| "v".repeat(size));
    let requests = values
        .each_ref()
        .map(|value| produce_request("orders", 0, batch(&[value])));
    let mut bytes = BytesMut::new();
    for (correlation_id, request) in (0..).zip(&requests) {
        frame::encode_request(&mut bytes, request, VERSION, correlation_id, None).unwrap();
    }
    // All at once; and again in pieces that end anywhere.
    for step in [bytes.len(), 100_003, 7_919] {
        for piece in bytes.chunks(step) {
            wire.raw(piece).await;
        }
        for correlation_id in 0..i32::try_from(SIZES.len()).unwrap() {
            assert_eq!(produced(&mut wire, correlation_id).await.0, "NONE");
        }
    }
    let read = read_all(&mut broker.connect().await, "orders", 0).await;
    let lengths: Vec<_> = read.iter().map(|(_, value)| value.len()).collect();
    assert_eq!(lengths, SIZES.repeat(3));
}

/// Partitions of which some give little and some much, so that an answer is in memory here and in a file there.
#[tokio::test]
async fn an_answer_from_memory_and_files_is_one_answer() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 5).await;
    let sizes = [10, 600_000, 0, 300_000, 31_000];
    let sent = sizes.map(|size| batch(&[&"v".repeat(size)]));
    for (partition, batch) in (0..).zip(&sent) {
        if sizes[usize::try_from(partition).unwrap()] > 0 {
            wire.append("orders", partition, batch.clone()).await;
        }
    }
    let all = |topic: FetchTopic| FetchRequest {
        max_wait_ms: 0,
        min_bytes: 1,
        max_bytes: 1 << 24,
        topics: vec![topic],
        ..FetchRequest::default()
    };
    let request = all(fetch_topic(
        "orders",
        &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)],
    ));
    for version in [4, 7, 11, 12] {
        let response = wire.call(&request, version).await;
        let answers = &response.responses[0].partitions;
        assert_eq!(answers.len(), 5);
        for ((answer, sent), size) in answers.iter().zip(&sent).zip(sizes) {
            let records: Bytes = answer.records.clone().unwrap().into_bytes();
            let expected = if size > 0 { &sent[16..] } else { &[] };
            let records = records.get(16..).unwrap_or_default();
            assert!(records == expected, "version {version}, {size} bytes");
        }
    }
}
