//! The commit protocol against a store that fails or loses answers at a chosen call.

mod leftovers;
mod prune;
mod shape;

use std::sync::Arc;

use broker_client::protocol::ids::TopicId;
use loader_store::faulty::{Fault, FaultyStore, Gate, Rule};
use loader_store::{LocalStore, Operation, StorePath};
use uuid::Uuid;

use super::Place;
use super::assemble::Selection;
use super::dataset::{Dataset, LAYOUT};
use super::newest::{newest, run_numbers};
use super::publish::publish;
use super::staging::Staging;
use crate::error::Error;
use crate::layout::{Layout, RunNumber};
use crate::manifest::Manifest;
use crate::partitioner::Grouping;
use crate::plan::{Plan, PlanRequest, plan};
use crate::schema::TableSchema;
use crate::snapshot::{LogOffsets, PartitionSnapshot, SourceSnapshot, TopicSnapshot};

const JOB: &str = "";
const LEASE: std::time::Duration = std::time::Duration::from_secs(60);

struct Bench {
    _dir: tempfile::TempDir,
    faults: FaultyStore,
    place: Place,
}

/// A store that does not answer.
fn no_answer() -> Fault {
    Fault::fail(|call| loader_store::Error::OutcomeUnknown {
        operation: call.operation,
        path: call.path.clone(),
        source: "no route to host".into(),
    })
}

impl Bench {
    async fn new() -> Self {
        let dir = tempfile::TempDir::new().unwrap();
        let faults = FaultyStore::new(Arc::new(LocalStore::new()));
        let root = StorePath::new(dir.path().to_str().unwrap()).unwrap();
        let place = Place {
            store: Arc::new(faults.clone()),
            layout: Layout::new(root),
        };
        for directory in [place.layout.all_staging(), place.layout.trash()] {
            place.store.mkdirs(&directory).await.unwrap();
        }
        Self {
            _dir: dir,
            faults,
            place,
        }
    }

    /// A run that sees partitions for the first time: the smallest there is to publish.
    async fn staged(&self, cluster: &str) -> (Staging, Plan, Option<Manifest>) {
        let base = newest(&self.place).await.unwrap();
        let plan = first_sight(cluster, base.as_ref());
        let staging = Staging::create(&self.place, JOB, LEASE).await.unwrap();
        staging.write_plan(&plan).await.unwrap();
        (staging, plan, base)
    }

    async fn publish(
        &self,
        (staging, plan, base): &(Staging, Plan, Option<Manifest>),
    ) -> Result<Manifest, Error> {
        publish(
            &self.place,
            staging,
            plan,
            &Selection::default(),
            base.clone(),
        )
        .await
    }

    async fn runs(&self) -> Vec<u64> {
        run_numbers(&self.place)
            .await
            .unwrap()
            .into_iter()
            .map(|run| run.0)
            .collect()
    }
}

fn no_columns() -> TableSchema {
    TableSchema {
        columns: Vec::new(),
        rest_column: None,
        coordinates: true,
    }
}

fn dataset(job: &str) -> Dataset {
    Dataset {
        uuid: Uuid::new_v4(),
        job: job.to_owned(),
        cluster_id: "c0".to_owned(),
        layout: LAYOUT.to_owned(),
        schema: no_columns(),
        schema_inferred: false,
        grouping: Grouping::default(),
        made_at_ms: 0,
    }
}

