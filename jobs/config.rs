//! Reading configuration: defaults < file < environment < flags. The only file that knows figment.

use std::path::Path;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use loader_pipeline::config::JobConfig;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The process's configuration file (`logferry broker --config`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The broker.
    pub broker: broker_server::Config,
}

/// Reads a process configuration; `LOGFERRY__BROKER__SEGMENT_BYTES=64MiB` overrides the file.
///
/// # Errors
/// Names the key and the file or variable.
pub fn read(file: Option<&Path>) -> Result<Config, Failure> {
    let mut figment = Figment::from(Serialized::defaults(Config::default()));
    if let Some(file) = file {
        figment = figment.merge(Toml::file_exact(file));
    }
    let environment = Env::prefixed("LOGFERRY__")
        .filter(|key| !key.as_str().to_ascii_lowercase().starts_with("job__"))
        .split("__");
    figment.merge(environment).extract().map_err(refused)
}

/// Reads a job file; `LOGFERRY__JOB__SOURCE__BROKERS='["host:9092"]'` overrides it.
///
/// # Errors
/// Names the key and the file or variable.
pub fn read_job(file: &Path) -> Result<JobConfig, Failure> {
    let environment = Env::prefixed("LOGFERRY__JOB__").split("__");
    let figment = Figment::from(Toml::file_exact(file)).merge(environment);
    let mut job: JobConfig = figment.extract().map_err(refused)?;
    if job.name.is_empty() {
        let stem = file.file_stem().unwrap_or_default();
        job.name = stem.to_string_lossy().into_owned();
    }
    match job.validate() {
        Ok(()) => Ok(job),
        Err(problems) => {
            Err(
                Failure::usage(format!("{}: {}", file.display(), problems.join("; ")))
                    .try_this("docs/job-file.md describes every key"),
            )
        }
    }
}

fn refused(error: figment::Error) -> Failure {
    let problems: Vec<String> = error
        .into_iter()
        .map(|problem| problem.to_string())
        .collect();
    Failure::usage(problems.join("; "))
        .try_this("docs/job-file.md and docs/operations.md describe every key")
}
