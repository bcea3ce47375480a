//! Log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging: `LOGFERRY_LOG` holds a filter such as `info` or `warn,loader_pipeline=debug`.
pub fn start(default: &str) {
    let filter =
        EnvFilter::try_from_env("LOGFERRY_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let logger = tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A second start (tests in one process) keeps the first logger.
    drop(logger.try_init());
}
