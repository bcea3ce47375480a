//! `CreateTopics` (key 19).

use super::prelude::*;

api! {
    CreateTopics = 19, versions 2..=7, flexible 5.., CreateTopicsRequest => CreateTopicsResponse;

    /// Makes topics.
    pub struct CreateTopicsRequest {
        /// The topics.
        topics: Vec<CreatableTopic> [..],
        /// How long to wait until they are made, in milliseconds.
        timeout_ms: i32 [..] = 60_000,
        /// Whether to check only.
        validate_only: bool [1..],
    }

    /// A topic to make.
    pub struct CreatableTopic {
        /// Name of the topic.
        name: ByteString [..],
        /// How many partitions; −1 for the broker's default, or with assignments.
        num_partitions: i32 [..],
        /// How many replicas of each; −1 for the broker's default, or with assignments.
        replication_factor: i16 [..],
        /// Where the replicas go; empty to leave it to the broker.
        assignments: Vec<CreatableReplicaAssignment> [..],
        /// Configuration that differs from the broker's.
        configs: Vec<CreatableTopicConfig> [..],
    }

    /// Replicas of one partition.
    pub struct CreatableReplicaAssignment {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Node ids of the replicas, the preferred leader first.
        broker_ids: Vec<i32> [..],
    }

    /// A configuration entry.
    pub struct CreatableTopicConfig {
        /// Name of the entry.
        name: ByteString [..],
        /// Its value.
        value: Option<ByteString> [..] nullable,
    }

    /// What became of each topic.
    pub struct CreateTopicsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [2..] ignorable,
        /// The topics.
        topics: Vec<CreatableTopicResult> [..],
    }

    /// A topic that was made, or not.
    pub struct CreatableTopicResult {
        /// Name of the topic.
        name: ByteString [..],
        /// Its id.
        topic_id: Uuid [7..] ignorable,
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong, in words.
        error_message: Option<ByteString> [1..] nullable ignorable,
        /// Why there are no configs, 0 for no reason.
        topic_config_error_code: i16 [5..] tag(0) ignorable,
        /// How many partitions it has, −1 when unknown.
        num_partitions: i32 [5..] ignorable = -1,
        /// How many replicas each has, −1 when unknown.
        replication_factor: i16 [5..] ignorable = -1,
        /// Its configuration.
        configs: Option<Vec<CreatableTopicConfigs>> [5..] nullable ignorable,
    }

    /// A configuration entry of the new topic.
    pub struct CreatableTopicConfigs {
        /// Name of the entry.
        name: ByteString [5..],
        /// Its value, null when it is secret.
        value: Option<ByteString> [5..] nullable,
        /// Whether it cannot be changed.
        read_only: bool [5..],
        /// Where it comes from, as in `DescribeConfigs`.
        config_source: i8 [5..] ignorable = -1,
        /// Whether it is secret.
        is_sensitive: bool [5..],
    }
}
