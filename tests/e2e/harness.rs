//! What the tests stand on: a broker of ours as a process, a job in a folder of its own, loads and their results.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use broker_client::protocol::ids::TopicName;
use broker_client::{Client, FetchOptions, FetchedBatch, IsolationLevel, OffsetSpec};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// The binary under test.
pub(crate) fn logferry() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_logferry"));
    command.stdin(Stdio::null());
    command
}

/// A `logferry broker` on a port of its own; killed when dropped.
#[derive(Debug)]
pub(crate) struct OurBroker {
    child: Child,
    pub(crate) address: String,
    dir: Option<TempDir>,
    settings: Vec<(String, String)>,
}

impl OurBroker {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With `LOGFERRY__BROKER__…` settings.
    pub(crate) fn start_with(settings: &[(&str, &str)]) -> Self {
        let port = test_support::free_ports(1).unwrap()[0];
        Self::run(
            format!("127.0.0.1:{port}"),
            TempDir::new().unwrap(),
            settings,
        )
    }

    /// Starts a broker again on what [`Self::stop_cleanly`] left.
    pub(crate) fn restart(address: &str, dir: TempDir) -> Self {
        Self::run(address.to_owned(), dir, &[])
    }

    fn run(address: String, dir: TempDir, settings: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let settings: Vec<(String, String)> = settings.iter().map(owned).collect();
        let broker = Self {
            child: spawn_broker(&address, dir.path(), &settings),
            address,
            dir: Some(dir),
            settings,
        };
        test_support::wait_until(Duration::from_secs(20), || {
            std::net::TcpStream::connect(&broker.address).is_ok()
        })
        .unwrap();
        broker
    }

    /// SIGKILL; waits for the end of the process.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it where it was after [`Self::kill`], without waiting for anything.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn_broker(&self.address, self.folder(), &self.settings);
    }

    /// Where its data are, in `data`.
    pub(crate) fn folder(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    /// What this process of it has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder().join("log")).unwrap()
    }

    /// SIGTERM; it must end with 0. Returns where it listened and its folder.
    pub(crate) fn stop_cleanly(mut self) -> (String, TempDir) {
        test_support::process::send(self.child.id(), Signal::TERM).unwrap();
        test_support::wait_until(Duration::from_secs(20), || {
            self.child.try_wait().unwrap().is_some()
        })
        .unwrap();
        assert!(self.child.wait().unwrap().success());
        (self.address.clone(), self.dir.take().unwrap())
    }

    pub(crate) fn create_topic(&self, topic: &str, partitions: i32, config: &[&str]) {
        let mut command = logferry();
        command.args(["topics", "--brokers", &self.address, "create", topic]);
        command.args(["--partitions", &partitions.to_string()]);
        for config in config {
            command.args(["--config", config]);
        }
        assert_success(&command.output().unwrap());
    }

    pub(crate) fn topics(&self, arguments: &[&str]) -> Output {
        logferry()
            .args(["topics", "--brokers", &self.address])
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Produces lines to one partition.
    pub(crate) fn produce(&self, topic: &str, partition: i32, lines: &[String]) {
        let extra = ["--partition", &partition.to_string()];
        assert_success(&produce(&self.address, topic, &extra, lines));
    }
}

