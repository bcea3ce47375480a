//! What can go wrong in a load, by what the caller can do about it.

use broker_client::protocol::ids::TopicName;
use loader_store::StorePath;

use crate::encode::EncodeError;
use crate::manifest::GapReason;
use crate::plan::Moved;
use crate::sealed::Damage;
use crate::transform::TransformError;

pub use loader_store::chain;

/// Exit status of a load (design section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// Failed: newest manifest unreadable, internal error.
    Failed,
    /// Usage or configuration.
    Usage,
    /// Data: rejected over the threshold, bad CRC, unknown codec, oversize record, damage found.
    Data,
    /// Offsets no longer at the source.
    OffsetsGone,
    /// Source, registry or store not usable now.
    Unavailable,
    /// Fenced by another run.
    Fenced,
    /// Published, but less than planned.
    Partial,
    /// Stopped by SIGTERM.
    Stopped,
}

impl Exit {
    /// The process's exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Data => 65,
            Self::OffsetsGone => 66,
            Self::Unavailable => 69,
            Self::Fenced => 75,
            Self::Partial => 76,
            Self::Stopped => 143,
        }
    }
}

/// Error of planning, loading, publishing or verifying.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job file, or the job file against the dataset. Lists every problem.
    #[error("the job cannot run as configured: {}", problems.join("; "))]
    Config {
        /// Every problem.
        problems: Vec<String>,
    },
    /// The first run names topics that do not exist.
    #[error("no such topic: {}", list(topics))]
    UnknownTopics {
        /// The topics.
        topics: Vec<TopicName>,
    },
    /// There is no dataset at the path.
    #[error("there is no dataset at {location}")]
    NoDataset {
        /// Where it was looked for.
        location: String,
    },
    /// `start = "group:…"`, and the group has no offset for a partition.
    #[error("consumer group {group} has no committed offset for {topic}-{partition}")]
    NoCommittedOffset {
        /// Group.
        group: String,
        /// Topic.
        topic: TopicName,
        /// Partition.
        partition: i32,
    },
    /// Offsets are no longer at the source (I6).
    #[error("offsets are no longer at the source: {}", list(lost))]
    OffsetsGone {
        /// Every partition that cannot go on.
        lost: Vec<LostOffsets>,
    },
    /// A document of the commit protocol cannot be trusted.
    #[error("{path} cannot be trusted")]
    Damaged {
        /// Which document.
        path: StorePath,
        /// What is wrong.
        #[source]
        damage: Damage,
    },
    /// The dataset's directory holds something that should not be there or lacks something that should.
    #[error("{path}: {problem}")]
    Inconsistent {
        /// Where.
        path: StorePath,
        /// What is wrong.
        problem: String,
    },
    /// A range could not be read as planned.
    #[error("{topic}-{partition} at offset {offset}: {problem}")]
    Range {
        /// Topic.
        topic: TopicName,
        /// Partition.
        partition: i32,
        /// Offset.
        offset: i64,
        /// What is wrong.
        problem: String,
    },
    /// More records were set aside than the job allows.
    #[error("{rejected} of {records} records were set aside, the job allows {allowed}; first: {}", samples.join("; "))]
    TooManyRejected {
        /// Records set aside.
        rejected: u64,
        /// Records read.
        records: u64,
        /// The limit, as text.
        allowed: String,
        /// The first few, with coordinates and reason.
        samples: Vec<String>,
    },
    /// A task would write to more directories than allowed.
    #[error("task {task} writes to more than {limit} directories")]
    TooManyGroups {
        /// Task.
        task: u32,
        /// `limits.max_groups`.
        limit: usize,
    },
    /// Another run has taken this one's place.
    #[error("fenced by another run: {what}")]
    Fenced {
        /// How that showed.
        what: String,
    },
    /// No answer to the publishing rename, and the store does not answer the question what became of it.
    #[error(
        "it is unknown whether run {number} was published: the answer was lost and the store cannot be asked"
    )]
    PublishUnknown {
        /// The run.
        number: crate::layout::RunNumber,
        /// Why it cannot be asked.
        #[source]
        source: loader_store::Error,
    },
    /// Another run moved a partition of this plan.
    #[error("fenced by run {number}")]
    Moved {
        /// The run that did.
        number: crate::layout::RunNumber,
        /// What moved.
        #[source]
        moved: Moved,
    },
    /// Stopped by a signal.
    #[error("stopped; the plan and the finished tasks stay for the next run")]
    Stopped,
    /// The brokers belong to another cluster than the plan.
    #[error("the brokers belong to cluster `{found}`, the plan was made for `{planned}`")]
    WrongCluster {
        /// Cluster of the plan.
        planned: String,
        /// Cluster that answered.
        found: String,
    },
    /// The source.
    #[error("cannot read from the source")]
    Source(#[from] broker_client::Error),
    /// The store.
    #[error("cannot use the store")]
    Store(#[from] loader_store::Error),
    /// The local disk for rows that have no room in memory.
    #[error("cannot keep rows on local disk in {}", directory.display())]
    Spill {
        /// `engine.spill_dir`.
        directory: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Records to rows.
    #[error("cannot turn records into rows")]
    Transform(#[from] TransformError),
    /// Rows to files.
    #[error("cannot encode rows")]
    Encode(#[from] EncodeError),
    /// A bug of ours, or of a library.
    #[error("{what}")]
    Internal {
        /// What failed.
        what: String,
        /// Cause.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

/// Offsets that cannot go on where the newest run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LostOffsets {
    /// The log starts beyond our end, was cut below it, or is another log.
    Broken {
        /// Topic.
        topic: TopicName,
        /// Partition.
        partition: i32,
        /// What happened.
        reason: GapReason,
        /// End of the newest run.
        previous_end: i64,
        /// Where `--accept-gap` would go on.
        start: i64,
        /// Log start offset now.
        log_start: i64,
        /// Log end offset now.
        log_end: i64,
    },
    /// The topic does not exist any more.
    TopicGone {
        /// Topic.
        topic: TopicName,
        /// Partition.
        partition: i32,
        /// End of the newest run.
        previous_end: i64,
    },
    /// The topic has fewer partitions than before.
    PartitionGone {
        /// Topic.
        topic: TopicName,
        /// Partition.
        partition: i32,
        /// End of the newest run.
        previous_end: i64,
    },
}

impl std::fmt::Display for LostOffsets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broken {
                topic,
                partition,
                reason,
                previous_end,
                start,
                log_start,
                log_end,
            } => {
                write!(
                    f,
                    "{topic}-{partition} was loaded to offset {previous_end}, "
                )?;
                match reason {
                    GapReason::Retention => write!(
                        f,
                        "the log now starts at {log_start}: offsets {previous_end} to {log_start} (exclusive) are lost"
                    ),
                    GapReason::Truncation => write!(
                        f,
                        "the log was cut below that, to offset {start} (log end now {log_end}): records \
                         loaded from there on are not in the log any more"
                    ),
                    GapReason::TopicRecreated => write!(
                        f,
                        "the topic was deleted and made again (another topic id; offsets {log_start} to {log_end} now)"
                    ),
                }
            }
            Self::TopicGone {
                topic,
                partition,
                previous_end,
            } => write!(
                f,
                "{topic}-{partition} was loaded to offset {previous_end}, the topic exists no more"
            ),
            Self::PartitionGone {
                topic,
                partition,
                previous_end,
            } => write!(
                f,
                "{topic}-{partition} was loaded to offset {previous_end}, the topic has no such partition any more"
            ),
        }
    }
}

fn list<T: std::fmt::Display>(items: &[T]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

impl Error {
    /// The exit status this error ends a command with.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Config { .. }
            | Self::UnknownTopics { .. }
            | Self::NoDataset { .. }
            | Self::NoCommittedOffset { .. }
            | Self::WrongCluster { .. } => Exit::Usage,
            Self::OffsetsGone { .. } => Exit::OffsetsGone,
            Self::Damaged { .. } | Self::Inconsistent { .. } | Self::Internal { .. } => {
                Exit::Failed
            }
            Self::Range { .. } | Self::TooManyRejected { .. } | Self::TooManyGroups { .. } => {
                Exit::Data
            }
            Self::Fenced { .. } | Self::Moved { .. } => Exit::Fenced,
            Self::Stopped => Exit::Stopped,
            Self::PublishUnknown { .. } | Self::Spill { .. } => Exit::Unavailable,
            Self::Source(error) => source_exit(error),
            Self::Store(error) => store_exit(error),
            Self::Transform(error) => transform_exit(error),
            Self::Encode(_) => Exit::Failed,
        }
    }

    /// Whether another attempt of the same task may succeed.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Source(error) => error.kind() == broker_client::ErrorKind::Retriable,
            Self::Store(error) => matches!(
                error.kind(),
                loader_store::ErrorKind::Retriable | loader_store::ErrorKind::Ambiguous
            ),
            _ => false,
        }
    }

    /// Whether plan and finished tasks are worth keeping for the next run. After any other error they are
    /// not: the next run plans anew, so that nothing broken can be resumed for ever.
    #[must_use]
    pub fn leaves_work(&self) -> bool {
        matches!(self.exit(), Exit::Unavailable | Exit::Stopped)
    }

    /// What the operator can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::Config { .. } => "correct the job file; docs/job-file.md describes every key",
            Self::UnknownTopics { .. } => {
                "check `source.topics` and `source.brokers`; `logferry topics` lists what there is"
            }
            Self::NoDataset { .. } => {
                "check `output.dataset`; a dataset is made by its first run: `logferry load JOB --create`"
            }
            Self::NoCommittedOffset { .. } => {
                "commit an offset for every partition, or name another `source.start` for the first run"
            }
            Self::OffsetsGone { lost } => return Some(lost_remedy(lost)),
            Self::Damaged { .. } => {
                "restore the file from a copy or snapshot; nothing was published, and no earlier run is \
                 taken instead"
            }
            Self::Inconsistent { .. } => {
                "look at the path; `logferry verify` lists all that is wrong"
            }
            Self::Range { .. } => {
                "if the topic was compacted at some time, set `source.allow_holes = true`; otherwise the \
                 log has lost records"
            }
            Self::TooManyRejected { .. } => {
                "correct the producer or the columns, or raise `limits.max_rejected` and \
                 `limits.max_rejected_percent`; nothing was published"
            }
            Self::TooManyGroups { .. } => {
                "raise `limits.max_groups`, group more coarsely, or narrow the time window in `grouping`"
            }
            Self::Fenced { .. } | Self::Moved { .. } => {
                "nothing is wrong: the next run goes on from what the other run published"
            }
            Self::Stopped => "run the same command again to go on",
            Self::WrongCluster { .. } => "give the task the brokers of the plan's cluster",
            Self::Source(error) => return source_remedy(error),
            Self::PublishUnknown { .. } => {
                "bring the store back and run again: the next run finds out and goes on from there"
            }
            Self::Store(error) => error.remedy(),
            Self::Spill { .. } => {
                "make room there, name another `engine.spill_dir`, or raise `engine.memory`; a run that \
                 failed so is taken up again by the next"
            }
            Self::Transform(error) => return transform_remedy(error),
            Self::Encode(_) | Self::Internal { .. } => {
                "this is a bug in logferry; please report it"
            }
        };
        Some(text.to_owned())
    }
}

