//! Parquet files that are the same bytes for the same rows.
//!
//! What could differ is pinned: a row group is encoded in one step, column by column; which columns get a
//! dictionary follows from the file's first rows; the name of the writer has no version of a build, and
//! there is no Arrow schema in the footer, whose encoding belongs to the library. Types are carried by
//! Parquet's own logical types.
//!
//! One column at a time also means that one page, one dictionary and one compressor are alive at a time,
//! however many columns and files there are.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::concat::concat;
use bytes::Bytes;
use bytesize::ByteSize;
use parquet::arrow::ArrowSchemaConverter;
use parquet::arrow::arrow_writer::{ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression as Codec, Encoding, GzipLevel, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::dictionary::repeats;
use super::{EncodeError, EncodedTail, FileEncoder, RowGroupCut};
use crate::quantity::in_bytes;

/// Name of the writer in the footer. The number changes when the same rows give other bytes. The
/// form is the one that readers parse; some ignore the statistics of files whose writer they
/// cannot parse.
pub const CREATED_BY: &str = "logferry version 2";

/// The first rows of a file, by which its dictionaries are decided.
const SAMPLE_ROWS: usize = 8_192;

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
    /// Per column: if at most half of the values in the file's first 8,192 rows are distinct.
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
    /// Default `zstd:1`: on pages of columns its files are about as small as those of level 3, for two thirds
    /// of the CPU time.
    pub compression: Compression,
    /// A row group ends at this many rows. Default 1,048,576.
    pub row_group_rows: usize,
    /// A row group ends before its values, as they are before encoding, exceed this. A task that
    /// encodes holds about twice as much in memory. At most 512 MiB. Default 64 MiB.
    #[serde(with = "crate::quantity::byte_size")]
    pub row_group_bytes: ByteSize,
    /// Size of a data page before compression. Default 1 MiB.
    #[serde(with = "crate::quantity::byte_size")]
    pub data_page_bytes: ByteSize,
    /// Default `auto`.
    pub dictionary: DictionaryRule,
    /// Write integers, dates and timestamps without a dictionary as differences (`DELTA_BINARY_PACKED`):
    /// smaller, and less for the compressor to do. Readers of before 2022 may not know it. Default true.
    pub delta: bool,
}

impl Default for ParquetOptions {
    fn default() -> Self {
        Self {
            compression: Compression::Zstd(1),
            row_group_rows: 1 << 20,
            row_group_bytes: ByteSize::mib(64),
            data_page_bytes: ByteSize::mib(1),
            dictionary: DictionaryRule::Auto,
            delta: true,
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
        if self.row_group_rows == 0 {
            problems.push("row_group_rows is 0".to_owned());
        }
        for (name, size) in [
            ("row_group_bytes", self.row_group_bytes),
            ("data_page_bytes", self.data_page_bytes),
        ] {
            if !(ByteSize::kib(4)..=ByteSize::mib(512)).contains(&size) {
                problems.push(format!("{name} is {size}, not 4 KiB to 512 MiB"));
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
/// Memory: while a row group is encoded, a copy of one column, its pages, a dictionary of up to 1 MiB and
/// the row group's encoded bytes; between row groups only the footer's entries.
pub struct ParquetEncoder {
    schema: SchemaRef,
    options: ParquetOptions,
    /// Made at the first row group, which decides its properties.
    file: Option<SerializedFileWriter<Vec<u8>>>,
    rows: u64,
    row_groups: usize,
}

impl fmt::Debug for ParquetEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetEncoder")
            .field("options", &self.options)
            .field("rows", &self.rows)
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
        Ok(Self {
            schema,
            options: options.clone(),
            file: None,
            rows: 0,
            row_groups: 0,
        })
    }

    /// The file, begun with the properties that its first rows decide.
    fn open(
        &self,
        first_rows: &[RecordBatch],
    ) -> Result<SerializedFileWriter<Vec<u8>>, EncodeError> {
        let schema = ArrowSchemaConverter::new().convert(&self.schema)?;
        let properties = self.properties(first_rows)?;
        Ok(SerializedFileWriter::new(
            Vec::new(),
            schema.root_schema_ptr(),
            Arc::new(properties),
        )?)
    }

    fn properties(&self, first_rows: &[RecordBatch]) -> Result<WriterProperties, EncodeError> {
        let options = &self.options;
        let codec = options.compression.codec();
        let codec = codec.map_err(|problem| EncodeError::Options { problem })?;
        let page = in_bytes(options.data_page_bytes);
        let mut properties = WriterProperties::builder()
            .set_created_by(CREATED_BY.to_owned())
            .set_compression(codec)
            .set_data_page_size_limit(page)
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_dictionary_enabled(options.dictionary != DictionaryRule::Never);
        for (index, field) in self.schema.fields().iter().enumerate() {
            let Some(sample) = first_of(&column_of(first_rows, index), SAMPLE_ROWS)? else {
                continue;
            };
            let path = ColumnPath::new(vec![field.name().clone()]);
            let dictionary = match options.dictionary {
                DictionaryRule::Auto => repeats(&sample),
                DictionaryRule::Always => true,
                DictionaryRule::Never => false,
            };
            properties = properties.set_column_dictionary_enabled(path.clone(), dictionary);
            if options.delta && !dictionary && is_integer(field.data_type()) {
                properties =
                    properties.set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED);
            }
            if longest(&sample) > page {
                // The writer would copy such values twice over to keep their first 64 bytes.
                properties =
                    properties.set_column_statistics_enabled(path, EnabledStatistics::None);
            }
        }
        Ok(properties.build())
    }
}

impl FileEncoder for ParquetEncoder {
    fn write_row_group(&mut self, rows: &[RecordBatch]) -> Result<Bytes, EncodeError> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open(rows)?,
        };
        let factory = ArrowRowGroupWriterFactory::new(&file, Arc::clone(&self.schema));
        let mut writers = factory.create_column_writers(self.row_groups)?.into_iter();
        let mut group = file.next_row_group()?;
        for (index, field) in self.schema.fields().iter().enumerate() {
            let column = joined(&column_of(rows, index))?;
            for (leaf, mut writer) in compute_leaves(field, &column)?.iter().zip(writers.by_ref()) {
                writer.write(leaf)?;
                writer.close()?.append_to_row_group(&mut group)?;
            }
        }
        group.close()?;
        let count: usize = rows.iter().map(RecordBatch::num_rows).sum();
        self.rows += u64::try_from(count).unwrap_or(u64::MAX);
        self.row_groups += 1;
        let file = self.file.insert(file);
        Ok(std::mem::take(file.inner_mut()).into())
    }

