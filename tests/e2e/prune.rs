//! `logferry prune`: old data goes, everything else stays, beside whatever else is at work.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::harness::{
    Job, Loaded, OurBroker, Reader, asleep_at, events, files_below, list, spawn, wait, wake,
};
use crate::kills::QUICK;

/// Every fail-point that a prune passes.
pub(crate) const STEPS: &[&str] = &[
    "prune.before_mark",
    "prune.marker_beside",
    "prune.marked",
    "trash.renamed",
    "prune.moved",
];

const PATIENCE: Duration = Duration::from_secs(60);

fn prune_command(job: &Job, more: &[&str]) -> Command {
    let mut command = job.command("prune");
    command.arg("--json").args(more);
    command
}

/// Runs `prune`, which must end well.
pub(crate) fn prune(job: &Job, more: &[&str]) -> Value {
    let pruned = Loaded::from(prune_command(job, more).output().unwrap());
    pruned.expect(0).json
}

/// A job whose dataset has so many runs of 20 records, over two days: so many directories to delete.
fn with_runs(broker: &OurBroker, runs: u64) -> Job {
    with_runs_in(Job::new(&broker.address, "events", QUICK), runs)
}

fn with_runs_in(job: Job, runs: u64) -> Job {
    job.edit("[limits]", "[limits]\nmax_offsets_per_partition = 10");
    for _ in 0..runs {
        job.load().expect(0);
    }
    job
}

fn broker() -> OurBroker {
    let broker = OurBroker::start();
    broker.create_topic("events", 2, &[]);
    // One record an hour: a run of ten spans at least one midnight in one of its partitions.
    broker.produce("events", 0, &events(0, 40, 1));
    broker.produce("events", 1, &events(12, 52, 1));
    broker
}

/// All files of a run with their content, but the marker.
fn content(run: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files_below(run)
        .into_iter()
        .filter(|path| !path.ends_with("_pruned.json"))
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

fn run(job: &Job, number: u64) -> PathBuf {
    Path::new(&job.dataset).join(format!("run={number:06}"))
}

#[test]
fn old_data_goes_and_everything_else_stays() {
    let broker = broker();
    let job = with_runs(&broker, 3);
    let (second, third) = (content(&run(&job, 2)), content(&run(&job, 3)));
    let manifest = fs::read(run(&job, 1).join("_manifest.json")).unwrap();

    let would = prune(&job, &["--keep-runs", "2", "--dry-run"]);
    assert_eq!((&would["runs"], &would["kept"]), (&json!([1]), &json!(2)));
    assert_eq!(job.verify()["pruned_runs"], 0, "a dry run deletes nothing");

    let did = prune(&job, &["--keep-runs", "2"]);
    for field in ["runs", "files", "bytes", "kept"] {
        assert_eq!(did[field], would[field], "{field}");
    }
    assert_eq!(
        list(&run(&job, 1)),
        ["_SUCCESS", "_manifest.json", "_pruned.json"]
    );
    assert_eq!(
        fs::read(run(&job, 1).join("_manifest.json")).unwrap(),
        manifest
    );
    assert_eq!(content(&run(&job, 2)), second);
    assert_eq!(content(&run(&job, 3)), third);
    assert_eq!(
        list(&Path::new(&job.dataset).join(".logferry/trash")),
        [""; 0]
    );

    let report = job.verify();
    assert_eq!(
        (
            &report["runs"],
            &report["pruned_runs"],
            &report["counts"]["rows"]
        ),
        (&json!(3), &json!(1), &json!(60))
    );
    // Loads go on from the newest manifest, and a number that was used stays used.
    assert_eq!(job.load().expect(0).manifest()["number"], 4);
    assert_eq!(job.rows(), 80);
    assert_eq!(job.coordinates().0, 60);

    let again = prune(&job, &["--keep-runs", "1"]);
    assert_eq!(
        (&again["runs"], &again["pruned_before"], &again["kept"]),
        (&json!([2, 3]), &json!(1), &json!(1))
    );
    let output = job.command("status").arg("--json").output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (
            &status["runs"],
            &status["pruned_runs"],
            &status["newest_run"]
        ),
        (&json!(4), &json!(3), &json!(4))
    );
    assert_eq!(prune(&job, &["--keep-runs", "1"])["runs"], json!([]));
    assert_eq!(job.verify()["pruned_runs"], 3);
}

#[test]
fn age_counts_by_the_times_of_the_store_and_ends_at_the_first_young_run() {
    let broker = broker();
    let job = with_runs(&broker, 4);
    let old = now() - Duration::from_secs(40 * 86_400);
    for number in [1, 3, 4] {
        let manifest = fs::File::options()
            .write(true)
            .open(run(&job, number).join("_manifest.json"))
            .unwrap();
        manifest.set_modified(old).unwrap();
    }
    assert_eq!(prune(&job, &["--older-than", "41d"])["runs"], json!([]));
    assert_eq!(
        prune(&job, &["--older-than", "30d", "--dry-run"])["runs"],
        json!([1])
    );
    assert_eq!(prune(&job, &["--older-than", "30d"])["runs"], json!([1]));
    assert_eq!(prune(&job, &["--older-than", "0s"])["runs"], json!([2, 3]));
    assert_eq!(job.verify()["pruned_runs"], 3, "the newest is kept");
}

