//! What can go wrong in a store, sorted by what the caller can do about it.

use std::fmt;
use std::time::Duration;

use crate::StorePath;

/// The cause of an [`enum@Error`]: an operating system error, or what the NameNode answered.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// `Result` of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was asked of the store; names the call in errors, and selects it in `faulty`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`crate::open`].
    Open,
    /// [`crate::Store::stat`].
    Stat,
    /// [`crate::Store::list`].
    List,
    /// [`crate::Store::mkdir`].
    Mkdir,
    /// [`crate::Store::mkdirs`].
    Mkdirs,
    /// [`crate::Store::create`].
    Create,
    /// [`crate::FileWriter::write`].
    Write,
    /// [`crate::FileWriter::close`].
    Close,
    /// [`crate::Store::put`].
    Put,
    /// [`crate::Store::replace`].
    Replace,
    /// [`crate::Store::read`] and [`crate::Store::read_range`].
    Read,
    /// [`crate::Store::rename_no_overwrite`].
    Rename,
    /// [`crate::Store::delete`].
    Delete,
}

impl Operation {
    /// Whether it changes something, so that a lost answer leaves the outcome open.
    #[must_use]
    pub fn changes(self) -> bool {
        match self {
            Self::Open | Self::Stat | Self::List | Self::Read => false,
            Self::Mkdir
            | Self::Mkdirs
            | Self::Create
            | Self::Write
            | Self::Close
            | Self::Put
            | Self::Replace
            | Self::Rename
            | Self::Delete => true,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Stat => "look up",
            Self::List => "list",
            Self::Mkdir => "make directory",
            Self::Mkdirs => "make directories",
            Self::Create => "create",
            Self::Write => "write",
            Self::Close => "close",
            Self::Put => "write whole file",
            Self::Replace => "replace",
            Self::Read => "read",
            Self::Rename => "rename",
            Self::Delete => "delete",
        })
    }
}

/// How to go on after an [`enum@Error`]. Retry loops ask this and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The same again may succeed soon; a file is written again *under a new name*.
    Retriable,
    /// The store is not usable now and someone has to act: unreachable, safe mode, quota,
    /// permission, disk full. Retrying at once is pointless.
    Unavailable,
    /// The caller asked for what cannot be: a missing source, an existing target, a bad path.
    Caller,
    /// It may or may not have happened. Look before doing anything else.
    Ambiguous,
}

