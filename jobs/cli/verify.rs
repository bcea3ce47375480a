//! `logferry verify`

use clap::Args;
use loader_pipeline::commit::Place;
use loader_pipeline::error::Exit;
use loader_pipeline::verify::{VerifyOptions, VerifyReport, verify};
use serde::Serialize;

use super::dataset::Datasets;
use super::out;
use crate::failure::{Failure, Outcome, Worst};

/// Prove from what lies in the store that a dataset lost nothing and holds nothing twice.
#[derive(Debug, Args)]
pub(super) struct Verify {
    #[command(flatten)]
    datasets: Datasets,
    /// Look only at the newest run, and that it continues the one before.
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
        for (location, place) in self.datasets.places().await? {
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
            print(location, &report, self.newest)?;
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
}

fn print(location: &str, report: &VerifyReport, newest_only: bool) -> std::io::Result<()> {
    let counts = &report.counts;
    let runs = match newest_only {
        true => format!("the newest of {} runs", report.runs),
        false => format!("{} runs", report.runs),
    };
    out::line(&format!(
        "{location}: {runs}, {} pruned, {} files, {} offsets: {} rows, {} rejected, {} tombstones skipped, \
         {} aborted, {} control, {} holes; {} accepted gaps",
        report.pruned_runs,
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
        out::line(&healthy(report, newest_only))?;
    }
    Ok(())
}

/// The sentence for a dataset in which nothing is wrong: no more than was proved.
fn healthy(report: &VerifyReport, newest_only: bool) -> String {
    if report.runs == 0 {
        return "no run yet: there is nothing to prove".to_owned();
    }
    let of = if newest_only {
        " of the newest run"
    } else {
        ""
    };
    let mut proved = if report.offsets_proved {
        format!("healthy: every offset of every range{of} is there once")
    } else {
        format!(
            "healthy as far as counts{of} go; offsets themselves were not proved (no coordinate columns, or \
             files were not read)"
        )
    };
    if report.pruned_runs > 0 {
        let runs = report.pruned_runs;
        proved.push_str(&format!(
            "; of the {runs} pruned runs, only the counts are left to prove"
        ));
    }
    if report.accepted_gaps > 0 {
        let gaps = report.accepted_gaps;
        proved.push_str(&format!(
            "; but for {gaps} gaps that were accepted (see the manifests)"
        ));
    }
    proved
}
