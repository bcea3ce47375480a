//! Settings of a client and of a producer, with the Kafka property each mirrors.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use broker_protocol::record::Compression;

use crate::error::{Error, Result};
use crate::sasl::SaslConfig;
use crate::tls::TlsConfig;

/// Settings of a [`Client`](crate::Client). Sizes are bytes.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Brokers to ask first, each `host:port` or `[v6]:port` (`bootstrap.servers`).
    pub bootstrap: Vec<String>,
    /// Name the broker logs for this client (`client.id`).
    pub client_id: String,
    /// TLS to the brokers; none for plaintext (`security.protocol`).
    pub tls: Option<TlsConfig>,
    /// Name and password for the brokers; none for listeners without SASL (`security.protocol`).
    pub sasl: Option<SaslConfig>,
    /// Longest wait for a connection to open, TLS, SASL and handshake included. 10 s.
    pub connect_timeout: Duration,
    /// Longest wait for one answer (`request.timeout.ms`). 30 s. A long poll waits
    /// [`fetch_max_wait`](Self::fetch_max_wait) on top.
    pub request_timeout: Duration,
    /// How long an operation is repeated before it fails with its last cause
    /// (`default.api.timeout.ms`). 60 s.
    pub retry_deadline: Duration,
    /// First pause between two tries, doubled each time, with jitter (`retry.backoff.ms`). 100 ms.
    pub retry_backoff: Duration,
    /// Longest pause between two tries before jitter (`retry.backoff.max.ms`). 1 s.
    pub retry_backoff_max: Duration,
    /// How long "no such topic or partition" is doubted: metadata lags just after a creation. 3 s.
    pub unknown_topic_grace: Duration,
    /// Age at which cached metadata is asked for again (`metadata.max.age.ms`). 5 min.
    pub metadata_max_age: Duration,
    /// Bound of one fetch response (`fetch.max.bytes`). 50 MiB.
    pub fetch_max_bytes: usize,
    /// Bound of one partition in a fetch response (`max.partition.fetch.bytes`). 4 MiB. The first
    /// batch comes whole even above it.
    pub fetch_partition_max_bytes: usize,
    /// How long the broker holds back an empty answer (`fetch.max.wait.ms`). 500 ms.
    pub fetch_max_wait: Duration,
    /// Cap of one batch: a larger one is an error, never skipped. 64 MiB.
    pub max_batch_bytes: usize,
    /// Bytes one range may hold fetched and not yet handed out. 16 MiB.
    pub prefetch_bytes: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            bootstrap: Vec::new(),
            client_id: "logferry".to_owned(),
            tls: None,
            sasl: None,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            retry_deadline: Duration::from_secs(60),
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            unknown_topic_grace: Duration::from_secs(3),
            metadata_max_age: Duration::from_secs(300),
            fetch_max_bytes: 50 << 20,
            fetch_partition_max_bytes: 4 << 20,
            fetch_max_wait: Duration::from_millis(500),
            max_batch_bytes: 64 << 20,
            prefetch_bytes: 16 << 20,
        }
    }
}

/// What a response may hold beside the record batches.
const RESPONSE_OVERHEAD_BYTES: usize = 1 << 20;

impl ClientConfig {
    /// The defaults, for a comma separated list of `host:port`.
    pub fn new(bootstrap: &str) -> Self {
        let bootstrap = bootstrap
            .split(',')
            .map(str::trim)
            .filter(|address| !address.is_empty())
            .map(str::to_owned)
            .collect();
        Self {
            bootstrap,
            ..Self::default()
        }
    }

    /// Checks what can be checked without a broker.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] names the first setting that cannot work.
    pub fn validate(&self) -> Result<()> {
        if self.bootstrap.is_empty() {
            return Err(invalid(
                "bootstrap",
                "is empty; give at least one host:port",
            ));
        }
        for address in &self.bootstrap {
            if split_address(address).is_none() {
                return Err(invalid(
                    "bootstrap",
                    &format!("{address:?} is not host:port"),
                ));
            }
        }
        let durations = [
            ("connect_timeout", self.connect_timeout),
            ("request_timeout", self.request_timeout),
            ("retry_backoff", self.retry_backoff),
        ];
        for (field, duration) in durations {
            if duration.is_zero() {
                return Err(invalid(field, "is zero"));
            }
        }
        let sizes = [
            ("fetch_max_bytes", self.fetch_max_bytes),
            ("fetch_partition_max_bytes", self.fetch_partition_max_bytes),
            ("max_batch_bytes", self.max_batch_bytes),
            ("prefetch_bytes", self.prefetch_bytes),
        ];
        for (field, size) in sizes {
            if size == 0 || size > i32::MAX as usize - RESPONSE_OVERHEAD_BYTES {
                return Err(invalid(field, "is zero or does not fit a 32 bit size"));
            }
        }
        Ok(())
    }

