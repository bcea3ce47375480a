//! The producer snapshots of a partition: `<offset, 20 digits>.snapshot`, the producers' state just below that offset.
//!
//! ```text
//!      0.log              1042.log                      2100.log (active)
//!   ├──────────────────────┼──────────────────────────────┼───────────┬───────►
//!                    1042.snapshot                  2100.snapshot   2700.snapshot
//!                    with the roll                  with the roll   with a flush, or at a clean shutdown
//! ```
//! - Written with every roll, with a flush when enough has been appended since the last one, and at a clean shutdown; aside
//!   and renamed, so that an older one is never spoilt. A flush syncs the newest, not the roll, which would make an append
//!   wait for the disk. A torn one is told by its CRC and an older one is taken.
//! - Before the recovery point is at or behind the offset of a snapshot, the index entries of all batches below that offset
//!   are durable. So an open after a crash takes the newest one at or below the recovery point, and
//!   believes the indexes up to there.
//! - Kept: one for each segment, and all that an open may need, which are those from the newest at or below the recovery
//!   point on disk on. Removed with the segments below the log start, and whatever lies behind a cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use crate::disk::{Disk, FileInfo, OpenMode, read_small, write_all_vectored};
use crate::error::{Error, Result};
use crate::file_pool::remove_if_there;
use crate::producer_state::ProducerStates;
use crate::segment::{Segment, base_offset_of, file_name};

pub(crate) const SNAPSHOT_SUFFIX: &str = ".snapshot";

/// Longest snapshot that is read, in bytes: of a million producers.
const MAX_BYTES: usize = 256 << 20;

#[derive(Debug)]
pub(crate) struct Snapshots {
    dir: PathBuf,
    /// By offset; true if synced.
    files: BTreeMap<i64, bool>,
    /// Bytes appended since the newest one.
    bytes_since: u64,
}

impl Snapshots {
    /// Those among the files of the partition's directory.
    pub(crate) fn found(dir: &Path, files: &[FileInfo]) -> Self {
        let offsets = files
            .iter()
            .filter_map(|file| base_offset_of(&file.name, SNAPSHOT_SUFFIX));
        Self {
            dir: dir.to_owned(),
            files: offsets.map(|offset| (offset, true)).collect(),
            bytes_since: 0,
        }
    }

    pub(crate) fn path(&self, offset: i64) -> PathBuf {
        self.dir.join(file_name(offset, SNAPSHOT_SUFFIX))
    }

    /// Counts appended bytes.
    pub(crate) fn appended(&mut self, bytes: u64) {
        self.bytes_since = self.bytes_since.saturating_add(bytes);
    }

    pub(crate) fn bytes_since(&self) -> u64 {
        self.bytes_since
    }

    /// Writes the state below `offset`, unless it is there. Not synced: see [`Snapshots::unsynced`]. A failure is logged
    /// and costs time at the next open only.
    pub(crate) fn take(&mut self, disk: &dyn Disk, offset: i64, producers: &ProducerStates) {
        if self.files.contains_key(&offset) {
            self.bytes_since = 0;
            return;
        }
        let path = self.path(offset);
        match write(disk, &path, &producers.encode()) {
            Ok(()) => {
                self.files.insert(offset, false);
                self.bytes_since = 0;
            }
            Err(error) => {
                warn!(
                    path = %path.display(), error = &error as &dyn std::error::Error,
                    "cannot write a producer snapshot, the next start will read more of the log"
                );
            }
        }
    }

    /// The newest one, if it has to be synced, and the directory with it. Older ones are only read if it is damaged.
    pub(crate) fn unsynced(&self) -> Option<i64> {
        let (offset, synced) = self.files.last_key_value()?;
        (!*synced).then_some(*offset)
    }

    /// Notes that this one has been synced.
    pub(crate) fn synced(&mut self, offset: i64) {
        if let Some(synced) = self.files.get_mut(&offset) {
            *synced = true;
        }
    }

    /// Syncs what has to be; the directory is left to the caller.
    pub(crate) fn sync(&mut self, disk: &dyn Disk) -> Result<()> {
        if let Some(offset) = self.unsynced() {
            sync(disk, &self.path(offset))?;
            self.synced(offset);
        }
        Ok(())
    }

