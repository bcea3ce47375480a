//! Every message, in every version, against the crate `kafka-protocol`; and hostile bytes into every decoder.
//!
//! The tables generate values ([`super::sample`]). A value is encoded by us, decoded by them, and must print the
//! same (so every field has the same name, place and value), encode to the same bytes, and come back to us.

use std::collections::BTreeSet;
use std::fmt::Debug;

use bytes::{BufMut, Bytes, BytesMut};
use bytestring::ByteString;
use kafka_protocol::protocol::{Decodable, Encodable, Message as TheirMessage};
use proptest::prelude::*;

use super::sample::{Sample, Sampler, Shape};
use super::wire::{Form, Wire};
use super::{Hole, MESSAGE_NAMES, Message, Payload, TABLE};
use crate::primitives::{DecodeFault, EncodeFault};
use crate::testing::allocated;
use crate::{frame, messages};

trait Ours: Message + Wire + Sample {}
impl<M: Message + Wire + Sample> Ours for M {}

trait Theirs: Encodable + Decodable + TheirMessage + Default + Debug + Clone {
    fn with_unknown_tag(self) -> Self;
}

const SHAPES: [Shape; 5] = [
    Shape::Default,
    Shape::Null,
    Shape::Empty,
    Shape::Filled,
    Shape::Mixed,
];

/// Runs a generic function for each message, beside theirs. What is missing here fails
/// [`every_message_is_compared`].
macro_rules! for_each_message {
    ($($name:ident)+; without_tags: $($untagged:ident)+) => {
        const COMPARED: &[&str] = &[$(stringify!($name),)+ $(stringify!($untagged)),+];

        $(
            impl Theirs for kafka_protocol::messages::$name {
                fn with_unknown_tag(self) -> Self {
                    self.with_unknown_tagged_field(99, Bytes::from_static(b"unknown"))
                        .with_unknown_tagged_field(1000, Bytes::new())
                }
            }
        )+

        $(
            impl Theirs for kafka_protocol::messages::$untagged {
                fn with_unknown_tag(self) -> Self {
                    unreachable!("no version of this message has tagged fields")
                }
            }
        )+

        fn for_each_message(visitor: &mut impl Visitor) {
            $(visitor.visit::<messages::$name, kafka_protocol::messages::$name>();)+
            $(visitor.visit::<messages::$untagged, kafka_protocol::messages::$untagged>();)+
        }
    };
}

for_each_message! {
    ProduceRequest ProduceResponse
    FetchRequest FetchResponse
    ListOffsetsRequest ListOffsetsResponse
    MetadataRequest MetadataResponse
    OffsetCommitRequest OffsetCommitResponse
    OffsetFetchRequest OffsetFetchResponse
    FindCoordinatorRequest FindCoordinatorResponse
    JoinGroupRequest JoinGroupResponse
    HeartbeatRequest HeartbeatResponse
    LeaveGroupRequest LeaveGroupResponse
    SyncGroupRequest SyncGroupResponse
    DescribeGroupsRequest DescribeGroupsResponse
    ListGroupsRequest ListGroupsResponse
    ApiVersionsRequest ApiVersionsResponse
    CreateTopicsRequest CreateTopicsResponse
    DeleteTopicsRequest DeleteTopicsResponse
    DeleteRecordsRequest DeleteRecordsResponse
    InitProducerIdRequest InitProducerIdResponse
    OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse
    DescribeConfigsRequest DescribeConfigsResponse
    AlterConfigsRequest AlterConfigsResponse
    DescribeLogDirsRequest DescribeLogDirsResponse
    SaslAuthenticateRequest SaslAuthenticateResponse
    CreatePartitionsRequest CreatePartitionsResponse
    DeleteGroupsRequest DeleteGroupsResponse
    ElectLeadersRequest ElectLeadersResponse
    IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse
    AlterPartitionReassignmentsRequest AlterPartitionReassignmentsResponse
    ListPartitionReassignmentsRequest ListPartitionReassignmentsResponse
    DescribeClusterRequest DescribeClusterResponse
    DescribeProducersRequest DescribeProducersResponse
    DescribeTopicPartitionsRequest DescribeTopicPartitionsResponse;
    without_tags:
    SaslHandshakeRequest SaslHandshakeResponse
    OffsetDeleteRequest OffsetDeleteResponse
}

