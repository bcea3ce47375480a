//! Reading a range of offsets of one partition, ahead of its consumer.
//!
//! ```text
//!  background task: permit (bytes) ─► leader ─► fetch ─► check, classify ─► chunk ─► channel
//!  RangeFetch::next: ◄── batch by batch ── chunk ◄──────────────────────────────────────┘
//!                        the permit is released when more is asked for than the chunk has
//! ```
//!
//! Nothing is skipped: the position moves by the headers of whole, checked batches only, an error
//! leaves it where it is, and an empty answer is never an end.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use broker_protocol::error_code::ErrorCode;
use broker_protocol::ids::{TopicId, TopicName};
use broker_protocol::messages::FetchRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::backoff::{Delays, Subject, worth_retrying};
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::{Answered, BY_ID, BY_NAME, FetchedBatch, Place, Question};
use crate::metadata::Leader;
use crate::offsets::{IsolationLevel, OffsetSpec};

/// Chunks (one per response) in the channel; the byte permits are the real bound.
const CHUNKS: usize = 64;

/// Bytes checked before other tasks get a turn.
const YIELD_AFTER_BYTES: usize = 1 << 20;

/// How to read a range.
#[derive(Debug, Clone, Copy, Default)]
pub struct FetchOptions {
    /// Which transactions to see; `ReadCommitted` by default.
    pub isolation: IsolationLevel,
    /// Bytes to hold fetched and not yet handed out; the client's
    /// [`prefetch_bytes`](crate::ClientConfig::prefetch_bytes) if none.
    pub prefetch_bytes: Option<usize>,
}

/// The batches of a range of one partition, in order. See [`Client::fetch_range`].
///
/// Dropping it stops the prefetching.
#[derive(Debug)]
pub struct RangeFetch {
    position: i64,
    end: i64,
    chunk: Chunk,
    chunks: mpsc::Receiver<Result<Chunk>>,
    failed: Option<Error>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Chunk {
    batches: VecDeque<FetchedBatch>,
    /// Position behind the chunk.
    position: i64,
    /// Released with the chunk.
    _held: Option<OwnedSemaphorePermit>,
}

impl Client {
    /// Reads `range` (half open) of a partition. `range.end == i64::MAX` follows the log for ever;
    /// a range that ends beyond the log waits for the log to grow. A range that begins where it ends
    /// asks nothing.
    ///
    /// Prefetching begins at once, on a connection of its own, as soon as the runtime gets to it.
    ///
    /// Memory: at most `prefetch_bytes` are fetched, the response at hand included until the call of
    /// [`RangeFetch::next`] that goes beyond it, except that one batch that is larger alone is held whole,
    /// up to `max_batch_bytes`. A batch handed out keeps the response it came in.
    pub fn fetch_range(
        &self,
        topic: TopicName,
        partition: i32,
        range: Range<i64>,
        options: FetchOptions,
    ) -> RangeFetch {
        let config = &self.inner.config;
        let stop = self.inner.tasks.child_token();
        let (sender, chunks) = mpsc::channel(CHUNKS);
        let budget = options.prefetch_bytes.unwrap_or(config.prefetch_bytes);
        let budget = budget.clamp(1, u32::MAX as usize);
        let place = Place {
            topic,
            partition,
            position: range.start,
            end: range.end,
            max_batch_bytes: config.max_batch_bytes,
        };
        if range.start < range.end {
            let fetcher = Fetcher {
                client: self.clone(),
                place,
                isolation: options.isolation,
                budget: Arc::new(Semaphore::new(budget)),
                budget_bytes: budget,
                partition_bytes: config.fetch_partition_max_bytes.min((budget / 2).max(1)),
                grown: None,
                connection: None,
                topic_id: None,
                delays: self.policy().delays(),
                failing: None,
                stalled_since: None,
            };
            self.inner.tasks.spawn(fetcher.run(sender, stop.clone()));
        }
        let chunk = Chunk {
            batches: VecDeque::new(),
            position: range.start,
            _held: None,
        };
        RangeFetch {
            position: range.start,
            end: range.end,
            chunk,
            chunks,
            failed: None,
            stop,
        }
    }
}

impl RangeFetch {
    /// The next batch; `None` once the position has reached the end of the range. Batches come
    /// whole: the first may begin before the range, the last end behind it.
    ///
    /// Cancel safe. After an error it returns that error again; what was handed out before it is
    /// complete up to [`position`](Self::position).
    ///
    /// # Errors
    /// [`Error::OffsetOutOfRange`], [`Error::UnknownTopic`], [`Error::UnknownPartition`],
    /// [`Error::TopicReplaced`], [`Error::NoLeader`], [`Error::CorruptBatch`],
    /// [`Error::BatchTooLarge`], and [`Error::Timeout`] with the offset: when fetching failed until
    /// the deadline, or when the range lies below the end of the log and yet nothing came.
    pub async fn next(&mut self) -> Result<Option<FetchedBatch>> {
        loop {
            if let Some(batch) = self.chunk.batches.pop_front() {
                self.position = batch.batch.header().next_offset();
                return Ok(Some(batch));
            }
            self.position = self.position.max(self.chunk.position);
            self.chunk = Chunk {
                batches: VecDeque::new(),
                position: self.position,
                _held: None,
            };
            if self.position >= self.end {
                return Ok(None);
            }
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            match self.chunks.recv().await {
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(error)) => self.failed = Some(error),
                None => self.failed = Some(Error::Closed),
            }
        }
    }