fn first_sight(cluster: &str, newest: Option<&Manifest>) -> Plan {
    let job: crate::config::JobConfig = toml::from_str(
        "[source]\nbrokers = ['b:9092']\ntopics = ['t']\n[output]\ndataset = '/d'\n",
    )
    .unwrap();
    let schema = no_columns();
    let log = LogOffsets {
        earliest: 5,
        end: 5,
        leader_epoch: 0,
        start_at: Some(5),
        previous_epoch: None,
        complete_until: None,
        bytes: None,
    };
    let source = SourceSnapshot {
        cluster_id: cluster.to_owned(),
        topics: vec![TopicSnapshot {
            topic: "t".parse().unwrap(),
            topic_id: Some(TopicId(Uuid::new_v4())),
            compacted: false,
            partitions: vec![PartitionSnapshot {
                partition: 0,
                offsets: Ok(log),
            }],
        }],
        missing: Vec::new(),
    };
    let request = PlanRequest {
        job: &job,
        schema: &schema,
        newest,
        source: &source,
        accept_gap: false,
        now_ms: 1_796_000_000_000,
    };
    plan(&request).unwrap()
}

#[tokio::test]
async fn a_lost_answer_to_the_publishing_rename_is_looked_up_and_not_repeated_blindly() {
    let bench = Bench::new().await;
    let staged = bench.staged("c").await;
    bench
        .faults
        .add(Rule::on(Operation::Rename, Fault::LoseAnswer).path_contains("run=000001"));
    let manifest = bench.publish(&staged).await.unwrap();
    assert_eq!(
        (manifest.uuid, manifest.number),
        (staged.0.run(), RunNumber(1))
    );
    assert_eq!(bench.runs().await, [1]);
    let renames = bench.faults.calls().into_iter().filter(|call| {
        call.operation == Operation::Rename
            && call
                .target
                .as_ref()
                .is_some_and(|to| to.name() == "run=000001")
    });
    assert_eq!(
        renames.count(),
        1,
        "it had happened: nothing was renamed again"
    );
}

#[tokio::test]
async fn a_rename_that_did_not_happen_though_nobody_knew_is_done_again() {
    let bench = Bench::new().await;
    let staged = bench.staged("c").await;
    let unknown = Fault::fail(|call| loader_store::Error::OutcomeUnknown {
        operation: call.operation,
        path: call.path.clone(),
        source: "the connection was reset".into(),
    });
    bench.faults.add(
        Rule::on(Operation::Rename, unknown)
            .path_contains("run=000001")
            .times(3),
    );
    let manifest = bench.publish(&staged).await.unwrap();
    assert_eq!(manifest.uuid, staged.0.run());
    assert_eq!(bench.runs().await, [1]);
}

#[tokio::test]
async fn a_lost_answer_after_which_another_driver_took_the_directory_is_a_fence() {
    let bench = Bench::new().await;
    let staged = bench.staged("c").await;
    let taken = staged.0.paths().directory().to_string();
    let aside = bench.place.layout.trash().join("taken").to_string();
    // The rename did not happen, its answer was lost, and then another driver claimed the directory.
    let lost = Fault::fail(move |call| {
        std::fs::rename(&taken, &aside).unwrap();
        loader_store::Error::OutcomeUnknown {
            operation: call.operation,
            path: call.path.clone(),
            source: "the connection was reset".into(),
        }
    });
    bench
        .faults
        .add(Rule::on(Operation::Rename, lost).path_contains("run=000001"));
    let error = bench.publish(&staged).await.unwrap_err();
    assert_eq!(error.exit(), crate::error::Exit::Fenced, "{error}");
    assert!(bench.runs().await.is_empty());
}

