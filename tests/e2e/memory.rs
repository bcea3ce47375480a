//! Memory is bounded by configuration whatever the input (I8): `memory = "256MiB"` stays below 400 MiB.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::Output;
use std::time::Duration;

use test_support::Tmpfs;
use test_support::probe::usage;

use crate::harness::{Job, Loaded, OurBroker, pause, seeds};

const MIB: u64 = 1 << 20;
/// What a load may take under `memory = "256MiB"`.
const BOUND: u64 = 400 * MIB;

/// Runs a load; its result and the most memory it had. Measured every few milliseconds, so that at most
/// what the last moment added is missed.
fn load_measured(job: &Job) -> (Loaded, u64) {
    // Into files: nobody would empty a pipe meanwhile.
    let [out, err] = ["out", "err"].map(|name| job.dir.path().join(name));
    let mut child = job
        .load_command(&[])
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let mut peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if let Ok(now) = usage(child.id()) {
            peak = now.peak_rss_bytes;
        }
        pause(Duration::from_millis(5));
    };
    let output = Output {
        status,
        stdout: fs::read(out).unwrap(),
        stderr: fs::read(err).unwrap(),
    };
    (Loaded::from(output), peak)
}

#[track_caller]
#[expect(clippy::print_stdout, reason = "the figure, for whoever asks")]
fn assert_bounded(job: &Job, rows: u64) {
    let (loaded, peak) = load_measured(job);
    let loaded = loaded.expect(0);
    assert_eq!(loaded.rows(), rows);
    assert!(peak > 10 * MIB, "nothing was measured: {peak}");
    assert!(peak < BOUND, "{} MiB resident", peak / MIB);
    println!("{rows} rows: {} MiB resident at most", peak / MIB);
    job.verify();
}

/// Events whose times are scattered over `hours` hours.
fn scattered(from: u64, to: u64, hours: u64, padding: usize) -> Vec<String> {
    let start = crate::harness::now_ms() - i64::try_from(hours + 1).unwrap() * 3_600_000;
    let padding = "p".repeat(padding);
    (from..to)
        .map(|n| {
            let hour = i64::try_from(n.wrapping_mul(7_919) % hours).unwrap();
            let ts = start + hour * 3_600_000;
            format!(r#"{{"n":{n},"name":"event {n} {padding}","ts":{ts}}}"#)
        })
        .collect()
}

const ENGINE: &str = "[engine]\nmemory = '256MiB'\nthreads = 2\n";

#[test]
fn five_thousand_hours_in_one_range() {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, &scattered(0, 20_000, 5_000, 10));
    let grouping = "[grouping]\nevent_time = ['ts']\nmax_past = '300d'\n";
    let limits = "[limits]\nmax_groups = 5000\n";
    let job = Job::new(
        &broker.address,
        "events",
        &format!("{ENGINE}{grouping}{limits}"),
    );
    assert_bounded(&job, 20_000);
}

#[test]
fn a_thousand_columns() {
    let broker = OurBroker::start();
    broker.create_topic("wide", 1, &[]);
    let names: Vec<String> = (0..1_000).map(|n| format!("column_{n}")).collect();
    let lines: Vec<String> = (0..3_000_u64)
        .map(|row| {
            let values: BTreeMap<_, _> = names.iter().zip((0_u64..).map(|n| row * n)).collect();
            serde_json::to_string(&values).unwrap()
        })
        .collect();
    for part in lines.chunks(500) {
        broker.produce("wide", 0, part);
    }
    let columns: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(n, name)| {
            let kind = ["int64", "float64", "json"][n % 3];
            format!("{{ name = '{name}', type = '{kind}' }}")
        })
        .collect();
    let schema = format!("[schema]\ncolumns = [{}]\n", columns.join(", "));
    let job = Job::new(
        &broker.address,
        "wide",
        &format!("{ENGINE}{schema}[grouping]\nevent_time = ['record timestamp']\n"),
    );
    assert_bounded(&job, 3_000);
}

#[test]
fn records_of_fifty_megabytes() {
    let broker = OurBroker::start();
    broker.create_topic("large", 2, &["max.message.bytes=60000000"]);
    let now = crate::harness::now_ms();
    for n in 0..6 {
        let text = char::from(b'a' + n).to_string().repeat(50_000_000);
        let line = format!(r#"{{"n":{n},"name":"{text}","ts":{now}}}"#);
        broker.produce("large", i32::from(n % 2), &[line]);
    }
    let job = Job::new(&broker.address, "large", ENGINE);
    assert_bounded(&job, 6);
}

#[test]
fn a_full_spill_disk_is_named_and_the_next_run_goes_on() {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, &scattered(0, 50_000, 24, 100));
    let small = Tmpfs::mount(1 << 20).unwrap();
    let spill_dir = small.path().display();
    // A share of one MiB, so that nearly all rows wait on disk.
    let engine = format!("[engine]\nmemory = '64MiB'\nthreads = 64\nspill_dir = '{spill_dir}'\n");
    let job = Job::new(&broker.address, "events", &engine);
    job.load()
        .expect(69)
        .says(&[&spill_dir.to_string(), "engine.spill_dir"]);
    assert_eq!(job.runs(), 0);
    job.edit(&format!("spill_dir = '{spill_dir}'"), "");
    assert_eq!(job.load().expect(0).rows(), 50_000);
    job.verify();
}

/// `tests/long memory`: five gigabytes through 256 MiB, in one hour and scattered over many.
#[test]
#[ignore = "campaign: tests/long memory"]
fn long_memory_five_gigabytes() {
    for seed in seeds(0..2) {
        let hours = [1, 300][usize::try_from(seed % 2).unwrap()];
        let broker = OurBroker::start();
        broker.create_topic("events", 4, &[]);
        let each = 250_000;
        for part in 0..20_u64 {
            let lines = scattered(part * each, (part + 1) * each, hours, 930);
            broker.produce("events", i32::try_from(part % 4).unwrap(), &lines);
        }
        let grouping = "[grouping]\nevent_time = ['ts']\nmax_past = '300d'\n";
        let job = Job::new(&broker.address, "events", &format!("{ENGINE}{grouping}"));
        assert_bounded(&job, 20 * each);
    }
}
