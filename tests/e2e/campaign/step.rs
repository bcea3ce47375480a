//! One seed: a topic and a dataset of its own, and the steps of its plan, one after the other.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::ledger::Ledger;
use super::plan::{Kind, Moment, Plan, Step};
use super::watch::{HdfsReader, Watch};
use super::world::{Target, World, fake_clock};
use crate::harness::{Job, Loaded, Reader, pause, spawn, wait};

/// For a load among faults; it has time-outs of its own that are shorter.
const PATIENCE: Duration = Duration::from_secs(300);

/// Loads until everything is there: limits and leaders that move take some.
const MOST_LOADS: usize = 60;

const COLUMNS: &str = "[schema]\ncolumns = [{name='n', type='int64', nullable=false}, {name='name', type='string'}, \
     {name='ts', type='timestamp_ms'}, {name='g', type='string'}]\n";

/// What a step came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Of the loads under the fault, -1 for a kill; later ones are not counted.
    pub(super) exits: Vec<i32>,
    /// Whether the fault found the load still running.
    pub(super) struck: bool,
    pub(super) took: Duration,
}

pub(super) struct Run<'a> {
    world: &'a mut World,
    plan: &'a Plan,
    job: Job,
    ledger: Ledger,
    folder: String,
    clock: PathBuf,
    /// Runs seen published so far.
    runs: u64,
}

impl<'a> Run<'a> {
    pub(super) fn new(world: &'a mut World, plan: &'a Plan) -> Self {
        let topic = test_support::random_topic(&format!("campaign-{}", plan.seed));
        let partitions = i32::try_from(plan.partitions).unwrap();
        world
            .kafka
            .create_topic(&topic, partitions, plan.replication, &[])
            .unwrap();
        let dir = TempDir::new().unwrap();
        let folder = format!("/{topic}");
        let dataset = if plan.on_hdfs {
            world.make_folder(&folder);
            format!("{}{folder}/dataset", world.uri())
        } else {
            dir.path().join("dataset").to_str().unwrap().to_owned()
        };
        let clock = dir.path().join("clock");
        let mut job = Job::without_file(dir, dataset);
        job.set("HADOOP_CONF_DIR", world.conf.to_str().unwrap());
        Self {
            world,
            plan,
            job,
            ledger: Ledger::new(topic, plan.partitions),
            folder,
            clock,
            runs: 0,
        }
    }

    /// All steps and the proof; `done` is told of each step. Returns the number of records proved.
    pub(super) fn all(&mut self, mut done: impl FnMut(usize, &Step, &Outcome)) -> u64 {
        let plan = self.plan;
        let watch = if plan.on_hdfs {
            Watch::Hdfs(HdfsReader::start(
                self.world.web(),
                format!("{}/dataset", self.folder),
            ))
        } else {
            Watch::Local(Reader::start(&self.job.dataset))
        };
        for (number, step) in plan.steps.iter().enumerate() {
            let begin = Instant::now();
            self.write_job(step, false);
            let mut outcome = if step.has(Kind::Retention) {
                self.overtaken(step)
            } else {
                self.step(step)
            };
            if step.settle || number + 1 == plan.steps.len() {
                self.settle();
            } else {
                self.verify();
            }
            outcome.took = begin.elapsed();
            done(number, step, &outcome);
        }
        watch.finish();
        self.prove()
    }

    /// The job file for loads under faults, or for those without any: these may take their time.
    fn write_job(&self, step: &Step, is_calm: bool) {
        let tuning = &step.tuning;

        let source_fails = !is_calm && step.any(Kind::is_at_source);
        let store_fails = !is_calm && step.any(Kind::needs_hdfs);
        let text = format!(
            "name = 'campaign'\n[source]\nbrokers = [{}]\ntopics = ['{}']\n{}{}[output]\ndataset = '{}'\n\
             [output.parquet]\n{}{COLUMNS}[grouping]\n{}[records]\nbad_records = 'reject'\n\
             [limits]\nmax_rejected_percent = 100.0\n{}{}[engine]\n{}{}",
            self.world.brokers(),
            self.ledger.topic,
            tuning.source,
            only_if(source_fails, &tuning.source_patience),
            self.job.dataset,
            tuning.parquet,
            self.plan.grouping,
            tuning.limits,
            only_if(!is_calm, &tuning.budget),
            tuning.engine,
            only_if(store_fails, &tuning.store_timeout),
        );
        fs::write(&self.job.file, text).unwrap();
    }