trait Visitor {
    fn visit<O: Ours, T: Theirs>(&mut self);
}

fn versions<O: Message>() -> std::ops::RangeInclusive<i16> {
    O::MIN_VERSION..=O::MAX_VERSION
}

fn sample<O: Ours>(shape: Shape, seed: u64, version: i16) -> O {
    O::sample(
        &mut Sampler::new(shape, seed),
        Form::of_version(version, O::flexible(version)),
    )
}

fn encode<O: Message>(message: &O, version: i16) -> Bytes {
    let mut out = BytesMut::new();
    message
        .encode(&mut out, version)
        .unwrap_or_else(|error| panic!("{version}: {error}"));
    out.freeze()
}

fn decode_whole<O: Message>(bytes: &Bytes, version: i16) -> O {
    let mut rest = bytes.clone();
    let message =
        O::decode(&mut rest, version).unwrap_or_else(|error| panic!("{version}: {error}"));
    assert!(
        rest.is_empty(),
        "{} {version} leaves {} bytes",
        O::NAME,
        rest.len()
    );
    message
}

/// Fields they have and we do not: of versions above ours.
const NEWER_FIELDS: &[(&str, &str)] = &[
    ("InitProducerIdRequest", "enable_2_pc"),
    ("InitProducerIdRequest", "keep_prepared_txn"),
    ("InitProducerIdResponse", "ongoing_txn_producer_id"),
    ("InitProducerIdResponse", "ongoing_txn_producer_epoch"),
    ("OffsetFetchRequestTopics", "topic_id"),
    ("OffsetFetchResponseTopics", "topic_id"),
    ("OffsetCommitRequestTopic", "topic_id"),
    ("OffsetCommitResponseTopic", "topic_id"),
];

