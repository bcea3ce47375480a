//! JSON objects and values into builders: the schema-directed half of the decoder.

use std::collections::{HashMap, HashSet};

use arrow_array::ArrayRef;
use arrow_schema::ArrowError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::builder::{ColumnBuilder, ListBuilder, Values, Variable};
use super::decimal::{DecimalFault, parse_decimal};
use super::time::{Instant, parse_date, parse_rfc3339};
use super::{Cursor, Fault, FaultKind};
use crate::schema::Column;

/// Cells that the lists of one record may hold together. It bounds what a small record such as
/// `[{},{},…]` can grow to in a wide struct: 16 Mi cells are at most 256 MiB.
const MAX_LIST_CELLS: usize = 16 << 20;

/// The columns of one object, at the top or inside a struct.
#[derive(Debug)]
pub(crate) struct ObjectBuilder {
    fields: Vec<FieldBuilder>,
    lookup: HashMap<Box<str>, usize>,
    /// Per field (and at the end for the start of an object), the field that came next last time:
    /// producers write keys in one order, so that the next key is nearly always known.
    follow: Vec<usize>,
    len: usize,
}

#[derive(Debug)]
struct FieldBuilder {
    key: Box<str>,
    /// The key with its quotes, as it stands in a record that escapes nothing.
    quoted: Box<[u8]>,
    nullable: bool,
    column: ColumnBuilder,
}

/// What one record leaves besides its row; reused from record to record.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    unescaped: String,
    /// Keys from the fault outwards; filled only on a fault.
    pub(crate) path: Vec<String>,
    pub(crate) unknown_fields: u64,
    list_cells: usize,
}

/// Collects the fields that no column takes, as the text of one object.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    pub(crate) text: String,
}

/// Unknown keys of one object, to find duplicates without allocating while they are few.
struct SeenKeys<'a> {
    few: [&'a str; 16],
    count: usize,
    many: HashSet<&'a str>,
}

impl Scratch {
    pub(crate) fn start_record(&mut self) {
        self.path.clear();
        self.unknown_fields = 0;
        self.list_cells = 0;
    }
}

impl<'a> SeenKeys<'a> {
    fn new() -> Self {
        Self {
            few: [""; 16],
            count: 0,
            many: HashSet::new(),
        }
    }

    fn insert(&mut self, key: &'a str) -> bool {
        let few = self.few.get(..self.count).unwrap_or_default();
        if few.contains(&key) || self.many.contains(key) {
            return false;
        }
        match self.few.get_mut(self.count) {
            Some(slot) => {
                *slot = key;
                self.count += 1;
                true
            }
            None => self.many.insert(key),
        }
    }
}

impl ObjectBuilder {
    pub(crate) fn new(columns: &[Column]) -> Self {
        let fields: Vec<_> = columns.iter().map(FieldBuilder::new).collect();
        let keys = fields
            .iter()
            .enumerate()
            .map(|(index, field)| (field.key.clone(), index));
        let lookup = keys.collect();
        let count = fields.len();
        let follow = (1..=count).chain([0]).collect();
        Self {
            fields,
            lookup,
            follow,
            len: 0,
        }
    }

