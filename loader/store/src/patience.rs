//! Waiting for trouble that passes by itself.
//!
//! ```text
//!  caller ──► PatientStore ──► HdfsStore
//!                │ nothing was done, and the store was well before: the same call again, with pauses
//!                └ anything else: handed on
//! ```
//! A NameNode that restarts refuses connections and is then in safe mode for a while; a dropped connection
//! costs one answer. None of that should end a load that has hours of work behind it. But a store that was
//! never reached is said to be unreachable at once: waiting for a misspelt address helps nobody.
//!
//! Only what certainly changed nothing is repeated here. A change whose answer was lost, and a file that
//! could not be written, are the caller's to look at or to write again under another name; its
//! [`Tries`] share the same bound.

use std::hash::{BuildHasher as _, Hasher as _};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use crate::{Entry, Error, FileWriter, Operation, RenameSemantics, Result, Store, StorePath};

/// First pause; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// How long trouble that passes by itself is waited for. Clones share its end: where one has waited in
/// vain, the others do not begin.
#[derive(Clone, Debug, Default)]
pub struct Patience {
    limit: Duration,
    over: Arc<AtomicBool>,
}

impl Patience {
    /// Up to `limit` for each trouble.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            over: Arc::default(),
        }
    }

    /// How long each trouble is waited for.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether there is any: local stores have none, and it is used up by waiting in vain.
    #[must_use]
    pub fn is_left(&self) -> bool {
        !self.limit.is_zero() && !self.over.load(Ordering::Relaxed)
    }

    /// The tries of one piece of work; the time runs from the first failure.
    #[must_use]
    pub fn tries(&self) -> Tries {
        Tries {
            patience: self.clone(),
            until: None,
            pause: FIRST_PAUSE,
        }
    }
}

/// See [`Patience::tries`].
#[derive(Debug)]
pub struct Tries {
    patience: Patience,
    until: Option<Instant>,
    pause: Duration,
}

impl Tries {
    /// After `error`: waits a moment and says whether to try again. `false` at once for what does not pass by
    /// itself ([`Error::may_pass`]), and when the patience is over. Cancel safe.
    pub async fn again(&mut self, error: &Error) -> bool {
        if !error.may_pass() || !self.patience.is_left() {
            return false;
        }
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + self.patience.limit);
        if now >= until {
            self.patience.over.store(true, Ordering::Relaxed);
            return false;
        }
        let pause = jittered(self.pause).min(until.saturating_duration_since(now));
        tracing::warn!(
            error = %first_causes(error),
            pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            left_s = until.saturating_duration_since(now).as_secs(),
            "the store is in trouble, trying again"
        );
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// An error and its causes on one line.
fn first_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

/// Between three quarters and five quarters of `pause`.
fn jittered(pause: Duration) -> Duration {
    // Keyed afresh for every hasher, which is all the chance that is needed here.
    let chance = std::hash::RandomState::new().build_hasher().finish() % 512;
    let quarters = u32::try_from(chance).unwrap_or(0);
    pause * (768 + quarters) / 1024
}

/// See the module.
#[derive(Debug)]
pub(crate) struct PatientStore {
    inner: Arc<dyn Store>,
    patience: Patience,
    /// It has answered once.
    reached: AtomicBool,
    /// It has carried out a change once: safe mode is something new then.
    changed: AtomicBool,
}

impl PatientStore {
    pub(crate) fn new(inner: Arc<dyn Store>, limit: Duration) -> Self {
        Self {
            inner,
            patience: Patience::new(limit),
            reached: AtomicBool::new(false),
            changed: AtomicBool::new(false),
        }
    }

    async fn patiently<T, Call>(
        &self,
        operation: Operation,
        call: impl Fn() -> Call + Send + Sync,
    ) -> Result<T>
    where
        Call: Future<Output = Result<T>> + Send,
    {
        let mut tries = self.patience.tries();
        loop {
            let error = match call().await {
                Ok(done) => {
                    self.reached.store(true, Ordering::Relaxed);
                    self.changed
                        .fetch_or(operation.changes(), Ordering::Relaxed);
                    return Ok(done);
                }
                Err(error) => error,
            };
            if !self.changed_nothing_and_may_pass(&error) || !tries.again(&error).await {
                return Err(error);
            }
        }
    }

