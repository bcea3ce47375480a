//! `logferry status`: where a dataset stands, read from its newest manifest and one look at the source.

use broker_client::Client;
use broker_client::protocol::ids::TopicName;
use serde::Serialize;

use crate::commit::Place;
use crate::commit::dataset::Dataset;
use crate::commit::newest::newest;
use crate::config::JobConfig;
use crate::error::Error;
use crate::layout::{RunNumber, StagingLayout};
use crate::manifest::{HourClaim, LeftOut, OffsetCounts};
use crate::snapshot;

/// Where a dataset stands.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Where it lies.
    pub location: String,
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
    /// Position of each partition.
    pub partitions: Vec<PartitionStatus>,
    /// Runs at work, or dead and waiting to be taken over.
    pub staging: Vec<StagingStatus>,
    /// Why the source could not be asked; lags are unknown then.
    pub source_error: Option<String>,
}

/// Position of one partition.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionStatus {
    /// Topic.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// Loaded to this offset (exclusive).
    pub end: i64,
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
    let manifest = newest(place).await?;
    let source = match client {
        Ok(client) => snapshot::take(&client, job, topics, manifest.as_ref(), None).await,
        Err(error) => Err(error.into()),
    };
    let offsets = |topic: &TopicName, partition: i32| {
        let source = source.as_ref().ok()?;
        let topic = source.topics.iter().find(|t| t.topic == *topic)?;
        topic
            .partitions
            .iter()
            .find(|p| p.partition == partition)?
            .offsets
            .as_ref()
            .ok()
    };
    let states = manifest.as_ref().map_or(&[][..], |m| &m.partitions);
    let partitions = states.iter().map(|state| {
        let log = offsets(&state.key.topic, state.key.partition);
        PartitionStatus {
            topic: state.key.topic.to_string(),
            partition: state.key.partition,
            end: state.end,
            log_start: log.map(|log| log.earliest),
            log_end: log.map(|log| log.end),
            lag: log.map(|log| log.end - state.end),
        }
    });
    Ok(Status {
        location,
        newest_run: manifest.as_ref().map(|m| m.number),
        planned_at_ms: manifest.as_ref().map(|m| m.planned_at_ms),
        counts: manifest.as_ref().map(|m| m.counts()).unwrap_or_default(),
        files: manifest.as_ref().map_or(0, |m| m.files.len()),
        left_out: manifest
            .as_ref()
            .map(|m| m.left_out.clone())
            .unwrap_or_default(),
        complete: manifest
            .as_ref()
            .and_then(|m| m.complete_hours.last().cloned()),
        partitions: partitions.collect(),
        staging: staging(place).await?,
        source_error: source
            .as_ref()
            .err()
            .map(|error| crate::error::chain(error)),
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
