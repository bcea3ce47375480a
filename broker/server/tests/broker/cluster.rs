//! Leaders, replicas, producers and the pages of the list of partitions.

use std::sync::Arc;

use broker_protocol::messages::{
    AlterPartitionReassignmentsRequest, DescribeClusterRequest, DescribeProducersRequest,
    DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, ElectLeadersRequest,
    ListOffsetsRequest, ListPartitionReassignmentsRequest,
    alter_partition_reassignments::{ReassignablePartition, ReassignableTopic},
    describe_producers as producers,
    describe_topic_partitions::{Cursor, TopicRequest},
    elect_leaders::{PartitionResult, TopicPartitions},
    list_offsets::{ListOffsetsPartition, ListOffsetsTopic},
};

use crate::support::{TestBroker, Wire, batch, name, sequenced};

/// Spoils partition `index` of `orders`, so that the next start finds it off line.
fn spoil(folder: &Arc<tempfile::TempDir>, index: u32) {
    let partition = folder.path().join(format!("data/orders-{index}"));
    std::fs::write(partition.join("partition.metadata"), "no metadata").unwrap();
}

async fn elect(
    wire: &mut Wire,
    kind: i8,
    named: Option<&[(&str, &[i32])]>,
) -> Vec<PartitionResult> {
    let topics = |named: &[(&str, &[i32])]| {
        let topic = |&(topic, partitions): &(&str, &[i32])| TopicPartitions {
            topic: topic.into(),
            partitions: partitions.to_vec(),
        };
        named.iter().map(topic).collect()
    };
    let request = ElectLeadersRequest {
        election_type: kind,
        topic_partitions: named.map(topics),
        ..ElectLeadersRequest::default()
    };
    let response = wire.call(&request, 2).await;
    assert_eq!(response.error_code, 0);
    let results = response.replica_election_results.into_iter();
    results.flat_map(|topic| topic.partition_result).collect()
}

fn codes(results: &[PartitionResult]) -> Vec<(i32, &'static str)> {
    let code = |result: &PartitionResult| (result.partition_id, name(result.error_code));
    results.iter().map(code).collect()
}

#[tokio::test]
async fn elections_are_needed_only_where_the_log_is_off_line() {
    let broker = TestBroker::start().await;
    broker.connect().await.create_topic("orders", 2).await;
    let folder = broker.stop().await;
    spoil(&folder, 1);
    let broker = TestBroker::start_on(folder, |_| {}).await;
    let mut wire = broker.connect().await;
    let named: &[(&str, &[i32])] = &[("orders", &[0, 1, 2]), ("missing", &[0])];
    let unknown = "UNKNOWN_TOPIC_OR_PARTITION";
    for (kind, off_line) in [
        (0, "PREFERRED_LEADER_NOT_AVAILABLE"),
        (1, "ELIGIBLE_LEADERS_NOT_AVAILABLE"),
    ] {
        let results = elect(&mut wire, kind, Some(named)).await;
        let expected = [
            (0, "ELECTION_NOT_NEEDED"),
            (1, off_line),
            (2, unknown),
            (0, unknown),
        ];
        assert_eq!(codes(&results), expected);
        assert_eq!(codes(&elect(&mut wire, kind, None).await), [(1, off_line)]);
    }
    let odd = ElectLeadersRequest {
        election_type: 2,
        ..ElectLeadersRequest::default()
    };
    assert_eq!(name(wire.call(&odd, 2).await.error_code), "INVALID_REQUEST");
}

