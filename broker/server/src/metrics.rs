//! What the broker counts, in Kafka's terms.
//!
//! Every metric is a [`Definition`]: name with its unit, kind, labels, help. `docs/operations.md` has the same as rows
//! for operators, and tests compare both with what is exported. Values of labels are bounded: `api` is one of the served APIs, `error`
//! one of Kafka's names of errors, `direction`, `reason` and `state` are listed below; `topic` and `partition` appear only
//! with `metrics_per_partition`.
//!
//! What requests touch are atomics in an array, found by the API's place in the table; labels are looked up for errors
//! only. What must be looked for (sizes, groups, free bytes) is looked for when somebody asks, see `admin`.

use std::sync::OnceLock;

use broker_protocol::{ErrorCode, messages::ApiKey};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, core::Collector,
};

use crate::handlers::SERVED;

/// What a metric is to Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by ranges.
    Histogram,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Definition {
    /// Ends in its unit, and in `_total` if it only grows.
    pub(crate) name: &'static str,
    /// What it is.
    pub(crate) kind: Kind,
    /// Names of its labels.
    pub(crate) labels: &'static [&'static str],
    /// What it says.
    pub(crate) help: &'static str,
}

const fn define(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Definition {
    Definition {
        name,
        kind,
        labels,
        help,
    }
}

/// Received from clients, or sent to them.
const DIRECTIONS: [&str; 2] = ["in", "out"];
/// Limits that a new connection can meet.
const TURNED_AWAY: [&str; 2] = ["max_connections", "max_connections_per_address"];
/// Can be written and read, or not.
const STATES: [&str; 2] = ["online", "offline"];

const REQUESTS: Definition = define(
    "broker_requests_total",
    Kind::Counter,
    &["api"],
    "Requests answered",
);
const ERRORS: Definition = define(
    "broker_request_errors_total",
    Kind::Counter,
    &["api", "error"],
    "Error codes in answers; one answer may have many",
);
const REQUEST_SECONDS: Definition = define(
    "broker_request_duration_seconds",
    Kind::Histogram,
    &["api"],
    "Time from the last byte of a request to its answer, waiting for records included",
);
const REFUSED: Definition = define(
    "broker_requests_refused_total",
    Kind::Counter,
    &[],
    "Requests whose connection was closed instead of an answer",
);
const NETWORK_BYTES: Definition = define(
    "broker_network_bytes_total",
    Kind::Counter,
    &["direction"],
    "Bytes of requests and answers, before TLS",
);
const PRODUCE_BYTES: Definition = define(
    "broker_produce_bytes_total",
    Kind::Counter,
    &[],
    "Bytes of record batches appended, as they came",
);
const PRODUCE_RECORDS: Definition = define(
    "broker_produce_records_total",
    Kind::Counter,
    &[],
    "Records appended, by the headers of their batches",
);
const FETCH_BYTES: Definition = define(
    "broker_fetch_bytes_total",
    Kind::Counter,
    &[],
    "Bytes of record batches in answers to Fetch",
);
const CONNECTIONS: Definition = define(
    "broker_connections",
    Kind::Gauge,
    &[],
    "Open connections of clients",
);
const ACCEPTED: Definition = define(
    "broker_connections_accepted_total",
    Kind::Counter,
    &[],
    "Connections taken",
);
const REJECTED: Definition = define(
    "broker_connections_rejected_total",
    Kind::Counter,
    &["reason"],
    "Connections closed at once, by the limit they met",
);
const UNAUTHENTICATED: Definition = define(
    "broker_authentication_failures_total",
    Kind::Counter,
    &[],
    "Connections closed because the TLS handshake or the authentication failed",
);
const FLUSH_SECONDS: Definition = define(
    "broker_log_flush_duration_seconds",
    Kind::Histogram,
    &[],
    "Time to write a log through to the disk",
);
const LOG_BYTES: Definition = define(
    "broker_log_size_bytes",
    Kind::Gauge,
    &[],
    "Bytes of all segments, without indexes",
);
const LOG_SEGMENTS: Definition = define(
    "broker_log_segments",
    Kind::Gauge,
    &[],
    "Segments of all logs",
);
const UNFLUSHED_BYTES: Definition = define(
    "broker_log_unflushed_bytes",
    Kind::Gauge,
    &[],
    "Bytes of the segments that are not wholly on the disk: an upper bound of what a crash of the machine may lose",
);
const FREE_BYTES: Definition = define(
    "broker_disk_free_bytes",
    Kind::Gauge,
    &[],
    "Bytes free on the disk of the logs",
);
const TOPICS: Definition = define("broker_topics", Kind::Gauge, &[], "Topics");
const PARTITIONS: Definition = define(
    "broker_partitions",
    Kind::Gauge,
    &["state"],
    "Partitions that can be used, and those that a failure took off line",
);
const GROUPS: Definition = define("broker_groups", Kind::Gauge, &[], "Consumer groups");
const MEMBERS: Definition = define(
    "broker_group_members",
    Kind::Gauge,
    &[],
    "Members of all consumer groups",
);
const RECOVERY_SECONDS: Definition = define(
    "broker_recovery_duration_seconds",
    Kind::Gauge,
    &[],
    "Time that opening the logs took at the start",
);
const OPEN_FILES: Definition = define(
    "process_open_fds",
    Kind::Gauge,
    &[],
    "Open file descriptors",
);
const MAX_FILES: Definition = define(
    "process_max_fds",
    Kind::Gauge,
    &[],
    "Limit of open file descriptors",
);
const PARTITION_START: Definition = define(
    "broker_partition_log_start_offset",
    Kind::Gauge,
    &["topic", "partition"],
    "First offset; with metrics_per_partition",
);
const PARTITION_END: Definition = define(
    "broker_partition_log_end_offset",
    Kind::Gauge,
    &["topic", "partition"],
    "Next offset to be written; with metrics_per_partition",
);
const PARTITION_BYTES: Definition = define(
    "broker_partition_size_bytes",
    Kind::Gauge,
    &["topic", "partition"],
    "Bytes of all segments; with metrics_per_partition",
);

/// All metrics, for the tests: what is registered below must be these.
#[cfg(test)]
const METRICS: &[Definition] = &[
    REQUESTS,
    ERRORS,
    REQUEST_SECONDS,
    REFUSED,
    NETWORK_BYTES,
    PRODUCE_BYTES,
    PRODUCE_RECORDS,
    FETCH_BYTES,
    CONNECTIONS,
    ACCEPTED,
    REJECTED,
    UNAUTHENTICATED,
    FLUSH_SECONDS,
    LOG_BYTES,
    LOG_SEGMENTS,
    UNFLUSHED_BYTES,
    FREE_BYTES,
    TOPICS,
    PARTITIONS,
    GROUPS,
    MEMBERS,
    RECOVERY_SECONDS,
    OPEN_FILES,
    MAX_FILES,
    PARTITION_START,
    PARTITION_END,
    PARTITION_BYTES,
];

/// Upper bounds in seconds, for requests and flushes.
const SECONDS: [f64; 14] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// What is counted of one API.
#[derive(Debug)]
pub(crate) struct ApiMetrics {
    /// Requests answered.
    pub(crate) requests: IntCounter,
    /// How long they took.
    pub(crate) seconds: Histogram,
}

/// All counters of a broker.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// By place in [`SERVED`]; made when it is first asked for.
    apis: Vec<OnceLock<ApiMetrics>>,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    errors: IntCounterVec,
    /// Requests not answered.
    pub(crate) refused: IntCounter,
    /// Bytes received.
    pub(crate) bytes_in: IntCounter,
    /// Bytes sent.
    pub(crate) bytes_out: IntCounter,
    /// Bytes appended.
    pub(crate) produce_bytes: IntCounter,
    /// Records appended.
    pub(crate) produce_records: IntCounter,
    /// Bytes fetched.
    pub(crate) fetch_bytes: IntCounter,
    /// Open connections.
    pub(crate) connections: IntGauge,
    /// Connections taken.
    pub(crate) accepted: IntCounter,
    /// Connections above `max_connections`.
    pub(crate) above_limit: IntCounter,
    /// Connections above `max_connections_per_address`.
    pub(crate) above_address_limit: IntCounter,
    /// Clients not let in.
    pub(crate) unauthenticated: IntCounter,
    /// How long flushes took.
    pub(crate) flush_seconds: Histogram,
    /// What is looked for when somebody asks.
    pub(crate) state: State,
}

