//! Metadata (key 3): brokers, topics, and who leads which partition.

use super::prelude::*;

api! {
    Metadata = 3, versions 0..=13, flexible 9.., MetadataRequest => MetadataResponse;

    /// Asks for the cluster and some or all topics.
    pub struct MetadataRequest {
        /// The topics: null for all, empty for none. In version 0 empty means all.
        topics: Option<Vec<MetadataRequestTopic>> [..] nullable(1..),
        /// Whether a topic that does not exist may be made, if the broker allows it.
        allow_auto_topic_creation: bool [4..] = true,
        /// Whether to list what the client may do with the cluster.
        include_cluster_authorized_operations: bool [8..=10],
        /// Whether to list what the client may do with the topics.
        include_topic_authorized_operations: bool [8..],
    }

    /// A topic asked for.
    pub struct MetadataRequestTopic {
        /// Id of the topic, zero when asked by name.
        topic_id: Uuid [10..] ignorable,
        /// Name of the topic, null when asked by id.
        name: Option<ByteString> [..] nullable(10..),
    }

    /// The cluster.
    pub struct MetadataResponse {
        /// How long the broker held the request back because of a quota, in milliseconds.
        throttle_time_ms: i32 [3..] ignorable,
        /// Brokers that are up.
        brokers: Vec<MetadataResponseBroker> [..],
        /// Cluster id.
        cluster_id: Option<ByteString> [2..] nullable ignorable = None,
        /// Node id of the controller, −1 when unknown.
        controller_id: i32 [1..] ignorable = -1,
        /// The topics.
        topics: Vec<MetadataResponseTopic> [..],
        /// Bit set of what the client may do with the cluster.
        cluster_authorized_operations: i32 [8..=10] = i32::MIN,
        /// Error of the request as a whole, 0 for none.
        error_code: i16 [13..] ignorable,
    }

    /// A broker.
    pub struct MetadataResponseBroker {
        /// Node id.
        node_id: i32 [..],
        /// Host name.
        host: ByteString [..],
        /// TCP port.
        port: i32 [..],
        /// Rack, null when none is configured.
        rack: Option<ByteString> [1..] nullable ignorable = None,
    }

    /// A topic.
    pub struct MetadataResponseTopic {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// Name of the topic, null when asked for by an id that is unknown.
        name: Option<ByteString> [..] nullable(12..),
        /// Id of the topic.
        topic_id: Uuid [10..] ignorable,
        /// Whether the topic is Kafka's own.
        is_internal: bool [1..] ignorable,
        /// The partitions.
        partitions: Vec<MetadataResponsePartition> [..],
        /// Bit set of what the client may do with the topic.
        topic_authorized_operations: i32 [8..] = i32::MIN,
    }

    /// A partition.
    pub struct MetadataResponsePartition {
        /// Error code, 0 for none.
        error_code: i16 [..],
        /// Index of the partition.
        partition_index: i32 [..],
        /// Node id of the leader, −1 when there is none.
        leader_id: i32 [..],
        /// Epoch of the leader, −1 when unknown.
        leader_epoch: i32 [7..] ignorable = -1,
        /// Node ids of all replicas.
        replica_nodes: Vec<i32> [..],
        /// Node ids of the replicas in sync with the leader.
        isr_nodes: Vec<i32> [..],
        /// Node ids of the replicas that are off line.
        offline_replicas: Vec<i32> [5..] ignorable,
    }
}
