//! `logferry bench`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use loader_pipeline::bench::{Round, round};
use loader_pipeline::config::JobConfig;
use loader_pipeline::error::Error;
use loader_pipeline::load::{Load, open_place, store_patience};
use loader_pipeline::progress::Quiet;

use super::{load, out};
use crate::failure::Outcome;
use crate::{config, shutdown};

/// Measure what a job's load costs, stage by stage, beside the least that decoding and encoding cost.
///
/// Loads the job's first topics on one thread into a directory beside the dataset, which is deleted again;
/// the dataset itself is not touched. Keeps the records in memory: bound them with --records.
#[derive(Debug, Args)]
pub(super) struct Bench {
    /// Job file.
    job: PathBuf,
    /// Most offsets taken from each partition.
    #[arg(long, default_value_t = 200_000)]
    records: u64,
    /// Rounds; each is printed.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Print each round as a line of JSON.
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(super) async fn run(self) -> Outcome {
        let mut job = config::read_job(&self.job)?;
        job.engine.threads = Some(1);
        job.limits.max_offsets_per_partition = Some(self.records);
        job.source.lag_group = None;
        let stop = shutdown::on_signal()?;
        for (location, topics) in load::datasets(&job)? {
            for _ in 0..self.rounds {
                let location = format!("{location}.bench-{}", uuid::Uuid::new_v4().simple());
                let load = Load {
                    job: job.clone(),
                    topics: topics.clone(),
                    location: location.clone(),
                    create: true,
                    accept_gap: false,
                    progress: Arc::new(Quiet),
                    stop: stop.clone(),
                    patience: store_patience(&job.engine, &stop),
                    now_ms: load::now_ms(),
                };
                let measured = round(&load).await;
                let removed = remove(&job, &location).await;
                let measured = measured?;
                removed?;
                if self.json {
                    out::json_line(&measured)?;
                } else {
                    print(&measured)?;
                }
            }
        }
        Ok(None)
    }
}

/// Removes what a round published.
async fn remove(job: &JobConfig, location: &str) -> Result<(), Error> {
    let place = open_place(job, location).await?;
    place.store.delete(place.layout.root()).await?;
    Ok(())
}

fn print(round: &Round) -> std::io::Result<()> {
    let per_record = |cpu: Duration| cpu.as_secs_f64() * 1e6 / (round.records.max(1) as f64);
    let share = |cpu: Duration| 100.0 * cpu.as_secs_f64() / round.load.as_secs_f64();
    let line = |name: &str, cpu: Duration| {
        out::line(&format!(
            "  {name:<26} {:>8.3} µs a record {:>6.1} %",
            per_record(cpu),
            share(cpu)
        ))
    };
    out::line(&format!(
        "{} records, {} bytes of files",
        round.records, round.bytes
    ))?;
    let stages: Duration = round.stages.values().sum();
    line("fetch (measured alone)", round.fetch)?;
    for name in ["unpack", "decode", "group", "encode"] {
        line(name, round.stages.get(name).copied().unwrap_or_default())?;
    }
    let rest = round.load.saturating_sub(stages + round.fetch);
    line("plan, store, commit", rest)?;
    line("whole load", round.load)?;
    line("pure decode", round.pure_decode)?;
    line("pure encode", round.pure_encode)?;
    out::line(&format!(
        "  {:.0} records per CPU second; the load reaches {:.2} of the pure limit",
        round.records as f64 / round.load.as_secs_f64(),
        round.share_of_limit()
    ))
}
