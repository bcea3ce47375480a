//! One partition as the broker serves it: its log behind the one lock that serialises writes, a reader that
//! needs no lock, and the fetches that wait for more.
//!
//! ```text
//!  produce ─► with_log ─► PartitionLog::append ─► high watermark ─► wake ─┐
//!     └─ owes a flush? ─► flush_to ─► one fsync for all that wait ──► wake ┤
//!                                                                        ▼
//!  fetch ───► reader ◄──────────────────────────────────────── Watch::changed
//! ```
//!
//! The lock is never held across an `.await`. A panic while it is held poisons the partition: it takes no
//! more writes until the broker is restarted, which recovers the log.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use broker_log::{
    Appended, EpochEnd, PartitionLog, PartitionReader, Rejected, TopicPartition, Visibility,
};
use broker_protocol::{ErrorCode, record::RecordBatch};
use prometheus::Histogram;
use tokio::sync::{Notify, OwnedMutexGuard};

use crate::pool::Pool;

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
    /// Bytes that consumers may see.
    appended_bytes: AtomicU64,
    /// Bytes appended that a flush is to show. Changed under the log's lock.
    hidden_bytes: AtomicU64,
    /// The log's recovery point. Changed under the log's lock.
    flushed: AtomicI64,
    /// When the oldest unflushed record was appended, by the monotonic timer, in milliseconds and one; 0 for none.
    /// Changed under the log's lock.
    unflushed_since: AtomicU64,
    /// Held by who flushes; taken before the log's lock.
    flush_turn: Arc<tokio::sync::Mutex<()>>,
    /// Of old time stamps, the last time.
    warned: Mutex<Option<Duration>>,
    waiting: Mutex<Vec<Arc<Notify>>>,
    flush_seconds: Histogram,
}

/// Least time between two warnings about one partition's time stamps.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The moment of an append.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// By the wall clock, in milliseconds.
    pub(crate) wall_ms: i64,
    /// By the monotonic timer.
    pub(crate) monotonic: Duration,
}

/// An append that succeeded.
#[derive(Debug)]
pub(crate) struct Placed {
    /// Where.
    pub(crate) appended: Appended,
    /// `flush.messages` records wait for a flush.
    flush_is_due: bool,
    /// Nobody sees it before a flush.
    hidden: bool,
}

impl Placed {
    /// Whether it is to be answered only after [`Partition::flush_to`] its end.
    pub(crate) fn owes_flush(&self, acks_all: bool) -> bool {
        self.flush_is_due || (self.hidden && acks_all)
    }
}

