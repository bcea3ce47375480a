//! Requests and responses, one file per API, each a table that reads like Kafka's own message JSON.
//!
//! Names, versions, defaults and order of fields are Kafka's. Two things to know:
//! - [`Default`] gives Kafka's default values. A nullable field without a default of its own starts *empty*, not null:
//!   `InitProducerIdRequest::default().transactional_id` is `Some("")`, so say `None` where null is meant.
//! - Encoding fails when a value cannot be expressed in the version asked for, unless Kafka marks the field as
//!   ignorable; so nothing asked for is dropped in silence.

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};

pub use self::payload::{Hole, Payload};
use crate::primitives::{DecodeError, EncodeError};

mod payload;
#[macro_use]
mod table;
#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

/// What the tables' code names.
mod prelude {
    pub(super) use bytes::{Bytes, BytesMut};
    pub(super) use bytestring::ByteString;
    pub(super) use uuid::Uuid;

    pub(super) use super::wire::{Form, TaggedFields, Wire, read_tagged_fields, read_whole};
    pub(super) use crate::primitives::{DecodeError, DecodeFault, EncodeError, EncodeFault};
}

/// One request or response, in all its versions.
pub trait Message: Default + Clone + Debug + PartialEq + Send + Sync + 'static {
    /// Kafka's number of the API.
    const API_KEY: i16;
    /// Kafka's name of the message, such as `FetchRequest`.
    const NAME: &'static str;
    /// Lowest version known.
    const MIN_VERSION: i16;
    /// Highest version known.
    const MAX_VERSION: i16;
    /// First version with compact lengths and tagged fields.
    const FIRST_FLEXIBLE_VERSION: i16;

    /// Whether the version has compact lengths and tagged fields.
    fn flexible(version: i16) -> bool {
        version >= Self::FIRST_FLEXIBLE_VERSION
    }

    /// Appends the message, without header or length prefix. On an error `out` holds a part of it.
    ///
    /// # Errors
    /// The version is unknown, a value has no place in it, or a length exceeds its field.
    fn encode(&self, out: &mut BytesMut, version: i16) -> Result<(), EncodeError>;

    /// Reads the message and leaves in `buf` what follows it. Strings and byte strings share the memory of
    /// `buf`. Never panics; what is allocated ahead of reading never exceeds the bytes in `buf`.
    ///
    /// # Errors
    /// The version is unknown, or the bytes are not such a message.
    fn decode(buf: &mut Bytes, version: i16) -> Result<Self, DecodeError>;

    /// Tells `note` every error code in the message, 0 for success among them: that of the whole, and those of its
    /// topics, partitions and the like.
    fn error_codes(&self, note: &mut dyn FnMut(i16));
}

/// A message that asks for another.
pub trait Request: Message {
    /// What the broker answers.
    type Response: Message;
}

macro_rules! apis {
    ($($api:ident = $module:ident, $request:ident => $response:ident;)+) => {
        $(
            pub mod $module;
            pub use $module::{$request, $response};
        )+

        /// The APIs this crate has messages for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        #[non_exhaustive]
        pub enum ApiKey {
            $(
                #[doc = concat!("[`", stringify!($request), "`]")]
                $api = <$request as Message>::API_KEY,
            )+
        }

        impl ApiKey {
            /// The API with this number, if known here.
            pub const fn from_i16(key: i16) -> Option<Self> {
                match key {
                    $(<$request as Message>::API_KEY => Some(Self::$api),)+
                    _ => None,
                }
            }

            /// Kafka's name, such as `Fetch`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$api => stringify!($api),)+
                }
            }

            /// First version with compact lengths, tagged fields and flexible headers.
            pub const fn first_flexible_version(self) -> i16 {
                match self {
                    $(Self::$api => $module::FIRST_FLEXIBLE_VERSION,)+
                }
            }
        }

        /// Every API: key, lowest and highest version known here, first flexible version. In order of the key.
        pub const TABLE: &[(ApiKey, i16, i16, i16)] = &[
            $((
                ApiKey::$api,
                $module::MIN_VERSION,
                $module::MAX_VERSION,
                $module::FIRST_FLEXIBLE_VERSION,
            ),)+
        ];

        #[cfg(test)]
        pub(crate) const MESSAGE_NAMES: &[&str] =
            &[$(<$request as Message>::NAME, <$response as Message>::NAME),+];
    };
}