    /// Loads under faults.
    fn step(&mut self, step: &Step) -> Outcome {
        for batch in &step.before {
            self.ledger.produce(&self.world.kafka, batch, step.padding);
        }
        let mut loads = vec![spawn(self.victim(step))];
        loads.extend((1..step.loads).map(|_| spawn(self.job.load_command(&[]))));
        let struck = self.strike(step, &mut loads);
        self.last(step, &mut loads);
        let exits = self.end(step, loads);
        let struck = if step.any(Kind::kills_loads) {
            exits[0] == -1
        } else {
            struck
        };
        Outcome {
            exits,
            struck,
            ..Outcome::default()
        }
    }

    /// The load that faults are aimed at.
    fn victim(&self, step: &Step) -> Command {
        let mut command = self.job.load_command(&[]);
        if let Moment::Step(name, before) = step.moment {
            let action = if step.has(Kind::KilledAtStep) {
                "kill"
            } else {
                "stop"
            };
            let failpoint = format!("{name}={before}*off->1*return({action})");
            command.env("FAILPOINTS", failpoint);
        }
        if step.has(Kind::ClockStepped) {
            fake_clock(&mut command, &self.clock, step.clock[0]);
        }
        command
    }

    /// Waits for the moment, and does what is to be done. Whether the victim still ran then.
    fn strike(&mut self, step: &Step, loads: &mut [Child]) -> bool {
        let victim = &mut loads[0];
        let kills_itself = step.has(Kind::KilledAtStep);
        match step.moment {
            Moment::After(time) => pause(time),
            Moment::Step(..) if kills_itself => pause(step.lasting / 4),
            Moment::Step(..) => {
                test_support::wait_until(PATIENCE, || is_stopped(victim) || has_ended(victim))
                    .unwrap();
            }
        }
        let struck = !has_ended(victim);
        for kind in step.kinds.iter().copied() {
            let target = Target {
                topic: &self.ledger.topic,
                folder: &self.folder,
                clock: &self.clock,
            };
            self.world.strike(kind, step, &target);
        }
        if step.has(Kind::KilledAnyTime) {
            // It may have ended already.
            drop(test_support::process::send(victim.id(), Signal::KILL));
        }
        if step.has(Kind::SleepsAnyTime) && struck {
            test_support::process::send(victim.id(), Signal::STOP).unwrap();
        }
        if step.has(Kind::PartitionAdded) && self.has_leaders(step) {
            self.ledger.partitions += 1;
            let total = i32::try_from(self.ledger.partitions).unwrap();
            let kafka = &self.world.kafka;
            kafka.create_partitions(&self.ledger.topic, total).unwrap();
        }
        if !step.any(Kind::puts_loads_to_sleep) && is_stopped(victim) {
            test_support::process::send(victim.id(), Signal::CONT).unwrap();
        }
        struck
    }

    /// Whether each partition has a leader or gets one, whatever strikes.
    fn has_leaders(&self, step: &Step) -> bool {
        self.plan.replication > 1 || !step.has(Kind::LeaderKilled)
    }

