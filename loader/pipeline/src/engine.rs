//! The local engine: tasks of a plan on all cores of this machine.
//!
//! Each task runs on a thread of its own where it may compute; fetches and store calls are driven by the
//! runtime. The number of threads changes nothing in the output.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::plan::Task;
use crate::task::{TaskContext, run_attempt};

/// How the engine works.
#[derive(Debug, Clone)]
pub struct Engine {
    /// Tasks at once; at least one.
    pub threads: usize,
    /// Attempts of one task, the first included; at least one.
    pub attempts: u32,
    /// No task starts after this.
    pub deadline: Option<Instant>,
}

impl Engine {
    /// Runs `tasks` until all are done, the deadline has passed, one has failed for good, or `stop` is
    /// cancelled. What is running then is waited for (deadline) or given up (error, stop).
    ///
    /// # Errors
    /// The first task's error, or [`Error::Stopped`].
    pub async fn run(
        &self,
        context: &TaskContext,
        tasks: Vec<Task>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let give_up = stop.child_token();
        // A dropped run stops its tasks, too.
        let _stops_tasks = give_up.clone().drop_guard();
        let mut waiting = in_turn(tasks).into_iter();
        let mut running = JoinSet::new();
        let mut failure = None;
        loop {
            while running.len() < self.threads.max(1) && failure.is_none() && self.may_start(stop) {
                let Some(task) = waiting.next() else { break };
                self.start(&mut running, context.clone(), task, give_up.clone());
            }
            match running.join_next().await {
                None => break,
                Some(Ok(Ok(task))) => context.progress.task_done(task),
                Some(Ok(Err(error))) => {
                    give_up.cancel();
                    failure.get_or_insert(error);
                }
                Some(Err(panicked)) => {
                    give_up.cancel();
                    failure.get_or_insert(Error::Internal {
                        what: "a task panicked".to_owned(),
                        source: Some(Box::new(panicked)),
                    });
                }
            }
        }
        match failure {
            // What tasks say once they were told to stop is only an echo.
            _ if stop.is_cancelled() => Err(Error::Stopped),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn may_start(&self, stop: &CancellationToken) -> bool {
        !stop.is_cancelled()
            && self
                .deadline
                .is_none_or(|deadline| Instant::now() < deadline)
    }

    fn start(
        &self,
        running: &mut JoinSet<Result<u32, Error>>,
        context: TaskContext,
        task: Task,
        give_up: CancellationToken,
    ) {
        let runtime = Handle::current();
        let retries = usize::try_from(self.attempts.saturating_sub(1)).unwrap_or(0);
        running.spawn_blocking(move || {
            runtime.block_on(async {
                tokio::select! {
                    done = attempts(&context, &task, retries) => done.map(|()| task.task),
                    () = give_up.cancelled() => Err(Error::Stopped),
                }
            })
        });
    }
}

/// Tasks in the order in which they start: the first of each partition, then the second; the partition with the
/// most to load first. So a time budget that ends early leaves no partition behind for ever.
fn in_turn(tasks: Vec<Task>) -> Vec<Task> {
    let partition = |task: &Task| {
        let first = task.ranges.first();
        first.map(|range| (range.topic.clone(), range.partition))
    };
    let mut behind: BTreeMap<_, u64> = BTreeMap::new();
    for task in &tasks {
        let offsets = task
            .ranges
            .iter()
            .map(|range| (range.end - range.start).unsigned_abs());
        *behind.entry(partition(task)).or_default() += offsets.sum::<u64>();
    }
    let mut turns: BTreeMap<_, usize> = BTreeMap::new();
    let mut ordered: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let key = partition(&task);
            let offsets = behind.get(&key).copied().unwrap_or_default();
            let turn = turns.entry(key).or_default();
            *turn += 1;
            ((*turn, Reverse(offsets), task.task), task)
        })
        .collect();
    ordered.sort_by_key(|(order, _)| *order);
    ordered.into_iter().map(|(_, task)| task).collect()
}

/// The same task again from its stored start offsets: as often as the job allows, and after trouble of the
/// store that passes as long as its patience lasts.
///
/// An attempt that had worked for long met a trouble of its own: it is counted, and patience begins anew.
/// So much work for each of the `retries` is long that all together last as long as the patience.
pub(crate) async fn attempts(
    context: &TaskContext,
    task: &Task,
    retries: usize,
) -> Result<(), Error> {
    let mut counted = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(500))
        .with_max_delay(Duration::from_secs(20))
        .with_jitter()
        .with_max_times(retries)
        .build();
    let patience = context.place.store.patience();
    let long = patience.limit() / u32::try_from(retries.max(1)).unwrap_or(u32::MAX);
    let mut tries = patience.tries_of_long_work();
    loop {
        let begun = Instant::now();
        let error = match run_attempt(context, task).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let waited = match &error {
            Error::Store(error) if begun.elapsed() < long => tries.again(error).await,
            _ => false,
        };
        if !waited {
            tries = patience.tries_of_long_work();
            let pause = counted.next().filter(|_| error.is_retriable());
            let Some(pause) = pause else {
                return Err(error);
            };
            tokio::time::sleep(pause).await;
        }
        tracing::warn!(task = task.task, error = %crate::error::chain(&error), "attempt failed, trying again");
        context.progress.task_retried(task.task, &error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TaskRange;

    fn task(task: u32, partition: i32, start: i64, end: i64) -> Task {
        Task {
            task,
            ranges: vec![TaskRange {
                topic: "t".parse().unwrap(),
                partition,
                start,
                end,
                holes_allowed: false,
            }],
        }
    }

    #[test]
    fn each_partition_has_its_turn_and_the_one_furthest_behind_is_first() {
        let tasks = vec![
            task(0, 0, 0, 10),
            task(1, 0, 10, 20),
            task(2, 0, 20, 30),
            task(3, 1, 0, 50),
            task(4, 1, 50, 60),
            task(5, 2, 0, 5),
        ];
        let order: Vec<u32> = in_turn(tasks).iter().map(|task| task.task).collect();
        assert_eq!(order, [3, 0, 5, 4, 1, 2]);
    }
}
