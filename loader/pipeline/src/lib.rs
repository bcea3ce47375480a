//! Partition ranges to published runs: plan, tasks, decode, group, write, commit, verify.
//!
//! ```text
//! load ─► snapshot ─► plan ─► task: range ─► transform (decode ─► partitioner ─► rejected) ─► encode
//!   │                            └──────────────► store: staging/<uuid>/tasks/<task>/done
//!   └─► commit: newest ─► staging ─► assemble ─► publish            verify, status: read manifests
//! ```
//! - [`config`] is the job file, [`plan`] what one run will do, [`manifest`] what it did;
//! - [`commit`] is the contract: data and offsets become visible by one rename, only when the job succeeded;
//! - [`transform`] turns Kafka's record batches into Arrow batches by directory, [`encode`] into files.
//!
//! What it must not do: decide anything by the wall clock after the plan, read a consumer group's offsets
//! as its position, or fall back to an older run.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "errors of other rooms are non-exhaustive: what is not named takes the general way"
)]

pub mod bench;
mod claims;
pub mod commit;
pub mod config;
pub mod decode;
pub mod encode;
pub mod engine;
pub mod error;
pub mod failpoint;
mod infer;
pub mod layout;
pub mod load;
pub mod manifest;
pub mod memory;
pub mod partitioner;
pub mod plan;
pub mod progress;
pub mod quantity;
pub mod rejected;
pub mod report;
pub mod schema;
pub mod sealed;
pub mod snapshot;
pub mod status;
pub mod task;
mod text;
pub mod transform;
pub mod verify;

/// Spawns a background activity that ends when its handle is dropped: the one place of this crate that does.
#[expect(clippy::disallowed_methods, reason = "the handle aborts it on drop")]
fn spawn<F>(activity: F) -> tokio_util::task::AbortOnDropHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    tokio_util::task::AbortOnDropHandle::new(tokio::task::spawn(activity))
}
