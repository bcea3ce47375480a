//! A store in local directories.
//!
//! Requests go to the kernel by their whole path, in one system call each: a path that another
//! process renamed away is found missing even if this process was stopped in between. Directories are
//! opened beside that only to fsync them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::{
    Entry, EntryKind, Error, FileWriter, Operation, RenameSemantics, Result, Store, StorePath,
};

/// Directories of this machine; a [`StorePath`] is the absolute path of the file system.
///
/// Needs a Linux file system with `renameat2(RENAME_NOREPLACE)`, and read permission on the
/// directories it changes (to fsync them).
#[derive(Debug)]
pub struct LocalStore {
    rename_supported: Arc<AtomicBool>,
}

impl LocalStore {
    /// The local file system. No I/O.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rename_supported: Arc::new(AtomicBool::new(true)),
        }
    }
}

impl Default for LocalStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs system calls on tokio's blocking pool. They go on to their end if the future is dropped.
pub(crate) async fn blocking<T: Send + 'static>(
    operation: Operation,
    path: &StorePath,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and the call was never begun.
            Err(error) => Err(Error::Io {
                operation,
                path: path.clone(),
                source: error.into(),
            }),
        },
    }
}

/// The error of a system call on `path`, by its number.
fn from_io(operation: Operation, path: &StorePath, error: io::Error) -> Error {
    let path = path.clone();
    let errno = Errno::from_io_error(&error);
    let source = error.into();
    match errno {
        Some(Errno::NOENT) => Error::NotFound { path },
        Some(Errno::EXIST | Errno::NOTEMPTY) => Error::AlreadyExists { path },
        Some(Errno::NOTDIR) => Error::NotADirectory { path },
        Some(Errno::ISDIR) => Error::IsADirectory { path },
        Some(Errno::NAMETOOLONG) => Error::NameTooLong { path },
        Some(Errno::ACCESS | Errno::PERM) => Error::PermissionDenied {
            operation,
            path,
            source,
        },
        Some(Errno::ROFS) => Error::ReadOnly {
            operation,
            path,
            source,
        },
        Some(Errno::NOSPC) => Error::NoSpace {
            operation,
            path,
            source,
        },
        Some(Errno::DQUOT) => Error::Quota {
            operation,
            path,
            source,
        },
        _ => Error::Io {
            operation,
            path,
            source,
        },
    }
}

/// Whether there is nothing at the path, be it that something above it is a file.
fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// [`from_io`] of a call on something that should be there.
fn from_finding(operation: Operation, path: &StorePath, error: io::Error) -> Error {
    match is_missing(&error) {
        true => Error::NotFound { path: path.clone() },
        false => from_io(operation, path, error),
    }
}

/// [`from_io`] of a call that makes `path`: what is missing then is its directory.
fn from_making(operation: Operation, path: &StorePath, error: io::Error) -> Error {
    let error = from_io(operation, path, error);
    if let Error::NotFound { path } = error {
        Error::ParentMissing { path }
    } else {
        error
    }
}

/// [`from_io`] of a write or fsync: what is not the disk being full means "again, by a new name".
fn from_writing(operation: Operation, path: &StorePath, error: io::Error) -> Error {
    let error = from_io(operation, path, error);
    if let Error::Io { path, source, .. } = error {
        return Error::WriteFailed { path, source };
    }
    error
}

/// Opens the directory that holds `path`, in order to fsync it after a change.
fn open_parent(path: &StorePath) -> io::Result<File> {
    let parent = path.parent().unwrap_or_else(StorePath::root);
    let directory = File::open(&parent)?;
    // A file opens too, but nothing can be in it; say so as the kernel would.
    if directory.metadata()?.is_dir() {
        Ok(directory)
    } else {
        Err(Errno::NOTDIR.into())
    }
}

/// Makes a change in `directory` durable. The change is visible already, so an error leaves it open
/// whether it lasts.
fn sync_change(operation: Operation, path: &StorePath, directory: &File) -> Result<()> {
    directory.sync_all().map_err(|error| Error::OutcomeUnknown {
        operation,
        path: path.clone(),
        source: error.into(),
    })
}

