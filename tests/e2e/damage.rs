//! `logferry verify` as an auditor: a healthy dataset of several runs, partitions, groups and rejected records, on
//! which it finds nothing, and every kind of damage planted by hand, each on a fresh copy and found by name.

mod data_files;
mod manifests;
mod names;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Job, OurBroker, events, logferry};

/// Runs of the healthy dataset; the first is pruned.
const RUNS: u64 = 5;

const LIMITS: &str = "[records]\nbad_records = 'reject'\n[limits]\nmax_rejected_percent = 100.0\n\
     max_offsets_per_partition = 15\n";

/// Three partitions of 75 records over many hours, every seventh of them bad.
fn healthy() -> Job {
    let broker = OurBroker::start();
    broker.create_topic("events", 3, &[]);
    for partition in 0..3_u64 {
        let mut lines = events(partition * 75, partition * 75 + 75, 10);
        for line in lines.iter_mut().step_by(7) {
            *line = "not JSON".to_owned();
        }
        let number = i32::try_from(partition).unwrap();
        broker.produce("events", number, &lines);
    }
    let job = Job::new(&broker.address, "events", LIMITS);
    for _ in 0..RUNS {
        job.load().expect(0);
    }
    let pruned = job.command("prune").args(["--keep-runs", "4"]).output();
    assert!(pruned.unwrap().status.success());
    let report = job.verify();
    assert_eq!(
        (&report["runs"], &report["pruned_runs"]),
        (&json!(5), &json!(1))
    );
    assert_eq!(report["counts"]["rejected"], 33);
    job
}

/// A copy of the healthy dataset, to be damaged.
struct Copy {
    _dir: TempDir,
    root: PathBuf,
}

impl Copy {
    fn of(dataset: &Path) -> Self {
        let dir = TempDir::new().unwrap();
        let root = dir.path().join("dataset");
        let copied = std::process::Command::new("cp")
            .arg("-r")
            .arg(dataset)
            .arg(&root)
            .status();
        assert!(copied.unwrap().success());
        Self { _dir: dir, root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// Flips a bit of the byte that stands so far from the start, or from the end if negative.
    fn flip(&self, name: &str, at: i64) {
        let mut bytes = self.read(name);
        let length = i64::try_from(bytes.len()).unwrap();
        let at = usize::try_from(at.rem_euclid(length)).unwrap();
        bytes[at] ^= 4;
        self.write(name, bytes);
    }

    /// Replaces text in a document, and leaves its checksum.
    fn retype(&self, name: &str, from: &str, to: &str) {
        let text = String::from_utf8(self.read(name)).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        self.write(name, text.replacen(from, to, 1));
    }

    fn manifest(&self, run: u64) -> Value {
        let text = self.read(&format!("run={run:06}/_manifest.json"));
        serde_json::from_slice::<Value>(&text).unwrap()["body"].take()
    }

    /// Edits a manifest and seals it again, as someone would who wants it to look sound.
    fn edit(&self, run: u64, edit: impl FnOnce(&mut Value)) {
        let mut body = self.manifest(run);
        edit(&mut body);
        let body = serde_json::to_string_pretty(&body).unwrap();
        let checksum = crc32c::crc32c(body.as_bytes());
        let text = format!(
            r#"{{"format":"logferry-manifest","version":1,"checksum":"crc32c:{checksum:08x}","body":{body}}}"#
        );
        self.write(&format!("run={run:06}/_manifest.json"), text);
    }

    /// Files of a run by kind, each by its path in the dataset, the largest first.
    fn files(&self, run: u64, kind: &str) -> Vec<String> {
        let manifest = self.manifest(run);
        let files = manifest["files"].as_array().unwrap().iter();
        let mut files: Vec<_> = files.filter(|file| file["kind"] == kind).collect();
        files.sort_by_key(|file| std::cmp::Reverse(file["bytes"].as_u64()));
        let path = |file: &&Value| format!("run={run:06}/{}", file["path"].as_str().unwrap());
        files.iter().map(path).collect()
    }

    /// A data file of run 3.
    fn data(&self) -> String {
        self.files(3, "data").remove(0)
    }

    /// Rewrites a file of run 3 by a statement of Python on the table `t`, and fixes its length, checksum and rows
    /// in the manifest.
    fn rewrite(&self, name: &str, statement: &str) {
        let program = format!(
            "import sys, pyarrow as pa, pyarrow.parquet as pq, pyarrow.compute as pc\n\
             t = pq.ParquetFile(sys.argv[1]).read()\n{statement}\npq.write_table(t, sys.argv[1])\nprint(t.num_rows)"
        );
        let path = self.path(name);
        let rows = test_support::python()
            .run(&program, &[path.to_str().unwrap()])
            .unwrap();
        let bytes = self.read(name);
        self.edit(3, |body| {
            let file = entry(body, name);
            file["rows"] = rows.trim().parse::<u64>().unwrap().into();
            file["bytes"] = bytes.len().into();
            file["checksum"] = format!("crc32c:{:08x}", crc32c::crc32c(&bytes)).into();
        });
    }

    fn verify(&self, more: &[&str]) -> (i32, Value) {
        let output = logferry()
            .args(["verify", "--json", "--dataset"])
            .arg(&self.root)
            .args(more)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = serde_json::from_slice(&output.stdout);
        let code = output.status.code().unwrap();
        (code, report.unwrap_or_else(|_| panic!("no report: {said}")))
    }
}

/// The manifest's entry of a file.
fn entry<'a>(body: &'a mut Value, name: &str) -> &'a mut Value {
    let files = body["files"].as_array_mut().unwrap();
    files
        .iter_mut()
        .find(|file| name.ends_with(file["path"].as_str().unwrap()))
        .unwrap()
}

