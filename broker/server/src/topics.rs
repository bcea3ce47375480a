//! The topics of this broker: what requests look up, and the changes that are durable before they show.
//!
//! Lookups take a read lock for the length of a map access. Changes run one at a time on a blocking thread,
//! each in an order that a crash at any point leaves repairable at the next start:
//!
//! - create, grow: directories, then metadata. Directories without metadata are empty and are removed.
//! - delete: metadata, then directories. The metadata remembers what is still to be removed.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use broker_log::{LogDir, Opened, PartitionLog, TopicPartition};
use broker_protocol::{ErrorCode, TopicId, TopicName};
use prometheus::Histogram;
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::{
    config::Config,
    error::Error,
    metadata_store::{MetadataStore, TopicRecord},
    partition::Partition,
    topic_config::{CONSUMER_OFFSETS, Overrides, TopicConfig},
};

/// A topic; replaced as a whole when it grows.
#[derive(Debug)]
pub(crate) struct Topic {
    /// Its name.
    pub(crate) name: TopicName,
    /// Its id, on the wire from Metadata version 10.
    pub(crate) topic_id: Uuid,
    /// Settings that differ from the broker's.
    pub(crate) overrides: Overrides,
    /// Settings ready for use.
    pub(crate) config: TopicConfig,
    /// By index; `None` is a partition whose log could not be opened; one may fail later, too. See [`Self::indexed`] for
    /// those in use.
    pub(crate) partitions: Vec<Option<Arc<Partition>>>,
}

impl Topic {
    /// The partition of an index from the wire.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC_OR_PARTITION` outside the topic, `KAFKA_STORAGE_ERROR` if its log could not be opened or
    /// has gone off line.
    pub(crate) fn partition(&self, index: i32) -> Result<&Arc<Partition>, ErrorCode> {
        let slot = usize::try_from(index)
            .ok()
            .and_then(|index| self.partitions.get(index));
        slot.ok_or(ErrorCode::UnknownTopicOrPartition)?
            .as_ref()
            .filter(|partition| !partition.is_offline())
            .ok_or(ErrorCode::KafkaStorageError)
    }

    /// Partitions with their indexes as the wire has them; `None` is one that is off line.
    pub(crate) fn indexed(&self) -> impl Iterator<Item = (i32, Option<&Arc<Partition>>)> {
        let online =
            |slot: &'_ Option<Arc<Partition>>| slot.as_ref().is_some_and(|p| !p.is_offline());
        let slots = self.partitions.iter();
        (0..).zip(slots.map(move |slot| slot.as_ref().filter(|_| online(slot))))
    }

    /// Partitions that can be used.
    pub(crate) fn online(&self) -> impl Iterator<Item = &Arc<Partition>> {
        let open = self.partitions.iter().flatten();
        open.filter(|partition| !partition.is_offline())
    }

    /// Whether Kafka keeps its own state in a topic of this name.
    pub(crate) fn is_internal(&self) -> bool {
        matches!(self.name.as_str(), CONSUMER_OFFSETS | "__transaction_state")
    }

    fn record(&self) -> TopicRecord {
        let epoch = |slot: &Option<Arc<Partition>>| slot.as_ref().map_or(0, |p| p.leader_epoch());
        TopicRecord {
            topic_id: self.topic_id,
            leader_epochs: self.partitions.iter().map(epoch).collect(),
            configs: self.overrides.clone(),
        }
    }
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    /// A topic of that name is there.
    #[error("topic {topic} already exists")]
    Exists { topic: TopicName },
    /// No topic of that name is there.
    #[error("this server does not host this topic")]
    Unknown,
    /// The broker's limit.
    #[error(
        "the broker would have {wanted} partitions, and max_partitions allows {limit}; \
         delete topics or raise the limit"
    )]
    TooMany { wanted: usize, limit: u32 },
    /// A topic only grows.
    #[error("the topic has {current} partitions, which is not below the {wanted} asked for")]
    NotMore { current: usize, wanted: usize },
    /// A setting is not what a topic may have.
    #[error("{message}")]
    Setting { code: ErrorCode, message: String },
    /// The metadata could not be written.
    #[error(transparent)]
    Metadata(#[from] Error),
    /// A directory could not be made or removed.
    #[error(transparent)]
    Log(Box<broker_log::Error>),
}

impl From<broker_log::Error> for ChangeError {
    fn from(error: broker_log::Error) -> Self {
        Self::Log(Box::new(error))
    }
}

