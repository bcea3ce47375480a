//! `DescribeConfigs` 1–4: settings of topics and of this broker, under Apache Kafka's names.
//!
//! Deviation: of the broker only the properties that this configuration has an equivalent for.

use broker_protocol::{
    ByteString, ErrorCode, TopicName,
    messages::{
        DescribeConfigsRequest, DescribeConfigsResponse,
        describe_configs::{
            DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResult,
            DescribeConfigsSynonym,
        },
    },
};

use super::Context;
use crate::{
    config::Config,
    security::config::ListenerConfig,
    topic_config::{Effect, KEYS, Kind, Overrides, bytes_as_long, millis, unlimited},
};

/// Kind of resource: a topic.
pub(super) const TOPIC: i8 = 2;
/// Kind of resource: a broker.
pub(super) const BROKER: i8 = 4;

/// Where a value comes from, as Kafka numbers it.
const FROM_TOPIC: i8 = 1;
const FROM_FILE: i8 = 4;
const FROM_DEFAULT: i8 = 5;

/// One setting and its value.
pub(super) struct Described {
    /// Kafka's name.
    pub(super) name: &'static str,
    /// As text.
    pub(super) value: String,
    /// Kafka's number of where it comes from.
    pub(super) source: i8,
    default: String,
    kind: Kind,
    documentation: String,
}

pub(super) fn handle(
    context: &Context<'_>,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let wants = Wants {
        synonyms: request.include_synonyms,
        documentation: request.include_documentation,
    };
    let results = request.resources.into_iter().map(|resource| {
        let described = describe(context, &resource, wants);
        let answer = DescribeConfigsResult {
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
            error_message: None,
            ..DescribeConfigsResult::default()
        };
        match described {
            Ok(configs) => DescribeConfigsResult { configs, ..answer },
            Err((code, message)) => DescribeConfigsResult {
                error_code: code.code(),
                error_message: Some(message.into()),
                ..answer
            },
        }
    });
    DescribeConfigsResponse {
        results: results.collect(),
        ..DescribeConfigsResponse::default()
    }
}

#[derive(Clone, Copy)]
struct Wants {
    synonyms: bool,
    documentation: bool,
}

fn describe(
    context: &Context<'_>,
    resource: &DescribeConfigsResource,
    wants: Wants,
) -> Result<Vec<DescribeConfigsResourceResult>, (ErrorCode, String)> {
    let config = &context.broker.config;
    let name = &resource.resource_name;
    // Null and an empty list ask for all, as in Kafka.
    let wanted = resource
        .configuration_keys
        .as_ref()
        .filter(|keys| !keys.is_empty());
    let chosen = |described: &Described| {
        wanted.is_none_or(|keys| keys.iter().any(|key| **key == *described.name))
    };
    match resource.resource_type {
        TOPIC => {
            TopicName::try_from(name.clone())
                .map_err(|error| (ErrorCode::InvalidTopicException, error.to_string()))?;
            let topic = context.broker.topics.get(name);
            let topic = topic.ok_or_else(|| {
                (
                    ErrorCode::UnknownTopicOrPartition,
                    "no such topic".to_owned(),
                )
            })?;
            let values = topic_values(config, &topic.overrides).filter(chosen);
            Ok(values
                .map(|described| result(described, false, wants))
                .collect())
        }
        BROKER if name.is_empty() || **name == *config.node_id.to_string() => {
            let values = broker_values(context).into_iter().filter(chosen);
            Ok(values
                .map(|described| result(described, true, wants))
                .collect())
        }
        BROKER => {
            let message = format!("this is node {}, not {name}", config.node_id);
            Err((ErrorCode::InvalidRequest, message))
        }
        other => {
            let message = format!("resources of type {other} have no settings here");
            Err((ErrorCode::InvalidRequest, message))
        }
    }
}

/// All settings of a topic with these overrides.
pub(super) fn topic_values(
    config: &Config,
    overrides: &Overrides,
) -> impl Iterator<Item = Described> {
    KEYS.iter().map(move |key| {
        let default = key.default(config);
        let value = overrides.get(key.name);
        let mut documentation = key.documentation.to_owned();
        if key.effect == Effect::Kept {
            documentation.push_str(" Kept and answered; this version does not act on it.");
        }
        Described {
            name: key.name,
            source: if value.is_some() {
                FROM_TOPIC
            } else {
                FROM_DEFAULT
            },
            value: value.unwrap_or(&default).clone(),
            default,
            kind: key.kind,
            documentation,
        }
    })
}

