//! Fetch and the requests that find offsets.

use std::time::{Duration, Instant};

use broker_protocol::{
    messages::{
        DeleteRecordsRequest, FetchRequest, OffsetForLeaderEpochRequest,
        delete_records::{DeleteRecordsPartition, DeleteRecordsTopic},
        offset_for_leader_epoch::{OffsetForLeaderPartition, OffsetForLeaderTopic},
    },
    record::{BatchBuilder, Compression},
};
use bytesize::ByteSize;

use crate::support::{
    PATIENCE, TestBroker, Wire, batch, batches_of, fetch_request, fetch_topic, name,
    only_partition, values_of,
};

#[tokio::test]
async fn fetch_at_mid_batch_offset_returns_whole_batch() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a", "b", "c"])).await;
    wire.append("orders", 0, batch(&["d"])).await;
    let data = wire.fetch("orders", 0, 1).await;
    assert_eq!(batches_of(&data)[0].header().base_offset, 0);
    assert_eq!(values_of(&data).len(), 4);
    assert_eq!(data.preferred_read_replica, -1);
    assert_eq!((data.log_start_offset, data.last_stable_offset), (0, 4));
}

#[tokio::test]
async fn offsets_outside_the_log_are_out_of_range_and_the_range_is_told() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a", "b", "c"])).await;
    wire.append("orders", 0, batch(&["d"])).await;
    delete_records(&mut wire, "orders", 3).await;
    for offset in [-1, 0, 2, 5, i64::MAX] {
        let data = wire.fetch("orders", 0, offset).await;
        assert_eq!(name(data.error_code), "OFFSET_OUT_OF_RANGE", "{offset}");
        assert_eq!((data.log_start_offset, data.high_watermark), (3, 4));
        assert_eq!(data.records.unwrap().len(), 0);
    }
    assert_eq!(
        values_of(&wire.fetch("orders", 0, 3).await),
        [(3, "d".to_owned())]
    );
    assert_eq!(wire.fetch("orders", 0, 4).await.error_code, 0);
}

async fn delete_records(wire: &mut Wire, topic: &str, offset: i64) -> (i64, &'static str) {
    let request = DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: topic.into(),
            partitions: vec![DeleteRecordsPartition {
                partition_index: 0,
                offset,
            }],
        }],
        timeout_ms: 1000,
    };
    let response = wire.call(&request, 2).await;
    let partition = &response.topics[0].partitions[0];
    (partition.low_watermark, name(partition.error_code))
}

#[tokio::test]
async fn records_are_deleted_up_to_an_offset_or_all_of_them() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    for value in ["a", "b", "c"] {
        wire.append("orders", 0, batch(&[value])).await;
    }
    assert_eq!(delete_records(&mut wire, "orders", 2).await, (2, "NONE"));
    assert_eq!(wire.list_offset("orders", 0, -2).await.offset, 2);
    assert_eq!(
        delete_records(&mut wire, "orders", 4).await,
        (-1, "OFFSET_OUT_OF_RANGE")
    );
    assert_eq!(
        delete_records(&mut wire, "orders", -2).await,
        (-1, "OFFSET_OUT_OF_RANGE")
    );
    assert_eq!(delete_records(&mut wire, "orders", -1).await, (3, "NONE"));
    assert_eq!(
        delete_records(&mut wire, "nope", 0).await,
        (-1, "UNKNOWN_TOPIC_OR_PARTITION")
    );
    assert_eq!(wire.append("orders", 0, batch(&["d"])).await, 3);
    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    let mut wire = broker.connect().await;
    assert_eq!(wire.list_offset("orders", 0, -2).await.offset, 3);
    assert_eq!(
        values_of(&wire.fetch("orders", 0, 3).await),
        [(3, "d".to_owned())]
    );
}

#[tokio::test]
async fn unknown_topics_and_partitions_are_answered_each_for_itself() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a"])).await;
    let request = FetchRequest {
        topics: vec![
            fetch_topic("missing", &[(0, 0)]),
            fetch_topic("orders", &[(7, 0), (0, 0), (-1, 0)]),
        ],
        max_wait_ms: 60_000,
        ..fetch_request("x", 0, 0)
    };
    let response = wire.call(&request, 11).await;
    let codes: Vec<_> = response
        .responses
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|data| name(data.error_code)))
        .collect();
    let unknown = "UNKNOWN_TOPIC_OR_PARTITION";
    assert_eq!(codes, [unknown, unknown, "NONE", unknown]);
    assert_eq!(values_of(&response.responses[1].partitions[1]).len(), 1);
}

