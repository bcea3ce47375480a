//! Fetch sessions and topics by id, over sockets.

use broker_protocol::messages::{
    FetchRequest, FetchResponse, MetadataRequest,
    fetch::{FetchPartition, FetchTopic, ForgottenTopic},
    metadata::MetadataRequestTopic,
};
use uuid::Uuid;

use crate::{
    admin::delete_topic,
    support::{
        TestBroker, Wire, batch, fetch_topic, name, only_partition, produce_request, values_of,
    },
};

/// Highest version that names topics by name.
const BY_NAME: i16 = 12;
/// Lowest version that names topics by id.
const BY_ID: i16 = 13;

fn fetch(session_id: i32, session_epoch: i32, topics: Vec<FetchTopic>) -> FetchRequest {
    FetchRequest {
        max_wait_ms: 0,
        min_bytes: 1,
        max_bytes: 50 << 20,
        session_id,
        session_epoch,
        topics,
        ..FetchRequest::default()
    }
}

fn by_id(topic_id: Uuid, from: &[(i32, i64)]) -> FetchTopic {
    FetchTopic {
        topic_id,
        ..fetch_topic("", from)
    }
}

/// Topic (name or nothing), partition, code and number of records of each partition of an answer.
fn shape(response: &FetchResponse) -> Vec<(String, i32, &'static str, usize)> {
    let topics = response.responses.iter().flat_map(|topic| {
        let partitions = topic.partitions.iter();
        partitions.map(|data| (topic.topic.to_string(), data))
    });
    let rows = topics.map(|(topic, data)| {
        let records = values_of(data).len();
        (topic, data.partition_index, name(data.error_code), records)
    });
    rows.collect()
}

async fn topic_id(wire: &mut Wire, topic: &str) -> Uuid {
    let request = MetadataRequest {
        topics: Some(vec![MetadataRequestTopic {
            name: Some(topic.into()),
            ..MetadataRequestTopic::default()
        }]),
        ..MetadataRequest::default()
    };
    wire.call(&request, 10).await.topics[0].topic_id
}

#[tokio::test]
async fn a_session_tells_only_what_is_new_and_serves_in_turns() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("a", 2).await;
    wire.create_topic("b", 1).await;
    let row = |topic: &str, partition, records| (topic.to_owned(), partition, "NONE", records);
    let topics = vec![
        fetch_topic("a", &[(0, 0), (1, 0)]),
        fetch_topic("b", &[(0, 0)]),
    ];
    let opened = wire.call(&fetch(0, 0, topics), BY_NAME).await;
    let id = opened.session_id;
    assert!(id > 0);
    let all = [row("a", 0, 0), row("a", 1, 0), row("b", 0, 0)];
    assert_eq!(shape(&opened), all);

    let nothing = wire.call(&fetch(id, 1, vec![]), BY_NAME).await;
    assert_eq!((nothing.session_id, shape(&nothing)), (id, vec![]));
    for (topic, partition) in [("a", 0), ("a", 0), ("a", 1), ("b", 0)] {
        wire.append(topic, partition, batch(&["x"])).await;
    }
    // Room for one batch: the partitions take turns, also when the first has more.
    let small = |epoch, topics| FetchRequest {
        max_bytes: 1,
        ..fetch(id, epoch, topics)
    };
    // What gives nothing for want of room is told of all the same: its high watermark has moved.
    let first = wire.call(&small(2, vec![]), BY_NAME).await;
    assert_eq!(
        shape(&first),
        [row("a", 0, 1), row("a", 1, 0), row("b", 0, 0)]
    );
    let second = wire
        .call(&small(3, vec![fetch_topic("a", &[(0, 1)])]), BY_NAME)
        .await;
    assert_eq!(shape(&second), [row("a", 1, 1)]);
    let third = wire
        .call(&small(4, vec![fetch_topic("a", &[(1, 1)])]), BY_NAME)
        .await;
    assert_eq!(shape(&third), [row("b", 0, 1)]);

    let forget = FetchRequest {
        forgotten_topics_data: vec![ForgottenTopic {
            topic: "a".into(),
            partitions: vec![0, 1],
            ..ForgottenTopic::default()
        }],
        ..fetch(id, 5, vec![])
    };
    wire.append("a", 0, batch(&["y"])).await;
    assert_eq!(shape(&wire.call(&forget, BY_NAME).await), [row("b", 0, 1)]);
    let closed = wire.call(&fetch(id, -1, vec![]), BY_NAME).await;
    assert_eq!((closed.error_code, closed.session_id), (0, 0));
    let gone = wire.call(&fetch(id, 6, vec![]), BY_NAME).await;
    assert_eq!(name(gone.error_code), "FETCH_SESSION_ID_NOT_FOUND");
}

