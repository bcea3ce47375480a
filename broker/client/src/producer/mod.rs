//! Producing: records are gathered per partition, sent in batches, and confirmed one by one.
//!
//! ```text
//!  send ─► partitioner ─► queue (per partition) ─► sender task ─► window ─► Produce ─► broker
//!    │ byte permit            linger, size            │ order, sequence numbers, retries
//!    ▼                                                ▼
//!  DeliveryHandle ◄───────────────────────────── confirmation, permit released
//! ```

mod partitioner;
mod queue;
mod record;
mod sender;
mod window;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker_protocol::ids::TopicName;
use broker_protocol::partitioning::partition_for_key;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use self::partitioner::StickyPartitioner;
use self::queue::{BatchLimits, PartitionQueue, RecordData, Reply};
use self::sender::{Identities, Sender};
use crate::backoff::{Subject, retry};
use crate::client::Client;
use crate::config::ProducerConfig;
use crate::error::{Error, Result};
use crate::metadata::CachedTopic;

pub use self::record::{Delivery, DeliveryHandle, ProducerRecord};

/// Sends records. Clones are the same producer; the last one dropped gives up on what is not yet
/// confirmed, so [`flush`](Self::flush) before.
#[derive(Debug, Clone)]
pub struct Producer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    config: Arc<ProducerConfig>,
    identities: Arc<Identities>,
    buffer: Arc<Semaphore>,
    state: Mutex<State>,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    queues: BTreeMap<TopicName, BTreeMap<i32, Arc<PartitionQueue>>>,
    sticky: BTreeMap<TopicName, StickyPartitioner>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Client {
    /// Makes a producer. Nothing is sent before the first record.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub fn producer(&self, config: ProducerConfig) -> Result<Producer> {
        config.validate()?;
        let inner = Inner {
            client: self.clone(),
            identities: Arc::new(Identities::new(self.clone())),
            buffer: Arc::new(Semaphore::new(config.buffer_bytes)),
            config: Arc::new(config),
            state: Mutex::default(),
            stop: self.inner.tasks.child_token(),
        };
        Ok(Producer {
            inner: Arc::new(inner),
        })
    }
}

impl Producer {
    /// Puts a record into its partition's queue, after waiting for room in the buffer. The handle
    /// tells when and where it was appended; dropping it does not recall the record. Records sent
    /// one after the other to one partition are appended in that order.
    ///
    /// Cancel safe: dropped before it returns, it has sent nothing.
    ///
    /// # Errors
    /// [`Error::RecordTooLarge`], [`Error::UnknownTopic`], [`Error::UnknownPartition`],
    /// [`Error::Timeout`] if the topic's metadata cannot be had. What happens later is told by the
    /// handle: also [`Error::UnsupportedApi`] if the broker knows no idempotent producers,
    /// [`Error::RecordTooLarge`] if the broker says so, [`Error::Timeout`] after the delivery
    /// timeout.
    pub async fn send(&self, record: ProducerRecord) -> Result<DeliveryHandle> {
        let Inner { config, buffer, .. } = &*self.inner;
        let size = record.size();
        if size > config.max_record_bytes {
            let cap = Some(config.max_record_bytes);
            return Err(Error::RecordTooLarge {
                topic: record.topic,
                size,
                cap,
            });
        }
        let topic = self.topic(&record).await?;
        let permits = u32::try_from(size.min(config.buffer_bytes)).unwrap_or(u32::MAX);
        let permit = match Arc::clone(buffer).try_acquire_many_owned(permits) {
            Ok(permit) => permit,
            Err(_) => {
                // The buffer is full: lingering batches are what fills it.
                self.hurry();
                let acquired = Arc::clone(buffer).acquire_many_owned(permits).await;
                acquired.map_err(|_| Error::Closed)?
            }
        };
        let (confirmed, receiver) = oneshot::channel();
        let reply = Reply {
            confirmed,
            _buffer: Some(permit),
        };
        let queue = self.queue_for(&record, &topic, size)?;
        let data = RecordData {
            timestamp_ms: record.timestamp_ms.unwrap_or_else(|| config.clock.now_ms()),
            key: record.key,
            value: record.value,
            headers: record.headers,
        };
        queue.push(data, reply, size);
        Ok(DeliveryHandle {
            confirmed: receiver,
        })
    }

