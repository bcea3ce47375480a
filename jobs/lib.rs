//! logferry's commands: the only room that sees all the others.
//!
//! ```text
//! cli (one file a subcommand) ─► config (files, environment, flags) ─► broker-server, broker-client,
//!   │                                                                  loader-pipeline, loader-store
//!   ├─► shutdown (signals)   progress (bars on a terminal, lines elsewhere)
//!   └─► failure (error:, caused by:, try:, exit code)
//! ```

pub mod cli;
pub mod config;
pub mod failure;
pub mod progress;
pub mod shutdown;
pub mod telemetry;
