//! The thinnest path, then through every pair of broker and store.

use std::process::Stdio;

use crate::harness::{Job, OurBroker, assert_success, events, list, logferry, produce};

/// What foreign readers see: count, sum of `n`, types, hours; from pyarrow and `DuckDB`.
const READ_BACK: &str = "
import sys, glob, json, pyarrow.parquet as pq, duckdb
files = sorted(glob.glob(sys.argv[1] + '/run=*/**/part-*.parquet', recursive=True))
schema = pq.ParquetFile(files[0]).schema_arrow
count = sum(pq.ParquetFile(f).metadata.num_rows for f in files)
names = duckdb.sql(f\"select count(*), sum(n), count(distinct (_partition, _offset)), count(distinct (dt, hour)) \
from read_parquet('{sys.argv[1]}/*/*/*/*.parquet', hive_partitioning=true)\").fetchall()[0]
print(json.dumps({'count': count, 'duckdb': [int(x) for x in names],
  'types': {f.name: str(f.type) for f in schema}}))
";

#[test]
fn foreign_readers_see_every_row_with_its_type() {
    let broker = OurBroker::start();
    broker.create_topic("events", 3, &[]);
    for partition in 0..3 {
        let from = u64::try_from(partition).unwrap() * 400;
        broker.produce("events", partition, &events(from, from + 400, 200));
    }
    let job = Job::new(&broker.address, "events", "");
    let loaded = job.load().expect(0);
    assert_eq!(loaded.rows(), 1_200);
    let printed = test_support::python()
        .run(READ_BACK, &[&job.dataset])
        .unwrap();
    let seen: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let sum: i64 = (0..1_200).sum();
    assert_eq!(seen["count"], 1_200);
    assert_eq!(seen["duckdb"], serde_json::json!([1_200, sum, 1_200, 6]));
    let types = &seen["types"];
    assert_eq!(types["n"], "int64");
    assert_eq!(types["name"], "string");
    assert_eq!(types["ts"], "timestamp[ms, tz=UTC]");
    assert_eq!(types["_partition"], "int32");
    assert_eq!(types["_offset"], "int64");
    assert_eq!(types["_timestamp"], "timestamp[ms, tz=UTC]");
    job.verify();
}

#[test]
fn a_second_run_takes_only_what_is_new_and_a_third_has_nothing_to_do() {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, &events(0, 10, 100));
    let job = Job::new(&broker.address, "events", "");
    assert_eq!(job.load().expect(0).rows(), 10);
    broker.produce("events", 0, &events(10, 15, 100));
    assert_eq!(job.load().expect(0).rows(), 5);
    let third = job.load().expect(0);
    assert_eq!(third.json["outcome"], "nothing");
    assert_eq!((job.runs(), job.rows()), (2, 15));
    assert!(job.staging().is_empty(), "{:?}", job.staging());
    assert!(list(&std::path::Path::new(&job.dataset).join(".logferry/trash")).is_empty());
}

#[test]
fn apache_kafka_to_hdfs_with_every_codec() {
    let kafka = test_support::kafka();
    let topic = test_support::random_topic("codecs");
    kafka.create_topic(&topic, 5, 1, &[]).unwrap();
    for (partition, codec) in ["none", "gzip", "snappy", "lz4", "zstd"].iter().enumerate() {
        let from = u64::try_from(partition).unwrap() * 1_000;
        let extra = [
            "--partition",
            &partition.to_string(),
            "--compression",
            codec,
        ];
        assert_success(&produce(
            kafka.bootstrap(),
            &topic,
            &extra,
            &events(from, from + 1_000, 500),
        ));
    }
    let job = Job::on_hdfs(kafka.bootstrap(), &topic, "");
    assert_eq!(job.load().expect(0).rows(), 5_000);
    let report = job.verify();
    assert_eq!(report["counts"]["rows"], 5_000);
    assert_eq!(job.load().expect(0).json["outcome"], "nothing");
}

