//! `logferry status`

use std::path::PathBuf;

use broker_client::protocol::ids::TopicName;
use broker_client::{Client, ClientConfig};
use clap::Args;
use loader_pipeline::config::JobConfig;
use loader_pipeline::load::open_place;
use loader_pipeline::status::{Status, status};

use super::{load, out};
use crate::config;
use crate::failure::{Outcome, Worst};

/// Show where a job's datasets stand: newest run, positions, lag, runs at work.
#[derive(Debug, Args)]
pub(super) struct StatusCommand {
    /// Job file.
    job: PathBuf,
    /// Print it as JSON.
    #[arg(long)]
    json: bool,
}

impl StatusCommand {
    pub(super) async fn run(self) -> Outcome {
        let job = config::read_job(&self.job)?;
        let mut worst = Worst::default();
        for (location, topics) in load::datasets(&job)? {
            worst.add(self.one(&job, &location, &topics).await);
        }
        worst.outcome()
    }

    async fn one(&self, job: &JobConfig, location: &str, topics: &[TopicName]) -> Outcome {
        let place = open_place(job, location).await?;
        let client = Client::connect(ClientConfig {
            bootstrap: job.source.brokers.clone(),
            tls: job.source.tls.clone(),
            sasl: job.source.sasl.clone(),
            ..ClientConfig::default()
        })
        .await;
        let status = status(&place, job, topics, client).await?;
        if self.json {
            out::json(&status)?;
        } else {
            print(&status)?;
        }
        Ok(None)
    }
}

fn print(status: &Status) -> std::io::Result<()> {
    match status.newest_run {
        None => out::line(&format!("{}: no run yet", status.location))?,
        Some(newest) => out::line(&format!(
            "{}: newest {} planned {}, {} rows in {} files, {} rejected",
            status.location,
            newest.directory(),
            time(status.planned_at_ms),
            status.counts.rows,
            status.files,
            status.counts.rejected
        ))?,
    }
    if status.pruned_runs > 0 {
        out::line(&format!(
            "{} of {} runs were pruned",
            status.pruned_runs, status.runs
        ))?;
    }
    if let Some(hour) = &status.complete {
        out::line(&format!("complete up to and with {}", hour.directory))?;
    }
    for partition in &status.partitions {
        let log = match (partition.log_start, partition.log_end, partition.lag) {
            (Some(start), Some(end), Some(lag)) => format!("log {start} to {end}, lag {lag}"),
            _ => "log unknown".to_owned(),
        };
        let loaded = match partition.end {
            Some(end) => format!("loaded to {end}"),
            None => "not loaded yet".to_owned(),
        };
        out::line(&format!(
            "  {}-{}: {loaded}, {log}",
            partition.topic, partition.partition
        ))?;
    }
    for left in &status.left_out {
        out::line(&format!(
            "  {}-{}: left out: {}",
            left.topic, left.partition, left.reason
        ))?;
    }
    for staging in &status.staging {
        out::line(&format!(
            "  at work or waiting to be taken over: {}, lease renewed {}",
            staging.run,
            time(staging.lease_renewed_ms)
        ))?;
    }
    if let Some(error) = &status.source_error {
        out::line(&format!("the source does not answer: {error}"))?;
    }
    Ok(())
}

fn time(ms: Option<i64>) -> String {
    match ms.map(jiff::Timestamp::from_millisecond) {
        Some(Ok(time)) => time.to_string(),
        _ => "never".to_owned(),
    }
}
