//! Produce (key 0): appends record batches.
//!
//! Versions 0 to 2 carried older record formats; brokers advertise them all the same, for clients that look only at
//! the range.

use super::prelude::*;

api! {
    Produce = 0, versions 3..=13, flexible 9.., ProduceRequest => ProduceResponse;

    /// Appends one record batch to each of several partitions.
    pub struct ProduceRequest {
        /// Transactional id of the producer, null outside transactions.
        transactional_id: Option<ByteString> [3..] nullable = None,
        /// Acknowledgements asked for: 0 none (there is no response then), 1 leader, −1 all in-sync replicas.
        acks: i16 [..],
        /// How long the broker may wait for the acknowledgements, in milliseconds.
        timeout_ms: i32 [..],
        /// The topics.
        topic_data: Vec<TopicProduceData> [..],
    }

    /// One topic of a [`ProduceRequest`].
    pub struct TopicProduceData {
        /// Name of the topic.
        name: ByteString [..=12] ignorable,
        /// Id of the topic.
        topic_id: Uuid [13..] ignorable,
        /// The partitions.
        partition_data: Vec<PartitionProduceData> [..],
    }

    /// One partition of a [`ProduceRequest`].
    pub struct PartitionProduceData {
        /// Index of the partition.
        index: i32 [..],
        /// The record batch, as bytes.
        records: Option<Bytes> [..] nullable,
    }

    /// What became of each batch.
    pub struct ProduceResponse {
        /// The topics.
        responses: Vec<TopicProduceResponse> [..],
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [1..] ignorable,
        /// Addresses of the leaders named in `current_leader`.
        node_endpoints: Vec<NodeEndpoint> [10..] tag(0),
    }

    /// One topic of a [`ProduceResponse`].
    pub struct TopicProduceResponse {
        /// Name of the topic.
        name: ByteString [..=12] ignorable,
        /// Id of the topic.
        topic_id: Uuid [13..] ignorable,
        /// The partitions.
        partition_responses: Vec<PartitionProduceResponse> [..],
    }

    /// One partition of a [`ProduceResponse`].
    pub struct PartitionProduceResponse {
        /// Index of the partition.
        index: i32 [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// Offset given to the first record.
        base_offset: i64 [..],
        /// Append time in milliseconds since 1970, −1 when the topic keeps the time of creation.
        log_append_time_ms: i64 [2..] ignorable = -1,
        /// First offset of the log.
        log_start_offset: i64 [5..] ignorable = -1,
        /// The records that made the broker refuse the batch.
        record_errors: Vec<BatchIndexAndErrorMessage> [8..] ignorable,
        /// What was wrong, in words.
        error_message: Option<ByteString> [8..] nullable ignorable = None,
        /// Leader known to the broker, with an error that says it is another.
        current_leader: LeaderIdAndEpoch [10..] tag(0),
    }

    /// A record that was refused.
    pub struct BatchIndexAndErrorMessage {
        /// Index of the record in its batch.
        batch_index: i32 [8..],
        /// What was wrong, in words.
        batch_index_error_message: Option<ByteString> [8..] nullable = None,
    }

    /// A leader and its epoch.
    pub struct LeaderIdAndEpoch {
        /// Node id of the leader, −1 when unknown.
        leader_id: i32 [10..] = -1,
        /// Its epoch, −1 when unknown.
        leader_epoch: i32 [10..] = -1,
    }

    /// Address of a broker.
    pub struct NodeEndpoint {
        /// Node id.
        node_id: i32 [10..],
        /// Host name.
        host: ByteString [10..],
        /// TCP port.
        port: i32 [10..],
        /// Rack, null when none is configured.
        rack: Option<ByteString> [10..] nullable = None,
    }
}
