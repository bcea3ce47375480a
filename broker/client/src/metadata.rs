//! Who is in the cluster and who leads what: asked for when needed, kept until an error says that
//! it is out of date or it has become too old.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker_protocol::error_code::ErrorCode;
use broker_protocol::ids::{TopicId, TopicName};
use broker_protocol::messages::metadata::{MetadataRequestTopic, MetadataResponseTopic};
use broker_protocol::messages::{MetadataRequest, MetadataResponse};
use tokio::time::Instant;

use crate::backoff::{Subject, retry};
use crate::client::Client;
use crate::config::join_address;
use crate::error::{Error, Result};

/// What a cluster says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The cluster's id, where it has one.
    pub cluster_id: Option<String>,
    /// Node id of the controller; with KRaft any broker that forwards to it.
    pub controller: Option<i32>,
    /// The live brokers, by node id.
    pub brokers: Vec<Broker>,
}

/// One broker as it advertises itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// Its node id.
    pub node_id: i32,
    /// Its `host:port`.
    pub address: Arc<str>,
    /// Its rack, if it has one.
    pub rack: Option<String>,
}

/// One topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicMetadata {
    /// Its name.
    pub name: TopicName,
    /// Its id, where the broker has topic ids.
    pub topic_id: Option<TopicId>,
    /// Whether the broker uses it itself.
    pub internal: bool,
    /// Why nothing more is known, such as `UNKNOWN_TOPIC_OR_PARTITION`.
    pub error: Option<ErrorCode>,
    /// Its partitions in order.
    pub partitions: Vec<PartitionMetadata>,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionMetadata {
    /// Its number.
    pub partition: i32,
    /// Node id of its leader; none if it has no leader now.
    pub leader: Option<i32>,
    /// Epoch of that leader, where the broker says.
    pub leader_epoch: Option<i32>,
    /// The broker's complaint about it, such as `LEADER_NOT_AVAILABLE`.
    pub error: Option<ErrorCode>,
}

/// Where to send requests about one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) node_id: i32,
    pub(crate) address: Arc<str>,
    pub(crate) leader_epoch: Option<i32>,
    pub(crate) topic_id: Option<TopicId>,
    /// Which reading of the metadata this is from; see [`Metadata::forget`].
    pub(crate) generation: u64,
}

#[derive(Debug)]
pub(crate) struct CachedTopic {
    pub(crate) topic: TopicMetadata,
    pub(crate) generation: u64,
    read_at: Instant,
}

#[derive(Debug, Default)]
struct Cached {
    cluster: Cluster,
    topics: BTreeMap<TopicName, Arc<CachedTopic>>,
    generation: u64,
    /// The address that answered last: it is asked first.
    preferred: Option<Arc<str>>,
}

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    cached: Mutex<Cached>,
    /// Held while a topic is asked for, so that many who miss it ask once.
    asking: tokio::sync::Mutex<()>,
}

impl Metadata {
    fn cached(&self) -> MutexGuard<'_, Cached> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what is known of a topic, unless somebody has read it anew since `generation`.
    pub(crate) fn forget(&self, topic: &TopicName, generation: u64) {
        let mut cached = self.cached();
        if cached
            .topics
            .get(topic)
            .is_some_and(|entry| entry.generation <= generation)
        {
            cached.topics.remove(topic);
        }
    }

    /// The addresses worth asking, best first.
    pub(crate) fn addresses(&self, bootstrap: &[Arc<str>]) -> Vec<Arc<str>> {
        let cached = self.cached();
        let known = cached.cluster.brokers.iter().map(|broker| &broker.address);
        let mut addresses: Vec<Arc<str>> = Vec::new();
        for address in cached.preferred.iter().chain(known).chain(bootstrap) {
            if !addresses.contains(address) {
                addresses.push(Arc::clone(address));
            }
        }
        addresses
    }

    pub(crate) fn prefer(&self, address: &Arc<str>) {
        self.cached().preferred = Some(Arc::clone(address));
    }

    pub(crate) fn address_of(&self, node_id: i32) -> Option<Arc<str>> {
        let cached = self.cached();
        let broker = cached
            .cluster
            .brokers
            .iter()
            .find(|broker| broker.node_id == node_id)?;
        Some(Arc::clone(&broker.address))
    }

