//! How a load tells where it is, without knowing who listens.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::manifest::Manifest;
use crate::plan::Plan;

/// What a task's thread computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Record batches taken from the fetch: headers counted, decompressed.
    Unpack,
    /// Records to columns.
    Decode,
    /// Rows to the order of their directories.
    Group,
    /// Row groups encoded and handed to the store, rows moved to local disk and back.
    Encode,
}

/// Receives progress. Calls come from several threads and must return at once.
pub trait Progress: Send + Sync + std::fmt::Debug {
    /// The plan is stored and tasks are about to start; `finished` of them are there already.
    fn planned(&self, plan: &Plan, finished: usize);
    /// A task moved by so many offsets, in batches of so many bytes as the broker stores them.
    fn advanced(&self, offsets: u64, bytes: u64);
    /// A task is done.
    fn task_done(&self, task: u32);
    /// A task failed and is tried again.
    fn task_retried(&self, task: u32, error: &crate::error::Error);
    /// All tasks are done; the run is being assembled.
    fn assembling(&self);
    /// The run is published.
    fn published(&self, manifest: &Manifest);
    /// A task's thread spent so much CPU time on a stage.
    fn spent(&self, _stage: Stage, _cpu: Duration) {}
}

/// Tells what a thread spends on each stage; reads the thread's CPU clock once a lap.
pub(crate) struct StageClock<'a> {
    progress: &'a dyn Progress,
    last: Duration,
}

impl<'a> StageClock<'a> {
    pub(crate) fn start(progress: &'a dyn Progress) -> Self {
        let last = cpu_time(ClockId::ThreadCPUTime);
        Self { progress, last }
    }

    /// Everything since the last lap was this stage.
    pub(crate) fn lap(&mut self, stage: Stage) {
        let now = cpu_time(ClockId::ThreadCPUTime);
        self.progress.spent(stage, now.saturating_sub(self.last));
        self.last = now;
    }
}

/// A clock's reading.
pub(crate) fn cpu_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// Listens to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn planned(&self, _: &Plan, _: usize) {}
    fn advanced(&self, _: u64, _: u64) {}
    fn task_done(&self, _: u32) {}
    fn task_retried(&self, _: u32, _: &crate::error::Error) {}
    fn assembling(&self) {}
    fn published(&self, _: &Manifest) {}
}
