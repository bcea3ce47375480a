//! What happens without a request, each on its own schedule, on the pool of blocking threads.
//!
//! | what | how often |
//! |---|---|
//! | segments rolled by age, idle producers and committed offsets forgotten, checkpoints | every minute |
//! | old segments deleted | `retention_check_interval` |
//! | partitions compacted, see `compaction` | `compaction_interval` |
//! | whether any partition is left that can be used | every second |
//! | logs written through to the disk | looked at every second or more often, done by `flush_interval` and `flush.ms` |
//!
//! None overlaps itself, and a missed tick is skipped. A failure is logged and tried again in the next round.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use crate::{broker::Shared, compaction, partition::Partition, pool::Failed};

/// Time between two rounds of upkeep.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Time between two looks for a disk that has failed.
const DISK_INTERVAL: Duration = Duration::from_secs(1);
/// Bounds of the time between two looks for logs to flush.
const FLUSH_TICKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Begins all of it; it ends with `stop`.
pub(crate) fn spawn(shared: &Arc<Shared>, tasks: &TaskTracker, stop: &CancellationToken) {
    let config = &shared.config;
    let upkeep = every(shared, stop, UPKEEP_INTERVAL, upkeep);
    let retention = every(shared, stop, config.retention_check_interval, retention);
    tasks.spawn(upkeep);
    tasks.spawn(retention);
    tasks.spawn(flushes(Arc::clone(shared), stop.clone()));
    tasks.spawn(compaction::run(Arc::clone(shared), stop.clone()));
}

/// Waits until failures of the disk have left no partition that can be used: how many there were. A broker that only
/// refuses is no use, and a start may well put things right. `None` when the broker stops first.
///
/// Partitions that could not even be opened do not end it, so that their topics can be deleted.
pub(crate) async fn disk_failed(shared: &Shared, stop: &CancellationToken) -> Option<usize> {
    while pause_unless(stop, DISK_INTERVAL).await {
        if let Some(partitions) = shared.topics.all_lost() {
            return Some(partitions);
        }
    }
    None
}

/// Runs `work` on the pool again and again, with `pause` between the end of one and the begin of the next.
fn every(
    shared: &Arc<Shared>,
    stop: &CancellationToken,
    pause: Duration,
    work: fn(&Shared, &CancellationToken),
) -> impl Future<Output = ()> + Send + use<> {
    let (shared, stop) = (Arc::clone(shared), stop.clone());
    async move {
        while pause_unless(&stop, pause).await {
            run(&shared, &stop, work).await;
        }
    }
}

/// Waits; false if the broker stops.
pub(crate) async fn pause_unless(stop: &CancellationToken, pause: Duration) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = sleep(pause) => true,
    }
}

async fn run(
    shared: &Arc<Shared>,
    stop: &CancellationToken,
    work: fn(&Shared, &CancellationToken),
) {
    let (this, token) = (Arc::clone(shared), stop.clone());
    if shared.pool.run(move || work(&this, &token)).await == Err(Failed) {
        warn!("housekeeping failed inside the broker");
    }
}

/// All partitions that are on line, one after the other, until the broker stops.
pub(crate) fn partitions(
    shared: &Shared,
    stop: &CancellationToken,
) -> impl Iterator<Item = Arc<Partition>> {
    let topics = shared.topics.all();
    let partitions = topics
        .into_iter()
        .flat_map(|topic| topic.online().cloned().collect::<Vec<_>>());
    partitions.take_while(|_| !stop.is_cancelled())
}

fn upkeep(shared: &Shared, stop: &CancellationToken) {
    // The steady clock: a jump ahead would make every producer idle.
    let steady_ms = shared.steady_now_ms();
    for partition in partitions(shared, stop) {
        let rolled = partition.with_log(|log| {
            log.expire_producers(steady_ms);
            log.roll_if_due(shared.clock.now_ms())
        });
        if let Err(error) = rolled {
            warn!(partition = %partition.id(), error = error.message(), "segment not rolled");
        }
    }
    shared.groups.expire(steady_ms);
    if let Err(error) = shared.topics.dir().write_checkpoints() {
        let error = &error as &dyn std::error::Error;
        warn!(error, "checkpoints not written");
    }
}

fn retention(shared: &Shared, stop: &CancellationToken) {
    let steady_ms = shared.steady_now_ms();
    for partition in partitions(shared, stop) {
        // The log says what it deletes.
        if let Err(error) = partition.with_log(|log| log.delete_old_segments(steady_ms)) {
            warn!(partition = %partition.id(), error = error.message(), "old segments not deleted");
        }
    }
}

/// Flushes what is due, in rounds whose distance follows the shortest `flush.ms` of all topics.
async fn flushes(shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        let topics = shared.topics.all();
        let periods = topics
            .iter()
            .map(|topic| flush_period(topic.config.log().flush_ms));
        let shortest = periods.min().unwrap_or(shared.config.flush_interval);
        drop(topics);
        let (least, most) = FLUSH_TICKS;
        if !pause_unless(&stop, (shortest / 4).clamp(least, most)).await {
            return;
        }
        flush_due(&shared, &stop).await;
    }
}

fn flush_period(flush_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(flush_ms).unwrap_or(0))
}

async fn flush_due(shared: &Arc<Shared>, stop: &CancellationToken) {
    for topic in shared.topics.all() {
        let period = flush_period(topic.config.log().flush_ms);
        for partition in topic.online() {
            let monotonic = shared.clock.monotonic();
            let waits = partition.unflushed_for(monotonic);
            if waits.is_none_or(|age| age < period) {
                continue;
            }
            if stop.is_cancelled() {
                return;
            }
            let end_offset = partition.reader().offsets().log_end;
            match partition
                .flush_to(&shared.pool, end_offset, monotonic)
                .await
            {
                Ok(()) => debug!(partition = %partition.id(), end_offset, "flushed"),
                Err(error) => {
                    warn!(partition = %partition.id(), error = error.message(), "not flushed");
                }
            }
        }
    }
}
