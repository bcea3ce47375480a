//! Where the bytes of one file go: checksummed as they pass, written while the next are encoded.
//!
//! ```text
//! put ─► room for so many bytes ─► channel ─► background: create 00000.part with the first, write … close
//!                                               first bytes fail ─► again as 00000-1.part, with pauses
//!                                               later bytes fail ─► the attempt fails, and is run again
//! end, where nothing was put before ─► background: the whole file, again under another name if it fails
//! ```
//! HDFS names a dead `DataNode` for new blocks until its `NameNode` has noticed, and a file whose pipeline broke
//! cannot be mended: it is written again under another name, within the store's patience. Only bytes that
//! are at hand are: those of a file's first piece, and all of a file that fits into one row group.

use std::sync::Arc;

use bytes::Bytes;
use loader_store::{FileWriter, Store, StorePath};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::commit::staging::fenced_if_gone;
use crate::error::Error;
use crate::layout::StagingLayout;

/// Pieces of one file that wait; the room for their bytes is the real bound.
const PIECES: usize = 16;

/// The store, and room for bytes on their way there, shared by the files of an attempt.
#[derive(Clone)]
pub(super) struct Outgoing {
    store: Arc<dyn Store>,
    staging: StagingLayout,
    room: Arc<Semaphore>,
    most: usize,
}

/// Bytes, and the room they take until they are written.
type Piece = (Bytes, OwnedSemaphorePermit);

/// One file being written.
pub(super) struct Sink {
    file: AttemptFile,
    crc: u32,
    bytes: u64,
    upload: Option<Upload>,
}

/// A file whose last bytes were handed over.
pub(super) struct Ending {
    sink: Sink,
}

/// A file that was closed: name, length and CRC-32C.
pub(super) struct Closed {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) crc: u32,
}

/// A file of an attempt, by its number; each try to write it has a name of its own.
#[derive(Debug, Clone)]
struct AttemptFile {
    directory: StorePath,
    number: usize,
    /// Tries that failed.
    failed: u32,
}

struct Upload {
    /// None where the file was handed over whole.
    pieces: Option<mpsc::Sender<Piece>>,
    done: AbortOnDropHandle<Result<(String, u64), Error>>,
}

impl Outgoing {
    /// Room for `bytes` bytes; one piece that is larger goes alone.
    pub(super) fn new(store: Arc<dyn Store>, staging: StagingLayout, bytes: usize) -> Self {
        let most = bytes.clamp(1, u32::MAX as usize);
        Self {
            store,
            staging,
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
    pub(super) const fn new(directory: StorePath, number: usize) -> Self {
        Self {
            file: AttemptFile {
                directory,
                number,
                failed: 0,
            },
            crc: 0,
            bytes: 0,
            upload: None,
        }
    }

    /// Hands bytes over, waiting for room. An error of the background shows here or in [`Ending::finish`].
    pub(super) async fn put(&mut self, outgoing: &Outgoing, bytes: Bytes) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.count(&bytes);
        let room = outgoing.reserve(bytes.len()).await?;
        let upload = match self.upload.take() {
            Some(upload) => upload,
            None => Upload::in_pieces(outgoing.clone(), self.file.clone()),
        };
        if !upload.send((bytes, room)).await {
            // It stopped taking bytes: it has failed, and says why.
            upload.finish().await?;
            return Err(self.inconsistent("its writer ended early".to_owned()));
        }
        self.upload = Some(upload);
        Ok(())
    }

    /// Hands the last bytes over: all of the file, if nothing was put before.
    pub(super) async fn end(
        mut self,
        outgoing: &Outgoing,
        last: Vec<Bytes>,
    ) -> Result<Ending, Error> {
        if self.upload.is_some() {
            for bytes in last {
                self.put(outgoing, bytes).await?;
            }
            return Ok(Ending { sink: self });
        }
        let size = last.iter().map(Bytes::len).sum();
        if size > 0 {
            last.iter().for_each(|bytes| self.count(bytes));
            let room = outgoing.reserve(size).await?;
            let upload = Upload::whole(outgoing.clone(), self.file.clone(), last, room);
            self.upload = Some(upload);
        }
        Ok(Ending { sink: self })
    }

    fn count(&mut self, bytes: &Bytes) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    }

    fn inconsistent(&self, problem: String) -> Error {
        Error::Inconsistent {
            path: self.file.path(),
            problem,
        }
    }
}

impl Ending {
    /// Waits until the file is durable and has the length that was handed over.
    pub(super) async fn finish(self) -> Result<Closed, Error> {
        let mut sink = self.sink;
        let mut name = sink.file.name();
        if let Some(upload) = sink.upload.take() {
            let (written, length) = upload.finish().await?;
            if length != sink.bytes {
                let problem = format!("has {length} bytes, {} were written", sink.bytes);
                return Err(sink.inconsistent(problem));
            }
            name = written;
        }
        Ok(Closed {
            name,
            bytes: sink.bytes,
            crc: sink.crc,
        })
    }
}

impl AttemptFile {
    fn name(&self) -> String {
        match self.failed {
            0 => format!("{:05}.part", self.number),
            failed => format!("{:05}-{failed}.part", self.number),
        }
    }

    fn path(&self) -> StorePath {
        self.directory.join(&self.name())
    }

    /// Creates the file with its first bytes.
    async fn open(
        &self,
        store: &dyn Store,
        first: &[Bytes],
    ) -> loader_store::Result<Box<dyn FileWriter>> {
        let mut writer = store.create(&self.path()).await?;
        for bytes in first {
            writer.write(bytes.clone()).await?;
        }
        Ok(writer)
    }