/// What is looked for when somebody asks.
#[derive(Debug)]
pub(crate) struct State {
    /// Bytes of logs.
    pub(crate) log_bytes: IntGauge,
    /// Segments.
    pub(crate) log_segments: IntGauge,
    /// Bytes not flushed.
    pub(crate) unflushed_bytes: IntGauge,
    /// Bytes free.
    pub(crate) free_bytes: IntGauge,
    /// Topics.
    pub(crate) topics: IntGauge,
    /// Partitions on line.
    pub(crate) online: IntGauge,
    /// Partitions off line.
    pub(crate) offline: IntGauge,
    /// Groups.
    pub(crate) groups: IntGauge,
    /// Members of groups.
    pub(crate) members: IntGauge,
    /// How long opening the logs took.
    pub(crate) recovery_seconds: Gauge,
    /// Open descriptors.
    pub(crate) open_files: IntGauge,
    /// Limit of them.
    pub(crate) max_files: IntGauge,
    /// By topic and partition.
    pub(crate) partition_start: IntGaugeVec,
    /// By topic and partition.
    pub(crate) partition_end: IntGaugeVec,
    /// By topic and partition.
    pub(crate) partition_bytes: IntGaugeVec,
}

impl Metrics {
    /// All at zero.
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let requests = counters(&registry, &REQUESTS);
        let network = counters(&registry, &NETWORK_BYTES);
        let rejected = counters(&registry, &REJECTED);
        let [inward, outward] = DIRECTIONS;
        let [limit, address_limit] = TURNED_AWAY;
        Self {
            apis: SERVED.iter().map(|_| OnceLock::new()).collect(),
            requests,
            request_seconds: histograms(&registry, &REQUEST_SECONDS),
            errors: counters(&registry, &ERRORS),
            refused: counter(&registry, &REFUSED),
            bytes_in: network.with_label_values(&[inward]),
            bytes_out: network.with_label_values(&[outward]),
            produce_bytes: counter(&registry, &PRODUCE_BYTES),
            produce_records: counter(&registry, &PRODUCE_RECORDS),
            fetch_bytes: counter(&registry, &FETCH_BYTES),
            connections: gauge(&registry, &CONNECTIONS),
            accepted: counter(&registry, &ACCEPTED),
            above_limit: rejected.with_label_values(&[limit]),
            above_address_limit: rejected.with_label_values(&[address_limit]),
            unauthenticated: counter(&registry, &UNAUTHENTICATED),
            flush_seconds: histograms(&registry, &FLUSH_SECONDS).with_label_values::<&str>(&[]),
            state: State::new(&registry),
            registry,
        }
    }

    /// The counters of a served API.
    pub(crate) fn api(&self, api: ApiKey) -> Option<&ApiMetrics> {
        let row = SERVED.iter().position(|row| row.api == api)?;
        let made = self.apis.get(row)?.get_or_init(|| ApiMetrics {
            requests: self.requests.with_label_values(&[api.name()]),
            seconds: self.request_seconds.with_label_values(&[api.name()]),
        });
        Some(made)
    }

    /// Counts the error codes of an answer.
    pub(crate) fn count_errors(&self, api: ApiKey, codes: &[i16]) {
        for &code in codes {
            let error = ErrorCode::from_i16(code).name();
            self.errors.with_label_values(&[api.name(), error]).inc();
        }
    }

    /// Everything in Prometheus' text format.
    ///
    /// # Errors
    /// A metric with neither samples nor sense: a mistake here.
    pub(crate) fn text(&self) -> prometheus::Result<String> {
        prometheus::TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

impl State {
    fn new(registry: &Registry) -> Self {
        let partitions = gauges(registry, &PARTITIONS);
        let [online, offline] = STATES;
        let gauge = |definition| gauge(registry, definition);
        Self {
            log_bytes: gauge(&LOG_BYTES),
            log_segments: gauge(&LOG_SEGMENTS),
            unflushed_bytes: gauge(&UNFLUSHED_BYTES),
            free_bytes: gauge(&FREE_BYTES),
            topics: gauge(&TOPICS),
            online: partitions.with_label_values(&[online]),
            offline: partitions.with_label_values(&[offline]),
            groups: gauge(&GROUPS),
            members: gauge(&MEMBERS),
            recovery_seconds: float_gauge(registry, &RECOVERY_SECONDS),
            open_files: gauge(&OPEN_FILES),
            max_files: gauge(&MAX_FILES),
            partition_start: gauges(registry, &PARTITION_START),
            partition_end: gauges(registry, &PARTITION_END),
            partition_bytes: gauges(registry, &PARTITION_BYTES),
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "names and labels are constants, and a test makes them all"
)]
fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    made: prometheus::Result<M>,
) -> M {
    let metric = made.expect("a definition is well formed");
    let registered = registry.register(Box::new(metric.clone()));
    registered.expect("a definition has a name of its own");
    metric
}

fn opts(definition: &Definition) -> Opts {
    Opts::new(definition.name, definition.help)
}

fn counter(registry: &Registry, definition: &Definition) -> IntCounter {
    counters(registry, definition).with_label_values::<&str>(&[])
}

fn counters(registry: &Registry, definition: &Definition) -> IntCounterVec {
    debug_assert_eq!(definition.kind, Kind::Counter, "{}", definition.name);
    let made = IntCounterVec::new(opts(definition), definition.labels);
    registered(registry, made)
}

fn gauge(registry: &Registry, definition: &Definition) -> IntGauge {
    gauges(registry, definition).with_label_values::<&str>(&[])
}

fn gauges(registry: &Registry, definition: &Definition) -> IntGaugeVec {
    debug_assert_eq!(definition.kind, Kind::Gauge, "{}", definition.name);
    let made = IntGaugeVec::new(opts(definition), definition.labels);
    registered(registry, made)
}

fn float_gauge(registry: &Registry, definition: &Definition) -> Gauge {
    debug_assert_eq!(definition.kind, Kind::Gauge, "{}", definition.name);
    let made = GaugeVec::new(opts(definition), definition.labels);
    registered(registry, made).with_label_values::<&str>(&[])
}

fn histograms(registry: &Registry, definition: &Definition) -> HistogramVec {
    debug_assert_eq!(definition.kind, Kind::Histogram, "{}", definition.name);
    let opts = HistogramOpts::new(definition.name, definition.help).buckets(SECONDS.to_vec());
    registered(registry, HistogramVec::new(opts, definition.labels))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The rows of a table in the handbook: the cells of each line that begins with such a word in code.
    fn rows(start: &str) -> Vec<Vec<String>> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(start));
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect();
        lines.map(cells).collect()
    }

    #[test]
    fn the_handbook_names_every_metric_with_its_kind_and_labels() {
        let documented: BTreeSet<(String, String, String)> = ["| `broker_", "| `process_"]
            .into_iter()
            .flat_map(rows)
            .map(|cells| (cells[1].clone(), cells[2].clone(), cells[3].clone()))
            .collect();
        let defined = METRICS.iter().map(|metric| {
            let labels = metric.labels.iter().map(|label| format!("`{label}`"));
            let labels: Vec<_> = labels.collect();
            (
                format!("`{}`", metric.name),
                format!("{:?}", metric.kind).to_lowercase(),
                labels.join(", "),
            )
        });
        assert_eq!(documented, defined.collect());
    }

    #[test]
    fn what_is_exported_is_what_is_defined() {
        let metrics = Metrics::new();
        metrics.api(ApiKey::Fetch).unwrap().requests.inc();
        metrics.count_errors(ApiKey::Fetch, &[3, -7]);
        for vec in [
            &metrics.state.partition_start,
            &metrics.state.partition_end,
            &metrics.state.partition_bytes,
        ] {
            vec.with_label_values(&["orders", "0"]).set(1);
        }
        let text = metrics.text().unwrap();
        let exported: BTreeSet<(&str, &str)> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .collect();
        let kinds: Vec<_> = METRICS
            .iter()
            .map(|metric| (metric.name, format!("{:?}", metric.kind).to_lowercase()))
            .collect();
        let defined = kinds.iter().map(|(name, kind)| (*name, kind.as_str()));
        assert_eq!(exported, defined.collect());
        for line in [
            "broker_request_errors_total{api=\"Fetch\",error=\"UNKNOWN_TOPIC_OR_PARTITION\"} 1",
            "broker_request_errors_total{api=\"Fetch\",error=\"UNKNOWN\"} 1",
            "broker_requests_total{api=\"Fetch\"} 1",
            "broker_connections_rejected_total{reason=\"max_connections\"} 0",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn names_end_in_their_unit_and_say_whether_they_only_grow() {
        for metric in METRICS {
            let total = metric.name.ends_with("_total");
            assert_eq!(total, metric.kind == Kind::Counter, "{}", metric.name);
            let seconds = metric.name.ends_with("_seconds");
            assert!(
                seconds || metric.kind != Kind::Histogram,
                "{} has no unit",
                metric.name
            );
        }
    }
}