impl ChangeError {
    /// The code for the client.
    pub(crate) fn error_code(&self) -> ErrorCode {
        match self {
            Self::Exists { .. } | Self::Metadata(Error::TopicExists { .. }) => {
                ErrorCode::TopicAlreadyExists
            }
            Self::Unknown | Self::Metadata(Error::NoSuchTopic { .. }) => {
                ErrorCode::UnknownTopicOrPartition
            }
            Self::TooMany { .. } => ErrorCode::PolicyViolation,
            Self::NotMore { .. } => ErrorCode::InvalidPartitions,
            Self::Setting { code, .. } => *code,
            Self::Metadata(_) => ErrorCode::KafkaStorageError,
            Self::Log(error) => error.error_code(),
        }
    }
}

#[derive(Debug, Default)]
struct Index {
    by_name: BTreeMap<TopicName, Arc<Topic>>,
    by_id: HashMap<Uuid, TopicName>,
    partitions: usize,
}

impl Index {
    fn insert(&mut self, topic: Arc<Topic>) {
        self.remove(&topic.name);
        self.partitions += topic.partitions.len();
        self.by_id.insert(topic.topic_id, topic.name.clone());
        self.by_name.insert(topic.name.clone(), topic);
    }

    fn remove(&mut self, name: &TopicName) {
        if let Some(old) = self.by_name.remove(name) {
            self.by_id.remove(&old.topic_id);
            self.partitions -= old.partitions.len();
        }
    }
}

/// All topics of the broker.
#[derive(Debug)]
pub(crate) struct Topics {
    config: Arc<Config>,
    dir: LogDir,
    store: Box<dyn MetadataStore>,
    index: RwLock<Index>,
    /// Held for the length of a change; taken before `index`, never inside it.
    changing: Mutex<()>,
    flush_seconds: Histogram,
}

impl Topics {
    /// Brings metadata and directories together. Blocks on the disk. `flush_seconds` counts the flushes of logs.
    ///
    /// # Errors
    /// Records of a partition that the metadata does not know, or a disk that fails.
    pub(crate) fn open(
        config: Arc<Config>,
        opened: Opened,
        store: Box<dyn MetadataStore>,
        flush_seconds: Histogram,
    ) -> Result<Self, Error> {
        let logs = |source| Error::logs(&config.data_dir, source);
        if !opened.clean && !store.topics().is_empty() {
            store.raise_leader_epochs()?;
        }
        let records = store.topics();
        let deleting = store.deleting();
        let mut found: HashMap<TopicPartition, PartitionLog> = HashMap::new();
        for (log, _) in opened.partitions {
            let id = log.id().clone();
            let topic_id = log.topic_id().map(|TopicId(uuid)| uuid);
            if records
                .get(&id.topic)
                .is_some_and(|record| belongs(record, topic_id, id.partition))
            {
                found.insert(id, log);
            } else if deleting.iter().any(|gone| Some(gone.topic_id) == topic_id) {
                info!(partition = %id, "removing what is left of a deleted topic");
                opened.dir.delete_partition(log).map_err(logs)?;
            } else if log.log_end_offset() == 0 {
                warn!(partition = %id, "removing an empty partition whose topic was never completed");
                opened.dir.delete_partition(log).map_err(logs)?;
            } else {
                return Err(Error::UnknownPartition {
                    path: config.data_dir.clone(),
                    partition: id,
                });
            }
        }
        for (partition, cause) in &opened.failed {
            error!(%partition, error = cause as &dyn std::error::Error, "partition is off line");
        }
        for gone in deleting {
            // What could not be opened could not be removed either: the next start tries again.
            if !opened
                .failed
                .iter()
                .any(|(id, _)| id.topic.as_str() == gone.topic)
            {
                store.finish_delete(gone.topic_id)?;
            }
        }
        let topics = Self {
            config,
            dir: opened.dir,
            store,
            index: RwLock::default(),
            changing: Mutex::new(()),
            flush_seconds,
        };
        for (name, record) in records {
            topics.publish(topics.assemble(name, record, &mut found));
        }
        Ok(topics)
    }

    fn assemble(
        &self,
        name: TopicName,
        record: TopicRecord,
        found: &mut HashMap<TopicPartition, PartitionLog>,
    ) -> Topic {
        let config = TopicConfig::new(&self.config, &record.configs);
        let open = |(partition, &leader_epoch): (i32, &i32)| {
            let id = TopicPartition {
                topic: name.clone(),
                partition,
            };
            let Some(mut log) = found.remove(&id) else {
                error!(partition = %id, "no usable directory for this partition; it is off line");
                return None;
            };
            log.set_config(config.log_config());
            Some(Arc::new(self.serve(log, leader_epoch)))
        };
        let partitions = (0..).zip(&record.leader_epochs).map(open).collect();
        Topic {
            name,
            topic_id: record.topic_id,
            overrides: record.configs,
            config,
            partitions,
        }
    }

    fn serve(&self, log: PartitionLog, leader_epoch: i32) -> Partition {
        Partition::new(log, leader_epoch, self.flush_seconds.clone())
    }

