//! I1 and I2 over the manifests alone.

use std::collections::{BTreeMap, BTreeSet};

use broker_client::protocol::ids::TopicName;

use crate::layout::{REJECTED, RunNumber};
use crate::manifest::{
    AcceptedGap, FileKind, GapReason, LoadedRange, Manifest, PartitionKey, PartitionState,
};
use crate::schema::check_change;

/// Checks one manifest, and that it continues the one before; `before` is `None` for the first run and after a
/// run that is missing or unreadable (reported by itself).
pub(super) fn check_chain(manifest: &Manifest, before: Option<&Manifest>) -> Vec<String> {
    let ranges = manifest.ranges.iter();
    let mut check = Check {
        manifest,
        ranges: ranges.map(|r| ((&r.topic, r.partition), r)).collect(),
        states: by_key(manifest),
        problems: Vec::new(),
    };
    check.link(before);
    check.lists();
    check.counts();
    check.ranges();
    check.files();
    if let Some(before) = before {
        check.contiguous(before);
        check.gaps(before);
        if let Err(refused) = check_change(&before.schema, &manifest.schema) {
            let refused = refused.0.iter().map(ToString::to_string);
            check.problems.extend(refused.map(|problem| {
                format!("its columns cannot follow those of the run before: {problem}")
            }));
        }
    }
    check.problems
}

struct Check<'a> {
    manifest: &'a Manifest,
    ranges: BTreeMap<(&'a TopicName, i32), &'a LoadedRange>,
    states: BTreeMap<&'a PartitionKey, &'a PartitionState>,
    problems: Vec<String>,
}

fn by_key(manifest: &Manifest) -> BTreeMap<&PartitionKey, &PartitionState> {
    manifest.partitions.iter().map(|s| (&s.key, s)).collect()
}

impl<'a> Check<'a> {
    fn add(&mut self, problem: String) {
        self.problems.push(problem);
    }

    fn link(&mut self, before: Option<&Manifest>) {
        let number = self.manifest.number;
        match self.manifest.previous {
            None if number > RunNumber(1) => {
                self.add("names no run before it, and is not the first".to_owned());
            }
            Some(named) if named.number.0.checked_add(1) != Some(number.0) => {
                let named = named.number.directory();
                self.add(format!("continues {named}, which is not the run before it"));
            }
            Some(named) if before.is_some_and(|before| before.uuid != named.uuid) => {
                self.add(format!(
                    "continues another {} than the one that is there now",
                    named.number.directory()
                ));
            }
            _ => {}
        }
    }

    /// Nothing is listed twice.
    fn lists(&mut self) {
        let manifest = self.manifest;
        if self.states.len() < manifest.partitions.len() {
            self.add("lists a partition twice (I1)".to_owned());
        }
        if self.ranges.len() < manifest.ranges.len() {
            self.add("lists two ranges of one partition (I1)".to_owned());
        }
        let mut paths = BTreeSet::new();
        for file in &manifest.files {
            if !paths.insert(&file.path) {
                self.add(format!("lists {} twice", file.path));
            }
        }
    }

