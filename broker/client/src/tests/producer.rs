//! Producers and a peer that loses answers, refuses or knows nothing of idempotence.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker_protocol::messages::produce::{PartitionProduceResponse, TopicProduceResponse};
use broker_protocol::messages::{ApiKey, InitProducerIdResponse, ProduceRequest, ProduceResponse};
use broker_protocol::record::RecordBatch;

use super::peer::{Incoming, Peer, Reaction, World, topic};
use crate::error::Error;
use crate::{Acks, Client, Producer, ProducerConfig, ProducerRecord};

/// A log that keeps what a broker keeps of an idempotent producer.
#[derive(Default)]
struct Log {
    values: Vec<String>,
    /// Next sequence number and the batches (sequence, offset) there are, per producer id.
    producers: std::collections::BTreeMap<i64, (i32, Vec<(i32, i64)>)>,
    duplicates: usize,
}

impl Log {
    fn append(&mut self, incoming: &Incoming) -> (i16, i64) {
        let request: ProduceRequest = incoming.decode();
        let records = request.topic_data[0].partition_data[0]
            .records
            .clone()
            .unwrap();
        let batch = RecordBatch::parse(records).unwrap();
        batch.check_crc().unwrap();
        let header = batch.header();
        let (next, known) = self.producers.entry(header.producer_id).or_default();
        if let Some((_, offset)) = known
            .iter()
            .find(|(first, _)| *first == header.base_sequence)
        {
            self.duplicates += 1;
            return (0, *offset);
        }
        if header.producer_id >= 0 && header.base_sequence != *next {
            return (45, -1);
        }
        let offset = i64::try_from(self.values.len()).unwrap();
        known.push((header.base_sequence, offset));
        *next += header.records_count;
        let records = batch.records(1 << 20).unwrap();
        for record in &records {
            let value = record.unwrap().value.unwrap().to_vec();
            self.values.push(String::from_utf8(value).unwrap());
        }
        (0, offset)
    }
}

fn produced(incoming: &Incoming, (error_code, base_offset): (i16, i64)) -> bytes::Bytes {
    let partition_responses = vec![PartitionProduceResponse {
        error_code,
        base_offset,
        ..Default::default()
    }];
    let name = topic().to_byte_string();
    let responses = vec![TopicProduceResponse {
        name,
        partition_responses,
        ..Default::default()
    }];
    incoming.frame(&ProduceResponse {
        responses,
        ..Default::default()
    })
}

/// A peer whose reaction to the nth Produce request is the script's.
async fn producing(
    world: World,
    script: impl Fn(&Incoming, usize) -> Reaction + Send + Sync + 'static,
) -> Peer {
    let (ids, produces) = (AtomicUsize::new(0), AtomicUsize::new(0));
    Peer::start_in(world, move |incoming| {
        if incoming.key() == ApiKey::InitProducerId {
            let producer_id = i64::try_from(ids.fetch_add(1, Ordering::SeqCst)).unwrap();
            let response = InitProducerIdResponse {
                producer_id,
                ..Default::default()
            };
            return Some(incoming.answer(&response));
        }
        (incoming.key() == ApiKey::Produce)
            .then(|| script(incoming, produces.fetch_add(1, Ordering::SeqCst)))
    })
    .await
}

async fn producer(peer: &Peer, config: ProducerConfig) -> Producer {
    Client::connect(peer.config())
        .await
        .unwrap()
        .producer(config)
        .unwrap()
}

/// One record a batch.
fn small_batches() -> ProducerConfig {
    ProducerConfig {
        batch_bytes: 1,
        ..ProducerConfig::default()
    }
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

async fn send(producer: &Producer, value: &str) -> Result<crate::DeliveryHandle, Error> {
    producer
        .send(ProducerRecord::new(topic(), value.to_owned()))
        .await
}

#[tokio::test]
async fn lost_answers_neither_lose_nor_double_nor_reorder() {
    let log = Arc::new(Mutex::new(Log::default()));
    let broker = Arc::clone(&log);
    let peer = producing(World::default(), move |incoming, nth| match nth % 7 {
        // Appended, but the answer is lost.
        2 => {
            broker.lock().unwrap().append(incoming);
            Reaction::WriteAndClose(bytes::Bytes::new())
        }
        // Lost before it is appended.
        4 => Reaction::WriteAndClose(bytes::Bytes::new()),
        // Refused for now.
        5 => Reaction::Write(produced(incoming, (6, -1))),
        _ => Reaction::Write(produced(incoming, broker.lock().unwrap().append(incoming))),
    })
    .await;
    let producer = producer(&peer, small_batches()).await;
    let mut handles = Vec::new();
    for value in numbers(100) {
        handles.push(send(&producer, &value).await.unwrap());
    }
    producer.flush().await.unwrap();
    for (offset, handle) in (0..).zip(handles) {
        assert_eq!(handle.await.unwrap().offset, offset);
    }
    let log = log.lock().unwrap();
    assert_eq!(log.values, numbers(100));
    assert!(log.duplicates > 0, "some were sent twice");
    assert_eq!(log.producers.len(), 1, "one producer id is enough");
}

#[tokio::test]
async fn refused_record_fails_alone() {
    let log = Arc::new(Mutex::new(Log::default()));
    let broker = Arc::clone(&log);
    let peer = producing(World::default(), move |incoming, nth| {
        let answer = if nth == 3 {
            (87, -1)
        } else {
            broker.lock().unwrap().append(incoming)
        };
        Reaction::Write(produced(incoming, answer))
    })
    .await;
    let producer = producer(&peer, small_batches()).await;
    let mut handles = Vec::new();
    for value in numbers(10) {
        handles.push(send(&producer, &value).await.unwrap());
    }
    let error = producer.flush().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Kafka {
                partition: Some(0),
                ..
            }
        ),
        "{error:?}"
    );
    producer.flush().await.unwrap();
    let mut failed = Vec::new();
    for (index, handle) in handles.into_iter().enumerate() {
        if handle.await.is_err() {
            failed.push(index);
        }
    }
    assert_eq!(failed, [3]);
    let mut expected = numbers(10);
    expected.remove(3);
    assert_eq!(log.lock().unwrap().values, expected);
}

