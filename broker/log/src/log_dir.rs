//! A directory of partitions, as a Kafka broker lays it out.
//!
//! ```text
//! <log dir>/
//!   .lock                                one process at a time
//!   .kafka_cleanshutdown                 only between a clean shutdown and the next start
//!   recovery-point-offset-checkpoint     log-start-offset-checkpoint     cleaner-offset-checkpoint
//!   orders-3/                            00000000000000000000.{log,index,timeindex} …
//!                                        leader-epoch-checkpoint  partition.metadata
//!   orders-4.<uuid>-delete/              being removed
//! ```
//! The directory hands every [`PartitionLog`] to its owner and takes all of them back for a clean shutdown. It does
//! not schedule anything: the server calls [`LogDir::write_checkpoints`] from time to time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::TryLockError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use broker_protocol::TopicId;
use tracing::{info, warn};
use uuid::Uuid;

use crate::checkpoint::{
    self, CLEAN_SHUTDOWN, CLEANED_TO, LOG_STARTS, Offsets, PARTITION_METADATA, RECOVERY_POINTS,
};
use crate::config::{LogConfig, LogDirConfig};
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{Error, Result};
use crate::file_pool::{FilePool, remove_if_there};
use crate::partition_log::PartitionLog;
use crate::recovery::{OpenPartition, RecoveryReport};
use crate::topic_partition::TopicPartition;

/// Recovery points and log starts of all partitions of a directory, and their two files.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    points: Mutex<Points>,
    /// Held while a file is replaced, so that an older state never replaces a newer one.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Points {
    recovery: Offsets,
    /// Recovery points as the file has them.
    written_recovery: Offsets,
    /// Only where the log start is inside a segment.
    log_start: Offsets,
    /// Only of partitions that have been compacted.
    cleaned: Offsets,
}

impl Checkpoints {
    fn points(&self) -> std::sync::MutexGuard<'_, Points> {
        self.points.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a partition's points for the next write.
    pub(crate) fn note(&self, id: &TopicPartition, recovery_point: i64, log_start: Option<i64>) {
        let mut points = self.points();
        points.recovery.insert(id.clone(), recovery_point);
        match log_start {
            Some(log_start) => points.log_start.insert(id.clone(), log_start),
            None => points.log_start.remove(id),
        };
    }

    fn forget(&self, id: &TopicPartition) {
        let mut points = self.points();
        points.recovery.remove(id);
        points.written_recovery.remove(id);
        points.log_start.remove(id);
        points.cleaned.remove(id);
    }

    /// How far a partition has been compacted.
    pub(crate) fn cleaned_to(&self, id: &TopicPartition) -> i64 {
        self.points().cleaned.get(id).copied().unwrap_or(0)
    }

    /// Notes how far a partition has been compacted, durably.
    pub(crate) fn write_cleaned(&self, id: &TopicPartition, cleaned_to: i64) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.points().cleaned.insert(id.clone(), cleaned_to);
        let offsets = self.points().cleaned.clone();
        checkpoint::write_offsets(&*self.disk, &self.dir.join(CLEANED_TO), &offsets)
    }

    /// The recovery point that a crash would find, or a lower one.
    pub(crate) fn written_recovery_point(&self, id: &TopicPartition) -> i64 {
        self.points().written_recovery.get(id).copied().unwrap_or(0)
    }

    pub(crate) fn write_recovery_points(&self) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let offsets = self.points().recovery.clone();
        checkpoint::write_offsets(&*self.disk, &self.dir.join(RECOVERY_POINTS), &offsets)?;
        self.points().written_recovery = offsets;
        Ok(())
    }

    pub(crate) fn write_log_starts(&self) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let offsets = self.points().log_start.clone();
        checkpoint::write_offsets(&*self.disk, &self.dir.join(LOG_STARTS), &offsets)
    }
}

/// An opened log directory. Shareable; its lock is released when it is dropped or shut down.
#[derive(Debug)]
pub struct LogDir {
    path: PathBuf,
    config: LogDirConfig,
    pool: Arc<FilePool>,
    checkpoints: Arc<Checkpoints>,
    /// Partitions that exist; with false those that failed to open.
    partitions: Mutex<BTreeMap<TopicPartition, bool>>,
    /// Locked as long as it is open.
    lock: Arc<dyn DiskFile>,
}

