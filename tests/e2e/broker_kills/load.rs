//! Idempotent producers that write all the time, and what they were told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use broker_client::protocol::ids::TopicName;
use broker_client::protocol::record::Compression;
use broker_client::{Client, DeliveryHandle, ProducerConfig, ProducerRecord};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Topics;
use crate::rng::Rng;

/// Producers at a time; the last writes the compacted topic.
pub(super) const WRITERS: usize = 5;

/// Keys of one partition of the compacted topic.
const KEYS: u64 = 20;

const CODECS: [Compression; 5] = [
    Compression::None,
    Compression::Lz4,
    Compression::Gzip,
    Compression::Zstd,
    Compression::Snappy,
];

/// By topic, partition and producer: the offset told for each of its records, by their numbers. Only the record that is
/// next in its number may be added, so a gap in what was acknowledged shows at once.
pub(super) type Acked = BTreeMap<(TopicName, i32, u64), Vec<i64>>;

/// What was acknowledged, of all producers.
#[derive(Debug, Default)]
struct Ledger {
    acked: Mutex<Acked>,
    total: AtomicU64,
}

/// The producers of one seed.
#[derive(Debug)]
pub(super) struct Load {
    ledger: Arc<Ledger>,
    stop: CancellationToken,
    writers: Mutex<Vec<(Writer, JoinHandle<()>)>>,
    next_number: u64,
}

/// One idempotent producer. Dropped, it gives up on what is not acknowledged.
#[derive(Debug, Clone)]
struct Writer {
    number: u64,
    client: Client,
    topic: TopicName,
    partitions: i32,
    keyed: bool,
    compression: Compression,
    batch_bytes: usize,
    /// Records not acknowledged at a time.
    window: usize,
}

impl Load {
    /// Begins to write, with a client each, in the runtime it is called in.
    pub(super) fn start(rng: &mut Rng, clients: &[Client], topics: &Topics) -> Self {
        let mut load = Self {
            ledger: Arc::default(),
            stop: CancellationToken::new(),
            writers: Mutex::default(),
            next_number: 0,
        };
        for (slot, client) in clients.iter().enumerate() {
            let keyed = slot + 1 == WRITERS;
            let topic = match slot % 2 {
                _ if keyed => &topics.compacted,
                0 => &topics.flushed,
                _ => &topics.default,
            };
            let writer = Writer {
                number: 0,
                client: client.clone(),
                topic: topic.clone(),
                partitions: topics.partitions,
                keyed,
                compression: Compression::None,
                batch_bytes: 0,
                window: 0,
            };
            load.spawn(rng, writer);
        }
        load
    }

    /// A new producer in the place of `old`.
    fn spawn(&mut self, rng: &mut Rng, old: Writer) {
        let number = self.next_number;
        self.next_number += 1;
        let codec = usize::try_from(number).unwrap() % CODECS.len();
        let writer = Writer {
            number,
            compression: CODECS[codec],
            batch_bytes: rng.pick(&[1, 2_000, 20_000]),
            // Compaction is to have something to do.
            window: if old.keyed {
                50
            } else {
                rng.pick(&[1, 50, 400])
            },
            ..old
        };
        let seed = rng.next();
        let task = writer
            .clone()
            .run(Rng(seed), Arc::clone(&self.ledger), self.stop.clone());
        let task = super::spawn(task);
        self.writers.get_mut().unwrap().push((writer, task));
    }

    /// Gives up on one producer of the topics that keep everything, in mid-flight, and begins another.
    pub(super) fn replace_one(&mut self, rng: &mut Rng) {
        let writers = self.writers.get_mut().unwrap();
        let plain: Vec<usize> = (0..writers.len())
            .filter(|at| !writers[*at].0.keyed)
            .collect();
        let (writer, task) = writers.remove(rng.pick(&plain));
        task.abort();
        self.spawn(rng, writer);
    }

    /// Records that were acknowledged so far.
    pub(super) fn acked(&self) -> u64 {
        self.ledger.total.load(Ordering::Relaxed)
    }

    pub(super) fn with_acked(&self, look: impl FnOnce(&Acked)) {
        look(&self.ledger.acked.lock().unwrap());
    }

    /// Panics if a writer has: producers of this load must never fail.
    pub(super) fn check(&self) {
        let writers = self.writers.lock().unwrap();
        let ended = writers.iter().find(|(_, task)| task.is_finished());
        assert!(ended.is_none(), "a producer has failed: {ended:?}");
    }

    /// Ends it once all is acknowledged.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        let writers = std::mem::take(&mut *self.writers.lock().unwrap());
        for (_, task) in writers {
            tokio::time::timeout(super::PATIENCE, task)
                .await
                .unwrap()
                .unwrap();
        }
    }
}

impl Writer {
    async fn run(self, mut rng: Rng, ledger: Arc<Ledger>, stop: CancellationToken) {
        let config = ProducerConfig {
            compression: self.compression,
            batch_bytes: self.batch_bytes,
            linger: std::time::Duration::from_millis(2),
            ..ProducerConfig::default()
        };
        let producer = self.client.producer(config).unwrap();
        let mut waiting = VecDeque::new();
        let mut sent = 0;
        while !stop.is_cancelled() {
            let record = self.record(&mut rng, sent);
            let handle = producer.send(record).await.unwrap();
            waiting.push_back((self.place(sent), handle));
            sent += 1;
            if waiting.len() >= self.window {
                self.settle(&ledger, waiting.pop_front().unwrap()).await;
            }
        }
        producer.flush().await.unwrap();
        for delivery in waiting {
            self.settle(&ledger, delivery).await;
        }
    }

    /// Partition and number there of the `sent`th record.
    fn place(&self, sent: u64) -> (i32, u64) {
        let partitions = u64::try_from(self.partitions).unwrap();
        let partition = i32::try_from(sent % partitions).unwrap();
        (partition, sent / partitions)
    }

    fn record(&self, rng: &mut Rng, sent: u64) -> ProducerRecord {
        let (partition, number) = self.place(sent);
        let filling =
            format!("{:016x}", rng.next()).repeat(usize::try_from(rng.below(40)).unwrap());
        let value = format!("{} {number} {filling}", self.number);
        let record = ProducerRecord::new(self.topic.clone(), value).with_partition(partition);
        if self.keyed {
            record.with_key(key_of(number))
        } else {
            record
        }
    }

    async fn settle(&self, ledger: &Ledger, ((partition, number), handle): Waiting) {
        let delivery = handle.await.unwrap_or_else(|error| {
            panic!(
                "producer {}, {}-{partition}, record {number}: {error:?}",
                self.number, self.topic
            )
        });
        assert_eq!(delivery.partition, partition);
        let place = (self.topic.clone(), partition, self.number);
        let mut acked = ledger.acked.lock().unwrap();
        let offsets = acked.entry(place).or_default();
        assert_eq!(offsets.len() as u64, number, "acknowledged out of order");
        offsets.push(delivery.offset);
        ledger.total.fetch_add(1, Ordering::Relaxed);
    }
}

type Waiting = ((i32, u64), DeliveryHandle);

/// The key of the `number`th record in a partition of the compacted topic.
pub(super) fn key_of(number: u64) -> String {
    format!("key {}", number % KEYS)
}
