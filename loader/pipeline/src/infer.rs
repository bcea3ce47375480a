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
/// Bytes of record batches looked at, a partition.
const MAX_BYTES: usize = 8 << 20;
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
    let mut samples = Vec::new();
    for topic in &source.topics {
        for partition in &topic.partitions {
            let Ok(log) = &partition.offsets else {
                continue;
            };
            let start = log.start_at.unwrap_or(log.earliest).max(log.earliest);
            let options = FetchOptions {
                isolation: isolation(job.source.isolation),
                prefetch_bytes: Some(MAX_BYTES),
            };
            let range = start..log.end;
            let fetch =
                client.fetch_range(topic.topic.clone(), partition.partition, range, options);
            samples.extend(first_records(fetch).await?);
        }
    }
    let records: Vec<_> = samples
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

async fn first_records(mut fetch: broker_client::RangeFetch) -> Result<Vec<Records>, Error> {
    let (mut samples, mut bytes) = (Vec::new(), 0);
    while bytes < MAX_BYTES {
        let Ok(next) = tokio::time::timeout(PATIENCE, fetch.next()).await else {
            break;
        };
        let Some(fetched) = next? else { break };
        bytes += fetched.batch.bytes().len();
        if fetched.kind == BatchKind::Data
            && let Ok(records) = fetched.batch.records(MAX_BYTES * 8)
        {
            samples.push(records);
        }
    }
    Ok(samples)
}
