//! `logferry prune`: deletes the data of old runs and keeps their manifests, so that no number becomes free
//! and the chain of manifests stays whole.
//!
//! ```text
//! oldest run first:  _pruned.json (beside, then renamed in) ─► each directory of data to the trash, by one rename
//!                    nothing of the next run is touched before
//! ```
//! The whole run cannot be renamed away and put back without its data: in between its number would be free, and
//! a load that sleeps before its rename could publish there. So the marker comes first: a run without it is
//! whole, one with it is no longer to be read. Whatever stops a prune, the next one goes on where it was.

use std::time::Duration;

use loader_store::{Entry, StorePath};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Place;
use super::dataset::{Dataset, make_directories};
use super::newest::{is_there, read_manifest, runs};
use super::trash::{empty_trash, throw_away};
use crate::error::Error;
use crate::failpoint::failpoint;
use crate::layout::{MANIFEST, PRUNED, RunNumber, SUCCESS};
use crate::manifest::{Manifest, RunRef};
use crate::plan::BUILD;
use crate::sealed::{self, Document};

/// Tries to place a marker; each but the last met a load that emptied the trash.
const MARK_ATTEMPTS: u32 = 10;

/// `_pruned.json`: the run's data was deleted on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrunedRun {
    /// Which run.
    pub run: RunRef,
    /// Files it had.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Build that pruned it.
    pub build: String,
}

impl Document for PrunedRun {
    const FORMAT: &'static str = "logferry-pruned";
    const VERSION: u32 = 1;
}

impl PrunedRun {
    fn of(manifest: &Manifest) -> Self {
        Self {
            run: manifest.run_ref(),
            files: manifest.files.len(),
            bytes: manifest.files.iter().map(|file| file.bytes).sum(),
            build: BUILD.to_owned(),
        }
    }

    /// The marker of the run that `manifest` describes; `None` if its data is to be there.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it is unsound, [`Error::Inconsistent`] when it is another run's.
    pub async fn read(place: &Place, manifest: &Manifest) -> Result<Option<Self>, Error> {
        let path = place.layout.run(manifest.number).join(PRUNED);
        let Some(marker) = sealed::read::<Self>(&*place.store, &path).await? else {
            return Ok(None);
        };
        if marker.run != manifest.run_ref() {
            let problem = format!(
                "says that {} ({}) was pruned, this is another run",
                marker.run.number.directory(),
                marker.run.uuid
            );
            return Err(Error::Inconsistent { path, problem });
        }
        Ok(Some(marker))
    }
}

/// Which runs keep their data. The newest always does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The newest so many.
    Runs(usize),
    /// Those whose manifest was written less than this ago, and all after the first such.
    Younger(Duration),
}

/// How to prune.
#[derive(Debug, Clone, Copy)]
pub struct PruneOptions {
    /// What stays.
    pub keep: Keep,
    /// Only say what would go.
    pub dry_run: bool,
    /// This machine's time, milliseconds since the epoch: for a dry run, which may not ask the store's.
    pub now_ms: i64,
}

/// What was pruned, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PruneReport {
    /// Runs whose data went, oldest first; those that an earlier prune had begun count.
    pub runs: Vec<RunNumber>,
    /// Files of theirs.
    pub files: usize,
    /// Bytes of theirs.
    pub bytes: u64,
    /// Runs that had been pruned before.
    pub pruned_before: usize,
    /// Runs that keep their data.
    pub kept: usize,
}

/// Deletes the data of old runs.
///
/// Safe beside loads, other prunes and readers, and repeated after any stop. Cancel safety: as a kill.
///
/// # Errors
/// [`Error::NoDataset`]; a newest run that is unsound, since then nothing may be deleted; the first old run
/// that is unsound (those before it are pruned); whatever the store says.
pub async fn prune(place: &Place, options: PruneOptions) -> Result<PruneReport, Error> {
    if Dataset::read(place).await?.is_none() {
        let location = place.store.uri(place.layout.root());
        return Err(Error::NoDataset { location });
    }
    let mut report = PruneReport::default();
    let numbers = runs(place).await?;
    let Some((newest, old)) = numbers.split_last() else {
        return Ok(report);
    };
    read_manifest(place, *newest).await?;
    let now_ms = if options.dry_run {
        options.now_ms
    } else {
        make_directories(place).await?;
        empty_trash(place).await;
        store_time_ms(place).await?
    };
    let candidates = match options.keep {
        Keep::Runs(keep) => old.len().saturating_sub(keep.saturating_sub(1)),
        Keep::Younger(_) => old.len(),
    };
    for (nth, number) in old.iter().enumerate() {
        let run = OldRun::look(place, *number).await?;
        if run.is_marked() && run.data().next().is_none() {
            report.pruned_before += 1;
            continue;
        }
        // One that was begun is finished whatever this prune is to keep.
        if !run.is_marked() && (nth >= candidates || run.is_kept(options.keep, now_ms)) {
            break;
        }
        let manifest = read_manifest(place, *number).await?;
        let gone = PrunedRun::of(&manifest);
        report.runs.push(*number);
        report.files += gone.files;
        report.bytes += gone.bytes;
        if !options.dry_run {
            run.prune(&manifest).await?;
        }
    }
    report.kept = numbers.len() - report.runs.len() - report.pruned_before;
    Ok(report)
}

