//! `ListPartitionReassignments` (key 46): which partitions are moving between brokers (KIP-455).

use super::prelude::*;

api! {
    ListPartitionReassignments = 46, versions 0..=0, flexible 0..,
    ListPartitionReassignmentsRequest => ListPartitionReassignmentsResponse;

    /// Asks for reassignments under way.
    pub struct ListPartitionReassignmentsRequest {
        /// How long to wait for the answer, in milliseconds.
        timeout_ms: i32 [..] = 60_000,
        /// The partitions, null for all.
        topics: Option<Vec<ListPartitionReassignmentsTopics>> [..] nullable = None,
    }

    /// Partitions of one topic.
    pub struct ListPartitionReassignmentsTopics {
        /// Name of the topic.
        name: ByteString [..],
        /// Indexes of the partitions.
        partition_indexes: Vec<i32> [..],
    }

    /// The reassignments under way.
    pub struct ListPartitionReassignmentsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..],
        /// Error of the request as a whole, 0 for none.
        error_code: i16 [..],
        /// What was wrong.
        error_message: Option<ByteString> [..] nullable,
        /// Topics with partitions on the move.
        topics: Vec<OngoingTopicReassignment> [..],
    }

    /// One topic of a [`ListPartitionReassignmentsResponse`].
    pub struct OngoingTopicReassignment {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions on the move.
        partitions: Vec<OngoingPartitionReassignment> [..],
    }

    /// One partition on the move.
    pub struct OngoingPartitionReassignment {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Node ids of its replicas.
        replicas: Vec<i32> [..],
        /// Those being added.
        adding_replicas: Vec<i32> [..],
        /// Those being removed.
        removing_replicas: Vec<i32> [..],
    }
}