fn add(value: &mut Value, number: i64) {
    *value = (value.as_i64().unwrap() + number).into();
}

/// Where a damage shows, and how.
type Signs = Vec<(String, &'static str)>;

/// What to plant, and what must be found.
struct Damage {
    name: &'static str,
    plant: fn(&Copy) -> Signs,
}

fn sign(path: impl Into<String>, problem: &'static str) -> Signs {
    vec![(path.into(), problem)]
}

fn manifest_of(run: u64) -> String {
    format!("run={run:06}/_manifest.json")
}

/// Plants each and looks for its signs: found where they are, and nothing that is sound is accused.
fn each_is_found(damages: &[Damage]) {
    let healthy = healthy();
    for Damage { name, plant } in damages {
        let copy = Copy::of(Path::new(&healthy.dataset));
        assert_eq!(copy.verify(&[]).0, 0, "{name}: the copy is healthy");
        let signs = plant(&copy);
        let (code, report) = copy.verify(&[]);
        assert_eq!(code, 65, "{name}: {report:#}");
        let root = format!("file://{}/", copy.root.display());
        let problems: Vec<(&str, &str)> = report["problems"]
            .as_array()
            .unwrap()
            .iter()
            .map(|found| (&found["path"], &found["problem"]))
            .map(|(path, problem)| (path.as_str().unwrap(), problem.as_str().unwrap()))
            .map(|(path, problem)| (path.strip_prefix(&root).unwrap(), problem))
            .collect();
        for (path, text) in &signs {
            let is_sign = |(at, problem): &(&str, &str)| {
                let is_there = at == path || (path.ends_with(['/', '=']) && at.starts_with(path));
                is_there && problem.contains(text)
            };
            assert!(
                problems.iter().any(is_sign),
                "{name}: `{path}: … {text} …` is not in {problems:#?}"
            );
        }
        for (at, problem) in &problems {
            let run = |path: &str| path.split('/').next().unwrap().to_owned();
            let is_meant = signs.iter().any(|(path, _)| run(path) == run(at));
            assert!(is_meant, "{name}: {at} is accused: {problem}");
        }
    }
}

#[test]
fn damage_to_data_files_is_found_by_name() {
    each_is_found(data_files::DATA_FILES);
}

#[test]
fn what_is_missing_or_strange_is_found_by_name() {
    each_is_found(names::NAMES);
}

#[test]
fn manifests_that_lie_are_found_by_name() {
    each_is_found(manifests::MANIFESTS);
}

#[test]
fn the_newest_run_alone_and_without_reading() {
    let healthy = healthy();
    let copy = Copy::of(Path::new(&healthy.dataset));
    let (code, report) = copy.verify(&["--newest"]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(
        (&report["runs"], &report["counts"]["rows"]),
        (&json!(5), &json!(39))
    );
    // What lies before the newest is not its business, but for what the newest continues.
    copy.flip(&copy.data(), 60);
    assert_eq!(copy.verify(&["--newest"]).0, 0);
    assert_eq!(copy.verify(&["--without-data"]).0, 0, "nothing is read");
    copy.flip(&copy.data(), 60);
    copy.edit(4, |body| body["uuid"] = body["previous"]["uuid"].clone());
    let (code, report) = copy.verify(&["--newest"]);
    assert_eq!(code, 65);
    let problem = report["problems"][0]["problem"].as_str().unwrap();
    assert!(
        problem.contains("continues another run=000004"),
        "{problem}"
    );
    // Lengths are looked at without reading.
    let file = copy.data();
    copy.write(&file, "short");
    let (code, report) = copy.verify(&["--without-data"]);
    assert_eq!(code, 65);
    let problems = report["problems"].to_string();
    assert!(problems.contains(&file), "{problems}");
    assert_eq!(report["offsets_proved"], false);
}
