//! The real services start, answer, survive what tests do to them, and leave nothing behind.

use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use test_support::probe::{cpu, usage};
use test_support::process::is_running;
use test_support::{
    Hdfs, HdfsNode, HdfsOptions, Kafka, KafkaOptions, TcpProxy, TestRecords, Tmpfs, TransactionEnd,
    hdfs, kafka, python, random_topic, wait_until,
};

#[test]
fn kafka_starts_serves_its_tools_restarts_and_leaves_nothing() {
    let begin = Instant::now();
    let mut kafka = Kafka::start(&KafkaOptions::default()).unwrap();
    println!("Kafka was ready after {:?}", begin.elapsed());

    kafka
        .create_topic("t", 2, 1, &[("max.message.bytes", "2000000")])
        .unwrap();
    let listed = kafka
        .run_tool(
            "org.apache.kafka.tools.TopicCommand",
            &[
                "--bootstrap-server",
                kafka.bootstrap(),
                "--describe",
                "--topic",
                "t",
            ],
        )
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("PartitionCount: 2"), "{listed}");
    assert!(listed.contains("max.message.bytes=2000000"), "{listed}");

    let ten = TestRecords {
        count: 10,
        compression: "zstd",
        timestamp_ms: Some(1_000),
        ..TestRecords::default()
    };
    assert_eq!(kafka.produce("t", 0, &ten).unwrap(), (0, 9));
    assert_eq!(
        kafka
            .transaction("t", 0, 3, "a", TransactionEnd::Abort)
            .unwrap(),
        (10, 12)
    );
    // 13 is the abort's control record.
    assert_eq!(
        kafka
            .transaction("t", 0, 2, "c", TransactionEnd::Commit)
            .unwrap(),
        (14, 15)
    );
    assert_eq!(
        kafka
            .transaction("t", 0, 1, "o", TransactionEnd::Open)
            .unwrap(),
        (17, 17)
    );
    assert_eq!(kafka.offsets("t", 0).unwrap(), 0..18);
    kafka.delete_records("t", 0, 4).unwrap();
    assert_eq!(kafka.offsets("t", 0).unwrap(), 4..18);
    kafka.create_partitions("t", 3).unwrap();
    assert_eq!(kafka.offsets("t", 2).unwrap(), 0..0);

    kafka.kill(0).unwrap();
    assert!(!is_running(kafka.pid(0).unwrap()));
    kafka.restart(0).unwrap();
    // A killed broker may forget where the log started: it notes that once a minute.
    assert_eq!(kafka.offsets("t", 0).unwrap().end, 18);
    kafka.delete_topic("t").unwrap();
    wait_until(Duration::from_secs(30), || kafka.offsets("t", 0).is_err()).unwrap();

    let (pid, folder) = (kafka.pid(0).unwrap(), kafka.folder().to_owned());
    assert!(is_running(pid));
    drop(kafka);
    assert_gone(&[pid], &folder);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_brokers_replicate_elect_and_stay_behind_their_proxies() {
    let options = KafkaOptions {
        brokers: 3,
        proxied: true,
        heap_mb: 384,
        ..KafkaOptions::default()
    };
    let begin = Instant::now();
    let mut kafka = Kafka::start(&options).unwrap();
    println!("three brokers were ready after {:?}", begin.elapsed());
    let mut proxies = Vec::new();
    for endpoint in kafka.endpoints() {
        let broker = format!("127.0.0.1:{}", endpoint.broker);
        proxies.push(TcpProxy::start_on(endpoint.proxy, &broker).await.unwrap());
    }
    let bootstrap = proxies[0].address().to_string();
    let tool = "org.apache.kafka.tools.BrokerApiVersionsCommand";
    let versions = kafka
        .run_tool(tool, &["--bootstrap-server", &bootstrap])
        .unwrap();
    let versions = String::from_utf8(versions.stdout).unwrap();
    for proxy in &proxies {
        assert!(
            versions.contains(&format!("{} (id:", proxy.address())),
            "{versions}"
        );
        assert!(proxy.connections() > 0);
    }

    kafka
        .create_topic("t", 1, 3, &[("min.insync.replicas", "2")])
        .unwrap();
    kafka
        .transaction("t", 0, 2, "v", TransactionEnd::Commit)
        .unwrap();
    for node in 0..3 {
        kafka.kill(node).unwrap();
        // A new leader learns the high watermark with its followers' next fetch; a coordinator that takes over
        // at once may write the marker of the commit again.
        let whole = || {
            kafka
                .offsets("t", 0)
                .is_ok_and(|offsets| offsets.start == 0 && offsets.end >= 3)
        };
        wait_until(Duration::from_secs(60), whole).unwrap();
        kafka.restart(node).unwrap();
        // Until it has caught up, the next kill could take the last replica in sync.
        wait_until(Duration::from_secs(60), || replicas_in_sync(&kafka) == 3).unwrap();
    }
    kafka.stop().unwrap();
    assert!((0..3).all(|node| !is_running(kafka.pid(node).unwrap())));
}

