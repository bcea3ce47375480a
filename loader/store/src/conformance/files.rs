//! Properties of single files.

use bytes::Bytes;
use futures::future::join_all;

use super::{assert_error, holds, is_there, mkdir, must, put, stat, winners};
use crate::{EntryKind, Error, Store, StorePath};

pub(super) async fn what_is_written_reads_back(store: &dyn Store, dir: &StorePath) {
    let file = dir.join("file");
    let mut writer = must("create", store.create(&file).await);
    for piece in ["one ", "", "two ", "three"] {
        must(
            "write",
            writer.write(Bytes::from_static(piece.as_bytes())).await,
        );
    }
    assert_eq!(must("close", writer.close().await), 13);
    holds(store, &file, "one two three").await;
    assert_eq!(stat(store, &file).await.map(|entry| entry.len), Some(13));
}

pub(super) async fn create_never_overwrites(store: &dyn Store, dir: &StorePath) {
    let (file, directory) = (dir.join("file"), dir.join("directory"));
    put(store, &file, "first").await;
    mkdir(store, &directory).await;
    for taken in [&file, &directory] {
        assert_error!(store.create(taken).await, Error::AlreadyExists { .. });
        let content = Bytes::from_static(b"second");
        assert_error!(store.put(taken, content).await, Error::AlreadyExists { .. });
    }
    holds(store, &file, "first").await;
    let kind = stat(store, &directory).await.map(|entry| entry.kind);
    assert_eq!(kind, Some(EntryKind::Directory));
}

pub(super) async fn of_sixteen_creators_exactly_one_wins(store: &dyn Store, dir: &StorePath) {
    let file = dir.join("file");
    let results = join_all((0..16).map(|_| store.create(&file))).await;
    let lost = |e: &Error| matches!(e, Error::AlreadyExists { .. } | Error::FileLease { .. });
    assert_eq!(winners(&results, lost), 1);
    for mut writer in results.into_iter().flatten() {
        must("write", writer.write(Bytes::from_static(b"winner")).await);
        must("close", writer.close().await);
    }
    holds(store, &file, "winner").await;
}

pub(super) async fn create_and_put_make_no_parents(store: &dyn Store, dir: &StorePath) {
    let missing = dir.join("missing");
    for below in [missing.join("file"), missing.join("deep/file")] {
        assert_error!(store.create(&below).await, Error::ParentMissing { .. });
        assert_error!(
            store.put(&below, Bytes::new()).await,
            Error::ParentMissing { .. }
        );
    }
    assert!(!is_there(store, &missing).await);
}

pub(super) async fn nothing_is_made_below_a_file(store: &dyn Store, dir: &StorePath) {
    let (file, other) = (dir.join("file"), dir.join("other"));
    put(store, &file, "content").await;
    put(store, &other, "other").await;
    for below in [file.join("x"), file.join("x/y")] {
        let empty = Bytes::new;
        assert_error!(store.create(&below).await, Error::NotADirectory { .. });
        assert_error!(
            store.put(&below, empty()).await,
            Error::NotADirectory { .. }
        );
        assert_error!(
            store.replace(&below, empty()).await,
            Error::NotADirectory { .. }
        );
        assert_error!(store.mkdir(&below).await, Error::NotADirectory { .. });
        assert_error!(store.mkdirs(&below).await, Error::NotADirectory { .. });
        let into = store.rename_no_overwrite(&other, &below).await;
        assert_error!(into, Error::NotADirectory { .. });
    }
    holds(store, &file, "content").await;
    holds(store, &other, "other").await;
}

pub(super) async fn what_lies_below_a_file_is_missing(store: &dyn Store, dir: &StorePath) {
    let (file, to) = (dir.join("file"), dir.join("to"));
    put(store, &file, "content").await;
    for below in [file.join("x"), file.join("x/y")] {
        assert!(!is_there(store, &below).await);
        assert_error!(store.list(&below).await, Error::NotFound { .. });
        assert_error!(store.read(&below).await, Error::NotFound { .. });
        assert!(!must("delete", store.delete(&below).await));
        let from = store.rename_no_overwrite(&below, &to).await;
        assert_error!(from, Error::NotFound { .. });
    }
    holds(store, &file, "content").await;
}

pub(super) async fn an_empty_file_is_a_file(store: &dyn Store, dir: &StorePath) {
    let (put_file, created) = (dir.join("put"), dir.join("created"));
    put(store, &put_file, "").await;
    let writer = must("create", store.create(&created).await);
    assert_eq!(must("close", writer.close().await), 0);
    for file in [&put_file, &created] {
        let entry = stat(store, file).await;
        let kind_and_len = entry.map(|entry| (entry.kind, entry.len));
        assert_eq!(kind_and_len, Some((EntryKind::File, 0)), "{file}");
        holds(store, file, "").await;
    }
}

