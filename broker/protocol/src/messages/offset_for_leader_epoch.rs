//! `OffsetForLeaderEpoch` (key 23): where an epoch ends in the leader's log, to notice a truncation.

use super::prelude::*;

api! {
    OffsetForLeaderEpoch = 23, versions 2..=4, flexible 4..,
    OffsetForLeaderEpochRequest => OffsetForLeaderEpochResponse;

    /// Asks several partitions for the end of an epoch.
    pub struct OffsetForLeaderEpochRequest {
        /// Node id of a follower, −1 for consumers.
        replica_id: i32 [3..] ignorable = -2,
        /// The topics.
        topics: Vec<OffsetForLeaderTopic> [..],
    }

    /// One topic of an [`OffsetForLeaderEpochRequest`].
    pub struct OffsetForLeaderTopic {
        /// Name of the topic.
        topic: ByteString [..],
        /// The partitions.
        partitions: Vec<OffsetForLeaderPartition> [..],
    }

    /// One partition of an [`OffsetForLeaderEpochRequest`].
    pub struct OffsetForLeaderPartition {
        /// Index of the partition.
        partition: i32 [..],
        /// Leader epoch the reader knows, −1 when none.
        current_leader_epoch: i32 [2..] ignorable = -1,
        /// The epoch whose end is asked for.
        leader_epoch: i32 [..],
    }

    /// The ends.
    pub struct OffsetForLeaderEpochResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [2..] ignorable,
        /// The topics.
        topics: Vec<OffsetForLeaderTopicResult> [..],
    }

    /// One topic of an [`OffsetForLeaderEpochResponse`].
    pub struct OffsetForLeaderTopicResult {
        /// Name of the topic.
        topic: ByteString [..],
        /// The partitions.
        partitions: Vec<EpochEndOffset> [..],
    }

    /// One partition of an [`OffsetForLeaderEpochResponse`].
    pub struct EpochEndOffset {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// Index of the partition.
        partition: i32 [..],
        /// The highest epoch in the log that is not above the one asked for, −1 when there is none.
        leader_epoch: i32 [1..] ignorable = -1,
        /// Its end, exclusive, −1 when there is none.
        end_offset: i64 [..] = -1,
    }
}
