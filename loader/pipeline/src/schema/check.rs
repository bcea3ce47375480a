//! What makes a schema wrong, and which changes between two runs are allowed.

use std::collections::HashMap;
use std::fmt;

use thiserror::Error;

use super::text::MAX_TYPE_DEPTH;
use super::{COORDINATES, Column, ColumnType, TableSchema};

/// One thing wrong with a schema or with its change.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SchemaProblem {
    /// Nothing to write.
    #[error("the schema has no columns: declare some, or set rest_column or coordinates")]
    NoColumns,
    /// A column without a name.
    #[error("column {position} has an empty name")]
    EmptyName {
        /// Counted from 1.
        position: usize,
    },
    /// Two columns whose names differ at most in case.
    #[error("column `{column}` is declared twice (names are compared without regard to case)")]
    DuplicateColumn {
        /// The later column.
        column: String,
    },
    /// Two columns that read the same JSON key.
    #[error("columns `{first}` and `{second}` both read the field `{field}`")]
    DuplicateField {
        /// The earlier column.
        first: String,
        /// The later column.
        second: String,
        /// The JSON key.
        field: String,
    },
    /// A column named as a partition key, which readers take from the path.
    #[error(
        "column `{column}` has the name of a partition key: rename the column (name = …, \
         field = \"{column}\") or the key"
    )]
    PartitionKey {
        /// The column.
        column: String,
    },
    /// A column named as a coordinate.
    #[error(
        "column `{column}` has the name of a coordinate column: rename it, or set coordinates = false"
    )]
    Coordinate {
        /// The column.
        column: String,
    },
    /// A decimal whose digits Parquet cannot hold.
    #[error("column `{column}`: {found} needs 1 to 38 digits and a scale not above them")]
    Decimal {
        /// The column, dotted inside structs.
        column: String,
        /// The type as declared.
        found: ColumnType,
    },
    /// A struct without fields, which Parquet cannot hold.
    #[error("column `{column}` is a struct without fields")]
    EmptyStruct {
        /// The column.
        column: String,
    },
    /// A type nested too deep.
    #[error("column `{column}` is nested more than {MAX_TYPE_DEPTH} deep")]
    TooDeep {
        /// The column.
        column: String,
    },
    /// A new column that old rows cannot have.
    #[error("new column `{column}` must be nullable: earlier runs do not have it")]
    AddedRequired {
        /// The column.
        column: String,
    },
    /// A column that was nullable and no longer is.
    #[error("column `{column}` was nullable and must stay so: earlier runs may hold nulls")]
    MadeRequired {
        /// The column.
        column: String,
    },
    /// A type changed in a way that is not a widening.
    #[error(
        "column `{column}` changes from {from} to {to}: only a widening is allowed (int32 to int64, more digits of a decimal)"
    )]
    Retyped {
        /// The column.
        column: String,
        /// The type before.
        from: ColumnType,
        /// The type now.
        to: ColumnType,
    },
}

/// Every problem of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct SchemaProblems(pub Vec<SchemaProblem>);

impl fmt::Display for SchemaProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if position == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// One allowed difference between the schemas of two runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaChange {
    /// A nullable column is new.
    Added {
        /// The column, dotted inside structs.
        column: String,
    },
    /// A type takes more values than before, all old ones among them, or nulls as well.
    Widened {
        /// The column.
        column: String,
        /// Before.
        from: String,
        /// Now.
        to: String,
    },
    /// A column is gone; earlier runs keep it.
    Dropped {
        /// The column.
        column: String,
    },
}

impl fmt::Display for SchemaChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { column } => write!(f, "column `{column}` added"),
            Self::Widened { column, from, to } => {
                write!(f, "column `{column}` widened from {from} to {to}")
            }
            Self::Dropped { column } => write!(f, "column `{column}` dropped"),
        }
    }
}

fn all_or_nothing(problems: Vec<SchemaProblem>) -> Result<(), SchemaProblems> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(SchemaProblems(problems))
    }
}

/// See [`TableSchema::validate`].
pub(super) fn validate<'k>(
    schema: &TableSchema,
    partition_keys: impl IntoIterator<Item = &'k str>,
) -> Result<(), SchemaProblems> {
    let mut problems = Vec::new();
    if schema.columns.is_empty() && schema.rest_column.is_none() && !schema.coordinates {
        problems.push(SchemaProblem::NoColumns);
    }
    let keys: Vec<String> = partition_keys.into_iter().map(str::to_lowercase).collect();
    let names = schema
        .columns
        .iter()
        .map(|column| &column.name)
        .chain(&schema.rest_column);
    let mut seen: HashMap<String, ()> = HashMap::new();
    for (index, name) in names.enumerate() {
        let lower = name.to_lowercase();
        if name.is_empty() {
            problems.push(SchemaProblem::EmptyName {
                position: index + 1,
            });
            continue;
        }
        if keys.contains(&lower) {
            problems.push(SchemaProblem::PartitionKey {
                column: name.clone(),
            });
        }
        if schema.coordinates && COORDINATES.contains(&lower.as_str()) {
            problems.push(SchemaProblem::Coordinate {
                column: name.clone(),
            });
        }
        if seen.insert(lower, ()).is_some() {
            problems.push(SchemaProblem::DuplicateColumn {
                column: name.clone(),
            });
        }
    }
    let mut readers: HashMap<&str, &str> = HashMap::new();
    for column in &schema.columns {
        if let Some(first) = readers.insert(column.json_key(), &column.name) {
            problems.push(SchemaProblem::DuplicateField {
                first: first.to_owned(),
                second: column.name.clone(),
                field: column.json_key().to_owned(),
            });
        }
        validate_type(&column.name, &column.column_type, 0, &mut problems);
    }
    all_or_nothing(problems)
}

