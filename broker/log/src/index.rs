//! Sparse indexes beside a segment, in Apache Kafka's format. Derived from the log, never trusted.
//!
//! ```text
//! .index       8 bytes an entry:  last offset of a batch - base offset (i32), position of that batch (i32)
//! .timeindex  12 bytes an entry:  largest timestamp so far (i64), last offset of its batch - base offset (i32)
//! ```
//! All big endian. Entries grow; an entry is added per `index.interval.bytes` of log. The files are not preallocated
//! and are read with positioned reads, so an open segment costs no memory but for the newest entries: up to 64 wait
//! until they are worth a write, and are lost in a crash, which an index may be. A lookup that leads to a place in the log
//! where no fitting batch begins is answered by a walk from the segment's start (see `segment.rs`).

use std::io::IoSlice;
#[cfg(test)]
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::disk::{read_exact_at, write_all_vectored};
use crate::error::{Error, Result};
use crate::file_pool::PooledFile;

/// An entry of one of the two kinds of index.
pub(crate) trait Entry: Copy + std::fmt::Debug + PartialEq {
    /// Bytes on disk.
    const SIZE: usize;
    /// `None` if a field does not fit.
    fn encode(self, base_offset: i64, out: &mut Vec<u8>) -> Option<()>;
    /// `None` if `bytes` has another length than [`Entry::SIZE`].
    fn decode(base_offset: i64, bytes: &[u8]) -> Option<Self>;
    /// True if `self` may directly follow `previous`.
    fn follows(self, previous: Self) -> bool;
    /// True if it may be in the index of a segment of `[base_offset, end_offset)` with `size` bytes.
    fn within(self, base_offset: i64, end_offset: i64, size: u64) -> bool;
}

/// Where a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OffsetEntry {
    /// Last offset of the batch.
    pub(crate) offset: i64,
    /// Where it begins, in bytes from the segment's start.
    pub(crate) position: u64,
}

/// The largest timestamp up to and including a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    /// Milliseconds.
    pub(crate) timestamp_ms: i64,
    /// Last offset of the batch that has it.
    pub(crate) offset: i64,
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Entry for OffsetEntry {
    const SIZE: usize = 8;

    fn encode(self, base_offset: i64, out: &mut Vec<u8>) -> Option<()> {
        let relative = i32::try_from(self.offset.checked_sub(base_offset)?).ok()?;
        let position = i32::try_from(self.position).ok()?;
        out.extend_from_slice(&relative.to_be_bytes());
        out.extend_from_slice(&position.to_be_bytes());
        Some(())
    }

    fn decode(base_offset: i64, bytes: &[u8]) -> Option<Self> {
        let relative = i32_at(bytes, 0)?;
        // A negative position is a damaged one: out of every bound.
        let position = u64::try_from(i32_at(bytes, 4)?).unwrap_or(u64::MAX);
        Some(Self {
            offset: base_offset.checked_add(relative.into())?,
            position,
        })
    }

    fn follows(self, previous: Self) -> bool {
        previous.offset < self.offset && previous.position < self.position
    }

    fn within(self, base_offset: i64, end_offset: i64, size: u64) -> bool {
        (base_offset..end_offset).contains(&self.offset) && self.position < size
    }
}

impl Entry for TimeEntry {
    const SIZE: usize = 12;

    fn encode(self, base_offset: i64, out: &mut Vec<u8>) -> Option<()> {
        let relative = i32::try_from(self.offset.checked_sub(base_offset)?).ok()?;
        out.extend_from_slice(&self.timestamp_ms.to_be_bytes());
        out.extend_from_slice(&relative.to_be_bytes());
        Some(())
    }

    fn decode(base_offset: i64, bytes: &[u8]) -> Option<Self> {
        let timestamp_ms = i64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
        Some(Self {
            timestamp_ms,
            offset: base_offset.checked_add(i32_at(bytes, 8)?.into())?,
        })
    }

    fn follows(self, previous: Self) -> bool {
        previous.timestamp_ms < self.timestamp_ms && previous.offset <= self.offset
    }

    fn within(self, base_offset: i64, end_offset: i64, _size: u64) -> bool {
        (base_offset..end_offset).contains(&self.offset)
    }
}

/// One index file. Written by the partition's owner, read by anybody.
#[derive(Debug)]
pub(crate) struct Index<E> {
    base_offset: i64,
    file: PooledFile,
    /// What may be read. The lock is a leaf and never held over I/O.
    published: Mutex<Published<E>>,
    /// Held while entries are written: by the owner, or by a flush of a segment that is closed.
    writing: Mutex<()>,
}