pub(super) async fn twenty_megabytes_in_odd_pieces_read_back(store: &dyn Store, dir: &StorePath) {
    const LEN: usize = 20_000_003;
    // No period of packet, checksum chunk or block divides 251.
    let content: Bytes = (0..LEN)
        .map(|i| u8::try_from(i % 251).unwrap_or(0))
        .collect();
    let file = dir.join("file");
    let mut writer = must("create", store.create(&file).await);
    let mut rest = content.clone();
    for piece in [1, 511, 512, 65_536, 3_000_001].into_iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let piece = rest.split_to(rest.len().min(piece));
        must("write", writer.write(piece).await);
    }
    assert_eq!(must("close", writer.close().await), LEN as u64);
    assert_eq!(
        stat(store, &file).await.map(|entry| entry.len),
        Some(LEN as u64)
    );
    assert!(
        must("read", store.read(&file).await) == content,
        "{file} reads back differently"
    );
    let range = 9_999_999..10_000_300;
    let middle = must("read range", store.read_range(&file, range).await);
    assert!(
        middle == content.slice(9_999_999..10_000_300),
        "a range of {file} differs"
    );
}

pub(super) async fn read_range_is_cut_at_the_end(store: &dyn Store, dir: &StorePath) {
    let file = dir.join("file");
    put(store, &file, "0123456789").await;
    for (range, wanted) in [
        (0..10, "0123456789"),
        (0..1, "0"),
        (9..10, "9"),
        (3..7, "3456"),
        (8..100, "89"),
        (0..u64::MAX, "0123456789"),
        (5..5, ""),
        (10..10, ""),
        (10..20, ""),
        (u64::MAX - 1..u64::MAX, ""),
        #[expect(
            clippy::reversed_empty_ranges,
            reason = "an inverted range is empty, no error"
        )]
        (7..3, ""),
    ] {
        let read = must("read range", store.read_range(&file, range.clone()).await);
        assert_eq!(read, wanted.as_bytes(), "{range:?}");
    }
}

pub(super) async fn reading_what_is_no_file_fails(store: &dyn Store, dir: &StorePath) {
    for missing in [dir.join("missing"), dir.join("missing/deep")] {
        assert_error!(store.read(&missing).await, Error::NotFound { .. });
        assert_error!(
            store.read_range(&missing, 0..1).await,
            Error::NotFound { .. }
        );
    }
    assert_error!(store.read(dir).await, Error::IsADirectory { .. });
}

pub(super) async fn replace_overwrites_and_makes_no_parents(store: &dyn Store, dir: &StorePath) {
    let file = dir.join("file");
    for content in ["first and longer", "second", ""] {
        must(
            "replace",
            store
                .replace(&file, Bytes::from_static(content.as_bytes()))
                .await,
        );
        holds(store, &file, content).await;
    }
    let below = dir.join("missing/file");
    assert_error!(
        store.replace(&below, Bytes::new()).await,
        Error::ParentMissing { .. }
    );
    assert!(!is_there(store, &dir.join("missing")).await);
    let directory = dir.join("directory");
    mkdir(store, &directory).await;
    assert_error!(
        store.replace(&directory, Bytes::new()).await,
        Error::IsADirectory { .. }
    );
}

pub(super) async fn a_dropped_writer_leaves_the_name_taken(store: &dyn Store, dir: &StorePath) {
    let (dropped, fresh) = (dir.join("dropped"), dir.join("fresh"));
    let mut writer = must("create", store.create(&dropped).await);
    must(
        "write",
        writer.write(Bytes::from_static(b"never closed")).await,
    );
    drop(writer);
    let len = stat(store, &dropped).await.map(|entry| entry.len);
    assert!(len.is_some_and(|len| len <= 12), "{len:?}");
    let again = store.create(&dropped).await;
    assert_error!(again, Error::AlreadyExists { .. } | Error::FileLease { .. });
    put(store, &fresh, "whole").await;
    holds(store, &fresh, "whole").await;
    must(
        "replace",
        store.replace(&dropped, Bytes::from_static(b"new")).await,
    );
    holds(store, &dropped, "new").await;
}

pub(super) async fn the_writer_of_a_deleted_file_fails_to_close(
    store: &dyn Store,
    dir: &StorePath,
) {
    let (directory, file) = (dir.join("directory"), dir.join("directory/file"));
    mkdir(store, &directory).await;
    let mut writer = must("create", store.create(&file).await);
    must("write", writer.write(Bytes::from_static(b"before")).await);
    assert!(must("delete", store.delete(&directory).await));
    let closed = match writer.write(Bytes::from_static(b"after")).await {
        Ok(()) => writer.close().await,
        Err(error) => Err(error),
    };
    assert_error!(closed, Error::NotFound { .. } | Error::WriteFailed { .. });
    assert!(!is_there(store, &directory).await);
}

pub(super) async fn names_longer_than_255_bytes_are_refused(store: &dyn Store, dir: &StorePath) {
    let fits = dir.join(&"x".repeat(255));
    put(store, &fits, "fits").await;
    holds(store, &fits, "fits").await;
    for name in ["x".repeat(256), "ä".repeat(128)] {
        let file = dir.join(&name);
        assert_error!(store.create(&file).await, Error::NameTooLong { .. });
        assert_error!(store.mkdir(&file).await, Error::NameTooLong { .. });
        let renamed = store.rename_no_overwrite(&fits, &file).await;
        assert_error!(renamed, Error::NameTooLong { .. });
    }
    assert!(is_there(store, &fits).await);
}
