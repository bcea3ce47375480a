//! The same plan, data and build give the same bytes (I5).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::harness::{Job, OurBroker, events, files_below};

fn data_files(dataset: &str) -> BTreeMap<String, Vec<u8>> {
    files_below(&Path::new(dataset).join("run=000001"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "parquet"))
        .map(|path| {
            let below = path.strip_prefix(dataset).unwrap();
            (
                below.to_string_lossy().into_owned(),
                fs::read(&path).unwrap(),
            )
        })
        .collect()
}

/// The variants differ in everything that must not matter: threads, fetch sizes, memory, time zone.
#[test]
fn threads_time_zone_fetch_sizes_and_memory_change_no_byte() {
    let broker = OurBroker::start();
    broker.create_topic("events", 3, &[]);
    for partition in 0..3 {
        let from = u64::try_from(partition).unwrap() * 30_000;
        broker.produce("events", partition, &events(from, from + 30_000, 5_000));
    }
    let fixed = "[limits]\ntask_bytes = '2MiB'\n[output.parquet]\nrow_group_bytes = '300KiB'\n";
    let plain = Job::new(&broker.address, "events", fixed);
    assert_eq!(plain.load().expect(0).rows(), 90_000);
    let expected = data_files(&plain.dataset);
    assert!(expected.len() > 10, "{:?}", expected.keys());

    let variants = [
        ("threads = 1\nprefetch_bytes = '10KiB'", false),
        ("threads = 4\nprefetch_bytes = '3MiB'", false),
        // A share of one MiB each, so that most rows wait on disk.
        ("threads = 64\nmemory = '64MiB'", true),
    ];
    for (engine, spills) in variants {
        let mut job = Job::new(
            &broker.address,
            "events",
            &format!("{fixed}[engine]\n{engine}\n"),
        );
        job.set("TZ", "Asia/Shanghai");
        job.set("LOGFERRY_LOG", "info");
        let load = job.load().expect(0);
        assert_eq!(load.rows(), 90_000);
        let spilled = load.stderr.contains("rows waited on local disk");
        assert_eq!(spilled, spills, "{engine}: {}", load.stderr);
        let found = data_files(&job.dataset);
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            expected.keys().collect::<Vec<_>>()
        );
        for (path, bytes) in &found {
            assert!(*bytes == expected[path], "{engine}: {path} differs");
        }
    }
}
