//! What outlives the process: stopped in order, killed, or damaged in between.

use std::{fs, io::Write};

use broker_protocol::messages::{MetadataRequest, metadata::MetadataResponseTopic};
use broker_server::{Broker, Error, ErrorKind};

use crate::support::{TestBroker, Wire, batch, config, name, read_all, sequenced, values_of};

async fn topics(wire: &mut Wire) -> Vec<MetadataResponseTopic> {
    let all = MetadataRequest {
        topics: None,
        ..MetadataRequest::default()
    };
    wire.call(&all, 12).await.topics
}

fn numbered(values: &[&str]) -> Vec<(i64, String)> {
    (0..)
        .zip(values.iter().map(|value| (*value).to_owned()))
        .collect()
}

#[tokio::test]
async fn records_ids_and_epochs_outlive_an_orderly_stop() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    wire.append("orders", 1, batch(&["a", "b"])).await;
    let (before, cluster_id) = (topics(&mut wire).await, broker.cluster_id.clone());
    let broker = TestBroker::start_on(broker.stop().await, |_| {}).await;
    let mut wire = broker.connect().await;
    assert_eq!(broker.cluster_id, cluster_id);
    // Leader epochs included: nothing was lost, so none rises.
    assert_eq!(topics(&mut wire).await, before);
    assert_eq!(
        values_of(&wire.fetch("orders", 1, 0).await),
        numbered(&["a", "b"])
    );
    assert_eq!(wire.append("orders", 1, batch(&["c"])).await, 2);
}

#[tokio::test]
async fn a_killed_broker_recovers_and_its_leader_epochs_rise() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    for value in ["a", "b", "c"] {
        wire.append("orders", 0, batch(&[value])).await;
    }
    let id = topics(&mut wire).await[0].topic_id;
    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    let mut wire = broker.connect().await;
    let after = topics(&mut wire).await;
    assert_eq!(
        (after[0].topic_id, after[0].partitions[0].leader_epoch),
        (id, 1)
    );
    assert_eq!(
        values_of(&wire.fetch("orders", 0, 0).await),
        numbered(&["a", "b", "c"])
    );
    assert_eq!(wire.append("orders", 0, batch(&["d"])).await, 3);
}

#[tokio::test]
async fn a_torn_tail_is_cut_and_the_log_goes_on() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    for value in ["a", "b"] {
        wire.append("orders", 0, batch(&[value])).await;
    }
    let folder = broker.kill().await;
    let segment = folder.path().join("data/orders-0/00000000000000000000.log");
    let torn = batch(&["torn"]);
    let mut file = fs::OpenOptions::new().append(true).open(&segment).unwrap();
    file.write_all(&torn[..torn.len() - 3]).unwrap();
    drop(file);
    let opened = Broker::open(config(folder.path(), |_| {})).unwrap();
    let report = &opened.recovery()[0];
    assert!(!report.clean && report.cut.is_some(), "{report}");
    drop(opened);
    let broker = TestBroker::start_on(folder, |_| {}).await;
    let mut wire = broker.connect().await;
    assert_eq!(
        values_of(&wire.fetch("orders", 0, 0).await),
        numbered(&["a", "b"])
    );
    assert_eq!(wire.append("orders", 0, batch(&["c"])).await, 2);
}

#[tokio::test]
async fn records_that_were_stored_for_good_and_are_gone_are_reported_and_the_log_goes_on() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    for value in ["a", "b"] {
        wire.append("orders", 0, batch(&[value])).await;
    }
    let folder = broker.stop().await;
    let segment = folder.path().join("data/orders-0/00000000000000000000.log");
    let len = fs::metadata(&segment).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(&segment).unwrap();
    file.set_len(len / 2).unwrap();
    let opened = Broker::open(config(folder.path(), |_| {})).unwrap();
    let report = &opened.recovery()[0];
    assert!(report.clean, "{report}");
    assert_eq!((report.holes.len(), &report.holes[0]), (1, &(1..2)));
    drop(opened);
    let broker = TestBroker::start_on(folder, |_| {}).await;
    let mut wire = broker.connect().await;
    assert_eq!(wire.append("orders", 0, batch(&["c"])).await, 1);
}