fn lost_remedy(lost: &[LostOffsets]) -> String {
    let gone = lost
        .iter()
        .any(|l| !matches!(l, LostOffsets::Broken { .. }));
    if gone {
        "take the topic out of `source.topics` if it is gone for good; its runs stay".to_owned()
    } else {
        "restore the offsets at the source if you can; to go on without them run once with --accept-gap: \
         the manifest records the gap"
            .to_owned()
    }
}

fn source_exit(error: &broker_client::Error) -> Exit {
    use broker_client::Error as Source;
    match error.root() {
        Source::OffsetOutOfRange { .. }
        | Source::UnknownTopic { .. }
        | Source::UnknownPartition { .. }
        | Source::TopicReplaced { .. } => Exit::OffsetsGone,
        Source::CorruptBatch { .. } | Source::BatchTooLarge { .. } => Exit::Data,
        Source::InvalidConfig { .. } => Exit::Usage,
        _ => Exit::Unavailable,
    }
}

fn source_remedy(error: &broker_client::Error) -> Option<String> {
    use broker_client::Error as Source;
    let text = match error.root() {
        Source::OffsetOutOfRange { .. } => {
            "retention overtook the load; run again to see which offsets are lost"
        }
        Source::UnknownTopic { .. } | Source::TopicReplaced { .. } => {
            "the topic was deleted while it was loaded; run again"
        }
        Source::CorruptBatch { .. } => {
            "the broker's copy is damaged; check it with kafka-dump-log, or move leadership to another \
             replica. Nothing after this batch was loaded"
        }
        Source::BatchTooLarge { .. } => "raise `source.max_batch_bytes`",
        Source::Unreachable { .. } | Source::Disconnected { .. } | Source::NoAnswer { .. } => {
            "check `source.brokers`, that the brokers run, and that the addresses they advertise can be \
             reached from here"
        }
        other => other.remedy(),
    };
    Some(text.to_owned())
}

