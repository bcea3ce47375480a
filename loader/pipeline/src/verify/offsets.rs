//! Every offset in the files of a run: inside the range it belongs to, and none twice.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::Problem;
use crate::manifest::{FileKind, Manifest};

/// Offsets a chunk of the bit map covers.
const CHUNK: u64 = 1 << 12;
/// Words of a chunk.
const WORDS: usize = 1 << 6;

/// A set of offsets, one bit each, in chunks that exist only where needed.
#[derive(Debug, Default)]
pub(super) struct OffsetSet {
    chunks: BTreeMap<u64, Box<[u64; WORDS]>>,
}

impl OffsetSet {
    /// Adds an offset; false if it was there.
    pub(super) fn insert(&mut self, offset: i64) -> bool {
        let at = offset.cast_unsigned();
        let chunk = self
            .chunks
            .entry(at / CHUNK)
            .or_insert_with(|| Box::new([0; WORDS]));
        let within = at % CHUNK;
        let bit = 1 << (within % 64);
        let Some(word) = usize::try_from(within / 64)
            .ok()
            .and_then(|w| chunk.get_mut(w))
        else {
            return false;
        };
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

/// Takes the offsets of a run's files, of several at once. Memory: one bit an offset of the run's ranges; where
/// compaction left few of them, up to half a kilobyte a row.
#[derive(Debug)]
pub(super) struct OffsetAudit {
    partitions: BTreeMap<(String, i32), Partition>,
}

/// One loaded range, and what the files hold of it.
#[derive(Debug)]
struct Partition {
    range: Range<i64>,
    counted: (u64, u64),
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    offsets: OffsetSet,
    rows: u64,
    rejected: u64,
}

/// What one file holds of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) smallest: i64,
    pub(super) largest: i64,
    outside: u64,
    twice: u64,
}

/// What one file holds, by topic and partition.
pub(super) type FileOffsets = BTreeMap<(String, i32), Held>;

impl OffsetAudit {
    pub(super) fn new(manifest: &Manifest) -> Self {
        let partitions = manifest.ranges.iter().map(|range| {
            let partition = Partition {
                range: range.start..range.end,
                counted: (range.counts.rows, range.counts.rejected),
                seen: Mutex::default(),
            };
            ((range.topic.to_string(), range.partition), partition)
        });
        Self {
            partitions: partitions.collect(),
        }
    }

    /// Takes offsets of one partition from a file of `kind`, and notes in `file` what is wrong with them.
    pub(super) fn add(
        &self,
        kind: FileKind,
        (topic, partition): (&str, i32),
        offsets: impl Iterator<Item = i64>,
        file: &mut FileOffsets,
    ) {
        let key = (topic.to_owned(), partition);
        let known = self.partitions.get(&key);
        let mut seen = known.map(|known| known.seen.lock().unwrap_or_else(PoisonError::into_inner));
        let held = file.entry(key).or_default();
        for offset in offsets {
            held.smallest = held.smallest.min(offset);
            held.largest = held.largest.max(offset);
            match &mut seen {
                Some(seen) if known.is_some_and(|known| known.range.contains(&offset)) => {
                    held.twice += u64::from(!seen.offsets.insert(offset));
                    match kind {
                        FileKind::Data => seen.rows += 1,
                        FileKind::Rejected => seen.rejected += 1,
                    }
                }
                _ => held.outside += 1,
            }
        }
    }

    /// Compares what was found with the manifest's counts; call once all files were added.
    pub(super) fn finish(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        for ((topic, number), partition) in &self.partitions {
            let seen = partition
                .seen
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let counted = partition.counted;
            if (seen.rows, seen.rejected) != counted {
                problems.push(Problem {
                    path: path.to_owned(),
                    problem: format!(
                        "{topic}-{number}: {} rows and {} rejected records are in the files, the manifest \
                         counts {} and {} (I2)",
                        seen.rows, seen.rejected, counted.0, counted.1
                    ),
                });
            }
        }
        problems
    }
}

impl Default for Held {
    fn default() -> Self {
        Self {
            smallest: i64::MAX,
            largest: i64::MIN,
            outside: 0,
            twice: 0,
        }
    }
}

impl Held {
    /// What is wrong, in words.
    pub(super) fn problems(&self) -> impl Iterator<Item = (u64, &'static str)> {
        [
            (self.outside, "lie outside the run's range"),
            (self.twice, "are in the run twice"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_new_once() {
        let mut set = OffsetSet::default();
        for offset in [0, 1, 63, 64, 4095, 4096, i64::MAX] {
            assert!(set.insert(offset), "{offset}");
            assert!(!set.insert(offset), "{offset}");
        }
        assert!(set.insert(2));
    }
}
