//! Metadata, topics, settings, the cluster.

use broker_protocol::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeClusterRequest,
    DescribeConfigsRequest, DescribeLogDirsRequest, MetadataRequest, MetadataResponse,
    create_partitions::{CreatePartitionsAssignment, CreatePartitionsTopic},
    create_topics::{CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig},
    delete_topics::DeleteTopicState,
    describe_configs::{DescribeConfigsResource, DescribeConfigsResult},
    metadata::MetadataRequestTopic,
};
use uuid::Uuid;

use crate::support::{TestBroker, Wire, batch, name, values_of};

fn by_name(topic: &str) -> MetadataRequestTopic {
    MetadataRequestTopic {
        name: Some(topic.into()),
        ..MetadataRequestTopic::default()
    }
}

async fn metadata(
    wire: &mut Wire,
    topics: &[&str],
    create: bool,
    version: i16,
) -> MetadataResponse {
    let request = MetadataRequest {
        topics: Some(topics.iter().map(|topic| by_name(topic)).collect()),
        // Before version 4 it goes without saying.
        allow_auto_topic_creation: create || version < 4,
        ..MetadataRequest::default()
    };
    wire.call(&request, version).await
}

async fn topic_id(wire: &mut Wire, topic: &str) -> Uuid {
    metadata(wire, &[topic], false, 12).await.topics[0].topic_id
}

pub(crate) async fn delete_topic(wire: &mut Wire, topic: &str) -> &'static str {
    let request = DeleteTopicsRequest {
        topic_names: vec![topic.into()],
        ..DeleteTopicsRequest::default()
    };
    name(wire.call(&request, 5).await.responses[0].error_code)
}

#[tokio::test]
async fn metadata_names_broker_cluster_leaders_and_ids() {
    let broker = TestBroker::start_with(|config| config.node_id = 5).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    for version in [1, 4, 9, 13] {
        let response = metadata(&mut wire, &["orders"], false, version).await;
        let node = &response.brokers[0];
        let address = format!("{}:{}", node.host, node.port);
        assert_eq!(address, broker.address.to_string());
        assert_eq!((node.node_id, response.controller_id), (5, 5));
        if version >= 2 {
            assert_eq!(response.cluster_id.as_deref(), Some(&*broker.cluster_id));
        }
        let topic = &response.topics[0];
        assert_eq!(
            (topic.error_code, topic.name.as_deref()),
            (0, Some("orders"))
        );
        assert_eq!(topic.topic_id.is_nil(), version < 10, "version {version}");
        assert_eq!(topic.partitions.len(), 2);
        for (index, partition) in (0..).zip(&topic.partitions) {
            assert_eq!((partition.partition_index, partition.leader_id), (index, 5));
            assert_eq!(
                (&*partition.replica_nodes, &*partition.isr_nodes),
                (&[5][..], &[5][..])
            );
        }
    }
}

#[tokio::test]
async fn the_advertised_address_is_the_configured_one() {
    let broker =
        TestBroker::start_with(|config| config.advertised = Some("kafka.test:99".to_owned())).await;
    let response = metadata(&mut broker.connect().await, &[], false, 9).await;
    assert_eq!(
        (&*response.brokers[0].host, response.brokers[0].port),
        ("kafka.test", 99)
    );
}

#[tokio::test]
async fn no_topics_means_all_in_version_zero_and_none_after_it() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("b", 1).await;
    wire.create_topic("a", 1).await;
    let names = |response: MetadataResponse| {
        response
            .topics
            .into_iter()
            .map(|topic| topic.name.unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(metadata(&mut wire, &[], false, 0).await), ["a", "b"]);
    assert!(names(metadata(&mut wire, &[], false, 1).await).is_empty());
    let all = MetadataRequest {
        topics: None,
        ..MetadataRequest::default()
    };
    assert_eq!(names(wire.call(&all, 12).await), ["a", "b"]);
}

