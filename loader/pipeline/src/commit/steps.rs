//! Single steps inside staging that go on after trouble that passes.
//!
//! The store repeats by itself only what certainly changed nothing. Here is the rest, which needs to know what
//! the names mean: a directory or file under a fresh uuid is ours alone, so a lost answer to its making is settled
//! by making it again, and one to its rename by a look at both ends. A request that comes late, after its
//! answer was given up, does no harm: its source is gone, or its name is one that nobody uses any more.
//!
//! All are bounded by [`Store::patience`]; without any each step is tried once.

use bytes::Bytes;
use loader_store::{Error, Result, Store, StorePath};
use uuid::Uuid;

/// Calls until it is done or the store's patience is over.
pub(crate) async fn persistently<T, Call>(store: &dyn Store, call: impl Fn() -> Call) -> Result<T>
where
    Call: Future<Output = Result<T>>,
{
    let mut tries = store.patience().tries();
    loop {
        match call().await {
            Err(error) if tries.again(&error).await => {}
            ended => return ended,
        }
    }
}

/// Makes a directory that only this run uses; one that is there is as good.
pub(crate) async fn make_directory(store: &dyn Store, path: &StorePath) -> Result<()> {
    match persistently(store, || store.mkdir(path)).await {
        Err(Error::AlreadyExists { .. }) => Ok(()),
        made => made,
    }
}

/// Makes a directory in `parent` under a new name; each try another, so that the change that was acknowledged is
/// surely one of now. A directory needs no DataNode.
pub(crate) async fn make_fresh_directory(
    store: &dyn Store,
    parent: &StorePath,
    prefix: &str,
) -> Result<()> {
    persistently(store, || async {
        let path = parent.join(&format!("{prefix}{}", Uuid::new_v4()));
        store.mkdir(&path).await
    })
    .await
}

/// Makes a directory and those above it, wherever they are missing.
pub(crate) async fn make_all_directories(store: &dyn Store, path: &StorePath) -> Result<()> {
    persistently(store, || store.mkdirs(path)).await
}

/// Overwrites an advisory file, whatever there is.
pub(crate) async fn overwrite(store: &dyn Store, path: &StorePath, bytes: Bytes) -> Result<()> {
    persistently(store, || store.replace(path, bytes.clone())).await
}

/// Deletes what only this run knows of, if it is there.
pub(crate) async fn delete(store: &dyn Store, path: &StorePath) -> Result<()> {
    persistently(store, || store.delete(path)).await.map(drop)
}

/// Writes a whole file into `directory` under a name of its own that ends in `name`, each try under another:
/// under that of a failed one there may be anything. Returns the path.
pub(crate) async fn write_beside(
    store: &dyn Store,
    directory: &StorePath,
    name: &str,
    bytes: &Bytes,
) -> Result<StorePath> {
    persistently(store, || async {
        let path = directory.join(&format!("new-{}{name}", Uuid::new_v4()));
        if let Err(error) = store.put(&path, bytes.clone()).await {
            // HDFS charges the quota for a file which nobody closed. An error here says nothing new.
            drop(store.delete(&path).await);
            return Err(error);
        }
        Ok(path)
    })
    .await
}

/// Renames what only this run knows of. `NotFound` means that neither end is there.
///
/// A lost answer is settled by a look at both ends where what can be seen is durable, whatever the patience.
pub(crate) async fn rename_ours(store: &dyn Store, from: &StorePath, to: &StorePath) -> Result<()> {
    let mut tries = store.patience().tries();
    let can_look = store.rename_semantics().seen_is_durable;
    let mut in_doubt = false;
    loop {
        let error = match store.rename_no_overwrite(from, to).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        in_doubt |= matches!(error, Error::OutcomeUnknown { .. });
        // Only after a lost answer can it be ours that is there: it came late, or the look came early.
        let may_be_done =
            in_doubt && matches!(error, Error::OutcomeUnknown { .. } | Error::NotFound { .. });
        if can_look && may_be_done && has_moved(store, from, to).await {
            return Ok(());
        }
        if !tries.again(&error).await {
            return Err(error);
        }
    }
}

