//! `kill -9` of our broker under idempotent load with acks=all.
//!
//! ```text
//! seed ─► topics: each request flushed | default rule | compacted; writers of mixed codecs; a group that reads
//!   ten times: some load ─► SIGKILL ─► (SIGKILL while it recovers) ─► start ─► the group's offsets
//!   at last: the load ends ─► everything is read back ─► proof
//! ```
//! - A record that was acknowledged is there once, at the offset that was told, and in its producer's order; one that
//!   was not is there at most once. Some writers are given up in mid-flight and replaced by new producers, which are the
//!   only ones whose records may stay unacknowledged.
//! - A compacted topic keeps the last acknowledged value of each key.
//! - What a consumer has seen stays; the offset its group has committed never goes back.
//!
//! SIGKILL leaves the page cache alone: what a power failure may take is the matter of the broker's own tests.

mod group;
mod load;
mod proof;

use std::time::{Duration, Instant};

use broker_client::protocol::ids::TopicName;
use broker_client::{Client, ClientConfig};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use self::group::Group;
use self::load::Load;
use self::proof::Proof;
use crate::harness::{OurBroker, catching, pause, seeds};
use crate::log_dump::tear;
use crate::rng::Rng;

/// Of one seed, which is one broker's life.
const KILLS: u32 = 10;

/// Longer than anything here may take.
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn ten_kills_of_a_loaded_broker_lose_double_and_disorder_nothing() {
    campaign(0..1);
}

#[test]
#[ignore = "100 kills; run: tests/long broker_kills [--seeds A..B]"]
fn long_broker_kills() {
    campaign(seeds(0..10));
}

/// Runs seeds; one that fails does not keep the others from running.
fn campaign(seeds: std::ops::Range<u64>) {
    let mut failed = Vec::new();
    let (mut kills, mut total) = (0, Proof::default());
    for seed in seeds {
        match catching(|| Run::start(seed).finish()) {
            Ok(proof) => {
                eprintln!("seed {seed}: {proof}");
                kills += KILLS;
                total += proof;
            }
            Err(panic) => {
                eprintln!(
                    "seed {seed} FAILED: {panic}\nagain: tests/long broker_kills --seeds {seed}..{}",
                    seed + 1
                );
                failed.push(seed);
            }
        }
    }
    eprintln!("{kills} kills: {total}");
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "its load or group waits for it at the end, or aborts it"
)]
fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task)
}

/// The topics, by how they are written through to the disk.
#[derive(Debug, Clone)]
pub(crate) struct Topics {
    pub(crate) flushed: TopicName,
    pub(crate) default: TopicName,
    pub(crate) compacted: TopicName,
    pub(crate) partitions: i32,
}

struct Run {
    seed: u64,
    rng: Rng,
    broker: OurBroker,
    runtime: Runtime,
    client: Client,
    topics: Topics,
    load: Load,
    group: Group,
}

impl Run {
    fn start(seed: u64) -> Self {
        let mut rng = Rng(seed);
        // Short, the recovery point is never far; long, the tail is all that was written.
        let flush_interval = rng.pick(&["50ms", "300ms", "60s"]);
        let broker = OurBroker::start_with(&[
            ("LOGFERRY__BROKER__FLUSH_INTERVAL", flush_interval),
            ("LOGFERRY__BROKER__COMPACTION_INTERVAL", "100ms"),
            ("LOGFERRY__BROKER__RETENTION_AGE", "0s"),
        ]);
        let topics = Topics {
            flushed: TopicName::new("flushed").unwrap(),
            default: TopicName::new("default").unwrap(),
            compacted: TopicName::new("compacted").unwrap(),
            partitions: rng.pick(&[2, 3, 5]),
        };
        let segment = rng.pick(&["segment.bytes=65536", "segment.bytes=300000"]);
        broker.create_topic("flushed", topics.partitions, &["flush.messages=1", segment]);
        broker.create_topic("default", topics.partitions, &[segment]);
        let compact = [
            "cleanup.policy=compact",
            "segment.bytes=16384",
            "min.cleanable.dirty.ratio=0.1",
        ];
        broker.create_topic("compacted", topics.partitions, &compact);
        let runtime = Runtime::new().unwrap();
        let clients: Vec<Client> = (0..load::WRITERS + 2)
            .map(|_| runtime.block_on(connect(&broker.address)))
            .collect();
        let (client, others) = clients.split_first().unwrap();
        let (reading, writing) = others.split_first().unwrap();
        let entered = runtime.enter();
        let load = Load::start(&mut rng, writing, &topics);
        let group = Group::start(reading, &topics.default, topics.partitions);
        drop(entered);
        Self {
            client: client.clone(),
            seed,
            rng,
            broker,
            runtime,
            topics,
            load,
            group,
        }
    }

