//! Properties of directories, listings and deletion.

use bytes::Bytes;
use futures::future::join_all;

use super::{assert_error, holds, is_there, mkdir, must, names, put, rename, stat};
use crate::{EntryKind, Error, Store, StorePath};

/// Names that shells, URLs, globs, Hive and Spark each find something special in.
const ODD_NAMES: &[&str] = &[
    " leading space",
    "two  spaces",
    "dt=2026-11-30",
    "__HIVE_DEFAULT_PARTITION__",
    "_SUCCESS",
    ".hidden",
    "...",
    "%3A%2F%",
    "a%20b",
    "#fragment?query=1&x",
    "*",
    "[a-z]{1,2}",
    "~",
    "-rf",
    "it's \"quoted\"",
    "$HOME;`ls`",
    "a+b@c,d!",
    "ÄÖÜß",
    "日本語",
    "🦀",
];

pub(super) async fn mkdir_makes_one_level_once(store: &dyn Store, dir: &StorePath) {
    let (directory, file) = (dir.join("directory"), dir.join("file"));
    mkdir(store, &directory).await;
    assert_error!(store.mkdir(&directory).await, Error::AlreadyExists { .. });
    put(store, &file, "").await;
    assert_error!(store.mkdir(&file).await, Error::AlreadyExists { .. });
    let deep = dir.join("missing/deep");
    assert_error!(store.mkdir(&deep).await, Error::ParentMissing { .. });
    assert!(!is_there(store, &dir.join("missing")).await);
}

pub(super) async fn mkdirs_makes_parents_and_repeats(store: &dyn Store, dir: &StorePath) {
    let deep = dir.join("a/b/c");
    for _ in 0..2 {
        must("mkdirs", store.mkdirs(&deep).await);
        assert!(
            stat(store, &deep)
                .await
                .is_some_and(|entry| entry.is_directory())
        );
    }
    let file = dir.join("file");
    put(store, &file, "content").await;
    assert_error!(store.mkdirs(&file).await, Error::AlreadyExists { .. });
    holds(store, &file, "content").await;
}

pub(super) async fn stat_tells_kind_length_and_time(store: &dyn Store, dir: &StorePath) {
    let (file, later, directory) = (dir.join("file"), dir.join("later"), dir.join("directory"));
    put(store, &file, "12345").await;
    put(store, &later, "").await;
    mkdir(store, &directory).await;
    let of_file = must("stat", store.stat(&file).await);
    let of_later = must("stat", store.stat(&later).await);
    let of_directory = must("stat", store.stat(&directory).await);
    let time = |entry: &Option<crate::Entry>| entry.as_ref().map_or(0, |entry| entry.modified_ms);
    // After 2020: milliseconds, not seconds.
    assert!(time(&of_file) > 1_577_836_800_000, "{of_file:?}");
    assert!(
        time(&of_file) <= time(&of_later),
        "{of_file:?} {of_later:?}"
    );
    let of_file = of_file.map(|entry| (entry.path, entry.kind, entry.len));
    assert_eq!(of_file, Some((file, EntryKind::File, 5)));
    let of_directory = of_directory.map(|entry| (entry.path, entry.kind, entry.len));
    assert_eq!(of_directory, Some((directory, EntryKind::Directory, 0)));
    for missing in [dir.join("missing"), dir.join("missing/deep")] {
        assert_eq!(must("stat", store.stat(&missing).await), None);
    }
    let root = must("stat the root", store.stat(&StorePath::root()).await);
    assert!(root.is_some_and(|entry| entry.is_directory() && entry.path == StorePath::root()));
}

