//! The services of a campaign, each behind a proxy, and what can be done to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use test_support::{Fault, Hdfs, HdfsNode, HdfsOptions, Kafka, KafkaOptions, TcpProxy, WebHdfs};
use tokio::runtime::Runtime;

use super::plan::{Kind, Step};

const BROKERS: usize = 3;
const DATANODES: usize = 3;

/// A Kafka of three nodes and an HDFS; loads reach every server through a proxy of its own.
pub(super) struct World {
    pub(super) kafka: Kafka,
    hdfs: Hdfs,
    brokers: Vec<TcpProxy>,
    namenode: TcpProxy,
    datanodes: Vec<TcpProxy>,
    /// For clients that reach HDFS through the proxy.
    pub(super) conf: PathBuf,
    killed_broker: Option<usize>,
    killed_hdfs_node: bool,
    /// Runs the proxies; after them, because it is dropped after them.
    _runtime: Runtime,
}

/// What a fault of one dataset is aimed at.
#[derive(Debug)]
pub(super) struct Target<'a> {
    pub(super) topic: &'a str,
    /// Directory on HDFS that holds the dataset.
    pub(super) folder: &'a str,
    /// File that says by how much the first load's clock is wrong.
    pub(super) clock: &'a Path,
}

impl World {
    pub(super) fn start() -> Self {
        let kafka = std::thread::spawn(|| {
            let quickly = [
                // A killed broker is given up sooner than by default.
                ("broker.session.timeout.ms", "5000"),
                ("broker.heartbeat.interval.ms", "500"),
            ];
            let options = KafkaOptions {
                brokers: BROKERS,
                proxied: true,
                heap_mb: 384,
                properties: quickly.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
                ..KafkaOptions::default()
            };
            Kafka::start(&options).unwrap()
        });
        let options = HdfsOptions {
            datanodes: DATANODES,
            proxied: true,
            // Out of safe mode only when every block was reported; by default one in a thousand may lack.
            properties: vec![(
                "dfs.namenode.safemode.threshold-pct".to_owned(),
                "1.0".to_owned(),
            )],
        };
        let hdfs = Hdfs::start(&options).unwrap();
        let kafka = kafka.join().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let proxy =
            |port: u16, server: &str| runtime.block_on(TcpProxy::start_on(port, server)).unwrap();
        let brokers = kafka
            .endpoints()
            .iter()
            .map(|end| proxy(end.proxy, &format!("127.0.0.1:{}", end.broker)))
            .collect();
        let datanodes = hdfs
            .datanode_endpoints()
            .iter()
            .map(|(port, server)| proxy(*port, server))
            .collect();
        let namenode = runtime.block_on(TcpProxy::start(&hdfs.address())).unwrap();
        Self {
            conf: hdfs.conf_dir_for(&namenode.address().to_string()).unwrap(),
            kafka,
            hdfs,
            brokers,
            namenode,
            datanodes,
            killed_broker: None,
            killed_hdfs_node: false,
            _runtime: runtime,
        }
    }

    /// A list of the brokers' proxies, as in a job file.
    pub(super) fn brokers(&self) -> String {
        let addresses: Vec<String> = self
            .brokers
            .iter()
            .map(|proxy| format!("'{}'", proxy.address()))
            .collect();
        addresses.join(", ")
    }

    /// `hdfs://…` of the NameNode's proxy.
    pub(super) fn uri(&self) -> String {
        format!("hdfs://{}", self.namenode.address())
    }

    pub(super) fn web(&self) -> WebHdfs {
        self.hdfs.web()
    }

    pub(super) fn make_folder(&self, folder: &str) {
        self.hdfs.dfs(&["-mkdir", "-p", folder]).unwrap();
    }

    pub(super) fn remove_folder(&self, folder: &str) {
        self.hdfs.dfs(&["-rm", "-r", "-skipTrash", folder]).unwrap();
    }

    /// Copies a directory of HDFS to this machine.
    pub(super) fn copy_out(&self, from: &str, to: &Path) {
        self.hdfs
            .dfs(&["-get", from, to.to_str().unwrap()])
            .unwrap();
    }

    /// What is done to servers, connections and clocks; kinds that loads do to themselves do nothing here.
    pub(super) fn strike(&mut self, kind: Kind, step: &Step, target: &Target<'_>) {
        match kind {
            Kind::NamenodeLink => self.namenode.set(step.link),
            Kind::DatanodeLink => set(&self.datanodes, step.node, step.link),
            Kind::BrokerLink => set(&self.brokers, step.node, step.link),
            Kind::NamenodeKilled => {
                self.killed_hdfs_node = true;
                self.hdfs.kill(HdfsNode::NameNode).unwrap();
            }
            Kind::DatanodeKilled => {
                self.killed_hdfs_node = true;
                let node = HdfsNode::DataNode(step.node % DATANODES);
                self.hdfs.kill(node).unwrap();
            }
            Kind::SafeMode => {
                self.hdfs.dfsadmin(&["-safemode", "enter"]).unwrap();
            }
            Kind::SpaceQuota => {
                // Less than one block.
                let quota = ["-setSpaceQuota", "1m", target.folder];
                self.hdfs.dfsadmin(&quota).unwrap();
            }
            Kind::LeaderKilled => {
                let leader = self.kafka.leader(target.topic, 0).unwrap();
                self.kafka.kill(leader).unwrap();
                self.killed_broker = Some(leader);
            }
            Kind::ClockStepped => set_clock(target.clock, step.clock[1]),
            Kind::KilledAtStep
            | Kind::KilledAnyTime
            | Kind::SleepsAtStep
            | Kind::SleepsAnyTime
            | Kind::LoadsAtOnce
            | Kind::Retention
            | Kind::PartitionAdded
            | Kind::Transactions => {}
        }
    }

