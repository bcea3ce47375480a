//! `DescribeTopicPartitions` 0: topics in the order of their names, a page of partitions at a time (KIP-966).
//!
//! Replicas that may lead although out of sync do not exist with one replica: the lists of them are empty. A cursor
//! below zero is `INVALID_REQUEST` for every topic asked for.

use std::{collections::BTreeSet, sync::Arc};

use broker_protocol::{
    ByteString, ErrorCode, TopicName,
    messages::{
        DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
        describe_topic_partitions::{
            Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
        },
    },
};

use super::{Context, topic_operations};
use crate::{partition::Partition, topics::Topic};

/// Most partitions in an answer, whatever is asked for. Kafka: `max.request.partition.size.limit`.
const MAX_PARTITIONS: i32 = 2000;

pub(super) fn handle(
    context: &Context<'_>,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let topics = &context.broker.topics;
    let limit = request.response_partition_limit.clamp(1, MAX_PARTITIONS);
    let cursor = request.cursor.map_or_else(Cursor::default, |at| *at);
    let names: BTreeSet<ByteString> = if request.topics.is_empty() {
        let all = topics.all();
        all.iter()
            .map(|topic| topic.name.to_byte_string())
            .collect()
    } else {
        let named = request.topics.into_iter();
        named.map(|topic| topic.name).collect()
    };
    if cursor.partition_index < 0 {
        let refuse = |name| unknown(name, ErrorCode::InvalidRequest);
        return DescribeTopicPartitionsResponse {
            topics: names.into_iter().map(refuse).collect(),
            ..DescribeTopicPartitionsResponse::default()
        };
    }
    let mut left = usize::try_from(limit).unwrap_or(1);
    let mut answer = DescribeTopicPartitionsResponse::default();
    let begin = |name: &ByteString| *name >= cursor.topic_name;
    for name in names.into_iter().filter(begin) {
        let topic = match find(context, &name) {
            Ok(topic) => topic,
            Err(code) => {
                answer.topics.push(unknown(name, code));
                continue;
            }
        };
        let first = if name == cursor.topic_name {
            cursor.partition_index
        } else {
            0
        };
        let rest = topic.indexed().filter(|(index, _)| *index >= first);
        let page: Vec<_> = rest.take(left + 1).collect();
        let more = page.get(left).map(|(index, _)| *index);
        if let Some(partition_index) = more {
            answer.next_cursor = Some(Box::new(Cursor {
                topic_name: name.clone(),
                partition_index,
            }));
        }
        // A topic of which nothing fits begins the next page.
        if left > 0 {
            let node_id = context.broker.config.node_id;
            let partitions = page.iter().take(left);
            let partitions = partitions.map(|&(index, found)| partition(node_id, index, found));
            answer.topics.push(DescribeTopicPartitionsResponseTopic {
                name: Some(name),
                topic_id: topic.topic_id,
                is_internal: topic.is_internal(),
                partitions: partitions.collect(),
                topic_authorized_operations: topic_operations(),
                ..DescribeTopicPartitionsResponseTopic::default()
            });
        }
        if more.is_some() {
            break;
        }
        left -= page.len();
    }
    answer
}

fn find(context: &Context<'_>, name: &ByteString) -> Result<Arc<Topic>, ErrorCode> {
    let name = TopicName::try_from(name.clone()).map_err(|_| ErrorCode::InvalidTopicException)?;
    let topic = context.broker.topics.get(name.as_str());
    topic.ok_or(ErrorCode::UnknownTopicOrPartition)
}

fn unknown(name: ByteString, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic {
        error_code: code.code(),
        name: Some(name),
        ..DescribeTopicPartitionsResponseTopic::default()
    }
}

fn partition(
    node_id: i32,
    partition_index: i32,
    found: Option<&Arc<Partition>>,
) -> DescribeTopicPartitionsResponsePartition {
    let answer = DescribeTopicPartitionsResponsePartition {
        partition_index,
        replica_nodes: vec![node_id],
        eligible_leader_replicas: Some(Vec::new()),
        last_known_elr: Some(Vec::new()),
        ..DescribeTopicPartitionsResponsePartition::default()
    };
    match found {
        Some(partition) => DescribeTopicPartitionsResponsePartition {
            leader_id: node_id,
            leader_epoch: partition.leader_epoch(),
            isr_nodes: vec![node_id],
            ..answer
        },
        None => DescribeTopicPartitionsResponsePartition {
            error_code: ErrorCode::LeaderNotAvailable.code(),
            leader_id: -1,
            offline_replicas: vec![node_id],
            ..answer
        },
    }
}
