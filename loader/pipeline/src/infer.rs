//! Inferring columns from the first records of a topic, once, before a dataset is made.

use std::time::Duration;

use broker_client::protocol::record::Records;
use broker_client::{BatchKind, Client, FetchOptions};

use crate::config::JobConfig;
use crate::error::Error;
use crate::schema::{self, TableSchema};
use crate::snapshot::{SourceSnapshot, isolation};

/// Records looked at, in all.
const MAX_RECORDS: usize = 10_000;
/// Bytes of decompressed records looked at, in all.
const MAX_BYTES: usize = 64 << 20;
/// Longest wait for a partition's first batches.
const PATIENCE: Duration = Duration::from_secs(30);

/// The columns that the first records suggest, all nullable.
///
/// # Errors
/// [`Error::Config`] when there is no record to learn from.
pub(crate) async fn columns(
    client: &Client,
    job: &JobConfig,
    source: &SourceSnapshot,
) -> Result<TableSchema, Error> {
    let mut samples = Samples::default();
    for topic in &source.topics {
        for partition in &topic.partitions {
            let Ok(log) = &partition.offsets else {
                continue;
            };
            let start = log.start_at.unwrap_or(log.earliest).max(log.earliest);
            let options = FetchOptions {
                isolation: isolation(job.source.isolation),
                prefetch_bytes: Some(1 << 20),
            };
            let range = start..log.end;
            let fetch =
                client.fetch_range(topic.topic.clone(), partition.partition, range, options);
            samples.add(fetch).await?;
            if samples.is_enough() {
                break;
            }
        }
    }
    let records: Vec<_> = samples
        .batches
        .iter()
        .flat_map(Records::iter)
        .take(MAX_RECORDS)
        .collect();
    let values = records
        .iter()
        .filter_map(|record| record.as_ref().ok().and_then(|r| r.value));
    let inferred = schema::infer(values);
    if inferred.columns.is_empty() {
        return Err(Error::Config {
            problems: vec![format!(
                "the columns cannot be inferred: {} of the first records are JSON objects with fields; \
                 declare them in `[schema]`",
                inferred.used
            )],
        });
    }
    Ok(TableSchema {
        columns: inferred.columns,
        rest_column: None,
        coordinates: true,
    })
}

/// The first records of some partitions.
#[derive(Default)]
struct Samples {
    batches: Vec<Records>,
    records: usize,
    bytes: usize,
}

impl Samples {
    fn is_enough(&self) -> bool {
        self.records >= MAX_RECORDS || self.bytes >= MAX_BYTES
    }

    async fn add(&mut self, mut fetch: broker_client::RangeFetch) -> Result<(), Error> {
        while !self.is_enough() {
            let Ok(next) = tokio::time::timeout(PATIENCE, fetch.next()).await else {
                tracing::warn!("a partition does not answer, columns are inferred without it");
                break;
            };
            let Some(fetched) = next? else { break };
            if fetched.kind == BatchKind::Data
                && let Ok(records) = fetched.batch.records(MAX_BYTES)
            {
                self.records += usize::try_from(fetched.batch.header().records_count).unwrap_or(0);
                self.bytes += records.size_in_bytes();
                self.batches.push(records);
            }
        }
        Ok(())
    }
}
