//! A real Apache Kafka: one or three KRaft nodes, each broker and controller, on the loopback address.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::java::{Answer, Helper, compile, java};
use crate::process::{Process, Scratch, tail};
use crate::service::{LazyHelper, read_note, write_note};
use crate::{jars, net};

/// From the start of a JVM to "Kafka Server started"; 4.5 to 8 s on an idle machine of two cores.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A controlled shutdown hands over leadership first.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

const READY_LINE: &str = "Kafka Server started";

/// Log lines to standard output with the level; the same file for the broker and its tools.
const LOG4J: &str = "\
status = warn
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = ${sys:logferry.level:-info}
rootLogger.appenderRef.console.ref = console
";

/// What kind of cluster to start.
#[derive(Debug, Clone)]
pub struct KafkaOptions {
    /// Number of nodes: 1, or 3 for replication and leader changes.
    pub brokers: usize,
    /// Broker properties beside the usual ones; the later of two with one name wins.
    pub properties: Vec<(String, String)>,
    /// Gives each broker a second listener whose advertised address is [`Endpoint::proxy`], for a
    /// [`crate::TcpProxy`] there: clients that bootstrap through the proxy then stay behind it.
    pub proxied: bool,
    /// More listeners on the loopback address, each named by its security protocol, such as `SASL_SSL`, with its
    /// port; for one broker. What they need beside is in `properties`.
    pub listeners: Vec<(&'static str, u16)>,
    /// Arguments for the tool that formats the storage, such as `--add-scram` and its value.
    pub format: Vec<String>,
    /// Heap of each broker in MiB.
    pub heap_mb: u32,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            brokers: 1,
            properties: Vec::new(),
            proxied: false,
            listeners: Vec::new(),
            format: Vec::new(),
            heap_mb: 768,
        }
    }
}

/// The two ends a proxy before a broker connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The port on the loopback address that the broker advertises, where the proxy should listen.
    pub proxy: u16,
    /// The port where the broker listens for the proxy.
    pub broker: u16,
}

/// A cluster. Dropping it kills its brokers and removes their data, unless another process started them.
#[derive(Debug)]
pub struct Kafka {
    helper: LazyHelper,
    nodes: Vec<Node>,
    bootstrap: String,
    jars: PathBuf,
    folder: PathBuf,
    heap_mb: u32,
    /// After the processes, because it is dropped after them.
    _scratch: Option<Scratch>,
}

#[derive(Debug)]
struct Node {
    name: String,
    properties: PathBuf,
    endpoint: Option<Endpoint>,
    process: Option<Process>,
}

impl Kafka {
    /// Starts a cluster of its own and waits until every broker serves.
    ///
    /// # Errors
    /// If the jars cannot be had, or a broker does not come up within two minutes (with the end of its log).
    pub fn start(options: &KafkaOptions) -> Result<Self> {
        ensure!(options.brokers > 0, "a cluster has at least one broker");
        let jars = jars::KAFKA.fetch()?;
        for _ in 0..2 {
            match Self::start_on_free_ports(options, &jars) {
                // Somebody else was quicker to take a port that was free a moment ago.
                Err(error) if format!("{error:#}").contains("Address already in use") => {}
                outcome => return outcome,
            }
        }
        Self::start_on_free_ports(options, &jars)
    }

    /// A cluster that another process started and whose folder this is.
    pub(crate) fn attach(folder: &Path) -> Result<Self> {
        Ok(Self {
            helper: LazyHelper::default(),
            nodes: Vec::new(),
            bootstrap: read_note(folder, "bootstrap")?,
            jars: PathBuf::from(read_note(folder, "jars")?),
            folder: folder.to_owned(),
            heap_mb: 0,
            _scratch: None,
        })
    }

