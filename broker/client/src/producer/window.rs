//! The batches of one partition between leaving the queue and being confirmed: their sequence
//! numbers, and what follows from each answer. No I/O.
//!
//! Batches are sent in order, several at a time. When one fails, nothing more is sent until all
//! those in flight have been answered; then [`Window::settle`] decides about each, and what remains
//! is sent again in order with the same sequence numbers, so that the broker recognises what it
//! has. A batch that the broker finds out of order, though nothing before it is open, is not in the
//! log, and neither is any behind it: only then do they get new numbers, under a new producer id.

use std::collections::VecDeque;
use std::sync::Arc;

use broker_protocol::error_code::ErrorCode;
use broker_protocol::ids::TopicName;
use broker_protocol::record::{self, BatchBuilder, Compression};
use bytes::Bytes;
use tokio::time::Instant;

use super::queue::{Batch, RecordData, Reply};
use crate::error::{Error, ErrorKind};

/// What the broker knows an idempotent producer by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
}

/// The sequence number `records` further on: after the largest comes 0.
pub(crate) fn advance(sequence: i32, records: usize) -> i32 {
    let next = (i64::from(sequence) + i64::try_from(records).unwrap_or(0)) % (1 << 31);
    i32::try_from(next).unwrap_or(0)
}

/// Where a batch was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appended {
    /// -1 if the broker has it but no longer knows where.
    pub(crate) base_offset: i64,
    /// -1 if the records keep their own time.
    pub(crate) log_append_time_ms: i64,
}

/// A batch that has left the queue.
#[derive(Debug)]
pub(crate) struct OpenBatch {
    pub(crate) records: Arc<Vec<RecordData>>,
    replies: Vec<Reply>,
    size: usize,
    created: Instant,
    base_sequence: i32,
    /// An earlier try may have appended it.
    maybe_appended: bool,
    encoded: Option<Bytes>,
}

impl OpenBatch {
    fn halves(self) -> [Self; 2] {
        let Self {
            records,
            mut replies,
            size,
            created,
            base_sequence,
            maybe_appended,
            ..
        } = self;
        let (front, back) = records.split_at(records.len() / 2);
        let back_replies = replies.split_off(front.len());
        let half = |records: &[RecordData], replies, base_sequence| Self {
            records: Arc::new(records.to_vec()),
            replies,
            size: size / 2,
            created,
            base_sequence,
            maybe_appended,
            encoded: None,
        };
        [
            half(front, replies, base_sequence),
            half(back, back_replies, advance(base_sequence, front.len())),
        ]
    }
}

/// A batch that is done, and what its records are to be told.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) records: Arc<Vec<RecordData>>,
    pub(crate) replies: Vec<Reply>,
    pub(crate) outcome: Result<Appended, Error>,
}

/// What to do after settling.
#[derive(Debug, Default)]
pub(crate) struct Settlement {
    pub(crate) done: Vec<Settled>,
    /// What remains is not in the log and needs a new producer id.
    pub(crate) renew: bool,
    /// Why something is sent again.
    pub(crate) retry: Option<Error>,
}

/// When to give up on a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) delivery_timeout: std::time::Duration,
    pub(crate) unknown_topic_grace: std::time::Duration,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Window {
    topic: TopicName,
    partition: i32,
    batches: VecDeque<OpenBatch>,
    identity: Option<Identity>,
    next_sequence: i32,
    /// The broker has confirmed a batch of this identity.
    confirmed: bool,
    patience: Patience,
}

enum Verdict {
    Done(Result<Appended, Error>),
    Again(Error),
    Split(Error),
    Renew(Error),
}