#[test]
fn killed_at_every_step_and_finished_by_the_next() {
    let broker = broker();
    for step in STEPS {
        let job = with_runs(&broker, 3);
        let reader = Reader::start(&job.dataset);
        let mut killed = prune_command(&job, &["--keep-runs", "1"]);
        killed.env("FAILPOINTS", format!("{step}=return(kill)"));
        let killed = killed.output().unwrap();
        assert_eq!(killed.status.code(), None, "{step} was not passed");
        // Half a prune is told from damage: by name, and with what to do.
        let (code, report) = job.verify_report();
        for problem in report["problems"].as_array().unwrap() {
            let said = problem["problem"].as_str().unwrap();
            assert!(said.contains("`logferry prune` finishes"), "{step}: {said}");
        }
        assert!([0, 65].contains(&code), "{step}");
        // Another one finishes it, even if it is to keep everything.
        prune(&job, &["--keep-runs", "100"]);
        job.verify();
        prune(&job, &["--keep-runs", "1"]);
        assert_eq!(job.verify()["pruned_runs"], 2, "{step}");
        assert_eq!(job.load().expect(0).manifest()["number"], 4, "{step}");
        assert_eq!(job.rows(), 80, "{step}");
        assert_eq!(job.coordinates().0, 40, "{step}");
        reader.finish();
    }
}

#[test]
fn one_that_sleeps_wakes_to_find_its_work_done() {
    let broker = broker();
    for step in STEPS {
        let job = with_runs(&broker, 3);
        let reader = Reader::start(&job.dataset);
        let sleeper = asleep_at(prune_command(&job, &["--keep-runs", "1"]), step);
        // Another prune finishes first, a load publishes and empties the trash.
        prune(&job, &["--keep-runs", "1"]);
        job.load().expect(0);
        let woken = wake(sleeper);
        assert_eq!(woken.code, 0, "{step}: {}", woken.stderr);
        let report = job.verify();
        assert_eq!(
            (&report["pruned_runs"], &report["counts"]["rows"]),
            (&json!(2), &json!(80)),
            "{step}"
        );
        assert_eq!(job.coordinates().0, 40, "{step}");
        reader.finish();
    }
}

#[test]
fn beside_loads_and_other_prunes() {
    let broker = broker();
    let job = with_runs(&broker, 1);
    let reader = Reader::start(&job.dataset);
    for round in 0..15 {
        let from = 52 + round * 2;
        broker.produce("events", 0, &events(from, from + 2, 10));
        let work = [
            job.load_command(&[]),
            job.load_command(&[]),
            prune_command(&job, &["--keep-runs", "1"]),
            prune_command(&job, &["--older-than", "0s"]),
        ];
        for child in work.map(spawn) {
            let done = Loaded::from(wait(child, PATIENCE));
            assert!([0, 75].contains(&done.code), "{round}: {}", done.stderr);
        }
    }
    reader.finish();
    while job.load().expect(0).json["outcome"] != "nothing" {}
    prune(&job, &["--keep-runs", "1"]);
    let report = job.verify();
    assert_eq!(report["counts"]["rows"], 110);
    let runs = report["runs"].as_u64().unwrap();
    assert_eq!(report["pruned_runs"], runs - 1);
}

#[test]
fn on_hdfs() {
    let broker = broker();
    let job = with_runs_in(Job::on_hdfs(&broker.address, "events", QUICK), 3);
    assert_eq!(prune(&job, &["--keep-runs", "2"])["runs"], json!([1]));
    assert_eq!(prune(&job, &["--older-than", "1h"])["runs"], json!([]));
    assert_eq!(job.verify()["pruned_runs"], 1);
    assert_eq!(job.load().expect(0).manifest()["number"], 4);
    assert_eq!(job.rows(), 80);
}

#[test]
fn what_is_no_dataset_and_what_is_no_rule_is_said() {
    let broker = broker();
    let job = Job::new(&broker.address, "events", QUICK);
    let prune = |more: &[&str]| Loaded::from(prune_command(&job, more).output().unwrap());
    prune(&["--keep-runs", "1"])
        .expect(2)
        .says(&["there is no dataset at"]);
    for wrong in [
        &[][..],
        &["--keep-runs", "0"],
        &["--older-than", "30"],
        &["--keep-runs", "1", "--older-than", "30d"],
    ] {
        assert_eq!(prune(wrong).code, 2, "{wrong:?}");
    }
    job.load().expect(0);
    // A dataset whose newest run is not sound keeps everything.
    fs::write(run(&job, 1).join("_manifest.json"), "{}").unwrap();
    fs::create_dir_all(Path::new(&job.dataset).join(".logferry/trash")).unwrap();
    prune(&["--keep-runs", "1"])
        .expect(1)
        .says(&["_manifest.json"]);
}

fn now() -> SystemTime {
    let now_ms = u64::try_from(crate::harness::now_ms()).unwrap();
    SystemTime::UNIX_EPOCH + Duration::from_millis(now_ms)
}
