//! Reading configuration: defaults < file < environment < flags. The only file that knows figment.

use std::path::Path;

use broker_client::{SaslConfig, TlsConfig};
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
        .filter(|key| {
            let key = key.as_str().to_ascii_lowercase();
            !key.starts_with("job__") && !key.starts_with("client__")
        })
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

/// How the small commands reach the brokers (`--client-config`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Security {
    /// TLS to the brokers. Without the table: plaintext.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Name and password for the brokers. Without the table: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sasl: Option<SaslConfig>,
}

/// Reads a client configuration; `LOGFERRY__CLIENT__SASL__PASSWORD='"…"'` overrides the file.
///
/// # Errors
/// Names the key and the file or variable, never a secret.
pub fn read_client(file: Option<&Path>) -> Result<Security, Failure> {
    let mut figment = Figment::new();
    if let Some(file) = file {
        figment = figment.merge(Toml::file_exact(file));
    }
    let environment = Env::prefixed("LOGFERRY__CLIENT__").split("__");
    figment.merge(environment).extract().map_err(refused)
}

fn refused(error: figment::Error) -> Failure {
    let problems: Vec<String> = error
        .into_iter()
        .map(|problem| problem.to_string())
        .collect();
    Failure::usage(problems.join("; "))
        .try_this("docs/job-file.md and docs/operations.md describe every key")
}
