//! Where the bytes of one file go: checksummed as they pass, written while the next are encoded.
//!
//! ```text
//! put ─► channel ─► background: create 00000.part with the first, write … close
//!                     first bytes fail ─► again as 00000-1.part, with pauses
//!                     later bytes fail ─► the attempt fails, and is run again
//! end, where nothing was put before ─► background: the whole file, again under another name if it fails
//! ```
//! HDFS names a dead `DataNode` for new blocks until its `NameNode` has noticed, and a file whose pipeline broke
//! cannot be mended: it is written again under another name, within the store's patience. Only bytes that
//! are at hand are: those of a file's first piece, and all of a file that fits into one row group.

use std::sync::Arc;

use loader_store::{FileWriter, Store, StorePath};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::commit::staging::fenced_if_gone;
use crate::error::Error;
use crate::layout::StagingLayout;
use crate::memory::Piece;

/// Pieces of one file that wait; the room for their bytes is the real bound.
const PIECES: usize = 2;

/// Where the files of an attempt go.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) store: Arc<dyn Store>,
    pub(super) staging: StagingLayout,
}

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

    /// Hands bytes over. An error of the background shows here or in [`Ending::finish`].
    pub(super) async fn put(&mut self, target: &Target, piece: Piece) -> Result<(), Error> {
        if piece.len() == 0 {
            return Ok(());
        }
        self.count(&piece);
        let upload = match self.upload.take() {
            Some(upload) => upload,
            None => Upload::in_pieces(target.clone(), self.file.clone()),
        };
        if !upload.send(piece).await {
            // It stopped taking bytes: it has failed, and says why.
            upload.finish().await?;
            return Err(self.inconsistent("its writer ended early".to_owned()));
        }
        self.upload = Some(upload);
        Ok(())
    }

    /// Hands the last bytes over: all of the file, if nothing was put before.
    pub(super) async fn end(mut self, target: &Target, last: [Piece; 2]) -> Result<Ending, Error> {
        if self.upload.is_some() {
            for piece in last {
                self.put(target, piece).await?;
            }
        } else if last.iter().any(|piece| piece.len() > 0) {
            last.iter().for_each(|piece| self.count(piece));
            self.upload = Some(Upload::whole(target.clone(), self.file.clone(), last));
        }
        Ok(Ending { sink: self })
    }

    fn count(&mut self, piece: &Piece) {
        for part in piece.parts() {
            self.crc = crc32c::crc32c_append(self.crc, part);
        }
        self.bytes += u64::try_from(piece.len()).unwrap_or(u64::MAX);
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

    /// Creates the file with its first pieces.
    async fn open(
        &self,
        store: &dyn Store,
        first: &[Piece],
    ) -> loader_store::Result<Box<dyn FileWriter>> {
        let mut writer = store.create(&self.path()).await?;
        for piece in first {
            write(&mut *writer, piece).await?;
        }
        Ok(writer)
    }

    /// Gives up a name, and the quota that HDFS charges for a file which nobody closed.
    async fn give_up(&mut self, store: &dyn Store) {
        if let Err(error) = store.delete(&self.path()).await {
            tracing::debug!(%error, path = %self.path(), "cannot delete a file that was given up");
        }
        self.failed += 1;
    }

    /// Writes all of the file and closes it; its length.
    async fn write_whole(&mut self, store: &dyn Store, all: &[Piece]) -> loader_store::Result<u64> {
        let mut tries = store.patience().tries();
        loop {
            let closed = async { self.open(store, all).await?.close().await };
            match closed.await {
                Ok(length) => return Ok(length),
                Err(error) if tries.again(&error).await => self.give_up(store).await,
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
        let Some(first) = pieces.recv().await else {
            return self.write_whole(store, &[]).await;
        };
        let mut tries = store.patience().tries();
        let mut writer = loop {
            match self.open(store, std::slice::from_ref(&first)).await {
                Ok(writer) => break writer,
                Err(error) if tries.again(&error).await => self.give_up(store).await,
                Err(error) => return Err(error),
            }
        };
        drop(first);
        while let Some(piece) = pieces.recv().await {
            write(&mut *writer, &piece).await?;
        }
        writer.close().await
    }
}

async fn write(writer: &mut dyn FileWriter, piece: &Piece) -> loader_store::Result<()> {
    for part in piece.parts() {
        writer.write(part.clone()).await?;
    }
    Ok(())
}

impl Upload {
    fn in_pieces(target: Target, mut file: AttemptFile) -> Self {
        let (pieces, taken) = mpsc::channel(PIECES);
        let done = crate::spawn(async move {
            let written = file.write_pieces(&*target.store, taken).await;
            let length = written.map_err(|error| fenced_if_gone(&target.staging, error))?;
            Ok((file.name(), length))
        });
        let pieces = Some(pieces);
        Self { pieces, done }
    }

    fn whole(target: Target, mut file: AttemptFile, all: [Piece; 2]) -> Self {
        let done = crate::spawn(async move {
            let written = file.write_whole(&*target.store, &all).await;
            let length = written.map_err(|error| fenced_if_gone(&target.staging, error))?;
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

    use bytes::Bytes;
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
        let store = FaultyStore::new(Arc::new(LocalStore::new())).into_remote(patience);
        let staging = StagingLayout::at(root.clone());
        for rule in rules {
            store.add(rule);
        }
        let target = Target {
            store: Arc::new(store),
            staging,
        };
        let piece = |text: &'static str| Piece::tail(Bytes::from_static(text.as_bytes()));
        let mut sink = Sink::new(root.clone(), 3);
        for text in pieces {
            sink.put(&target, piece(text)).await?;
        }
        let last = [Piece::default(), piece(tail)];
        let closed = sink.end(&target, last).await?.finish().await?;
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
