//! Topics: making, growing, deleting, their settings and sizes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use broker_protocol::ByteString;
use broker_protocol::error_code::ErrorCode;
use broker_protocol::ids::TopicName;
use broker_protocol::messages::create_partitions::CreatePartitionsTopic;
use broker_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use broker_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use broker_protocol::messages::delete_topics::DeleteTopicState;
use broker_protocol::messages::describe_configs::DescribeConfigsResource;
use broker_protocol::messages::describe_log_dirs::DescribableLogDirTopic;
use broker_protocol::messages::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteRecordsRequest, DeleteRecordsResponse, DeleteTopicsRequest, DeleteTopicsResponse,
    DescribeConfigsRequest, DescribeLogDirsRequest, DescribeLogDirsResponse, Message,
};

use crate::backoff::{Subject, retry};
use crate::client::{Answer, Client};
use crate::connection::FrameFault;
use crate::error::{Error, Result};
use crate::metadata::Leader;
use crate::pool::Purpose;
use crate::versions::ANY;

/// Kafka's number for "topic" in requests about settings.
const TOPIC_RESOURCE: i8 = 2;

/// First version of `DeleteTopics` with a struct per topic.
const DELETE_BY_STATE: i16 = 6;

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

/// What the broker says about a topic; that it does not exist has an error of its own.
fn check(
    operation: &'static str,
    code: i16,
    topic: &TopicName,
    message: Option<&ByteString>,
) -> Result<()> {
    if ErrorCode::from_i16(code) == ErrorCode::UnknownTopicOrPartition {
        return Err(Error::UnknownTopic {
            topic: topic.clone(),
        });
    }
    Answer {
        operation,
        code,
        topic: Some(topic),
        partition: None,
        message,
    }
    .check()
}

/// The part of an answer that is about the one thing asked for.
fn only<T>(found: Option<T>, what: &'static str) -> Result<T> {
    found.ok_or_else(|| FrameFault::Incomplete(what).at(&Arc::from("the broker")))
}

