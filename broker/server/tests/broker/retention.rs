//! Old segments go, by a clock that is not believed when it jumps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use broker_protocol::record::{BatchBuilder, Compression};
use broker_server::Clock;
use bytes::Bytes;
use tokio::time::timeout;

use crate::support::{PATIENCE, TestBroker, Wire, batches_of, name};

/// The time at which the tests begin.
pub(crate) const START_MS: i64 = 1_700_000_000_000;
pub(crate) const DAY_MS: i64 = 24 * 3_600_000;
const EARLIEST: i64 = -2;

/// A wall clock and a monotonic timer that stand still until told.
#[derive(Debug)]
pub(crate) struct Clocks {
    wall_ms: AtomicI64,
    monotonic_ms: AtomicU64,
}

impl Clock for Clocks {
    fn now_ms(&self) -> i64 {
        self.wall_ms.load(Ordering::SeqCst)
    }
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.monotonic_ms.load(Ordering::SeqCst))
    }
}

impl Clocks {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            wall_ms: AtomicI64::new(START_MS),
            monotonic_ms: AtomicU64::new(0),
        })
    }

    /// Time passes.
    pub(crate) fn pass(&self, ms: i64) {
        self.monotonic_ms
            .fetch_add(u64::try_from(ms).unwrap(), Ordering::SeqCst);
        self.jump(ms);
    }

    /// Somebody sets the wall clock.
    fn jump(&self, ms: i64) {
        self.wall_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

async fn broker(clocks: &Arc<Clocks>) -> TestBroker {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let often = |config: &mut broker_server::Config| {
        config.retention_check_interval = Duration::from_millis(5);
    };
    TestBroker::start_clocked(folder, often, Arc::clone(clocks) as Arc<dyn Clock>).await
}

pub(crate) fn stamped(timestamp_ms: i64, value: &str) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    builder
        .push(timestamp_ms, Some(b"key"), Some(value.as_bytes()), &[])
        .unwrap();
    builder.build().unwrap()
}

/// Waits until the log of a topic begins at `offset`.
async fn begins_at(wire: &mut Wire, topic: &str, offset: i64) {
    let look = async { while wire.list_offset(topic, 0, EARLIEST).await.offset != offset {} };
    timeout(PATIENCE, look).await.expect("retention in time");
}

/// Waits until retention has gone over all topics with names before `z` since this was called: over `z`, whose
/// every record is too much, twice.
async fn rounds_pass(wire: &mut Wire) {
    for _ in 0..2 {
        let offset = wire.append("z", 0, stamped(START_MS, "too much")).await;
        begins_at(wire, "z", offset + 1).await;
    }
}

#[tokio::test]
async fn old_segments_go_as_time_passes_and_the_active_one_with_them() {
    let clocks = Clocks::new();
    let broker = broker(&clocks).await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("orders", 1, &[("segment.ms", "1000")])
        .await;
    wire.append("orders", 0, stamped(START_MS, "a")).await;
    clocks.pass(DAY_MS);
    wire.append("orders", 0, stamped(START_MS + DAY_MS, "b"))
        .await;
    clocks.pass(6 * DAY_MS + 1);
    begins_at(&mut wire, "orders", 1).await;
    assert_eq!(batches_of(&wire.fetch("orders", 0, 1).await).len(), 1);
    let gone = wire.fetch("orders", 0, 0).await;
    assert_eq!(name(gone.error_code), "OFFSET_OUT_OF_RANGE");
    clocks.pass(DAY_MS);
    begins_at(&mut wire, "orders", 2).await;
    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    let mut wire = broker.connect().await;
    assert_eq!(wire.list_offset("orders", 0, EARLIEST).await.offset, 2);
    assert_eq!(wire.append("orders", 0, stamped(START_MS, "c")).await, 2);
}

#[tokio::test]
async fn a_partition_stays_below_its_size() {
    let clocks = Clocks::new();
    let broker = broker(&clocks).await;
    let mut wire = broker.connect().await;
    let configs = [("segment.bytes", "1024"), ("retention.bytes", "4096")];
    wire.create_topic_with("orders", 1, &configs).await;
    let value = "x".repeat(900);
    for _ in 0..10 {
        wire.append("orders", 0, stamped(START_MS, &value)).await;
    }
    begins_at(&mut wire, "orders", 5).await;
    assert_eq!(wire.list_offset("orders", 0, -1).await.offset, 10);
}

#[tokio::test]
async fn a_clock_that_jumps_a_year_ahead_and_back_deletes_nothing() {
    let clocks = Clocks::new();
    let broker = broker(&clocks).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let too_much = [("retention.bytes", "0"), ("retention.ms", "-1")];
    wire.create_topic_with("z", 1, &too_much).await;
    wire.append("orders", 0, stamped(START_MS, "a")).await;
    clocks.jump(365 * DAY_MS);
    rounds_pass(&mut wire).await;
    // Records of the wrong year are the newest, and do not make the others old.
    wire.append("orders", 0, stamped(START_MS + 365 * DAY_MS, "b"))
        .await;
    clocks.pass(DAY_MS / 2);
    rounds_pass(&mut wire).await;
    clocks.jump(-365 * DAY_MS);
    clocks.pass(6 * DAY_MS);
    rounds_pass(&mut wire).await;
    assert_eq!(wire.list_offset("orders", 0, EARLIEST).await.offset, 0);
    // What is old by the monotonic timer goes; what is stamped in the future goes by the time of its file.
    clocks.pass(DAY_MS);
    begins_at(&mut wire, "orders", 1).await;
    let segment = "data/orders-0/00000000000000000001.log";
    let file = std::fs::File::options()
        .write(true)
        .open(broker.folder.path().join(segment))
        .unwrap();
    let past = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(past).unwrap();
    begins_at(&mut wire, "orders", 2).await;
}

#[tokio::test]
async fn timestamps_out_of_range_are_refused_record_by_record() {
    let clocks = Clocks::new();
    let broker = broker(&clocks).await;
    let mut wire = broker.connect().await;
    let limits = [
        ("message.timestamp.before.max.ms", "1000"),
        ("message.timestamp.after.max.ms", "2000"),
    ];
    wire.create_topic_with("orders", 1, &limits).await;
    let mut builder = BatchBuilder::new(Compression::Zstd);
    for time in [
        START_MS - 1001,
        START_MS - 1000,
        START_MS + 2000,
        START_MS + 2001,
    ] {
        builder.push(time, None, Some(b"value"), &[]).unwrap();
    }
    let refused = wire.produce("orders", 0, builder.build().unwrap()).await;
    assert_eq!(name(refused.error_code), "INVALID_TIMESTAMP");
    let faults: Vec<_> = refused
        .record_errors
        .iter()
        .map(|fault| fault.batch_index)
        .collect();
    assert_eq!(faults, [0, 3]);
    wire.append("orders", 0, stamped(START_MS - 1000, "a"))
        .await;
    // By default an hour ahead, and any time behind.
    wire.create_topic("free", 1).await;
    wire.append("free", 0, stamped(0, "a")).await;
    wire.append("free", 0, stamped(START_MS + 3_600_000, "b"))
        .await;
    let refused = wire
        .produce("free", 0, stamped(START_MS + 3_600_001, "c"))
        .await;
    assert_eq!(name(refused.error_code), "INVALID_TIMESTAMP");
    assert_eq!(wire.list_offset("free", 0, -1).await.offset, 2);
}
