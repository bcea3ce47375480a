//! A file of a store as the Parquet reader wants it, read in blocks of which only a few are held.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf as _, Bytes};
use loader_store::{Store, StorePath};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use tokio::runtime::Handle;

/// Bytes read at once.
const BLOCK: u64 = 4 << 20;
/// Blocks held: three coordinate columns are read side by side, and one to spare.
const HELD: usize = 4;

/// A file, for threads that may block. Clones share the blocks.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    file: Arc<Source>,
}

#[derive(Debug)]
struct Source {
    store: Arc<dyn Store>,
    path: StorePath,
    runtime: Handle,
    len: u64,
    block: u64,
    /// The blocks used last, by number, the newest at the end.
    held: Mutex<Vec<(u64, Bytes)>>,
    /// What the store said when it did not answer; the Parquet reader passes on the text only.
    failure: Mutex<Option<loader_store::Error>>,
}

impl Blocks {
    /// `len` is the length that the store's listing gave.
    pub(super) fn new(store: Arc<dyn Store>, path: StorePath, len: u64, runtime: Handle) -> Self {
        Self::of(store, path, len, runtime, BLOCK)
    }

    fn of(store: Arc<dyn Store>, path: StorePath, len: u64, runtime: Handle, block: u64) -> Self {
        let file = Source {
            store,
            path,
            runtime,
            len,
            block,
            held: Mutex::default(),
            failure: Mutex::default(),
        };
        Self {
            file: Arc::new(file),
        }
    }

    /// Takes the error of the store that ended the reading, if one did.
    pub(super) fn failure(&self) -> Option<loader_store::Error> {
        let mut failure = self
            .file
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }

    /// CRC-32C of the whole file.
    ///
    /// # Errors
    /// When the store does not give all of it; see [`Blocks::failure`].
    pub(super) fn crc32c(&self) -> io::Result<u32> {
        let blocks = self.file.len.div_ceil(self.file.block);
        (0..blocks).try_fold(0, |crc, number| {
            Ok(crc32c::crc32c_append(crc, &self.block(number)?))
        })
    }

    fn block(&self, number: u64) -> io::Result<Bytes> {
        let file = &self.file;
        let mut held = file.held.lock().unwrap_or_else(PoisonError::into_inner);
        let found = held.iter().position(|(known, _)| *known == number);
        let entry = match found {
            Some(at) => held.remove(at),
            None => {
                let start = number.saturating_mul(file.block);
                let range = start..file.len.min(start.saturating_add(file.block));
                let read = file.store.read_range(&file.path, range);
                let bytes = file
                    .runtime
                    .block_on(read)
                    .map_err(|error| self.note(error))?;
                if held.len() >= HELD {
                    held.remove(0);
                }
                (number, bytes)
            }
        };
        let bytes = entry.1.clone();
        held.push(entry);
        Ok(bytes)
    }

    fn note(&self, error: loader_store::Error) -> io::Error {
        let said = io::Error::other(error.to_string());
        let mut failure = self
            .file
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *failure = Some(error);
        said
    }

    /// What is at `start`, up to the end of its block; empty at the end of the file.
    fn from(&self, start: u64) -> io::Result<Bytes> {
        if start >= self.file.len {
            return Ok(Bytes::new());
        }
        let mut bytes = self.block(start / self.file.block)?;
        let skip = usize::try_from(start % self.file.block).unwrap_or(usize::MAX);
        bytes.advance(skip.min(bytes.len()));
        Ok(bytes)
    }

    fn range(&self, range: Range<u64>) -> io::Result<Bytes> {
        let wanted = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut first = self.from(range.start)?;
        if first.len() >= wanted {
            return Ok(first.split_to(wanted));
        }
        let mut all = Vec::with_capacity(wanted);
        all.extend_from_slice(&first);
        while all.len() < wanted {
            let more = self.from(range.start + all.len() as u64)?;
            if more.is_empty() {
                break;
            }
            all.extend_from_slice(more.get(..wanted - all.len()).unwrap_or(&more));
        }
        Ok(all.into())
    }
}

impl Length for Blocks {
    fn len(&self) -> u64 {
        self.file.len
    }
}

impl ChunkReader for Blocks {
    type T = BlockReader;

    fn get_read(&self, start: u64) -> parquet::errors::Result<BlockReader> {
        Ok(BlockReader {
            blocks: self.clone(),
            at: start,
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let end = start.checked_add(length as u64);
        let Some(end) = end.filter(|end| *end <= self.file.len) else {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at {start} are asked for, the file has {}",
                self.file.len
            )));
        };
        let bytes = self.range(start..end)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF("the file has become shorter".to_owned()));
        }
        Ok(bytes)
    }
}

/// Reads on from one place.
#[derive(Debug)]
pub(super) struct BlockReader {
    blocks: Blocks,
    at: u64,
}

impl Read for BlockReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.blocks.from(self.at)?;
        let read = bytes.len().min(into.len());
        if let (Some(into), Some(from)) = (into.get_mut(..read), bytes.get(..read)) {
            into.copy_from_slice(from);
        }
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use loader_store::LocalStore;

    use super::*;

    #[tokio::test]
    async fn blocks_give_what_is_in_the_file_and_hold_few() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("file");
        let content: Vec<u8> = (0..2_500_u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let path = StorePath::new(path.to_str().unwrap()).unwrap();
        let store: Arc<dyn Store> = Arc::new(LocalStore::new());
        let blocks = Blocks::of(store, path, 2_500, Handle::current(), 100);
        let expected = content.clone();
        let check = move || {
            assert_eq!(blocks.crc32c().unwrap(), crc32c::crc32c(&expected));
            for (start, length) in [(0, 2_500), (99, 2), (100, 100), (250, 731), (2_499, 1)] {
                let read = blocks.get_bytes(start as u64, length).unwrap();
                assert_eq!(read, expected[start..start + length], "{start} {length}");
            }
            assert!(blocks.get_bytes(2_400, 101).is_err());
            assert!(blocks.get_bytes(u64::MAX, 1).is_err());
            let mut rest = Vec::new();
            let mut read = blocks.get_read(1_234).unwrap();
            read.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, expected[1_234..]);
            assert_eq!(blocks.file.held.lock().unwrap().len(), HELD);
        };
        tokio::task::spawn_blocking(check).await.unwrap();
    }
}
