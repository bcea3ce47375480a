//! `logferry verify`: proves from what lies in the store that nothing is lost or doubled.
//!
//! ```text
//! manifests in a chain ─► I1: each range starts where the one before ended, or at a recorded gap
//!    └ counts ──────────► I2: rows + rejected + skipped + aborted + control + holes = offsets
//!    └ files ───────────► the exact set, lengths, checksums, footers
//!         └ coordinates ► every offset inside its run's range, none twice
//! ```
//! It trusts nothing it can recompute, reads each file once, and reports every problem with its path.

mod chain;
mod files;
mod offsets;

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use self::chain::check_chain;
use self::files::check_file;
use self::offsets::OffsetAudit;
use crate::commit::Place;
use crate::commit::assemble::list_files;
use crate::commit::dataset::Dataset;
use crate::commit::newest::{newest_number, read_manifest, run_numbers};
use crate::error::Error;
use crate::layout::{MANIFEST, RunNumber, SUCCESS};
use crate::manifest::{FileKind, Manifest, OffsetCounts};

/// What to look at.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerifyOptions {
    /// Only the newest run's files (the chain of manifests is always checked whole).
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
    /// Data and reject files read or looked at.
    pub files: usize,
    /// Where all offsets went.
    pub counts: OffsetCounts,
    /// Gaps that operators accepted.
    pub accepted_gaps: usize,
    /// Whether every row's offset was seen; false where a run has no coordinate columns or files were
    /// not read, so that only counts are proved.
    pub offsets_proved: bool,
    /// Everything wrong; empty for a healthy dataset.
    pub problems: Vec<Problem>,
}

/// Verifies a dataset.
///
/// Memory: one bit an offset of the run under inspection, plus `threads` whole files and 8 bytes a row
/// of them.
///
/// # Errors
/// Only what keeps it from looking: no dataset, an unusable store. Damage is reported, not returned.
pub async fn verify(place: &Place, options: VerifyOptions) -> Result<VerifyReport, Error> {
    let mut report = VerifyReport {
        offsets_proved: !options.without_data,
        ..VerifyReport::default()
    };
    if Dataset::read(place).await?.is_none() {
        let location = place.store.uri(place.layout.root());
        return Err(Error::NoDataset { location });
    }
    if let Err(error) = newest_number(place).await {
        report.add_error(error)?;
    }
    let numbers = match run_numbers(place).await {
        Ok(numbers) => numbers,
        Err(error) => {
            report.add_error(error)?;
            return Ok(report);
        }
    };
    report.runs = numbers.len();
    let mut before: Option<Manifest> = None;
    for number in &numbers {
        let manifest = match read_manifest(place, *number).await {
            Ok(manifest) => manifest,
            Err(error) => {
                report.add_error(error)?;
                before = None;
                continue;
            }
        };
        let path = place.store.uri(&place.layout.manifest(*number));
        let first = numbers.first() == Some(number);
        report
            .problems
            .extend(check_chain(&path, &manifest, before.as_ref(), first));
        report.counts.add(&manifest.counts());
        report.accepted_gaps += manifest.accepted_gaps.len();
        if !options.newest_only || numbers.last() == Some(number) {
            check_run(place, &manifest, options, &mut report).await?;
        }
        before = Some(manifest);
    }
    Ok(report)
}

impl VerifyReport {
    fn add(&mut self, path: String, problem: impl Into<String>) {
        self.problems.push(Problem {
            path,
            problem: problem.into(),
        });
    }

    /// Damage is a finding; an unusable store is an error.
    fn add_error(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Damaged { path, damage } => {
                self.add(path.to_string(), crate::error::chain(&damage));
            }
            Error::Inconsistent { path, problem } => self.add(path.to_string(), problem),
            other => return Err(other),
        }
        Ok(())
    }
}

/// The files of one run against its manifest.
async fn check_run(
    place: &Place,
    manifest: &Manifest,
    options: VerifyOptions,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let directory = place.layout.run(manifest.number);
    let found = list_files(place, &directory).await?;
    let expected: BTreeMap<_, _> = manifest
        .files
        .iter()
        .map(|file| (file.path.as_str(), file))
        .collect();
    for path in found.keys() {
        if !expected.contains_key(path.as_str()) && path != MANIFEST && path != SUCCESS {
            report.add(
                place.store.uri(&directory.join(path)),
                "is not in the manifest",
            );
        }
    }
    if !found.contains_key(SUCCESS) {
        report.add(place.store.uri(&directory.join(SUCCESS)), "is missing");
    }
    let present = manifest.files.iter().filter(|file| {
        let uri = place.store.uri(&directory.join(&file.path));
        match found.get(&file.path) {
            None => report.add(uri, "is in the manifest and not there"),
            Some(length) if *length != file.bytes => {
                report.add(
                    uri,
                    format!("has {length} bytes, the manifest says {}", file.bytes),
                );
            }
            Some(_) => return true,
        }
        false
    });
    let present: Vec<_> = present.cloned().collect();
    report.files += manifest.files.len();
    if options.without_data {
        return Ok(());
    }
    let all_there = present.len() == manifest.files.len();
    let with_offsets = manifest.schema.coordinates;
    let mut files = futures::stream::iter(present)
        .map(|file| check_file(place, &directory, file, with_offsets))
        .buffer_unordered(options.threads.max(1));
    let mut audit = OffsetAudit::new(manifest);
    while let Some(facts) = files.try_next().await? {
        report.problems.extend(audit.add(&facts));
        report.problems.extend(facts.problems);
    }
    report.offsets_proved &= with_offsets;
    if with_offsets && all_there {
        report
            .problems
            .extend(audit.finish(&place.store.uri(&directory)));
    }
    Ok(())
}

/// Sum of rows over the files of one kind, as the manifest says.
fn rows_of(manifest: &Manifest, kind: FileKind) -> u64 {
    manifest
        .files
        .iter()
        .filter(|file| file.kind == kind)
        .map(|file| file.rows)
        .sum()
}

/// Name of a run for messages.
fn name(number: RunNumber) -> String {
    number.directory()
}
