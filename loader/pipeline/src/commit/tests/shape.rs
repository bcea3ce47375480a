//! What the number of runs costs: a listing, and nothing for each run.

use loader_store::faulty::Call;

use super::*;
use crate::config::JobConfig;
use crate::layout::{MANIFEST, PRUNED};
use crate::status::status;
use crate::verify::{VerifyOptions, verify};

const MANY: u64 = 40;

impl Bench {
    /// Calls made by some work.
    async fn calls_of<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Vec<Call> {
        let before = self.faults.calls().len();
        work.await.unwrap();
        self.faults.calls().split_off(before)
    }
}

fn reads_of_manifests(calls: &[Call]) -> usize {
    let is_manifest =
        |call: &&Call| call.operation == Operation::Read && call.path.name() == MANIFEST;
    calls.iter().filter(is_manifest).count()
}

#[tokio::test]
async fn finding_the_newest_run_lists_once_and_reads_one_manifest() {
    let bench = Bench::with_runs(MANY).await;
    let calls = bench.calls_of(newest(&bench.place)).await;
    // `last`, the listing, the manifest.
    assert_eq!(
        (calls.len(), reads_of_manifests(&calls)),
        (3, 1),
        "{calls:?}"
    );
}

#[tokio::test]
async fn status_reads_one_manifest_and_looks_at_few_runs() {
    let bench = Bench::with_runs(MANY).await;
    let job: JobConfig = toml::from_str(
        "[source]\nbrokers = ['b:9092']\ntopics = ['t']\n[output]\ndataset = '/d'\n",
    )
    .unwrap();
    let no_source = || {
        Err(broker_client::Error::UnknownTopic {
            topic: "t".parse().unwrap(),
        })
    };
    let calls = bench
        .calls_of(status(&bench.place, &job, &[], no_source()))
        .await;
    assert_eq!(reads_of_manifests(&calls), 1, "{calls:?}");
    let looks = calls.iter().filter(|call| call.path.name() == PRUNED);
    assert!(looks.count() <= 6, "{calls:?}");
    let lists = calls.iter().filter(|c| c.operation == Operation::List);
    assert_eq!(lists.count(), 2, "the dataset and staging: {calls:?}");
}

#[tokio::test]
async fn verifying_the_newest_run_reads_two_manifests_and_one_run() {
    let bench = Bench::with_runs(MANY).await;
    let options = VerifyOptions {
        newest_only: true,
        ..VerifyOptions::default()
    };
    let calls = bench.calls_of(verify(&bench.place, options)).await;
    assert_eq!(reads_of_manifests(&calls), 2, "{calls:?}");
    let others = calls.iter().filter(|call| {
        let path = call.path.as_str();
        path.contains("run=") && !path.contains("run=000040")
    });
    assert_eq!(others.count(), 1, "the manifest before: {calls:?}");
    // All of them are read without the option.
    let calls = bench
        .calls_of(verify(&bench.place, VerifyOptions::default()))
        .await;
    assert_eq!(reads_of_manifests(&calls), 40);
}