/// What [`LogDir::open`] found.
#[derive(Debug)]
pub struct Opened {
    /// The directory.
    pub dir: LogDir,
    /// Its partitions, by name, for their owners.
    pub partitions: Vec<(PartitionLog, RecoveryReport)>,
    /// Partitions that cannot be opened. They are left alone; the directory will not count as cleanly shut down.
    pub failed: Vec<(TopicPartition, Error)>,
    /// True if it had been shut down cleanly.
    pub clean: bool,
    /// When the checkpoints were written last, in milliseconds since 1970 by the file system's clock; `None` for a
    /// new directory. A time at which a broker was alive, for who wants to know how far the clock has moved since.
    pub last_written_ms: Option<i64>,
    /// What an operator should know: checkpoints that could not be read, directories that are no partitions.
    pub warnings: Vec<String>,
}

impl LogDir {
    /// Opens a directory, making it if it is missing, and every partition in it, on as many threads as there are
    /// processors. What was being deleted is removed. After anything but a clean shutdown the partitions are recovered
    /// from their recovery points on.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process (or this one) has it open; [`Error::Io`], [`Error::DiskFull`] for the directory
    /// itself. Errors of single partitions are in [`Opened::failed`].
    pub fn open(path: impl Into<PathBuf>, config: LogDirConfig) -> Result<Opened> {
        let path = path.into();
        let disk = Arc::clone(&config.disk);
        create_dirs(&*disk, &path)?;
        let lock = lock(&*disk, &path)?;
        let mut warnings = Vec::new();
        let recovery = read_or_warn(&*disk, &path.join(RECOVERY_POINTS), &mut warnings)?;
        let last_written = disk
            .info(&path.join(RECOVERY_POINTS))
            .map_err(|source| Error::io("look at", &path, source))?;
        let log_start = read_or_warn(&*disk, &path.join(LOG_STARTS), &mut warnings)?;
        let cleaned = read_or_warn(&*disk, &path.join(CLEANED_TO), &mut warnings)?;
        let clean = take_marker(&*disk, &path)?;
        let ids = list_partitions(&*disk, &path, &mut warnings)?;
        let dir = Self {
            pool: FilePool::new(Arc::clone(&disk), config.max_open_files),
            checkpoints: Arc::new(Checkpoints {
                disk,
                dir: path.clone(),
                points: Mutex::new(Points {
                    written_recovery: recovery.clone(),
                    recovery,
                    log_start,
                    cleaned,
                }),
                writing: Mutex::new(()),
            }),
            path,
            config,
            partitions: Mutex::default(),
            lock,
        };
        let mut opened = Opened {
            dir,
            partitions: Vec::new(),
            failed: Vec::new(),
            clean,
            last_written_ms: last_written.map(|file| file.modified_ms),
            warnings,
        };
        opened.open_partitions(&ids);
        opened.dir.keep_points_of(&ids);
        opened.dir.write_checkpoints()?;
        Ok(opened)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes the broker may still write there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn free_bytes(&self) -> Result<u64> {
        let free = self.config.disk.free_bytes(&self.path);
        free.map_err(|source| Error::io("measure", &self.path, source))
    }

    fn partitions(&self) -> std::sync::MutexGuard<'_, BTreeMap<TopicPartition, bool>> {
        self.partitions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn partition_dir(&self, id: &TopicPartition) -> PathBuf {
        self.path.join(id.directory_name())
    }

    fn io(&self, operation: &'static str, source: io::Error) -> Error {
        Error::io(operation, &self.path, source)
    }

    fn open_partition(
        &self,
        id: &TopicPartition,
        config: LogConfig,
        clean: bool,
    ) -> Result<(PartitionLog, RecoveryReport)> {
        let points = self.checkpoints.points();
        let recovery_point = points.recovery.get(id).copied().unwrap_or(0);
        let log_start = points.log_start.get(id).copied().unwrap_or(0);
        drop(points);
        OpenPartition {
            id: id.clone(),
            dir: self.partition_dir(id),
            pool: Arc::clone(&self.pool),
            config,
            checkpoints: Arc::clone(&self.checkpoints),
            clean,
            recovery_point,
            log_start,
        }
        .open()
    }

    /// Makes a partition, durably.
    ///
    /// # Errors
    /// [`Error::PartitionExists`], [`Error::DiskFull`], [`Error::Io`]. After the latter two there is no such partition.
    pub fn create_partition(
        &self,
        id: TopicPartition,
        topic_id: Option<TopicId>,
        config: LogConfig,
    ) -> Result<PartitionLog> {
        let disk = &*self.config.disk;
        let dir = self.partition_dir(&id);
        match disk.create_dir(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let TopicPartition { topic, partition } = id;
                return Err(Error::PartitionExists {
                    topic,
                    partition,
                    path: self.path.clone(),
                });
            }
            Err(error) => return Err(Error::io("create", &dir, error)),
        }
        self.checkpoints.forget(&id);
        let log = self
            .fill_partition(&id, topic_id, config)
            .inspect_err(|_| {
                self.checkpoints.forget(&id);
                if let Err(error) = disk.remove_dir_all(&dir) {
                    warn!(
                        path = %dir.display(), error = &error as &dyn std::error::Error,
                        "cannot remove a partly made partition"
                    );
                }
            })?;
        self.partitions().insert(id, true);
        Ok(log)
    }

