//! Write-once storage with a rename that never overwrites: local directories and HDFS.
//!
//! ```text
//!  open("hdfs://nn:8020/warehouse/views") ──► (Arc<dyn Store>, StorePath)
//!
//!  create ─► write … write ─► close        one file, durable when close returns
//!  rename_no_overwrite(out-000042, run=000042)      the commit: atomic, refuses to overwrite
//! ```
//!
//! The commit protocol of `loader-pipeline` rests on what [`Store`] promises, method by method:
//! nothing overwrites, nothing makes missing parents, a rename moves a whole directory at one
//! instant, and what returned `Ok` is durable. [`conformance`] (feature `conformance`) tests the same
//! promises on every implementation, [`faulty`] (feature `faulty`) breaks them on demand. A store
//! knows nothing of datasets, runs or leases, retries no change whose outcome is unknown, and removes
//! only what it is told to delete. With [`StoreConfig::patience`] it waits for trouble that passes.
//!
//! **Cancel safety**, for all methods alike: dropping a future of a read is harmless. Dropping one of
//! a change stops the waiting, not the change: it has happened, has not, or still may, as with
//! [`Error::OutcomeUnknown`].

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use patience::PatientStore;

mod error;
mod hdfs;
mod local;
mod location;
mod path;
mod patience;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
#[cfg(any(test, feature = "faulty"))]
pub mod faulty;

pub use error::{Cause, Error, ErrorKind, Operation, Result, chain};
pub use hdfs::HdfsStore;
pub use local::LocalStore;
pub use path::{InvalidStorePath, StorePath};
pub use patience::{Patience, Tries};

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A file, or on a local file system anything else that is not a directory.
    File,
    /// A directory.
    Directory,
}

/// One file or directory, as [`Store::stat`] and [`Store::list`] report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub path: StorePath,
    /// What it is.
    pub kind: EntryKind,
    /// Length in bytes; 0 for a directory. Of a file that is being written, what the store knows so
    /// far: HDFS counts whole blocks only.
    pub len: u64,
    /// Last change in milliseconds since 1970, by the *store's* clock (HDFS: the NameNode's). Compare
    /// it with other times of the same store only. A rename keeps it. HDFS sets it when a file is
    /// made and when it is closed.
    pub modified_ms: i64,
}

impl Entry {
    /// The last segment of its path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.name()
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.kind == EntryKind::Directory
    }
}

/// What [`Store::rename_no_overwrite`] can promise here. Publishing needs both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenameSemantics {
    /// A directory with all that is in it changes its name at one instant.
    pub atomic_directory_rename: bool,
    /// A target that exists is refused by the store itself, also between racing clients.
    pub never_overwrites: bool,
    /// A rename that can be seen has happened for good. Not so locally: there an answer is lost when the
    /// directory could not be synced.
    pub seen_is_durable: bool,
}

