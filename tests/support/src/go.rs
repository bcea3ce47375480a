//! Go programs, built with a Go that is new enough: the one of `PATH`, or the toolchain that Go's module proxy serves.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cache;
use crate::process::tail;

/// What the clients' own `go.mod` files ask for.
const MINIMUM: (u32, u32) = (1, 26);

/// The toolchain of [`MINIMUM`] as a module; Go's checksum database vouches for it. Debian's Go may be older than the
/// automatic choice of toolchains (Go 1.21), so it is fetched as any module is.
const TOOLCHAIN: &str = "golang.org/toolchain@v0.0.1-go1.26.0";

/// Builds packages of the module in `module` into one folder of the cache, `name`: each package's program under its
/// last path element, each test binary under `NAME.test`. Modules go to Go's own cache; versions are those of
/// `go.sum`. Takes 20 to 90 s the first time.
///
/// # Errors
/// If there is no `go`, or a download or the build fails; with the end of what was printed.
pub fn go_build(name: &str, module: &Path, programs: &[&str], tests: &[&str]) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (MINIMUM, programs, tests).hash(&mut hasher);
    hash_files(module, &mut hasher)?;
    cache::once(name, &format!("{:016x}", hasher.finish()), |folder| {
        // Two builds at once would do the same work twice on a small machine.
        let _lock = cache::lock("go")?;
        let go = toolchain()?;
        let mut build = go.command();
        build
            .current_dir(module)
            .args(["build", "-trimpath", "-o"])
            .arg(folder)
            .args(programs);
        run(&mut build, "go build")?;
        for package in tests {
            let test = Path::new(package)
                .file_name()
                .context("a package has a name")?;
            let mut binary = folder.join(test);
            binary.set_extension("test");
            let mut build = go.command();
            build
                .current_dir(module)
                .args(["test", "-c", "-trimpath", "-o"])
                .arg(binary);
            run(build.arg(package), "go test -c")?;
        }
        Ok(())
    })
}

/// The source folder of a package of the module in `module` or of one that it requires.
///
/// # Errors
/// If `go` is missing or does not know the package.
pub fn go_package_folder(module: &Path, package: &str) -> Result<PathBuf> {
    let _lock = cache::lock("go")?;
    let go = toolchain()?;
    let mut list = go.command();
    list.current_dir(module)
        .args(["list", "-f", "{{.Dir}}", package]);
    Ok(PathBuf::from(run(&mut list, "go list")?.trim()))
}

/// A Go to run: the program, and its root unless it finds that by itself.
#[derive(Debug)]
struct Go(PathBuf);

impl Go {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        command
            .env("GOTOOLCHAIN", "local")
            .env("GOFLAGS", "-buildvcs=false -mod=readonly");
        command
            .env("GOWORK", "off")
            .env_remove("GOROOT")
            .stdin(Stdio::null());
        command
    }
}

fn toolchain() -> Result<Go> {
    let installed = Go(PathBuf::from("go"));
    let version = run(installed.command().arg("version"), "go version")?;
    if number(&version).with_context(|| format!("cannot read {version:?}"))? >= MINIMUM {
        return Ok(installed);
    }
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("no Go toolchain is known for {other}; install Go {MINIMUM:?} or newer"),
    };
    let empty = tempfile::tempdir()?;
    fs::write(empty.path().join("go.mod"), "module fetch\n")?;
    let mut download = installed.command();
    download.env_remove("GOFLAGS").current_dir(empty.path());
    download
        .args(["mod", "download", "-json"])
        .arg(format!("{TOOLCHAIN}.linux-{architecture}"));
    let answer: Value =
        serde_json::from_str(&run(&mut download, "go mod download of the toolchain")?)?;
    let root = answer
        .get("Dir")
        .and_then(Value::as_str)
        .context("go mod download names no folder")?;
    // Modules hold plain files only.
    for programs in ["bin", &format!("pkg/tool/linux_{architecture}")] {
        for entry in fs::read_dir(Path::new(root).join(programs))? {
            fs::set_permissions(entry?.path(), fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(Go(Path::new(root).join("bin/go")))
}

/// Of `go version go1.26.8 linux/amd64`: (1, 26).
fn number(version: &str) -> Option<(u32, u32)> {
    let word = version
        .split(' ')
        .find_map(|word| word.strip_prefix("go1."))?;
    let digits: String = word.chars().take_while(char::is_ascii_digit).collect();
    Some((1, digits.parse().ok()?))
}

fn run(command: &mut Command, what: &str) -> Result<String> {
    let output = command
        .output()
        .context("cannot run go (Debian: apt-get install golang-go)")?;
    ensure!(
        output.status.success(),
        "{what}: {}; it printed:\n{}",
        output.status,
        tail(
            &String::from_utf8_lossy(&[output.stdout, output.stderr].concat()),
            25
        )
    );
    Ok(String::from_utf8(output.stdout)?)
}

fn hash_files(folder: &Path, hasher: &mut DefaultHasher) -> Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_type()?.is_dir() {
            hash_files(&entry.path(), hasher)?;
        } else {
            (entry.file_name(), fs::read(entry.path())?).hash(hasher);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gos_version_is_read_and_compared_as_numbers() {
        assert_eq!(number("go version go1.26.8 linux/amd64"), Some((1, 26)));
        assert_eq!(number("go version go1.26rc1 linux/amd64"), Some((1, 26)));
        assert!(number("go version go1.9 linux/amd64").unwrap() < MINIMUM);
        assert_eq!(number("go version devel"), None);
    }
}
