//! Kafka's command lines and load generators, by their Java classes, and what they print.

use test_support::kafka;

use crate::target::Target;

const CONFIGS: &str = "kafka.admin.ConfigCommand";
const CONSUMER_GROUPS: &str = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
const CONSUMER_PERFORMANCE: &str = "org.apache.kafka.tools.ConsumerPerformance";
const DELETE_RECORDS: &str = "org.apache.kafka.tools.DeleteRecordsCommand";
const GET_OFFSETS: &str = "org.apache.kafka.tools.GetOffsetShell";
const LOG_DIRS: &str = "org.apache.kafka.tools.LogDirsCommand";
const PRODUCER_PERFORMANCE: &str = "org.apache.kafka.tools.ProducerPerformance";
const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";

const RECORDS: &str = "3000";

#[test]
#[ignore = "some minutes of JVMs: tests/long tools"]
fn long_tools_ours() {
    let problems = run_all(&Target::ours());
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

#[test]
#[ignore = "some minutes of JVMs: tests/long tools"]
fn long_tools_apache_kafka() {
    let problems = run_all(&Target::ApacheKafka);
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

/// The tools in an order in which each finds what the one before left. One sentence for each that failed.
fn run_all(target: &Target) -> Vec<String> {
    let topic = test_support::random_topic("tools");
    let mut tools = Tools {
        address: target.address(),
        topic: &topic,
        problems: Vec::new(),
    };
    topics(&mut tools);
    performance(&mut tools);
    configs(&mut tools);
    consumer_groups(&mut tools);
    offsets_and_records(&mut tools);
    tools.on_topic(TOPICS, &["--delete"], &[]);
    tools.problems
}

fn topics(tools: &mut Tools<'_>) {
    let create = ["--create", "--partitions", "2", "--replication-factor", "1"];
    let with_config = [&create[..], &["--config", "retention.ms=3600000"]].concat();
    tools.on_topic(TOPICS, &with_config, &["Created topic"]);
    tools.fails_on_topic(TOPICS, &create, &["already exists"]);
    tools.on_topic(TOPICS, &["--alter", "--partitions", "3"], &[]);
    let described = [
        "PartitionCount: 3",
        "retention.ms=3600000",
        "Leader: 1",
        "Isr: 1",
    ];
    tools.on_topic(TOPICS, &["--describe"], &described);
    tools.on_topic(TOPICS, &["--list"], &[tools.topic]);
}

fn performance(tools: &mut Tools<'_>) {
    let properties = format!("bootstrap.servers={}", tools.address);
    let (size, rate) = (["--record-size", "200"], ["--throughput", "-1"]);
    let produce = ["--topic", tools.topic, "--num-records", RECORDS];
    let producer = [
        &produce[..],
        &size,
        &rate,
        &["--command-property", &properties],
    ]
    .concat();
    tools.run(PRODUCER_PERFORMANCE, &producer, &["3000 records sent"]);
    let read = [
        "--num-records",
        RECORDS,
        "--group",
        "perf",
        "--timeout",
        "20000",
    ];
    let printed = tools.on_topic(CONSUMER_PERFORMANCE, &read, &["nMsg.sec"]);
    let all = printed
        .lines()
        .any(|line| line.split(", ").any(|field| field == RECORDS));
    tools.expect(
        all,
        "ConsumerPerformance",
        "did not read 3000 records",
        &printed,
    );
}

fn configs(tools: &mut Tools<'_>) {
    let topic = ["--entity-type", "topics", "--entity-name", tools.topic];
    let mut change = |what: [&str; 2], shown: &str| {
        let alter = [&topic[..], &["--alter"], &what].concat();
        tools.connected(CONFIGS, &alter, &["Completed updating config"]);
        let describe = [&topic[..], &["--describe"]].concat();
        tools.connected(CONFIGS, &describe, &[shown]);
    };
    change(
        ["--add-config", "max.message.bytes=123456"],
        "max.message.bytes=123456",
    );
    change(
        ["--add-config", "cleanup.policy=[compact,delete]"],
        "cleanup.policy=compact,delete",
    );
    change(
        ["--delete-config", "cleanup.policy"],
        "max.message.bytes=123456",
    );
}

/// On the group that `ConsumerPerformance` left, whose offsets are at the ends.
fn consumer_groups(tools: &mut Tools<'_>) {
    let group = ["--group", "perf"];
    tools.connected(CONSUMER_GROUPS, &["--list"], &["perf"]);
    let describe = [&group[..], &["--describe"]].concat();
    tools.connected(CONSUMER_GROUPS, &describe, &[tools.topic]);
    let state = [&describe[..], &["--state"]].concat();
    tools.connected(CONSUMER_GROUPS, &state, &["Empty"]);
    let reset = [
        &group[..],
        &["--reset-offsets", "--execute", "--topic", tools.topic],
    ]
    .concat();
    let to_start = [&reset[..], &["--to-earliest"]].concat();
    let printed = tools.connected(CONSUMER_GROUPS, &to_start, &[tools.topic]);
    let rows: Vec<&str> = printed
        .lines()
        .filter(|line| line.contains(tools.topic))
        .collect();
    let zero = |row: &&str| row.split_whitespace().nth(3) == Some("0");
    let all = rows.len() == 3 && rows.iter().all(zero);
    tools.expect(
        all,
        "reset to earliest",
        "three rows with the new offset 0",
        &printed,
    );
    let by_one = [&reset[..], &["--shift-by", "1"]].concat();
    tools.connected(CONSUMER_GROUPS, &by_one, &[tools.topic]);
    let forget = [&group[..], &["--delete-offsets", "--topic", tools.topic]].concat();
    tools.connected(CONSUMER_GROUPS, &forget, &["Successful"]);
    let delete = [&group[..], &["--delete"]].concat();
    tools.connected(CONSUMER_GROUPS, &delete, &["was successful"]);
}

fn offsets_and_records(tools: &mut Tools<'_>) {
    let ends = tools.on_topic(GET_OFFSETS, &[], &[]);
    let sum: u32 = ends
        .lines()
        .filter_map(|line| line.rsplit(':').next()?.parse::<u32>().ok())
        .sum();
    tools.expect(
        sum == 3_000,
        "GetOffsetShell",
        "the ends do not add up to 3000",
        &ends,
    );
    let dirs = tools.connected(LOG_DIRS, &["--describe", "--topic-list", tools.topic], &[]);
    let partition = format!("\"partition\":\"{}-2\"", tools.topic);
    tools.expect(
        dirs.contains(&partition),
        "LogDirsCommand",
        "the partition is missing",
        &dirs,
    );

    let mut file = tempfile::NamedTempFile::new().unwrap();
    let row = format!(r#"{{"topic":"{}","partition":0,"offset":7}}"#, tools.topic);
    let text = format!(r#"{{"partitions":[{row}],"version":1}}"#);
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    // More records may lie in the other partitions than in this one.
    let end_of_0 = ends
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{}:0:", tools.topic)));
    if end_of_0.is_some_and(|end| end.parse::<u32>().unwrap() >= 7) {
        tools.connected(
            DELETE_RECORDS,
            &["--offset-json-file", path],
            &["low_watermark: 7"],
        );
        let start = format!("{}:0:7", tools.topic);
        tools.on_topic(GET_OFFSETS, &["--time", "earliest"], &[&start]);
    } else {
        tools
            .problems
            .push(format!("partition 0 has no records to delete:\n{ends}"));
    }
}

struct Tools<'a> {
    address: &'a str,
    topic: &'a str,
    problems: Vec<String>,
}

impl Tools<'_> {
    /// Runs a tool that must end well and print these texts. Returns what it printed.
    fn run(&mut self, class: &str, arguments: &[&str], texts: &[&str]) -> String {
        let (ended_well, printed) = output(class, arguments);
        self.judge(class, arguments, ended_well, texts, &printed);
        printed
    }

    fn connected(&mut self, class: &str, arguments: &[&str], texts: &[&str]) -> String {
        let address = self.address;
        self.run(
            class,
            &[&["--bootstrap-server", address], arguments].concat(),
            texts,
        )
    }

    fn on_topic(&mut self, class: &str, arguments: &[&str], texts: &[&str]) -> String {
        let topic = self.topic;
        let named = arguments.contains(&"--list");
        let topic = if named {
            vec![]
        } else {
            vec!["--topic", topic]
        };
        self.connected(class, &[&topic, arguments].concat(), texts)
    }

    fn fails_on_topic(&mut self, class: &str, arguments: &[&str], texts: &[&str]) {
        let connection = ["--bootstrap-server", self.address, "--topic", self.topic];
        let arguments = [&connection, arguments].concat();
        let (ended_well, printed) = output(class, &arguments);
        self.judge(class, &arguments, !ended_well, texts, &printed);
    }

    fn judge(
        &mut self,
        class: &str,
        arguments: &[&str],
        fine: bool,
        texts: &[&str],
        printed: &str,
    ) {
        let missing: Vec<&&str> = texts
            .iter()
            .filter(|text| !printed.contains(**text))
            .collect();
        let what = format!("{class} {}", arguments.join(" "));
        let trouble = match fine {
            true => format!("{missing:?} is missing"),
            false => "the exit code is another".to_owned(),
        };
        self.expect(fine && missing.is_empty(), &what, &trouble, printed);
    }

    fn expect(&mut self, fine: bool, what: &str, trouble: &str, printed: &str) {
        if !fine {
            let end = test_support::process::tail(printed, 12);
            self.problems
                .push(format!("{what}: {trouble}; it printed:\n{end}"));
        }
    }
}

/// Whether a tool ended with 0, and all that it printed. Each has time-outs of its own, a minute at most.
fn output(class: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = kafka().tool_command(class);
    let output = command
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&printed).into_owned(),
    )
}
