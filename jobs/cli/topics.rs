//! `logferry topics`

use broker_client::protocol::ids::TopicName;
use broker_client::{Client, IsolationLevel, OffsetSpec, TopicMetadata};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::{Brokers, out};
use crate::failure::{Failure, Outcome};

/// List, describe, create and delete topics.
#[derive(Debug, Args)]
pub(super) struct Topics {
    #[command(flatten)]
    brokers: Brokers,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List topics (the default).
    List,
    /// Partitions of a topic with their leaders and offsets.
    Describe {
        /// Topic.
        topic: String,
    },
    /// Create a topic.
    Create {
        /// Topic.
        topic: String,
        /// Number of partitions.
        #[arg(long, default_value_t = 1)]
        partitions: i32,
        /// Replicas of each partition; -1 is the cluster's default.
        #[arg(long, default_value_t = -1, allow_negative_numbers = true)]
        replication_factor: i16,
        /// Topic configuration, `name=value`; may be repeated.
        #[arg(long, value_name = "NAME=VALUE")]
        config: Vec<String>,
    },
    /// Raise the number of partitions.
    Grow {
        /// Topic.
        topic: String,
        /// New total number of partitions.
        #[arg(long)]
        partitions: i32,
    },
    /// Delete a topic with all its records.
    Delete {
        /// Topic.
        topic: String,
    },
}

#[derive(Debug, Serialize)]
struct TopicRow {
    topic: String,
    topic_id: Option<String>,
    partitions: Vec<PartitionRow>,
}

#[derive(Debug, Serialize)]
struct PartitionRow {
    partition: i32,
    leader: Option<i32>,
    log_start_offset: Option<i64>,
    log_end_offset: Option<i64>,
}

impl Topics {
    pub(super) async fn run(self) -> Outcome {
        let client = self.brokers.connect().await?;
        match self.what.unwrap_or(What::List) {
            What::List => list(&client, self.json).await?,
            What::Describe { topic } => describe(&client, &topic_name(&topic)?, self.json).await?,
            What::Create {
                topic,
                partitions,
                replication_factor,
                config,
            } => {
                let configs = config
                    .iter()
                    .map(|c| split(c))
                    .collect::<Result<Vec<_>, _>>()?;
                client
                    .create_topic(
                        &topic_name(&topic)?,
                        partitions,
                        replication_factor,
                        &configs,
                    )
                    .await?;
            }
            What::Grow { topic, partitions } => {
                client
                    .create_partitions(&topic_name(&topic)?, partitions)
                    .await?;
            }
            What::Delete { topic } => client.delete_topic(&topic_name(&topic)?).await?,
        }
        Ok(None)
    }
}

/// A topic's name from the command line.
pub(super) fn topic_name(text: &str) -> Result<TopicName, Failure> {
    TopicName::new(text.to_owned()).map_err(|error| Failure::usage(format!("`{text}`: {error}")))
}

/// The topic's metadata.
pub(super) async fn existing(client: &Client, topic: &TopicName) -> Result<TopicMetadata, Failure> {
    let found = client.topics(Some(std::slice::from_ref(topic))).await?;
    let found = found
        .into_iter()
        .find(|t| t.name == *topic && t.error.is_none());
    found.ok_or_else(|| {
        broker_client::Error::UnknownTopic {
            topic: topic.clone(),
        }
        .into()
    })
}

fn split(config: &str) -> Result<(&str, &str), Failure> {
    config
        .split_once('=')
        .ok_or_else(|| Failure::usage(format!("`{config}` is not name=value")))
}

async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let mut topics = client.topics(None).await?;
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    if json {
        let rows: Vec<_> = topics
            .iter()
            .map(|topic| row(topic, |_| (None, None)))
            .collect();
        return Ok(out::json(&rows)?);
    }
    for topic in topics {
        out::line(&format!(
            "{}\t{} partitions",
            topic.name,
            topic.partitions.len()
        ))?;
    }
    Ok(())
}

async fn describe(client: &Client, topic: &TopicName, json: bool) -> Result<(), Failure> {
    let metadata = existing(client, topic).await?;
    let led: Vec<i32> = metadata
        .partitions
        .iter()
        .filter(|p| p.leader.is_some())
        .map(|p| p.partition)
        .collect();
    let level = IsolationLevel::ReadUncommitted;
    let starts = client
        .list_offsets(topic, &led, OffsetSpec::Earliest, level)
        .await?;
    let ends = client
        .list_offsets(topic, &led, OffsetSpec::Latest, level)
        .await?;
    let row = row(&metadata, |partition| {
        let offset =
            |all: &std::collections::BTreeMap<i32, Result<broker_client::ListedOffset, _>>| {
                all.get(&partition)?
                    .as_ref()
                    .ok()
                    .map(|listed| listed.offset)
            };
        (offset(&starts), offset(&ends))
    });
    if json {
        return Ok(out::json(&row)?);
    }
    let id = row.topic_id.as_deref().unwrap_or("none");
    out::line(&format!("{}\tid {id}", row.topic))?;
    for partition in &row.partitions {
        let number = |offset: Option<i64>| offset.map_or_else(|| "?".to_owned(), |o| o.to_string());
        out::line(&format!(
            "  {}\tleader {}\toffsets {} to {}",
            partition.partition,
            partition
                .leader
                .map_or_else(|| "none".to_owned(), |leader| leader.to_string()),
            number(partition.log_start_offset),
            number(partition.log_end_offset)
        ))?;
    }
    Ok(())
}

fn row(topic: &TopicMetadata, offsets: impl Fn(i32) -> (Option<i64>, Option<i64>)) -> TopicRow {
    let partitions = topic.partitions.iter().map(|p| {
        let (log_start_offset, log_end_offset) = offsets(p.partition);
        PartitionRow {
            partition: p.partition,
            leader: p.leader,
            log_start_offset,
            log_end_offset,
        }
    });
    TopicRow {
        topic: topic.name.to_string(),
        topic_id: topic.topic_id.map(|id| id.to_string()),
        partitions: partitions.collect(),
    }
}
