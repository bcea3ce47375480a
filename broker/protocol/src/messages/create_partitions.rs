//! `CreatePartitions` (key 37): adds partitions to topics.

use super::prelude::*;

api! {
    CreatePartitions = 37, versions 0..=3, flexible 2..,
    CreatePartitionsRequest => CreatePartitionsResponse;

    /// Adds partitions.
    pub struct CreatePartitionsRequest {
        /// The topics.
        topics: Vec<CreatePartitionsTopic> [..],
        /// How long to wait until they are made, in milliseconds.
        timeout_ms: i32 [..],
        /// Whether to check only.
        validate_only: bool [..],
    }

    /// One topic of a [`CreatePartitionsRequest`].
    pub struct CreatePartitionsTopic {
        /// Name of the topic.
        name: ByteString [..],
        /// How many partitions it shall have in all.
        count: i32 [..],
        /// Where the replicas of the new ones go; null to leave it to the broker.
        assignments: Option<Vec<CreatePartitionsAssignment>> [..] nullable,
    }

    /// Replicas of one new partition.
    pub struct CreatePartitionsAssignment {
        /// Node ids of the replicas, the preferred leader first.
        broker_ids: Vec<i32> [..],
    }

    /// What became of each topic.
    pub struct CreatePartitionsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..] ignorable,
        /// The topics.
        results: Vec<CreatePartitionsTopicResult> [..],
    }

    /// One topic of a [`CreatePartitionsResponse`].
    pub struct CreatePartitionsTopicResult {
        /// Name of the topic.
        name: ByteString [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong, in words.
        error_message: Option<ByteString> [..] nullable = None,
    }
}