    /// Writes all of the file and closes it; its length.
    async fn write_whole(&mut self, store: &dyn Store, all: &[Bytes]) -> loader_store::Result<u64> {
        let mut tries = store.patience().tries();
        loop {
            let closed = async { self.open(store, all).await?.close().await };
            match closed.await {
                Ok(length) => return Ok(length),
                Err(error) if tries.again(&error).await => self.failed += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes pieces as they come, closes the file; its length.
    async fn write_pieces(
        &mut self,
        store: &dyn Store,
        mut pieces: mpsc::Receiver<Piece>,
    ) -> loader_store::Result<u64> {
        let Some((first, room)) = pieces.recv().await else {
            return self.write_whole(store, &[]).await;
        };
        let mut tries = store.patience().tries();
        let mut writer = loop {
            match self.open(store, std::slice::from_ref(&first)).await {
                Ok(writer) => break writer,
                Err(error) if tries.again(&error).await => self.failed += 1,
                Err(error) => return Err(error),
            }
        };
        drop((first, room));
        while let Some((bytes, room)) = pieces.recv().await {
            writer.write(bytes).await?;
            drop(room);
        }
        writer.close().await
    }
}

impl Upload {
    fn in_pieces(outgoing: Outgoing, mut file: AttemptFile) -> Self {
        let (pieces, taken) = mpsc::channel(PIECES);
        let done = crate::spawn(async move {
            let written = file.write_pieces(&*outgoing.store, taken).await;
            let length = written.map_err(|error| fenced_if_gone(&outgoing.staging, error))?;
            Ok((file.name(), length))
        });
        let pieces = Some(pieces);
        Self { pieces, done }
    }

    fn whole(
        outgoing: Outgoing,
        mut file: AttemptFile,
        all: Vec<Bytes>,
        room: OwnedSemaphorePermit,
    ) -> Self {
        let done = crate::spawn(async move {
            let written = file.write_whole(&*outgoing.store, &all).await;
            drop(room);
            let length = written.map_err(|error| fenced_if_gone(&outgoing.staging, error))?;
            Ok((file.name(), length))
        });
        Self { pieces: None, done }
    }

    /// Whether the background still takes pieces.
    async fn send(&self, piece: Piece) -> bool {
        match &self.pieces {
            Some(pieces) => pieces.send(piece).await.is_ok(),
            None => false,
        }
    }

    /// Name and length of the closed file.
    async fn finish(self) -> Result<(String, u64), Error> {
        drop(self.pieces);
        self.done.await.unwrap_or_else(|source| {
            Err(Error::Internal {
                what: "the writer of a file panicked".to_owned(),
                source: Some(Box::new(source)),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use loader_store::faulty::{Fault, FaultyStore, Rule};
    use loader_store::{LocalStore, Operation};

    use super::*;

    /// Writes `pieces` and then `tail` through a sink, with the fault of `rules`.
    async fn write(
        rules: Vec<Rule>,
        patience: Duration,
        pieces: &[&'static str],
        tail: &'static str,
    ) -> Result<(String, String), Error> {
        let dir = tempfile::TempDir::new().unwrap();
        let root = StorePath::new(dir.path().to_str().unwrap()).unwrap();
        let store = FaultyStore::new(Arc::new(LocalStore::new())).as_remote(patience);
        let staging = StagingLayout::at(root.clone());
        for rule in rules {
            store.add(rule);
        }
        let outgoing = Outgoing::new(Arc::new(store), staging, 1 << 20);
        let mut sink = Sink::new(root.clone(), 3);
        for piece in pieces {
            sink.put(&outgoing, Bytes::from_static(piece.as_bytes()))
                .await?;
        }
        let tail = vec![Bytes::from_static(tail.as_bytes())];
        let closed = sink.end(&outgoing, tail).await?.finish().await?;
        let Closed { name, bytes, crc } = closed;
        let content = std::fs::read_to_string(root.join(&name).to_string()).unwrap();
        assert_eq!(bytes, content.len() as u64);
        assert_eq!(crc, crc32c::crc32c(content.as_bytes()));
        Ok((name, content))
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_file_whose_first_write_fails_is_written_under_another_name() {
        let rules = vec![
            Rule::on(Operation::Create, Fault::LoseAnswer),
            Rule::on(Operation::Write, Fault::LoseAnswer),
        ];
        let (name, content) = write(rules, PATIENCE, &["first", "second"], "end")
            .await
            .unwrap();
        assert_eq!(
            (name.as_str(), content.as_str()),
            ("00003-2.part", "firstsecondend")
        );
    }

    #[tokio::test]
    async fn a_whole_file_that_cannot_be_closed_is_written_under_another_name() {
        let rules = vec![Rule::on(Operation::Close, Fault::LoseAnswer).times(2)];
        let (name, content) = write(rules, PATIENCE, &[], "all").await.unwrap();
        assert_eq!((name.as_str(), content.as_str()), ("00003-2.part", "all"));
    }

    #[tokio::test]
    async fn bytes_that_are_gone_are_not_made_up() {
        let rules = vec![Rule::on(Operation::Close, Fault::LoseRequest)];
        let error = write(rules, PATIENCE, &["first"], "end").await.unwrap_err();
        assert!(
            matches!(&error, Error::Store(error) if error.may_pass()),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn without_patience_and_after_it_the_error_is_handed_on() {
        for patience in [Duration::ZERO, Duration::from_millis(700)] {
            let rules = vec![Rule::on(Operation::Write, Fault::LoseRequest).times(usize::MAX)];
            let error = write(rules, patience, &["first"], "end").await.unwrap_err();
            assert_eq!(error.exit(), crate::error::Exit::Unavailable, "{error}");
        }
    }
}