impl Window {
    pub(crate) fn new(topic: TopicName, partition: i32, patience: Patience) -> Self {
        Self {
            topic,
            partition,
            batches: VecDeque::new(),
            identity: None,
            next_sequence: 0,
            confirmed: false,
            patience,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(crate) fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// How many may be in flight. A broker that knows nothing of a producer takes any sequence
    /// number, so the first batch of an identity goes alone; without identity all do.
    pub(crate) fn limit(&self, max_in_flight: usize) -> usize {
        if self.identity.is_some() && self.confirmed {
            max_in_flight
        } else {
            1
        }
    }

    /// Starts numbering anew; all open batches get numbers of the new identity.
    pub(crate) fn renew(&mut self, identity: Identity) {
        self.identity = Some(identity);
        self.confirmed = false;
        self.next_sequence = 0;
        for batch in &mut self.batches {
            batch.base_sequence = self.next_sequence;
            batch.encoded = None;
            batch.maybe_appended = false;
            self.next_sequence = advance(self.next_sequence, batch.records.len());
        }
    }

    pub(crate) fn push(&mut self, batch: Batch) {
        let base_sequence = self.next_sequence;
        self.next_sequence = advance(base_sequence, batch.records.len());
        self.batches.push_back(OpenBatch {
            records: Arc::new(batch.records),
            replies: batch.replies,
            size: batch.size,
            created: batch.created,
            base_sequence,
            maybe_appended: false,
            encoded: None,
        });
    }

    /// The encoded batch, if that is done.
    pub(crate) fn encoded(&self, index: usize) -> Option<Bytes> {
        self.batches.get(index)?.encoded.clone()
    }

    pub(crate) fn store_encoded(&mut self, index: usize, encoded: Bytes) {
        if let Some(batch) = self.batches.get_mut(index) {
            batch.encoded = Some(encoded);
        }
    }

    /// What encodes a batch, away from here.
    pub(crate) fn encoder(&self, index: usize, compression: Compression) -> Option<Encoder> {
        let batch = self.batches.get(index)?;
        let records = Arc::clone(&batch.records);
        Some(Encoder {
            records,
            compression,
            identity: self.identity,
            base_sequence: batch.base_sequence,
            size: batch.size,
        })
    }

    /// Takes the oldest batch out, confirmed.
    pub(crate) fn confirm_oldest(&mut self, appended: Appended) -> Option<Settled> {
        self.confirmed = true;
        let OpenBatch {
            records, replies, ..
        } = self.batches.pop_front()?;
        Some(Settled {
            records,
            replies,
            outcome: Ok(appended),
        })
    }

    /// Gives up on everything.
    pub(crate) fn fail_all(&mut self, error: &Error) -> Vec<Settled> {
        let failed = |OpenBatch {
                          records, replies, ..
                      }| Settled {
            records,
            replies,
            outcome: Err(error.clone()),
        };
        self.batches.drain(..).map(failed).collect()
    }

    /// Decides about the first batches of the window by the outcomes of sending them, in order.
    pub(crate) fn settle(
        &mut self,
        outcomes: Vec<Result<Appended, Error>>,
        now: Instant,
    ) -> Settlement {
        let mut settlement = Settlement::default();
        let mut remaining = VecDeque::new();
        for outcome in outcomes {
            let Some(mut batch) = self.batches.pop_front() else {
                break;
            };
            self.confirmed |= outcome.is_ok();
            batch.maybe_appended |= outcome.as_ref().is_err_and(is_outcome_unknown);
            let verdict = self.judge(&batch, outcome, !remaining.is_empty(), now);
            let (again, error) = match verdict {
                Verdict::Done(outcome) => {
                    let OpenBatch {
                        records, replies, ..
                    } = batch;
                    settlement.done.push(Settled {
                        records,
                        replies,
                        outcome,
                    });
                    continue;
                }
                Verdict::Again(error) => (vec![batch], error),
                Verdict::Split(error) => (batch.halves().into(), error),
                Verdict::Renew(error) => {
                    settlement.renew = true;
                    (vec![batch], error)
                }
            };
            remaining.extend(again);
            settlement.retry.get_or_insert(error);
        }
        remaining.append(&mut self.batches);
        self.batches = remaining;
        settlement
    }

    fn judge(
        &self,
        batch: &OpenBatch,
        outcome: Result<Appended, Error>,
        earlier_is_open: bool,
        now: Instant,
    ) -> Verdict {
        let error = match outcome {
            Ok(appended) => return Verdict::Done(Ok(appended)),
            Err(error) => error,
        };
        let age = now.saturating_duration_since(batch.created);
        if age >= self.patience.delivery_timeout {
            return Verdict::Done(Err(self.expired(error)));
        }
        match error.code() {
            Some(ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge) => {
                if batch.records.len() > 1 {
                    return Verdict::Split(error);
                }
                let (topic, size) = (self.topic.clone(), batch.size);
                return Verdict::Done(Err(Error::RecordTooLarge {
                    topic,
                    size,
                    cap: None,
                }));
            }
            Some(code) if self.identity.is_some() && is_about_identity(code) => {
                let in_log = batch.maybe_appended && code != ErrorCode::OutOfOrderSequenceNumber;
                return match (earlier_is_open, in_log) {
                    (true, _) => Verdict::Again(error),
                    (false, false) => Verdict::Renew(error),
                    (false, true) => Verdict::Done(Err(error)),
                };
            }
            _ => {}
        }
        match error.kind() {
            ErrorKind::Retriable => Verdict::Again(error),
            ErrorKind::Caller if error.may_lag() && age < self.patience.unknown_topic_grace => {
                Verdict::Again(error)
            }
            ErrorKind::Caller | ErrorKind::Fatal => Verdict::Done(Err(error)),
        }
    }

    fn expired(&self, last: Error) -> Error {
        Error::Timeout {
            operation: "Produce",
            topic: Some(self.topic.clone()),
            partition: Some(self.partition),
            offset: None,
            after: self.patience.delivery_timeout,
            source: Some(Box::new(last)),
        }
    }
}

/// Whether the broker does not accept the producer's numbers: nothing was appended by this try.
fn is_about_identity(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::OutOfOrderSequenceNumber
            | ErrorCode::UnknownProducerId
            | ErrorCode::InvalidProducerEpoch
            | ErrorCode::ProducerFenced
    )
}

/// Whether a failed try may have appended the batch all the same.
fn is_outcome_unknown(error: &Error) -> bool {
    if let Error::Kafka { code, .. } = error {
        return matches!(
            code,
            ErrorCode::RequestTimedOut
                | ErrorCode::NotEnoughReplicasAfterAppend
                | ErrorCode::NetworkException
                | ErrorCode::KafkaStorageError
                | ErrorCode::UnknownServerError
        );
    }
    matches!(
        error,
        Error::Disconnected { .. }
            | Error::Unwelcome { .. }
            | Error::Tls { .. }
            | Error::NoAnswer { .. }
            | Error::Protocol { .. }
    )
}

/// Everything needed to encode one batch on another thread.
#[derive(Debug)]
pub(crate) struct Encoder {
    records: Arc<Vec<RecordData>>,
    compression: Compression,
    identity: Option<Identity>,
    base_sequence: i32,
    size: usize,
}

impl Encoder {
    /// An upper bound of the batch's size before compression.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn encode(&self) -> record::Result<Bytes> {
        let mut builder = BatchBuilder::new(self.compression);
        if let Some(Identity {
            producer_id,
            producer_epoch,
        }) = self.identity
        {
            builder = builder.with_producer(producer_id, producer_epoch, self.base_sequence);
        }
        let mut headers = Vec::new();
        for record in self.records.iter() {
            headers.clear();
            for (name, value) in &record.headers {
                headers.push((name.as_str(), value.as_deref()));
            }
            builder.push(
                record.timestamp_ms,
                record.key.as_deref(),
                record.value.as_deref(),
                &headers,
            )?;
        }
        builder.build()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use broker_protocol::record::RecordBatch;
    use tokio::sync::oneshot;

