//! When partitions are compacted: one at a time, the dirtiest first, whenever one is due.
//!
//! Only what has been flushed is compacted, so a record waits for `flush_interval`, the end of its segment and
//! `compaction_interval`. A partition whose compaction failed is left alone for a while.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use broker_log::{CompactionLimits, Dirtiness, TopicPartition};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    broker::Shared,
    housekeeping::{partitions, pause_unless},
    partition::{Partition, Unavailable},
    pool::Failed,
};

/// Time that a partition is left alone after a failure.
const RETRY: Duration = Duration::from_secs(600);

/// How one compaction ended.
enum Outcome {
    Done,
    /// The log was changed meanwhile, or the broker stops.
    GivenUp,
    Failed,
}

/// Compacts what is due, again and again, until `stop`.
pub(crate) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut failed: HashMap<TopicPartition, Duration> = HashMap::new();
    while pause_unless(&stop, shared.config.compaction_interval).await {
        loop {
            let now = shared.clock.monotonic();
            failed.retain(|_, since| now.saturating_sub(*since) < RETRY);
            let left_alone: HashSet<TopicPartition> = failed.keys().cloned().collect();
            let (this, token) = (Arc::clone(&shared), stop.clone());
            let compact = move || compact_dirtiest(&this, &left_alone, &token);
            match shared.pool.run(compact).await {
                Ok(Some((_, Outcome::Done))) => {}
                Ok(Some((id, Outcome::Failed))) => {
                    failed.insert(id, now);
                }
                Ok(None | Some((_, Outcome::GivenUp))) => break,
                Err(Failed) => {
                    warn!("compaction failed inside the broker");
                    break;
                }
            }
        }
    }
}

/// Compacts the partition with the largest dirty part among those that are due; `None` if none is.
fn compact_dirtiest(
    shared: &Shared,
    left_alone: &HashSet<TopicPartition>,
    stop: &CancellationToken,
) -> Option<(TopicPartition, Outcome)> {
    let now_ms = shared.steady_now_ms();
    let due = partitions(shared, stop)
        .filter(|partition| !left_alone.contains(partition.id()))
        .filter_map(|partition| Some((dirtiness(&partition, now_ms)?, partition)));
    let (_, partition) = due.max_by_key(|(dirty, _)| dirty.millionths)?;
    let outcome = match compact(shared, &partition, now_ms, stop) {
        Ok(true) => Outcome::Done,
        Ok(false) => Outcome::GivenUp,
        // Its topic was deleted, or the broker stops.
        Err(_) if partition.is_closed() => Outcome::GivenUp,
        Err(error) => {
            warn!(
                partition = %partition.id(), error = error.message(), retry = ?RETRY,
                "partition not compacted"
            );
            Outcome::Failed
        }
    };
    Some((partition.id().clone(), outcome))
}

fn dirtiness(partition: &Partition, now_ms: i64) -> Option<Dirtiness> {
    // A partition that is closed or cannot be looked at has nothing to do here.
    let dirty = partition.with_log(|log| log.dirtiness(now_ms)).ok()??;
    dirty.is_due.then_some(dirty)
}

/// One compaction, the lock held for its beginning and each swap only; false if it was given up.
fn compact(
    shared: &Shared,
    partition: &Partition,
    now_ms: i64,
    stop: &CancellationToken,
) -> Result<bool, Unavailable> {
    let limits = CompactionLimits {
        map_bytes: usize::try_from(shared.config.compaction_memory.as_u64()).unwrap_or(usize::MAX),
    };
    let begun = partition.with_log(|log| {
        let segment_bytes = log.config().segment_bytes;
        Ok((log.prepare_compaction(now_ms, limits)?, segment_bytes))
    })?;
    let (Some(mut compaction), segment_bytes) = begun else {
        return Ok(false);
    };
    let needed = partition.reader().size_in_bytes().min(segment_bytes);
    if !has_room(shared, needed)? {
        return Ok(false);
    }
    compaction.index()?;
    while let Some(segment) = compaction.next_segment()? {
        if stop.is_cancelled() || !partition.with_log(|log| log.swap_in(segment))? {
            return Ok(false);
        }
    }
    partition.with_log(|log| log.finish_compaction(&compaction))?;
    Ok(true)
}

/// Whether the largest segment that is written aside leaves what is to stay free.
fn has_room(shared: &Shared, needed: u64) -> Result<bool, Unavailable> {
    let floor = shared.config.min_free_bytes.as_u64();
    let free = shared.topics.dir().free_bytes()?;
    let has_room = free >= floor.saturating_add(needed);
    if !has_room {
        warn!(
            free,
            floor, needed, "no room to compact beside min_free_bytes"
        );
    }
    Ok(has_room)
}
