//! One batch as bytes, and the batches of a fetch or a segment one after the other.

use bytes::Bytes;

use super::codec::decompress;
use super::control::ControlRecord;
use super::header::{CRC_FROM, LENGTH_OVERHEAD, LOG_APPEND_TIME};
use super::records::filled_by;
use super::{BatchHeader, Compression, ControlType, Error, Records, Result};

/// One whole record batch: its header, read, and all its bytes. A clone shares the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordBatch {
    header: BatchHeader,
    bytes: Bytes,
}

impl RecordBatch {
    /// Takes bytes that must be exactly one batch. Checks the header and lengths, neither the checksum nor
    /// the records.
    ///
    /// # Errors
    /// As [`BatchHeader::parse`], [`Error::Truncated`], or [`Error::ExtraBytes`].
    pub fn parse(bytes: Bytes) -> Result<Self> {
        let header = BatchHeader::parse(&bytes)?;
        let size = header.size_in_bytes();
        if bytes.len() < size {
            return Err(Error::Truncated {
                needed: size,
                available: bytes.len(),
            });
        }
        if bytes.len() > size {
            return Err(Error::ExtraBytes {
                extra: bytes.len() - size,
            });
        }
        Ok(Self { header, bytes })
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The whole batch.
    #[inline]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Gives the whole batch back.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Compares the checksum with the bytes.
    ///
    /// # Errors
    /// [`Error::Crc`].
    pub fn check_crc(&self) -> Result<()> {
        let computed = checksum(&self.bytes);
        let BatchHeader {
            crc: stored,
            base_offset,
            ..
        } = self.header;
        if computed == stored {
            Ok(())
        } else {
            Err(Error::Crc {
                stored,
                computed,
                base_offset,
            })
        }
    }

    /// The records, decompressed once into a buffer of their own; uncompressed ones stay where they are.
    ///
    /// Never more than `max_decompressed_bytes` are decompressed, whatever the compressed bytes claim. The buffer
    /// grows with what is there, so twice the result may be held for a moment; add the codec's own window (for
    /// zstd up to 128 MiB if a frame demands it, of which no more is touched than is decompressed).
    ///
    /// # Errors
    /// [`Error::UnknownCodec`], [`Error::Decompress`], [`Error::DecompressedTooLarge`].
    pub fn records(&self, max_decompressed_bytes: usize) -> Result<Records> {
        let payload = self.bytes.slice(BatchHeader::LEN.min(self.bytes.len())..);
        let compression = self.header.compression()?;
        // A batch that compaction has emptied may still name the codec that it had.
        let emptied = payload.is_empty() && self.header.records_count == 0;
        let payload = if compression == Compression::None || emptied {
            payload
        } else {
            decompress(compression, &payload, max_decompressed_bytes)?.into()
        };
        Ok(Records::new(&self.header, payload))
    }

    /// Whether as many records as the header announces, each as long as it says, fill the payload of an uncompressed
    /// batch. Looks at the records' lengths only.
    pub fn is_filled(&self) -> bool {
        let payload = self.bytes.get(BatchHeader::LEN..).unwrap_or_default();
        filled_by(payload, self.header.records_count)
    }

    /// What a control batch says; `None` for a batch of data.
    ///
    /// # Errors
    /// [`Error::ControlRecord`] when it is a control batch without a control record in its first record.
    pub fn control_type(&self) -> Result<Option<ControlType>> {
        Ok(self.control_record()?.map(|record| record.control_type))
    }

    /// As [`Self::control_type`], with the rest of the record.
    ///
    /// # Errors
    /// As [`Self::control_type`].
    pub fn control_record(&self) -> Result<Option<ControlRecord>> {
        if self.header.is_control() {
            ControlRecord::of(self).map(Some)
        } else {
            Ok(None)
        }
    }
}

/// The checksum the bytes of a batch should have: CRC-32C from the attributes to the end.
pub(super) fn checksum(batch: &[u8]) -> u32 {
    crc32c::crc32c(batch.get(CRC_FROM..).unwrap_or_default())
}

/// The batches in `bytes`, such as a partition's part of a fetch, as slices of it.
///
/// An incomplete batch at the end is no error: a broker cuts where the limit falls. It ends the iteration;
/// see [`Batches::is_partial_tail`].
pub fn batches(bytes: Bytes) -> Batches {
    Batches {
        rest: bytes,
        failed: false,
    }
}

/// Iterator over batches; see [`batches`]. After an error it ends.
#[derive(Debug, Clone)]
pub struct Batches {
    rest: Bytes,
    failed: bool,
}

impl Batches {
    /// Bytes not yet read: after the end, those of the incomplete batch.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether what is left is an incomplete batch. Meaningful after the end; false after an error.
    pub fn is_partial_tail(&self) -> bool {
        !self.failed
            && !self.rest.is_empty()
            && self
                .partial_size()
                .is_none_or(|size| size > self.rest.len())
    }

