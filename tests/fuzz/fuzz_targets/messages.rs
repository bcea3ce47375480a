//! Every request and response in every version: first byte the API, second the version, then the message. What is read
//! can be written, and read again as the same.
#![no_main]

use broker_protocol::frame::RequestHeader;
use broker_protocol::messages::*;
use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;

fn round<M: Message>(bytes: &Bytes, version: i16) {
    let mut rest = bytes.clone();
    let Ok(message) = M::decode(&mut rest, version) else {
        return;
    };
    assert!(rest.len() <= bytes.len());
    let mut out = BytesMut::new();
    // A number that is not a number is not equal to itself; everything else must come back.
    let text = format!("{message:?}");
    message
        .encode(&mut out, version)
        .expect("what was read can be written");
    let mut out = out.freeze();
    let again = M::decode(&mut out, version).expect("what was written can be read");
    assert!(out.is_empty());
    assert_eq!(format!("{again:?}"), text);
}

macro_rules! both {
    ($api:expr, $bytes:expr, $version:expr; $($key:ident = $request:ident, $response:ident;)+) => {
        match $api {
            $(ApiKey::$key => {
                round::<$request>($bytes, $version);
                round::<$response>($bytes, $version);
            })+
            // New here: a row below is missing.
            api => panic!("{api:?} is not fuzzed"),
        }
    };
}

fuzz_target!(|input: &[u8]| {
    let Some(([api, version], rest)) = input.split_first_chunk::<2>() else {
        return;
    };
    let bytes = Bytes::copy_from_slice(rest);
    let mut header = bytes.clone();
    drop(RequestHeader::decode(&mut header));
    let (api, min, max, _) = TABLE[usize::from(*api) % TABLE.len()];
    let version = min + i16::from(*version) % (max - min + 1);
    both!(api, &bytes, version;
        Produce = ProduceRequest, ProduceResponse;
        Fetch = FetchRequest, FetchResponse;
        ListOffsets = ListOffsetsRequest, ListOffsetsResponse;
        Metadata = MetadataRequest, MetadataResponse;
        OffsetCommit = OffsetCommitRequest, OffsetCommitResponse;
        OffsetFetch = OffsetFetchRequest, OffsetFetchResponse;
        FindCoordinator = FindCoordinatorRequest, FindCoordinatorResponse;
        JoinGroup = JoinGroupRequest, JoinGroupResponse;
        Heartbeat = HeartbeatRequest, HeartbeatResponse;
        LeaveGroup = LeaveGroupRequest, LeaveGroupResponse;
        SyncGroup = SyncGroupRequest, SyncGroupResponse;
        DescribeGroups = DescribeGroupsRequest, DescribeGroupsResponse;
        ListGroups = ListGroupsRequest, ListGroupsResponse;
        SaslHandshake = SaslHandshakeRequest, SaslHandshakeResponse;
        ApiVersions = ApiVersionsRequest, ApiVersionsResponse;
        CreateTopics = CreateTopicsRequest, CreateTopicsResponse;
        DeleteTopics = DeleteTopicsRequest, DeleteTopicsResponse;
        DeleteRecords = DeleteRecordsRequest, DeleteRecordsResponse;
        InitProducerId = InitProducerIdRequest, InitProducerIdResponse;
        OffsetForLeaderEpoch = OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse;
        DescribeConfigs = DescribeConfigsRequest, DescribeConfigsResponse;
        AlterConfigs = AlterConfigsRequest, AlterConfigsResponse;
        DescribeLogDirs = DescribeLogDirsRequest, DescribeLogDirsResponse;
        SaslAuthenticate = SaslAuthenticateRequest, SaslAuthenticateResponse;
        CreatePartitions = CreatePartitionsRequest, CreatePartitionsResponse;
        DeleteGroups = DeleteGroupsRequest, DeleteGroupsResponse;
        ElectLeaders = ElectLeadersRequest, ElectLeadersResponse;
        IncrementalAlterConfigs = IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse;
        AlterPartitionReassignments = AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse;
        ListPartitionReassignments = ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse;
        OffsetDelete = OffsetDeleteRequest, OffsetDeleteResponse;
        DescribeCluster = DescribeClusterRequest, DescribeClusterResponse;
        DescribeProducers = DescribeProducersRequest, DescribeProducersResponse;
        DescribeTopicPartitions = DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse;
    );
});
