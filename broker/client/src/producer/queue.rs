//! The records of one partition that are not yet sent, gathered into batches.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot, watch};
use tokio::time::Instant;

use super::record::Delivery;
use crate::error::{Error, Result};

/// What of a record goes on the wire.
#[derive(Debug, Clone)]
pub(crate) struct RecordData {
    pub(crate) timestamp_ms: i64,
    pub(crate) key: Option<Bytes>,
    pub(crate) value: Option<Bytes>,
    pub(crate) headers: Vec<(String, Option<Bytes>)>,
}

/// Who waits for a record, and the buffer it takes.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) confirmed: oneshot::Sender<Result<Delivery>>,
    pub(crate) _buffer: Option<OwnedSemaphorePermit>,
}

/// Records that are sent together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) records: Vec<RecordData>,
    pub(crate) replies: Vec<Reply>,
    pub(crate) size: usize,
    pub(crate) created: Instant,
}

/// When a batch leaves the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLimits {
    pub(crate) batch_bytes: usize,
    pub(crate) linger: Duration,
}

/// Whether the oldest batch may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readiness {
    Empty,
    At(Instant),
    Ready,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<Batch>,
    /// Records ever put in.
    enqueued: u64,
    /// Records ever taken out.
    taken: u64,
    /// Records up to this count do not linger.
    urgent: u64,
    /// First failure since the last flush.
    failed: Option<Error>,
}

impl State {
    /// Returns whether the owner of the queue has to look at it again.
    fn push(
        &mut self,
        record: RecordData,
        reply: Reply,
        size: usize,
        limits: BatchLimits,
        now: Instant,
    ) -> bool {
        self.enqueued += 1;
        match self.batches.back_mut() {
            Some(last) if last.size.saturating_add(size) <= limits.batch_bytes => {
                last.records.push(record);
                last.replies.push(reply);
                last.size += size;
                last.size >= limits.batch_bytes
            }
            _ => {
                let (records, replies) = (vec![record], vec![reply]);
                self.batches.push_back(Batch {
                    records,
                    replies,
                    size,
                    created: now,
                });
                true
            }
        }
    }

    fn readiness(&self, limits: BatchLimits, now: Instant) -> Readiness {
        let Some(oldest) = self.batches.front() else {
            return Readiness::Empty;
        };
        let leaves = oldest.created + limits.linger;
        let full = self.batches.len() > 1 || oldest.size >= limits.batch_bytes;
        if full || self.urgent > self.taken || leaves <= now {
            Readiness::Ready
        } else {
            Readiness::At(leaves)
        }
    }

    fn take(&mut self, limits: BatchLimits, now: Instant) -> Option<Batch> {
        if self.readiness(limits, now) != Readiness::Ready {
            return None;
        }
        let batch = self.batches.pop_front()?;
        self.taken += batch.records.len() as u64;
        Some(batch)
    }
}

/// Shared between the producer, which puts records in, and the partition's sender.
#[derive(Debug)]
pub(crate) struct PartitionQueue {
    limits: BatchLimits,
    state: Mutex<State>,
    wake: Notify,
    completed: watch::Sender<u64>,
}

