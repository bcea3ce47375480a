//! What idempotent producers wrote last: duplicates, gaps and fenced epochs are told from their sequences.
//!
//! Per producer id the newest epoch and its last five batches are kept, as Kafka does: a producer has at most five
//! requests in flight, so a repeated batch is one of them and is answered with its first offset. When the log is opened,
//! state comes from the newest snapshot (`snapshots.rs`) and the batch headers behind it. Memory: about 200 bytes per
//! producer id that wrote within `producer_id_expiration_ms`.

use std::collections::{HashMap, VecDeque};

use broker_protocol::record::BatchHeader;

use crate::error::Rejected;
use crate::scan::end_offset_of;

mod snapshot;

/// Batches remembered per producer.
const WINDOW: usize = 5;

/// One remembered batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SentBatch {
    first_sequence: i32,
    last_sequence: i32,
    base_offset: i64,
    end_offset: i64,
    timestamp_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Producer {
    epoch: i16,
    batches: VecDeque<SentBatch>,
    /// The broker's time of the last append; of a rebuilt state the batch's own time.
    seen_ms: i64,
}

/// What to do with an idempotent batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It is new.
    Append,
    /// It is in the log already, at these offsets.
    Duplicate {
        /// Its first offset.
        base_offset: i64,
        /// Behind its last offset.
        end_offset: i64,
        /// The largest timestamp it was stored with.
        timestamp_ms: i64,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProducerStates {
    producers: HashMap<i64, Producer>,
}

/// An idempotent producer that a partition remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveProducer {
    /// Its id.
    pub producer_id: i64,
    /// The newest epoch it wrote under.
    pub producer_epoch: i16,
    /// Sequence of its last record under that epoch, if it wrote one.
    pub last_sequence: Option<i32>,
    /// The largest timestamp of its last batch in milliseconds since 1970; when it was seen, if it wrote none.
    pub last_timestamp_ms: i64,
}

/// Sequences wrap from `i32::MAX` to 0.
fn add_sequence(sequence: i32, records: i32) -> i32 {
    let sum = (i64::from(sequence) + i64::from(records)) & i64::from(i32::MAX);
    i32::try_from(sum).unwrap_or(0)
}

impl ProducerStates {
    /// Judges a batch by what was recorded. Batches of producers without an id are always new.
    pub(crate) fn judge(&self, header: &BatchHeader) -> Result<Judgement, Rejected> {
        let Some(producer) = self.producers.get(&header.producer_id) else {
            return Ok(Judgement::Append);
        };
        if header.producer_epoch < producer.epoch {
            return Err(Rejected::FencedProducer {
                producer_id: header.producer_id,
                producer_epoch: header.producer_epoch,
                current_epoch: producer.epoch,
            });
        }
        let first = header.base_sequence;
        let expected = if header.producer_epoch > producer.epoch {
            0
        } else {
            let last = add_sequence(first, header.last_offset_delta);
            let same =
                |sent: &&SentBatch| sent.first_sequence == first && sent.last_sequence == last;
            if let Some(sent) = producer.batches.iter().find(same) {
                let SentBatch {
                    base_offset,
                    end_offset,
                    timestamp_ms,
                    ..
                } = *sent;
                return Ok(Judgement::Duplicate {
                    base_offset,
                    end_offset,
                    timestamp_ms,
                });
            }
            match producer.batches.back() {
                Some(sent) => add_sequence(sent.last_sequence, 1),
                None => return Ok(Judgement::Append),
            }
        };
        if first == expected {
            Ok(Judgement::Append)
        } else {
            Err(Rejected::OutOfOrderSequence {
                producer_id: header.producer_id,
                producer_epoch: header.producer_epoch,
                expected,
                got: first,
            })
        }
    }

    /// Records a batch that is in the log at `header.base_offset`.
    pub(crate) fn record(&mut self, header: &BatchHeader, seen_ms: i64) {
        if header.producer_id < 0 {
            return;
        }
        let epoch = header.producer_epoch;
        let fresh = || Producer {
            epoch,
            batches: VecDeque::new(),
            seen_ms,
        };
        let producer = self
            .producers
            .entry(header.producer_id)
            .or_insert_with(fresh);
        if producer.epoch != epoch {
            *producer = fresh();
        }
        producer.seen_ms = producer.seen_ms.max(seen_ms);
        // A control batch fences by its epoch but has no sequence.
        if header.base_sequence >= 0 {
            if producer.batches.len() == WINDOW {
                producer.batches.pop_front();
            }
            producer.batches.push_back(SentBatch {
                first_sequence: header.base_sequence,
                last_sequence: add_sequence(header.base_sequence, header.last_offset_delta),
                base_offset: header.base_offset,
                end_offset: end_offset_of(header),
                timestamp_ms: header.max_timestamp,
            });
        }
    }

    /// The state of one producer, to put back with [`ProducerStates::restore`].
    pub(crate) fn save(&self, producer_id: i64) -> SavedProducer {
        SavedProducer {
            producer_id,
            producer: self.producers.get(&producer_id).cloned(),
        }
    }