    /// Bytes that the batch at the front announces for itself, if the length field is there and possible.
    pub fn partial_size(&self) -> Option<usize> {
        let (_, length) = self
            .rest
            .first_chunk::<LENGTH_OVERHEAD>()?
            .split_last_chunk::<4>()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
        Some(LENGTH_OVERHEAD + length)
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if self.rest.is_empty() || self.failed {
            return Ok(None);
        }
        match BatchHeader::parse(&self.rest) {
            Ok(header) => {
                let size = header.size_in_bytes();
                if size > self.rest.len() {
                    return Ok(None);
                }
                Ok(Some(RecordBatch {
                    header,
                    bytes: self.rest.split_to(size),
                }))
            }
            // The header itself is cut off, unless its length says that there is no more to come.
            Err(Error::Truncated { .. }) => match self.partial_size() {
                Some(size) if size <= self.rest.len() => Err(Error::Truncated {
                    needed: BatchHeader::LEN,
                    available: size,
                }),
                None if self.rest.len() >= LENGTH_OVERHEAD => Err(Error::Truncated {
                    needed: BatchHeader::LEN,
                    available: self.rest.len(),
                }),
                _ => Ok(None),
            },
            Err(error) => Err(error),
        }
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_batch();
        self.failed |= next.is_err();
        next.transpose()
    }
}

impl std::iter::FusedIterator for Batches {}

/// Gives a batch its place in a log: base offset and leader epoch, which the checksum does not cover.
///
/// # Errors
/// [`Error::Truncated`] when `batch` is shorter than a header.
pub fn stamp(batch: &mut [u8], base_offset: i64, leader_epoch: i32) -> Result<()> {
    let header = header_mut(batch)?;
    let (offset_place, rest) = header.split_at_mut(8);
    offset_place.copy_from_slice(&base_offset.to_be_bytes());
    if let Some(epoch_place) = rest.get_mut(4..8) {
        epoch_place.copy_from_slice(&leader_epoch.to_be_bytes());
    }
    Ok(())
}

/// Turns a batch's times into one append time, in milliseconds since 1970, and corrects its checksum.
/// `batch` must be the whole batch.
///
/// # Errors
/// [`Error::Truncated`] when `batch` is shorter than a header.
pub fn stamp_log_append_time(batch: &mut [u8], timestamp_ms: i64) -> Result<()> {
    let header = header_mut(batch)?;
    header[22] |= LOG_APPEND_TIME.to_be_bytes()[1];
    header[35..43].copy_from_slice(&timestamp_ms.to_be_bytes());
    let crc = checksum(batch);
    header_mut(batch)?[17..21].copy_from_slice(&crc.to_be_bytes());
    Ok(())
}

fn header_mut(batch: &mut [u8]) -> Result<&mut [u8; BatchHeader::LEN]> {
    let available = batch.len();
    batch
        .first_chunk_mut::<{ BatchHeader::LEN }>()
        .ok_or(Error::Truncated {
            needed: BatchHeader::LEN,
            available,
        })
}
