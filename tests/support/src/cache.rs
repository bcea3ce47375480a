//! The folder of things fetched once for all test runs: jars, compiled helpers, a Python.
//!
//! Every entry is built aside and renamed into place, under a file lock, so that test processes that
//! start at the same moment, or one that is killed halfway, never leave half an entry behind.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Holds the key an entry was built for; written last.
const MARKER: &str = ".ok";

/// The cache folder: `LOGFERRY_TEST_CACHE`, or `~/.cache/logferry-tests`.
///
/// # Errors
/// If neither `LOGFERRY_TEST_CACHE` nor `HOME` is set, or the folder cannot be made.
pub fn root() -> Result<PathBuf> {
    let root = match std::env::var_os("LOGFERRY_TEST_CACHE") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME").context("set HOME or LOGFERRY_TEST_CACHE")?)
            .join(".cache/logferry-tests"),
    };
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    Ok(root)
}

/// The folder `name` of the cache, made by `build` unless it is there and was made for the same `key`.
///
/// `build` fills the empty folder it is given, which is then renamed to its place; what it writes must
/// therefore not depend on the folder's own path.
///
/// # Errors
/// Those of `build`, or of the file system.
pub fn once(name: &str, key: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let root = root()?;
    let entry = root.join(name);
    if is_built(&entry, key) {
        return Ok(entry);
    }
    let _lock = lock(name)?;
    if is_built(&entry, key) {
        return Ok(entry);
    }
    let staging = tempfile::Builder::new()
        .prefix(&format!(".{name}-"))
        .tempdir_in(&root)?;
    build(staging.path()).with_context(|| format!("cannot make {}", entry.display()))?;
    fs::write(staging.path().join(MARKER), key)?;
    if entry.try_exists()? {
        fs::remove_dir_all(&entry)?;
    }
    fs::rename(staging.keep(), &entry)?;
    Ok(entry)
}

/// An exclusive lock between processes, held until the file is dropped.
///
/// # Errors
/// If the lock file cannot be made.
pub fn lock(name: &str) -> Result<File> {
    ensure!(!name.contains('/'), "{name:?} is no name of a lock");
    let path = root()?.join(format!(".{name}.lock"));
    let file =
        File::create(&path).with_context(|| format!("cannot make the lock {}", path.display()))?;
    file.lock()?;
    Ok(file)
}

fn is_built(entry: &Path, key: &str) -> bool {
    fs::read_to_string(entry.join(MARKER)).is_ok_and(|built_for| built_for == key)
}
