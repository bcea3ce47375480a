//! Progress of a load: bars on a terminal, plain lines elsewhere, nothing with `--json`.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use loader_pipeline::error::{Error, chain};
use loader_pipeline::manifest::Manifest;
use loader_pipeline::plan::Plan;
use loader_pipeline::progress::{Progress, Quiet};

/// The right listener for where standard error goes.
#[must_use]
pub fn for_stderr(json: bool) -> Arc<dyn Progress> {
    if json {
        Arc::new(Quiet)
    } else if std::io::stderr().is_terminal() {
        Arc::new(Bar::new())
    } else {
        Arc::new(Lines)
    }
}

/// One bar over all offsets of the plan.
#[derive(Debug)]
struct Bar {
    bar: ProgressBar,
    bytes: AtomicU64,
}

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::new(0);
        let template = "{bar:30} {human_pos}/{human_len} offsets {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self {
            bar,
            bytes: AtomicU64::new(0),
        }
    }
}

impl Progress for Bar {
    fn planned(&self, plan: &Plan, _: usize) {
        self.bar.set_length(plan.offsets());
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }
    fn advanced(&self, offsets: u64, bytes: u64) {
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bar.inc(offsets);
        self.bar.set_message(HumanBytes(bytes).to_string());
    }
    fn task_done(&self, _: u32) {}
    fn task_retried(&self, task: u32, error: &Error) {
        self.bar
            .println(format!("task {task} is tried again: {}", chain(error)));
    }
    fn assembling(&self) {
        self.bar.set_message("assembling");
    }
    fn published(&self, _: &Manifest) {
        self.bar.finish_and_clear();
    }
}

/// A line a step.
#[derive(Debug)]
struct Lines;

#[expect(
    clippy::print_stderr,
    reason = "this is what tells a person or a cron mail where a load is"
)]
impl Progress for Lines {
    fn planned(&self, plan: &Plan, finished: usize) {
        eprintln!(
            "loading {} offsets in {} tasks, {finished} of them done before",
            HumanCount(plan.offsets()),
            plan.tasks.len()
        );
    }
    fn advanced(&self, _: u64, _: u64) {}
    fn task_done(&self, task: u32) {
        eprintln!("task {task} done");
    }
    fn task_retried(&self, task: u32, error: &Error) {
        eprintln!("task {task} is tried again: {}", chain(error));
    }
    fn assembling(&self) {
        eprintln!("assembling the run");
    }
    fn published(&self, manifest: &Manifest) {
        eprintln!("published {}", manifest.number.directory());
    }
}
