//! The table of versions: what `ApiVersions` offers is what is answered, each version in its own form.

use std::collections::BTreeMap;

use broker_protocol::{
    ByteString, frame,
    messages::{
        AlterConfigsRequest, AlterPartitionReassignmentsRequest, ApiVersionsRequest,
        CreatePartitionsRequest, CreateTopicsRequest, DeleteGroupsRequest, DeleteRecordsRequest,
        DeleteTopicsRequest, DescribeClusterRequest, DescribeConfigsRequest, DescribeGroupsRequest,
        DescribeLogDirsRequest, DescribeProducersRequest, DescribeTopicPartitionsRequest,
        ElectLeadersRequest, FetchRequest, FindCoordinatorRequest, HeartbeatRequest,
        IncrementalAlterConfigsRequest, InitProducerIdRequest, JoinGroupRequest, LeaveGroupRequest,
        ListGroupsRequest, ListOffsetsRequest, ListPartitionReassignmentsRequest, Message,
        MetadataRequest, OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest,
        OffsetForLeaderEpochRequest, ProduceRequest, Request, SaslAuthenticateRequest,
        SaslHandshakeRequest, SyncGroupRequest, alter_configs, alter_partition_reassignments,
        create_partitions::CreatePartitionsTopic,
        create_topics::CreatableTopic,
        delete_records::{DeleteRecordsPartition, DeleteRecordsTopic},
        delete_topics::DeleteTopicState,
        describe_configs::DescribeConfigsResource,
        describe_producers, elect_leaders, incremental_alter_configs,
        list_offsets::{ListOffsetsPartition, ListOffsetsTopic},
        metadata::MetadataRequestTopic,
        offset_for_leader_epoch::{OffsetForLeaderPartition, OffsetForLeaderTopic},
    },
};
use uuid::Uuid;

use crate::support::{TestBroker, Wire, batch, fetch_request, fetch_topic, produce_request};

/// Sends a request in each version offered, and reads the answer in that version.
async fn answers<R: Request>(
    wire: &mut Wire,
    offered: &mut BTreeMap<i16, (i16, i16)>,
    request: impl Fn(i16) -> R,
) {
    let (min, max) = offered
        .remove(&R::API_KEY)
        .unwrap_or_else(|| panic!("{} not offered", R::NAME));
    assert!(min <= max);
    for version in min.max(R::MIN_VERSION)..=max {
        for request in [R::default(), request(version)] {
            let sent = wire.send(&request, version).await;
            let answer = frame::decode_response::<R::Response>(wire.frame().await, version);
            let (id, _) =
                answer.unwrap_or_else(|error| panic!("{} version {version}: {error}", R::NAME));
            assert_eq!(id, sent);
        }
    }
}

#[tokio::test]
async fn every_version_offered_is_answered_in_its_own_form() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("orders", 1, &[("retention.ms", "5")])
        .await;
    wire.append("orders", 0, batch(&["a"])).await;
    let response = wire.call(&ApiVersionsRequest::default(), 0).await;
    let rows = response
        .api_keys
        .iter()
        .map(|row| (row.api_key, (row.min_version, row.max_version)));
    let mut offered: BTreeMap<_, _> = rows.collect();
    // Produce starts below what the codec knows, and has no answer by default: it has tests of its own.
    assert_eq!(offered.remove(&ProduceRequest::API_KEY), Some((0, 13)));
    let (wire, offered) = (&mut wire, &mut offered);
    data_answers(wire, offered).await;
    topic_answers(wire, offered).await;
    admin_answers(wire, offered).await;
    answers(wire, offered, |_| ApiVersionsRequest::default()).await;
    answers(wire, offered, |_| DescribeClusterRequest::default()).await;
    let asked = |version| FindCoordinatorRequest {
        key: if version < 4 {
            "group".into()
        } else {
            "".into()
        },
        coordinator_keys: if version < 4 {
            vec![]
        } else {
            vec!["group".into()]
        },
        ..FindCoordinatorRequest::default()
    };
    answers(wire, offered, asked).await;
    group_answers(wire, offered).await;
    let unnamed = |_| InitProducerIdRequest {
        transactional_id: None,
        ..InitProducerIdRequest::default()
    };
    answers(wire, offered, unnamed).await;
    // A listener without SASL says so; what one with it says is tested in `security`.
    answers(wire, offered, |_| SaslHandshakeRequest::default()).await;
    answers(wire, offered, |_| SaslAuthenticateRequest::default()).await;
    assert!(offered.is_empty(), "offered and not tried: {offered:?}");
}

