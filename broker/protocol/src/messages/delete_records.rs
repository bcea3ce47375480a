//! `DeleteRecords` (key 21): moves the start of logs.

use super::prelude::*;

api! {
    DeleteRecords = 21, versions 0..=2, flexible 2.., DeleteRecordsRequest => DeleteRecordsResponse;

    /// Deletes the records before an offset in several partitions.
    pub struct DeleteRecordsRequest {
        /// The topics.
        topics: Vec<DeleteRecordsTopic> [..],
        /// How long to wait until they are gone, in milliseconds.
        timeout_ms: i32 [..],
    }

    /// One topic of a [`DeleteRecordsRequest`].
    pub struct DeleteRecordsTopic {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<DeleteRecordsPartition> [..],
    }

    /// One partition of a [`DeleteRecordsRequest`].
    pub struct DeleteRecordsPartition {
        /// Index of the partition.
        partition_index: i32 [..],
        /// First offset to keep; −1 to keep none below the high watermark.
        offset: i64 [..],
    }

    /// What became of each partition.
    pub struct DeleteRecordsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..] ignorable,
        /// The topics.
        topics: Vec<DeleteRecordsTopicResult> [..],
    }

    /// One topic of a [`DeleteRecordsResponse`].
    pub struct DeleteRecordsTopicResult {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<DeleteRecordsPartitionResult> [..],
    }

    /// One partition of a [`DeleteRecordsResponse`].
    pub struct DeleteRecordsPartitionResult {
        /// Index of the partition.
        partition_index: i32 [..],
        /// First offset of the log now, −1 with an error.
        low_watermark: i64 [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
    }
}
