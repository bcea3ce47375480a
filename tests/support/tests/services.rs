//! The real services start, answer, survive what tests do to them, and leave nothing behind.

use std::path::Path;
use std::time::{Duration, Instant};

use test_support::process::is_running;
use test_support::{
    Hdfs, HdfsNode, HdfsOptions, Kafka, KafkaOptions, TestRecords, TransactionEnd, wait_until,
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
