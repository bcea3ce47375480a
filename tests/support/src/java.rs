//! Java programs: how to start one, and helpers of our own that stay up and take commands.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cache;
use crate::process::tail;

/// Quick start and little memory rather than peak speed.
const QUICK_START: &[&str] = &[
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
    "-Djava.library.path=/nonexistent",
];

/// How long one command of a helper may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// `java` with the options all our JVMs share, at most `heap_mb` of heap, and these folders of jars (or of
/// class files and configuration) as class path.
pub fn java(heap_mb: u32, class_path: &str) -> Command {
    let mut command = Command::new(program("java"));
    command
        .args(QUICK_START)
        .arg(format!("-Xmx{heap_mb}m"))
        .args(["-cp", class_path]);
    command
}

/// `JAVA_HOME`'s program if it is set, the one of `PATH` otherwise.
fn program(name: &str) -> PathBuf {
    match std::env::var_os("JAVA_HOME") {
        Some(home) => Path::new(&home).join("bin").join(name),
        None => PathBuf::from(name),
    }
}

/// Compiles sources (file name, text) against the jars of a folder; the classes stay in the cache.
///
/// # Errors
/// If there is no JDK, or the sources do not compile; with the end of what `javac` printed.
pub fn compile(name: &str, sources: &[(&str, &str)], jars: &Path) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (sources, jars).hash(&mut hasher);
    let key = format!("{:016x}", hasher.finish());
    cache::once(&format!("java-{name}-{key}"), &key, |folder| {
        let mut javac = Command::new(program("javac"));
        javac
            .args(["-nowarn", "-cp"])
            .arg(format!("{}/*", jars.display()))
            .arg("-d")
            .arg(folder);
        let source_folder = tempfile::tempdir()?;
        for (file, text) in sources {
            let path = source_folder.path().join(file);
            std::fs::write(&path, text)?;
            javac.arg(path);
        }
        let output = javac.stdin(Stdio::null()).output().context(
            "cannot run javac; install a JDK (Debian: apt-get install default-jdk-headless)",
        )?;
        ensure!(
            output.status.success(),
            "javac failed:\n{}",
            tail(&String::from_utf8_lossy(&output.stderr), 25)
        );
        Ok(())
    })
}

/// A JVM of ours that reads commands from its input, one a line, and answers each with one line.
///
/// It spares the start of a JVM (1 to 2 s) for each command. It ends when its input does, that is, at the
/// latest with the test process.
#[derive(Debug)]
pub(crate) struct Helper {
    jvm: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    log: PathBuf,
}

/// What a helper's command came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// 0 for success, as exit codes are.
    pub code: i32,
    /// What it printed to its output.
    pub stdout: String,
    /// What it printed to its error output.
    pub stderr: String,
}

impl Answer {
    /// The output of a command that succeeded.
    ///
    /// # Errors
    /// If it did not, with what it printed.
    pub fn success(self) -> Result<String> {
        ensure!(
            self.code == 0,
            "exit code {}: {}{}",
            self.code,
            self.stderr,
            self.stdout
        );
        Ok(self.stdout)
    }
}

impl Helper {
    /// Starts the JVM; its logging goes to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let log_file = std::fs::File::create(log)?;
        let mut jvm = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .spawn()
            .context("cannot run java; install a JRE")?;
        let commands = jvm.stdin.take().context("the helper has no input")?;
        let output = jvm.stdout.take().context("the helper has no output")?;
        let (sender, answers) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            jvm,
            commands,
            answers,
            log: log.to_owned(),
        })
    }

    /// Sends one command and waits for its answer, up to 90 s. After an error the helper is of no more use.
    pub(crate) fn call(&mut self, arguments: &[&str]) -> Result<Answer> {
        let escaped: Vec<String> = arguments.iter().map(|argument| escape(argument)).collect();
        writeln!(self.commands, "{}", escaped.join("\t")).with_context(|| self.trouble())?;
        self.commands.flush().with_context(|| self.trouble())?;
        let Ok(line) = self.answers.recv_timeout(ANSWER_TIMEOUT) else {
            bail!(
                "no answer to {arguments:?} after {ANSWER_TIMEOUT:?}: {}",
                self.trouble()
            );
        };
        let mut fields = line.split('\t').map(unescape);
        let code = fields.next().unwrap_or_default();
        Ok(Answer {
            code: code.parse().with_context(|| format!("answer {line:?}"))?,
            stdout: fields.next().unwrap_or_default(),
            stderr: fields.next().unwrap_or_default(),
        })
    }

    fn trouble(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        format!("the Java helper's log ends in:\n{}", tail(&log, 25))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        self.jvm.kill().ok();
        self.jvm.wait().ok();
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('\t', "\\t")
        .replace('\n', "\\n")
        .replace('\r', "\\r")
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match characters.next() {
            Some('t') => plain.push('\t'),
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some(other) => plain.push(other),
            None => plain.push('\\'),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{escape, unescape};

    #[test]
    fn escaped_text_is_one_field_of_one_line_and_comes_back() {
        let text = "a\tb\\t\nc\r\\";
        let escaped = escape(text);
        assert!(!escaped.contains(['\t', '\n', '\r']), "{escaped:?}");
        assert_eq!(unescape(&escaped), text);
    }
}
