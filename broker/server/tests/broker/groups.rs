//! Consumer groups through the socket: generations, offsets, and both after a stop and after a kill.

use std::{collections::BTreeSet, time::Duration};

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{
        CreatePartitionsRequest, DeleteGroupsRequest, DeleteRecordsRequest, DeleteTopicsRequest,
        DescribeGroupsRequest, FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest,
        JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest, OffsetCommitRequest,
        OffsetDeleteRequest, OffsetFetchRequest, SyncGroupRequest,
        create_partitions::CreatePartitionsTopic,
        delete_records::{DeleteRecordsPartition, DeleteRecordsTopic},
        describe_groups::DescribedGroup,
        join_group::JoinGroupRequestProtocol,
        leave_group::MemberIdentity,
        offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
        offset_delete::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic},
        offset_fetch::{
            OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponsePartitions,
        },
        sync_group::SyncGroupRequestAssignment,
    },
};
use bytes::Bytes;

use crate::support::{TestBroker, Wire, batch, name, produce_request};

async fn broker() -> TestBroker {
    TestBroker::start_with(|config| config.groups.initial_rebalance_delay = Duration::ZERO).await
}

fn join_request(member_id: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: "readers".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        member_id: member_id.into(),
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol {
            name: "range".into(),
            metadata: Bytes::from_static(b"\0\0\0\0\0\x01\0\x06orders\xff\xff\xff\xff"),
        }],
        ..JoinGroupRequest::default()
    }
}

/// Joins as clients of version 9 do: first without an id, then with the one given.
async fn join(wire: &mut Wire) -> JoinGroupResponse {
    let refused = wire.call(&join_request(""), 9).await;
    assert_eq!(name(refused.error_code), "MEMBER_ID_REQUIRED");
    let joined = wire.call(&join_request(&refused.member_id), 9).await;
    assert_eq!(joined.error_code, 0, "{joined:?}");
    joined
}

fn sync_request(joined: &JoinGroupResponse, parts: &[(&str, &'static str)]) -> SyncGroupRequest {
    let parts = parts
        .iter()
        .map(|(member, part)| SyncGroupRequestAssignment {
            member_id: (*member).into(),
            assignment: Bytes::from_static(part.as_bytes()),
        });
    SyncGroupRequest {
        group_id: "readers".into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        assignments: parts.collect(),
        ..SyncGroupRequest::default()
    }
}

async fn heartbeat(wire: &mut Wire, member_id: &str, generation_id: i32) -> &'static str {
    let request = HeartbeatRequest {
        group_id: "readers".into(),
        generation_id,
        member_id: member_id.into(),
        ..HeartbeatRequest::default()
    };
    name(wire.call(&request, 4).await.error_code)
}

fn commit_request(group: &str, offset: i64, partitions: &[i32]) -> OffsetCommitRequest {
    let partition = |&partition_index: &i32| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: offset,
        committed_leader_epoch: 3,
        committed_metadata: Some("note".into()),
    };
    OffsetCommitRequest {
        group_id: group.into(),
        topics: vec![OffsetCommitRequestTopic {
            name: "orders".into(),
            partitions: partitions.iter().map(partition).collect(),
        }],
        ..OffsetCommitRequest::default()
    }
}

async fn commit(wire: &mut Wire, request: &OffsetCommitRequest) -> Vec<&'static str> {
    let response = wire.call(request, 9).await;
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    partitions
        .map(|partition| name(partition.error_code))
        .collect()
}

async fn fetch(
    wire: &mut Wire,
    group: &str,
    partitions: &[i32],
) -> Vec<OffsetFetchResponsePartitions> {
    let request = OffsetFetchRequest {
        groups: vec![OffsetFetchRequestGroup {
            group_id: group.into(),
            topics: Some(vec![OffsetFetchRequestTopics {
                name: "orders".into(),
                partition_indexes: partitions.to_vec(),
            }]),
            ..OffsetFetchRequestGroup::default()
        }],
        ..OffsetFetchRequest::default()
    };
    let mut response = wire.call(&request, 9).await;
    let mut group = response.groups.remove(0);
    assert_eq!(group.error_code, 0);
    group.topics.remove(0).partitions
}

async fn offset(wire: &mut Wire, group: &str) -> i64 {
    fetch(wire, group, &[0]).await[0].committed_offset
}

