//! `logferry verify`: proves from what lies in the store that nothing is lost or doubled.
//!
//! ```text
//! names ─► every number from 1 on is there once, and nothing else that readers see
//! manifests in a chain ─► I1: each range starts where the one before ended, or at a recorded gap
//!    └ counts ──────────► I2: rows + rejected + skipped + aborted + control + holes = offsets
//!    └ files ───────────► the exact set, lengths, checksums, footers        (a pruned run: none)
//!         └ coordinates ► every offset inside its run's range, none twice
//! ```
//! It trusts nothing it can recompute, and reports every problem with its path.

mod blocks;
mod chain;
mod files;
mod offsets;
mod run;

use loader_store::StorePath;
use serde::Serialize;

use self::chain::check_chain;
use crate::commit::Place;
use crate::commit::dataset::Dataset;
use crate::commit::newest::{RunListing, misspelt, read_last, read_manifest, vanished};
use crate::error::Error;
use crate::layout::RunNumber;
use crate::manifest::{Manifest, OffsetCounts};

/// What to look at.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerifyOptions {
    /// Only the newest run, and that it continues the one before.
    pub newest_only: bool,
    /// Do not read data files: names and lengths only.
    pub without_data: bool,
    /// Files read at once.
    pub threads: usize,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where.
    pub path: String,
    /// What.
    pub problem: String,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Published runs.
    pub runs: usize,
    /// How many of those looked at were pruned: only their counts can be proved.
    pub pruned_runs: usize,
    /// Data and reject files read or looked at.
    pub files: usize,
    /// Where the offsets of the runs looked at went.
    pub counts: OffsetCounts,
    /// Gaps that operators accepted.
    pub accepted_gaps: usize,
    /// Whether the offset of every row that is not pruned was seen; false where a run has no coordinate
    /// columns or files were not read, so that only counts are proved.
    pub offsets_proved: bool,
    /// Everything wrong; empty for a healthy dataset.
    pub problems: Vec<Problem>,
}

/// Verifies a dataset.
///
/// Memory: two manifests, one bit an offset of the run under inspection, and 16 MiB a file read at once,
/// whatever the sizes of files.
///
/// # Errors
/// Only what keeps it from looking: no dataset, an unusable store. Damage is reported, not returned.
pub async fn verify(place: &Place, options: VerifyOptions) -> Result<VerifyReport, Error> {
    let mut audit = Audit {
        place,
        options,
        report: VerifyReport {
            offsets_proved: !options.without_data,
            ..VerifyReport::default()
        },
    };
    let numbers = audit.names().await?;
    let looked_at = if options.newest_only {
        // With the one before, whose end the newest continues.
        numbers.get(numbers.len().saturating_sub(2)..)
    } else {
        numbers.get(..)
    };
    let mut before: Option<Manifest> = None;
    for number in looked_at.unwrap_or_default() {
        let manifest = match read_manifest(place, *number).await {
            Ok(manifest) => manifest,
            Err(error) => {
                audit.add_error(error)?;
                before = None;
                continue;
            }
        };
        if !options.newest_only || numbers.last() == Some(number) {
            // Behind a missing run nothing is compared: that it is missing says all.
            let before = before.filter(|before| before.number.next() == *number);
            audit.run(&manifest, before.as_ref()).await?;
        }
        before = Some(manifest);
    }
    Ok(audit.report)
}

/// A verification at work.
struct Audit<'a> {
    place: &'a Place,
    options: VerifyOptions,
    report: VerifyReport,
}

impl Audit<'_> {
    fn add(&mut self, path: &StorePath, problem: impl Into<String>) {
        self.report.problems.push(Problem {
            path: self.place.store.uri(path),
            problem: problem.into(),
        });
    }

    /// Damage is a finding; an unusable store is an error.
    fn add_error(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Damaged { path, damage } => self.add(&path, crate::error::chain(&damage)),
            Error::Inconsistent { path, problem } => self.add(&path, problem),
            other => return Err(other),
        }
        Ok(())
    }

    /// What is in the dataset's directory, and what should not be. Returns the runs.
    async fn names(&mut self) -> Result<Vec<RunNumber>, Error> {
        let layout = &self.place.layout;
        let is_there = self.dataset_document().await?;
        // Before the listing: a run that is published in between must not look like one that vanished.
        let last = match read_last(self.place).await {
            Ok(last) => last,
            Err(error) => {
                self.add_error(error)?;
                None
            }
        };
        let listing = match RunListing::read(self.place).await {
            Err(Error::Store(loader_store::Error::NotFound { .. })) => RunListing::default(),
            listing => listing?,
        };
        if !is_there && listing.numbers.is_empty() {
            let location = self.place.store.uri(layout.root());
            return Err(Error::NoDataset { location });
        }
        if !is_there {
            self.add(&layout.dataset(), "is missing");
        }
        for path in listing.misspelt {
            self.add_error(misspelt(path))?;
        }
        for path in &listing.foreign {
            self.add(path, "is none of logferry's, and readers see it");
        }
        if let Some(error) = vanished(self.place, &listing.numbers, last) {
            self.add_error(error)?;
        }
        self.missing_numbers(&listing.numbers);
        self.report.runs = listing.numbers.len();
        Ok(listing.numbers)
    }

    /// Whether `dataset.json` is there; if it is damaged, that is a finding.
    async fn dataset_document(&mut self) -> Result<bool, Error> {
        match Dataset::read(self.place).await {
            Ok(dataset) => Ok(dataset.is_some()),
            Err(error) => {
                self.add_error(error)?;
                Ok(true)
            }
        }
    }

    /// Numbers are given without gaps and never become free, so each up to the newest is there.
    fn missing_numbers(&mut self, numbers: &[RunNumber]) {
        let mut expected = RunNumber(1);
        for number in numbers {
            if *number > expected {
                let last = RunNumber(number.0 - 1);
                let many = match last == expected {
                    true => "is missing".to_owned(),
                    false => format!(
                        "and those after it, up to {}, are missing",
                        last.directory()
                    ),
                };
                let problem = format!("{many}: {} was published after it", number.directory());
                self.add(&self.place.layout.run(expected), problem);
            }
            expected = RunNumber(number.0.saturating_add(1));
        }
    }

    /// One run: its place in the chain, its counts, its files.
    async fn run(&mut self, manifest: &Manifest, before: Option<&Manifest>) -> Result<(), Error> {
        let path = self.place.layout.manifest(manifest.number);
        for problem in check_chain(manifest, before) {
            self.add(&path, problem);
        }
        self.report.counts.add(&manifest.counts());
        self.report.accepted_gaps += manifest.accepted_gaps.len();
        self.check_run(manifest).await
    }
}
