//! Where the bytes of one file go: created with the first of them, checksummed as they pass.
//!
//! ```text
//! first bytes ─► create 00000.part, write ──fails──► create 00000-1.part, write … with pauses
//! more bytes  ─► write                    ──fails──► the attempt fails, and is run again
//! tail        ─► write, close             ──fails──► again whole under another name, if it is all there was
//! ```
//! HDFS names a dead DataNode for new blocks until its NameNode has noticed, and a file whose pipeline
//! broke cannot be mended: it is written again under another name, within the store's patience. Only bytes that are
//! at hand are: those of a file's first write, and so all of a file that fits into one row group.

use bytes::Bytes;
use loader_store::{FileWriter, Store, StorePath};

use crate::commit::staging::fenced_if_gone;
use crate::error::Error;
use crate::layout::StagingLayout;

/// What a sink needs of its task.
#[derive(Debug, Clone, Copy)]
pub(super) struct SinkPlace<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) staging: &'a StagingLayout,
}

pub(super) struct Sink {
    directory: StorePath,
    /// Number of the file in its attempt.
    number: usize,
    /// Tries that failed before this one: part of the name.
    failed: u32,
    writer: Option<Box<dyn FileWriter>>,
    crc: u32,
    bytes: u64,
}

impl Sink {
    pub(super) const fn new(directory: StorePath, number: usize) -> Self {
        Self {
            directory,
            number,
            failed: 0,
            writer: None,
            crc: 0,
            bytes: 0,
        }
    }

    fn name(&self) -> String {
        match self.failed {
            0 => format!("{:05}.part", self.number),
            failed => format!("{:05}-{failed}.part", self.number),
        }
    }

    fn path(&self) -> StorePath {
        self.directory.join(&self.name())
    }

    fn count(&mut self, bytes: &Bytes) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    }

    pub(super) async fn put(&mut self, place: &SinkPlace<'_>, bytes: Bytes) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.count(&bytes);
        let written = match &mut self.writer {
            Some(writer) => writer.write(bytes).await,
            None => self.begin(place.store, bytes).await,
        };
        written.map_err(|error| fenced_if_gone(place.staging, error))
    }

    /// Opens the file with its first bytes.
    async fn begin(&mut self, store: &dyn Store, bytes: Bytes) -> loader_store::Result<()> {
        let mut tries = store.patience().tries();
        loop {
            match open_with(store, &self.path(), bytes.clone()).await {
                Ok(writer) => {
                    self.writer = Some(writer);
                    return Ok(());
                }
                Err(error) if tries.again(&error).await => self.failed += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes all of a file and closes it; its length.
    async fn write_whole(&mut self, store: &dyn Store, bytes: Bytes) -> loader_store::Result<u64> {
        let mut tries = store.patience().tries();
        loop {
            let closed = async {
                let writer = open_with(store, &self.path(), bytes.clone()).await?;
                writer.close().await
            };
            match closed.await {
                Ok(length) => return Ok(length),
                Err(error) if tries.again(&error).await => self.failed += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the last bytes. Name, length and CRC-32C of the closed file.
    pub(super) async fn close(
        mut self,
        place: &SinkPlace<'_>,
        tail: Bytes,
    ) -> Result<(String, u64, u32), Error> {
        self.count(&tail);
        let closed = match self.writer.take() {
            None if tail.is_empty() => Ok(0),
            None => self.write_whole(place.store, tail).await,
            Some(writer) => finish(writer, tail).await,
        };
        let length = closed.map_err(|error| fenced_if_gone(place.staging, error))?;
        if length != self.bytes {
            return Err(Error::Inconsistent {
                path: self.path(),
                problem: format!("has {length} bytes, {} were written", self.bytes),
            });
        }
        Ok((self.name(), length, self.crc))
    }
}

async fn open_with(
    store: &dyn Store,
    path: &StorePath,
    bytes: Bytes,
) -> loader_store::Result<Box<dyn FileWriter>> {
    let mut writer = store.create(path).await?;
    writer.write(bytes).await?;
    Ok(writer)
}

async fn finish(mut writer: Box<dyn FileWriter>, tail: Bytes) -> loader_store::Result<u64> {
    if !tail.is_empty() {
        writer.write(tail).await?;
    }
    writer.close().await
}
