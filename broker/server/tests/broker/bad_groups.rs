//! Groups as nobody should ask for them: names that look like paths or terminals, lengths that lie, more than memory
//! should hold.

use std::{fs, time::Duration};

use broker_protocol::messages::{
    DeleteGroupsRequest, JoinGroupRequest, JoinGroupResponse, ListGroupsRequest,
    OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, SyncGroupRequest,
    join_group::JoinGroupRequestProtocol,
    offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
    offset_delete::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic},
    offset_fetch::OffsetFetchRequestGroup,
    sync_group::SyncGroupRequestAssignment,
};
use broker_server::GroupConfig;
use bytes::{BufMut, Bytes, BytesMut};

use crate::support::{TestBroker, Wire, name};

/// Names that mean something to a file system, a terminal or a log, and the longest that a string can be.
fn odd_names() -> Vec<String> {
    let short = [
        "..",
        ".",
        "../../../etc/passwd",
        "a/b",
        "/",
        "\0",
        "a\0b",
        "\n",
        "\r\nHTTP/1.1 200 OK",
        "\x1b[2J",
        " ",
        "日本\u{202e}",
    ];
    let mut names: Vec<String> = short.map(str::to_owned).into();
    names.push("x".repeat(0x7fff));
    names
}

fn commit_request(group: &str, offset: i64) -> OffsetCommitRequest {
    OffsetCommitRequest {
        group_id: group.into(),
        topics: vec![OffsetCommitRequestTopic {
            name: "orders".into(),
            partitions: vec![OffsetCommitRequestPartition {
                committed_offset: offset,
                ..OffsetCommitRequestPartition::default()
            }],
        }],
        ..OffsetCommitRequest::default()
    }
}

async fn commit(wire: &mut Wire, group: &str, offset: i64) -> &'static str {
    let response = wire.call(&commit_request(group, offset), 8).await;
    name(response.topics[0].partitions[0].error_code)
}

async fn committed(wire: &mut Wire, group: &str) -> i64 {
    let request = OffsetFetchRequest {
        groups: vec![OffsetFetchRequestGroup {
            group_id: group.into(),
            topics: None,
            ..OffsetFetchRequestGroup::default()
        }],
        ..OffsetFetchRequest::default()
    };
    let response = wire.call(&request, 8).await;
    let topics = &response.groups[0].topics;
    topics
        .first()
        .map_or(-1, |topic| topic.partitions[0].committed_offset)
}

fn join_request(group: &str, metadata: Bytes) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: group.into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        group_instance_id: None,
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol {
            name: "range".into(),
            metadata,
        }],
        ..JoinGroupRequest::default()
    }
}

/// Version 3, the last in which a member needs no id to join.
async fn join(wire: &mut Wire, group: &str, metadata: Bytes) -> JoinGroupResponse {
    wire.call(&join_request(group, metadata), 3).await
}

async fn groups(wire: &mut Wire, version: i16) -> Vec<String> {
    loop {
        let response = wire.call(&ListGroupsRequest::default(), version).await;
        if name(response.error_code) != "COORDINATOR_LOAD_IN_PROGRESS" {
            let groups = response.groups.iter();
            return groups.map(|group| group.group_id.to_string()).collect();
        }
        tokio::task::yield_now().await;
    }
}

async fn start(edit: impl FnOnce(&mut GroupConfig)) -> (TestBroker, Wire) {
    let broker = TestBroker::start_with(|config| {
        config.groups.initial_rebalance_delay = Duration::ZERO;
        edit(&mut config.groups);
    })
    .await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    assert!(groups(&mut wire, 4).await.is_empty());
    (broker, wire)
}

#[tokio::test]
async fn names_of_groups_are_free_text_and_make_no_files() {
    let (broker, mut wire) = start(|_| {}).await;
    for (offset, group) in (100..).zip(odd_names()) {
        assert_eq!(commit(&mut wire, &group, offset).await, "NONE", "{group:?}");
    }
    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    let mut wire = broker.connect().await;
    // In every version, for clients that know only short forms too.
    for version in [0, 4] {
        let mut listed = groups(&mut wire, version).await;
        let mut expected = odd_names();
        listed.sort();
        expected.sort();
        assert!(listed == expected, "{listed:?}");
    }
    for (offset, group) in (100..).zip(odd_names()) {
        assert_eq!(committed(&mut wire, &group).await, offset, "{group:?}");
    }
    let entries = fs::read_dir(broker.folder.path().join("data")).unwrap();
    let folders = entries.map(|entry| entry.unwrap().path());
    let mut folders: Vec<_> = folders.filter(|path| path.is_dir()).collect();
    folders.sort();
    let ends = ["__consumer_offsets-0", "orders-0"];
    assert_eq!(folders.len(), ends.len(), "{folders:?}");
    assert!(
        folders
            .iter()
            .zip(ends)
            .all(|(path, end)| path.ends_with(end))
    );
    let request = DeleteGroupsRequest {
        groups_names: odd_names()
            .iter()
            .map(|name| name.as_str().into())
            .collect(),
    };
    let deleted = wire.call(&request, 2).await;
    assert!(deleted.results.iter().all(|result| result.error_code == 0));
    assert!(groups(&mut wire, 4).await.is_empty());
}

