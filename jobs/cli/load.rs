//! `logferry load`

use std::path::{Path, PathBuf};
use std::sync::Arc;

use broker_client::protocol::ids::TopicName;
use clap::{Args, Subcommand};
use loader_pipeline::config::{EngineConfig, JobConfig};
use loader_pipeline::error::{Error, Exit};
use loader_pipeline::load::{Load, Outcome as Loaded, run_task, store_patience};
use loader_pipeline::manifest::{AcceptedGap, Manifest};
use loader_pipeline::plan::Plan;
use loader_store::StoreConfig;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::out;
use crate::failure::{Failure, Outcome, Worst};
use crate::{config, progress, shutdown};

/// Load new records into the job's dataset: one run, published with its offsets by one rename.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct LoadCommand {
    /// Job file.
    #[arg(required = true)]
    job: Option<PathBuf>,
    /// Make the dataset if there is none yet (the first run).
    #[arg(long)]
    create: bool,
    /// Go on although offsets are no longer at the source, and record the gap in the manifest.
    #[arg(long)]
    accept_gap: bool,
    /// Print the plan and do nothing.
    #[arg(long, conflicts_with = "plan_only")]
    dry_run: bool,
    /// Store the plan for `load task` and end; the next `load` assembles and publishes.
    #[arg(long)]
    plan_only: bool,
    /// Print the result as JSON, and no progress.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    task: Option<TaskCommand>,
}

#[derive(Debug, Subcommand)]
enum TaskCommand {
    /// Run one task of a stored plan, on any machine; it may be repeated.
    Task {
        /// The plan.json of a staging directory, as `load --plan-only` prints it.
        #[arg(long)]
        plan: String,
        /// Number of the task.
        #[arg(long)]
        task: u32,
        /// Attempts before it fails.
        #[arg(long, default_value_t = 1)]
        attempts: u32,
    },
}

/// What a load did, for `--json`.
#[derive(Debug, Serialize)]
struct LoadReport<'a> {
    dataset: &'a str,
    outcome: &'static str,
    exit: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<&'a Manifest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl LoadCommand {
    pub(super) async fn run(self) -> Outcome {
        if let Some(TaskCommand::Task {
            plan,
            task,
            attempts,
        }) = self.task
        {
            // A signal ends the process at once: an attempt needs no farewell.
            let store = StoreConfig {
                patience: store_patience(&EngineConfig::default(), &CancellationToken::new()),
                ..StoreConfig::default()
            };
            let progress = progress::for_stderr(self.json);
            run_task(&plan, task, &store, attempts, progress).await?;
            return Ok(None);
        }
        let job = config::read_job(self.job.as_deref().unwrap_or_else(|| Path::new("")))?;
        let stop = shutdown::on_signal()?;
        let patience = store_patience(&job.engine, &stop);
        let mut worst = Worst::default();
        for (location, topics) in datasets(&job)? {
            if stop.is_cancelled() {
                worst.add(Err(Error::Stopped.into()));
                break;
            }
            let load = Load {
                job: job.clone(),
                topics,
                location,
                create: self.create,
                accept_gap: self.accept_gap,
                progress: progress::for_stderr(self.json),
                stop: stop.clone(),
                patience: patience.clone(),
                now_ms: now_ms(),
            };
            worst.add(self.one(&load).await?);
        }
        worst.outcome()
    }

    /// One dataset; its failure is returned as a value so that the others still get their turn.
    async fn one(&self, load: &Load) -> Result<Result<Option<Exit>, Failure>, Failure> {
        if self.dry_run {
            let plan = match load.dry_run().await {
                Ok(plan) => plan,
                Err(error) => return Ok(Err(error.into())),
            };
            if self.json {
                out::json(&plan)?;
            } else {
                print_plan(&load.location, &plan)?;
            }
            return Ok(Ok(None));
        }
        if self.plan_only {
            return Ok(match load.plan_only().await {
                Ok(Some((plan, uri))) => {
                    for task in &plan.tasks {
                        out::line(&format!("--plan {uri} --task {}", task.task))?;
                    }
                    Ok(None)
                }
                Ok(None) => Ok(None),
                Err(error) => Err(error.into()),
            });
        }
        let result = load.run().await;
        if self.json {
            print_json(load, &result)?;
        } else if let Ok(loaded) = &result {
            print_loaded(&load.location, loaded)?;
        }
        Ok(result.map(|loaded| loaded.exit()).map_err(Failure::from))
    }
}

