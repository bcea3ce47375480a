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
            let mut looks = 0;
            let mut known = BTreeMap::new();
            while !flag.load(Ordering::Relaxed) {
                // A server that does not answer shows nothing that could be wrong.
                looks += u64::from(look(&web, &dataset, &mut known).is_ok());
                pause(Duration::from_millis(60));
            }
            looks
        });
        Self { stop, thread }
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let looks = self.thread.join().unwrap();
        assert!(looks > 0, "the reader never looked");
    }
}

/// Files of a run by their paths within it, with the lengths where the manifest says them.
type Files = BTreeMap<String, Option<u64>>;

/// One look at all runs; panics at a run that is not whole.
fn look(web: &WebHdfs, dataset: &str, known: &mut BTreeMap<String, Files>) -> Result<()> {
    let entries = web.list(dataset)?.unwrap_or_default();
    let names: BTreeSet<String> = entries.into_iter().map(|entry| entry.name).collect();
    for run in known.keys() {
        assert!(names.contains(run), "{run} of {dataset} was there and is gone");
    }
    for run in names.into_iter().filter(|name| name.starts_with("run=")) {
        let root = format!("{dataset}/{run}");
        let found = files(web, &root)?;
        if !known.contains_key(&run) {
            let text = web.read(&format!("{root}/_manifest.json"))?;
            let text = text.unwrap_or_else(|| panic!("{root} has no manifest"));
            known.insert(run.clone(), expected(&text)?);
        }
        let expected = &known[&run];
        let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(expected), "{root}");
        for (path, len) in expected {
            assert!(len.is_none() || *len == found[path], "{root}/{path}: {len:?}, {:?}", found[path]);
        }
    }
    Ok(())
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
