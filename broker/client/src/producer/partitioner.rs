//! Which partition a record goes to.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Sticks to one partition for about a batch, then moves on (KIP-480, KIP-794): batches fill, and
/// over time every partition gets the same share.
#[derive(Debug)]
pub(crate) struct StickyPartitioner {
    /// Counts the moves; starts anywhere so that many producers do not begin with the same one.
    turn: usize,
    current: Option<i32>,
    bytes: usize,
}

impl StickyPartitioner {
    pub(crate) fn new() -> Self {
        let random = RandomState::new().build_hasher().finish();
        Self::starting_at(usize::try_from(random >> 33).unwrap_or(0))
    }

    fn starting_at(turn: usize) -> Self {
        Self {
            turn,
            current: None,
            bytes: 0,
        }
    }

    /// The partition for a record of `size` bytes, out of those `available`; moves on after
    /// `batch_bytes`. `None` if there is no partition.
    pub(crate) fn choose(
        &mut self,
        size: usize,
        batch_bytes: usize,
        available: &[i32],
    ) -> Option<i32> {
        let current = self.current.filter(|current| {
            available.contains(current) && self.bytes.saturating_add(size) <= batch_bytes
        });
        if let Some(current) = current {
            self.bytes += size;
            return Some(current);
        }
        self.turn = self.turn.wrapping_add(1);
        self.current = available.get(self.turn % available.len().max(1)).copied();
        self.bytes = size;
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_sticks_for_a_batch_and_then_moves_on() {
        let mut sticky = StickyPartitioner::starting_at(0);
        let chosen: Vec<_> = (0..7).map(|_| sticky.choose(40, 100, &[0, 1, 2])).collect();
        let expected = [1, 1, 2, 2, 0, 0, 1].map(Some);
        assert_eq!(chosen, expected);
    }

    #[test]
    fn partition_that_is_no_longer_available_is_left() {
        let mut sticky = StickyPartitioner::starting_at(0);
        assert_eq!(sticky.choose(1, 100, &[0, 1]), Some(1));
        assert_eq!(sticky.choose(1, 100, &[0]), Some(0));
        assert_eq!(sticky.choose(1, 100, &[]), None);
    }

    #[test]
    fn record_larger_than_a_batch_gets_a_partition() {
        let mut sticky = StickyPartitioner::starting_at(0);
        assert!(sticky.choose(1000, 100, &[5]).is_some());
    }
}
