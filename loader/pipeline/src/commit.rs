//! The commit protocol of layout `runs`: data and offsets become visible by one rename.
//!
//! ```text
//! newest ─► staging (lease, plan.json) ─► newest again ─► tasks/…/done ─► assemble out-N ─► publish run=N
//!    ▲                                                                                        │
//!    └──────────────── the next run starts from this manifest ◄───────────────────────────────┘
//! ```
//! - [`newest`]: which run is the newest, and whether its manifest is sound;
//! - [`staging`]: one run's private directory, taking over a dead one, cleaning up;
//! - `lease`: who is alive; `trash`: the way out;
//! - [`assemble`]: moving the winners' files into `out-N` and writing the manifest beside it;
//! - [`publish`]: the rename, rebasing, fencing, and what an answer that never came means;
//! - `steps`: single steps that go on after trouble that passes;
//! - [`prune`]: deleting old data, but never a manifest;
//! - [`dataset`]: making a dataset and what is pinned at its birth.
//!
//! Everything here obeys the contract of the commit protocol (docs/commit-protocol.md). What it must never
//! do: overwrite, create missing parents inside staging, open a file inside `out-N`, or assume the outcome
//! of a call whose answer was lost.

pub mod assemble;
pub mod dataset;
mod lease;
pub mod newest;
pub mod prune;
pub mod publish;
pub mod staging;
pub(crate) mod steps;
#[cfg(test)]
mod tests;
mod trash;

use std::sync::Arc;

use loader_store::Store;

use crate::layout::Layout;

/// A dataset's place: the store and the paths in it.
#[derive(Debug, Clone)]
pub struct Place {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The paths.
    pub layout: Layout,
}
