//! Single steps inside staging that go on after trouble that passes.
//!
//! The store repeats by itself only what certainly changed nothing. Here is the rest, which needs to know what
//! the names mean: a directory or file under a fresh uuid is ours alone, so a lost answer to its making is settled
//! by making it again, and one to its rename by a look at both ends. A request that comes late, after its
//! answer was given up, does no harm: its source is gone, or its name is one that nobody uses any more.
//!
//! All are bounded by [`Store::patience`]; without any (local stores) each step is tried once.

use bytes::Bytes;
use loader_store::{Error, Result, Store, StorePath};
use uuid::Uuid;

/// Makes a directory that only this run uses; one that is there is as good.
pub(crate) async fn make_directory(store: &dyn Store, path: &StorePath) -> Result<()> {
    let mut tries = store.patience().tries();
    loop {
        match store.mkdir(path).await {
            Ok(()) | Err(Error::AlreadyExists { .. }) => return Ok(()),
            Err(error) if tries.again(&error).await => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes a directory and those above it, wherever they are missing.
pub(crate) async fn make_directories(store: &dyn Store, path: &StorePath) -> Result<()> {
    let mut tries = store.patience().tries();
    loop {
        match store.mkdirs(path).await {
            Ok(()) => return Ok(()),
            Err(error) if tries.again(&error).await => {}
            Err(error) => return Err(error),
        }
    }
}

/// Overwrites an advisory file, whatever there is.
pub(crate) async fn overwrite(store: &dyn Store, path: &StorePath, bytes: Bytes) -> Result<()> {
    let mut tries = store.patience().tries();
    loop {
        match store.replace(path, bytes.clone()).await {
            Ok(()) => return Ok(()),
            Err(error) if tries.again(&error).await => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes a whole file into `directory` under a name of its own that ends in `name`, each try under another:
/// under that of a failed one there may be anything. Returns the path.
pub(crate) async fn write_beside(
    store: &dyn Store,
    directory: &StorePath,
    name: &str,
    bytes: &Bytes,
) -> Result<StorePath> {
    let mut tries = store.patience().tries();
    loop {
        let path = directory.join(&format!("new-{}{name}", Uuid::new_v4()));
        match store.put(&path, bytes.clone()).await {
            Ok(()) => return Ok(path),
            Err(error) if tries.again(&error).await => {}
            Err(error) => return Err(error),
        }
    }
}

/// Renames what only this run knows of. `NotFound` means that neither end is there.
pub(crate) async fn rename_ours(store: &dyn Store, from: &StorePath, to: &StorePath) -> Result<()> {
    let mut tries = store.patience().tries();
    let mut in_doubt = false;
    loop {
        let error = match store.rename_no_overwrite(from, to).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        // Without patience the store is a local one: its lost answer is a failed fsync, and that stands.
        if !store.patience().is_left() {
            return Err(error);
        }
        // Only after a lost answer can it be ours that is there: it came late, or the look came early.
        if in_doubt && matches!(error, Error::NotFound { .. }) && store.stat(to).await?.is_some() {
            return Ok(());
        }
        if matches!(error, Error::OutcomeUnknown { .. }) {
            in_doubt = true;
            if store.stat(from).await?.is_none() && store.stat(to).await?.is_some() {
                return Ok(());
            }
        }
        if !tries.again(&error).await {
            return Err(error);
        }
    }
}
