//! The same plan, data and build give the same bytes (I5).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::harness::{Job, OurBroker, events, list};

fn data_files(dataset: &str) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![Path::new(dataset).join("run=000001")];
    while let Some(dir) = open.pop() {
        for name in list(&dir) {
            let path = dir.join(&name);
            if path.is_dir() {
                open.push(path);
            } else if name.ends_with(".parquet") {
                let below = path
                    .strip_prefix(dataset)
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                files.insert(below, fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[test]
fn threads_time_zone_and_fetch_sizes_change_no_byte() {
    let broker = OurBroker::start();
    broker.create_topic("events", 3, &[]);
    for partition in 0..3 {
        let from = u64::try_from(partition).unwrap() * 30_000;
        broker.produce("events", partition, &events(from, from + 30_000, 5_000));
    }
    let limits = "[limits]\ntask_bytes = '400KiB'\n";
    let plain = Job::new(&broker.address, "events", limits);
    assert_eq!(plain.load().expect(0).rows(), 90_000);
    let expected = data_files(&plain.dataset);
    assert!(expected.len() > 10, "{:?}", expected.keys());
    let odd = format!("{limits}[engine]\nthreads = 1\nprefetch_bytes = '10KiB'\n");
    let mut job = Job::new(&broker.address, "events", &odd);
    job.set("TZ", "Asia/Shanghai");
    assert_eq!(job.load().expect(0).rows(), 90_000);
    let found = data_files(&job.dataset);
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    for (path, bytes) in &found {
        assert!(*bytes == expected[path], "{path} differs");
    }
}
