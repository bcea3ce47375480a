//! Where the bytes of one file go: checksummed as they pass, written while the next are encoded.
//!
//! ```text
//! put ─► room for so many bytes ─► channel ─► background: create with the first bytes, write … close
//! ```

use std::sync::Arc;

use bytes::Bytes;
use loader_store::{FileWriter, StorePath};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::TaskContext;
use crate::commit::staging::fenced_if_gone;
use crate::error::Error;

/// Pieces of one file that wait; the room for their bytes is the real bound.
const PIECES: usize = 16;

/// Room for bytes on their way to the store, shared by the files of an attempt.
#[derive(Clone)]
pub(super) struct Outgoing {
    room: Arc<Semaphore>,
    most: usize,
}

/// One file being written.
pub(super) struct Sink {
    path: StorePath,
    crc: u32,
    bytes: u64,
    upload: Option<Upload>,
}

/// A file that was closed: name, length and CRC-32C.
pub(super) struct Closed {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) crc: u32,
}

struct Upload {
    pieces: mpsc::Sender<(Bytes, OwnedSemaphorePermit)>,
    done: AbortOnDropHandle<Result<u64, Error>>,
}

impl Outgoing {
    /// Room for `bytes` bytes; one piece that is larger goes alone.
    pub(super) fn new(bytes: usize) -> Self {
        let most = bytes.clamp(1, u32::MAX as usize);
        Self {
            room: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        let permits = u32::try_from(bytes.min(self.most)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(permits).await;
        room.map_err(|source| Error::Internal {
            what: "the gate of outgoing bytes is closed".to_owned(),
            source: Some(Box::new(source)),
        })
    }
}

impl Sink {
    pub(super) const fn new(path: StorePath) -> Self {
        Self {
            path,
            crc: 0,
            bytes: 0,
            upload: None,
        }
    }

    /// Hands bytes over, waiting for room. An error of the background shows here or in [`Self::close`].
    pub(super) async fn put(
        &mut self,
        context: &TaskContext,
        outgoing: &Outgoing,
        bytes: Bytes,
    ) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        self.bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let room = outgoing.reserve(bytes.len()).await?;
        let upload = match self.upload.take() {
            Some(upload) => upload,
            None => Upload::start(context.clone(), self.path.clone()),
        };
        if upload.pieces.send((bytes, room)).await.is_err() {
            // It stopped taking bytes: it has failed, and says why.
            upload.finish().await?;
            return Err(self.inconsistent("its writer ended early".to_owned()));
        }
        self.upload = Some(upload);
        Ok(())
    }

    /// Waits until the file is durable and has the length that was handed over.
    pub(super) async fn close(mut self) -> Result<Closed, Error> {
        if let Some(upload) = self.upload.take() {
            let length = upload.finish().await?;
            if length != self.bytes {
                let problem = format!("has {length} bytes, {} were written", self.bytes);
                return Err(self.inconsistent(problem));
            }
        }
        Ok(Closed {
            name: self.path.name().to_owned(),
            bytes: self.bytes,
            crc: self.crc,
        })
    }

    fn inconsistent(&self, problem: String) -> Error {
        Error::Inconsistent {
            path: self.path.clone(),
            problem,
        }
    }
}

impl Upload {
    fn start(context: TaskContext, path: StorePath) -> Self {
        let (pieces, taken) = mpsc::channel(PIECES);
        let done = crate::spawn(async move {
            let written = write(&context, &path, taken).await;
            written.map_err(|error| fenced_if_gone(&context.staging, error))
        });
        Self { pieces, done }
    }

    async fn finish(self) -> Result<u64, Error> {
        drop(self.pieces);
        self.done.await.unwrap_or_else(|source| {
            Err(Error::Internal {
                what: "the writer of a file panicked".to_owned(),
                source: Some(Box::new(source)),
            })
        })
    }
}

async fn write(
    context: &TaskContext,
    path: &StorePath,
    mut pieces: mpsc::Receiver<(Bytes, OwnedSemaphorePermit)>,
) -> loader_store::Result<u64> {
    let mut writer: Box<dyn FileWriter> = context.place.store.create(path).await?;
    while let Some((bytes, room)) = pieces.recv().await {
        writer.write(bytes).await?;
        drop(room);
    }
    writer.close().await
}