/// A place for files. Safe to use from many tasks and processes at once.
///
/// Every change is durable when it returns `Ok`, except [`Store::create`], which is durable with
/// [`FileWriter::close`]. What would lie below a file is missing, and making it gives
/// [`Error::NotADirectory`]. The errors of every method include those about the store's health:
/// `PermissionDenied`, `Unreachable`, `Io`, and for changes `ReadOnly`, `SafeMode`, `Quota`,
/// `NoSpace`, `OutcomeUnknown`, for reads `Timeout`; below only what is particular is named. See the
/// crate's documentation for cancel safety.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// The store as people write it: `hdfs://nn:8020`, `file://`.
    fn describe(&self) -> String;

    /// `path` as other programs take it: `hdfs://nn:8020/a/b`, `file:///a/b`. Nothing is escaped.
    fn uri(&self, path: &StorePath) -> String;

    /// What a rename can promise here. A local store says `true` until its file system has refused
    /// such a rename (which changes nothing), since only trying tells.
    fn rename_semantics(&self) -> RenameSemantics;

    /// How long the caller should go on trying what the store cannot repeat by itself: a file that could not be
    /// written (under another name), a change whose answer was lost (after a look). None by default: trouble
    /// on a local disk does not pass.
    fn patience(&self) -> Patience {
        Patience::default()
    }

    /// What is at `path`; `None` if nothing is. Symbolic links are followed.
    async fn stat(&self, path: &StorePath) -> Result<Option<Entry>>;

    /// The direct children of a directory sorted by name in byte order, hidden ones too.
    ///
    /// Holds the whole listing in memory. No snapshot: what is made, renamed or deleted meanwhile may
    /// or may not be in it; what was there all along is.
    ///
    /// # Errors
    /// [`Error::NotFound`], or [`Error::NotADirectory`] for a file.
    async fn list(&self, directory: &StorePath) -> Result<Vec<Entry>>;

    /// Makes one directory; never its parents.
    ///
    /// HDFS has no exclusive mkdir: there the name is looked up first, and of two clients that make
    /// the *same* name at the same moment both may get `Ok`. Use names that nobody else makes (with a
    /// fresh uuid), or decide by [`Store::rename_no_overwrite`].
    ///
    /// # Errors
    /// [`Error::ParentMissing`]; [`Error::AlreadyExists`] if anything has the name.
    async fn mkdir(&self, directory: &StorePath) -> Result<()>;

    /// Makes a directory and what is missing above it; `Ok` if it is there. For a dataset's root only:
    /// inside staging a path that comes back by itself would break the fence.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if it is a file.
    async fn mkdirs(&self, directory: &StorePath) -> Result<()>;

    /// Makes an empty file and opens it for writing; never overwrites, never makes parents.
    ///
    /// The file is visible at once and stays if the writer is dropped. If its directory is renamed
    /// meanwhile, the writer goes on in the renamed directory: open nothing in what is about to be
    /// published.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::FileLease`] if it exists and is being written,
    /// [`Error::ParentMissing`].
    async fn create(&self, file: &StorePath) -> Result<Box<dyn FileWriter>>;

    /// [`Store::create`], write all of `content`, [`FileWriter::close`]. Not atomic: meanwhile, and
    /// after an error, others may see a file that is empty or cut short.
    ///
    /// # Errors
    /// Those of [`Store::create`], then those of [`FileWriter`].
    async fn put(&self, file: &StorePath, content: Bytes) -> Result<()>;

    /// Like [`Store::put`] over whatever file is there, even one that another client is writing. Not
    /// atomic: others may see no file, or an empty or cut one, so only for advisory files whose
    /// readers take anything.
    ///
    /// # Errors
    /// [`Error::ParentMissing`] (it makes no parents either), [`Error::IsADirectory`].
    async fn replace(&self, file: &StorePath, content: Bytes) -> Result<()>;

    /// The whole file. Memory: its length, so [`Store::stat`] first what may be large.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`].
    async fn read(&self, file: &StorePath) -> Result<Bytes>;

    /// The bytes `[range.start, range.end)` of a file, cut at its end: shorter than asked, or empty,
    /// if the file is. An inverted range is empty. Memory: what is returned.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`].
    async fn read_range(&self, file: &StorePath, range: Range<u64>) -> Result<Bytes>;

    /// Gives a file or a directory with all that is in it another name, at one instant: everybody sees
    /// it under `from` or under `to`, never both, never in parts. Of many racing renames of one
    /// source, or to one target, exactly one wins.
    ///
    /// # Errors
    /// Nothing has changed after: [`Error::NotFound`] (no source; decided first),
    /// [`Error::AlreadyExists`] (a target: file, directory, even an empty one, or the source itself),
    /// [`Error::ParentMissing`] of the target, [`Error::InvalidPath`] (into itself),
    /// [`Error::CrossVolume`], [`Error::RenameUnsupported`]. After [`Error::OutcomeUnknown`]: look.
    async fn rename_no_overwrite(&self, from: &StorePath, to: &StorePath) -> Result<()>;

    /// Removes a file, or a directory with all that is in it; `false` if nothing was there. Links are
    /// removed, not followed. HDFS does it at one instant and bypasses the trash; a local tree goes
    /// piece by piece, so rename it out of sight first.
    ///
    /// # Errors
    /// [`Error::InvalidPath`] for the root.
    async fn delete(&self, path: &StorePath) -> Result<bool>;
}