    /// While the fault lasts.
    fn last(&mut self, step: &Step, loads: &mut Vec<Child>) {
        let begin = Instant::now();
        // Without a leader, a producer would wait for its return.
        let can_produce = self.has_leaders(step);
        for batch in step.meanwhile.iter().filter(|_| can_produce) {
            self.ledger.produce(&self.world.kafka, batch, step.padding);
        }
        if step.any(Kind::puts_loads_to_sleep) {
            // Others run past the sleeper.
            loads.push(spawn(self.job.load_command(&[])));
        }
        while begin.elapsed() < step.lasting && !loads.iter_mut().all(has_ended) {
            pause(Duration::from_millis(10));
        }
        for kind in step.kinds.iter().copied() {
            let target = Target {
                topic: &self.ledger.topic,
                folder: &self.folder,
                clock: &self.clock,
            };
            self.world.lift(kind, step, &target);
        }
    }

    /// Wakes the sleeper, waits for all loads and checks how they ended.
    fn end(&mut self, step: &Step, mut loads: Vec<Child>) -> Vec<i32> {
        if step.any(Kind::puts_loads_to_sleep) && is_stopped(&loads[0]) {
            test_support::process::send(loads[0].id(), Signal::CONT).unwrap();
        }
        let mut ended = Vec::new();
        for load in loads.drain(..) {
            ended.push(Loaded::from(wait(load, PATIENCE)));
        }
        self.world
            .wait_ready(&self.ledger.topic, self.ledger.partitions);
        let kafka = &self.world.kafka;
        self.ledger.finish_open(kafka, step.open_ends);
        for (number, load) in ended.iter().enumerate() {
            let allowed = allowed(step, number == 0, ended.len());
            assert!(
                allowed.contains(&load.code),
                "load {number} ended with {}, allowed are {allowed:?}:\n{}{:#}",
                load.code,
                load.stderr,
                load.json
            );
        }
        // The time-outs were for the loads; the proof may take its time.
        self.write_job(step, true);
        self.check_runs(&ended);
        ended.iter().map(|load| load.code).collect()
    }

    /// What the loads say of themselves is what became of the dataset.
    fn check_runs(&mut self, ended: &[Loaded]) {
        let said = ended.iter().filter(|l| l.json["outcome"] == "published");
        let certain = said.count() as u64;
        // Killed after the rename, or the rename's answer was lost and nobody could be asked.
        let unknown = ended.iter().filter(|load| [-1, 69].contains(&load.code));
        let most = certain + unknown.count() as u64;
        let before = self.runs;
        let report = self.verify();
        let more = self.runs - before;
        assert!(
            (certain..=most).contains(&more),
            "{certain} loads said that they published and at most {most} did, but there are {more} runs more: {report:#}"
        );
    }

    /// `verify` in a process of its own says healthy; nothing, if no dataset was made yet.
    fn verify(&mut self) -> Value {
        let output = self.job.command("verify").arg("--json").output().unwrap();
        if output.status.code() == Some(2) && self.runs == 0 {
            return Value::Null;
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("no report: {:?} {stderr}", output.status));
        assert_eq!(output.status.code(), Some(0), "{report:#} {stderr}");
        assert_eq!(report["problems"], serde_json::json!([]), "{report:#}");
        let runs = report["runs"].as_u64().unwrap();
        assert!(runs == 0 || report["offsets_proved"] == true, "{report:#}");
        assert!(runs >= self.runs, "runs have gone: {report:#}");
        self.runs = runs;
        report
    }

    /// With nothing in the way any more, the next loads bring everything.
    fn settle(&mut self) {
        for _ in 0..MOST_LOADS {
            let loaded = self.job.load().expect(0);
            if loaded.json["outcome"] == "nothing" {
                let report = self.verify();
                self.ledger.check_counts(&report["counts"]);
                return;
            }
        }
        panic!("not everything is loaded after {MOST_LOADS} loads");
    }

