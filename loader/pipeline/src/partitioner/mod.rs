//! Rows to output directories: by event time, by columns, or both.
//!
//! ```text
//! event_time = [a, b, "record timestamp"]   per row the first that holds a time
//!      └─► none: __HIVE_DEFAULT_PARTITION__ ─► outside the window: rejected ─► dt=…/hour=…
//! ```
//! Nothing here reads a clock or the machine's time zone data: the window is fixed by the plan's
//! time, and zones come from the database built into the program.

mod assign;
mod directories;

use std::fmt;

use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::quantity::Period;
use crate::schema::{ColumnType, TableSchema};

pub(crate) use assign::{Assignment, Partitioner};

/// Directory value for rows without a time or with a null key, as Hive writes it: readers keep
/// the key's type.
pub const DEFAULT_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// Text of [`EventTimeSource::RecordTimestamp`] in job files.
pub const RECORD_TIMESTAMP: &str = "record timestamp";

/// How rows are grouped into directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grouping {
    /// The levels of the path, outermost first; empty: all rows in the run's own directory.
    /// Default `dt` and `hour`.
    pub keys: Vec<GroupKey>,
    /// Where the event time comes from: the first source that holds a usable time. Default: the
    /// record timestamp.
    pub event_time: Vec<EventTimeSource>,
    /// Time zone of the time keys: `UTC` (default) or an IANA name.
    pub zone: String,
    /// Rows with an event time longer before the plan's time are rejected. Default 30 days.
    pub max_past: Period,
    /// Rows with an event time longer after the plan's time are rejected. Default 1 day.
    pub max_future: Period,
}

/// One level of the path, `name=value`; exactly one of `time` and `column` is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupKey {
    /// Name of the key, which no column may have.
    pub name: String,
    /// Format of the event time, of `%Y %m %d %j %H %M` and plain characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// A column of type boolean, int32, int64, string or date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
}

/// Unit of an integer event time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum TimeUnit {
    /// `s`: seconds.
    #[serde(rename = "s")]
    Seconds,
    /// `ms`: milliseconds (default).
    #[default]
    #[serde(rename = "ms")]
    Milliseconds,
    /// `us`: microseconds.
    #[serde(rename = "us")]
    Microseconds,
}

/// Where an event time may come from. Text form: a column's name, `"record timestamp"`, or
/// `{ column = "ts", unit = "s" }`.
///
/// Not a usable time, so that the next source is asked: null, text that is not RFC 3339, and the
/// integers 0 and -1, which producers write for "unknown" (also as the record timestamp). Any
/// other integer is a time, however unlikely; the window judges it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventTimeSource {
    /// A column: an integer, a timestamp, a date (its midnight in UTC) or RFC 3339 text.
    Column {
        /// Its name.
        column: String,
        /// For integers only.
        unit: TimeUnit,
    },
    /// The record's own timestamp.
    RecordTimestamp,
}

/// One thing wrong with a grouping.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GroupingProblem {
    /// Neither or both.
    #[error("grouping key `{key}` needs exactly one of time and column")]
    OneOf {
        /// The key.
        key: String,
    },
    /// The name cannot be a directory that readers see.
    #[error(
        "grouping key `{key}` must be a word of letters, digits, `_` and `-` that starts with a letter"
    )]
    Name {
        /// The key.
        key: String,
    },
    /// Two levels of one name.
    #[error("grouping key `{key}` is declared twice")]
    Duplicate {
        /// The key.
        key: String,
    },
    /// A format that cannot be used.
    #[error(
        "grouping key `{key}`: the format `{format}` may use %Y %m %d %j %H %M, at least one of them"
    )]
    Format {
        /// The key.
        key: String,
        /// The format.
        format: String,
    },
    /// No such column.
    #[error("grouping names the column `{column}`, which the schema does not have")]
    NoColumn {
        /// The column.
        column: String,
    },
    /// A column whose type does not serve.
    #[error("grouping cannot use the column `{column}` of type {found} as {role}")]
    ColumnType {
        /// The column.
        column: String,
        /// Its type.
        found: ColumnType,
        /// A key or an event time.
        role: &'static str,
    },
    /// A unit for a column that has one of its own.
    #[error("grouping gives a unit for `{column}`, but only integers take one")]
    Unit {
        /// The column.
        column: String,
    },
    /// No such zone.
    #[error("grouping names the time zone `{zone}`, which is not an IANA name known to this build")]
    Zone {
        /// The name.
        zone: String,
    },
}

/// Every problem of a grouping.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct GroupingProblems(pub Vec<GroupingProblem>);

impl fmt::Display for GroupingProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if position == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl Default for Grouping {
    fn default() -> Self {
        Self {
            keys: vec![
                GroupKey::time("dt", "%Y-%m-%d"),
                GroupKey::time("hour", "%H"),
            ],
            event_time: vec![EventTimeSource::RecordTimestamp],
            zone: "UTC".to_owned(),
            max_past: Period::days(30),
            max_future: Period::days(1),
        }
    }
}

impl GroupKey {
    /// A key from the event time.
    #[must_use]
    pub fn time(name: &str, format: &str) -> Self {
        Self {
            name: name.to_owned(),
            time: Some(format.to_owned()),
            column: None,
        }
    }

    /// A key from a column.
    #[must_use]
    pub fn column(name: &str, column: &str) -> Self {
        Self {
            name: name.to_owned(),
            time: None,
            column: Some(column.to_owned()),
        }
    }
}

impl Grouping {
    /// No grouping: all rows in one directory.
    #[must_use]
    pub fn none() -> Self {
        Self {
            keys: Vec::new(),
            ..Self::default()
        }
    }

