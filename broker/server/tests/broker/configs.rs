//! Settings of topics changed while the broker runs.

use broker_protocol::messages::{
    AlterConfigsRequest, CreateTopicsRequest, DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    alter_configs::{AlterConfigsResource, AlterableConfig},
    create_topics::{CreatableTopic, CreatableTopicConfig},
    describe_configs::DescribeConfigsResource,
    incremental_alter_configs as incremental,
};

use crate::support::{TestBroker, Wire, batch, name};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;
/// Sources as Kafka numbers them.
const FROM_TOPIC: i8 = 1;
const FROM_DEFAULT: i8 = 5;

type Change<'a> = (&'a str, i8, Option<&'a str>);

fn changes(kind: i8, of: &str, changes: &[Change<'_>]) -> incremental::AlterConfigsResource {
    let change = |&(name, config_operation, value): &Change<'_>| incremental::AlterableConfig {
        name: name.into(),
        config_operation,
        value: value.map(Into::into),
    };
    incremental::AlterConfigsResource {
        resource_type: kind,
        resource_name: of.into(),
        configs: changes.iter().map(change).collect(),
    }
}

/// Sends the changes; the code and sentence of each resource.
async fn alter(
    wire: &mut Wire,
    resources: Vec<incremental::AlterConfigsResource>,
    validate_only: bool,
) -> Vec<(&'static str, String)> {
    let request = IncrementalAlterConfigsRequest {
        resources,
        validate_only,
    };
    let response = wire.call(&request, 1).await;
    let outcomes = response.responses.into_iter().map(|one| {
        let message = one.error_message.unwrap_or_default().to_string();
        (name(one.error_code), message)
    });
    outcomes.collect()
}

/// Sends changes of one topic; the code.
async fn alter_topic(wire: &mut Wire, topic: &str, of_it: &[Change<'_>]) -> &'static str {
    alter(wire, vec![changes(TOPIC, topic, of_it)], false).await[0].0
}

/// Replaces all settings of a topic; the code.
async fn replace(wire: &mut Wire, topic: &str, settings: &[(&str, Option<&str>)]) -> &'static str {
    let setting = |&(name, value): &(&str, Option<&str>)| AlterableConfig {
        name: name.into(),
        value: value.map(Into::into),
    };
    let request = AlterConfigsRequest {
        resources: vec![AlterConfigsResource {
            resource_type: TOPIC,
            resource_name: topic.into(),
            configs: settings.iter().map(setting).collect(),
        }],
        validate_only: false,
    };
    name(wire.call(&request, 2).await.responses[0].error_code)
}

/// Value, source and the sources of its synonyms.
async fn setting(wire: &mut Wire, topic: &str, key: &str) -> (String, i8, Vec<i8>) {
    let request = DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type: TOPIC,
            resource_name: topic.into(),
            configuration_keys: Some(vec![key.into()]),
        }],
        include_synonyms: true,
        ..DescribeConfigsRequest::default()
    };
    let response = wire.call(&request, 4).await;
    let config = &response.results[0].configs[0];
    let value = config.value.as_ref().unwrap().to_string();
    let synonyms = config.synonyms.iter().map(|synonym| synonym.source);
    (value, config.config_source, synonyms.collect())
}

#[tokio::test]
async fn a_setting_is_set_shown_kept_over_a_crash_and_deleted() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 2).await;
    let set = [
        ("retention.ms", SET, Some("5000")),
        ("segment.bytes", SET, Some("2048")),
    ];
    assert_eq!(alter_topic(&mut wire, "orders", &set).await, "NONE");
    let own = (
        "5000".to_owned(),
        FROM_TOPIC,
        vec![FROM_TOPIC, FROM_DEFAULT],
    );
    assert_eq!(setting(&mut wire, "orders", "retention.ms").await, own);

    let broker = TestBroker::start_on(broker.kill().await, |_| {}).await;
    let mut wire = broker.connect().await;
    assert_eq!(setting(&mut wire, "orders", "retention.ms").await, own);
    let delete = [("retention.ms", DELETE, None), ("flush.ms", DELETE, None)];
    assert_eq!(alter_topic(&mut wire, "orders", &delete).await, "NONE");
    let default = ("604800000".to_owned(), FROM_DEFAULT, vec![FROM_DEFAULT]);
    assert_eq!(setting(&mut wire, "orders", "retention.ms").await, default);
    assert_eq!(
        setting(&mut wire, "orders", "segment.bytes").await.0,
        "2048"
    );
}