#[tokio::test]
async fn names_longer_than_a_string_are_no_request() {
    let (broker, mut bystander) = start(|_| {}).await;
    let mut wire = broker.connect().await;
    wire.send(&commit_request(&"x".repeat(0x8000), 1), 8).await;
    wire.assert_closed().await;
    // It would be cut in what is written down, and could not be listed to clients of older versions.
    assert!(groups(&mut bystander, 0).await.is_empty());
}

#[tokio::test]
async fn a_group_without_a_name_is_refused_for_members() {
    let (_broker, mut wire) = start(|_| {}).await;
    let refused = join(&mut wire, "", Bytes::new()).await;
    assert_eq!(name(refused.error_code), "INVALID_GROUP_ID");
    assert_eq!(
        name(
            wire.call(&sync_request("", &refused, &[]), 3)
                .await
                .error_code
        ),
        "INVALID_GROUP_ID"
    );
    assert!(groups(&mut wire, 4).await.is_empty());
}

fn sync_request(group: &str, joined: &JoinGroupResponse, part: &'static [u8]) -> SyncGroupRequest {
    SyncGroupRequest {
        group_id: group.into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        group_instance_id: None,
        assignments: vec![SyncGroupRequestAssignment {
            member_id: joined.member_id.clone(),
            assignment: Bytes::from_static(part),
        }],
        ..SyncGroupRequest::default()
    }
}

#[tokio::test]
async fn subscriptions_that_lie_about_their_lengths_are_kept_and_never_followed() {
    let (_broker, mut wire) = start(|_| {}).await;
    for (place, metadata) in [
        // Nothing; a version and no more; 2^31 - 1 topics; a count below zero; a name beyond the end, and one of
        // negative length; one that is not UTF-8; noise.
        &b""[..],
        b"\0\x01",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\xff\xff\xff\xf0",
        b"\0\0\0\0\0\x01\x7f\xffo",
        b"\0\0\0\0\0\x01\xff\xf0",
        b"\0\0\0\0\0\x01\0\x02\xff\xfe",
        &[0xaa; 100],
    ]
    .into_iter()
    .enumerate()
    {
        let group = format!("group-{place}");
        let joined = join(&mut wire, &group, Bytes::from_static(metadata)).await;
        assert_eq!(joined.error_code, 0);
        assert_eq!(joined.members[0].metadata, metadata);
        let synced = wire.call(&sync_request(&group, &joined, metadata), 3).await;
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, metadata));
        // Which topics its members read must be known before offsets go.
        let request = OffsetDeleteRequest {
            group_id: group.as_str().into(),
            topics: vec![OffsetDeleteRequestTopic {
                name: "orders".into(),
                partitions: vec![OffsetDeleteRequestPartition::default()],
            }],
        };
        let refused = wire.call(&request, 0).await;
        assert_eq!(name(refused.error_code), "NON_EMPTY_GROUP", "{metadata:?}");
    }
    assert_eq!(groups(&mut wire, 4).await.len(), 8);
}