    fn close(mut self: Box<Self>) -> Result<EncodedTail, EncodeError> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open(&[])?,
        };
        file.finish()?;
        Ok(EncodedTail {
            bytes: std::mem::take(file.inner_mut()).into(),
            rows: self.rows,
        })
    }
}

fn column_of(rows: &[RecordBatch], index: usize) -> Vec<&ArrayRef> {
    rows.iter()
        .filter_map(|batch| batch.columns().get(index))
        .collect()
}

/// The pieces as one array: what the writer makes of a column must not depend on the pieces.
fn joined(pieces: &[&ArrayRef]) -> Result<ArrayRef, EncodeError> {
    if let [only] = pieces {
        return Ok(Arc::clone(only));
    }
    let pieces: Vec<_> = pieces.iter().map(|piece| &***piece).collect();
    Ok(concat(&pieces)?)
}

/// At most the first `rows` rows; None without any.
fn first_of(pieces: &[&ArrayRef], rows: usize) -> Result<Option<ArrayRef>, EncodeError> {
    let mut left = rows;
    let mut first = Vec::new();
    for piece in pieces {
        let count = piece.len().min(left);
        if count > 0 {
            first.push(piece.slice(0, count));
            left -= count;
        }
    }
    if first.is_empty() {
        return Ok(None);
    }
    joined(&first.iter().collect::<Vec<_>>()).map(Some)
}

/// Whether Parquet stores the type as INT32 or INT64.
const fn is_integer(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Int32 | DataType::Int64 | DataType::Date32 | DataType::Timestamp(_, _)
    )
}

/// Bytes of the longest text or binary value at the top level.
fn longest(array: &ArrayRef) -> usize {
    let offsets = if let Some(texts) = array.as_string_opt::<i32>() {
        texts.value_offsets()
    } else if let Some(binaries) = array.as_binary_opt::<i32>() {
        binaries.value_offsets()
    } else {
        return 0;
    };
    let lengths = offsets.windows(2).map(|pair| match pair {
        [start, end] => usize::try_from(end - start).unwrap_or(0),
        _ => 0,
    });
    lengths.max().unwrap_or(0)
}

impl ParquetOptions {
    /// Where row groups end.
    #[must_use]
    pub fn row_group_cut(&self) -> RowGroupCut {
        let bytes = in_bytes(self.row_group_bytes);
        RowGroupCut::new(self.row_group_rows, bytes)
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