    fn start_on_free_ports(options: &KafkaOptions, jars: &Path) -> Result<Self> {
        let scratch = Scratch::new("logferry-kafka-")?;
        let folder = scratch.path().to_owned();
        fs::write(folder.join("log4j2.properties"), LOG4J)?;
        let ports = net::free_ports(options.brokers * 4)?;
        let voters = joined(&ports, |node, ports| {
            format!("{node}@127.0.0.1:{}", ports[1])
        });
        let mut nodes = Vec::new();
        for (index, ports) in ports.as_chunks().0.iter().enumerate() {
            let properties = properties(options, &folder, index + 1, *ports, &voters);
            let path = folder.join(format!("node{}.properties", index + 1));
            fs::write(&path, properties)?;
            nodes.push(Node {
                name: format!("kafka{}", index + 1),
                properties: path,
                endpoint: options.proxied.then_some(Endpoint {
                    proxy: ports[3],
                    broker: ports[2],
                }),
                process: None,
            });
        }
        let mut kafka = Self {
            helper: LazyHelper::default(),
            nodes,
            bootstrap: joined(&ports, |_, ports| format!("127.0.0.1:{}", ports[0])),
            jars: jars.to_owned(),
            folder,
            heap_mb: options.heap_mb,
            _scratch: Some(scratch),
        };
        kafka.format(&options.format)?;
        for index in 0..kafka.nodes.len() {
            kafka.launch(index)?;
        }
        for node in &kafka.nodes {
            node.wait_ready()?;
        }
        let note = json!({ "bootstrap": kafka.bootstrap, "jars": kafka.jars });
        write_note(&kafka.folder, &note)?;
        Ok(kafka)
    }

    /// Writes each node's storage, all at the same time, as `kafka-storage.sh format` does.
    fn format(&self, arguments: &[String]) -> Result<()> {
        let cluster_id = format!("logferry-{}", net::random() % 1_000_000);
        let mut formats = Vec::new();
        for node in &self.nodes {
            let mut command = self.tool_command("kafka.tools.StorageTool");
            command
                .args(["format", "-t", &cluster_id, "-c"])
                .arg(&node.properties)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            formats.push(command.spawn().context("cannot run java; install a JRE")?);
        }
        for format in formats {
            succeeded("StorageTool format", format.wait_with_output()?)?;
        }
        Ok(())
    }

    /// Starts one node's JVM; it is not ready yet.
    fn launch(&mut self, index: usize) -> Result<()> {
        let mut command = java(self.heap_mb, &format!("{}/*", self.jars.display()));
        let node = self.nodes.get_mut(index).context("no such node")?;
        command
            .arg(format!(
                "-Dlog4j2.configurationFile={}/log4j2.properties",
                self.folder.display()
            ))
            .arg("kafka.Kafka")
            .arg(&node.properties)
            .current_dir(&self.folder);
        let log = self.folder.join(format!("{}.log", node.name));
        let process = Process::start(&node.name, &command, &log)?;
        if let Some(scratch) = &self._scratch {
            scratch.used_by(&process)?;
        }
        node.process = Some(process);
        Ok(())
    }

    /// `host:port` of every broker, separated by commas.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// The folder with Kafka's jars.
    pub fn jars(&self) -> &Path {
        &self.jars
    }

