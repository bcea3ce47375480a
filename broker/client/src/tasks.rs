//! The background tasks of one client: spawned in one place, stopped when the client is dropped.

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns on the runtime the client was made in.
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    handle: Handle,
    stop: CancellationToken,
}

impl Tasks {
    /// Must be called within a runtime, which every async fn is.
    pub(crate) fn new() -> Self {
        Self {
            tracker: TaskTracker::new(),
            handle: Handle::current(),
            stop: CancellationToken::new(),
        }
    }

    /// Cancelled when the client ends, or by its holder.
    pub(crate) fn child_token(&self) -> CancellationToken {
        self.stop.child_token()
    }

    /// Asks all tasks to end.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits for tasks that were asked to end.
    pub(crate) async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Spawns a task that ends by itself once its token is cancelled.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.tracker.spawn_on(task, &self.handle));
    }

    /// Runs what would hold up a runtime thread. `None` if it panicked or the runtime ends.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.tracker
            .spawn_blocking_on(work, &self.handle)
            .await
            .ok()
    }
}