    /// Those behind `offset`.
    pub(crate) fn behind(&self, offset: i64) -> Vec<PathBuf> {
        let offsets = self.files.keys().filter(|at| **at > offset);
        offsets.map(|at| self.path(*at)).collect()
    }

    /// Removes those behind `offset`. The directory has to be synced before bytes behind it may count as durable.
    pub(crate) fn remove_behind(&mut self, disk: &dyn Disk, offset: i64) -> Result<()> {
        let behind = match offset.checked_add(1) {
            Some(first) => self.files.split_off(&first),
            None => BTreeMap::new(),
        };
        self.remove_files(disk, behind.keys().copied())
    }

    /// Removes those below `offset`.
    pub(crate) fn remove_below(&mut self, disk: &dyn Disk, offset: i64) -> Result<()> {
        let kept = self.files.split_off(&offset);
        let below = std::mem::replace(&mut self.files, kept);
        self.remove_files(disk, below.keys().copied())
    }

    /// Removes those that no open will need: neither at the beginning of a segment nor at or behind the newest one that
    /// is not behind `recovery_point`, which must be on disk.
    pub(crate) fn prune(
        &mut self,
        disk: &dyn Disk,
        segments: &[Arc<Segment>],
        recovery_point: i64,
    ) -> Result<()> {
        let Some((needed, _)) = self.files.range(..=recovery_point).next_back() else {
            return Ok(());
        };
        let needed = *needed;
        let bases: BTreeSet<i64> = segments
            .iter()
            .map(|segment| segment.base_offset())
            .collect();
        let superfluous: Vec<i64> = self
            .files
            .range(..needed)
            .map(|(offset, _)| *offset)
            .filter(|offset| !bases.contains(offset))
            .collect();
        for offset in &superfluous {
            self.files.remove(offset);
        }
        self.remove_files(disk, superfluous.into_iter())
    }

    fn remove_files(&self, disk: &dyn Disk, offsets: impl Iterator<Item = i64>) -> Result<()> {
        for offset in offsets {
            remove_if_there(disk, &self.path(offset))?;
        }
        Ok(())
    }

    /// The newest sound one that is not behind `at_most`: its offset and content. Those that are not sound are
    /// removed and passed to `refused` with what is wrong.
    ///
    /// # Errors
    /// [`Error::Io`] if one cannot be read for another reason than what is in it.
    pub(crate) fn newest(
        &mut self,
        disk: &dyn Disk,
        at_most: i64,
        mut refused: impl FnMut(PathBuf, String),
    ) -> Result<Option<(i64, ProducerStates)>> {
        while let Some((offset, _)) = self.files.range(..=at_most).next_back() {
            let offset = *offset;
            let path = self.path(offset);
            let reason = match read_small(disk, &path, MAX_BYTES) {
                Ok(bytes) => match ProducerStates::decode(&bytes) {
                    Ok(producers) => return Ok(Some((offset, producers))),
                    Err(reason) => reason,
                },
                Err(error) if is_about_content(&error) => error.to_string(),
                Err(error) => return Err(Error::io("read", &path, error)),
            };
            warn!(
                path = %path.display(), reason,
                "ignoring a bad producer snapshot, reading more of the log instead"
            );
            self.files.remove(&offset);
            remove_if_there(disk, &path)?;
            refused(path, reason);
        }
        Ok(None)
    }
}

fn is_about_content(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::NotFound
    )
}

fn write(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".tmp");
    let aside = Path::new(&aside);
    let file = disk.open(aside, OpenMode::CreateEmpty)?;
    let written = write_all_vectored(&*file, &mut [IoSlice::new(content)], 0);
    drop(file);
    let renamed = written.and_then(|()| disk.rename(aside, path));
    renamed.inspect_err(|_| {
        // What cannot be removed now is removed by the next open.
        drop(disk.remove_file(aside));
    })
}

/// Makes a snapshot durable, but for its name. One that has been removed meanwhile is none to care for.
pub(crate) fn sync(disk: &dyn Disk, path: &Path) -> Result<()> {
    let synced = disk
        .open(path, OpenMode::Existing)
        .and_then(|file| file.sync());
    match synced {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("sync", path, error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