fn spawn_broker(address: &str, dir: &Path, settings: &[(String, String)]) -> Child {
    let log = fs::File::create(dir.join("log")).unwrap();
    logferry()
        .args(["broker", "--listen", address, "--data-dir"])
        .arg(dir.join("data"))
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .stderr(log)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

impl Drop for OurBroker {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// `logferry produce` with lines on standard input.
pub(crate) fn produce(brokers: &str, topic: &str, extra: &[&str], lines: &[String]) -> Output {
    let mut child = logferry()
        .args(["produce", "--brokers", brokers, topic])
        .args(extra)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = lines.join("\n");
    text.push('\n');
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

/// Events `from..to`, in time order from a fixed hour of today on, `per_hour` an hour.
pub(crate) fn events(from: u64, to: u64, per_hour: u64) -> Vec<String> {
    let hour = 3_600_000;
    let start = now_ms() / hour * hour - 48 * hour;
    (from..to)
        .map(|n| {
            let ts = start + i64::try_from(n * 3_600_000 / per_hour).unwrap();
            format!(r#"{{"n":{n},"name":"event {n}","ts":{ts}}}"#)
        })
        .collect()
}

pub(crate) fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// A job file and where its dataset lies.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) dir: TempDir,
    pub(crate) file: PathBuf,
    pub(crate) dataset: String,
    environment: Vec<(String, String)>,
}

/// Columns of [`events`].
pub(crate) const EVENT_SCHEMA: &str = "[schema]\ncolumns = [{name='n', type='int64', nullable=false}, \
     {name='name', type='string'}, {name='ts', type='timestamp_ms'}]\n";

impl Job {
    /// A job over [`events`] to a local directory. `more` is text for the job file: whole tables.
    pub(crate) fn new(brokers: &str, topic: &str, more: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let dataset = dir.path().join("dataset").to_str().unwrap().to_owned();
        Self::at(dir, brokers, &[topic], dataset, more)
    }

    /// The same on the shared HDFS.
    pub(crate) fn on_hdfs(brokers: &str, topic: &str, more: &str) -> Self {
        let hdfs = test_support::hdfs();
        let dir = TempDir::new().unwrap();
        let dataset = format!("{}/{}", hdfs.uri(), test_support::random_topic("dataset"));
        let mut job = Self::at(dir, brokers, &[topic], dataset, more);
        job.set("HADOOP_CONF_DIR", hdfs.conf_dir().to_str().unwrap());
        job
    }

    pub(crate) fn at(
        dir: TempDir,
        brokers: &str,
        topics: &[&str],
        dataset: String,
        more: &str,
    ) -> Self {
        let mut text = format!(
            "[source]\nbrokers = ['{brokers}']\ntopics = {topics:?}\n[output]\ndataset = '{dataset}'\n"
        );
        if !more.contains("[schema]") && !more.contains("# inferred") {
            text.push_str(EVENT_SCHEMA);
        }
        if !more.contains("[grouping]") {
            text.push_str("[grouping]\nevent_time = ['ts']\n");
        }
        text.push_str(more);
        let job = Self::without_file(dir, dataset);
        fs::write(&job.file, text).unwrap();
        job
    }

    /// A job whose file is written later.
    pub(crate) fn without_file(dir: TempDir, dataset: String) -> Self {
        Self {
            file: dir.path().join("job.toml"),
            dir,
            dataset,
            environment: Vec::new(),
        }
    }

    /// Sets a variable for every command of this job.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Replaces text in the job file.
    pub(crate) fn edit(&self, from: &str, to: &str) {
        let text = fs::read_to_string(&self.file).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        fs::write(&self.file, text.replace(from, to)).unwrap();
    }

    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = logferry();
        command.arg(name).arg(&self.file);
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command
    }

    /// `load --create --json` with more arguments.
    pub(crate) fn load_command(&self, more: &[&str]) -> Command {
        let mut command = self.command("load");
        command.args(["--create", "--json"]).args(more);
        command
    }

    pub(crate) fn load(&self) -> Loaded {
        self.load_with(&[])
    }

    pub(crate) fn load_with(&self, more: &[&str]) -> Loaded {
        Loaded::from(self.load_command(more).output().unwrap())
    }

    /// Runs a load that a fail-point ends.
    pub(crate) fn load_killed_at(&self, failpoints: &str) -> Output {
        self.load_command(&[])
            .env("FAILPOINTS", failpoints)
            .output()
            .unwrap()
    }

    /// `verify` in a process of its own: the report, which must say healthy.
    pub(crate) fn verify(&self) -> Value {
        let (code, report) = self.verify_report();
        assert_eq!(code, 0, "{report:#}");
        assert_eq!(report["problems"], serde_json::json!([]), "{report:#}");
        assert_eq!(report["offsets_proved"], true);
        report
    }

    pub(crate) fn verify_report(&self) -> (i32, Value) {
        let output = self.command("verify").arg("--json").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let report = serde_json::from_str(&text).unwrap_or_else(|_| {
            panic!(
                "no report: {text} {}",
                String::from_utf8_lossy(&output.stderr)
            )
        });
        (output.status.code().unwrap(), report)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.verify()["counts"]["rows"].as_u64().unwrap()
    }

    /// Asserts that so many rows are there, each once.
    #[track_caller]
    pub(crate) fn prove(&self, records: u64, what: &str) {
        assert_eq!(self.rows(), records, "{what}");
        let (rows, distinct) = self.coordinates();
        assert_eq!(rows, distinct.len(), "{what}: rows that are there twice");
        assert_eq!(rows, usize::try_from(records).unwrap(), "{what}");
    }

    /// Published runs; none where no dataset was made yet (`verify` says so with 2).
    pub(crate) fn runs(&self) -> u64 {
        let output = self.command("verify").arg("--json").output().unwrap();
        if output.status.code() == Some(2) {
            return 0;
        }
        self.verify_report().1["runs"].as_u64().unwrap()
    }

    /// Names of the entries in a local dataset's staging directory.
    pub(crate) fn staging(&self) -> Vec<String> {
        list(&Path::new(&self.dataset).join(".logferry/staging"))
    }

    /// All `(partition, offset)` in a local dataset's data files, read by pyarrow, with their count: rows that
    /// are there twice show as a difference.
    pub(crate) fn coordinates(&self) -> (usize, BTreeSet<(i64, i64)>) {
        let program = "
import sys, glob, json, pyarrow.parquet as pq
rows = []
for f in glob.glob(sys.argv[1] + '/run=*/**/part-*.parquet', recursive=True):
    if '/_rejected/' in f: continue
    t = pq.ParquetFile(f).read(columns=['_partition', '_offset'])
    rows += list(zip(t['_partition'].to_pylist(), t['_offset'].to_pylist()))
print(json.dumps(rows))
";
        let printed = test_support::python()
            .run(program, &[&self.dataset])
            .unwrap();
        let rows: Vec<(i64, i64)> = serde_json::from_str(&printed).unwrap();
        (rows.len(), rows.into_iter().collect())
    }
}

/// What a load came to.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) code: i32,
    pub(crate) stderr: String,
    pub(crate) json: Value,
}

impl From<Output> for Loaded {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            json: serde_json::from_slice(&output.stdout).unwrap_or(Value::Null),
        }
    }
}

