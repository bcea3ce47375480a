//! Which leader epoch wrote which offsets (KIP-101), kept in `leader-epoch-checkpoint`.
//!
//! An entry `(epoch, start_offset)` says that the epoch's first record is at or after `start_offset`; it ends where
//! the next one starts. Epochs and start offsets both grow.

use std::path::PathBuf;

use crate::checkpoint;
use crate::disk::Disk;
use crate::error::Result;

/// The answer to "where does this leader epoch end?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch not above the one asked for that the log knows; -1 if unknown.
    pub leader_epoch: i32,
    /// Where it ends, exclusive; -1 if unknown.
    pub end_offset: i64,
}

impl EpochEnd {
    /// Nothing is known about the epoch.
    pub const UNKNOWN: Self = Self {
        leader_epoch: -1,
        end_offset: -1,
    };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaderEpochs {
    path: PathBuf,
    entries: Vec<(i32, i64)>,
    /// True if `entries` is not what the file holds.
    dirty: bool,
}

impl LeaderEpochs {
    /// Without entries, until some are assigned.
    pub(crate) fn empty(path: PathBuf) -> Self {
        Self {
            path,
            entries: Vec::new(),
            dirty: false,
        }
    }

    /// Without entries, in place of a file that holds something else.
    pub(crate) fn empty_and_dirty(path: PathBuf) -> Self {
        Self {
            path,
            entries: Vec::new(),
            dirty: true,
        }
    }

    /// Reads the file; `Ok(None)` if what it holds does not grow.
    pub(crate) fn load(disk: &dyn Disk, path: PathBuf) -> Result<Option<Self>> {
        let entries = checkpoint::read_epochs(disk, &path)?;
        let grows = entries.windows(2).all(|pair| match pair {
            [a, b] => a.0 < b.0 && a.1 <= b.1,
            _ => true,
        });
        Ok(grows.then_some(Self {
            path,
            entries,
            dirty: false,
        }))
    }

    pub(crate) fn latest(&self) -> Option<i32> {
        self.entries.last().map(|(epoch, _)| *epoch)
    }

    /// Notes that `leader_epoch` wrote from `start_offset` on. Returns true if that is new. Epochs below 0 (none) and
    /// below the latest are ignored.
    pub(crate) fn assign(&mut self, leader_epoch: i32, start_offset: i64) -> bool {
        let is_new = leader_epoch >= 0 && self.latest().is_none_or(|latest| latest < leader_epoch);
        if is_new {
            // An epoch without records of its own ends where the new one begins.
            self.entries.retain(|(_, start)| *start < start_offset);
            self.entries.push((leader_epoch, start_offset));
            self.dirty = true;
        }
        is_new
    }

    /// Assigns what `other` knows and is newer.
    pub(crate) fn assign_all(&mut self, other: &Self) {
        for (epoch, start) in &other.entries {
            self.assign(*epoch, *start);
        }
    }

    /// Forgets epochs that start at or behind `end_offset`.
    pub(crate) fn truncate_to(&mut self, end_offset: i64) {
        let before = self.entries.len();
        self.entries.retain(|(_, start)| *start < end_offset);
        self.dirty |= before != self.entries.len();
    }

