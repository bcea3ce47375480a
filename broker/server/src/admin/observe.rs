//! Looks at what nobody counts: logs, disk, groups, descriptors.

use crate::{broker::Shared, descriptors, partition::Partition, topics::Topic};

/// Sums over all partitions.
#[derive(Debug, Default)]
struct Sum {
    online: usize,
    offline: usize,
    segments: usize,
    bytes: u64,
    unflushed_bytes: u64,
}

/// Brings what [`crate::metrics::State`] holds up to date. Blocks on the disk and, shortly, on appends.
pub(super) fn observe(shared: &Shared) {
    let state = &shared.metrics.state;
    let each = shared.config.metrics_per_partition;
    if each {
        // Of topics that are gone nothing is told any more.
        state.partition_start.reset();
        state.partition_end.reset();
        state.partition_bytes.reset();
    }
    let topics = shared.topics.all();
    let mut sum = Sum::default();
    for topic in &topics {
        for (index, partition) in topic.indexed() {
            match partition.filter(|partition| sum.add(partition)) {
                Some(partition) if each => observe_partition(shared, topic, index, partition),
                Some(_) => {}
                None => sum.offline += 1,
            }
        }
    }
    state.topics.set(signed(topics.len()));
    state.online.set(signed(sum.online));
    state.offline.set(signed(sum.offline));
    state.log_segments.set(signed(sum.segments));
    state.log_bytes.set(signed(sum.bytes));
    state.unflushed_bytes.set(signed(sum.unflushed_bytes));
    if let Ok(free) = shared.topics.dir().free_bytes() {
        state.free_bytes.set(signed(free));
    }
    let (groups, members) = shared.groups.count();
    state.groups.set(signed(groups));
    state.members.set(signed(members));
    state.max_files.set(signed(descriptors::limit()));
    if let Some(open) = descriptors::open() {
        state.open_files.set(signed(open));
    }
}

impl Sum {
    /// Whether the partition is on line; then it counts.
    fn add(&mut self, partition: &Partition) -> bool {
        let looked = partition.with_log(|log| Ok((log.segments(), log.unflushed_bytes())));
        let Ok((segments, unflushed_bytes)) = looked else {
            return false;
        };
        if partition.is_offline() {
            return false;
        }
        self.online += 1;
        self.segments += segments;
        self.bytes += partition.reader().size_in_bytes();
        self.unflushed_bytes += unflushed_bytes;
        true
    }
}

fn observe_partition(shared: &Shared, topic: &Topic, index: i32, partition: &Partition) {
    let state = &shared.metrics.state;
    let index = index.to_string();
    let labels = [topic.name.as_str(), &index];
    let offsets = partition.reader().offsets();
    state
        .partition_start
        .with_label_values(&labels)
        .set(offsets.log_start);
    state
        .partition_end
        .with_label_values(&labels)
        .set(offsets.log_end);
    state
        .partition_bytes
        .with_label_values(&labels)
        .set(signed(partition.reader().size_in_bytes()));
}

fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
