//! What an operator can set, and what is refused before anything is opened.

use std::{path::PathBuf, time::Duration};

use bytesize::ByteSize;
use jiff::fmt::serde::unsigned_duration::friendly::compact::required as text_duration;
use serde::{Deserialize, Serialize};

use crate::{
    group,
    security::config::{self as security, ListenerConfig, SaslConfig, SecurityProtocol, TlsConfig},
};

/// The batch overhead that Apache Kafka adds to 1 MiB in its default of `message.max.bytes`.
const RECORD_BATCH_OVERHEAD: u64 = 12;

/// The largest request that may ever be allowed: a frame's length is a signed 32-bit number.
const MAX_FRAME: u64 = i32::MAX as u64;

/// Configuration of the embedded broker.
///
/// Sizes are text such as `"1GiB"` or a number of bytes, durations are text such as `"30s"` or `"168h"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address to listen on, `host:port`. Default `127.0.0.1:9092`. Kafka: `listeners`.
    pub listen: String,
    /// Address that clients are told to connect to, `host:port`. Default: none, which tells each client the
    /// address that its own connection reached. Kafka: `advertised.listeners`.
    pub advertised: Option<String>,
    /// How clients of `listen` speak: `plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`. Default `plaintext`.
    /// Kafka: `listener.security.protocol.map`.
    pub protocol: SecurityProtocol,
    /// More listeners beside that of `listen`. Default: none. Kafka: `listeners`.
    pub listeners: Vec<ListenerConfig>,
    /// Certificate and key, for listeners with TLS. Default: none. Kafka: `ssl.*`.
    pub tls: Option<TlsConfig>,
    /// Mechanisms and users, for listeners with SASL. Default: none. Kafka: `sasl.*`.
    pub sasl: Option<SaslConfig>,
    /// Time from accepting a connection to the end of its TLS handshake and its authentication, after which it
    /// is closed. Default 10 s. No Kafka property.
    #[serde(with = "text_duration")]
    pub authentication_timeout: Duration,
    /// Time between two looks at the files of `tls` and `sasl`, which are read again when they have changed.
    /// Default 30 s. No Kafka property: Kafka reads them again when told to.
    #[serde(with = "text_duration")]
    pub reload_interval: Duration,
    /// Address of `/metrics`, `/healthz` and `/readyz` over HTTP, `host:port`; whoever reaches it needs no name and no
    /// password. Default: none. No Kafka property: Kafka has JMX.
    pub admin_listen: Option<String>,
    /// Whether `/metrics` tells offsets and sizes of every single partition. Default false. No Kafka property.
    pub metrics_per_partition: bool,
    /// Directory of the logs and the metadata; locked while the broker runs. Default `logferry-data`.
    /// Kafka: `log.dirs` (one only).
    pub data_dir: PathBuf,
    /// Id of this broker in metadata answers, 0 or more. Default 1. Kafka: `node.id`.
    pub node_id: i32,
    /// Partitions of a topic that is created without a number. Default 1. Kafka: `num.partitions`.
    pub num_partitions: i32,
    /// Whether naming an unknown topic in a Metadata request may create it. Default true.
    /// Kafka: `auto.create.topics.enable`.
    pub auto_create_topics: bool,
    /// Partitions in total above which no topic is created and none grows. Default 4000. No Kafka property;
    /// it bounds memory and open files.
    pub max_partitions: u32,
    /// Bytes after which a segment is closed and a new one begun, unless the topic sets `segment.bytes`.
    /// Default 1 GiB. Kafka: `log.segment.bytes`.
    #[serde(with = "exact_size")]
    pub segment_bytes: ByteSize,
    /// Age after which a segment is closed and a new one begun, unless the topic sets `segment.ms`.
    /// Default 168 h. Kafka: `log.roll.hours`.
    #[serde(with = "text_duration")]
    pub segment_age: Duration,
    /// Age above which a segment's records are deleted, unless the topic sets `retention.ms`; 0 keeps them for
    /// ever. Default 168 h. Kafka: `log.retention.hours`.
    #[serde(with = "text_duration")]
    pub retention_age: Duration,
    /// Size of a partition above which its oldest segments are deleted, unless the topic sets
    /// `retention.bytes`; 0 sets no limit. Default 0. Kafka: `log.retention.bytes`.
    #[serde(with = "exact_size")]
    pub retention_bytes: ByteSize,
    /// Time between two rounds of retention. Default 5 min. Kafka: `log.retention.check.interval.ms`.
    #[serde(with = "text_duration")]
    pub retention_check_interval: Duration,
    /// Age of unflushed records at which a log is written through to the disk, unless the topic's `flush.ms` is
    /// shorter. It bounds what the start after a crash has to scan, and what a crash of the machine may lose; by
    /// then the system has written most of it by itself. Default 60 s. Kafka leaves it to the system
    /// (`log.flush.interval.ms`).
    #[serde(with = "text_duration")]
    pub flush_interval: Duration,
    /// Time between two looks for partitions to compact. Default 15 s. Kafka: `log.cleaner.backoff.ms`.
    #[serde(with = "text_duration")]
    pub compaction_interval: Duration,
    /// Memory for the keys of the partition that is being compacted, 32 bytes a key; more keys take more passes.
    /// Default 128 MiB. Kafka: `log.cleaner.dedupe.buffer.size`.
    #[serde(with = "exact_size")]
    pub compaction_memory: ByteSize,
    /// Largest request frame; a larger one closes its connection before anything is allocated.
    /// Default 100 MiB. Kafka: `socket.request.max.bytes`.
    #[serde(with = "exact_size")]
    pub max_request_bytes: ByteSize,
    /// Largest record batch, compressed as it came, unless the topic sets `max.message.bytes`.
    /// Default 1048588 bytes (1 MiB + 12). Kafka: `message.max.bytes`.
    #[serde(with = "exact_size")]
    pub max_message_bytes: ByteSize,
    /// Open connections; one more is closed at once. Fewer, if the limit of open files leaves no room for so many.
    /// Default 1000. Kafka: `max.connections`.
    pub max_connections: usize,
    /// Open connections from one address; one more is closed at once. Default: none, no limit but `max_connections`.
    /// Kafka: `max.connections.per.ip`.
    pub max_connections_per_address: Option<usize>,
    /// Time without a request, or without progress while an answer is written, after which a connection is
    /// closed. Default 10 min. Kafka: `connections.max.idle.ms`.
    #[serde(with = "text_duration")]
    pub idle_timeout: Duration,
    /// Time from the first byte of a request to its last, after which its connection is closed: a stalled
    /// sender gives back the bytes it holds in flight. Default 60 s. No Kafka property.
    #[serde(with = "text_duration")]
    pub request_read_timeout: Duration,
    /// Cap on the records in one Fetch answer, whatever the client asks for; one whole batch may exceed it.
    /// Default 55 MiB. Kafka: `fetch.max.bytes`.
    #[serde(with = "exact_size")]
    pub fetch_max_bytes: ByteSize,
    /// Bytes of all large requests being read or handled; further ones wait unread in their sockets. Beside them
    /// there are buffers: 16 KiB a connection that is not idle, 64 KiB at most, and 256 KiB for up to 128 connections with
    /// more than that under way. At least `max_request_bytes`. Default 256 MiB. Kafka: `queued.max.request.bytes`.
    #[serde(with = "exact_size")]
    pub request_bytes_in_flight: ByteSize,
    /// Bytes of records in all Fetch answers in memory; beyond them an answer holds one batch only. Without TLS, what is
    /// large goes from the page cache to the socket and is not counted. Default 256 MiB. No Kafka property.
    #[serde(with = "exact_size")]
    pub fetch_bytes_in_flight: ByteSize,
    /// Fetch sessions (KIP-227) that are remembered; beyond them one that was not used for 2 min, or a smaller one,
    /// gives way, else the client sends full requests. 0 for none. Default 1000.
    /// Kafka: `max.incremental.fetch.session.cache.slots`.
    pub max_fetch_sessions: usize,
    /// Bytes kept free on the disk of the logs: below it produce requests get a storage error, all else goes
    /// on. 0 keeps none. Default 64 MiB. No Kafka property.
    #[serde(with = "exact_size")]
    pub min_free_bytes: ByteSize,
    /// Whether a shutdown writes all logs through to the disk. The clean-shutdown mark is written only then;
    /// without it the next start scans the tails. Default true. No Kafka property: Kafka always does.
    pub flush_on_shutdown: bool,
    /// Time that open connections get to finish the request in hand when the broker stops. Default 10 s.
    /// No Kafka property.
    #[serde(with = "text_duration")]
    pub drain_timeout: Duration,
    /// Consumer groups.
    pub groups: group::Config,
}

