//! What dead runs leave, and what becomes of it.

use std::time::Duration;

use loader_store::Operation;
use loader_store::faulty::{Fault, Rule};
use uuid::Uuid;

use super::{Bench, JOB, LEASE, dataset, first_sight};
use crate::commit::Place;
use crate::commit::staging::Staging;

#[tokio::test]
async fn a_lease_is_judged_by_its_owners_word() {
    let bench = Bench::new().await;
    let owner = Staging::create(&bench.place, JOB, LEASE).await.unwrap();
    let plan = first_sight("c", None);
    owner.write_plan(&plan).await.unwrap();
    // Another job file may say that leases are stale at once.
    let impatient = Staging::create(&bench.place, JOB, Duration::ZERO)
        .await
        .unwrap();
    let (impatient, taken) = impatient.take_over(&plan.fingerprint).await.unwrap();
    assert!(taken.is_none(), "a live run was taken over");
    impatient.clean_up(&plan.job).await.unwrap();
    assert!(
        bench
            .place
            .store
            .stat(&owner.paths().plan())
            .await
            .unwrap()
            .is_some(),
        "a live run was cleared away"
    );
    // One whose owner says so, or says nothing, is dead by then.
    bench
        .place
        .store
        .replace(&owner.paths().lease(), bytes::Bytes::new())
        .await
        .unwrap();
    let (_, taken) = impatient.take_over(&plan.fingerprint).await.unwrap();
    assert!(taken.is_some());
}

#[tokio::test]
async fn a_load_that_fails_while_it_looks_for_the_dead_leaves_nothing_behind() {
    let bench = Bench::new().await;
    let dead = bench.staged("c").await;
    dead.0.leave_for_next().await;
    for (operation, path) in [
        (Operation::List, "staging"),
        // The second look, after the claim.
        (Operation::Read, "plan.json"),
    ] {
        let staging = Staging::create(&bench.place, JOB, LEASE).await.unwrap();
        let broken = Fault::fail(|call| loader_store::Error::Io {
            operation: call.operation,
            path: call.path.clone(),
            source: "broken".into(),
        });
        let mut rule = Rule::on(operation, broken).path_contains(path);
        if operation == Operation::Read {
            rule = rule.nth(1);
        }
        bench.faults.add(rule);
        let taken = staging.take_over(&dead.1.fingerprint).await;
        assert!(taken.is_err(), "{operation}");
        drop(taken);
        let left = bench
            .place
            .store
            .list(&bench.place.layout.all_staging())
            .await
            .unwrap();
        assert!(left.len() <= 1, "{operation}: {left:?}");
    }
}

#[tokio::test]
async fn what_a_load_left_that_died_while_it_made_the_dataset_is_cleared_away() {
    let bench = Bench::new().await;
    let left = bench
        .place
        .layout
        .hidden()
        .join(&format!("new-{}-dataset.json", Uuid::new_v4()));
    bench
        .place
        .store
        .put(&left, bytes::Bytes::new())
        .await
        .unwrap();
    let fresh = Staging::create(&bench.place, JOB, LEASE).await.unwrap();
    fresh.clean_up("job").await.unwrap();
    assert!(
        bench.place.store.stat(&left).await.unwrap().is_some(),
        "perhaps another load is just making the dataset"
    );
    let later = Staging::create(&bench.place, JOB, Duration::ZERO)
        .await
        .unwrap();
    later.clean_up("job").await.unwrap();
    assert!(bench.place.store.stat(&left).await.unwrap().is_none());
}

#[tokio::test]
async fn a_quota_or_disk_that_only_our_own_leftovers_fill_locks_nobody_out() {
    let full = |of_quota: bool| {
        Fault::fail(move |call| {
            let (operation, path) = (call.operation, call.path.clone());
            let source = "full".into();
            if of_quota {
                return loader_store::Error::Quota {
                    operation,
                    path,
                    source,
                };
            }
            loader_store::Error::NoSpace {
                operation,
                path,
                source,
            }
        })
    };
    // Before and after the trash is emptied. A directory costs a name, its lease a block.
    for (operation, of_quota) in [
        (Operation::Mkdir, true),
        (Operation::Replace, true),
        (Operation::Replace, false),
    ] {
        let bench = Bench::new().await;
        let lease = Duration::from_millis(400);
        let plan = first_sight("c", None);
        let mut staged = Vec::new();
        for _ in 0..3 {
            let staging = Staging::create(&bench.place, JOB, lease).await.unwrap();
            staging.write_plan(&plan).await.unwrap();
            staged.push(staging);
        }
        let paths: Vec<_> = staged
            .iter()
            .map(|s| s.paths().directory().clone())
            .collect();
        let mut at_work = staged.pop().unwrap();
        let _lost = at_work.keep_lease();
        staged.pop().unwrap().leave_for_next().await;
        let rule = Rule::on(operation, full(of_quota));
        // The heartbeat of the run at work is not meant.
        let at_work_name = at_work.paths().directory().name().to_owned();
        bench.faults.add(
            rule.times(2)
                .when(move |call| !call.path.as_str().contains(&at_work_name)),
        );
        Staging::create(&bench.place, JOB, lease).await.unwrap();
        let mut there = Vec::new();
        for path in &paths {
            there.push(bench.place.store.stat(path).await.unwrap().is_some());
        }
        // Killed, given up, at work.
        assert_eq!(there, [false, false, true], "{operation}");
    }
}