#[tokio::test]
async fn unknown_topics_are_created_only_where_request_and_configuration_allow_it() {
    let broker = TestBroker::start_with(|config| config.num_partitions = 3).await;
    let mut wire = broker.connect().await;
    let missing = metadata(&mut wire, &["new"], false, 9).await;
    assert_eq!(
        name(missing.topics[0].error_code),
        "UNKNOWN_TOPIC_OR_PARTITION"
    );
    let created = metadata(&mut wire, &["new", "..", "a/b", ""], true, 9).await;
    let codes: Vec<_> = created
        .topics
        .iter()
        .map(|topic| name(topic.error_code))
        .collect();
    let invalid = "INVALID_TOPIC_EXCEPTION";
    assert_eq!(codes, ["NONE", invalid, invalid, invalid]);
    assert_eq!(created.topics[0].partitions.len(), 3);
    assert_eq!(wire.append("new", 2, batch(&["x"])).await, 0);

    let broker = TestBroker::start_with(|config| config.auto_create_topics = false).await;
    let refused = metadata(&mut broker.connect().await, &["new"], true, 9).await;
    assert_eq!(
        name(refused.topics[0].error_code),
        "UNKNOWN_TOPIC_OR_PARTITION"
    );
}

#[tokio::test]
async fn topics_are_found_by_id_from_version_twelve() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let id = topic_id(&mut wire, "orders").await;
    let ask = |topic_id| MetadataRequest {
        topics: Some(vec![MetadataRequestTopic {
            topic_id,
            name: None,
        }]),
        ..MetadataRequest::default()
    };
    let found = wire.call(&ask(id), 12).await;
    assert_eq!(found.topics[0].name.as_deref(), Some("orders"));
    let missing = wire.call(&ask(Uuid::from_u128(7)), 13).await;
    assert_eq!(name(missing.topics[0].error_code), "UNKNOWN_TOPIC_ID");
    let early = wire.call(&ask(id), 11).await;
    assert_eq!(name(early.topics[0].error_code), "INVALID_REQUEST");
}

fn topic(topic: &str) -> CreatableTopic {
    CreatableTopic {
        name: topic.into(),
        num_partitions: 1,
        replication_factor: 1,
        ..CreatableTopic::default()
    }
}

fn assigned(topic_name: &str, assignments: &[(i32, i32)]) -> CreatableTopic {
    let assignment = |&(partition_index, node)| CreatableReplicaAssignment {
        partition_index,
        broker_ids: vec![node],
    };
    CreatableTopic {
        num_partitions: -1,
        replication_factor: -1,
        assignments: assignments.iter().map(assignment).collect(),
        ..topic(topic_name)
    }
}