/// Sizes as text without loss: `ByteSize` itself prints 1048588 bytes as `1.0 MiB`.
mod exact_size {
    use bytesize::ByteSize;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(size: &ByteSize, to: S) -> Result<S::Ok, S::Error> {
        let bytes = size.as_u64();
        let units = [
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
            ("B", 1),
        ];
        let fits = |(_, unit): &(&str, u64)| bytes > 0 && bytes.is_multiple_of(*unit);
        let (name, unit) = units.into_iter().find(fits).unwrap_or(("B", 1));
        to.collect_str(&format_args!("{}{name}", bytes / unit))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ByteSize, D::Error> {
        ByteSize::deserialize(from)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9092".to_owned(),
            advertised: None,
            protocol: SecurityProtocol::Plaintext,
            listeners: Vec::new(),
            tls: None,
            sasl: None,
            authentication_timeout: Duration::from_secs(10),
            reload_interval: Duration::from_secs(30),
            admin_listen: None,
            metrics_per_partition: false,
            data_dir: PathBuf::from("logferry-data"),
            node_id: 1,
            num_partitions: 1,
            auto_create_topics: true,
            max_partitions: 4000,
            segment_bytes: ByteSize::gib(1),
            segment_age: Duration::from_secs(168 * 3600),
            retention_age: Duration::from_secs(168 * 3600),
            retention_bytes: ByteSize::b(0),
            retention_check_interval: Duration::from_secs(300),
            flush_interval: Duration::from_secs(60),
            compaction_interval: Duration::from_secs(15),
            compaction_memory: ByteSize::mib(128),
            max_request_bytes: ByteSize::mib(100),
            max_message_bytes: ByteSize::b(1024 * 1024 + RECORD_BATCH_OVERHEAD),
            max_connections: 1000,
            max_connections_per_address: None,
            idle_timeout: Duration::from_secs(600),
            request_read_timeout: Duration::from_secs(60),
            fetch_max_bytes: ByteSize::mib(55),
            request_bytes_in_flight: ByteSize::mib(256),
            fetch_bytes_in_flight: ByteSize::mib(256),
            max_fetch_sessions: 1000,
            min_free_bytes: ByteSize::mib(64),
            flush_on_shutdown: true,
            drain_timeout: Duration::from_secs(10),
            groups: group::Config::default(),
        }
    }
}

