//! One connection and a peer that cuts, garbles, delays or exaggerates.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use broker_protocol::ByteString;
use broker_protocol::messages::api_versions::ApiVersion;
use broker_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use broker_protocol::messages::{
    ApiKey, ApiVersionsResponse, FetchResponse, MetadataRequest, MetadataResponse, ProduceRequest,
    ProduceResponse,
};
use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::peer::{Incoming, Peer, Reaction};
use crate::connection::{Connection, Settings};
use crate::error::{Error, Result};
use crate::tasks::Tasks;
use crate::versions::ANY;

const LIMIT: Duration = Duration::from_secs(5);
const CAP: usize = 1 << 20;

async fn open_at(address: &str) -> Result<Connection> {
    let settings = Settings {
        client_id: ByteString::from_static("test"),
        tls: None,
        login: None,
        connect_timeout: LIMIT,
        max_response_bytes: CAP,
    };
    Connection::open(Arc::from(address), &settings, &Tasks::new()).await
}

/// A connection to a peer that reacts to Metadata requests in this way.
async fn open(
    script: impl Fn(&Incoming) -> Reaction + Send + Sync + 'static,
) -> (Peer, Connection) {
    let peer =
        Peer::start(move |incoming| (incoming.key() == ApiKey::Metadata).then(|| script(incoming)))
            .await;
    let connection = open_at(&peer.address).await.unwrap();
    (peer, connection)
}

async fn ask(connection: &Connection, limit: Duration) -> Result<MetadataResponse> {
    connection
        .call(&ANY, limit, |_| MetadataRequest::default())
        .await
}

fn response(controller_id: i32) -> MetadataResponse {
    MetadataResponse {
        controller_id,
        ..Default::default()
    }
}

#[tokio::test]
async fn cut_in_mid_response_fails_the_call_and_all_later_ones() {
    let (_peer, connection) = open(|incoming| {
        let frame = incoming.frame(&response(1));
        Reaction::WriteAndClose(frame.slice(..frame.len() - 1))
    })
    .await;
    let error = ask(&connection, LIMIT).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Disconnected {
                source: Some(_),
                ..
            }
        ),
        "{error:?}"
    );
    assert!(!connection.is_healthy());
    let error = ask(&connection, LIMIT).await.unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error:?}");
}

#[tokio::test]
async fn close_between_frames_is_noticed_without_a_call() {
    let (_peer, connection) =
        open(|incoming| Reaction::WriteAndClose(incoming.frame(&response(1)))).await;
    assert_eq!(ask(&connection, LIMIT).await.unwrap().controller_id, 1);
    tokio::time::timeout(LIMIT, async {
        while connection.is_healthy() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("the close is noticed");
}

#[tokio::test]
async fn garbage_is_a_protocol_error_that_poisons() {
    for garbage in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        &[0xff; 8],
        &[0, 0, 0, 2, 1, 2],
    ] {
        let (_peer, connection) =
            open(move |_| Reaction::Write(Bytes::copy_from_slice(garbage))).await;
        let error = ask(&connection, LIMIT).await.unwrap_err();
        let expected = if garbage.starts_with(b"HTTP") {
            matches!(error, Error::ResponseTooLarge { .. })
        } else {
            matches!(error, Error::Protocol { .. })
        };
        assert!(expected, "{error:?}");
        assert!(!connection.is_healthy());
    }
}

#[tokio::test]
async fn frame_that_does_not_decode_poisons() {
    let (_peer, connection) = open(|incoming| {
        let mut frame = BytesMut::new();
        frame.put_i32(4 + 3);
        frame.put_i32(incoming.header.correlation_id);
        frame.put_slice(&[0xff; 3]);
        Reaction::Write(frame.freeze())
    })
    .await;
    let error = ask(&connection, LIMIT).await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    assert!(!connection.is_healthy());
}

#[tokio::test]
async fn answer_of_another_request_poisons() {
    let (_peer, connection) = open(|incoming| {
        let mut frame = incoming.frame(&response(1)).to_vec();
        frame[7] ^= 1;
        Reaction::Write(frame.into())
    })
    .await;
    let error = ask(&connection, LIMIT).await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    assert!(!connection.is_healthy());
}

#[tokio::test]
async fn oversize_frame_is_refused_before_it_is_read() {
    let (_peer, connection) = open(|_| {
        let mut frame = BytesMut::new();
        frame.put_i32(i32::try_from(CAP).unwrap() + 1);
        Reaction::Write(frame.freeze())
    })
    .await;
    let (first, second) = tokio::join!(ask(&connection, LIMIT), ask(&connection, LIMIT));
    let first = first.unwrap_err();
    let Error::ResponseTooLarge { size, cap, .. } = first else {
        panic!("{first:?}")
    };
    assert_eq!((size, cap), (CAP + 1, CAP));
    let second = second.unwrap_err();
    assert!(
        matches!(second, Error::Disconnected { .. }),
        "not its fault: {second:?}"
    );
}

#[tokio::test]
async fn slow_answer_times_out_and_poisons() {
    let (_peer, connection) =
        open(|incoming| Reaction::Later(Duration::from_secs(60), incoming.frame(&response(1))))
            .await;
    let error = ask(&connection, Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoAnswer {
                operation: "MetadataRequest",
                ..
            }
        ),
        "{error:?}"
    );
    assert!(!connection.is_healthy());
}

