//! `DescribeProducers` (key 61): who writes to a partition under a producer id (KIP-664).

use super::prelude::*;

api! {
    DescribeProducers = 61, versions 0..=0, flexible 0..,
    DescribeProducersRequest => DescribeProducersResponse;

    /// Asks for the producers of partitions.
    pub struct DescribeProducersRequest {
        /// The topics.
        topics: Vec<TopicRequest> [..],
    }

    /// Partitions of one topic.
    pub struct TopicRequest {
        /// Name of the topic.
        name: ByteString [..],
        /// Indexes of the partitions.
        partition_indexes: Vec<i32> [..],
    }

    /// The producers of each partition.
    pub struct DescribeProducersResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [..] ignorable,
        /// The topics.
        topics: Vec<TopicResponse> [..],
    }

    /// One topic of a [`DescribeProducersResponse`].
    pub struct TopicResponse {
        /// Name of the topic.
        name: ByteString [..],
        /// The partitions.
        partitions: Vec<PartitionResponse> [..],
    }

    /// The producers of one partition.
    pub struct PartitionResponse {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// What was wrong.
        error_message: Option<ByteString> [..] nullable ignorable = None,
        /// The producers.
        active_producers: Vec<ProducerState> [..],
    }

    /// One producer.
    pub struct ProducerState {
        /// Producer id.
        producer_id: i64 [..],
        /// Its newest epoch.
        producer_epoch: i32 [..],
        /// Sequence of its last record, −1 for none.
        last_sequence: i32 [..] = -1,
        /// Time of its last batch in milliseconds since 1970, −1 for none.
        last_timestamp: i64 [..] = -1,
        /// Epoch of the coordinator that last ended a transaction of its.
        coordinator_epoch: i32 [..],
        /// First offset of its open transaction, −1 for none.
        current_txn_start_offset: i64 [..] = -1,
    }
}
