//! The broker's own small pool for work that blocks: cold and large reads, metadata changes, flushes.

use std::{sync::Arc, thread};

use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

/// A bounded door to the runtime's blocking threads.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
}

/// The work panicked, or the runtime is going away; nothing is known of its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed;

impl Pool {
    /// A pool whose work `tasks` waits for at shutdown.
    pub(crate) fn new(tasks: TaskTracker) -> Self {
        let threads = thread::available_parallelism()
            .map_or(4, |cores| cores.get() * 2)
            .max(4);
        Self {
            permits: Arc::new(Semaphore::new(threads)),
            tasks,
        }
    }

    /// Runs `work` on a blocking thread once one is free.
    ///
    /// Dropping the future before `work` begins cancels it; afterwards `work` runs to its end unobserved and
    /// keeps its place in the pool until then.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T, Failed>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| Failed)?;
        let task = self.tasks.spawn_blocking(move || {
            let result = work();
            drop(permit);
            result
        });
        task.await.map_err(|_| Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_the_work_is_an_error_and_frees_its_place() {
        let pool = Pool::new(TaskTracker::new());
        let places = pool.permits.available_permits();
        assert_eq!(pool.run(|| panic!("as a test")).await, Err::<(), _>(Failed));
        assert_eq!(pool.run(|| 7).await, Ok(7));
        assert_eq!(pool.permits.available_permits(), places);
    }
}
