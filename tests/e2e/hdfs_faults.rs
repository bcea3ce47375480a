//! Each fault of `NameNode` and `DataNode`s at each step of the commit protocol: the load goes on by itself or ends
//! with 69, never with anything half published, and the next load and `verify` have every record once.
//!
//! ```text
//! load ──step──► stops itself │ the fault strikes │ load goes on ──► 0, or 69
//!                                    └ lifted while the load waits, or after it has ended
//! ```
//! Faults of one kind of node share an HDFS; the three kinds run side by side. `tests/long hdfs_faults` runs all
//! and prints the table of docs/faults.md; a seed is a step.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use test_support::{Fault as Network, Hdfs, HdfsNode, HdfsOptions, TcpProxy};

use crate::harness::{Job, Loaded, OurBroker, catching, events, pause, wait, wait_asleep};
use crate::kills::STEPS;

const RECORDS: u64 = 200;
/// Until a load that waits for nothing any more must have ended.
const PATIENCE: Duration = Duration::from_secs(150);
/// Loads that meet a fault together, each at a step of its own: starting nodes takes most of the time.
const AT_ONCE: usize = 9;
const LEASE: Duration = Duration::from_millis(1_000);

/// Steps of a load that takes a dead run over.
const TAKING_OVER: &[&str] = &["takeover.before_claim", "takeover.claimed"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    NameNodeSleeps,
    NameNodeRestarts,
    NameNodeGone,
    SafeModePasses,
    SafeModeStays,
    ConnectionsCut,
    AnswersLost,
    DataNodeDies,
    DataNodesRestart,
    DataNodesGone,
    SpaceQuota,
    NameQuota,
    Permission,
}

use Fault::{
    AnswersLost, ConnectionsCut, DataNodeDies, DataNodesGone, DataNodesRestart, NameNodeGone,
    NameNodeRestarts, NameNodeSleeps, NameQuota, Permission, SafeModePasses, SafeModeStays,
    SpaceQuota,
};

/// By what must have an HDFS of its own.
const OF_THE_NAMENODE: &[Fault] = &[
    NameNodeSleeps,
    NameNodeRestarts,
    NameNodeGone,
    SafeModePasses,
    SafeModeStays,
];
const OF_DATANODES: &[Fault] = &[DataNodeDies, DataNodesRestart, DataNodesGone];
const OF_ONE_CLIENT: &[Fault] = &[
    ConnectionsCut,
    AnswersLost,
    SpaceQuota,
    NameQuota,
    Permission,
];

impl Fault {
    /// Whether it lasts until the load has ended.
    fn stays(self) -> bool {
        matches!(
            self,
            NameNodeGone | SafeModeStays | DataNodesGone | SpaceQuota | NameQuota | Permission
        )
    }

    /// Where a fault that stays ends the load: up to this step; later ones need nothing more of what is missing.
    fn last_ended_at(self) -> &'static str {
        match self {
            DataNodesGone | SpaceQuota => "assemble.moved",
            NameQuota => "assemble.manifest_in",
            NameNodeSleeps | NameNodeRestarts | NameNodeGone | SafeModePasses | SafeModeStays
            | ConnectionsCut | AnswersLost | DataNodeDies | DataNodesRestart | Permission => {
                "publish.before"
            }
        }
    }

    /// How a load that meets it at a step must end.
    fn exit_at(self, step: &str) -> i32 {
        let place = |step| STEPS.iter().position(|known| *known == step);
        let is_needed = TAKING_OVER.contains(&step) || place(step) <= place(self.last_ended_at());
        if self.stays() && is_needed { 69 } else { 0 }
    }

    /// What the error of a load that it ended must name: one of these.
    fn named(self) -> &'static [&'static str] {
        match self {
            NameNodeGone => &["no usable namenode", "no answer from"],
            SafeModeStays => &["safe mode"],
            DataNodesGone => &["datanode"],
            SpaceQuota | NameQuota => &["quota"],
            Permission => &["permission"],
            NameNodeSleeps | NameNodeRestarts | SafeModePasses | ConnectionsCut | AnswersLost
            | DataNodeDies | DataNodesRestart => &[],
        }
    }

    /// How long the load meets it before it passes.
    fn lasts(self) -> Duration {
        if matches!(self, NameNodeSleeps | AnswersLost) {
            // Beyond `store_timeout`.
            return Duration::from_millis(2_500);
        }
        Duration::from_secs(1)
    }
}

