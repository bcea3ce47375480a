//! The store on a real HDFS: NameNode and three datanodes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as the tests do")]

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use loader_store::{Error, ErrorKind, Store, StoreConfig, StorePath, conformance, open};
use test_support::{Hdfs, HdfsNode, HdfsOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// One for all tests: hdfs-native shares connections to datanodes between clients, and they die with
/// the runtime that made them.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

fn config(hdfs: &Hdfs) -> StoreConfig {
    let hadoop_conf_dir = Some(hdfs.conf_dir());
    StoreConfig {
        hadoop_conf_dir,
        hadoop_user: Some("root".to_owned()),
        ..Default::default()
    }
}

/// A directory of `hdfs` that no other test uses.
async fn scratch_with(hdfs: &Hdfs, config: &StoreConfig) -> (Arc<dyn Store>, StorePath) {
    let (store, root) = open("hdfs:///", config).await.unwrap();
    let root = root.join(&test_support::random_topic("loader-store"));
    let (superuser, _) = open("hdfs:///", &self::config(hdfs)).await.unwrap();
    superuser.mkdir(&root).await.unwrap();
    (store, root)
}

async fn scratch() -> (Arc<dyn Store>, StorePath) {
    let hdfs = test_support::hdfs();
    scratch_with(hdfs, &config(hdfs)).await
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// What the error says with all its causes, on one line.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    assert!(!text.contains('\n'), "a stack trace is shown: {text}");
    text
}

#[test]
fn hdfs_conforms() {
    RUNTIME.block_on(async {
        let (store, root) = scratch().await;
        conformance::run(&*store, &root).await;
    });
}

/// The NameNode checks more for those who are not superusers, and says it in other words.
#[test]
fn hdfs_conforms_for_an_ordinary_user() {
    RUNTIME.block_on(async {
        let hdfs = test_support::hdfs();
        let alice = StoreConfig {
            hadoop_user: Some("alice".to_owned()),
            ..config(hdfs)
        };
        let (store, root) = scratch_with(hdfs, &alice).await;
        hdfs.dfs(&["-chown", "alice", root.as_str()]).unwrap();
        conformance::run(&*store, &root).await;
    });
}

#[test]
fn locations_lead_to_the_same_store() {
    RUNTIME.block_on(async {
        let hdfs = test_support::hdfs();
        let (store, root) = scratch().await;
        store.put(&root.join("a=1 %"), bytes("x")).await.unwrap();
        let uri = store.uri(&root.join("a=1 %"));
        assert_eq!(store.describe(), hdfs.uri());
        assert_eq!(uri, format!("{}{root}/a=1 %", hdfs.uri()));
        let (again, path) = open(&uri, &config(hdfs)).await.unwrap();
        assert_eq!(again.read(&path).await.unwrap(), bytes("x"));
        // Without any configuration, by address alone.
        let bare = StoreConfig {
            hadoop_user: Some("root".to_owned()),
            ..Default::default()
        };
        let (again, path) = open(&uri, &bare).await.unwrap();
        assert_eq!(again.read(&path).await.unwrap(), bytes("x"));
    });
}

#[test]
fn a_file_is_written_in_blocks_of_the_configured_size() {
    RUNTIME.block_on(async {
        let hdfs = test_support::hdfs();
        let temp = tempfile::tempdir().unwrap();
        let site = std::fs::read_to_string(hdfs.conf_dir().join("hdfs-site.xml")).unwrap();
        let ours = "<configuration><property><name>dfs.blocksize</name><value>1m</value></property>\
                    <property><name>fs.permissions.umask-mode</name><value>027</value></property>";
        std::fs::write(
            temp.path().join("hdfs-site.xml"),
            site.replace("<configuration>", ours),
        )
        .unwrap();
        std::fs::copy(
            hdfs.conf_dir().join("core-site.xml"),
            temp.path().join("core-site.xml"),
        )
        .unwrap();
        let mut config = config(hdfs);
        config.hadoop_conf_dir = Some(temp.path().to_owned());
        let (store, root) = scratch_with(hdfs, &config).await;
        let file = root.join("file");
        let content: Bytes = (0..5_000_000_u32)
            .map(|i| u8::try_from(i % 251).unwrap())
            .collect();
        store.put(&file, content.clone()).await.unwrap();
        assert!(store.read(&file).await.unwrap() == content);
        let middle = store.read_range(&file, 1_048_570..2_097_160).await.unwrap();
        assert!(middle == content.slice(1_048_570..2_097_160));
        let size_and_mode = hdfs.dfs(&["-stat", "%o %a", file.as_str()]).unwrap();
        assert_eq!(size_and_mode.trim(), "1048576 640");
        store.mkdir(&root.join("directory")).await.unwrap();
        let mode = hdfs
            .dfs(&["-stat", "%a", root.join("directory").as_str()])
            .unwrap();
        assert_eq!(mode.trim(), "750");
    });
}

#[test]
fn hdfs_refuses_colons_in_names() {
    RUNTIME.block_on(async {
        let (store, root) = scratch().await;
        let error = store.mkdir(&root.join("hour=12:00")).await.unwrap_err();
        assert!(matches!(error, Error::InvalidPath { .. }), "{error:?}");
        chain(&error);
    });
}

#[test]
fn a_name_space_quota_is_a_quota() {
    RUNTIME.block_on(async {
        let hdfs = test_support::hdfs();
        let (store, root) = scratch().await;
        hdfs.dfsadmin(&["-setQuota", "3", root.as_str()]).unwrap();
        store.put(&root.join("one"), bytes("x")).await.unwrap();
        store.mkdir(&root.join("two")).await.unwrap();
        for error in [
            store
                .put(&root.join("three"), bytes("x"))
                .await
                .unwrap_err(),
            store.mkdir(&root.join("three")).await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::Quota { .. }), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(chain(&error).contains("quota=3"), "{}", chain(&error));
        }
        // Renaming within, deleting and reading need no quota: cleaning up is possible.
        store
            .rename_no_overwrite(&root.join("one"), &root.join("two/one"))
            .await
            .unwrap();
        assert!(store.delete(&root.join("two")).await.unwrap());
        store.put(&root.join("three"), bytes("x")).await.unwrap();
    });
}