fn configured(topic_name: &str, key: &str, value: Option<&str>) -> CreatableTopic {
    let config = CreatableTopicConfig {
        name: key.into(),
        value: value.map(Into::into),
    };
    CreatableTopic {
        configs: vec![config],
        ..topic(topic_name)
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
async fn topics_are_created_with_what_fits_one_broker() {
    let broker = TestBroker::start_with(|config| {
        config.num_partitions = 4;
        config.max_partitions = 10;
    })
    .await;
    let mut wire = broker.connect().await;
    let defaults = CreatableTopic {
        num_partitions: -1,
        replication_factor: -1,
        ..topic("d")
    };
    for (wanted, code, partitions) in [
        (topic("plain"), "NONE", 1),
        (defaults, "NONE", 4),
        (assigned("assigned", &[(1, 1), (0, 1)]), "NONE", 2),
        (
            configured("settings", "retention.ms", Some("1000")),
            "NONE",
            1,
        ),
        (topic("plain"), "TOPIC_ALREADY_EXISTS", -1),
        (topic("../up"), "INVALID_TOPIC_EXCEPTION", -1),
        (topic("."), "INVALID_TOPIC_EXCEPTION", -1),
        (
            CreatableTopic {
                num_partitions: 0,
                ..topic("p")
            },
            "INVALID_PARTITIONS",
            -1,
        ),
        (
            CreatableTopic {
                num_partitions: -2,
                ..topic("p")
            },
            "INVALID_PARTITIONS",
            -1,
        ),
        (
            CreatableTopic {
                num_partitions: 3,
                ..topic("p")
            },
            "POLICY_VIOLATION",
            -1,
        ),
        (
            CreatableTopic {
                num_partitions: i32::MAX,
                ..topic("p")
            },
            "POLICY_VIOLATION",
            -1,
        ),
        (
            CreatableTopic {
                replication_factor: 3,
                ..topic("p")
            },
            "INVALID_REPLICATION_FACTOR",
            -1,
        ),
        (
            CreatableTopic {
                replication_factor: 0,
                ..topic("p")
            },
            "INVALID_REPLICATION_FACTOR",
            -1,
        ),
        (assigned("p", &[(0, 2)]), "INVALID_REPLICA_ASSIGNMENT", -1),
        (assigned("p", &[(1, 1)]), "INVALID_REPLICA_ASSIGNMENT", -1),
        (
            assigned("p", &[(0, 1), (0, 1)]),
            "INVALID_REPLICA_ASSIGNMENT",
            -1,
        ),
        (
            CreatableTopic {
                num_partitions: 1,
                ..assigned("p", &[(0, 1)])
            },
            "INVALID_REQUEST",
            -1,
        ),
        (
            configured("p", "retention.minutes", Some("1")),
            "INVALID_CONFIG",
            -1,
        ),
        (
            configured("p", "retention.ms", Some("soon")),
            "INVALID_CONFIG",
            -1,
        ),
        (configured("p", "retention.ms", None), "INVALID_CONFIG", -1),
        (
            configured("p", "compression.type", Some("gzip")),
            "INVALID_CONFIG",
            -1,
        ),
    ] {
        let request = CreateTopicsRequest {
            topics: vec![wanted],
            ..CreateTopicsRequest::default()
        };
        let response = wire.call(&request, 7).await;
        let created = &response.topics[0];
        let answer = (name(created.error_code), created.num_partitions);
        assert_eq!(
            answer,
            (code, partitions),
            "{request:?} {:?}",
            created.error_message
        );
        assert_eq!(created.error_message.is_none(), code == "NONE");
        assert_eq!(created.topic_id.is_nil(), code != "NONE");
    }
    assert_eq!(wire.append("assigned", 1, batch(&["x"])).await, 0);
}

#[tokio::test]
async fn validating_creates_nothing_and_doubles_in_a_request_are_refused() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    let request = CreateTopicsRequest {
        topics: vec![topic("a"), topic("b"), topic("a")],
        validate_only: true,
        ..CreateTopicsRequest::default()
    };
    let response = wire.call(&request, 7).await;
    let codes: Vec<_> = response
        .topics
        .iter()
        .map(|topic| (&*topic.name, name(topic.error_code)))
        .collect();
    assert_eq!(codes, [("a", "INVALID_REQUEST"), ("b", "NONE")]);
    let all = MetadataRequest {
        topics: None,
        ..MetadataRequest::default()
    };
    assert!(wire.call(&all, 9).await.topics.is_empty());
}

#[tokio::test]
async fn a_deleted_topic_is_gone_and_made_again_it_is_another() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    wire.append("orders", 0, batch(&["x"])).await;
    let first = topic_id(&mut wire, "orders").await;
    assert_eq!(delete_topic(&mut wire, "orders").await, "NONE");
    assert_eq!(
        delete_topic(&mut wire, "orders").await,
        "UNKNOWN_TOPIC_OR_PARTITION"
    );
    let refused = wire.produce("orders", 0, batch(&["x"])).await;
    assert_eq!(name(refused.error_code), "UNKNOWN_TOPIC_OR_PARTITION");
    let left = std::fs::read_dir(broker.folder.path().join("data")).unwrap();
    let left: Vec<_> = left
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        !left.iter().any(|file| file.starts_with("orders")),
        "{left:?}"
    );

    wire.create_topic("orders", 1).await;
    let second = topic_id(&mut wire, "orders").await;
    assert_ne!(first, second);
    assert_eq!(wire.append("orders", 0, batch(&["y"])).await, 0);

    let by_id = |topic_id| DeleteTopicsRequest {
        topics: vec![DeleteTopicState {
            name: None,
            topic_id,
        }],
        ..DeleteTopicsRequest::default()
    };
    let gone = wire.call(&by_id(first), 6).await;
    assert_eq!(name(gone.responses[0].error_code), "UNKNOWN_TOPIC_ID");
    let deleted = wire.call(&by_id(second), 6).await;
    assert_eq!(deleted.responses[0].error_code, 0);
    assert_eq!(deleted.responses[0].name.as_deref(), Some("orders"));
}

