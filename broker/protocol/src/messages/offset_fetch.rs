//! `OffsetFetch` (key 9): reads a group's committed offsets. Up to version 7 for one group, then for several.

use super::prelude::*;

api! {
    OffsetFetch = 9, versions 1..=9, flexible 6.., OffsetFetchRequest => OffsetFetchResponse;

    /// Asks for committed offsets.
    pub struct OffsetFetchRequest {
        /// The group.
        group_id: ByteString [..=7],
        /// The topics, null for all.
        topics: Option<Vec<OffsetFetchRequestTopic>> [..=7] nullable(2..=7),
        /// The groups.
        groups: Vec<OffsetFetchRequestGroup> [8..],
        /// Whether to fail while a transaction that commits offsets is open.
        require_stable: bool [7..],
    }

    /// One topic of an [`OffsetFetchRequest`].
    pub struct OffsetFetchRequestTopic {
        /// Name of the topic.
        name: ByteString [..=7],
        /// Indexes of the partitions.
        partition_indexes: Vec<i32> [..=7],
    }

    /// One group of an [`OffsetFetchRequest`].
    pub struct OffsetFetchRequestGroup {
        /// The group.
        group_id: ByteString [8..],
        /// The member that asks, null outside the consumer protocol of KIP-848.
        member_id: Option<ByteString> [9..] nullable ignorable = None,
        /// Its epoch, −1 outside that protocol.
        member_epoch: i32 [9..] ignorable = -1,
        /// The topics, null for all.
        topics: Option<Vec<OffsetFetchRequestTopics>> [8..] nullable,
    }

    /// One topic of an [`OffsetFetchRequestGroup`].
    pub struct OffsetFetchRequestTopics {
        /// Name of the topic.
        name: ByteString [8..],
        /// Indexes of the partitions.
        partition_indexes: Vec<i32> [8..],
    }

    /// The offsets.
    pub struct OffsetFetchResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [3..] ignorable,
        /// The topics.
        topics: Vec<OffsetFetchResponseTopic> [..=7],
        /// Error of the group as a whole, 0 for none.
        error_code: i16 [2..=7] ignorable,
        /// The groups.
        groups: Vec<OffsetFetchResponseGroup> [8..],
    }

    /// One topic of an [`OffsetFetchResponse`].
    pub struct OffsetFetchResponseTopic {
        /// Name of the topic.
        name: ByteString [..=7],
        /// The partitions.
        partitions: Vec<OffsetFetchResponsePartition> [..=7],
    }

    /// One partition of an [`OffsetFetchResponseTopic`].
    pub struct OffsetFetchResponsePartition {
        /// Index of the partition.
        partition_index: i32 [..=7],
        /// Offset the group reads next, −1 when none is committed.
        committed_offset: i64 [..=7],
        /// Leader epoch committed with it, −1 when none.
        committed_leader_epoch: i32 [5..=7] ignorable = -1,
        /// What the committer noted.
        metadata: Option<ByteString> [..=7] nullable,
        /// Error code, 0 for none.
        error_code: i16 [..=7],
    }

    /// One group of an [`OffsetFetchResponse`].
    pub struct OffsetFetchResponseGroup {
        /// The group.
        group_id: ByteString [8..],
        /// The topics.
        topics: Vec<OffsetFetchResponseTopics> [8..],
        /// Error of the group as a whole, 0 for none.
        error_code: i16 [8..],
    }

    /// One topic of an [`OffsetFetchResponseGroup`].
    pub struct OffsetFetchResponseTopics {
        /// Name of the topic.
        name: ByteString [8..],
        /// The partitions.
        partitions: Vec<OffsetFetchResponsePartitions> [8..],
    }

    /// One partition of an [`OffsetFetchResponseTopics`].
    pub struct OffsetFetchResponsePartitions {
        /// Index of the partition.
        partition_index: i32 [8..],
        /// Offset the group reads next, −1 when none is committed.
        committed_offset: i64 [8..],
        /// Leader epoch committed with it, −1 when none.
        committed_leader_epoch: i32 [8..] ignorable = -1,
        /// What the committer noted.
        metadata: Option<ByteString> [8..] nullable,
        /// Error code, 0 for none.
        error_code: i16 [8..],
    }
}
