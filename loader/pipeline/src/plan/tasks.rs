//! Cutting ranges into tasks of about equal input bytes, and packing small ones.

use std::collections::BTreeMap;

use broker_client::protocol::ids::TopicName;
use serde::{Deserialize, Serialize};

use super::PlannedPartition;
use crate::snapshot::SourceSnapshot;

/// Assumed when nothing is known of a partition's size.
const DEFAULT_BYTES_PER_OFFSET: u64 = 200;

/// Unit of work: it is done whole or not at all, anywhere, as often as needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Number of the task in its plan.
    pub task: u32,
    /// Ranges, read one after the other.
    pub ranges: Vec<TaskRange>,
}

/// Offsets `[start, end)` of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskRange {
    /// Topic.
    #[serde(with = "crate::text")]
    pub topic: TopicName,
    /// Partition.
    pub partition: i32,
    /// First offset.
    pub start: i64,
    /// Exclusive end.
    pub end: i64,
    /// Whether offsets may lack records.
    pub holes_allowed: bool,
}

/// Estimated input bytes an offset stands for.
#[derive(Debug, Default)]
pub(super) struct BytesPerOffset(BTreeMap<(TopicName, i32), u64>);

impl BytesPerOffset {
    /// From log sizes, where the brokers tell them.
    pub(super) fn new(source: &SourceSnapshot) -> Self {
        let mut estimates = BTreeMap::new();
        for topic in &source.topics {
            for partition in &topic.partitions {
                let Ok(log) = &partition.offsets else {
                    continue;
                };
                let held = u64::try_from(log.end - log.earliest).unwrap_or(0);
                if let (Some(bytes), 1..) = (log.bytes, held) {
                    estimates.insert(
                        (topic.topic.clone(), partition.partition),
                        (bytes / held).max(1),
                    );
                }
            }
        }
        Self(estimates)
    }

    fn of(&self, partition: &PlannedPartition) -> u64 {
        let key = (partition.topic.clone(), partition.partition);
        self.0
            .get(&key)
            .copied()
            .unwrap_or(DEFAULT_BYTES_PER_OFFSET)
    }
}

/// Cuts `partitions` (sorted by topic and partition) into tasks of about `task_bytes`. A task holds
/// ranges of one topic only, one a partition. The result depends on its arguments alone.
pub(super) fn cut(
    partitions: &[PlannedPartition],
    task_bytes: u64,
    bytes_per_offset: &BytesPerOffset,
) -> Vec<Task> {
    let mut packer = Packer {
        tasks: Vec::new(),
        open_bytes: 0,
        task_bytes: task_bytes.max(1),
    };
    for partition in partitions {
        let offsets = u64::try_from(partition.end - partition.start).unwrap_or(0);
        if offsets == 0 {
            continue;
        }
        let bytes = offsets.saturating_mul(bytes_per_offset.of(partition));
        let pieces = bytes.div_ceil(packer.task_bytes).clamp(1, offsets);
        for piece in 0..pieces {
            let at = |piece: u64| {
                let part = u128::from(offsets) * u128::from(piece) / u128::from(pieces);
                partition.start + i64::try_from(part).unwrap_or(i64::MAX)
            };
            let range = TaskRange {
                topic: partition.topic.clone(),
                partition: partition.partition,
                start: at(piece),
                end: at(piece + 1),
                holes_allowed: partition.holes_allowed,
            };
            packer.add(range, bytes / pieces);
        }
    }
    packer.tasks
}

struct Packer {
    tasks: Vec<Task>,
    open_bytes: u64,
    task_bytes: u64,
}

impl Packer {
    fn add(&mut self, range: TaskRange, bytes: u64) {
        let fits = self.open_bytes.saturating_add(bytes) <= self.task_bytes;
        if let Some(open) = self.tasks.last_mut()
            && fits
            && open
                .ranges
                .last()
                .is_some_and(|last| last.topic == range.topic && last.partition != range.partition)
        {
            open.ranges.push(range);
            self.open_bytes += bytes;
            return;
        }
        let task = u32::try_from(self.tasks.len()).unwrap_or(u32::MAX);
        self.tasks.push(Task {
            task,
            ranges: vec![range],
        });
        self.open_bytes = bytes;
    }
}
