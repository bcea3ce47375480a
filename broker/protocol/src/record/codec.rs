//! The five codecs, with bounded decompression.
//!
//! Written as the Java client writes them: snappy in xerial's framing with 32 KiB blocks, lz4 as frames of independent 64 KiB
//! blocks. Read more freely: snappy raw too (librdkafka, sarama), lz4 and zstd frames of any kind, gzip of several members.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use zstd::zstd_safe::{
    DCtx, InBuffer, OutBuffer, ResetDirective, get_error_name, get_frame_content_size,
};

use super::{Error, Result};

/// How the records of a batch are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4 frames.
    Lz4,
    /// Zstandard.
    Zstd,
}

/// A text that names no codec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no compression codec: use none, gzip, snappy, lz4 or zstd")]
pub struct UnknownCompression {
    /// The text, cut to 100 characters.
    pub name: String,
}

impl Compression {
    /// All of them, in order of their number.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The number in a batch's attributes, 0 to 4.
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// The codec with this number.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Kafka's name, as in `compression.type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(name: &str) -> Result<Self, UnknownCompression> {
        Self::ALL
            .into_iter()
            .find(|codec| codec.name() == name)
            .ok_or_else(|| UnknownCompression {
                name: name.chars().take(100).collect(),
            })
    }
}

/// Magic, version 1 and lowest compatible version 1 of snappy-java's stream.
const XERIAL_HEADER: &[u8; 16] = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
const XERIAL_MAGIC_LEN: usize = 8;
const XERIAL_BLOCK: usize = 32 * 1024;
/// No snappy element makes more than 64 bytes of 3.
const SNAPPY_MAX_RATIO: usize = 22;
const ZSTD_LEVEL: i32 = 3;

/// Compresses `input` and appends it to `out`.
pub(super) fn compress(compression: Compression, input: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let result = match compression {
        Compression::None => out.write_all(input),
        Compression::Gzip => gzip(input, out),
        Compression::Snappy => snappy(input, out),
        Compression::Lz4 => lz4(input, out),
        Compression::Zstd => zstd(input, out),
    };
    result.map_err(|source| Error::Compress {
        compression,
        source,
    })
}

fn gzip(input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut encoder = GzEncoder::new(out, flate2::Compression::default());
    encoder.write_all(input)?;
    encoder.finish()?;
    Ok(())
}

fn snappy(input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    out.extend_from_slice(XERIAL_HEADER);
    let mut encoder = snap::raw::Encoder::new();
    for block in input.chunks(XERIAL_BLOCK) {
        let compressed = encoder.compress_vec(block)?;
        let length = u32::try_from(compressed.len()).map_err(io::Error::other)?;
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&compressed);
    }
    Ok(())
}

fn lz4(input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let frame = FrameInfo::new()
        .block_size(BlockSize::Max64KB)
        .block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(frame, out);
    encoder.write_all(input)?;
    encoder.finish()?;
    Ok(())
}

fn zstd(input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    out.extend_from_slice(&zstd::bulk::compress(input, ZSTD_LEVEL)?);
    Ok(())
}

