//! Properties of the rename that publishes.

use bytes::Bytes;
use futures::future::join_all;

use super::{assert_error, holds, is_there, mkdir, must, names, put, rename, stat, winners};
use crate::{Error, Store, StorePath};

const RACERS: usize = 16;

fn numbered(dir: &StorePath, prefix: &str) -> Vec<StorePath> {
    (0..RACERS)
        .map(|racer| dir.join(&format!("{prefix}-{racer}")))
        .collect()
}

pub(super) async fn rename_moves_a_file(store: &dyn Store, dir: &StorePath) {
    let (from, to) = (dir.join("from"), dir.join("directory/to"));
    mkdir(store, &dir.join("directory")).await;
    put(store, &from, "content").await;
    rename(store, &from, &to).await;
    holds(store, &to, "content").await;
    assert!(!is_there(store, &from).await);
}

pub(super) async fn rename_moves_a_whole_tree(store: &dyn Store, dir: &StorePath) {
    let (from, to) = (dir.join("staging/out-000042"), dir.join("run=000042"));
    must("mkdirs", store.mkdirs(&from.join("dt=1/hour=2")).await);
    mkdir(store, &from.join("empty")).await;
    put(store, &from.join("dt=1/hour=2/part"), "rows").await;
    put(store, &from.join("_manifest.json"), "{}").await;
    rename(store, &from, &to).await;
    assert_eq!(names(store, &to).await, ["_manifest.json", "dt=1", "empty"]);
    holds(store, &to.join("dt=1/hour=2/part"), "rows").await;
    holds(store, &to.join("_manifest.json"), "{}").await;
    assert!(!is_there(store, &from).await);
}

pub(super) async fn rename_never_overwrites(store: &dyn Store, dir: &StorePath) {
    let (file, directory) = (dir.join("source-file"), dir.join("source-directory"));
    let (other, empty, full) = (dir.join("file"), dir.join("empty"), dir.join("full"));
    put(store, &file, "from").await;
    mkdir(store, &directory).await;
    put(store, &directory.join("child"), "from").await;
    put(store, &other, "to").await;
    mkdir(store, &empty).await;
    mkdir(store, &full).await;
    put(store, &full.join("child"), "to").await;
    for source in [&file, &directory] {
        for target in [&other, &empty, &full, source] {
            let renamed = store.rename_no_overwrite(source, target).await;
            assert_error!(renamed, Error::AlreadyExists { .. });
        }
    }
    holds(store, &file, "from").await;
    holds(store, &directory.join("child"), "from").await;
    holds(store, &other, "to").await;
    holds(store, &full.join("child"), "to").await;
    assert_eq!(names(store, &full).await, ["child"]);
    assert_eq!(names(store, &empty).await, [""; 0]);
}

pub(super) async fn rename_needs_the_targets_parent(store: &dyn Store, dir: &StorePath) {
    let source = dir.join("source");
    mkdir(store, &source).await;
    for target in [dir.join("missing/to"), dir.join("missing/deep/to")] {
        let renamed = store.rename_no_overwrite(&source, &target).await;
        assert_error!(renamed, Error::ParentMissing { path } if *path == target);
    }
    assert_eq!(names(store, dir).await, ["source"]);
}

pub(super) async fn rename_needs_a_source(store: &dyn Store, dir: &StorePath) {
    let taken = dir.join("taken");
    put(store, &taken, "content").await;
    let targets = [dir.join("free"), taken.clone(), dir.join("missing/to")];
    for source in [dir.join("none"), dir.join("none/deep")] {
        for target in &targets {
            let renamed = store.rename_no_overwrite(&source, target).await;
            assert_error!(renamed, Error::NotFound { path } if *path == source);
        }
    }
    holds(store, &taken, "content").await;
    assert_eq!(names(store, dir).await, ["taken"]);
}

pub(super) async fn nothing_is_renamed_below_itself(store: &dyn Store, dir: &StorePath) {
    let source = dir.join("source");
    mkdir(store, &source).await;
    let renamed = store
        .rename_no_overwrite(&source, &source.join("below"))
        .await;
    assert_error!(renamed, Error::InvalidPath { .. });
    assert_eq!(names(store, &source).await, [""; 0]);
}