    /// Makes the files of a partition whose directory has just been made.
    fn fill_partition(
        &self,
        id: &TopicPartition,
        topic_id: Option<TopicId>,
        config: LogConfig,
    ) -> Result<PartitionLog> {
        let disk = &*self.config.disk;
        if let Some(topic_id) = topic_id {
            let path = self.partition_dir(id).join(PARTITION_METADATA);
            checkpoint::write_topic_id(disk, &path, topic_id)?;
        }
        let (log, _) = self.open_partition(id, config, true)?;
        disk.sync_dir(&self.path)
            .map_err(|source| self.io("sync", source))?;
        Ok(log)
    }

    /// Deletes a partition: renames its directory, durably, and removes it. Readers get [`Error::Deleted`] from now on.
    ///
    /// # Errors
    /// [`Error::Io`]. The partition is gone for this process and for the next start in any case but one: when the
    /// rename itself failed it is there again after a restart.
    #[expect(clippy::needless_pass_by_value, reason = "the owner gives the log up")]
    pub fn delete_partition(&self, log: PartitionLog) -> Result<()> {
        let disk = &*self.config.disk;
        log.shared.publish(|view| view.deleted = true);
        let doomed = self
            .path
            .join(log.id().deleted_directory_name(Uuid::new_v4()));
        disk.rename(log.dir(), &doomed)
            .map_err(|source| Error::io("rename", log.dir(), source))?;
        self.checkpoints.forget(log.id());
        self.partitions().remove(log.id());
        disk.sync_dir(&self.path)
            .map_err(|source| self.io("sync", source))?;
        self.write_checkpoints()?;
        disk.remove_dir_all(&doomed)
            .map_err(|source| Error::io("remove", &doomed, source))
    }

    /// Writes recovery points and log starts. After a crash only what lies beyond the recovery points written last is
    /// scanned, so call it after flushes, every minute or so.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`]; the files are as before then.
    pub fn write_checkpoints(&self) -> Result<()> {
        self.checkpoints.write_recovery_points()?;
        self.checkpoints.write_log_starts()
    }

    /// Shuts down cleanly: flushes every partition, writes the checkpoints and then, only if everything succeeded and
    /// every partition of the directory was given, the marker that spares the next start the recovery (KAFKA-13773). The
    /// lock is released in any case.
    ///
    /// # Errors
    /// The first failure; [`Error::NotClosed`] if a partition is missing or had failed to open.
    pub fn shutdown(&self, logs: Vec<PartitionLog>, broker_epoch: i64) -> Result<()> {
        let result = self.close_all(logs, broker_epoch);
        if let Err(error) = self.lock.file().unlock() {
            warn!(path = %self.path.display(), error = &error as &dyn std::error::Error, "cannot unlock");
        }
        result
    }

    fn close_all(&self, logs: Vec<PartitionLog>, broker_epoch: i64) -> Result<()> {
        let mut missing: BTreeSet<TopicPartition> = self.partitions().keys().cloned().collect();
        let mut first_error = None;
        for mut log in logs {
            match log.close() {
                Ok(()) => {
                    missing.remove(log.id());
                }
                Err(error) => {
                    warn!(
                        topic = %log.id().topic, partition = log.id().partition,
                        error = &error as &dyn std::error::Error, "cannot close a log cleanly"
                    );
                    first_error.get_or_insert(error);
                }
            }
        }
        self.write_checkpoints()?;
        if let Some(error) = first_error {
            return Err(error);
        }
        if let Some(TopicPartition { topic, partition }) = missing.pop_first() {
            return Err(Error::NotClosed { topic, partition });
        }
        let marker = self.path.join(CLEAN_SHUTDOWN);
        checkpoint::write_clean_shutdown(&*self.config.disk, &marker, broker_epoch)?;
        info!(path = %self.path.display(), "log directory shut down cleanly");
        Ok(())
    }