    /// I2: all offsets of each range are accounted for, and the files hold what was counted.
    fn counts(&mut self) {
        let manifest = self.manifest;
        for range in &manifest.ranges {
            let offsets = range.end.checked_sub(range.start).filter(|n| *n >= 0);
            let offsets = offsets.map_or(0, i64::cast_unsigned);
            if range.end <= range.start || range.counts.total() != offsets {
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
        for (kind, name, counted) in [
            (FileKind::Data, "data", counts.rows),
            (FileKind::Rejected, "rejected", counts.rejected),
        ] {
            let files = manifest.files.iter().filter(|file| file.kind == kind);
            let rows = files.fold(0_u64, |sum, file| sum.saturating_add(file.rows));
            if rows != counted {
                self.add(format!(
                    "the {name} files hold {rows} rows, the ranges count {counted} (I2)"
                ));
            }
        }
    }

    /// The ranges are those by which the partitions moved.
    fn ranges(&mut self) {
        let manifest = self.manifest;
        let mut listed = BTreeSet::new();
        for state in &manifest.partitions {
            let at = (&state.key.topic, state.key.partition);
            let range = (state.key.cluster_id == manifest.cluster_id).then(|| self.ranges.get(&at));
            let moved = match range.flatten() {
                Some(range) => (range.start, range.end),
                None => (state.end, state.end),
            };
            if moved != (state.start, state.end) {
                self.add(format!(
                    "{}: moved from {} to {}, its ranges say otherwise (I1)",
                    state.key, state.start, state.end
                ));
            }
            if state.key.cluster_id == manifest.cluster_id {
                listed.insert(at);
            }
        }
        for range in &manifest.ranges {
            if !listed.contains(&(&range.topic, range.partition)) {
                self.add(format!(
                    "{}-{}: loaded and not listed (I1)",
                    range.topic, range.partition
                ));
            }
        }
    }

    /// Each file lies where its kind belongs and holds offsets of this run's ranges.
    fn files(&mut self) {
        let manifest = self.manifest;
        for file in &manifest.files {
            let mut parts = file.path.split('/');
            if parts.any(|part| matches!(part, "" | "." | "..") || part.contains('\0')) {
                self.add(format!("{:?} is no path inside the run", file.path));
                continue;
            }
            let is_rejected = file.path.starts_with(&format!("{REJECTED}/"));
            if is_rejected != (file.kind == FileKind::Rejected) {
                self.add(format!("{} lies where its kind does not", file.path));
            }
            for span in &file.ranges {
                let range = self.ranges.get(&(&span.topic, span.partition));
                if !range.is_some_and(|r| r.start <= span.start && span.end <= r.end) {
                    self.add(format!(
                        "{} is to hold offsets {} to {} of {}-{}, outside the run's range (I1)",
                        file.path, span.start, span.end, span.topic, span.partition
                    ));
                }
            }
        }
    }

    /// I1: every partition starts where the run before ended, or at a gap that was accepted.
    fn contiguous(&mut self, before: &Manifest) {
        for old in &before.partitions {
            let now = self.states.get(&old.key).copied();
            let Some(now) = now.or_else(|| self.moved_to(old)) else {
                self.add(format!(
                    "{}: known to {} and not listed (I1)",
                    old.key,
                    before.number.directory()
                ));
                continue;
            };
            let gap = self.gap(old, now);
            if now.start != old.end && gap.is_none() {
                self.add(format!(
                    "{}: starts at {}, {} ended at {} (I1)",
                    old.key,
                    now.start,
                    before.number.directory(),
                    old.end
                ));
            }
            let is_another = old.topic_id.is_some() && now.topic_id.is_some();
            let is_another = is_another && old.topic_id != now.topic_id;
            if is_another && gap.is_none_or(|gap| gap.reason != GapReason::TopicRecreated) {
                self.add(format!(
                    "{}: goes on in another topic, by its id, and no gap was accepted (I6)",
                    old.key
                ));
            }
        }
    }

    /// Where a partition went on under another cluster id (a confirmed move).
    fn moved_to(&self, old: &PartitionState) -> Option<&'a PartitionState> {
        self.manifest.partitions.iter().find(|now| {
            now.key.topic == old.key.topic
                && now.key.partition == old.key.partition
                && now.topic_id == old.topic_id
                && now.topic_id.is_some()
        })
    }

    fn gap(&self, old: &PartitionState, now: &PartitionState) -> Option<&'a AcceptedGap> {
        let mut gaps = self.manifest.accepted_gaps.iter();
        gaps.find(|gap| {
            (&gap.topic, gap.partition) == (&now.key.topic, now.key.partition)
                && (gap.previous_end, gap.start) == (old.end, now.start)
        })
    }

    /// Each gap that was accepted is a jump that was made.
    fn gaps(&mut self, before: &Manifest) {
        for gap in &self.manifest.accepted_gaps {
            let at = (&gap.topic, gap.partition);
            let is_at = |s: &&PartitionState| (&s.key.topic, s.key.partition) == at;
            let mut from = before.partitions.iter().filter(is_at);
            let from = from.any(|old| old.end == gap.previous_end);
            let mut to = self.manifest.partitions.iter().filter(is_at);
            let to = to.any(|now| now.start == gap.start);
            let fits = match gap.reason {
                GapReason::Retention => gap.start > gap.previous_end,
                GapReason::Truncation => gap.start < gap.previous_end,
                GapReason::TopicRecreated => true,
            };
            if !(from && to && fits) {
                self.problems.push(format!(
                    "{}-{}: accepts a gap from {} to {} that nothing made (I6)",
                    gap.topic, gap.partition, gap.previous_end, gap.start
                ));
            }
        }
    }
}