    /// The folder with the cluster's configuration, data and logs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where proxies belong, in the order of the nodes; empty unless the cluster was started `proxied`.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.nodes.iter().filter_map(|node| node.endpoint).collect()
    }

    /// `java` with Kafka's class path and a tool's class, for a caller that adds arguments and pipes.
    pub fn tool_command(&self, class: &str) -> Command {
        let mut command = java(256, &format!("{}/*", self.jars.display()));
        command
            .arg(format!(
                "-Dlog4j2.configurationFile={}/log4j2.properties",
                self.folder.display()
            ))
            .arg("-Dlogferry.level=warn")
            .arg(class);
        command
    }

    /// Runs one of Kafka's tools, such as `org.apache.kafka.tools.TopicCommand`, to its end (1 to 3 s), with
    /// an empty input.
    ///
    /// # Errors
    /// If it fails; with what it printed.
    pub fn run_tool(&self, class: &str, arguments: &[&str]) -> Result<Output> {
        let output = self
            .tool_command(class)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("cannot run java; install a JRE")?;
        succeeded(class, output)
    }

    /// Makes a topic and waits until all its partitions have leaders that serve it.
    ///
    /// # Errors
    /// Kafka's, in its words.
    pub fn create_topic(
        &self,
        topic: &str,
        partitions: i32,
        replication: i16,
        configs: &[(&str, &str)],
    ) -> Result<()> {
        let mut command = vec![
            "create-topic".to_owned(),
            topic.to_owned(),
            partitions.to_string(),
            replication.to_string(),
        ];
        command.extend(configs.iter().map(|(key, value)| format!("{key}={value}")));
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        self.call(&command).map(drop)
    }

    /// Raises a topic's number of partitions and waits until the new ones are served.
    ///
    /// # Errors
    /// Kafka's, in its words.
    pub fn create_partitions(&self, topic: &str, total: i32) -> Result<()> {
        self.call(&["create-partitions", topic, &total.to_string()])
            .map(drop)
    }

    /// Deletes a topic and waits until it is listed no more.
    ///
    /// # Errors
    /// Kafka's, in its words.
    pub fn delete_topic(&self, topic: &str) -> Result<()> {
        self.call(&["delete-topic", topic]).map(drop)
    }

    /// Moves a partition's log start up to `before_offset`.
    ///
    /// # Errors
    /// Kafka's, in its words.
    pub fn delete_records(&self, topic: &str, partition: i32, before_offset: i64) -> Result<()> {
        let (partition, offset) = (partition.to_string(), before_offset.to_string());
        self.call(&["delete-records", topic, &partition, &offset])
            .map(drop)
    }

    /// A partition's log start and high watermark, as the Java client sees them.
    ///
    /// # Errors
    /// Kafka's, in its words.
    pub fn offsets(&self, topic: &str, partition: i32) -> Result<std::ops::Range<i64>> {
        let printed = self.call(&["offsets", topic, &partition.to_string()])?;
        let (start, end) = two_numbers(&printed)?;
        Ok(start..end)
    }

    /// Produces records with the Java client, without keys. Returns the first and the last offset.
    ///
    /// # Errors
    /// Kafka's, in its words; also if there are no records.
    pub fn produce(
        &self,
        topic: &str,
        partition: i32,
        records: &TestRecords<'_>,
    ) -> Result<(i64, i64)> {
        let values = numbered(records.prefix, records.count);
        let timestamp = records
            .timestamp_ms
            .map(|timestamp_ms| timestamp_ms.to_string());
        let mut how = vec![records.compression];
        how.extend(timestamp.as_deref());
        self.send("produce", topic, partition, &values, &how)
    }

    /// Produces these values with the Java client (idempotent, all replicas acknowledge), without keys. Returns
    /// the first and the last offset; those between are theirs, too, if nobody else writes to the partition.
    ///
    /// # Errors
    /// Kafka's, in its words; also if there are no values, or one holds a line end.
    pub fn produce_values(
        &self,
        topic: &str,
        partition: i32,
        values: &[String],
        compression: &str,
    ) -> Result<(i64, i64)> {
        self.send("produce", topic, partition, values, &[compression])
    }

    /// Produces `count` records, record `i` with the value `prefix` + `i`, in a transaction that ends as told. Both
    /// ends append a control record, too. An open transaction holds the last stable offset back until
    /// [`Self::finish_transactions`] or [`Self::abandon_transactions`].
    ///
    /// # Errors
    /// Kafka's, in its words; also if `count` is 0.
    pub fn transaction(
        &self,
        topic: &str,
        partition: i32,
        count: usize,
        prefix: &str,
        end: TransactionEnd,
    ) -> Result<(i64, i64)> {
        self.transaction_of(topic, partition, &numbered(prefix, count), end)
    }

    /// As [`Self::transaction`], with these values.
    ///
    /// # Errors
    /// Kafka's, in its words; also if there are no values, or one holds a line end.
    pub fn transaction_of(
        &self,
        topic: &str,
        partition: i32,
        values: &[String],
        end: TransactionEnd,
    ) -> Result<(i64, i64)> {
        self.send("transaction", topic, partition, values, &[end.word()])
    }

    /// Ends all open transactions, by [`TransactionEnd::Commit`] or [`TransactionEnd::Abort`].
    ///
    /// # Errors
    /// Kafka's, in its words.
    pub fn finish_transactions(&self, end: TransactionEnd) -> Result<()> {
        self.call(&["finish-transactions", end.word()]).map(drop)
    }

    /// The values go by way of a file, a line each.
    fn send(
        &self,
        command: &str,
        topic: &str,
        partition: i32,
        values: &[String],
        how: &[&str],
    ) -> Result<(i64, i64)> {
        ensure!(
            !values.iter().any(|value| value.contains(['\n', '\r'])),
            "a value with a line end"
        );
        let mut file = tempfile::NamedTempFile::new()?;
        for value in values {
            writeln!(file, "{value}")?;
        }
        let (partition, path) = (partition.to_string(), file.path().display().to_string());
        let mut arguments = vec![command, topic, &partition, &path];
        arguments.extend(how);
        two_numbers(&self.call(&arguments)?)
    }

    /// The node that leads a partition; nodes count from 0.
    ///
    /// # Errors
    /// Kafka's, in its words; also if none does now.
    pub fn leader(&self, topic: &str, partition: i32) -> Result<usize> {
        let id: usize = self
            .call(&["leader", topic, &partition.to_string()])?
            .parse()?;
        id.checked_sub(1).context("node ids begin with 1")
    }

    /// Kills the producers of open transactions; the transactions stay open until their time-out (10 min).
    pub fn abandon_transactions(&self) {
        self.helper.stop();
    }

    /// One command of the Java helper: its output.
    fn call(&self, arguments: &[&str]) -> Result<String> {
        let answer: Result<Answer> = self.helper.call(arguments, || self.start_helper());
        answer?
            .success()
            .with_context(|| format!("Kafka: {}", arguments.join(" ")))
    }

    fn start_helper(&self) -> Result<Helper> {
        let sources = [
            ("CommandLoop.java", include_str!("../java/CommandLoop.java")),
            ("KafkaHelper.java", include_str!("../java/KafkaHelper.java")),
        ];
        let classes = compile("kafka-helper", &sources, &self.jars)?;
        let class_path = format!("{}:{}/*", classes.display(), self.jars.display());
        let mut command = java(256, &class_path);
        command
            .arg(format!(
                "-Dlog4j2.configurationFile={}/log4j2.properties",
                self.folder.display()
            ))
            .arg("-Dlogferry.level=warn")
            .args(["KafkaHelper", &self.bootstrap]);
        let log = self.folder.join(format!("helper-{}.log", net::random()));
        Helper::start(command, &log)
    }

    /// The pid of a node's JVM, for probing it.
    ///
    /// # Errors
    /// If there is no such node (they count from 0) or it was never started here.
    pub fn pid(&self, node: usize) -> Result<u32> {
        let node = self.nodes.get(node);
        let process = node.and_then(|node| node.process.as_ref());
        Ok(process.context("no such node of ours")?.pid())
    }

    /// Kills a node (SIGKILL); nodes count from 0.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        self.process(node)?.kill()
    }

    /// Stops a node where it stands (SIGSTOP).
    ///
    /// # Errors
    /// If there is no such node or it does not run.
    pub fn pause(&mut self, node: usize) -> Result<()> {
        self.process(node)?.pause()
    }

    /// Lets a paused node go on.
    ///
    /// # Errors
    /// If there is no such node or it does not run.
    pub fn resume(&mut self, node: usize) -> Result<()> {
        self.process(node)?.resume()
    }

    /// Starts a node again, after shutting it down in order if it still runs, and waits until it serves.
    ///
    /// # Errors
    /// If there is no such node or it does not come up.
    pub fn restart(&mut self, node: usize) -> Result<()> {
        self.relaunch(node)?;
        self.wait_ready(node)
    }

    /// As [`Self::restart`], without waiting: see [`Self::wait_ready`].
    ///
    /// # Errors
    /// If there is no such node.
    pub fn relaunch(&mut self, node: usize) -> Result<()> {
        self.process(node)?.terminate(STOP_PATIENCE)?;
        self.launch(node)
    }

    /// Waits until a node that was started serves.
    ///
    /// # Errors
    /// If there is no such node or it does not come up.
    pub fn wait_ready(&self, node: usize) -> Result<()> {
        self.nodes.get(node).context("no such node")?.wait_ready()
    }

    /// Shuts all nodes down in order (SIGTERM); their data stays until the drop.
    ///
    /// # Errors
    /// If one does not end.
    pub fn stop(&mut self) -> Result<()> {
        self.helper.stop();
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process {
                process.terminate(STOP_PATIENCE)?;
            }
        }
        Ok(())
    }

    fn process(&mut self, node: usize) -> Result<&mut Process> {
        let node = self.nodes.get_mut(node).context("no such node of ours")?;
        node.process.as_mut().context("the node was never started")
    }
}