/// Replicas in sync of the one partition of topic `t`.
fn replicas_in_sync(kafka: &Kafka) -> usize {
    let arguments = [
        "--bootstrap-server",
        kafka.bootstrap(),
        "--describe",
        "--topic",
        "t",
    ];
    let described = kafka.run_tool("org.apache.kafka.tools.TopicCommand", &arguments);
    let described = described.map_or_else(|_| Vec::new(), |output| output.stdout);
    let described = String::from_utf8_lossy(&described);
    let in_sync = described.split("Isr: ").nth(1).unwrap_or_default();
    in_sync
        .split_whitespace()
        .next()
        .map_or(0, |ids| ids.split(',').count())
}

#[test]
fn hdfs_starts_serves_its_tools_survives_kills_and_leaves_nothing() {
    let begin = Instant::now();
    let mut hdfs = Hdfs::start(&HdfsOptions::default()).unwrap();
    println!("HDFS was ready after {:?}", begin.elapsed());

    hdfs.dfs(&["-mkdir", "-p", "/a/b c"]).unwrap();
    let begin = Instant::now();
    let listed = hdfs.dfs(&["-ls", "/a"]).unwrap();
    println!("dfs -ls took {:?}", begin.elapsed());
    assert!(listed.contains("/a/b c"), "{listed}");
    let refused = hdfs.dfs(&["-ls", "/missing"]).unwrap_err();
    assert!(
        format!("{refused:#}").contains("No such file or directory"),
        "{refused:#}"
    );

    hdfs.dfsadmin(&["-safemode", "enter"]).unwrap();
    assert!(hdfs.status().unwrap().safe_mode.is_some());
    hdfs.dfsadmin(&["-safemode", "leave"]).unwrap();
    hdfs.dfsadmin(&["-setQuota", "2", "/a"]).unwrap();
    assert!(hdfs.dfs(&["-mkdir", "/a/over"]).is_err());

    hdfs.pause(HdfsNode::NameNode).unwrap();
    assert!(hdfs.status().is_err(), "a paused NameNode must not answer");
    hdfs.resume(HdfsNode::NameNode).unwrap();
    hdfs.kill(HdfsNode::DataNode(1)).unwrap();
    wait_until(Duration::from_secs(40), || {
        hdfs.status().unwrap().dead_datanodes == 1
    })
    .unwrap();
    hdfs.restart(HdfsNode::DataNode(1)).unwrap();
    hdfs.wait_ready(3).unwrap();
    hdfs.kill(HdfsNode::NameNode).unwrap();
    hdfs.restart(HdfsNode::NameNode).unwrap();
    hdfs.wait_ready(3).unwrap();
    assert!(hdfs.dfs(&["-ls", "/a"]).unwrap().contains("/a/b c"));

    let nodes = [
        HdfsNode::NameNode,
        HdfsNode::DataNode(0),
        HdfsNode::DataNode(1),
    ];
    let pids = nodes.map(|node| hdfs.pid(node).unwrap());
    let folder = hdfs.folder().to_owned();
    hdfs.pause(HdfsNode::DataNode(0)).unwrap();
    drop(hdfs);
    assert_gone(&pids, &folder);
}

#[test]
fn a_service_that_cannot_start_shows_its_log() {
    let options = KafkaOptions {
        properties: vec![("log.segment.bytes".to_owned(), "1".to_owned())],
        ..KafkaOptions::default()
    };
    let error = format!("{:#}", Kafka::start(&options).unwrap_err());
    assert!(error.contains("log.segment.bytes"), "{error}");
}

