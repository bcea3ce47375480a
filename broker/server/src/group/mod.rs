//! Consumer groups: who reads what, and how far they have come. One coordinator for all groups of this broker.
//!
//! ```text
//!  JoinGroup, SyncGroup, Heartbeat, LeaveGroup        OffsetCommit, OffsetFetch, …
//!        │                                                   │
//!        ▼                                                   ▼
//!  coordinator ──► one lock a group ──► state machine (state, requests)    offsets
//!     │  ▲                                   │                               │
//!     │  └── one timer a group with members  └─► journal: __consumer_offsets ◄┘
//!     └── at the start: reads the journal; until then COORDINATOR_LOAD_IN_PROGRESS
//! ```
//! - `coordinator`: finds groups, runs their timers, loads and expires them. The only part that waits.
//! - `state`, `requests`, `member`: one group, without I/O but for the journal, with time as an argument.
//! - `offsets`: committed offsets. `journal`, `records`: how both are written down, in Apache Kafka's format.
//!
//! Lock order: a group, then a change of topics (to make the topic), then a partition's log.

mod config;
mod coordinator;
#[cfg(any(test, fuzzing))]
#[expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a rule that is broken must be seen"
)]
pub(crate) mod fuzzing;
mod journal;
mod member;
mod offsets;
mod records;
mod requests;
mod state;
#[cfg(test)]
mod tests;

pub use config::Config;

pub(crate) use coordinator::Coordinator;
pub(crate) use member::{Profile, own};
pub(crate) use records::Committed;
pub(crate) use requests::{Caller, Join, Sync};
pub(crate) use state::{Group, refused_join, refused_sync};
