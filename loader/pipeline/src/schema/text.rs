//! The text form of column types: `struct<id: int64 not null, tags: list<string>>`.
//!
//! ```text
//! type   = word | "decimal(" p "," s ")" | "list<" type [not null] ">"
//!        | "struct<" name ":" type [not null] { "," … } ">"
//! name   = plain word | "`" any text, a backtick doubled "`"
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::{Column, ColumnType, ELEMENT};

/// How deep types may be nested.
pub(super) const MAX_TYPE_DEPTH: usize = 32;

/// A text that is not a column type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not a column type: {reason}")]
pub struct InvalidColumnType {
    text: String,
    reason: String,
}

impl FromStr for ColumnType {
    type Err = InvalidColumnType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parser = Parser { rest: text };
        let parsed = parser
            .column_type(0)
            .and_then(|parsed| match parser.rest.trim_start() {
                "" => Ok(parsed),
                rest => Err(format!("nothing may follow, but `{rest}` does")),
            });
        parsed.map_err(|reason| InvalidColumnType {
            text: text.to_owned(),
            reason,
        })
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn column_type(&mut self, depth: usize) -> Result<ColumnType, String> {
        if depth >= MAX_TYPE_DEPTH {
            return Err(format!("nested more than {MAX_TYPE_DEPTH} deep"));
        }
        let word = self.word();
        Ok(match word.to_ascii_lowercase().as_str() {
            "boolean" => ColumnType::Boolean,
            "int32" => ColumnType::Int32,
            "int64" => ColumnType::Int64,
            "float64" => ColumnType::Float64,
            "string" => ColumnType::String,
            "binary" => ColumnType::Binary,
            "date" => ColumnType::Date,
            "timestamp_ms" => ColumnType::TimestampMs,
            "timestamp_us" => ColumnType::TimestampUs,
            "json" => ColumnType::Json,
            "decimal" => self.decimal()?,
            "list" => {
                self.expect("<")?;
                let (column_type, nullable) = self.with_nullability(depth)?;
                self.expect(">")?;
                let element = Column {
                    nullable,
                    ..Column::new(ELEMENT, column_type)
                };
                ColumnType::List(Box::new(element))
            }
            "struct" => ColumnType::Struct(self.struct_fields(depth)?),
            _ => {
                return Err(format!(
                    "`{word}` is none of boolean, int32, int64, float64, string, binary, date, \
                     timestamp_ms, timestamp_us, decimal(p,s), list<T>, struct<name: T>, json"
                ));
            }
        })
    }

    fn decimal(&mut self) -> Result<ColumnType, String> {
        self.expect("(")?;
        let precision = self.number()?;
        self.expect(",")?;
        let scale = self.number()?;
        self.expect(")")?;
        Ok(ColumnType::Decimal { precision, scale })
    }

    fn struct_fields(&mut self, depth: usize) -> Result<Vec<Column>, String> {
        self.expect("<")?;
        let mut fields = Vec::new();
        loop {
            let name = self.name()?;
            self.expect(":")?;
            let (column_type, nullable) = self.with_nullability(depth)?;
            fields.push(Column {
                nullable,
                ..Column::new(name, column_type)
            });
            if self.accept(">") {
                return Ok(fields);
            }
            self.expect(",")?;
        }
    }

    fn with_nullability(&mut self, depth: usize) -> Result<(ColumnType, bool), String> {
        let column_type = self.column_type(depth + 1)?;
        let not = self.word();
        if not.is_empty() {
            return Ok((column_type, true));
        }
        let null = self.word();
        if not.eq_ignore_ascii_case("not") && null.eq_ignore_ascii_case("null") {
            return Ok((column_type, false));
        }
        Err(format!("expected `not null`, found `{not} {null}`"))
    }

    fn word(&mut self) -> &'a str {
        let text = self.rest.trim_start();
        let end = text
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(text.len());
        let (word, rest) = text.split_at_checked(end).unwrap_or((text, ""));
        self.rest = rest;
        word
    }

    fn name(&mut self) -> Result<String, String> {
        let Some(mut text) = self.rest.trim_start().strip_prefix('`') else {
            let word = self.word();
            return if word.is_empty() {
                Err(format!("expected a field name at `{}`", self.rest))
            } else {
                Ok(word.to_owned())
            };
        };
        let mut name = String::new();
        while let Some((before, after)) = text.split_once('`') {
            name.push_str(before);
            if let Some(more) = after.strip_prefix('`') {
                name.push('`');
                text = more;
            } else {
                self.rest = after;
                return Ok(name);
            }
        }
        Err("a backtick is not closed".to_owned())
    }

    fn number(&mut self) -> Result<u8, String> {
        let word = self.word();
        word.parse()
            .map_err(|_| format!("`{word}` is not a number of digits"))
    }

    fn accept(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.trim_start().strip_prefix(token) else {
            return false;
        };
        self.rest = rest;
        true
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.accept(token) {
            return Ok(());
        }
        Err(format!("expected `{token}` at `{}`", self.rest))
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("boolean"),
            Self::Int32 => f.write_str("int32"),
            Self::Int64 => f.write_str("int64"),
            Self::Float64 => f.write_str("float64"),
            Self::String => f.write_str("string"),
            Self::Binary => f.write_str("binary"),
            Self::Date => f.write_str("date"),
            Self::TimestampMs => f.write_str("timestamp_ms"),
            Self::TimestampUs => f.write_str("timestamp_us"),
            Self::Json => f.write_str("json"),
            Self::Decimal { precision, scale } => write!(f, "decimal({precision},{scale})"),
            Self::List(element) => {
                write!(f, "list<{}{}>", element.column_type, not_null(element))
            }
            Self::Struct(fields) => {
                f.write_str("struct<")?;
                for (position, field) in fields.iter().enumerate() {
                    let comma = if position == 0 { "" } else { ", " };
                    let (name, nulls) = (quoted(&field.name), not_null(field));
                    write!(f, "{comma}{name}: {}{nulls}", field.column_type)?;
                }
                f.write_str(">")
            }
        }
    }
}

fn not_null(column: &Column) -> &'static str {
    if column.nullable { "" } else { " not null" }
}

fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.is_empty() && name.chars().all(plain) {
        return name.to_owned();
    }
    format!("`{}`", name.replace('`', "``"))
}

impl Serialize for ColumnType {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ColumnType {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}
