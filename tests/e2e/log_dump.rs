//! Apache Kafka's own `DumpLogSegments`, deep and with the indexes, over a log directory of ours that has seen everything:
//! all codecs, idempotent producers, compaction with tombstones, a group's commits, a kill and a torn tail.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use broker_client::protocol::ids::TopicName;
use broker_client::protocol::record::Compression;
use broker_client::{Client, ClientConfig, FetchedBatch, ProducerConfig, ProducerRecord};
use tokio::runtime::Runtime;

use crate::harness::{OurBroker, assert_success, list, read_partition};

const CODECS: [Compression; 5] = [
    Compression::None,
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];

/// Records of each codec in each partition.
const RECORDS: usize = 400;

/// Commits of the group, of two partitions each.
const COMMITS: i64 = 6;

const PATIENCE: Duration = Duration::from_secs(60);

/// What the dump says of a record, a line each.
const RECORD: &str = "| offset: ";

#[test]
fn kafkas_dump_finds_nothing_wrong_and_as_many_records_as_there_are() {
    let runtime = Runtime::new().unwrap();
    let mut broker = OurBroker::start_with(&[
        // Only what has been flushed is compacted.
        ("LOGFERRY__BROKER__FLUSH_INTERVAL", "100ms"),
        ("LOGFERRY__BROKER__COMPACTION_INTERVAL", "100ms"),
    ]);
    broker.create_topic("codecs", 2, &["segment.bytes=65536"]);
    let compact = [
        "cleanup.policy=compact",
        "segment.bytes=16384",
        "min.cleanable.dirty.ratio=0.01",
    ];
    broker.create_topic("compacted", 1, &compact);
    let client = runtime.block_on(connect(&broker));
    runtime.block_on(async {
        fill(&client).await;
        compacted(&client).await;
    });
    broker.kill();
    let torn = tear(&broker.folder().join("data/codecs-0"));
    broker.start_again();
    let recovered = || broker.log().contains("broker is ready");
    test_support::wait_until(PATIENCE, recovered).unwrap();
    let log = broker.log();
    assert!(
        log.contains(&format!(", {torn} bytes cut at offset")),
        "{log}"
    );
    let expected = runtime.block_on(async {
        // A client of the old process would have to find out first.
        let client = connect(&broker).await;
        produce(&client, "codecs", Compression::Zstd, 50).await;
        commit(&client, COMMITS - 1).await;
        let mut expected = BTreeMap::new();
        for (topic, partition) in [("codecs", 0), ("codecs", 1), ("compacted", 0)] {
            let read = read(&client, topic, partition).await;
            let records = read
                .iter()
                .map(|fetched| fetched.batch.header().records_count);
            expected.insert(format!("{topic}-{partition}"), records.sum::<i32>());
        }
        expected
    });
    let (_, dir) = broker.stop_cleanly();
    let data = dir.path().join("data");
    check_records(&data, &expected);
    check_indexes(&data);
    check_offsets(&data);
}

async fn connect(broker: &OurBroker) -> Client {
    Client::connect(ClientConfig::new(&broker.address))
        .await
        .unwrap()
}

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

async fn fill(client: &Client) {
    for codec in CODECS {
        produce(client, "codecs", codec, RECORDS).await;
    }
    for round in 0..COMMITS - 1 {
        commit(client, round).await;
    }
}

async fn commit(client: &Client, offset: i64) {
    let offsets = BTreeMap::from([(0, offset), (1, offset)]);
    client
        .commit_offsets("readers", &topic("codecs"), &offsets)
        .await
        .unwrap();
}

/// Records of a producer of its own to both partitions, in batches of some kilobytes.
async fn produce(client: &Client, name: &str, compression: Compression, records: usize) {
    let config = ProducerConfig {
        compression,
        batch_bytes: 4_000,
        ..ProducerConfig::default()
    };
    let producer = client.producer(config).unwrap();
    for number in 0..records {
        for partition in 0..2 {
            let value = format!("{compression} {number} ").repeat(12);
            let record = ProducerRecord::new(topic(name), value).with_partition(partition);
            producer.send(record).await.unwrap();
        }
    }
    producer.flush().await.unwrap();
}

/// Values and tombstones, until a compacted batch says when its tombstones may go.
async fn compacted(client: &Client) {
    let producer = client.producer(ProducerConfig {
        batch_bytes: 2_000,
        ..ProducerConfig::default()
    });
    let producer = producer.unwrap();
    for number in 0..600 {
        let key = format!("key {}", number % 20);
        let record = if (300..305).contains(&number) {
            ProducerRecord::tombstone(topic("compacted")).with_key(format!("gone {number}"))
        } else {
            ProducerRecord::new(topic("compacted"), "value ".repeat(25)).with_key(key)
        };
        producer.send(record.with_partition(0)).await.unwrap();
    }
    producer.flush().await.unwrap();
    let done = test_support::wait_until_async(PATIENCE, || async {
        let read = read(client, "compacted", 0).await;
        read.iter()
            .any(|fetched| fetched.batch.header().delete_horizon_ms().is_some())
    });
    done.await.unwrap();
}

async fn read(client: &Client, name: &str, partition: i32) -> Vec<FetchedBatch> {
    read_partition(client, &topic(name), partition).await
}

/// Appends the beginning of a batch to a partition's last segment, as a kill in mid-write may leave it. Its length.
pub(crate) fn tear(folder: &Path) -> usize {
    let last = files(folder, &["log"]).pop().unwrap();
    let begin = fs::read(&last).unwrap().into_iter().take(100);
    let torn: Vec<u8> = begin.collect();
    let mut file = fs::File::options().append(true).open(&last).unwrap();
    file.write_all(&torn).unwrap();
    torn.len()
}