impl Partition {
    /// Takes over an open log. `flush_seconds` counts its flushes.
    pub(crate) fn new(log: PartitionLog, leader_epoch: i32, flush_seconds: Histogram) -> Self {
        Self {
            id: log.id().clone(),
            leader_epoch,
            reader: log.reader(),
            flushed: AtomicI64::new(log.recovery_point()),
            log: Mutex::new(Some(log)),
            closed: AtomicBool::new(false),
            appended_bytes: AtomicU64::new(0),
            hidden_bytes: AtomicU64::new(0),
            unflushed_since: AtomicU64::new(0),
            flush_turn: Arc::default(),
            warned: Mutex::new(None),
            waiting: Mutex::new(Vec::new()),
            flush_seconds,
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
        let changed = change(log);
        if log.is_offline() {
            // Who waits for more is to hear of it.
            self.wake();
        }
        Ok(changed?)
    }

    /// Appends batches in one write, each judged alone. With one replica they are committed at once, and visible unless
    /// the topic shows only what has been flushed.
    ///
    /// Blocks on the page cache only.
    ///
    /// # Errors
    /// None of the batches is in the log; inside: this one is not.
    pub(crate) fn append(
        &self,
        batches: &[RecordBatch],
        now: Now,
    ) -> Result<Vec<Result<Placed, Unavailable>>, Unavailable> {
        let (placed, moved) = self.with_log(|log| {
            let outcomes = log.append(batches, self.leader_epoch, now.wall_ms)?;
            let hides = log.config().visibility == Visibility::Flushed;
            let (recovery_point, owes) = (log.recovery_point(), log.owes_flush());
            let moved = log.advance_high_watermark();
            let mut bytes = 0;
            let mut placed = Vec::with_capacity(batches.len());
            for (batch, outcome) in batches.iter().zip(outcomes) {
                placed.push(match outcome {
                    Ok(appended) => {
                        if !appended.duplicate {
                            bytes += batch.bytes().len() as u64;
                        }
                        let unflushed = appended.end_offset > recovery_point;
                        Ok(Placed {
                            appended,
                            flush_is_due: unflushed && owes,
                            hidden: unflushed && hides,
                        })
                    }
                    Err(rejected) => Err(self.rejected(rejected)),
                });
            }
            self.note_bytes(bytes, hides, now.monotonic);
            Ok((placed, moved))
        })?;
        if moved {
            self.wake();
        }
        Ok(placed)
    }

    /// [`Partition::append`] of one batch.
    pub(crate) fn append_one(&self, batch: RecordBatch, now: Now) -> Result<Placed, Unavailable> {
        let outcome = self.append(&[batch], now)?.pop();
        outcome.unwrap_or(Err(Unavailable::Poisoned))
    }

    fn rejected(&self, source: Rejected) -> Unavailable {
        Unavailable::Log(broker_log::Error::Rejected {
            topic: self.id.topic.clone(),
            partition: self.id.partition,
            source,
        })
    }

    /// Counts appended bytes, under the log's lock.
    fn note_bytes(&self, bytes: u64, hidden: bool, since: Duration) {
        if bytes == 0 {
            return;
        }
        self.note_unflushed(since);
        let counter = if hidden {
            &self.hidden_bytes
        } else {
            &self.appended_bytes
        };
        counter.fetch_add(bytes, Ordering::Release);
    }

    /// Flushes the log at least up to `offset`. All that wait for it meanwhile share the next flush.
    ///
    /// Dropping it is safe: a flush that has begun ends by itself.
    ///
    /// # Errors
    /// The log takes no more writes, or the sync failed: it takes none from then on.
    pub(crate) async fn flush_to(
        self: &Arc<Self>,
        pool: &Pool,
        offset: i64,
        monotonic: Duration,
    ) -> Result<(), Unavailable> {
        let is_flushed = || self.flushed.load(Ordering::Acquire) >= offset;
        if is_flushed() {
            return Ok(());
        }
        let turn = Arc::clone(&self.flush_turn).lock_owned().await;
        if is_flushed() {
            return Ok(());
        }
        let this = Arc::clone(self);
        let flushed = pool.run(move || this.flush(turn, monotonic)).await;
        flushed.unwrap_or(Err(Unavailable::Poisoned))
    }

    /// Prepares under the lock, syncs without it, takes note under it, and shows what a flush shows. `monotonic` is
    /// a time before.
    fn flush(&self, turn: OwnedMutexGuard<()>, monotonic: Duration) -> Result<(), Unavailable> {
        let (flush, hidden) = self.with_log(|log| {
            let flush = log.begin_flush()?;
            Ok((flush, self.hidden_bytes.swap(0, Ordering::AcqRel)))
        })?;
        let timer = self.flush_seconds.start_timer();
        let flushed = flush.run().inspect_err(|_| self.wake())?;
        timer.observe_duration();
        let moved = self.with_log(|log| {
            let recovery_point = log.finish_flush(&flushed);
            self.flushed.store(recovery_point, Ordering::Release);
            self.unflushed_since.store(0, Ordering::Release);
            if log.unflushed_records() > 0 {
                self.note_unflushed(monotonic);
            }
            let moved = log.advance_high_watermark();
            self.appended_bytes.fetch_add(hidden, Ordering::Release);
            Ok(moved)
        })?;
        drop(turn);
        if moved {
            self.wake();
        }
        Ok(())
    }

    /// Notes that records wait for a flush, at the latest since this time.
    fn note_unflushed(&self, since: Duration) {
        let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX - 1) + 1;
        // Under the log's lock nobody else changes it.
        if self.unflushed_since.load(Ordering::Acquire) == 0 {
            self.unflushed_since.store(since, Ordering::Release);
        }
    }

    /// Whether it is time again to warn of time stamps; then the next time is later.
    pub(crate) fn may_warn(&self, monotonic: Duration) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let early = warned.is_some_and(|last| monotonic.saturating_sub(last) < WARNING_INTERVAL);
        if !early {
            *warned = Some(monotonic);
        }
        !early
    }

    /// How long the oldest unflushed record waits.
    pub(crate) fn unflushed_for(&self, monotonic: Duration) -> Option<Duration> {
        let since = self
            .unflushed_since
            .load(Ordering::Acquire)
            .checked_sub(1)?;
        Some(monotonic.saturating_sub(Duration::from_millis(since)))
    }

    /// Bytes that became visible since the broker started; only differences mean anything.
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.appended_bytes.load(Ordering::Acquire)
    }

    /// Whether the log has been taken out: the topic is deleted.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether a failure of the disk has taken the log off line, until the broker is started again.
    pub(crate) fn is_offline(&self) -> bool {
        self.reader.is_offline()
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