    /// Address of the controller, if there is one.
    pub(crate) fn controller(&self) -> Option<Arc<str>> {
        let controller = self.cached().cluster.controller?;
        self.address_of(controller)
    }

    fn cluster(&self) -> Cluster {
        self.cached().cluster.clone()
    }

    fn topic(&self, topic: &TopicName, max_age: std::time::Duration) -> Option<Arc<CachedTopic>> {
        let cached = self.cached();
        let entry = cached.topics.get(topic)?;
        (entry.read_at.elapsed() < max_age).then(|| Arc::clone(entry))
    }

    fn store_cluster(&self, response: &MetadataResponse) {
        self.cached().cluster = cluster_of(response);
    }

    fn store_topic(&self, topic: TopicMetadata) -> Arc<CachedTopic> {
        let mut cached = self.cached();
        cached.generation += 1;
        let generation = cached.generation;
        let name = topic.name.clone();
        let entry = Arc::new(CachedTopic {
            topic,
            generation,
            read_at: Instant::now(),
        });
        cached.topics.insert(name, Arc::clone(&entry));
        entry
    }
}

fn cluster_of(response: &MetadataResponse) -> Cluster {
    let mut brokers: Vec<Broker> = response
        .brokers
        .iter()
        .map(|broker| Broker {
            node_id: broker.node_id,
            address: Arc::from(join_address(&broker.host, broker.port)),
            rack: broker.rack.as_ref().map(|rack| rack.to_string()),
        })
        .collect();
    brokers.sort_by_key(|broker| broker.node_id);
    Cluster {
        cluster_id: response.cluster_id.as_ref().map(|id| id.to_string()),
        controller: Some(response.controller_id).filter(|id| *id >= 0),
        brokers,
    }
}

fn error_of(code: i16) -> Option<ErrorCode> {
    Some(ErrorCode::from_i16(code)).filter(|code| *code != ErrorCode::None)
}

/// `None` if the topic has no name that can be.
fn topic_of(topic: &MetadataResponseTopic) -> Option<TopicMetadata> {
    let name = TopicName::new(topic.name.as_ref()?.to_string()).ok()?;
    let mut partitions: Vec<PartitionMetadata> = topic
        .partitions
        .iter()
        .map(|partition| PartitionMetadata {
            partition: partition.partition_index,
            leader: Some(partition.leader_id).filter(|id| *id >= 0),
            leader_epoch: Some(partition.leader_epoch).filter(|epoch| *epoch >= 0),
            error: error_of(partition.error_code),
        })
        .collect();
    partitions.sort_by_key(|partition| partition.partition);
    Some(TopicMetadata {
        name,
        topic_id: Some(TopicId(topic.topic_id)).filter(|id| !id.is_zero()),
        internal: topic.is_internal,
        error: error_of(topic.error_code),
        partitions,
    })
}

impl Client {
    /// The cluster's id, controller and brokers, asked for now. Cancel safe.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no broker answered until the deadline.
    pub async fn cluster(&self) -> Result<Cluster> {
        self.topics(Some(&[])).await?;
        Ok(self.inner.metadata.cluster())
    }

    /// The named topics, or all of them, sorted by name, asked for now. A topic that does not exist
    /// is in the answer, with its error. Nothing is created. Cancel safe.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no broker answered until the deadline.
    pub async fn topics(&self, names: Option<&[TopicName]>) -> Result<Vec<TopicMetadata>> {
        let subject = Subject {
            operation: "Metadata",
            topic: None,
            partition: None,
            offset: None,
        };
        retry(&self.policy(), subject, || self.ask_metadata(names)).await
    }

    /// One try, at any broker.
    pub(crate) async fn ask_metadata(
        &self,
        names: Option<&[TopicName]>,
    ) -> Result<Vec<TopicMetadata>> {
        // Below version 4 a question would create the topic.
        let response = self
            .on_any(&(4..=i16::MAX), |_| metadata_request(names))
            .await?;
        if let Some(code) = error_of(response.error_code) {
            let operation = "Metadata";
            return Err(Error::Kafka {
                operation,
                code,
                topic: None,
                partition: None,
                message: None,
            });
        }
        self.inner.metadata.store_cluster(&response);
        let mut topics: Vec<TopicMetadata> = response.topics.iter().filter_map(topic_of).collect();
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(topics)
    }