/// What the answers mean is tested in `groups`.
async fn group_answers(wire: &mut Wire, offered: &mut BTreeMap<i16, (i16, i16)>) {
    answers(wire, offered, |_| OffsetCommitRequest::default()).await;
    answers(wire, offered, |_| OffsetFetchRequest::default()).await;
    answers(wire, offered, |_| JoinGroupRequest::default()).await;
    answers(wire, offered, |_| HeartbeatRequest::default()).await;
    answers(wire, offered, |_| LeaveGroupRequest::default()).await;
    answers(wire, offered, |_| SyncGroupRequest::default()).await;
    answers(wire, offered, |_| ListGroupsRequest::default()).await;
    answers(wire, offered, |_| OffsetDeleteRequest::default()).await;
    let groups = || vec!["group".into()];
    let described = |_| DescribeGroupsRequest {
        groups: groups(),
        ..DescribeGroupsRequest::default()
    };
    answers(wire, offered, described).await;
    let deleted = |_| DeleteGroupsRequest {
        groups_names: groups(),
    };
    answers(wire, offered, deleted).await;
}

async fn data_answers(wire: &mut Wire, offered: &mut BTreeMap<i16, (i16, i16)>) {
    let topics = || vec![fetch_topic("orders", &[(0, 0), (0, 9), (7, 0)])];
    let fetch = |_| FetchRequest {
        topics: topics(),
        ..fetch_request("orders", 0, 0)
    };
    answers(wire, offered, fetch).await;
    let at = |partition_index, timestamp| ListOffsetsPartition {
        partition_index,
        timestamp,
        ..ListOffsetsPartition::default()
    };
    let listed = |_| ListOffsetsRequest {
        topics: vec![ListOffsetsTopic {
            name: "orders".into(),
            partitions: vec![at(0, -1), at(0, -2), at(0, 5), at(7, -1)],
        }],
        ..ListOffsetsRequest::default()
    };
    answers(wire, offered, listed).await;
    let epoch = |partition| OffsetForLeaderPartition {
        partition,
        leader_epoch: 0,
        ..OffsetForLeaderPartition::default()
    };
    let ended = |_| OffsetForLeaderEpochRequest {
        topics: vec![OffsetForLeaderTopic {
            topic: "orders".into(),
            partitions: vec![epoch(0), epoch(7)],
        }],
        ..OffsetForLeaderEpochRequest::default()
    };
    answers(wire, offered, ended).await;
    let deleted = |_| DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: "orders".into(),
            partitions: [0, 7]
                .map(|partition_index| DeleteRecordsPartition {
                    partition_index,
                    offset: 0,
                })
                .into(),
        }],
        ..DeleteRecordsRequest::default()
    };
    answers(wire, offered, deleted).await;
}