    fn changed_nothing_and_may_pass(&self, error: &Error) -> bool {
        if matches!(error, Error::Unreachable { .. } | Error::Timeout { .. }) {
            return self.reached.load(Ordering::Relaxed);
        }
        if matches!(error, Error::OutcomeUnknown { .. }) {
            return false;
        }
        // Everything else is an answer.
        self.reached.store(true, Ordering::Relaxed);
        matches!(error, Error::ReadFailed { .. })
            || matches!(error, Error::SafeMode { .. }) && self.changed.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Store for PatientStore {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn uri(&self, path: &StorePath) -> String {
        self.inner.uri(path)
    }

    fn rename_semantics(&self) -> RenameSemantics {
        self.inner.rename_semantics()
    }

    fn patience(&self) -> Patience {
        self.patience.clone()
    }

    async fn stat(&self, path: &StorePath) -> Result<Option<Entry>> {
        self.patiently(Operation::Stat, || self.inner.stat(path))
            .await
    }

    async fn list(&self, directory: &StorePath) -> Result<Vec<Entry>> {
        self.patiently(Operation::List, || self.inner.list(directory))
            .await
    }

    async fn mkdir(&self, directory: &StorePath) -> Result<()> {
        self.patiently(Operation::Mkdir, || self.inner.mkdir(directory))
            .await
    }

    async fn mkdirs(&self, directory: &StorePath) -> Result<()> {
        self.patiently(Operation::Mkdirs, || self.inner.mkdirs(directory))
            .await
    }

    async fn create(&self, file: &StorePath) -> Result<Box<dyn FileWriter>> {
        self.patiently(Operation::Create, || self.inner.create(file))
            .await
    }

    /// In its parts: what fails after the file was made must not be tried again under its name.
    async fn put(&self, file: &StorePath, content: Bytes) -> Result<()> {
        let mut writer = self.create(file).await?;
        writer.write(content).await?;
        writer.close().await.map(drop)
    }

    async fn replace(&self, file: &StorePath, content: Bytes) -> Result<()> {
        self.patiently(Operation::Replace, || {
            self.inner.replace(file, content.clone())
        })
        .await
    }

    async fn read(&self, file: &StorePath) -> Result<Bytes> {
        self.patiently(Operation::Read, || self.inner.read(file))
            .await
    }

    async fn read_range(&self, file: &StorePath, range: Range<u64>) -> Result<Bytes> {
        self.patiently(Operation::Read, || {
            self.inner.read_range(file, range.clone())
        })
        .await
    }

    async fn rename_no_overwrite(&self, from: &StorePath, to: &StorePath) -> Result<()> {
        self.patiently(Operation::Rename, || {
            self.inner.rename_no_overwrite(from, to)
        })
        .await
    }

    async fn delete(&self, path: &StorePath) -> Result<bool> {
        self.patiently(Operation::Delete, || self.inner.delete(path))
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faulty::{Fault, FaultyStore, Rule};
    use crate::local::LocalStore;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn refused() -> Fault {
        Fault::fail(|call| Error::Unreachable {
            operation: call.operation,
            path: call.path.clone(),
            address: "nn:1".to_owned(),
            source: "connection refused".into(),
        })
    }

    fn safe_mode() -> Fault {
        Fault::fail(|call| Error::SafeMode {
            operation: call.operation,
            path: call.path.clone(),
            source: "the namenode is starting".into(),
        })
    }

    fn bench() -> (tempfile::TempDir, FaultyStore, PatientStore, StorePath) {
        let temp = tempfile::tempdir().unwrap();
        let root = StorePath::new(temp.path().to_str().unwrap()).unwrap();
        let faults = FaultyStore::new(Arc::new(LocalStore::new()));
        let store = PatientStore::new(Arc::new(faults.clone()), PATIENCE);
        (temp, faults, store, root)
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_was_never_reached_is_not_waited_for() {
        let (_temp, faults, store, root) = bench();
        faults.add(Rule::any(refused()).times(usize::MAX));
        let error = store.stat(&root).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert_eq!(faults.calls().len(), 1);
        assert!(store.patience().is_left(), "nothing was waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_answered_before_is_waited_for() {
        let (_temp, faults, store, root) = bench();
        store.mkdir(&root.join("a")).await.unwrap();
        faults.add(Rule::on(Operation::Rename, refused()).times(3));
        store
            .rename_no_overwrite(&root.join("a"), &root.join("b"))
            .await
            .unwrap();
        faults.add(Rule::on(Operation::Create, safe_mode()).times(3));
        store.put(&root.join("c"), Bytes::new()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn safe_mode_before_any_change_is_said_at_once() {
        let (_temp, faults, store, root) = bench();
        store.stat(&root).await.unwrap();
        faults.add(Rule::on(Operation::Mkdir, safe_mode()).times(usize::MAX));
        let error = store.mkdir(&root.join("a")).await.unwrap_err();
        assert!(matches!(error, Error::SafeMode { .. }), "{error:?}");
        assert!(store.patience().is_left());
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_is_bounded_and_not_begun_twice() {
        let (_temp, faults, store, root) = bench();
        store.stat(&root).await.unwrap();
        faults.add(Rule::any(refused()).times(usize::MAX));
        let begun = Instant::now();
        store.stat(&root).await.unwrap_err();
        assert_eq!(begun.elapsed(), PATIENCE);
        assert!(!store.patience().is_left());
        let calls = faults.calls().len();
        store.list(&root).await.unwrap_err();
        assert_eq!(faults.calls().len(), calls + 1, "waited again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_have_happened_or_cannot_pass_is_handed_on() {
        let (_temp, faults, store, root) = bench();
        store.mkdir(&root.join("a")).await.unwrap();
        faults.add(Rule::on(Operation::Rename, Fault::LoseAnswer));
        let error = store
            .rename_no_overwrite(&root.join("a"), &root.join("b"))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
        faults.add(Rule::on(
            Operation::Mkdir,
            Fault::fail(|call| Error::Quota {
                operation: call.operation,
                path: call.path.clone(),
                source: "full".into(),
            }),
        ));
        let error = store.mkdir(&root.join("c")).await.unwrap_err();
        assert!(matches!(error, Error::Quota { .. }), "{error:?}");
        // A file whose writing failed is not written again under the same name.
        faults.add(Rule::on(Operation::Close, Fault::LoseRequest));
        let error = store.put(&root.join("d"), Bytes::new()).await.unwrap_err();
        assert!(matches!(error, Error::WriteFailed { .. }), "{error:?}");
    }
}
