//! What can go wrong, by what the caller can do about it.

use std::io;
use std::path::{Path, PathBuf};

use broker_protocol::{ErrorCode, TopicName, record};

/// The result of an operation on a log.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Who has to act on an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The same call may succeed later without anybody repairing the log (space freed, a lock released).
    Retriable,
    /// The log or the disk is damaged, or the log is off line until it is opened again.
    Fatal,
    /// The request was wrong.
    Caller,
}

/// An operation on a log or log directory failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The offset asked for is not in the log.
    #[error(
        "offset {offset} of {topic}-{partition} is outside [{log_start_offset}, {log_end_offset}]"
    )]
    OffsetOutOfRange {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
        /// What was asked for.
        offset: i64,
        /// First offset in the log.
        log_start_offset: i64,
        /// Offset the next record gets (for a change of the log start: the high watermark).
        log_end_offset: i64,
    },
    /// A batch may not be appended; nothing was written.
    #[error("cannot append to {topic}-{partition}")]
    Rejected {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
        /// Why.
        source: Rejected,
    },
    /// Bytes in the log are not a record batch.
    #[error(
        "{topic}-{partition} is damaged near offset {offset}, byte {position} of {}: {reason}",
        path.display()
    )]
    Corrupt {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
        /// The offset that was looked for, or the first one of the damaged place where known.
        offset: i64,
        /// The segment.
        path: PathBuf,
        /// Bytes from its start.
        position: u64,
        /// What is wrong there.
        reason: String,
    },
    /// The file system (or a quota on it) is full. Reads and deletes still work.
    #[error("no space left: cannot {operation} {}", path.display())]
    DiskFull {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Input or output failed for another reason than a full disk.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// An earlier failure (of a sync, or of taking back a failed write) left it open what is on disk. Reads of what
    /// was published still work; writes do until the log has been opened again, which recovers it.
    #[error(
        "{topic}-{partition} takes no writes since an I/O failure; restart the broker to recover it"
    )]
    Offline {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
    },
    /// The partition has been deleted.
    #[error("{topic}-{partition} has been deleted")]
    Deleted {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
    },
    /// Another process holds the log directory.
    #[error("log directory {} is in use by another broker", path.display())]
    InUse {
        /// The log directory.
        path: PathBuf,
    },
    /// The partition's directory is there already.
    #[error("{topic}-{partition} exists already in {}", path.display())]
    PartitionExists {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
        /// The log directory.
        path: PathBuf,
    },
    /// A small text file (checkpoint, metadata) is not in the format it must have.
    #[error("{} is malformed at line {line}: {reason}", path.display())]
    MalformedFile {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// A clean shutdown was asked for while a partition was still open elsewhere, or had failed to open; what was
    /// given has been flushed, the marker has not been written.
    #[error("no clean shutdown: {topic}-{partition} was not handed back whole")]
    NotClosed {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: i32,
    },
}

impl Error {
    /// Wraps an I/O error, telling a full disk from the rest.
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        if matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ) {
            Self::DiskFull {
                operation,
                path,
                source,
            }
        } else {
            Self::Io {
                operation,
                path,
                source,
            }
        }
    }

    /// True if a file was missing.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Who has to act.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::DiskFull { .. } | Self::InUse { .. } => ErrorKind::Retriable,
            Self::OffsetOutOfRange { .. }
            | Self::Rejected { .. }
            | Self::Deleted { .. }
            | Self::PartitionExists { .. }
            | Self::NotClosed { .. } => ErrorKind::Caller,
            Self::Corrupt { .. }
            | Self::Io { .. }
            | Self::Offline { .. }
            | Self::MalformedFile { .. } => ErrorKind::Fatal,
        }
    }

    /// The code a client gets.
    #[must_use]
    pub fn error_code(&self) -> ErrorCode {
        match self {
            Self::OffsetOutOfRange { .. } => ErrorCode::OffsetOutOfRange,
            Self::Rejected { source, .. } => source.error_code(),
            Self::Deleted { .. } => ErrorCode::UnknownTopicOrPartition,
            Self::PartitionExists { .. } => ErrorCode::TopicAlreadyExists,
            Self::Corrupt { .. }
            | Self::DiskFull { .. }
            | Self::Io { .. }
            | Self::Offline { .. }
            | Self::InUse { .. }
            | Self::MalformedFile { .. }
            | Self::NotClosed { .. } => ErrorCode::KafkaStorageError,
        }
    }
}

/// Why a batch was not appended. The log is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected {
    /// The checksum does not fit the bytes.
    #[error("the batch fails its checksum")]
    BadCrc {
        /// The reader's finding.
        source: record::Error,
    },
    /// The header contradicts itself.
    #[error("the batch is malformed: {reason}")]
    Malformed {
        /// What is wrong.
        reason: &'static str,
    },
    /// Not a record batch of version 2.
    #[error("message format {magic} is not supported; the client must write format 2")]
    UnsupportedMagic {
        /// What the batch says.
        magic: i8,
    },
    /// Larger than the partition takes.
    #[error("a batch of {size} bytes is above the limit of {limit} (max.message.bytes)")]
    TooLarge {
        /// Bytes of the batch.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A producer sent a control batch.
    #[error("producers may not write control batches")]
    ControlBatch,
    /// A producer sent a batch that claims to have the broker's time.
    #[error("producers may not set the timestamp type to log append time")]
    TimestampType,
    /// A replicated batch does not continue the log.
    #[error("the batch begins at offset {base_offset}, before the log's end {log_end_offset}")]
    OffsetBehindLogEnd {
        /// The batch's first offset.
        base_offset: i64,
        /// Where the log ends.
        log_end_offset: i64,
    },
    /// The log cannot hold offsets this high.
    #[error("offset {base_offset} plus the batch's records exceed the largest offset")]
    OffsetOverflow {
        /// The first offset the batch would get.
        base_offset: i64,
    },
    /// An idempotent producer's batch does not follow its last one.
    #[error(
        "out of order sequence from producer {producer_id} epoch {producer_epoch}: \
         expected {expected}, got {got}"
    )]
    OutOfOrderSequence {
        /// The producer.
        producer_id: i64,
        /// Its epoch.
        producer_epoch: i16,
        /// Sequence that would continue.
        expected: i32,
        /// Sequence sent.
        got: i32,
    },
    /// The producer has been replaced by one with the same id and a newer epoch.
    #[error("producer {producer_id} epoch {producer_epoch} is fenced by epoch {current_epoch}")]
    FencedProducer {
        /// The producer.
        producer_id: i64,
        /// The epoch sent.
        producer_epoch: i16,
        /// The newest epoch seen in this partition.
        current_epoch: i16,
    },
}

impl Rejected {
    /// The code a client gets.
    #[must_use]
    pub fn error_code(&self) -> ErrorCode {
        match self {
            Self::BadCrc { .. } => ErrorCode::CorruptMessage,
            Self::Malformed { .. } | Self::ControlBatch => ErrorCode::InvalidRecord,
            Self::UnsupportedMagic { .. } => ErrorCode::UnsupportedForMessageFormat,
            Self::TooLarge { .. } => ErrorCode::MessageTooLarge,
            Self::TimestampType => ErrorCode::InvalidTimestamp,
            Self::OffsetBehindLogEnd { .. } | Self::OffsetOverflow { .. } => {
                ErrorCode::InvalidRequest
            }
            Self::OutOfOrderSequence { .. } => ErrorCode::OutOfOrderSequenceNumber,
            Self::FencedProducer { .. } => ErrorCode::InvalidProducerEpoch,
        }
    }
}
