//! `logferry status`: where a dataset stands, read from its newest manifest and one look at the source.

use std::collections::{BTreeMap, BTreeSet};

use broker_client::Client;
use broker_client::protocol::ids::TopicName;
use serde::Serialize;

use crate::claims;
use crate::commit::Place;
use crate::commit::dataset::Dataset;
use crate::commit::newest::{read_manifest, runs};
use crate::commit::prune::count_pruned;
use crate::config::JobConfig;
use crate::error::Error;
use crate::layout::{RunNumber, StagingLayout};
use crate::manifest::{HourClaim, LeftOut, OffsetCounts, PartitionState};
use crate::snapshot::{self, LogOffsets, SourceSnapshot};

/// Where a dataset stands.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Where it lies.
    pub location: String,
    /// Published runs, pruned ones too.
    pub runs: usize,
    /// How many of them, the oldest, were pruned.
    pub pruned_runs: usize,
    /// Newest run.
    pub newest_run: Option<RunNumber>,
    /// Its plan time, milliseconds since the epoch.
    pub planned_at_ms: Option<i64>,
    /// What it loaded.
    pub counts: OffsetCounts,
    /// Files it published.
    pub files: usize,
    /// Partitions it had to leave out.
    pub left_out: Vec<LeftOut>,
    /// Newest hour claimed complete.
    pub complete: Option<HourClaim>,
    /// Position of each partition that was ever loaded, and of those at the source that never were.
    pub partitions: Vec<PartitionStatus>,
    /// Runs at work, or dead and waiting to be taken over.
    pub staging: Vec<StagingStatus>,
    /// Why the source could not be asked; lags are unknown then.
    pub source_error: Option<String>,
}

/// Position of one partition.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionStatus {
    /// Cluster the position belongs to; offsets of another one than the job's are not looked up.
    pub cluster_id: String,
    /// Topic.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// Loaded to this offset (exclusive); none if the next run sees the partition for the first time.
    pub end: Option<i64>,
    /// Log start offset at the source now.
    pub log_start: Option<i64>,
    /// Log end offset at the source now.
    pub log_end: Option<i64>,
    /// Offsets not loaded yet.
    pub lag: Option<i64>,
}

/// A staging directory.
#[derive(Debug, Clone, Serialize)]
pub struct StagingStatus {
    /// Run uuid.
    pub run: String,
    /// When its lease was last renewed, by the store's clock; none if it was given up or never taken.
    pub lease_renewed_ms: Option<i64>,
}

/// Looks at a dataset and, if it can, at its source.
///
/// # Errors
/// When the dataset cannot be read. A source that does not answer is part of the status.
pub async fn status(
    place: &Place,
    job: &JobConfig,
    topics: &[TopicName],
    client: Result<Client, broker_client::Error>,
) -> Result<Status, Error> {
    let location = place.store.uri(place.layout.root());
    if Dataset::read(place).await?.is_none() {
        return Err(Error::NoDataset { location });
    }
    let numbers = runs(place).await?;
    let manifest = match numbers.last() {
        Some(newest) => Some(read_manifest(place, *newest).await?),
        None => None,
    };
    let source = match client {
        Ok(client) => snapshot::take(&client, job, topics, manifest.as_ref(), None).await,
        Err(error) => Err(error.into()),
    };
    let continued = job.source.continues_cluster.as_deref();
    let states = manifest.as_ref().map_or(&[][..], |m| &m.partitions);
    let partitions = partitions(states, source.as_ref().ok(), continued);
    Ok(Status {
        location,
        runs: numbers.len(),
        pruned_runs: count_pruned(place, &numbers).await?,
        newest_run: manifest.as_ref().map(|m| m.number),
        planned_at_ms: manifest.as_ref().map(|m| m.planned_at_ms),
        counts: manifest.as_ref().map(|m| m.counts()).unwrap_or_default(),
        files: manifest.as_ref().map_or(0, |m| m.files.len()),
        left_out: manifest
            .as_ref()
            .map(|m| m.left_out.clone())
            .unwrap_or_default(),
        complete: manifest.as_ref().and_then(claims::newest),
        partitions,
        staging: staging(place).await?,
        source_error: source
            .as_ref()
            .err()
            .map(|error| crate::error::chain(error)),
    })
}