    /// How many partitions can be used, and how many are off line.
    pub(crate) fn count_partitions(&self) -> (usize, usize) {
        self.read(|index| {
            let topics = index.by_name.values();
            let online = topics.map(|topic| topic.online().count()).sum();
            (online, index.partitions - online)
        })
    }

    /// How many partitions there are, if failures since the start have left none that can be used.
    pub(crate) fn all_lost(&self) -> Option<usize> {
        let topics = self.all();
        let mut open = topics
            .iter()
            .flat_map(|topic| topic.partitions.iter().flatten());
        let (online, total) = self.count_partitions();
        (online == 0 && open.any(|partition| partition.is_offline())).then_some(online + total)
    }

    /// Identity of the cluster.
    pub(crate) fn cluster_id(&self) -> String {
        self.store.cluster_id()
    }

    /// The directory of the logs.
    pub(crate) fn dir(&self) -> &LogDir {
        &self.dir
    }

    /// See [`MetadataStore::reserve_producer_ids`]. Blocks on the disk.
    pub(crate) fn reserve_producer_ids(&self, count: u32) -> Result<std::ops::Range<i64>, Error> {
        self.store.reserve_producer_ids(count)
    }

    fn read<T>(&self, look: impl FnOnce(&Index) -> T) -> T {
        // The index is only changed by single insertions and removals, which do not panic half-way.
        look(&self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The topic of a name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.read(|index| index.by_name.get(name).cloned())
    }

    /// The topic of an id.
    pub(crate) fn by_id(&self, topic_id: Uuid) -> Option<Arc<Topic>> {
        self.read(|index| index.by_name.get(index.by_id.get(&topic_id)?).cloned())
    }

    /// All topics, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Topic>> {
        self.read(|index| index.by_name.values().cloned().collect())
    }

    /// The partition of a name and an index from the wire.
    ///
    /// # Errors
    /// See [`Topic::partition`].
    pub(crate) fn partition(&self, topic: &str, index: i32) -> Result<Arc<Partition>, ErrorCode> {
        let topic = self.get(topic).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        topic.partition(index).cloned()
    }

    /// Checks whether [`Self::create`] would be refused.
    ///
    /// # Errors
    /// As there, without touching the disk.
    pub(crate) fn check_create(
        &self,
        name: &TopicName,
        partitions: usize,
    ) -> Result<(), ChangeError> {
        self.read(|index| {
            if index.by_name.contains_key(name) {
                return Err(ChangeError::Exists {
                    topic: name.clone(),
                });
            }
            self.check_limit(index.partitions, partitions)
        })
    }

    fn check_limit(&self, now: usize, more: usize) -> Result<(), ChangeError> {
        let limit = self.config.max_partitions;
        let wanted = now.saturating_add(more);
        if wanted > limit as usize {
            return Err(ChangeError::TooMany { wanted, limit });
        }
        Ok(())
    }