#[tokio::test]
async fn a_lease_that_is_renewed_within_a_beat_is_that_of_a_living_run() {
    let bench = Bench::new().await;
    let plan = first_sight("c", None);
    let short = Duration::from_millis(600);
    let owner = Staging::create(&bench.place, JOB, short).await.unwrap();
    owner.write_plan(&plan).await.unwrap();
    // As after an outage in which nobody could renew anything.
    tokio::time::sleep(short).await;
    let other = Staging::create(&bench.place, JOB, short).await.unwrap();
    let renewed = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let text = super::super::lease::text(short);
        let lease = owner.paths().lease();
        bench.place.store.replace(&lease, text).await.unwrap();
    };
    let (taken, ()) = tokio::join!(other.take_over(&plan.fingerprint), renewed);
    let (other, taken) = taken.unwrap();
    assert!(taken.is_none(), "a living run was taken over");
    tokio::time::sleep(short).await;
    let (_, taken) = other.take_over(&plan.fingerprint).await.unwrap();
    assert!(taken.is_none(), "its age is that when this run began");
}

#[tokio::test]
async fn what_was_assembled_for_a_plan_goes_with_it() {
    let bench = Bench::new().await;
    let (staging, plan, _) = bench.staged("c").await;
    let out = staging.paths().out(crate::layout::RunNumber(1));
    bench.place.store.mkdir(&out).await.unwrap();
    let stale = out.join("00000.parquet");
    bench
        .place
        .store
        .put(&stale, bytes::Bytes::new())
        .await
        .unwrap();
    staging.drop_plan().await.unwrap();
    assert!(bench.place.store.stat(&out).await.unwrap().is_none());
    staging.write_plan(&plan).await.unwrap();
}

#[tokio::test]
async fn two_that_make_a_dataset_at_once_go_on_with_the_one_that_is_there() {
    let bench = Bench::new().await;
    let place = Place {
        store: std::sync::Arc::new(bench.faults.clone().into_remote(Duration::from_secs(5))),
        ..bench.place.clone()
    };
    // The request never arrives; before it is repeated another makes the dataset and clears away what lies
    // beside.
    bench
        .faults
        .add(Rule::on(Operation::Rename, Fault::LoseRequest));
    let theirs = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let made = dataset("theirs").make(&bench.place).await.unwrap();
        let hidden = bench.place.layout.hidden();
        for entry in bench.place.store.list(&hidden).await.unwrap() {
            if entry.name().starts_with("new-") {
                bench.place.store.delete(&entry.path).await.unwrap();
            }
        }
        made
    };
    let (ours, theirs) = tokio::join!(dataset("ours").make(&place), theirs);
    assert_eq!(ours.unwrap(), theirs);
}

#[tokio::test]
async fn of_several_dead_runs_the_one_with_the_most_finished_tasks_is_taken_over() {
    let bench = Bench::new().await;
    let (first, plan, _) = bench.staged("c").await;
    let (second, ..) = bench.staged("c").await;
    let second_path = second.paths().done(0);
    bench.place.store.mkdirs(&second_path).await.unwrap();
    bench
        .place
        .store
        .mkdirs(&first.paths().task(0))
        .await
        .unwrap();
    first.leave_for_next().await;
    second.leave_for_next().await;
    let next = Staging::create(&bench.place, JOB, LEASE).await.unwrap();
    let (claimed, taken) = next.take_over(&plan.fingerprint).await.unwrap();
    assert!(taken.is_some());
    let done = claimed.paths().done(0);
    assert!(bench.place.store.stat(&done).await.unwrap().is_some());
}

#[tokio::test]
async fn attempts_that_did_not_end_make_room_for_the_next_driver() {
    let bench = Bench::new().await;
    let (dead, plan, _) = bench.staged("c").await;
    let (done, attempt) = (
        dead.paths().done(0),
        dead.paths().attempt(0, Uuid::new_v4()),
    );
    for directory in [&done, &attempt] {
        bench.place.store.mkdirs(directory).await.unwrap();
        let file = directory.join("00000.part");
        let bytes = bytes::Bytes::from_static(b"x");
        bench.place.store.put(&file, bytes).await.unwrap();
    }
    dead.leave_for_next().await;
    // The disk is full as long as the attempt lies there: for the second lease, that of the claimed run.
    let staging = bench.place.layout.all_staging().to_string();
    let name = attempt.name().to_owned();
    let is_full = move |_: &loader_store::faulty::Call| {
        let runs = std::fs::read_dir(&staging).unwrap();
        let mut tasks = runs.map(|run| run.unwrap().path().join("tasks/00000"));
        tasks.any(|task| task.join(&name).try_exists().unwrap())
    };
    let full = Fault::fail(|call| loader_store::Error::NoSpace {
        operation: call.operation,
        path: call.path.clone(),
        source: "full".into(),
    });
    bench
        .faults
        .add(Rule::on(Operation::Replace, full).nth(1).when(is_full));
    let next = Staging::create(&bench.place, JOB, LEASE).await.unwrap();
    let (claimed, taken) = next.take_over(&plan.fingerprint).await.unwrap();
    assert!(taken.is_some());
    let done = claimed.paths().done(0).join("00000.part");
    assert!(bench.place.store.stat(&done).await.unwrap().is_some());
}