    /// The kills and the proof.
    fn finish(mut self) -> Proof {
        let mut kills = 0;
        while kills < KILLS {
            self.let_it_write();
            let before = self.group.committed();
            self.broker.kill();
            kills += 1;
            if self.rng.chance(30) {
                self.tear_a_tail();
            }
            if self.rng.chance(35) {
                let _runtime = self.runtime.enter();
                self.load.replace_one(&mut self.rng);
            }
            let mut again = 0;
            while kills < KILLS && self.rng.chance(25) {
                self.broker.start_again();
                pause(Duration::from_millis(self.rng.below(60)));
                self.broker.kill();
                (kills, again) = (kills + 1, again + 1);
            }
            let started = Instant::now();
            self.broker.start_again();
            let recovered = self.recovered(started);
            let group = &self.group;
            self.runtime.block_on(group.check(&self.client, &before));
            eprintln!(
                "seed {} kill {kills} ({again} while it recovered): {} acknowledged, {recovered}",
                self.seed,
                self.load.acked(),
            );
        }
        self.let_it_write();
        let proof = self.prove();
        self.broker.stop_cleanly();
        proof
    }

    /// A kill hardly ever hits a write; this is what it leaves then.
    fn tear_a_tail(&mut self) {
        let topic = self.rng.pick(&["flushed", "default", "compacted"]);
        let partition = self
            .rng
            .below(u64::try_from(self.topics.partitions).unwrap());
        let folder = format!("data/{topic}-{partition}");
        tear(&self.broker.folder().join(folder));
    }

    /// Until some records more have been acknowledged, and a moment longer.
    fn let_it_write(&mut self) {
        let enough = self.load.acked() + self.rng.below(3000);
        let written = test_support::wait_until(PATIENCE, || {
            self.load.check();
            self.group.check_alive();
            self.load.acked() >= enough
        });
        written.unwrap_or_else(|error| panic!("{error}; the broker says:\n{}", self.broker.log()));
        pause(Duration::from_millis(self.rng.below(150)));
    }

    /// Waits until the broker serves; what its log says about the recovery.
    fn recovered(&self, started: Instant) -> Recovered {
        let ready =
            test_support::wait_until(PATIENCE, || self.broker.log().contains("broker is ready"));
        let took = started.elapsed();
        let log = self.broker.log();
        ready.unwrap_or_else(|error| panic!("{error}; the broker says:\n{log}"));
        for bad in ["is missing", "damaged places", "panicked"] {
            assert!(!log.contains(bad), "`{bad}` after a kill:\n{log}");
        }
        Recovered::from(took, &log)
    }

    fn prove(&self) -> Proof {
        let runtime = &self.runtime;
        let before = self.group.committed();
        runtime.block_on(async {
            self.load.stop().await;
            self.group.stop().await;
            self.group.check(&self.client, &before).await;
            let mut proof = Proof::default();
            for topic in [&self.topics.flushed, &self.topics.default] {
                for partition in 0..self.topics.partitions {
                    let read = proof::read(&self.client, topic, partition).await;
                    self.load
                        .with_acked(|acked| proof.appended(acked, topic, partition, &read));
                    if topic == &self.topics.default {
                        self.group.prove(partition, &read);
                    }
                }
            }
            for partition in 0..self.topics.partitions {
                let topic = &self.topics.compacted;
                let read = proof::read(&self.client, topic, partition).await;
                self.load
                    .with_acked(|acked| proof.compacted(acked, topic, partition, &read));
            }
            proof
        })
    }
}

async fn connect(address: &str) -> Client {
    let config = ClientConfig {
        retry_backoff: Duration::from_millis(10),
        retry_backoff_max: Duration::from_millis(100),
        retry_deadline: PATIENCE,
        ..ClientConfig::new(address)
    };
    Client::connect(config).await.unwrap()
}

/// What a start after a kill took.
struct Recovered {
    took: Duration,
    scanned: u64,
    walked: u64,
    cut: u64,
}

impl Recovered {
    fn from(took: Duration, log: &str) -> Self {
        let lines = || log.lines().filter(|line| line.contains("log recovered"));
        let sum = |before: &str, after: &str| lines().map(|line| number(line, before, after)).sum();
        Self {
            took,
            scanned: sum("), ", " bytes scanned"),
            walked: sum("headers of ", " bytes read"),
            cut: sum(", ", " bytes cut"),
        }
    }
}

/// The number that stands between two texts; 0 without.
fn number(line: &str, before: &str, after: &str) -> u64 {
    let Some((head, _)) = line.split_once(after) else {
        return 0;
    };
    let (_, text) = head.rsplit_once(before).unwrap();
    text.parse().unwrap()
}

impl std::fmt::Display for Recovered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "ready after {:.3} s, {} bytes scanned, headers of {} bytes read, {} bytes cut",
            self.took.as_secs_f64(),
            self.scanned,
            self.walked,
            self.cut
        )
    }
}