fn entry(path: StorePath, metadata: &std::fs::Metadata) -> Entry {
    let (kind, len) = match metadata.is_dir() {
        true => (EntryKind::Directory, 0),
        false => (EntryKind::File, metadata.len()),
    };
    let modified_ms = metadata
        .mtime()
        .saturating_mul(1000)
        .saturating_add(metadata.mtime_nsec() / 1_000_000);
    Entry {
        path,
        kind,
        len,
        modified_ms,
    }
}

fn stat(path: &StorePath) -> Result<Option<Entry>> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(entry(path.clone(), &metadata))),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(from_io(Operation::Stat, path, error)),
    }
}

fn list(directory: &StorePath) -> Result<Vec<Entry>> {
    let from = |error| from_io(Operation::List, directory, error);
    let mut entries = Vec::new();
    let children = std::fs::read_dir(directory).map_err(|error| match stat(directory) {
        Ok(Some(_)) => from(error),
        _ => from_finding(Operation::List, directory, error),
    })?;
    for child in children {
        let child = child.map_err(from)?;
        let name = child.file_name();
        let path = name.to_str().and_then(|name| directory.try_join(name).ok());
        let Some(path) = path else {
            return Err(Error::InvalidPath {
                path: format!("{directory}/{}", name.display()),
                reason: "the name is not UTF-8".to_owned(),
            });
        };
        // A link is an entry of its own and never followed: it may lead out of the directory, or in a
        // circle. What was deleted since is none.
        match std::fs::symlink_metadata(&path) {
            Ok(metadata) => entries.push(entry(path, &metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(from_io(Operation::List, &path, error)),
        }
    }
    entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

fn mkdir(operation: Operation, directory: &StorePath) -> Result<()> {
    let parent = open_parent(directory).map_err(|e| from_making(operation, directory, e))?;
    std::fs::create_dir(directory).map_err(|e| from_making(operation, directory, e))?;
    sync_change(operation, directory, &parent)
}

fn mkdirs(directory: &StorePath) -> Result<()> {
    let mut missing = Vec::new();
    let mut next = Some(directory.clone());
    while let Some(path) = next {
        if stat(&path)?.is_some() {
            break;
        }
        next = path.parent();
        missing.push(path);
    }
    for path in missing.iter().rev() {
        match mkdir(Operation::Mkdirs, path) {
            Ok(()) | Err(Error::AlreadyExists { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    match stat(directory)? {
        Some(entry) if entry.is_directory() => Ok(()),
        Some(entry) => Err(Error::AlreadyExists { path: entry.path }),
        None => Err(Error::NotFound {
            path: directory.clone(),
        }),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    New,
    Overwrite,
}

/// An open file and the directory it was made in. The directory's descriptor follows a rename, as
/// does the file's.
#[derive(Debug)]
struct OpenFile {
    file: File,
    directory: File,
    len: u64,
}

impl OpenFile {
    fn create(operation: Operation, path: &StorePath, mode: Mode) -> Result<Self> {
        let from = |error| from_making(operation, path, error);
        let directory = open_parent(path).map_err(from)?;
        let mut options = File::options();
        match mode {
            Mode::New => options.write(true).create_new(true),
            Mode::Overwrite => options.write(true).create(true).truncate(true),
        };
        let file = options.open(path).map_err(from)?;
        Ok(Self {
            file,
            directory,
            len: 0,
        })
    }

    fn write(&mut self, path: &StorePath, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(|e| from_writing(Operation::Write, path, e))?;
        self.len = self.len.saturating_add(bytes.len() as u64);
        Ok(())
    }

    fn close(self, path: &StorePath) -> Result<u64> {
        let from = |error| from_writing(Operation::Close, path, error);
        self.file.sync_all().map_err(from)?;
        let metadata = self.file.metadata().map_err(from)?;
        if metadata.nlink() == 0 {
            return Err(Error::NotFound { path: path.clone() });
        }
        if metadata.len() != self.len {
            let source = format!("{} bytes written, {} in the file", self.len, metadata.len());
            return Err(Error::WriteFailed {
                path: path.clone(),
                source: source.into(),
            });
        }
        self.directory.sync_all().map_err(from)?;
        Ok(self.len)
    }
}

fn write_whole(operation: Operation, path: &StorePath, content: &[u8], mode: Mode) -> Result<()> {
    let mut open = OpenFile::create(operation, path, mode)?;
    open.write(path, content)?;
    open.close(path).map(drop)
}

fn read(path: &StorePath, range: Range<u64>) -> Result<Bytes> {
    let from = |error| from_finding(Operation::Read, path, error);
    // A pipe in place of the file must not be waited for.
    let mut file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(from)?;
    let metadata = file.metadata().map_err(from)?;
    if metadata.is_dir() {
        return Err(Error::IsADirectory { path: path.clone() });
    }
    if !metadata.is_file() {
        return Err(from(io::Error::other("this is no regular file")));
    }
    let len = range.end.min(metadata.len()).saturating_sub(range.start);
    let capacity = usize::try_from(len).map_err(|e| from(io::Error::other(e)))?;
    let mut content = Vec::with_capacity(capacity);
    file.seek(SeekFrom::Start(range.start.min(metadata.len())))
        .map_err(from)?;
    file.take(len).read_to_end(&mut content).map_err(from)?;
    Ok(content.into())
}

/// The one place that publishes: the rename, then both directories.
fn rename(from: &StorePath, to: &StorePath, supported: &AtomicBool) -> Result<()> {
    if from != to && to.starts_with(from) {
        let reason = format!("{from} cannot be moved below itself");
        return Err(Error::InvalidPath {
            path: to.to_string(),
            reason,
        });
    }
    let source_directory =
        open_parent(from).map_err(|e| from_finding(Operation::Rename, from, e))?;
    // A missing source is said before a missing target directory, as HDFS does.
    std::fs::symlink_metadata(from).map_err(|e| from_finding(Operation::Rename, from, e))?;
    let target_directory = open_parent(to).map_err(|e| from_making(Operation::Rename, to, e))?;
    match renameat_with(CWD, from.as_str(), CWD, to.as_str(), RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::NOENT) => {
            return Err(match std::fs::symlink_metadata(from) {
                Ok(_) => Error::ParentMissing { path: to.clone() },
                Err(_) => Error::NotFound { path: from.clone() },
            });
        }
        Err(Errno::XDEV) => {
            return Err(Error::CrossVolume {
                from: from.clone(),
                to: to.clone(),
            });
        }
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            supported.store(false, Ordering::Relaxed);
            return Err(Error::RenameUnsupported { path: to.clone() });
        }
        Err(errno) => return Err(from_io(Operation::Rename, to, errno.into())),
    }
    sync_change(Operation::Rename, to, &target_directory)?;
    sync_change(Operation::Rename, to, &source_directory)
}

/// `Some(true)` once it is removed, `Some(false)` if it was not there, `None` if others were removing
/// parts of it at the same time.
fn try_delete(path: &StorePath) -> Result<Option<bool>> {
    let from = |error| from_io(Operation::Delete, path, error);
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if is_missing(&error) => return Ok(Some(false)),
        Err(error) => return Err(from(error)),
    };
    let removed = match metadata.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    };
    match removed {
        Ok(()) => Ok(Some(true)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(from(error)),
    }
}

fn delete(path: &StorePath) -> Result<bool> {
    const ATTEMPTS_BESIDE_OTHERS: usize = 10;
    let directory = match open_parent(path) {
        Ok(directory) => directory,
        Err(error) if is_missing(&error) => return Ok(false),
        Err(error) => return Err(from_io(Operation::Delete, path, error)),
    };
    let mut begun = false;
    for _ in 0..ATTEMPTS_BESIDE_OTHERS {
        if let Some(removed) = try_delete(path)? {
            sync_change(Operation::Delete, path, &directory)?;
            return Ok(removed || begun);
        }
        begun = true;
    }
    let source = "others change the directory while it is being removed".into();
    Err(Error::Io {
        operation: Operation::Delete,
        path: path.clone(),
        source,
    })
}

#[async_trait]
impl Store for LocalStore {
    fn describe(&self) -> String {
        "file://".to_owned()
    }

    fn uri(&self, path: &StorePath) -> String {
        format!("file://{path}")
    }

    fn rename_semantics(&self) -> RenameSemantics {
        let supported = self.rename_supported.load(Ordering::Relaxed);
        RenameSemantics {
            atomic_directory_rename: true,
            never_overwrites: supported,
            seen_is_durable: false,
        }
    }

    async fn stat(&self, path: &StorePath) -> Result<Option<Entry>> {
        let own = path.clone();
        blocking(Operation::Stat, path, move || stat(&own)).await
    }

    async fn list(&self, directory: &StorePath) -> Result<Vec<Entry>> {
        let own = directory.clone();
        blocking(Operation::List, directory, move || list(&own)).await
    }

    async fn mkdir(&self, directory: &StorePath) -> Result<()> {
        let own = directory.clone();
        blocking(Operation::Mkdir, directory, move || {
            mkdir(Operation::Mkdir, &own)
        })
        .await
    }

    async fn mkdirs(&self, directory: &StorePath) -> Result<()> {
        let own = directory.clone();
        blocking(Operation::Mkdirs, directory, move || mkdirs(&own)).await
    }

    async fn create(&self, file: &StorePath) -> Result<Box<dyn FileWriter>> {
        let path = file.clone();
        let open = blocking(Operation::Create, file, move || {
            OpenFile::create(Operation::Create, &path, Mode::New)
        })
        .await?;
        Ok(Box::new(LocalWriter {
            path: file.clone(),
            open: Some(open),
        }))
    }

    async fn put(&self, file: &StorePath, content: Bytes) -> Result<()> {
        let own = file.clone();
        blocking(Operation::Put, file, move || {
            write_whole(Operation::Put, &own, &content, Mode::New)
        })
        .await
    }

    async fn replace(&self, file: &StorePath, content: Bytes) -> Result<()> {
        let own = file.clone();
        blocking(Operation::Replace, file, move || {
            write_whole(Operation::Replace, &own, &content, Mode::Overwrite)
        })
        .await
    }

    async fn read(&self, file: &StorePath) -> Result<Bytes> {
        self.read_range(file, 0..u64::MAX).await
    }

    async fn read_range(&self, file: &StorePath, range: Range<u64>) -> Result<Bytes> {
        let own = file.clone();
        blocking(Operation::Read, file, move || read(&own, range)).await
    }

    async fn rename_no_overwrite(&self, from: &StorePath, to: &StorePath) -> Result<()> {
        let (own_from, own_to) = (from.clone(), to.clone());
        let supported = Arc::clone(&self.rename_supported);
        blocking(Operation::Rename, to, move || {
            rename(&own_from, &own_to, &supported)
        })
        .await
    }

    async fn delete(&self, path: &StorePath) -> Result<bool> {
        if *path == StorePath::root() {
            let reason = "the root of a file system is not deleted".to_owned();
            return Err(Error::InvalidPath {
                path: path.to_string(),
                reason,
            });
        }
        let own = path.clone();
        blocking(Operation::Delete, path, move || delete(&own)).await
    }
}

/// `open` is away while a write runs, and stays away after an error or a dropped call.
#[derive(Debug)]
struct LocalWriter {
    path: StorePath,
    open: Option<OpenFile>,
}

impl LocalWriter {
    fn take(&mut self) -> Result<OpenFile> {
        self.open.take().ok_or_else(|| Error::WriteFailed {
            path: self.path.clone(),
            source: "an earlier write failed or was given up".into(),
        })
    }
}

#[async_trait]
impl FileWriter for LocalWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let mut open = self.take()?;
        let path = self.path.clone();
        let open = blocking(Operation::Write, &self.path, move || {
            open.write(&path, &bytes).map(|()| open)
        })
        .await?;
        self.open = Some(open);
        Ok(())
    }

    async fn close(mut self: Box<Self>) -> Result<u64> {
        let open = self.take()?;
        let path = self.path.clone();
        blocking(Operation::Close, &self.path, move || open.close(&path)).await
    }
}

#[cfg(test)]
mod tests;
