//! How `engine.memory` is shared out among the tasks that run at once (I8).
//!
//! ```text
//! memory ÷ tasks at once = share ─┬─ 1/8  batches fetched ahead
//!                                 ├─ 1/8  records decoded and not yet in order (twice while sorted)
//!                                 ├─ 3/8  rows that wait for their row group; beyond it: local disk
//!                                 └─ 1/8  encoded bytes on their way to the store
//! encoders at once: as many row groups as fit into a quarter of the memory, at least one
//! batches larger than a task's part: one at a time among all tasks
//! ```
//! Nothing here changes a byte of the output.

use std::path::PathBuf;
use std::sync::Arc;

use bytesize::ByteSize;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::config::EngineConfig;

/// Most bytes that are worth fetching ahead.
const MOST_PREFETCH: usize = 16 << 20;
/// Most bytes of decoded rows that are worth keeping back before they are sorted.
const MOST_PENDING: usize = 16 << 20;
/// Less than this makes tiny fetches and tiny batches.
const LEAST_PART: usize = 256 << 10;

/// Bounds for each of the tasks that run at once. Clones share the gates.
#[derive(Debug, Clone)]
pub struct TaskMemory {
    /// Bytes of batches fetched ahead.
    pub prefetch_bytes: usize,
    /// Bytes of records decoded and not yet in order.
    pub pending_bytes: usize,
    /// Bytes of rows that wait for their row group in memory.
    pub held_bytes: usize,
    /// Encoded bytes on their way to the store.
    pub outgoing_bytes: usize,
    /// Where rows lie that have no room in memory.
    pub spill_dir: PathBuf,
    encoders: Arc<Semaphore>,
    oversize: Arc<Mutex<()>>,
}

impl TaskMemory {
    /// The bounds of each of `tasks` tasks whose row groups have `row_group` bytes.
    #[must_use]
    pub fn new(engine: &EngineConfig, tasks: usize, row_group: ByteSize) -> Self {
        let memory = as_usize(engine.memory);
        let share = memory / tasks.max(1);
        let part = (share / 8).max(LEAST_PART);
        let encoders = (memory / 4) / as_usize(row_group).max(1);
        Self {
            prefetch_bytes: engine
                .prefetch_bytes
                .map_or_else(|| part.min(MOST_PREFETCH), as_usize),
            pending_bytes: part.min(MOST_PENDING),
            held_bytes: part * 3,
            outgoing_bytes: part,
            spill_dir: engine.spill_dir.clone().unwrap_or_else(std::env::temp_dir),
            encoders: Arc::new(Semaphore::new(encoders.clamp(1, Semaphore::MAX_PERMITS))),
            oversize: Arc::new(Mutex::new(())),
        }
    }

    /// Waits until a row group may be encoded; drop the permit when it is. None only if the gate was
    /// closed, which it never is.
    pub(crate) async fn encoder(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.encoders).acquire_owned().await.ok()
    }

    /// Waits until a batch of so many bytes may be decoded. For one that is larger than a task's part it
    /// returns a guard: keep it until the rows are held or on disk.
    pub(crate) async fn admit(&self, bytes: usize) -> Option<OwnedMutexGuard<()>> {
        if bytes <= self.pending_bytes {
            return None;
        }
        Some(Arc::clone(&self.oversize).lock_owned().await)
    }
}

fn as_usize(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}