/// How many runs were pruned. Prunes go from the oldest on and finish a run before they mark the next, so a
/// search by halves tells: a few looks, whatever the number of runs.
///
/// # Errors
/// Whatever the store says.
pub async fn count_pruned(place: &Place, numbers: &[RunNumber]) -> Result<usize, Error> {
    let (mut low, mut high) = (0, numbers.len());
    while let Some(number) = numbers.get(low + (high - low) / 2).filter(|_| low < high) {
        let middle = low + (high - low) / 2;
        if is_there(place, &place.layout.run(*number).join(PRUNED)).await? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// The store's clock, with which the times of its files can be compared.
async fn store_time_ms(place: &Place) -> Result<i64, Error> {
    let probe = place.layout.trash().join(&Uuid::new_v4().to_string());
    place.store.mkdir(&probe).await?;
    let made = place.store.stat(&probe).await?;
    place.store.delete(&probe).await?;
    // Emptied by a load in between: so old is nothing.
    Ok(made.map_or(i64::MIN, |made| made.modified_ms))
}

/// One run that is not the newest, as its directory looked.
struct OldRun<'a> {
    place: &'a Place,
    number: RunNumber,
    entries: Vec<Entry>,
}

impl<'a> OldRun<'a> {
    async fn look(place: &'a Place, number: RunNumber) -> Result<Self, Error> {
        let entries = place.store.list(&place.layout.run(number)).await?;
        Ok(Self {
            place,
            number,
            entries,
        })
    }

    fn is_marked(&self) -> bool {
        self.entries.iter().any(|entry| entry.name() == PRUNED)
    }

    fn data(&self) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(|entry| ![MANIFEST, SUCCESS, PRUNED].contains(&entry.name()))
    }

    /// Whether it is too young to go. A copy that was put back is as young as its times say.
    fn is_kept(&self, keep: Keep, now_ms: i64) -> bool {
        let Keep::Younger(age) = keep else {
            return false;
        };
        let written = self.entries.iter().find(|entry| entry.name() == MANIFEST);
        let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        written.is_some_and(|manifest| now_ms.saturating_sub(manifest.modified_ms) < age_ms)
    }

    async fn prune(&self, manifest: &Manifest) -> Result<(), Error> {
        failpoint!("prune.before_mark");
        self.mark(manifest).await?;
        failpoint!("prune.marked");
        for entry in self.data() {
            throw_away(self.place, &entry.path).await?;
            failpoint!("prune.moved");
        }
        tracing::info!(number = %self.number, "pruned a run");
        Ok(())
    }

    /// Puts the marker into the run: written beside, so that it is whole or not there.
    async fn mark(&self, manifest: &Manifest) -> Result<(), Error> {
        let target = self.place.layout.run(self.number).join(PRUNED);
        let bytes = sealed::seal(&PrunedRun::of(manifest))?;
        let mut last = None;
        for _ in 0..MARK_ATTEMPTS {
            if PrunedRun::read(self.place, manifest).await?.is_some() {
                return Ok(());
            }
            match self.place_marker(bytes.clone(), &target).await {
                // A load emptied the trash, another prune was faster, or nobody knows: look again.
                Err(
                    error @ (loader_store::Error::NotFound { .. }
                    | loader_store::Error::AlreadyExists { .. }
                    | loader_store::Error::OutcomeUnknown { .. }),
                ) => last = Some(error),
                placed => return Ok(placed?),
            }
        }
        Err(last.map_or_else(
            || Error::Fenced {
                what: format!("others were at work on {target}"),
            },
            Error::Store,
        ))
    }

    async fn place_marker(
        &self,
        bytes: bytes::Bytes,
        target: &StorePath,
    ) -> loader_store::Result<()> {
        let store = &self.place.store;
        let beside = self.place.layout.trash().join(&Uuid::new_v4().to_string());
        store.put(&beside, bytes).await?;
        failpoint!("prune.marker_beside");
        store.rename_no_overwrite(&beside, target).await
    }
}