    /// A topic from the cache, or asked for once.
    pub(crate) async fn topic(&self, topic: &TopicName) -> Result<Arc<CachedTopic>> {
        let metadata = &self.inner.metadata;
        let max_age = self.inner.config.metadata_max_age;
        if let Some(entry) = metadata.topic(topic, max_age) {
            return Ok(entry);
        }
        let _asking = metadata.asking.lock().await;
        if let Some(entry) = metadata.topic(topic, max_age) {
            return Ok(entry);
        }
        let topics = self.ask_metadata(Some(std::slice::from_ref(topic))).await?;
        let unknown = || Error::UnknownTopic {
            topic: topic.clone(),
        };
        let found = topics
            .into_iter()
            .find(|found| found.name == *topic)
            .ok_or_else(unknown)?;
        match found.error {
            None => Ok(metadata.store_topic(found)),
            Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId) => Err(unknown()),
            Some(code) => Err(Error::Kafka {
                operation: "Metadata",
                code,
                topic: Some(topic.clone()),
                partition: None,
                message: None,
            }),
        }
    }

    /// The leader of a partition; asks once more if the cache lacks it.
    pub(crate) async fn leader(&self, topic: &TopicName, partition: i32) -> Result<Leader> {
        let entry = self.topic(topic).await?;
        match self.leader_in(&entry, partition) {
            Err(error) if error.wants_refresh() => {
                self.inner.metadata.forget(topic, entry.generation);
                let entry = self.topic(topic).await?;
                let leader = self.leader_in(&entry, partition);
                if leader.is_err() {
                    self.inner.metadata.forget(topic, entry.generation);
                }
                leader
            }
            leader => leader,
        }
    }

    fn leader_in(&self, entry: &CachedTopic, partition: i32) -> Result<Leader> {
        let topic = &entry.topic;
        let found = topic
            .partitions
            .iter()
            .find(|found| found.partition == partition);
        let found = found.ok_or_else(|| Error::UnknownPartition {
            topic: topic.name.clone(),
            partition,
        })?;
        let no_leader = || Error::NoLeader {
            topic: topic.name.clone(),
            partition,
        };
        let node_id = found.leader.ok_or_else(no_leader)?;
        let address = self
            .inner
            .metadata
            .address_of(node_id)
            .ok_or_else(no_leader)?;
        Ok(Leader {
            node_id,
            address,
            leader_epoch: found.leader_epoch,
            topic_id: topic.topic_id,
            generation: entry.generation,
        })
    }
}

fn metadata_request(names: Option<&[TopicName]>) -> MetadataRequest {
    let topics = names.map(|names| {
        let topic = |name: &TopicName| MetadataRequestTopic {
            name: Some(name.to_byte_string()),
            ..Default::default()
        };
        names.iter().map(topic).collect()
    });
    MetadataRequest {
        topics,
        allow_auto_topic_creation: false,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn topic() -> TopicName {
        TopicName::new("t").unwrap()
    }

    fn entry() -> TopicMetadata {
        TopicMetadata {
            name: topic(),
            topic_id: None,
            internal: false,
            error: None,
            partitions: Vec::new(),
        }
    }

    #[tokio::test]
    async fn forgetting_an_old_reading_keeps_the_newer_one() {
        let metadata = Metadata::default();
        let age = Duration::from_secs(60);
        let first = metadata.store_topic(entry()).generation;
        let second = metadata.store_topic(entry()).generation;
        metadata.forget(&topic(), first);
        assert_eq!(
            metadata.topic(&topic(), age).map(|entry| entry.generation),
            Some(second)
        );
        metadata.forget(&topic(), second);
        assert!(metadata.topic(&topic(), age).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn old_metadata_is_not_used() {
        let metadata = Metadata::default();
        metadata.store_topic(entry());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(metadata.topic(&topic(), Duration::from_secs(11)).is_some());
        assert!(metadata.topic(&topic(), Duration::from_secs(10)).is_none());
    }

    #[test]
    fn address_that_answered_is_asked_first_and_none_twice() {
        let metadata = Metadata::default();
        let bootstrap: Vec<Arc<str>> = vec![Arc::from("a:1"), Arc::from("b:1")];
        metadata.prefer(&bootstrap[1]);
        let addresses = metadata.addresses(&bootstrap);
        assert_eq!(
            addresses,
            [Arc::clone(&bootstrap[1]), Arc::clone(&bootstrap[0])]
        );
    }
}
