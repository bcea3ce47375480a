//! Which run is the newest. Its manifest alone is the state of the dataset.

use loader_store::StorePath;

use super::{Place, steps};
use crate::error::Error;
use crate::layout::RunNumber;
use crate::manifest::Manifest;
use crate::sealed;

/// What lies in a dataset's directory.
#[derive(Debug, Default)]
pub struct RunListing {
    /// Published runs, ascending.
    pub numbers: Vec<RunNumber>,
    /// What begins with `run=` and is not a run: another spelling, or a file.
    pub misspelt: Vec<StorePath>,
    /// What readers see and is none of logferry's.
    pub foreign: Vec<StorePath>,
}

impl RunListing {
    /// Looks.
    ///
    /// # Errors
    /// Whatever the store says.
    pub async fn read(place: &Place) -> Result<Self, Error> {
        let mut listing = Self::default();
        for entry in place.store.list(place.layout.root()).await? {
            let name = entry.path.name();
            match RunNumber::from_directory(name) {
                Some(number) if entry.is_directory() => listing.numbers.push(number),
                _ if name.starts_with("run=") => listing.misspelt.push(entry.path),
                // Readers skip names that begin so.
                _ if name.starts_with(['.', '_']) => {}
                _ => listing.foreign.push(entry.path),
            }
        }
        listing.numbers.sort_unstable();
        Ok(listing)
    }
}

/// Numbers of all published runs, ascending.
///
/// # Errors
/// A `run=` name that is not in our spelling, or is a file, is an error: it may be a run that someone
/// renamed, and taking the one before it for the newest would load everything again.
pub async fn run_numbers(place: &Place) -> Result<Vec<RunNumber>, Error> {
    let listing = RunListing::read(place).await?;
    match listing.misspelt.into_iter().next() {
        Some(path) => Err(misspelt(path)),
        None => Ok(listing.numbers),
    }
}

pub(crate) fn misspelt(path: StorePath) -> Error {
    Error::Inconsistent {
        path,
        problem:
            "its name begins with `run=` and is not that of a published run; move it away if it is \
                  none of logferry's"
                .to_owned(),
    }
}

/// All runs, of which the last is the newest.
///
/// # Errors
/// See [`run_numbers`]; also when the highest lies below the number in `last`, since then a published
/// run has vanished.
pub async fn runs(place: &Place) -> Result<Vec<RunNumber>, Error> {
    // Before the listing: a run that is published in between must not look like one that vanished.
    let last = read_last(place).await?;
    let numbers = run_numbers(place).await?;
    match vanished(place, &numbers, last) {
        Some(error) => Err(error),
        None => Ok(numbers),
    }
}

/// What `last` says against the runs that are there.
pub(crate) fn vanished(
    place: &Place,
    numbers: &[RunNumber],
    last: Option<RunNumber>,
) -> Option<Error> {
    let last = last?;
    let newest = numbers.last().copied();
    newest
        .is_none_or(|newest| newest < last)
        .then(|| Error::Inconsistent {
            path: place.layout.run(last),
            problem: format!(
                "this run was published and is gone; the newest one left is {}. Restore it before loading \
                 on, or its records would be loaded again",
                newest.map_or_else(|| "none".to_owned(), RunNumber::directory)
            ),
        })
}

/// The newest run's number: the highest there is.
///
/// # Errors
/// See [`runs`].
pub async fn newest_number(place: &Place) -> Result<Option<RunNumber>, Error> {
    Ok(runs(place).await?.last().copied())
}

/// The newest run's manifest.
///
/// # Errors
/// See [`newest_number`]; a manifest that is missing or unsound is an error, never a reason to fall back
/// to the run before.
pub async fn newest(place: &Place) -> Result<Option<Manifest>, Error> {
    match newest_number(place).await? {
        Some(number) => read_manifest(place, number).await.map(Some),
        None => Ok(None),
    }
}

/// The manifest of one run.
///
/// # Errors
/// [`Error::Damaged`] when it is unsound, [`Error::Inconsistent`] when it is missing or another run's.
pub async fn read_manifest(place: &Place, number: RunNumber) -> Result<Manifest, Error> {
    let path = place.layout.manifest(number);
    let Some(manifest) = sealed::read::<Manifest>(&*place.store, &path).await? else {
        return Err(Error::Inconsistent {
            path,
            problem: "the run has no manifest".to_owned(),
        });
    };
    if manifest.number != number {
        return Err(Error::Inconsistent {
            path,
            problem: format!("the manifest says it is {}", manifest.number.directory()),
        });
    }
    Ok(manifest)
}

/// The number in `last`: a lower bound of the newest run's, never the truth.
///
/// # Errors
/// When it holds something else.
pub(crate) async fn read_last(place: &Place) -> Result<Option<RunNumber>, Error> {
    let path = place.layout.last();
    match steps::persistently(&*place.store, || place.store.read(&path)).await {
        // An empty file is what a killed `replace` may leave on HDFS: no bound, no harm.
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => parse_last(&text)
            .map(Some)
            .ok_or_else(|| Error::Inconsistent {
                path,
                problem: "holds no run number; delete it if the runs are complete".to_owned(),
            }),
        Err(loader_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn parse_last(text: &[u8]) -> Option<RunNumber> {
    std::str::from_utf8(text)
        .ok()?
        .trim()
        .parse()
        .ok()
        .map(RunNumber)
}

/// Raises `last`. Advisory: an error here never fails a run that is published.
pub(super) async fn write_last(place: &Place, number: RunNumber) {
    let known = read_last(place).await.ok().flatten();
    if known.is_some_and(|known| known >= number) {
        return;
    }
    let text = format!("{}\n", number.0);
    if let Err(error) = place.store.replace(&place.layout.last(), text.into()).await {
        tracing::warn!(%error, "cannot note the newest run number");
    }
}

/// Whether something has this path.
pub(super) async fn is_there(place: &Place, path: &StorePath) -> Result<bool, Error> {
    Ok(place.store.stat(path).await?.is_some())
}
