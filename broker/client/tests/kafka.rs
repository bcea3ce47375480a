//! The client against Apache Kafka, with the Java client at the other end.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests, outside of #[test] functions"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use broker_client::protocol::TopicName;
use broker_client::protocol::record::Compression;
use broker_client::{
    BatchKind, Client, ClientConfig, Error, FetchOptions, IsolationLevel, OffsetSpec,
    ProducerConfig, ProducerRecord, RangeFetch,
};
use bytes::Bytes;
use test_support::{
    Fault, Kafka, KafkaOptions, TcpProxy, TestRecords, TransactionEnd, kafka, random_topic,
};

const CODECS: [(Compression, &str); 5] = [
    (Compression::None, "none"),
    (Compression::Gzip, "gzip"),
    (Compression::Snappy, "snappy"),
    (Compression::Lz4, "lz4"),
    (Compression::Zstd, "zstd"),
];

fn config(kafka: &Kafka) -> ClientConfig {
    ClientConfig {
        retry_deadline: Duration::from_secs(20),
        fetch_max_wait: Duration::from_millis(100),
        ..ClientConfig::new(kafka.bootstrap())
    }
}

async fn connect() -> Client {
    Client::connect(config(kafka())).await.unwrap()
}

/// A topic made by the client under test.
async fn new_topic(client: &Client, partitions: i32, configs: &[(&str, &str)]) -> TopicName {
    let topic = TopicName::new(random_topic("client")).unwrap();
    client
        .create_topic(&topic, partitions, 1, configs)
        .await
        .unwrap();
    topic
}

async fn end_of(client: &Client, topic: &TopicName, isolation: IsolationLevel) -> i64 {
    let mut ends = client
        .list_offsets(topic, &[0], OffsetSpec::Latest, isolation)
        .await
        .unwrap();
    ends.remove(&0).unwrap().unwrap().offset
}

/// The values of the data in a range, and the kinds of its batches.
async fn read(range: &mut RangeFetch) -> (Vec<String>, Vec<BatchKind>) {
    let (mut values, mut kinds) = (Vec::new(), Vec::new());
    while let Some(batch) = range.next().await.unwrap() {
        kinds.push(batch.kind);
        if batch.kind != BatchKind::Data {
            continue;
        }
        for record in &batch.batch.records(64 << 20).unwrap() {
            let value = record.unwrap().value.unwrap().to_vec();
            values.push(String::from_utf8(value).unwrap());
        }
    }
    (values, kinds)
}

async fn read_all(client: &Client, topic: &TopicName) -> Vec<String> {
    let end = end_of(client, topic, IsolationLevel::ReadCommitted).await;
    let options = FetchOptions::default();
    read(&mut client.fetch_range(topic.clone(), 0, 0..end, options))
        .await
        .0
}

