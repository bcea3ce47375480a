//! Rows on local disk that have no room in memory: Arrow's IPC messages end to end in one nameless file.
//!
//! The file has no name, so that it is gone with the process, however that ends.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::reader::FileDecoder;
use arrow_ipc::writer::{
    DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions, write_message,
};
use arrow_ipc::{Block, MetadataVersion};
use arrow_schema::{ArrowError, SchemaRef};

use crate::error::Error;

/// Bytes gathered before they are written.
const WRITE_BYTES: usize = 1 << 20;

/// The spill file of one attempt.
pub(super) struct SpillFile {
    directory: PathBuf,
    /// Opened when first needed.
    file: Option<BufWriter<File>>,
    written: u64,
    generator: IpcDataGenerator,
    dictionaries: DictionaryTracker,
    options: IpcWriteOptions,
}

/// Where a batch lies in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    offset: u64,
    metadata: usize,
    body: usize,
}

impl SpillFile {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            file: None,
            written: 0,
            generator: IpcDataGenerator::default(),
            dictionaries: DictionaryTracker::new(false),
            options: IpcWriteOptions::default(),
        }
    }

    /// Appends a batch. Blocks.
    ///
    /// Memory: one copy of it, meanwhile.
    pub(super) fn append(&mut self, batch: &RecordBatch) -> Result<Segment, Error> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let file = tempfile::tempfile_in(&self.directory);
                BufWriter::with_capacity(WRITE_BYTES, file.map_err(|e| self.unusable(e))?)
            }
        };
        let encoded = self.generator.encode(
            batch,
            &mut self.dictionaries,
            &self.options,
            &mut IpcWriteContext::default(),
        );
        let (_no_dictionaries, message) = encoded.map_err(broken)?;
        let written = write_message(&mut file, message, &self.options);
        let (metadata, body) = written.map_err(|error| self.unwritten(error))?;
        self.file = Some(file);
        let offset = self.written;
        self.written += u64::try_from(metadata + body).unwrap_or(0);
        Ok(Segment {
            offset,
            metadata,
            body,
        })
    }

    /// Bytes appended so far.
    pub(super) const fn bytes(&self) -> u64 {
        self.written
    }

    /// Reads a batch back. Blocks.
    pub(super) fn read(
        &mut self,
        segment: Segment,
        schema: &SchemaRef,
    ) -> Result<RecordBatch, Error> {
        let Segment {
            offset,
            metadata,
            body,
        } = segment;
        let mut bytes = MutableBuffer::from_len_zeroed(metadata + body);
        if let Some(file) = &mut self.file {
            let read = file
                .flush()
                .and_then(|()| file.get_ref().read_exact_at(bytes.as_slice_mut(), offset));
            read.map_err(|e| self.unusable(e))?;
        }
        let block = Block::new(
            0,
            i32::try_from(metadata).unwrap_or(i32::MAX),
            i64::try_from(body).unwrap_or(i64::MAX),
        );
        let decoder = FileDecoder::new(SchemaRef::clone(schema), MetadataVersion::V5);
        let batch = decoder
            .read_record_batch(&block, &Buffer::from(bytes))
            .map_err(broken)?;
        batch.ok_or_else(|| broken(ArrowError::IpcError("no batch in a segment".to_owned())))
    }

    fn unwritten(&self, error: ArrowError) -> Error {
        match error {
            ArrowError::IoError(_, source) => self.unusable(source),
            other => broken(other),
        }
    }

    fn unusable(&self, source: std::io::Error) -> Error {
        Error::Spill {
            directory: self.directory.clone(),
            source,
        }
    }
}

fn broken(source: ArrowError) -> Error {
    Error::Internal {
        what: "rows cannot be put on local disk and taken back".to_owned(),
        source: Some(Box::new(source)),
    }
}