/// Decompresses `input` into one buffer, of which at most `limit` bytes are ever filled.
pub(super) fn decompress(compression: Compression, input: &[u8], limit: usize) -> Result<Vec<u8>> {
    let guess = input.len().saturating_mul(4);
    let decompressed = match compression {
        // Not all codecs take this for the truncation that it is.
        Compression::Gzip | Compression::Snappy | Compression::Lz4 | Compression::Zstd
            if input.is_empty() =>
        {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
        Compression::None => Ok((input.len() <= limit).then(|| input.to_vec())),
        Compression::Gzip => read_bounded(MultiGzDecoder::new(input), guess, limit),
        Compression::Snappy => unsnappy(input, limit),
        Compression::Lz4 => read_bounded(FrameDecoder::new(input), guess, limit),
        Compression::Zstd => unzstd(input, limit),
    };
    decompressed
        .map_err(|source| Error::Decompress {
            compression,
            source,
        })?
        .ok_or(Error::DecompressedTooLarge { limit })
}

/// Reads to the end, `None` when that is beyond `limit` bytes. Starts with room for `guess` bytes and doubles.
fn read_bounded(mut from: impl Read, guess: usize, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut out = Vec::new();
    let mut room = guess.clamp(512, limit.max(512));
    loop {
        // One byte beyond the limit tells "full" from "too much".
        room = room.min((limit - out.len()).saturating_add(1));
        out.reserve_exact(room);
        let read = from.by_ref().take(room as u64).read_to_end(&mut out)?;
        if out.len() > limit {
            return Ok(None);
        }
        if read < room {
            return Ok(Some(out));
        }
        room = out.len();
    }
}

thread_local! {
    /// The decoder keeps its window between batches: making one costs as much as a small batch.
    static ZSTD: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// A decoder that a frame has made larger than this is given back.
const ZSTD_KEPT_BYTES: usize = 16 << 20;

fn unzstd(input: &[u8], limit: usize) -> io::Result<Option<Vec<u8>>> {
    ZSTD.with_borrow_mut(|decoder| {
        let result = decoder
            .reset(ResetDirective::SessionOnly)
            .map_err(zstd_error)
            .and_then(|_| unzstd_with(decoder, input, limit));
        if decoder.sizeof() > ZSTD_KEPT_BYTES {
            *decoder = DCtx::create();
        }
        result
    })
}

/// Decompresses one frame after the other straight into the result.
fn unzstd_with(decoder: &mut DCtx<'_>, input: &[u8], limit: usize) -> io::Result<Option<Vec<u8>>> {
    // What the frame claims is worth a buffer only in proportion to what it brought.
    let claimed = get_frame_content_size(input).ok().flatten();
    let guess = match claimed.and_then(|size| usize::try_from(size).ok()) {
        Some(size) => size.min(input.len().saturating_mul(64)),
        None => input.len().saturating_mul(4),
    };
    let mut out = Vec::with_capacity(guess.max(512).min(limit.saturating_add(1)));
    let mut from = InBuffer::around(input);
    loop {
        let filled = out.len();
        let mut into = OutBuffer::around_pos(&mut out, filled);
        let wanted = decoder
            .decompress_stream(&mut into, &mut from)
            .map_err(zstd_error)?;
        if out.len() > limit {
            return Ok(None);
        }
        let all_read = from.pos() == input.len();
        if all_read && wanted == 0 {
            return Ok(Some(out));
        }
        if out.len() == out.capacity() {
            // One byte beyond the limit tells "full" from "too much".
            out.reserve_exact(out.len().min(limit.saturating_add(1) - out.len()));
        } else if all_read {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn zstd_error(code: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, get_error_name(code))
}

fn unsnappy(input: &[u8], limit: usize) -> io::Result<Option<Vec<u8>>> {
    let blocks = match input.split_at_checked(XERIAL_HEADER.len()) {
        Some((header, blocks)) if header.starts_with(&XERIAL_HEADER[..XERIAL_MAGIC_LEN]) => blocks,
        _ => return unsnappy_blocks(std::iter::once(Some(input)), limit),
    };
    unsnappy_blocks(XerialBlocks(blocks), limit)
}

/// Decompresses raw snappy blocks one after the other; a first pass adds up their lengths. `None` among them is
/// a block that was cut short.
fn unsnappy_blocks<'a>(
    blocks: impl Iterator<Item = Option<&'a [u8]>> + Clone,
    limit: usize,
) -> io::Result<Option<Vec<u8>>> {
    let mut total = 0usize;
    for block in blocks.clone() {
        total = total.saturating_add(snappy_length(block.ok_or(io::ErrorKind::UnexpectedEof)?)?);
        if total > limit {
            return Ok(None);
        }
    }
    let mut out = vec![0; total];
    let mut rest = out.as_mut_slice();
    let mut decoder = snap::raw::Decoder::new();
    for block in blocks {
        let written = decoder.decompress(block.unwrap_or_default(), rest)?;
        rest = rest.get_mut(written..).unwrap_or_default();
    }
    Ok(Some(out))
}

/// Bytes a raw block says it holds, if its own size makes that possible.
fn snappy_length(block: &[u8]) -> io::Result<usize> {
    let length = snap::raw::decompress_len(block)?;
    if length > block.len().saturating_mul(SNAPPY_MAX_RATIO) {
        let claim = format!(
            "{length} bytes cannot come out of a block of {}",
            block.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, claim));
    }
    Ok(length)
}

/// The blocks of xerial's framing: an `int32` length before each. `None` for one that is cut short, then the end.
#[derive(Clone)]
struct XerialBlocks<'a>(&'a [u8]);

impl<'a> Iterator for XerialBlocks<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let block = self.0.split_first_chunk::<4>().and_then(|(length, rest)| {
            rest.split_at_checked(usize::try_from(i32::from_be_bytes(*length)).ok()?)
        });
        match block {
            Some((block, rest)) => {
                self.0 = rest;
                Some(Some(block))
            }
            None => {
                self.0 = &[];
                Some(None)
            }
        }
    }
}