#[tokio::test]
async fn a_waiting_fetch_is_woken_by_an_append() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    let request = FetchRequest {
        max_wait_ms: 60_000,
        topics: vec![fetch_topic("orders", &[(0, 0), (1, 0)])],
        ..fetch_request("orders", 0, 0)
    };
    let mut waiting = broker.connect().await;
    waiting.send(&request, 12).await;
    // Long enough for the fetch to find nothing and wait; it must be right also if it did not.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    wire.append("orders", 1, batch(&["a"])).await;
    let (_, response) = waiting.receive::<FetchRequest>(12).await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "woken late: {:?}",
        began.elapsed()
    );
    assert_eq!(
        values_of(&response.responses[0].partitions[1]),
        [(0, "a".to_owned())]
    );
}

#[tokio::test]
async fn a_fetch_waits_for_its_fewest_bytes_over_all_partitions() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    let one = batch(&["a"]);
    let request = FetchRequest {
        max_wait_ms: 60_000,
        min_bytes: i32::try_from(3 * one.len()).unwrap(),
        topics: vec![fetch_topic("orders", &[(0, 0), (1, 0)])],
        ..fetch_request("orders", 0, 0)
    };
    wire.append("orders", 0, one.clone()).await;
    let mut waiting = broker.connect().await;
    waiting.send(&request, 12).await;
    wire.append("orders", 0, one.clone()).await;
    let early = tokio::time::timeout(Duration::from_millis(300), waiting.stream.readable()).await;
    assert!(early.is_err(), "answered with two batches of three");
    wire.append("orders", 1, one.clone()).await;
    let (_, response) = waiting.receive::<FetchRequest>(12).await;
    let counts: Vec<_> = response.responses[0]
        .partitions
        .iter()
        .map(|data| values_of(data).len())
        .collect();
    assert_eq!(counts, [2, 1]);
}

#[tokio::test]
async fn a_fetch_without_records_ends_when_its_time_is_up() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let request = FetchRequest {
        max_wait_ms: 200,
        ..fetch_request("orders", 0, 0)
    };
    let began = Instant::now();
    let data = only_partition(wire.call(&request, 12).await);
    assert!(began.elapsed() >= Duration::from_millis(200));
    assert_eq!((data.error_code, data.records.unwrap().len()), (0, 0));
    // Zero bytes are there at once, whatever the time.
    let request = FetchRequest {
        max_wait_ms: 60_000,
        min_bytes: 0,
        ..request
    };
    only_partition(wire.call(&request, 12).await);
}

