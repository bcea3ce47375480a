//! `logferry prune`

use std::time::Duration;

use clap::{ArgGroup, Args};
use loader_pipeline::commit::Place;
use loader_pipeline::commit::prune::{Keep, PruneOptions, PruneReport, prune};
use loader_pipeline::quantity::Period;
use serde::Serialize;

use super::dataset::Datasets;
use super::{load, out};
use crate::failure::{Outcome, Worst};

/// Delete the data of old runs; their manifests stay, and loads go on as before.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("keep").required(true).args(["keep_runs", "older_than"]))]
pub(super) struct Prune {
    #[command(flatten)]
    datasets: Datasets,
    /// Keep the newest so many runs (at least 1).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep_runs: Option<u64>,
    /// Keep runs published less than this ago, such as 30d or 36h; the newest is always kept.
    #[arg(long, value_name = "PERIOD")]
    older_than: Option<Period>,
    /// Say what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Pruned<'a> {
    dataset: &'a str,
    dry_run: bool,
    #[serde(flatten)]
    report: &'a PruneReport,
}

impl Prune {
    pub(super) async fn run(self) -> Outcome {
        let mut worst = Worst::default();
        for (location, place) in self.datasets.places().await? {
            worst.add(self.one(&location, &place).await);
        }
        worst.outcome()
    }

    async fn one(&self, location: &str, place: &Place) -> Outcome {
        let runs = usize::try_from(self.keep_runs.unwrap_or(1)).unwrap_or(usize::MAX);
        let age = self
            .older_than
            .map(|period| u64::try_from(period.as_ms()).unwrap_or(0));
        let options = PruneOptions {
            keep: age.map_or(Keep::Runs(runs), |ms| {
                Keep::Younger(Duration::from_millis(ms))
            }),
            dry_run: self.dry_run,
            now_ms: load::now_ms(),
        };
        let report = prune(place, options).await?;
        if self.json {
            out::json(&Pruned {
                dataset: location,
                dry_run: self.dry_run,
                report: &report,
            })?;
        } else {
            print(location, &report, self.dry_run)?;
        }
        Ok(None)
    }
}

fn print(location: &str, report: &PruneReport, dry_run: bool) -> std::io::Result<()> {
    let done = if dry_run { "would be pruned" } else { "pruned" };
    let which = match report.runs[..] {
        [] => "no run".to_owned(),
        [one] => one.directory(),
        [first, .., last] => format!(
            "{} runs, {} to {}",
            report.runs.len(),
            first.directory(),
            last.directory()
        ),
    };
    out::line(&format!(
        "{location}: {which} {done}, {} files of {} bytes; {} runs keep their data, {} were pruned before",
        report.files, report.bytes, report.kept, report.pruned_before
    ))
}
