//! Partitions on disk: segments, indexes, recovery. Synchronous; Apache Kafka's on-disk format.
//!
//! ```text
//!            LogDir::open ──► PartitionLog (one owner, &mut)      PartitionReader (any number, Clone)
//!                                  │ append(batches)                 │ slice / read(offset)
//!                                  ▼                                 ▼
//!      Rejected ◄── judge ──► stamp header copy ──► pwritev ──► segment.log ◄── pread / sendfile
//!                                                                 │ .index .timeindex (derived)
//!                                  flush ──► fsync ──► recovery point ──► checkpoint files
//! ```
//! - [`LogDir`]: the directory, its lock, checkpoints, clean shutdown; makes and deletes partitions.
//! - [`PartitionLog`]: append, truncate, advance the log start, roll, flush.
//! - [`PartitionReader`]: whole batches from an offset, offsets by timestamp, ends of leader epochs.
//! - [`RecoveryReport`]: what an open after a crash cut off, and why.
//! - [`disk`]: the only door to the file system.
//!
//! Batches go in and out as the bytes they came as; only base offset and leader epoch (and, for log append time, the
//! timestamp) are stamped. Nothing here waits, spawns (but for [`LogDir::open`]), or reads a clock.

mod append;
mod checkpoint;
mod compaction;
mod config;
pub mod disk;
mod error;
mod file_pool;
mod flush_policy;
mod index;
mod leader_epochs;
mod log_dir;
mod partition_log;
mod producer_state;
mod reader;
mod recovery;
mod retention;
mod scan;
mod segment;
mod snapshots;
mod topic_partition;

pub use append::Appended;
pub use broker_protocol::record::TimestampType;
pub use compaction::{CompactedSegment, Compaction, CompactionLimits, CompactionReport, Dirtiness};
pub use config::{CompactionConfig, LogConfig, LogDirConfig, Visibility};
pub use error::{Error, ErrorKind, Rejected, Result};
pub use leader_epochs::EpochEnd;
pub use log_dir::{LogDir, Opened};
pub use partition_log::{Flush, Flushed, PartitionLog};
pub use producer_state::ActiveProducer;
pub use reader::{LogSlice, Offsets, PartitionReader, ReadLimits, TimestampedOffset};
pub use recovery::{Cut, RecoveryReport};
pub use retention::{DeletedSegment, Expiry};
pub use topic_partition::TopicPartition;

#[cfg(test)]
mod tests;