#[tokio::test]
async fn answers_reach_their_calls_in_order() {
    let count = AtomicUsize::new(0);
    let (_peer, connection) = open(move |incoming| {
        let nth = count.fetch_add(1, Ordering::SeqCst);
        incoming.answer(&response(i32::try_from(nth).unwrap()))
    })
    .await;
    let calls = (0..50).map(|_| ask(&connection, LIMIT));
    let answers = futures::future::join_all(calls).await;
    let found: Vec<i32> = answers
        .into_iter()
        .map(|answer| answer.unwrap().controller_id)
        .collect();
    assert_eq!(found, (0..50).collect::<Vec<_>>());
}

#[tokio::test]
async fn answer_of_a_dropped_call_is_thrown_away() {
    let count = AtomicUsize::new(0);
    let (peer, connection) = open(move |incoming| {
        let nth = count.fetch_add(1, Ordering::SeqCst);
        let frame = incoming.frame(&response(i32::try_from(nth).unwrap()));
        Reaction::Later(Duration::from_millis(500), frame)
    })
    .await;
    let dropped = tokio::time::timeout(Duration::from_millis(20), ask(&connection, LIMIT)).await;
    assert!(dropped.is_err());
    assert!(
        !connection.is_idle(),
        "its place is kept until the answer has come"
    );
    assert_eq!(ask(&connection, LIMIT).await.unwrap().controller_id, 1);
    assert!(connection.is_idle() && connection.is_healthy());
    assert_eq!(peer.connections(), 1);
}

#[tokio::test]
async fn dropped_call_that_hangs_is_noticed_by_the_next() {
    let (_peer, connection) = open(|_| Reaction::Ignore).await;
    let limit = Duration::from_millis(500);
    let dropped = tokio::time::timeout(Duration::from_millis(10), ask(&connection, limit)).await;
    assert!(dropped.is_err());
    tokio::time::sleep(limit).await;
    let error = ask(&connection, LIMIT).await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
}

