//! Pruning against a store that fails, loses answers, or in which others empty the trash.

use std::time::Duration;

use super::*;
use crate::commit::newest::runs;
use crate::commit::prune::{Keep, PruneOptions, PruneReport, count_pruned, prune};
use crate::layout::{MANIFEST, PRUNED, SUCCESS};

const KEEP_ONE: PruneOptions = PruneOptions {
    keep: Keep::Runs(1),
    dry_run: false,
    now_ms: 0,
};

impl Bench {
    /// A dataset with so many runs of two directories each.
    pub(super) async fn with_runs(count: u64) -> Self {
        let bench = Self::new().await;
        dataset("j").make(&bench.place).await.unwrap();
        for number in 1..=count {
            let staged = bench.staged(&format!("c{number}")).await;
            bench.publish(&staged).await.unwrap();
            for name in ["dt=1", "dt=2"] {
                let directory = bench.place.layout.run(RunNumber(number)).join(name);
                std::fs::create_dir(directory.as_str()).unwrap();
                std::fs::write(directory.join("part").as_str(), "rows").unwrap();
            }
        }
        bench
    }

    async fn prune(&self) -> Result<PruneReport, Error> {
        prune(&self.place, KEEP_ONE).await
    }

    fn names(&self, number: u64) -> Vec<String> {
        let run = self.place.layout.run(RunNumber(number)).to_string();
        let entries = std::fs::read_dir(run).unwrap();
        let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    async fn pruned(&self) -> usize {
        let numbers = runs(&self.place).await.unwrap();
        count_pruned(&self.place, &numbers).await.unwrap()
    }
}

#[tokio::test]
async fn a_store_that_fails_leaves_one_run_half_gone_and_the_next_prune_finishes_it() {
    let bench = Bench::with_runs(3).await;
    bench
        .faults
        .add(Rule::on(Operation::Rename, no_answer()).path_contains("run=000001/dt=2"));
    let error = bench.prune().await.unwrap_err();
    assert_eq!(error.exit(), crate::error::Exit::Unavailable, "{error}");
    assert_eq!(bench.names(1), [SUCCESS, MANIFEST, PRUNED, "dt=2"]);
    assert_eq!(bench.names(2), [SUCCESS, MANIFEST, "dt=1", "dt=2"]);
    assert_eq!(bench.pruned().await, 1);

    let report = bench.prune().await.unwrap();
    assert_eq!(report.runs, [RunNumber(1), RunNumber(2)]);
    assert_eq!(bench.names(1), [SUCCESS, MANIFEST, PRUNED]);
    assert_eq!(bench.names(2), [SUCCESS, MANIFEST, PRUNED]);
    assert_eq!(bench.names(3), [SUCCESS, MANIFEST, "dt=1", "dt=2"]);
}

#[tokio::test]
async fn a_marker_is_placed_although_the_trash_is_emptied_and_answers_are_lost() {
    for lost in [false, true] {
        let bench = Bench::with_runs(2).await;
        let fault = if lost {
            Fault::LoseAnswer
        } else {
            Fault::fail(|call| {
                std::fs::remove_file(call.path.as_str()).unwrap();
                loader_store::Error::NotFound {
                    path: call.path.clone(),
                }
            })
        };
        bench
            .faults
            .add(Rule::on(Operation::Rename, fault).path_contains(PRUNED));
        let report = bench.prune().await.unwrap();
        assert_eq!((&report.runs[..], report.kept), (&[RunNumber(1)][..], 1));
        assert_eq!(bench.names(1), [SUCCESS, MANIFEST, PRUNED]);
    }
}

#[tokio::test]
async fn a_run_that_is_not_sound_keeps_its_data_and_so_do_those_after_it() {
    let bench = Bench::with_runs(4).await;
    let second = bench.place.layout.manifest(RunNumber(2)).to_string();
    let sound = std::fs::read(&second).unwrap();
    std::fs::write(&second, &sound[..sound.len() / 2]).unwrap();
    let error = bench.prune().await.unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    assert_eq!(bench.pruned().await, 1);
    for number in 2..=4 {
        assert_eq!(bench.names(number), [SUCCESS, MANIFEST, "dt=1", "dt=2"]);
    }
    // A marker that is another run's says nothing about this one.
    std::fs::write(&second, &sound).unwrap();
    let marker = |number| bench.place.layout.run(RunNumber(number)).join(PRUNED);
    std::fs::copy(marker(1).as_str(), marker(2).as_str()).unwrap();
    let error = bench.prune().await.unwrap_err();
    assert!(error.to_string().contains("another run"), "{error}");
    assert_eq!(bench.names(2), [SUCCESS, MANIFEST, PRUNED, "dt=1", "dt=2"]);
}

#[tokio::test]
async fn the_pruned_are_counted_with_few_looks() {
    let bench = Bench::with_runs(20).await;
    for keep in [20, 13, 1] {
        let options = PruneOptions {
            keep: Keep::Runs(keep),
            ..KEEP_ONE
        };
        prune(&bench.place, options).await.unwrap();
        let numbers = runs(&bench.place).await.unwrap();
        let before = bench.faults.calls().len();
        let pruned = count_pruned(&bench.place, &numbers).await.unwrap();
        assert_eq!(pruned, 20 - keep);
        assert!(bench.faults.calls().len() - before <= 5, "{keep}");
    }
    let young = PruneOptions {
        keep: Keep::Younger(Duration::from_secs(3600)),
        ..KEEP_ONE
    };
    assert_eq!(prune(&bench.place, young).await.unwrap().pruned_before, 19);
}