/// The settings of logs.
fn log_rows(config: &Config) -> Vec<(&'static str, Kind, String)> {
    vec![
        (
            "log.cleaner.backoff.ms",
            Kind::Long,
            millis(config.compaction_interval).to_string(),
        ),
        (
            "log.cleaner.dedupe.buffer.size",
            Kind::Long,
            bytes_as_long(config.compaction_memory).to_string(),
        ),
        (
            "log.dirs",
            Kind::List,
            config.data_dir.display().to_string(),
        ),
        (
            "log.flush.interval.ms",
            Kind::Long,
            millis(config.flush_interval).to_string(),
        ),
        (
            "log.retention.bytes",
            Kind::Long,
            unlimited(bytes_as_long(config.retention_bytes)),
        ),
        (
            "log.retention.check.interval.ms",
            Kind::Long,
            millis(config.retention_check_interval).to_string(),
        ),
        (
            "log.retention.ms",
            Kind::Long,
            unlimited(millis(config.retention_age)),
        ),
        (
            "log.roll.ms",
            Kind::Long,
            millis(config.segment_age).to_string(),
        ),
        (
            "log.segment.bytes",
            Kind::Int,
            config.segment_bytes.as_u64().to_string(),
        ),
    ]
}

fn broker_values(context: &Context<'_>) -> Vec<Described> {
    let defaults = rows(&Config::default(), |listener| listener.listen.clone());
    let (host, port) = context.advertised();
    let reached = format!("{host}:{port}");
    let values = rows(&context.broker.config, |listener| {
        let advertised = listener.advertised.as_deref().unwrap_or(&listener.listen);
        if listener.name == context.listener.name {
            reached.clone()
        } else {
            advertised.to_owned()
        }
    });
    let described =
        values
            .into_iter()
            .zip(defaults)
            .map(|((name, kind, value), (_, _, default))| Described {
                name,
                source: if value == default {
                    FROM_DEFAULT
                } else {
                    FROM_FILE
                },
                value,
                default,
                kind,
                documentation: String::new(),
            });
    described.collect()
}

fn rows(
    config: &Config,
    advertised: impl Fn(&ListenerConfig) -> String,
) -> Vec<(&'static str, Kind, String)> {
    let listeners = config.all_listeners();
    let listed = |entry: &dyn Fn(&ListenerConfig) -> String| {
        let entries: Vec<String> = listeners.iter().map(entry).collect();
        entries.join(",")
    };
    let size = |size: bytesize::ByteSize| size.as_u64().to_string();
    let mut rows = vec![
        (
            "advertised.listeners",
            Kind::List,
            listed(&|listener| format!("{}://{}", listener.name, advertised(listener))),
        ),
        (
            "auto.create.topics.enable",
            Kind::Boolean,
            config.auto_create_topics.to_string(),
        ),
        (
            "connections.max.idle.ms",
            Kind::Long,
            millis(config.idle_timeout).to_string(),
        ),
        ("default.replication.factor", Kind::Int, "1".to_owned()),
        ("fetch.max.bytes", Kind::Int, size(config.fetch_max_bytes)),
        (
            "listeners",
            Kind::List,
            listed(&|listener| format!("{}://{}", listener.name, listener.listen)),
        ),
        (
            "max.connections",
            Kind::Int,
            config.max_connections.to_string(),
        ),
        (
            "max.incremental.fetch.session.cache.slots",
            Kind::Int,
            config.max_fetch_sessions.to_string(),
        ),
        (
            "message.max.bytes",
            Kind::Int,
            size(config.max_message_bytes),
        ),
        ("min.insync.replicas", Kind::Int, "1".to_owned()),
        ("node.id", Kind::Int, config.node_id.to_string()),
        (
            "num.partitions",
            Kind::Int,
            config.num_partitions.to_string(),
        ),
        (
            "queued.max.request.bytes",
            Kind::Long,
            size(config.request_bytes_in_flight),
        ),
        (
            "socket.request.max.bytes",
            Kind::Int,
            size(config.max_request_bytes),
        ),
    ];
    rows.extend(log_rows(config));
    rows.sort_by_key(|(name, _, _)| *name);
    rows
}

fn result(described: Described, read_only: bool, wants: Wants) -> DescribeConfigsResourceResult {
    let Described {
        name,
        value,
        source,
        default,
        kind,
        documentation,
    } = described;
    let name = ByteString::from_static(name);
    let synonym = |value: &str, source| DescribeConfigsSynonym {
        name: name.clone(),
        value: Some(value.into()),
        source,
    };
    let mut synonyms = Vec::new();
    if wants.synonyms {
        if source != FROM_DEFAULT {
            synonyms.push(synonym(&value, source));
        }
        synonyms.push(synonym(&default, FROM_DEFAULT));
    }
    DescribeConfigsResourceResult {
        value: Some(value.into()),
        read_only,
        config_source: source,
        is_sensitive: false,
        synonyms,
        config_type: kind.code(),
        documentation: wants.documentation.then(|| documentation.into()),
        name,
    }
}
