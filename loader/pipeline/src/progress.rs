//! How a load tells where it is, without knowing who listens.

use crate::manifest::Manifest;
use crate::plan::Plan;

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