/// The datasets of a job: one, or with `{topic}` in its path one a topic.
///
/// # Errors
/// Names that are no topics.
pub(super) fn datasets(job: &JobConfig) -> Result<Vec<(String, Vec<TopicName>)>, Failure> {
    let topics = job
        .source
        .topics
        .iter()
        .map(|name| {
            TopicName::new(name.clone()).map_err(|e| Failure::usage(format!("`{name}`: {e}")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    if topics.is_empty() {
        return Err(Failure::usage("`source.topics` names no topic"));
    }
    let path = &job.output.dataset;
    if path.contains("{topic}") {
        let one = |topic: TopicName| (path.replace("{topic}", topic.as_str()), vec![topic]);
        return Ok(topics.into_iter().map(one).collect());
    }
    Ok(vec![(path.clone(), topics)])
}

fn gap_line(gap: &AcceptedGap) -> String {
    format!(
        "{}-{}: accepted gap, goes on at offset {} after {}",
        gap.topic, gap.partition, gap.start, gap.previous_end
    )
}

fn print_plan(location: &str, plan: &Plan) -> std::io::Result<()> {
    out::line(&format!("dataset {location}"))?;
    if !plan.is_worth_publishing() {
        out::line("nothing to do")?;
    }
    for partition in plan
        .partitions
        .iter()
        .filter(|p| p.start < p.end || p.previous.is_none())
    {
        out::line(&format!(
            "  {}-{}: offsets {} to {} ({})",
            partition.topic,
            partition.partition,
            partition.start,
            partition.end,
            partition.end - partition.start
        ))?;
    }
    for gap in &plan.accepted_gaps {
        out::line(&format!("  {}", gap_line(gap)))?;
    }
    for left in &plan.left_out {
        out::line(&format!(
            "  {}-{}: left out: {}",
            left.topic, left.partition, left.reason
        ))?;
    }
    for task in &plan.tasks {
        let ranges: Vec<String> = task
            .ranges
            .iter()
            .map(|r| format!("{}-{} [{}, {})", r.topic, r.partition, r.start, r.end))
            .collect();
        out::line(&format!("  task {}: {}", task.task, ranges.join(", ")))?;
    }
    Ok(())
}

fn print_loaded(location: &str, loaded: &Loaded) -> std::io::Result<()> {
    match loaded {
        Loaded::Published(manifest) => {
            let counts = manifest.counts();
            out::line(&format!(
                "{location}/{}: {} rows in {} files, {} rejected, {} tombstones skipped",
                manifest.number.directory(),
                counts.rows,
                manifest.files.len(),
                counts.rejected,
                counts.tombstones_skipped
            ))?;
            for gap in &manifest.accepted_gaps {
                out::line(&gap_line(gap))?;
            }
            for left in &manifest.left_out {
                out::line(&format!(
                    "left out {}-{}: {}",
                    left.topic, left.partition, left.reason
                ))?;
            }
            if manifest.partial {
                out::line("the time budget ended first; the rest follows with the next run")?;
            }
        }
        Loaded::Nothing(left_out) => {
            out::line(&format!("{location}: nothing to do"))?;
            for left in left_out {
                out::line(&format!(
                    "left out {}-{}: {}",
                    left.topic, left.partition, left.reason
                ))?;
            }
        }
        Loaded::OutOfTime => {
            out::line(&format!(
                "{location}: the time budget ended before a task was done"
            ))?;
        }
    }
    Ok(())
}

fn print_json(load: &Load, result: &Result<Loaded, Error>) -> std::io::Result<()> {
    let (outcome, manifest, exit) = match result {
        Ok(loaded) => {
            let exit = loaded.exit();
            match loaded {
                Loaded::Published(manifest) => ("published", Some(&**manifest), exit),
                Loaded::Nothing(_) => ("nothing", None, exit),
                Loaded::OutOfTime => ("out_of_time", None, exit),
            }
        }
        Err(error) => ("failed", None, Some(error.exit())),
    };
    out::json(&LoadReport {
        dataset: &load.location,
        outcome,
        exit: exit.map_or(0, Exit::code),
        manifest,
        error: result
            .as_ref()
            .err()
            .map(|e| loader_pipeline::error::chain(e)),
    })
}

/// Plan time: the only look at the clock.
pub(super) fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// A quiet listener for commands that load on the side.
pub(super) fn quiet() -> Arc<dyn loader_pipeline::progress::Progress> {
    Arc::new(loader_pipeline::progress::Quiet)
}