#[tokio::test]
async fn deleting_a_topic_and_stopping_the_broker_wake_waiting_fetches() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("gone", 1).await;
    wire.create_topic("kept", 1).await;
    let mut first = broker.connect().await;
    first
        .send(
            &FetchRequest {
                max_wait_ms: 60_000,
                ..fetch_request("gone", 0, 0)
            },
            12,
        )
        .await;
    let mut second = broker.connect().await;
    second
        .send(
            &FetchRequest {
                max_wait_ms: 60_000,
                ..fetch_request("kept", 0, 0)
            },
            12,
        )
        .await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    crate::admin::delete_topic(&mut wire, "gone").await;
    first.receive::<FetchRequest>(12).await;
    broker.begin_stop();
    let (_, response) = second.receive::<FetchRequest>(12).await;
    assert_eq!(only_partition(response).error_code, 0);
    broker.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_a_long_poll_frees_its_place() {
    let broker = TestBroker::start_with(|config| config.max_connections = 1).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let forever = FetchRequest {
        max_wait_ms: i32::MAX,
        ..fetch_request("orders", 0, 0)
    };
    wire.send(&forever, 12).await;
    drop(wire);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut wire = broker.connect().await;
        wire.stream.set_nodelay(true).unwrap();
        let mut out = bytes::BytesMut::new();
        let request = fetch_request("orders", 0, 0);
        broker_protocol::frame::encode_request(&mut out, &request, 12, 1, None).unwrap();
        let sent = tokio::io::AsyncWriteExt::write_all(&mut wire.stream, &out).await;
        let mut byte = [0];
        let answered = tokio::io::AsyncReadExt::read_exact(&mut wire.stream, &mut byte).await;
        if sent.is_ok() && answered.is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "the only place is still taken");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_first_batch_comes_whole_and_limits_hold_after_it() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 3).await;
    let large = batch(&[&"x".repeat(5000)]);
    for partition in [1, 2] {
        for _ in 0..3 {
            wire.append("orders", partition, large.clone()).await;
        }
    }
    let counts = |response: broker_protocol::messages::FetchResponse| {
        let partitions = &response.responses[0].partitions;
        partitions
            .iter()
            .map(|data| batches_of(data).len())
            .collect::<Vec<_>>()
    };
    let all = fetch_topic("orders", &[(0, 0), (1, 0), (2, 0)]);
    let whole = FetchRequest {
        topics: vec![all.clone()],
        ..fetch_request("x", 0, 0)
    };
    assert_eq!(counts(wire.call(&whole, 12).await), [0, 3, 3]);
    let size = i32::try_from(large.len()).unwrap();
    for (max_bytes, expected) in [
        (1, [0, 1, 0]),
        (0, [0, 1, 0]),
        (-1, [0, 1, 0]),
        (size * 2, [0, 2, 0]),
        (size * 4 + 10, [0, 3, 1]),
    ] {
        let request = FetchRequest {
            max_bytes,
            ..whole.clone()
        };
        assert_eq!(
            counts(wire.call(&request, 12).await),
            expected,
            "max_bytes {max_bytes}"
        );
    }
    let mut topic = all;
    for partition in &mut topic.partitions {
        partition.partition_max_bytes = 10;
    }
    let request = FetchRequest {
        topics: vec![topic],
        ..whole
    };
    assert_eq!(counts(wire.call(&request, 12).await), [0, 1, 0]);
}

#[tokio::test]
async fn the_brokers_own_caps_hold_whatever_the_client_asks_for() {
    let broker = TestBroker::start_with(|config| {
        config.fetch_max_bytes = ByteSize::b(11_000);
        config.fetch_bytes_in_flight = ByteSize::b(8_000);
    })
    .await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let large = batch(&[&"x".repeat(5000)]);
    for _ in 0..5 {
        wire.append("orders", 0, large.clone()).await;
    }
    // Two fit under the cap, but not into what may be in flight: one comes.
    assert_eq!(batches_of(&wire.fetch("orders", 0, 0).await).len(), 1);
    let broker = TestBroker::start_on(broker.stop().await, |config| {
        config.fetch_max_bytes = ByteSize::b(11_000);
    })
    .await;
    let mut wire = broker.connect().await;
    assert_eq!(batches_of(&wire.fetch("orders", 0, 0).await).len(), 2);
}

#[tokio::test]
async fn a_large_fetch_reads_everything_that_is_there() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let value = "x".repeat(200_000);
    for _ in 0..4 {
        wire.append("orders", 0, batch(&[&value])).await;
    }
    let values = values_of(&wire.fetch("orders", 0, 0).await);
    assert_eq!(values.len(), 4);
    assert!(values.iter().all(|(_, read)| *read == value));
}

#[tokio::test]
async fn leader_epochs_of_the_client_are_compared() {
    let broker = TestBroker::start().await;
    broker.connect().await.create_topic("orders", 1).await;
    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    let mut wire = broker.connect().await;
    for (epoch, code) in [
        (-1, "NONE"),
        (0, "FENCED_LEADER_EPOCH"),
        (1, "NONE"),
        (2, "UNKNOWN_LEADER_EPOCH"),
    ] {
        let mut request = fetch_request("orders", 0, 0);
        request.topics[0].partitions[0].current_leader_epoch = epoch;
        let data = only_partition(wire.call(&request, 12).await);
        assert_eq!(name(data.error_code), code, "epoch {epoch}");
    }
}

