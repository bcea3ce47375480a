//! One JSON object per record value, strictly along the target schema.
//!
//! Refused, each with its reason: no bytes, blanks, anything that is not exactly one object, bytes
//! that are not UTF-8, lone surrogates, nesting beyond 128, a key that appears twice among a
//! schema's keys (or among those the rest column keeps, compared as written), null or nothing for a
//! required column, a value of another type, a number that the column cannot hold exactly. Unknown
//! keys are dropped and counted, or kept; of what is dropped only the grammar is checked.

use arrow_array::ArrayRef;
use arrow_schema::ArrowError;

use super::builder::{ColumnBuilder, Values};
use super::object::{ObjectBuilder, Rest, Scratch};
use super::{Cursor, Fault, FaultKind, MAX_DEPTH, Reject};
use crate::schema::{ColumnType, TableSchema};

/// Decodes JSON values into the columns of one schema (without coordinates).
#[derive(Debug)]
pub struct JsonDecoder {
    columns: ObjectBuilder,
    rest: Option<(Rest, ColumnBuilder)>,
    scratch: Scratch,
}

impl JsonDecoder {
    /// A decoder for the schema's columns and its rest column.
    #[must_use]
    pub fn new(schema: &TableSchema) -> Self {
        let rest = schema.rest_column.as_ref();
        Self {
            columns: ObjectBuilder::new(&schema.columns),
            rest: rest.map(|_| (Rest::default(), ColumnBuilder::new(&ColumnType::String))),
            scratch: Scratch::default(),
        }
    }

    /// Appends exactly one row, or nothing. Returns the number of unknown fields met, at the top
    /// and inside structs, kept or dropped.
    ///
    /// # Errors
    /// The reason for which the record is bad; the rows before it are untouched.
    pub fn decode(&mut self, value: &[u8]) -> Result<u64, Reject> {
        let rows = self.rows();
        self.scratch.start_record();
        match self.decode_record(value) {
            Ok(()) => Ok(self.scratch.unknown_fields),
            Err(fault) => {
                self.truncate(rows);
                Err(Reject {
                    reason: describe(fault, value, &self.scratch.path),
                })
            }
        }
    }

    fn decode_record(&mut self, value: &[u8]) -> Result<(), Fault> {
        if value.is_empty() {
            return Err(Fault {
                at: 0,
                kind: FaultKind::Empty,
            });
        }
        let mut cursor = Cursor::new(value)?;
        cursor.skip_space();
        match cursor.peek() {
            Some(b'{') => {}
            Some(_) => return Err(cursor.fault(FaultKind::NotAnObject)),
            None => return Err(cursor.fault(FaultKind::Blank)),
        }
        let rest = self.rest.as_mut().map(|(rest, _)| {
            rest.text.clear();
            rest
        });
        self.columns
            .decode(&mut cursor, &mut self.scratch, rest, 0)?;
        cursor.skip_space();
        if cursor.peek().is_some() {
            return Err(cursor.fault(FaultKind::Trailing));
        }
        match &mut self.rest {
            Some((rest, column)) if rest.text.is_empty() => column.push_null(),
            Some((rest, column)) => {
                rest.text.push('}');
                if let Values::String(values) = &mut column.values {
                    values.push(rest.text.as_bytes())?;
                }
                column.mark_valid();
            }
            None => {}
        }
        Ok(())
    }

    /// Appends a row of nulls, for a tombstone. Every column must be nullable.
    pub fn push_nulls(&mut self) {
        self.columns.push_nulls();
        if let Some((_, column)) = &mut self.rest {
            column.push_null();
        }
    }

    /// Cuts back to the first `rows` rows.
    fn truncate(&mut self, rows: usize) {
        self.columns.truncate(rows);
        if let Some((_, column)) = &mut self.rest {
            column.truncate(rows);
        }
    }

    /// Rows appended since the last [`Self::finish`].
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.columns.len()
    }

    /// Bytes of the values held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.columns.bytes() + self.rest.as_ref().map_or(0, |(_, column)| column.bytes())
    }

    /// Hands out all rows, one array per column (the rest column last), and starts anew.
    ///
    /// # Errors
    /// Arrow's refusal of the buffers, which would be a defect here.
    pub fn finish(&mut self) -> Result<Vec<ArrayRef>, ArrowError> {
        let mut arrays = self.columns.finish()?;
        if let Some((_, column)) = &mut self.rest {
            arrays.push(column.finish()?);
        }
        Ok(arrays)
    }
}

/// The reason in words. `path` holds the keys from the fault outwards.
fn describe(fault: Fault, value: &[u8], path: &[String]) -> String {
    let at = fault.at;
    let column = path_text(path);
    match fault.kind {
        FaultKind::Empty => "the value is empty (0 bytes)".to_owned(),
        FaultKind::Blank => "the value is blank".to_owned(),
        FaultKind::NotAnObject => format!("not a JSON object but `{}`", excerpt(value, at)),
        FaultKind::Utf8 => format!("not UTF-8 at byte {at}"),
        FaultKind::Truncated => format!("the JSON ends early, at byte {}", value.len()),
        FaultKind::Trailing => {
            format!(
                "something follows the JSON object at byte {at}: `{}`",
                excerpt(value, at)
            )
        }
        FaultKind::Expected(wanted) => {
            format!(
                "malformed JSON at byte {at}: expected {wanted}, found `{}`",
                excerpt(value, at)
            )
        }
        FaultKind::TooDeep => format!("nested more than {MAX_DEPTH} deep at byte {at}"),
        FaultKind::DuplicateKey if column.is_empty() => {
            format!("key `{}` appears twice", excerpt(value, at))
        }
        FaultKind::DuplicateKey => {
            format!(
                "column {column}holds the key `{}` twice",
                excerpt(value, at)
            )
        }
        FaultKind::Null => format!("column {column}is required but null"),
        FaultKind::Missing => format!("column {column}is required but its field is missing"),
        FaultKind::NotA(wanted) => {
            format!(
                "column {column}is not {wanted} but `{}`",
                excerpt(value, at)
            )
        }
        FaultKind::OutOfRange(wanted) => {
            format!(
                "column {column}is out of range for {wanted}: `{}`",
                excerpt(value, at)
            )
        }
        FaultKind::Inexact(wanted) => {
            format!(
                "column {column}has more digits than {wanted}: `{}`",
                excerpt(value, at)
            )
        }
        FaultKind::TooLarge => format!("column {column}would grow beyond what one array may hold"),
    }
}

fn path_text(path: &[String]) -> String {
    let mut text = String::new();
    for key in path.iter().rev() {
        if !text.is_empty() && key != "[]" {
            text.push('.');
        }
        text.push_str(key);
    }
    if text.is_empty() {
        text
    } else {
        format!("`{text}` ")
    }
}

/// The value at `at`, or what stands there if it is none, shortened for a message.
fn excerpt(value: &[u8], at: usize) -> String {
    const CHARS: usize = 40;
    let rest = value.get(at..).unwrap_or_default();
    let one_value = Cursor::new(rest).ok().and_then(|mut cursor| {
        cursor.skip_value(0).ok()?;
        Some(cursor.since(0).to_owned())
    });
    let shown = rest.get(..CHARS * 4).unwrap_or(rest);
    let text = one_value.unwrap_or_else(|| String::from_utf8_lossy(shown).into_owned());
    let mut short: String = text.chars().take(CHARS).collect();
    if text.chars().nth(CHARS).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