    use super::*;

    const PATIENCE: Patience = Patience {
        delivery_timeout: Duration::from_secs(120),
        unknown_topic_grace: Duration::from_secs(3),
    };
    const FIRST: Identity = Identity {
        producer_id: 7,
        producer_epoch: 0,
    };
    const SECOND: Identity = Identity {
        producer_id: 8,
        producer_epoch: 0,
    };

    fn appended(base_offset: i64) -> Result<Appended, Error> {
        Ok(Appended {
            base_offset,
            log_append_time_ms: -1,
        })
    }

    fn refused(code: ErrorCode) -> Result<Appended, Error> {
        let topic = Some(TopicName::new("t").unwrap());
        let operation = "Produce";
        Err(Error::Kafka {
            operation,
            code,
            topic,
            partition: Some(0),
            message: None,
        })
    }

    fn cut() -> Result<Appended, Error> {
        Err(Error::Disconnected {
            address: Arc::from("a:1"),
            source: None,
        })
    }

    fn new_window() -> Window {
        Window::new(TopicName::new("t").unwrap(), 0, PATIENCE)
    }

    /// A window of an identity that the broker knows, with batches of these record counts.
    fn window(counts: &[usize]) -> Window {
        let mut window = new_window();
        window.renew(FIRST);
        window.confirmed = true;
        for &count in counts {
            let record = RecordData {
                timestamp_ms: 5,
                key: None,
                value: None,
                headers: Vec::new(),
            };
            let reply = || Reply {
                confirmed: oneshot::channel().0,
                _buffer: None,
            };
            window.push(Batch {
                records: vec![record; count],
                replies: (0..count).map(|_| reply()).collect(),
                size: count * 10,
                created: Instant::now(),
            });
        }
        window
    }

