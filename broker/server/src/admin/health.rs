//! Whether the broker can be used, and why not.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::observe::observe;
use crate::broker::Shared;

/// How long a disk may take to say what is on it; then metrics are told without.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of the broker, from before it is open until after it is closed.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// While its logs are open.
    broker: Mutex<Option<Weak<Shared>>>,
    stopping: AtomicBool,
    /// Held by who looks at logs and disk.
    observing: Arc<tokio::sync::Mutex<()>>,
}

impl Health {
    /// The logs are open.
    pub(crate) fn opened(&self, broker: &Arc<Shared>) {
        let mut known = self.broker.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(Arc::downgrade(broker));
    }

    /// The broker takes no more connections.
    pub(crate) fn draining(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// The logs are about to be closed.
    pub(crate) fn closing(&self) {
        self.draining();
        let mut known = self.broker.lock().unwrap_or_else(PoisonError::into_inner);
        *known = None;
    }

    fn broker(&self) -> Option<Arc<Shared>> {
        let known = self.broker.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref()?.upgrade()
    }

    /// Why the broker is not ready; empty if it is.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        let stopping = self.stopping.load(Ordering::Acquire);
        if stopping {
            reasons.push("the broker is stopping".to_owned());
        }
        let Some(broker) = self.broker() else {
            if !stopping {
                reasons.push("the logs are being opened".to_owned());
            }
            return reasons;
        };
        if !broker.groups.is_loaded() {
            reasons.push("the consumer groups are being read".to_owned());
        }
        let (online, offline) = broker.topics.count_partitions();
        if online == 0 && offline > 0 {
            let data_dir = broker.config.data_dir.display();
            reasons.push(format!(
                "every partition in {data_dir} is off line ({offline})"
            ));
        }
        reasons
    }

    /// All metrics as text; `None` while the logs are not open. Waits for the disk for a bounded time, then tells what
    /// was so when somebody asked last. Cancel safe.
    pub(crate) async fn metrics(&self) -> Option<String> {
        let broker = self.broker()?;
        let deadline = Instant::now() + PATIENCE;
        let observed = async {
            // Who hangs keeps the lock: others wait outside the pool, not in it.
            let alone = Arc::clone(&self.observing).lock_owned().await;
            let this = Arc::clone(&broker);
            let look = move || {
                observe(&this);
                let text = this.metrics.text();
                drop(alone);
                text
            };
            broker.pool.run(look).await
        };
        let text = match timeout_at(deadline, observed).await {
            Ok(Ok(text)) => text,
            Ok(Err(_)) | Err(_) => broker.metrics.text(),
        };
        text.inspect_err(|error| warn!(%error, "metrics not told"))
            .ok()
    }
}
