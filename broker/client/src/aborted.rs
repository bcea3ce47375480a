//! Which batches of a fetch response were aborted.
//!
//! A `read_committed` response lists the aborted transactions that overlap it: producer id and
//! first offset. A producer's transactional batches from that offset on are aborted, until its
//! ABORT marker (KIP-98).

use std::collections::{BTreeSet, VecDeque};

use broker_protocol::messages::fetch::AbortedTransaction;
use broker_protocol::record::{BatchHeader, ControlType};

/// What a batch holds for its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchKind {
    /// Records to be read.
    Data,
    /// Records of an aborted transaction (only found out under `read_committed`).
    Aborted,
    /// The marker that ends a transaction, or another batch for the broker's own use.
    Control,
}

/// Goes through the batches of one response in order.
#[derive(Debug, Default)]
pub(crate) struct AbortedTransactions {
    /// Not yet reached, by first offset.
    upcoming: VecDeque<(i64, i64)>,
    /// Producers whose batches are aborted at this point of the log.
    aborted: BTreeSet<i64>,
}

impl AbortedTransactions {
    pub(crate) fn new(listed: &[AbortedTransaction]) -> Self {
        let mut upcoming: Vec<_> = listed
            .iter()
            .map(|aborted| (aborted.first_offset, aborted.producer_id))
            .collect();
        upcoming.sort_unstable();
        Self {
            upcoming: upcoming.into(),
            aborted: BTreeSet::new(),
        }
    }

    /// The kind of the next batch. `control` is its marker, if it is a control batch.
    pub(crate) fn classify(
        &mut self,
        header: &BatchHeader,
        control: Option<ControlType>,
    ) -> BatchKind {
        while let Some((first_offset, producer_id)) = self.upcoming.front().copied()
            && first_offset <= header.last_offset()
        {
            self.upcoming.pop_front();
            self.aborted.insert(producer_id);
        }
        if header.is_control() {
            if control == Some(ControlType::Abort) {
                self.aborted.remove(&header.producer_id);
            }
            BatchKind::Control
        } else if header.is_transactional() && self.aborted.contains(&header.producer_id) {
            BatchKind::Aborted
        } else {
            BatchKind::Data
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSACTIONAL: i16 = 0x10;
    const CONTROL: i16 = 0x20;

    fn header(base_offset: i64, records: i32, producer_id: i64, attributes: i16) -> BatchHeader {
        BatchHeader {
            base_offset,
            batch_length: 49,
            partition_leader_epoch: 0,
            magic: 2,
            crc: 0,
            attributes,
            last_offset_delta: records - 1,
            base_timestamp: 0,
            max_timestamp: 0,
            producer_id,
            producer_epoch: 0,
            base_sequence: 0,
            records_count: records,
        }
    }

    fn aborted(producer_id: i64, first_offset: i64) -> AbortedTransaction {
        AbortedTransaction {
            producer_id,
            first_offset,
        }
    }

    /// (base, count, producer, control marker) -> kinds.
    fn kinds(
        listed: &[AbortedTransaction],
        log: &[(i64, i32, i64, Option<ControlType>)],
    ) -> Vec<BatchKind> {
        let mut state = AbortedTransactions::new(listed);
        let mut classify = |&(base, count, producer, control): &(i64, i32, i64, Option<_>)| {
            let attributes = if control.is_some() {
                TRANSACTIONAL | CONTROL
            } else {
                TRANSACTIONAL
            };
            state.classify(&header(base, count, producer, attributes), control)
        };
        log.iter().map(&mut classify).collect()
    }

    #[test]
    fn batches_are_aborted_from_first_offset_to_abort_marker() {
        use BatchKind::{Aborted, Control, Data};
        let log = [
            (0, 2, 1, None),
            (2, 1, 1, Some(ControlType::Commit)),
            (3, 2, 1, None),
            (5, 1, 2, None),
            (6, 1, 1, None),
            (7, 1, 1, Some(ControlType::Abort)),
            (8, 1, 1, None),
            (9, 1, 1, Some(ControlType::Commit)),
        ];
        let expected = [
            Data, Control, Aborted, Data, Aborted, Control, Data, Control,
        ];
        assert_eq!(kinds(&[aborted(1, 3)], &log), expected);
    }

    #[test]
    fn several_aborted_transactions_of_one_producer_and_interleaved_ones() {
        use BatchKind::{Aborted, Control, Data};
        let log = [
            (0, 1, 1, None),
            (1, 1, 2, None),
            (2, 1, 1, Some(ControlType::Abort)),
            (3, 1, 1, None),
            (4, 1, 2, Some(ControlType::Abort)),
            (5, 1, 1, Some(ControlType::Abort)),
            (6, 1, 2, None),
        ];
        let listed = [aborted(1, 3), aborted(2, 1), aborted(1, 0)];
        let expected = [Aborted, Aborted, Control, Aborted, Control, Control, Data];
        assert_eq!(kinds(&listed, &log), expected);
    }

    #[test]
    fn transaction_that_began_before_the_response_is_aborted_from_its_first_batch() {
        let log = [(100, 5, 9, None), (105, 1, 9, Some(ControlType::Abort))];
        assert_eq!(
            kinds(&[aborted(9, 17)], &log),
            [BatchKind::Aborted, BatchKind::Control]
        );
    }

    #[test]
    fn plain_batch_of_an_aborted_producer_id_is_data() {
        let mut state = AbortedTransactions::new(&[aborted(1, 0)]);
        assert_eq!(state.classify(&header(0, 1, 1, 0), None), BatchKind::Data);
    }
}