impl Loaded {
    /// Asserts the exit code, showing everything if it is another.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{:#}", self.stderr, self.json);
        self
    }

    /// Asserts that the message to the operator has a cause and a remedy and names these things.
    #[track_caller]
    pub(crate) fn says(&self, things: &[&str]) {
        for thing in ["error: ", "try: "].iter().chain(things) {
            assert!(
                self.stderr.contains(thing),
                "`{thing}` is missing in:\n{}",
                self.stderr
            );
        }
    }

    pub(crate) fn manifest(&self) -> &Value {
        &self.json["manifest"]
    }

    pub(crate) fn rows(&self) -> u64 {
        let ranges = self.manifest()["ranges"].as_array().unwrap();
        ranges
            .iter()
            .map(|r| r["counts"]["rows"].as_u64().unwrap())
            .sum()
    }
}

#[track_caller]
pub(crate) fn assert_success(output: &Output) {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{err}");
}

/// Names of a directory's entries, sorted; none if it is not there.
pub(crate) fn list(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// All files below a directory.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(dir) = open.pop() {
        for name in list(&dir) {
            let path = dir.join(name);
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found
}

/// Waits for a child, killing it at the time-out. Takes in what it prints meanwhile: a full pipe would stop it.
pub(crate) fn wait(child: Child, patience: Duration) -> Output {
    let pid = child.id();
    let (sender, ended) = mpsc::channel();
    let reader = thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    let in_time = ended.recv_timeout(patience);
    let output = in_time.clone().unwrap_or_else(|_| {
        test_support::process::send(pid, Signal::KILL).unwrap();
        ended.recv().unwrap()
    });
    reader.join().unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(in_time.is_ok(), "did not end: {stderr}");
    output
}

/// A moment between two looks.
#[expect(
    clippy::disallowed_methods,
    reason = "a test's thread may sleep between two looks"
)]
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}

