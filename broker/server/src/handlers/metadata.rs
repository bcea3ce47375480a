//! Metadata 0–13: brokers, topics, leaders; with topic ids from 10, lookups by them from 12.
//!
//! A topic that is named and unknown is created where configuration and request allow it, before the answer:
//! Apache Kafka answers `LEADER_NOT_AVAILABLE` first. Deviations: nothing is forbidden, so the operations that
//! a client may ask for are all of them; names that differ in `.` and `_` only do not collide.

use std::sync::Arc;

use broker_protocol::{
    ByteString, ErrorCode, TopicName,
    messages::{
        MetadataRequest, MetadataResponse,
        metadata::{
            MetadataRequestTopic, MetadataResponseBroker, MetadataResponsePartition,
            MetadataResponseTopic,
        },
    },
};
use tracing::warn;

use super::{Context, cluster_operations, topic_operations};
use crate::{
    pool::Failed,
    topic_config::Overrides,
    topics::{ChangeError, Topic},
};

/// First version in which "no topics" asks for none: before, it asked for all.
const NULL_IS_ALL: i16 = 1;
/// First version that says whether topics may be created.
const SAYS_AUTO_CREATION: i16 = 4;
/// Last version that asks for operations on the cluster.
const CLUSTER_OPERATIONS: std::ops::RangeInclusive<i16> = 8..=10;
/// First version that looks topics up by id.
const BY_ID: i16 = 12;

pub(super) async fn handle(
    context: &Context<'_>,
    version: i16,
    request: MetadataRequest,
) -> MetadataResponse {
    let topics = &context.broker.topics;
    let node_id = context.broker.config.node_id;
    let operations = request.include_topic_authorized_operations;
    let describe = |topic: &Topic| describe(topic, node_id, operations);
    let named = request
        .topics
        .filter(|named| version >= NULL_IS_ALL || !named.is_empty());
    let answers = match named {
        None => topics.all().iter().map(|topic| describe(topic)).collect(),
        Some(named) => {
            let may_create = version < SAYS_AUTO_CREATION || request.allow_auto_topic_creation;
            let may_create = may_create && context.broker.config.auto_create_topics;
            let mut answers = Vec::with_capacity(named.len());
            for wanted in named {
                answers.push(match find(context, version, &wanted, may_create).await {
                    Ok(topic) => describe(&topic),
                    Err(code) => unknown(wanted, code),
                });
            }
            answers
        }
    };
    let (host, port) = context.advertised();
    let ask_cluster = request.include_cluster_authorized_operations;
    MetadataResponse {
        brokers: vec![MetadataResponseBroker {
            node_id,
            host: host.into(),
            port,
            ..MetadataResponseBroker::default()
        }],
        cluster_id: Some(topics.cluster_id().into()),
        controller_id: node_id,
        topics: answers,
        cluster_authorized_operations: if ask_cluster && CLUSTER_OPERATIONS.contains(&version) {
            cluster_operations()
        } else {
            i32::MIN
        },
        ..MetadataResponse::default()
    }
}

async fn find(
    context: &Context<'_>,
    version: i16,
    wanted: &MetadataRequestTopic,
    may_create: bool,
) -> Result<Arc<Topic>, ErrorCode> {
    let topics = &context.broker.topics;
    let by_id = !wanted.topic_id.is_nil();
    let Some(name) = wanted.name.as_ref().filter(|_| !by_id) else {
        if version < BY_ID || !by_id {
            return Err(ErrorCode::InvalidRequest);
        }
        return topics
            .by_id(wanted.topic_id)
            .ok_or(ErrorCode::UnknownTopicId);
    };
    if let Some(topic) = topics.get(name) {
        return Ok(topic);
    }
    let name = TopicName::try_from(name.clone()).map_err(|_| ErrorCode::InvalidTopicException)?;
    if !may_create {
        return Err(ErrorCode::UnknownTopicOrPartition);
    }
    create(context, name).await
}

async fn create(context: &Context<'_>, name: TopicName) -> Result<Arc<Topic>, ErrorCode> {
    let broker = Arc::clone(context.broker);
    let created = context.broker.pool.run(move || {
        // Validated to be at least 1.
        let partitions = usize::try_from(broker.config.num_partitions).unwrap_or(1);
        match broker.topics.create(&name, partitions, Overrides::new()) {
            Err(ChangeError::Exists { topic }) => broker
                .topics
                .get(topic.as_str())
                .ok_or(ErrorCode::UnknownTopicOrPartition),
            Err(error) => {
                warn!(topic = %name, error = &error as &dyn std::error::Error, "topic not created");
                Err(error.error_code())
            }
            Ok(topic) => Ok(topic),
        }
    });
    created
        .await
        .unwrap_or_else(|Failed| Err(ErrorCode::KafkaStorageError))
}

fn unknown(wanted: MetadataRequestTopic, code: ErrorCode) -> MetadataResponseTopic {
    // Null only where the request asked by id: a name is never null in the versions before those.
    let by_id = !wanted.topic_id.is_nil() && code == ErrorCode::UnknownTopicId;
    MetadataResponseTopic {
        error_code: code.code(),
        name: if by_id {
            None
        } else {
            Some(wanted.name.unwrap_or_default())
        },
        topic_id: wanted.topic_id,
        ..MetadataResponseTopic::default()
    }
}

fn describe(topic: &Topic, node_id: i32, operations: bool) -> MetadataResponseTopic {
    let partitions = topic.indexed().map(|(partition_index, partition)| {
        let answer = MetadataResponsePartition {
            partition_index,
            replica_nodes: vec![node_id],
            ..MetadataResponsePartition::default()
        };
        match partition {
            Some(partition) => MetadataResponsePartition {
                leader_id: node_id,
                leader_epoch: partition.leader_epoch(),
                isr_nodes: vec![node_id],
                ..answer
            },
            None => MetadataResponsePartition {
                error_code: ErrorCode::LeaderNotAvailable.code(),
                leader_id: -1,
                offline_replicas: vec![node_id],
                ..answer
            },
        }
    });
    MetadataResponseTopic {
        name: Some(ByteString::from(topic.name.clone())),
        topic_id: topic.topic_id,
        is_internal: topic.is_internal(),
        partitions: partitions.collect(),
        topic_authorized_operations: if operations {
            topic_operations()
        } else {
            i32::MIN
        },
        ..MetadataResponseTopic::default()
    }
}
