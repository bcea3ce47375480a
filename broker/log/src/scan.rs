//! Walks over the batches of a segment file: headers only, or with checksums.
//!
//! Nothing here trusts a length: a batch must lie inside the given end, and memory is bounded by the window size
//! whatever a header claims.

use std::io;

use broker_protocol::record::BatchHeader;

use crate::disk::DiskFile;

/// Where the bytes begin that the CRC covers.
const CRC_FROM: u64 = 21;

/// Why a walk stopped before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Reading failed.
    Io(io::Error),
    /// There is no whole, plausible batch here.
    Bad(BadBatch),
}

/// A place where a batch should begin and does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadBatch {
    /// Bytes from the segment's start.
    pub(crate) position: u64,
    /// What is wrong.
    pub(crate) reason: String,
}

/// Parses the header at the start of `bytes` and checks it against `available`, the bytes from there to the end.
pub(crate) fn plausible(bytes: &[u8], available: u64) -> Result<BatchHeader, String> {
    let Some(head) = bytes.get(..BatchHeader::LEN) else {
        return Err(format!("{available} bytes are too few for a batch header"));
    };
    if head.iter().all(|byte| *byte == 0) {
        return Err("the bytes are zeros".to_owned());
    }
    let header = BatchHeader::parse(head).map_err(|error| error.to_string())?;
    if header.base_offset < 0 {
        return Err(format!("base offset {} is negative", header.base_offset));
    }
    let size = size_of(&header);
    if size > available {
        return Err(format!(
            "a batch of {size} bytes is cut off after {available}"
        ));
    }
    Ok(header)
}

/// Bytes of a whole batch whose header is plausible.
pub(crate) fn size_of(header: &BatchHeader) -> u64 {
    header.size_in_bytes() as u64
}

/// Offset behind the batch.
pub(crate) fn end_offset_of(header: &BatchHeader) -> i64 {
    header.next_offset()
}

/// Reads a file forward through a window of fixed size.
#[derive(Debug)]
struct Window<'a> {
    file: &'a dyn DiskFile,
    end: u64,
    buffer: Vec<u8>,
    start: u64,
    filled: usize,
}

impl<'a> Window<'a> {
    fn new(file: &'a dyn DiskFile, end: u64, size: usize) -> Self {
        Self {
            file,
            end,
            buffer: vec![0; size],
            start: 0,
            filled: 0,
        }
    }

    /// The bytes from `position` on: at least `wanted` of them (which must fit the window), unless the end is nearer.
    fn at(&mut self, position: u64, wanted: usize) -> io::Result<&[u8]> {
        let wanted_end = (position + wanted as u64).min(self.end);
        if position < self.start || wanted_end > self.start + self.filled as u64 {
            let room = usize::try_from(self.end.saturating_sub(position)).unwrap_or(usize::MAX);
            let len = self.buffer.len().min(room);
            self.filled = 0;
            let buffer = self.buffer.get_mut(..len).unwrap_or_default();
            self.filled = self.file.pread(buffer, position)?;
            self.start = position;
        }
        let from = usize::try_from(position - self.start).unwrap_or(usize::MAX);
        Ok(self.buffer.get(from..self.filled).unwrap_or_default())
    }
}

/// Walks headers from a position where a batch begins up to `end`.
#[derive(Debug)]
pub(crate) struct HeaderWalk<'a> {
    window: Window<'a>,
    position: u64,
}

impl<'a> HeaderWalk<'a> {
    /// `window` is the number of bytes read at once (at least one header's).
    pub(crate) fn new(file: &'a dyn DiskFile, position: u64, end: u64, window: usize) -> Self {
        Self {
            window: Window::new(file, end, window.max(BatchHeader::LEN)),
            position,
        }
    }

    /// Position of the next batch.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next batch's position and header, `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, BatchHeader)>, Stop> {
        let position = self.position;
        let available = self.window.end.saturating_sub(position);
        if available == 0 {
            return Ok(None);
        }
        let bytes = self
            .window
            .at(position, BatchHeader::LEN)
            .map_err(Stop::Io)?;
        let header = plausible(bytes, available)
            .map_err(|reason| Stop::Bad(BadBatch { position, reason }))?;
        self.position += size_of(&header);
        Ok(Some((position, header)))
    }
}

/// Bytes read at once by a checked walk.
const CHECK_WINDOW: usize = 256 << 10;

/// Walks batches and checks every CRC; for recovery.
#[derive(Debug)]
pub(crate) struct CheckedWalk<'a> {
    window: Window<'a>,
    position: u64,
}

impl<'a> CheckedWalk<'a> {
    pub(crate) fn new(file: &'a dyn DiskFile, position: u64, end: u64) -> Self {
        Self {
            window: Window::new(file, end, CHECK_WINDOW),
            position,
        }
    }

    /// The next batch whose CRC is right, `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, BatchHeader)>, Stop> {
        let position = self.position;
        let available = self.window.end.saturating_sub(position);
        if available == 0 {
            return Ok(None);
        }
        let bad = |reason| Stop::Bad(BadBatch { position, reason });
        let bytes = self
            .window
            .at(position, BatchHeader::LEN)
            .map_err(Stop::Io)?;
        let header = plausible(bytes, available).map_err(bad)?;
        let end = position + size_of(&header);
        let mut crc = 0;
        let mut at = position + CRC_FROM;
        while at < end {
            let bytes = self.window.at(at, 1).map_err(Stop::Io)?;
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            let bytes = bytes.get(..left).unwrap_or(bytes);
            if bytes.is_empty() {
                return Err(bad("the file ends inside the batch".to_owned()));
            }
            crc = crc32c::crc32c_append(crc, bytes);
            at += bytes.len() as u64;
        }
        if crc != header.crc {
            return Err(bad(format!(
                "checksum {crc:#010x} is not {:#010x}",
                header.crc
            )));
        }
        self.position = end;
        Ok(Some((position, header)))
    }
}