/// What was loaded beside what the source has, and what the source has besides.
fn partitions(
    states: &[PartitionState],
    source: Option<&SourceSnapshot>,
    continued: Option<&str>,
) -> Vec<PartitionStatus> {
    let at = |state: &PartitionState| (state.key.topic.clone(), state.key.partition);
    let cluster = source.map(|source| source.cluster_id.as_str());
    let of = |cluster: Option<&str>| -> BTreeSet<_> {
        let states = states.iter();
        let known = states.filter(|s| Some(s.key.cluster_id.as_str()) == cluster);
        known.map(at).collect()
    };
    let (ours, before) = (of(cluster), of(continued));
    let mut logs: BTreeMap<_, _> = source.into_iter().flat_map(logs).collect();
    let mut all = Vec::with_capacity(states.len());
    for state in states {
        let id = Some(state.key.cluster_id.as_str());
        let goes_on = id == cluster || (id == continued && !ours.contains(&at(state)));
        let log = goes_on.then(|| logs.remove(&at(state))).flatten();
        all.push(PartitionStatus {
            cluster_id: state.key.cluster_id.clone(),
            topic: state.key.topic.to_string(),
            partition: state.key.partition,
            end: Some(state.end),
            log_start: log.map(|log| log.earliest),
            log_end: log.map(|log| log.end),
            lag: log.map(|log| log.end - state.end),
        });
    }
    for ((topic, partition), log) in logs {
        let is_known = |known: &BTreeSet<(TopicName, i32)>| known.iter().any(|(t, _)| *t == topic);
        let topic_is_new = !is_known(&ours) && !is_known(&before);
        let start = log.start_at.filter(|_| topic_is_new);
        all.push(PartitionStatus {
            cluster_id: cluster.unwrap_or_default().to_owned(),
            topic: topic.to_string(),
            partition,
            end: None,
            log_start: Some(log.earliest),
            log_end: Some(log.end),
            lag: Some(log.end - start.unwrap_or(log.earliest)),
        });
    }
    all
}

/// The logs that a source knows, by topic and partition.
fn logs(source: &SourceSnapshot) -> impl Iterator<Item = ((TopicName, i32), &LogOffsets)> {
    source.topics.iter().flat_map(|topic| {
        let partitions = topic.partitions.iter();
        partitions
            .filter_map(|p| Some(((topic.topic.clone(), p.partition), p.offsets.as_ref().ok()?)))
    })
}

async fn staging(place: &Place) -> Result<Vec<StagingStatus>, Error> {
    let mut all = Vec::new();
    for entry in place.store.list(&place.layout.all_staging()).await? {
        let lease = place
            .store
            .stat(&StagingLayout::at(entry.path.clone()).lease())
            .await?;
        all.push(StagingStatus {
            run: entry.path.name().to_owned(),
            lease_renewed_ms: lease.map(|lease| lease.modified_ms),
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::PartitionKey;
    use crate::snapshot::{PartitionSnapshot, TopicSnapshot};

    fn state(cluster: &str, topic: &str, partition: i32, end: i64) -> PartitionState {
        PartitionState {
            key: PartitionKey {
                cluster_id: cluster.to_owned(),
                topic: topic.parse().unwrap(),
                partition,
            },
            topic_id: None,
            start: 0,
            end,
            leader_epoch: 0,
        }
    }

    fn source(cluster: &str, partitions: i32) -> SourceSnapshot {
        let log = LogOffsets {
            earliest: 10,
            end: 100,
            leader_epoch: 0,
            start_at: Some(60),
            previous_epoch: None,
            complete_until: None,
            bytes: None,
        };
        let topic = |name: &str| TopicSnapshot {
            topic: name.parse().unwrap(),
            topic_id: None,
            compacted: false,
            partitions: (0..partitions)
                .map(|partition| PartitionSnapshot {
                    partition,
                    offsets: Ok(log),
                })
                .collect(),
        };
        SourceSnapshot {
            cluster_id: cluster.to_owned(),
            topics: vec![topic("old"), topic("new")],
            missing: Vec::new(),
        }
    }

    /// Cluster, topic, partition, end, lag.
    fn lines(
        states: &[PartitionState],
        source: &SourceSnapshot,
        continued: Option<&str>,
    ) -> Vec<String> {
        partitions(states, Some(source), continued)
            .iter()
            .map(|p| {
                format!(
                    "{} {}-{} {:?} {:?}",
                    p.cluster_id, p.topic, p.partition, p.end, p.lag
                )
            })
            .collect()
    }

    #[test]
    fn positions_of_another_cluster_have_no_lag_here_unless_it_is_continued() {
        let states = [state("a", "old", 0, 40), state("b", "old", 0, 30)];
        let of_b = lines(&states, &source("b", 1), None);
        assert_eq!(
            of_b,
            [
                "a old-0 Some(40) None",
                "b old-0 Some(30) Some(70)",
                "b new-0 None Some(40)"
            ]
        );
        let of_c = lines(&states, &source("c", 1), Some("a"));
        assert_eq!(
            of_c[..2],
            ["a old-0 Some(40) Some(60)", "b old-0 Some(30) None"]
        );
    }

    #[test]
    fn a_partition_that_appeared_later_starts_at_its_earliest_and_a_new_topic_where_the_job_says() {
        let states = [state("a", "old", 0, 40)];
        assert_eq!(
            lines(&states, &source("a", 2), None),
            [
                "a old-0 Some(40) Some(60)",
                "a new-0 None Some(40)",
                "a new-1 None Some(40)",
                "a old-1 None Some(90)",
            ]
        );
    }
}