    /// Producer id, first sequence number and count of each batch, as they would be sent.
    fn sent(window: &Window) -> Vec<(i64, i32, i32)> {
        (0..window.len())
            .map(|index| {
                let encoded = window
                    .encoder(index, Compression::None)
                    .unwrap()
                    .encode()
                    .unwrap();
                let batch = RecordBatch::parse(encoded).unwrap();
                let header = batch.header();
                (
                    header.producer_id,
                    header.base_sequence,
                    header.records_count,
                )
            })
            .collect()
    }

    fn outcomes(settlement: &Settlement) -> Vec<Result<i64, Option<ErrorCode>>> {
        let outcome = |settled: &Settled| {
            let outcome = settled.outcome.as_ref();
            outcome
                .map(|appended| appended.base_offset)
                .map_err(Error::code)
        };
        settlement.done.iter().map(outcome).collect()
    }

    #[test]
    fn sequence_numbers_wrap_to_zero() {
        assert_eq!(advance(0, 3), 3);
        assert_eq!(advance(i32::MAX, 1), 0);
        assert_eq!(advance(i32::MAX - 1, 4), 2);
    }

    #[test]
    fn batches_are_numbered_by_their_records() {
        assert_eq!(sent(&window(&[3, 1, 2])), [(7, 0, 3), (7, 3, 1), (7, 4, 2)]);
    }

    #[test]
    fn first_batch_of_an_identity_goes_alone() {
        let mut window = window(&[1, 1]);
        window.renew(SECOND);
        assert_eq!(window.limit(5), 1);
        window.confirm_oldest(appended(0).unwrap());
        assert_eq!(window.limit(5), 5);
        assert_eq!(
            new_window().limit(5),
            1,
            "without numbers, order needs one at a time"
        );
    }

    #[test]
    fn cut_batches_are_sent_again_with_the_same_numbers() {
        let mut window = window(&[1, 2, 3]);
        let settlement = window.settle(vec![cut(), cut()], Instant::now());
        assert!(settlement.done.is_empty() && !settlement.renew);
        assert!(settlement.retry.is_some());
        assert_eq!(sent(&window), [(7, 0, 1), (7, 1, 2), (7, 3, 3)]);
    }