    /// Ends what [`Self::strike`] did; servers may not be ready yet.
    pub(super) fn lift(&mut self, kind: Kind, step: &Step, target: &Target<'_>) {
        match kind {
            Kind::NamenodeLink => self.namenode.set(Fault::None),
            Kind::DatanodeLink => set(&self.datanodes, step.node, Fault::None),
            Kind::BrokerLink => set(&self.brokers, step.node, Fault::None),
            Kind::NamenodeKilled => self.hdfs.restart(HdfsNode::NameNode).unwrap(),
            Kind::DatanodeKilled => {
                let node = HdfsNode::DataNode(step.node % DATANODES);
                self.hdfs.restart(node).unwrap();
            }
            Kind::SafeMode => {
                self.hdfs.dfsadmin(&["-safemode", "leave"]).unwrap();
            }
            Kind::SpaceQuota => {
                self.hdfs
                    .dfsadmin(&["-clrSpaceQuota", target.folder])
                    .unwrap();
            }
            Kind::LeaderKilled => {
                if let Some(node) = self.killed_broker {
                    self.kafka.relaunch(node).unwrap();
                }
            }
            Kind::ClockStepped
            | Kind::KilledAtStep
            | Kind::KilledAnyTime
            | Kind::SleepsAtStep
            | Kind::SleepsAnyTime
            | Kind::LoadsAtOnce
            | Kind::Retention
            | Kind::PartitionAdded
            | Kind::Transactions => {}
        }
    }

    /// Waits until every server that was killed serves again, and a topic's partitions.
    pub(super) fn wait_ready(&mut self, topic: &str, partitions: u64) {
        if std::mem::take(&mut self.killed_hdfs_node) {
            self.hdfs.wait_ready(DATANODES).unwrap();
        }
        if let Some(node) = self.killed_broker.take() {
            self.kafka.wait_ready(node).unwrap();
            for partition in 0..i32::try_from(partitions).unwrap() {
                let has_leader = || self.kafka.leader(topic, partition).is_ok();
                test_support::wait_until(Duration::from_secs(60), has_leader).unwrap();
            }
        }
    }

    /// After a step that failed anywhere: everything runs again and nothing is in the way.
    pub(super) fn heal(&mut self) {
        for proxy in self.brokers.iter().chain(&self.datanodes) {
            proxy.set(Fault::None);
        }
        self.namenode.set(Fault::None);
        let nodes = (0..DATANODES)
            .map(HdfsNode::DataNode)
            .chain([HdfsNode::NameNode]);
        for node in nodes {
            if !test_support::process::is_running(self.hdfs.pid(node).unwrap()) {
                self.hdfs.restart(node).unwrap();
            }
        }
        let leave = || self.hdfs.dfsadmin(&["-safemode", "leave"]).is_ok();
        test_support::wait_until(Duration::from_secs(60), leave).unwrap();
        self.hdfs.wait_ready(DATANODES).unwrap();
        self.kafka.abandon_transactions();
        for node in 0..BROKERS {
            if !test_support::process::is_running(self.kafka.pid(node).unwrap()) {
                self.kafka.restart(node).unwrap();
            }
        }
        (self.killed_broker, self.killed_hdfs_node) = (None, false);
    }
}

/// One of several proxies, or all.
fn set(proxies: &[TcpProxy], node: usize, fault: Fault) {
    match proxies.get(node) {
        Some(proxy) => proxy.set(fault),
        None => proxies.iter().for_each(|proxy| proxy.set(fault)),
    }
}

/// Gives a command a wall clock that follows a file; its monotonic clock stays right.
pub(super) fn fake_clock(command: &mut Command, file: &Path, error: i64) {
    set_clock(file, error);
    command
        .env("LD_PRELOAD", faketime())
        .env("FAKETIME_TIMESTAMP_FILE", file)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("NO_FAKE_STAT", "1");
}

/// Renamed into place: a reader never sees half a number.
fn set_clock(file: &Path, error: i64) {
    let beside = file.with_extension("new");
    fs::write(&beside, format!("{error:+}\n")).unwrap();
    fs::rename(&beside, file).unwrap();
}

/// Debian's libfaketime, whatever the machine's architecture.
fn faketime() -> PathBuf {
    let found = fs::read_dir("/usr/lib")
        .unwrap()
        .map(|entry| entry.unwrap().path().join("faketime/libfaketimeMT.so.1"))
        .find(|path| path.is_file());
    found.expect(
        "no libfaketimeMT.so.1 below /usr/lib: install it (Debian: apt-get install faketime)",
    )
}
