//! Planning: from the newest manifest and one look at the source to fixed ranges and tasks.
//!
//! [`plan`] is a pure function. What it returns fixes everything the output depends on: the ranges, their
//! cut into tasks, schema, grouping, policies and the plan time. Nothing is decided later.

mod positions;
mod tasks;
#[cfg(test)]
mod tests;

use broker_client::protocol::ids::{TopicId, TopicName};
use broker_client::{SaslConfig, TlsConfig};
use serde::{Deserialize, Serialize};

pub use self::tasks::{Task, TaskRange};
use crate::claims;
use crate::config::{Isolation, JobConfig};
use crate::encode::parquet::ParquetOptions;
use crate::error::Error;
use crate::manifest::{AcceptedGap, HourClaim, LeftOut, Manifest, PartitionKey, RunRef};
use crate::partitioner::Grouping;
use crate::schema::TableSchema;
use crate::sealed::{self, Document};
use crate::snapshot::SourceSnapshot;
use crate::transform::{RecordPolicy, TransformSpec};

/// The build that plans and writes: the same plan, data and build give the same bytes.
pub const BUILD: &str = concat!("logferry ", env!("CARGO_PKG_VERSION"));

/// One run before it happens. Stored as `plan.json` in the run's staging directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The newest run when the plan was made.
    pub base: Option<RunRef>,
    /// Name of the job.
    pub job: String,
    /// Checksum of everything in the job file that shapes the output.
    pub fingerprint: String,
    /// Build that made the plan; only the same build resumes it.
    pub build: String,
    /// Plan time, milliseconds since the epoch: the only clock the output knows.
    pub planned_at_ms: i64,
    /// Where the data comes from.
    pub source: PlannedSource,
    /// Columns of the output.
    pub schema: TableSchema,
    /// Directories of the output.
    pub grouping: Grouping,
    /// What happens to records that are no rows.
    pub policy: RecordPolicy,
    /// How files are written.
    pub parquet: ParquetOptions,
    /// Bounds.
    pub limits: PlannedLimits,
    /// Every partition of this run, sorted by topic and partition; `start == end` for one that was
    /// only seen for the first time.
    pub partitions: Vec<PlannedPartition>,
    /// The work, by task number.
    pub tasks: Vec<Task>,
    /// Jumps that the operator accepted.
    pub accepted_gaps: Vec<AcceptedGap>,
    /// Partitions that could not be planned.
    pub left_out: Vec<LeftOut>,
    /// Hours that become complete with this run, if all of it is published.
    pub complete_hours: Vec<HourClaim>,
    /// Boundary of the claims after this run.
    pub complete_before_ms: Option<i64>,
}

impl Document for Plan {
    const FORMAT: &'static str = "logferry-plan";
    const VERSION: u32 = 1;
}

/// How a task reaches the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedSource {
    /// Bootstrap brokers.
    pub brokers: Vec<String>,
    /// TLS to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Name for them, and where the password is; the password itself is never stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sasl: Option<SaslConfig>,
    /// Cluster id; a task that meets another cluster fails.
    pub cluster_id: String,
    /// Which records are seen.
    pub isolation: Isolation,
    /// Largest record batch taken.
    pub max_batch_bytes: u64,
    /// Request time-out in milliseconds.
    pub request_timeout_ms: i64,
    /// Retry deadline in milliseconds.
    pub retry_deadline_ms: i64,
}

/// Bounds that decide whether a run may be published.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedLimits {
    /// Most directories a task may write to.
    pub max_groups: usize,
    /// Most records set aside.
    pub max_rejected: Option<u64>,
    /// Largest share of records set aside, percent.
    pub max_rejected_percent: f64,
}

/// One partition in a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedPartition {
    /// Topic.
    #[serde(with = "crate::text")]
    pub topic: TopicName,
    /// Topic id.
    #[serde(with = "crate::text::option")]
    pub topic_id: Option<TopicId>,
    /// Partition.
    pub partition: i32,
    /// Where the dataset stood; `None` for a partition first seen.
    pub previous: Option<PreviousPosition>,
    /// First offset to load.
    pub start: i64,
    /// Exclusive end.
    pub end: i64,
    /// Leader epoch at the end when planned; −1 when unknown.
    pub leader_epoch: i32,
    /// Whether offsets may lack records (compaction).
    pub holes_allowed: bool,
}