    /// Makes a topic; durable when it returns. Blocks on the disk.
    ///
    /// # Errors
    /// A topic of that name, too many partitions, or a disk that fails: then nothing is left of it.
    pub(crate) fn create(
        &self,
        name: &TopicName,
        partitions: usize,
        overrides: Overrides,
    ) -> Result<Arc<Topic>, ChangeError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_create(name, partitions)?;
        let config = TopicConfig::new(&self.config, &overrides);
        let topic_id = Uuid::new_v4();
        let partitions = self.make_partitions(name, topic_id, &config, 0..partitions)?;
        let topic = Topic {
            name: name.clone(),
            topic_id,
            overrides,
            config,
            partitions,
        };
        if let Err(error) = self.store.create_topic(name, &topic.record()) {
            self.unmake(&topic.partitions);
            return Err(error.into());
        }
        info!(topic = %name, partitions = topic.partitions.len(), "topic created");
        Ok(self.publish(topic))
    }

    /// Adds partitions up to `total`; durable when it returns. Blocks on the disk.
    ///
    /// # Errors
    /// As [`Self::create`], and for a total that is not more than there are.
    pub(crate) fn grow(&self, name: &str, total: usize) -> Result<(), ChangeError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.check_grow(name, total)?;
        let range = old.partitions.len()..total;
        let added = self.make_partitions(&old.name, old.topic_id, &old.config, range)?;
        let topic = Topic {
            name: old.name.clone(),
            topic_id: old.topic_id,
            overrides: old.overrides.clone(),
            config: old.config.clone(),
            partitions: old
                .partitions
                .iter()
                .cloned()
                .chain(added.iter().cloned())
                .collect(),
        };
        if let Err(error) = self.store.update_topic(&topic.name, &topic.record()) {
            self.unmake(&added);
            return Err(error.into());
        }
        info!(topic = name, partitions = total, "topic grown");
        self.publish(topic);
        Ok(())
    }

    /// Checks whether [`Self::grow`] would be refused; the topic as it is.
    ///
    /// # Errors
    /// As there, without touching the disk.
    pub(crate) fn check_grow(&self, name: &str, total: usize) -> Result<Arc<Topic>, ChangeError> {
        let topic = self.get(name).ok_or(ChangeError::Unknown)?;
        let current = topic.partitions.len();
        if total <= current {
            return Err(ChangeError::NotMore {
                current,
                wanted: total,
            });
        }
        self.check_limit(self.read(|index| index.partitions), total - current)?;
        Ok(topic)
    }

    /// Gives a topic the settings that `edit` makes of its present ones: durable before they show, in force for
    /// whatever is appended afterwards. With `validate_only` nothing changes. Blocks on the disk.
    ///
    /// # Errors
    /// No such topic, what `edit` refuses, or metadata that cannot be written: then nothing has changed.
    pub(crate) fn configure(
        &self,
        name: &TopicName,
        validate_only: bool,
        edit: impl FnOnce(&Overrides) -> Result<Overrides, ChangeError>,
    ) -> Result<(), ChangeError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.get(name.as_str()).ok_or(ChangeError::Unknown)?;
        let overrides = edit(&old.overrides)?;
        if validate_only || overrides == old.overrides {
            return Ok(());
        }
        let topic = Topic {
            name: old.name.clone(),
            topic_id: old.topic_id,
            config: TopicConfig::new(&self.config, &overrides),
            overrides,
            partitions: old.partitions.clone(),
        };
        self.store.update_topic(&topic.name, &topic.record())?;
        info!(topic = %name, "settings changed");
        let topic = self.publish(topic);
        for partition in topic.partitions.iter().flatten() {
            let set = partition.with_log(|log| {
                log.set_config(topic.config.log_config());
                Ok(())
            });
            if let Err(error) = set {
                warn!(partition = %partition.id(), error = error.message(), "settings not applied");
            }
        }
        Ok(())
    }

    /// Takes a topic away, then its directories; gone for good when it returns. Blocks on the disk.
    ///
    /// # Errors
    /// No such topic, or metadata that cannot be written. Directories that cannot be removed are logged, and
    /// tried again at the next start.
    pub(crate) fn delete(&self, name: &str) -> Result<(), ChangeError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let topic = self.get(name).ok_or(ChangeError::Unknown)?;
        self.store.delete_topic(&topic.name)?;
        self.index
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&topic.name);
        if self.unmake(&topic.partitions) {
            self.store.finish_delete(topic.topic_id)?;
        }
        info!(topic = name, "topic deleted");
        Ok(())
    }

    fn publish(&self, topic: Topic) -> Arc<Topic> {
        let topic = Arc::new(topic);
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.insert(Arc::clone(&topic));
        topic
    }

    fn make_partitions(
        &self,
        name: &TopicName,
        topic_id: Uuid,
        config: &TopicConfig,
        indexes: std::ops::Range<usize>,
    ) -> Result<Vec<Option<Arc<Partition>>>, ChangeError> {
        let mut made = Vec::with_capacity(indexes.len());
        for index in indexes {
            // The limit of partitions is far below the largest index.
            let partition = i32::try_from(index).unwrap_or(i32::MAX);
            let id = TopicPartition {
                topic: name.clone(),
                partition,
            };
            match self
                .dir
                .create_partition(id, Some(TopicId(topic_id)), config.log_config())
            {
                Ok(log) => made.push(Some(Arc::new(self.serve(log, 0)))),
                Err(error) => {
                    self.unmake(&made);
                    return Err(error.into());
                }
            }
        }
        Ok(made)
    }

    /// Closes and removes partitions; whether all directories are gone.
    fn unmake(&self, partitions: &[Option<Arc<Partition>>]) -> bool {
        let mut all_gone = true;
        for partition in partitions {
            let removed = match partition.as_ref().and_then(|partition| partition.close()) {
                Some(log) => self.dir.delete_partition(log).map_err(|error| {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "partition not removed"
                    );
                }),
                None => Err(()),
            };
            all_gone &= removed.is_ok();
        }
        all_gone
    }

    /// Takes all logs out, for shutdown. Every later write finds its partition closed.
    pub(crate) fn close(&self) -> Vec<PartitionLog> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let topics = self.all();
        let partitions = topics
            .iter()
            .flat_map(|topic| topic.partitions.iter().flatten());
        partitions
            .filter_map(|partition| partition.close())
            .collect()
    }
}

/// Whether a directory is that of partition `index` of a topic: by id where the directory has one.
fn belongs(record: &TopicRecord, topic_id: Option<Uuid>, index: i32) -> bool {
    let known = usize::try_from(index).is_ok_and(|index| index < record.leader_epochs.len());
    known && topic_id.is_none_or(|topic_id| topic_id == record.topic_id)
}