fn validate_type(
    path: &str,
    column_type: &ColumnType,
    depth: usize,
    problems: &mut Vec<SchemaProblem>,
) {
    if depth >= MAX_TYPE_DEPTH {
        problems.push(SchemaProblem::TooDeep {
            column: path.to_owned(),
        });
        return;
    }
    match column_type {
        ColumnType::Decimal { precision, scale } => {
            if !(1..=38).contains(precision) || scale > precision {
                problems.push(SchemaProblem::Decimal {
                    column: path.to_owned(),
                    found: column_type.clone(),
                });
            }
        }
        ColumnType::List(element) => {
            validate_type(
                &format!("{path}[]"),
                &element.column_type,
                depth + 1,
                problems,
            );
        }
        ColumnType::Struct(fields) => {
            if fields.is_empty() {
                problems.push(SchemaProblem::EmptyStruct {
                    column: path.to_owned(),
                });
            }
            let mut seen: HashMap<String, ()> = HashMap::new();
            for (index, field) in fields.iter().enumerate() {
                let inner = format!("{path}.{}", field.name);
                if field.name.is_empty() {
                    problems.push(SchemaProblem::EmptyName {
                        position: index + 1,
                    });
                }
                if seen.insert(field.name.to_lowercase(), ()).is_some() {
                    problems.push(SchemaProblem::DuplicateColumn {
                        column: inner.clone(),
                    });
                }
                validate_type(&inner, &field.column_type, depth + 1, problems);
            }
        }
        ColumnType::Boolean
        | ColumnType::Int32
        | ColumnType::Int64
        | ColumnType::Float64
        | ColumnType::String
        | ColumnType::Binary
        | ColumnType::Date
        | ColumnType::TimestampMs
        | ColumnType::TimestampUs
        | ColumnType::Json => {}
    }
}

/// Compares the schemas of two runs by column name. A column may be added if it is nullable,
/// dropped, made nullable, or widened: int32 to int64, a decimal to more digits in front of the
/// point, and the same inside lists and structs. int64 to float64 is no widening, since it is not
/// exact. Which JSON key a column reads may change freely: files do not show it. Order counts for
/// nothing.
///
/// # Errors
/// Every change that is not allowed, naming its column.
pub fn check_change(
    old: &TableSchema,
    new: &TableSchema,
) -> Result<Vec<SchemaChange>, SchemaProblems> {
    let mut comparison = Comparison::default();
    comparison.columns("", &old.columns, &new.columns);
    let coordinates = |schema: &TableSchema| {
        let names: &[&str] = if schema.coordinates {
            &COORDINATES
        } else {
            &[]
        };
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    comparison.names(old.rest_column.as_slice(), new.rest_column.as_slice());
    comparison.names(&coordinates(old), &coordinates(new));
    all_or_nothing(comparison.problems)?;
    Ok(comparison.changes)
}

#[derive(Default)]
struct Comparison {
    changes: Vec<SchemaChange>,
    problems: Vec<SchemaProblem>,
}

impl Comparison {
    fn names(&mut self, old: &[String], new: &[String]) {
        let added = new.iter().filter(|name| !old.contains(name)).cloned();
        self.changes
            .extend(added.map(|column| SchemaChange::Added { column }));
        let dropped = old.iter().filter(|name| !new.contains(name)).cloned();
        self.changes
            .extend(dropped.map(|column| SchemaChange::Dropped { column }));
    }

    fn columns(&mut self, prefix: &str, old: &[Column], new: &[Column]) {
        for column in new {
            let path = format!("{prefix}{}", column.name);
            match old.iter().find(|before| before.name == column.name) {
                Some(before) => self.column(path, before, column),
                None if column.nullable => self.changes.push(SchemaChange::Added { column: path }),
                None => self
                    .problems
                    .push(SchemaProblem::AddedRequired { column: path }),
            }
        }
        for column in old {
            if !new.iter().any(|after| after.name == column.name) {
                let path = format!("{prefix}{}", column.name);
                self.changes.push(SchemaChange::Dropped { column: path });
            }
        }
    }

    fn column(&mut self, path: String, old: &Column, new: &Column) {
        if old.nullable && !new.nullable {
            self.problems.push(SchemaProblem::MadeRequired {
                column: path.clone(),
            });
        }
        if !old.nullable && new.nullable {
            self.changes.push(SchemaChange::Widened {
                column: path.clone(),
                from: format!("{} not null", old.column_type),
                to: new.column_type.to_string(),
            });
        }
        match (&old.column_type, &new.column_type) {
            (from, to) if from == to => {}
            (ColumnType::List(from), ColumnType::List(to)) => {
                self.column(format!("{path}[]"), from, to);
            }
            (ColumnType::Struct(from), ColumnType::Struct(to)) => {
                self.columns(&format!("{path}."), from, to);
            }
            (from, to) if widens(from, to) => self.changes.push(SchemaChange::Widened {
                column: path,
                from: from.to_string(),
                to: to.to_string(),
            }),
            (from, to) => self.problems.push(SchemaProblem::Retyped {
                column: path,
                from: from.clone(),
                to: to.clone(),
            }),
        }
    }
}

fn widens(from: &ColumnType, to: &ColumnType) -> bool {
    if let (
        ColumnType::Decimal {
            precision: before,
            scale: old_scale,
        },
        ColumnType::Decimal {
            precision: after,
            scale: new_scale,
        },
    ) = (from, to)
    {
        return old_scale == new_scale && after > before;
    }
    matches!((from, to), (ColumnType::Int32, ColumnType::Int64))
}
