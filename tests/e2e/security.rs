//! TLS and SASL through the binary: each command that talks to brokers is let in, and no secret leaves it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;
use test_support::Authority;

use crate::harness::{Job, OurBroker, assert_success, events, list, logferry};

const PASSWORD: &str = "a-password-that-must-not-show";

/// A broker that speaks `SASL_SSL` only, and a client configuration that it lets in.
struct Secured {
    broker: OurBroker,
    ca_file: PathBuf,
    password_file: PathBuf,
    client_config: PathBuf,
    folder: TempDir,
}

impl Secured {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let authority = Authority::new(folder.path(), "ours").unwrap();
        let host = authority.host("broker", &["127.0.0.1"]).unwrap();
        fs::write(path("users"), format!("loader = {PASSWORD}\n")).unwrap();
        fs::write(path("password"), format!("{PASSWORD}\n")).unwrap();
        let ca_file = authority.ca_file();
        let config = format!(
            "[tls]\nca_file = '{}'\n[sasl]\nmechanism = 'SCRAM-SHA-512'\nusername = 'loader'\n\
             password_file = '{}'\n",
            ca_file.display(),
            path("password").display()
        );
        fs::write(path("client.toml"), config).unwrap();
        let broker = OurBroker::start_with(&[
            ("LOGFERRY__BROKER__PROTOCOL", "sasl_ssl"),
            (
                "LOGFERRY__BROKER__TLS__CERTIFICATE_FILE",
                text(&host.certificate_file),
            ),
            ("LOGFERRY__BROKER__TLS__KEY_FILE", text(&host.key_file)),
            ("LOGFERRY__BROKER__SASL__USERS_FILE", text(&path("users"))),
        ]);
        Self {
            broker,
            ca_file,
            password_file: path("password"),
            client_config: path("client.toml"),
            folder,
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = logferry()
            .args(arguments)
            .args(["--brokers", &self.broker.address])
            .env("LOGFERRY_CLIENT_CONFIG", &self.client_config)
            .output()
            .unwrap();
        assert_hidden(&output);
        output
    }

    /// A topic with this many events.
    fn fill(&self, topic: &str, count: u64) {
        assert_success(&self.run(&["topics", "create", topic, "--partitions", "2"]));
        let file = self.folder.path().join("events");
        fs::write(&file, events(0, count, 100).join("\n") + "\n").unwrap();
        assert_success(&self.run(&["produce", topic, "--file", text(&file)]));
    }

    /// A job that reads the password from where `password` says.
    fn job(&self, topic: &str, password: &str) -> Job {
        let more = format!(
            "[source.tls]\nca_file = '{}'\n[source.sasl]\nmechanism = 'SCRAM-SHA-256'\nusername = 'loader'\n\
             {password}\n",
            self.ca_file.display()
        );
        Job::new(&self.broker.address, topic, &more)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn assert_hidden(output: &Output) {
    let printed = [&*output.stdout, &*output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(!printed.contains(PASSWORD), "{printed}");
}

/// No file below holds the password.
fn assert_hidden_below(folder: &Path) {
    for name in list(folder) {
        let path = folder.join(&name);
        if path.is_dir() {
            assert_hidden_below(&path);
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let found = bytes
            .windows(PASSWORD.len())
            .any(|part| part == PASSWORD.as_bytes());
        assert!(!found, "{} holds the password", path.display());
    }
}

#[test]
fn every_command_is_let_in_and_shows_no_secret() {
    let secured = Secured::start();
    secured.fill("events", 500);
    let listed = secured.run(&["topics"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("events"));
    let read = secured.run(&["cat", "events"]);
    assert_eq!(String::from_utf8_lossy(&read.stdout).lines().count(), 500);

    let by_env = secured.job("events", "password_env = 'LOADER_PASSWORD'");
    let output = by_env
        .load_command(&[])
        .env("LOADER_PASSWORD", PASSWORD)
        .output()
        .unwrap();
    assert_success(&output);
    assert_hidden(&output);
    assert_eq!(by_env.rows(), 500);
    assert_hidden_below(Path::new(&by_env.dataset));
    let status = by_env
        .command("status")
        .env("LOADER_PASSWORD", PASSWORD)
        .output()
        .unwrap();
    assert_success(&status);
    assert!(
        String::from_utf8_lossy(&status.stdout).contains("lag 0"),
        "{status:?}"
    );

    let inline = secured.job("events", "");
    let variable = "LOGFERRY__JOB__SOURCE__SASL__PASSWORD";
    let output = inline
        .load_command(&[])
        .env(variable, PASSWORD)
        .output()
        .unwrap();
    assert_success(&output);
    assert_eq!(inline.rows(), 500);
}

#[test]
fn a_stored_plan_carries_the_way_to_the_password_and_not_the_password() {
    let secured = Secured::start();
    secured.fill("events", 300);
    let password_file = format!("password_file = '{}'", secured.password_file.display());
    let by_file = secured.job("events", &password_file);
    let inline = secured.job("events", &format!("password = '{PASSWORD}'"));
    for (job, may) in [(&by_file, true), (&inline, false)] {
        let planned = job.load_command(&["--plan-only"]).output().unwrap();
        assert_success(&planned);
        assert_hidden_below(Path::new(&job.dataset));
        let printed = String::from_utf8(planned.stdout).unwrap();
        let mut seen = 0;
        for line in printed.lines().filter(|line| line.contains("--plan")) {
            let arguments = line.split(' ');
            let output = logferry()
                .args(["load", "task"])
                .args(arguments)
                .output()
                .unwrap();
            assert_hidden(&output);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.success(), may, "{said}");
            assert!(may || said.contains("password_file"), "{said}");
            seen += 1;
        }
        assert!(seen > 0, "no task in {printed}");
        assert_eq!(job.load().code, 0);
        assert_eq!(job.rows(), 300);
    }
}

#[test]
fn a_load_that_is_not_let_in_says_why_and_what_to_do() {
    let secured = Secured::start();
    secured.fill("events", 10);
    let said = |job: &Job, expected: i32| {
        let output = job.load_command(&[]).output().unwrap();
        assert_hidden(&output);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(expected), "{said}");
        said
    };
    let wrong = said(&secured.job("events", "password = 'guess'"), 69);
    assert!(
        wrong.contains("does not let loader in by SCRAM-SHA-256"),
        "{wrong}"
    );
    assert!(wrong.contains("try: check the username"), "{wrong}");
    let gone = said(&secured.job("events", "password_file = '/nonexistent'"), 2);
    assert!(
        gone.contains("sasl.password_file names /nonexistent"),
        "{gone}"
    );
    let mut number = secured.job("events", "");
    number.set("LOGFERRY__JOB__SOURCE__SASL__PASSWORD", "123456789");
    let number = said(&number, 2);
    assert!(
        number.contains("quotes") && !number.contains("123456789"),
        "{number}"
    );
    let plain = said(&Job::new(&secured.broker.address, "events", ""), 69);
    assert!(plain.contains("answers in TLS"), "{plain}");
    assert!(plain.contains("try: set tls"), "{plain}");
    let tls_only = secured.job("events", "password = 'x'");
    let text = fs::read_to_string(&tls_only.file).unwrap();
    let (before, after) = text.split_once("[source.sasl]").unwrap();
    let rest = after.split_once("password = 'x'").unwrap().1;
    fs::write(&tls_only.file, [before, rest].concat()).unwrap();
    let tls_only = said(&tls_only, 69);
    assert!(
        tls_only.contains("instead of its first answer"),
        "{tls_only}"
    );
}