/// The position a plan starts from; publishing requires that it still holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreviousPosition {
    /// Cluster the position belongs to (another one than the source's after a confirmed move).
    pub cluster_id: String,
    /// Topic id recorded with it.
    #[serde(with = "crate::text::option")]
    pub topic_id: Option<TopicId>,
    /// End of the newest run.
    pub end: i64,
}

impl Plan {
    /// What turns records into rows.
    #[must_use]
    pub fn transform_spec(&self) -> TransformSpec {
        TransformSpec {
            schema: self.schema.clone(),
            grouping: self.grouping.clone(),
            policy: self.policy,
            plan_time_ms: self.planned_at_ms,
        }
    }

    /// The key of a partition of this plan's cluster.
    #[must_use]
    pub fn key(&self, topic: &TopicName, partition: i32) -> PartitionKey {
        PartitionKey {
            cluster_id: self.source.cluster_id.clone(),
            topic: topic.clone(),
            partition,
        }
    }

    /// Whether there is anything to publish: an end moves, a partition is seen for the first time, a
    /// gap was accepted or an hour becomes complete.
    #[must_use]
    pub fn is_worth_publishing(&self) -> bool {
        !self.tasks.is_empty()
            || !self.accepted_gaps.is_empty()
            || !self.complete_hours.is_empty()
            || self.partitions.iter().any(|p| p.previous.is_none())
    }

    /// Number of offsets in all ranges.
    #[must_use]
    pub fn offsets(&self) -> u64 {
        self.partitions
            .iter()
            .map(|p| (p.end - p.start).unsigned_abs())
            .sum()
    }

    /// Whether the source still looks as it did when this plan was made: a plan made `now` would start
    /// where this one does, in the same logs, and reach at least as far (I6). A leader that moved may have
    /// cut its log, so it counts as a change.
    #[must_use]
    pub fn still_fits(&self, now: &Self) -> bool {
        self.accepted_gaps == now.accepted_gaps
            && self.partitions.iter().all(|planned| {
                now.partitions.iter().any(|found| {
                    (&found.topic, found.partition) == (&planned.topic, planned.partition)
                        && (found.topic_id, found.start) == (planned.topic_id, planned.start)
                        && found.leader_epoch == planned.leader_epoch
                        && found.end >= planned.end
                })
            })
    }

    /// Checks that this plan continues `newest`: every position it starts from still stands (I1, I4).
    ///
    /// # Errors
    /// The first partition that does not, with both offsets.
    pub fn continues(&self, newest: Option<&Manifest>) -> Result<(), Moved> {
        // A plan that moves nothing would fit its own published run, and be published twice.
        let moves = self.partitions.iter().any(|p| {
            p.previous
                .as_ref()
                .is_none_or(|before| before.end != p.start || p.start != p.end)
        });
        if !moves && newest.map(Manifest::run_ref) != self.base {
            return Err(Moved::Claims);
        }
        for planned in &self.partitions {
            let cluster_id = planned
                .previous
                .as_ref()
                .map_or(&self.source.cluster_id, |previous| &previous.cluster_id);
            let key = PartitionKey {
                cluster_id: cluster_id.clone(),
                topic: planned.topic.clone(),
                partition: planned.partition,
            };
            let state = newest.and_then(|manifest| manifest.partition(&key));
            let stands = match (&planned.previous, state) {
                (None, None) => true,
                (Some(previous), Some(state)) => {
                    state.end == previous.end && state.topic_id == previous.topic_id
                }
                (None, Some(_)) | (Some(_), None) => false,
            };
            if !stands {
                return Err(Moved::Partition {
                    topic: planned.topic.clone(),
                    partition: planned.partition,
                    planned: planned.previous.as_ref().map(|p| p.end),
                    found: state.map(|s| s.end),
                });
            }
        }
        Ok(())
    }
}