/// A `JoinGroup` of version 3 up to its protocols, and what follows.
fn raw_join(protocols: &[u8]) -> Vec<u8> {
    let mut body = BytesMut::new();
    body.put_slice(&[0, 11, 0, 3, 0, 0, 0, 7, 0xff, 0xff]);
    body.put_slice(b"\0\x01g");
    body.put_i32(10_000);
    body.put_i32(10_000);
    body.put_slice(b"\0\0\0\x08consumer");
    body.put_slice(protocols);
    let mut frame = Vec::from(u32::try_from(body.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(&body);
    frame
}

#[tokio::test]
async fn joins_that_lie_about_their_lengths_close_their_connection_only() {
    let (broker, mut bystander) = start(|_| {}).await;
    for (what, protocols) in [
        (
            "as many protocols as there can be",
            &b"\x7f\xff\xff\xff"[..],
        ),
        ("protocols below zero", b"\xff\xff\xff\xf0"),
        ("a protocol that is missing", b"\0\0\0\x02\0\x01r\0\0\0\0"),
        ("a name beyond the frame", b"\0\0\0\x01\x7f\xffr"),
        (
            "metadata beyond the frame",
            b"\0\0\0\x01\0\x01r\x7f\xff\xff\xff",
        ),
        (
            "metadata of negative length",
            b"\0\0\0\x01\0\x01r\xff\xff\xff\xf0",
        ),
        (
            "metadata that is null",
            b"\0\0\0\x01\0\x01r\xff\xff\xff\xff",
        ),
    ] {
        let mut wire = broker.connect().await;
        wire.raw(&raw_join(protocols)).await;
        wire.assert_closed().await;
        assert!(groups(&mut bystander, 4).await.is_empty(), "after {what}");
    }
    // The same request without a lie.
    let mut wire = broker.connect().await;
    wire.raw(&raw_join(b"\0\0\0\x01\0\x01r\0\0\0\x01m")).await;
    assert_eq!(wire.receive::<JoinGroupRequest>(3).await.1.error_code, 0);
}

#[tokio::test]
async fn a_member_brings_no_more_than_a_mebibyte() {
    assert_eq!(GroupConfig::default().max_member_bytes.as_u64(), 1 << 20);
    let (_broker, mut wire) = start(|_| {}).await;
    let name_len = "range".len();
    let most = Bytes::from(vec![1; (1 << 20) - name_len]);
    let above = Bytes::from(vec![1; (1 << 20) - name_len + 1]);
    let refused = join(&mut wire, "large", above).await;
    assert_eq!(name(refused.error_code), "INVALID_REQUEST");
    assert!(groups(&mut wire, 4).await.is_empty());
    // The group would not fit a record.
    let refused = join(&mut wire, "large", most).await;
    assert_eq!(name(refused.error_code), "GROUP_MAX_SIZE_REACHED");
}

#[tokio::test]
async fn an_assignment_that_fits_no_record_is_refused_and_the_group_goes_on() {
    let (broker, mut wire) = start(|_| {}).await;
    let large = Bytes::from(vec![1; (1 << 20) - 500]);
    let joined = join(&mut wire, "large", large).await;
    assert_eq!(name(joined.error_code), "NONE");
    let sync = |joined: &JoinGroupResponse, part| sync_request("large", joined, part);
    let synced = wire.call(&sync(&joined, &[2; 1_000]), 3).await;
    assert_eq!(name(synced.error_code), "UNKNOWN_SERVER_ERROR");
    // Another with as much has no place beside it.
    let mut other = broker.connect().await;
    let refused = join(&mut other, "large", Bytes::from(vec![1; 1_000])).await;
    assert_eq!(name(refused.error_code), "GROUP_MAX_SIZE_REACHED");
    let smaller = JoinGroupRequest {
        member_id: joined.member_id.clone(),
        ..join_request("large", Bytes::from(vec![1; 1_000]))
    };
    let joined = wire.call(&smaller, 3).await;
    assert_eq!((name(joined.error_code), joined.generation_id), ("NONE", 2));
    let synced = wire.call(&sync(&joined, &[2; 1_000]), 3).await;
    assert_eq!(name(synced.error_code), "NONE");
    assert_eq!(synced.assignment.len(), 1_000);
}

#[tokio::test]
async fn a_group_above_the_limit_is_refused_until_another_goes() {
    assert_eq!(GroupConfig::default().max_groups, 100_000);
    let (_broker, mut wire) = start(|groups| groups.max_groups = 3).await;
    for group in ["a", "b", "c"] {
        assert_eq!(commit(&mut wire, group, 1).await, "NONE");
    }
    assert_eq!(commit(&mut wire, "d", 1).await, "POLICY_VIOLATION");
    let refused = join(&mut wire, "d", Bytes::new()).await;
    assert_eq!(name(refused.error_code), "POLICY_VIOLATION");
    assert_eq!(commit(&mut wire, "b", 2).await, "NONE");
    let request = DeleteGroupsRequest {
        groups_names: vec!["a".into()],
    };
    assert_eq!(wire.call(&request, 2).await.results[0].error_code, 0);
    assert_eq!(join(&mut wire, "d", Bytes::new()).await.error_code, 0);
}