#[tokio::test]
async fn a_change_holds_for_the_next_batch() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let large = batch(&[&"x".repeat(2000)]);
    wire.append("orders", 0, large.clone()).await;
    let set = [
        ("max.message.bytes", SET, Some("1000")),
        ("message.timestamp.type", SET, Some("LogAppendTime")),
    ];
    assert_eq!(alter_topic(&mut wire, "orders", &set).await, "NONE");
    let refused = wire.produce("orders", 0, large.clone()).await;
    assert_eq!(name(refused.error_code), "MESSAGE_TOO_LARGE");
    let stamped = wire.produce("orders", 0, batch(&["small"])).await;
    assert_eq!(stamped.log_append_time_ms, 1_700_000_000_000);

    let compact = [("cleanup.policy", SET, Some("compact"))];
    assert_eq!(alter_topic(&mut wire, "orders", &compact).await, "NONE");
    let keyless = wire.produce("orders", 0, batch(&["no key"])).await;
    assert_eq!(name(keyless.error_code), "INVALID_RECORD");
    // Back to the defaults, and to large batches.
    assert_eq!(replace(&mut wire, "orders", &[]).await, "NONE");
    wire.append("orders", 0, large).await;
}

#[tokio::test]
async fn lists_are_appended_to_and_subtracted_from() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    for (operation, words, code, policy) in [
        (APPEND, "compact", "NONE", "delete,compact"),
        (SUBTRACT, "delete", "NONE", "compact"),
        (SUBTRACT, "compact", "INVALID_CONFIG", "compact"),
        (APPEND, "shred", "INVALID_CONFIG", "compact"),
    ] {
        let change = [("cleanup.policy", operation, Some(words))];
        assert_eq!(
            alter_topic(&mut wire, "orders", &change).await,
            code,
            "{words}"
        );
        assert_eq!(
            setting(&mut wire, "orders", "cleanup.policy").await.0,
            policy
        );
    }
    let no_list = [("retention.ms", APPEND, Some("5"))];
    assert_eq!(
        alter_topic(&mut wire, "orders", &no_list).await,
        "INVALID_CONFIG"
    );
}

#[tokio::test]
async fn each_resource_has_its_own_outcome_and_a_refused_one_is_left_as_it_was() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.create_topic("twice", 1).await;
    let good = ("retention.ms", SET, Some("7"));
    let resources = vec![
        changes(TOPIC, "missing", &[good]),
        changes(TOPIC, "a/b", &[good]),
        changes(TOPIC, "twice", &[good]),
        changes(TOPIC, "orders", &[good, ("flush.ms", SET, Some("soon"))]),
        changes(TOPIC, "twice", &[good]),
        changes(BROKER, "1", &[("log.retention.ms", SET, Some("7"))]),
        changes(BROKER, "", &[("log.retention.ms", SET, Some("7"))]),
        changes(8, "1", &[("root", SET, Some("DEBUG"))]),
    ];
    let outcomes = alter(&mut wire, resources, false).await;
    let codes: Vec<_> = outcomes.iter().map(|(code, _)| *code).collect();
    assert_eq!(
        codes,
        [
            "UNKNOWN_TOPIC_OR_PARTITION",
            "INVALID_TOPIC_EXCEPTION",
            "INVALID_REQUEST",
            "INVALID_CONFIG",
            "INVALID_REQUEST",
            "INVALID_REQUEST",
            "INVALID_REQUEST",
            "INVALID_REQUEST",
        ]
    );
    assert!(
        outcomes[5].1.contains("configuration file"),
        "{}",
        outcomes[5].1
    );
    assert!(outcomes[3].1.contains("flush.ms"), "{}", outcomes[3].1);
    for topic in ["orders", "twice"] {
        assert_eq!(
            setting(&mut wire, topic, "retention.ms").await.1,
            FROM_DEFAULT,
            "{topic}"
        );
    }
    for (change, code) in [
        (vec![good, good], "INVALID_REQUEST"),
        (vec![("retention.ms", SET, None)], "INVALID_REQUEST"),
        (vec![("retention.ms", 4, Some("5"))], "INVALID_REQUEST"),
        (vec![("nonsense", SET, Some("5"))], "INVALID_CONFIG"),
        (
            vec![
                ("max.compaction.lag.ms", SET, Some("5")),
                ("min.compaction.lag.ms", SET, Some("6")),
            ],
            "INVALID_CONFIG",
        ),
        (vec![], "NONE"),
    ] {
        assert_eq!(
            alter_topic(&mut wire, "orders", &change).await,
            code,
            "{change:?}"
        );
    }
}