    #[test]
    fn batch_behind_a_failed_one_is_out_of_order_and_only_sent_again() {
        let mut window = window(&[1, 2, 3]);
        let not_leader = refused(ErrorCode::NotLeaderOrFollower);
        let out_of_order = || refused(ErrorCode::OutOfOrderSequenceNumber);
        let settlement = window.settle(
            vec![not_leader, out_of_order(), out_of_order()],
            Instant::now(),
        );
        assert!(settlement.done.is_empty() && !settlement.renew);
        assert_eq!(sent(&window), [(7, 0, 1), (7, 1, 2), (7, 3, 3)]);
    }

    #[test]
    fn batch_confirmed_behind_a_cut_one_is_done_and_the_cut_one_is_sent_again() {
        let mut window = window(&[1, 2]);
        let settlement = window.settle(vec![cut(), appended(40)], Instant::now());
        assert_eq!(outcomes(&settlement), [Ok(40)]);
        assert_eq!(sent(&window), [(7, 0, 1)]);
    }

    #[test]
    fn refused_batch_fails_and_those_behind_it_get_new_numbers_only_when_proven_absent() {
        let mut window = window(&[1, 2, 3]);
        let invalid = refused(ErrorCode::InvalidRecord);
        let settlement = window.settle(vec![invalid, cut()], Instant::now());
        assert_eq!(outcomes(&settlement), [Err(Some(ErrorCode::InvalidRecord))]);
        assert!(!settlement.renew, "the cut one may be in the log");
        assert_eq!(sent(&window), [(7, 1, 2), (7, 3, 3)]);

        let out_of_order = refused(ErrorCode::OutOfOrderSequenceNumber);
        let settlement = window.settle(vec![out_of_order], Instant::now());
        assert!(settlement.renew && settlement.done.is_empty());
        window.renew(SECOND);
        assert_eq!(sent(&window), [(8, 0, 2), (8, 2, 3)]);
    }

    #[test]
    fn forgotten_producer_renews_unless_the_batch_may_be_in_the_log() {
        let mut fresh = window(&[1, 2]);
        let forgotten = || vec![refused(ErrorCode::UnknownProducerId)];
        assert!(fresh.settle(forgotten(), Instant::now()).renew);

        let mut doubtful = window(&[1, 2]);
        doubtful.settle(vec![cut()], Instant::now());
        let settlement = doubtful.settle(forgotten(), Instant::now());
        assert_eq!(
            outcomes(&settlement),
            [Err(Some(ErrorCode::UnknownProducerId))]
        );
        assert!(!settlement.renew);
        assert_eq!(doubtful.len(), 1);
    }

    #[test]
    fn batch_too_large_is_split_in_two_with_the_same_numbers() {
        let mut window = window(&[5, 2]);
        let settlement = window.settle(vec![refused(ErrorCode::MessageTooLarge)], Instant::now());
        assert!(settlement.done.is_empty());
        assert_eq!(sent(&window), [(7, 0, 2), (7, 2, 3), (7, 5, 2)]);
        assert_eq!(window.batches[1].replies.len(), 3);
    }

    #[test]
    fn single_record_too_large_fails_as_such() {
        let mut window = window(&[1]);
        let settlement = window.settle(vec![refused(ErrorCode::MessageTooLarge)], Instant::now());
        let outcome = settlement.done[0].outcome.as_ref();
        assert!(
            matches!(outcome, Err(Error::RecordTooLarge { cap: None, .. })),
            "{outcome:?}"
        );
    }

    #[test]
    fn batch_is_given_up_at_its_deadline_with_the_last_cause() {
        let mut window = window(&[1]);
        let late = Instant::now() + PATIENCE.delivery_timeout;
        let settlement = window.settle(vec![cut()], late);
        let Err(error) = &settlement.done[0].outcome else {
            panic!("not given up")
        };
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        assert!(
            matches!(error.root(), Error::Disconnected { .. }),
            "{error:?}"
        );
    }
}