apis! {
    Produce = produce, ProduceRequest => ProduceResponse;
    Fetch = fetch, FetchRequest => FetchResponse;
    ListOffsets = list_offsets, ListOffsetsRequest => ListOffsetsResponse;
    Metadata = metadata, MetadataRequest => MetadataResponse;
    OffsetCommit = offset_commit, OffsetCommitRequest => OffsetCommitResponse;
    OffsetFetch = offset_fetch, OffsetFetchRequest => OffsetFetchResponse;
    FindCoordinator = find_coordinator, FindCoordinatorRequest => FindCoordinatorResponse;
    JoinGroup = join_group, JoinGroupRequest => JoinGroupResponse;
    Heartbeat = heartbeat, HeartbeatRequest => HeartbeatResponse;
    LeaveGroup = leave_group, LeaveGroupRequest => LeaveGroupResponse;
    SyncGroup = sync_group, SyncGroupRequest => SyncGroupResponse;
    DescribeGroups = describe_groups, DescribeGroupsRequest => DescribeGroupsResponse;
    ListGroups = list_groups, ListGroupsRequest => ListGroupsResponse;
    SaslHandshake = sasl_handshake, SaslHandshakeRequest => SaslHandshakeResponse;
    ApiVersions = api_versions, ApiVersionsRequest => ApiVersionsResponse;
    CreateTopics = create_topics, CreateTopicsRequest => CreateTopicsResponse;
    DeleteTopics = delete_topics, DeleteTopicsRequest => DeleteTopicsResponse;
    DeleteRecords = delete_records, DeleteRecordsRequest => DeleteRecordsResponse;
    InitProducerId = init_producer_id, InitProducerIdRequest => InitProducerIdResponse;
    OffsetForLeaderEpoch = offset_for_leader_epoch,
        OffsetForLeaderEpochRequest => OffsetForLeaderEpochResponse;
    DescribeConfigs = describe_configs, DescribeConfigsRequest => DescribeConfigsResponse;
    AlterConfigs = alter_configs, AlterConfigsRequest => AlterConfigsResponse;
    DescribeLogDirs = describe_log_dirs, DescribeLogDirsRequest => DescribeLogDirsResponse;
    SaslAuthenticate = sasl_authenticate, SaslAuthenticateRequest => SaslAuthenticateResponse;
    CreatePartitions = create_partitions, CreatePartitionsRequest => CreatePartitionsResponse;
    DeleteGroups = delete_groups, DeleteGroupsRequest => DeleteGroupsResponse;
    ElectLeaders = elect_leaders, ElectLeadersRequest => ElectLeadersResponse;
    IncrementalAlterConfigs = incremental_alter_configs,
        IncrementalAlterConfigsRequest => IncrementalAlterConfigsResponse;
    AlterPartitionReassignments = alter_partition_reassignments,
        AlterPartitionReassignmentsRequest => AlterPartitionReassignmentsResponse;
    ListPartitionReassignments = list_partition_reassignments,
        ListPartitionReassignmentsRequest => ListPartitionReassignmentsResponse;
    OffsetDelete = offset_delete, OffsetDeleteRequest => OffsetDeleteResponse;
    DescribeCluster = describe_cluster, DescribeClusterRequest => DescribeClusterResponse;
    DescribeProducers = describe_producers, DescribeProducersRequest => DescribeProducersResponse;
    DescribeTopicPartitions = describe_topic_partitions,
        DescribeTopicPartitionsRequest => DescribeTopicPartitionsResponse;
}

impl ApiKey {
    /// The number on the wire.
    pub const fn code(self) -> i16 {
        self as i16
    }
}
