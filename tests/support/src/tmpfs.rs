//! Small mounted file systems, for full disks and read-only ones.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::process::Scratch;

/// A memory file system of limited size, mounted on a temporary folder until it is dropped or the test process
/// ends.
#[derive(Debug)]
pub struct Tmpfs(Scratch);

impl Tmpfs {
    /// Mounts one of `size_bytes` (the kernel rounds up to whole pages).
    ///
    /// # Errors
    /// If the process may not mount (it takes root and a container that allows it); says so.
    pub fn mount(size_bytes: u64) -> Result<Self> {
        let folder = Scratch::new_mount_point("logferry-tmpfs-")?;
        mount(&format!("size={size_bytes}"), folder.path())?;
        Ok(Self(folder))
    }

    /// The mounted folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Makes the mount read-only, or writable again.
    ///
    /// # Errors
    /// If it cannot be remounted, for instance because a file is open for writing.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        mount(
            if read_only {
                "remount,ro"
            } else {
                "remount,rw"
            },
            self.path(),
        )
    }
}

fn mount(options: &str, folder: &Path) -> Result<()> {
    let output = Command::new("mount")
        .args(["-t", "tmpfs", "-o", options, "tmpfs"])
        .arg(folder)
        .stdin(Stdio::null())
        .output()
        .context("cannot run mount")?;
    ensure!(
        output.status.success(),
        "cannot mount a tmpfs ({options}), which takes root and a container that allows it: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
