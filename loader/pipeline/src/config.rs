//! The job file: what to load, from where, into which dataset.
//!
//! Every table refuses unknown keys. Sizes and durations are text (`"256MiB"`, `"30s"`).

use std::path::PathBuf;

use broker_client::{SaslConfig, TlsConfig};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::encode::parquet::ParquetOptions;
use crate::partitioner::Grouping;
use crate::quantity::Period;
use crate::schema::TableSchema;
use crate::transform::RecordPolicy;

/// Each thread blocks one of the runtime's 512 for blocking work; local stores need some, too.
const MOST_THREADS: usize = 256;

/// A job file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobConfig {
    /// Name of the job, written into manifests and logs. Default: the file's name without ending.
    #[serde(default)]
    pub name: String,
    /// The cluster and the topics.
    pub source: SourceConfig,
    /// The dataset.
    pub output: OutputConfig,
    /// Columns. Without it they are inferred from the first records and pinned in `dataset.json`.
    #[serde(default)]
    pub schema: Option<TableSchema>,
    /// How rows are grouped into directories.
    #[serde(default)]
    pub grouping: Grouping,
    /// What happens to records that are no rows.
    #[serde(default)]
    pub records: RecordPolicy,
    /// When an hour counts as complete. Without it no hour is claimed.
    #[serde(default)]
    pub completeness: Option<CompletenessConfig>,
    /// Bounds of one run.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// How this process works; nothing here changes the output.
    #[serde(default)]
    pub engine: EngineConfig,
}

/// `[source]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceConfig {
    /// Bootstrap brokers, `host:port` (`bootstrap.servers`).
    pub brokers: Vec<String>,
    /// TLS to the brokers. Without the table: plaintext (`security.protocol`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Name and password for the brokers. Without the table: none (`security.protocol`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sasl: Option<SaslConfig>,
    /// Topics to load.
    pub topics: Vec<String>,
    /// Where a topic's first load starts: `earliest` (default), `latest`, an RFC 3339 time, or
    /// `group:NAME` for a consumer group's committed offsets. Never used again once the dataset
    /// knows the topic: a partition that appears later starts at its earliest offset.
    #[serde(default)]
    pub start: StartAt,
    /// Which records are seen (`isolation.level`). Default `read_committed`.
    #[serde(default)]
    pub isolation: Isolation,
    /// Accept offsets without a record also on topics whose `cleanup.policy` does not say `compact`
    /// (topics that were compacted earlier). They are counted. Default false: such a hole fails the task.
    #[serde(default)]
    pub allow_holes: bool,
    /// Confirms that this cluster continues the one with this cluster id (a move to a mirror that
    /// keeps offsets and topic ids).
    #[serde(default)]
    pub continues_cluster: Option<String>,
    /// Consumer group under which published ends are committed, for lag tools. Never read back.
    #[serde(default)]
    pub lag_group: Option<String>,
    /// Largest single record batch that is taken. Default 64 MiB.
    #[serde(default = "default_max_batch", with = "crate::quantity::byte_size")]
    pub max_batch_bytes: ByteSize,
    /// One request's time-out (`request.timeout.ms`). Default 30 s.
    #[serde(default = "default_request_timeout")]
    pub request_timeout: Period,
    /// How long retriable errors are retried before they fail. Default 60 s.
    #[serde(default = "default_retry_deadline")]
    pub retry_deadline: Period,
}

/// See [`SourceConfig::start`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StartAt {
    /// The log start.
    #[default]
    Earliest,
    /// The log end.
    Latest,
    /// The first record at or after this time.
    Time(jiff::Timestamp),
    /// The committed offsets of a consumer group.
    Group(String),
}

impl std::fmt::Display for StartAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Earliest => f.write_str("earliest"),
            Self::Latest => f.write_str("latest"),
            Self::Time(time) => write!(f, "{time}"),
            Self::Group(group) => write!(f, "group:{group}"),
        }
    }
}

impl std::str::FromStr for StartAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            _ => match text.strip_prefix("group:") {
                Some("") => Err("`group:` needs the name of a consumer group".to_owned()),
                Some(group) => Ok(Self::Group(group.to_owned())),
                None => text.parse().map(Self::Time).map_err(|_| {
                    format!(
                        "`{text}` is none of earliest, latest, group:NAME and an RFC 3339 time \
                         such as 2026-11-30T00:00:00Z"
                    )
                }),
            },
        }
    }
}

impl Serialize for StartAt {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StartAt {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        crate::text::deserialize(from)
    }
}

/// Which records a load sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Only records of committed transactions, up to the last stable offset.
    #[default]
    ReadCommitted,
    /// Everything up to the high watermark.
    ReadUncommitted,
}

/// `[output]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputConfig {
    /// Directory of the dataset: `hdfs://namenode/path`, `hdfs:///path` (the default file system of
    /// `HADOOP_CONF_DIR`) or a local path. With `{topic}` in it each topic is a dataset of its own.
    pub dataset: String,
    /// Parquet settings.
    #[serde(default)]
    pub parquet: ParquetOptions,
}

