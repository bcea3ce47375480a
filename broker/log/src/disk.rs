//! The only door to the file system: [`Disk`] and [`DiskFile`], with the real implementation.
//!
//! Everything in this crate reads, writes, syncs and renames through these two traits, so that tests can lose
//! unsynced bytes, fill the disk or fail a sync (module `faulty`). Paths are never interpreted here. All calls
//! block.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// Bytes between two looks into the page cache.
const PROBE_STEP: usize = 128 << 10;
/// Bytes of the smallest page.
const PAGE: u64 = 4 << 10;

/// How [`Disk::open`] treats a file that is or is not there. Files are always opened for reading and writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must be there.
    Existing,
    /// Made if missing, kept as it is otherwise.
    Create,
    /// Made if missing, emptied otherwise.
    CreateEmpty,
}

/// What [`Disk::info`] and [`Disk::list`] say about a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// The last component of the path; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// True for a directory (symbolic links followed).
    pub is_dir: bool,
    /// Length in bytes.
    pub len: u64,
    /// Time of the last change of the content, in milliseconds since 1970.
    pub modified_ms: i64,
}

/// A file system as this crate needs it.
///
/// # Durability
/// Content is durable after [`DiskFile::sync`]; a name (creation, rename, removal) after [`Disk::sync_dir`] of the
/// directory that holds it. Nothing else promises anything.
pub trait Disk: Debug + Send + Sync {
    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// As the operating system says; `NotFound` for a missing file with [`OpenMode::Existing`].
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;

    /// What is at `path`, or `None`.
    ///
    /// # Errors
    /// Any failure other than absence.
    fn info(&self, path: &Path) -> io::Result<Option<FileInfo>>;

    /// The direct children of a directory, sorted by name.
    ///
    /// # Errors
    /// As the operating system says.
    fn list(&self, dir: &Path) -> io::Result<Vec<FileInfo>>;

    /// Makes one directory; its parent must be there.
    ///
    /// # Errors
    /// `AlreadyExists`, or as the operating system says.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Renames within one directory; an existing target file is replaced.
    ///
    /// # Errors
    /// As the operating system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound`, or as the operating system says.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and what is in it.
    ///
    /// # Errors
    /// `NotFound`, or as the operating system says.
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// As the operating system says.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Bytes an unprivileged process may still write to the file system that holds `path`.
    ///
    /// # Errors
    /// As the operating system says.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// An open file. Positions are bytes from the start; there is no cursor, so it may be shared between threads.
pub trait DiskFile: Debug + Send + Sync {
    /// Reads into `buf` from `position`; fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    /// As the operating system says.
    fn pread(&self, buf: &mut [u8], position: u64) -> io::Result<usize>;