/// A file being written, front to back.
///
/// Dropping it unclosed publishes nothing whole: the file stays under its name with some of the
/// bytes, and on HDFS its lease is held until the limit (a minute to an hour). After an error, or
/// after a dropped `write`, all further calls fail: start again under a new name.
///
/// Memory: local, none beyond the call's. HDFS: up to 200 packets of 64 KiB not yet acknowledged;
/// they keep the caller's buffers alive, also the rest of a large one.
#[async_trait]
pub trait FileWriter: Send + std::fmt::Debug {
    /// Takes `bytes`, waiting while the store is slower. Not durable before [`FileWriter::close`].
    /// The time limit of the store holds for each megabyte, not for the call.
    ///
    /// # Errors
    /// [`Error::WriteFailed`] (write again under a new name), [`Error::NoSpace`], [`Error::Quota`],
    /// [`Error::SafeMode`], [`Error::NotFound`] if the file was deleted.
    async fn write(&mut self, bytes: Bytes) -> Result<()>;

    /// Makes everything written, and the file's name, durable, and returns its length.
    ///
    /// # Errors
    /// As [`FileWriter::write`]; after an error the file may yet be whole.
    async fn close(self: Box<Self>) -> Result<u64>;
}

/// How to use a store. The location says which.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// How long one request to HDFS may take (a large read or write is many requests). Default 60 s.
    /// Local file systems have no limit: a hung mount cannot be given up.
    pub operation_timeout: Duration,
    /// How long trouble of HDFS that passes by itself is waited for, once HDFS has answered: a NameNode that
    /// restarts, a DataNode that died and that the NameNode does not know of yet. Default: not at all. Stores
    /// that are opened with clones of one end it together.
    pub patience: Patience,
    /// Where core-site.xml and hdfs-site.xml are. Default: `HADOOP_CONF_DIR`, then
    /// `HADOOP_HOME/etc/hadoop`, as Hadoop does, else none.
    pub hadoop_conf_dir: Option<PathBuf>,
    /// The user on HDFS (under Kerberos: the user to act for). Default: `HADOOP_USER_NAME`, then the
    /// operating system's.
    pub hadoop_user: Option<String>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            operation_timeout: Duration::from_secs(60),
            patience: Patience::default(),
            hadoop_conf_dir: None,
            hadoop_user: None,
        }
    }
}

/// Finds the store and the path that `location` names:
///
/// | location | store |
/// |---|---|
/// | `hdfs://namenode:8020/a/b` | that NameNode; the port may be left out |
/// | `hdfs://nameservice/a/b` | its namenodes, from hdfs-site.xml |
/// | `hdfs:///a/b` | `fs.defaultFS` of core-site.xml |
/// | `file:///a/b`, `/a/b`, `a/b` | the local file system; relative to the working directory |
///
/// Double and trailing slashes and `.` are dropped; `..` is resolved for local paths only. `%` stands
/// for itself. Touches neither the network nor the path: the first request finds out.
///
/// # Errors
/// [`Error::Location`], [`Error::HadoopConfig`].
pub async fn open(location: &str, config: &StoreConfig) -> Result<(Arc<dyn Store>, StorePath)> {
    match location::parse(location)? {
        location::Location::Local { path } => {
            let path = location::absolute(location, path).await?;
            Ok((Arc::new(LocalStore::new()), path))
        }
        location::Location::Hdfs { authority, path } => {
            let store = HdfsStore::open(location, authority.as_deref(), config).await?;
            let store = PatientStore::new(Arc::new(store), config.patience.clone());
            Ok((Arc::new(store), path))
        }
    }
}
