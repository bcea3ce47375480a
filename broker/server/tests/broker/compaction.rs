//! A compacted topic as its consumers see it.

use std::{
    fs,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use broker_log::disk::{Disk, RealDisk};
use broker_protocol::record::{BatchBuilder, Compression};
use broker_server::Clock;
use bytes::Bytes;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::{
    disk,
    retention::{Clocks, DAY_MS, START_MS},
    support::{PATIENCE, TestBroker, Wire, batches_of, sequenced},
};

/// One record a segment, flushed at once, compacted as soon as there is anything.
const CONFIGS: [(&str, &str); 4] = [
    ("cleanup.policy", "compact"),
    ("segment.bytes", "1024"),
    ("flush.messages", "1"),
    ("min.cleanable.dirty.ratio", "0"),
];

async fn broker(folder: &Arc<TempDir>, clocks: &Arc<Clocks>, disk: Arc<dyn Disk>) -> TestBroker {
    let often = |config: &mut broker_server::Config| {
        config.compaction_interval = Duration::from_millis(5);
    };
    let clock = Arc::clone(clocks) as Arc<dyn Clock>;
    TestBroker::start_in(Arc::clone(folder), often, clock, disk).await
}

fn record(key: &str, value: Option<&str>) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    let value = value.map(|value| value.repeat(900));
    builder
        .push(
            START_MS,
            Some(key.as_bytes()),
            value.as_deref().map(str::as_bytes),
            &[],
        )
        .unwrap();
    builder.build().unwrap()
}

/// Offset, key and first character of the value of all records from `offset` on.
async fn read(wire: &mut Wire, mut offset: i64) -> Vec<(i64, String, Option<char>)> {
    let mut all = Vec::new();
    loop {
        let data = wire.fetch("table", 0, offset).await;
        assert_eq!(data.error_code, 0);
        if offset == data.high_watermark {
            return all;
        }
        for batch in batches_of(&data) {
            for record in &batch.records(1 << 20).unwrap() {
                let record = record.unwrap();
                let key = String::from_utf8(record.key.unwrap().to_vec()).unwrap();
                let value = record.value.map(|value| char::from(value[0]));
                all.push((record.offset, key, value));
            }
            offset = batch.header().next_offset();
        }
    }
}

fn row(offset: i64, key: &str, value: char) -> (i64, String, Option<char>) {
    (offset, key.to_owned(), Some(value))
}

async fn until_it_reads(wire: &mut Wire, expected: &[(i64, String, Option<char>)]) {
    let reading = async { while read(wire, 0).await != expected {} };
    timeout(PATIENCE, reading)
        .await
        .expect("compaction in time");
}

#[tokio::test]
async fn consumers_see_the_last_record_of_each_key_at_its_offset() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let clocks = Clocks::new();
    let broker = broker(&folder, &clocks, Arc::new(RealDisk)).await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("table", 1, &CONFIGS).await;
    for (key, value) in [("a", "1"), ("b", "1"), ("a", "2"), ("b", "2"), ("c", "1")] {
        wire.append("table", 0, record(key, Some(value))).await;
    }
    // The last one is in the active segment.
    wire.append("table", 0, record("a", Some("3"))).await;
    let left = [
        row(2, "a", '2'),
        row(3, "b", '2'),
        row(4, "c", '1'),
        row(5, "a", '3'),
    ];
    until_it_reads(&mut wire, &left).await;
    assert_eq!(wire.list_offset("table", 0, -2).await.offset, 0);
    // A tombstone is seen for its time, then it is gone with the next compaction.
    wire.append("table", 0, record("b", None)).await;
    wire.append("table", 0, record("x", Some("1"))).await;
    wire.append("table", 0, record("x", Some("2"))).await;
    let left = [
        row(4, "c", '1'),
        row(5, "a", '3'),
        (6, "b".to_owned(), None),
        row(7, "x", '1'),
        row(8, "x", '2'),
    ];
    until_it_reads(&mut wire, &left).await;
    clocks.pass(2 * DAY_MS);
    wire.append("table", 0, record("x", Some("3"))).await;
    let left = [
        row(4, "c", '1'),
        row(5, "a", '3'),
        row(8, "x", '2'),
        row(9, "x", '3'),
    ];
    until_it_reads(&mut wire, &left).await;
    let checkpoint = folder.path().join("data/cleaner-offset-checkpoint");
    let written = || fs::read_to_string(&checkpoint).is_ok_and(|text| text == "0\n1\ntable 0 9\n");
    let mut other = broker.connect().await;
    let noted = async {
        while !written() {
            other.list_offset("table", 0, -1).await;
        }
    };
    timeout(PATIENCE, noted).await.unwrap();
    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    assert_eq!(read(&mut broker.connect().await, 0).await, left);
}

#[tokio::test]
async fn a_full_disk_leaves_the_log_as_it_was_and_compaction_comes_later() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let clocks = Clocks::new();
    let disk = disk::disk();
    let broker = broker(&folder, &clocks, Arc::clone(&disk) as Arc<dyn Disk>).await;
    let mut wire = broker.connect().await;
    // Not before the time below.
    let mut configs = CONFIGS.to_vec();
    configs.push(("min.compaction.lag.ms", "1000"));
    wire.create_topic_with("table", 1, &configs).await;
    for value in ["1", "2", "3"] {
        wire.append("table", 0, record("a", Some(value))).await;
    }
    let before = read(&mut wire, 0).await;
    assert_eq!(before.len(), 3);
    disk.full.store(true, Ordering::SeqCst);
    clocks.pass(1000);
    let refused = async {
        while disk.refused.load(Ordering::SeqCst) == 0 {
            wire.list_offset("table", 0, -1).await;
        }
    };
    timeout(PATIENCE, refused).await.unwrap();
    assert_eq!(read(&mut wire, 0).await, before);
    disk.full.store(false, Ordering::SeqCst);
    clocks.pass(600_000);
    until_it_reads(&mut wire, &[row(1, "a", '2'), row(2, "a", '3')]).await;
    for file in fs::read_dir(folder.path().join("data/table-0")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(
            !name.ends_with(".cleaned") && !name.ends_with(".swap"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_topic_with_both_policies_is_compacted_and_deleted() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let clocks = Clocks::new();
    let often = |config: &mut broker_server::Config| {
        config.compaction_interval = Duration::from_millis(5);
        config.retention_check_interval = Duration::from_millis(5);
    };
    let clock = Arc::clone(&clocks) as Arc<dyn Clock>;
    let broker = TestBroker::start_clocked(folder, often, clock).await;
    let mut wire = broker.connect().await;
    let mut configs = CONFIGS.to_vec();
    configs[0].1 = "compact,delete";
    wire.create_topic_with("table", 1, &configs).await;
    for value in ["1", "2", "3"] {
        wire.append("table", 0, record("a", Some(value))).await;
    }
    until_it_reads(&mut wire, &[row(1, "a", '2'), row(2, "a", '3')]).await;
    clocks.pass(8 * DAY_MS);
    let gone = async { while wire.list_offset("table", 0, -2).await.offset != 3 {} };
    timeout(PATIENCE, gone).await.unwrap();
    let refused = wire
        .produce("table", 0, sequenced(1, 0, 0, &["no key"]))
        .await;
    assert_ne!(refused.error_code, 0);
}
