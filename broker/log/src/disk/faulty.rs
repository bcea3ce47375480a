//! A file system that forgets what was not synced, fills up, and fails on demand. For tests.
//!
//! [`FaultyDisk`] works on a real directory (so `sendfile` and locks work) and remembers what would survive a power
//! failure: per file the content at its last sync, per directory the changes of names since its last sync.
//! [`FaultyDisk::crash`] then makes the directory what such a failure may leave: any prefix of the unsynced bytes,
//! possibly followed by zeros or garbage up to some length; names lost, renames and removals undone. Removed files
//! wait in a graveyard beside the root.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Disk, DiskFile, FileInfo, OpenMode, RealDisk};

/// What a [`Fault`] hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Opening or making a file.
    Open,
    /// A positioned read.
    Read,
    /// A vectored write.
    Write,
    /// A sync of a file.
    Sync,
    /// Setting a length.
    Truncate,
    /// A rename of a file or directory.
    Rename,
    /// A removal.
    Remove,
    /// A sync of a directory.
    SyncDir,
}

/// A failure to come.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Which operation fails.
    pub operation: Operation,
    /// Only on paths that end so.
    pub path_ends_with: String,
    /// After so many successes.
    pub after: usize,
    /// How often; `usize::MAX` for ever.
    pub times: usize,
    /// The kind of the error.
    pub kind: io::ErrorKind,
    /// For writes: bytes that are written before the failure shows (in a short write first).
    pub partial_bytes: usize,
}

impl Fault {
    /// The next such operation fails, once.
    #[must_use]
    pub fn once(operation: Operation, path_ends_with: &str, kind: io::ErrorKind) -> Self {
        Self {
            operation,
            path_ends_with: path_ends_with.to_owned(),
            after: 0,
            times: 1,
            kind,
            partial_bytes: 0,
        }
    }
}

/// See the module. A clone is the same disk.
#[derive(Debug, Clone)]
pub struct FaultyDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    graveyard: PathBuf,
    next_id: u64,
    /// Files that have been opened, by where they are now.
    files: HashMap<PathBuf, u64>,
    /// Content at the last sync.
    durable: HashMap<u64, Vec<u8>>,
    /// Changes of names that have not been synced, oldest first.
    names: Vec<NameChange>,
    faults: Vec<Fault>,
    /// Bytes that may still be written.
    space: Option<u64>,
    syncs: usize,
}

#[derive(Debug)]
enum NameChange {
    Created(PathBuf),
    Renamed {
        from: PathBuf,
        to: PathBuf,
        replaced: Option<PathBuf>,
    },
    Removed {
        path: PathBuf,
        grave: PathBuf,
    },
}

impl NameChange {
    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Created(path) | Self::Removed { path, .. } => path.parent(),
            Self::Renamed { to, .. } => to.parent(),
        }
    }
}

