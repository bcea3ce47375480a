//! Each client's program against each broker, its lines compared with the table, and its codecs with the log.

use std::fmt;
use std::time::Duration;

use broker_client::protocol::TopicName;
use broker_client::protocol::record::Compression;
use broker_client::{Client as OurClient, ClientConfig, FetchOptions, IsolationLevel, OffsetSpec};
use test_support::{Process, Scratch, random_topic};

use crate::expected::{CAPABILITIES, Cell, cell};
use crate::programs::Client;
use crate::target::Target;

/// The slowest takes 15 s; one that meets errors everywhere waits for each.
const PATIENCE: Duration = Duration::from_secs(240);

/// Codec of partition 0, 1, …
const CODECS: [(&str, Compression); 5] = [
    ("none", Compression::None),
    ("gzip", Compression::Gzip),
    ("snappy", Compression::Snappy),
    ("lz4", Compression::Lz4),
    ("zstd", Compression::Zstd),
];

/// What a client said of one capability.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    status: String,
    capability: String,
    text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.status, self.capability, self.text)
    }
}

macro_rules! smokes {
    ($($test:ident: $client:ident,)*) => {
        mod ours {
            $(#[test]
            fn $test() {
                super::check(super::Client::$client, &super::Target::ours());
            })*
        }

        mod apache_kafka {
            $(#[test]
            fn $test() {
                super::check(super::Client::$client, &super::Target::ApacheKafka);
            })*
        }
    };
}

smokes! {
    kcat: Kcat,
    confluent_kafka: ConfluentKafka,
    java: Java,
    franz_go: Franz,
    sarama: Sarama,
    kafkajs: Kafkajs,
    kafka_python: KafkaPython,
    aiokafka: Aiokafka,
}

fn check(client: Client, target: &Target) {
    let topic = random_topic(client.name());
    target.create_topic(&topic, 8);
    target.create_topic(&format!("{topic}-group"), 4);
    let printed = run(client, target.address(), &topic);
    let lines = lines(client, &printed);
    let mut problems = problems(client, target.is_ours(), &lines);
    for (partition, (name, codec)) in (0..).zip(CODECS) {
        let said = lines.iter().find(|line| line.capability == name);
        if said.is_some_and(|line| line.status == "ok") {
            let found = codecs(target.address(), &topic, partition);
            if found.is_empty() || found.iter().any(|found| *found != codec) {
                problems.push(format!("{name}: the log's batches are {found:?}"));
            }
        }
    }
    assert!(
        problems.is_empty(),
        "{}:\n{}\n\nit printed:\n{printed}\nthe broker's log:\n{}",
        client.name(),
        problems.join("\n"),
        target.log(),
    );
}

/// All that the client's program printed; it is killed if it takes too long.
fn run(client: Client, address: &str, topic: &str) -> String {
    let mut command = client.command();
    command.args([address, topic]);
    let folder = Scratch::new("logferry-smoke-").unwrap();
    let mut process = Process::start(client.name(), &command, &folder.path().join("log")).unwrap();
    let ended = test_support::wait_until(PATIENCE, || !process.is_running());
    process.kill().unwrap();
    let printed = process.output().unwrap();
    match ended {
        Ok(()) => printed,
        Err(_) => format!("{printed}\n(killed after {PATIENCE:?})\n"),
    }
}

fn lines(client: Client, printed: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    for line in printed.lines() {
        let mut words = line.splitn(4, ' ');
        let (Some(status), Some(name), Some(capability)) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if ["ok", "ERR", "n/a"].contains(&status) && name == client.name() {
            lines.push(Line {
                status: status.to_owned(),
                capability: capability.to_owned(),
                text: words.next().unwrap_or_default().to_owned(),
            });
        }
    }
    lines
}

/// One sentence for each cell that is not as expected.
fn problems(client: Client, ours: bool, lines: &[Line]) -> Vec<String> {
    let mut problems = Vec::new();
    for (capability, _) in CAPABILITIES {
        let said: Vec<&Line> = lines
            .iter()
            .filter(|line| line.capability == capability)
            .collect();
        let [line] = said[..] else {
            problems.push(format!("{capability}: {} lines instead of one", said.len()));
            continue;
        };
        match (cell(client, capability, ours), line.status.as_str()) {
            (Cell::Works, "ok") | (Cell::ClientLacks(_), "n/a") | (Cell::Gap(_), "ERR") => {}
            (Cell::Gap(reason), "ok") => problems.push(format!(
                "{capability} works now: take it out of KNOWN_GAPS, where it has the reason \"{reason}\""
            )),
            (expected, _) => problems.push(format!("{line}, expected: {expected:?}")),
        }
    }
    for line in lines {
        if !CAPABILITIES
            .iter()
            .any(|(name, _)| *name == line.capability)
        {
            problems.push(format!("{line}: no such capability"));
        }
    }
    problems
}

/// The codecs of all batches of a partition.
fn codecs(address: &str, topic: &str, partition: i32) -> Vec<Compression> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = OurClient::connect(ClientConfig::new(address))
            .await
            .unwrap();
        let topic = TopicName::new(topic).unwrap();
        let mut ends = Vec::new();
        for spec in [OffsetSpec::Earliest, OffsetSpec::Latest] {
            let isolation = IsolationLevel::ReadUncommitted;
            let listed = client
                .list_offsets(&topic, &[partition], spec, isolation)
                .await;
            ends.push(listed.unwrap().remove(&partition).unwrap().unwrap().offset);
        }
        let options = FetchOptions::default();
        let mut range = client.fetch_range(topic, partition, ends[0]..ends[1], options);
        let mut found = Vec::new();
        while let Some(batch) = range.next().await.unwrap() {
            found.push(batch.batch.header().compression().unwrap());
        }
        found
    })
}

#[test]
fn a_missing_a_failed_a_mended_and_an_unknown_cell_are_each_named() {
    let client = Client::Kcat;
    let all = |ours: bool| {
        let line = |(capability, _): (&str, &str)| Line {
            status: match cell(client, capability, ours) {
                Cell::Works => "ok".to_owned(),
                Cell::ClientLacks(_) => "n/a".to_owned(),
                Cell::Gap(_) => "ERR".to_owned(),
            },
            capability: capability.to_owned(),
            text: String::new(),
        };
        CAPABILITIES.map(line).to_vec()
    };
    assert_eq!(problems(client, true, &all(true)), Vec::<String>::new());
    assert_eq!(problems(client, false, &all(false)), Vec::<String>::new());

    let mut lines = all(false);
    lines[0].status = "ERR".to_owned();
    lines[1].capability = "brotli".to_owned();
    lines.push(lines[2].clone());
    let found = problems(client, false, &lines).join("\n");
    for problem in [
        "ERR none",
        "gzip: 0 lines",
        "snappy: 2 lines",
        "ok brotli : no such",
    ] {
        assert!(
            found.contains(problem),
            "`{problem}` is missing in:\n{found}"
        );
    }
}

#[test]
fn a_gap_that_works_now_must_be_taken_out() {
    for client in crate::programs::CLIENTS {
        for (capability, _) in CAPABILITIES {
            if let Cell::Gap(_) = cell(client, capability, true) {
                let line = Line {
                    status: "ok".to_owned(),
                    capability: capability.to_owned(),
                    text: String::new(),
                };
                let found = problems(client, true, &[line]).join("\n");
                assert!(found.contains("take it out of KNOWN_GAPS"), "{found}");
            }
        }
    }
}
