//! The directory: lock, listing, creation, deletion, clean shutdown.

use std::fs;
use std::io;

use broker_protocol::TopicId;

use super::*;
use crate::disk::faulty::{Fault, Operation};
use crate::{Error, ErrorKind};

#[test]
fn a_second_broker_is_turned_away() {
    let mut fixture = Fixture::small_segments();
    let second = || LogDir::open(fixture.dir(), LogDirConfig::default()).unwrap_err();
    let error = second();
    assert!(matches!(error, Error::InUse { .. }), "{error:?}");
    assert!(
        error.to_string().ends_with("is in use by another broker"),
        "{error}"
    );
    fixture.log_dir().shutdown(vec![], -1).unwrap();
    assert!(fixture.open().clean);
}

#[test]
fn partitions_are_found_again_with_topic_ids_and_names_that_hold_dashes() {
    let mut fixture = Fixture::small_segments();
    let topic_id: TopicId = "dGhpcyBpcyBhIHRlc3QhIQ".parse().unwrap();
    let ids: Vec<TopicPartition> = [("a-b-c", 0), ("a-b-c", 10), ("a.b", 2), ("_x", 1)]
        .into_iter()
        .map(|(topic, partition)| TopicPartition::new(TopicName::new(topic).unwrap(), partition))
        .collect();
    let mut logs = Vec::new();
    for id in &ids {
        let config = fixture.config.clone();
        logs.push(
            fixture
                .log_dir()
                .create_partition(id.clone(), Some(topic_id), config)
                .unwrap(),
        );
    }
    let error = fixture
        .log_dir()
        .create_partition(ids[0].clone(), None, LogConfig::default())
        .unwrap_err();
    assert!(matches!(error, Error::PartitionExists { .. }), "{error:?}");
    fs::create_dir(fixture.dir().join("not_a_partition")).unwrap();
    fixture.log_dir().shutdown(logs, 42).unwrap();
    let marker = fs::read_to_string(fixture.dir().join(".kafka_cleanshutdown")).unwrap();
    assert_eq!(marker, r#"{"version":0,"brokerEpoch":42}"#);
    let opened = fixture.open();
    assert!(opened.clean);
    assert_eq!(
        opened.warnings,
        ["not_a_partition is no partition; it is ignored"]
    );
    let mut found: Vec<_> = opened
        .partitions
        .iter()
        .map(|(log, _)| log.id().clone())
        .collect();
    assert!(
        opened
            .partitions
            .iter()
            .all(|(log, _)| log.topic_id() == Some(topic_id))
    );
    let mut ids = ids;
    ids.sort();
    found.sort();
    assert_eq!(found, ids);
    assert!(
        !fixture
            .dir()
            .join(".kafka_cleanshutdown")
            .try_exists()
            .unwrap()
    );
}

#[test]
fn deleted_partitions_are_gone_and_their_readers_are_told() {
    let mut fixture = Fixture::small_segments();
    let mut log = fixture.create();
    log.append_one(&batch(10), 0, 0).unwrap();
    let reader = log.reader();
    let slice = reader.slice(0, NO_LIMIT).unwrap();
    fixture.log_dir().delete_partition(log).unwrap();
    let error = reader.slice(0, NO_LIMIT).unwrap_err();
    assert!(matches!(error, Error::Deleted { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Caller);
    assert_eq!(
        slice.read().unwrap().len(),
        batch(10).bytes().len(),
        "a slice outlives its log"
    );
    assert!(!fixture.partition_dir().try_exists().unwrap());
    assert!(files(&fixture.dir(), "-delete").is_empty());
    let points =
        fs::read_to_string(fixture.dir().join("recovery-point-offset-checkpoint")).unwrap();
    assert_eq!(points, "0\n0\n");
    let mut log = fixture.create();
    assert_eq!(
        log.append_one(&batch(1), 0, 0).unwrap().base_offset,
        0,
        "made again, it is new"
    );
    fixture.log_dir().shutdown(vec![log], -1).unwrap();
    assert!(fixture.open().clean);
}

#[test]
fn a_deletion_that_a_crash_interrupts_is_finished_at_the_next_open() {
    let mut fixture = Fixture::small_segments();
    let log = fixture.create();
    fixture.disk.inject(Fault::once(
        Operation::Remove,
        "-delete",
        io::ErrorKind::Other,
    ));
    fixture.log_dir().delete_partition(log).unwrap_err();
    assert_eq!(files(&fixture.dir(), "-delete").len(), 1);
    let opened = fixture.open();
    assert!(opened.partitions.is_empty() && opened.warnings.is_empty());
    assert!(files(&fixture.dir(), "-delete").is_empty());
}

#[test]
fn no_clean_marker_without_every_partition_flushed() {
    let mut fixture = Fixture::small_segments();
    let log = fixture.create();
    let error = fixture.log_dir().shutdown(vec![], -1).unwrap_err();
    assert!(
        matches!(error, Error::NotClosed { partition: 3, .. }),
        "{error:?}"
    );
    drop(log);
    let (mut log, report) = fixture.reopen();
    assert!(!report.clean);
    log.append_one(&batch(1), 0, 0).unwrap();
    fixture.disk.inject(Fault::once(
        Operation::Sync,
        ".log",
        io::ErrorKind::StorageFull,
    ));
    let error = fixture.log_dir().shutdown(vec![log], -1).unwrap_err();
    assert!(
        matches!(
            error,
            Error::DiskFull {
                operation: "sync",
                ..
            }
        ),
        "{error:?}"
    );
    let (log, report) = fixture.reopen();
    assert!(!report.clean);
    assert_eq!(log.log_end_offset(), 1);
}

#[test]
fn a_partition_that_cannot_be_opened_does_not_stop_the_others() {
    let mut fixture = Fixture::small_segments();
    let other = TopicPartition::new(TopicName::new("other").unwrap(), 0);
    let logs = vec![
        fixture.create(),
        fixture
            .log_dir()
            .create_partition(other.clone(), None, fixture.config.clone())
            .unwrap(),
    ];
    fixture.log_dir().shutdown(logs, -1).unwrap();
    fs::write(
        fixture.partition_dir().join("partition.metadata"),
        "version: 9\n",
    )
    .unwrap();
    let opened = fixture.open();
    assert_eq!(opened.failed.len(), 1);
    let (id, error) = &opened.failed[0];
    assert_eq!(*id, orders());
    assert!(
        matches!(error, Error::MalformedFile { line: 1, .. }),
        "{error:?}"
    );
    let log = opened.partitions.pop().unwrap().0;
    assert_eq!(*log.id(), other);
    let error = fixture.log_dir().shutdown(vec![log], -1).unwrap_err();
    assert!(
        matches!(error, Error::NotClosed { .. }),
        "it would be taken for clean: {error:?}"
    );
}

#[test]
fn a_full_disk_at_creation_is_reported_as_such() {
    let fixture = Fixture::small_segments();
    fixture.disk.inject(Fault::once(
        Operation::Open,
        ".log",
        io::ErrorKind::StorageFull,
    ));
    let error = fixture
        .log_dir()
        .create_partition(orders(), None, LogConfig::default())
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::DiskFull {
                operation: "create",
                ..
            }
        ),
        "{error:?}"
    );
    assert!(!fixture.partition_dir().try_exists().unwrap());
    fixture.create();
}
