//! Bytes that are no request, clients that stall, and a handler that panics: each ends one connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use broker_protocol::{
    frame,
    messages::{ApiVersionsRequest, ApiVersionsResponse, FetchRequest, MetadataRequest},
};
use broker_server::Clock;
use bytes::{BufMut, BytesMut};
use bytesize::ByteSize;
use tokio::io::AsyncWriteExt;

use crate::support::{TestBroker, batch, fetch_request, name, produce_request, values_of};

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::from(u32::try_from(body.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

/// Key, version, correlation id 7, null client id, and what follows.
fn request(key: i16, version: i16, rest: &[u8]) -> Vec<u8> {
    let mut body = BytesMut::new();
    body.put_i16(key);
    body.put_i16(version);
    body.put_i32(7);
    body.put_i16(-1);
    body.put_slice(rest);
    framed(&body)
}

#[tokio::test]
async fn bytes_that_are_no_request_close_their_connection_only() {
    let broker = TestBroker::start_with(|config| {
        config.max_request_bytes = ByteSize::mib(2);
    })
    .await;
    let mut bystander = broker.connect().await;
    bystander.create_topic("orders", 1).await;
    let length = |length: i32| length.to_be_bytes().to_vec();
    // A Metadata request whose array says 2^31 - 1 entries: kafka-protocol asked for 19 GB here.
    let huge_array = request(3, 1, &i32::MAX.to_be_bytes());
    let huge_compact = request(3, 9, &[0, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    for (what, bytes) in [
        ("a length above the limit", length((2 << 20) + 1)),
        ("the largest length", length(i32::MAX)),
        ("a negative length", length(-1)),
        ("the smallest length", length(i32::MIN)),
        ("an empty frame", length(0)),
        ("a frame below a header", framed(&[0, 18, 0, 0])),
        ("text", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        (
            "a TLS hello",
            vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc],
        ),
        ("an API nobody knows", request(9999, 0, &[])),
        ("an API below zero", request(-1, 0, &[])),
        ("a join without a body", request(11, 0, &[])),
        ("a version too new", request(3, 14, &[0; 20])),
        ("a version below zero", request(3, -1, &[0; 20])),
        ("a fetch too old", request(1, 3, &[0; 40])),
        (
            "a client id beyond the frame",
            framed(&[0, 3, 0, 1, 0, 0, 0, 7, 0x7f, 0xff]),
        ),
        (
            "a client id of negative length",
            framed(&[0, 3, 0, 1, 0, 0, 0, 7, 0xff, 0xf0]),
        ),
        ("a body cut short", request(3, 1, &[0, 0])),
        ("an array as long as a number can be", huge_array),
        ("a compact array as long as a number can be", huge_compact),
        (
            "a name that is not UTF-8",
            request(3, 1, &[0, 0, 0, 1, 0, 2, 0xff, 0xfe]),
        ),
    ] {
        let mut wire = broker.connect().await;
        wire.raw(&bytes).await;
        wire.stream.shutdown().await.ok();
        wire.assert_closed().await;
        assert_eq!(
            bystander.list_offset("orders", 0, -1).await.error_code,
            0,
            "after {what}"
        );
    }
}

#[tokio::test]
async fn random_bytes_never_disturb_other_connections() {
    let broker = TestBroker::start().await;
    let mut bystander = broker.connect().await;
    bystander.create_topic("orders", 1).await;
    // A generator of our own: the same bytes in each run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let keys = [0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 35, 37, 60];
    for round in 0..400 {
        let length = usize::try_from(next() % 200).unwrap();
        let noise: Vec<u8> = (0..length).map(|_| next().to_le_bytes()[0]).collect();
        let key = keys[usize::try_from(next() % 14).unwrap()];
        let version = i16::try_from(next() % 14).unwrap();
        let mut wire = broker.connect().await;
        wire.raw(&request(key, version, &noise)).await;
        wire.stream.shutdown().await.ok();
        let mut answer = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut wire.stream, &mut answer);
        let ended = tokio::time::timeout(crate::support::PATIENCE, read).await;
        assert!(
            ended.is_ok(),
            "round {round}: {key} version {version} hangs"
        );
    }
    assert_eq!(bystander.append("orders", 0, batch(&["x"])).await, 0);
}

#[tokio::test]
async fn an_api_versions_request_too_new_is_answered_with_the_range() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    for version in [5, 99] {
        wire.raw(&request(18, version, &[0, 1, 2, 3])).await;
        let (id, response) =
            frame::decode_response::<ApiVersionsResponse>(wire.frame().await, 0).unwrap();
        assert_eq!((id, name(response.error_code)), (7, "UNSUPPORTED_VERSION"));
        let row = response
            .api_keys
            .iter()
            .find(|row| row.api_key == 18)
            .unwrap();
        assert_eq!((row.min_version, row.max_version), (0, 4));
    }
    // The connection lives on.
    let request = ApiVersionsRequest {
        client_software_name: "test".into(),
        client_software_version: "1.0".into(),
    };
    assert_eq!(wire.call(&request, 4).await.error_code, 0);
    let unnamed = ApiVersionsRequest::default();
    assert_eq!(
        name(wire.call(&unnamed, 3).await.error_code),
        "INVALID_REQUEST"
    );
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        let waiting = FetchRequest {
            max_wait_ms: 20,
            ..fetch_request("orders", 0, 0)
        };
        ids.push((1, wire.send(&waiting, 12).await));
        ids.push((3, wire.send(&MetadataRequest::default(), 9).await));
    }
    for (key, id) in ids {
        let answered = if key == 1 {
            wire.receive::<FetchRequest>(12).await.0
        } else {
            wire.receive::<MetadataRequest>(9).await.0
        };
        assert_eq!(answered, id);
    }
}

#[tokio::test]
async fn a_request_may_come_byte_by_byte_and_many_in_one_piece() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.stream.set_nodelay(true).unwrap();
    let one = request(18, 0, &[]);
    for byte in &one {
        wire.raw(&[*byte]).await;
        tokio::task::yield_now().await;
    }
    wire.raw(&one.repeat(50)).await;
    for _ in 0..51 {
        let answer = frame::decode_response::<ApiVersionsResponse>(wire.frame().await, 0).unwrap();
        assert_eq!(answer.0, 7);
    }
}

