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
    pub(crate) fn new(patience: Patience) -> Self {
        Self {
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
                return Verdict::Done(Err(too_large(batch, error)));
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
            topic: None,
            partition: None,
            offset: None,
            after: self.patience.delivery_timeout,
            source: Some(Box::new(last)),
        }
    }
}

fn too_large(batch: &OpenBatch, error: Error) -> Error {
    if let Error::Kafka {
        topic: Some(topic), ..
    } = error
    {
        return Error::RecordTooLarge {
            topic,
            size: batch.size,
            cap: None,
        };
    }
    error
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
        Error::Disconnected { .. } | Error::NoAnswer { .. } | Error::Protocol { .. }
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
