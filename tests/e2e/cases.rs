//! Small inputs for faults that users of other loaders reported, where no other module has them; docs/cases.md
//! lists them all.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use broker_client::protocol::ids::TopicName;
use broker_client::{Client, ClientConfig};
use rustix::process::Signal;
use tempfile::TempDir;
use test_support::{Fault, TcpProxy, TransactionEnd, hdfs, kafka, random_topic};

use crate::harness::{
    Job, Loaded, OurBroker, asleep_at, assert_success, events, files_below, logferry, produce,
    spawn, wait, wait_asleep, wake,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn broker_with(partitions: i32, lines: &[String]) -> OurBroker {
    let broker = OurBroker::start();
    broker.create_topic("events", partitions, &[]);
    broker.produce("events", 0, lines);
    broker
}

/// Data files of a published run.
fn data_files(job: &Job, run: &str) -> Vec<PathBuf> {
    let mut found = files_below(&Path::new(&job.dataset).join(run));
    found.retain(|path| path.extension().is_some_and(|end| end == "parquet"));
    found
}

#[test]
fn a_task_that_fails_among_others_publishes_nothing_and_moves_no_offset() {
    let mut lines = events(0, 300, 100);
    let broker = broker_with(1, &lines);
    let job = Job::new(&broker.address, "events", "[limits]\ntask_bytes = '2KiB'\n");
    job.load().expect(0);
    lines = events(300, 600, 100);
    lines[299] = "no object".to_owned();
    broker.produce("events", 0, &lines);
    let dry_run = job.command("load").arg("--dry-run").output().unwrap();
    assert_success(&dry_run);
    let plan = String::from_utf8(dry_run.stdout).unwrap();
    assert!(plan.matches("  task ").count() > 3, "one task only: {plan}");
    job.load().expect(65).says(&["offset 599"]);
    assert_eq!((job.runs(), job.rows()), (1, 300));
    job.edit("[limits]", "[records]\nbad_records = 'reject'\n[limits]");
    // From where the first run ended, the failed one notwithstanding.
    let next = job.load().expect(0);
    assert_eq!(next.manifest()["ranges"][0]["start"], 300);
    assert_eq!(job.rows(), 599);
}

#[test]
fn the_lost_answer_to_the_publishing_rename_on_hdfs_is_looked_up() {
    let hdfs = hdfs();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let proxy = runtime.block_on(TcpProxy::start(&hdfs.address())).unwrap();
    let broker = broker_with(1, &events(0, 100, 100));
    let name = random_topic("lost-answer");
    let mut job = Job::at(
        TempDir::new().unwrap(),
        &broker.address,
        &["events"],
        format!("hdfs://{}/{name}", proxy.address()),
        "[engine]\nstore_timeout = '10s'\n",
    );
    let conf = hdfs.conf_dir_for(&proxy.address().to_string()).unwrap();
    job.set("HADOOP_CONF_DIR", conf.to_str().unwrap());
    let load = asleep_at(job.load_command(&[]), "publish.before");
    proxy.set(Fault::DropAnswers);
    test_support::process::send(load.id(), Signal::CONT).unwrap();
    // It has happened, and nobody was told.
    let run = format!("/{name}/run=000001");
    test_support::wait_until(PATIENCE, || {
        hdfs.web().list(&run).is_ok_and(|found| found.is_some())
    })
    .unwrap();
    proxy.set(Fault::None);
    let loaded = Loaded::from(wait(load, PATIENCE)).expect(0);
    assert_eq!(loaded.json["outcome"], "published");
    assert_eq!((job.runs(), job.rows()), (1, 100));
    assert_eq!(job.load().expect(0).json["outcome"], "nothing");
}

#[test]
fn a_task_that_runs_twice_at_once_counts_once() {
    let broker = broker_with(1, &events(0, 200, 100));
    let job = Job::new(&broker.address, "events", "[limits]\ntask_bytes = '2KiB'\n");
    let planned = job.load_command(&["--plan-only"]).output().unwrap();
    assert_success(&planned);
    let text = String::from_utf8(planned.stdout).unwrap();
    let task = |line: &str| {
        let mut command = logferry();
        command.args(["load", "task"]).args(line.split(' '));
        command
    };
    for line in text.lines() {
        // Both have written everything when one of them goes on.
        let mut slow = task(line);
        slow.env("FAILPOINTS", "task.reported=1*return(stop)");
        let slow = spawn(slow);
        wait_asleep(&slow);
        assert_success(&task(line).output().unwrap());
        assert_eq!(wake(slow).code, 0);
    }
    job.load().expect(0);
    job.prove(200, "each task ran twice");
}

#[test]
fn consumer_groups_and_data_files_do_not_decide_where_a_run_starts() {
    let kafka = kafka();
    let topic = random_topic("groups");
    kafka.create_topic(&topic, 1, 1, &[]).unwrap();
    let send = |lines: &[String]| {
        assert_success(&produce(kafka.bootstrap(), &topic, &[], lines));
    };
    send(&events(0, 50, 100));
    let job = Job::new(kafka.bootstrap(), &topic, "");
    job.edit("topics", &format!("lag_group = '{topic}'\ntopics"));
    // Another member of the group takes part in it all the time.
    let mut member = std::process::Command::new("kcat")
        .args(["-b", kafka.bootstrap(), "-G", &topic, &topic])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(job.load().expect(0).rows(), 50);
    send(&events(50, 60, 100));
    assert_eq!(job.load().expect(0).rows(), 10);
    member.kill().unwrap();
    member.wait().unwrap();
    // A group offset that nobody reached, and data files that somebody moved away.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let config = ClientConfig {
            bootstrap: vec![kafka.bootstrap().to_owned()],
            ..ClientConfig::default()
        };
        let client = Client::connect(config).await.unwrap();
        let name = TopicName::new(topic.clone()).unwrap();
        let group = format!("{topic}-other");
        let offsets = BTreeMap::from([(0, 3)]);
        client
            .commit_offsets(&group, &name, &offsets)
            .await
            .unwrap();
        job.edit(
            &format!("lag_group = '{topic}'"),
            &format!("lag_group = '{group}'"),
        );
    });
    for file in data_files(&job, "run=000002") {
        fs::remove_file(file).unwrap();
    }
    send(&events(60, 65, 100));
    let next = job.load().expect(0);
    let range = &next.manifest()["ranges"][0];
    assert_eq!((&range["start"], &range["end"]), (&60.into(), &65.into()));
}