/// One thing wrong with a [`Config`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {what}")]
#[non_exhaustive]
pub struct Problem {
    /// The field at fault, spelt as in the file.
    pub key: &'static str,
    /// What is wrong with its value and what would be right.
    pub what: String,
}

impl Config {
    /// Checks every value and every pair of values that must fit.
    ///
    /// # Errors
    /// All problems, not only the first.
    pub fn validate(&self) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        let mut check = |ok: bool, key: &'static str, what: &dyn Fn() -> String| {
            if !ok {
                problems.push(Problem { key, what: what() });
            }
        };
        check(!self.data_dir.as_os_str().is_empty(), "data_dir", &|| {
            "must name a directory".to_owned()
        });
        check(host_and_port(&self.listen).is_some(), "listen", &|| {
            format!("`{}` is not host:port", self.listen)
        });
        if let Some(advertised) = &self.advertised {
            let usable = host_and_port(advertised).is_some_and(|(_, port)| port != 0);
            check(usable, "advertised", &|| {
                format!("`{advertised}` is not host:port with a port above 0")
            });
        }
        if let Some(admin) = &self.admin_listen {
            check(host_and_port(admin).is_some(), "admin_listen", &|| {
                format!("`{admin}` is not host:port")
            });
        }
        check(self.node_id >= 0, "node_id", &|| {
            format!("{} is below 0", self.node_id)
        });
        check(self.num_partitions >= 1, "num_partitions", &|| {
            format!("{} is below 1", self.num_partitions)
        });
        check(self.max_partitions >= 1, "max_partitions", &|| {
            "must be at least 1".to_owned()
        });
        check(self.max_connections >= 1, "max_connections", &|| {
            "must be at least 1".to_owned()
        });
        let per_address = self.max_connections_per_address;
        check(
            per_address != Some(0),
            "max_connections_per_address",
            &|| "must be at least 1; leave it out for no limit".to_owned(),
        );
        for (ok, key, what) in self.sizes() {
            check(ok, key, &|| what.clone());
        }
        for (key, duration) in [
            ("segment_age", self.segment_age),
            ("retention_check_interval", self.retention_check_interval),
            ("flush_interval", self.flush_interval),
            ("compaction_interval", self.compaction_interval),
            ("idle_timeout", self.idle_timeout),
            ("request_read_timeout", self.request_read_timeout),
        ] {
            check(duration >= Duration::from_millis(1), key, &|| {
                "must be above 0".to_owned()
            });
        }
        problems.extend(self.groups.problems());
        problems.extend(security::problems(self));
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }

    /// Whether each size is right, by itself and beside the others, and what is wrong with it if not.
    fn sizes(&self) -> Vec<(bool, &'static str, String)> {
        let ranges = [
            ("segment_bytes", self.segment_bytes, 1024, MAX_FRAME),
            ("max_request_bytes", self.max_request_bytes, 1024, MAX_FRAME),
            ("max_message_bytes", self.max_message_bytes, 61, MAX_FRAME),
            ("fetch_max_bytes", self.fetch_max_bytes, 1024, MAX_FRAME / 2),
            (
                "fetch_bytes_in_flight",
                self.fetch_bytes_in_flight,
                1024,
                1 << 50,
            ),
            (
                "request_bytes_in_flight",
                self.request_bytes_in_flight,
                1024,
                1 << 50,
            ),
            (
                "compaction_memory",
                self.compaction_memory,
                1 << 10,
                1 << 40,
            ),
        ];
        let in_range = ranges.map(|(key, size, least, most)| {
            let size = size.as_u64();
            let what = format!("{size} bytes is outside {least}..={most}");
            ((least..=most).contains(&size), key, what)
        });
        let pairs = [
            (
                self.request_bytes_in_flight >= self.max_request_bytes,
                "request_bytes_in_flight",
                "is below max_request_bytes: the largest request could never be read",
            ),
            (
                self.max_request_bytes >= self.max_message_bytes,
                "max_request_bytes",
                "is below max_message_bytes: the largest batch could never be sent",
            ),
            (
                self.segment_bytes >= self.max_message_bytes,
                "segment_bytes",
                "is below max_message_bytes: the largest batch would fit no segment",
            ),
        ];
        let pairs = pairs.map(|(ok, key, what)| (ok, key, what.to_owned()));
        in_range.into_iter().chain(pairs).collect()
    }
}