#[tokio::test]
async fn a_store_that_cannot_be_asked_after_a_lost_answer_is_said_to_be_unknown() {
    let bench = Bench::new().await;
    let staged = bench.staged("c").await;
    bench
        .faults
        .add(Rule::on(Operation::Rename, Fault::LoseAnswer).path_contains("run=000001"));
    bench
        .faults
        .add(Rule::on(Operation::Mkdir, no_answer()).path_contains("settle-"));
    let error = bench.publish(&staged).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::PublishUnknown {
                number: RunNumber(1),
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(bench.runs().await, [1], "it had happened");
}

#[tokio::test]
async fn a_directory_in_which_a_slow_driver_planned_anew_is_not_run_by_the_old_plan() {
    let bench = Bench::new().await;
    let (sleeper, plan, _) = bench.staged("c").await;
    // The claimer looks, finds a plan that fits …, and meanwhile the directory gets another one.
    let other = first_sight("d", None);
    let rewritten = crate::sealed::seal(&other).unwrap();
    let path = sleeper.paths().plan().to_string();
    let awake = Fault::fail(move |call| {
        std::fs::write(&path, &rewritten).unwrap();
        std::fs::rename(
            call.path.to_string(),
            call.target.as_ref().unwrap().to_string(),
        )
        .unwrap();
        loader_store::Error::NotFound {
            path: call.path.clone(),
        }
    });
    sleeper.leave_for_next().await;
    let claimer = Staging::create(&bench.place, JOB, LEASE).await.unwrap();
    bench
        .faults
        .add(Rule::on(Operation::Rename, awake).path_contains("staging"));
    let (_, taken) = claimer.take_over(&plan.fingerprint).await.unwrap();
    assert!(taken.is_none(), "an unknown claim is not ours");
}

#[tokio::test]
async fn two_clusters_rebase_and_the_same_partition_is_fenced() {
    let bench = Bench::new().await;
    let (one, two, again) = (
        bench.staged("c").await,
        bench.staged("d").await,
        bench.staged("c").await,
    );
    assert_eq!(bench.publish(&one).await.unwrap().number, RunNumber(1));
    let rebased = bench.publish(&two).await.unwrap();
    assert_eq!(
        (rebased.number, rebased.partitions.len()),
        (RunNumber(2), 2)
    );
    assert_eq!(rebased.previous.unwrap().uuid, one.0.run());
    let fenced = bench.publish(&again).await.unwrap_err();
    assert!(matches!(fenced, Error::Moved { .. }), "{fenced}");
    assert_eq!(bench.runs().await, [1, 2]);
}

#[tokio::test]
async fn a_broken_newest_manifest_is_an_error_and_never_a_fall_back() {
    let bench = Bench::new().await;
    bench.publish(&bench.staged("c").await).await.unwrap();
    bench.publish(&bench.staged("d").await).await.unwrap();
    let path = bench.place.layout.manifest(RunNumber(2)).to_string();
    let sound = std::fs::read(&path).unwrap();
    std::fs::write(&path, &sound[..sound.len() / 2]).unwrap();
    let error = newest(&bench.place).await.unwrap_err();
    assert_eq!(error.exit(), crate::error::Exit::Failed, "{error}");
    std::fs::write(&path, sound).unwrap();
    newest(&bench.place).await.unwrap();

    // The newest run gone: `last` knows better.
    std::fs::remove_dir_all(bench.place.layout.run(RunNumber(2)).to_string()).unwrap();
    let error = newest(&bench.place).await.unwrap_err().to_string();
    assert!(error.contains("was published and is gone"), "{error}");
}

#[tokio::test]
async fn a_name_that_looks_like_a_run_is_not_passed_over() {
    let bench = Bench::new().await;
    let odd = bench.place.layout.root().join("run=2");
    bench.place.store.mkdir(&odd).await.unwrap();
    let error = newest(&bench.place).await.unwrap_err().to_string();
    assert!(error.contains("run=2"), "{error}");
}

#[tokio::test]
async fn a_run_published_between_two_looks_is_no_run_that_vanished() {
    let bench = Bench::new().await;
    bench.publish(&bench.staged("c").await).await.unwrap();
    let second = bench.staged("d").await;
    // A look at the newest run is held up behind its first call; meanwhile run 2 is published and noted.
    let gate = Gate::new();
    bench
        .faults
        .add(Rule::any(Fault::PauseAnswer(gate.clone())));
    let place = bench.place.clone();
    let look = async { super::newest::newest_number(&place).await };
    let publish = async {
        gate.reached().await;
        bench.publish(&second).await.unwrap();
        gate.release();
    };
    let (newest, ()) = tokio::join!(look, publish);
    assert_eq!(newest.unwrap(), Some(RunNumber(2)));
}
