//! Where everything of a dataset lies (design section 2), and how a run is spelled.
//!
//! ```text
//! <dataset>/.logferry/{dataset.json, last, staging/<uuid>/…, trash/…, complete/…}
//! <dataset>/run=000042/{dt=…/hour=…/part-….parquet, _rejected/…, _manifest.json, _SUCCESS}
//! ```

use loader_store::StorePath;
use uuid::Uuid;

/// Directory of a task's winning attempt.
pub const DONE: &str = "done";

/// Name of the manifest inside a run.
pub const MANIFEST: &str = "_manifest.json";
/// Marker that Hadoop tools look for; empty.
pub const SUCCESS: &str = "_SUCCESS";
/// Says that a run's data was deleted on purpose; written before the first of it goes.
pub const PRUNED: &str = "_pruned.json";
/// Directory of a run that holds the records set aside.
pub const REJECTED: &str = "_rejected";

/// Number of a published run; the first is 1.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct RunNumber(pub u64);

impl RunNumber {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// `run=000042`
    #[must_use]
    pub fn directory(self) -> String {
        format!("run={self}")
    }

    /// Reads `run=000042`; only the spelling of [`RunNumber::directory`] is accepted.
    #[must_use]
    pub fn from_directory(name: &str) -> Option<Self> {
        let number = Self(name.strip_prefix("run=")?.parse().ok()?);
        (number.0 > 0 && number.directory() == name).then_some(number)
    }
}

impl std::fmt::Display for RunNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:06}", self.0)
    }
}

/// The paths of one dataset.
#[derive(Debug, Clone)]
pub struct Layout {
    root: StorePath,
}

impl Layout {
    /// The layout below a dataset's root directory.
    #[must_use]
    pub const fn new(root: StorePath) -> Self {
        Self { root }
    }

    /// `<dataset>`
    #[must_use]
    pub const fn root(&self) -> &StorePath {
        &self.root
    }

    /// `<dataset>/.logferry`
    #[must_use]
    pub fn hidden(&self) -> StorePath {
        self.root.join(".logferry")
    }

    /// `<dataset>/.logferry/dataset.json`
    #[must_use]
    pub fn dataset(&self) -> StorePath {
        self.hidden().join("dataset.json")
    }

    /// `<dataset>/.logferry/last`
    #[must_use]
    pub fn last(&self) -> StorePath {
        self.hidden().join("last")
    }

    /// `<dataset>/.logferry/staging`
    #[must_use]
    pub fn all_staging(&self) -> StorePath {
        self.hidden().join("staging")
    }

    /// `<dataset>/.logferry/staging/<uuid>`
    #[must_use]
    pub fn staging(&self, run: Uuid) -> StagingLayout {
        StagingLayout {
            directory: self.all_staging().join(&run.to_string()),
        }
    }

    /// `<dataset>/.logferry/trash`
    #[must_use]
    pub fn trash(&self) -> StorePath {
        self.hidden().join("trash")
    }

    /// `<dataset>/.logferry/complete`
    #[must_use]
    pub fn complete(&self) -> StorePath {
        self.hidden().join("complete")
    }

    /// `<dataset>/run=000042`
    #[must_use]
    pub fn run(&self, number: RunNumber) -> StorePath {
        self.root.join(&number.directory())
    }

    /// `<dataset>/run=000042/_manifest.json`
    #[must_use]
    pub fn manifest(&self, number: RunNumber) -> StorePath {
        self.run(number).join(MANIFEST)
    }
}

/// The paths below one staging directory.
#[derive(Debug, Clone)]
pub struct StagingLayout {
    directory: StorePath,
}

impl StagingLayout {
    /// A staging directory that is known by its path (`load task --plan`).
    #[must_use]
    pub const fn at(directory: StorePath) -> Self {
        Self { directory }
    }

    /// `staging/<uuid>`
    #[must_use]
    pub const fn directory(&self) -> &StorePath {
        &self.directory
    }

    /// `staging/<uuid>/lease`
    #[must_use]
    pub fn lease(&self) -> StorePath {
        self.directory.join("lease")
    }

    /// `staging/<uuid>/plan.json`
    #[must_use]
    pub fn plan(&self) -> StorePath {
        self.directory.join("plan.json")
    }

    /// `staging/<uuid>/tasks`
    #[must_use]
    pub fn tasks(&self) -> StorePath {
        self.directory.join("tasks")
    }

    /// `staging/<uuid>/tasks/<task>`
    #[must_use]
    pub fn task(&self, task: u32) -> StorePath {
        self.tasks().join(&format!("{task:05}"))
    }

    /// `staging/<uuid>/tasks/<task>/<attempt uuid>`
    #[must_use]
    pub fn attempt(&self, task: u32, attempt: Uuid) -> StorePath {
        self.task(task).join(&attempt.to_string())
    }

    /// `staging/<uuid>/tasks/<task>/done`: the winning attempt
    #[must_use]
    pub fn done(&self, task: u32) -> StorePath {
        self.task(task).join(DONE)
    }

    /// `staging/<uuid>/out-000042`: the run being assembled
    #[must_use]
    pub fn out(&self, number: RunNumber) -> StorePath {
        self.directory.join(&format!("out-{number}"))
    }

    /// Reads the name of an `out-…` directory.
    #[must_use]
    pub fn out_number(name: &str) -> Option<RunNumber> {
        let number = RunNumber(name.strip_prefix("out-")?.parse().ok()?);
        (format!("out-{number}") == name).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_directories_are_spelled_one_way_only() {
        assert_eq!(RunNumber(42).directory(), "run=000042");
        assert_eq!(RunNumber::from_directory("run=000042"), Some(RunNumber(42)));
        assert_eq!(
            RunNumber::from_directory("run=1234567"),
            Some(RunNumber(1_234_567))
        );
        for wrong in [
            "run=42",
            "run=0000042",
            "run=000000",
            "run=+00042",
            "run=",
            "run=00004x",
            "Run=000042",
        ] {
            assert_eq!(RunNumber::from_directory(wrong), None, "{wrong}");
        }
    }
}
