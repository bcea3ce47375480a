//! `DescribeTopicPartitions` (key 75): topics and their partitions, a page at a time (KIP-966).

use super::prelude::*;

api! {
    DescribeTopicPartitions = 75, versions 0..=0, flexible 0..,
    DescribeTopicPartitionsRequest => DescribeTopicPartitionsResponse;

    /// Asks for topics.
    pub struct DescribeTopicPartitionsRequest {
        /// The topics, empty for all.
        topics: Vec<TopicRequest> [..],
        /// Most partitions in one answer.
        response_partition_limit: i32 [..] = 2000,
        /// Where to go on, null to begin.
        cursor: Option<Box<Cursor>> [..] nullable,
    }

    /// One topic asked for.
    pub struct TopicRequest {
        /// Its name.
        name: ByteString [..],
    }

    /// A place in the list of all topics and their partitions.
    pub struct Cursor {
        /// Name of the topic.
        topic_name: ByteString [..],
        /// Index of the first partition.
        partition_index: i32 [..],
    }

    /// A page of topics.
    pub struct DescribeTopicPartitionsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..] ignorable,
        /// The topics.
        topics: Vec<DescribeTopicPartitionsResponseTopic> [..],
        /// Where the next page begins, null after the last.
        next_cursor: Option<Box<Cursor>> [..] nullable,
    }

    /// One topic of a [`DescribeTopicPartitionsResponse`].
    pub struct DescribeTopicPartitionsResponseTopic {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// Its name.
        name: Option<ByteString> [..] nullable,
        /// Its id.
        topic_id: Uuid [..] ignorable,
        /// Whether the cluster keeps its own state in it.
        is_internal: bool [..] ignorable,
        /// The partitions of this page.
        partitions: Vec<DescribeTopicPartitionsResponsePartition> [..],
        /// Bits of what the client may do with it, `i32::MIN` for unknown.
        topic_authorized_operations: i32 [..] = i32::MIN,
    }

    /// One partition of a [`DescribeTopicPartitionsResponse`].
    pub struct DescribeTopicPartitionsResponsePartition {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// Index of the partition.
        partition_index: i32 [..],
        /// Node id of the leader, −1 for none.
        leader_id: i32 [..],
        /// Its epoch, −1 when unknown.
        leader_epoch: i32 [..] ignorable = -1,
        /// Node ids of the replicas.
        replica_nodes: Vec<i32> [..],
        /// Those in sync.
        isr_nodes: Vec<i32> [..],
        /// Those that may become leader although not in sync.
        eligible_leader_replicas: Option<Vec<i32>> [..] nullable = None,
        /// The last of those that were known.
        last_known_elr: Option<Vec<i32>> [..] nullable = None,
        /// Those off line.
        offline_replicas: Vec<i32> [..] ignorable,
    }
}