    /// Reads one object and appends one row to every column. `depth` is that of the value around
    /// it, 0 at the top. On a fault some columns may have
    /// grown: the caller cuts the whole record back.
    pub(crate) fn decode(
        &mut self,
        cursor: &mut Cursor<'_>,
        scratch: &mut Scratch,
        mut rest: Option<&mut Rest>,
        depth: usize,
    ) -> Result<(), Fault> {
        cursor.enter(depth)?;
        cursor.skip_space();
        let mut filled = 0;
        if !cursor.accept(b'}') {
            let mut previous = self.fields.len();
            let mut seen: Option<SeenKeys<'_>> = None;
            loop {
                let key_at = cursor.at();
                let found = self.key(cursor, scratch, previous)?;
                let key_text = cursor.since(key_at);
                cursor.skip_space();
                cursor.expect(b':', "`:`")?;
                cursor.skip_space();
                if let Some(index) = found {
                    self.member(index, cursor, scratch, depth, key_at)?;
                    previous = index;
                    filled += 1;
                } else {
                    let value_at = cursor.at();
                    cursor.skip_value(depth + 1)?;
                    scratch.unknown_fields += 1;
                    if let Some(rest) = rest.as_deref_mut() {
                        if !seen.get_or_insert_with(SeenKeys::new).insert(key_text) {
                            return Err(Fault {
                                at: key_at,
                                kind: FaultKind::DuplicateKey,
                            });
                        }
                        rest.push(key_text, cursor.since(value_at));
                    }
                }
                if !cursor.more(b'}', "`,` or `}`")? {
                    break;
                }
            }
        }
        if filled < self.fields.len() {
            self.fill_missing(cursor, scratch)?;
        }
        self.len += 1;
        Ok(())
    }

    /// Reads a key and finds its column, the likely one first.
    #[inline]
    fn key(
        &mut self,
        cursor: &mut Cursor<'_>,
        scratch: &mut Scratch,
        previous: usize,
    ) -> Result<Option<usize>, Fault> {
        let likely = self.follow.get(previous).copied().unwrap_or(0);
        if let Some(field) = self.fields.get(likely)
            && cursor.accept_all(&field.quoted)
        {
            return Ok(Some(likely));
        }
        if cursor.peek() != Some(b'"') {
            return Err(cursor.fault(FaultKind::Expected("a key in quotes")));
        }
        let plain = cursor.string(&mut scratch.unescaped)?;
        let key = plain.unwrap_or(&scratch.unescaped);
        let found = self.lookup.get(key).copied();
        if let (Some(found), Some(follow)) = (found, self.follow.get_mut(previous)) {
            *follow = found;
        }
        Ok(found)
    }

    #[inline]
    fn member(
        &mut self,
        index: usize,
        cursor: &mut Cursor<'_>,
        scratch: &mut Scratch,
        depth: usize,
        key_at: usize,
    ) -> Result<(), Fault> {
        let Some(field) = self.fields.get_mut(index) else {
            return Ok(());
        };
        if field.column.len() != self.len {
            return Err(Fault {
                at: key_at,
                kind: FaultKind::DuplicateKey,
            });
        }
        let decoded = decode_value(
            &mut field.column,
            field.nullable,
            cursor,
            scratch,
            depth + 1,
        );
        decoded.inspect_err(|_| scratch.path.push(field.key.to_string()))
    }

    fn fill_missing(&mut self, cursor: &Cursor<'_>, scratch: &mut Scratch) -> Result<(), Fault> {
        for field in &mut self.fields {
            if field.column.len() > self.len {
                continue;
            }
            if !field.nullable {
                scratch.path.push(field.key.to_string());
                return Err(Fault {
                    at: cursor.at(),
                    kind: FaultKind::Missing,
                });
            }
            field.column.push_null();
        }
        Ok(())
    }

    /// Appends a row of nulls, required columns included: the row around it is null, or the caller
    /// has made sure that there are none.
    pub(crate) fn push_nulls(&mut self) {
        for field in &mut self.fields {
            field.column.push_null();
        }
        self.len += 1;
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        for field in &mut self.fields {
            field.column.truncate(len);
        }
        self.len = self.len.min(len);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.fields.iter().map(|field| field.column.bytes()).sum()
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn finish(&mut self) -> Result<Vec<ArrayRef>, ArrowError> {
        self.len = 0;
        self.fields
            .iter_mut()
            .map(|field| field.column.finish())
            .collect()
    }
}

impl FieldBuilder {
    fn new(column: &Column) -> Self {
        let key: Box<str> = column.json_key().into();
        // A key with a quote or a backslash never stands in a record as it is, so that this text
        // then matches nothing and the look-up decides.
        let plain = !key
            .bytes()
            .any(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1F));
        let quoted = if plain {
            format!("\"{key}\"").into_bytes()
        } else {
            b"\"\"\"".to_vec()
        };
        Self {
            key,
            quoted: quoted.into(),
            nullable: column.nullable,
            column: ColumnBuilder::new(&column.column_type),
        }
    }
}

