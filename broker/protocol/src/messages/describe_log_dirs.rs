//! `DescribeLogDirs` (key 35): how large partitions are on a broker's disks.

use super::prelude::*;

api! {
    DescribeLogDirs = 35, versions 1..=4, flexible 2..,
    DescribeLogDirsRequest => DescribeLogDirsResponse;

    /// Asks one broker for the sizes of several partitions.
    pub struct DescribeLogDirsRequest {
        /// The topics, null for all.
        topics: Option<Vec<DescribableLogDirTopic>> [..] nullable,
    }

    /// One topic of a [`DescribeLogDirsRequest`].
    pub struct DescribableLogDirTopic {
        /// Name of the topic.
        topic: ByteString [..],
        /// Indexes of the partitions.
        partitions: Vec<i32> [..],
    }

    /// The sizes.
    pub struct DescribeLogDirsResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..] ignorable,
        /// Error of the request as a whole, 0 for none.
        error_code: i16 [3..] ignorable,
        /// The log directories.
        results: Vec<DescribeLogDirsResult> [..],
    }

    /// A log directory.
    pub struct DescribeLogDirsResult {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// Absolute path of the directory.
        log_dir: ByteString [..],
        /// The topics in it.
        topics: Vec<DescribeLogDirsTopic> [..],
        /// Bytes of its volume, −1 when unknown.
        total_bytes: i64 [4..] ignorable = -1,
        /// Bytes free on its volume, −1 when unknown.
        usable_bytes: i64 [4..] ignorable = -1,
    }

    /// One topic of a [`DescribeLogDirsResult`].
    pub struct DescribeLogDirsTopic {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<DescribeLogDirsPartition> [..],
    }

    /// One partition of a [`DescribeLogDirsTopic`].
    pub struct DescribeLogDirsPartition {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Bytes of its log segments.
        partition_size: i64 [..],
        /// How far it lags behind the high watermark, or a future replica behind the current one, in offsets.
        offset_lag: i64 [..],
        /// Whether it is a replica on its way into this directory.
        is_future_key: bool [..],
    }
}