    /// The next offset to be handed out: the end of the last batch, or the start of the range.
    pub fn position(&self) -> i64 {
        self.position
    }
}

impl Drop for RangeFetch {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The background task of one range.
struct Fetcher {
    client: Client,
    place: Place,
    isolation: IsolationLevel,
    budget: Arc<Semaphore>,
    budget_bytes: usize,
    /// Size asked for unless a batch needs more.
    partition_bytes: usize,
    /// Size asked for because a batch did not fit.
    grown: Option<usize>,
    connection: Option<Connection>,
    topic_id: Option<TopicId>,
    delays: Delays,
    /// Since when fetching fails, and the last failure.
    failing: Option<(Instant, Error)>,
    /// First answer without batches since the last progress, though the range is all there.
    stalled_since: Option<Instant>,
}

impl Fetcher {
    async fn run(mut self, chunks: mpsc::Sender<Result<Chunk>>, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.fetch_all(&chunks) => {}
        }
        if let Some(connection) = self.connection.take() {
            self.client.inner.pool.give_back(connection);
        }
    }

    async fn fetch_all(&mut self, chunks: &mpsc::Sender<Result<Chunk>>) {
        while self.place.position < self.place.end {
            if let Err(error) = self.step(chunks).await {
                // The receiver is only gone if the range was dropped.
                let _dropped = chunks.send(Err(error)).await;
                return;
            }
        }
    }

    /// One fetch and what follows from it.
    async fn step(&mut self, chunks: &mpsc::Sender<Result<Chunk>>) -> Result<()> {
        let asked = self.grown.unwrap_or(self.partition_bytes);
        let bytes = asked.min(self.budget_bytes);
        let held = Arc::clone(&self.budget)
            .acquire_many_owned(permits(bytes))
            .await;
        let mut held = held.map_err(|_| Error::Closed)?;
        let started = Instant::now();
        let answered = match self.fetch(asked).await {
            Ok(answered) => answered,
            Err(error) => return self.after_error(error).await,
        };
        self.failing = None;
        let throttle = answered.throttle;
        let visible_end = answered.visible_end(self.isolation);
        let used = answered.size_in_bytes().min(bytes);
        drop(held.split(bytes - used));

        let before = self.place.position;
        let (chunk, outcome) = self.check(answered, asked, held).await;
        self.place.position = chunk.position;
        if chunk.position > before {
            self.grown = None;
            self.stalled_since = None;
            self.delays.reset();
            // The receiver is only gone if the range was dropped; then the task is stopped.
            let _dropped = chunks.send(Ok(chunk)).await;
            outcome?;
        } else {
            drop(chunk);
            self.grown = outcome?.or(self.grown);
            self.without_progress(visible_end, started).await?;
        }
        if !throttle.is_zero() {
            let limit = self.client.inner.config.request_timeout;
            tokio::time::sleep(throttle.min(limit)).await;
        }
        Ok(())
    }

    async fn fetch(&mut self, asked: usize) -> Result<Answered> {
        let deadline = self.client.inner.config.retry_deadline;
        let Some((since, last)) = self.failing.clone() else {
            return self.fetch_once(asked).await;
        };
        tokio::time::timeout_at(since + deadline, self.fetch_once(asked))
            .await
            .unwrap_or_else(|_| Err(self.subject().timed_out(deadline, Some(last))))
    }

    async fn fetch_once(&mut self, asked: usize) -> Result<Answered> {
        let client = self.client.clone();
        let config = &client.inner.config;
        let leader = client
            .leader(&self.place.topic, self.place.partition)
            .await?;
        self.check_topic_id(&leader)?;
        let connection = self.connect(&leader).await?;
        let question = Question {
            topic: &self.place.topic,
            partition: self.place.partition,
            position: self.place.position,
            isolation: self.isolation,
            max_wait: config.fetch_max_wait,
            max_bytes: config.fetch_max_bytes,
            partition_max_bytes: asked,
        };
        let by_name = connection.versions().choose::<FetchRequest>(&BY_NAME);
        let wanted = match by_name {
            Err(_) if leader.topic_id.is_some() => BY_ID,
            _ => BY_NAME,
        };
        let limit = config.request_timeout + config.fetch_max_wait;
        let response = connection
            .call(&wanted, limit, |version| question.request(&leader, version))
            .await
            .and_then(|response| question.read(response, &leader.address));
        if connection.is_healthy() {
            self.connection = Some(connection);
        }
        if response.as_ref().is_err_and(Error::wants_refresh) {
            client
                .inner
                .metadata
                .forget(&self.place.topic, leader.generation);
        }
        response
    }