    /// Retention overtakes the load: 66, and the gap is accepted.
    fn overtaken(&mut self, step: &Step) -> Outcome {
        let Some(first) = step.before.first() else {
            panic!("a step without records");
        };
        let partition = self.ledger.partition(first);
        self.ledger.produce(&self.world.kafka, first, step.padding);
        self.write_job(step, true);
        self.settle();
        let kafka = &self.world.kafka;
        // Nothing was produced since: the log end is where the dataset ends.
        let loaded_to = kafka.offsets(&self.ledger.topic, partition).unwrap().end;
        for batch in &step.before {
            self.ledger.produce(kafka, batch, step.padding);
        }
        let log_end = kafka.offsets(&self.ledger.topic, partition).unwrap().end;
        let span = log_end - loaded_to;
        let to = loaded_to + 1 + i64::try_from(step.lasting.as_millis()).unwrap() % span;
        // A moment at a step: while the load runs. Otherwise before it starts.
        let before = !matches!(step.moment, Moment::Step(..));
        if before {
            self.ledger.delete(&self.world.kafka, partition, to);
        }
        let mut loads = vec![spawn(self.victim(step))];
        let mut struck = true;
        if !before {
            let victim = &mut loads[0];
            test_support::wait_until(PATIENCE, || is_stopped(victim) || has_ended(victim)).unwrap();
            struck = !has_ended(victim);
            self.ledger.delete(&self.world.kafka, partition, to);
            if struck {
                test_support::process::send(victim.id(), Signal::CONT).unwrap();
            }
        }
        loads.extend((1..step.loads).map(|_| spawn(self.job.load_command(&[]))));
        let exits = self.end(step, loads);
        if before {
            assert!(exits.iter().all(|exit| *exit == 66), "{exits:?}");
        }
        self.accept(before);
        Outcome {
            exits,
            struck,
            ..Outcome::default()
        }
    }

    /// Goes on over the gap, if a load asks for that.
    fn accept(&mut self, must: bool) {
        let next = self.job.load();
        if !must && next.code == 0 {
            return;
        }
        next.expect(66).says(&["are lost", "--accept-gap"]);
        let accepted = self.job.load_with(&["--accept-gap"]).expect(0);
        let gaps = &accepted.manifest()["accepted_gaps"];
        assert_eq!(gaps.as_array().unwrap().len(), 1, "{gaps}");
        self.ledger.lose(gaps);
    }

    fn prove(&self) -> u64 {
        if !self.plan.on_hdfs {
            return self.ledger.prove(std::path::Path::new(&self.job.dataset));
        }
        let copy = TempDir::new().unwrap();
        let dataset = format!("{}/dataset", self.folder);
        self.world.copy_out(&dataset, copy.path());
        let proved = self.ledger.prove(&copy.path().join("dataset"));
        self.world.remove_folder(&self.folder);
        proved
    }
}

/// How a load may end.
fn allowed(step: &Step, is_victim: bool, loads: usize) -> Vec<i32> {
    let mut allowed = vec![0];
    if is_victim && step.any(Kind::kills_loads) {
        allowed.push(-1);
    }
    if loads > 1 {
        allowed.push(75);
    }
    let at_source = step.any(Kind::is_at_source);
    if at_source || step.any(Kind::needs_hdfs) && !(is_victim && waits_for_hdfs(step)) {
        allowed.push(69);
    }
    if step.any(Kind::is_at_source) || !step.tuning.budget.is_empty() {
        allowed.push(76);
    }
    if step.has(Kind::Retention) {
        allowed.push(66);
    }
    allowed
}

/// Whether the victim must go on whatever befalls HDFS: it had changed something there before, which passes.
fn waits_for_hdfs(step: &Step) -> bool {
    let is_well_known = matches!(step.moment, Moment::Step(..));
    is_well_known && !step.has(Kind::SpaceQuota) && !step.any(Kind::puts_loads_to_sleep)
}

const fn only_if(is: bool, text: &str) -> &str {
    if is { text } else { "" }
}

fn is_stopped(load: &Child) -> bool {
    test_support::probe::state(load.id()) == Some('T')
}

fn has_ended(load: &mut Child) -> bool {
    load.try_wait().unwrap().is_some()
}
