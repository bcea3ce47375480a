//! A store that misbehaves on demand, around any other.
//!
//! ```text
//!  test ──► FaultyStore ──(first rule that matches the call)──► real store
//!              │ Fail          not done, the error given
//!              │ LoseRequest   not done, OutcomeUnknown
//!              │ LoseAnswer    done,     OutcomeUnknown
//!              │ Pause         waits at a Gate, then done
//!              └ PauseAnswer   done, then waits at a Gate
//! ```
//!
//! Rules belong to an instance, so tests run side by side. Every call is recorded.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::{
    Entry, Error, FileWriter, Operation, Patience, RenameSemantics, Result, Store, StorePath,
};

/// One call of a store or a writer, as rules see it and as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What was asked. `read_range` counts as [`Operation::Read`].
    pub operation: Operation,
    /// Of what; for a rename the source.
    pub path: StorePath,
    /// The target of a rename.
    pub target: Option<StorePath>,
}

/// What happens instead of, before or after the real call.
#[derive(Clone)]
pub enum Fault {
    /// The real call is not made, and this error returned.
    Fail(Arc<dyn Fn(&Call) -> Error + Send + Sync>),
    /// The real call is not made, and the caller told [`Error::OutcomeUnknown`] (a read:
    /// [`Error::Timeout`]).
    LoseRequest,
    /// The real call is made, and the caller told what [`Fault::LoseRequest`] says, whatever came of
    /// it.
    LoseAnswer,
    /// The caller waits at the gate; then the real call is made. A caller that is dropped meanwhile
    /// never makes it.
    Pause(Gate),
    /// The real call is made; then the caller waits at the gate before it learns the result.
    PauseAnswer(Gate),
}

impl Fault {
    /// [`Fault::Fail`] with what `error` makes of the call.
    pub fn fail(error: impl Fn(&Call) -> Error + Send + Sync + 'static) -> Self {
        Self::Fail(Arc::new(error))
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fail(_) => "Fail",
            Self::LoseRequest => "LoseRequest",
            Self::LoseAnswer => "LoseAnswer",
            Self::Pause(_) => "Pause",
            Self::PauseAnswer(_) => "PauseAnswer",
        })
    }
}

/// Where paused callers wait. Once open it stays open.
#[derive(Clone, Debug)]
pub struct Gate {
    waiting: Arc<watch::Sender<usize>>,
    open: Arc<watch::Sender<bool>>,
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self {
            waiting: Arc::new(watch::Sender::new(0)),
            open: Arc::new(watch::Sender::new(false)),
        }
    }

    /// Waits until a caller has come to the gate. Cancel safe.
    pub async fn reached(&self) {
        // The sender lives as long as self, so this ends by the condition alone.
        drop(
            self.waiting
                .subscribe()
                .wait_for(|waiting| *waiting > 0)
                .await,
        );
    }

    /// Lets everybody through, now and later.
    pub fn release(&self) {
        self.open.send_replace(true);
    }

    async fn pass(&self) {
        self.waiting.send_modify(|waiting| *waiting += 1);
        drop(self.open.subscribe().wait_for(|open| *open).await);
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

type Predicate = Arc<dyn Fn(&Call) -> bool + Send + Sync>;

/// Which calls meet a fault: by operation and path, from the nth on, so many times.
#[derive(Clone)]
pub struct Rule {
    operation: Option<Operation>,
    predicate: Option<Predicate>,
    skip: usize,
    times: usize,
    fault: Fault,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("operation", &self.operation)
            .field("by_predicate", &self.predicate.is_some())
            .field("skip", &self.skip)
            .field("times", &self.times)
            .field("fault", &self.fault)
            .finish()
    }
}

impl Rule {
    /// The next call of `operation`, once.
    #[must_use]
    pub fn on(operation: Operation, fault: Fault) -> Self {
        Self {
            operation: Some(operation),
            ..Self::any(fault)
        }
    }

