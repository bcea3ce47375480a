//! The table of versions: what `ApiVersions` offers is what is answered, each version in its own form.

use std::collections::BTreeMap;

use broker_protocol::{
    frame,
    messages::{
        ApiVersionsRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest,
        DeleteTopicsRequest, DescribeClusterRequest, DescribeConfigsRequest,
        DescribeLogDirsRequest, FetchRequest, InitProducerIdRequest, ListOffsetsRequest, Message,
        MetadataRequest, OffsetForLeaderEpochRequest, ProduceRequest, Request,
    },
};

use crate::support::{TestBroker, Wire};

/// Sends the default request in each version offered, and reads the answer in that version.
async fn answers<R: Request>(wire: &mut Wire, offered: &mut BTreeMap<i16, (i16, i16)>) {
    let (min, max) = offered
        .remove(&R::API_KEY)
        .unwrap_or_else(|| panic!("{} not offered", R::NAME));
    for version in min.max(R::MIN_VERSION)..=max {
        let sent = wire.send(&R::default(), version).await;
        let answer = frame::decode_response::<R::Response>(wire.frame().await, version);
        let (id, _) =
            answer.unwrap_or_else(|error| panic!("{} version {version}: {error}", R::NAME));
        assert_eq!(id, sent);
    }
}

#[tokio::test]
async fn every_version_offered_is_answered_in_its_own_form() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    let response = wire.call(&ApiVersionsRequest::default(), 0).await;
    let rows = response
        .api_keys
        .iter()
        .map(|row| (row.api_key, (row.min_version, row.max_version)));
    let mut offered: BTreeMap<_, _> = rows.collect();
    // Of these Produce starts below what the codec knows (see the tests of Produce).
    assert_eq!(offered[&0], (0, 12));
    // A default Produce has acks=0 and no partitions: no answer.
    offered.remove(&0);
    assert_eq!(ProduceRequest::API_KEY, 0);
    answers::<FetchRequest>(&mut wire, &mut offered).await;
    answers::<ListOffsetsRequest>(&mut wire, &mut offered).await;
    answers::<MetadataRequest>(&mut wire, &mut offered).await;
    answers::<ApiVersionsRequest>(&mut wire, &mut offered).await;
    answers::<CreateTopicsRequest>(&mut wire, &mut offered).await;
    answers::<DeleteTopicsRequest>(&mut wire, &mut offered).await;
    answers::<DeleteRecordsRequest>(&mut wire, &mut offered).await;
    answers::<InitProducerIdRequest>(&mut wire, &mut offered).await;
    answers::<OffsetForLeaderEpochRequest>(&mut wire, &mut offered).await;
    answers::<DescribeConfigsRequest>(&mut wire, &mut offered).await;
    answers::<DescribeLogDirsRequest>(&mut wire, &mut offered).await;
    answers::<CreatePartitionsRequest>(&mut wire, &mut offered).await;
    answers::<DescribeClusterRequest>(&mut wire, &mut offered).await;
    assert!(offered.is_empty(), "offered and not tried: {offered:?}");
}

#[tokio::test]
async fn produce_is_answered_in_every_version() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    let request = ProduceRequest {
        acks: 1,
        transactional_id: None,
        ..ProduceRequest::default()
    };
    for version in 3..=12 {
        assert!(wire.call(&request, version).await.responses.is_empty());
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
            if row.api_key == ApiVersionsRequest::API_KEY && version > 0 {
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
