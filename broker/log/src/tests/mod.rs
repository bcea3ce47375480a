//! Tests that need a directory: appends and reads, recovery, the directory, a model.

mod compaction;
mod damage;
mod dir;
mod flush_policy;
mod log;
mod model;
mod recovery;
mod retention;
mod snapshots;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use broker_protocol::TopicName;
use broker_protocol::record::{BatchBuilder, Compression, RecordBatch, batches};
use bytes::Bytes;
use tempfile::TempDir;

use crate::disk::faulty::FaultyDisk;
use crate::{
    LogConfig, LogDir, LogDirConfig, Opened, PartitionLog, PartitionReader, ReadLimits,
    RecoveryReport, Result, TopicPartition,
};

pub(crate) const NO_LIMIT: ReadLimits = ReadLimits {
    max_bytes: usize::MAX,
    min_one_batch: true,
    up_to_offset: i64::MAX,
};

pub(crate) fn orders() -> TopicPartition {
    TopicPartition::new(TopicName::new("my-orders").unwrap(), 3)
}

/// A batch of records with these timestamps and values of `value_len` bytes.
pub(crate) fn batch_at(
    compression: Compression,
    timestamps: &[i64],
    value_len: usize,
) -> RecordBatch {
    let mut builder = BatchBuilder::new(compression);
    for (i, timestamp) in timestamps.iter().enumerate() {
        let value = vec![b'a' + u8::try_from(i % 26).unwrap(); value_len];
        builder
            .push(*timestamp, Some(b"key"), Some(&value), &[("h", None)])
            .unwrap();
    }
    RecordBatch::parse(builder.build().unwrap()).unwrap()
}

/// A batch of `records` records of about 100 bytes.
pub(crate) fn batch(records: usize) -> RecordBatch {
    batch_at(Compression::None, &vec![1_000; records], 100)
}

pub(crate) fn sequenced(
    producer_id: i64,
    epoch: i16,
    sequence: i32,
    records: usize,
) -> RecordBatch {
    let mut builder =
        BatchBuilder::new(Compression::None).with_producer(producer_id, epoch, sequence);
    for _ in 0..records {
        builder.push(1_000, None, Some(b"value"), &[]).unwrap();
    }
    RecordBatch::parse(builder.build().unwrap()).unwrap()
}

/// A log directory on a disk that forgets and fails, with one partition.
pub(crate) struct Fixture {
    pub(crate) root: TempDir,
    pub(crate) disk: FaultyDisk,
    pub(crate) config: LogConfig,
    /// Dropped last among the handles: it holds the lock.
    pub(crate) opened: Option<Opened>,
}

impl Fixture {
    pub(crate) fn new(config: LogConfig) -> Self {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let mut fixture = Self {
            root,
            disk,
            config,
            opened: None,
        };
        fixture.open();
        fixture
    }

    pub(crate) fn small_segments() -> Self {
        Self::new(LogConfig {
            segment_bytes: 4_000,
            index_interval_bytes: 500,
            ..LogConfig::default()
        })
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.root.path().join("logs")
    }

    pub(crate) fn partition_dir(&self) -> PathBuf {
        self.dir().join(orders().directory_name())
    }

    pub(crate) fn open(&mut self) -> &mut Opened {
        let config = LogDirConfig {
            log: self.config.clone(),
            max_open_files: 5,
            disk: Arc::new(self.disk.clone()),
        };
        self.opened = None;
        self.opened
            .insert(LogDir::open(self.dir(), config).unwrap())
    }

    pub(crate) fn log_dir(&self) -> &LogDir {
        &self.opened.as_ref().unwrap().dir
    }

    pub(crate) fn create(&self) -> PartitionLog {
        self.log_dir()
            .create_partition(orders(), None, self.config.clone())
            .unwrap()
    }

    /// Opens again and takes the one partition.
    pub(crate) fn reopen(&mut self) -> (PartitionLog, RecoveryReport) {
        let opened = self.open();
        assert!(opened.failed.is_empty(), "{:?}", opened.failed);
        opened.partitions.pop().expect("one partition")
    }

    /// Drops everything as a killed process does, and opens again. The log must have been dropped.
    pub(crate) fn kill_and_reopen(&mut self) -> (PartitionLog, RecoveryReport) {
        self.opened = None;
        self.reopen()
    }

    pub(crate) fn shutdown_and_reopen(
        &mut self,
        log: PartitionLog,
    ) -> (PartitionLog, RecoveryReport) {
        self.log_dir().shutdown(vec![log], -1).unwrap();
        self.reopen()
    }
}

/// Base offset and bytes of every batch from `offset` to the log end.
pub(crate) fn read_all(reader: &PartitionReader, offset: i64) -> Result<Vec<(i64, Bytes)>> {
    let mut position = offset;
    let mut all = Vec::new();
    loop {
        let slice = reader.slice(position, NO_LIMIT)?;
        if slice.is_empty() {
            return Ok(all);
        }
        for batch in batches(slice.read()?) {
            let batch = batch.unwrap();
            batch.check_crc().unwrap();
            all.push((batch.header().base_offset, batch.bytes().clone()));
        }
        assert!(slice.end_offset() > position);
        position = slice.end_offset();
    }
}

pub(crate) fn base_offsets(reader: &PartitionReader, offset: i64) -> Vec<i64> {
    read_all(reader, offset)
        .unwrap()
        .into_iter()
        .map(|(base_offset, _)| base_offset)
        .collect()
}

/// The files with this suffix, sorted.
pub(crate) fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    files.sort();
    files
}
