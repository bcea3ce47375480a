//! Node.js packages from npm's registry, through the ordinary `npm`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cache;
use crate::process::tail;

/// The `node_modules` of a manifest and its lock file, fetched if they are not in the cache under `name` (2 to 5 s for
/// a client): the folder for `NODE_PATH`.
///
/// # Errors
/// If `npm` is missing or fails; with the end of what it printed.
pub fn node_modules(name: &str, manifest: &str, lock: &str) -> Result<PathBuf> {
    let key = format!("{manifest}{lock}");
    let folder = cache::once(name, &key, |folder| {
        std::fs::write(folder.join("package.json"), manifest)?;
        std::fs::write(folder.join("package-lock.json"), lock)?;
        let output = Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .output()
            .context("cannot run npm (Debian: apt-get install nodejs npm)")?;
        let printed = [output.stdout, output.stderr].concat();
        ensure!(
            output.status.success(),
            "npm ci: {}; it printed:\n{}",
            output.status,
            tail(&String::from_utf8_lossy(&printed), 25)
        );
        Ok(())
    })?;
    Ok(folder.join("node_modules"))
}