/// What `tests/run` does: the services live in one process, tests in others, and a test run that is killed takes
/// them with it.
#[test]
fn services_of_a_killed_owner_end_and_until_then_serve_other_processes() {
    let begin = Instant::now();
    let mut owner = Command::new(env!("CARGO_BIN_EXE_test-services"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut variables = Vec::new();
    for line in BufReader::new(owner.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if line == "ready" {
            break;
        }
        let (name, value) = line
            .strip_prefix("export ")
            .unwrap()
            .split_once('=')
            .unwrap();
        variables.push((name.to_owned(), value.trim_matches('\'').to_owned()));
    }
    println!("both services were ready after {:?}", begin.elapsed());
    assert_eq!(variables.len(), 2);
    let mut pids = Vec::new();
    for (_, folder) in &variables {
        for file in std::fs::read_dir(Path::new(folder).join("pids")).unwrap() {
            let pid = std::fs::read_to_string(file.unwrap().path()).unwrap();
            pids.push(pid.parse().unwrap());
        }
    }
    assert_eq!(pids.len(), 5, "one broker, one NameNode, three DataNodes");
    assert!(pids.iter().all(|pid| is_running(*pid)));

    let user = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "shared_services_answer"])
        .envs(variables.clone())
        .output()
        .unwrap();
    assert!(
        user.status.success(),
        "{}",
        String::from_utf8_lossy(&user.stdout)
    );

    owner.kill().unwrap();
    owner.wait().unwrap();
    let gone = || {
        let folders = variables.iter().map(|(_, folder)| Path::new(folder));
        pids.iter().all(|pid| !is_running(*pid))
            && folders
                .map(Path::try_exists)
                .all(|exists| matches!(exists, Ok(false)))
    };
    wait_until(Duration::from_secs(30), gone).unwrap();
}

#[test]
#[ignore = "services_of_a_killed_owner_end_and_until_then_serve_other_processes runs it"]
fn shared_services_answer() {
    let topic = random_topic("shared");
    kafka().create_topic(&topic, 1, 1, &[]).unwrap();
    assert_eq!(kafka().offsets(&topic, 0).unwrap(), 0..0);
    assert!(
        kafka().pid(0).is_err(),
        "a shared broker is nobody's to kill"
    );
    assert_eq!(hdfs().status().unwrap().live_datanodes, 3);
    hdfs().dfs(&["-ls", "/"]).unwrap();
}

#[test]
fn a_small_file_system_is_full_soon_and_read_only_when_told() {
    let disk = Tmpfs::mount(64 * 1024).unwrap();
    let full = std::fs::write(disk.path().join("a"), vec![0; 128 * 1024]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    disk.set_read_only(true).unwrap();
    let refused = std::fs::write(disk.path().join("b"), "b").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    let folder = disk.path().to_owned();
    drop(disk);
    assert_gone(&[], &folder);
}

#[test]
fn python_has_the_readers_and_all_flights() {
    let program = "import duckdb, sys; \
        print(duckdb.sql(f\"select count(*), count(distinct dest) from '{sys.argv[1]}'\").fetchall()); \
        import pyarrow; print(pyarrow.__version__)";
    let flights = python().flights_csv();
    let printed = python().run(program, &[flights.to_str().unwrap()]).unwrap();
    assert_eq!(printed, "[(336776, 105)]\n26.0.1\n");
}

#[test]
fn a_probe_sees_memory_and_time_of_a_process() {
    let me = std::process::id();
    let ballast = vec![1_u8; 64 << 20];
    let before = cpu(me).unwrap();
    wait_until(Duration::from_secs(60), || cpu(me).unwrap() > before).unwrap();
    let usage = usage(me).unwrap();
    assert!(usage.rss_bytes > 64 << 20, "{usage:?}");
    assert!(
        usage.peak_rss_bytes >= usage.rss_bytes && usage.threads > 1,
        "{usage:?}"
    );
    drop(ballast);
}

fn assert_gone(pids: &[u32], folder: &Path) {
    for pid in pids {
        assert!(!is_running(*pid), "process {pid} is still there");
    }
    assert!(
        matches!(folder.try_exists(), Ok(false)),
        "{} is still there",
        folder.display()
    );
}
