//! Parquet files that are the same bytes for the same rows.
//!
//! What could differ is pinned: the chunks handed to the writer ([`FixedRows`]), where row groups
//! end (looked at between chunks only), which columns get a dictionary (from the first chunk), the
//! name of the writer (no version of a build), and there is no Arrow schema in the footer, whose
//! encoding belongs to the library. Types are carried by Parquet's own logical types.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use bytesize::ByteSize;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression as Codec, GzipLevel, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::dictionary::columns_that_repeat;
use super::{EncodeError, EncodedTail, FileEncoder, FixedRows};

/// Name of the writer in the footer. The number changes when the same rows give other bytes. The
/// form is the one that readers parse; some ignore the statistics of files whose writer they
/// cannot parse.
pub const CREATED_BY: &str = "logferry version 1";

/// A chunk ends at this many bytes of values even if it has fewer rows: it bounds what one step
/// of the writer adds to its pages.
const CHUNK_BYTES: usize = 4 << 20;

/// How pages are compressed. Text form: `none`, `snappy`, `lz4`, `gzip`, `zstd`, the last two with
/// a level if wanted: `zstd:1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// Snappy.
    Snappy,
    /// LZ4 in its raw form, `LZ4_RAW` in Parquet.
    Lz4,
    /// Gzip, level 0 to 9.
    Gzip(u8),
    /// Zstandard, level 1 to 22.
    Zstd(u8),
}

/// When values are written as a dictionary and indexes into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DictionaryRule {
    /// Per column: if at most half of the values in the file's first chunk are distinct.
    #[default]
    Auto,
    /// For every column.
    Always,
    /// For none.
    Never,
}

/// Options of Parquet files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParquetOptions {
    /// Default `zstd` (level 3).
    pub compression: Compression,
    /// A row group ends at this many rows, rounded up to a chunk. Default 1,048,576.
    pub row_group_rows: usize,
    /// A row group ends when its encoded size reaches this, seen between chunks; an open file holds
    /// about as much in memory. Default 16 MiB.
    #[serde(with = "crate::quantity::byte_size")]
    pub row_group_bytes: ByteSize,
    /// Size of a data page before compression. Default 1 MiB.
    #[serde(with = "crate::quantity::byte_size")]
    pub data_page_bytes: ByteSize,
    /// Default `auto`.
    pub dictionary: DictionaryRule,
    /// Rows handed to the writer at a time, 1,024 to 65,536. Default 8,192.
    pub chunk_rows: usize,
}

impl Default for ParquetOptions {
    fn default() -> Self {
        Self {
            compression: Compression::Zstd(3),
            row_group_rows: 1 << 20,
            row_group_bytes: ByteSize::mib(16),
            data_page_bytes: ByteSize::mib(1),
            dictionary: DictionaryRule::Auto,
            chunk_rows: 8_192,
        }
    }
}

impl ParquetOptions {
    /// Reports every option out of its range.
    ///
    /// # Errors
    /// All problems in one text.
    pub fn validate(&self) -> Result<(), EncodeError> {
        let mut problems = Vec::new();
        if let Err(problem) = self.compression.codec() {
            problems.push(problem);
        }
        if !(1_024..=65_536).contains(&self.chunk_rows) {
            problems.push(format!(
                "chunk_rows is {}, not 1024 to 65536",
                self.chunk_rows
            ));
        }
        if self.row_group_rows == 0 {
            problems.push("row_group_rows is 0".to_owned());
        }
        for (name, size) in [
            ("row_group_bytes", self.row_group_bytes),
            ("data_page_bytes", self.data_page_bytes),
        ] {
            if !(ByteSize::kib(4)..=ByteSize::gib(1)).contains(&size) {
                problems.push(format!("{name} is {size}, not 4 KiB to 1 GiB"));
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(EncodeError::Options {
            problem: problems.join("; "),
        })
    }
}

/// Writes one Parquet file into memory, handing its bytes out row group by row group.
///
/// Memory: one chunk of rows, the encoded pages of one row group (`row_group_bytes`) and a
/// dictionary of up to 1 MiB per column.
#[derive(Debug)]
pub struct ParquetEncoder {
    fixed_rows: FixedRows,
    file: File,
    rows: u64,
}

/// What is behind the fixed chunks.
struct File {
    schema: SchemaRef,
    options: ParquetOptions,
    /// Made at the first chunk, which decides its properties.
    writer: Option<ArrowWriter<Vec<u8>>>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl ParquetEncoder {
    /// A file of rows with this schema.
    ///
    /// # Errors
    /// Options out of range.
    pub fn new(schema: SchemaRef, options: &ParquetOptions) -> Result<Self, EncodeError> {
        options.validate()?;
        let fixed_rows = FixedRows::new(Arc::clone(&schema), options.chunk_rows, CHUNK_BYTES);
        let file = File {
            schema,
            options: options.clone(),
            writer: None,
        };
        Ok(Self {
            fixed_rows,
            file,
            rows: 0,
        })
    }
}

impl FileEncoder for ParquetEncoder {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), EncodeError> {
        let file = &mut self.file;
        self.fixed_rows.push(batch, |chunk| file.write(&chunk))?;
        self.rows += u64::try_from(batch.num_rows()).unwrap_or(u64::MAX);
        Ok(())
    }

    fn take_output(&mut self) -> Bytes {
        let writer = self.file.writer.as_mut();
        writer.map_or_else(Bytes::new, |writer| {
            std::mem::take(writer.inner_mut()).into()
        })
    }

    fn buffered_bytes(&self) -> usize {
        let writer = self.file.writer.as_ref();
        let held = writer.map_or(0, |writer| writer.memory_size() + writer.inner().len());
        self.fixed_rows.buffered_bytes() + held
    }

    fn rows(&self) -> u64 {
        self.rows
    }

    fn close(mut self: Box<Self>) -> Result<EncodedTail, EncodeError> {
        if let Some(chunk) = self.fixed_rows.finish()? {
            self.file.write(&chunk)?;
        }
        let empty = RecordBatch::new_empty(Arc::clone(&self.file.schema));
        let mut writer = match self.file.writer.take() {
            Some(writer) => writer,
            None => self.file.open(&empty)?,
        };
        writer.flush()?;
        let row_groups = writer.flushed_row_groups().len();
        writer.finish()?;
        let bytes = std::mem::take(writer.inner_mut()).into();
        Ok(EncodedTail {
            bytes,
            rows: self.rows,
            row_groups,
        })
    }
}

impl File {
    fn write(&mut self, chunk: &RecordBatch) -> Result<(), EncodeError> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.open(chunk)?,
        };
        let writer = self.writer.insert(writer);
        writer.write(chunk)?;
        let limit = usize::try_from(self.options.row_group_bytes.as_u64()).unwrap_or(usize::MAX);
        if writer.in_progress_rows() >= self.options.row_group_rows
            || writer.in_progress_size() >= limit
        {
            writer.flush()?;
        }
        Ok(())
    }