/// Records for [`Kafka::produce`].
#[derive(Debug, Clone, Copy)]
pub struct TestRecords<'a> {
    /// How many.
    pub count: usize,
    /// Record `i` has the value `prefix` + `i`, `i` from 0.
    pub prefix: &'a str,
    /// Kafka's name of a codec: `none`, `gzip`, `snappy`, `lz4`, `zstd`.
    pub compression: &'a str,
    /// Of each record, ms since 1970; now, if none is given.
    pub timestamp_ms: Option<i64>,
}

impl Default for TestRecords<'_> {
    fn default() -> Self {
        Self {
            count: 1,
            prefix: "value-",
            compression: "none",
            timestamp_ms: None,
        }
    }
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionEnd {
    /// Committed.
    Commit,
    /// Aborted.
    Abort,
    /// Not at all: its records are there, and no reader of committed data may see them or what follows.
    Open,
}

impl TransactionEnd {
    const fn word(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Abort => "abort",
            Self::Open => "open",
        }
    }
}

impl Node {
    fn wait_ready(&self) -> Result<()> {
        let process = self
            .process
            .as_ref()
            .context("the node was never started")?;
        process.wait_ready(START_TIMEOUT, |process| {
            Ok(process.output()?.contains(READY_LINE))
        })
    }
}

