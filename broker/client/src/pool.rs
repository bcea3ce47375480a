//! Connections by address: shared ones for short calls and producing, leased ones for long polls.
//!
//! A broker works on one request of a connection at a time, so a fetch that waits for data would
//! hold up every call behind it: each range has a connection of its own while it lasts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::connection::{Connection, Settings};
use crate::error::Result;
use crate::tasks::Tasks;

/// Idle leased connections kept per address.
const IDLE_KEPT: usize = 8;

/// Shared produce connections per broker; partitions are spread over them.
const PRODUCE_SHARDS: usize = 4;

/// What a shared connection is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Short calls.
    Control,
    /// Produce requests of the partitions of one shard.
    Produce(usize),
}

impl Purpose {
    pub(crate) fn produce(partition: i32) -> Self {
        Self::Produce(usize::try_from(partition).unwrap_or(0) % PRODUCE_SHARDS)
    }
}

type Slot = Arc<tokio::sync::Mutex<Option<Arc<Connection>>>>;

#[derive(Debug)]
pub(crate) struct Pool {
    settings: Settings,
    tasks: Tasks,
    shared: Mutex<HashMap<(Arc<str>, Purpose), Slot>>,
    idle: Mutex<HashMap<Arc<str>, Vec<Connection>>>,
}

impl Pool {
    pub(crate) fn new(settings: Settings, tasks: Tasks) -> Self {
        Self {
            settings,
            tasks,
            shared: Mutex::default(),
            idle: Mutex::default(),
        }
    }

    /// The shared connection, opened anew if it is poisoned. Callers that come meanwhile wait for
    /// the same one. Cancel safe.
    pub(crate) async fn shared(
        &self,
        address: &Arc<str>,
        purpose: Purpose,
    ) -> Result<Arc<Connection>> {
        let slot = {
            let mut slots = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry((Arc::clone(address), purpose)).or_default())
        };
        let mut slot = slot.lock().await;
        if let Some(connection) = &*slot
            && connection.is_healthy()
        {
            return Ok(Arc::clone(connection));
        }
        let opened = Connection::open(Arc::clone(address), &self.settings, &self.tasks).await?;
        let connection = Arc::new(opened);
        *slot = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// A connection for one user. Give it back with [`give_back`](Self::give_back).
    pub(crate) async fn lease(&self, address: &Arc<str>) -> Result<Connection> {
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let connections = idle.get_mut(address);
            connections.and_then(|connections| {
                connections.retain(Connection::is_healthy);
                connections.pop()
            })
        };
        match idle {
            Some(connection) => Ok(connection),
            None => Connection::open(Arc::clone(address), &self.settings, &self.tasks).await,
        }
    }

    /// Keeps a leased connection for the next user if nothing waits on it.
    pub(crate) fn give_back(&self, connection: Connection) {
        if !connection.is_idle() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = idle.entry(Arc::clone(connection.address())).or_default();
        if connections.len() < IDLE_KEPT {
            connections.push(connection);
        }
    }
}