#[test]
fn a_space_quota_is_a_quota() {
    RUNTIME.block_on(async {
        let hdfs = test_support::hdfs();
        let (store, root) = scratch().await;
        hdfs.dfsadmin(&["-setSpaceQuota", "1m", root.as_str()])
            .unwrap();
        let file = root.join("file");
        let mut writer = store.create(&file).await.unwrap();
        let error = match writer.write(bytes("x")).await {
            Ok(()) => writer.close().await.map(drop).unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(error, Error::Quota { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        chain(&error);
    });
}

#[test]
fn another_user_is_denied() {
    RUNTIME.block_on(async {
        let hdfs = test_support::hdfs();
        let (owner, root) = scratch().await;
        owner.put(&root.join("file"), bytes("x")).await.unwrap();
        let mallory = StoreConfig {
            hadoop_user: Some("mallory".to_owned()),
            ..config(hdfs)
        };
        let (store, _) = open("hdfs:///", &mallory).await.unwrap();
        let (file, new) = (root.join("file"), root.join("new"));
        for error in [
            store.put(&new, bytes("x")).await.unwrap_err(),
            store.create(&new).await.map(drop).unwrap_err(),
            store.replace(&file, bytes("x")).await.unwrap_err(),
            store.mkdir(&new).await.unwrap_err(),
            store.mkdirs(&new.join("deep")).await.unwrap_err(),
            store.rename_no_overwrite(&file, &new).await.unwrap_err(),
            store.delete(&root).await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(chain(&error).contains("user=mallory"), "{}", chain(&error));
        }
        assert_eq!(store.read(&file).await.unwrap(), bytes("x"));
        hdfs.dfs(&["-chmod", "700", root.as_str()]).unwrap();
        let error = store.read(&file).await.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
        let error = store.stat(&file).await.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
        let error = store.list(&root).await.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
    });
}

#[test]
fn a_file_that_another_client_writes_is_leased() {
    RUNTIME.block_on(async {
        let hdfs = test_support::hdfs();
        let (store, root) = scratch().await;
        // A name that appears in HDFS's words for a lease.
        let file = root.join("lease");
        let mut writer = store.create(&file).await.unwrap();
        writer.write(bytes("first")).await.unwrap();
        let (other, _) = open("hdfs:///", &config(hdfs)).await.unwrap();
        let error = other.create(&file).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::FileLease { .. }), "{error:?}");
        chain(&error);
        writer.close().await.unwrap();
        let error = other.create(&file).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::AlreadyExists { .. }), "{error:?}");
        // A lease file whose writer hangs is replaced all the same, and the old writer loses.
        let hanging = root.join("hanging");
        let mut writer = store.create(&hanging).await.unwrap();
        writer.write(bytes("first")).await.unwrap();
        other.replace(&hanging, bytes("second")).await.unwrap();
        let closed = writer.close().await.unwrap_err();
        assert!(
            matches!(closed, Error::NotFound { .. } | Error::WriteFailed { .. }),
            "{closed:?}"
        );
        assert_eq!(store.read(&hanging).await.unwrap(), bytes("second"));
    });
}

