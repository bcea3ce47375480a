//! What an attempt of a task did: the document that travels inside its directory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::manifest::{LoadedRange, PublishedFile};
use crate::plan::{Task, TaskRange};
use crate::sealed::Document;

/// Name of the report inside an attempt's directory.
pub const REPORT: &str = "attempt.json";

/// Written last by an attempt, before its one rename to `done`. The same task gives the same report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptReport {
    /// Number of the task.
    pub task: u32,
    /// Its ranges and where their offsets went.
    pub ranges: Vec<LoadedRange>,
    /// The files, by the name they have in the attempt's directory.
    pub files: BTreeMap<String, PublishedFile>,
    /// The first few records set aside, as text with coordinates and reason.
    pub rejected_samples: Vec<String>,
    /// Fields of records that no column took.
    pub unknown_fields: u64,
    /// Rows by the source of their event time, in the job's order; last, those without one.
    pub event_time_from: Vec<u64>,
}

impl AttemptReport {
    /// Whether it reports on exactly the ranges of `task`.
    #[must_use]
    pub fn is_of(&self, task: &Task) -> bool {
        let same = |read: &LoadedRange, planned: &TaskRange| {
            (&read.topic, read.partition, read.start, read.end)
                == (
                    &planned.topic,
                    planned.partition,
                    planned.start,
                    planned.end,
                )
        };
        self.task == task.task
            && self.ranges.len() == task.ranges.len()
            && self
                .ranges
                .iter()
                .zip(&task.ranges)
                .all(|(read, planned)| same(read, planned))
    }
}

impl Document for AttemptReport {
    const FORMAT: &'static str = "logferry-attempt";
    const VERSION: u32 = 1;
}