#[tokio::test]
async fn a_waiting_session_is_woken_by_an_append() {
    let broker = TestBroker::start().await;
    let (mut wire, mut other) = (broker.connect().await, broker.connect().await);
    wire.create_topic("orders", 2).await;
    let topics = vec![fetch_topic("orders", &[(0, 0), (1, 0)])];
    let id = wire.call(&fetch(0, 0, topics), BY_NAME).await.session_id;
    let waiting = FetchRequest {
        max_wait_ms: i32::MAX,
        ..fetch(id, 1, vec![])
    };
    wire.send(&waiting, BY_NAME).await;
    other.append("orders", 1, batch(&["a"])).await;
    let (_, response) = wire.receive::<FetchRequest>(BY_NAME).await;
    assert_eq!(shape(&response), [("orders".to_owned(), 1, "NONE", 1)]);
}

#[tokio::test]
async fn a_request_that_does_not_fit_its_session_is_refused() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let topics = vec![fetch_topic("orders", &[(0, 0)])];
    let id = wire.call(&fetch(0, 0, topics), BY_NAME).await.session_id;
    for (session, epoch, version, code) in [
        (id, 2, BY_NAME, "INVALID_FETCH_SESSION_EPOCH"),
        (id, 1, BY_ID, "FETCH_SESSION_TOPIC_ID_ERROR"),
        (0, 1, BY_NAME, "FETCH_SESSION_ID_NOT_FOUND"),
        (id, 1, BY_NAME, "NONE"),
        (id, 1, BY_NAME, "INVALID_FETCH_SESSION_EPOCH"),
    ] {
        let response = wire.call(&fetch(session, epoch, vec![]), version).await;
        assert_eq!(
            name(response.error_code),
            code,
            "{session} {epoch} {version}"
        );
        assert!(response.responses.is_empty());
    }
    let none = TestBroker::start_with(|config| config.max_fetch_sessions = 0).await;
    let mut wire = none.connect().await;
    wire.create_topic("orders", 1).await;
    let topics = vec![fetch_topic("orders", &[(0, 0)])];
    assert_eq!(wire.call(&fetch(0, 0, topics), BY_NAME).await.session_id, 0);
}

#[tokio::test]
async fn records_are_produced_and_fetched_by_topic_id() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let id = topic_id(&mut wire, "orders").await;
    let mut request = produce_request("", 0, batch(&["a"]));
    for (topic_id, code) in [
        (id, "NONE"),
        (Uuid::from_u128(7), "UNKNOWN_TOPIC_ID"),
        (Uuid::nil(), "UNKNOWN_TOPIC_ID"),
    ] {
        request.topic_data[0].topic_id = topic_id;
        let response = wire.call(&request, 13).await;
        let topic = &response.responses[0];
        assert_eq!(name(topic.partition_responses[0].error_code), code);
        assert_eq!(topic.topic_id, topic_id);
    }
    for version in BY_ID..=18 {
        let response = wire
            .call(&fetch(0, -1, vec![by_id(id, &[(0, 0)])]), version)
            .await;
        assert_eq!(response.responses[0].topic_id, id);
        let data = only_partition(response);
        assert_eq!(values_of(&data), [(0, "a".to_owned())], "version {version}");
    }
    for (topic_id, partition, code) in [
        (Uuid::from_u128(7), 0, "UNKNOWN_TOPIC_ID"),
        (Uuid::nil(), 0, "UNKNOWN_TOPIC_ID"),
        (id, 1, "UNKNOWN_TOPIC_OR_PARTITION"),
    ] {
        let request = fetch(0, -1, vec![by_id(topic_id, &[(partition, 0)])]);
        let data = only_partition(wire.call(&request, 17).await);
        assert_eq!(name(data.error_code), code);
    }
}

#[tokio::test]
async fn a_session_hears_that_its_topic_is_gone_or_another() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a"])).await;
    let id = topic_id(&mut wire, "orders").await;
    let opened = wire
        .call(&fetch(0, 0, vec![by_id(id, &[(0, 0)])]), 17)
        .await;
    let session = opened.session_id;
    assert_eq!(shape(&opened), [(String::new(), 0, "NONE", 1)]);
    delete_topic(&mut wire, "orders").await;
    let gone = wire.call(&fetch(session, 1, vec![]), 17).await;
    assert_eq!(shape(&gone), [(String::new(), 0, "UNKNOWN_TOPIC_ID", 0)]);
    wire.create_topic("orders", 1).await;
    let another = wire.call(&fetch(session, 2, vec![]), 17).await;
    assert_eq!(
        shape(&another),
        [(String::new(), 0, "INCONSISTENT_TOPIC_ID", 0)]
    );
}

#[tokio::test]
async fn an_epoch_that_the_log_never_had_is_out_of_range() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a"])).await;
    let request = fetch(
        0,
        -1,
        vec![FetchTopic {
            partitions: vec![FetchPartition {
                last_fetched_epoch: 9,
                partition_max_bytes: 1000,
                ..FetchPartition::default()
            }],
            ..fetch_topic("orders", &[])
        }],
    );
    let data = only_partition(wire.call(&request, BY_NAME).await);
    assert_eq!(name(data.error_code), "OFFSET_OUT_OF_RANGE");
}