async fn describe(wire: &mut Wire, group: &str) -> DescribedGroup {
    let request = DescribeGroupsRequest {
        groups: vec![group.into()],
        include_authorized_operations: true,
    };
    wire.call(&request, 6).await.groups.remove(0)
}

/// A group's state may be loading for a moment after a start.
async fn loaded(wire: &mut Wire) {
    while name(wire.call(&ListGroupsRequest::default(), 5).await.error_code)
        == "COORDINATOR_LOAD_IN_PROGRESS"
    {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn two_members_share_a_generation_and_one_goes_on_when_the_other_leaves() {
    let broker = broker().await;
    let (mut one, mut two) = (broker.connect().await, broker.connect().await);
    one.create_topic("orders", 2).await;
    loaded(&mut one).await;
    let first = join(&mut one).await;
    assert_eq!((first.generation_id, &first.leader), (1, &first.member_id));
    let refused = two.call(&join_request(""), 9).await;
    let waiting = two.send(&join_request(&refused.member_id), 9).await;
    while heartbeat(&mut one, &first.member_id, 1).await != "REBALANCE_IN_PROGRESS" {
        tokio::task::yield_now().await;
    }
    let first = one.call(&join_request(&first.member_id), 9).await;
    let (answered, second) = two.receive::<JoinGroupRequest>(9).await;
    assert_eq!(answered, waiting);
    assert_eq!((first.generation_id, second.generation_id), (2, 2));
    let members: BTreeSet<_> = first.members.iter().map(|m| m.member_id.clone()).collect();
    assert_eq!(
        members,
        BTreeSet::from([first.member_id.clone(), second.member_id.clone()])
    );

    two.send(&sync_request(&second, &[]), 5).await;
    let parts = [(&*first.member_id, "left"), (&*second.member_id, "right")];
    let mine = one.call(&sync_request(&first, &parts), 5).await;
    let (_, theirs) = two.receive::<SyncGroupRequest>(5).await;
    assert_eq!(
        (&mine.assignment[..], &theirs.assignment[..]),
        (&b"left"[..], &b"right"[..])
    );
    assert_eq!(mine.protocol_name.as_deref(), Some("range"));

    let group = describe(&mut one, "readers").await;
    assert_eq!(
        (&*group.group_state, &*group.protocol_data),
        ("Stable", "range")
    );
    assert_eq!(group.members.len(), 2);
    assert_eq!(group.members[0].client_host, "/127.0.0.1");

    let leave = LeaveGroupRequest {
        group_id: "readers".into(),
        members: vec![MemberIdentity {
            member_id: second.member_id.clone(),
            ..MemberIdentity::default()
        }],
        ..LeaveGroupRequest::default()
    };
    let left = two.call(&leave, 5).await;
    assert_eq!((left.error_code, left.members[0].error_code), (0, 0));
    assert_eq!(
        heartbeat(&mut one, &first.member_id, 2).await,
        "REBALANCE_IN_PROGRESS"
    );
    let alone = one.call(&join_request(&first.member_id), 9).await;
    assert_eq!((alone.generation_id, alone.members.len()), (3, 1));
}

#[tokio::test]
async fn a_member_whose_connection_breaks_in_its_join_does_not_hold_up_the_group() {
    let broker = TestBroker::start_with(|config| {
        config.groups.initial_rebalance_delay = Duration::ZERO;
        config.groups.min_session_timeout = Duration::from_millis(100);
    })
    .await;
    let (mut one, mut two) = (broker.connect().await, broker.connect().await);
    loaded(&mut one).await;
    let first = join(&mut one).await;
    let brief = JoinGroupRequest {
        session_timeout_ms: 100,
        ..join_request("")
    };
    two.send(&brief, 3).await;
    while heartbeat(&mut one, &first.member_id, 1).await != "REBALANCE_IN_PROGRESS" {
        tokio::task::yield_now().await;
    }
    drop(two);
    // It has joined and waits for nobody but the first: only its session ends, it is not in the generation.
    let again = one.call(&join_request(&first.member_id), 9).await;
    assert!(
        again.members.len() <= 2 && again.generation_id == 2,
        "{again:?}"
    );
    let mut generation = again.generation_id;
    let mut members = again.members.len();
    while members == 2 {
        let synced = one.call(&sync_request(&again, &[]), 5).await;
        assert!(["NONE", "REBALANCE_IN_PROGRESS"].contains(&name(synced.error_code)));
        let again = one.call(&join_request(&first.member_id), 9).await;
        (generation, members) = (again.generation_id, again.members.len());
    }
    assert!(generation >= 2);
}

#[tokio::test]
async fn offsets_survive_a_stop_and_a_kill_with_their_notes_and_epochs() {
    let broker = broker().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    loaded(&mut wire).await;
    assert_eq!(offset(&mut wire, "tool").await, -1);
    assert_eq!(
        commit(&mut wire, &commit_request("tool", 7, &[0, 1])).await,
        ["NONE", "NONE"]
    );
    let folder = broker.stop().await;

    let broker = TestBroker::start_on(folder, |_| {}).await;
    let mut wire = broker.connect().await;
    loaded(&mut wire).await;
    assert_eq!(offset(&mut wire, "tool").await, 7);
    assert_eq!(
        commit(&mut wire, &commit_request("tool", 9, &[0])).await,
        ["NONE"]
    );
    let folder = broker.kill().await;

    let broker = TestBroker::start_on(folder, |_| {}).await;
    let mut wire = broker.connect().await;
    loaded(&mut wire).await;
    let found = fetch(&mut wire, "tool", &[0, 1, 5]).await;
    let offsets: Vec<i64> = found.iter().map(|found| found.committed_offset).collect();
    assert_eq!(offsets, [9, 7, -1]);
    assert_eq!(found[0].committed_leader_epoch, 3);
    assert_eq!(found[0].metadata.as_deref(), Some("note"));
}

#[tokio::test]
async fn members_survive_a_kill_of_the_broker_without_a_rebalance() {
    let broker = broker().await;
    let mut wire = broker.connect().await;
    loaded(&mut wire).await;
    let joined = join(&mut wire).await;
    let synced = wire
        .call(&sync_request(&joined, &[(&joined.member_id, "all")]), 5)
        .await;
    assert_eq!(synced.error_code, 0);
    let folder = broker.kill().await;
    let broker = TestBroker::start_on(folder, |_| {}).await;
    let mut wire = broker.connect().await;
    loaded(&mut wire).await;
    assert_eq!(heartbeat(&mut wire, &joined.member_id, 1).await, "NONE");
    let synced = wire.call(&sync_request(&joined, &[]), 5).await;
    assert_eq!(&synced.assignment[..], b"all");
}

#[tokio::test]
async fn commits_that_cannot_be_kept_are_refused_each_for_itself() {
    let broker = TestBroker::start_with(|config| {
        config.groups.max_offset_metadata_bytes = 4;
        config.groups.max_groups = 1;
    })
    .await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    loaded(&mut wire).await;
    let mut request = commit_request("tool", 7, &[0, 1, -1]);
    assert_eq!(
        commit(&mut wire, &request).await,
        [
            "NONE",
            "UNKNOWN_TOPIC_OR_PARTITION",
            "UNKNOWN_TOPIC_OR_PARTITION"
        ]
    );
    assert_eq!(offset(&mut wire, "tool").await, 7);
    request.topics[0].partitions[0].committed_metadata = Some("notes".into());
    assert_eq!(
        commit(&mut wire, &request).await[0],
        "OFFSET_METADATA_TOO_LARGE"
    );
    request.topics[0].name = "unheard-of".into();
    assert_eq!(
        commit(&mut wire, &request).await[1],
        "UNKNOWN_TOPIC_OR_PARTITION"
    );
    let mut member = commit_request("tool", 8, &[0]);
    member.generation_id_or_member_epoch = 4;
    member.member_id = "stranger".into();
    assert_eq!(commit(&mut wire, &member).await, ["UNKNOWN_MEMBER_ID"]);
    let second = commit_request("one-group-too-many", 8, &[0]);
    assert_eq!(commit(&mut wire, &second).await, ["POLICY_VIOLATION"]);
    assert_eq!(offset(&mut wire, "tool").await, 7);
}

#[tokio::test]
async fn groups_are_listed_deleted_and_forgotten_with_their_topic() {
    let broker = broker().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    loaded(&mut wire).await;
    for group in ["a", "b", "c"] {
        commit(&mut wire, &commit_request(group, 7, &[0])).await;
    }
    let joined = join(&mut wire).await;
    let names = |response: broker_protocol::messages::ListGroupsResponse| {
        let mut names: Vec<ByteString> = response.groups.into_iter().map(|g| g.group_id).collect();
        names.sort();
        names
    };
    let all = wire.call(&ListGroupsRequest::default(), 5).await;
    assert_eq!(names(all), ["a", "b", "c", "readers"]);
    let empty = ListGroupsRequest {
        states_filter: vec!["empty".into()],
        ..ListGroupsRequest::default()
    };
    assert_eq!(names(wire.call(&empty, 5).await), ["a", "b", "c"]);
    let other_type = ListGroupsRequest {
        types_filter: vec!["consumer".into()],
        ..ListGroupsRequest::default()
    };
    assert!(names(wire.call(&other_type, 5).await).is_empty());

    let delete = DeleteGroupsRequest {
        groups_names: vec!["a".into(), "readers".into(), "unheard-of".into()],
    };
    let deleted = wire.call(&delete, 2).await;
    let codes: Vec<_> = deleted.results.iter().map(|r| name(r.error_code)).collect();
    assert_eq!(codes, ["NONE", "NON_EMPTY_GROUP", "GROUP_ID_NOT_FOUND"]);
    assert_eq!(offset(&mut wire, "a").await, -1);

    let forget = OffsetDeleteRequest {
        group_id: "b".into(),
        topics: vec![OffsetDeleteRequestTopic {
            name: "orders".into(),
            partitions: vec![OffsetDeleteRequestPartition { partition_index: 0 }],
        }],
    };
    let forgotten = wire.call(&forget, 0).await;
    assert_eq!(forgotten.topics[0].partitions[0].error_code, 0);
    assert_eq!(offset(&mut wire, "b").await, -1);
    let subscribed = OffsetDeleteRequest {
        group_id: "readers".into(),
        ..forget
    };
    let refused = wire.call(&subscribed, 0).await;
    let code = refused.topics[0].partitions[0].error_code;
    assert_eq!(name(code), "GROUP_SUBSCRIBED_TO_TOPIC");

    let drop_topic = DeleteTopicsRequest {
        topic_names: vec!["orders".into()],
        timeout_ms: 1000,
        ..DeleteTopicsRequest::default()
    };
    wire.call(&drop_topic, 1).await;
    wire.create_topic("orders", 1).await;
    assert_eq!(
        offset(&mut wire, "c").await,
        -1,
        "a new topic of that name is another topic"
    );
    assert_eq!(describe(&mut wire, "c").await.group_state, "Empty");
    let gone = describe(&mut wire, "a").await;
    assert_eq!(
        (name(gone.error_code), &*gone.group_state),
        ("GROUP_ID_NOT_FOUND", "Dead")
    );
    assert_eq!(heartbeat(&mut wire, &joined.member_id, 1).await, "NONE");
}

#[tokio::test]
async fn a_stop_answers_those_who_wait() {
    let broker = broker().await;
    let (mut one, mut two) = (broker.connect().await, broker.connect().await);
    loaded(&mut one).await;
    let first = join(&mut one).await;
    two.send(&join_request(""), 3).await;
    while heartbeat(&mut one, &first.member_id, 1).await != "REBALANCE_IN_PROGRESS" {
        tokio::task::yield_now().await;
    }
    broker.begin_stop();
    let (_, answer) = two.receive::<JoinGroupRequest>(3).await;
    assert_eq!(name(answer.error_code), "COORDINATOR_NOT_AVAILABLE");
    broker.stop().await;
}

#[tokio::test]
async fn members_are_answered_in_every_version() {
    let broker = broker().await;
    let mut wire = broker.connect().await;
    loaded(&mut wire).await;
    for version in 0..=4 {
        let request = FindCoordinatorRequest {
            key: if version < 4 {
                "g".into()
            } else {
                ByteString::new()
            },
            coordinator_keys: if version < 4 {
                vec![]
            } else {
                vec!["g".into()]
            },
            ..FindCoordinatorRequest::default()
        };
        let found = wire.call(&request, version).await;
        let port = found
            .coordinators
            .first()
            .map_or(found.port, |one| one.port);
        assert_eq!(port, i32::from(broker.address.port()), "{version}");
    }
    for version in 0..=9 {
        let bad = JoinGroupRequest {
            group_id: ByteString::new(),
            ..join_request("")
        };
        let response = wire.call(&bad, version).await;
        assert_eq!(name(response.error_code), "INVALID_GROUP_ID", "{version}");
        let brief = JoinGroupRequest {
            session_timeout_ms: 1,
            ..join_request("")
        };
        let response = wire.call(&brief, version).await;
        assert_eq!(
            name(response.error_code),
            "INVALID_SESSION_TIMEOUT",
            "{version}"
        );
    }
    for version in 0..=5 {
        let request = SyncGroupRequest {
            group_id: "g".into(),
            ..SyncGroupRequest::default()
        };
        let response = wire.call(&request, version).await;
        assert_eq!(name(response.error_code), "UNKNOWN_MEMBER_ID", "{version}");
        let leave = LeaveGroupRequest {
            group_id: "g".into(),
            member_id: if version < 3 {
                "m".into()
            } else {
                ByteString::new()
            },
            members: if version < 3 {
                vec![]
            } else {
                vec![MemberIdentity::default()]
            },
        };
        let response = wire.call(&leave, version).await;
        let code = response
            .members
            .first()
            .map_or(response.error_code, |m| m.error_code);
        assert_eq!(name(code), "UNKNOWN_MEMBER_ID", "{version}");
        wire.call(&ListGroupsRequest::default(), version).await;
    }
}

#[tokio::test]
async fn groups_and_offsets_are_answered_in_every_version() {
    let broker = broker().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    loaded(&mut wire).await;
    for version in 0..=6 {
        let request = DescribeGroupsRequest {
            groups: vec!["g".into()],
            ..DescribeGroupsRequest::default()
        };
        let group = wire.call(&request, version).await.groups.remove(0);
        assert_eq!(
            (group.error_code != 0, &*group.group_state),
            (version == 6, "Dead")
        );
    }
    for version in 2..=9 {
        let response = wire
            .call(&commit_request("g", i64::from(version), &[0]), version)
            .await;
        assert_eq!(response.topics[0].partitions[0].error_code, 0, "{version}");
        assert_eq!(offset(&mut wire, "g").await, i64::from(version));
    }
    for version in 1..=7 {
        let request = OffsetFetchRequest {
            group_id: "g".into(),
            topics: if version == 1 { Some(vec![]) } else { None },
            ..OffsetFetchRequest::default()
        };
        let response = wire.call(&request, version).await;
        assert_eq!(response.topics.len(), usize::from(version > 1), "{version}");
    }
}

#[tokio::test]
async fn only_the_broker_writes_and_keeps_its_own_topic() {
    let broker = broker().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    loaded(&mut wire).await;
    commit(&mut wire, &commit_request("tool", 7, &[0])).await;
    let request = produce_request("__consumer_offsets", 0, batch(&["forged"]));
    let response = wire.call(&request, 9).await;
    let code = response.responses[0].partition_responses[0].error_code;
    assert_eq!(name(code), "INVALID_TOPIC_EXCEPTION");
    let drop_topic = DeleteTopicsRequest {
        topic_names: vec!["__consumer_offsets".into()],
        timeout_ms: 1000,
        ..DeleteTopicsRequest::default()
    };
    let response = wire.call(&drop_topic, 1).await;
    assert_eq!(
        response.responses[0].error_code,
        ErrorCode::InvalidRequest.code()
    );
    let start_at_the_end = DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: "__consumer_offsets".into(),
            partitions: vec![DeleteRecordsPartition {
                partition_index: 0,
                offset: -1,
            }],
        }],
        timeout_ms: 1000,
    };
    let response = wire.call(&start_at_the_end, 2).await;
    let code = response.topics[0].partitions[0].error_code;
    assert_eq!(name(code), "INVALID_TOPIC_EXCEPTION");
    let grow = CreatePartitionsRequest {
        topics: vec![CreatePartitionsTopic {
            name: "__consumer_offsets".into(),
            count: 5,
            assignments: None,
        }],
        timeout_ms: 1000,
        validate_only: false,
    };
    let response = wire.call(&grow, 3).await;
    assert_eq!(name(response.results[0].error_code), "INVALID_PARTITIONS");
    assert_eq!(offset(&mut wire, "tool").await, 7);
}