    /// Forgets what lies before `start_offset`; the epoch that covers it starts there from now on.
    pub(crate) fn advance_start(&mut self, start_offset: i64) {
        let covering = self
            .entries
            .iter()
            .rposition(|(_, start)| *start <= start_offset);
        if let Some(covering) = covering {
            self.dirty |= covering > 0;
            self.entries.drain(..covering);
            if let Some(first) = self.entries.first_mut() {
                self.dirty |= first.1 != start_offset;
                first.1 = start_offset;
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.dirty |= !self.entries.is_empty();
        self.entries.clear();
    }

    /// Writes the file if it is behind.
    pub(crate) fn write_if_dirty(&mut self, disk: &dyn Disk) -> Result<()> {
        if self.dirty {
            checkpoint::write_epochs(disk, &self.path, &self.entries)?;
            self.dirty = false;
        }
        Ok(())
    }

    /// Where an epoch ends, by Kafka's rules (`LeaderEpochFileCache.endOffsetFor`).
    pub(crate) fn end_offset_for(&self, leader_epoch: i32, log_end_offset: i64) -> EpochEnd {
        if leader_epoch < 0 {
            return EpochEnd::UNKNOWN;
        }
        if self.latest() == Some(leader_epoch) {
            return EpochEnd {
                leader_epoch,
                end_offset: log_end_offset,
            };
        }
        let higher = self
            .entries
            .partition_point(|(epoch, _)| *epoch <= leader_epoch);
        let Some((_, end_offset)) = self.entries.get(higher) else {
            return EpochEnd::UNKNOWN;
        };
        let floor = higher
            .checked_sub(1)
            .and_then(|floor| self.entries.get(floor));
        let leader_epoch = floor.map_or(leader_epoch, |(epoch, _)| *epoch);
        EpochEnd {
            leader_epoch,
            end_offset: *end_offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    fn epochs(entries: &[(i32, i64)]) -> LeaderEpochs {
        let mut epochs = LeaderEpochs::empty(PathBuf::new());
        for (epoch, start) in entries {
            assert!(epochs.assign(*epoch, *start));
        }
        epochs
    }

    #[test]
    fn end_offset_follows_kafkas_rules() {
        let epochs = epochs(&[(2, 0), (3, 10), (7, 25)]);
        let end = |epoch| {
            let end = epochs.end_offset_for(epoch, 40);
            (end.leader_epoch, end.end_offset)
        };
        assert_eq!(end(7), (7, 40), "the latest ends at the log's end");
        assert_eq!(end(8), (-1, -1), "a newer one is unknown");
        assert_eq!(end(3), (3, 25));
        assert_eq!(
            end(5),
            (3, 25),
            "a missing one is answered by the one before"
        );
        assert_eq!(
            end(1),
            (1, 0),
            "one before the first ends where the first begins"
        );
        assert_eq!(end(-1), (-1, -1));
        assert_eq!(
            LeaderEpochs::empty(PathBuf::new()).end_offset_for(0, 5),
            EpochEnd::UNKNOWN
        );
    }

    #[test]
    fn assignments_and_cuts_keep_the_order() {
        let mut epochs = epochs(&[(2, 0), (3, 10), (7, 25)]);
        assert!(!epochs.assign(3, 30), "an old epoch is no news");
        assert!(!epochs.assign(7, 30));
        assert!(
            epochs.assign(8, 25),
            "an epoch that wrote nothing is replaced"
        );
        assert_eq!(epochs.entries, [(2, 0), (3, 10), (8, 25)]);
        epochs.truncate_to(25);
        assert_eq!(epochs.entries, [(2, 0), (3, 10)]);
        epochs.advance_start(12);
        assert_eq!(epochs.entries, [(3, 12)]);
        epochs.advance_start(5);
        assert_eq!(epochs.entries, [(3, 12)], "the start never goes back");
        epochs.clear();
        assert_eq!(epochs.latest(), None);
    }

    #[test]
    fn file_round_trips_and_disorder_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(checkpoint::LEADER_EPOCHS);
        let mut epochs = LeaderEpochs::load(&RealDisk, path.clone())
            .unwrap()
            .unwrap();
        epochs.assign(0, 0);
        epochs.assign(4, 17);
        epochs.write_if_dirty(&RealDisk).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "0\n2\n0 0\n4 17\n");
        assert_eq!(
            LeaderEpochs::load(&RealDisk, path.clone())
                .unwrap()
                .unwrap(),
            epochs
        );
        std::fs::write(&path, "0\n2\n4 0\n3 17\n").unwrap();
        assert_eq!(LeaderEpochs::load(&RealDisk, path).unwrap(), None);
    }
}
