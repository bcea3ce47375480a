//! What an operator may choose about logs.

use std::sync::Arc;

use broker_protocol::record::TimestampType;

use crate::disk::{Disk, RealDisk};

/// Settings of one partition. Changing them affects later appends only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// A segment is closed before it would grow beyond this (`segment.bytes`, 1 GiB; at most 2 GiB - 1). A single
    /// larger batch gets a segment to itself.
    pub segment_bytes: u64,
    /// A segment is closed when its first batch is older than this, in milliseconds (`segment.ms`, 7 days).
    pub segment_ms: i64,
    /// Bytes of log between two index entries (`index.interval.bytes`, 4096).
    pub index_interval_bytes: u64,
    /// Largest batch a producer may append, header included, in bytes (`max.message.bytes`, 1 MiB + 12).
    pub max_batch_bytes: usize,
    /// Whose clock counts (`message.timestamp.type`).
    pub timestamp_type: TimestampType,
    /// A producer id that has been idle for so long is forgotten, in milliseconds (`producer.id.expiration.ms`, 1 day).
    pub producer_id_expiration_ms: i64,
    /// Bound on the memory that looking up a timestamp inside one compressed batch may take, in bytes (128 MiB). A
    /// batch above it is answered by its first offset.
    pub max_decompressed_bytes: usize,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 3_600_000,
            index_interval_bytes: 4096,
            max_batch_bytes: (1 << 20) + 12,
            timestamp_type: TimestampType::CreateTime,
            producer_id_expiration_ms: 24 * 3_600_000,
            max_decompressed_bytes: 128 << 20,
        }
    }
}

/// Settings of a log directory.
#[derive(Debug, Clone)]
pub struct LogDirConfig {
    /// For the partitions found when the directory is opened; the owner may set others with
    /// [`crate::PartitionLog::set_config`].
    pub log: LogConfig,
    /// Files kept open by all partitions together; beyond it the least recently used is closed. By default half of
    /// what the process may open, at most 65,536.
    pub max_open_files: usize,
    /// The file system.
    pub disk: Arc<dyn Disk>,
}

impl Default for LogDirConfig {
    fn default() -> Self {
        Self {
            log: LogConfig::default(),
            max_open_files: default_max_open_files(),
            disk: Arc::new(RealDisk),
        }
    }
}

fn default_max_open_files() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit
        .map_or(65_536, |limit| usize::try_from(limit / 2).unwrap_or(65_536))
        .clamp(16, 65_536)
}