    /// The names of the path's keys, which no column may have.
    pub fn key_names(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.name.as_str())
    }

    /// Reports every problem of the grouping with the schema it is to work on. Names that are both
    /// key and column are found by [`TableSchema::validate`].
    ///
    /// # Errors
    /// All problems found.
    pub fn validate(&self, schema: &TableSchema) -> Result<(), GroupingProblems> {
        let mut problems = Vec::new();
        for (index, key) in self.keys.iter().enumerate() {
            if self
                .key_names()
                .take(index)
                .any(|earlier| earlier.eq_ignore_ascii_case(&key.name))
            {
                problems.push(GroupingProblem::Duplicate {
                    key: key.name.clone(),
                });
            }
            key.validate(schema, &mut problems);
        }
        for source in &self.event_time {
            source.validate(schema, &mut problems);
        }
        if time_zone(&self.zone).is_none() {
            problems.push(GroupingProblem::Zone {
                zone: self.zone.clone(),
            });
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(GroupingProblems(problems))
        }
    }
}

impl GroupKey {
    fn validate(&self, schema: &TableSchema, problems: &mut Vec<GroupingProblem>) {
        let key = || self.name.clone();
        let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let starts_well = self.name.starts_with(|c: char| c.is_ascii_alphabetic());
        if !starts_well || !self.name.chars().all(letters) || self.name.len() > 64 {
            problems.push(GroupingProblem::Name { key: key() });
        }
        match (&self.time, &self.column) {
            (Some(format), None) => {
                if directories::step_ms(format).is_none() {
                    problems.push(GroupingProblem::Format {
                        key: key(),
                        format: format.clone(),
                    });
                }
            }
            (None, Some(column)) => {
                let usable = |column_type: &ColumnType| {
                    matches!(
                        column_type,
                        ColumnType::Boolean
                            | ColumnType::Int32
                            | ColumnType::Int64
                            | ColumnType::String
                            | ColumnType::Date
                    )
                };
                check_column(schema, column, usable, "a key", problems);
            }
            (Some(_), Some(_)) | (None, None) => {
                problems.push(GroupingProblem::OneOf { key: key() });
            }
        }
    }
}

impl EventTimeSource {
    fn validate(&self, schema: &TableSchema, problems: &mut Vec<GroupingProblem>) {
        let Self::Column { column, unit } = self else {
            return;
        };
        let integer = |found: &ColumnType| matches!(found, ColumnType::Int32 | ColumnType::Int64);
        let usable = |found: &ColumnType| {
            integer(found)
                || matches!(
                    found,
                    ColumnType::TimestampMs
                        | ColumnType::TimestampUs
                        | ColumnType::Date
                        | ColumnType::String
                )
        };
        check_column(schema, column, usable, "an event time", problems);
        let found = schema
            .columns
            .iter()
            .find(|declared| declared.name == *column);
        let takes_unit = found.is_none_or(|declared| integer(&declared.column_type));
        if *unit != TimeUnit::Milliseconds && !takes_unit {
            problems.push(GroupingProblem::Unit {
                column: column.clone(),
            });
        }
    }
}

fn check_column(
    schema: &TableSchema,
    name: &str,
    usable: impl Fn(&ColumnType) -> bool,
    role: &'static str,
    problems: &mut Vec<GroupingProblem>,
) {
    let column = name.to_owned();
    match schema.columns.iter().find(|declared| declared.name == name) {
        None => problems.push(GroupingProblem::NoColumn { column }),
        Some(declared) if usable(&declared.column_type) => {}
        Some(declared) => {
            let found = declared.column_type.clone();
            problems.push(GroupingProblem::ColumnType {
                column,
                found,
                role,
            });
        }
    }
}

/// The zone from the database built in, so that every machine has the same rules.
fn time_zone(name: &str) -> Option<TimeZone> {
    if name.eq_ignore_ascii_case("UTC") {
        return Some(TimeZone::UTC);
    }
    TimeZoneDatabase::bundled().get(name).ok()
}

impl fmt::Display for EventTimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Column { column, .. } => write!(f, "column `{column}`"),
            Self::RecordTimestamp => f.write_str(RECORD_TIMESTAMP),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum SourceForm {
    Text(String),
    Table(SourceTable),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceTable {
    column: String,
    #[serde(default)]
    unit: TimeUnit,
}

impl Serialize for EventTimeSource {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let form = match self {
            Self::RecordTimestamp => SourceForm::Text(RECORD_TIMESTAMP.to_owned()),
            Self::Column {
                column,
                unit: TimeUnit::Milliseconds,
            } if column != RECORD_TIMESTAMP => SourceForm::Text(column.clone()),
            Self::Column { column, unit } => SourceForm::Table(SourceTable {
                column: column.clone(),
                unit: *unit,
            }),
        };
        form.serialize(to)
    }
}

impl<'de> Deserialize<'de> for EventTimeSource {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let form = SourceForm::deserialize(from).map_err(|_| {
            serde::de::Error::custom(
                "an event_time source is a column's name, \"record timestamp\", or \
                 { column = \"…\", unit = \"s\" | \"ms\" | \"us\" }",
            )
        })?;
        Ok(match form {
            SourceForm::Text(text) if text == RECORD_TIMESTAMP => Self::RecordTimestamp,
            SourceForm::Text(column) => Self::Column {
                column,
                unit: TimeUnit::default(),
            },
            SourceForm::Table(SourceTable { column, unit }) => Self::Column { column, unit },
        })
    }
}

#[cfg(test)]
mod tests;