#[tokio::test(flavor = "multi_thread")]
async fn every_codec_is_read_and_written() {
    let client = connect().await;
    for (compression, name) in CODECS {
        let topic = new_topic(&client, 1, &[]).await;
        let ours = ProducerConfig {
            compression,
            ..ProducerConfig::default()
        };
        let producer = client.producer(ours).unwrap();
        let mut expected = Vec::new();
        for number in 0..1000 {
            let value = format!("ours-{number}-{}", "x".repeat(100));
            producer
                .send(ProducerRecord::new(topic.clone(), value.clone()))
                .await
                .unwrap();
            expected.push(value);
        }
        producer.flush().await.unwrap();
        let theirs = TestRecords {
            count: 100,
            compression: name,
            prefix: "java-",
            ..Default::default()
        };
        kafka().produce(topic.as_str(), 0, &theirs).unwrap();
        expected.extend((0..100).map(|number| format!("java-{number}")));
        assert_eq!(read_all(&client, &topic).await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn java_reads_what_we_produce_with_keys_headers_and_times() {
    let client = connect().await;
    let topic = new_topic(&client, 3, &[]).await;
    let producer = client.producer(ProducerConfig::default()).unwrap();
    let record = ProducerRecord::new(topic.clone(), "value")
        .with_key("key")
        .with_header("name", Bytes::from("first"))
        .with_header("name", None)
        .with_timestamp_ms(1_234);
    let handle = producer.send(record).await.unwrap();
    producer.flush().await.unwrap();
    let delivery = handle.await.unwrap();
    assert_eq!((delivery.offset, delivery.timestamp_ms), (0, 1_234));
    let arguments = [
        "--bootstrap-server",
        kafka().bootstrap(),
        "--topic",
        topic.as_str(),
        "--partition",
        &delivery.partition.to_string(),
        "--offset",
        "earliest",
        "--max-messages",
        "1",
        "--formatter-property",
        "print.key=true",
        "--formatter-property",
        "print.headers=true",
        "--formatter-property",
        "print.timestamp=true",
    ];
    let tool = "org.apache.kafka.tools.consumer.ConsoleConsumer";
    let output = kafka().run_tool(tool, &arguments).unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        printed.trim(),
        "CreateTime:1234\tname:first,name:null\tkey\tvalue"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_are_told_apart_and_open_ones_are_not_passed() {
    use BatchKind::{Aborted, Control, Data};
    let client = connect().await;
    let topic = new_topic(&client, 1, &[]).await;
    let name = topic.as_str();
    kafka()
        .transaction(name, 0, 3, "committed-", TransactionEnd::Commit)
        .unwrap();
    kafka()
        .transaction(name, 0, 2, "aborted-", TransactionEnd::Abort)
        .unwrap();
    let plain = TestRecords {
        count: 1,
        prefix: "plain-",
        ..Default::default()
    };
    kafka().produce(name, 0, &plain).unwrap();
    kafka()
        .transaction(name, 0, 1, "more-", TransactionEnd::Commit)
        .unwrap();

    let end = end_of(&client, &topic, IsolationLevel::ReadCommitted).await;
    assert_eq!(end, 3 + 1 + 2 + 1 + 1 + 1 + 1);
    let mut range = client.fetch_range(topic.clone(), 0, 0..end, FetchOptions::default());
    let (values, kinds) = read(&mut range).await;
    let committed = [
        "committed-0",
        "committed-1",
        "committed-2",
        "plain-0",
        "more-0",
    ];
    assert_eq!(values, committed);
    assert_eq!(
        kinds,
        [Data, Control, Aborted, Control, Data, Data, Control]
    );
    assert_eq!(range.position(), end);

    let everything = FetchOptions {
        isolation: IsolationLevel::ReadUncommitted,
        ..Default::default()
    };
    let (values, kinds) = read(&mut client.fetch_range(topic.clone(), 0, 0..end, everything)).await;
    assert_eq!(values.len(), 7);
    assert!(!kinds.contains(&Aborted), "{kinds:?}");
}

/// Has a broker of its own: an open transaction has to be abandoned.
#[tokio::test(flavor = "multi_thread")]
async fn open_transaction_holds_committed_readers_back() {
    let own = Kafka::start(&KafkaOptions::default()).unwrap();
    let client = Client::connect(config(&own)).await.unwrap();
    let topic = TopicName::new("open").unwrap();
    client.create_topic(&topic, 1, 1, &[]).await.unwrap();
    own.transaction("open", 0, 2, "done-", TransactionEnd::Commit)
        .unwrap();
    own.transaction("open", 0, 2, "open-", TransactionEnd::Open)
        .unwrap();
    let stable = end_of(&client, &topic, IsolationLevel::ReadCommitted).await;
    let high_watermark = end_of(&client, &topic, IsolationLevel::ReadUncommitted).await;
    assert_eq!((stable, high_watermark), (3, 5));
    let mut range = client.fetch_range(topic, 0, 0..high_watermark, FetchOptions::default());
    let waited = tokio::time::timeout(Duration::from_secs(3), read(&mut range)).await;
    assert!(waited.is_err(), "what is not decided is not read");
    assert_eq!(range.position(), stable);
    own.abandon_transactions();
}

#[tokio::test(flavor = "multi_thread")]
async fn oversize_record_is_fetched_up_to_the_cap_and_named_above_it() {
    const LARGE: usize = 12 << 20;
    let client = connect().await;
    let topic = new_topic(&client, 1, &[("max.message.bytes", "20000000")]).await;
    let producer = client.producer(ProducerConfig::default()).unwrap();
    let large = "x".repeat(LARGE);
    for value in ["before", &large, "after"] {
        let sent = producer
            .send(ProducerRecord::new(topic.clone(), value.to_owned()))
            .await;
        // Each in a batch of its own.
        producer.flush().await.unwrap();
        sent.unwrap().await.unwrap();
    }
    let small = ClientConfig {
        fetch_partition_max_bytes: 1 << 20,
        ..config(kafka())
    };
    let reader = Client::connect(small.clone()).await.unwrap();
    assert_eq!(read_all(&reader, &topic).await, ["before", &large, "after"]);

    let capped = ClientConfig {
        max_batch_bytes: 5 << 20,
        ..small
    };
    let reader = Client::connect(capped).await.unwrap();
    let mut range = reader.fetch_range(topic.clone(), 0, 0..3, FetchOptions::default());
    range.next().await.unwrap();
    let error = range.next().await.unwrap_err();
    let Error::BatchTooLarge {
        topic: named,
        partition,
        offset,
        size,
        cap,
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((named, partition, offset, cap), (topic, 0, 1, 5 << 20));
    assert!((LARGE..LARGE + 1000).contains(&size), "{size}");
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_too_large_for_the_topic_is_split_and_a_record_is_refused() {
    let client = connect().await;
    let topic = new_topic(&client, 1, &[("max.message.bytes", "10000")]).await;
    let producer = client.producer(ProducerConfig::default()).unwrap();
    let expected: Vec<String> = (0..100)
        .map(|n| format!("{n}-{}", "x".repeat(1000)))
        .collect();
    for value in &expected {
        producer
            .send(ProducerRecord::new(topic.clone(), value.clone()))
            .await
            .unwrap();
    }
    producer.flush().await.unwrap();
    let refused = ProducerRecord::new(topic.clone(), vec![b'x'; 20_000]);
    let refused = producer.send(refused).await.unwrap().await.unwrap_err();
    assert!(
        matches!(refused, Error::RecordTooLarge { cap: None, .. }),
        "{refused:?}"
    );
    let last = producer
        .send(ProducerRecord::new(topic.clone(), "last"))
        .await
        .unwrap();
    assert_eq!(last.await.unwrap().offset, 100);
    assert_eq!(read_all(&client, &topic).await[..100], expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_are_listed_by_place_and_time() {
    let client = connect().await;
    let topic = new_topic(&client, 2, &[]).await;
    for (prefix, timestamp_ms) in [("a", 1_000), ("b", 2_000), ("c", 3_000)] {
        let records = TestRecords {
            count: 10,
            prefix,
            timestamp_ms: Some(timestamp_ms),
            ..Default::default()
        };
        kafka().produce(topic.as_str(), 0, &records).unwrap();
    }
    client.delete_records(&topic, 0, 5).await.unwrap();
    let expected = [
        (OffsetSpec::Earliest, 5, 0),
        (OffsetSpec::Latest, 30, 0),
        (OffsetSpec::Timestamp(1_500), 10, -1),
        (OffsetSpec::Timestamp(3_000), 20, -1),
        (OffsetSpec::Timestamp(3_001), -1, -1),
    ];
    for (at, first, second) in expected {
        let isolation = IsolationLevel::ReadCommitted;
        let listed = client
            .list_offsets(&topic, &[0, 1], at, isolation)
            .await
            .unwrap();
        let found: Vec<i64> = listed
            .values()
            .map(|listed| listed.as_ref().unwrap().offset)
            .collect();
        assert_eq!(found, [first, second], "{at:?}");
    }
    let at = OffsetSpec::Timestamp(1_500);
    let listed = client
        .list_offsets(&topic, &[0, 9], at, IsolationLevel::default())
        .await;
    let mut listed = listed.unwrap();
    let found = listed.remove(&0).unwrap().unwrap();
    assert_eq!((found.timestamp, found.leader_epoch), (2_000, Some(0)));
    let missing = listed.remove(&9).unwrap().unwrap_err();
    assert!(
        matches!(missing, Error::UnknownPartition { partition: 9, .. }),
        "{missing:?}"
    );

    let mut range = client.fetch_range(topic.clone(), 0, 0..10, FetchOptions::default());
    let error = range.next().await.unwrap_err();
    let Error::OffsetOutOfRange {
        offset,
        log_start_offset,
        log_end_offset,
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((offset, log_start_offset, log_end_offset), (0, 5, 30));
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_epoch_has_an_end_and_an_unknown_one_has_none() {
    let client = connect().await;
    let topic = new_topic(&client, 1, &[]).await;
    let records = TestRecords {
        count: 7,
        ..Default::default()
    };
    kafka().produce(topic.as_str(), 0, &records).unwrap();
    let end = client.offset_for_leader_epoch(&topic, 0, 0).await.unwrap();
    assert_eq!((end.leader_epoch, end.end_offset), (0, 7));
    let unknown = client.offset_for_leader_epoch(&topic, 0, 99).await.unwrap();
    assert_eq!((unknown.leader_epoch, unknown.end_offset), (-1, -1));
}

#[tokio::test(flavor = "multi_thread")]
async fn group_offsets_are_committed_and_read_back() {
    let client = connect().await;
    let topic = new_topic(&client, 3, &[]).await;
    let group = random_topic("group");
    let partitions = [0, 1, 2];
    let none = client
        .committed_offsets(&group, &topic, &partitions)
        .await
        .unwrap();
    assert_eq!(none, BTreeMap::from([(0, None), (1, None), (2, None)]));
    let offsets = BTreeMap::from([(0, 5), (2, 0)]);
    client
        .commit_offsets(&group, &topic, &offsets)
        .await
        .unwrap();
    let found = client
        .committed_offsets(&group, &topic, &partitions)
        .await
        .unwrap();
    assert_eq!(
        found,
        BTreeMap::from([(0, Some(5)), (1, None), (2, Some(0))])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_made_described_grown_and_deleted() {
    let client = connect().await;
    let topic = new_topic(&client, 2, &[("retention.ms", "12345")]).await;
    // Apache Kafka answers a creation before every broker's metadata has the topic.
    let described = async {
        loop {
            let described = client.topics(Some(std::slice::from_ref(&topic))).await;
            let described = described.unwrap();
            assert_eq!(described.len(), 1);
            if described[0].error.is_none() {
                return described;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let described = tokio::time::timeout(Duration::from_secs(30), described).await;
    let described = described.expect("the topic in time");
    assert!(described[0].topic_id.is_some());
    assert_eq!(described[0].partitions.len(), 2);
    assert!(client.topics(None).await.unwrap().contains(&described[0]));
    let cluster = client.cluster().await.unwrap();
    assert!(cluster.cluster_id.is_some() && cluster.controller.is_some());

    let again = client.create_topic(&topic, 2, 1, &[]).await.unwrap_err();
    assert_eq!(again.code().unwrap().name(), "TOPIC_ALREADY_EXISTS");
    let config = client.topic_config(&topic, "retention.ms").await.unwrap();
    assert_eq!(config.as_deref(), Some("12345"));
    assert_eq!(
        client.topic_config(&topic, "no.such.key").await.unwrap(),
        None
    );

    let records = TestRecords {
        count: 100,
        ..Default::default()
    };
    kafka().produce(topic.as_str(), 1, &records).unwrap();
    let sizes = client.partition_sizes(&topic).await.unwrap();
    assert_eq!(sizes[&0], 0);
    assert!(sizes[&1] > 500, "{sizes:?}");

    client.create_partitions(&topic, 4).await.unwrap();
    let producer = client.producer(ProducerConfig::default()).unwrap();
    let record = ProducerRecord::new(topic.clone(), "new").with_partition(3);
    assert_eq!(
        producer
            .send(record)
            .await
            .unwrap()
            .await
            .unwrap()
            .partition,
        3
    );

    assert_eq!(client.delete_records(&topic, 1, 40).await.unwrap(), 40);
    client.delete_topic(&topic).await.unwrap();
    let error = client.delete_topic(&topic).await.unwrap_err();
    assert!(matches!(error, Error::UnknownTopic { .. }), "{error:?}");
    let error = client
        .topic_config(&topic, "retention.ms")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::UnknownTopic { .. }), "{error:?}");
    let options = FetchOptions::default();
    let error = client
        .fetch_range(topic.clone(), 0, 0..1, options)
        .next()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::UnknownTopic { .. }), "{error:?}");
}

/// A broker of its own behind a proxy that cuts connections all the time.
#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_neither_lose_nor_double() {
    const COUNT: usize = 3000;
    let own = Kafka::start(&KafkaOptions {
        proxied: true,
        ..KafkaOptions::default()
    })
    .unwrap();
    let endpoint = own.endpoints()[0];
    let upstream = format!("127.0.0.1:{}", endpoint.broker);
    let proxy = TcpProxy::start_on(endpoint.proxy, &upstream).await.unwrap();
    let bootstrap = proxy.address().to_string();
    let settings = ClientConfig {
        fetch_partition_max_bytes: 20_000,
        retry_deadline: Duration::from_secs(60),
        ..ClientConfig::new(&bootstrap)
    };
    let client = Client::connect(settings).await.unwrap();
    let topic = TopicName::new("cut").unwrap();
    client.create_topic(&topic, 1, 1, &[]).await.unwrap();

    // Answers to Produce have about 60 bytes.
    proxy.set(Fault::CutAnswersAfter(2_000));
    let producer = client
        .producer(ProducerConfig {
            batch_bytes: 1_000,
            ..ProducerConfig::default()
        })
        .unwrap();
    let expected: Vec<String> = (0..COUNT)
        .map(|n| format!("{n}-{}", "x".repeat(100)))
        .collect();
    for value in &expected {
        let record = ProducerRecord::new(topic.clone(), value.clone());
        producer.send(record.with_partition(0)).await.unwrap();
    }
    producer.flush().await.unwrap();
    let after_producing = proxy.connections();
    assert!(after_producing > 10, "{after_producing}");

    proxy.set(Fault::CutAnswersAfter(50_000));
    let options = FetchOptions::default();
    let end = i64::try_from(COUNT).unwrap();
    let mut range = client.fetch_range(topic.clone(), 0, 0..end, options);
    let (values, _) = read(&mut range).await;
    assert!(values == expected, "{} of {}", values.len(), expected.len());
    assert!(
        proxy.connections() > after_producing + 3,
        "{}",
        proxy.connections()
    );
    proxy.set(Fault::None);
    assert_eq!(
        end_of(&client, &topic, IsolationLevel::ReadCommitted).await,
        end
    );
}

/// Three brokers of its own: the leader is killed while records are produced and read.
#[tokio::test(flavor = "multi_thread")]
async fn killed_leader_is_replaced_without_loss() {
    const COUNT: usize = 2000;
    let options = KafkaOptions {
        brokers: 3,
        heap_mb: 384,
        ..KafkaOptions::default()
    };
    let mut own = Kafka::start(&options).unwrap();
    let settings = ClientConfig {
        retry_deadline: Duration::from_secs(90),
        ..config(&own)
    };
    let client = Client::connect(settings).await.unwrap();
    let topic = TopicName::new("moved").unwrap();
    client
        .create_topic(&topic, 1, 3, &[("min.insync.replicas", "2")])
        .await
        .unwrap();
    let producer = client
        .producer(ProducerConfig {
            batch_bytes: 2_000,
            ..ProducerConfig::default()
        })
        .unwrap();
    let options = FetchOptions::default();
    let end = i64::try_from(COUNT).unwrap();
    let mut range = client.fetch_range(topic.clone(), 0, 0..end, options);
    let expected: Vec<String> = (0..COUNT)
        .map(|n| format!("{n}-{}", "x".repeat(100)))
        .collect();
    let mut old_leader = None;
    for (index, value) in expected.iter().enumerate() {
        producer
            .send(ProducerRecord::new(topic.clone(), value.clone()))
            .await
            .unwrap();
        if index == COUNT / 2 {
            let described = client
                .topics(Some(std::slice::from_ref(&topic)))
                .await
                .unwrap();
            let leader = described[0].partitions[0].leader.unwrap();
            own.kill(usize::try_from(leader - 1).unwrap()).unwrap();
            old_leader = Some(leader);
        }
    }
    producer.flush().await.unwrap();
    let (values, _) = read(&mut range).await;
    assert!(values == expected, "{} of {}", values.len(), expected.len());
    let described = client
        .topics(Some(std::slice::from_ref(&topic)))
        .await
        .unwrap();
    let partition = &described[0].partitions[0];
    assert!(
        partition.leader.is_some() && partition.leader != old_leader,
        "{partition:?}"
    );
    assert_eq!(partition.leader_epoch, Some(1));
    let epoch = client.offset_for_leader_epoch(&topic, 0, 0).await.unwrap();
    assert!(
        epoch.leader_epoch == 0 && epoch.end_offset < end,
        "{epoch:?}"
    );
}