/// A partition's files with these suffixes, in order.
fn files(folder: &Path, suffixes: &[&str]) -> Vec<PathBuf> {
    let names = list(folder);
    let named = names.iter().map(|name| folder.join(name));
    let wanted = named.filter(|path| {
        suffixes
            .iter()
            .any(|s| path.extension().is_some_and(|e| e == *s))
    });
    wanted.collect()
}

/// Runs the tool over files; what it printed, by file. Its complaints are in its log, and it exits with 0 even so.
fn dump(files: &[PathBuf], more: &[&str]) -> BTreeMap<PathBuf, String> {
    let paths: Vec<&str> = files.iter().map(|path| path.to_str().unwrap()).collect();
    let mut command = test_support::kafka().tool_command("org.apache.kafka.tools.DumpLogSegments");
    command.args(more).args(["--files", &paths.join(",")]);
    let printed = sound_dump(command.output().unwrap());
    let of_files = printed.split("Dumping ").skip(1);
    let parts: BTreeMap<PathBuf, String> = of_files
        .map(|part| {
            let (name, rest) = part.split_once('\n').unwrap();
            (PathBuf::from(name.trim()), rest.to_owned())
        })
        .collect();
    assert_eq!(parts.len(), files.len(), "{printed}");
    parts
}

/// What the tool printed of logs in which it found nothing wrong, on either stream.
pub(crate) fn sound_dump(output: Output) -> String {
    assert_success(&output);
    assert_no_complaint(&String::from_utf8(output.stderr).unwrap());
    let printed = String::from_utf8(output.stdout).unwrap();
    for bad in [
        "isvalid: false",
        "ismatch",
        "Found ",
        "Exception",
        "Could not",
    ] {
        assert!(!printed.contains(bad), "{bad}: {printed}");
    }
    printed
}

/// Nothing is said but that offsets do not follow each other: at the start of each file that does not begin with
/// offset 0, and where compaction has removed records.
fn assert_no_complaint(said: &str) {
    let mut compacted = false;
    for line in said.lines() {
        if let Some(file) = line.strip_prefix("Non-consecutive offsets in ") {
            compacted = file.contains("/compacted-0/");
            continue;
        }
        let gap = line.trim().split_once(" is followed by ");
        let expected = gap.is_some_and(|(before, _)| before == "-1" || compacted);
        assert!(expected, "{said}");
    }
}

/// Every batch and record of the logs and the snapshots, each index entry against its log.
fn check_records(data: &Path, expected: &BTreeMap<String, i32>) {
    let mut all = Vec::new();
    for partition in expected.keys() {
        let suffixes = ["log", "index", "timeindex", "snapshot"];
        all.extend(files(&data.join(partition), &suffixes));
    }
    let printed = dump(&all, &["--deep-iteration", "--verify-index-only"]);
    for (partition, expected) in expected {
        let of = |suffix: &str| -> String {
            let here = |path: &Path| path.starts_with(data.join(partition));
            let wanted = |path: &Path| path.extension().is_some_and(|found| found == suffix);
            let parts = printed
                .iter()
                .filter(|(path, _)| here(path) && wanted(path));
            parts.map(|(_, part)| part.as_str()).collect()
        };
        let (log, snapshots) = (of("log"), of("snapshot"));
        let records = log.lines().filter(|line| line.starts_with(RECORD)).count();
        assert_eq!(
            records,
            usize::try_from(*expected).unwrap(),
            "{partition}: {log}"
        );
        assert!(
            snapshots.contains("producerId: "),
            "{partition}: {snapshots}"
        );
        assert!(log.contains("sequence: "), "{partition}");
        if partition == "compacted-0" {
            assert!(log.contains("deleteHorizonMs: OptionalLong["), "{log}");
            let tombstones = log.lines().filter(|line| line.contains("valueSize: -1"));
            assert_eq!(tombstones.count(), 5, "{log}");
        } else {
            assert_eq!(records, CODECS.len() * RECORDS + 50);
            for codec in CODECS {
                assert!(
                    log.contains(&format!("compresscodec: {codec}")),
                    "{codec}: {log}"
                );
            }
        }
    }
}

/// The check that a broker of Kafka makes when it opens an index.
fn check_indexes(data: &Path) {
    let mut all = Vec::new();
    for partition in ["codecs-0", "codecs-1", "compacted-0"] {
        all.extend(files(&data.join(partition), &["index", "timeindex"]));
    }
    let printed = dump(&all, &["--index-sanity-check"]);
    for (path, part) in printed {
        let sound = part.contains("passed sanity check") || part.contains("is empty");
        assert!(sound, "{}: {part}", path.display());
    }
}

/// The group's commits, decoded.
fn check_offsets(data: &Path) {
    let partitions = list(data)
        .into_iter()
        .filter(|name| name.starts_with("__consumer_offsets-"));
    let logs = partitions.flat_map(|name| files(&data.join(name), &["log"]));
    let filled: Vec<PathBuf> = logs
        .filter(|path| fs::metadata(path).unwrap().len() > 0)
        .collect();
    assert!(!filled.is_empty());
    let printed: String = dump(&filled, &["--offsets-decoder"])
        .into_values()
        .collect();
    let commits = printed.lines().filter(|line| {
        line.contains("\"group\":\"readers\"") && line.contains("\"topic\":\"codecs\"")
    });
    assert_eq!(
        i64::try_from(commits.count()).unwrap(),
        2 * COMMITS,
        "{printed}"
    );
}