/// Whether the source is gone and the target there; `false` too where the store does not say.
async fn has_moved(store: &dyn Store, from: &StorePath, to: &StorePath) -> bool {
    matches!(store.stat(from).await, Ok(None)) && matches!(store.stat(to).await, Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use loader_store::faulty::{Fault, FaultyStore, Rule};
    use loader_store::{LocalStore, Operation};

    use super::*;

    fn bench(patience: Duration) -> (tempfile::TempDir, FaultyStore, StorePath) {
        let dir = tempfile::TempDir::new().unwrap();
        let root = StorePath::new(dir.path().to_str().unwrap()).unwrap();
        let store = FaultyStore::new(Arc::new(LocalStore::new())).into_remote(patience);
        (dir, store, root)
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_lost_answer_to_a_directory_is_no_trouble() {
        let (_dir, store, root) = bench(PATIENCE);
        for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
            store.add(Rule::on(Operation::Mkdir, fault));
        }
        let path = root.join("a");
        make_directory(&store, &path).await.unwrap();
        assert!(store.stat(&path).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_document_that_could_not_be_written_gets_another_name() {
        let (_dir, store, root) = bench(PATIENCE);
        store.add(Rule::on(Operation::Put, Fault::LoseAnswer).times(2));
        let path = write_beside(&store, &root, "x", &Bytes::from_static(b"text"))
            .await
            .unwrap();
        let calls = store.calls();
        let puts = calls.iter().filter(|call| call.operation == Operation::Put);
        let names: std::collections::BTreeSet<_> = puts.map(|call| call.path.clone()).collect();
        assert_eq!(names.len(), 3, "a failed name was used again");
        let left = store.list(&root).await.unwrap().len();
        assert_eq!(left, 1, "a failed file was left");
        assert_eq!(&store.read(&path).await.unwrap()[..], b"text");
    }

    #[tokio::test]
    async fn a_lost_answer_to_a_rename_is_looked_up_at_both_ends() {
        for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
            let (_dir, store, root) = bench(PATIENCE);
            let (from, to) = (root.join("from"), root.join("to"));
            store.mkdir(&from).await.unwrap();
            store.add(Rule::on(Operation::Rename, fault));
            rename_ours(&store, &from, &to).await.unwrap();
            assert!(store.stat(&to).await.unwrap().is_some());
        }
    }

    #[tokio::test]
    async fn the_look_needs_no_patience_but_a_store_whose_sight_is_durable() {
        for (patience, remote) in [(None, false), (Some(Duration::ZERO), true)] {
            let (_dir, mut store, root) = bench(Duration::ZERO);
            if patience.is_none() {
                store = FaultyStore::new(Arc::new(LocalStore::new()));
            }
            let (from, to) = (root.join("from"), root.join("to"));
            store.mkdir(&from).await.unwrap();
            store.add(Rule::on(Operation::Rename, Fault::LoseAnswer));
            let renamed = rename_ours(&store, &from, &to).await;
            assert_eq!(renamed.is_ok(), remote, "{renamed:?}");
        }
    }

    #[tokio::test]
    async fn a_rename_that_comes_late_is_found_by_the_next_try() {
        let (_dir, store, root) = bench(PATIENCE);
        let (from, to) = (root.join("from"), root.join("to"));
        store.mkdir(&from).await.unwrap();
        let (old, new) = (from.to_string(), to.to_string());
        store.add(Rule::on(Operation::Rename, Fault::LoseRequest));
        // It is carried out only when the second request arrives.
        store.add(
            Rule::on(
                Operation::Rename,
                Fault::fail(move |call| {
                    std::fs::rename(&old, &new).unwrap();
                    Error::NotFound {
                        path: call.path.clone(),
                    }
                }),
            )
            .nth(1),
        );
        rename_ours(&store, &from, &to).await.unwrap();
    }

    #[tokio::test]
    async fn a_name_that_another_has_and_a_source_that_is_gone_are_errors() {
        let (_dir, store, root) = bench(PATIENCE);
        let (from, to) = (root.join("from"), root.join("to"));
        let error = rename_ours(&store, &from, &to).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
        store.mkdir(&from).await.unwrap();
        store.mkdir(&to).await.unwrap();
        store.add(Rule::on(Operation::Rename, Fault::LoseAnswer));
        let error = rename_ours(&store, &from, &to).await.unwrap_err();
        assert!(matches!(error, Error::AlreadyExists { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn patience_ends() {
        let (_dir, store, root) = bench(Duration::from_millis(700));
        store.add(Rule::on(Operation::Put, Fault::LoseRequest).times(usize::MAX));
        let error = write_beside(&store, &root, "x", &Bytes::new())
            .await
            .unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
        assert!(store.calls().len() > 1, "it was not tried again");
        assert!(!store.patience().is_left());
    }
}
