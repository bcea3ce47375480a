//! One look at the source before planning: who leads what, and where each log starts and ends.
//!
//! This does the asking; [`crate::plan`] decides. A partition that cannot answer is carried as such
//! and never guessed.

use std::collections::BTreeMap;

use broker_client::protocol::error_code::ErrorCode;
use broker_client::protocol::ids::{TopicId, TopicName};
use broker_client::{Client, EpochEnd, IsolationLevel, OffsetSpec, TopicMetadata};
use futures::StreamExt as _;

use crate::config::{Isolation, JobConfig, StartAt};
use crate::error::Error;
use crate::manifest::{Manifest, PartitionKey};

/// What the source looked like.
#[derive(Debug, Clone)]
pub struct SourceSnapshot {
    /// Cluster id.
    pub cluster_id: String,
    /// The job's topics that exist, in the job's order.
    pub topics: Vec<TopicSnapshot>,
    /// The job's topics that do not exist.
    pub missing: Vec<TopicName>,
}

/// One topic.
#[derive(Debug, Clone)]
pub struct TopicSnapshot {
    /// Name.
    pub topic: TopicName,
    /// Topic id, where the cluster has them.
    pub topic_id: Option<TopicId>,
    /// Whether `cleanup.policy` contains `compact`, so that offsets may lack records.
    pub compacted: bool,
    /// Partitions by number.
    pub partitions: Vec<PartitionSnapshot>,
}

/// One partition.
#[derive(Debug, Clone)]
pub struct PartitionSnapshot {
    /// Partition.
    pub partition: i32,
    /// Its offsets, or why it could not be asked (no leader).
    pub offsets: Result<LogOffsets, String>,
}

/// The offsets of one log at the time of the snapshot.
#[derive(Debug, Clone, Copy)]
pub struct LogOffsets {
    /// Log start offset.
    pub earliest: i64,
    /// Last stable offset or high watermark, by the job's isolation.
    pub end: i64,
    /// Leader epoch that goes with `end`; −1 when unknown.
    pub leader_epoch: i32,
    /// Where the job's `start` lies in this log (only asked for partitions new to the dataset).
    pub start_at: Option<i64>,
    /// What the log knows of the leader epoch at which the dataset's range ended.
    pub previous_epoch: Option<EpochEnd>,
    /// First offset stamped at or after the completeness boundary; `end` when there is none.
    pub complete_until: Option<i64>,
    /// Size of the log in bytes, where the broker tells.
    pub bytes: Option<u64>,
}

/// Asks the source.
///
/// # Errors
/// Whatever keeps the whole cluster from answering. A partition without a leader is no error.
pub async fn take(
    client: &Client,
    job: &JobConfig,
    topics: &[TopicName],
    previous: Option<&Manifest>,
    complete_at_ms: Option<i64>,
) -> Result<SourceSnapshot, Error> {
    let Some(cluster_id) = client.cluster().await?.cluster_id else {
        return Err(Error::Config {
            problems: vec![
                "the brokers give no cluster id, by which positions are kept".to_owned(),
            ],
        });
    };
    let mut snapshot = SourceSnapshot {
        cluster_id,
        topics: Vec::new(),
        missing: Vec::new(),
    };
    for metadata in client.topics(Some(topics)).await? {
        match metadata.error {
            Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId) => {
                snapshot.missing.push(metadata.name);
            }
            Some(code) => {
                return Err(Error::Source(broker_client::Error::Kafka {
                    operation: "Metadata",
                    code,
                    topic: Some(metadata.name),
                    partition: None,
                    message: None,
                }));
            }
            None => {
                let asker = Asker {
                    client,
                    job,
                    cluster_id: &snapshot.cluster_id,
                    previous,
                    complete_at_ms,
                };
                let topic = asker.topic(&metadata).await?;
                snapshot.topics.push(topic);
            }
        }
    }
    Ok(snapshot)
}

struct Asker<'a> {
    client: &'a Client,
    job: &'a JobConfig,
    cluster_id: &'a str,
    previous: Option<&'a Manifest>,
    complete_at_ms: Option<i64>,
}

/// Questions for leader epochs on their way at once.
const EPOCHS_AT_ONCE: usize = 32;

type Epochs = BTreeMap<i32, Result<Option<EpochEnd>, broker_client::Error>>;
type Answers = BTreeMap<i32, Result<broker_client::ListedOffset, broker_client::Error>>;

