use std::os::unix::process::CommandExt;
use std::process::Command;

use tempfile::TempDir;

use super::*;
use crate::{ErrorKind, conformance};

fn scratch() -> (TempDir, StorePath) {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().canonicalize().unwrap();
    (temp, StorePath::new(path.to_str().unwrap()).unwrap())
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[tokio::test]
async fn the_local_store_conforms() {
    let (_temp, root) = scratch();
    conformance::run(&LocalStore::new(), &root).await;
}

#[test]
fn uris_have_three_slashes() {
    let store = LocalStore::new();
    assert_eq!(store.describe(), "file://");
    assert_eq!(
        store.uri(&StorePath::new("/a/dt=1").unwrap()),
        "file:///a/dt=1"
    );
}

#[test]
fn errors_follow_the_number_of_the_system_call() {
    let path = StorePath::new("/a").unwrap();
    for (errno, wanted) in [
        (Errno::NOSPC, "NoSpace"),
        (Errno::DQUOT, "Quota"),
        (Errno::ACCESS, "PermissionDenied"),
        (Errno::PERM, "PermissionDenied"),
        (Errno::ROFS, "ReadOnly"),
        (Errno::NOTDIR, "NotADirectory"),
        (Errno::ISDIR, "IsADirectory"),
        (Errno::NAMETOOLONG, "NameTooLong"),
        (Errno::NOENT, "NotFound"),
        (Errno::EXIST, "AlreadyExists"),
        (Errno::IO, "Io"),
    ] {
        let error = from_io(Operation::Create, &path, errno.into());
        assert!(
            format!("{error:?}").starts_with(wanted),
            "{errno}: {error:?}"
        );
    }
    let missing = from_making(Operation::Create, &path, Errno::NOENT.into());
    assert!(
        matches!(missing, Error::ParentMissing { .. }),
        "{missing:?}"
    );
    let failed = from_writing(Operation::Close, &path, Errno::IO.into());
    assert!(matches!(failed, Error::WriteFailed { .. }), "{failed:?}");
    assert_eq!(failed.kind(), ErrorKind::Retriable);
}

#[test]
fn a_dropped_write_ends_the_writer() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder
        .max_blocking_threads(1)
        .build()
        .unwrap()
        .block_on(async {
            let (_temp, root) = scratch();
            let mut writer = LocalStore::new().create(&root.join("file")).await.unwrap();
            let (release, released) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || released.recv());
            let mut write = writer.write(bytes("given up"));
            assert!(futures::poll!(&mut write).is_pending());
            drop(write);
            release.send(()).unwrap();
            busy.await.unwrap().unwrap();
            let next = writer.write(bytes("next")).await;
            assert!(matches!(next, Err(Error::WriteFailed { .. })), "{next:?}");
            let closed = writer.close().await;
            assert!(
                matches!(closed, Err(Error::WriteFailed { .. })),
                "{closed:?}"
            );
        });
}

#[tokio::test]
async fn links_are_followed_by_reads_and_removed_by_delete() {
    let (_temp, root) = scratch();
    let store = LocalStore::new();
    let (target, link, dangling) = (
        root.join("target"),
        root.join("link"),
        root.join("dangling"),
    );
    store.mkdir(&target).await.unwrap();
    store
        .put(&target.join("file"), bytes("kept"))
        .await
        .unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    std::os::unix::fs::symlink(root.join("nothing"), &dangling).unwrap();
    assert!(store.stat(&link).await.unwrap().unwrap().is_directory());
    let names: Vec<_> = store
        .list(&root)
        .await
        .unwrap()
        .iter()
        .map(|e| e.name().to_owned())
        .collect();
    assert_eq!(names, ["dangling", "link", "target"]);
    assert!(store.delete(&link).await.unwrap());
    assert!(store.delete(&dangling).await.unwrap());
    assert_eq!(
        store.read(&target.join("file")).await.unwrap(),
        bytes("kept")
    );
}

#[tokio::test]
async fn a_dangling_link_is_no_free_name() {
    let (_temp, root) = scratch();
    let store = LocalStore::new();
    let (source, link) = (root.join("source"), root.join("run=000001"));
    store.mkdir(&source).await.unwrap();
    std::os::unix::fs::symlink(root.join("nothing"), &link).unwrap();
    let renamed = store.rename_no_overwrite(&source, &link).await;
    assert!(
        matches!(renamed, Err(Error::AlreadyExists { .. })),
        "{renamed:?}"
    );
    let created = store.create(&link).await;
    assert!(
        matches!(created, Err(Error::AlreadyExists { .. })),
        "{created:?}"
    );
    assert!(!root.as_ref().join("nothing").try_exists().unwrap());
}