#[tokio::test]
async fn a_topic_grows_and_keeps_its_records() {
    let broker = TestBroker::start_with(|config| config.max_partitions = 5).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    wire.append("orders", 1, batch(&["x"])).await;
    let grow = |topic: &str, count, assignments: Option<&[i32]>, validate_only| {
        let assignment = |&node| CreatePartitionsAssignment {
            broker_ids: vec![node],
        };
        CreatePartitionsRequest {
            topics: vec![CreatePartitionsTopic {
                name: topic.into(),
                count,
                assignments: assignments.map(|nodes| nodes.iter().map(assignment).collect()),
            }],
            timeout_ms: 1000,
            validate_only,
        }
    };
    for (request, code) in [
        (grow("orders", 2, None, false), "INVALID_PARTITIONS"),
        (grow("orders", 0, None, false), "INVALID_PARTITIONS"),
        (grow("orders", -1, None, false), "INVALID_PARTITIONS"),
        (grow("orders", 6, None, false), "POLICY_VIOLATION"),
        (
            grow("missing", 6, None, false),
            "UNKNOWN_TOPIC_OR_PARTITION",
        ),
        (
            grow("orders", 4, Some(&[1]), false),
            "INVALID_REPLICA_ASSIGNMENT",
        ),
        (
            grow("orders", 3, Some(&[9]), false),
            "INVALID_REPLICA_ASSIGNMENT",
        ),
        (grow("orders", 5, None, true), "NONE"),
        (grow("orders", 3, Some(&[1]), false), "NONE"),
        (grow("orders", 5, None, false), "NONE"),
    ] {
        let response = wire.call(&request, 3).await;
        assert_eq!(name(response.results[0].error_code), code, "{request:?}");
    }
    assert_eq!(wire.append("orders", 4, batch(&["y"])).await, 0);
    let broker = TestBroker::start_on(broker.stop().await, |_| {}).await;
    let mut wire = broker.connect().await;
    assert_eq!(
        metadata(&mut wire, &["orders"], false, 9).await.topics[0]
            .partitions
            .len(),
        5
    );
    assert_eq!(
        values_of(&wire.fetch("orders", 1, 0).await),
        [(0, "x".to_owned())]
    );
    assert_eq!(
        values_of(&wire.fetch("orders", 4, 0).await),
        [(0, "y".to_owned())]
    );
}

async fn settings(
    wire: &mut Wire,
    resource_type: i8,
    resource: &str,
    keys: Option<&[&str]>,
) -> DescribeConfigsResult {
    let request = DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type,
            resource_name: resource.into(),
            configuration_keys: keys.map(|keys| keys.iter().map(|key| (*key).into()).collect()),
        }],
        include_synonyms: true,
        include_documentation: true,
    };
    wire.call(&request, 4).await.results[0].clone()
}

