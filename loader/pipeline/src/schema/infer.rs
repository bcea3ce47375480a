//! A schema from samples of JSON objects, for the first run of a dataset that declares none.

use std::collections::HashMap;

use super::{Column, ColumnType, ELEMENT};
use crate::decode::{Cursor, Fault, FaultKind};

/// Objects with more fields than this are taken for maps with data as keys: their type is `json`
/// (and at the top, what comes later stays unknown).
const MAX_FIELDS: usize = 1_000;

/// Structs nested deeper than this are `json`.
const MAX_STRUCT_DEPTH: usize = 8;

/// What [`infer`] made of its samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inferred {
    /// All nullable, in order of first appearance.
    pub columns: Vec<Column>,
    /// Samples that were one JSON object each.
    pub used: u64,
    /// Samples that were not, and count for nothing.
    pub unusable: u64,
}

/// What is known of one value's type. Ordered from nothing to anything.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Null,
    Boolean,
    Integer,
    Float,
    Text,
    Array(Box<Self>),
    Object(Fields),
    /// Types that no column but `json` takes together.
    Any,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Fields {
    names: Vec<String>,
    types: Vec<Seen>,
    index: HashMap<String, usize>,
}

/// Infers columns from samples, the same ones for the same samples in the same order. An integer
/// within 64 bits is `int64`; integers and fractions in one field are `float64`; an integer beyond
/// 64 bits is `json`, since a double would round it; text is `string` whatever it looks like;
/// arrays are `list<…>` and objects `struct<…>`, each merged over all samples; what was only ever
/// null, an empty array's element, an empty object, and fields whose types conflict are `json`,
/// which takes any value verbatim.
pub fn infer<'s>(samples: impl IntoIterator<Item = &'s [u8]>) -> Inferred {
    let mut fields = Fields::default();
    let (mut used, mut unusable) = (0, 0);
    for sample in samples {
        match sample_fields(sample) {
            Ok(found) => {
                fields.merge(found);
                used += 1;
            }
            Err(_) => unusable += 1,
        }
    }
    Inferred {
        columns: fields.into_columns(),
        used,
        unusable,
    }
}

fn sample_fields(sample: &[u8]) -> Result<Fields, Fault> {
    let mut cursor = Cursor::new(sample)?;
    cursor.skip_space();
    if cursor.peek() != Some(b'{') {
        return Err(cursor.fault(FaultKind::NotAnObject));
    }
    let fields = object(&mut cursor, 0)?;
    cursor.skip_space();
    match cursor.peek() {
        Some(_) => Err(cursor.fault(FaultKind::Trailing)),
        None => Ok(fields),
    }
}

fn object(cursor: &mut Cursor<'_>, depth: usize) -> Result<Fields, Fault> {
    let mut fields = Fields::default();
    cursor.enter(depth)?;
    cursor.skip_space();
    if cursor.accept(b'}') {
        return Ok(fields);
    }
    loop {
        let mut unescaped = String::new();
        let key_at = cursor.at();
        let key = cursor
            .string(&mut unescaped)?
            .map_or(unescaped, str::to_owned);
        cursor.skip_space();
        cursor.expect(b':', "`:`")?;
        cursor.skip_space();
        let seen = value(cursor, depth + 1)?;
        if fields.index.contains_key(&key) {
            return Err(Fault {
                at: key_at,
                kind: FaultKind::DuplicateKey,
            });
        }
        fields.merge_one(key, seen);
        if !cursor.more(b'}', "`,` or `}`")? {
            return Ok(fields);
        }
    }
}

fn value(cursor: &mut Cursor<'_>, depth: usize) -> Result<Seen, Fault> {
    let at = cursor.at();
    Ok(match cursor.peek() {
        Some(b'{') if depth <= MAX_STRUCT_DEPTH => {
            let fields = object(cursor, depth)?;
            if fields.names.len() > MAX_FIELDS {
                Seen::Any
            } else {
                Seen::Object(fields)
            }
        }
        Some(b'[') if depth <= MAX_STRUCT_DEPTH => array(cursor, depth)?,
        Some(b'-' | b'0'..=b'9') => {
            let number = cursor.number()?;
            match (number.integer, number.text.parse::<i64>()) {
                (true, Ok(_)) => Seen::Integer,
                (true, Err(_)) => Seen::Any,
                (false, _) => Seen::Float,
            }
        }
        Some(first) => {
            cursor.skip_value(depth)?;
            match first {
                b'"' => Seen::Text,
                b't' | b'f' => Seen::Boolean,
                b'n' => Seen::Null,
                _ => Seen::Any,
            }
        }
        None => {
            return Err(Fault {
                at,
                kind: FaultKind::Truncated,
            });
        }
    })
}

fn array(cursor: &mut Cursor<'_>, depth: usize) -> Result<Seen, Fault> {
    let mut element = Seen::Null;
    cursor.enter(depth)?;
    cursor.skip_space();
    if !cursor.accept(b']') {
        loop {
            let seen = value(cursor, depth + 1)?;
            element = element.merged(seen);
            if !cursor.more(b']', "`,` or `]`")? {
                break;
            }
        }
    }
    Ok(Seen::Array(Box::new(element)))
}

impl Fields {
    fn merge(&mut self, other: Self) {
        for (name, seen) in other.names.into_iter().zip(other.types) {
            self.merge_one(name, seen);
        }
    }

    fn merge_one(&mut self, name: String, seen: Seen) {
        if let Some(index) = self.index.get(&name) {
            if let Some(known) = self.types.get_mut(*index) {
                let before = std::mem::replace(known, Seen::Null);
                *known = before.merged(seen);
            }
        } else if self.names.len() <= MAX_FIELDS {
            self.index.insert(name.clone(), self.names.len());
            self.names.push(name);
            self.types.push(seen);
        }
    }

    fn into_columns(self) -> Vec<Column> {
        let columns = self.names.into_iter().zip(self.types);
        columns
            .map(|(name, seen)| Column::new(name, seen.into_type()))
            .collect()
    }
}

impl Seen {
    fn merged(self, other: Self) -> Self {
        match (self, other) {
            (Self::Null, seen) | (seen, Self::Null) => seen,
            (Self::Integer, Self::Float) | (Self::Float, Self::Integer) => Self::Float,
            (Self::Array(one), Self::Array(two)) => Self::Array(Box::new(one.merged(*two))),
            (Self::Object(mut one), Self::Object(two)) => {
                one.merge(two);
                if one.names.len() > MAX_FIELDS {
                    Self::Any
                } else {
                    Self::Object(one)
                }
            }
            (one, two) if one == two => one,
            (_, _) => Self::Any,
        }
    }

    fn into_type(self) -> ColumnType {
        match self {
            Self::Null | Self::Any => ColumnType::Json,
            Self::Boolean => ColumnType::Boolean,
            Self::Integer => ColumnType::Int64,
            Self::Float => ColumnType::Float64,
            Self::Text => ColumnType::String,
            Self::Array(element) => {
                ColumnType::List(Box::new(Column::new(ELEMENT, element.into_type())))
            }
            Self::Object(fields) if fields.names.is_empty() => ColumnType::Json,
            Self::Object(fields) => ColumnType::Struct(fields.into_columns()),
        }
    }
}
