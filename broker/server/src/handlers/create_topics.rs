//! `CreateTopics` 2–7.
//!
//! One broker: a replication factor of 1 or "the default" only, and assignments that name this broker only.
//! Deviation from Apache Kafka: settings that this broker would not keep are refused (see `topic_config`), and those of
//! `__consumer_offsets` that would lose groups.

use std::{collections::HashMap, sync::Arc};

use broker_protocol::{
    ByteString, ErrorCode, TopicName,
    messages::{
        CreateTopicsRequest, CreateTopicsResponse,
        create_topics::{CreatableTopic, CreatableTopicConfigs, CreatableTopicResult},
    },
};

use super::{Context, describe_configs};
use crate::{
    broker::Shared,
    pool::Failed,
    topic_config::{self, Overrides},
};

/// A code and its sentence.
type Refusal = (ErrorCode, String);

pub(super) async fn handle(
    context: &Context<'_>,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    let mut named: HashMap<ByteString, usize> = HashMap::new();
    for topic in &request.topics {
        *named.entry(topic.name.clone()).or_default() += 1;
    }
    let mut topics = Vec::with_capacity(named.len());
    for topic in request.topics {
        let times = named.insert(topic.name.clone(), 0);
        let name = topic.name.clone();
        let result = match times {
            // Answered with its first mention.
            Some(0) => continue,
            Some(1) => create(context, topic, request.validate_only).await,
            _ => Err((ErrorCode::InvalidRequest, "duplicate topic name".to_owned())),
        };
        topics.push(
            result.unwrap_or_else(|(code, message)| CreatableTopicResult {
                name,
                error_code: code.code(),
                error_message: Some(message.into()),
                num_partitions: -1,
                replication_factor: -1,
                configs: None,
                ..CreatableTopicResult::default()
            }),
        );
    }
    CreateTopicsResponse {
        topics,
        ..CreateTopicsResponse::default()
    }
}

async fn create(
    context: &Context<'_>,
    topic: CreatableTopic,
    validate_only: bool,
) -> Result<CreatableTopicResult, Refusal> {
    let name = TopicName::try_from(topic.name.clone())
        .map_err(|error| (ErrorCode::InvalidTopicException, error.to_string()))?;
    let partitions = partitions(&context.broker.config, &topic)?;
    let mut overrides = Overrides::new();
    for config in &topic.configs {
        topic_config::check(&config.name, config.value.as_deref())
            .map_err(|message| (ErrorCode::InvalidConfig, message))?;
        let value = config.value.as_deref().unwrap_or_default();
        overrides.insert(config.name.to_string(), value.to_owned());
    }
    topic_config::check_all(&context.broker.config, name.as_str(), &overrides)
        .map_err(|message| (ErrorCode::InvalidConfig, message))?;
    let broker = Arc::clone(context.broker);
    let configs = describe(&broker, &overrides);
    let change = move || {
        if validate_only {
            return broker
                .topics
                .check_create(&name, partitions)
                .map(|()| uuid::Uuid::nil());
        }
        broker
            .topics
            .create(&name, partitions, overrides)
            .map(|topic| topic.topic_id)
    };
    let topic_id = context
        .broker
        .pool
        .run(change)
        .await
        .map_err(|Failed| failed())?;
    let topic_id = topic_id.map_err(|error| (error.error_code(), error.to_string()))?;
    Ok(CreatableTopicResult {
        name: topic.name,
        topic_id,
        error_message: None,
        // Bounded by max_partitions, a 32-bit number that a request's number of partitions was below.
        num_partitions: i32::try_from(partitions).unwrap_or(i32::MAX),
        replication_factor: 1,
        configs: Some(configs),
        ..CreatableTopicResult::default()
    })
}

/// The number of partitions asked for, after all checks of numbers and assignments.
fn partitions(config: &crate::Config, topic: &CreatableTopic) -> Result<usize, Refusal> {
    if !topic.assignments.is_empty() {
        return assigned(config.node_id, topic);
    }
    match topic.replication_factor {
        1 => {}
        -1 => {}
        factor => {
            let message = format!("replication factor {factor} is not 1: there is one broker");
            return Err((ErrorCode::InvalidReplicationFactor, message));
        }
    }
    let wanted = match topic.num_partitions {
        -1 => config.num_partitions,
        wanted => wanted,
    };
    usize::try_from(wanted)
        .ok()
        .filter(|wanted| *wanted > 0)
        .ok_or_else(|| {
            (
                ErrorCode::InvalidPartitions,
                format!("number of partitions {wanted} is not above 0"),
            )
        })
}

fn assigned(node_id: i32, topic: &CreatableTopic) -> Result<usize, Refusal> {
    if topic.num_partitions != -1 || topic.replication_factor != -1 {
        let message = "with assignments, partitions and replication factor must be -1";
        return Err((ErrorCode::InvalidRequest, message.to_owned()));
    }
    let refuse = |message: &str| Err((ErrorCode::InvalidReplicaAssignment, message.to_owned()));
    let mut indexes: Vec<i32> = topic
        .assignments
        .iter()
        .map(|assignment| assignment.partition_index)
        .collect();
    indexes.sort_unstable();
    if !indexes.iter().copied().eq((0..).take(indexes.len())) {
        return refuse("partitions must be numbered from 0, each once");
    }
    if topic
        .assignments
        .iter()
        .any(|assignment| assignment.broker_ids != [node_id])
    {
        return refuse(&format!(
            "each partition must be assigned to node {node_id} alone"
        ));
    }
    Ok(indexes.len())
}

fn describe(broker: &Shared, overrides: &Overrides) -> Vec<CreatableTopicConfigs> {
    let configs = describe_configs::topic_values(&broker.config, overrides);
    let config = |described: describe_configs::Described| CreatableTopicConfigs {
        name: ByteString::from_static(described.name),
        value: Some(described.value.into()),
        read_only: false,
        config_source: described.source,
        is_sensitive: false,
    };
    configs.map(config).collect()
}

fn failed() -> Refusal {
    (
        ErrorCode::KafkaStorageError,
        "the change failed inside the broker".to_owned(),
    )
}