#[tokio::test]
async fn committed_reads_get_an_empty_list_of_aborted_transactions() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a"])).await;
    let mut request = fetch_request("orders", 0, 0);
    assert_eq!(
        only_partition(wire.call(&request, 12).await).aborted_transactions,
        None
    );
    request.isolation_level = 1;
    let data = only_partition(wire.call(&request, 12).await);
    assert_eq!(data.aborted_transactions, Some(Vec::new()));
    assert_eq!(values_of(&data).len(), 1);
}

#[tokio::test]
async fn offsets_are_listed_by_end_and_by_time() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    for special in [-1, -2] {
        let listed = wire.list_offset("orders", 0, special).await;
        assert_eq!(
            (listed.error_code, listed.offset, listed.timestamp),
            (0, 0, -1),
            "{special}"
        );
    }
    assert_eq!(wire.list_offset("orders", 0, -3).await.offset, -1);
    for timestamps in [[1000, 1500], [3000, 2000], [2500, 2600]] {
        let mut builder = BatchBuilder::new(Compression::Zstd);
        for timestamp in timestamps {
            builder.push(timestamp, None, Some(b"v"), &[]).unwrap();
        }
        wire.append("orders", 0, builder.build().unwrap()).await;
    }
    for (timestamp, offset, found) in [
        (-1, 6, -1),
        (-2, 0, -1),
        (-3, 2, 3000),
        (0, 0, 1000),
        (1000, 0, 1000),
        (1001, 1, 1500),
        (1501, 2, 3000),
        (3000, 2, 3000),
        (3001, -1, -1),
    ] {
        let listed = wire.list_offset("orders", 0, timestamp).await;
        assert_eq!(
            (listed.error_code, listed.offset, listed.timestamp),
            (0, offset, found),
            "{timestamp}"
        );
        let epoch = if offset == -1 { -1 } else { 0 };
        assert_eq!(listed.leader_epoch, epoch, "{timestamp}");
    }
    let unknown = "UNKNOWN_TOPIC_OR_PARTITION";
    assert_eq!(
        name(wire.list_offset("orders", 1, -1).await.error_code),
        unknown
    );
    assert_eq!(
        name(wire.list_offset("nope", 0, -1).await.error_code),
        unknown
    );
}

#[tokio::test]
async fn the_end_of_a_leader_epoch_is_told() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a", "b"])).await;
    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    let mut wire = broker.connect().await;
    assert_eq!(epoch_end(&mut wire, 0).await, ("NONE", 0, 2));
    assert_eq!(epoch_end(&mut wire, 1).await, ("NONE", 1, 2));
    wire.append("orders", 0, batch(&["c"])).await;
    assert_eq!(epoch_end(&mut wire, 0).await, ("NONE", 0, 2));
    assert_eq!(epoch_end(&mut wire, 1).await, ("NONE", 1, 3));
    assert_eq!(epoch_end(&mut wire, 2).await, ("NONE", -1, -1));
    assert_eq!(wire.list_offset("orders", 0, -1).await.leader_epoch, 1);
    assert_eq!(wire.list_offset("orders", 0, -2).await.leader_epoch, 0);
}

async fn epoch_end(wire: &mut Wire, leader_epoch: i32) -> (&'static str, i32, i64) {
    let request = OffsetForLeaderEpochRequest {
        topics: vec![OffsetForLeaderTopic {
            topic: "orders".into(),
            partitions: vec![OffsetForLeaderPartition {
                partition: 0,
                leader_epoch,
                ..OffsetForLeaderPartition::default()
            }],
        }],
        ..OffsetForLeaderEpochRequest::default()
    };
    let response = wire.call(&request, 4).await;
    let end = &response.topics[0].partitions[0];
    (name(end.error_code), end.leader_epoch, end.end_offset)
}

#[tokio::test]
async fn a_fetcher_whose_log_diverged_is_told_where() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a", "b"])).await;
    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    let mut wire = broker.connect().await;
    wire.append("orders", 0, batch(&["c", "d"])).await;
    let mut request = fetch_request("orders", 0, 3);
    request.topics[0].partitions[0].last_fetched_epoch = 0;
    let data = only_partition(wire.call(&request, 12).await);
    assert_eq!((data.error_code, data.records.unwrap().len()), (0, 0));
    assert_eq!(
        (data.diverging_epoch.epoch, data.diverging_epoch.end_offset),
        (0, 2)
    );
}
