//! `kill -9` before and after every step of the commit protocol, and at random times (A3: I1, I2, I3).

use std::time::Duration;

use crate::harness::{Job, OurBroker, Reader, events, pause, spawn, wait};

/// Every fail-point of the commit protocol, in the order in which a load passes them.
pub(crate) const STEPS: &[&str] = &[
    "dataset.directories",
    "dataset.beside",
    "staging.made",
    "plan.before_write",
    "plan.beside",
    "plan.written",
    "plan.settled",
    "task.started",
    "task.written",
    "task.files_closed",
    "task.report_beside",
    "task.reported",
    "task.done",
    "assemble.out_made",
    "assemble.file_moved",
    "assemble.moved",
    "assemble.document_beside",
    "assemble.manifest_in",
    "assemble.compared",
    "publish.before",
    "publish.after",
    "publish.last_written",
    "staging.before_discard",
    "trash.renamed",
    "staging.discarded",
];

/// Small tasks, and a lease that is stale almost at once, so that the next run takes over.
pub(crate) const QUICK: &str =
    "[limits]\ntask_bytes = '4KiB'\n[engine]\nlease_timeout = '100ms'\nthreads = 2\n";

fn broker_with(records: u64) -> OurBroker {
    let broker = OurBroker::start();
    broker.create_topic("events", 2, &[]);
    broker.produce("events", 0, &events(0, records / 2, 50));
    broker.produce("events", 1, &events(records / 2, records, 50));
    broker
}

/// After a kill: the next runs bring everything, once.
fn recover_and_prove(job: &Job, records: u64, what: &str) {
    pause(Duration::from_millis(150));
    let next = job.load();
    assert_eq!(next.code, 0, "{what}: {}", next.stderr);
    job.prove(records, what);
}