fn store_exit(error: &loader_store::Error) -> Exit {
    if matches!(
        error,
        loader_store::Error::Location { .. } | loader_store::Error::HadoopConfig { .. }
    ) {
        return Exit::Usage;
    }
    match error.kind() {
        loader_store::ErrorKind::Caller => Exit::Failed,
        _ => Exit::Unavailable,
    }
}

fn transform_exit(error: &TransformError) -> Exit {
    match error {
        TransformError::BadRecord { .. }
        | TransformError::Tombstone { .. }
        | TransformError::Undecodable { .. }
        | TransformError::TooLarge { .. } => Exit::Data,
        _ => Exit::Failed,
    }
}

fn transform_remedy(error: &TransformError) -> Option<String> {
    let text = match error {
        TransformError::BadRecord { .. } => {
            "correct the producer or the columns, for old or future event times raise `grouping.max_past` or \
             `grouping.max_future`, or set aside such records with `records.bad_records = \"reject\"`; nothing was \
             published"
        }
        TransformError::Tombstone { .. } => {
            "say what to do with records without a value: `records.tombstones = \"skip\"`, \"write\" or \
             \"reject\"; nothing was published"
        }
        TransformError::Undecodable { .. } => {
            "the broker's copy of the batch is damaged or uses an unknown codec; check it with \
             kafka-dump-log"
        }
        TransformError::TooLarge { .. } => "have the producer send smaller batches",
        _ => "this is a bug in logferry; please report it",
    };
    Some(text.to_owned())
}
