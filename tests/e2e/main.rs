//! The binary, end to end: real brokers, real stores, the commands as people type them.
//!
//! | module | what it shows |
//! |---|---|
//! | `first_path` | produce, load, read back with foreign readers, through our broker and Apache Kafka, to disk and HDFS |
//! | `kills` | `kill -9` at every step of the commit protocol and at random times (I1, I2, I3) |
//! | `contention` | loads at once, one stopped at each step, two clusters into one dataset (I4) |
//! | `prune` | old data deleted beside loads, readers and other prunes, and killed at every step |
//! | `source_changes` | partitions added, topics made again, retention, transactions (I6, I7) |
//! | `determinism` | the same plan gives the same bytes (I5) |
//! | `memory` | bounded whatever the input (I8) |
//! | `bad_input` | each wrong input: its exit code, cause and remedy, and nothing half published |
//! | `store_faults` | full disk, read-only, quota, safe mode, permissions |
//! | `hdfs_faults` | each fault of `NameNode` and `DataNode`s at each step of the commit protocol |
//! | `damage` | everything that can be wrong with a dataset, found by `verify` by name |
//! | `foreign_clients` | kcat, the Java producer and Kafka's log dump, unmodified, against our broker |
//! | `broker_kills` | `kill -9` of our broker under idempotent load: nothing acknowledged is lost, doubled or out of order |
//! | `log_dump` | Kafka's own dump of our files, after codecs, compaction, groups, a kill and a torn tail |
//! | `security` | TLS and SASL through every command, and where secrets must not show |
//! | `campaign` | seeded sequences of faults at loads, connections, HDFS, brokers, clock and source, several at once (I1 to I7) |
//! | `cases` | small inputs for faults that users of other loaders reported |
//! | `flights` | 336,776 real records, every value compared |
//!
//! Tests named `long_…` are campaigns for `tests/long`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in its helpers too"
)]

mod bad_input;
mod broker_kills;
mod campaign;
mod cases;
mod contention;
mod damage;
mod determinism;
mod first_path;
mod flights;
mod foreign_clients;
mod harness;
mod hdfs_faults;
mod kills;
mod log_dump;
mod memory;
mod prune;
mod rng;
mod security;
mod source_changes;
mod store_faults;
