//! A disk that fails under some partitions, and under all.

use std::{io::ErrorKind, sync::Arc};

use broker_log::disk::faulty::{Fault, FaultyDisk, Operation};
use broker_protocol::messages::{
    DescribeLogDirsRequest, DescribeTopicPartitionsRequest, MetadataRequest,
    describe_topic_partitions::TopicRequest, metadata::MetadataRequestTopic,
};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::support::{
    PATIENCE, StillClock, TestBroker, Wire, batch, fetch_request, name, only_partition, values_of,
};

/// A topic whose every append waits for the disk, on a disk that can fail.
async fn broker(partitions: i32) -> (TestBroker, FaultyDisk, Wire) {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let disk = FaultyDisk::new(folder.path()).unwrap();
    let broker = start(&folder, &disk).await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("orders", partitions, &[("flush.messages", "1")])
        .await;
    (broker, disk, wire)
}

async fn start(folder: &Arc<TempDir>, disk: &FaultyDisk) -> TestBroker {
    let edit = |config: &mut broker_server::Config| {
        config.admin_listen = Some("127.0.0.1:0".to_owned());
    };
    let clock = Arc::new(StillClock::default());
    TestBroker::start_in(Arc::clone(folder), edit, clock, Arc::new(disk.clone())).await
}

/// Syncs of this file fail from now on.
fn fail(disk: &FaultyDisk, path_ends_with: &str) {
    disk.inject(Fault {
        times: usize::MAX,
        ..Fault::once(Operation::Sync, path_ends_with, ErrorKind::Other)
    });
}

async fn leaders(wire: &mut Wire) -> Vec<(i32, &'static str)> {
    let request = MetadataRequest {
        topics: Some(vec![MetadataRequestTopic {
            name: Some("orders".into()),
            ..MetadataRequestTopic::default()
        }]),
        ..MetadataRequest::default()
    };
    let response = wire.call(&request, 9).await;
    let partitions = response.topics[0].partitions.iter();
    partitions
        .map(|partition| (partition.leader_id, name(partition.error_code)))
        .collect()
}

#[tokio::test]
async fn a_partition_whose_disk_fails_goes_off_line_and_the_others_serve() {
    let (broker, disk, mut wire) = broker(2).await;
    wire.append("orders", 0, batch(&["a"])).await;
    wire.append("orders", 1, batch(&["b"])).await;
    fail(&disk, "orders-0/00000000000000000000.log");
    let refused = wire.produce("orders", 0, batch(&["c"])).await;
    assert_eq!(name(refused.error_code), "KAFKA_STORAGE_ERROR");
    // For good: the disk may be well again, what is on it is not known.
    disk.heal();
    let refused = wire.produce("orders", 0, batch(&["d"])).await;
    assert_eq!(name(refused.error_code), "KAFKA_STORAGE_ERROR");
    let message = refused.error_message.unwrap();
    assert!(message.contains("off line"), "{message}");
    let fetched = wire.call(&fetch_request("orders", 0, 0), 12).await;
    let refused = only_partition(fetched);
    assert_eq!(name(refused.error_code), "KAFKA_STORAGE_ERROR");
    let offset = wire.list_offset("orders", 0, -1).await;
    assert_eq!(name(offset.error_code), "KAFKA_STORAGE_ERROR");
    assert_eq!(
        leaders(&mut wire).await,
        [(-1, "LEADER_NOT_AVAILABLE"), (1, "NONE")]
    );
    let request = DescribeTopicPartitionsRequest {
        topics: vec![TopicRequest {
            name: "orders".into(),
        }],
        ..DescribeTopicPartitionsRequest::default()
    };
    let described = wire.call(&request, 0).await;
    let lost = &described.topics[0].partitions[0];
    assert_eq!((lost.leader_id, &lost.offline_replicas[..]), (-1, &[1][..]));
    let request = DescribeLogDirsRequest { topics: None };
    let described = wire.call(&request, 4).await;
    let dir = &described.results[0];
    assert_eq!(name(dir.error_code), "NONE");
    let partitions = dir.topics[0].partitions.iter();
    let listed: Vec<i32> = partitions.map(|found| found.partition_index).collect();
    assert_eq!(listed, [1]);
    // The other one, and the same one after a start.
    assert_eq!(wire.append("orders", 1, batch(&["e"])).await, 1);
    let folder = broker.kill().await;
    let broker = start(&folder, &disk).await;
    let mut wire = broker.connect().await;
    assert_eq!(leaders(&mut wire).await, [(1, "NONE"), (1, "NONE")]);
    let kept = values_of(&wire.fetch("orders", 0, 0).await);
    assert_eq!(kept[0], (0, "a".to_owned()));
    let kept = values_of(&wire.fetch("orders", 1, 0).await);
    assert_eq!(kept, [(0, "b".to_owned()), (1, "e".to_owned())]);
}

#[tokio::test]
async fn a_fetch_that_waits_hears_that_its_partition_went_off_line() {
    let (broker, disk, mut wire) = broker(2).await;
    wire.append("orders", 0, batch(&["a"])).await;
    let mut waiting = broker.connect().await;
    let mut request = fetch_request("orders", 0, 1);
    // Longer than this test may take.
    request.max_wait_ms = 600_000;
    request.min_bytes = 1 << 20;
    waiting.send(&request, 12).await;
    fail(&disk, "orders-0/00000000000000000000.log");
    wire.produce("orders", 0, batch(&["b"])).await;
    let (_, response) = waiting
        .receive::<broker_protocol::messages::FetchRequest>(12)
        .await;
    assert_eq!(
        name(only_partition(response).error_code),
        "KAFKA_STORAGE_ERROR"
    );
}

#[tokio::test]
async fn a_broker_whose_every_partition_failed_ends_with_an_error() {
    let (broker, disk, mut wire) = broker(2).await;
    fail(&disk, ".log");
    for partition in 0..2 {
        let refused = wire.produce("orders", partition, batch(&["a"])).await;
        assert_eq!(name(refused.error_code), "KAFKA_STORAGE_ERROR");
    }
    let ended = timeout(PATIENCE, broker.ended())
        .await
        .expect("the end in time");
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), broker_server::ErrorKind::Fatal);
    let message = error.to_string();
    assert!(message.contains("every partition in"), "{message}");
}

#[tokio::test]
async fn a_disk_that_is_only_full_ends_nothing() {
    let (broker, disk, mut wire) = broker(1).await;
    wire.append("orders", 0, batch(&["a"])).await;
    disk.set_space(0);
    let refused = wire.produce("orders", 0, batch(&["b"])).await;
    assert_eq!(name(refused.error_code), "KAFKA_STORAGE_ERROR");
    assert_eq!(leaders(&mut wire).await, [(1, "NONE")]);
    disk.heal();
    let placed = wire.append("orders", 0, batch(&["c"])).await;
    assert_eq!(placed, 1);
    broker.stop().await;
}
