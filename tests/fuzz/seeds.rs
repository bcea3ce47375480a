//! Writes the inputs that fuzzing starts from: `cargo run --bin seeds` in `tests/fuzz`, into `corpus`.

use std::fs;
use std::io;
use std::path::Path;

use broker_protocol::ByteString;
use broker_protocol::frame::{PREFIX_LEN, encode_request};
use broker_protocol::messages::create_topics::CreatableTopic;
use broker_protocol::messages::fetch::{FetchPartition, FetchTopic};
use broker_protocol::messages::join_group::JoinGroupRequestProtocol;
use broker_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use broker_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use broker_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use broker_protocol::messages::*;
use broker_protocol::record::{BatchBuilder, Compression};
use bytes::{Bytes, BytesMut};

const CODECS: [Compression; 5] = [
    Compression::None,
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];

fn batch(codec: Compression, producer: i64) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    if producer >= 0 {
        builder = builder.with_producer(producer, 0, 0);
    }
    for timestamp in 0..3 {
        let header = ("h", Some(&b"x"[..]));
        builder
            .push(1_000 + timestamp, Some(b"k"), Some(b"value"), &[header])
            .expect("a record");
    }
    builder.build().expect("a batch")
}

/// A frame behind its length, as the target `requests` takes it.
fn framed<R: Request>(request: &R, version: i16) -> Vec<u8> {
    let mut out = BytesMut::new();
    encode_request(&mut out, request, version, 7, Some(&"c".into())).expect("a request");
    let frame = &out[PREFIX_LEN..];
    let length = u16::try_from(frame.len()).expect("a short request");
    [&length.to_be_bytes()[..], frame].concat()
}

/// A message as the target `messages` takes it.
fn message<M: Message>(message: &M, version: i16) -> Option<(String, Vec<u8>)> {
    let mut out = BytesMut::new();
    message.encode(&mut out, version).ok()?;
    let mut apis = TABLE.iter();
    let api = apis.position(|row| row.0.code() == M::API_KEY)?;
    let start = [api, usize::try_from(version - M::MIN_VERSION).ok()?];
    let start = start.map(|byte| u8::try_from(byte).unwrap_or(u8::MAX));
    Some((
        format!("{}-{version}", M::NAME),
        [&start[..], &out].concat(),
    ))
}

fn save(target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)
}

/// Defaults of each request in its lowest and highest version.
macro_rules! defaults {
    ($($request:ident)+) => {{
        let mut all = Vec::new();
        let mut frames = Vec::new();
        $(
            for version in [$request::MIN_VERSION, $request::MAX_VERSION] {
                all.extend(message(&$request::default(), version));
                type Answer = <$request as Request>::Response;
                all.extend(message(&Answer::default(), version));
                let mut out = BytesMut::new();
                if encode_request(&mut out, &$request::default(), version, 7, None).is_ok() {
                    frames.push(($request::NAME, framed(&$request::default(), version)));
                }
            }
        )+
        (all, frames)
    }};
}