    /// Forgets checkpointed points of partitions that are not there any more.
    fn keep_points_of(&self, ids: &[TopicPartition]) {
        let ids: BTreeSet<&TopicPartition> = ids.iter().collect();
        let mut points = self.checkpoints.points();
        points.recovery.retain(|id, _| ids.contains(id));
        points.log_start.retain(|id, _| ids.contains(id));
        points.cleaned.retain(|id, _| ids.contains(id));
    }
}

impl Opened {
    fn open_partitions(&mut self, ids: &[TopicPartition]) {
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::with_capacity(ids.len()));
        let threads = thread::available_parallelism()
            .map_or(1, usize::from)
            .min(ids.len());
        let (dir, clean) = (&self.dir, self.clean);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = dir.open_partition(id, dir.config.log.clone(), clean);
                        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                        results.push((id.clone(), result));
                    }
                });
            }
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (id, result) in results {
            self.dir.partitions().insert(id.clone(), result.is_ok());
            match result {
                Ok(opened) => self.partitions.push(opened),
                Err(error) => self.failed.push((id, error)),
            }
        }
    }
}

/// Makes the directory and its parents.
fn create_dirs(disk: &dyn Disk, path: &Path) -> Result<()> {
    if disk
        .info(path)
        .map_err(|source| Error::io("look at", path, source))?
        .is_some()
    {
        return Ok(());
    }
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        create_dirs(disk, parent)?;
    }
    match disk.create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::io("create", path, error));
        }
        Ok(()) | Err(_) => {}
    }
    match path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        Some(parent) => disk
            .sync_dir(parent)
            .map_err(|source| Error::io("sync", parent, source)),
        None => Ok(()),
    }
}

fn lock(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>> {
    let lock_path = path.join(".lock");
    let io = |source| Error::io("lock", &lock_path, source);
    let lock = disk.open(&lock_path, OpenMode::Create).map_err(io)?;
    match lock.file().try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(Error::InUse {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(io(source)),
    }
}

/// Reads a checkpoint. A malformed one counts as empty, which costs time (everything is scanned) or shows deleted
/// records again, but loses nothing.
fn read_or_warn(disk: &dyn Disk, path: &Path, warnings: &mut Vec<String>) -> Result<Offsets> {
    match checkpoint::read_offsets(disk, path) {
        Err(error @ Error::MalformedFile { .. }) => {
            warn!(
                error = &error as &dyn std::error::Error,
                "ignoring a malformed checkpoint"
            );
            warnings.push(format!("{error}; it is ignored"));
            Ok(Offsets::new())
        }
        result => result,
    }
}

/// True if the marker of a clean shutdown was there; it is gone, durably, when this returns.
fn take_marker(disk: &dyn Disk, path: &Path) -> Result<bool> {
    let marker = path.join(CLEAN_SHUTDOWN);
    let found = disk
        .info(&marker)
        .map_err(|source| Error::io("look at", &marker, source))?;
    if found.is_none() {
        return Ok(false);
    }
    remove_if_there(disk, &marker)?;
    disk.sync_dir(path)
        .map_err(|source| Error::io("sync", path, source))?;
    Ok(true)
}

/// The partitions by name; removes what was being deleted.
fn list_partitions(
    disk: &dyn Disk,
    path: &Path,
    warnings: &mut Vec<String>,
) -> Result<Vec<TopicPartition>> {
    let entries = disk
        .list(path)
        .map_err(|source| Error::io("list", path, source))?;
    let mut ids = Vec::new();
    for entry in entries.into_iter().filter(|entry| entry.is_dir) {
        if let Some(id) = TopicPartition::from_directory_name(&entry.name) {
            ids.push(id);
        } else if TopicPartition::is_deleted_directory_name(&entry.name) {
            let doomed = path.join(&entry.name);
            disk.remove_dir_all(&doomed)
                .map_err(|source| Error::io("remove", &doomed, source))?;
        } else if entry.name != "lost+found" {
            warnings.push(format!("{} is no partition; it is ignored", entry.name));
        }
    }
    ids.sort();
    Ok(ids)
}
