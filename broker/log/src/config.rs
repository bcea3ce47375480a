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
    /// How far a record's time may lie behind the broker's clock, in milliseconds
    /// (`message.timestamp.before.max.ms`, no limit). The server refuses what lies further.
    pub timestamp_before_max_ms: i64,
    /// How far it may lie ahead (`message.timestamp.after.max.ms`, 1 hour). Retention does not believe what lies
    /// further ahead than this, or than a day.
    pub timestamp_after_max_ms: i64,
    /// Whether old segments go by age and size (`cleanup.policy` has `delete`).
    pub deletes: bool,
    /// Whether only the last record of each key stays (`cleanup.policy` has `compact`).
    pub compacted: bool,
    /// Age above which a segment goes, in milliseconds (`retention.ms`, 7 days); `None` for never.
    pub retention_ms: Option<i64>,
    /// Size of the partition above which its oldest segments go, in bytes (`retention.bytes`); `None` for no limit.
    pub retention_bytes: Option<u64>,
    /// How compaction works, where `compacted`.
    pub compaction: CompactionConfig,
    /// Unflushed records at which an append owes a flush (`flush.messages`, no limit).
    pub flush_messages: i64,
    /// Age of the oldest unflushed record at which a flush is due, in milliseconds (`flush.ms`, no limit).
    pub flush_ms: i64,
    /// When consumers see a record (`logferry.visibility`).
    pub visibility: Visibility,
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
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            deletes: true,
            retention_ms: Some(7 * 24 * 3_600_000),
            retention_bytes: None,
            compaction: CompactionConfig::default(),
            flush_messages: i64::MAX,
            flush_ms: i64::MAX,
            visibility: Visibility::Committed,
            producer_id_expiration_ms: 24 * 3_600_000,
            compacted: false,
            max_decompressed_bytes: 128 << 20,
        }
    }
}

/// When consumers see a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Visibility {
    /// Once all in-sync replicas have it, flushed or not: Kafka's rule.
    #[default]
    Committed,
    /// Once it has been flushed too: the rule of the paper that introduced Kafka. What a consumer has seen survives
    /// a crash of the machine.
    Flushed,
}

/// Settings of compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionConfig {
    /// Part of the log that is not compacted yet above which compacting is worth while, in millionths
    /// (`min.cleanable.dirty.ratio`, 0.5).
    pub min_dirty_millionths: u32,
    /// Time that a record stays uncompacted at least, in milliseconds (`min.compaction.lag.ms`, 0).
    pub min_lag_ms: i64,
    /// Time after which a record must be compacted, in milliseconds (`max.compaction.lag.ms`, no limit).
    pub max_lag_ms: i64,
    /// Time that tombstones stay after their first compaction, in milliseconds (`delete.retention.ms`, 1 day).
    pub delete_retention_ms: i64,
}

impl Default for CompactionConfig {
    fn default() -> Self {
        Self {
            min_dirty_millionths: 500_000,
            min_lag_ms: 0,
            max_lag_ms: i64::MAX,
            delete_retention_ms: 24 * 3_600_000,
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
