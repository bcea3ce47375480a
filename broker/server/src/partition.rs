//! One partition as the broker serves it: its log behind the one lock that serialises writes, a reader that
//! needs no lock, and the fetches that wait for more.
//!
//! ```text
//!  produce ─► with_log ─► PartitionLog::append ─► high watermark ─► wake ─┐
//!                                                                        ▼
//!  fetch ───► reader ◄──────────────────────────────────────── Watch::changed
//! ```
//!
//! The lock is never held across an `.await`. A panic while it is held poisons the partition: it takes no
//! more writes until the broker is restarted, which recovers the log.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use broker_log::{Appended, EpochEnd, PartitionLog, PartitionReader, TopicPartition};
use broker_protocol::{ErrorCode, record::RecordBatch};
use tokio::sync::Notify;

/// Why a partition does not do what a request wants.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unavailable {
    /// Deleted, or the broker is going down.
    #[error("the partition has been closed")]
    Closed,
    /// A panic left the log in doubt.
    #[error(
        "the partition takes no writes since an internal failure; restart the broker to recover it"
    )]
    Poisoned,
    /// The log refused or failed.
    #[error(transparent)]
    Log(#[from] broker_log::Error),
}

impl Unavailable {
    /// The code for the client.
    pub(crate) fn error_code(&self) -> ErrorCode {
        match self {
            Self::Closed => ErrorCode::NotLeaderOrFollower,
            Self::Poisoned => ErrorCode::KafkaStorageError,
            Self::Log(error) => error.error_code(),
        }
    }

    /// The sentence for the client: what happened and, where known, why.
    pub(crate) fn message(&self) -> String {
        let mut text = self.to_string();
        let mut cause = match self {
            Self::Log(error) => std::error::Error::source(error),
            Self::Closed | Self::Poisoned => None,
        };
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

/// A partition that this broker leads.
#[derive(Debug)]
pub(crate) struct Partition {
    id: TopicPartition,
    leader_epoch: i32,
    log: Mutex<Option<PartitionLog>>,
    reader: PartitionReader,
    closed: AtomicBool,
    appended_bytes: AtomicU64,
    waiting: Mutex<Vec<Arc<Notify>>>,
}

impl Partition {
    /// Takes over an open log.
    pub(crate) fn new(log: PartitionLog, leader_epoch: i32) -> Self {
        Self {
            id: log.id().clone(),
            leader_epoch,
            reader: log.reader(),
            log: Mutex::new(Some(log)),
            closed: AtomicBool::new(false),
            appended_bytes: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
        }
    }

    /// Topic and partition.
    pub(crate) fn id(&self) -> &TopicPartition {
        &self.id
    }

    /// The epoch under which this broker leads the partition.
    pub(crate) fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    /// Reads; concurrent with appends.
    pub(crate) fn reader(&self) -> &PartitionReader {
        &self.reader
    }

    /// Compares the epoch a client believes in with the partition's.
    ///
    /// # Errors
    /// Kafka's two codes; −1, for clients that do not know, is always right.
    pub(crate) fn check_leader_epoch(&self, epoch: i32) -> Result<(), ErrorCode> {
        match epoch {
            -1 => Ok(()),
            epoch if epoch < self.leader_epoch => Err(ErrorCode::FencedLeaderEpoch),
            epoch if epoch > self.leader_epoch => Err(ErrorCode::UnknownLeaderEpoch),
            _ => Ok(()),
        }
    }

    /// Where `leader_epoch` ended, by Kafka's rules; −1 and −1 when it lies in the future.
    ///
    /// The log knows epochs with records only. This broker leads under an epoch that may have none yet, and that
    /// began where the log ended.
    pub(crate) fn end_of_leader_epoch(&self, leader_epoch: i32) -> EpochEnd {
        let end_offset = self.reader.offsets().log_end;
        match self.reader.leader_epoch() {
            _ if leader_epoch > self.leader_epoch => EpochEnd {
                leader_epoch: -1,
                end_offset: -1,
            },
            _ if leader_epoch == self.leader_epoch => EpochEnd {
                leader_epoch,
                end_offset,
            },
            Some(latest) if leader_epoch > latest => EpochEnd {
                leader_epoch: latest,
                end_offset,
            },
            _ => self.reader.end_offset_for_leader_epoch(leader_epoch),
        }
    }

    /// Runs `change` on the log, alone. Blocks for as long as another change runs.
    pub(crate) fn with_log<T>(
        &self,
        change: impl FnOnce(&mut PartitionLog) -> Result<T, broker_log::Error>,
    ) -> Result<T, Unavailable> {
        let mut guard = self.log.lock().map_err(|_| Unavailable::Poisoned)?;
        let log = guard.as_mut().ok_or(Unavailable::Closed)?;
        Ok(change(log)?)
    }

    /// Appends one batch and makes it visible: with one replica the high watermark is the log's end.
    ///
    /// Blocks on the page cache only.
    pub(crate) fn append(&self, batch: &RecordBatch, now_ms: i64) -> Result<Appended, Unavailable> {
        let appended = self.with_log(|log| {
            let appended = log.append_one(batch, self.leader_epoch, now_ms)?;
            log.set_high_watermark(log.log_end_offset());
            Ok(appended)
        })?;
        if !appended.duplicate {
            let bytes = batch.bytes().len() as u64;
            self.appended_bytes.fetch_add(bytes, Ordering::Release);
            self.wake();
        }
        Ok(appended)
    }

    /// Bytes appended since the broker started; only differences mean anything.
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.appended_bytes.load(Ordering::Acquire)
    }

    /// Whether the log has been taken out: the topic is deleted.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Takes the log out for deletion or shutdown; later calls find the partition closed. Wakes the waiters.
    pub(crate) fn close(&self) -> Option<PartitionLog> {
        self.closed.store(true, Ordering::Release);
        // A poisoned log is not handed out: dropped as it is, it is recovered at the next start.
        let log = self.log.lock().ok().and_then(|mut guard| guard.take());
        self.wake();
        log
    }

    /// Wakes every waiting fetch.
    fn wake(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for fetch in waiting.iter() {
            fetch.notify_one();
        }
    }
}

/// One fetch's registration with the partitions it waits for; dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct Watch {
    wake: Arc<Notify>,
    partitions: Vec<Arc<Partition>>,
}

impl Watch {
    /// Registers with all of `partitions`. An append after this returns wakes [`Self::changed`], also when that
    /// is not being awaited yet.
    pub(crate) fn new(partitions: Vec<Arc<Partition>>) -> Self {
        let wake = Arc::new(Notify::new());
        for partition in &partitions {
            let mut waiting = partition
                .waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            waiting.push(Arc::clone(&wake));
        }
        Self { wake, partitions }
    }

    /// Bytes appended to all of them since the broker started.
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.partitions
            .iter()
            .map(|partition| partition.appended_bytes())
            .sum()
    }

    /// Waits until one of them changed, or `limit` has passed; whether one changed. Cancel safe.
    pub(crate) async fn changed(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.wake.notified())
            .await
            .is_ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for partition in &self.partitions {
            let mut waiting = partition
                .waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            waiting.retain(|fetch| !Arc::ptr_eq(fetch, &self.wake));
        }
    }
}
