//! The target schema of a dataset: what a record becomes, column by column.
//!
//! ```text
//! job file (TOML) or inference ─► TableSchema ─► pinned in the plan and the manifest (JSON)
//!                                     ├─► Arrow schema of every data batch and file
//!                                     └─► the decoder's builders
//! ```
//! Types come from here, never from the data (after the one inference of a first run).

mod check;
mod infer;
mod text;

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use serde::{Deserialize, Serialize};

pub use check::{SchemaChange, SchemaProblem, SchemaProblems, check_change};
pub use infer::{Inferred, infer};
pub use text::InvalidColumnType;

/// The topic's name, a string.
pub const TOPIC: &str = "_topic";
/// The partition, an int32.
pub const PARTITION: &str = "_partition";
/// The record's offset, an int64.
pub const OFFSET: &str = "_offset";
/// The record's own timestamp, a `timestamp_ms`; null where the record has none (-1).
pub const TIMESTAMP: &str = "_timestamp";
/// The record's key as bytes; null where the record has none.
pub const KEY: &str = "_key";
/// The coordinate columns in their order behind the job's columns.
pub const COORDINATES: [&str; 5] = [TOPIC, PARTITION, OFFSET, TIMESTAMP, KEY];

/// The columns of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSchema {
    /// Columns filled from the record's value, in file order.
    #[serde(default)]
    pub columns: Vec<Column>,
    /// Name of a nullable string column that keeps the fields no column takes, as the text of one
    /// JSON object, values verbatim. Without it they are dropped and counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_column: Option<String>,
    /// Whether the columns of [`COORDINATES`] are appended. Default true; without them offsets in
    /// files cannot be proved, only counts.
    #[serde(default = "yes")]
    pub coordinates: bool,
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Name in the file.
    pub name: String,
    /// The JSON key it is read from. Default: `name`. Only for columns at the top: inside a
    /// struct the name is the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The type, as text: see [`ColumnType`].
    #[serde(rename = "type")]
    pub column_type: ColumnType,
    /// Whether null or a missing field becomes null. Default true; otherwise the record is bad.
    #[serde(default = "yes")]
    pub nullable: bool,
}

/// The type of a column. The text form is what `Display` and `FromStr` speak:
/// `int64`, `decimal(38,10)`, `list<string not null>`, `struct<id: int64, tags: list<string>>`
/// (a field name that is not a plain word goes in backticks).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnType {
    /// `boolean`: `true` or `false`.
    Boolean,
    /// `int32`: a JSON integer in range. `1.0` and `1e3` are refused, as is `"1"`.
    Int32,
    /// `int64`: the same with 64 bits, exact.
    Int64,
    /// `float64`: any JSON number whose nearest double is finite.
    Float64,
    /// `string`: a JSON string.
    String,
    /// `binary`: a JSON string of standard base64 with padding.
    Binary,
    /// `date`: a JSON string `YYYY-MM-DD`.
    Date,
    /// `timestamp_ms`, UTC: an integer of milliseconds since 1970, or RFC 3339 text that loses
    /// nothing at this resolution.
    TimestampMs,
    /// `timestamp_us`, UTC: the same in microseconds.
    TimestampUs,
    /// `decimal(p,s)`: a JSON number, or a string holding one, that fits exactly.
    Decimal {
        /// Digits in all, 1 to 38.
        precision: u8,
        /// Digits behind the point, at most `precision`.
        scale: u8,
    },
    /// `list<T>`: a JSON array. The element's name is always `element`, as Parquet wants it.
    List(Box<Column>),
    /// `struct<a: T, …>`: a JSON object; keys it does not name are dropped and counted.
    Struct(Vec<Column>),
    /// `json`: any value, its text verbatim. JSON null is null.
    Json,
}

/// Name of a list's element in Arrow and Parquet.
pub(crate) const ELEMENT: &str = "element";

const fn yes() -> bool {
    true
}

impl Default for TableSchema {
    fn default() -> Self {
        Self {
            columns: Vec::new(),
            rest_column: None,
            coordinates: true,
        }
    }
}

impl TableSchema {
    /// The Arrow schema of data batches and files: columns, rest column, coordinates.
    #[must_use]
    pub fn to_arrow(&self) -> SchemaRef {
        let mut fields: Vec<Field> = self.columns.iter().map(Column::to_arrow).collect();
        if let Some(rest) = &self.rest_column {
            fields.push(Field::new(rest, DataType::Utf8, true));
        }
        if self.coordinates {
            fields.push(Field::new(TOPIC, DataType::Utf8, false));
            fields.push(Field::new(PARTITION, DataType::Int32, false));
            fields.push(Field::new(OFFSET, DataType::Int64, false));
            fields.push(Field::new(
                TIMESTAMP,
                timestamp(TimeUnit::Millisecond),
                true,
            ));
            fields.push(Field::new(KEY, DataType::Binary, true));
        }
        Arc::new(Schema::new(fields))
    }

    /// Reports every problem of the schema, among them names that two columns share (without
    /// regard to case, since Hive, Spark and Impala see none) or that are taken by a partition key
    /// of the path. Pass `run` and the grouping's key names.
    ///
    /// # Errors
    /// All problems found, in column order.
    pub fn validate<'k>(
        &self,
        partition_keys: impl IntoIterator<Item = &'k str>,
    ) -> Result<(), SchemaProblems> {
        check::validate(self, partition_keys)
    }
}

impl Column {
    /// A nullable column read from the JSON key of the same name.
    #[must_use]
    pub fn new(name: impl Into<String>, column_type: ColumnType) -> Self {
        Self {
            name: name.into(),
            field: None,
            column_type,
            nullable: true,
        }
    }

    /// The same column, required.
    #[must_use]
    pub fn required(self) -> Self {
        Self {
            nullable: false,
            ..self
        }
    }

    /// The JSON key the column is read from.
    #[must_use]
    pub fn json_key(&self) -> &str {
        self.field.as_deref().unwrap_or(&self.name)
    }

    fn to_arrow(&self) -> Field {
        Field::new(&self.name, self.column_type.to_arrow(), self.nullable)
    }
}

impl ColumnType {
    /// The Arrow type.
    #[must_use]
    pub fn to_arrow(&self) -> DataType {
        match self {
            Self::Boolean => DataType::Boolean,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::Float64 => DataType::Float64,
            Self::String | Self::Json => DataType::Utf8,
            Self::Binary => DataType::Binary,
            Self::Date => DataType::Date32,
            Self::TimestampMs => timestamp(TimeUnit::Millisecond),
            Self::TimestampUs => timestamp(TimeUnit::Microsecond),
            Self::Decimal { precision, scale } => {
                DataType::Decimal128(*precision, i8::try_from(*scale).unwrap_or(i8::MAX))
            }
            Self::List(element) => DataType::List(Arc::new(element.to_arrow())),
            Self::Struct(fields) => DataType::Struct(struct_fields(fields)),
        }
    }
}

/// The Arrow fields of a struct's columns.
pub(crate) fn struct_fields(fields: &[Column]) -> Fields {
    fields.iter().map(Column::to_arrow).collect()
}

fn timestamp(unit: TimeUnit) -> DataType {
    DataType::Timestamp(unit, Some(Arc::from("UTC")))
}

#[cfg(test)]
mod tests;
