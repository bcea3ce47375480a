//! I1 and I2 over the manifests alone.

use super::{Problem, name, rows_of};
use crate::manifest::{AcceptedGap, FileKind, Manifest, PartitionState};

/// Checks one manifest, and that it continues the one before. `before` is `None` for the first run and
/// after an unreadable manifest (reported by itself).
pub(super) fn check_chain(
    path: &str,
    manifest: &Manifest,
    before: Option<&Manifest>,
    first: bool,
) -> Vec<Problem> {
    let mut check = Check {
        path,
        manifest,
        problems: Vec::new(),
    };
    check.link(before, first);
    check.counts();
    check.ranges();
    if let Some(before) = before {
        check.contiguous(before);
    }
    check.problems
}

struct Check<'a> {
    path: &'a str,
    manifest: &'a Manifest,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn add(&mut self, problem: String) {
        self.problems.push(Problem {
            path: self.path.to_owned(),
            problem,
        });
    }

    fn link(&mut self, before: Option<&Manifest>, first: bool) {
        let named = self.manifest.previous;
        match (named, before) {
            (None, None) if !first => {
                self.add("names no run before it, and is not the first".to_owned());
            }
            (Some(named), None) if first => {
                self.add(format!("continues {}, which is gone", name(named.number)));
            }
            (named, Some(before)) if named != Some(before.run_ref()) => {
                self.add(format!(
                    "does not continue {} as it is now",
                    name(before.number)
                ));
            }
            _ => {}
        }
    }

    /// I2: all offsets of each range are accounted for, and the files hold what was counted.
    fn counts(&mut self) {
        let manifest = self.manifest;
        for range in &manifest.ranges {
            let offsets = (range.end - range.start).unsigned_abs();
            if range.end < range.start || range.counts.total() != offsets {
                self.add(format!(
                    "{}-{}: the counts of offsets {} to {} add up to {}, not {offsets} (I2)",
                    range.topic,
                    range.partition,
                    range.start,
                    range.end,
                    range.counts.total()
                ));
            }
        }
        let counts = manifest.counts();
        for (kind, counted) in [
            (FileKind::Data, counts.rows),
            (FileKind::Rejected, counts.rejected),
        ] {
            let rows = rows_of(manifest, kind);
            if rows != counted {
                self.add(format!(
                    "{kind:?} files hold {rows} rows, the ranges count {counted} (I2)"
                ));
            }
        }
    }

    /// The ranges are those by which the partitions moved.
    fn ranges(&mut self) {
        let manifest = self.manifest;
        for state in manifest
            .partitions
            .iter()
            .filter(|s| s.key.cluster_id == manifest.cluster_id)
        {
            let loaded: Vec<_> = manifest
                .ranges
                .iter()
                .filter(|r| r.topic == state.key.topic && r.partition == state.key.partition)
                .collect();
            let fits = match loaded[..] {
                [] => state.start == state.end,
                [range] => (range.start, range.end) == (state.start, state.end),
                _ => false,
            };
            if !fits {
                self.add(format!(
                    "{}: moved from {} to {}, its ranges say otherwise (I1)",
                    state.key, state.start, state.end
                ));
            }
        }
        for range in &manifest.ranges {
            let known = manifest.partitions.iter().any(|s| {
                s.key.cluster_id == manifest.cluster_id
                    && s.key.topic == range.topic
                    && s.key.partition == range.partition
            });
            if !known {
                self.add(format!(
                    "{}-{}: loaded and not listed (I1)",
                    range.topic, range.partition
                ));
            }
        }
    }

    /// I1: every partition starts where the run before ended, or at a gap that was accepted.
    fn contiguous(&mut self, before: &Manifest) {
        for old in &before.partitions {
            let now = self
                .manifest
                .partition(&old.key)
                .or_else(|| self.moved_to(old));
            let Some(now) = now else {
                self.add(format!(
                    "{}: known to {} and not listed (I1)",
                    old.key,
                    name(before.number)
                ));
                continue;
            };
            if now.start != old.end && !self.accepted(old, now) {
                self.add(format!(
                    "{}: starts at {}, {} ended at {} (I1)",
                    old.key,
                    now.start,
                    name(before.number),
                    old.end
                ));
            }
        }
    }

    /// Where a partition went on under another cluster id (a confirmed move).
    fn moved_to(&self, old: &PartitionState) -> Option<&PartitionState> {
        self.manifest.partitions.iter().find(|now| {
            now.key.topic == old.key.topic
                && now.key.partition == old.key.partition
                && now.topic_id == old.topic_id
                && now.topic_id.is_some()
        })
    }

    fn accepted(&self, old: &PartitionState, now: &PartitionState) -> bool {
        let fits = |gap: &AcceptedGap| {
            gap.topic == now.key.topic
                && gap.partition == now.key.partition
                && gap.previous_end == old.end
                && gap.start == now.start
        };
        self.manifest.accepted_gaps.iter().any(fits)
    }
}