/// The entries of an index: those in the file, then those that wait to be written.
#[derive(Debug, Clone)]
struct Published<E> {
    in_file: u64,
    waiting: Vec<E>,
    last: Option<E>,
}

/// The number of entries by a file's length; `None` if it has half an entry, or is longer than the index of a segment of
/// `size` bytes can be (no batch is shorter than 61 bytes).
fn plausible_entries<E: Entry>(len: u64, size: u64) -> Option<u64> {
    let entries = len / E::SIZE as u64;
    let plausible = len.is_multiple_of(E::SIZE as u64) && entries <= size / 61 + 1;
    plausible.then_some(entries)
}

/// Entries read at once at the end of a binary search.
const BLOCK_ENTRIES: u64 = 256;

/// Entries that wait in memory until they are written together: a write costs as much as that of a small batch.
const WORTH_A_WRITE: usize = 64;

impl<E: Entry> Index<E> {
    /// An index whose content, if the file is there, is not looked at; see [`Index::load`] and [`Index::replace`].
    pub(crate) fn new(base_offset: i64, file: PooledFile) -> Self {
        Self {
            base_offset,
            file,
            published: Mutex::new(Published {
                in_file: 0,
                waiting: Vec::new(),
                last: None,
            }),
            writing: Mutex::new(()),
        }
    }

    #[cfg(test)]
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    fn published(&self) -> MutexGuard<'_, Published<E>> {
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes what is in the file, all of it.
    fn publish(&self, in_file: u64, last: Option<E>) {
        *self.published() = Published {
            in_file,
            waiting: Vec::new(),
            last,
        };
    }

