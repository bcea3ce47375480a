//! What happens to records that are no rows.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::schema::TableSchema;

/// A record without a value (null). A value of 0 bytes is a bad record, not a tombstone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TombstonePolicy {
    /// The run fails (default).
    #[default]
    Fail,
    /// Left out and counted.
    Skip,
    /// Written as a row of nulls with its coordinates and key.
    Write,
    /// Set aside with the rejected records.
    Reject,
}

/// A record that cannot be decoded, or whose event time lies outside the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadRecordPolicy {
    /// The run fails (default).
    #[default]
    Fail,
    /// Set aside with the rejected records.
    Reject,
}

/// What happens to records that are no rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordPolicy {
    /// Default `fail`.
    pub tombstones: TombstonePolicy,
    /// Default `fail`.
    pub bad_records: BadRecordPolicy,
}

/// A policy that the schema cannot serve.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyProblem {
    /// A row of nulls needs nullable columns.
    #[error("tombstones = \"write\" needs nullable columns, but `{column}` is required")]
    RequiredColumn {
        /// The first required column.
        column: String,
    },
    /// A row of nulls without its key says nothing.
    #[error("tombstones = \"write\" needs the coordinate columns, which hold the key")]
    NoCoordinates,
}

impl RecordPolicy {
    /// Checks that the schema can hold what the policy writes.
    ///
    /// # Errors
    /// What is in the way.
    pub fn validate(&self, schema: &TableSchema) -> Result<(), PolicyProblem> {
        if self.tombstones != TombstonePolicy::Write {
            return Ok(());
        }
        if !schema.coordinates {
            return Err(PolicyProblem::NoCoordinates);
        }
        match schema.columns.iter().find(|column| !column.nullable) {
            Some(column) => Err(PolicyProblem::RequiredColumn {
                column: column.name.clone(),
            }),
            None => Ok(()),
        }
    }
}