    fn open(&self, first_chunk: &RecordBatch) -> Result<ArrowWriter<Vec<u8>>, EncodeError> {
        let options = &self.options;
        let codec = options.compression.codec();
        let codec = codec.map_err(|problem| EncodeError::Options { problem })?;
        let page = usize::try_from(options.data_page_bytes.as_u64()).unwrap_or(usize::MAX);
        let mut properties = WriterProperties::builder()
            .set_created_by(CREATED_BY.to_owned())
            .set_compression(codec)
            .set_max_row_group_row_count(None)
            .set_max_row_group_bytes(None)
            .set_data_page_size_limit(page)
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_dictionary_enabled(options.dictionary != DictionaryRule::Never);
        if options.dictionary == DictionaryRule::Auto {
            let repeats = columns_that_repeat(first_chunk);
            for (field, repeats) in self.schema.fields().iter().zip(repeats) {
                let path = ColumnPath::new(vec![field.name().clone()]);
                if !repeats {
                    properties = properties.set_column_dictionary_enabled(path, false);
                }
            }
        }
        let options = ArrowWriterOptions::new()
            .with_properties(properties.build())
            .with_skip_arrow_metadata(true);
        let schema = Arc::clone(&self.schema);
        Ok(ArrowWriter::try_new_with_options(
            Vec::new(),
            schema,
            options,
        )?)
    }
}

impl Compression {
    fn codec(self) -> Result<Codec, String> {
        Ok(match self {
            Self::None => Codec::UNCOMPRESSED,
            Self::Snappy => Codec::SNAPPY,
            Self::Lz4 => Codec::LZ4_RAW,
            Self::Gzip(level) => Codec::GZIP(
                GzipLevel::try_new(u32::from(level))
                    .map_err(|_| format!("gzip has no level {level}, only 0 to 9"))?,
            ),
            Self::Zstd(level) => Codec::ZSTD(
                ZstdLevel::try_new(i32::from(level))
                    .map_err(|_| format!("zstd has no level {level}, only 1 to 22"))?,
            ),
        })
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let level = match level.map(|level| level.trim().parse::<u8>()) {
            Some(Ok(level)) => Some(level),
            Some(Err(_)) => return Err(format!("`{text}`: the level is not a number")),
            None => None,
        };
        let parsed = match (name.trim(), level) {
            ("none", None) => Self::None,
            ("snappy", None) => Self::Snappy,
            ("lz4", None) => Self::Lz4,
            ("gzip", level) => Self::Gzip(level.unwrap_or(6)),
            ("zstd", level) => Self::Zstd(level.unwrap_or(3)),
            ("none" | "snappy" | "lz4", Some(_)) => {
                return Err(format!("`{text}`: {name} has no levels"));
            }
            _ => {
                return Err(format!(
                    "`{text}` is none of none, snappy, lz4, gzip[:0-9], zstd[:1-22]"
                ));
            }
        };
        parsed.codec().map(|_| parsed)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Snappy => f.write_str("snappy"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Gzip(level) => write!(f, "gzip:{level}"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl Serialize for Compression {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Compression {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