#[test]
fn a_refused_connection_is_unreachable_within_seconds() {
    RUNTIME.block_on(async {
        let port = test_support::free_ports(1).unwrap()[0];
        let location = format!("hdfs://127.0.0.1:{port}/a");
        let (store, path) = open(&location, &StoreConfig::default()).await.unwrap();
        let target = StorePath::new("/to").unwrap();
        let begun = Instant::now();
        let (read, renamed, put) = tokio::join!(
            store.stat(&path),
            store.rename_no_overwrite(&path, &target),
            store.put(&target, bytes("x")),
        );
        for error in [read.unwrap_err(), renamed.unwrap_err(), put.unwrap_err()] {
            assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(chain(&error).contains(&port.to_string()), "{error}");
        }
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "{:?}",
            begun.elapsed()
        );
    });
}

#[test]
fn an_unknown_host_is_unreachable() {
    RUNTIME.block_on(async {
        let location = "hdfs://no-such-host.invalid:8020/a";
        let (store, path) = open(location, &StoreConfig::default()).await.unwrap();
        let error = store.mkdirs(&path).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    });
}

/// What a [`Proxy`] does with the next answer from the server.
#[derive(Clone, Copy)]
enum Answers {
    /// Passes it on.
    Pass,
    /// Ends the connection instead.
    Cut,
    /// Never passes anything on that connection again, and leaves it open: a machine that is gone.
    Freeze,
}

/// Passes connections on to a server.
struct Proxy {
    port: u16,
    answers: watch::Sender<Answers>,
}

impl Proxy {
    async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = watch::Sender::new(Answers::Pass);
        let shared = answers.clone();
        RUNTIME.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.unwrap();
                RUNTIME.spawn(Self::pass(client, server, shared.subscribe()));
            }
        });
        Self { port, answers }
    }

    async fn store(&self, config: &StoreConfig) -> Arc<dyn Store> {
        let location = format!("hdfs://127.0.0.1:{}/", self.port);
        open(&location, config).await.unwrap().0
    }

    async fn pass(client: TcpStream, server: TcpStream, answers: watch::Receiver<Answers>) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let requests = async {
            // Ends with the connection, in either direction.
            tokio::io::copy(&mut from_client, &mut to_server).await.ok();
        };
        let responses = async {
            let mut buffer = bytes::BytesMut::with_capacity(1 << 16);
            while from_server
                .read_buf(&mut buffer)
                .await
                .is_ok_and(|read| read > 0)
            {
                let answers = *answers.borrow();
                match answers {
                    Answers::Pass => {}
                    Answers::Cut => break,
                    Answers::Freeze => std::future::pending().await,
                }
                if to_client.write_all_buf(&mut buffer).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            () = requests => {}
            () = responses => {}
        }
    }
}

#[test]
fn a_namenode_that_vanished_is_given_up_for_a_new_connection() {
    RUNTIME.block_on(async {
        let hdfs = test_support::hdfs();
        let (_, root) = scratch().await;
        let proxy = Proxy::start(hdfs.address()).await;
        let operation_timeout = Duration::from_secs(3);
        let store = proxy
            .store(&StoreConfig {
                operation_timeout,
                ..config(hdfs)
            })
            .await;
        assert!(store.stat(&root).await.unwrap().is_some());
        proxy.answers.send_replace(Answers::Freeze);
        let (one, two) = tokio::join!(store.stat(&root), store.list(&root));
        for error in [one.unwrap_err(), two.unwrap_err()] {
            assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        }
        // Somebody serves at that address again; the old connection stays dead.
        proxy.answers.send_replace(Answers::Pass);
        assert!(store.stat(&root).await.unwrap().is_some());
    });
}

#[test]
fn a_connection_lost_in_mid_change_leaves_the_outcome_open() {
    RUNTIME.block_on(async {
        let hdfs = test_support::hdfs();
        let (direct, root) = scratch().await;
        let proxy = Proxy::start(hdfs.address()).await;
        let store = proxy.store(&config(hdfs)).await;
        let (from, to) = (root.join("from"), root.join("to"));
        direct.mkdir(&from).await.unwrap();
        // Connects; then what the NameNode answers gets lost.
        assert!(store.stat(&from).await.unwrap().is_some());
        proxy.answers.send_replace(Answers::Cut);
        let error = store.rename_no_overwrite(&from, &to).await.unwrap_err();
        assert!(
            matches!(&error, Error::OutcomeUnknown { path, .. } if *path == to),
            "{error:?}"
        );
        assert_eq!(error.kind(), ErrorKind::Ambiguous);
        chain(&error);
        // It has been done, once.
        assert!(direct.stat(&to).await.unwrap().is_some());
        assert!(direct.stat(&from).await.unwrap().is_none());
        let error = store.delete(&to).await.unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
        let error = store
            .create(&root.join("file"))
            .await
            .map(drop)
            .unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
        let error = store.stat(&to).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        // The same store goes on when the network does.
        proxy.answers.send_replace(Answers::Pass);
        assert!(store.stat(&to).await.unwrap().is_none());
    });
}

