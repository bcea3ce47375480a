//! How `engine.memory` is shared out among the tasks that run at once (I8).
//!
//! ```text
//! memory ÷ tasks at once = share ─┬─ 1/8  batches fetched ahead
//!                                 ├─ 1/8  records decoded and not yet in order (twice while sorted)
//!                                 └─ 3/8  rows that wait for their row group; beyond it: local disk
//! among all tasks: 1/8 of the memory for encoded bytes until the store has acknowledged them
//!                  1/4 of it for row groups being encoded, at least one
//!                  batches and row groups larger than their part: one at a time
//! ```
//! A part is never below 256 KiB, so very many tasks with very little memory exceed it. Nothing here changes a
//! byte of the output.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use bytesize::ByteSize;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::config::EngineConfig;
use crate::quantity::in_bytes;

/// Most bytes that are worth fetching ahead.
const MOST_PREFETCH: usize = 16 << 20;
/// Most bytes of decoded rows that are worth keeping back before they are sorted.
const MOST_PENDING: usize = 16 << 20;
/// Less than this makes tiny fetches and tiny batches.
const LEAST_PART: usize = 256 << 10;
/// HDFS keeps what does not fill a packet until more comes: at most this much, by `dfs.client-write-packet-size`.
const PACKET: usize = 64 << 10;

/// Bounds for each of the tasks that run at once. Clones share the gates.
#[derive(Debug, Clone)]
pub struct TaskMemory {
    /// Bytes of batches fetched ahead.
    pub prefetch_bytes: usize,
    /// Bytes of records decoded and not yet in order.
    pub pending_bytes: usize,
    /// Bytes of rows that wait for their row group in memory.
    pub held_bytes: usize,
    /// Where rows lie that have no room in memory.
    pub spill_dir: PathBuf,
    encoders: Arc<Semaphore>,
    outgoing: Arc<Semaphore>,
    outgoing_bytes: u32,
    oversize: Arc<Mutex<()>>,
}

impl TaskMemory {
    /// The bounds of each of `tasks` tasks whose row groups have `row_group` bytes.
    #[must_use]
    pub fn new(engine: &EngineConfig, tasks: usize, row_group: ByteSize) -> Self {
        let memory = in_bytes(engine.memory);
        let share = memory / tasks.max(1);
        let part = (share / 8).max(LEAST_PART);
        let outgoing = u32::try_from((memory / 8).max(LEAST_PART)).unwrap_or(u32::MAX);
        let encoders = (memory / 4) / in_bytes(row_group).max(1);
        Self {
            prefetch_bytes: engine
                .prefetch_bytes
                .map_or_else(|| part.min(MOST_PREFETCH), in_bytes),
            pending_bytes: part.min(MOST_PENDING),
            held_bytes: part * 3,
            spill_dir: engine.spill_dir.clone().unwrap_or_else(std::env::temp_dir),
            outgoing: Arc::new(Semaphore::new(outgoing as usize)),
            outgoing_bytes: outgoing,
            encoders: Arc::new(Semaphore::new(encoders.clamp(1, Semaphore::MAX_PERMITS))),
            oversize: Arc::new(Mutex::new(())),
        }
    }

    /// Waits until a row group may be encoded; drop the permit when it is. None only if the gate was
    /// closed, which it never is.
    pub(crate) async fn encoder(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.encoders).acquire_owned().await.ok()
    }

    /// Waits for room for bytes on their way to the store.
    pub(crate) async fn send(&self, bytes: Bytes) -> Piece {
        let mut body = bytes;
        let tail = body.split_off(body.len().saturating_sub(PACKET));
        let tail = Bytes::copy_from_slice(&tail);
        if body.is_empty() {
            return Piece { body, tail };
        }
        let room = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let room = room.min(self.outgoing_bytes);
        let room = Arc::clone(&self.outgoing).acquire_many_owned(room).await;
        let body = Bytes::from_owner(Outgoing {
            bytes: body,
            _room: room.ok(),
        });
        Piece { body, tail }
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

/// Bytes on their way to the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Piece {
    /// Keeps its room until the last clone or slice of it is dropped, in the store's own queues too.
    body: Bytes,
    /// At most [`PACKET`] bytes, without room: the store may hold them until the next piece, which would
    /// wait for their room.
    tail: Bytes,
}

impl Piece {
    /// What needs no room: the end of a file.
    pub(crate) const fn tail(tail: Bytes) -> Self {
        Self {
            body: Bytes::new(),
            tail,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.body.len() + self.tail.len()
    }

    /// In their order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Bytes> {
        [&self.body, &self.tail]
            .into_iter()
            .filter(|part| !part.is_empty())
    }
}

struct Outgoing {
    bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Outgoing {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(mib: u64) -> TaskMemory {
        let engine = EngineConfig {
            memory: ByteSize::mib(mib),
            ..EngineConfig::default()
        };
        TaskMemory::new(&engine, 2, ByteSize::mib(64))
    }

    fn bytes(len: usize) -> Bytes {
        (0..=250_u8).cycle().take(len).collect::<Vec<_>>().into()
    }

    async fn waits(memory: &TaskMemory, len: usize) -> bool {
        let sent = memory.send(bytes(len));
        tokio::time::timeout(std::time::Duration::from_millis(20), sent)
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_kept_until_the_last_slice_is_dropped() {
        let memory = memory(8);
        let piece = memory.send(bytes(1 << 20)).await;
        let slice = piece.body.slice(10..20);
        drop(piece);
        assert!(waits(&memory, 1 << 20).await);
        drop(slice);
        assert!(!waits(&memory, 1 << 20).await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fill_a_packet_needs_no_room() {
        let memory = memory(8);
        let first = memory.send(bytes(1 << 20)).await;
        let tail = first.tail.clone();
        drop(first);
        assert!(!waits(&memory, 1 << 20).await, "a tail kept its room");
        assert_eq!(tail.len(), PACKET);
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_larger_than_all_the_room_goes_alone() {
        let memory = memory(8);
        let large = bytes(3 << 20);
        let piece = memory.send(large.clone()).await;
        let sent: Vec<u8> = piece.parts().flat_map(|part| part.to_vec()).collect();
        assert_eq!(sent, large);
        assert!(waits(&memory, 1 << 20).await);
        drop(piece);
        assert!(!waits(&memory, 1 << 20).await);
    }
}
