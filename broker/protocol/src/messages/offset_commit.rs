//! `OffsetCommit` (key 8): stores a group's offsets.

use super::prelude::*;

api! {
    OffsetCommit = 8, versions 2..=9, flexible 8.., OffsetCommitRequest => OffsetCommitResponse;

    /// Commits offsets.
    pub struct OffsetCommitRequest {
        /// The group.
        group_id: ByteString [..],
        /// Generation of the group, or epoch of the member (KIP-848); −1 for a commit from outside.
        generation_id_or_member_epoch: i32 [1..] ignorable = -1,
        /// The member, empty for a commit from outside.
        member_id: ByteString [1..] ignorable,
        /// Its static name, null for none.
        group_instance_id: Option<ByteString> [7..] nullable = None,
        /// How long to keep the offsets, in milliseconds, −1 for the broker's default.
        retention_time_ms: i64 [2..=4] ignorable = -1,
        /// The topics.
        topics: Vec<OffsetCommitRequestTopic> [..],
    }

    /// One topic of an [`OffsetCommitRequest`].
    pub struct OffsetCommitRequestTopic {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<OffsetCommitRequestPartition> [..],
    }

    /// One partition of an [`OffsetCommitRequest`].
    pub struct OffsetCommitRequestPartition {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Offset the group reads next.
        committed_offset: i64 [..],
        /// Leader epoch of the last record read, −1 when unknown.
        committed_leader_epoch: i32 [6..] ignorable = -1,
        /// A note to keep with the offset.
        committed_metadata: Option<ByteString> [..] nullable,
    }

    /// What became of each partition.
    pub struct OffsetCommitResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [3..] ignorable,
        /// The topics.
        topics: Vec<OffsetCommitResponseTopic> [..],
    }

    /// One topic of an [`OffsetCommitResponse`].
    pub struct OffsetCommitResponseTopic {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<OffsetCommitResponsePartition> [..],
    }

    /// One partition of an [`OffsetCommitResponse`].
    pub struct OffsetCommitResponsePartition {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
    }
}