/// What came of one fault at one step.
type Outcome = Result<i32, String>;

/// A load that stands still at a step.
struct Meeting {
    step: String,
    job: Job,
    /// The directory above its dataset.
    parent: String,
    load: Child,
}

struct Bench<'a> {
    hdfs: Cluster,
    network: TcpProxy,
    broker: &'a OurBroker,
    _runtime: tokio::runtime::Runtime,
}

enum Cluster {
    Shared(&'static Hdfs),
    Own(Box<Hdfs>),
}

impl Cluster {
    fn get(&self) -> &Hdfs {
        match self {
            Self::Shared(hdfs) => hdfs,
            Self::Own(hdfs) => hdfs,
        }
    }

    #[track_caller]
    fn own(&mut self) -> &mut Hdfs {
        match self {
            Self::Own(hdfs) => hdfs,
            Self::Shared(_) => panic!("nobody may stop the shared HDFS"),
        }
    }
}

impl<'a> Bench<'a> {
    /// An HDFS of its own, or the shared one.
    fn new(broker: &'a OurBroker, datanodes: Option<usize>) -> Self {
        let hdfs = match datanodes {
            None => Cluster::Shared(test_support::hdfs()),
            Some(datanodes) => {
                let options = HdfsOptions {
                    proxied: false,
                    datanodes,
                    // Notices a dead DataNode after 3 s instead of 12. A block that was asked for and never
                    // written is charged to its DataNodes at full size for ten minutes: with large ones, the
                    // tries of these loads would use up the disk.
                    properties: [
                        ("dfs.blocksize", "1048576"),
                        ("dfs.namenode.avoid.write.stale.datanode", "true"),
                        ("dfs.namenode.stale.datanode.interval", "3000"),
                    ]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
                };
                Cluster::Own(Box::new(Hdfs::start(&options).unwrap()))
            }
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let network = runtime
            .block_on(TcpProxy::start(&hdfs.get().address()))
            .unwrap();
        Self {
            hdfs,
            network,
            broker,
            _runtime: runtime,
        }
    }

    /// A job of an ordinary user, and the directory above its dataset.
    fn job(&self, fault: Fault) -> (Job, String) {
        let hdfs = self.hdfs.get();
        let parent = format!("/{}", test_support::random_topic("faults"));
        hdfs.dfs(&["-mkdir", &parent]).unwrap();
        hdfs.dfs(&["-chown", "loader", &parent]).unwrap();
        let patience = if fault.stays() { "2s" } else { "60s" };
        let settings = format!(
            "[limits]\ntask_bytes = '4KiB'\n[engine]\nlease_timeout = '{}ms'\nthreads = 2\n\
             store_timeout = '2s'\nstore_patience = '{patience}'\n",
            LEASE.as_millis()
        );
        // A proxy before a NameNode that is gone would still take connections.
        let address = match &self.hdfs {
            Cluster::Own(hdfs) => hdfs.address(),
            Cluster::Shared(_) => self.network.address().to_string(),
        };
        let mut job = Job::at(
            TempDir::new().unwrap(),
            &self.broker.address,
            &["events"],
            format!("hdfs://{address}{parent}/dataset"),
            &settings,
        );
        let conf = hdfs.conf_dir_for(&address).unwrap();
        job.set("HADOOP_CONF_DIR", conf.to_str().unwrap());
        job.set("HADOOP_USER_NAME", "loader");
        (job, parent)
    }

    fn strike(&mut self, fault: Fault, parents: &[String]) {
        match fault {
            NameNodeSleeps => self.hdfs.own().pause(HdfsNode::NameNode).unwrap(),
            NameNodeRestarts | NameNodeGone => self.hdfs.own().kill(HdfsNode::NameNode).unwrap(),
            SafeModePasses | SafeModeStays => self.dfsadmin(&["-safemode", "enter"]),
            ConnectionsCut => self.network.set(Network::CutAnswersAfter(0)),
            AnswersLost => self.network.set(Network::DropAnswers),
            DataNodeDies => self.hdfs.own().kill(HdfsNode::DataNode(0)).unwrap(),
            DataNodesRestart | DataNodesGone => {
                for node in 0..self.hdfs.get().datanodes() {
                    self.hdfs.own().kill(HdfsNode::DataNode(node)).unwrap();
                }
            }
            SpaceQuota => parents
                .iter()
                .for_each(|parent| self.dfsadmin(&["-setSpaceQuota", "1", parent])),
            NameQuota => parents
                .iter()
                .for_each(|parent| self.dfsadmin(&["-setQuota", "1", parent])),
            Permission => parents
                .iter()
                .for_each(|parent| self.change_mode("555", parent)),
        }
    }

    fn lift(&mut self, fault: Fault, parents: &[String]) {
        match fault {
            NameNodeSleeps => self.hdfs.own().resume(HdfsNode::NameNode).unwrap(),
            NameNodeRestarts | NameNodeGone => {
                self.hdfs.own().restart(HdfsNode::NameNode).unwrap();
            }
            SafeModePasses | SafeModeStays => self.dfsadmin(&["-safemode", "leave"]),
            ConnectionsCut | AnswersLost => self.network.set(Network::None),
            DataNodeDies => self.hdfs.own().restart(HdfsNode::DataNode(0)).unwrap(),
            DataNodesRestart | DataNodesGone => {
                for node in 0..self.hdfs.get().datanodes() {
                    self.hdfs.own().restart(HdfsNode::DataNode(node)).unwrap();
                }
            }
            SpaceQuota => parents
                .iter()
                .for_each(|parent| self.dfsadmin(&["-clrSpaceQuota", parent])),
            NameQuota => parents
                .iter()
                .for_each(|parent| self.dfsadmin(&["-clrQuota", parent])),
            Permission => parents
                .iter()
                .for_each(|parent| self.change_mode("755", parent)),
        }
    }

    fn dfsadmin(&self, arguments: &[&str]) {
        self.hdfs.get().dfsadmin(arguments).unwrap();
    }

    fn change_mode(&self, mode: &str, parent: &str) {
        self.hdfs
            .get()
            .dfs(&["-chmod", "-R", mode, parent])
            .unwrap();
    }

    fn well_again(&self) {
        if let Cluster::Own(hdfs) = &self.hdfs {
            let all = hdfs.datanodes();
            hdfs.wait_ready(all).unwrap();
        }
    }

    /// A load that stands still at a step.
    fn bring_to(&self, step: &str, fault: Fault) -> Meeting {
        let (job, parent) = self.job(fault);
        if TAKING_OVER.contains(&step) {
            let killed = job.load_killed_at("assemble.out_made=return(kill)");
            assert_eq!(killed.status.code(), None, "no run died");
            pause(LEASE + Duration::from_millis(200));
        }
        let mut load = job.load_command(&[]);
        load.env("FAILPOINTS", format!("{step}=1*return(stop)->off"));
        // Not a pipe: nobody reads while many loads are waited for, and a load in trouble says much.
        let said = std::fs::File::create(job.dir.path().join("said")).unwrap();
        load.stdout(Stdio::null()).stderr(said);
        let load = load.spawn().unwrap();
        wait_asleep(&load);
        let step = step.to_owned();
        Meeting {
            step,
            job,
            parent,
            load,
        }
    }

    /// One fault at each of these steps, which as many loads have come to; and what it takes to have everything
    /// afterwards. The exit codes of the loads that met it.
    fn meet(&mut self, steps: &[&str], fault: Fault) -> Vec<Outcome> {
        let met: Vec<_> = steps
            .iter()
            .map(|step| self.bring_to(step, fault))
            .collect();
        let parents: Vec<_> = met.iter().map(|m| m.parent.clone()).collect();
        self.strike(fault, &parents);
        for meeting in &met {
            test_support::process::send(meeting.load.id(), Signal::CONT).unwrap();
        }
        // A dead DataNode stays dead: the NameNode notices after a while, and that is what the load waits for.
        let passes = !fault.stays() && fault != DataNodeDies;
        if passes {
            pause(fault.lasts());
            self.lift(fault, &parents);
        }
        let ended: Vec<_> = met
            .into_iter()
            .map(|meeting| {
                let code = wait(meeting.load, PATIENCE).status.code();
                let said = std::fs::read_to_string(meeting.job.dir.path().join("said")).unwrap();
                let load = Loaded {
                    code: code.unwrap_or(-1),
                    stderr: said,
                    json: serde_json::Value::Null,
                };
                (meeting.step, meeting.job, meeting.parent, load)
            })
            .collect();
        if !passes {
            self.lift(fault, &parents);
        }
        self.well_again();
        let judged = ended.iter().map(|(step, job, parent, load)| {
            catching(|| {
                check(load, fault, step);
                self.put_right(job, parent, load);
                load.code
            })
        });
        judged.collect()
    }

    /// The next load has everything, once, and leaves nothing behind.
    fn put_right(&self, job: &Job, parent: &str, met: &Loaded) {
        job.load().expect(0);
        assert_eq!(job.rows(), RECORDS, "after\n{}", met.stderr);
        // What could not be thrown away while the fault lasted is, once its lease is old.
        if !self.litter(parent).is_empty() {
            pause(LEASE + Duration::from_millis(200));
            job.load().expect(0);
        }
        let litter = self.litter(parent);
        assert!(litter.is_empty(), "{litter} after\n{}", met.stderr);
        self.hdfs
            .get()
            .dfs(&["-rm", "-r", "-skipTrash", parent])
            .unwrap();
    }

    /// What lies where only a load at work may have something.
    fn litter(&self, parent: &str) -> String {
        let hidden = format!("{parent}/dataset/.logferry");
        let list = |path: &str| self.hdfs.get().dfs(&["-ls", "-C", path]).unwrap();
        let mut litter = list(&format!("{hidden}/staging")) + &list(&format!("{hidden}/trash"));
        for line in list(&hidden).lines().filter(|line| line.contains("/new-")) {
            litter.push_str(line);
        }
        litter.trim().to_owned()
    }
}

fn check(met: &Loaded, fault: Fault, step: &str) {
    let expected = fault.exit_at(step);
    assert_eq!(met.code, expected, "at {step}:\n{}", met.stderr);
    if met.code == 69 {
        let named = fault.named();
        let says = named.iter().any(|word| met.stderr.contains(word));
        assert!(says, "none of {named:?} in:\n{}", met.stderr);
        met.says(&[]);
    }
    // Of the others not each makes a call wait: another thread's may meet it, or none in time.
    let is_felt = matches!(fault, NameNodeSleeps | NameNodeRestarts | SafeModePasses);
    if is_felt && step == "assemble.file_moved" {
        assert!(met.stderr.contains(WAITED), "did not wait:\n{}", met.stderr);
    }
}

/// What a load says when it waits for the store.
const WAITED: &str = "the store is in trouble, trying again";

/// All faults of one bench at these steps; goes on after a failure.
fn meet_all(
    mut bench: Bench<'_>,
    faults: &[Fault],
    steps: &[&'static str],
    table: &Mutex<BTreeMap<(usize, Fault), Outcome>>,
) {
    for (batch, some) in steps.chunks(AT_ONCE).enumerate() {
        for fault in faults {
            let begun = Instant::now();
            let outcomes = match catching(|| bench.meet(some, *fault)) {
                Ok(outcomes) => outcomes,
                Err(error) => {
                    // Whatever state the fault was left in.
                    bench = bench.again();
                    vec![Err(error); some.len()]
                }
            };
            let took = begun.elapsed().as_secs_f32();
            eprintln!("{fault:?} at {some:?}: {outcomes:?} after {took:.1} s");
            for (row, outcome) in outcomes.into_iter().enumerate() {
                let row = batch * AT_ONCE + row;
                table.lock().unwrap().insert((row, *fault), outcome);
            }
        }
    }
}

impl Bench<'_> {
    /// Another HDFS of the same kind.
    fn again(self) -> Self {
        let datanodes = match &self.hdfs {
            Cluster::Shared(_) => None,
            Cluster::Own(hdfs) => Some(hdfs.datanodes()),
        };
        Self::new(self.broker, datanodes)
    }
}

fn faults_at(steps: &[&'static str]) {
    let broker = OurBroker::start();
    broker.create_topic("events", 2, &[]);
    broker.produce("events", 0, &events(0, RECORDS / 2, 50));
    broker.produce("events", 1, &events(RECORDS / 2, RECORDS, 50));
    let table = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for (faults, datanodes) in [
            (OF_THE_NAMENODE, Some(1)),
            (OF_DATANODES, Some(3)),
            (OF_ONE_CLIENT, None),
        ] {
            let (broker, table) = (&broker, &table);
            scope.spawn(move || meet_all(Bench::new(broker, datanodes), faults, steps, table));
        }
    });
    let table = table.into_inner().unwrap();
    print_table(steps, &table);
    let wrong: Vec<_> = table
        .iter()
        .filter_map(|((row, fault), outcome)| {
            let error = outcome.as_ref().err()?;
            Some(format!("{} {fault:?}: {error}", steps[*row]))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        table.len(),
        steps.len() * (OF_THE_NAMENODE.len() + OF_DATANODES.len() + OF_ONE_CLIENT.len())
    );
}

fn print_table(steps: &[&str], table: &BTreeMap<(usize, Fault), Outcome>) {
    let faults = || {
        OF_THE_NAMENODE
            .iter()
            .chain(OF_DATANODES)
            .chain(OF_ONE_CLIENT)
    };
    let cells = |row: usize| {
        faults()
            .map(|fault| match table.get(&(row, *fault)) {
                Some(Ok(code)) => format!("| {code} "),
                Some(Err(_)) => "| wrong ".to_owned(),
                None => "| - ".to_owned(),
            })
            .collect::<String>()
    };
    let heads: String = faults().map(|fault| format!("| {fault:?} ")).collect();
    eprintln!("| step {heads}|\n|---{}|", "|---".repeat(faults().count()));
    for (row, step) in steps.iter().enumerate() {
        eprintln!("| `{step}` {}|", cells(row));
    }
}

#[test]
fn faults_of_hdfs_at_three_steps() {
    faults_at(&["task.started", "assemble.file_moved", "publish.before"]);
}

#[test]
#[ignore = "a campaign; run: tests/long hdfs_faults [--seeds A..B], a seed is a step"]
fn long_hdfs_faults() {
    let all: Vec<&'static str> = STEPS.iter().chain(TAKING_OVER).copied().collect();
    let seeds = crate::harness::seeds(0..all.len() as u64);
    let (from, to) = (
        usize::try_from(seeds.start).unwrap(),
        usize::try_from(seeds.end).unwrap().min(all.len()),
    );
    faults_at(&all[from..to]);
}
