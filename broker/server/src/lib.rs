//! The embedded single-node broker: Kafka's protocol on a TCP port, logs on disk.
//!
//! ```text
//!  TCP ─► listener ─► connection ─► handlers ─► topics ─► partition ─► broker-log
//!           limits      in order,     one file    name →     one lock a
//!                       in batches    an API      partition  partition
//! ```
//!
//! - [`Config`]: what an operator can set. [`Broker`]: opened on a directory, served on a listener.
//! - `security`: TLS handshakes and SASL, before a request is looked at; who a connection speaks for.
//! - `handlers`: one file an API, and the table of the versions served.
//! - `topics`, `metadata_store`: what exists, durable before it shows; the seam for another metadata store.
//! - `fetch_sessions`: what clients fetch, so that they need not say it each time.
//! - `group`: consumer groups and their offsets.
//! - `partition`: one partition's log, its readers and the fetches that wait on it.
//! - `housekeeping`: what happens without a request: rolling, retention, flushes, checkpoints.
//! - `compaction`: which partition is compacted when.
//! - `admin`, `metrics`: what operators are told, over HTTP.
//! - `descriptors`: whether connections and files fit into what the system allows.
//!
//! Lock order: a group, then a change of topics, then a partition's turn to flush, then its log, then its list of
//! waiters, then the index of topics.
//! But for the turn to flush no lock is held across an `.await`. A partition here is a log, a leader epoch and a high watermark that is
//! the log's end, or the end of what has been flushed: the case of one replica.
//!
//! A leader epoch starts at 0 and rises by one at each start after an unclean stop, so that a reader which saw
//! records that the stop cut off learns of it by `OffsetForLeaderEpoch`.
//!
//! Not here: what a batch's records mean (the loader's), the format on disk (`broker-log`'s), reading the
//! configuration from files (the jobs').

mod admin;
mod broker;
mod clock;
mod compaction;
mod config;
mod connection;
mod descriptors;
mod durable;
mod error;
mod fetch_sessions;
#[cfg(fuzzing)]
pub mod fuzzing;
mod group;
mod handlers;
mod housekeeping;
mod listener;
mod metadata_store;
mod metrics;
mod partition;
mod pool;
mod security;
mod space;
mod steady_clock;
mod stream;
mod topic_config;
mod topics;

pub use broker::Broker;
pub use broker_log::RecoveryReport;
pub use clock::{Clock, SystemClock};
pub use config::{Config, Problem};
pub use error::{Error, Kind as ErrorKind};
pub use group::Config as GroupConfig;
pub use listener::Listeners;
pub use security::{
    FileFault,
    config::{ClientAuth, ListenerConfig, SaslConfig, SecurityProtocol, TlsConfig, TlsVersion},
};