    /// The next call of any kind, once.
    #[must_use]
    pub fn any(fault: Fault) -> Self {
        Self {
            operation: None,
            predicate: None,
            skip: 0,
            times: 1,
            fault,
        }
    }

    /// Only calls for which this holds.
    #[must_use]
    pub fn when(mut self, predicate: impl Fn(&Call) -> bool + Send + Sync + 'static) -> Self {
        self.predicate = Some(Arc::new(predicate));
        self
    }

    /// Only calls whose path, or whose target, holds `text`.
    #[must_use]
    pub fn path_contains(self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.when(move |call| {
            std::iter::once(&call.path)
                .chain(&call.target)
                .any(|p| p.as_str().contains(&text))
        })
    }

    /// Begins with the nth call that matches; the first is 0.
    #[must_use]
    pub fn nth(mut self, n: usize) -> Self {
        self.skip = n;
        self
    }

    /// Holds for so many calls; `usize::MAX` for ever.
    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    fn matches(&self, call: &Call) -> bool {
        self.operation
            .is_none_or(|operation| operation == call.operation)
            && self
                .predicate
                .as_ref()
                .is_none_or(|predicate| predicate(call))
    }

    /// Counts a matching call, and says whether the fault holds for it.
    fn strikes(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let strikes = self.times > 0;
        self.times = match self.times {
            usize::MAX => usize::MAX,
            times => times.saturating_sub(1),
        };
        strikes
    }
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    calls: Vec<Call>,
}

type Shared = Arc<Mutex<State>>;

/// A [`Store`] around another that obeys [`Rule`]s. Clones share rules and record.
#[derive(Clone, Debug)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    state: Shared,
    patience: Patience,
    remote: bool,
}

impl FaultyStore {
    /// Around `inner`; without rules it only records.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            patience: inner.patience(),
            remote: false,
            inner,
            state: Arc::default(),
        }
    }

    /// As a remote store: with this patience, and what can be seen is durable.
    #[must_use]
    pub fn into_remote(mut self, patience: std::time::Duration) -> Self {
        self.patience = Patience::new(patience);
        self.patience.note_answer();
        self.patience.note_change();
        self.remote = true;
        self
    }

    /// Adds a rule behind those there. The first that strikes decides a call; all that match count it.
    pub fn add(&self, rule: Rule) {
        self.lock().rules.push(rule);
    }

    /// Removes all rules. Gates stay as they are.
    pub fn clear(&self) {
        self.lock().rules.clear();
    }

    /// Every call so far, in the order in which they were begun.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call<T>(
        &self,
        operation: Operation,
        path: &StorePath,
        real: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let call = Call {
            operation,
            path: path.clone(),
            target: None,
        };
        obey(&self.state, call, real).await
    }
}

fn strike(state: &Shared, call: &Call) -> Option<Fault> {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.calls.push(call.clone());
    let mut fault = None;
    for rule in &mut state.rules {
        if rule.matches(call) && rule.strikes() && fault.is_none() {
            fault = Some(rule.fault.clone());
        }
    }
    fault
}

fn lost(call: Call) -> Error {
    let Call {
        operation,
        path,
        target,
    } = call;
    let source = "injected: no answer".into();
    if matches!(operation, Operation::Write | Operation::Close) {
        Error::WriteFailed { path, source }
    } else if operation.changes() {
        Error::OutcomeUnknown {
            operation,
            path: target.unwrap_or(path),
            source,
        }
    } else {
        let (address, after) = ("the faulty store".to_owned(), std::time::Duration::ZERO);
        Error::Timeout {
            operation,
            path,
            address,
            after,
        }
    }
}

