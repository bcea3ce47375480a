//! Metrics and health over HTTP, by a client that knows nothing but sockets.

use std::net::SocketAddr;

use broker_protocol::messages::DeleteTopicsRequest;
use broker_server::{Broker, Listeners};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, TestBroker, batch, config, fetch_request, produce_request};

/// Status and body.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    ask(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await
}

async fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let asking = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = timeout(PATIENCE, asking).await.expect("an answer in time");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

async fn broker() -> TestBroker {
    TestBroker::start_with(|config| {
        config.admin_listen = Some("127.0.0.1:0".to_owned());
        config.metrics_per_partition = true;
    })
    .await
}

/// The value of a sample, by its name and labels.
pub(crate) fn sample(metrics: &str, name: &str) -> f64 {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("{name} in {metrics}"));
    value.parse().unwrap()
}

/// Asks until the broker is ready.
async fn ready(admin: SocketAddr) {
    let asking = async { while get(admin, "/readyz").await.0 != 200 {} };
    timeout(PATIENCE, asking).await.expect("ready in time");
}

/// Asks until a sample has at least this value.
async fn wait_for(admin: SocketAddr, name: &str, value: f64) {
    let asking = async {
        loop {
            let (_, metrics) = get(admin, "/metrics").await;
            if metrics.contains(name) && sample(&metrics, name) >= value {
                return;
            }
        }
    };
    timeout(PATIENCE, asking).await.expect("counted in time");
}

#[tokio::test]
async fn what_was_done_is_counted() {
    let broker = broker().await;
    let admin = broker.admin.unwrap();
    ready(admin).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    let sent = batch(&["a", "b", "c"]);
    wire.append("orders", 1, sent.clone()).await;
    wire.fetch("orders", 1, 0).await;
    let refused = wire
        .call(&produce_request("nowhere", 0, sent.clone()), 9)
        .await;
    assert_eq!(refused.responses[0].partition_responses[0].error_code, 3);
    let (status, metrics) = get(admin, "/metrics").await;
    assert_eq!(status, 200);
    let bytes = f64::from(u32::try_from(sent.len()).unwrap());
    for (name, value) in [
        ("broker_requests_total{api=\"Produce\"}", 2.0),
        ("broker_requests_total{api=\"Fetch\"}", 1.0),
        (
            "broker_request_errors_total{api=\"Produce\",error=\"UNKNOWN_TOPIC_OR_PARTITION\"}",
            1.0,
        ),
        (
            "broker_request_duration_seconds_count{api=\"Produce\"}",
            2.0,
        ),
        ("broker_produce_records_total", 3.0),
        ("broker_produce_bytes_total", bytes),
        ("broker_fetch_bytes_total", bytes),
        ("broker_connections", 1.0),
        ("broker_connections_accepted_total", 1.0),
        ("broker_topics", 1.0),
        ("broker_partitions{state=\"online\"}", 2.0),
        ("broker_partitions{state=\"offline\"}", 0.0),
        ("broker_log_segments", 2.0),
        ("broker_log_size_bytes", bytes),
        ("broker_log_unflushed_bytes", bytes),
        (
            "broker_partition_log_end_offset{partition=\"1\",topic=\"orders\"}",
            3.0,
        ),
    ] {
        assert_eq!(sample(&metrics, name), value, "{name}");
    }
    assert!(sample(&metrics, "broker_network_bytes_total{direction=\"in\"}") > bytes * 2.0);
    assert!(sample(&metrics, "broker_disk_free_bytes") > 0.0);
    assert!(sample(&metrics, "process_open_fds") > 3.0);
}

#[tokio::test]
async fn partitions_of_deleted_topics_are_not_told_of_any_more() {
    let broker = broker().await;
    let admin = broker.admin.unwrap();
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let (_, metrics) = get(admin, "/metrics").await;
    assert!(metrics.contains("topic=\"orders\""), "{metrics}");
    let delete = DeleteTopicsRequest {
        topic_names: vec!["orders".into()],
        ..DeleteTopicsRequest::default()
    };
    wire.call(&delete, 5).await;
    let (_, metrics) = get(admin, "/metrics").await;
    assert!(!metrics.contains("topic=\"orders\""), "{metrics}");
}

#[tokio::test]
async fn a_request_that_cannot_be_answered_is_counted() {
    let broker = broker().await;
    let mut wire = broker.connect().await;
    wire.raw(&[0, 0, 0, 10, 0, 99, 0, 0, 0, 0, 0, 1, 255, 255])
        .await;
    wire.assert_closed().await;
    let (_, metrics) = get(broker.admin.unwrap(), "/metrics").await;
    assert_eq!(sample(&metrics, "broker_requests_refused_total"), 1.0);
}

#[tokio::test]
async fn the_broker_lives_before_it_is_ready_and_says_why_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), |config| {
        config.admin_listen = Some("127.0.0.1:0".to_owned());
    });
    let listeners = Listeners::bind(&config).await.unwrap();
    let admin = listeners.admin_addr().unwrap();
    assert_eq!(get(admin, "/healthz").await, (200, "alive\n".to_owned()));
    let unready = (503, "the logs are being opened\n".to_owned());
    assert_eq!(get(admin, "/readyz").await, unready);
    assert_eq!(get(admin, "/metrics").await, unready);
    let broker = Broker::open(config).unwrap();
    let stop = CancellationToken::new();
    let serving = broker.serve(listeners, stop.clone());
    let asking = async {
        ready(admin).await;
        assert_eq!(get(admin, "/metrics").await.0, 200);
        stop.cancel();
    };
    let (served, ()) = tokio::join!(serving, asking);
    served.unwrap();
}

#[tokio::test]
async fn while_it_drains_the_broker_is_alive_and_not_ready() {
    let broker = broker().await;
    let admin = broker.admin.unwrap();
    ready(admin).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let large = "x".repeat(1 << 20 >> 1);
    wire.append("orders", 0, batch(&[&large])).await;
    // A client that does not read its answers keeps the broker from stopping.
    for _ in 0..64 {
        wire.send(&fetch_request("orders", 0, 0), 12).await;
    }
    wait_for(admin, "broker_requests_total{api=\"Fetch\"}", 4.0).await;
    broker.begin_stop();
    let asking = async { while get(admin, "/readyz").await.0 == 200 {} };
    timeout(PATIENCE, asking).await.expect("not ready in time");
    let stopping = (503, "the broker is stopping\n".to_owned());
    assert_eq!(get(admin, "/readyz").await, stopping);
    assert_eq!(get(admin, "/healthz").await.0, 200);
}

#[tokio::test]
async fn other_paths_and_methods_are_refused_and_garbage_ends_its_connection_only() {
    let broker = broker().await;
    let admin = broker.admin.unwrap();
    let (status, body) = get(admin, "/").await;
    assert_eq!(status, 404);
    assert!(body.contains("/metrics"), "{body}");
    let post = "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(ask(admin, post).await.0, 405);
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(64 << 10));
    let mut stream = TcpStream::connect(admin).await.unwrap();
    // The broker may have closed before all was sent.
    let _sent = stream.write_all(long.as_bytes()).await;
    let mut rest = Vec::new();
    let _read = timeout(PATIENCE, stream.read_to_end(&mut rest))
        .await
        .expect("the end in time");
    assert!(!rest.starts_with(b"HTTP/1.1 2"), "{rest:?}");
    assert_eq!(get(admin, "/healthz").await.0, 200);
}
