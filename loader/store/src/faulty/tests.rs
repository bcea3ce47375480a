use super::*;
use crate::{LocalStore, conformance};

async fn scratch() -> (tempfile::TempDir, FaultyStore, StorePath) {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().canonicalize().unwrap();
    let root = StorePath::new(path.to_str().unwrap()).unwrap();
    let store = FaultyStore::new(Arc::new(LocalStore::new()));
    store.mkdir(&root.join("a")).await.unwrap();
    (temp, store, root)
}

#[tokio::test]
async fn a_faulty_store_without_faults_conforms() {
    let (_temp, store, root) = scratch().await;
    conformance::run(&store, &root).await;
}

#[tokio::test]
async fn a_lost_answer_is_of_something_done_and_a_lost_request_is_not() {
    let (_temp, store, root) = scratch().await;
    let (a, b) = (root.join("a"), root.join("b"));
    store.add(Rule::on(Operation::Rename, Fault::LoseRequest));
    store.add(Rule::on(Operation::Rename, Fault::LoseAnswer).nth(1));
    for is_done in [false, true] {
        let result = store.rename_no_overwrite(&a, &b).await;
        assert!(matches!(&result, Err(Error::OutcomeUnknown { path, .. }) if *path == b));
        assert_eq!(store.stat(&b).await.unwrap().is_some(), is_done);
    }
    // Both rules have had their turn.
    store.rename_no_overwrite(&b, &a).await.unwrap();
}

#[tokio::test]
async fn rules_choose_by_operation_path_and_count() {
    let (_temp, store, root) = scratch().await;
    let fault = Fault::fail(|call| Error::NotFound {
        path: call.path.clone(),
    });
    store.add(
        Rule::on(Operation::Stat, fault)
            .path_contains("/a")
            .nth(1)
            .times(2),
    );
    let (a, b) = (root.join("a"), root.join("b"));
    store.list(&a).await.unwrap();
    let mut failed = Vec::new();
    for path in [&a, &b, &a, &a, &a] {
        failed.push(store.stat(path).await.is_err());
    }
    assert_eq!(failed, [false, false, true, true, false]);
    assert_eq!(store.calls().len(), 7);
    assert_eq!(store.calls()[1].operation, Operation::List);
}

#[tokio::test]
async fn a_gate_holds_a_call_before_it_is_made_or_before_it_is_answered() {
    let (_temp, store, root) = scratch().await;
    let (a, b) = (root.join("a"), root.join("b"));
    for (gate_is_before, from, to) in [(true, &a, &b), (false, &b, &a)] {
        let gate = Gate::new();
        let fault = match gate_is_before {
            true => Fault::Pause(gate.clone()),
            false => Fault::PauseAnswer(gate.clone()),
        };
        store.add(Rule::on(Operation::Rename, fault));
        let look = async {
            gate.reached().await;
            let moved = store.stat(to).await.unwrap().is_some();
            assert_ne!(moved, gate_is_before);
            gate.release();
        };
        let (result, ()) = futures::join!(store.rename_no_overwrite(from, to), look);
        result.unwrap();
    }
}

#[tokio::test]
async fn writers_obey_too_and_an_error_ends_them() {
    let (_temp, store, root) = scratch().await;
    store.add(Rule::on(Operation::Write, Fault::LoseRequest).nth(1));
    let mut writer = store.create(&root.join("file")).await.unwrap();
    writer.write(Bytes::from_static(b"x")).await.unwrap();
    for _ in 0..2 {
        let failed = writer.write(Bytes::from_static(b"y")).await;
        assert!(
            matches!(failed, Err(Error::WriteFailed { .. })),
            "{failed:?}"
        );
    }
    assert!(matches!(
        writer.close().await,
        Err(Error::WriteFailed { .. })
    ));
}