#[tokio::test]
async fn clients_that_stall_or_idle_are_closed() {
    let broker = TestBroker::start_with(|config| {
        config.request_read_timeout = Duration::from_millis(100);
        config.idle_timeout = Duration::from_millis(600);
    })
    .await;
    for sent in [
        &[0_u8, 0][..],
        &[0, 0, 0, 100, 0, 3],
        &[0, 0x10, 0, 0, 0, 3],
    ] {
        let mut wire = broker.connect().await;
        wire.raw(sent).await;
        wire.assert_closed().await;
    }
    let began = std::time::Instant::now();
    broker.connect().await.assert_closed().await;
    assert!(
        began.elapsed() >= Duration::from_millis(600),
        "closed before it was idle for long"
    );
}

/// More of 900 kB than the sockets of both sides hold.
const ANSWERS: usize = 40;

#[tokio::test]
async fn a_client_that_reads_nothing_is_closed_and_gives_its_place_back() {
    let broker = TestBroker::start_with(|config| {
        config.max_connections = 2;
        config.idle_timeout = Duration::from_millis(600);
    })
    .await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let large = batch(&[&"x".repeat(900_000)]);
    wire.append("orders", 0, large).await;
    let mut slow = broker.connect().await;
    for _ in 0..ANSWERS {
        slow.send(&fetch_request("orders", 0, 0), 12).await;
    }
    // Its place is the only one to be had: it is free once the slow one has been closed.
    let closed = async {
        loop {
            let mut next = broker.connect().await;
            // The other one must not be idle meanwhile.
            wire.list_offset("orders", 0, -1).await;
            if next.stream.write_all(&request(18, 0, &[])).await.is_ok() && next.try_frame().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let closed = tokio::time::timeout(crate::support::PATIENCE, closed).await;
    assert!(closed.is_ok(), "the slow client keeps its place");
    let mut sent = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut slow.stream, &mut sent);
    let read = tokio::time::timeout(crate::support::PATIENCE, read).await;
    assert!(read.is_ok(), "the slow client is still answered");
    assert!(sent.len() < ANSWERS * 900_000, "nothing was held up");
}

#[tokio::test]
async fn connections_above_the_limit_are_turned_away() {
    let broker = TestBroker::start_with(|config| config.max_connections = 2).await;
    let mut first = broker.connect().await;
    let mut second = broker.connect().await;
    for wire in [&mut first, &mut second] {
        wire.call(&MetadataRequest::default(), 9).await;
    }
    broker.connect().await.assert_closed().await;
    first.call(&MetadataRequest::default(), 9).await;
}

#[tokio::test]
async fn requests_wait_for_the_bytes_in_flight_and_all_are_served() {
    let broker = TestBroker::start_with(|config| {
        config.max_message_bytes = ByteSize::kib(900);
        config.max_request_bytes = ByteSize::kib(1000);
        config.request_bytes_in_flight = ByteSize::kib(1000);
    })
    .await;
    broker.connect().await.create_topic("orders", 1).await;
    // Announces a request of the whole budget and keeps it waiting: it holds the permit for its bytes.
    let mut holder = broker.connect().await;
    holder.raw(&1_024_000_i32.to_be_bytes()).await;
    holder.raw(&[0; 10]).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Small requests pass: nobody is kept from asking for metadata.
    let mut small = broker.connect().await;
    small.call(&MetadataRequest::default(), 9).await;
    let mut wire = broker.connect().await;
    let large = "x".repeat(800_000);
    wire.send(&produce_request("orders", 0, batch(&[&large])), 9)
        .await;
    let early = tokio::time::timeout(Duration::from_millis(200), wire.stream.readable()).await;
    assert!(early.is_err(), "served beyond the bytes in flight");
    drop(holder);
    let (_, response) = wire
        .receive::<broker_protocol::messages::ProduceRequest>(9)
        .await;
    assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
}

/// A clock that breaks when told to.
#[derive(Debug, Default)]
struct BrokenClock(AtomicBool);

impl Clock for BrokenClock {
    fn now_ms(&self) -> i64 {
        assert!(
            !self.0.load(Ordering::SeqCst),
            "the clock is broken, as a test"
        );
        1
    }
}

#[tokio::test]
async fn a_panic_in_a_handler_closes_its_connection_only() {
    let clock = Arc::new(BrokenClock::default());
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let broker =
        TestBroker::start_clocked(folder, |_| {}, Arc::clone(&clock) as Arc<dyn Clock>).await;
    let mut bystander = broker.connect().await;
    bystander.create_topic("orders", 1).await;
    clock.0.store(true, Ordering::SeqCst);
    let mut wire = broker.connect().await;
    wire.send(&produce_request("orders", 0, batch(&["x"])), 9)
        .await;
    wire.assert_closed().await;
    clock.0.store(false, Ordering::SeqCst);
    bystander.append("orders", 0, batch(&["y"])).await;
    assert_eq!(
        values_of(&bystander.fetch("orders", 0, 0).await),
        [(0, "y".to_owned())]
    );
    broker.stop().await;
}