/// Spawns with output captured.
pub(crate) fn spawn(mut command: Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Until a sleeper sleeps, and until one that was woken has ended.
const SLEEPERS_PATIENCE: Duration = Duration::from_secs(120);

/// Starts a program that stops itself at a step, and waits until it does.
pub(crate) fn asleep_at(mut command: Command, step: &str) -> Child {
    command.env("FAILPOINTS", format!("{step}=1*return(stop)"));
    let sleeper = spawn(command);
    wait_asleep(&sleeper);
    sleeper
}

/// Waits until a program has stopped itself.
pub(crate) fn wait_asleep(sleeper: &Child) {
    test_support::wait_until(SLEEPERS_PATIENCE, || {
        let state = test_support::probe::state(sleeper.id());
        assert_ne!(state, Some('Z'), "it ended without having stopped itself");
        state == Some('T')
    })
    .unwrap();
}

/// Lets it go on to its end.
pub(crate) fn wake(sleeper: Child) -> Loaded {
    test_support::process::send(sleeper.id(), Signal::CONT).unwrap();
    Loaded::from(wait(sleeper, SLEEPERS_PATIENCE))
}

/// What a closure came to, panics included.
pub(crate) fn catching<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "panicked".to_owned())
    })
}

/// Reads a dataset over and over while others work on it, and checks that only whole runs are ever seen (I3).
pub(crate) struct Reader {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: thread::JoinHandle<u64>,
}

impl Reader {
    pub(crate) fn start(dataset: &str) -> Self {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (flag, root) = (std::sync::Arc::clone(&stop), PathBuf::from(dataset));
        let thread = thread::spawn(move || {
            let mut looks = 0;
            while !flag.load(std::sync::atomic::Ordering::Relaxed) {
                for run in list(&root).iter().filter(|name| name.starts_with("run=")) {
                    check_whole(&root.join(run));
                }
                looks += 1;
                pause(Duration::from_millis(5));
            }
            looks
        });
        Self { stop, thread }
    }

    /// Ends it; panics if it ever saw a run that was not whole, or never looked.
    pub(crate) fn finish(self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let looks = self.thread.join().unwrap();
        assert!(looks > 0, "the reader never looked");
    }
}

/// A published run has its manifest, and every file in it with its length, and no other file; unless it says that
/// it was pruned, which it must say before the first of its data goes.
fn check_whole(run: &Path) {
    if let Err(problem) = look_at(run) {
        assert!(run.join("_pruned.json").try_exists().unwrap(), "{problem}");
    }
}

fn look_at(run: &Path) -> Result<(), String> {
    let text = fs::read_to_string(run.join("_manifest.json"))
        .unwrap_or_else(|error| panic!("{} has no manifest: {error}", run.display()));
    let manifest: Value = serde_json::from_str(&text).unwrap();
    let mut expected = BTreeSet::from([run.join("_manifest.json"), run.join("_SUCCESS")]);
    for file in manifest["body"]["files"].as_array().unwrap() {
        let path = run.join(file["path"].as_str().unwrap());
        let found = fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        assert_eq!(
            Some(found.len()),
            file["bytes"].as_u64(),
            "{}",
            path.display()
        );
        expected.insert(path);
    }
    let found = BTreeSet::from_iter(files_below(run));
    match found == expected {
        true => Ok(()),
        false => Err(format!("{found:?} is not {expected:?}")),
    }
}

/// Seeds of a campaign: those that `tests/long NAME --seeds A..B` names, or the usual ones.
pub(crate) fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(named) = std::env::var("LOGFERRY_TEST_SEEDS") else {
        return usual;
    };
    let (from, to) = named.split_once("..").expect("seeds are A..B");
    from.parse().expect("a number")..to.parse().expect("a number")
}

/// All batches of a partition, transactions or not.
pub(crate) async fn read_partition(
    client: &Client,
    topic: &TopicName,
    partition: i32,
) -> Vec<FetchedBatch> {
    let (partitions, isolation) = ([partition], IsolationLevel::ReadUncommitted);
    let ends = client.list_offsets(topic, &partitions, OffsetSpec::Latest, isolation);
    let end = ends.await.unwrap().remove(&partition).unwrap().unwrap();
    let range = 0..end.offset;
    let mut range = client.fetch_range(topic.clone(), partition, range, FetchOptions::default());
    let mut batches = Vec::new();
    while let Some(fetched) = range.next().await.unwrap() {
        batches.push(fetched);
    }
    batches
}