    pub(crate) fn last(&self) -> Option<E> {
        self.published().last
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u64 {
        let published = self.published();
        published.in_file + published.waiting.len() as u64
    }

    fn io(&self, operation: &'static str, source: std::io::Error) -> Error {
        Error::io(operation, self.file.path(), source)
    }

    /// Reads the whole file if it is sane: there, a whole number of entries, growing, in the bounds of the segment.
    /// `None` if it is not. Nothing is published. Takes memory in proportion to the file, which is rejected unread
    /// if it is longer than an index of a segment of `size` bytes can be.
    pub(crate) fn load(&self, end_offset: i64, size: u64) -> Result<Option<Vec<E>>> {
        let file = match self.file.open() {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let len = file.len().map_err(|source| self.io("measure", source))?;
        let count = plausible_entries::<E>(len, size).map(usize::try_from);
        let Some(Ok(count)) = count else {
            return Ok(None);
        };
        let mut bytes = vec![0; count * E::SIZE];
        read_exact_at(&*file, &mut bytes, 0).map_err(|source| self.io("read", source))?;
        let mut entries: Vec<E> = Vec::with_capacity(count);
        for bytes in bytes.chunks_exact(E::SIZE) {
            match E::decode(self.base_offset, bytes) {
                Some(entry)
                    if entry.within(self.base_offset, end_offset, size)
                        && entries
                            .last()
                            .is_none_or(|previous| entry.follows(*previous)) =>
                {
                    entries.push(entry);
                }
                Some(_) | None => return Ok(None),
            }
        }
        Ok(Some(entries))
    }

    /// Publishes the file by its length, `None` if it is missing, and its last entry; no more is looked at. False, and
    /// nothing published, if they cannot be right.
    pub(crate) fn adopt_unread(
        &self,
        len: Option<u64>,
        end_offset: i64,
        size: u64,
    ) -> Result<bool> {
        let Some(entries) = len.and_then(|len| plausible_entries::<E>(len, size)) else {
            return Ok(false);
        };
        let last = match entries.checked_sub(1) {
            Some(last) => Some(self.read(last)?),
            None => None,
        };
        let plausible = last.is_none_or(|last| last.within(self.base_offset, end_offset, size));
        if plausible {
            self.publish(entries, last);
        }
        Ok(plausible)
    }

    /// Publishes what [`Index::load`] read.
    pub(crate) fn adopt(&self, entries: &[E]) {
        self.publish(entries.len() as u64, entries.last().copied());
    }

    /// Makes `entries` the content of the file.
    pub(crate) fn replace(&self, entries: &[E]) -> Result<()> {
        self.publish(0, None);
        let file = self.file.create()?;
        file.truncate(0)
            .map_err(|source| self.io("truncate", source))?;
        drop(file);
        self.append(entries)?;
        self.write_waiting()
    }

    /// Appends entries; those that do not fit the format are left out (the index is sparse anyway). They are written
    /// once there are some; after an error they are left out, too.
    pub(crate) fn append(&self, entries: &[E]) -> Result<()> {
        let mut published = self.published();
        for entry in entries {
            let follows = published.last.is_none_or(|last| entry.follows(last));
            if follows && entry.encode(self.base_offset, &mut Vec::new()).is_some() {
                published.waiting.push(*entry);
                published.last = Some(*entry);
            }
        }
        let write = published.waiting.len() >= WORTH_A_WRITE;
        drop(published);
        if write { self.write_waiting() } else { Ok(()) }
    }

    /// Writes the entries that wait.
    pub(crate) fn write_waiting(&self) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let published = self.published().clone();
        if published.waiting.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(published.waiting.len() * E::SIZE);
        for entry in &published.waiting {
            // Each was encoded when it came.
            let _fits = entry.encode(self.base_offset, &mut bytes);
        }
        let position = published.in_file * E::SIZE as u64;
        let written = self.file.create().and_then(|file| {
            write_all_vectored(&*file, &mut [IoSlice::new(&bytes)], position)
                .map_err(|source| self.io("append to", source))
        });
        let mut now = self.published();
        if written.is_ok() {
            now.in_file += published.waiting.len() as u64;
        }
        let done = published.waiting.len().min(now.waiting.len());
        now.waiting.drain(..done);
        written
    }

    /// Keeps the leading entries for which `keep` holds.
    pub(crate) fn truncate_while(&self, keep: impl Fn(E) -> bool) -> Result<()> {
        let mut published = self.published();
        let kept = published.waiting.partition_point(|entry| keep(*entry));
        if let Some(last) = kept.checked_sub(1) {
            published.waiting.truncate(kept);
            published.last = published.waiting.get(last).copied();
            return Ok(());
        }
        published.waiting.clear();
        let count = published.in_file;
        drop(published);
        let kept = self.partition_point(count, &keep)?;
        let last = match kept.checked_sub(1) {
            Some(last) => Some(self.read(last)?),
            None => None,
        };
        self.publish(kept, last);
        if kept < count {
            let file = self.file.create()?;
            file.truncate(kept * E::SIZE as u64)
                .map_err(|source| self.io("truncate", source))?;
        }
        Ok(())
    }

    /// The last of the leading entries for which `holds` does.
    pub(crate) fn last_where(&self, holds: impl Fn(E) -> bool) -> Result<Option<E>> {
        let published = self.published();
        if let Some(last) = published.last.filter(|last| holds(*last)) {
            return Ok(Some(last));
        }
        let waiting = published.waiting.partition_point(|entry| holds(*entry));
        if let Some(at) = waiting.checked_sub(1) {
            return Ok(published.waiting.get(at).copied());
        }
        let count = published.in_file;
        drop(published);
        match self.partition_point(count, &holds)?.checked_sub(1) {
            Some(at) => self.read(at).map(Some),
            None => Ok(None),
        }
    }

    /// Number of leading entries in the file for which `holds` does.
    fn partition_point(&self, count: u64, holds: &impl Fn(E) -> bool) -> Result<u64> {
        let (mut low, mut high) = (0, count);
        while high - low > BLOCK_ENTRIES {
            let middle = low + (high - low) / 2;
            if holds(self.read(middle)?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let block = self.read_block(low, high)?;
        Ok(low + block.partition_point(|entry| holds(*entry)) as u64)
    }

    fn read(&self, at: u64) -> Result<E> {
        let block = self.read_block(at, at + 1)?;
        block
            .first()
            .copied()
            .ok_or_else(|| self.io("read", std::io::ErrorKind::InvalidData.into()))
    }

    fn read_block(&self, from: u64, to: u64) -> Result<Vec<E>> {
        if from == to {
            return Ok(Vec::new());
        }
        let file = self.file.open()?;
        let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(0) * E::SIZE];
        read_exact_at(&*file, &mut bytes, from * E::SIZE as u64)
            .map_err(|source| self.io("read", source))?;
        let entries = bytes.chunks_exact(E::SIZE);
        Ok(entries
            .filter_map(|bytes| E::decode(self.base_offset, bytes))
            .collect())
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.write_waiting()?;
        self.file
            .create()?
            .sync()
            .map_err(|source| self.io("sync", source))
    }

    /// See [`PooledFile::pin`].
    pub(crate) fn pin(&self) -> Result<()> {
        self.file.pin()
    }

    pub(crate) fn remove(&self) -> Result<()> {
        self.file.remove()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::disk::RealDisk;
    use crate::file_pool::FilePool;

    fn index(dir: &Path) -> Index<OffsetEntry> {
        let pool = FilePool::new(Arc::new(RealDisk), 8);
        Index::new(100, pool.file(dir.join("00000000000000000100.index")))
    }

    fn entry(offset: i64, position: u64) -> OffsetEntry {
        OffsetEntry { offset, position }
    }

    #[test]
    fn lookup_finds_the_last_entry_at_or_before_over_many_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let index = index(dir.path());
        let entries: Vec<_> = (0u32..2000)
            .map(|i| entry(100 + i64::from(i) * 3, u64::from(i) * 61))
            .collect();
        index.append(&entries[..1990]).unwrap();
        index.append(&entries[1990..]).unwrap();
        assert_eq!(index.last_where(|e| e.offset <= 99).unwrap(), None);
        for (target, expected) in [(100, 0), (102, 0), (103, 1), (3001, 967), (9999, 1999)] {
            let found = index.last_where(|e| e.offset <= target).unwrap();
            assert_eq!(found, Some(entries[expected]), "{target}");
        }
        index.truncate_while(|e| e.position < 61 * 1000).unwrap();
        assert_eq!((index.len(), index.last()), (1000, Some(entries[999])));
        assert_eq!(
            index.load(10_000, 1 << 20).unwrap().unwrap(),
            entries[..1000]
        );
    }

    #[test]
    fn entries_that_wait_are_found_and_cut_like_those_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let index = index(dir.path());
        let entries: Vec<_> = (0u32..100)
            .map(|i| entry(100 + i64::from(i), u64::from(i) * 61))
            .collect();
        for one in &entries {
            index.append(std::slice::from_ref(one)).unwrap();
        }
        let in_file = std::fs::metadata(index.path()).unwrap().len();
        assert_eq!(in_file, 8 * WORTH_A_WRITE as u64, "the rest waits");
        for (at, expected) in entries.iter().enumerate() {
            let found = index.last_where(|e| e.offset <= expected.offset).unwrap();
            assert_eq!(found, Some(*expected), "{at}");
        }
        index.truncate_while(|e| e.position < 61 * 80).unwrap();
        assert_eq!((index.len(), index.last()), (80, Some(entries[79])));
        index.truncate_while(|e| e.position < 61 * 30).unwrap();
        assert_eq!((index.len(), index.last()), (30, Some(entries[29])));
        index.append(&entries[30..40]).unwrap();
        index.sync().unwrap();
        assert_eq!(index.load(10_000, 1 << 20).unwrap().unwrap(), entries[..40]);
    }

    #[test]
    fn entries_have_kafkas_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let index = index(dir.path());
        index.append(&[entry(105, 4200)]).unwrap();
        index.write_waiting().unwrap();
        assert_eq!(
            std::fs::read(index.path()).unwrap(),
            [0, 0, 0, 5, 0, 0, 0x10, 0x68]
        );
        let mut bytes = Vec::new();
        TimeEntry {
            timestamp_ms: 258,
            offset: 107,
        }
        .encode(100, &mut bytes)
        .unwrap();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 7]);
        assert_eq!(
            TimeEntry::decode(100, &bytes),
            Some(TimeEntry {
                timestamp_ms: 258,
                offset: 107
            })
        );
    }

    #[test]
    fn insane_files_are_not_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let index = index(dir.path());
        let load = |bytes: &[u8]| {
            std::fs::write(index.path(), bytes).unwrap();
            index
                .load(200, 10_000)
                .unwrap()
                .map(|entries| entries.len())
        };
        let good = [0, 0, 0, 5, 0, 0, 1, 0, 0, 0, 0, 9, 0, 0, 2, 0];
        assert_eq!(load(&good), Some(2));
        assert_eq!(load(&good[..15]), None, "not a whole number of entries");
        assert_eq!(load(&[0; 16]), None, "zeros do not grow");
        assert_eq!(
            load(&[0, 0, 0, 5, 0, 0, 1, 0, 0, 0, 0, 9, 0, 0, 1, 0]),
            None,
            "same position"
        );
        assert_eq!(
            load(&[0, 0, 0, 101, 0, 0, 1, 0]),
            None,
            "offset beyond the segment"
        );
        assert_eq!(
            load(&[0, 0, 0, 1, 0, 0, 0x27, 0x10]),
            None,
            "position beyond the segment"
        );
        assert_eq!(
            load(&[0, 0, 0, 1, 0xff, 0, 0, 0]),
            None,
            "negative position"
        );
        std::fs::remove_file(index.path()).unwrap();
        assert_eq!(index.load(200, 10_000).unwrap(), None, "missing");
    }
}