#[test]
fn only_committed_records_are_loaded_and_none_beyond_an_open_transaction() {
    let kafka = kafka();
    let topic = random_topic("transactions");
    kafka.create_topic(&topic, 1, 1, &[]).unwrap();
    let lines = |from| events(from, from + 10, 100);
    let send = |from, end| kafka.transaction_of(&topic, 0, &lines(from), end).unwrap();
    for round in 0..3 {
        send(round * 20, TransactionEnd::Commit);
        send(round * 20 + 10, TransactionEnd::Abort);
    }
    let (open, _) = send(100, TransactionEnd::Open);
    send(200, TransactionEnd::Commit);
    let job = Job::new(kafka.bootstrap(), &topic, "");
    let first = job.load().expect(0);
    let range = &first.manifest()["ranges"][0];
    assert_eq!(range["end"], open);
    let counts = &range["counts"];
    assert_eq!(
        (&counts["rows"], &counts["aborted"], &counts["control"]),
        (&30.into(), &30.into(), &6.into())
    );
    kafka.finish_transactions(TransactionEnd::Commit).unwrap();
    assert_eq!(job.load().expect(0).rows(), 20);
    job.prove(50, "the open transaction was committed");
}

#[test]
fn one_bad_record_in_a_thousand_passes_and_six_hundred_do_not() {
    let reject = "[records]\nbad_records = 'reject'\n";
    for (bad, code) in [(1, 0), (600, 65)] {
        let mut lines = events(0, 1_000, 100);
        for line in &mut lines[..bad] {
            line.insert(0, '?');
        }
        let broker = broker_with(1, &lines);
        let job = Job::new(&broker.address, "events", reject);
        let loaded = job.load().expect(code);
        if code == 0 {
            assert_eq!(job.verify()["counts"]["rejected"], 1);
        } else {
            loaded.says(&["600 of 1000 records were set aside"]);
            assert_eq!(job.runs(), 0);
        }
    }
}