#[tokio::test]
async fn partitions_stay_on_the_only_broker() {
    let broker = TestBroker::start_with(|config| config.node_id = 5).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let mut reassign = async |topic: &str, index, replicas: Option<&[i32]>, may_change| {
        let request = AlterPartitionReassignmentsRequest {
            allow_replication_factor_change: may_change,
            topics: vec![ReassignableTopic {
                name: topic.into(),
                partitions: vec![ReassignablePartition {
                    partition_index: index,
                    replicas: replicas.map(<[i32]>::to_vec),
                }],
            }],
            ..AlterPartitionReassignmentsRequest::default()
        };
        let response = wire.call(&request, 1).await;
        assert_eq!((response.error_code, &response.error_message), (0, &None));
        name(response.responses[0].partitions[0].error_code)
    };
    let unknown = "UNKNOWN_TOPIC_OR_PARTITION";
    let elsewhere = "INVALID_REPLICA_ASSIGNMENT";
    assert_eq!(reassign("orders", 0, Some(&[5]), true).await, "NONE");
    assert_eq!(reassign("orders", 0, Some(&[6]), true).await, elsewhere);
    assert_eq!(reassign("orders", 0, Some(&[5, 6]), true).await, elsewhere);
    let factor = reassign("orders", 0, Some(&[5, 6]), false).await;
    assert_eq!(factor, "INVALID_REPLICATION_FACTOR");
    assert_eq!(reassign("orders", 0, Some(&[]), true).await, elsewhere);
    assert_eq!(
        reassign("orders", 0, None, true).await,
        "NO_REASSIGNMENT_IN_PROGRESS"
    );
    assert_eq!(reassign("orders", 1, Some(&[5]), true).await, unknown);
    assert_eq!(reassign("missing", 0, None, true).await, unknown);

    let listed = wire
        .call(&ListPartitionReassignmentsRequest::default(), 0)
        .await;
    assert_eq!((listed.error_code, listed.topics), (0, Vec::new()));
}

#[tokio::test]
async fn producers_of_a_partition_are_described() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    wire.append("orders", 0, batch(&["nobody"])).await;
    wire.append("orders", 0, sequenced(77, 3, 0, &["a", "b"]))
        .await;
    wire.append("orders", 0, sequenced(77, 3, 2, &["c", "d", "e"]))
        .await;
    let topic = |name: &str, indexes: &[i32]| producers::TopicRequest {
        name: name.into(),
        partition_indexes: indexes.to_vec(),
    };
    let request = DescribeProducersRequest {
        topics: vec![
            topic("orders", &[0, 1, 2]),
            topic("missing", &[0]),
            topic("a/b", &[0]),
        ],
    };
    let response = wire.call(&request, 0).await;
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    let codes: Vec<_> = partitions
        .map(|partition| name(partition.error_code))
        .collect();
    let unknown = "UNKNOWN_TOPIC_OR_PARTITION";
    assert_eq!(
        codes,
        ["NONE", "NONE", unknown, unknown, "INVALID_TOPIC_EXCEPTION"]
    );
    let expected = producers::ProducerState {
        producer_id: 77,
        producer_epoch: 3,
        last_sequence: 4,
        last_timestamp: 1002,
        coordinator_epoch: -1,
        current_txn_start_offset: -1,
    };
    assert_eq!(
        response.topics[0].partitions[0].active_producers,
        [expected]
    );
    assert!(response.topics[0].partitions[1].active_producers.is_empty());
}

async fn page(
    wire: &mut Wire,
    topics: &[&str],
    limit: i32,
    cursor: Option<(&str, i32)>,
) -> DescribeTopicPartitionsResponse {
    let cursor = cursor.map(|(topic, partition_index)| {
        Box::new(Cursor {
            topic_name: topic.into(),
            partition_index,
        })
    });
    let request = DescribeTopicPartitionsRequest {
        topics: topics
            .iter()
            .map(|topic| TopicRequest {
                name: (*topic).into(),
            })
            .collect(),
        response_partition_limit: limit,
        cursor,
    };
    wire.call(&request, 0).await
}