impl FaultyDisk {
    /// A disk over directories in `root`, which must exist; what is there already counts as synced.
    ///
    /// # Errors
    /// If the graveyard `<root>/.graveyard` cannot be made.
    pub fn new(root: &Path) -> io::Result<Self> {
        let graveyard = root.join(".graveyard");
        fs::create_dir_all(&graveyard)?;
        Ok(Self {
            state: Arc::new(Mutex::new(State {
                graveyard,
                ..State::default()
            })),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a failure to come.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Takes all failures back.
    pub fn heal(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.space = None;
    }

    /// So many more bytes can be written, then the disk is full.
    pub fn set_space(&self, bytes: u64) {
        self.state().space = Some(bytes);
    }

    /// Number of syncs of files so far.
    #[must_use]
    pub fn syncs(&self) -> usize {
        self.state().syncs
    }

    /// Loses power: leaves one of the states that the syncs so far allow. `choose(n)` picks a number below `n`. All
    /// files must have been closed; whatever is there afterwards counts as synced.
    ///
    /// # Errors
    /// If the real file system fails.
    pub fn crash(&self, choose: &mut dyn FnMut(usize) -> usize) -> io::Result<()> {
        let mut state = self.state();
        let mut files: Vec<(PathBuf, u64)> = state.files.drain().collect();
        files.sort();
        for (path, id) in files {
            if let Some(durable) = state.durable.remove(&id) {
                tear(&path, &durable, choose)?;
            }
        }
        let names = std::mem::take(&mut state.names);
        let mut survivors: HashMap<PathBuf, usize> = HashMap::new();
        for change in &names {
            *survivors
                .entry(change.dir().unwrap_or_else(|| Path::new("")).to_owned())
                .or_default() += 1;
        }
        let mut dirs: Vec<(PathBuf, usize)> = survivors.drain().collect();
        dirs.sort();
        for (dir, changes) in dirs {
            let lost = choose(changes + 1);
            survivors.insert(dir, lost);
        }
        for change in names.into_iter().rev() {
            let dir = change.dir().unwrap_or_else(|| Path::new(""));
            match survivors.get_mut(dir) {
                Some(0) | None => {}
                Some(lost) => {
                    *lost -= 1;
                    take_back(&change)?;
                }
            }
        }
        state.durable.clear();
        Ok(())
    }

    /// Fails if a fault says so; returns the bytes that a write may write first.
    fn check(&self, operation: Operation, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let name = path.to_string_lossy().into_owned();
        let hit = |fault: &&mut Fault| {
            fault.operation == operation && name.ends_with(&fault.path_ends_with)
        };
        let Some(fault) = state.faults.iter_mut().find(hit) else {
            return Ok(());
        };
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        if fault.times == 0 {
            return Ok(());
        }
        fault.times = fault
            .times
            .saturating_sub(usize::from(fault.times != usize::MAX));
        Err(fault.kind.into())
    }
}

impl State {
    /// Gives a file that is being opened an identity.
    fn adopt(&mut self, path: &Path, is_new: bool) -> io::Result<u64> {
        if let Some(id) = self.files.get(path) {
            return Ok(*id);
        }
        let id = self.next_id;
        self.next_id += 1;
        let durable = if is_new { Vec::new() } else { fs::read(path)? };
        if is_new {
            self.names.push(NameChange::Created(path.to_owned()));
        }
        self.files.insert(path.to_owned(), id);
        self.durable.insert(id, durable);
        Ok(id)
    }

    fn grave(&mut self) -> PathBuf {
        self.next_id += 1;
        self.graveyard.join(self.next_id.to_string())
    }

    /// Files at or below `from` are at or below `to` now.
    fn moved(&mut self, from: &Path, to: &Path) {
        let files = std::mem::take(&mut self.files);
        self.files = files
            .into_iter()
            .map(|(path, id)| match path.strip_prefix(from) {
                Ok(rest) if rest.as_os_str().is_empty() => (to.to_owned(), id),
                Ok(rest) => (to.join(rest), id),
                Err(_) => (path, id),
            })
            .collect();
    }

    fn bury(&mut self, path: &Path) -> io::Result<PathBuf> {
        let grave = self.grave();
        fs::rename(path, &grave)?;
        self.moved(path, &grave);
        Ok(grave)
    }
}

/// Makes a file one of the things it may be after a power failure.
fn tear(path: &Path, durable: &[u8], choose: &mut dyn FnMut(usize) -> usize) -> io::Result<()> {
    let Ok(mut current) = fs::read(path) else {
        return Ok(());
    };
    if current == durable {
        return Ok(());
    }
    let Some(unsynced) = current.strip_prefix(durable) else {
        // Overwritten or truncated: the old or the new content.
        return if choose(2) == 0 {
            fs::write(path, durable)
        } else {
            Ok(())
        };
    };
    let kept = durable.len() + choose(unsynced.len() + 1);
    match choose(4) {
        // The length had been written, the bytes had not.
        0 => current.iter_mut().skip(kept).for_each(|byte| *byte = 0),
        1 => {
            // The bytes of another file.
            for byte in current.iter_mut().skip(kept) {
                *byte = u8::try_from(choose(256)).unwrap_or(0);
            }
        }
        _ => current.truncate(kept),
    }
    fs::write(path, current)
}

fn take_back(change: &NameChange) -> io::Result<()> {
    let result = match change {
        NameChange::Created(path) if path.is_dir() => fs::remove_dir_all(path),
        NameChange::Created(path) => fs::remove_file(path),
        NameChange::Renamed { from, to, replaced } => {
            fs::rename(to, from).and_then(|()| match replaced {
                Some(grave) => fs::rename(grave, to),
                None => Ok(()),
            })
        }
        NameChange::Removed { path, grave } => fs::rename(grave, path),
    };
    match result {
        // It was in a directory that is gone.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.check(Operation::Open, path)?;
        let mut state = self.state();
        let is_new = !path.try_exists()?;
        if is_new && mode == OpenMode::Existing {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !is_new {
            state.adopt(path, false)?;
        }
        let real = RealDisk.open(path, mode)?;
        let id = state.adopt(path, is_new)?;
        Ok(Arc::new(FaultyFile {
            disk: self.clone(),
            id,
            path: path.to_owned(),
            real,
        }))
    }

    fn info(&self, path: &Path) -> io::Result<Option<FileInfo>> {
        RealDisk.info(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<FileInfo>> {
        RealDisk.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dir(dir)?;
        self.state().names.push(NameChange::Created(dir.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Operation::Rename, to)?;
        let mut state = self.state();
        let replaced = if to.is_file() {
            Some(state.bury(to)?)
        } else {
            None
        };
        RealDisk.rename(from, to)?;
        state.moved(from, to);
        state.names.push(NameChange::Renamed {
            from: from.into(),
            to: to.into(),
            replaced,
        });
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::Remove, path)?;
        let mut state = self.state();
        let grave = state.bury(path)?;
        state.names.push(NameChange::Removed {
            path: path.to_owned(),
            grave,
        });
        Ok(())
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.remove_file(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.check(Operation::SyncDir, dir)?;
        self.state()
            .names
            .retain(|change| change.dir() != Some(dir));
        Ok(())
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        match self.state().space {
            Some(space) => Ok(space),
            None => RealDisk.free_bytes(path),
        }
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: FaultyDisk,
    id: u64,
    path: PathBuf,
    real: Arc<dyn DiskFile>,
}

impl FaultyFile {
    /// How many of `wanted` bytes the injected faults and the free space let through.
    fn allowed(&self, wanted: usize) -> io::Result<usize> {
        let mut state = self.disk.state();
        let name = self.path.to_string_lossy().into_owned();
        let partial = state.faults.iter_mut().find(|fault| {
            fault.operation == Operation::Write
                && name.ends_with(&fault.path_ends_with)
                && fault.after == 0
                && fault.times > 0
                && fault.partial_bytes > 0
        });
        if let Some(fault) = partial {
            return Ok(std::mem::take(&mut fault.partial_bytes).min(wanted));
        }
        let Some(space) = &mut state.space else {
            return Ok(wanted);
        };
        let allowed = usize::try_from(*space).unwrap_or(usize::MAX).min(wanted);
        *space -= allowed as u64;
        if allowed == 0 && wanted > 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(allowed)
    }
}

impl DiskFile for FaultyFile {
    fn pread(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.disk.check(Operation::Read, &self.path)?;
        self.real.pread(buf, position)
    }

    fn pwritev(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        let wanted = bufs.iter().map(|buf| buf.len()).sum();
        let allowed = self.allowed(wanted)?;
        if allowed == wanted {
            self.disk.check(Operation::Write, &self.path)?;
            return self.real.pwritev(bufs, position);
        }
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let bytes = bytes.get(..allowed).unwrap_or(&bytes);
        self.real.pwritev(&[IoSlice::new(bytes)], position)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.check(Operation::Sync, &self.path)?;
        let mut content = vec![0; usize::try_from(self.real.len()?).unwrap_or(0)];
        self.real.pread(&mut content, 0)?;
        let mut state = self.disk.state();
        state.syncs += 1;
        state.durable.insert(self.id, content);
        Ok(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.disk.check(Operation::Truncate, &self.path)?;
        self.real.truncate(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.real.len()
    }

    fn file(&self) -> &File {
        self.real.file()
    }
}