/// All that needs a cluster of its own, one after another on one, since starting takes long.
#[test]
fn a_cluster_in_trouble_is_told_by_kind() {
    RUNTIME.block_on(async {
        let mut hdfs = Hdfs::start(&HdfsOptions::default()).unwrap();
        safe_mode(&hdfs).await;
        stopped_namenode(&mut hdfs).await;
        killed_datanode_in_mid_write(&mut hdfs).await;
        too_few_datanodes(&mut hdfs).await;
    });
}

async fn safe_mode(hdfs: &Hdfs) {
    let (store, root) = scratch_with(hdfs, &config(hdfs)).await;
    let (file, new) = (root.join("file"), root.join("new"));
    store.put(&file, bytes("x")).await.unwrap();
    let mut writer = store.create(&root.join("open")).await.unwrap();
    hdfs.dfsadmin(&["-safemode", "enter"]).unwrap();
    for error in [
        store.put(&new, bytes("x")).await.unwrap_err(),
        store.create(&new).await.map(drop).unwrap_err(),
        store.replace(&file, bytes("x")).await.unwrap_err(),
        store.mkdir(&new).await.unwrap_err(),
        store.mkdirs(&new).await.unwrap_err(),
        store.rename_no_overwrite(&file, &new).await.unwrap_err(),
        store.delete(&file).await.unwrap_err(),
        writer.write(bytes("x")).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::SafeMode { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        chain(&error);
    }
    assert_eq!(store.read(&file).await.unwrap(), bytes("x"));
    hdfs.dfsadmin(&["-safemode", "leave"]).unwrap();
    store.put(&new, bytes("x")).await.unwrap();
}

async fn stopped_namenode(hdfs: &mut Hdfs) {
    let operation_timeout = Duration::from_secs(2);
    let config = StoreConfig {
        operation_timeout,
        ..config(hdfs)
    };
    let (store, root) = scratch_with(hdfs, &config).await;
    let (file, new) = (root.join("file"), root.join("new"));
    let created_file = root.join("created");
    store.put(&file, bytes("x")).await.unwrap();
    hdfs.pause(HdfsNode::NameNode).unwrap();
    let begun = Instant::now();
    let (stat, list, read, renamed, created) = tokio::join!(
        store.stat(&file),
        store.list(&root),
        store.read(&file),
        store.rename_no_overwrite(&file, &new),
        store.create(&created_file),
    );
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    for error in [stat.unwrap_err(), list.unwrap_err(), read.unwrap_err()] {
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Retriable);
    }
    for error in [renamed.unwrap_err(), created.map(drop).unwrap_err()] {
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
        assert!(chain(&error).contains(&hdfs.address()), "{}", chain(&error));
    }
    hdfs.resume(HdfsNode::NameNode).unwrap();
    // The request lay in the NameNode's socket: it happens now, after we were told "unknown".
    let patience = Duration::from_secs(30);
    let moved = || async { matches!(store.stat(&new).await, Ok(Some(_))) };
    test_support::wait_until_async(patience, moved)
        .await
        .unwrap();
}

async fn killed_datanode_in_mid_write(hdfs: &mut Hdfs) {
    let (store, root) = scratch_with(hdfs, &config(hdfs)).await;
    let file = root.join("file");
    let piece = Bytes::from(vec![7; 1 << 20]);
    let mut writer = store.create(&file).await.unwrap();
    for number in 0..30 {
        if number == 5 {
            hdfs.kill(HdfsNode::DataNode(0)).unwrap();
        }
        writer.write(piece.clone()).await.unwrap();
    }
    assert_eq!(writer.close().await.unwrap(), 30 << 20);
    let read = store.read(&file).await.unwrap();
    assert!(read.len() == 30 << 20 && read.iter().all(|byte| *byte == 7));
}

async fn too_few_datanodes(hdfs: &mut Hdfs) {
    let config = StoreConfig {
        operation_timeout: Duration::from_secs(5),
        ..config(hdfs)
    };
    let (store, root) = scratch_with(hdfs, &config).await;
    hdfs.kill(HdfsNode::DataNode(1)).unwrap();
    hdfs.kill(HdfsNode::DataNode(2)).unwrap();
    let error = store.put(&root.join("file"), bytes("x")).await.unwrap_err();
    assert!(matches!(error, Error::WriteFailed { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Retriable);
    chain(&error);
    // Names need no datanode.
    store
        .rename_no_overwrite(&root.join("file"), &root.join("renamed"))
        .await
        .unwrap();
    assert!(store.delete(&root.join("renamed")).await.unwrap());
}