pub(super) async fn list_is_sorted_and_complete(store: &dyn Store, dir: &StorePath) {
    assert_eq!(names(store, dir).await, [""; 0]);
    for directory in ["b", "run=000010", "a", "run=9", ".logferry", "B"] {
        mkdir(store, &dir.join(directory)).await;
    }
    put(store, &dir.join("a.txt"), "12345").await;
    put(store, &dir.join("a/grandchild"), "").await;
    let wanted = [".logferry", "B", "a", "a.txt", "b", "run=000010", "run=9"];
    assert_eq!(names(store, dir).await, wanted);
    for entry in must("list", store.list(dir).await) {
        assert_eq!(
            Some(&entry),
            must("stat", store.stat(&entry.path).await).as_ref()
        );
    }
}

pub(super) async fn odd_names_are_names(store: &dyn Store, dir: &StorePath) {
    let mut wanted: Vec<String> = ODD_NAMES.iter().map(|&name| name.to_owned()).collect();
    wanted.push("long".repeat(50));
    wanted.push("ö".repeat(100));
    let moved = dir.join("moved");
    mkdir(store, &moved).await;
    for name in &wanted {
        let path = dir.join(name);
        mkdir(store, &path).await;
        let file = path.join(name);
        let content = Bytes::from(name.clone());
        must("put", store.put(&file, content).await);
        holds(store, &file, name).await;
        rename(store, &file, &moved.join(name)).await;
    }
    wanted.sort();
    assert_eq!(names(store, &moved).await, wanted);
    for name in &wanted {
        holds(store, &moved.join(name), name).await;
        assert!(
            must("delete", store.delete(&moved.join(name)).await),
            "{name}"
        );
        assert!(
            must("delete", store.delete(&dir.join(name)).await),
            "{name}"
        );
    }
    assert_eq!(names(store, dir).await, ["moved"]);
}

pub(super) async fn two_thousand_entries_are_listed(store: &dyn Store, dir: &StorePath) {
    let wanted: Vec<String> = (0..2_000)
        .map(|number| format!("run={number:06}"))
        .collect();
    let paths: Vec<StorePath> = wanted.iter().map(|name| dir.join(name)).collect();
    for some in paths.chunks(32) {
        for result in join_all(some.iter().map(|path| store.mkdir(path))).await {
            must("mkdir", result);
        }
    }
    assert!(
        names(store, dir).await == wanted,
        "a long listing is not complete and sorted"
    );
}

pub(super) async fn listing_what_is_no_directory_fails(store: &dyn Store, dir: &StorePath) {
    for missing in [dir.join("missing"), dir.join("missing/deep")] {
        assert_error!(store.list(&missing).await, Error::NotFound { .. });
    }
    let file = dir.join("file");
    put(store, &file, "content").await;
    assert_error!(store.list(&file).await, Error::NotADirectory { .. });
}

pub(super) async fn delete_removes_files_and_trees(store: &dyn Store, dir: &StorePath) {
    let (file, tree) = (dir.join("file"), dir.join("tree"));
    put(store, &file, "content").await;
    must("mkdirs", store.mkdirs(&tree.join("a/b")).await);
    mkdir(store, &tree.join("empty")).await;
    put(store, &tree.join("a/b/file"), "content").await;
    assert!(must("delete", store.delete(&file).await));
    assert_eq!(names(store, dir).await, ["tree"]);
    assert!(must("delete", store.delete(&tree).await));
    assert_eq!(names(store, dir).await, [""; 0]);
}

pub(super) async fn deleting_nothing_says_so(store: &dyn Store, dir: &StorePath) {
    for missing in [dir.join("missing"), dir.join("missing/deep")] {
        assert!(!must("delete", store.delete(&missing).await));
    }
    let file = dir.join("file");
    put(store, &file, "").await;
    assert!(must("delete", store.delete(&file).await));
    assert!(!must("delete", store.delete(&file).await));
}

pub(super) async fn the_root_is_not_deleted(store: &dyn Store, dir: &StorePath) {
    assert_error!(
        store.delete(&StorePath::root()).await,
        Error::InvalidPath { .. }
    );
    assert!(is_there(store, dir).await);
}