#[test]
fn a_day_of_events_in_any_order_makes_one_file_an_hour() {
    let ordered = events(0, 2_400, 100);
    // 2,400 and 1,009 have no common factor: each event once, far from its neighbours.
    let lines: Vec<String> = (0..2_400)
        .map(|n| ordered[n * 1_009 % 2_400].clone())
        .collect();
    let broker = broker_with(1, &lines);
    let job = Job::new(&broker.address, "events", "");
    let loaded = job.load().expect(0);
    let paths = loaded.manifest()["files"].as_array().unwrap();
    let hours: std::collections::BTreeSet<&str> = paths
        .iter()
        .map(|file| file["path"].as_str().unwrap().rsplit_once('/').unwrap().0)
        .collect();
    assert_eq!((paths.len(), hours.len()), (24, 24));
    job.prove(2_400, "shuffled");
}

#[test]
fn sixty_four_small_partitions_share_one_task_and_file() {
    let broker = OurBroker::start();
    broker.create_topic("events", 64, &[]);
    for partition in 0..64 {
        let from = u64::try_from(partition).unwrap() * 10;
        broker.produce("events", partition, &events(from, from + 10, 1_000));
    }
    let job = Job::new(&broker.address, "events", "[grouping]\nkeys = []\n");
    let loaded = job.load().expect(0);
    assert_eq!(loaded.manifest()["files"].as_array().unwrap().len(), 1);
    job.prove(640, "64 partitions");
}

#[test]
fn a_staged_file_that_was_cut_is_not_published() {
    let broker = broker_with(1, &events(0, 200, 1_000));
    let job = Job::new(&broker.address, "events", crate::kills::QUICK);
    let load = asleep_at(job.load_command(&[]), "assemble.out_made");
    let staging = Path::new(&job.dataset).join(".logferry/staging");
    let staged = files_below(&staging)
        .into_iter()
        .find(|path| path.ends_with("done/00000.part"))
        .unwrap();
    let file = fs::File::options().write(true).open(&staged).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    wake(load).expect(1).says(&["bytes"]);
    assert_eq!(job.runs(), 0);
    job.load().expect(0);
    job.prove(200, "the next run starts anew");
}

#[test]
fn dead_runs_are_cleared_away_and_a_live_one_is_left_alone() {
    let broker = broker_with(1, &events(0, 200, 1_000));
    // A lease lasts a minute by default.
    let job = Job::new(&broker.address, "events", "[limits]\ntask_bytes = '2KiB'\n");
    for step in ["plan.written", "task.done", "assemble.manifest_in"] {
        let killed = job.load_killed_at(&format!("{step}=return(kill)"));
        assert_eq!(killed.status.code(), None, "{step} was not passed");
    }
    let staging = Path::new(&job.dataset).join(".logferry/staging");
    let dead = job.staging();
    assert_eq!(dead.len(), 3, "{dead:?}");
    let grow_old = |run: &String| {
        let lease = fs::File::options()
            .write(true)
            .open(staging.join(run).join("lease"))
            .unwrap();
        let written = lease.metadata().unwrap().modified().unwrap();
        let an_hour = Duration::from_secs(3_600);
        lease.set_modified(written - an_hour).unwrap();
    };
    // The live one first, so that it does not take over one of the dead.
    let live = asleep_at(job.load_command(&[]), "plan.settled");
    dead.iter().for_each(grow_old);
    let others = job.load().expect(0);
    assert_eq!(others.rows(), 200);
    let left = job.staging();
    assert_eq!(left.len(), 1, "the live one's only: {left:?}");
    assert!(!dead.contains(&left[0]), "{left:?}");
    wake(live).expect(75);
    job.prove(200, "three dead and one live");
    assert!(job.staging().is_empty());
}

#[test]
fn a_file_that_is_gone_from_a_published_run_is_named() {
    let broker = broker_with(1, &events(0, 200, 100));
    let job = Job::new(&broker.address, "events", "");
    job.load().expect(0);
    let file = data_files(&job, "run=000001").remove(0);
    fs::remove_file(&file).unwrap();
    let (code, report) = job.verify_report();
    assert_eq!(code, 65);
    let name = file.file_name().unwrap().to_str().unwrap();
    let problems = report["problems"].as_array().unwrap();
    let named = |problem: &serde_json::Value| problem["path"].as_str().unwrap().ends_with(name);
    assert!(problems.iter().any(named), "{report:#}");
}