    /// Takes the connection out: a fetch that is dropped half way takes it along.
    async fn connect(&mut self, leader: &Leader) -> Result<Connection> {
        if let Some(connection) = self.connection.take() {
            if connection.is_healthy() && *connection.address() == leader.address {
                return Ok(connection);
            }
            self.client.inner.pool.give_back(connection);
        }
        let leased = self.client.inner.pool.lease(&leader.address).await;
        if leased.is_err() {
            self.client
                .inner
                .metadata
                .forget(&self.place.topic, leader.generation);
        }
        leased
    }

    fn check_topic_id(&mut self, leader: &Leader) -> Result<()> {
        let Some(found) = leader.topic_id else {
            return Ok(());
        };
        if *self.topic_id.get_or_insert(found) == found {
            Ok(())
        } else {
            Err(Error::TopicReplaced {
                topic: self.place.topic.clone(),
            })
        }
    }

    /// What is good of an answer, and what its end says: an error, or a larger size to ask for.
    async fn check(
        &self,
        answered: Answered,
        asked: usize,
        held: OwnedSemaphorePermit,
    ) -> (Chunk, Result<Option<usize>>) {
        let mut batches = VecDeque::new();
        let mut answered = answered.batches(self.place.clone(), self.isolation);
        let mut outcome = Ok(None);
        let mut checked_bytes = 0;
        for batch in &mut answered {
            match batch {
                Ok(batch) => {
                    checked_bytes += batch.batch.bytes().len();
                    batches.push_back(batch);
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            if checked_bytes >= YIELD_AFTER_BYTES {
                checked_bytes = 0;
                tokio::task::yield_now().await;
            }
        }
        if outcome.is_ok() {
            outcome = answered.grow(asked);
        }
        let chunk = Chunk {
            batches,
            position: answered.position(),
            _held: Some(held),
        };
        (chunk, outcome)
    }

    /// Waits where the broker has not, and gives up on a range that is there and does not come.
    async fn without_progress(&mut self, visible_end: i64, started: Instant) -> Result<()> {
        let deadline = self.client.inner.config.retry_deadline;
        if self.place.end <= visible_end {
            let since = *self.stalled_since.get_or_insert(started);
            if since.elapsed() >= deadline {
                return Err(self.subject().timed_out(deadline, None));
            }
        } else {
            self.stalled_since = None;
        }
        let waited = started.elapsed();
        let pause = match self.grown {
            Some(_) => Duration::ZERO,
            None => self
                .delays
                .next()
                .min(self.client.inner.config.fetch_max_wait),
        };
        tokio::time::sleep(pause.saturating_sub(waited)).await;
        Ok(())
    }

    /// Waits before the next try, or says why there is none.
    async fn after_error(&mut self, error: Error) -> Result<()> {
        let policy = self.client.policy();
        let since = self
            .failing
            .as_ref()
            .map_or_else(Instant::now, |(since, _)| *since);
        if let Error::ResponseTooLarge { size, .. } = error {
            return Err(self.place.too_large(self.place.position, size));
        }
        let error = if is_out_of_range(&error) {
            self.out_of_range(error).await?
        } else {
            error
        };
        let (topic, partition) = (&self.place.topic, self.place.partition);
        if !worth_retrying(&policy, &error, since.elapsed()) && !is_out_of_range(&error) {
            return Err(match error.kind() {
                ErrorKind::Retriable => self.subject().timed_out(policy.deadline, Some(error)),
                ErrorKind::Fatal | ErrorKind::Caller => error,
            });
        }
        if since.elapsed() >= policy.deadline {
            return Err(self.subject().timed_out(policy.deadline, Some(error)));
        }
        let delay = self.delays.next();
        warn!(%topic, partition, offset = self.place.position, %error, ?delay, "fetch failed, retrying");
        self.failing = Some((since, error));
        tokio::time::sleep(delay).await;
        Ok(())
    }

    /// Asks where the log begins and ends now. The original error comes back if the offset is
    /// inside after all: a new leader may not have known its high watermark yet.
    async fn out_of_range(&self, error: Error) -> Result<Error> {
        let place = &self.place;
        let ask = async |at| {
            let isolation = IsolationLevel::ReadUncommitted;
            let only = [place.partition];
            let listed = self
                .client
                .list_offsets(&place.topic, &only, at, isolation)
                .await?;
            match { listed }.remove(&place.partition) {
                Some(listed) => Ok(listed?.offset),
                None => Err(error.clone()),
            }
        };
        let log_start_offset = ask(OffsetSpec::Earliest).await?;
        let log_end_offset = ask(OffsetSpec::Latest).await?;
        if (log_start_offset..=log_end_offset).contains(&place.position) {
            debug!(topic = %place.topic, partition = place.partition, "offset is back in range");
            return Ok(error);
        }
        Err(Error::OffsetOutOfRange {
            topic: place.topic.clone(),
            partition: place.partition,
            offset: place.position,
            log_start_offset,
            log_end_offset,
        })
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            operation: "Fetch",
            topic: Some(&self.place.topic),
            partition: Some(self.place.partition),
            offset: Some(self.place.position),
        }
    }
}

fn is_out_of_range(error: &Error) -> bool {
    error.code() == Some(ErrorCode::OffsetOutOfRange)
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