    /// One vectored write at `position`; returns how much was written, which may be less than given.
    ///
    /// # Errors
    /// As the operating system says; nothing was written then.
    fn pwritev(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize>;

    /// Makes content and length durable.
    ///
    /// # Errors
    /// As the operating system says. After a failure the kernel may have dropped the unwritten pages: the bytes
    /// must be treated as lost.
    fn sync(&self) -> io::Result<()>;

    /// Sets the length.
    ///
    /// # Errors
    /// As the operating system says.
    fn truncate(&self, len: u64) -> io::Result<()>;

    /// The present length in bytes.
    ///
    /// # Errors
    /// As the operating system says.
    fn len(&self) -> io::Result<u64>;

    /// True if the length is 0.
    ///
    /// # Errors
    /// As [`DiskFile::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The operating system's file, for `sendfile` and locks.
    fn file(&self) -> &File;

    /// Whether reading these bytes will not wait for the disk, as far as samples tell. False where the system cannot
    /// tell.
    fn is_cached(&self, position: u64, len: usize) -> bool {
        probes(position, len).all(|position| is_byte_cached(self.file(), position))
    }
}

/// Most slices one `pwritev` takes on Linux (`IOV_MAX`).
const MAX_SLICES: usize = 1024;

/// Writes all of `bufs` at `position`, in as few vectored writes as the system allows. Consumes the slices.
///
/// # Errors
/// The first failure; an unknown part of the bytes has been written then.
pub fn write_all_vectored(
    file: &dyn DiskFile,
    mut bufs: &mut [IoSlice<'_>],
    mut position: u64,
) -> io::Result<()> {
    IoSlice::advance_slices(&mut bufs, 0);
    while !bufs.is_empty() {
        let window = bufs.get(..MAX_SLICES).unwrap_or(bufs);
        match file.pwritev(window, position) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                position += written as u64;
                IoSlice::advance_slices(&mut bufs, written);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills `buf` from `position`.
///
/// # Errors
/// `UnexpectedEof` if the file ends before.
pub fn read_exact_at(file: &dyn DiskFile, buf: &mut [u8], position: u64) -> io::Result<()> {
    if file.pread(buf, position)? == buf.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Reads a small file whole.
///
/// # Errors
/// `NotFound`; `InvalidData` if it is longer than `limit` bytes; else as the operating system says.
pub fn read_small(disk: &dyn Disk, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Existing)?;
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    if len > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("file of {len} bytes is longer than the {limit} bytes it may have"),
        ));
    }
    let mut content = vec![0; len];
    let read = file.pread(&mut content, 0)?;
    content.truncate(read);
    Ok(content)
}

/// Replaces a small file durably: writes aside, syncs, renames over it, syncs the directory. After a crash the old
/// or the new content is there, whole.
///
/// # Errors
/// The first failure; the old content is still in place then.
pub fn replace_small(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".tmp");
    let aside = Path::new(&aside);
    let file = disk.open(aside, OpenMode::CreateEmpty)?;
    write_all_vectored(&*file, &mut [IoSlice::new(content)], 0)?;
    file.sync()?;
    drop(file);
    disk.rename(aside, path)?;
    match path.parent() {
        Some(dir) => disk.sync_dir(dir),
        None => Ok(()),
    }
}

/// The operating system's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

#[derive(Debug)]
struct RealFile(File);

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(mode != OpenMode::Existing)
            .truncate(mode == OpenMode::CreateEmpty)
            .open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn info(&self, path: &Path) -> io::Result<Option<FileInfo>> {
        match fs::metadata(path) {
            Ok(metadata) => {
                let name = path.file_name().unwrap_or(path.as_os_str());
                Ok(Some(file_info(
                    name.to_string_lossy().into_owned(),
                    &metadata,
                )))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<FileInfo>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match fs::metadata(entry.path()) {
                Ok(metadata) => entries.push(file_info(name, &metadata)),
                // Removed since the directory was read, or a dangling link.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl DiskFile for RealFile {
    fn pread(&self, mut buf: &mut [u8], mut position: u64) -> io::Result<usize> {
        let mut total = 0;
        while !buf.is_empty() {
            match self.0.read_at(buf, position) {
                Ok(0) => break,
                Ok(read) => {
                    total += read;
                    position += read as u64;
                    buf = buf.get_mut(read..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    fn pwritev(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(&self.0, bufs, position)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn file(&self) -> &File {
        &self.0
    }
}

/// Where to look whether a range is in the page cache: at its ends and at each step of the kernel's read-ahead.
fn probes(position: u64, len: usize) -> impl Iterator<Item = u64> {
    let last = (len as u64).saturating_sub(1);
    let steps = (0..len as u64).step_by(PROBE_STEP);
    // Within a page of the last step it would be told the same again.
    let end = Some(last).filter(|last| last % PROBE_STEP as u64 >= PAGE);
    steps.chain(end).map(move |offset| position + offset)
}

fn is_byte_cached(file: &File, position: u64) -> bool {
    let mut byte = [0];
    let mut bufs = [IoSliceMut::new(&mut byte)];
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    rustix::io::preadv2(file, &mut bufs, position, flags).is_ok_and(|read| read == 1)
}

fn file_info(name: String, metadata: &fs::Metadata) -> FileInfo {
    let modified_ms = metadata
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .unwrap_or(0);
    FileInfo {
        name,
        is_dir: metadata.is_dir(),
        len: metadata.len(),
        modified_ms,
    }
}

#[cfg(any(test, feature = "faulty-disk"))]
pub mod faulty;
