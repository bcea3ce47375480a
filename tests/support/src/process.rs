//! Processes that never outlive the test that started them.
//!
//! Each runs below a small guard, a shell that waits at the other end of a pipe:
//!
//! ```text
//! test process ──pipe (nothing is ever written)──► guard (sh) ──child──► java …
//! ```
//!
//! When the test process ends, by whatever cause and signal, the kernel closes the pipe, and the guard kills
//! its child. The guard also reaps the child, so a pid is in `/proc` exactly as long as the process runs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// fd 3 is the owner's pipe, fd 4 tells the owner the pid. The watcher runs beside the child and ends when
/// either the pipe or the child does.
const GUARD: &str = r#"
exec 3<&0 4>&1 </dev/null >&2
"$@" 3<&- 4>&- & pid=$!
( while read -r _ <&3; do :; done; kill -KILL "$pid" ) 4>&- & watcher=$!
echo "$pid" >&4
exec 3<&- 4>&-
wait "$pid"; code=$?
kill "$watcher" 2>/dev/null
exit "$code"
"#;

/// Waits for the owner's end, then until the processes listed in the folder are gone, then removes it.
const JANITOR: &str = r#"
while read -r _; do :; done
for file in "$1"/pids/*; do
  [ -f "$file" ] || continue
  tries=0
  while [ -d "/proc/$(cat "$file")" ] && [ "$tries" -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
done
[ -z "$2" ] || umount -l "$1"
rm -rf "$1"
"#;

/// How long a process may take to be gone after SIGKILL; a large one on a busy machine takes its time.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

/// A running program below its guard. Dropping it kills it and waits.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    log: PathBuf,
    /// Length of the log file when this process started: restarts append.
    log_start: u64,
    guard: Child,
    leash: Option<ChildStdin>,
}

impl Process {
    /// Starts `command`'s program and arguments (with its environment and folder) under a guard; both outputs
    /// are appended to `log`.
    ///
    /// # Errors
    /// If the guard cannot be started.
    pub fn start(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let log_file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let log_start = log_file.metadata()?.len();
        let mut guarded = Command::new("/bin/sh");
        guarded
            .args(["-c", GUARD, "guard"])
            .arg(command.get_program())
            .args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => guarded.env(key, value),
                None => guarded.env_remove(key),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            guarded.current_dir(folder);
        }
        // A group of its own: Ctrl-C goes to the test, and the guard follows through the pipe.
        let mut guard = guarded
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .process_group(0)
            .spawn()
            .context("cannot run /bin/sh")?;
        let leash = guard.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = guard.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let pid = line
            .trim()
            .parse()
            .with_context(|| format!("the guard of {name} told {line:?} instead of a pid"))?;
        Ok(Self {
            name: name.to_owned(),
            pid,
            log: log.to_owned(),
            log_start,
            guard,
            leash,
        })
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The program's own pid (not the guard's).
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the program still runs (also while it is paused).
    pub fn is_running(&self) -> bool {
        is_running(self.pid)
    }

    /// The file both outputs go to.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// What the program has printed since it was started.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn output(&self) -> Result<String> {
        let bytes = fs::read(&self.log)?;
        let start = usize::try_from(self.log_start)?.min(bytes.len());
        Ok(String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned())
    }

    /// Stops the program where it stands (SIGSTOP).
    ///
    /// # Errors
    /// If it does not run any more.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a paused program go on (SIGCONT).
    ///
    /// # Errors
    /// If it does not run any more.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Sends SIGKILL and waits until the program is gone. Does nothing if it has ended already.
    ///
    /// # Errors
    /// If it is still there after a minute.
    pub fn kill(&mut self) -> Result<()> {
        if self.is_running() {
            self.signal(Signal::KILL)?;
        }
        self.wait(KILL_TIMEOUT)
    }

    /// Sends SIGTERM, then after `patience` SIGKILL; waits until the program is gone.
    ///
    /// # Errors
    /// If it is still there a minute after SIGKILL.
    pub fn terminate(&mut self, patience: Duration) -> Result<()> {
        if self.is_running() {
            self.signal(Signal::TERM)?;
            if self.wait(patience).is_ok() {
                return Ok(());
            }
        }
        self.kill()
    }

    /// Waits until `ready` answers true.
    ///
    /// # Errors
    /// If the program ends before, or `timeout` passes: with the log's last lines.
    pub fn wait_ready(
        &self,
        timeout: Duration,
        mut ready: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let running = self.is_running();
            if ready(self)? {
                return Ok(());
            }
            let trouble = if !running {
                "ended before it was ready".to_owned()
            } else if Instant::now() > deadline {
                format!("was not ready after {timeout:?}")
            } else {
                pause_for(Duration::from_millis(50));
                continue;
            };
            let last_lines = tail(&self.output()?, 25);
            bail!("{} {trouble}; the end of its log:\n{last_lines}", self.name);
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        ensure!(
            self.is_running(),
            "{} (pid {}) does not run",
            self.name,
            self.pid
        );
        send(self.pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while self.guard.try_wait()?.is_none() {
            ensure!(
                Instant::now() < deadline,
                "{} (pid {}) has not ended after {timeout:?}",
                self.name,
                self.pid
            );
            pause_for(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.leash.take());
        // Nobody to tell: if it fails, the guard still has the order to kill.
        self.wait(KILL_TIMEOUT).ok();
    }
}

/// A temporary folder that goes away with the test process, also when that is killed.
///
/// With `LOGFERRY_TEST_KEEP` set it stays, for reading logs afterwards.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    janitor: Option<Child>,
}

impl Scratch {
    /// Makes an empty folder in the system's temporary folder.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(prefix: &str) -> Result<Self> {
        Self::make(prefix, false)
    }

    /// As [`Self::new`]; at the end the folder is also unmounted.
    pub(crate) fn new_mount_point(prefix: &str) -> Result<Self> {
        Self::make(prefix, true)
    }

    fn make(prefix: &str, mount_point: bool) -> Result<Self> {
        let path = tempfile::Builder::new().prefix(prefix).tempdir()?.keep();
        let keep = std::env::var_os("LOGFERRY_TEST_KEEP").is_some();
        let janitor = if keep && !mount_point {
            None
        } else {
            let child = Command::new("/bin/sh")
                .args(["-c", JANITOR, "janitor"])
                .arg(&path)
                .arg(if mount_point { "mounted" } else { "" })
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .context("cannot run /bin/sh")?;
            Some(child)
        };
        Ok(Self { path, janitor })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the janitor that `process` must be gone before the folder can be removed.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub fn used_by(&self, process: &Process) -> Result<()> {
        let pids = self.path.join("pids");
        fs::create_dir_all(&pids)?;
        fs::write(pids.join(&process.name), process.pid.to_string())?;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(mut janitor) = self.janitor.take() {
            drop(janitor.stdin.take());
            // Best effort: a folder left behind in the temporary folder harms nobody.
            janitor.wait().ok();
        }
    }
}

/// Whether a process with this pid runs; one that has ended but was not reaped does not.
pub fn is_running(pid: u32) -> bool {
    crate::probe::state(pid).is_some_and(|state| state != 'Z')
}

/// Sends a signal to one process.
///
/// # Errors
/// If there is no such process, or it belongs to somebody else.
pub fn send(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("0 is no pid")?;
    Ok(kill_process(pid, signal)?)
}

/// The last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    all.get(from..).unwrap_or_default().join("\n")
}

/// The one place that blocks a thread: this crate's polling is synchronous.
pub(crate) fn pause_for(duration: Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "service starts are synchronous; no runtime is needed to start one"
    )]
    std::thread::sleep(duration);
}