/// Ports: clients, controller, the proxy's way in, the proxy.
///
/// Records stamped in 1970 stay: the broker's retention by time is off.
fn properties(
    options: &KafkaOptions,
    folder: &Path,
    node: usize,
    [client, controller, behind_proxy, proxy]: [u16; 4],
    voters: &str,
) -> String {
    let replication = options.brokers.min(3);
    let (mut listener, mut advertised) = if options.proxied {
        (
            format!(",PROXIED://127.0.0.1:{behind_proxy}"),
            format!(",PROXIED://127.0.0.1:{proxy}"),
        )
    } else {
        (String::new(), String::new())
    };
    let mut protocols = String::new();
    for (name, port) in &options.listeners {
        listener.push_str(&format!(",{name}://127.0.0.1:{port}"));
        advertised.push_str(&format!(",{name}://127.0.0.1:{port}"));
        protocols.push_str(&format!(",{name}:{name}"));
    }
    let mut text = format!(
        "process.roles=broker,controller\n\
         node.id={node}\n\
         controller.quorum.voters={voters}\n\
         listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}{listener}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{client}{advertised}\n\
         controller.listener.names=CONTROLLER\n\
         inter.broker.listener.name=PLAINTEXT\n\
         listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT{protocols}\n\
         log.dirs={}/node{node}\n\
         offsets.topic.replication.factor={replication}\n\
         offsets.topic.num.partitions=4\n\
         transaction.state.log.replication.factor={replication}\n\
         transaction.state.log.num.partitions=4\n\
         transaction.state.log.min.isr=1\n\
         share.coordinator.state.topic.replication.factor={replication}\n\
         share.coordinator.state.topic.min.isr=1\n\
         auto.create.topics.enable=false\n\
         log.retention.ms=-1\n\
         group.initial.rebalance.delay.ms=0\n",
        folder.display()
    );
    for (key, value) in &options.properties {
        text.push_str(&format!("{key}={value}\n"));
    }
    text
}

/// One piece per node, from its number (from 1) and its four ports, separated by commas.
fn joined(ports: &[u16], piece: impl Fn(usize, &[u16; 4]) -> String) -> String {
    let nodes = ports.as_chunks().0.iter().enumerate();
    let pieces: Vec<String> = nodes
        .map(|(index, ports)| piece(index + 1, ports))
        .collect();
    pieces.join(",")
}

fn succeeded(what: &str, output: Output) -> Result<Output> {
    if !output.status.success() {
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        bail!(
            "{what}: {}; it printed:\n{}",
            output.status,
            tail(&printed, 25)
        );
    }
    Ok(output)
}

fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i}")).collect()
}

fn two_numbers(printed: &str) -> Result<(i64, i64)> {
    let (first, last) = printed
        .split_once(' ')
        .with_context(|| format!("{printed:?} instead of two offsets"))?;
    Ok((first.parse()?, last.parse()?))
}
