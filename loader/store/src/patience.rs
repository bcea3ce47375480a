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
//! could not be written or read, are the caller's to look at, to write again under another name, or to do
//! without; its [`Tries`] share the same bound.

use std::hash::{BuildHasher as _, Hasher as _};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    Entry, Error, FileWriter, Operation, RenameSemantics, Result, Store, StorePath, chain,
};

/// First pause; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// How long trouble that passes by itself is waited for. Clones share its end: where one has waited in
/// vain, the others do not begin, and those that wait stop.
#[derive(Clone, Debug, Default)]
pub struct Patience {
    limit: Duration,
    over: CancellationToken,
    seen: Arc<Seen>,
}

/// What the store has shown of itself. Until then its trouble is somebody's intention or a wrong address.
#[derive(Debug, Default)]
struct Seen {
    /// It has answered once.
    answer: AtomicBool,
    /// It has carried out a change once: safe mode is something new then.
    change: AtomicBool,
}

impl Patience {
    /// Up to `limit` for each trouble.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self::until(limit, &CancellationToken::new())
    }

    /// Up to `limit` for each trouble, and none any more once `stop` is cancelled.
    #[must_use]
    pub fn until(limit: Duration, stop: &CancellationToken) -> Self {
        Self {
            limit,
            over: stop.child_token(),
            seen: Arc::default(),
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
        !self.limit.is_zero() && !self.over.is_cancelled()
    }

    /// The tries of one call or file; the time runs from the first failure. Having waited in vain ends all
    /// patience.
    #[must_use]
    pub fn tries(&self) -> Tries {
        Tries {
            patience: self.clone(),
            until: None,
            pause: FIRST_PAUSE,
            ends_all: true,
        }
    }

    /// As [`Patience::tries`], for work that is long itself: its second failure may be another trouble, and
    /// tells nothing of the patience of others.
    #[must_use]
    pub fn tries_of_long_work(&self) -> Tries {
        Tries {
            ends_all: false,
            ..self.tries()
        }
    }

    pub(crate) fn note_answer(&self) {
        self.seen.answer.store(true, Ordering::Relaxed);
    }

    pub(crate) fn note_change(&self) {
        self.seen.change.store(true, Ordering::Relaxed);
    }

    fn waits_after(&self, error: &Error) -> bool {
        let was_well = if matches!(error, Error::SafeMode { .. }) {
            self.seen.change.load(Ordering::Relaxed)
        } else {
            let is_silence = matches!(error, Error::Unreachable { .. } | Error::Timeout { .. });
            !is_silence || self.seen.answer.load(Ordering::Relaxed)
        };
        was_well && error.may_pass()
    }
}

/// See [`Patience::tries`].
#[derive(Debug)]
pub struct Tries {
    patience: Patience,
    until: Option<Instant>,
    pause: Duration,
    ends_all: bool,
}

impl Tries {
    /// After `error`: waits a moment and says whether to try again. `false` at once for what does not pass by
    /// itself ([`Error::may_pass`]), for a store that was not well before, and when the patience is over.
    /// Cancel safe.
    pub async fn again(&mut self, error: &Error) -> bool {
        if !self.patience.is_left() || !self.patience.waits_after(error) {
            return false;
        }
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + self.patience.limit);
        if now >= until {
            if self.ends_all {
                self.patience.over.cancel();
            }
            return false;
        }
        let pause = jittered(self.pause).min(until.saturating_duration_since(now));
        tracing::warn!(
            error = %chain(error),
            pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            left_s = until.saturating_duration_since(now).as_secs(),
            "the store is in trouble, trying again"
        );
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = self.patience.over.cancelled() => false,
        }
    }
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
}

impl PatientStore {
    pub(crate) fn new(inner: Arc<dyn Store>, patience: Patience) -> Self {
        Self { inner, patience }
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
                    self.patience.note_answer();
                    if operation.changes() {
                        self.patience.note_change();
                    }
                    return Ok(done);
                }
                Err(error) => error,
            };
            let is_silence = matches!(
                error,
                Error::Unreachable { .. } | Error::Timeout { .. } | Error::OutcomeUnknown { .. }
            );
            if !is_silence {
                self.patience.note_answer();
            }
            if !changed_nothing(&error) || !tries.again(&error).await {
                return Err(error);
            }
        }
    }
}

/// Whether it is sure that nothing was done. Reads are repeated by the caller: what is only advice need not
/// be waited for.
const fn changed_nothing(error: &Error) -> bool {
    matches!(
        error,
        Error::Unreachable { .. } | Error::Timeout { .. } | Error::SafeMode { .. }
    )
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
    use crate::LocalStore;
    use crate::faulty::{Fault, FaultyStore, Rule};

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
        let store = PatientStore::new(Arc::new(faults.clone()), Patience::new(PATIENCE));
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
    async fn safe_mode_before_any_change_is_not_waited_for_by_the_caller_either() {
        let (_temp, faults, store, root) = bench();
        store.stat(&root).await.unwrap();
        faults.add(Rule::on(Operation::Mkdir, safe_mode()));
        let error = store.mkdir(&root.join("a")).await.unwrap_err();
        assert!(!store.patience().tries().again(&error).await);
        store.mkdir(&root.join("b")).await.unwrap();
        assert!(store.patience().tries().again(&error).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_wait() {
        let stop = CancellationToken::new();
        let patience = Patience::until(PATIENCE, &stop);
        patience.note_answer();
        let error = Error::Timeout {
            operation: Operation::Stat,
            path: StorePath::new("/").unwrap(),
            address: "nn:1".to_owned(),
            after: PATIENCE,
        };
        let mut tries = patience.tries();
        assert!(tries.again(&error).await);
        let begun = Instant::now();
        let (again, ()) = tokio::join!(tries.again(&error), async { stop.cancel() });
        assert!(!again && begun.elapsed().is_zero());
        assert!(!patience.tries().again(&error).await, "it began to wait");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_long_itself_does_not_end_the_patience_of_others() {
        let patience = Patience::new(PATIENCE);
        patience.note_answer();
        let error = Error::WriteFailed {
            path: StorePath::new("/a").unwrap(),
            source: "no datanode".into(),
        };
        let mut tries = patience.tries_of_long_work();
        assert!(tries.again(&error).await);
        tokio::time::advance(PATIENCE).await;
        assert!(!tries.again(&error).await);
        assert!(patience.is_left());
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