/// Their `Debug` output without what we do not have: unknown tagged fields, and newer fields.
fn without_extras(debug: &str) -> String {
    let mut out = String::new();
    let mut structs: Vec<&str> = Vec::new();
    let mut skipping: Option<usize> = None;
    for line in debug.lines() {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim();
        if let Some(level) = skipping {
            if indent == level {
                skipping = None;
            }
            continue;
        }
        let (name, value) = text.split_once(": ").unwrap_or(("", text));
        let extra = name == "unknown_tagged_fields"
            || structs
                .last()
                .is_some_and(|of| NEWER_FIELDS.contains(&(of, name)));
        if extra {
            if value.ends_with(['{', '[', '(']) {
                skipping = Some(indent);
            }
            continue;
        }
        if let Some(of) = value.strip_suffix(" {") {
            structs.push(of);
        } else if text.starts_with('}') {
            structs.pop();
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

struct Compare {
    values: usize,
}

impl Visitor for Compare {
    fn visit<O: Ours, T: Theirs>(&mut self) {
        for version in versions::<O>() {
            assert!(
                T::VERSIONS.min <= version && version <= T::VERSIONS.max,
                "{}",
                O::NAME
            );
            for shape in SHAPES {
                for seed in 0..if shape == Shape::Mixed { 40 } else { 3 } {
                    compare::<O, T>(&sample(shape, seed, version), version);
                    self.values += 1;
                }
            }
        }
    }
}

fn compare<O: Ours, T: Theirs>(ours: &O, version: i16) {
    let context = || format!("{} version {version}: {ours:#?}", O::NAME);
    let bytes = encode(ours, version);

    let mut rest = bytes.clone();
    let theirs = T::decode(&mut rest, version).unwrap_or_else(|e| panic!("{e}: {}", context()));
    assert!(
        rest.is_empty(),
        "they leave {} bytes of {}",
        rest.len(),
        context()
    );
    assert_eq!(
        without_extras(&format!("{theirs:#?}")),
        format!("{ours:#?}\n"),
        "{version}"
    );

    let mut their_bytes = BytesMut::new();
    theirs.encode(&mut their_bytes, version).unwrap();
    assert_eq!(bytes, their_bytes, "{}", context());
    assert_eq!(
        &decode_whole::<O>(&their_bytes.freeze(), version),
        ours,
        "{version}"
    );
}

#[test]
fn every_message_agrees_byte_for_byte_with_the_reference_crate() {
    let mut compare = Compare { values: 0 };
    for_each_message(&mut compare);
    assert!(compare.values > 34 * 52, "{}", compare.values);
}

#[test]
fn every_message_is_compared() {
    let sorted = |names: &[&'static str]| BTreeSet::from_iter(names.iter().copied());
    assert_eq!(sorted(COMPARED), sorted(MESSAGE_NAMES));
    assert_eq!(COMPARED.len(), 2 * TABLE.len());
}

struct CompareDefaults;

impl Visitor for CompareDefaults {
    fn visit<O: Ours, T: Theirs>(&mut self) {
        for version in versions::<O>() {
            let mut expected = BytesMut::new();
            T::default().encode(&mut expected, version).unwrap();
            assert_eq!(
                encode(&O::default(), version),
                expected,
                "{} {version}",
                O::NAME
            );
        }
        let theirs = without_extras(&format!("{:#?}", T::default()));
        assert_eq!(theirs, format!("{:#?}\n", O::default()));
    }
}

#[test]
fn defaults_are_kafkas() {
    for_each_message(&mut CompareDefaults);
}

/// Tagged fields that Java refuses to drop (`MessageDataGenerator` checks all that are not ignorable), and so do
/// we, while the reference crate drops them.
const DROPPED_BY_THEM: &[(&str, &str)] = &[
    ("PartitionProduceResponse", "current_leader"),
    ("ProduceResponse", "node_endpoints"),
    ("FetchRequest", "replica_state"),
    ("PartitionData", "diverging_epoch"),
    ("FetchResponse", "node_endpoints"),
];

/// Takes a value that fills the fields of one version into another version.
struct CompareAcrossVersions {
    encoded: usize,
    refused: usize,
}

impl Visitor for CompareAcrossVersions {
    fn visit<O: Ours, T: Theirs>(&mut self) {
        for from in versions::<O>() {
            let ours: O = sample(Shape::Filled, 1, from);
            let theirs = T::decode(&mut encode(&ours, from), from).unwrap();
            for to in versions::<O>() {
                let mut bytes = BytesMut::new();
                let result = ours.encode(&mut bytes, to);
                let mut their_bytes = BytesMut::new();
                let their_result = theirs.encode(&mut their_bytes, to);
                let context = || format!("{} {from} to {to}: {result:?} {their_result:?}", O::NAME);
                if let Err(error) = &result
                    && DROPPED_BY_THEM.contains(&(error.message(), error.field()))
                {
                    assert!(matches!(
                        error.fault(),
                        EncodeFault::FieldNotInVersion { .. }
                    ));
                    self.refused += 1;
                    continue;
                }
                assert_eq!(result.is_ok(), their_result.is_ok(), "{}", context());
                if result.is_ok() {
                    assert_eq!(bytes, their_bytes, "{}", context());
                    self.encoded += 1;
                } else {
                    self.refused += 1;
                }
            }
        }
    }
}

#[test]
fn what_a_version_cannot_express_is_refused_as_in_the_reference_crate() {
    let mut compare = CompareAcrossVersions {
        encoded: 0,
        refused: 0,
    };
    for_each_message(&mut compare);
    assert!(
        compare.encoded > 500 && compare.refused > 300,
        "{} {}",
        compare.encoded,
        compare.refused
    );
}

struct SkipUnknownTags;

impl Visitor for SkipUnknownTags {
    fn visit<O: Ours, T: Theirs>(&mut self) {
        for version in versions::<O>().filter(|&version| O::flexible(version)) {
            let mut bytes = BytesMut::new();
            T::default()
                .with_unknown_tag()
                .encode(&mut bytes, version)
                .unwrap();
            assert!(bytes.len() > encode(&O::default(), version).len() + 7);
            assert_eq!(decode_whole::<O>(&bytes.freeze(), version), O::default());
        }
    }
}

#[test]
fn unknown_tagged_fields_are_skipped() {
    for_each_message(&mut SkipUnknownTags);
}

#[test]
fn unknown_tagged_fields_of_elements_are_skipped() {
    use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};

    let partition = FetchPartition::default()
        .with_partition(3)
        .with_fetch_offset(77);
    let plain = FetchTopic::default().with_partitions(vec![partition.clone(), partition.clone()]);
    let unknown = Bytes::from_static(b"?");
    let tagged = plain
        .clone()
        .with_partitions(vec![
            partition
                .clone()
                .with_unknown_tagged_field(7, unknown.clone()),
            partition.with_unknown_tagged_field(8, unknown.clone()),
        ])
        .with_unknown_tagged_field(9, unknown);
    let decode = |topic| {
        let request = kafka_protocol::messages::FetchRequest::default().with_topics(vec![topic]);
        let mut bytes = BytesMut::new();
        request.encode(&mut bytes, 13).unwrap();
        decode_whole::<messages::FetchRequest>(&bytes.freeze(), 13)
    };
    assert_eq!(decode(tagged), decode(plain));
}

#[test]
fn tagged_field_with_bytes_left_over_is_refused() {
    let mut bytes = BytesMut::from(&encode(&messages::ApiVersionsResponse::default(), 3)[..]);
    assert_eq!(bytes.split_off(bytes.len() - 1), [0][..]);
    // One tagged field: tag 1 (int64) of nine bytes.
    bytes.put_slice(&[1, 1, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0]);
    let error = messages::ApiVersionsResponse::decode(&mut bytes.freeze(), 3).unwrap_err();
    assert_eq!(error.fault(), &DecodeFault::TaggedFieldSize { left: 1 });
    assert_eq!(error.field(), "finalized_features_epoch");
}

#[test]
fn null_is_refused_where_the_version_does_not_allow_it() {
    let request = messages::MetadataRequest {
        topics: None,
        ..Default::default()
    };
    let error = request.encode(&mut BytesMut::new(), 0).unwrap_err();
    assert_eq!(error.fault(), &EncodeFault::Null { version: 0 });
    assert_eq!(
        error.to_string(),
        "cannot encode MetadataRequest.topics: null is not allowed in version 0"
    );

    let mut bytes = Bytes::from_static(&[0xff; 4]);
    let error = messages::MetadataRequest::decode(&mut bytes.clone(), 0).unwrap_err();
    assert_eq!(error.fault(), &DecodeFault::Null);
    assert_eq!(
        error.to_string(),
        "cannot decode MetadataRequest.topics: null is not allowed here"
    );
    assert_eq!(
        messages::MetadataRequest::decode(&mut bytes, 1),
        Ok(request)
    );
}

#[test]
fn versions_outside_the_table_are_refused() {
    let error = messages::FetchRequest::default()
        .encode(&mut BytesMut::new(), 19)
        .unwrap_err();
    assert_eq!(
        error.fault(),
        &EncodeFault::UnsupportedVersion {
            version: 19,
            min: 4,
            max: 18
        }
    );
    for version in [-1, 3, 19, i16::MAX, i16::MIN] {
        let error = messages::FetchRequest::decode(&mut Bytes::new(), version).unwrap_err();
        assert_eq!(
            error.fault(),
            &DecodeFault::UnsupportedVersion {
                version,
                min: 4,
                max: 18
            }
        );
    }
}

#[test]
fn errors_name_the_innermost_field() {
    let request = messages::ProduceRequest {
        topic_data: vec![messages::produce::TopicProduceData {
            name: ByteString::from("x".repeat(40_000)),
            ..Default::default()
        }],
        ..Default::default()
    };
    let error = request.encode(&mut BytesMut::new(), 3).unwrap_err();
    assert_eq!(
        (error.message(), error.field()),
        ("TopicProduceData", "name")
    );

    let bytes = encode(&request, 9);
    let error = messages::ProduceRequest::decode(&mut bytes.slice(..100), 9).unwrap_err();
    assert_eq!(
        (error.message(), error.field()),
        ("TopicProduceData", "name")
    );
}

#[test]
fn records_are_slices_of_the_request() {
    let request = messages::ProduceRequest {
        topic_data: vec![messages::produce::TopicProduceData {
            partition_data: vec![messages::produce::PartitionProduceData {
                index: 0,
                records: Some(Bytes::from(vec![7; 1_000_000])),
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let bytes = encode(&request, 9);
    let (decoded, allocated) = allocated(|| decode_whole::<messages::ProduceRequest>(&bytes, 9));
    assert_eq!(decoded, request);
    assert!(allocated.peak < 1000, "{allocated:?}");
}

#[test]
fn a_frame_with_holes_is_the_whole_one_once_they_are_filled() {
    let response = |records: &[Payload]| messages::FetchResponse {
        responses: vec![messages::fetch::FetchableTopicResponse {
            topic: "t".into(),
            partitions: (0..)
                .zip(records)
                .map(
                    |(partition_index, records)| messages::fetch::PartitionData {
                        partition_index,
                        records: Some(records.clone()),
                        ..Default::default()
                    },
                )
                .collect(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let bytes = [b"few".to_vec(), vec![7; 300], vec![8; 5], vec![9; 70_000]];
    let here = bytes.clone().map(|bytes| Payload::from(Bytes::from(bytes)));
    let mut apart = here.clone();
    apart[1] = Payload::Apart(Hole::new(300, 1));
    apart[3] = Payload::Apart(Hole::new(70_000, 3));
    for version in [4, 11, 12, 18] {
        let mut whole = BytesMut::new();
        frame::encode_response(&mut whole, &response(&here), version, 5).unwrap();
        let mut parted = BytesMut::new();
        let response = response(&apart);
        frame::encode_response(&mut parted, &response, version, 5).unwrap();
        frame::lengthen(&mut parted, 70_300).unwrap();
        let mut filled = Vec::new();
        let mut from = 0;
        for partition in &response.responses[0].partitions {
            let Some(hole) = partition.records.as_ref().unwrap().hole() else {
                continue;
            };
            let position = hole.position().unwrap();
            filled.extend_from_slice(&parted[from..position]);
            filled.extend_from_slice(&bytes[hole.number()]);
            from = position;
        }
        filled.extend_from_slice(&parted[from..]);
        assert!(filled == whole, "version {version}");
    }
}

#[test]
fn table_is_in_order_and_agrees_with_the_messages() {
    assert!(TABLE.is_sorted_by_key(|&(api, ..)| api.code()));
    for &(api, min, max, flexible) in TABLE {
        assert_eq!(messages::ApiKey::from_i16(api.code()), Some(api));
        assert_eq!(api.first_flexible_version(), flexible);
        let theirs = kafka_protocol::messages::ApiKey::try_from(api.code()).unwrap();
        assert_eq!(format!("{theirs:?}"), api.name());
        assert!(min <= max && flexible <= max + 1);
    }
    assert_eq!(messages::ApiKey::from_i16(7), None);
}

/// Most bytes a decoder may hold for each byte of input: the ratio of a struct in memory to its shortest
/// encoding, doubled by a growing vector. A fixed part covers errors and empty vectors.
const MAX_RATIO: usize = 150;
const MAX_FIXED: usize = 1024;

struct Hostile<'a> {
    bytes: &'a Bytes,
}

impl Visitor for Hostile<'_> {
    fn visit<O: Ours, T: Theirs>(&mut self) {
        for version in versions::<O>() {
            check_hostile::<O>(self.bytes, version);
        }
    }
}

/// Decodes anything; what is accepted must survive a round trip.
fn check_hostile<O: Ours>(bytes: &Bytes, version: i16) {
    let mut rest = bytes.clone();
    let (result, allocated) = allocated(|| O::decode(&mut rest, version));
    let allowed = MAX_RATIO * bytes.len() + MAX_FIXED;
    assert!(
        allocated.peak <= allowed,
        "{} {version}: {allocated:?} of {allowed}",
        O::NAME
    );
    if let Ok(message) = result {
        assert_eq!(
            decode_whole::<O>(&encode(&message, version), version),
            message
        );
    }
}

struct Mutated {
    seed: u64,
    changes: Vec<(prop::sample::Index, u8)>,
    cut: Option<prop::sample::Index>,
}

impl Visitor for Mutated {
    fn visit<O: Ours, T: Theirs>(&mut self) {
        for version in versions::<O>() {
            let mut bytes =
                encode(&sample::<O>(Shape::Mixed, self.seed, version), version).to_vec();
            if bytes.is_empty() {
                continue;
            }
            for (index, byte) in &self.changes {
                let at = index.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Some(cut) = self.cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            check_hostile::<O>(&bytes.into(), version);
        }
    }
}

fn hostile_byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        any::<u8>(),
        Just(0xff),
        Just(0x7f),
        Just(0x80),
        Just(0),
        Just(1)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn random_bytes_never_panic_or_allocate_wildly(
        bytes in prop::collection::vec(hostile_byte(), 0..400),
    ) {
        for_each_message(&mut Hostile { bytes: &bytes.into() });
    }

    #[test]
    fn mutated_messages_never_panic_or_allocate_wildly(
        seed in 1u64..,
        changes in prop::collection::vec((any::<prop::sample::Index>(), hostile_byte()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        for_each_message(&mut Mutated { seed, changes, cut });
    }
}

#[test]
fn announced_counts_are_checked_before_anything_is_allocated() {
    // Four bytes of a metadata request that once made a codec ask for 19 GB.
    for version in versions::<messages::MetadataRequest>() {
        let count: &[u8] = if version >= 9 {
            &[0xff, 0xff, 0xff, 0xff, 0x07]
        } else {
            &[0x7f; 4]
        };
        let bytes = Bytes::from([count, &[0; 100]].concat());
        let (result, allocated) =
            allocated(|| messages::MetadataRequest::decode(&mut bytes.clone(), version));
        assert!(matches!(
            result.unwrap_err().fault(),
            DecodeFault::TooManyElements { .. }
        ));
        assert!(allocated.peak < 200, "{allocated:?}");
    }
}

#[test]
fn error_codes_are_found_at_every_depth() {
    let response = messages::ProduceResponse {
        responses: vec![messages::produce::TopicProduceResponse {
            partition_responses: [3, 0, 56]
                .map(|error_code| messages::produce::PartitionProduceResponse {
                    error_code,
                    ..Default::default()
                })
                .to_vec(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut found = Vec::new();
    response.error_codes(&mut |code| found.push(code));
    assert_eq!(found, [3, 0, 56]);
    found.clear();
    let response = messages::HeartbeatResponse {
        error_code: 27,
        ..Default::default()
    };
    response.error_codes(&mut |code| found.push(code));
    assert_eq!(found, [27]);
}