#[tokio::test]
async fn a_name_that_is_not_utf_8_is_an_error_not_an_omission() {
    use std::os::unix::ffi::OsStrExt;
    let (temp, root) = scratch();
    std::fs::write(temp.path().join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
    let listed = LocalStore::new().list(&root).await;
    assert!(
        matches!(listed, Err(Error::InvalidPath { .. })),
        "{listed:?}"
    );
}

#[tokio::test]
async fn other_volumes_are_told() {
    let (_temp, root) = scratch();
    let source = root.join("source");
    let store = LocalStore::new();
    store.mkdir(&source).await.unwrap();
    let shm = StorePath::new("/dev/shm").unwrap();
    let target = shm.join(source.parent().unwrap().name());
    let renamed = store.rename_no_overwrite(&source, &target).await;
    assert!(
        matches!(renamed, Err(Error::CrossVolume { .. })),
        "{renamed:?}"
    );
    assert!(store.rename_semantics().never_overwrites);
}

#[tokio::test]
async fn two_deletions_of_one_tree_both_end_well() {
    let (_temp, root) = scratch();
    let store = LocalStore::new();
    let tree = root.join("tree");
    for number in 0..20 {
        std::fs::create_dir_all(tree.as_ref().join(format!("{number}/a/b"))).unwrap();
    }
    let (one, two) = futures::join!(store.delete(&tree), store.delete(&tree));
    assert!(one.unwrap() | two.unwrap());
    assert_eq!(store.stat(&tree).await.unwrap(), None);
}

#[tokio::test]
async fn a_full_device_is_no_space() {
    // Linux's device that is always full.
    let full = StorePath::new("/dev/full").unwrap();
    let error = LocalStore::new()
        .replace(&full, bytes("x"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// Names the directory that a test's child process works in.
const DIRECTORY: &str = "LOADER_STORE_TEST_DIRECTORY";

fn inner_directory() -> StorePath {
    StorePath::new(std::env::var(DIRECTORY).unwrap()).unwrap()
}

/// This test binary again, to run one ignored test.
fn inner_test(name: &str, directory: &StorePath) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", &format!("local::tests::{name}")]);
    command.env(DIRECTORY, directory.as_str());
    command
}

fn assert_passes(mut command: Command) {
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(printed.contains("1 passed"), "{printed}");
}

#[test]
fn the_owner_of_a_directory_decides_who_may_write() {
    let (temp, root) = scratch();
    std::fs::create_dir(temp.path().join("closed")).unwrap();
    std::fs::write(temp.path().join("closed/file"), "x").unwrap();
    let mode = |path: &str, mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(temp.path().join(path), permissions).unwrap();
    };
    mode("", 0o755);
    mode("closed", 0o555);
    let mut command = inner_test("inner_unprivileged", &root.join("closed"));
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    assert_passes(command);
    mode("closed", 0o755);
}

#[tokio::test]
#[ignore = "run as an unprivileged user by the_owner_of_a_directory_decides_who_may_write"]
async fn inner_unprivileged() {
    let (store, closed) = (LocalStore::new(), inner_directory());
    let (file, new) = (closed.join("file"), closed.join("new"));
    let denied = [
        store.put(&new, bytes("x")).await.unwrap_err(),
        store.create(&new).await.map(drop).unwrap_err(),
        store.mkdir(&new).await.unwrap_err(),
        store.mkdirs(&new.join("deep")).await.unwrap_err(),
        store.rename_no_overwrite(&file, &new).await.unwrap_err(),
        store.delete(&file).await.unwrap_err(),
    ];
    for error in denied {
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    assert_eq!(store.list(&closed).await.unwrap().len(), 1);
}

/// A shell that has `directory` to itself as a tmpfs of 1 MiB, goes on with `then`, and runs a test.
/// The mount is gone with the process.
fn in_small_tmpfs(name: &str, directory: &StorePath, then: &str) -> Command {
    let test = inner_test(name, directory);
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    let script =
        format!("mount -t tmpfs -o size=1m tmpfs \"${DIRECTORY}\" && {then} && exec \"$@\"");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command
        .arg(test.get_program())
        .args(test.get_args())
        .env(DIRECTORY, directory.as_str());
    command
}

#[test]
fn a_full_disk_is_no_space() {
    let (_temp, root) = scratch();
    assert_passes(in_small_tmpfs("inner_full_disk", &root, "true"));
}

#[tokio::test]
#[ignore = "run in a small tmpfs by a_full_disk_is_no_space"]
async fn inner_full_disk() {
    let (store, root) = (LocalStore::new(), inner_directory());
    let kept = root.join("kept");
    store.put(&kept, bytes("whole")).await.unwrap();
    let mut writer = store.create(&root.join("file")).await.unwrap();
    let megabyte = Bytes::from(vec![7; 1 << 20]);
    let error = match writer.write(megabyte.clone()).await {
        Ok(()) => writer.write(megabyte).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let closed = writer.close().await;
    assert!(
        matches!(closed, Err(Error::WriteFailed { .. })),
        "{closed:?}"
    );
    assert_eq!(store.read(&kept).await.unwrap(), bytes("whole"));
    assert!(store.delete(&root.join("file")).await.unwrap());
    store.put(&root.join("again"), bytes("fits")).await.unwrap();
}

#[test]
fn a_read_only_mount_is_read_only() {
    let (_temp, root) = scratch();
    let remount = format!("touch \"${DIRECTORY}/file\" && mount -o remount,ro \"${DIRECTORY}\"");
    assert_passes(in_small_tmpfs("inner_read_only", &root, &remount));
}

#[tokio::test]
#[ignore = "run in a read-only tmpfs by a_read_only_mount_is_read_only"]
async fn inner_read_only() {
    let (store, root) = (LocalStore::new(), inner_directory());
    let (file, new) = (root.join("file"), root.join("new"));
    let refused = [
        store.put(&new, bytes("x")).await.unwrap_err(),
        store.mkdir(&new).await.unwrap_err(),
        store.replace(&file, bytes("x")).await.unwrap_err(),
        store.rename_no_overwrite(&file, &new).await.unwrap_err(),
        store.delete(&file).await.unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, Error::ReadOnly { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn a_pipe_in_place_of_a_file_is_an_error_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let path = StorePath::new(path.to_str().unwrap()).unwrap();
    let read = LocalStore::new();
    let read = tokio::time::timeout(std::time::Duration::from_secs(10), read.read(&path));
    let error = read.await.expect("it waits").unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("no regular file"), "{error:?}");
}