type Described = (String, &'static str, Vec<i32>);

/// The names, codes and partitions of a page, and where the next begins.
fn shape(page: &DescribeTopicPartitionsResponse) -> (Vec<Described>, Option<(String, i32)>) {
    let topics = page.topics.iter().map(|topic| {
        let indexes = topic
            .partitions
            .iter()
            .map(|partition| partition.partition_index);
        (
            topic.name.as_ref().unwrap().to_string(),
            name(topic.error_code),
            indexes.collect(),
        )
    });
    let next = page.next_cursor.as_ref();
    let next = next.map(|at| (at.topic_name.to_string(), at.partition_index));
    (topics.collect(), next)
}

#[tokio::test]
async fn partitions_are_listed_a_page_at_a_time() {
    let broker = TestBroker::start_with(|config| config.node_id = 5).await;
    let mut wire = broker.connect().await;
    for (topic, partitions) in [("c", 1), ("a", 3), ("b", 2)] {
        wire.create_topic(topic, partitions).await;
    }
    let row = |name: &str, indexes: &[i32]| (name.to_owned(), "NONE", indexes.to_vec());
    let at = |name: &str, index| Some((name.to_owned(), index));
    let all = page(&mut wire, &[], 2000, None).await;
    let rows = vec![row("a", &[0, 1, 2]), row("b", &[0, 1]), row("c", &[0])];
    assert_eq!(shape(&all), (rows.clone(), None));
    let first = &all.topics[0].partitions[0];
    assert_eq!((first.leader_id, first.leader_epoch), (5, 0));
    assert_eq!(
        (&*first.replica_nodes, &*first.isr_nodes),
        (&[5][..], &[5][..])
    );
    assert!(!all.topics[0].topic_id.is_nil());

    let cut = page(&mut wire, &[], 2, None).await;
    assert_eq!(shape(&cut), (vec![row("a", &[0, 1])], at("a", 2)));
    let next = page(&mut wire, &[], 2, Some(("a", 2))).await;
    assert_eq!(
        shape(&next),
        (vec![row("a", &[2]), row("b", &[0])], at("b", 1))
    );
    // What fits exactly leaves the next topic to the next page.
    let next = page(&mut wire, &[], 1, Some(("b", 1))).await;
    assert_eq!(shape(&next), (vec![row("b", &[1])], at("c", 0)));
    let last = page(&mut wire, &[], 1, Some(("c", 0))).await;
    assert_eq!(shape(&last), (vec![row("c", &[0])], None));
    // At least one, whatever is asked for; a cursor at a topic that is gone begins with the next.
    let least = page(&mut wire, &[], -7, Some(("aa", 3))).await;
    assert_eq!(shape(&least), (vec![row("b", &[0])], at("b", 1)));

    let named = page(&mut wire, &["c", "nope", "c", "a/b"], 9, None).await;
    let unknown = |name: &str, code| (name.to_owned(), code, Vec::new());
    let rows = vec![
        unknown("a/b", "INVALID_TOPIC_EXCEPTION"),
        row("c", &[0]),
        unknown("nope", "UNKNOWN_TOPIC_OR_PARTITION"),
    ];
    assert_eq!(shape(&named), (rows, None));
    let odd = page(&mut wire, &["c"], 9, Some(("c", -1))).await;
    assert_eq!(shape(&odd), (vec![unknown("c", "INVALID_REQUEST")], None));
}

#[tokio::test]
async fn the_only_broker_is_not_fenced() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    let request = DescribeClusterRequest {
        include_fenced_brokers: true,
        ..DescribeClusterRequest::default()
    };
    let response = wire.call(&request, 2).await;
    let brokers: Vec<_> = response
        .brokers
        .iter()
        .map(|node| (node.broker_id, node.is_fenced))
        .collect();
    assert_eq!(brokers, [(1, false)]);
}

#[tokio::test]
async fn special_times_are_answered_from_the_version_that_brought_them() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a", "b"])).await;
    let at = |timestamp| ListOffsetsPartition {
        timestamp,
        ..ListOffsetsPartition::default()
    };
    let mut list = async |timestamps: &[i64], version| {
        let request = ListOffsetsRequest {
            topics: vec![ListOffsetsTopic {
                name: "orders".into(),
                partitions: timestamps.iter().map(|&time| at(time)).collect(),
            }],
            ..ListOffsetsRequest::default()
        };
        let mut response = wire.call(&request, version).await;
        let listed = response.topics.remove(0).partitions.remove(0);
        (name(listed.error_code), listed.offset, listed.timestamp)
    };
    let too_new = ("UNSUPPORTED_VERSION", -1, -1);
    for (timestamp, since, answer) in [
        (-1, 1, ("NONE", 2, -1)),
        (-2, 1, ("NONE", 0, -1)),
        (-3, 7, ("NONE", 1, 1001)),
        (-4, 8, ("NONE", 0, -1)),
        (-5, 9, ("NONE", -1, -1)),
        (-6, 11, too_new),
    ] {
        for version in 1..=10 {
            let expected = if version < since { too_new } else { answer };
            assert_eq!(
                list(&[timestamp], version).await,
                expected,
                "{timestamp} {version}"
            );
        }
    }
    // The same partition twice.
    assert_eq!(list(&[-1, -2], 10).await, ("INVALID_REQUEST", -1, -1));
}
