//! logferry's commands: the only room that sees all the others.
//!
//! ```text
//! cli (one file a subcommand) ─► config (files, environment, flags) ─► broker-server, broker-client,
//!   │                                                                  loader-pipeline, loader-store
//!   ├─► shutdown (signals)   supervisor (systemd)   progress (bars on a terminal, lines elsewhere)
//!   └─► failure (error:, caused by:, try:, exit code)
//! ```

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "errors of other rooms are non-exhaustive: what is not named takes the general way"
)]
#![expect(clippy::future_not_send, reason = "commands run on the main thread")]

pub mod cli;
pub mod config;
pub mod failure;
pub mod progress;
pub mod shutdown;
pub mod supervisor;
pub mod telemetry;