/// Splits `host:port`; an IPv6 address stands in brackets, which are dropped.
pub(crate) fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!bare.is_empty()).then_some(())?;
    Some((bare, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_survive_a_round_trip() {
        let config = Config::default();
        assert_eq!(config.validate(), Ok(()));
        let text = serde_json::to_string(&config).unwrap();
        for part in [
            "\"idle_timeout\":\"10m\"",
            "\"1GiB\"",
            "\"100MiB\"",
            "\"max_message_bytes\":\"1048588B\"",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), config);
    }

    #[test]
    fn sizes_and_durations_are_text() {
        let text =
            r#"{"segment_bytes": "64MiB", "idle_timeout": "90s", "max_message_bytes": 2000}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        assert_eq!(config.segment_bytes, ByteSize::mib(64));
        assert_eq!(config.idle_timeout, Duration::from_secs(90));
        assert_eq!(config.max_message_bytes, ByteSize::b(2000));
    }

    #[test]
    fn a_misspelt_key_is_refused_by_name() {
        let error = serde_json::from_str::<Config>(r#"{"segment_byte": 1}"#).unwrap_err();
        assert!(error.to_string().contains("segment_byte"), "{error}");
    }

    #[test]
    fn every_problem_is_reported() {
        let config = Config {
            listen: "nowhere".to_owned(),
            advertised: Some("host:0".to_owned()),
            node_id: -1,
            num_partitions: 0,
            max_request_bytes: ByteSize::gib(3),
            idle_timeout: Duration::ZERO,
            ..Config::default()
        };
        let problems = config.validate().unwrap_err();
        let keys: Vec<_> = problems.iter().map(|problem| problem.key).collect();
        assert_eq!(
            keys,
            [
                "listen",
                "advertised",
                "node_id",
                "num_partitions",
                "max_request_bytes",
                "request_bytes_in_flight",
                "idle_timeout"
            ]
        );
    }

    /// The keys in the tables of `docs/operations.md` under one of these headings, each with its cell for Kafka's name.
    fn documented(heading: &str) -> Vec<(String, String)> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().skip_while(|line| !line.starts_with(heading));
        let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
        let keys = rows.flat_map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let kafka = cells[4].to_owned();
            let names = cells[1].split(", ").map(|name| name.trim_matches('`'));
            let named = names.map(|name| (name.to_owned(), kafka.clone()));
            named.collect::<Vec<_>>()
        });
        keys.collect()
    }

    fn keys_of(value: &impl Serialize) -> Vec<String> {
        let value = serde_json::to_value(value).unwrap();
        value.as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn the_handbook_has_every_key_with_kafkas_name_beside_it() {
        let config = Config::default();
        let tables = ["tls", "sasl", "groups"];
        let own = keys_of(&config).into_iter();
        let mut keys: Vec<String> = own.filter(|key| !tables.contains(&key.as_str())).collect();
        let groups = keys_of(&config.groups).into_iter();
        keys.extend(groups.map(|key| format!("groups.{key}")));
        let tls: TlsConfig =
            serde_json::from_str(r#"{"certificate_file": "a", "key_file": "b"}"#).unwrap();
        let sasl: SaslConfig = serde_json::from_str("{}").unwrap();
        for (heading, mut keys) in [
            ("| key | type | default | Kafka | meaning |", keys),
            ("| key of `[broker.tls]` |", keys_of(&tls)),
            ("| key of `[broker.sasl]` |", keys_of(&sasl)),
        ] {
            let rows = documented(heading);
            let mut documented: Vec<String> = rows.iter().map(|(key, _)| key.clone()).collect();
            documented.sort();
            keys.sort();
            assert_eq!(documented, keys, "under {heading}");
            for (key, kafka) in rows {
                let named = kafka.contains('`') || kafka == "–";
                assert!(
                    named,
                    "{key}: `{kafka}` is neither a property of Kafka's nor –"
                );
            }
        }
    }

    #[test]
    fn host_and_port_are_split() {
        assert_eq!(host_and_port("localhost:9092"), Some(("localhost", 9092)));
        assert_eq!(host_and_port("[::1]:9092"), Some(("::1", 9092)));
        for bad in [
            "",
            "localhost",
            ":9092",
            "::1:9092",
            "[::1:9092",
            "a:b",
            "a:70000",
            "a:-1",
        ] {
            assert_eq!(host_and_port(bad), None, "{bad}");
        }
    }
}