impl Rest {
    fn push(&mut self, key_text: &str, value_text: &str) {
        self.text.push(if self.text.is_empty() { '{' } else { ',' });
        self.text.push_str(key_text);
        self.text.push(':');
        self.text.push_str(value_text);
    }
}

/// Reads one value into a column. `depth` is that of the value around it.
#[inline]
fn decode_value(
    column: &mut ColumnBuilder,
    nullable: bool,
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
    depth: usize,
) -> Result<(), Fault> {
    let at = cursor.at();
    if cursor.accept_all(b"null") {
        if !nullable {
            return Err(Fault {
                at,
                kind: FaultKind::Null,
            });
        }
        column.push_null();
        return Ok(());
    }
    match &mut column.values {
        Values::Int64(values) => values.push(cursor.integer("an int64")?),
        Values::Int32(values) => values.push(int32(cursor, at)?),
        Values::Float64(values) => values.push(float64(cursor, at)?),
        Values::Boolean(values) => values.append(boolean(cursor, at)?),
        Values::String(values) => {
            let text = string(cursor, scratch, at, "a string")?;
            values.push(text.as_bytes())?;
        }
        Values::TimestampMs(values) => values.push(timestamp(cursor, scratch, at, &MILLIS)?),
        Values::TimestampUs(values) => values.push(timestamp(cursor, scratch, at, &MICROS)?),
        Values::Date(values) => {
            const DATE: &str = "a date such as \"2026-11-30\"";
            let text = string(cursor, scratch, at, DATE)?;
            values.push(parse_date(text).ok_or(Fault {
                at,
                kind: FaultKind::NotA(DATE),
            })?);
        }
        Values::Decimal {
            values,
            precision,
            scale,
        } => {
            values.push(decimal(cursor, scratch, at, (*precision, *scale))?);
        }
        Values::Binary(values) => base64_text(cursor, scratch, at, values)?,
        Values::Json(values) => {
            cursor.skip_value(depth)?;
            values.push(cursor.since(at).as_bytes())?;
        }
        Values::List(list) => decode_list(list, cursor, scratch, depth)?,
        Values::Struct(nested) => {
            if cursor.peek() != Some(b'{') {
                return Err(cursor.mismatch(at, "an object"));
            }
            nested.object.decode(cursor, scratch, None, depth)?;
        }
    }
    column.mark_valid();
    Ok(())
}

fn decode_list(
    list: &mut ListBuilder,
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
    depth: usize,
) -> Result<(), Fault> {
    let at = cursor.at();
    if cursor.peek() != Some(b'[') {
        return Err(cursor.mismatch(at, "an array"));
    }
    cursor.enter(depth)?;
    cursor.skip_space();
    if !cursor.accept(b']') {
        loop {
            scratch.list_cells += list.cells;
            if scratch.list_cells > MAX_LIST_CELLS {
                return Err(cursor.fault(FaultKind::TooLarge));
            }
            decode_value(&mut list.element, list.nullable, cursor, scratch, depth + 1)
                .inspect_err(|_| scratch.path.push("[]".to_owned()))?;
            if !cursor.more(b']', "`,` or `]`")? {
                break;
            }
        }
    }
    list.close_list()
}

fn int32(cursor: &mut Cursor<'_>, at: usize) -> Result<i32, Fault> {
    const INT32: &str = "an int32";
    let value = cursor.integer(INT32)?;
    i32::try_from(value).map_err(|_| Fault {
        at,
        kind: FaultKind::OutOfRange(INT32),
    })
}

fn float64(cursor: &mut Cursor<'_>, at: usize) -> Result<f64, Fault> {
    const FLOAT64: &str = "a float64";
    if !matches!(cursor.peek(), Some(b'-' | b'0'..=b'9')) {
        return Err(cursor.mismatch(at, FLOAT64));
    }
    let number = cursor.number()?;
    match number.text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) | Err(_) => Err(Fault {
            at,
            kind: FaultKind::OutOfRange(FLOAT64),
        }),
    }
}

