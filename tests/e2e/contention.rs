//! Loads at once, and loads that sleep through each other (A4: I4).

use std::time::Duration;

use tempfile::TempDir;

use crate::harness::{Job, Loaded, OurBroker, Reader, asleep_at, events, pause, spawn, wait, wake};
use crate::kills::{QUICK, STEPS};
use crate::prune::prune;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn three_loads_started_together_twenty_times() {
    let broker = OurBroker::start();
    broker.create_topic("events", 2, &[]);
    let job = Job::new(&broker.address, "events", QUICK);
    let reader = Reader::start(&job.dataset);
    let mut codes = Vec::new();
    for round in 0..20 {
        broker.produce("events", 0, &events(round * 40, round * 40 + 20, 50));
        broker.produce("events", 1, &events(round * 40 + 20, round * 40 + 40, 50));
        let loads: Vec<_> = (0..3).map(|_| spawn(job.load_command(&[]))).collect();
        for load in loads {
            let loaded = Loaded::from(wait(load, PATIENCE));
            assert!(
                [0, 75].contains(&loaded.code),
                "round {round}: {} {}",
                loaded.code,
                loaded.stderr
            );
            codes.push(loaded.code);
        }
    }
    reader.finish();
    job.load().expect(0);
    job.prove(800, "20 rounds");
    assert!(codes.contains(&0));
}

/// How a load ends that slept at a step while others took its place: before it owned anything it is a load like
/// any other, and what it had published stays published.
fn exit_after_sleep_at(step: &str) -> i32 {
    let place = |step| STEPS.iter().position(|known| *known == step);
    let owned = place("staging.made")..place("publish.after");
    if owned.contains(&place(step)) { 75 } else { 0 }
}

#[test]
fn a_load_that_sleeps_at_any_step_publishes_nothing_twice() {
    let broker = OurBroker::start();
    broker.create_topic("events", 2, &[]);
    broker.produce("events", 0, &events(0, 60, 50));
    broker.produce("events", 1, &events(60, 100, 50));
    for step in STEPS {
        let job = Job::new(&broker.address, "events", QUICK);
        job.edit("[limits]", "[limits]\nmax_offsets_per_partition = 30");
        let reader = Reader::start(&job.dataset);
        let sleeper = asleep_at(job.load_command(&[]), step);
        pause(Duration::from_millis(150));
        // Others take over, publish two runs, clear away, and delete what the first of them brought.
        for _ in 0..3 {
            let other = job.load();
            assert_eq!(other.code, 0, "{step}: {}", other.stderr);
        }
        job.prove(100, step);
        let pruned = prune(&job, &["--keep-runs", "1"]);
        assert_eq!(pruned["runs"], serde_json::json!([1]), "{step}");
        let woken = wake(sleeper);
        let expected = exit_after_sleep_at(step);
        assert_eq!(woken.code, expected, "{step}: {}", woken.stderr);
        job.load().expect(0);
        assert_eq!(job.verify()["pruned_runs"], 1, "{step}");
        assert_eq!(job.rows(), 100, "{step}");
        // 30 rows of each partition were in the run that was pruned.
        let (rows, distinct) = job.coordinates();
        assert_eq!((rows, distinct.len()), (40, 40), "{step}");
        reader.finish();
        assert!(job.staging().is_empty(), "{step}: {:?}", job.staging());
    }
}

#[test]
fn two_clusters_into_one_dataset_without_rework() {
    let (one, two) = (OurBroker::start(), OurBroker::start());
    for (broker, from) in [(&one, 0), (&two, 1_000)] {
        broker.create_topic("events", 1, &[]);
        broker.produce("events", 0, &events(from, from + 100, 50));
    }
    let first = Job::new(&one.address, "events", QUICK);
    let second = Job::at(
        TempDir::new().unwrap(),
        &two.address,
        &["events"],
        first.dataset.clone(),
        QUICK,
    );
    first.load().expect(0);
    // The second job plans on run 1, then sleeps; the first publishes run 2 meanwhile.
    one.produce("events", 0, &events(100, 150, 50));
    let sleeper = asleep_at(second.load_command(&[]), "publish.before");
    let other = first.load().expect(0);
    assert_eq!(other.manifest()["number"], 2);
    let woken = wake(sleeper).expect(0);
    assert_eq!(
        woken.manifest()["number"],
        3,
        "rebased onto the other job's run"
    );
    assert_eq!(woken.rows(), 100);
    let report = first.verify();
    assert_eq!(
        (&report["runs"], &report["counts"]["rows"]),
        (&3.into(), &250.into())
    );
    assert_eq!(first.load().expect(0).json["outcome"], "nothing");
    assert_eq!(second.load().expect(0).json["outcome"], "nothing");
}