#[tokio::test]
async fn records_that_linger_share_a_batch() {
    let log = Arc::new(Mutex::new(Log::default()));
    let broker = Arc::clone(&log);
    let peer = producing(World::default(), move |incoming, _| {
        Reaction::Write(produced(incoming, broker.lock().unwrap().append(incoming)))
    })
    .await;
    let linger = Duration::from_secs(3600);
    let producer = producer(
        &peer,
        ProducerConfig {
            linger,
            ..ProducerConfig::default()
        },
    )
    .await;
    let first = send(&producer, "0").await.unwrap();
    let second = send(&producer, "1").await.unwrap();
    producer.flush().await.unwrap();
    assert_eq!(
        (first.await.unwrap().offset, second.await.unwrap().offset),
        (0, 1)
    );
    assert_eq!(peer.count(ApiKey::Produce), 1);
}

#[tokio::test]
async fn full_buffer_makes_send_wait_and_lets_lingering_batches_go() {
    let log = Arc::new(Mutex::new(Log::default()));
    let broker = Arc::clone(&log);
    let peer = producing(World::default(), move |incoming, _| {
        let frame = produced(incoming, broker.lock().unwrap().append(incoming));
        Reaction::Later(Duration::from_secs(1), frame)
    })
    .await;
    let config = ProducerConfig {
        linger: Duration::from_secs(3600),
        buffer_bytes: 1000,
        ..ProducerConfig::default()
    };
    let producer = producer(&peer, config).await;
    let value = "x".repeat(500);
    send(&producer, &value).await.unwrap();
    let waiting = send(&producer, &value);
    tokio::pin!(waiting);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
    assert!(early.is_err(), "there is no room yet");
    waiting.await.unwrap();
    assert_eq!(
        log.lock().unwrap().values.len(),
        1,
        "the first has been sent and confirmed"
    );
}

#[tokio::test]
async fn broker_without_idempotence_is_an_error_unless_it_is_switched_off() {
    let world = World {
        lacks: vec![ApiKey::InitProducerId],
        ..World::default()
    };
    let peer = producing(world, |incoming, _| {
        Reaction::Write(produced(incoming, (0, 5)))
    })
    .await;
    let strict = producer(&peer, ProducerConfig::default()).await;
    let error = send(&strict, "a").await.unwrap().await.unwrap_err();
    let Error::UnsupportedApi { api, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(api, "InitProducerIdRequest");
    assert_eq!(peer.count(ApiKey::Produce), 0);

    let config = ProducerConfig {
        idempotent: false,
        acks: Acks::Leader,
        ..ProducerConfig::default()
    };
    let plain = producer(&peer, config).await;
    assert_eq!(send(&plain, "a").await.unwrap().await.unwrap().offset, 5);
}

#[tokio::test]
async fn record_above_the_producers_cap_is_refused_at_once() {
    let peer = producing(World::default(), |_, _| panic!("sent")).await;
    let config = ProducerConfig {
        max_record_bytes: 1000,
        ..ProducerConfig::default()
    };
    let producer = producer(&peer, config).await;
    let error = send(&producer, &"x".repeat(1001)).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::RecordTooLarge {
                cap: Some(1000),
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn dropped_producer_tells_those_who_wait() {
    let peer = producing(World::default(), |_, _| Reaction::Ignore).await;
    let producer = producer(&peer, ProducerConfig::default()).await;
    let handle = send(&producer, "a").await.unwrap();
    drop(producer);
    assert!(matches!(handle.await, Err(Error::Closed)));
}

#[tokio::test]
async fn partition_that_does_not_exist_is_refused_by_name() {
    let peer = producing(World::default(), |_, _| panic!("sent")).await;
    let producer = producer(&peer, ProducerConfig::default()).await;
    let record = ProducerRecord::new(topic(), "a").with_partition(3);
    let error = producer.send(record).await.unwrap_err();
    assert!(
        matches!(error, Error::UnknownPartition { partition: 3, .. }),
        "{error:?}"
    );
}
