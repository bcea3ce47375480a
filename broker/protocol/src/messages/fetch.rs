//! Fetch (key 1): reads record batches.

use super::{Payload, prelude::*};

api! {
    Fetch = 1, versions 4..=18, flexible 12.., FetchRequest => FetchResponse;

    /// Reads from several partitions, each from an offset on, waiting until there is enough.
    pub struct FetchRequest {
        /// Cluster id, where the reader knows it.
        cluster_id: Option<ByteString> [12..] nullable tag(0) ignorable = None,
        /// Node id of a follower, −1 for consumers.
        replica_id: i32 [..=14] = -1,
        /// The follower that reads.
        replica_state: ReplicaState [15..] tag(1),
        /// Longest wait for `min_bytes`, in milliseconds.
        max_wait_ms: i32 [..],
        /// Bytes to wait for.
        min_bytes: i32 [..],
        /// Bytes to return at most, save that the first batch comes whole (KIP-74).
        max_bytes: i32 [3..] ignorable = 0x7fff_ffff,
        /// 0 reads everything below the high watermark, 1 only what is committed.
        isolation_level: i8 [4..] ignorable,
        /// Id of the fetch session, 0 for none.
        session_id: i32 [7..] ignorable,
        /// Epoch of the fetch session, −1 outside sessions.
        session_epoch: i32 [7..] ignorable = -1,
        /// The topics.
        topics: Vec<FetchTopic> [..],
        /// Topics to take out of the session.
        forgotten_topics_data: Vec<ForgottenTopic> [7..],
        /// Rack of the consumer, empty when it has none.
        rack_id: ByteString [11..] ignorable,
    }

    /// A follower.
    pub struct ReplicaState {
        /// Node id of the follower, −1 for consumers.
        replica_id: i32 [15..] = -1,
        /// Epoch of the follower, −1 when unknown.
        replica_epoch: i64 [15..] = -1,
    }

    /// One topic of a [`FetchRequest`].
    pub struct FetchTopic {
        /// Name of the topic.
        topic: ByteString [..=12] ignorable,
        /// Id of the topic.
        topic_id: Uuid [13..] ignorable,
        /// The partitions.
        partitions: Vec<FetchPartition> [..],
    }

    /// One partition of a [`FetchRequest`].
    pub struct FetchPartition {
        /// Index of the partition.
        partition: i32 [..],
        /// Leader epoch the reader knows, −1 when none.
        current_leader_epoch: i32 [9..] ignorable = -1,
        /// Offset to read from; a batch that contains it comes whole.
        fetch_offset: i64 [..],
        /// Leader epoch of the last record the reader has, −1 when none.
        last_fetched_epoch: i32 [12..] = -1,
        /// First offset of a follower's log, −1 for consumers.
        log_start_offset: i64 [5..] ignorable = -1,
        /// Bytes to return at most, save that the first batch comes whole (KIP-74).
        partition_max_bytes: i32 [..],
        /// Directory id of a follower.
        replica_directory_id: Uuid [17..] tag(0) ignorable,
        /// High watermark that a follower knows, −1 when it knows none, `i64::MAX` from those that do not tell.
        high_watermark: i64 [18..] tag(1) ignorable = i64::MAX,
    }

    /// A topic to take out of the session.
    pub struct ForgottenTopic {
        /// Name of the topic.
        topic: ByteString [7..=12] ignorable,
        /// Id of the topic.
        topic_id: Uuid [13..] ignorable,
        /// Indexes of the partitions.
        partitions: Vec<i32> [7..],
    }

    /// What was read.
    pub struct FetchResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [1..] ignorable,
        /// Error of the request as a whole, 0 for none.
        error_code: i16 [7..] ignorable,
        /// Id of the fetch session, 0 for none.
        session_id: i32 [7..],
        /// The topics.
        responses: Vec<FetchableTopicResponse> [..],
        /// Addresses of the leaders named in `current_leader`.
        node_endpoints: Vec<NodeEndpoint> [16..] tag(0),
    }

    /// One topic of a [`FetchResponse`].
    pub struct FetchableTopicResponse {
        /// Name of the topic.
        topic: ByteString [..=12] ignorable,
        /// Id of the topic.
        topic_id: Uuid [13..] ignorable,
        /// The partitions.
        partitions: Vec<PartitionData> [..],
    }

    /// One partition of a [`FetchResponse`].
    pub struct PartitionData {
        /// Index of the partition.
        partition_index: i32 [..],
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// End of what is replicated, exclusive.
        high_watermark: i64 [..],
        /// End of what is decided, exclusive: below it every transaction is committed or aborted.
        last_stable_offset: i64 [4..] ignorable = -1,
        /// First offset of the log.
        log_start_offset: i64 [5..] ignorable = -1,
        /// Where the reader's log leaves the leader's, if it does.
        diverging_epoch: EpochEndOffset [12..] tag(0),
        /// Leader known to the broker, with an error that says it is another.
        current_leader: LeaderIdAndEpoch [12..] tag(1),
        /// Snapshot to fetch instead; only for the metadata log.
        snapshot_id: SnapshotId [12..] tag(2),
        /// Aborted transactions among the records; only for isolation level 1.
        aborted_transactions: Option<Vec<AbortedTransaction>> [4..] nullable ignorable,
        /// Node id of a replica nearer to the reader, −1 for none.
        preferred_read_replica: i32 [11..] = -1,
        /// Whole record batches and perhaps the beginning of one more.
        records: Option<Payload> [..] nullable,
    }

    /// Where an epoch ends in the leader's log.
    pub struct EpochEndOffset {
        /// The epoch, −1 for none.
        epoch: i32 [12..] = -1,
        /// Its end, exclusive, −1 for none.
        end_offset: i64 [12..] = -1,
    }

    /// A leader and its epoch.
    pub struct LeaderIdAndEpoch {
        /// Node id of the leader, −1 when unknown.
        leader_id: i32 [12..] = -1,
        /// Its epoch, −1 when unknown.
        leader_epoch: i32 [12..] = -1,
    }

    /// A snapshot of the metadata log.
    pub struct SnapshotId {
        /// End of the snapshot, exclusive, −1 for none.
        end_offset: i64 [..] = -1,
        /// Its epoch, −1 for none.
        epoch: i32 [..] = -1,
    }

    /// An aborted transaction.
    pub struct AbortedTransaction {
        /// Producer id.
        producer_id: i64 [4..],
        /// Offset of the transaction's first record.
        first_offset: i64 [4..],
    }

    /// Address of a broker.
    pub struct NodeEndpoint {
        /// Node id.
        node_id: i32 [16..],
        /// Host name.
        host: ByteString [16..],
        /// TCP port.
        port: i32 [16..],
        /// Rack, null when none is configured.
        rack: Option<ByteString> [16..] nullable = None,
    }
}