/// The peer reads nothing while the first frame is being written, so the socket takes only a part of
/// it; the call is dropped there.
#[tokio::test]
async fn call_dropped_in_mid_frame_leaves_whole_frames() {
    const BODY: usize = 16 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (go_on, may_read) = tokio::sync::oneshot::channel::<()>();
    let peer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let handshake = next(&mut stream).await;
        let api = |api_key| ApiVersion {
            api_key,
            min_version: 3,
            max_version: 9,
        };
        let api_keys = vec![api(0), api(3)];
        let versions = ApiVersionsResponse {
            api_keys,
            ..Default::default()
        };
        stream.write_all(&handshake.frame(&versions)).await.unwrap();
        may_read.await.unwrap();
        let produce = next(&mut stream).await;
        assert!(produce.body.len() > BODY);
        stream
            .write_all(&produce.frame(&ProduceResponse::default()))
            .await
            .unwrap();
        let metadata = next(&mut stream).await;
        assert_eq!(metadata.key(), ApiKey::Metadata);
        stream
            .write_all(&metadata.frame(&response(7)))
            .await
            .unwrap();
        stream
    };
    let client = async {
        let connection = open_at(&address).await.unwrap();
        let produce = connection.call(&ANY, LIMIT, |_| produce(BODY));
        let dropped = tokio::time::timeout(Duration::from_millis(100), produce).await;
        assert!(dropped.is_err());
        go_on.send(()).unwrap();
        ask(&connection, LIMIT).await.unwrap().controller_id
    };
    let (_stream, found) = tokio::join!(peer, client);
    assert_eq!(found, 7);
}

fn produce(size: usize) -> ProduceRequest {
    let records = Some(Bytes::from(vec![0; size]));
    let partition_data = vec![PartitionProduceData { index: 0, records }];
    let topic_data = vec![TopicProduceData {
        partition_data,
        ..Default::default()
    }];
    ProduceRequest {
        transactional_id: None,
        topic_data,
        ..Default::default()
    }
}

async fn next(stream: &mut tokio::net::TcpStream) -> Incoming {
    let size = stream.read_i32().await.unwrap();
    let mut frame = vec![0; usize::try_from(size).unwrap()];
    stream.read_exact(&mut frame).await.unwrap();
    let mut body = Bytes::from(frame);
    let header = broker_protocol::frame::RequestHeader::decode(&mut body).unwrap();
    Incoming { header, body }
}

#[tokio::test]
async fn old_broker_is_asked_for_its_versions_again_in_its_form() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let peer = Peer::start(move |incoming| {
        if incoming.key() != ApiKey::ApiVersions {
            return None;
        }
        let version = incoming.header.api_version;
        let nth = counted.fetch_add(1, Ordering::SeqCst);
        assert_eq!(version, if nth == 0 { 3 } else { 0 });
        let api = ApiVersion {
            api_key: 3,
            min_version: 4,
            max_version: 7,
        };
        let error_code = if version > 0 { 35 } else { 0 };
        let versions = ApiVersionsResponse {
            error_code,
            api_keys: vec![api],
            ..Default::default()
        };
        let mut frame = BytesMut::new();
        let id = incoming.header.correlation_id;
        broker_protocol::frame::encode_response(&mut frame, &versions, 0, id).unwrap();
        Some(Reaction::Write(frame.freeze()))
    })
    .await;
    let connection = open_at(&peer.address).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert_eq!(
        connection
            .versions()
            .choose::<MetadataRequest>(&ANY)
            .unwrap(),
        7
    );
}

#[tokio::test]
async fn nobody_listening_is_unreachable_and_names_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = open_at(&address).await.unwrap_err();
    let Error::Unreachable { address: found, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(**found, *address);
}

#[tokio::test]
async fn bootstrap_goes_on_to_the_next_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = listener.local_addr().unwrap().to_string();
    drop(listener);
    let peer = Peer::start(|_| None).await;
    let mut config = peer.config();
    config.bootstrap.insert(0, dead.clone());
    let client = crate::Client::connect(config).await.unwrap();
    assert_eq!(client.cluster().await.unwrap().brokers.len(), 1);

    let mut config = peer.config();
    config.bootstrap = vec![dead.clone(), dead];
    config.connect_timeout = Duration::from_millis(50);
    let error = crate::Client::connect(config).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[test]
fn fetch_response_with_an_impossible_array_does_not_allocate() {
    use broker_protocol::messages::Message;
    let mut hostile = Bytes::from_static(&[0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0]);
    assert!(FetchResponse::decode(&mut hostile, 4).is_err());
}
