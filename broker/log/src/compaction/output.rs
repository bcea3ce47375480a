//! A segment being written beside the log: `….log.cleaned` and its indexes.

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use broker_protocol::record::{BatchHeader, without_records};
use tracing::warn;

use super::swap::{CLEANED, SUFFIXES};
use crate::disk::{DiskFile, OpenMode, read_exact_at, write_all_vectored};
use crate::error::{Error, Result};
use crate::file_pool::{FilePool, remove_if_there};
use crate::index::{Entry, OffsetEntry, TimeEntry};
use crate::scan::size_of;
use crate::segment::{
    LOG_SUFFIX, NewEntries, OFFSET_INDEX_SUFFIX, SegmentState, TIME_INDEX_SUFFIX, file_name,
};

/// Bytes collected before they are written.
const BUFFER: usize = 1 << 20;

/// Removes its files when it is dropped, unless they have been [renamed](Output::keep).
#[derive(Debug)]
pub(super) struct Output {
    pool: Arc<FilePool>,
    dir: PathBuf,
    base_offset: i64,
    index_interval: u64,
    file: Arc<dyn DiskFile>,
    buffer: Vec<u8>,
    /// Bytes in the file.
    written: u64,
    state: SegmentState,
    entries: NewEntries,
    /// The last batch, if it has been left out.
    left_out: Option<BatchHeader>,
    is_kept: bool,
}

impl Output {
    pub(super) fn create(
        pool: &Arc<FilePool>,
        dir: &Path,
        base_offset: i64,
        index_interval: u64,
    ) -> Result<Self> {
        let path = dir.join(file_name(base_offset, LOG_SUFFIX) + CLEANED);
        let file = pool
            .disk()
            .open(&path, OpenMode::CreateEmpty)
            .map_err(|source| Error::io("create", &path, source))?;
        Ok(Self {
            pool: Arc::clone(pool),
            dir: dir.to_owned(),
            base_offset,
            index_interval,
            file,
            buffer: Vec::new(),
            written: 0,
            state: SegmentState::empty(base_offset),
            entries: NewEntries::default(),
            left_out: None,
            is_kept: false,
        })
    }

    pub(super) fn base_offset(&self) -> i64 {
        self.base_offset
    }

    /// Bytes of all batches so far.
    pub(super) fn size(&self) -> u64 {
        self.state.size
    }

    pub(super) fn path(&self, suffix: &str) -> PathBuf {
        self.dir.join(file_name(self.base_offset, suffix) + CLEANED)
    }

    /// Adds a whole batch.
    pub(super) fn append(&mut self, header: &BatchHeader, bytes: &[u8]) -> Result<()> {
        self.note(header);
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER {
            self.write_buffer()?;
        }
        Ok(())
    }

    fn note(&mut self, header: &BatchHeader) {
        self.left_out = None;
        self.state
            .add(header, self.index_interval, &mut self.entries);
    }

    /// Adds a batch by copying it from a file in pieces.
    pub(super) fn copy(
        &mut self,
        header: &BatchHeader,
        from: &dyn DiskFile,
        position: u64,
    ) -> Result<()> {
        self.note(header);
        let mut at = 0;
        while at < size_of(header) {
            let piece = (size_of(header) - at).min(BUFFER as u64);
            let start = self.buffer.len();
            self.buffer
                .resize(start + usize::try_from(piece).unwrap_or(0), 0);
            let place = self.buffer.get_mut(start..).unwrap_or_default();
            read_exact_at(from, place, position + at)
                .map_err(|source| Error::io("copy to", &self.path(LOG_SUFFIX), source))?;
            self.write_buffer()?;
            at += piece;
        }
        Ok(())
    }

    /// Notes that a batch has no record left.
    pub(super) fn leave_out(&mut self, header: &BatchHeader) {
        self.left_out = Some(header.clone());
    }

    fn write_buffer(&mut self) -> Result<()> {
        write_all_vectored(&*self.file, &mut [IoSlice::new(&self.buffer)], self.written)
            .map_err(|source| Error::io("write", &self.path(LOG_SUFFIX), source))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends with the last batch of the sources, empty if it must be, so that the segment ends where the next one
    /// begins. Returns the size.
    pub(super) fn end(&mut self) -> Result<u64> {
        if let Some(header) = self.left_out.take() {
            let bytes = without_records(&header).map_err(|error| Error::Io {
                operation: "make an empty batch for",
                path: self.path(LOG_SUFFIX),
                source: std::io::Error::other(error),
            })?;
            let header = BatchHeader {
                batch_length: 49,
                records_count: 0,
                ..header
            };
            self.append(&header, &bytes)?;
        }
        Ok(self.state.size)
    }

    /// Writes the indexes and makes everything durable but the names. `modified_ms` becomes the time of the log.
    pub(super) fn sync(&mut self, first_ms: Option<i64>, modified_ms: Option<i64>) -> Result<()> {
        self.write_buffer()?;
        self.state.first_ms = first_ms;
        let largest = self.state.largest;
        let last = self.entries.times.last().copied();
        self.entries
            .times
            .extend(largest.filter(|time| last.is_none_or(|last| time.follows(last))));
        self.file
            .sync()
            .map_err(|source| Error::io("sync", &self.path(LOG_SUFFIX), source))?;
        let offsets = write_index(self, OFFSET_INDEX_SUFFIX, &self.entries.offsets)?;
        let times = write_index(self, TIME_INDEX_SUFFIX, &self.entries.times)?;
        self.entries = NewEntries { offsets, times };
        let time = modified_ms
            .and_then(|ms| u64::try_from(ms).ok())
            .and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
        if let Some(time) = time
            && let Err(error) = self.file.file().set_modified(time)
        {
            let error = &error as &dyn std::error::Error;
            warn!(error, "cannot keep the time of a compacted segment");
        }
        Ok(())
    }

    /// What the segment is once its files have their names.
    pub(super) fn state(&self) -> (SegmentState, &[OffsetEntry], &[TimeEntry]) {
        (self.state, &self.entries.offsets, &self.entries.times)
    }

    /// Leaves the files alone from now on.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }
}

/// Writes those entries that the format has room for; they are returned.
fn write_index<E: Entry>(output: &Output, suffix: &str, entries: &[E]) -> Result<Vec<E>> {
    let path = output.path(suffix);
    let io = |source| Error::io("write", &path, source);
    let mut bytes = Vec::with_capacity(entries.len() * E::SIZE);
    let mut fitting = Vec::with_capacity(entries.len());
    for entry in entries {
        if entry.encode(output.base_offset, &mut bytes).is_some() {
            fitting.push(*entry);
        }
    }
    let disk = output.pool.disk();
    let file = disk.open(&path, OpenMode::CreateEmpty).map_err(io)?;
    write_all_vectored(&*file, &mut [IoSlice::new(&bytes)], 0).map_err(io)?;
    file.sync().map_err(io)?;
    Ok(fitting)
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        for suffix in SUFFIXES {
            if let Err(error) = remove_if_there(self.pool.disk(), &self.path(suffix)) {
                let error = &error as &dyn std::error::Error;
                warn!(
                    error,
                    "a file of an abandoned compaction stays until the next start"
                );
            }
        }
    }
}