#[test]
fn every_step_of_the_source_is_in_the_list() {
    // A fail-point that is added without a kill test would prove nothing.
    let output = std::process::Command::new("grep")
        .args([
            "-rhoE",
            "failpoint!\\(\"[a-z_.]+\"",
            concat!(env!("CARGO_MANIFEST_DIR"), "/loader/pipeline/src"),
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut found: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    found.sort_unstable();
    found.dedup();
    let elsewhere = [
        "assemble.document_out",
        "publish.settled",
        "takeover.before_claim",
        "takeover.claimed",
    ];
    let mut known: Vec<&str> = STEPS.iter().chain(&elsewhere).copied().collect();
    known.extend(crate::prune::STEPS);
    known.sort_unstable();
    known.dedup();
    assert_eq!(found, known);
}

#[test]
fn killed_at_every_step_of_the_first_run() {
    let broker = broker_with(400);
    for step in STEPS {
        let job = Job::new(&broker.address, "events", QUICK);
        let reader = Reader::start(&job.dataset);
        let killed = job.load_killed_at(&format!("{step}=return(kill)"));
        assert_eq!(killed.status.code(), None, "{step} was not passed");
        recover_and_prove(&job, 400, step);
        reader.finish();
    }
}

#[test]
fn killed_at_every_step_of_a_later_run_and_again_while_recovering() {
    let broker = broker_with(200);
    for step in STEPS.iter().filter(|step| !step.starts_with("dataset.")) {
        let job = Job::new(&broker.address, "events", QUICK);
        job.edit("[limits]", "[limits]\nmax_offsets_per_partition = 60");
        job.load().expect(0);
        job.edit("max_offsets_per_partition = 60\n", "");
        let reader = Reader::start(&job.dataset);
        let killed = job.load_killed_at(&format!("{step}=return(kill)"));
        assert_eq!(killed.status.code(), None, "{step} was not passed");
        pause(Duration::from_millis(120));
        let again = job.load_killed_at(&format!("{step}=return(kill)"));
        // The second may have nothing left to do.
        assert!(matches!(again.status.code(), None | Some(0)), "{step}");
        pause(Duration::from_millis(120));
        recover_and_prove(&job, 200, step);
        reader.finish();
    }
}

#[test]
fn killed_while_taking_over() {
    let broker = broker_with(200);
    for step in ["takeover.before_claim", "takeover.claimed"] {
        let job = Job::new(&broker.address, "events", QUICK);
        let killed = job.load_killed_at("task.done=return(kill)");
        assert_eq!(killed.status.code(), None);
        pause(Duration::from_millis(150));
        let again = job.load_killed_at(&format!("{step}=return(kill)"));
        assert_eq!(
            again.status.code(),
            None,
            "{step} was not passed: nothing was taken over"
        );
        recover_and_prove(&job, 200, step);
    }
}

#[test]
fn a_run_that_died_is_resumed_and_not_redone() {
    let broker = broker_with(400);
    let job = Job::new(&broker.address, "events", QUICK);
    let killed = job.load_killed_at("assemble.out_made=return(kill)");
    assert_eq!(killed.status.code(), None);
    pause(Duration::from_millis(150));
    // All tasks are done: a run that started one again would be killed.
    let mut command = job.load_command(&[]);
    command.env("FAILPOINTS", "task.started=return(kill)");
    let resumed = crate::harness::Loaded::from(command.output().unwrap()).expect(0);
    assert_eq!(resumed.rows(), 400);
    job.verify();
}

#[test]
fn sigterm_leaves_the_finished_tasks_for_the_next_run() {
    let broker = broker_with(400);
    let job = Job::new(&broker.address, "events", QUICK);
    job.edit("threads = 2", "threads = 1");
    let mut command = job.load_command(&[]);
    command.env("FAILPOINTS", "task.done=1*off->1*sleep(1500)");
    let child = spawn(command);
    test_support::wait_until(Duration::from_secs(20), || !done_tasks(&job).is_empty()).unwrap();
    test_support::process::send(child.id(), rustix::process::Signal::TERM).unwrap();
    let output = wait(child, Duration::from_secs(20));
    assert_eq!(
        output.status.code(),
        Some(143),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let finished = done_tasks(&job).len();
    let next = job.command("load").arg("--create").output().unwrap();
    let said = String::from_utf8_lossy(&next.stderr).into_owned();
    assert!(
        said.contains(&format!("{finished} of them done before")),
        "{finished}: {said}"
    );
    assert_eq!(job.rows(), 400);
    job.verify();
}

fn done_tasks(job: &Job) -> Vec<String> {
    let staging = std::path::Path::new(&job.dataset).join(".logferry/staging");
    let mut done = Vec::new();
    for run in crate::harness::list(&staging) {
        for task in crate::harness::list(&staging.join(&run).join("tasks")) {
            if staging
                .join(&run)
                .join("tasks")
                .join(&task)
                .join("done")
                .is_dir()
            {
                done.push(task);
            }
        }
    }
    done
}

/// Kills at pseudo-random times, by seed: `kills` of them, each followed by the next run.
fn killed_at_random_times(seeds: std::ops::Range<u64>) {
    let broker = broker_with(2_000);
    for seed in seeds {
        let job = Job::new(&broker.address, "events", QUICK);
        let reader = Reader::start(&job.dataset);
        let child = spawn(job.load_command(&[]));
        pause(Duration::from_millis(
            20 + seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 600,
        ));
        // It may have ended already.
        drop(test_support::process::send(
            child.id(),
            rustix::process::Signal::KILL,
        ));
        drop(wait(child, Duration::from_secs(20)));
        recover_and_prove(&job, 2_000, &format!("seed {seed}"));
        reader.finish();
    }
}

#[test]
fn killed_at_thirty_random_times() {
    killed_at_random_times(0..30);
}

#[test]
#[ignore = "a campaign; run: tests/long kills [--seeds A..B]"]
fn long_kills() {
    killed_at_random_times(crate::harness::seeds(0..300));
}

#[test]
fn killed_on_hdfs_at_every_step_of_publishing() {
    let broker = broker_with(200);
    for step in [
        "task.reported",
        "assemble.file_moved",
        "assemble.manifest_in",
        "publish.before",
        "publish.after",
    ] {
        let job = Job::on_hdfs(&broker.address, "events", QUICK);
        let killed = job.load_killed_at(&format!("{step}=return(kill)"));
        assert_eq!(killed.status.code(), None, "{step} was not passed");
        pause(Duration::from_millis(150));
        job.load().expect(0);
        assert_eq!(job.rows(), 200, "{step}");
    }
}
