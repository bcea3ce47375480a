//! The group of each row of a decoded batch.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, Int32Array, Int64Array, StringArray,
    TimestampMicrosecondArray, TimestampMillisecondArray,
};
use jiff::Timestamp;
use jiff::civil::Date;

use super::directories::{TimeSegments, escape_into, segment};
use super::{
    DEFAULT_PARTITION, EventTimeSource, Grouping, GroupingProblem, GroupingProblems, TimeUnit,
    time_zone,
};
use crate::decode::time::parse_rfc3339;
use crate::schema::{ColumnType, TableSchema};

/// Longest name of one directory that HDFS and Linux take, in bytes.
const MAX_SEGMENT_BYTES: usize = 255;

/// Assigns rows to directories.
#[derive(Debug)]
pub(crate) struct Partitioner {
    levels: Vec<Level>,
    sources: Vec<Source>,
    segments: TimeSegments,
    /// Whether any level needs the event time.
    by_time: bool,
    /// Whether all levels are times: then the directory follows from the time's number alone.
    only_time: bool,
    earliest_ms: i64,
    latest_ms: i64,
}

#[derive(Debug)]
enum Level {
    /// The n-th of the time segments; the name for rows without a time.
    Time {
        position: usize,
        default: String,
    },
    Column {
        name: String,
        index: usize,
    },
}

#[derive(Debug)]
struct Source {
    /// None is the record timestamp.
    column: Option<usize>,
    unit: TimeUnit,
    shown: String,
}

/// What [`Partitioner::assign`] found, row by row.
#[derive(Debug, Default)]
pub(crate) struct Assignment {
    /// Directories in order of their first row.
    pub(crate) directories: Vec<Arc<str>>,
    /// Per row the index of its directory; [`Assignment::REJECTED`] for rejected rows.
    pub(crate) group_of_row: Vec<u32>,
    /// Per row its event time; None without one.
    pub(crate) event_time_ms: Vec<Option<i64>>,
    /// Per row the index of the source its time came from; one beyond the last without one.
    pub(crate) source_of_row: Vec<u8>,
    /// Rejected rows, ascending, and why.
    pub(crate) rejects: Vec<(usize, String)>,
}

impl Assignment {
    pub(crate) const REJECTED: u32 = u32::MAX;
}

