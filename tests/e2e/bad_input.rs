//! Wrong input of every kind: the exit code, an error with thing, cause and remedy, and nothing half published.

use std::fs;
use std::path::{Path, PathBuf};

use test_support::{Fault, TcpProxy};

use crate::harness::{
    Job, Loaded, OurBroker, assert_success, events, files_below, list, now_ms, produce,
};

const REJECT: &str = "[records]\nbad_records = 'reject'\n";
const LENIENT: &str = "[records]\nbad_records = 'reject'\n[limits]\nmax_rejected_percent = 100.0\n";

fn broker_with(lines: &[String]) -> OurBroker {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, lines);
    broker
}

fn published(job: &Job) -> Vec<String> {
    let mut names = list(Path::new(&job.dataset));
    names.retain(|name| name.starts_with("run="));
    names
}

/// A good event between two copies of a bad line.
fn around(bad: &str) -> Vec<String> {
    let good = events(0, 2, 100);
    vec![
        bad.to_owned(),
        good[0].clone(),
        bad.to_owned(),
        good[1].clone(),
    ]
}

#[test]
fn each_kind_of_bad_record_fails_the_run_by_name_or_is_set_aside() {
    let now = now_ms();
    let cases: &[(&str, String, &str)] = &[
        ("undecodable", "{\"n\":1,".to_owned(), "JSON"),
        ("not an object", "[1,2]".to_owned(), "object"),
        ("wrong type", format!(r#"{{"n":"1","ts":{now}}}"#), "n"),
        (
            "fraction for an integer",
            format!(r#"{{"n":1.5,"ts":{now}}}"#),
            "n",
        ),
        ("missing required field", format!(r#"{{"ts":{now}}}"#), "n"),
        (
            "two objects",
            format!(r#"{{"n":1,"ts":{now}}}{{"n":2}}"#),
            "JSON",
        ),
        ("empty value", String::new(), ""),
        (
            "bad time: year 99999",
            r#"{"n":1,"ts":3093527980800000}"#.to_owned(),
            "window",
        ),
    ];
    for (kind, line, reason) in cases {
        let broker = broker_with(&around(line));
        let strict = Job::new(&broker.address, "events", "");
        let failed = strict.load();
        assert_eq!(
            failed.code, 65,
            "{kind}: {} {:#}",
            failed.stderr, failed.json["manifest"]["files"]
        );
        failed.says(&["events-0", "offset 0", "records.bad_records"]);
        assert!(failed.stderr.contains(reason), "{kind}: {}", failed.stderr);
        assert!(published(&strict).is_empty(), "{kind}");
        assert!(
            strict.staging().is_empty(),
            "{kind}: {:?}",
            strict.staging()
        );

        let too_many = Job::new(&broker.address, "events", REJECT);
        too_many
            .load()
            .expect(65)
            .says(&["2 of 4 records were set aside", "max_rejected"]);
        assert!(published(&too_many).is_empty(), "{kind}");

        let lenient = Job::new(&broker.address, "events", LENIENT);
        let loaded = lenient.load().expect(0);
        let counts = &loaded.manifest()["ranges"][0]["counts"];
        assert_eq!(
            (&counts["rows"], &counts["rejected"]),
            (&2.into(), &2.into()),
            "{kind}"
        );
        lenient.verify();
    }
}

#[test]
fn a_record_without_a_usable_time_is_kept_in_the_default_partition() {
    // -1 is Kafka's "no timestamp", 0 what unset fields hold: neither may open 1970's directories.
    let lines: Vec<String> = [-1, 0]
        .iter()
        .map(|ts| format!(r#"{{"n":1,"ts":{ts}}}"#))
        .collect();
    let broker = broker_with(&lines);
    let job = Job::new(&broker.address, "events", "");
    let loaded = job.load().expect(0);
    let files = loaded.manifest()["files"].as_array().unwrap();
    let default = "dt=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__/";
    assert!(
        files[0]["path"].as_str().unwrap().starts_with(default),
        "{files:?}"
    );
    assert_eq!((files.len(), &files[0]["rows"]), (1, &2.into()));
    job.verify();
}

#[test]
fn set_aside_records_keep_their_bytes_and_coordinates() {
    let broker = broker_with(&around("{broken"));
    let job = Job::new(&broker.address, "events", LENIENT);
    job.load().expect(0);
    let program = "
import sys, glob, json, pyarrow.parquet as pq
t = pq.ParquetFile(glob.glob(sys.argv[1] + '/run=*/_rejected/*.parquet')[0]).read()
print(json.dumps([[r['topic'], r['partition'], r['offset'], r['value'].decode(), bool(r['reason'])] for r in t.to_pylist()]))
";
    let printed = test_support::python()
        .run(program, &[&job.dataset])
        .unwrap();
    let rows: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        rows,
        serde_json::json!([
            ["events", 0, 0, "{broken", true],
            ["events", 0, 2, "{broken", true]
        ])
    );
}

#[test]
fn tombstones_follow_the_policy() {
    let kafka = test_support::kafka();
    let topic = test_support::random_topic("tombstones");
    kafka.create_topic(&topic, 1, 1, &[]).unwrap();
    // kcat sends an empty value as null with -Z.
    let program = format!(
        "printf 'k=\\n' | kcat -P -Z -K= -b {} -t {topic} -p 0",
        kafka.bootstrap()
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &program])
        .output()
        .unwrap();
    assert_success(&output);
    assert_success(&produce(
        kafka.bootstrap(),
        &topic,
        &["--partition", "0"],
        &events(0, 1, 100),
    ));
    let strict = Job::new(kafka.bootstrap(), &topic, "");
    strict
        .load()
        .expect(65)
        .says(&[&format!("{topic}-0"), "offset 0", "records.tombstones"]);
    let skip = Job::new(
        kafka.bootstrap(),
        &topic,
        "[records]\ntombstones = 'skip'\n",
    );
    let loaded = skip.load().expect(0);
    let counts = &loaded.manifest()["ranges"][0]["counts"];
    assert_eq!(
        (&counts["rows"], &counts["tombstones_skipped"]),
        (&1.into(), &1.into())
    );
    skip.verify();
}

#[test]
fn a_record_of_12_mb_is_loaded_and_one_above_the_cap_is_named() {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &["max.message.bytes=20000000"]);
    let now = now_ms();
    let large = format!(
        r#"{{"n":1,"name":"{}","ts":{now}}}"#,
        "x".repeat(12_000_000)
    );
    broker.produce(
        "events",
        0,
        &[
            events(0, 1, 100)[0].clone(),
            large,
            events(2, 3, 100)[0].clone(),
        ],
    );
    let job = Job::new(&broker.address, "events", "");
    assert_eq!(job.load().expect(0).rows(), 3);
    job.verify();
    let capped = Job::new(&broker.address, "events", "");
    capped.edit("[source]\n", "[source]\nmax_batch_bytes = '8MiB'\n");
    capped
        .load()
        .expect(65)
        .says(&["events-0", "8388608", "source.max_batch_bytes"]);
    assert!(published(&capped).is_empty());
}

#[test]
fn a_topic_without_records_publishes_its_first_sight_and_then_nothing() {
    let broker = OurBroker::start();
    broker.create_topic("events", 2, &[]);
    let job = Job::new(&broker.address, "events", "");
    assert_eq!(job.load().expect(0).rows(), 0);
    assert_eq!(job.runs(), 1);
    assert_eq!(job.load().expect(0).json["outcome"], "nothing");
    let inferred = Job::new(&broker.address, "events", "# inferred\n");
    inferred.load().expect(2).says(&["[schema]"]);
}

#[test]
fn a_topic_that_never_was_is_a_mistake_in_the_job() {
    let broker = OurBroker::start_with(&[("LOGFERRY__BROKER__AUTO_CREATE_TOPICS", "true")]);
    let job = Job::new(&broker.address, "no-such-topic", "");
    job.load().expect(2).says(&["no-such-topic"]);
    let listed = broker.topics(&["list"]);
    assert!(listed.stdout.is_empty(), "a load must create no topic");
}

#[test]
fn mistakes_in_the_job_file_are_named() {
    let broker = broker_with(&events(0, 3, 100));
    let misspelt = Job::new(&broker.address, "events", "[limits]\ntask_byte = '1MiB'\n");
    misspelt.load().expect(2).says(&["task_byte", "job.toml"]);
    let collides = Job::new(
        &broker.address,
        "events",
        "[schema]\ncolumns = [{name='hour', type='int64'}, {name='ts', type='timestamp_ms'}]\n",
    );
    collides.load().expect(2).says(&["hour"]);
    let no_dataset = Job::new(&broker.address, "events", "");
    let output = no_dataset.command("load").output().unwrap();
    Loaded::from(output)
        .expect(2)
        .says(&[&no_dataset.dataset, "--create"]);
    let nobody = Job::new("127.0.0.1:9", "events", "");
    nobody.edit("[source]\n", "[source]\nretry_deadline = '1s'\n");
    nobody
        .load()
        .expect(69)
        .says(&["127.0.0.1:9", "source.brokers"]);
}

#[test]
fn columns_are_inferred_once_and_pinned() {
    let broker = broker_with(&events(0, 3, 100));
    let job = Job::new(&broker.address, "events", "# inferred\n");
    job.load().expect(0);
    broker.produce(
        "events",
        0,
        &[format!(r#"{{"n":3,"name":"x","ts":{},"new":1}}"#, now_ms())],
    );
    let second = job.load().expect(0);
    let columns = second.manifest()["schema"]["columns"].as_array().unwrap();
    let names: Vec<_> = columns
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["n", "name", "ts"]);
    job.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_closes_in_mid_fetch_is_asked_again() {
    let port = test_support::free_ports(1).unwrap()[0];
    let advertised = format!("127.0.0.1:{port}");
    let broker = OurBroker::start_with(&[
        ("LOGFERRY__BROKER__ADVERTISED", &advertised),
        ("LOGFERRY__BROKER__FETCH_MAX_BYTES", "100KB"),
    ]);
    let proxy = TcpProxy::start_on(port, &broker.address).await.unwrap();
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, &events(0, 30_000, 10_000));
    proxy.set(Fault::CutAnswersAfter(300_000));
    let job = Job::new(&advertised, "events", "");
    job.edit("[source]\n", "[source]\nretry_deadline = '20s'\n");
    let loaded = tokio::task::spawn_blocking(move || {
        let loaded = job.load().expect(0);
        job.verify();
        loaded
    });
    assert_eq!(loaded.await.unwrap().rows(), 30_000);
    assert!(
        proxy.connections() > 4,
        "{} connections: it was never cut",
        proxy.connections()
    );
}

/// Stops the broker cleanly (so that nothing is scanned at the next start), changes a byte of a log, and starts
/// it again at the same address.
fn with_changed_log(broker: OurBroker, change: impl FnOnce(&mut Vec<u8>)) -> OurBroker {
    let (address, dir) = broker.stop_cleanly();
    let log = segments(&dir.path().join("data"))
        .into_iter()
        .next()
        .expect("a segment");
    let mut bytes = fs::read(&log).unwrap();
    change(&mut bytes);
    fs::write(&log, bytes).unwrap();
    OurBroker::restart(&address, dir)
}

fn segments(data: &Path) -> Vec<PathBuf> {
    let mut found = files_below(data);
    found.retain(|path| path.extension().is_some_and(|ending| ending == "log"));
    found
}

#[test]
fn a_batch_with_a_bad_crc_fails_the_run_by_offset() {
    let broker = broker_with(&events(0, 5, 100));
    let broker = with_changed_log(broker, |log| *log.last_mut().unwrap() ^= 1);
    let job = Job::new(&broker.address, "events", "");
    job.load().expect(65).says(&["events-0", "offset 0", "CRC"]);
    assert!(published(&job).is_empty());
}

#[test]
fn a_codec_that_does_not_exist_fails_the_run_by_name() {
    let broker = broker_with(&events(0, 5, 100));
    let broker = with_changed_log(broker, |log| {
        // Record batch v2: attributes at 21, the CRC at 17 covers what follows it.
        log[22] = (log[22] & !7) | 5;
        let length = 12 + u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
        let crc = crc32c::crc32c(&log[21..length]);
        log[17..21].copy_from_slice(&crc.to_be_bytes());
    });
    let job = Job::new(&broker.address, "events", "");
    job.load().expect(65).says(&["events-0", "codec"]);
    assert!(published(&job).is_empty());
}

#[test]
fn sigterm_stops_the_broker_and_it_comes_back_with_everything() {
    let broker = broker_with(&events(0, 5, 100));
    let (address, dir) = broker.stop_cleanly();
    let broker = OurBroker::restart(&address, dir);
    let job = Job::new(&broker.address, "events", "");
    assert_eq!(job.load().expect(0).rows(), 5);
}

#[test]
fn lines_before_a_bad_one_are_delivered() {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &[]);
    let lines = [events(0, 2, 100), vec!["bad".to_owned()], events(3, 4, 100)].concat();
    let output = produce(&broker.address, "events", &["--format", "json"], &lines);
    Loaded::from(output)
        .expect(65)
        .says(&["line 3", "the lines before it were produced"]);
    let cat = crate::harness::logferry()
        .args(["cat", "--brokers", &broker.address, "events"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(cat.stdout).unwrap().lines().count(), 2);
}

#[test]
fn values_that_cannot_be_meant_are_refused_together() {
    let more = "[limits]\ntask_bytes = 0\nmax_groups = 0\nmax_rejected_percent = -1.0\n\
         max_offsets_per_partition = 0\n[engine]\nthreads = 0\nattempts = 0\nlease_timeout = '0s'\n";
    let job = Job::new("127.0.0.1:9", "events", more);
    job.edit("topics = [\"events\"]", "topics = [\"events\", \"events\"]");
    job.load().expect(2).says(&[
        "task_bytes",
        "max_groups",
        "max_rejected_percent",
        "max_offsets_per_partition",
        "threads",
        "attempts",
        "lease_timeout",
        "twice",
    ]);
}

#[test]
fn one_directory_more_than_the_limit_fails_the_run_and_rejected_records_are_none() {
    let mut lines = events(0, 30, 10);
    lines.push("not json".to_owned());
    let broker = broker_with(&lines);
    let limits = |groups| {
        format!(
            "[limits]\nmax_groups = {groups}\nmax_rejected_percent = 10.0\n[records]\nbad_records = 'reject'\n"
        )
    };
    let job = Job::new(&broker.address, "events", &limits(2));
    job.load()
        .expect(65)
        .says(&["task 0", "2", "limits.max_groups"]);
    assert!(published(&job).is_empty());
    let job = Job::new(&broker.address, "events", &limits(3));
    job.load().expect(0);
    assert_eq!(job.rows(), 30);
}

#[test]
fn a_dataset_is_not_made_inside_another() {
    let broker = broker_with(&events(0, 3, 100));
    let outer = Job::new(&broker.address, "events", "");
    outer.load().expect(0);
    for below in ["run=000001/inner", "run=000002", ".logferry/staging/x"] {
        let inner = Job::new(&broker.address, "events", "");
        let location = format!("{}/{below}", outer.dataset);
        inner.edit(&inner.dataset, &location);
        inner
            .load()
            .expect(2)
            .says(&[below, "inside another dataset"]);
    }
    outer.verify();
}

#[test]
fn links_inside_a_run_are_named_and_not_followed() {
    let broker = broker_with(&events(0, 3, 100));
    let job = Job::new(&broker.address, "events", "");
    job.load().expect(0);
    let run = Path::new(&job.dataset).join("run=000001");
    std::os::unix::fs::symlink("/", run.join("loop")).unwrap();
    let (code, report) = job.verify_report();
    assert_eq!(code, 65);
    let problems = report["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 1, "{report:#}");
    assert!(
        problems[0]["path"].as_str().unwrap().ends_with("/loop"),
        "{report:#}"
    );
    fs::remove_file(run.join("loop")).unwrap();
    job.verify();
    // Lost working directories are made again.
    fs::remove_dir_all(Path::new(&job.dataset).join(".logferry/staging")).unwrap();
    assert_eq!(job.load().expect(0).json["outcome"], "nothing");
}