impl Client {
    /// Creates a topic, with settings by their Kafka names. It may take a moment until every broker
    /// knows it; calls of this client wait for that.
    ///
    /// Cancel safe, but whether the topic was created is then unknown. So it is when an answer was
    /// lost: the next try may report `TOPIC_ALREADY_EXISTS` for the topic just made.
    ///
    /// # Errors
    /// [`Error::Kafka`], such as `TOPIC_ALREADY_EXISTS` or `INVALID_CONFIG`; [`Error::Timeout`].
    pub async fn create_topic(
        &self,
        topic: &TopicName,
        partitions: i32,
        replication: i16,
        configs: &[(&str, &str)],
    ) -> Result<()> {
        let config = |(name, value): &(&str, &str)| CreatableTopicConfig {
            name: ByteString::from(*name),
            value: Some(ByteString::from(*value)),
        };
        let request = |_| CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: topic.to_byte_string(),
                num_partitions: partitions,
                replication_factor: replication,
                assignments: Vec::new(),
                configs: configs.iter().map(config).collect(),
            }],
            timeout_ms: millis(self.inner.config.request_timeout),
            validate_only: false,
        };
        let read = |response: CreateTopicsResponse| {
            let result = only(response.topics.first(), "created topic")?;
            let message = result.error_message.as_ref();
            check(CreateTopicsRequest::NAME, result.error_code, topic, message)
        };
        self.on_controller(topic, &ANY, request, read).await
    }

    /// Raises the number of partitions of a topic to `total`. As cancel safe as
    /// [`create_topic`](Self::create_topic).
    ///
    /// # Errors
    /// [`Error::UnknownTopic`]; [`Error::Kafka`], such as `INVALID_PARTITIONS`; [`Error::Timeout`].
    pub async fn create_partitions(&self, topic: &TopicName, total: i32) -> Result<()> {
        let request = |_| CreatePartitionsRequest {
            topics: vec![CreatePartitionsTopic {
                name: topic.to_byte_string(),
                count: total,
                assignments: None,
            }],
            timeout_ms: millis(self.inner.config.request_timeout),
            validate_only: false,
        };
        let read = |response: CreatePartitionsResponse| {
            let result = only(response.results.first(), "grown topic")?;
            let message = result.error_message.as_ref();
            check(
                CreatePartitionsRequest::NAME,
                result.error_code,
                topic,
                message,
            )
        };
        self.on_controller(topic, &ANY, request, read).await?;
        self.inner.metadata.forget(topic, u64::MAX);
        Ok(())
    }

    /// Deletes a topic. As cancel safe as [`create_topic`](Self::create_topic).
    ///
    /// # Errors
    /// [`Error::UnknownTopic`]; [`Error::Kafka`], such as `TOPIC_DELETION_DISABLED`;
    /// [`Error::Timeout`].
    pub async fn delete_topic(&self, topic: &TopicName) -> Result<()> {
        let request = |version| {
            let name = topic.to_byte_string();
            let timeout_ms = millis(self.inner.config.request_timeout);
            if version < DELETE_BY_STATE {
                let topic_names = vec![name];
                return DeleteTopicsRequest {
                    topic_names,
                    timeout_ms,
                    ..Default::default()
                };
            }
            let topics = vec![DeleteTopicState {
                name: Some(name),
                ..Default::default()
            }];
            DeleteTopicsRequest {
                topics,
                timeout_ms,
                ..Default::default()
            }
        };
        let read = |response: DeleteTopicsResponse| {
            let result = only(response.responses.first(), "deleted topic")?;
            let message = result.error_message.as_ref();
            check(DeleteTopicsRequest::NAME, result.error_code, topic, message)
        };
        self.on_controller(topic, &ANY, request, read).await?;
        self.inner.metadata.forget(topic, u64::MAX);
        Ok(())
    }

    /// Deletes the records of a partition below `before_offset` (exclusive; -1: all there are).
    /// Returns the log start offset that results. Cancel safe; repeating it changes nothing.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`], [`Error::UnknownPartition`], [`Error::NoLeader`],
    /// [`Error::Timeout`]; [`Error::Kafka`] with `OFFSET_OUT_OF_RANGE` beyond the end.
    pub async fn delete_records(
        &self,
        topic: &TopicName,
        partition: i32,
        before_offset: i64,
    ) -> Result<i64> {
        let request = |_: &Leader| DeleteRecordsRequest {
            topics: vec![DeleteRecordsTopic {
                name: topic.to_byte_string(),
                partitions: vec![DeleteRecordsPartition {
                    partition_index: partition,
                    offset: before_offset,
                }],
            }],
            timeout_ms: millis(self.inner.config.request_timeout),
        };
        let read = |response: DeleteRecordsResponse| {
            let mut results = response.topics.iter().flat_map(|topic| &topic.partitions);
            let result = results.find(|result| result.partition_index == partition);
            let result = only(result, "partition whose records were deleted")?;
            let (operation, code) = (DeleteRecordsRequest::NAME, result.error_code);
            let (topic, partition) = (Some(topic), Some(partition));
            Answer {
                operation,
                code,
                topic,
                partition,
                message: None,
            }
            .check()?;
            Ok(result.low_watermark)
        };
        self.on_leader(topic, partition, &ANY, request, read).await
    }

    /// A setting of a topic, or its default; `None` if the broker does not know it or does not show
    /// it. Cancel safe.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`], [`Error::UnsupportedApi`], [`Error::Kafka`], [`Error::Timeout`].
    pub async fn topic_config(&self, topic: &TopicName, key: &str) -> Result<Option<String>> {
        let operation = DescribeConfigsRequest::NAME;
        let subject = Subject {
            operation,
            topic: Some(topic),
            partition: None,
            offset: None,
        };
        retry(&self.policy(), subject, || async move {
            let request = |_| DescribeConfigsRequest {
                resources: vec![DescribeConfigsResource {
                    resource_type: TOPIC_RESOURCE,
                    resource_name: topic.to_byte_string(),
                    configuration_keys: Some(vec![ByteString::from(key)]),
                }],
                ..Default::default()
            };
            let response = self.on_any(&ANY, request).await?;
            let result = only(response.results.first(), "settings of a topic")?;
            check(
                operation,
                result.error_code,
                topic,
                result.error_message.as_ref(),
            )?;
            let config = result.configs.iter().find(|config| &*config.name == key);
            Ok(config
                .and_then(|config| config.value.as_ref())
                .map(ToString::to_string))
        })
        .await
    }

    /// Bytes on disk of each partition's leader. A partition without leader is left out. Cancel
    /// safe.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`]; [`Error::UnsupportedApi`] if a broker lacks it; [`Error::Kafka`];
    /// [`Error::Timeout`].
    pub async fn partition_sizes(&self, topic: &TopicName) -> Result<BTreeMap<i32, u64>> {
        let operation = DescribeLogDirsRequest::NAME;
        let subject = Subject {
            operation,
            topic: Some(topic),
            partition: None,
            offset: None,
        };
        retry(&self.policy(), subject, || async move {
            let entry = self.topic(topic).await?;
            let mut led: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
            for found in &entry.topic.partitions {
                if let Some(leader) = found.leader {
                    led.entry(leader).or_default().push(found.partition);
                }
            }
            let mut sizes = BTreeMap::new();
            for (node_id, partitions) in led {
                let asked = self.sizes_at(topic, node_id, &partitions).await;
                if asked.as_ref().is_err_and(Error::wants_refresh) {
                    self.inner.metadata.forget(topic, entry.generation);
                }
                sizes.extend(asked?);
            }
            Ok(sizes)
        })
        .await
    }

    async fn sizes_at(
        &self,
        topic: &TopicName,
        node_id: i32,
        partitions: &[i32],
    ) -> Result<BTreeMap<i32, u64>> {
        let partition = partitions.first().copied().unwrap_or(0);
        let no_leader = || Error::NoLeader {
            topic: topic.clone(),
            partition,
        };
        let address = self
            .inner
            .metadata
            .address_of(node_id)
            .ok_or_else(no_leader)?;
        let request = DescribeLogDirsRequest {
            topics: Some(vec![DescribableLogDirTopic {
                topic: topic.to_byte_string(),
                partitions: partitions.to_vec(),
            }]),
        };
        let response = self
            .call(&address, Purpose::Control, &ANY, |_| request)
            .await?;
        sizes_in(topic, &response)
    }
}

/// Sizes by partition, without replicas that are being moved to another directory.
fn sizes_in(topic: &TopicName, response: &DescribeLogDirsResponse) -> Result<BTreeMap<i32, u64>> {
    check(
        DescribeLogDirsRequest::NAME,
        response.error_code,
        topic,
        None,
    )?;
    let mut sizes = BTreeMap::new();
    for directory in &response.results {
        if directory.error_code == ErrorCode::KafkaStorageError.code() {
            // A directory that is off line leads nothing.
            continue;
        }
        check(
            DescribeLogDirsRequest::NAME,
            directory.error_code,
            topic,
            None,
        )?;
        let of_topic = directory
            .topics
            .iter()
            .filter(|found| &*found.name == topic.as_str());
        for found in of_topic.flat_map(|found| &found.partitions) {
            if !found.is_future_key {
                let size = u64::try_from(found.partition_size).unwrap_or(0);
                sizes.insert(found.partition_index, size);
            }
        }
    }
    Ok(sizes)
}