#[test]
fn the_demo_ends_by_itself_and_shows_what_was_loaded() {
    let dir = tempfile::TempDir::new().unwrap();
    let output = logferry()
        .args(["demo", "--events", "5000", "--dir"])
        .arg(dir.path().join("demo"))
        .output()
        .unwrap();
    assert_success(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    for part in [
        "run=000001",
        "run=000002",
        "5000 rows: every offset is there once",
        ".parquet",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn tasks_of_a_stored_plan_run_anywhere_and_the_next_load_publishes_them() {
    let broker = OurBroker::start();
    broker.create_topic("events", 2, &[]);
    broker.produce("events", 0, &events(0, 50, 100));
    broker.produce("events", 1, &events(50, 90, 100));
    let job = Job::new(&broker.address, "events", "[limits]\ntask_bytes = '1KiB'\n");
    let planned = job
        .command("load")
        .args(["--create", "--plan-only"])
        .output()
        .unwrap();
    assert_success(&planned);
    let text = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(text.lines().count() > 2, "{text}");
    for line in text.lines() {
        for _ in 0..2 {
            // Twice: the second finds the task done.
            let task = logferry()
                .args(["load", "task"])
                .args(line.split(' '))
                .output()
                .unwrap();
            assert_success(&task);
        }
    }
    let plan = text.split(' ').nth(1).unwrap();
    let wrong = logferry()
        .args(["load", "task", "--task", "99", "--plan", plan])
        .output()
        .unwrap();
    assert_eq!(
        wrong.status.code(),
        Some(2),
        "{}",
        String::from_utf8_lossy(&wrong.stderr)
    );
    assert_eq!(job.load().expect(0).rows(), 90);
    assert_eq!((job.runs(), job.rows()), (1, 90));
}

#[test]
fn a_dry_run_prints_the_plan_and_writes_nothing() {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, &events(0, 10, 100));
    let job = Job::new(&broker.address, "events", "");
    let output = job.command("load").arg("--dry-run").output().unwrap();
    assert_success(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("events-0: offsets 0 to 10"), "{text}");
    assert!(list(std::path::Path::new(&job.dataset)).is_empty());
}

#[test]
fn cat_prints_ranges_and_ends_quietly_in_a_pipe() {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, &events(0, 20_000, 100));
    let cat = |arguments: &[&str]| {
        let output = logferry()
            .args(["cat", "--brokers", &broker.address, "events"])
            .args(arguments)
            .output()
            .unwrap();
        assert_success(&output);
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(
        cat(&["--from", "5", "--to", "8"])
            .lines()
            .collect::<Vec<_>>(),
        events(5, 8, 100)
    );
    assert_eq!(cat(&[]).lines().count(), 20_000);
    let json = cat(&["--output", "json", "-n", "1", "--from", "7"]);
    let record: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!(
        (&record["offset"], &record["value"]["n"]),
        (&7.into(), &7.into())
    );
    let mut child = logferry()
        .args(["cat", "--brokers", &broker.address, "events"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_success(&output);
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn keys_decide_the_partition_as_in_other_clients() {
    let broker = OurBroker::start();
    broker.create_topic("keyed", 10, &[]);
    let lines: Vec<String> = (0..100)
        .map(|n| format!(r#"{{"id":"user-{}","n":{n}}}"#, n % 7))
        .collect();
    let extra = ["--format", "json", "--key", "id"];
    assert_success(&produce(&broker.address, "keyed", &extra, &lines));
    let output = logferry()
        .args([
            "cat",
            "--brokers",
            &broker.address,
            "keyed",
            "--output",
            "json",
        ])
        .output()
        .unwrap();
    let mut of_key = std::collections::BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let key = record["key"].as_str().unwrap().to_owned();
        let partition = record["partition"].as_i64().unwrap();
        assert_eq!(*of_key.entry(key).or_insert(partition), partition);
    }
    assert_eq!(of_key.len(), 7);
    // Java: toPositive(murmur2("user-0")) % 10 and so on, by kcat's `-X partitioner=murmur2_random`.
    assert!(
        of_key
            .values()
            .collect::<std::collections::BTreeSet<_>>()
            .len()
            > 1
    );
}

#[test]
fn bench_measures_and_leaves_nothing_behind() {
    let broker = OurBroker::start();
    broker.create_topic("events", 2, &[]);
    for partition in 0..2 {
        broker.produce("events", partition, &events(0, 3_000, 1_000));
    }
    let job = Job::new(&broker.address, "events", "");
    let output = job
        .command("bench")
        .args(["--records", "2000", "--rounds", "1", "--json"])
        .output()
        .unwrap();
    assert_success(&output);
    let measured: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(measured["records"], 4_000);
    let stages = measured["stages"].as_object().unwrap();
    let names: Vec<_> = stages.keys().map(String::as_str).collect();
    assert_eq!(names, ["decode", "encode", "group", "unpack"]);
    let shown = job
        .command("bench")
        .args(["--rounds", "1"])
        .output()
        .unwrap();
    assert_success(&shown);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("of the pure limit"), "{shown}");
    assert_eq!(list(job.dir.path()), ["job.toml"]);
}
