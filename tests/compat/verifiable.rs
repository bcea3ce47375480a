//! Kafka's verifiable producer and consumer while the broker is killed: what was acknowledged is there, once, in order.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use broker_client::protocol::TopicName;
use broker_client::{Client, ClientConfig, FetchOptions, IsolationLevel, OffsetSpec};
use serde_json::Value;
use test_support::{Process, Scratch, kafka, random_topic, wait_until};

use crate::target::Target;

const RECORDS: usize = 20_000;
/// A second: the run takes ten seconds, more by the times that the broker is away.
const THROUGHPUT: &str = "2000";
const KILLS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(180);

/// It would send each record once only; as most producers, it shall go on where the broker comes back.
const PRODUCER: &str = "enable.idempotence=true\nretries=2147483647\ndelivery.timeout.ms=120000\n\
     request.timeout.ms=5000\nmax.in.flight.requests.per.connection=5\nreconnect.backoff.max.ms=200\n";

#[test]
#[ignore = "minutes: tests/long verifiable"]
fn long_verifiable_ours() {
    check(Target::ours());
}

#[test]
#[ignore = "minutes: tests/long verifiable"]
fn long_verifiable_apache_kafka() {
    check(Target::own_apache_kafka());
}

#[expect(
    clippy::print_stdout,
    reason = "what a long test came to is for its reader"
)]
fn check(mut target: Target) {
    let topic = random_topic("verifiable");
    target.create_topic(&topic, 3);
    let folder = Scratch::new("logferry-verifiable-").unwrap();
    let acknowledged = produce_under_kills(&mut target, &topic, &folder);
    let count: usize = acknowledged.values().map(BTreeMap::len).sum();
    println!("{count} records acknowledged while the broker was killed {KILLS} times");
    assert_eq!(count, RECORDS, "each was to be acknowledged in the end");

    // What the producer wrote in which order: its values are the numbers from 0 on.
    let logged = read_log(target.address(), &topic);
    for (partition, records) in &acknowledged {
        let values: Vec<u64> = logged[partition].values().copied().collect();
        assert!(
            values.is_sorted(),
            "partition {partition} is out of order, or holds a record twice"
        );
        let same = logged[partition] == *records;
        assert!(
            same,
            "partition {partition}: the log is not what was acknowledged"
        );
    }
    let consumed = consume(&target, &topic, &folder);
    assert_eq!(
        consumed, acknowledged,
        "what the consumer got, by partition and offset"
    );
}

/// Offset → value, by partition.
type Records = BTreeMap<i32, BTreeMap<i64, u64>>;

fn produce_under_kills(target: &mut Target, topic: &str, folder: &Scratch) -> Records {
    let settings = folder.path().join("producer.properties");
    std::fs::File::create(&settings)
        .unwrap()
        .write_all(PRODUCER.as_bytes())
        .unwrap();
    let mut command = kafka().tool_command("org.apache.kafka.tools.VerifiableProducer");
    command
        .args([
            "--bootstrap-server",
            target.address(),
            "--topic",
            topic,
            "--acks",
            "-1",
        ])
        .args([
            "--max-messages",
            &RECORDS.to_string(),
            "--throughput",
            THROUGHPUT,
        ])
        .arg("--command-config")
        .arg(settings);
    let producer =
        Process::start("producer", &command, &folder.path().join("producer.log")).unwrap();
    for kill in 1..=KILLS {
        let enough = RECORDS * kill / (KILLS + 1);
        let reached = || named(&producer, "producer_send_success").len() >= enough;
        let reached = wait_until(PATIENCE, reached);
        assert!(
            reached.is_ok(),
            "{enough} records were not acknowledged in {PATIENCE:?}: {}",
            end(&producer)
        );
        target.kill_and_restart();
    }
    let ended = wait_until(PATIENCE, || !producer.is_running());
    assert!(
        ended.is_ok(),
        "the producer does not end: {}",
        end(&producer)
    );
    let errors = named(&producer, "producer_send_error");
    assert!(
        errors.is_empty(),
        "{} errors, the first: {}\n{}",
        errors.len(),
        errors[0],
        target.log()
    );
    let mut records = Records::new();
    for success in named(&producer, "producer_send_success") {
        let (partition, offset, value) = place(&success);
        let before = records.entry(partition).or_default().insert(offset, value);
        assert_eq!(
            before, None,
            "two records acknowledged at {partition}:{offset}"
        );
    }
    records
}

fn consume(target: &Target, topic: &str, folder: &Scratch) -> Records {
    let mut command = kafka().tool_command("org.apache.kafka.tools.VerifiableConsumer");
    command
        .args([
            "--bootstrap-server",
            target.address(),
            "--topic",
            topic,
            "--verbose",
        ])
        .args(["--group-id", "verifiable", "--group-protocol", "classic"])
        .args([
            "--reset-policy",
            "earliest",
            "--max-messages",
            &RECORDS.to_string(),
        ]);
    let consumer =
        Process::start("consumer", &command, &folder.path().join("consumer.log")).unwrap();
    let ended = wait_until(PATIENCE, || !consumer.is_running());
    assert!(
        ended.is_ok(),
        "the consumer does not end: {}",
        end(&consumer)
    );
    let mut records = Records::new();
    let mut newest = BTreeMap::new();
    for record in named(&consumer, "record_data") {
        let (partition, offset, value) = place(&record);
        let before = newest.insert(partition, offset);
        assert!(
            before < Some(offset),
            "partition {partition}: {offset} after {before:?}"
        );
        records.entry(partition).or_default().insert(offset, value);
    }
    records
}

/// Everything in the log, read by our own client.
fn read_log(address: &str, topic: &str) -> Records {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::connect(ClientConfig::new(address)).await.unwrap();
        let topic = TopicName::new(topic).unwrap();
        let isolation = IsolationLevel::ReadUncommitted;
        let ends = client
            .list_offsets(&topic, &[0, 1, 2], OffsetSpec::Latest, isolation)
            .await;
        let mut records = Records::new();
        for (partition, end) in ends.unwrap() {
            let range = 0..end.unwrap().offset;
            let options = FetchOptions::default();
            let mut range = client.fetch_range(topic.clone(), partition, range, options);
            while let Some(batch) = range.next().await.unwrap() {
                let base = batch.batch.header().base_offset;
                let values = batch.batch.records(64 << 20).unwrap();
                for (offset, record) in (base..).zip(&values) {
                    let value = record.unwrap().value.unwrap().to_vec();
                    let value = String::from_utf8(value).unwrap().parse().unwrap();
                    records.entry(partition).or_default().insert(offset, value);
                }
            }
        }
        records
    })
}

/// What a tool printed under this name.
fn named(tool: &Process, name: &str) -> Vec<Value> {
    let printed = tool.output().unwrap();
    // The last line may be half written.
    let lines = printed.lines().filter(|line| line.contains(name));
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn place(record: &Value) -> (i32, i64, u64) {
    let number = |key: &str| record[key].as_i64().unwrap();
    let value = record["value"].as_str().unwrap().parse().unwrap();
    (
        i32::try_from(number("partition")).unwrap(),
        number("offset"),
        value,
    )
}

fn end(tool: &Process) -> String {
    test_support::process::tail(&tool.output().unwrap(), 10)
}
