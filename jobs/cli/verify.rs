//! `logferry verify`

use std::path::PathBuf;

use clap::Args;
use loader_pipeline::commit::Place;
use loader_pipeline::error::Exit;
use loader_pipeline::layout::Layout;
use loader_pipeline::load::open_place;
use loader_pipeline::verify::{VerifyOptions, VerifyReport, verify};
use serde::Serialize;

use super::{load, out};
use crate::config;
use crate::failure::{Failure, Outcome, Worst};

/// Prove from what lies in the store that a dataset lost nothing and holds nothing twice.
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// Job file whose datasets are verified.
    #[arg(required_unless_present = "dataset")]
    job: Option<PathBuf>,
    /// A dataset by its location, instead of a job file.
    #[arg(long, conflicts_with = "job")]
    dataset: Option<String>,
    /// Read only the newest run's files; the chain of manifests is always checked whole.
    #[arg(long)]
    newest: bool,
    /// Read no data files: names and lengths only.
    #[arg(long)]
    without_data: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Verified<'a> {
    dataset: &'a str,
    #[serde(flatten)]
    report: &'a VerifyReport,
}

impl Verify {
    pub(super) async fn run(self) -> Outcome {
        let mut worst = Worst::default();
        for (location, place) in self.places().await? {
            worst.add(self.one(&location, &place).await);
        }
        worst.outcome()
    }

    async fn one(&self, location: &str, place: &Place) -> Outcome {
        let options = VerifyOptions {
            newest_only: self.newest,
            without_data: self.without_data,
            threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        };
        let report = verify(place, options).await?;
        if self.json {
            out::json(&Verified {
                dataset: location,
                report: &report,
            })?;
        } else {
            print(location, &report)?;
        }
        if report.problems.is_empty() {
            return Ok(None);
        }
        let found = report.problems.len();
        let error = anyhow::anyhow!("{found} problems were found in {location}");
        Err(Failure::new(Exit::Data, error).try_this(
            "restore what is damaged from a copy or snapshot; docs/operations.md says what each problem means",
        ))
    }

    async fn places(&self) -> Result<Vec<(String, Place)>, Failure> {
        if let Some(location) = &self.dataset {
            let config = loader_store::StoreConfig::default();
            let (store, root) = loader_store::open(location, &config).await?;
            return Ok(vec![(
                location.clone(),
                Place {
                    store,
                    layout: Layout::new(root),
                },
            )]);
        }
        let Some(job) = &self.job else {
            return Ok(Vec::new());
        };
        let job = config::read_job(job)?;
        let mut places = Vec::new();
        for (location, _) in load::datasets(&job)? {
            let place = open_place(&job, &location).await?;
            places.push((location, place));
        }
        Ok(places)
    }
}

fn print(location: &str, report: &VerifyReport) -> std::io::Result<()> {
    let counts = &report.counts;
    out::line(&format!(
        "{location}: {} runs, {} files, {} offsets: {} rows, {} rejected, {} tombstones skipped, {} aborted, \
         {} control, {} holes; {} accepted gaps",
        report.runs,
        report.files,
        counts.total(),
        counts.rows,
        counts.rejected,
        counts.tombstones_skipped,
        counts.aborted,
        counts.control,
        counts.holes,
        report.accepted_gaps
    ))?;
    for problem in &report.problems {
        out::line(&format!("{}: {}", problem.path, problem.problem))?;
    }
    if report.problems.is_empty() {
        out::line(&healthy(report))?;
    }
    Ok(())
}

/// The sentence for a dataset in which nothing is wrong: no more than was proved.
fn healthy(report: &VerifyReport) -> String {
    if report.runs == 0 {
        return "no run yet: there is nothing to prove".to_owned();
    }
    let proved = if report.offsets_proved {
        "healthy: every offset of every range is there once"
    } else {
        "healthy as far as counts go; offsets themselves were not proved (no coordinate columns, or files \
         were not read)"
    };
    match report.accepted_gaps {
        0 => proved.to_owned(),
        gaps => format!("{proved}, but for {gaps} gaps that were accepted (see the manifests)"),
    }
}