pub(super) async fn of_sixteen_renames_to_one_target_exactly_one_wins(
    store: &dyn Store,
    dir: &StorePath,
) {
    let target = dir.join("run=000001");
    let sources = numbered(dir, "out");
    for source in &sources {
        mkdir(store, source).await;
        let uuid = Bytes::from(source.name().to_owned());
        must("put", store.put(&source.join("_manifest.json"), uuid).await);
    }
    let renames = sources
        .iter()
        .map(|source| store.rename_no_overwrite(source, &target));
    let results = join_all(renames).await;
    assert_eq!(
        winners(&results, |e| matches!(e, Error::AlreadyExists { .. })),
        1
    );
    for (source, result) in sources.iter().zip(&results) {
        let manifest = match result {
            Ok(()) => target.join("_manifest.json"),
            Err(_) => source.join("_manifest.json"),
        };
        holds(store, &manifest, source.name()).await;
    }
    assert_eq!(names(store, dir).await.len(), RACERS);
}

pub(super) async fn of_sixteen_renames_of_one_source_exactly_one_wins(
    store: &dyn Store,
    dir: &StorePath,
) {
    let source = dir.join("staging");
    mkdir(store, &source).await;
    put(store, &source.join("plan.json"), "plan").await;
    let targets = numbered(dir, "taken-over");
    let renames = targets
        .iter()
        .map(|target| store.rename_no_overwrite(&source, target));
    let results = join_all(renames).await;
    assert_eq!(
        winners(&results, |e| matches!(e, Error::NotFound { .. })),
        1
    );
    for (target, result) in targets.iter().zip(&results) {
        assert_eq!(is_there(store, target).await, result.is_ok());
        if result.is_ok() {
            holds(store, &target.join("plan.json"), "plan").await;
        }
    }
    assert_eq!(names(store, dir).await.len(), 1);
}

pub(super) async fn sixteen_equal_renames_succeed_once(store: &dyn Store, dir: &StorePath) {
    let (source, target) = (dir.join("attempt"), dir.join("done"));
    mkdir(store, &source).await;
    let renames = (0..RACERS).map(|_| store.rename_no_overwrite(&source, &target));
    let results = join_all(renames).await;
    assert_eq!(
        winners(&results, |e| matches!(e, Error::NotFound { .. })),
        1
    );
    assert_eq!(names(store, dir).await, ["done"]);
}

pub(super) async fn an_open_file_follows_its_directory(store: &dyn Store, dir: &StorePath) {
    let (old, new) = (dir.join("old"), dir.join("new"));
    mkdir(store, &old).await;
    let mut writer = must("create", store.create(&old.join("file")).await);
    must("write", writer.write(Bytes::from_static(b"before ")).await);
    rename(store, &old, &new).await;
    must("write", writer.write(Bytes::from_static(b"after")).await);
    assert_eq!(must("close", writer.close().await), 12);
    holds(store, &new.join("file"), "before after").await;
    assert!(!is_there(store, &old).await);
}

pub(super) async fn a_renamed_directory_fences_its_old_path(store: &dyn Store, dir: &StorePath) {
    let (old, new, other) = (dir.join("old"), dir.join("new"), dir.join("other"));
    mkdir(store, &old).await;
    put(store, &old.join("lease"), "").await;
    put(store, &other, "").await;
    rename(store, &old, &new).await;
    let late = old.join("late");
    assert_error!(store.create(&late).await, Error::ParentMissing { .. });
    assert_error!(
        store.put(&late, Bytes::new()).await,
        Error::ParentMissing { .. }
    );
    let lease = store.replace(&old.join("lease"), Bytes::new()).await;
    assert_error!(lease, Error::ParentMissing { .. });
    assert_error!(store.mkdir(&late).await, Error::ParentMissing { .. });
    let into = store.rename_no_overwrite(&other, &late).await;
    assert_error!(into, Error::ParentMissing { .. });
    let out = store
        .rename_no_overwrite(&old.join("lease"), &dir.join("published"))
        .await;
    assert_error!(out, Error::NotFound { .. });
    assert_eq!(names(store, dir).await, ["new", "other"]);
    assert_eq!(names(store, &new).await, ["lease"]);
}

pub(super) async fn rename_keeps_the_time(store: &dyn Store, dir: &StorePath) {
    let (from, to) = (dir.join("from"), dir.join("to"));
    mkdir(store, &from).await;
    put(store, &from.join("lease"), "alive").await;
    let before = stat(store, &from.join("lease"))
        .await
        .map(|entry| entry.modified_ms);
    rename(store, &from, &to).await;
    let after = stat(store, &to.join("lease"))
        .await
        .map(|entry| entry.modified_ms);
    assert!(before.is_some());
    assert_eq!(before, after);
}