impl Asker<'_> {
    async fn topic(&self, metadata: &TopicMetadata) -> Result<TopicSnapshot, Error> {
        let topic = &metadata.name;
        let all: Vec<i32> = metadata.partitions.iter().map(|p| p.partition).collect();
        let led: Vec<i32> = metadata
            .partitions
            .iter()
            .filter(|p| p.leader.is_some())
            .map(|p| p.partition)
            .collect();
        let known = |partition: i32| self.known(topic, partition);
        let new: Vec<i32> = led
            .iter()
            .copied()
            .filter(|p| known(*p).is_none())
            .collect();

        let mut ends = self.list(topic, &led, OffsetSpec::Latest).await?;
        let mut earliest = self.list(topic, &led, OffsetSpec::Earliest).await?;
        let mut starts = self.starts(topic, &new).await?;
        let mut complete = match self.complete_at_ms {
            Some(at) => self.list(topic, &led, OffsetSpec::Timestamp(at)).await?,
            None => Answers::new(),
        };
        let mut epochs = self.previous_epochs(topic, &led).await;
        let sizes = self.sizes(topic).await;
        let policy = self.client.topic_config(topic, "cleanup.policy").await?;

        let mut partitions = Vec::with_capacity(all.len());
        for partition in all {
            let offsets = match (ends.remove(&partition), earliest.remove(&partition)) {
                (Some(Ok(end)), Some(Ok(first))) => {
                    let previous_epoch = epochs.remove(&partition).transpose().map(Option::flatten);
                    let start_at = starts.remove(&partition).transpose();
                    let complete_until = complete.remove(&partition).transpose();
                    match (previous_epoch, start_at, complete_until) {
                        (Ok(previous_epoch), Ok(start_at), Ok(complete_until)) => Ok(LogOffsets {
                            earliest: first.offset,
                            end: end.offset,
                            leader_epoch: end.leader_epoch.unwrap_or(-1),
                            start_at: start_at.map(|at| at.unwrap_or(end.offset)),
                            previous_epoch,
                            complete_until: complete_until.map(|at| match at.offset {
                                -1 => end.offset,
                                offset => offset,
                            }),
                            bytes: sizes.get(&partition).copied(),
                        }),
                        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
                            Err(unplannable(error)?)
                        }
                    }
                }
                (Some(Err(error)), _) | (_, Some(Err(error))) => Err(unplannable(error)?),
                (None, _) | (_, None) => Err("the partition has no leader".to_owned()),
            };
            partitions.push(PartitionSnapshot { partition, offsets });
        }
        Ok(TopicSnapshot {
            topic: topic.clone(),
            topic_id: metadata.topic_id,
            compacted: policy.is_some_and(|p| p.contains("compact")),
            partitions,
        })
    }

    /// Log sizes, which only shape the tasks: a broker that does not tell them is no error.
    async fn sizes(&self, topic: &TopicName) -> BTreeMap<i32, u64> {
        match self.client.partition_sizes(topic).await {
            Ok(sizes) => sizes,
            Err(error) => {
                tracing::warn!(%topic, %error, "log sizes are unknown, tasks are cut by a guess");
                BTreeMap::new()
            }
        }
    }

    fn known(&self, topic: &TopicName, partition: i32) -> Option<&crate::manifest::PartitionState> {
        let manifest = self.previous?;
        let ours = |cluster: &str| PartitionKey {
            cluster_id: cluster.to_owned(),
            topic: topic.clone(),
            partition,
        };
        manifest.partition(&ours(self.cluster_id)).or_else(|| {
            let continued = self.job.source.continues_cluster.as_deref()?;
            manifest.partition(&ours(continued))
        })
    }

    async fn list(
        &self,
        topic: &TopicName,
        partitions: &[i32],
        at: OffsetSpec,
    ) -> Result<Answers, Error> {
        if partitions.is_empty() {
            return Ok(Answers::new());
        }
        let isolation = isolation(self.job.source.isolation);
        Ok(self
            .client
            .list_offsets(topic, partitions, at, isolation)
            .await?)
    }

    /// Where the job's `start` lies, for partitions new to the dataset. `None` inside means the log end.
    async fn starts(
        &self,
        topic: &TopicName,
        partitions: &[i32],
    ) -> Result<BTreeMap<i32, Result<Option<i64>, broker_client::Error>>, Error> {
        let spec = match &self.job.source.start {
            StartAt::Earliest => OffsetSpec::Earliest,
            StartAt::Latest => OffsetSpec::Latest,
            StartAt::Time(time) => OffsetSpec::Timestamp(time.as_millisecond()),
            StartAt::Group(group) => {
                let committed = self
                    .client
                    .committed_offsets(group, topic, partitions)
                    .await?;
                return partitions
                    .iter()
                    .map(|p| match committed.get(p).copied().flatten() {
                        Some(offset) => Ok((*p, Ok(Some(offset)))),
                        None => Err(Error::NoCommittedOffset {
                            group: group.clone(),
                            topic: topic.clone(),
                            partition: *p,
                        }),
                    })
                    .collect();
            }
        };
        let listed = self.list(topic, partitions, spec).await?;
        Ok(listed
            .into_iter()
            .map(|(p, answer)| (p, answer.map(|at| (at.offset >= 0).then_some(at.offset))))
            .collect())
    }

    /// Many at once: one after the other, a thousand partitions would wait for a thousand answers.
    async fn previous_epochs(&self, topic: &TopicName, partitions: &[i32]) -> Epochs {
        let asked = partitions.iter().copied();
        let answers = asked.map(move |p| async move { (p, self.previous_epoch(topic, p).await) });
        futures::stream::iter(answers)
            .buffer_unordered(EPOCHS_AT_ONCE)
            .collect()
            .await
    }

    async fn previous_epoch(
        &self,
        topic: &TopicName,
        partition: i32,
    ) -> Result<Option<EpochEnd>, broker_client::Error> {
        match self.known(topic, partition).map(|state| state.leader_epoch) {
            Some(epoch) if epoch >= 0 => self
                .client
                .offset_for_leader_epoch(topic, partition, epoch)
                .await
                .map(Some),
            _ => Ok(None),
        }
    }
}

/// A partition that has no leader now is left out with its reason; anything else is an error.
fn unplannable(error: broker_client::Error) -> Result<String, Error> {
    match error {
        broker_client::Error::NoLeader { .. } => Ok(error.to_string()),
        other => Err(other.into()),
    }
}

/// The client's isolation level for the job's.
pub(crate) const fn isolation(isolation: Isolation) -> IsolationLevel {
    match isolation {
        Isolation::ReadCommitted => IsolationLevel::ReadCommitted,
        Isolation::ReadUncommitted => IsolationLevel::ReadUncommitted,
    }
}
