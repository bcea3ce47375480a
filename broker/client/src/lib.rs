//! A tokio client for Kafka's protocol: metadata, fetch of ranges, offsets, producing.
//!
//! ```text
//!  Client ── metadata (who leads what) ──┐
//!    │                                   ▼
//!    ├─ list_offsets, admin, group ─► pool ─► connection (pipelined) ─► broker
//!    ├─ fetch_range ─► RangeFetch: a task that prefetches on a connection of its own
//!    └─ producer ─► Producer: a task per partition that batches, sends and retries
//! ```
//!
//! The record batch is the unit: a range hands out whole batches as bytes, checked and classified,
//! and never looks inside them. Every call has a time-out; every operation is repeated by error
//! code, with backoff, until a deadline whose error carries the last cause ([`Error::root`]).
//!
//! A connection opens with TLS ([`TlsConfig`]) and SASL ([`SaslConfig`]) where the configuration has them;
//! what goes wrong there is told apart, and not retried where it cannot heal by itself.
//!
//! Left out: transactions, consumer groups with members, fetch sessions, reading from followers.

mod aborted;
mod admin;
mod backoff;
mod client;
mod config;
mod connection;
mod error;
mod fetch;
mod group;
mod handshake;
mod metadata;
mod offsets;
mod pool;
mod producer;
mod range;
mod sasl;
mod tasks;
#[cfg(test)]
mod tests;
mod tls;
mod versions;

pub use broker_protocol as protocol;

pub use aborted::BatchKind;
pub use broker_protocol::sasl::{Mechanism, Secret};
pub use client::Client;
pub use config::{Acks, ClientConfig, Clock, ProducerConfig, SystemClock};
pub use error::{BatchFault, Cause, Error, ErrorKind, Result};
pub use fetch::FetchedBatch;
pub use metadata::{Broker, Cluster, PartitionMetadata, TopicMetadata};
pub use offsets::{EpochEnd, IsolationLevel, ListedOffset, OffsetSpec};
pub use producer::{Delivery, DeliveryHandle, Producer, ProducerRecord};
pub use range::{FetchOptions, RangeFetch};
pub use sasl::SaslConfig;
pub use tls::{TlsConfig, TlsFault};
