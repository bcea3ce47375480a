//! The same scenarios against our broker and against Apache Kafka, by clients and tools that are not ours.
//!
//! | module | what it shows |
//! |---|---|
//! | `smoke` | eight clients, each capability of each: the table of `docs/clients.md`, cell by cell |
//! | `expected` | that table, in one place, with what the clients lack and what our broker cannot do yet |
//! | `kgo` | the suite of franz-go, but for what `kgo_allowed.txt` names with its reason |
//! | `tools` | Kafka's command lines and load generators (`tests/long tools`) |
//! | `verifiable` | Kafka's verifiable producer and consumer while the broker is killed (`tests/long verifiable`) |
//!
//! `clients/` holds the programs that run, with their lock files; `programs` fetches, builds and starts them. Tests named
//! `long_…` are for `tests/long`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in its helpers too"
)]

mod expected;
mod kgo;
mod programs;
mod smoke;
mod target;
mod tools;
mod verifiable;
