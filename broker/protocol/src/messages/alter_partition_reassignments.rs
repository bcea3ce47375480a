//! `AlterPartitionReassignments` (key 45): moves partitions between brokers (KIP-455).

use super::prelude::*;

api! {
    AlterPartitionReassignments = 45, versions 0..=1, flexible 0..,
    AlterPartitionReassignmentsRequest => AlterPartitionReassignmentsResponse;

    /// Gives partitions new replicas, or cancels moves under way.
    pub struct AlterPartitionReassignmentsRequest {
        /// How long to wait for the answer, in milliseconds.
        timeout_ms: i32 [..] = 60_000,
        /// Whether the number of replicas may change.
        allow_replication_factor_change: bool [1..] = true,
        /// The topics.
        topics: Vec<ReassignableTopic> [..],
    }

    /// Partitions of one topic.
    pub struct ReassignableTopic {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<ReassignablePartition> [..],
    }

    /// The replicas wanted for one partition.
    pub struct ReassignablePartition {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Node ids of the replicas, null to cancel a move under way.
        replicas: Option<Vec<i32>> [..] nullable = None,
    }

    /// What became of each partition.
    pub struct AlterPartitionReassignmentsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..],
        /// As in the request.
        allow_replication_factor_change: bool [1..] ignorable = true,
        /// Error of the request as a whole, 0 for none.
        error_code: i16 [..],
        /// What was wrong.
        error_message: Option<ByteString> [..] nullable,
        /// The topics.
        responses: Vec<ReassignableTopicResponse> [..],
    }

    /// One topic of an [`AlterPartitionReassignmentsResponse`].
    pub struct ReassignableTopicResponse {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<ReassignablePartitionResponse> [..],
    }

    /// What became of one partition.
    pub struct ReassignablePartitionResponse {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong.
        error_message: Option<ByteString> [..] nullable,
    }
}