/// What went wrong. The cause is in `source()`, not in the text; [`Error::remedy`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path to read, list or rename does not exist.
    #[error("{path} does not exist")]
    NotFound {
        /// What is missing.
        path: StorePath,
    },
    /// Something (a file or a directory, also an empty one) has that name, and nothing was changed.
    #[error("{path} already exists")]
    AlreadyExists {
        /// The name that is taken.
        path: StorePath,
    },
    /// The directory in which `path` was to be made does not exist. Inside staging this is how a
    /// driver learns that another one took its directory over.
    #[error("cannot make {path}: its directory does not exist")]
    ParentMissing {
        /// What was to be made.
        path: StorePath,
    },
    /// `path`, or something above it, is a file where a directory is needed.
    #[error("{path} is not a directory, or lies below a file")]
    NotADirectory {
        /// The path asked for.
        path: StorePath,
    },
    /// `path` is a directory where a file is needed.
    #[error("{path} is a directory, not a file")]
    IsADirectory {
        /// The path asked for.
        path: StorePath,
    },
    /// The store does not take such a name, or a directory was to be moved below itself.
    #[error("the store refuses the path {path}: {reason}")]
    InvalidPath {
        /// The path asked for.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A segment is longer than the store allows (255 bytes on Linux and HDFS by default).
    #[error("the path {path} has a name longer than the store allows")]
    NameTooLong {
        /// The path asked for.
        path: StorePath,
    },
    /// Source and target are on different volumes, mounts or encryption zones.
    #[error("cannot rename {from} to {to}: they are on different volumes")]
    CrossVolume {
        /// The source.
        from: StorePath,
        /// The target.
        to: StorePath,
    },
    /// The file system cannot rename without overwriting (no `RENAME_NOREPLACE`). Nothing was done.
    #[error("the file system of {path} cannot rename without overwriting")]
    RenameUnsupported {
        /// The target.
        path: StorePath,
    },
    /// The user may not do this.
    #[error("no permission to {operation} {path}")]
    PermissionDenied {
        /// What was asked.
        operation: Operation,
        /// Of what.
        path: StorePath,
        /// The store's own words; on HDFS they name user, access and inode.
        #[source]
        source: Cause,
    },
    /// A quota of names or of space is used up.
    #[error("cannot {operation} {path}: quota exceeded")]
    Quota {
        /// What was asked.
        operation: Operation,
        /// Of what.
        path: StorePath,
        /// The store's own words; on HDFS they name the directory, its quota and its use.
        #[source]
        source: Cause,
    },
    /// The NameNode is in safe mode: it answers reads and refuses every change.
    #[error("cannot {operation} {path}: the namenode is in safe mode")]
    SafeMode {
        /// What was asked.
        operation: Operation,
        /// Of what.
        path: StorePath,
        /// The NameNode's own words.
        #[source]
        source: Cause,
    },
    /// The device is full.
    #[error("cannot {operation} {path}: no space left")]
    NoSpace {
        /// What was asked.
        operation: Operation,
        /// Of what.
        path: StorePath,
        /// The store's own words.
        #[source]
        source: Cause,
    },
    /// The file system is mounted read-only.
    #[error("cannot {operation} {path}: the file system is read-only")]
    ReadOnly {
        /// What was asked.
        operation: Operation,
        /// Of what.
        path: StorePath,
        /// The store's own words.
        #[source]
        source: Cause,
    },
    /// No NameNode took the request, so nothing was done.
    #[error("cannot {operation} {path}: no usable namenode at {address}")]
    Unreachable {
        /// What was asked.
        operation: Operation,
        /// Of what.
        path: StorePath,
        /// `host:port`, or the name service with its addresses.
        address: String,
        /// Why.
        #[source]
        source: Cause,
    },
    /// Something that changes nothing was not answered in time.
    #[error("no answer from {address} within {after:?} to {operation} {path}")]
    Timeout {
        /// What was asked.
        operation: Operation,
        /// Of what.
        path: StorePath,
        /// Who did not answer.
        address: String,
        /// The time limit that passed.
        after: Duration,
    },
    /// A change was asked for and the answer did not come: it has happened, or has not, or *still
    /// may*. Look before acting on it.
    #[error("unknown whether it happened: {operation} {path}")]
    OutcomeUnknown {
        /// What was asked.
        operation: Operation,
        /// Of what; for a rename the target.
        path: StorePath,
        /// How the answer was lost.
        #[source]
        source: Cause,
    },
    /// The file exists and another writer holds its HDFS lease: it is being written, or its writer
    /// died less than the lease's limit ago.
    #[error("{path} is being written by another client")]
    FileLease {
        /// The file.
        path: StorePath,
        /// The NameNode's own words; they name the holder.
        #[source]
        source: Cause,
    },
    /// The file could not be written to its end. Under its name there may be nothing, or a file of
    /// any length, whole or not: write it again *under a new name*.
    #[error("writing {path} failed; under this name there may be an incomplete file")]
    WriteFailed {
        /// The file.
        path: StorePath,
        /// Why.
        #[source]
        source: Cause,
    },
    /// No DataNode gave the content of a file that is there: they are down, or its replicas lost.
    #[error("cannot read {path}: no datanode gives its content")]
    ReadFailed {
        /// The file.
        path: StorePath,
        /// Why.
        #[source]
        source: Cause,
    },
    /// The text given to [`crate::open`] is no location, or its store cannot be set up.
    #[error("cannot use {location:?} as a store: {reason}")]
    Location {
        /// What was given.
        location: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The Hadoop configuration cannot be used.
    #[error("cannot use the hadoop configuration {file}: {reason}")]
    HadoopConfig {
        /// File or directory.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Anything else, in the store's own words.
    #[error("cannot {operation} {path}")]
    Io {
        /// What was asked.
        operation: Operation,
        /// Of what.
        path: StorePath,
        /// Why.
        #[source]
        source: Cause,
    },
}

impl Error {
    /// How to go on.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Timeout { .. } | Self::FileLease { .. } | Self::WriteFailed { .. } => {
                ErrorKind::Retriable
            }
            Self::OutcomeUnknown { .. } => ErrorKind::Ambiguous,
            Self::PermissionDenied { .. }
            | Self::Quota { .. }
            | Self::SafeMode { .. }
            | Self::NoSpace { .. }
            | Self::ReadOnly { .. }
            | Self::Unreachable { .. }
            | Self::ReadFailed { .. }
            | Self::Io { .. } => ErrorKind::Unavailable,
            Self::NotFound { .. }
            | Self::AlreadyExists { .. }
            | Self::ParentMissing { .. }
            | Self::NotADirectory { .. }
            | Self::IsADirectory { .. }
            | Self::InvalidPath { .. }
            | Self::NameTooLong { .. }
            | Self::CrossVolume { .. }
            | Self::RenameUnsupported { .. }
            | Self::Location { .. }
            | Self::HadoopConfig { .. } => ErrorKind::Caller,
        }
    }

    /// Whether the trouble may pass by itself within minutes: a NameNode that restarts, a connection that was
    /// cut, a DataNode that died. [`crate::Tries`] go on after these only.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Timeout { .. }
                | Self::SafeMode { .. }
                | Self::OutcomeUnknown { .. }
                | Self::FileLease { .. }
                | Self::WriteFailed { .. }
                | Self::ReadFailed { .. }
        )
    }

    /// What the operator can do: one line for `try:`.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "check the path; another run may have moved or pruned it",
            Self::AlreadyExists { .. } => {
                "another run or user made it first; see what it holds before removing anything"
            }
            Self::ParentMissing { .. } => {
                "if the directory was taken over by another run, run again; otherwise make it"
            }
            Self::NotADirectory { .. } | Self::IsADirectory { .. } => {
                "see what lies at that path; choose another output directory or move it away"
            }
            Self::InvalidPath { .. } | Self::NameTooLong { .. } => {
                "choose other names or partition keys (hdfs takes no ':' and 255 bytes a name)"
            }
            Self::CrossVolume { .. } => {
                "keep the whole dataset directory on one volume, mount and encryption zone"
            }
            Self::RenameUnsupported { .. } => {
                "use a file system with renameat2 RENAME_NOREPLACE (ext4, xfs, btrfs, tmpfs) or hdfs"
            }
            Self::PermissionDenied { .. } => {
                "give the user read, write and execute on the dataset directory, or run as another \
                 user (HADOOP_USER_NAME or a Kerberos ticket on hdfs)"
            }
            Self::Quota { .. } => {
                "raise the quota (hdfs dfsadmin -setQuota or -setSpaceQuota) or remove old data"
            }
            Self::SafeMode { .. } => {
                "wait until the namenode leaves safe mode (hdfs dfsadmin -safemode get), then run again"
            }
            Self::NoSpace { .. } => "free space or add disks, then run again",
            Self::ReadOnly { .. } => "mount it read-write or choose another output directory",
            Self::Unreachable { .. } => {
                "check the address, HADOOP_CONF_DIR, the network, Kerberos, and that an active \
                 namenode runs there"
            }
            Self::Timeout { .. } => {
                "check that the store answers (a plain client gets no answer from a Kerberos \
                 cluster), or raise the operation time-out"
            }
            Self::OutcomeUnknown { .. } => {
                "run again when the store answers: the next run looks first and repeats nothing"
            }
            Self::FileLease { .. } => {
                "wait for its writer, or release the lease: hdfs debug recoverLease -path PATH"
            }
            Self::WriteFailed { .. } => {
                "check the datanodes (hdfs dfsadmin -report) or the local disk, then run again; a dead datanode is \
                 given out by the namenode until it notices, by default for 10.5 minutes: let \
                 engine.store_patience be longer"
            }
            Self::Location { .. } => {
                "give hdfs://namenode:port/path, hdfs:///path, file:///path or a local path"
            }
            Self::ReadFailed { .. } => {
                "bring the datanodes back (hdfs dfsadmin -report, hdfs fsck PATH -files -blocks -locations), then \
                 run again"
            }
            Self::HadoopConfig { .. } => {
                "check HADOOP_CONF_DIR and its core-site.xml and hdfs-site.xml"
            }
            Self::Io { .. } => "see the cause; check the store's own logs",
        }
    }
}

/// An error and its causes on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
