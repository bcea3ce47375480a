//! The batches of a segment in order, whole and with their checksums checked.

use std::sync::Arc;

use broker_protocol::record::{BatchHeader, RecordBatch, batches};
use bytes::Bytes;

use crate::disk::{DiskFile, read_exact_at};
use crate::error::Result;
use crate::scan::{BadBatch, plausible, size_of};
use crate::segment::Segment;

/// Bytes read at once; a larger batch is read alone.
const CHUNK: usize = 1 << 20;

/// One batch of a segment.
#[derive(Debug)]
pub(super) enum Item {
    /// In memory.
    Batch(RecordBatch),
    /// Too large for that: its place only.
    Large { header: BatchHeader, position: u64 },
}

impl Item {
    pub(super) fn header(&self) -> &BatchHeader {
        match self {
            Self::Batch(batch) => batch.header(),
            Self::Large { header, .. } => header,
        }
    }
}

#[derive(Debug)]
pub(super) struct Batches {
    segment: Arc<Segment>,
    file: Arc<dyn DiskFile>,
    size: u64,
    position: u64,
    /// Whole batches read ahead.
    ahead: Bytes,
    max_bytes: usize,
}

impl Batches {
    /// Batches above `max_bytes` are not read into memory.
    pub(super) fn new(segment: &Arc<Segment>, max_bytes: usize) -> Result<Self> {
        Ok(Self {
            file: segment.file()?,
            size: segment.state().size,
            segment: Arc::clone(segment),
            position: 0,
            ahead: Bytes::new(),
            max_bytes,
        })
    }

    /// Bytes behind the batch returned last.
    pub(super) fn bytes_left(&self) -> u64 {
        self.size.saturating_sub(self.position)
    }

    pub(super) fn file(&self) -> &dyn DiskFile {
        &*self.file
    }

    fn read(&self, len: u64) -> Result<Bytes> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        read_exact_at(&*self.file, &mut bytes, self.position)
            .map_err(|source| self.segment.io("read", source))?;
        Ok(bytes.into())
    }

    fn bad(&self, reason: String) -> crate::Error {
        let position = self.position;
        let base_offset = self.segment.base_offset();
        self.segment
            .corrupt(base_offset, BadBatch { position, reason })
    }

    pub(super) fn next(&mut self) -> Result<Option<Item>> {
        let left = self.bytes_left();
        if left == 0 {
            return Ok(None);
        }
        if self.ahead.len() < BatchHeader::LEN {
            self.ahead = self.read(left.min(CHUNK as u64))?;
        }
        let header = plausible(&self.ahead, left).map_err(|reason| self.bad(reason))?;
        let size = size_of(&header);
        if size > self.max_bytes as u64 {
            let position = self.position;
            self.position += size;
            self.ahead = Bytes::new();
            return Ok(Some(Item::Large { header, position }));
        }
        if (self.ahead.len() as u64) < size {
            self.ahead = self.read(size.max(left.min(CHUNK as u64)))?;
        }
        let mut parsed = batches(self.ahead.clone());
        let batch = match parsed.next() {
            Some(Ok(batch)) => batch,
            Some(Err(error)) => return Err(self.bad(error.to_string())),
            None => return Err(self.bad("the batch is cut off".to_owned())),
        };
        batch
            .check_crc()
            .map_err(|error| self.bad(error.to_string()))?;
        self.ahead = self.ahead.slice(batch.bytes().len()..);
        self.position += size;
        Ok(Some(Item::Batch(batch)))
    }
}
