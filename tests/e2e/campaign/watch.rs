//! A reader that looks at a dataset on HDFS over and over, past all proxies, and sees whole runs only (I3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use test_support::WebHdfs;

use crate::harness::{Reader, pause};

/// The reader of a local dataset or of one on HDFS.
pub(super) enum Watch {
    Local(Reader),
    Hdfs(HdfsReader),
}

impl Watch {
    /// Ends it; panics if it ever saw a run that was not whole, or never looked.
    pub(super) fn finish(self) {
        match self {
            Self::Local(reader) => reader.finish(),
            Self::Hdfs(reader) => reader.finish(),
        }
    }
}

pub(super) struct HdfsReader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl HdfsReader {
    pub(super) fn start(web: WebHdfs, dataset: String) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut eye = Eye {
                web,
                dataset,
                known: BTreeMap::new(),
                looks: 0,
            };
            while !flag.load(Ordering::Relaxed) {
                // A server that does not answer shows nothing that could be wrong.
                eye.look().ok();
                pause(Duration::from_millis(100));
            }
            eye.looks
        });
        Self { stop, thread }
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let looks = self.thread.join().unwrap();
        assert!(looks > 0, "the reader never looked");
    }
}

/// One in so many looks is a close one at a run that was seen before: each costs the NameNode some CPU time.
const AGAIN: u64 = 8;

/// Files of a run by their paths within it, with the lengths where the manifest says them.
type Files = BTreeMap<String, Option<u64>>;

struct Eye {
    web: WebHdfs,
    dataset: String,
    known: BTreeMap<String, Files>,
    looks: u64,
}

impl Eye {
    /// One look at all runs: at new ones closely, at times at one of the others again; panics at a run that is
    /// not whole.
    fn look(&mut self) -> Result<()> {
        let entries = self.web.list(&self.dataset)?.unwrap_or_default();
        let names = entries.into_iter().map(|entry| entry.name);
        let runs: BTreeSet<String> = names.filter(|name| name.starts_with("run=")).collect();
        for run in self.known.keys() {
            assert!(runs.contains(run), "{run} was there and is gone");
        }
        let turn = usize::try_from(self.looks / AGAIN).unwrap() % runs.len().max(1);
        let again = self.looks.is_multiple_of(AGAIN);
        for (number, run) in runs.iter().enumerate() {
            if again && number == turn || !self.known.contains_key(run) {
                self.check(run)?;
            }
        }
        self.looks += 1;
        Ok(())
    }

    fn check(&mut self, run: &str) -> Result<()> {
        let root = format!("{}/{run}", self.dataset);
        let found = files(&self.web, &root)?;
        if !self.known.contains_key(run) {
            let text = self.web.read(&format!("{root}/_manifest.json"))?;
            let text = text.unwrap_or_else(|| panic!("{root} has no manifest"));
            self.known.insert(run.to_owned(), expected(&text)?);
        }
        let expected = &self.known[run];
        let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(expected), "{root}");
        for (path, len) in expected {
            let there = found[path];
            assert!(
                len.is_none() || *len == there,
                "{root}/{path}: {len:?}, {there:?}"
            );
        }
        Ok(())
    }
}

fn expected(manifest: &str) -> Result<Files> {
    let manifest: Value = serde_json::from_str(manifest)?;
    let mut files = Files::from([
        ("_manifest.json".to_owned(), None),
        ("_SUCCESS".to_owned(), None),
    ]);
    for file in manifest["body"]["files"].as_array().unwrap() {
        let path = file["path"].as_str().unwrap().to_owned();
        files.insert(path, Some(file["bytes"].as_u64().unwrap()));
    }
    Ok(files)
}

fn files(web: &WebHdfs, root: &str) -> Result<Files> {
    let mut found = Files::new();
    let mut open = vec![String::new()];
    while let Some(dir) = open.pop() {
        let entries = web.list(&format!("{root}{dir}"))?;
        let entries = entries.unwrap_or_else(|| panic!("{root}{dir} was there and is gone"));
        ensure!(entries.len() < 100_000, "too many entries");
        for entry in entries {
            let path = format!("{dir}/{}", entry.name);
            if entry.is_directory {
                open.push(path);
            } else {
                found.insert(path.trim_start_matches('/').to_owned(), Some(entry.len));
            }
        }
    }
    Ok(found)
}
