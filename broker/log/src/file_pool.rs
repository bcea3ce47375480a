//! Files opened on demand and closed again when too many are open.
//!
//! A log directory may hold far more segments than a process may have descriptors (KAFKA-6343), so a segment keeps
//! [`PooledFile`]s, which are names; the pool keeps the least recently used ones open, up to a bound. Lock order:
//! the pool's lock is a leaf, nothing is called under it.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct FilePool {
    disk: Arc<dyn Disk>,
    max_open: usize,
    next_id: AtomicU64,
    open: Mutex<OpenFiles>,
}

#[derive(Debug, Default)]
struct OpenFiles {
    /// Id to file and the tick of its last use.
    files: HashMap<u64, (Arc<dyn DiskFile>, u64)>,
    tick: u64,
}

impl FilePool {
    pub(crate) fn new(disk: Arc<dyn Disk>, max_open: usize) -> Arc<Self> {
        Arc::new(Self {
            disk,
            max_open: max_open.max(4),
            next_id: AtomicU64::new(0),
            open: Mutex::default(),
        })
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// A name in this pool; the file is not touched.
    pub(crate) fn file(self: &Arc<Self>, path: PathBuf) -> PooledFile {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        PooledFile {
            pool: Arc::clone(self),
            id,
            path,
            pinned: OnceLock::new(),
        }
    }

    fn get(&self, id: u64) -> Option<Arc<dyn DiskFile>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.tick += 1;
        let tick = open.tick;
        open.files.get_mut(&id).map(|(file, used)| {
            *used = tick;
            Arc::clone(file)
        })
    }

    fn put(&self, id: u64, file: &Arc<dyn DiskFile>) {
        // Closed after the lock is released: closing may block.
        let mut evicted = Vec::new();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.files.len() >= self.max_open {
            let mut ticks: Vec<u64> = open.files.values().map(|(_, used)| *used).collect();
            let quantile = ticks.len() / 16;
            let (_, oldest, _) = ticks.select_nth_unstable(quantile);
            let oldest = *oldest;
            evicted.extend(open.files.extract_if(|_, (_, used)| *used <= oldest));
        }
        open.tick += 1;
        let tick = open.tick;
        open.files.insert(id, (Arc::clone(file), tick));
        drop(open);
        drop(evicted);
    }

    fn remove(&self, id: u64) {
        let removed = self
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .files
            .remove(&id);
        drop(removed);
    }

    #[cfg(test)]
    pub(crate) fn open_files(&self) -> usize {
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .files
            .len()
    }
}

/// The name of a file that the pool opens when it is used. Dropping it closes the file.
#[derive(Debug)]
pub(crate) struct PooledFile {
    pool: Arc<FilePool>,
    id: u64,
    path: PathBuf,
    /// The file from before its name went to another.
    pinned: OnceLock<Arc<dyn DiskFile>>,
}

impl PooledFile {
    /// Keeps the file that has this name now open for good, so that whoever uses this goes on with it when the name
    /// is given to another file.
    pub(crate) fn pin(&self) -> Result<()> {
        if self.pinned.get().is_none() {
            let file = self.open()?;
            self.pinned.get_or_init(|| file);
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file, which must exist.
    pub(crate) fn open(&self) -> Result<Arc<dyn DiskFile>> {
        self.open_mode(OpenMode::Existing)
            .map_err(|source| Error::io("open", &self.path, source))
    }

    /// The file, made if missing.
    pub(crate) fn create(&self) -> Result<Arc<dyn DiskFile>> {
        self.open_mode(OpenMode::Create)
            .map_err(|source| Error::io("create", &self.path, source))
    }

    fn open_mode(&self, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = self.pinned.get() {
            return Ok(Arc::clone(file));
        }
        if let Some(file) = self.pool.get(self.id) {
            return Ok(file);
        }
        let opened = self.pool.disk.open(&self.path, mode);
        if let Some(file) = self.pinned.get() {
            // What was opened may be the other file.
            return Ok(Arc::clone(file));
        }
        let file = opened?;
        self.pool.put(self.id, &file);
        Ok(file)
    }

    /// Closes the file (as soon as nobody uses it) and removes its name; absence is no error.
    pub(crate) fn remove(&self) -> Result<()> {
        self.pool.remove(self.id);
        remove_if_there(self.pool.disk(), &self.path)
    }
}

impl Drop for PooledFile {
    fn drop(&mut self) {
        self.pool.remove(self.id);
    }
}

/// Removes a file; absence is no error.
pub(crate) fn remove_if_there(disk: &dyn Disk, path: &Path) -> Result<()> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path, error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
