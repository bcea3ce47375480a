//! Making a dataset, once, and what is pinned at its birth.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Place, steps};
use crate::config::JobConfig;
use crate::error::Error;
use crate::failpoint::failpoint;
use crate::partitioner::Grouping;
use crate::schema::TableSchema;
use crate::sealed::{self, Document};

/// `dataset.json`: written once, never changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// Unique id.
    pub uuid: Uuid,
    /// Job that made it.
    pub job: String,
    /// Cluster it was first loaded from.
    pub cluster_id: String,
    /// Layout of the runs; `runs` is the one there is.
    pub layout: String,
    /// Columns of the first run. Later ones may differ by name only; each manifest has its own.
    pub schema: TableSchema,
    /// Whether the columns were inferred from records.
    pub schema_inferred: bool,
    /// How rows are grouped into directories, for ever.
    pub grouping: Grouping,
    /// When it was made, milliseconds since the epoch.
    pub made_at_ms: i64,
}

impl Document for Dataset {
    const FORMAT: &'static str = "logferry-dataset";
    const VERSION: u32 = 1;
}

/// How the name of a `dataset.json` that is still beside its place ends.
pub(super) const BESIDE: &str = "-dataset.json";

/// The only layout there is.
pub const LAYOUT: &str = "runs";

impl Dataset {
    /// Reads `dataset.json`; `None` where there is no dataset.
    ///
    /// # Errors
    /// When it is there and unsound.
    pub async fn read(place: &Place) -> Result<Option<Self>, Error> {
        sealed::read(&*place.store, &place.layout.dataset()).await
    }

    /// Makes the dataset, unless another driver does so first: then that one's pins hold and are returned.
    ///
    /// # Errors
    /// Whatever the store says; a store whose rename could overwrite or is not atomic is refused.
    pub async fn make(self, place: &Place) -> Result<Self, Error> {
        let semantics = place.store.rename_semantics();
        if !semantics.atomic_directory_rename || !semantics.never_overwrites {
            return Err(Error::Config {
                problems: vec![format!(
                    "{} cannot rename a directory atomically without overwriting; a commit needs that",
                    place.store.describe()
                )],
            });
        }
        let store = &place.store;
        make_directories(place).await?;
        failpoint!("dataset.directories");
        let bytes = sealed::seal(&self)?;
        let hidden = place.layout.hidden();
        let beside = steps::write_beside(&**store, &hidden, BESIDE, &bytes).await?;
        failpoint!("dataset.beside");
        match steps::rename_ours(&**store, &beside, &place.layout.dataset()).await {
            Ok(()) => {}
            Err(loader_store::Error::AlreadyExists { .. }) => {
                steps::delete(&**store, &beside).await?;
            }
            // After a long sleep: another load cleared it away, having made the dataset itself.
            Err(loader_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // Whoever's it is: a lost answer does not tell, since others may clear away what lies beside.
        Self::read(place).await?.ok_or_else(|| Error::Inconsistent {
            path: place.layout.dataset(),
            problem: "was there and vanished".to_owned(),
        })
    }

    /// What in the job contradicts what is pinned.
    #[must_use]
    pub fn contradictions(&self, job: &JobConfig, columns_now: &TableSchema) -> Vec<String> {
        let mut problems = Vec::new();
        let (pinned, asked) = (&self.grouping, &job.grouping);
        // The window only says which records are taken: it may follow a job's backlog.
        let same = pinned.keys == asked.keys
            && pinned.event_time == asked.event_time
            && pinned.zone == asked.zone;
        if !same {
            problems.push(
                "`grouping` (keys, event_time, zone) differs from the dataset's, which was fixed when it was made; use another \
                 dataset for another grouping"
                    .to_owned(),
            );
        }
        if let Some(declared) = &job.schema
            && let Err(refused) = crate::schema::check_change(columns_now, declared)
        {
            problems.extend(refused.0.iter().map(ToString::to_string));
        }
        if self.layout != LAYOUT {
            problems.push(format!(
                "the dataset's layout is `{}`, this build knows `{LAYOUT}`",
                self.layout
            ));
        }
        problems
    }
}

/// Makes the working directories where they are missing: nothing in them is needed to go on.
///
/// # Errors
/// Whatever the store says.
pub async fn make_directories(place: &Place) -> Result<(), Error> {
    for directory in [place.layout.all_staging(), place.layout.trash()] {
        if place.store.stat(&directory).await?.is_none() {
            steps::make_all_directories(&*place.store, &directory).await?;
        }
    }
    Ok(())
}