impl PartitionQueue {
    pub(crate) fn new(limits: BatchLimits) -> Self {
        let (completed, _) = watch::channel(0);
        Self {
            limits,
            state: Mutex::default(),
            wake: Notify::new(),
            completed,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, record: RecordData, reply: Reply, size: usize) {
        if self
            .state()
            .push(record, reply, size, self.limits, Instant::now())
        {
            self.wake.notify_one();
        }
    }

    /// Lets everything in the queue go now; returns how many records there ever were.
    pub(crate) fn hurry(&self) -> u64 {
        let mut state = self.state();
        state.urgent = state.enqueued;
        let enqueued = state.enqueued;
        drop(state);
        self.wake.notify_one();
        enqueued
    }

    /// Waits until [`take`](Self::take) has something. For one waiter; cancel safe.
    pub(crate) async fn ready(&self) {
        loop {
            let readiness = self.state().readiness(self.limits, Instant::now());
            match readiness {
                Readiness::Ready => return,
                Readiness::Empty => self.wake.notified().await,
                Readiness::At(time) => {
                    // Either way it is looked at again.
                    let _elapsed = tokio::time::timeout_at(time, self.wake.notified()).await;
                }
            }
        }
    }

    pub(crate) fn take(&self) -> Option<Batch> {
        self.state().take(self.limits, Instant::now())
    }

    /// Counts records as done, well or badly.
    pub(crate) fn complete(&self, records: usize, error: Option<&Error>) {
        if let Some(error) = error {
            self.state().failed.get_or_insert_with(|| error.clone());
        }
        self.completed
            .send_modify(|completed| *completed += records as u64);
    }

    /// Waits until `records` have been completed since the beginning. Fails with the first error
    /// since the last flush. Cancel safe.
    pub(crate) async fn flushed(&self, records: u64) -> Result<()> {
        let mut completed = self.completed.subscribe();
        let waited = completed.wait_for(|completed| *completed >= records).await;
        waited.map_err(|_| Error::Closed)?;
        match self.state().failed.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BatchLimits = BatchLimits {
        batch_bytes: 100,
        linger: Duration::from_millis(5),
    };

    fn push(state: &mut State, size: usize, now: Instant) -> bool {
        let record = RecordData {
            timestamp_ms: 0,
            key: None,
            value: None,
            headers: Vec::new(),
        };
        let reply = Reply {
            confirmed: oneshot::channel().0,
            _buffer: None,
        };
        state.push(record, reply, size, LIMITS, now)
    }

    fn taken(state: &mut State, now: Instant) -> Option<usize> {
        state.take(LIMITS, now).map(|batch| batch.records.len())
    }

    #[test]
    fn batch_leaves_when_full_or_when_it_has_lingered() {
        let (mut state, now) = (State::default(), Instant::now());
        assert!(push(&mut state, 40, now));
        assert!(!push(&mut state, 40, now));
        assert_eq!(
            state.readiness(LIMITS, now),
            Readiness::At(now + LIMITS.linger)
        );
        assert_eq!(taken(&mut state, now), None);
        assert!(
            push(&mut state, 40, now),
            "the third does not fit and opens the next batch"
        );
        assert_eq!(taken(&mut state, now), Some(2));
        assert_eq!(taken(&mut state, now), None);
        assert_eq!(taken(&mut state, now + LIMITS.linger), Some(1));
        assert_eq!(state.readiness(LIMITS, now), Readiness::Empty);
    }

    #[test]
    fn record_larger_than_a_batch_is_a_batch() {
        let (mut state, now) = (State::default(), Instant::now());
        push(&mut state, 10, now);
        push(&mut state, 1000, now);
        push(&mut state, 10, now);
        let sizes = [
            taken(&mut state, now),
            taken(&mut state, now),
            taken(&mut state, now),
        ];
        assert_eq!(sizes, [Some(1), Some(1), None]);
    }

    #[tokio::test(start_paused = true)]
    async fn hurried_records_do_not_linger_but_later_ones_do() {
        let limits = BatchLimits {
            batch_bytes: 100,
            linger: Duration::from_secs(3600),
        };
        let queue = PartitionQueue::new(limits);
        let push = || {
            let record = RecordData {
                timestamp_ms: 0,
                key: None,
                value: None,
                headers: Vec::new(),
            };
            queue.push(
                record,
                Reply {
                    confirmed: oneshot::channel().0,
                    _buffer: None,
                },
                10,
            );
        };
        push();
        assert!(queue.take().is_none());
        assert_eq!(queue.hurry(), 1);
        queue.ready().await;
        assert!(queue.take().is_some());
        push();
        assert!(queue.take().is_none());
    }

    #[tokio::test]
    async fn flush_waits_for_its_records_and_reports_the_first_failure_once() {
        let queue = PartitionQueue::new(LIMITS);
        let flushed = queue.flushed(2);
        tokio::pin!(flushed);
        assert!(futures::poll!(&mut flushed).is_pending());
        queue.complete(1, Some(&Error::Closed));
        assert!(futures::poll!(&mut flushed).is_pending());
        queue.complete(1, None);
        assert!(matches!(flushed.await, Err(Error::Closed)));
        queue.flushed(2).await.unwrap();
    }
}