    /// Undoes what was recorded for a producer since [`ProducerStates::save`].
    pub(crate) fn restore(&mut self, saved: SavedProducer) {
        match saved.producer {
            Some(producer) => {
                self.producers.insert(saved.producer_id, producer);
            }
            None => {
                self.producers.remove(&saved.producer_id);
            }
        }
    }

    /// Behind the last batch of each producer.
    pub(crate) fn last_ends(&self) -> HashMap<i64, i64> {
        let ends = self.producers.iter().filter_map(|(id, producer)| {
            let last = producer.batches.back()?;
            Some((*id, last.end_offset))
        });
        ends.collect()
    }

    /// Every producer that is not forgotten, in no order.
    pub(crate) fn active(&self) -> Vec<ActiveProducer> {
        let producers = self.producers.iter();
        let active = producers.map(|(&producer_id, producer)| {
            let last = producer.batches.back();
            ActiveProducer {
                producer_id,
                producer_epoch: producer.epoch,
                last_sequence: last.map(|sent| sent.last_sequence),
                last_timestamp_ms: last.map_or(producer.seen_ms, |sent| sent.timestamp_ms),
            }
        });
        active.collect()
    }

    /// Forgets producers that have been idle since before `since_ms`.
    pub(crate) fn expire(&mut self, since_ms: i64) {
        self.producers
            .retain(|_, producer| producer.seen_ms >= since_ms);
    }

    pub(crate) fn clear(&mut self) {
        self.producers.clear();
    }
}

/// A producer's state before a batch was recorded.
#[derive(Debug, Clone)]
pub(crate) struct SavedProducer {
    producer_id: i64,
    producer: Option<Producer>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(epoch: i16, sequence: i32, records: i32, base_offset: i64) -> BatchHeader {
        BatchHeader {
            base_offset,
            batch_length: 49,
            partition_leader_epoch: 0,
            magic: 2,
            crc: 0,
            attributes: 0,
            last_offset_delta: records - 1,
            base_timestamp: 5,
            max_timestamp: 5,
            producer_id: 9,
            producer_epoch: epoch,
            base_sequence: sequence,
            records_count: records,
        }
    }

    fn sent(batches: &[BatchHeader]) -> ProducerStates {
        let mut states = ProducerStates::default();
        for batch in batches {
            assert_eq!(states.judge(batch).unwrap(), Judgement::Append);
            states.record(batch, 5);
        }
        states
    }

    #[test]
    fn one_of_the_last_five_repeated_returns_its_offsets() {
        let batches: Vec<_> = (0..6)
            .map(|i| batch(0, i * 10, 10, 100 + i64::from(i) * 10))
            .collect();
        let states = sent(&batches);
        for (i, repeated) in batches.iter().enumerate().skip(1) {
            let base_offset = 100 + i64::try_from(i).unwrap() * 10;
            let expected = Judgement::Duplicate {
                base_offset,
                end_offset: base_offset + 10,
                timestamp_ms: 5,
            };
            assert_eq!(states.judge(repeated).unwrap(), expected);
        }
        let outside = states.judge(&batches[0]).unwrap_err();
        assert!(
            matches!(
                outside,
                Rejected::OutOfOrderSequence {
                    expected: 60,
                    got: 0,
                    ..
                }
            ),
            "{outside:?}"
        );
        let other_length = states.judge(&batch(0, 50, 9, 0)).unwrap_err();
        assert!(
            matches!(other_length, Rejected::OutOfOrderSequence { .. }),
            "{other_length:?}"
        );
    }

    #[test]
    fn gaps_and_old_epochs_are_refused_and_new_epochs_start_at_zero() {
        let states = sent(&[batch(3, 0, 2, 0)]);
        let judged = |epoch, sequence| states.judge(&batch(epoch, sequence, 1, 0));
        assert_eq!(judged(3, 2).unwrap(), Judgement::Append);
        assert!(matches!(
            judged(3, 3),
            Err(Rejected::OutOfOrderSequence {
                expected: 2,
                got: 3,
                ..
            })
        ));
        assert!(matches!(
            judged(2, 2),
            Err(Rejected::FencedProducer {
                current_epoch: 3,
                ..
            })
        ));
        assert_eq!(judged(4, 0).unwrap(), Judgement::Append);
        assert!(matches!(
            judged(4, 2),
            Err(Rejected::OutOfOrderSequence { expected: 0, .. })
        ));
    }

    #[test]
    fn an_unknown_producer_may_start_anywhere() {
        // Its earlier records may have been deleted by retention, or it expired.
        let mut states = sent(&[batch(0, 77, 2, 0)]);
        states.expire(6);
        assert_eq!(
            states.judge(&batch(0, 1234, 1, 0)).unwrap(),
            Judgement::Append
        );
    }

    #[test]
    fn sequences_wrap_to_zero() {
        let states = sent(&[batch(0, i32::MAX - 1, 3, 0)]);
        assert_eq!(states.judge(&batch(0, 1, 1, 0)).unwrap(), Judgement::Append);
    }

    #[test]
    fn restore_undoes_a_record() {
        let mut states = sent(&[batch(0, 0, 2, 0)]);
        let before = states.clone();
        let saved = states.save(9);
        states.record(&batch(0, 2, 2, 2), 5);
        assert_ne!(states, before);
        states.restore(saved);
        assert_eq!(states, before);
    }
}