#[tokio::test]
async fn validating_changes_nothing() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let set = |value| {
        vec![changes(
            TOPIC,
            "orders",
            &[("retention.ms", SET, Some(value))],
        )]
    };
    assert_eq!(alter(&mut wire, set("7"), true).await[0].0, "NONE");
    assert_eq!(
        alter(&mut wire, set("x"), true).await[0].0,
        "INVALID_CONFIG"
    );
    assert_eq!(
        setting(&mut wire, "orders", "retention.ms").await.1,
        FROM_DEFAULT
    );
}

#[tokio::test]
async fn the_older_request_replaces_all_settings() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    let configs = [("retention.ms", "5"), ("flush.ms", "9")];
    wire.create_topic_with("orders", 1, &configs).await;
    let settings = [("segment.ms", Some("1000")), ("retention.ms", Some("6"))];
    assert_eq!(replace(&mut wire, "orders", &settings).await, "NONE");
    for (key, value, source) in [
        ("retention.ms", "6", FROM_TOPIC),
        ("segment.ms", "1000", FROM_TOPIC),
        ("flush.ms", "9223372036854775807", FROM_DEFAULT),
    ] {
        let (got, from, _) = setting(&mut wire, "orders", key).await;
        assert_eq!((&*got, from), (value, source), "{key}");
    }
    let null = [("retention.ms", None)];
    assert_eq!(replace(&mut wire, "orders", &null).await, "INVALID_REQUEST");
    let bad = [("retention.ms", Some("soon"))];
    assert_eq!(replace(&mut wire, "orders", &bad).await, "INVALID_CONFIG");
    assert_eq!(
        replace(&mut wire, "missing", &[]).await,
        "UNKNOWN_TOPIC_OR_PARTITION"
    );
    assert_eq!(setting(&mut wire, "orders", "retention.ms").await.0, "6");
}

#[tokio::test]
async fn a_change_that_cannot_be_written_does_not_show() {
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    // In the way of the file that the metadata is written to.
    std::fs::create_dir(broker.folder.path().join("data/topics.new")).unwrap();
    let set = [("max.message.bytes", SET, Some("100"))];
    assert_eq!(
        alter_topic(&mut wire, "orders", &set).await,
        "KAFKA_STORAGE_ERROR"
    );
    assert_eq!(
        setting(&mut wire, "orders", "max.message.bytes").await.1,
        FROM_DEFAULT
    );
    wire.append("orders", 0, batch(&[&"x".repeat(200)])).await;
}

#[tokio::test]
async fn settings_that_would_lose_groups_are_refused_of_their_topic() {
    const TOPIC_OF_GROUPS: &str = "__consumer_offsets";
    let broker = TestBroker::start().await;
    let mut wire = broker.connect().await;
    for policy in ["delete", "compact"] {
        let request = CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: TOPIC_OF_GROUPS.into(),
                num_partitions: 2,
                replication_factor: 1,
                configs: vec![CreatableTopicConfig {
                    name: "cleanup.policy".into(),
                    value: Some(policy.into()),
                }],
                ..CreatableTopic::default()
            }],
            ..CreateTopicsRequest::default()
        };
        let created = &wire.call(&request, 7).await.topics[0];
        let expected = if policy == "delete" {
            "INVALID_CONFIG"
        } else {
            "NONE"
        };
        assert_eq!(
            name(created.error_code),
            expected,
            "{:?}",
            created.error_message
        );
    }
    for refused in [
        ("cleanup.policy", SET, Some("delete")),
        ("cleanup.policy", APPEND, Some("delete")),
        ("cleanup.policy", DELETE, None),
        ("max.message.bytes", SET, Some("100")),
    ] {
        for validate_only in [true, false] {
            let resource = vec![changes(TOPIC, TOPIC_OF_GROUPS, &[refused])];
            let (code, message) = alter(&mut wire, resource, validate_only).await.remove(0);
            assert_eq!(code, "INVALID_CONFIG", "{refused:?}");
            assert!(message.contains(TOPIC_OF_GROUPS), "{message}");
        }
    }
    let without = [("segment.bytes", Some("1000000"))];
    assert_eq!(
        replace(&mut wire, TOPIC_OF_GROUPS, &without).await,
        "INVALID_CONFIG"
    );
    let allowed = [
        ("cleanup.policy", Some("compact")),
        ("retention.ms", Some("1")),
        ("max.message.bytes", Some("8000000")),
    ];
    assert_eq!(replace(&mut wire, TOPIC_OF_GROUPS, &allowed).await, "NONE");
    assert_eq!(
        setting(&mut wire, TOPIC_OF_GROUPS, "cleanup.policy")
            .await
            .0,
        "compact"
    );
}