/// `[completeness]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompletenessConfig {
    /// How long after its event time a record may still reach the log. An hour is claimed complete
    /// once every partition is loaded past the first record stamped `hour end + grace` or later.
    pub grace: Period,
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Most records set aside in one run; one more fails the run (exit 65). Default: no limit by count.
    pub max_rejected: Option<u64>,
    /// Largest share of records set aside in one run, in percent. Default 1.
    pub max_rejected_percent: f64,
    /// Most offsets one run takes from a partition. Default: all there are.
    pub max_offsets_per_partition: Option<u64>,
    /// Input bytes (compressed, as the broker stores them) aimed at by one task. Default 256 MiB.
    #[serde(with = "crate::quantity::byte_size")]
    pub task_bytes: ByteSize,
    /// Most directories one task may write to; one more fails the run (exit 65). Default 2,000.
    pub max_groups: usize,
    /// No new task starts after this time; what is contiguous by then is published (exit 76).
    /// Default: no limit.
    pub time_budget: Option<Period>,
}

/// `[engine]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Tasks that run at once. Default: all cores.
    pub threads: Option<usize>,
    /// Attempts of one task before the run fails. Default 3.
    pub attempts: u32,
    /// Memory for records and rows, shared by the running tasks; beyond it rows wait on local disk. The
    /// process takes some 100 MiB more. Default 1 GiB, at least 64 MiB.
    #[serde(with = "crate::quantity::byte_size")]
    pub memory: ByteSize,
    /// Where rows wait that have no room in memory: at most what the running tasks decode. Default: the
    /// system's directory for temporary files (`TMPDIR`).
    pub spill_dir: Option<PathBuf>,
    /// Bytes of fetched batches held ahead, per running task. Default: an eighth of the task's share of
    /// `memory`, at most 16 MiB.
    pub prefetch_bytes: Option<ByteSize>,
    /// A staging directory whose lease is older belongs to a dead run and is taken over. Default 60 s.
    pub lease_timeout: Period,
    /// Bound on each single call to the store. Default 60 s.
    pub store_timeout: Period,
    /// How long trouble of HDFS that passes by itself is waited for: a NameNode that restarts, a dead DataNode
    /// that it does not know of yet (10.5 minutes by default). Default 12 min; 0 waits for nothing.
    pub store_patience: Period,
}

impl JobConfig {
    /// Checks what can be checked without a dataset or a source.
    ///
    /// # Errors
    /// Every problem, by key.
    pub fn validate(&self) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        let mut check = |fits: bool, problem: &str| {
            if !fits {
                problems.push(problem.to_owned());
            }
        };
        let (source, limits, engine) = (&self.source, &self.limits, &self.engine);
        check(
            !source.brokers.is_empty(),
            "`source.brokers` names no broker",
        );
        check(!source.topics.is_empty(), "`source.topics` names no topic");
        let mut topics: Vec<_> = source.topics.iter().collect();
        topics.sort();
        let once = topics.windows(2).all(|pair| pair.first() != pair.last());
        check(once, "`source.topics` names a topic twice");
        check(
            source.retry_deadline.as_ms() > 0,
            "`source.retry_deadline` is 0",
        );
        check(
            engine.prefetch_bytes.is_none_or(|size| size.as_u64() > 0),
            "`engine.prefetch_bytes` is 0",
        );
        check(
            engine.memory >= ByteSize::mib(64),
            "`engine.memory` is less than 64MiB",
        );
        check(
            source.max_batch_bytes.as_u64() > 0,
            "`source.max_batch_bytes` is 0",
        );
        check(
            source.request_timeout.as_ms() > 0,
            "`source.request_timeout` is 0",
        );
        check(!self.output.dataset.is_empty(), "`output.dataset` is empty");
        let percent = limits.max_rejected_percent;
        let is_share = (0.0..=100.0).contains(&percent);
        check(
            is_share,
            "`limits.max_rejected_percent` is no number from 0 to 100",
        );
        check(limits.max_groups > 0, "`limits.max_groups` is 0");
        check(limits.task_bytes.as_u64() > 0, "`limits.task_bytes` is 0");
        let least = limits.max_offsets_per_partition.unwrap_or(1);
        check(least > 0, "`limits.max_offsets_per_partition` is 0");
        check(engine.threads != Some(0), "`engine.threads` is 0");
        check(
            engine.threads.unwrap_or(1) <= MOST_THREADS,
            "`engine.threads` is above 256",
        );
        check(engine.attempts > 0, "`engine.attempts` is 0");
        check(
            engine.lease_timeout.as_ms() > 0,
            "`engine.lease_timeout` is 0",
        );
        check(
            engine.store_timeout.as_ms() > 0,
            "`engine.store_timeout` is 0",
        );
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }
}

fn default_max_batch() -> ByteSize {
    ByteSize::mib(64)
}

fn default_request_timeout() -> Period {
    Period::from_ms(30_000)
}

fn default_retry_deadline() -> Period {
    Period::from_ms(60_000)
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            max_rejected: None,
            max_rejected_percent: 1.0,
            max_offsets_per_partition: None,
            task_bytes: ByteSize::mib(256),
            max_groups: 2_000,
            time_budget: None,
        }
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            threads: None,
            attempts: 3,
            memory: ByteSize::gib(1),
            spill_dir: None,
            prefetch_bytes: None,
            lease_timeout: Period::from_ms(60_000),
            store_timeout: Period::from_ms(60_000),
            store_patience: Period::from_ms(12 * 60_000),
        }
    }
}
