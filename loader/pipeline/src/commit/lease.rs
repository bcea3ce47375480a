//! The lease of a staging directory: a file that its owner rewrites while it lives. It only tells the living
//! from the dead; nobody's correctness rests on it.

use std::sync::Arc;
use std::time::Duration;

use loader_store::{Entry, Store, StorePath};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Place;

/// A heartbeat's call is given at least this long.
const SHORTEST_BEAT: Duration = Duration::from_secs(5);

/// What a lease says. Its age is that of the file.
#[derive(Debug, Serialize, Deserialize)]
struct LeaseText {
    pid: u32,
    /// Older than this, its owner is dead.
    timeout_ms: u64,
}

/// The text of a lease.
pub(super) fn text(timeout: Duration) -> bytes::Bytes {
    let text = LeaseText {
        pid: std::process::id(),
        timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
    };
    // Numbers only: it cannot fail; and an empty lease is one whose owner says nothing.
    serde_json::to_vec(&text).unwrap_or_default().into()
}

/// How old a lease may get by its owner's word; `unknown` where it cannot be read, as while it is rewritten.
pub(super) async fn timeout_of(store: &dyn Store, lease: &Entry, unknown: Duration) -> Duration {
    let read = store.read(&lease.path).await.ok();
    read.and_then(|text| serde_json::from_slice::<LeaseText>(&text).ok())
        .map_or(unknown, |text| Duration::from_millis(text.timeout_ms))
}

/// A lease that was not renewed in time when it was looked at.
#[derive(Debug)]
pub(super) struct Silent {
    path: StorePath,
    modified_ms: i64,
    timeout: Duration,
}

impl Silent {
    pub(super) fn new(lease: Entry, timeout: Duration) -> Self {
        Self {
            path: lease.path,
            modified_ms: lease.modified_ms,
            timeout,
        }
    }

    pub(super) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Within which a living owner is heard again once the store answers: the rest of a beat that fails, and
    /// the next one.
    pub(super) fn next_beat(&self) -> Duration {
        self.timeout / 2
    }

    /// Whether it has still not been renewed. One that is gone was given up.
    pub(super) async fn is_still(&self, store: &dyn Store) -> loader_store::Result<bool> {
        let now = store.stat(&self.path).await?;
        Ok(now.is_none_or(|lease| lease.modified_ms == self.modified_ms))
    }
}

/// The heartbeat: rewrites the lease until dropped.
#[derive(Debug)]
pub(super) struct Lease {
    /// Cancelled when the directory turns out to be gone.
    pub(super) lost: CancellationToken,
    _heartbeat: AbortOnDropHandle<()>,
}

impl Lease {
    pub(super) fn keep(place: &Place, path: StorePath, timeout: Duration) -> Self {
        let lost = CancellationToken::new();
        let heartbeat = heartbeat(Arc::clone(&place.store), path, timeout, lost.clone());
        Self {
            lost,
            _heartbeat: crate::spawn(heartbeat),
        }
    }
}

async fn heartbeat(
    store: Arc<dyn Store>,
    path: StorePath,
    timeout: Duration,
    lost: CancellationToken,
) {
    let every = timeout / 4;
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut troubled = false;
    loop {
        ticks.tick().await;
        // A call that hangs must not cost the beats after it.
        let beat = store.replace(&path, text(timeout));
        match tokio::time::timeout(every.max(SHORTEST_BEAT), beat).await {
            Ok(Ok(())) => {
                if std::mem::take(&mut troubled) {
                    tracing::info!("the lease is renewed again");
                }
            }
            Ok(Err(loader_store::Error::ParentMissing { .. })) => {
                lost.cancel();
                return;
            }
            // One line for a series: an outage lasts for many beats.
            _ if std::mem::replace(&mut troubled, true) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot renew the lease, trying again"),
            Err(_) => tracing::warn!("renewing the lease takes too long, trying again"),
        }
    }
}