fn boolean(cursor: &mut Cursor<'_>, at: usize) -> Result<bool, Fault> {
    if cursor.accept_all(b"true") {
        return Ok(true);
    }
    if cursor.accept_all(b"false") {
        return Ok(false);
    }
    Err(cursor.mismatch(at, "a boolean"))
}

fn string<'a: 's, 's>(
    cursor: &mut Cursor<'a>,
    scratch: &'s mut Scratch,
    at: usize,
    wanted: &'static str,
) -> Result<&'s str, Fault> {
    if cursor.peek() != Some(b'"') {
        return Err(cursor.mismatch(at, wanted));
    }
    let plain = cursor.string(&mut scratch.unescaped)?;
    Ok(plain.unwrap_or(&scratch.unescaped))
}

/// How a timestamp column counts.
struct Resolution {
    per_second: i64,
    nanos_per_tick: u32,
    name: &'static str,
    finer: &'static str,
}

const MILLIS: Resolution = Resolution {
    per_second: 1_000,
    nanos_per_tick: 1_000_000,
    name: "a timestamp (integer milliseconds or RFC 3339 text)",
    finer: "a timestamp_ms (timestamp_us keeps microseconds)",
};
const MICROS: Resolution = Resolution {
    per_second: 1_000_000,
    nanos_per_tick: 1_000,
    name: "a timestamp (integer microseconds or RFC 3339 text)",
    finer: "a timestamp_us",
};

fn timestamp(
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
    at: usize,
    resolution: &Resolution,
) -> Result<i64, Fault> {
    if cursor.peek() != Some(b'"') {
        return cursor.integer(resolution.name);
    }
    let plain = cursor.string(&mut scratch.unescaped)?;
    let text = plain.unwrap_or(&scratch.unescaped);
    let instant = parse_rfc3339(text);
    let Instant {
        seconds,
        nanos,
        finer,
    } = instant.ok_or(Fault {
        at,
        kind: FaultKind::NotA(resolution.name),
    })?;
    if finer || nanos % resolution.nanos_per_tick != 0 {
        return Err(Fault {
            at,
            kind: FaultKind::Inexact(resolution.finer),
        });
    }
    // Years 0 to 9999 in microseconds stay below 2^59.
    Ok(seconds * resolution.per_second + i64::from(nanos / resolution.nanos_per_tick))
}

fn decimal(
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
    at: usize,
    (precision, scale): (u8, u8),
) -> Result<i128, Fault> {
    const DECIMAL: &str = "a decimal";
    let text = match cursor.peek() {
        Some(b'"') => {
            let plain = cursor.string(&mut scratch.unescaped)?;
            plain.unwrap_or(&scratch.unescaped)
        }
        Some(b'-' | b'0'..=b'9') => cursor.number()?.text,
        Some(_) | None => return Err(cursor.mismatch(at, DECIMAL)),
    };
    parse_decimal(text, precision, scale).map_err(|fault| Fault {
        at,
        kind: match fault {
            DecimalFault::NotANumber => FaultKind::NotA(DECIMAL),
            DecimalFault::OutOfRange => FaultKind::OutOfRange("the decimal's digits"),
            DecimalFault::Inexact => FaultKind::Inexact("the decimal's scale"),
        },
    })
}

fn base64_text(
    cursor: &mut Cursor<'_>,
    scratch: &mut Scratch,
    at: usize,
    values: &mut Variable,
) -> Result<(), Fault> {
    const BASE64: &str = "base64 text";
    let text = string(cursor, scratch, at, BASE64)?;
    let decoded = STANDARD.decode_vec(text, values.data_mut());
    decoded.map_err(|_| Fault {
        at,
        kind: FaultKind::NotA(BASE64),
    })?;
    values.close_value()
}