    /// The largest response this client reads.
    pub(crate) fn max_response_bytes(&self) -> usize {
        self.fetch_max_bytes
            .max(self.max_batch_bytes)
            .saturating_add(RESPONSE_OVERHEAD_BYTES)
    }
}

fn invalid(field: &'static str, problem: &str) -> Error {
    Error::InvalidConfig {
        field,
        problem: problem.to_owned(),
    }
}

/// Splits `host:port` or `[v6]:port`.
pub(crate) fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    if host.is_empty() {
        return None;
    }
    Some((host, port.parse().ok()?))
}

/// The inverse of [`split_address`].
pub(crate) fn join_address(host: &str, port: i32) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Who must have a batch before the broker confirms it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acks {
    /// All in-sync replicas (`acks=all`).
    #[default]
    All,
    /// The leader alone (`acks=1`). Not with idempotence.
    Leader,
}

/// Where the time of a record without one comes from.
pub trait Clock: Debug + Send + Sync {
    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock that others take"
    )]
    fn now_ms(&self) -> i64 {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
    }
}

/// Settings of a [`Producer`](crate::Producer). Sizes are bytes.
#[derive(Debug, Clone)]
pub struct ProducerConfig {
    /// Confirmation asked of the broker (`acks`). All.
    pub acks: Acks,
    /// A retry never appends a record twice and never changes the order (`enable.idempotence`).
    /// On; a broker without it is an error. Off, one batch per partition is in flight.
    pub idempotent: bool,
    /// Codec of the batches (`compression.type`). None.
    pub compression: Compression,
    /// Size, before compression, at which a batch is sent (`batch.size`). 256 KiB.
    pub batch_bytes: usize,
    /// How long a batch waits for more records (`linger.ms`). 5 ms.
    pub linger: Duration,
    /// Batches in flight per partition, 1 to 5 (`max.in.flight.requests.per.connection`). 5.
    pub max_in_flight: usize,
    /// Bytes of records not yet confirmed; `send` waits beyond it (`buffer.memory`). 32 MiB.
    /// Until a batch is confirmed its encoded form is held as well.
    pub buffer_bytes: usize,
    /// Largest record, before compression (`max.request.size`). 64 MiB.
    pub max_record_bytes: usize,
    /// How long a batch is tried, counted from its first record (`delivery.timeout.ms`). 120 s.
    pub delivery_timeout: Duration,
    /// Time of records that have none.
    pub clock: Arc<dyn Clock>,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            acks: Acks::All,
            idempotent: true,
            compression: Compression::None,
            batch_bytes: 256 << 10,
            linger: Duration::from_millis(5),
            max_in_flight: 5,
            buffer_bytes: 32 << 20,
            max_record_bytes: 64 << 20,
            delivery_timeout: Duration::from_secs(120),
            clock: Arc::new(SystemClock),
        }
    }
}

impl ProducerConfig {
    /// Checks what can be checked without a broker.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] names the first setting that cannot work.
    pub fn validate(&self) -> Result<()> {
        if self.idempotent && self.acks != Acks::All {
            return Err(invalid(
                "acks",
                "must be all while the producer is idempotent",
            ));
        }
        if !(1..=5).contains(&self.max_in_flight) {
            return Err(invalid("max_in_flight", "must be 1 to 5"));
        }
        let sizes = [
            ("batch_bytes", self.batch_bytes),
            ("buffer_bytes", self.buffer_bytes),
            ("max_record_bytes", self.max_record_bytes),
        ];
        for (field, size) in sizes {
            if size == 0 || size > i32::MAX as usize {
                return Err(invalid(field, "is zero or does not fit a 32 bit size"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_splits_into_host_and_port() {
        assert_eq!(split_address("a.b:9092"), Some(("a.b", 9092)));
        assert_eq!(split_address("[::1]:1"), Some(("::1", 1)));
        for bad in ["a", "a:", ":1", "a:65536", "::1:9", "[::1:9", ""] {
            assert_eq!(split_address(bad), None, "{bad}");
        }
        assert_eq!(join_address("::1", 9), "[::1]:9");
    }

    #[test]
    fn bootstrap_list_is_split_at_commas() {
        let config = ClientConfig::new("a:1, b:2,");
        assert_eq!(config.bootstrap, ["a:1", "b:2"]);
        config.validate().unwrap();
        let error = ClientConfig::new(" , ").validate().unwrap_err();
        assert!(
            matches!(
                error,
                Error::InvalidConfig {
                    field: "bootstrap",
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn idempotence_needs_all_acks() {
        let config = ProducerConfig {
            acks: Acks::Leader,
            ..ProducerConfig::default()
        };
        assert!(matches!(
            config.validate(),
            Err(Error::InvalidConfig { field: "acks", .. })
        ));
        ProducerConfig {
            idempotent: false,
            ..config
        }
        .validate()
        .unwrap();
    }
}
