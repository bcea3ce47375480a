//! Every offset in the files of a run: inside the range it belongs to, and none twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Problem;
use super::files::FileFacts;
use crate::manifest::{FileKind, Manifest};

/// Offsets a chunk of the bit map covers.
const CHUNK: u64 = 1 << 16;

/// A set of offsets, one bit each, in chunks that exist only where needed.
#[derive(Debug, Default)]
pub(super) struct OffsetSet {
    chunks: BTreeMap<u64, Box<[u64]>>,
}

impl OffsetSet {
    /// Adds an offset; false if it was there.
    pub(super) fn insert(&mut self, offset: i64) -> bool {
        let at = offset.cast_unsigned();
        let chunk = self
            .chunks
            .entry(at / CHUNK)
            .or_insert_with(|| vec![0; usize::try_from(CHUNK / 64).unwrap_or(0)].into());
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

/// Collects the offsets of a run's files, one file after the other.
#[derive(Debug)]
pub(super) struct OffsetAudit<'a> {
    manifest: &'a Manifest,
    seen: BTreeMap<(Arc<str>, i32), Seen>,
}

/// What the files hold of one partition.
#[derive(Debug, Default)]
struct Seen {
    offsets: OffsetSet,
    rows: u64,
    rejected: u64,
}

impl<'a> OffsetAudit<'a> {
    pub(super) const fn new(manifest: &'a Manifest) -> Self {
        Self {
            manifest,
            seen: BTreeMap::new(),
        }
    }

    /// Takes the offsets of one file; returns what is wrong with them.
    pub(super) fn add(&mut self, file: &FileFacts) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (topic, partition, offsets) in &file.offsets {
            let range = self
                .manifest
                .ranges
                .iter()
                .find(|r| r.topic.as_str() == &**topic && r.partition == *partition);
            let seen = self
                .seen
                .entry((Arc::clone(topic), *partition))
                .or_default();
            let (mut outside, mut twice) = (0_u64, 0_u64);
            for offset in offsets {
                outside += u64::from(!range.is_some_and(|r| (r.start..r.end).contains(offset)));
                twice += u64::from(!seen.offsets.insert(*offset));
            }
            let count = u64::try_from(offsets.len()).unwrap_or(u64::MAX);
            match file.kind {
                FileKind::Data => seen.rows += count,
                FileKind::Rejected => seen.rejected += count,
            }
            for (count, what) in [
                (outside, "lie outside the run's range"),
                (twice, "are in the run twice"),
            ] {
                if count > 0 {
                    problems.push(Problem {
                        path: file.path.clone(),
                        problem: format!("{count} offsets of {topic}-{partition} {what} (I4)"),
                    });
                }
            }
        }
        problems
    }

    /// Compares what was found with the manifest's counts; call once all files were added.
    pub(super) fn finish(self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        for range in &self.manifest.ranges {
            let found = self
                .seen
                .get(&(Arc::from(range.topic.as_str()), range.partition));
            let found = found.map_or((0, 0), |seen| (seen.rows, seen.rejected));
            if found != (range.counts.rows, range.counts.rejected) {
                problems.push(Problem {
                    path: path.to_owned(),
                    problem: format!(
                        "{}-{}: {} rows and {} rejected records are in the files, the manifest counts {} \
                         and {} (I2)",
                        range.topic,
                        range.partition,
                        found.0,
                        found.1,
                        range.counts.rows,
                        range.counts.rejected
                    ),
                });
            }
        }
        problems
    }
}