#[tokio::test]
async fn an_idempotent_producer_goes_on_over_a_kill() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, sequenced(4, 0, 0, &["a", "b"]))
        .await;
    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    let mut wire = broker.connect().await;
    // The answer to the first was lost with the broker: the repetition is not appended.
    assert_eq!(
        wire.append("orders", 0, sequenced(4, 0, 0, &["a", "b"]))
            .await,
        0
    );
    assert_eq!(
        wire.append("orders", 0, sequenced(4, 0, 2, &["c"])).await,
        2
    );
    assert_eq!(
        read_all(&mut wire, "orders", 0).await,
        numbered(&["a", "b", "c"])
    );
}

#[tokio::test]
async fn a_second_broker_on_the_directory_is_refused_and_the_first_lives_on() {
    let broker = TestBroker::start().await;
    let error = Broker::open(config(broker.folder.path(), |_| {})).unwrap_err();
    let Error::Logs { source, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(
        matches!(**source, broker_log::Error::InUse { .. }),
        "{source}"
    );
    assert_eq!(error.kind(), ErrorKind::Retriable);
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let folder = broker.stop().await;
    TestBroker::start_on(folder, |_| {}).await.stop().await;
}

#[tokio::test]
async fn a_configuration_with_mistakes_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mistaken = config(folder.path(), |config| config.num_partitions = 0);
    let error = Broker::open(mistaken).unwrap_err();
    assert!(error.to_string().contains("num_partitions"), "{error}");
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
}

#[tokio::test]
async fn records_the_metadata_does_not_know_stop_the_start() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a"])).await;
    let folder = broker.stop().await;
    fs::remove_file(folder.path().join("data/topics.json")).unwrap();
    let error = Broker::open(config(folder.path(), |_| {})).unwrap_err();
    assert!(matches!(error, Error::UnknownPartition { .. }), "{error}");
    assert!(error.to_string().contains("orders-0"), "{error}");
}

#[tokio::test]
async fn an_empty_partition_of_a_creation_that_was_cut_short_is_removed() {
    let broker = TestBroker::start().await;
    broker.connect().await.create_topic("half", 2).await;
    let folder = broker.stop().await;
    // As a crash between the directories and the metadata leaves it.
    fs::remove_file(folder.path().join("data/topics.json")).unwrap();
    let broker = TestBroker::start_on(folder, |_| {}).await;
    let mut wire = broker.connect().await;
    assert!(topics(&mut wire).await.is_empty());
    assert!(
        !broker
            .folder
            .path()
            .join("data/half-0")
            .try_exists()
            .unwrap()
    );
    wire.create_topic("half", 1).await;
}

#[tokio::test]
async fn a_partition_without_its_directory_is_off_line_and_the_others_serve() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    wire.append("orders", 1, batch(&["a"])).await;
    let folder = broker.stop().await;
    fs::remove_dir_all(folder.path().join("data/orders-0")).unwrap();
    let broker = TestBroker::start_on(folder, |_| {}).await;
    let mut wire = broker.connect().await;
    let partitions = topics(&mut wire).await[0].partitions.clone();
    assert_eq!(
        (name(partitions[0].error_code), partitions[0].leader_id),
        ("LEADER_NOT_AVAILABLE", -1)
    );
    assert_eq!(partitions[0].offline_replicas, [1]);
    let refused = wire.produce("orders", 0, batch(&["x"])).await;
    assert_eq!(name(refused.error_code), "KAFKA_STORAGE_ERROR");
    assert_eq!(
        values_of(&wire.fetch("orders", 1, 0).await),
        numbered(&["a"])
    );
}

#[tokio::test]
async fn segments_roll_and_everything_is_read_over_their_borders() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("orders", 1, &[("segment.bytes", "1024")])
        .await;
    let values: Vec<String> = (0..60).map(|number| format!("value {number}")).collect();
    for value in &values {
        wire.append("orders", 0, batch(&[value])).await;
    }
    let folder = broker.kill().await;
    let files = fs::read_dir(folder.path().join("data/orders-0")).unwrap();
    let logs = files.filter(|file| {
        file.as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|extension| extension == "log")
    });
    assert!(logs.count() > 3);
    let broker = TestBroker::start_on(folder, |_| {}).await;
    let mut wire = broker.connect().await;
    let read = read_all(&mut wire, "orders", 0).await;
    assert_eq!(
        read,
        numbered(&values.iter().map(String::as_str).collect::<Vec<_>>())
    );
}