/// A column as a source of times.
enum TimeValues<'a> {
    Record(&'a [i64]),
    Int32(&'a Int32Array),
    Int64(&'a Int64Array),
    Millis(&'a TimestampMillisecondArray),
    Micros(&'a TimestampMicrosecondArray),
    Date(&'a Date32Array),
    Text(&'a StringArray),
    Nothing,
}

/// A column as a source of directory names.
enum KeyValues<'a> {
    Boolean(&'a BooleanArray),
    Int32(&'a Int32Array),
    Int64(&'a Int64Array),
    Date(&'a Date32Array),
    Text(&'a StringArray),
    Nothing,
}

/// An event time, or why a source has none.
#[derive(Clone, Copy)]
enum Found {
    Time(i64),
    /// A number, but beyond what milliseconds can count.
    Beyond,
    Nothing,
}

impl Partitioner {
    pub(crate) fn new(
        grouping: &Grouping,
        schema: &TableSchema,
        plan_time_ms: i64,
    ) -> Result<Self, GroupingProblems> {
        grouping.validate(schema)?;
        let position_of = |name: &str| {
            schema
                .columns
                .iter()
                .position(|column| column.name == name)
                .ok_or_else(|| {
                    let column = name.to_owned();
                    GroupingProblems(vec![GroupingProblem::NoColumn { column }])
                })
        };
        let zone = time_zone(&grouping.zone).ok_or_else(|| {
            let zone = grouping.zone.clone();
            GroupingProblems(vec![GroupingProblem::Zone { zone }])
        })?;
        let mut formats = Vec::new();
        let mut levels = Vec::new();
        for key in &grouping.keys {
            if let Some(format) = &key.time {
                let default = segment(&key.name, DEFAULT_PARTITION);
                levels.push(Level::Time {
                    position: formats.len(),
                    default,
                });
                formats.push((key.name.clone(), format.clone()));
            } else if let Some(column) = &key.column {
                let index = position_of(column)?;
                levels.push(Level::Column {
                    name: key.name.clone(),
                    index,
                });
            }
        }
        let mut sources = Vec::new();
        for source in &grouping.event_time {
            let (column, unit) = match source {
                EventTimeSource::RecordTimestamp => (None, TimeUnit::Milliseconds),
                EventTimeSource::Column { column, unit } => (Some(position_of(column)?), *unit),
            };
            sources.push(Source {
                column,
                unit,
                shown: source.to_string(),
            });
        }
        Ok(Self {
            by_time: !formats.is_empty(),
            only_time: formats.len() == levels.len(),
            levels,
            sources,
            segments: TimeSegments::new(formats, zone),
            earliest_ms: plan_time_ms.saturating_sub(grouping.max_past.as_ms()),
            latest_ms: plan_time_ms.saturating_add(grouping.max_future.as_ms()),
        })
    }

    /// Assigns every row. `columns` are those of the schema in order; the record timestamps have
    /// one entry per row, -1 for none.
    pub(crate) fn assign(
        &mut self,
        schema: &TableSchema,
        columns: &[ArrayRef],
        record_timestamps: &[i64],
    ) -> Assignment {
        self.segments.forget_if_large();
        let times: Vec<TimeValues<'_>> = self
            .sources
            .iter()
            .map(|source| TimeValues::new(source.column, schema, columns, record_timestamps))
            .collect();
        let keys: Vec<KeyValues<'_>> = self
            .levels
            .iter()
            .map(|level| KeyValues::new(level, schema, columns))
            .collect();
        let rows = record_timestamps.len();
        let mut groups = Groups::new(rows);
        for row in 0..rows {
            let (source, time) = match self.event_time(&times, row) {
                Ok(found) => found,
                Err(reason) => {
                    groups.reject(row, reason);
                    continue;
                }
            };
            let number = time.and_then(|time| self.segments.find(time));
            let group = if self.only_time {
                groups.of_time(number, |path| self.path(path, number, &keys, row))
            } else {
                groups.of_path(|path| self.path(path, number, &keys, row))
            };
            groups.push(row, group, time, source);
        }
        groups.found
    }

    /// The first usable time and the index of its source; an error is the reason to reject the row.
    #[inline]
    fn event_time(
        &self,
        times: &[TimeValues<'_>],
        row: usize,
    ) -> Result<(usize, Option<i64>), String> {
        for (index, (source, values)) in self.sources.iter().zip(times).enumerate() {
            match values.at(row, source.unit) {
                Found::Nothing => {}
                Found::Time(time) if (self.earliest_ms..=self.latest_ms).contains(&time) => {
                    return Ok((index, Some(time)));
                }
                // Without a level of time nobody asked for a judgement.
                Found::Time(_) | Found::Beyond if !self.by_time => {}
                Found::Time(time) => return Err(self.outside(time, &source.shown)),
                Found::Beyond => {
                    return Err(format!(
                        "the event time ({}) is beyond all years",
                        source.shown
                    ));
                }
            }
        }
        Ok((self.sources.len(), None))
    }

    #[cold]
    fn outside(&self, time_ms: i64, source: &str) -> String {
        let (side, bound, option) = if time_ms < self.earliest_ms {
            ("before", self.earliest_ms, "max_past")
        } else {
            ("after", self.latest_ms, "max_future")
        };
        let (time, bound) = (instant_text(time_ms), instant_text(bound));
        format!("the event time {time} ({source}) is {side} the window's bound {bound} ({option})")
    }

    /// Writes the row's directory; an error is the reason to reject the row.
    fn path(
        &self,
        path: &mut String,
        time: Option<usize>,
        keys: &[KeyValues<'_>],
        row: usize,
    ) -> Result<(), String> {
        let times = time.map(|number| self.segments.segments(number));
        for (level, values) in self.levels.iter().zip(keys) {
            if !path.is_empty() {
                path.push('/');
            }
            match level {
                Level::Time { position, default } => {
                    let text = times.and_then(|times| times.get(*position));
                    path.push_str(text.unwrap_or(default));
                }
                Level::Column { name, .. } => {
                    let start = path.len();
                    path.push_str(name);
                    path.push('=');
                    values.write(row, path);
                    let length = path.len() - start;
                    if length > MAX_SEGMENT_BYTES {
                        return Err(format!(
                            "the directory for `{name}` would need {length} bytes, more than \
                             {MAX_SEGMENT_BYTES}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The assignment while it grows.
struct Groups {
    found: Assignment,
    by_path: HashMap<Arc<str>, u32>,
    /// Group per time number, for paths made of times only.
    by_time: HashMap<Option<usize>, u32>,
    last_time: Option<(Option<usize>, u32)>,
    path: String,
}

impl Groups {
    fn new(rows: usize) -> Self {
        let found = Assignment {
            group_of_row: Vec::with_capacity(rows),
            event_time_ms: Vec::with_capacity(rows),
            source_of_row: Vec::with_capacity(rows),
            ..Assignment::default()
        };
        let (by_path, by_time) = (HashMap::new(), HashMap::new());
        Self {
            found,
            by_path,
            by_time,
            last_time: None,
            path: String::new(),
        }
    }

    #[inline]
    fn of_time(
        &mut self,
        number: Option<usize>,
        write: impl FnOnce(&mut String) -> Result<(), String>,
    ) -> Result<u32, String> {
        if let Some((last, group)) = self.last_time
            && last == number
        {
            return Ok(group);
        }
        let group = match self.by_time.get(&number) {
            Some(group) => *group,
            None => {
                let group = self.of_path(write)?;
                self.by_time.insert(number, group);
                group
            }
        };
        self.last_time = Some((number, group));
        Ok(group)
    }

    fn of_path(
        &mut self,
        write: impl FnOnce(&mut String) -> Result<(), String>,
    ) -> Result<u32, String> {
        self.path.clear();
        write(&mut self.path)?;
        if let Some(group) = self.by_path.get(self.path.as_str()) {
            return Ok(*group);
        }
        let directory: Arc<str> = Arc::from(self.path.as_str());
        let group = u32::try_from(self.found.directories.len()).unwrap_or(Assignment::REJECTED);
        self.found.directories.push(Arc::clone(&directory));
        self.by_path.insert(directory, group);
        Ok(group)
    }

    #[inline]
    fn push(&mut self, row: usize, group: Result<u32, String>, time: Option<i64>, source: usize) {
        match group {
            Ok(group) => {
                self.found.group_of_row.push(group);
                self.found.event_time_ms.push(time);
                self.found
                    .source_of_row
                    .push(u8::try_from(source).unwrap_or(u8::MAX));
            }
            Err(reason) => self.reject(row, reason),
        }
    }

    #[cold]
    fn reject(&mut self, row: usize, reason: String) {
        self.found.group_of_row.push(Assignment::REJECTED);
        self.found.event_time_ms.push(None);
        self.found.source_of_row.push(u8::MAX);
        self.found.rejects.push((row, reason));
    }
}

impl<'a> TimeValues<'a> {
    fn new(
        column: Option<usize>,
        schema: &TableSchema,
        columns: &'a [ArrayRef],
        record_timestamps: &'a [i64],
    ) -> Self {
        let Some(index) = column else {
            return Self::Record(record_timestamps);
        };
        let (Some(column), Some(array)) = (schema.columns.get(index), columns.get(index)) else {
            return Self::Nothing;
        };
        match &column.column_type {
            ColumnType::Int32 => Self::Int32(array.as_primitive::<Int32Type>()),
            ColumnType::Int64 => Self::Int64(array.as_primitive::<Int64Type>()),
            ColumnType::TimestampMs => {
                Self::Millis(array.as_primitive::<TimestampMillisecondType>())
            }
            ColumnType::TimestampUs => {
                Self::Micros(array.as_primitive::<TimestampMicrosecondType>())
            }
            ColumnType::Date => Self::Date(array.as_primitive::<Date32Type>()),
            ColumnType::String => Self::Text(array.as_string::<i32>()),
            ColumnType::Boolean
            | ColumnType::Float64
            | ColumnType::Binary
            | ColumnType::Decimal { .. }
            | ColumnType::List(_)
            | ColumnType::Struct(_)
            | ColumnType::Json => Self::Nothing,
        }
    }

    #[inline]
    fn at(&self, row: usize, unit: TimeUnit) -> Found {
        match self {
            Self::Record(values) => match values.get(row) {
                Some(value) => integer_time(*value, TimeUnit::Milliseconds),
                None => Found::Nothing,
            },
            Self::Int32(values) if values.is_valid(row) => {
                integer_time(i64::from(values.value(row)), unit)
            }
            Self::Int64(values) if values.is_valid(row) => integer_time(values.value(row), unit),
            Self::Millis(values) if values.is_valid(row) => {
                integer_time(values.value(row), TimeUnit::Milliseconds)
            }
            Self::Micros(values) if values.is_valid(row) => {
                integer_time(values.value(row), TimeUnit::Microseconds)
            }
            Self::Date(values) if values.is_valid(row) => {
                Found::Time(i64::from(values.value(row)) * 86_400_000)
            }
            Self::Text(values) if values.is_valid(row) => match parse_rfc3339(values.value(row)) {
                Some(instant) => {
                    Found::Time(instant.seconds * 1_000 + i64::from(instant.nanos / 1_000_000))
                }
                None => Found::Nothing,
            },
            Self::Int32(_)
            | Self::Int64(_)
            | Self::Millis(_)
            | Self::Micros(_)
            | Self::Date(_)
            | Self::Text(_)
            | Self::Nothing => Found::Nothing,
        }
    }
}

#[inline]
fn integer_time(value: i64, unit: TimeUnit) -> Found {
    if matches!(value, 0 | -1) {
        return Found::Nothing;
    }
    match unit {
        TimeUnit::Milliseconds => Found::Time(value),
        TimeUnit::Microseconds => Found::Time(value.div_euclid(1_000)),
        TimeUnit::Seconds => value.checked_mul(1_000).map_or(Found::Beyond, Found::Time),
    }
}

impl<'a> KeyValues<'a> {
    fn new(level: &Level, schema: &TableSchema, columns: &'a [ArrayRef]) -> Self {
        let Level::Column { index, .. } = level else {
            return Self::Nothing;
        };
        let (Some(column), Some(array)) = (schema.columns.get(*index), columns.get(*index)) else {
            return Self::Nothing;
        };
        match &column.column_type {
            ColumnType::Boolean => Self::Boolean(array.as_boolean()),
            ColumnType::Int32 => Self::Int32(array.as_primitive::<Int32Type>()),
            ColumnType::Int64 => Self::Int64(array.as_primitive::<Int64Type>()),
            ColumnType::Date => Self::Date(array.as_primitive::<Date32Type>()),
            ColumnType::String => Self::Text(array.as_string::<i32>()),
            ColumnType::Float64
            | ColumnType::TimestampMs
            | ColumnType::TimestampUs
            | ColumnType::Binary
            | ColumnType::Decimal { .. }
            | ColumnType::List(_)
            | ColumnType::Struct(_)
            | ColumnType::Json => Self::Nothing,
        }
    }

    /// Appends the row's value; null and the empty string are Hive's default.
    fn write(&self, row: usize, path: &mut String) {
        // Writing to a String cannot fail.
        let _infallible = match self {
            Self::Boolean(values) if values.is_valid(row) => write!(path, "{}", values.value(row)),
            Self::Int32(values) if values.is_valid(row) => write!(path, "{}", values.value(row)),
            Self::Int64(values) if values.is_valid(row) => write!(path, "{}", values.value(row)),
            Self::Date(values) if values.is_valid(row) => match date_of(values.value(row)) {
                Some(date) => write!(path, "{date}"),
                None => write!(path, "{DEFAULT_PARTITION}"),
            },
            Self::Text(values) if values.is_valid(row) && !values.value(row).is_empty() => {
                escape_into(values.value(row), path);
                Ok(())
            }
            Self::Boolean(_)
            | Self::Int32(_)
            | Self::Int64(_)
            | Self::Date(_)
            | Self::Text(_)
            | Self::Nothing => write!(path, "{DEFAULT_PARTITION}"),
        };
    }
}

fn date_of(days: i32) -> Option<Date> {
    let time = Timestamp::from_second(i64::from(days) * 86_400).ok()?;
    Some(jiff::tz::Offset::UTC.to_datetime(time).date())
}

fn instant_text(time_ms: i64) -> String {
    match Timestamp::from_millisecond(time_ms) {
        Ok(time) => time.to_string(),
        Err(_) => format!("{time_ms} ms since 1970"),
    }
}
