//! Foreign clients and tools against our broker, unmodified: kcat, the Java 4 producer, Kafka's log dump.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{OurBroker, assert_success, events, list, logferry};
use crate::log_dump::sound_dump;

fn cat(broker: &OurBroker, topic: &str) -> Vec<String> {
    let output = logferry()
        .args(["cat", "--brokers", &broker.address, topic])
        .output()
        .unwrap();
    assert_success(&output);
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn kcat_produces_with_every_codec_and_reads_back_the_same() {
    let broker = OurBroker::start();
    let lines = events(0, 2_000, 1_000);
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = format!("kcat-{codec}");
        broker.create_topic(&topic, 1, &[]);
        let mut child = Command::new("kcat")
            .args(["-P", "-b", &broker.address, "-t", &topic, "-z", codec])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let text = lines.join("\n") + "\n";
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        assert_success(&child.wait_with_output().unwrap());
        assert_eq!(cat(&broker, &topic), lines, "{codec}");
        let kcat = Command::new("kcat")
            .args([
                "-C",
                "-q",
                "-e",
                "-o",
                "beginning",
                "-t",
                &topic,
                "-b",
                &broker.address,
            ])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_success(&kcat);
        assert_eq!(String::from_utf8(kcat.stdout).unwrap(), text, "{codec}");
    }
}

#[test]
fn the_java_producer_works_and_kafkas_own_tool_reads_our_log() {
    let kafka = test_support::kafka();
    let broker = OurBroker::start();
    broker.create_topic("java", 2, &["segment.bytes=1048576"]);
    let servers = format!("bootstrap.servers={}", broker.address);
    let run = |class: &str, arguments: &[&str]| {
        let mut command = kafka.tool_command(class);
        command.args(arguments).output().unwrap()
    };
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let compression = format!("compression.type={codec}");
        let output = run(
            "org.apache.kafka.tools.ProducerPerformance",
            &[
                "--topic",
                "java",
                "--num-records",
                "5000",
                "--record-size",
                "200",
                "--throughput",
                "-1",
                "--command-property",
                &servers,
                &compression,
            ],
        );
        assert_success(&output);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains("5000 records sent"), "{printed}");
    }
    assert_eq!(cat(&broker, "java").len(), 25_000);
    let (_, dir) = broker.stop_cleanly();
    let mut checked = 0;
    for partition in ["java-0", "java-1"] {
        let folder = find(dir.path(), partition);
        for name in list(&folder)
            .iter()
            .filter(|n| n.ends_with(".log") || n.ends_with("index") || n.ends_with(".snapshot"))
        {
            let file = folder.join(name);
            let output = run(
                "org.apache.kafka.tools.DumpLogSegments",
                &[
                    "--deep-iteration",
                    "--index-sanity-check",
                    "--files",
                    file.to_str().unwrap(),
                ],
            );
            let printed = sound_dump(output);
            if name.ends_with(".snapshot") {
                assert!(printed.contains("producerId: "), "{printed}");
            }
            checked += 1;
        }
    }
    assert!(checked > 8, "only {checked} files");
}

/// The directory of a partition below a broker's data.
fn find(below: &Path, partition: &str) -> std::path::PathBuf {
    let mut open = vec![below.to_path_buf()];
    while let Some(dir) = open.pop() {
        for name in list(&dir) {
            let path = dir.join(&name);
            if name == partition {
                return path;
            }
            if path.is_dir() {
                open.push(path);
            }
        }
    }
    panic!("no {partition} below {}", below.display());
}