async fn obey<T>(
    state: &Shared,
    call: Call,
    real: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    match strike(state, &call) {
        None => real.await,
        Some(Fault::Fail(error)) => Err(error(&call)),
        Some(Fault::LoseRequest) => Err(lost(call)),
        Some(Fault::LoseAnswer) => {
            // Whatever the real store says is what gets lost.
            drop(real.await);
            Err(lost(call))
        }
        Some(Fault::Pause(gate)) => {
            gate.pass().await;
            real.await
        }
        Some(Fault::PauseAnswer(gate)) => {
            let result = real.await;
            gate.pass().await;
            result
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn uri(&self, path: &StorePath) -> String {
        self.inner.uri(path)
    }

    fn rename_semantics(&self) -> RenameSemantics {
        let inner = self.inner.rename_semantics();
        RenameSemantics {
            seen_is_durable: inner.seen_is_durable || self.remote,
            ..inner
        }
    }

    fn patience(&self) -> Patience {
        self.patience.clone()
    }

    async fn stat(&self, path: &StorePath) -> Result<Option<Entry>> {
        self.call(Operation::Stat, path, self.inner.stat(path))
            .await
    }

    async fn list(&self, directory: &StorePath) -> Result<Vec<Entry>> {
        self.call(Operation::List, directory, self.inner.list(directory))
            .await
    }

    async fn mkdir(&self, directory: &StorePath) -> Result<()> {
        self.call(Operation::Mkdir, directory, self.inner.mkdir(directory))
            .await
    }

    async fn mkdirs(&self, directory: &StorePath) -> Result<()> {
        self.call(Operation::Mkdirs, directory, self.inner.mkdirs(directory))
            .await
    }

    async fn create(&self, file: &StorePath) -> Result<Box<dyn FileWriter>> {
        let inner = self
            .call(Operation::Create, file, self.inner.create(file))
            .await?;
        let state = Arc::clone(&self.state);
        Ok(Box::new(FaultyWriter {
            inner,
            path: file.clone(),
            state,
            broken: false,
        }))
    }

    async fn put(&self, file: &StorePath, content: Bytes) -> Result<()> {
        self.call(Operation::Put, file, self.inner.put(file, content))
            .await
    }

    async fn replace(&self, file: &StorePath, content: Bytes) -> Result<()> {
        self.call(Operation::Replace, file, self.inner.replace(file, content))
            .await
    }

    async fn read(&self, file: &StorePath) -> Result<Bytes> {
        self.call(Operation::Read, file, self.inner.read(file))
            .await
    }

    async fn read_range(&self, file: &StorePath, range: Range<u64>) -> Result<Bytes> {
        self.call(Operation::Read, file, self.inner.read_range(file, range))
            .await
    }

    async fn rename_no_overwrite(&self, from: &StorePath, to: &StorePath) -> Result<()> {
        let target = Some(to.clone());
        let call = Call {
            operation: Operation::Rename,
            path: from.clone(),
            target,
        };
        obey(&self.state, call, self.inner.rename_no_overwrite(from, to)).await
    }

    async fn delete(&self, path: &StorePath) -> Result<bool> {
        self.call(Operation::Delete, path, self.inner.delete(path))
            .await
    }
}

#[derive(Debug)]
struct FaultyWriter {
    inner: Box<dyn FileWriter>,
    path: StorePath,
    state: Shared,
    broken: bool,
}

impl FaultyWriter {
    fn begin(&mut self) -> Result<()> {
        // As in a real writer, an error or a dropped call ends it.
        if std::mem::replace(&mut self.broken, true) {
            let source = "an earlier write failed or was given up".into();
            return Err(Error::WriteFailed {
                path: self.path.clone(),
                source,
            });
        }
        Ok(())
    }

    fn call(&self, operation: Operation) -> Call {
        Call {
            operation,
            path: self.path.clone(),
            target: None,
        }
    }
}

#[async_trait]
impl FileWriter for FaultyWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.begin()?;
        let call = self.call(Operation::Write);
        obey(&self.state, call, self.inner.write(bytes)).await?;
        self.broken = false;
        Ok(())
    }

    async fn close(mut self: Box<Self>) -> Result<u64> {
        self.begin()?;
        let call = self.call(Operation::Close);
        let Self { inner, state, .. } = *self;
        obey(&state, call, inner.close()).await
    }
}

#[cfg(test)]
mod tests;