fn main() -> io::Result<()> {
    let (all, frames) = defaults! {
        ListOffsetsRequest MetadataRequest OffsetCommitRequest OffsetFetchRequest FindCoordinatorRequest
        JoinGroupRequest HeartbeatRequest LeaveGroupRequest SyncGroupRequest DescribeGroupsRequest ListGroupsRequest
        SaslHandshakeRequest ApiVersionsRequest CreateTopicsRequest DeleteTopicsRequest DeleteRecordsRequest
        InitProducerIdRequest OffsetForLeaderEpochRequest DescribeConfigsRequest AlterConfigsRequest
        DescribeLogDirsRequest SaslAuthenticateRequest CreatePartitionsRequest DeleteGroupsRequest
        ElectLeadersRequest IncrementalAlterConfigsRequest AlterPartitionReassignmentsRequest
        ListPartitionReassignmentsRequest OffsetDeleteRequest DescribeClusterRequest DescribeProducersRequest
        DescribeTopicPartitionsRequest
    };
    for (name, bytes) in &all {
        save("messages", name, bytes)?;
    }
    for (place, (name, bytes)) in frames.iter().enumerate() {
        save("requests", &format!("{name}-{place}"), bytes)?;
    }
    save("requests", "records", &records_frames())?;
    save("requests", "group", &group_frames())?;
    for (place, codec) in CODECS.into_iter().enumerate() {
        let bytes = batch(codec, 5);
        save(
            "batches",
            &format!("whole-{place}"),
            &[&[0], &bytes[..]].concat(),
        )?;
        let shape = 0x80 | 3 << 3 | u8::try_from(place).unwrap_or(0);
        save(
            "batches",
            &format!("payload-{place}"),
            &[&[shape], &bytes[61..]].concat(),
        )?;
    }
    for file in 0..12 {
        for kind in [0, 2, 3, 5, 128, 132] {
            let name = format!("file-{file}-{kind}");
            save("logs", &name, &[file % 2, file, kind, 0, 70, 2, 1, 255])?;
        }
    }
    // Two members join, share and leave; see `Bench::step` of broker/server/src/group/fuzzing.rs.
    let join = [0, 0, 1, 0, 0, 0, 4, 9, 2, 0, 3, 1, 2, 0, 0];
    let again = [0, 2, 1, 0, 0, 0, 4, 9, 2, 0, 3, 1, 2, 0, 0];
    let sync = [3, 1, 2, 2, 0, 0, 2, 2, 7, 7];
    let life = [
        &[0][..],
        &join,
        &again,
        &sync,
        &join,
        &again,
        &sync,
        &[6, 2, 0, 9, 12, 0],
    ]
    .concat();
    save("groups", "life", &life)
}

/// A topic is made, filled in every codec, read and asked for.
fn records_frames() -> Vec<u8> {
    let topic = CreatableTopic {
        name: "orders".into(),
        num_partitions: 1,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    let create = CreateTopicsRequest {
        topics: vec![topic],
        ..CreateTopicsRequest::default()
    };
    let mut frames = framed(&create, 7);
    for codec in CODECS {
        let data = PartitionProduceData {
            index: 0,
            records: Some(batch(codec, -1)),
        };
        let produce = ProduceRequest {
            transactional_id: None,
            acks: 1,
            timeout_ms: 1_000,
            topic_data: vec![TopicProduceData {
                name: "orders".into(),
                partition_data: vec![data],
                ..TopicProduceData::default()
            }],
        };
        frames.extend(framed(&produce, 9));
    }
    let partition = FetchPartition {
        partition_max_bytes: 1 << 20,
        ..FetchPartition::default()
    };
    let fetch = FetchRequest {
        max_wait_ms: 100,
        max_bytes: 1 << 20,
        topics: vec![FetchTopic {
            topic: "orders".into(),
            partitions: vec![partition],
            ..FetchTopic::default()
        }],
        ..FetchRequest::default()
    };
    frames.extend(framed(&fetch, 12));
    let offsets = ListOffsetsRequest {
        replica_id: -1,
        topics: vec![ListOffsetsTopic {
            name: "orders".into(),
            partitions: vec![ListOffsetsPartition {
                timestamp: 1_001,
                ..ListOffsetsPartition::default()
            }],
        }],
        ..ListOffsetsRequest::default()
    };
    frames.extend(framed(&offsets, 7));
    frames
}

/// A member joins, shares, commits and leaves.
fn group_frames() -> Vec<u8> {
    let group: ByteString = "g".into();
    let join = JoinGroupRequest {
        group_id: group.clone(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        group_instance_id: None,
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol {
            name: "range".into(),
            metadata: Bytes::from_static(b"\0\0\0\0\0\x01\0\x01t\xff\xff\xff\xff"),
        }],
        ..JoinGroupRequest::default()
    };
    let sync = SyncGroupRequest {
        group_id: group.clone(),
        generation_id: 1,
        group_instance_id: None,
        ..SyncGroupRequest::default()
    };
    let commit = OffsetCommitRequest {
        group_id: group,
        generation_id_or_member_epoch: -1,
        group_instance_id: None,
        topics: vec![OffsetCommitRequestTopic {
            name: "t".into(),
            partitions: vec![OffsetCommitRequestPartition {
                committed_offset: 5,
                committed_metadata: None,
                ..OffsetCommitRequestPartition::default()
            }],
            ..OffsetCommitRequestTopic::default()
        }],
        ..OffsetCommitRequest::default()
    };
    [framed(&join, 3), framed(&sync, 3), framed(&commit, 8)].concat()
}