/// What is no longer as it was when a plan was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Moved {
    /// A partition's position.
    #[error(
        "{topic}-{partition} stood at {} when this run was planned and now stands at {}",
        offset(*planned),
        offset(*found)
    )]
    Partition {
        /// Topic.
        topic: TopicName,
        /// Partition.
        partition: i32,
        /// Position when planned.
        planned: Option<i64>,
        /// Position in the newest manifest.
        found: Option<i64>,
    },
    /// The plan only claimed hours, and another run was published meanwhile.
    #[error("another run was published since this run was planned to claim hours")]
    Claims,
}

fn offset(at: Option<i64>) -> String {
    at.map_or_else(|| "no offset".to_owned(), |at| format!("offset {at}"))
}

/// Everything [`plan`] decides from.
#[derive(Debug)]
pub struct PlanRequest<'a> {
    /// The job.
    pub job: &'a JobConfig,
    /// Columns of the output.
    pub schema: &'a TableSchema,
    /// The newest run's manifest.
    pub newest: Option<&'a Manifest>,
    /// The source.
    pub source: &'a SourceSnapshot,
    /// Whether jumps are accepted (`--accept-gap`).
    pub accept_gap: bool,
    /// Plan time, milliseconds since the epoch.
    pub now_ms: i64,
}

/// Makes the plan of one run.
///
/// # Errors
/// [`Error::OffsetsGone`] lists every partition whose offsets cannot go on (I6), unless gaps are
/// accepted; [`Error::UnknownTopics`] for topics that exist nowhere; [`Error::Config`] for a dataset that
/// was loaded from another cluster.
pub fn plan(request: &PlanRequest<'_>) -> Result<Plan, Error> {
    let job = request.job;
    let positions = positions::decide(request)?;
    let bytes_per_offset = tasks::BytesPerOffset::new(request.source);
    let tasks = tasks::cut(
        &positions.partitions,
        job.limits.task_bytes.as_u64(),
        &bytes_per_offset,
    );
    let claims = claims::claim(
        request,
        &positions.partitions,
        positions.left_out.is_empty(),
    );
    Ok(Plan {
        base: request.newest.map(Manifest::run_ref),
        job: job.name.clone(),
        fingerprint: fingerprint(job)?,
        build: BUILD.to_owned(),
        planned_at_ms: request.now_ms,
        source: PlannedSource {
            brokers: job.source.brokers.clone(),
            tls: job.source.tls.clone(),
            sasl: job.source.sasl.clone(),
            cluster_id: request.source.cluster_id.clone(),
            isolation: job.source.isolation,
            max_batch_bytes: job.source.max_batch_bytes.as_u64(),
            request_timeout_ms: job.source.request_timeout.as_ms(),
            retry_deadline_ms: job.source.retry_deadline.as_ms(),
        },
        schema: request.schema.clone(),
        grouping: job.grouping.clone(),
        policy: job.records,
        parquet: job.output.parquet.clone(),
        limits: PlannedLimits {
            max_groups: job.limits.max_groups,
            max_rejected: job.limits.max_rejected,
            max_rejected_percent: job.limits.max_rejected_percent,
        },
        partitions: positions.partitions,
        tasks,
        accepted_gaps: positions.accepted_gaps,
        left_out: positions.left_out,
        complete_hours: claims.hours,
        complete_before_ms: claims.complete_before_ms,
    })
}

/// Checksum of the job file without `[engine]`, which changes nothing in the output.
///
/// # Errors
/// When the job cannot be written as JSON.
pub fn fingerprint(job: &JobConfig) -> Result<String, Error> {
    let shape = JobConfig {
        engine: crate::config::EngineConfig::default(),
        ..job.clone()
    };
    let text = serde_json::to_vec(&shape).map_err(|source| Error::Internal {
        what: "cannot write the job as JSON".to_owned(),
        source: Some(Box::new(source)),
    })?;
    Ok(sealed::checksum(&text))
}