async fn topic_answers(wire: &mut Wire, offered: &mut BTreeMap<i16, (i16, i16)>) {
    let named = |name: &str| MetadataRequestTopic {
        name: Some(name.into()),
        ..MetadataRequestTopic::default()
    };
    let metadata = |version| MetadataRequest {
        topics: Some(vec![named("orders"), named("auto"), named("a/b")]),
        include_topic_authorized_operations: version >= 8,
        include_cluster_authorized_operations: (8..=10).contains(&version),
        ..MetadataRequest::default()
    };
    answers(wire, offered, metadata).await;
    let topic = |name: String| CreatableTopic {
        name: name.into(),
        num_partitions: 1,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    let created = |version: i16| CreateTopicsRequest {
        topics: vec![topic(format!("made{version}")), topic("orders".to_owned())],
        ..CreateTopicsRequest::default()
    };
    answers(wire, offered, created).await;
    let grown = |version: i16| CreatePartitionsRequest {
        topics: ["orders", "missing"]
            .map(|name| CreatePartitionsTopic {
                name: name.into(),
                count: 2 + i32::from(version),
                assignments: None,
            })
            .into(),
        ..CreatePartitionsRequest::default()
    };
    answers(wire, offered, grown).await;
    let described = |version| DescribeConfigsRequest {
        resources: [(2, "orders"), (2, "missing"), (4, "1")]
            .map(|(resource_type, name)| DescribeConfigsResource {
                resource_type,
                resource_name: name.into(),
                configuration_keys: None,
            })
            .into(),
        include_synonyms: true,
        include_documentation: version >= 3,
    };
    answers(wire, offered, described).await;
    answers(wire, offered, |_| DescribeLogDirsRequest { topics: None }).await;
    let deleted = |version: i16| {
        let names = [format!("made{version}"), "missing".to_owned()].map(ByteString::from);
        if version < 6 {
            let topic_names = names.into();
            return DeleteTopicsRequest {
                topic_names,
                ..DeleteTopicsRequest::default()
            };
        }
        let topics = names.map(|name| DeleteTopicState {
            name: Some(name),
            topic_id: Uuid::nil(),
        });
        DeleteTopicsRequest {
            topics: topics.into(),
            ..DeleteTopicsRequest::default()
        }
    };
    answers(wire, offered, deleted).await;
}

async fn admin_answers(wire: &mut Wire, offered: &mut BTreeMap<i16, (i16, i16)>) {
    let replaced = |_| AlterConfigsRequest {
        resources: vec![alter_configs::AlterConfigsResource {
            resource_type: 2,
            resource_name: "orders".into(),
            configs: Vec::new(),
        }],
        validate_only: false,
    };
    answers(wire, offered, replaced).await;
    let altered = |_| IncrementalAlterConfigsRequest {
        resources: vec![incremental_alter_configs::AlterConfigsResource {
            resource_type: 4,
            resource_name: "1".into(),
            configs: Vec::new(),
        }],
        validate_only: true,
    };
    answers(wire, offered, altered).await;
    let elected = |_| ElectLeadersRequest {
        topic_partitions: Some(vec![elect_leaders::TopicPartitions {
            topic: "orders".into(),
            partitions: vec![0, 7],
        }]),
        ..ElectLeadersRequest::default()
    };
    answers(wire, offered, elected).await;
    let moved = |_| AlterPartitionReassignmentsRequest {
        topics: vec![alter_partition_reassignments::ReassignableTopic {
            name: "orders".into(),
            partitions: vec![alter_partition_reassignments::ReassignablePartition::default()],
        }],
        ..AlterPartitionReassignmentsRequest::default()
    };
    answers(wire, offered, moved).await;
    answers(wire, offered, |_| {
        ListPartitionReassignmentsRequest::default()
    })
    .await;
    let written = |_| DescribeProducersRequest {
        topics: vec![describe_producers::TopicRequest {
            name: "orders".into(),
            partition_indexes: vec![0, 7],
        }],
    };
    answers(wire, offered, written).await;
    let paged = |_| DescribeTopicPartitionsRequest {
        response_partition_limit: 1,
        ..DescribeTopicPartitionsRequest::default()
    };
    answers(wire, offered, paged).await;
}

#[tokio::test]
async fn produce_is_answered_in_every_version() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let metadata = MetadataRequest {
        topics: None,
        ..MetadataRequest::default()
    };
    let topic_id = wire.call(&metadata, 12).await.topics[0].topic_id;
    for (version, offset) in (3..=13).zip(0..) {
        let mut request = produce_request("orders", 0, batch(&["a"]));
        request.topic_data[0].topic_id = topic_id;
        let response = wire.call(&request, version).await;
        let appended = &response.responses[0].partition_responses[0];
        assert_eq!(
            (appended.error_code, appended.base_offset),
            (0, offset),
            "version {version}"
        );
        let response = wire
            .call(&produce_request("missing", 0, batch(&["a"])), version)
            .await;
        let unknown = if version < 13 { 3 } else { 100 };
        let appended = &response.responses[0].partition_responses[0];
        assert_eq!(appended.error_code, unknown, "version {version}");
    }
}

#[tokio::test]
async fn versions_beside_the_table_close_the_connection() {
    let broker = TestBroker::start().await;
    let response = broker
        .connect()
        .await
        .call(&ApiVersionsRequest::default(), 0)
        .await;
    for row in response.api_keys {
        for version in [row.min_version - 1, row.max_version + 1] {
            // Answered with the range: see the tests of bad input.
            if row.api_key == ApiVersionsRequest::API_KEY {
                continue;
            }
            let mut wire = broker.connect().await;
            let mut bytes = vec![0, 0, 0, 40];
            bytes.extend_from_slice(&row.api_key.to_be_bytes());
            bytes.extend_from_slice(&version.to_be_bytes());
            bytes.resize(44, 0);
            wire.raw(&bytes).await;
            wire.assert_closed().await;
        }
    }
}
