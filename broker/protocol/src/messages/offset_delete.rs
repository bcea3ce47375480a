//! `OffsetDelete` (key 47): forgets a group's offsets of some partitions. It has no flexible version.

use super::prelude::*;

api! {
    OffsetDelete = 47, versions 0..=0, flexible 1.., OffsetDeleteRequest => OffsetDeleteResponse;

    /// Forgets offsets.
    pub struct OffsetDeleteRequest {
        /// The group.
        group_id: ByteString [..],
        /// The topics.
        topics: Vec<OffsetDeleteRequestTopic> [..],
    }

    /// One topic of an [`OffsetDeleteRequest`].
    pub struct OffsetDeleteRequestTopic {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<OffsetDeleteRequestPartition> [..],
    }

    /// One partition of an [`OffsetDeleteRequest`].
    pub struct OffsetDeleteRequestPartition {
        /// Index of the partition.
        partition_index: i32 [..],
    }

    /// What became of each partition.
    pub struct OffsetDeleteResponse {
        /// Error of the group as a whole, 0 for none.
        error_code: i16 [..],
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..] ignorable,
        /// The topics.
        topics: Vec<OffsetDeleteResponseTopic> [..],
    }

    /// One topic of an [`OffsetDeleteResponse`].
    pub struct OffsetDeleteResponseTopic {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<OffsetDeleteResponsePartition> [..],
    }

    /// One partition of an [`OffsetDeleteResponse`].
    pub struct OffsetDeleteResponsePartition {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
    }
}
