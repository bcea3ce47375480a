//! Power cuts: a disk that forgets what was not synced, below a broker under idempotent load.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, atomic::AtomicI64},
    time::Duration,
};

use broker_log::disk::{Disk, faulty::FaultyDisk};
use tempfile::TempDir;
use tokio::{task::JoinSet, time::timeout};

use crate::support::{
    PATIENCE, StillClock, TestBroker, Wire, name, produce_request, read_all, sequenced,
};

const PRODUCERS: i64 = 4;
const PARTITIONS: i32 = 2;

/// An idempotent producer that outlives the broker: what was not acknowledged is sent again.
#[derive(Debug, Clone, Copy)]
struct Producer {
    id: i64,
    sequence: i32,
}

impl Producer {
    fn partition(self) -> i32 {
        i32::try_from(self.id).unwrap() % PARTITIONS
    }

    /// The batch it sends next: two records, so that half of it would show.
    fn values(self) -> [String; 2] {
        [0, 1].map(|more| format!("{} {}", self.id, self.sequence + more))
    }
}

/// Partition, offset and value of what was acknowledged.
type Acked = Arc<Mutex<BTreeSet<(i32, i64, String)>>>;

/// Sends until it is aborted.
async fn produce(mut wire: Wire, producers: Arc<Mutex<Vec<Producer>>>, at: usize, acked: Acked) {
    loop {
        let producer = producers.lock().unwrap()[at];
        let values = producer.values();
        let texts = [values[0].as_str(), values[1].as_str()];
        let batch = sequenced(producer.id, 0, producer.sequence, &texts);
        let mut request = produce_request("orders", producer.partition(), batch);
        request.acks = -1;
        let answer = wire.call(&request, 9).await;
        let answer = &answer.responses[0].partition_responses[0];
        assert_eq!(name(answer.error_code), "NONE", "{answer:?}");
        let mut acked = acked.lock().unwrap();
        // -1: it is there already, from before the cut.
        for (value, offset) in values.into_iter().zip(answer.base_offset..) {
            if answer.base_offset >= 0 {
                acked.insert((producer.partition(), offset, value));
            }
        }
        producers.lock().unwrap()[at].sequence += 2;
    }
}

async fn broker_on(folder: &Arc<TempDir>, disk: &FaultyDisk) -> TestBroker {
    let clock = Arc::new(StillClock(AtomicI64::new(1_700_000_000_000)));
    let never = |config: &mut broker_server::Config| {
        config.flush_interval = Duration::from_secs(1_000_000);
    };
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    TestBroker::start_in(Arc::clone(folder), never, clock, disk).await
}

async fn lose_power(broker: TestBroker, disk: &FaultyDisk, mut choose: impl FnMut(usize) -> usize) {
    broker.kill().await;
    disk.crash(&mut choose).unwrap();
}

#[tokio::test]
async fn with_a_flush_per_request_a_power_cut_takes_nothing_acknowledged() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let disk = FaultyDisk::new(folder.path()).unwrap();
    let acked = Acked::default();
    let producers = (0..PRODUCERS).map(|id| Producer { id, sequence: 0 });
    let producers: Arc<Mutex<Vec<Producer>>> = Arc::new(Mutex::new(producers.collect()));
    let mut seed: u64 = 1;
    for life in 0..8 {
        let broker = broker_on(&folder, &disk).await;
        let mut wire = broker.connect().await;
        if life == 0 {
            let configs = [("flush.messages", "1"), ("segment.bytes", "2048")];
            wire.create_topic_with("orders", PARTITIONS, &configs).await;
        }
        verify(&mut wire, &acked).await;
        let mut tasks = JoinSet::new();
        for at in 0..usize::try_from(PRODUCERS).unwrap() {
            let wire = broker.connect().await;
            let producing = produce(wire, Arc::clone(&producers), at, Arc::clone(&acked));
            tasks.spawn(producing);
        }
        let enough = acked.lock().unwrap().len() + 60 + 7 * life;
        let written = async {
            while acked.lock().unwrap().len() < enough {
                assert!(tasks.try_join_next().is_none(), "a producer has ended");
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, written).await.unwrap();
        tasks.shutdown().await;
        // Any state that the syncs allow: part of the tail kept, zeros, garbage, names undone.
        lose_power(broker, &disk, |below| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(seed >> 33).unwrap() % below
        })
        .await;
    }
    let broker = broker_on(&folder, &disk).await;
    verify(&mut broker.connect().await, &acked).await;
}

/// What was acknowledged is where it was told to be, and nothing is there twice or out of order.
async fn verify(wire: &mut Wire, acked: &Acked) {
    let mut missing = acked.lock().unwrap().clone();
    for partition in 0..PARTITIONS {
        let mut last = vec![-1; usize::try_from(PRODUCERS).unwrap()];
        for (offset, value) in read_all(wire, "orders", partition).await {
            let (producer, sequence) = value.split_once(' ').unwrap();
            let last = &mut last[producer.parse::<usize>().unwrap()];
            let sequence: i32 = sequence.parse().unwrap();
            assert_eq!(sequence, *last + 1, "{value} at {offset} of {partition}");
            *last = sequence;
            missing.remove(&(partition, offset, value));
        }
    }
    assert!(missing.is_empty(), "lost or moved: {missing:?}");
}

#[tokio::test]
async fn with_the_default_rule_a_power_cut_may_take_what_was_not_flushed_yet() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let disk = FaultyDisk::new(folder.path()).unwrap();
    let broker = broker_on(&folder, &disk).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    assert_eq!(
        wire.append("orders", 0, sequenced(1, 0, 0, &["a"])).await,
        0
    );
    lose_power(broker, &disk, |_| 0).await;
    let broker = broker_on(&folder, &disk).await;
    let read = read_all(&mut broker.connect().await, "orders", 0).await;
    assert_eq!(read, []);
}