    /// Sends everything at once and waits until all records sent before are confirmed or have
    /// failed. Cancel safe.
    ///
    /// # Errors
    /// The first failure of a record since the last flush, whether its handle was kept or not.
    pub async fn flush(&self) -> Result<()> {
        let mut first = Ok(());
        for (queue, enqueued) in self.hurry() {
            first = first.and(queue.flushed(enqueued).await);
        }
        first
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn hurry(&self) -> Vec<(Arc<PartitionQueue>, u64)> {
        let state = self.state();
        let queues = state.queues.values().flat_map(BTreeMap::values);
        queues
            .map(|queue| (Arc::clone(queue), queue.hurry()))
            .collect()
    }

    /// The record's topic; asked for anew if it lacks the partition named.
    async fn topic(&self, record: &ProducerRecord) -> Result<Arc<CachedTopic>> {
        let Inner { client, .. } = &*self.inner;
        let name = &record.topic;
        let has = |topic: &CachedTopic| {
            let named = record.partition.is_none_or(|named| {
                topic
                    .topic
                    .partitions
                    .iter()
                    .any(|found| found.partition == named)
            });
            named && !topic.topic.partitions.is_empty()
        };
        if let Ok(topic) = client.topic(name).await
            && has(&topic)
        {
            return Ok(topic);
        }
        let subject = Subject {
            operation: "Metadata",
            topic: Some(name),
            partition: record.partition,
            offset: None,
        };
        let has = &has;
        retry(&client.policy(), subject, || async move {
            let topic = client.topic(name).await?;
            if has(&topic) {
                return Ok(topic);
            }
            client.inner.metadata.forget(name, topic.generation);
            let partition = record.partition.unwrap_or(0);
            Err(Error::UnknownPartition {
                topic: name.clone(),
                partition,
            })
        })
        .await
    }

    /// Chooses the partition and gives its queue; the first time also starts its sender.
    fn queue_for(
        &self,
        record: &ProducerRecord,
        topic: &CachedTopic,
        size: usize,
    ) -> Result<Arc<PartitionQueue>> {
        let name = &record.topic;
        let mut state = self.state();
        let partition = match record.partition {
            Some(partition) => Some(partition),
            None => self.choose(&mut state, record, topic, size),
        };
        let partition = partition.ok_or_else(|| Error::UnknownPartition {
            topic: name.clone(),
            partition: 0,
        })?;
        if let Some(queue) = state
            .queues
            .get(name)
            .and_then(|queues| queues.get(&partition))
        {
            return Ok(Arc::clone(queue));
        }
        let Inner {
            client,
            config,
            identities,
            stop,
            ..
        } = &*self.inner;
        let limits = BatchLimits {
            batch_bytes: config.batch_bytes,
            linger: config.linger,
        };
        let queue = Arc::new(PartitionQueue::new(limits));
        let queues = state.queues.entry(name.clone()).or_default();
        queues.insert(partition, Arc::clone(&queue));
        drop(state);
        let place = (name.clone(), partition);
        let (config, identities) = (Arc::clone(config), Arc::clone(identities));
        let sender = Sender::new(
            client.clone(),
            place,
            config,
            identities,
            Arc::clone(&queue),
        );
        client.inner.tasks.spawn(sender.run(stop.clone()));
        Ok(queue)
    }

    /// By key over all partitions, as the Java client; without key over those that have a leader.
    fn choose(
        &self,
        state: &mut State,
        record: &ProducerRecord,
        topic: &CachedTopic,
        size: usize,
    ) -> Option<i32> {
        let partitions = &topic.topic.partitions;
        if let Some(key) = &record.key {
            let index = partition_for_key(key, partitions.len());
            return partitions.get(index).map(|found| found.partition);
        }
        let led = partitions.iter().filter(|found| found.leader.is_some());
        let mut available: Vec<i32> = led.map(|found| found.partition).collect();
        if available.is_empty() {
            available = partitions.iter().map(|found| found.partition).collect();
        }
        let sticky = state
            .sticky
            .entry(record.topic.clone())
            .or_insert_with(StickyPartitioner::new);
        sticky.choose(size, self.inner.config.batch_bytes, &available)
    }
}
