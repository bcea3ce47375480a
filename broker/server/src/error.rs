//! What can stop a broker from starting, serving or ending cleanly. Errors of single requests are Kafka's
//! codes in the answers and never come here.

use std::{
    io,
    path::{Path, PathBuf},
};

use broker_log::TopicPartition;

use crate::config::Problem;

/// Why the broker does not run, or did not end cleanly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration has at least one mistake.
    #[error("configuration of the broker is not valid: {}", join(problems))]
    Config {
        /// All mistakes.
        problems: Vec<Problem>,
    },
    /// The listener could not be opened.
    #[error("cannot listen on {address}; choose a free address of this machine")]
    Listen {
        /// As configured.
        address: String,
        /// From the system.
        #[source]
        source: io::Error,
    },
    /// A file of certificates, keys or users cannot be used.
    #[error("cannot use {}", path.display())]
    Security {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: crate::security::FileFault,
    },
    /// The logs could not be opened, flushed or closed.
    #[error("cannot use the logs in {}", path.display())]
    Logs {
        /// The data directory.
        path: PathBuf,
        /// What the log says.
        #[source]
        source: Box<broker_log::Error>,
    },
    /// A metadata file could not be read or written.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// `read` or `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// From the system.
        #[source]
        source: io::Error,
    },
    /// A metadata file is not what this version writes, or is damaged.
    #[error(
        "{} is not usable: {reason}; restore it from a copy, or start on an empty directory",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        reason: String,
    },
    /// Something went wrong that should not be possible; the logs are as after a kill.
    #[error(
        "{operation} failed inside the broker; start it again, which recovers the logs, and report it"
    )]
    Internal {
        /// What it was doing.
        operation: &'static str,
    },
    /// The data directory belongs to a broker with another id.
    #[error("{} belongs to node {stored}, not to node {configured}; correct node_id", path.display())]
    OtherNode {
        /// The file that says so.
        path: PathBuf,
        /// The id in the file.
        stored: i32,
        /// The id in the configuration.
        configured: i32,
    },
    /// The directory has records of a partition that the metadata does not know.
    #[error(
        "{} holds records of {partition}, which {} does not know; restore that file from a copy, or move \
         the directory of the partition away", path.display(), crate::metadata_store::FILE_NAME
    )]
    UnknownPartition {
        /// The data directory.
        path: PathBuf,
        /// The partition.
        partition: TopicPartition,
    },
    /// The process may open too few files.
    #[error(
        "the limit of {limit} open files is too low, {needed} are the least; raise it (LimitNOFILE, ulimit -n)"
    )]
    Descriptors {
        /// What the system allows.
        limit: u64,
        /// What is needed at least.
        needed: u64,
    },
    /// All partitions have failed.
    #[error(
        "every partition in {} is off line after failures of the disk ({partitions}); look at the disk, then start the \
         broker again, which recovers the logs", path.display()
    )]
    AllOffline {
        /// The data directory.
        path: PathBuf,
        /// How many there are.
        partitions: usize,
    },
    /// A topic that should be made is there already.
    #[error("topic {topic} exists already")]
    TopicExists {
        /// Its name.
        topic: String,
    },
    /// A topic that should be changed is not there.
    #[error("there is no topic {topic}")]
    NoSuchTopic {
        /// Its name.
        topic: String,
    },
}

impl Error {
    pub(crate) fn logs(path: &Path, source: broker_log::Error) -> Self {
        Self::Logs {
            path: path.to_owned(),
            source: Box::new(source),
        }
    }

    /// What an operator can expect of trying again.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Config { .. } | Self::OtherNode { .. } | Self::Security { .. } => Kind::Caller,
            Self::TopicExists { .. } | Self::NoSuchTopic { .. } => Kind::Caller,
            Self::Descriptors { .. } => Kind::Caller,
            Self::Listen { .. } => Kind::Retriable,
            Self::Logs { source, .. } => match source.kind() {
                broker_log::ErrorKind::Retriable => Kind::Retriable,
                broker_log::ErrorKind::Fatal => Kind::Fatal,
                broker_log::ErrorKind::Caller => Kind::Caller,
            },
            Self::AllOffline { .. } | Self::Internal { .. } => Kind::Fatal,
            Self::File { .. } | Self::Damaged { .. } | Self::UnknownPartition { .. } => Kind::Fatal,
        }
    }
}

/// Classes of [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// May succeed later without a change.
    Retriable,
    /// Someone must look at the disk or the files.
    Fatal,
    /// The configuration or the request is at fault.
    Caller,
}

fn join(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}
