//! `ElectLeaders` (key 43): makes replicas leaders (KIP-460).

use super::prelude::*;

api! {
    ElectLeaders = 43, versions 0..=2, flexible 2.., ElectLeadersRequest => ElectLeadersResponse;

    /// Elects leaders of partitions.
    pub struct ElectLeadersRequest {
        /// 0 elects the preferred replica, 1 any that lives where there is no leader.
        election_type: i8 [1..],
        /// The partitions, null for all.
        topic_partitions: Option<Vec<TopicPartitions>> [..] nullable,
        /// How long to wait for the outcome, in milliseconds.
        timeout_ms: i32 [..] = 60_000,
    }

    /// Partitions of one topic.
    pub struct TopicPartitions {
        /// Name of the topic.
        topic: ByteString [..],
        /// Indexes of the partitions.
        partitions: Vec<i32> [..],
    }

    /// What became of each election.
    pub struct ElectLeadersResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..],
        /// Error of the request as a whole, 0 for none.
        error_code: i16 [1..],
        /// The topics.
        replica_election_results: Vec<ReplicaElectionResult> [..],
    }

    /// One topic of an [`ElectLeadersResponse`].
    pub struct ReplicaElectionResult {
        /// Name of the topic.
        topic: ByteString [..],
        /// The partitions.
        partition_result: Vec<PartitionResult> [..],
    }

    /// What became of one election.
    pub struct PartitionResult {
        /// Index of the partition.
        partition_id: i32 [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong.
        error_message: Option<ByteString> [..] nullable,
    }
}