#[tokio::test]
async fn settings_of_topics_are_kept_over_a_restart_and_described() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    let configs = [("retention.ms", "12345"), ("cleanup.policy", "compact")];
    wire.create_topic_with("table", 1, &configs).await;
    let broker = TestBroker::start_on(broker.stop().await, |_| {}).await;
    let mut wire = broker.connect().await;
    let all = settings(&mut wire, 2, "table", None).await;
    assert_eq!(all.error_code, 0);
    let find = |key: &str| {
        all.configs
            .iter()
            .find(|config| &*config.name == key)
            .unwrap()
    };
    let retention = find("retention.ms");
    assert_eq!(
        (retention.value.as_deref(), retention.config_source),
        (Some("12345"), 1)
    );
    assert_eq!(retention.config_type, 5);
    let synonyms: Vec<_> = retention
        .synonyms
        .iter()
        .map(|s| (s.value.as_deref(), s.source))
        .collect();
    assert_eq!(synonyms, [(Some("12345"), 1), (Some("604800000"), 5)]);
    assert!(
        find("preallocate")
            .documentation
            .as_deref()
            .unwrap()
            .contains("does not act")
    );
    let limit = find("max.message.bytes");
    assert_eq!(
        (limit.value.as_deref(), limit.config_source),
        (Some("1048588"), 5)
    );
    assert_eq!(find("cleanup.policy").value.as_deref(), Some("compact"));
    let one = settings(&mut wire, 2, "table", Some(&["retention.ms", "nope"])).await;
    assert_eq!(one.configs.len(), 1);
    let missing = settings(&mut wire, 2, "missing", None).await;
    assert_eq!(name(missing.error_code), "UNKNOWN_TOPIC_OR_PARTITION");
    // The setting also acts: keyless records are refused.
    let refused = wire.produce("table", 0, batch(&["x"])).await;
    assert_eq!(name(refused.error_code), "INVALID_RECORD");
}

#[tokio::test]
async fn settings_of_the_broker_are_described_and_other_resources_are_refused() {
    let broker = TestBroker::start_with(|config| config.num_partitions = 9).await;
    let mut wire = broker.connect().await;
    let described = settings(&mut wire, 4, "1", None).await;
    let find = |key: &str| {
        let config = described
            .configs
            .iter()
            .find(|config| &*config.name == key)
            .unwrap();
        (
            config.value.as_deref().unwrap().to_owned(),
            config.config_source,
            config.read_only,
        )
    };
    assert_eq!(find("num.partitions"), ("9".to_owned(), 4, true));
    assert_eq!(find("message.max.bytes"), ("1048588".to_owned(), 5, true));
    assert_eq!(
        find("advertised.listeners").0,
        format!("PLAINTEXT://{}", broker.address)
    );
    assert_eq!(
        name(settings(&mut wire, 4, "2", None).await.error_code),
        "INVALID_REQUEST"
    );
    assert_eq!(
        name(settings(&mut wire, 32, "g", None).await.error_code),
        "INVALID_REQUEST"
    );
}

#[tokio::test]
async fn log_directories_tell_sizes() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    wire.create_topic("other", 1).await;
    let sent = batch(&["x"]);
    wire.append("orders", 1, sent.clone()).await;
    let all = DescribeLogDirsRequest { topics: None };
    let response = wire.call(&all, 4).await;
    let dir = &response.results[0];
    assert_eq!(dir.error_code, 0);
    assert!(dir.log_dir.ends_with("/data"), "{}", dir.log_dir);
    assert!(dir.total_bytes > 0 && dir.usable_bytes <= dir.total_bytes);
    let sizes: Vec<_> = dir
        .topics
        .iter()
        .flat_map(|topic| {
            topic
                .partitions
                .iter()
                .map(|p| (&*topic.name, p.partition_index, p.partition_size))
        })
        .collect();
    let size = i64::try_from(sent.len()).unwrap();
    assert_eq!(
        sizes,
        [("orders", 0, 0), ("orders", 1, size), ("other", 0, 0)]
    );
}

#[tokio::test]
async fn the_cluster_is_this_broker() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    let request = DescribeClusterRequest::default();
    let response = wire.call(&request, 1).await;
    assert_eq!(
        (response.error_code, &*response.cluster_id),
        (0, &*broker.cluster_id)
    );
    assert_eq!(response.brokers.len(), 1);
    assert_eq!(response.brokers[0].port, i32::from(broker.address.port()));
    let controllers = DescribeClusterRequest {
        endpoint_type: 2,
        ..request
    };
    let response = wire.call(&controllers, 1).await;
    assert_eq!(name(response.error_code), "UNSUPPORTED_ENDPOINT_TYPE");
}
