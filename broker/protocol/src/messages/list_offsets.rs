//! `ListOffsets` (key 2): finds offsets by time.

use super::prelude::*;

api! {
    ListOffsets = 2, versions 1..=10, flexible 6.., ListOffsetsRequest => ListOffsetsResponse;

    /// Asks several partitions for an offset each.
    pub struct ListOffsetsRequest {
        /// Node id of a follower, −1 for consumers.
        replica_id: i32 [..],
        /// 0 looks at everything below the high watermark, 1 only at what is committed.
        isolation_level: i8 [2..],
        /// The topics.
        topics: Vec<ListOffsetsTopic> [..],
        /// How long the broker may look into remote storage, in milliseconds.
        timeout_ms: i32 [10..] ignorable,
    }

    /// One topic of a [`ListOffsetsRequest`].
    pub struct ListOffsetsTopic {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<ListOffsetsPartition> [..],
    }

    /// One partition of a [`ListOffsetsRequest`].
    pub struct ListOffsetsPartition {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Leader epoch the reader knows, −1 when none.
        current_leader_epoch: i32 [4..] ignorable = -1,
        /// The first record at or after this time, in milliseconds since 1970; −1 latest, −2 earliest, −3 the one with
        /// the highest time, −4 earliest on local disk, −5 latest in remote storage.
        timestamp: i64 [..],
    }

    /// The offsets.
    pub struct ListOffsetsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [2..] ignorable,
        /// The topics.
        topics: Vec<ListOffsetsTopicResponse> [..],
    }

    /// One topic of a [`ListOffsetsResponse`].
    pub struct ListOffsetsTopicResponse {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<ListOffsetsPartitionResponse> [..],
    }

    /// One partition of a [`ListOffsetsResponse`].
    pub struct ListOffsetsPartitionResponse {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// Time of the record found, −1 when none or when an end was asked for.
        timestamp: i64 [1..] = -1,
        /// The offset, −1 when no record is at or after the time.
        offset: i64 [1..] = -1,
        /// Leader epoch of the record found, −1 when none.
        leader_epoch: i32 [4..] = -1,
    }
}
