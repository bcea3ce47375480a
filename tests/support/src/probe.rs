//! What `/proc` says about a process: memory and CPU time.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// One look at a process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessUsage {
    /// Resident memory now.
    pub rss_bytes: u64,
    /// The most resident memory so far.
    pub peak_rss_bytes: u64,
    /// CPU time used so far, user and system, all threads; in steps of 10 ms.
    pub cpu: Duration,
    /// Threads now.
    pub threads: u64,
    /// Open file descriptors now.
    pub open_files: usize,
}

/// Looks at the process with this pid.
///
/// # Errors
/// If it does not run or belongs to somebody else.
pub fn usage(pid: u32) -> Result<ProcessUsage> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("no process {pid}"))?;
    let number = |key: &str| -> Result<u64> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .with_context(|| format!("no {key} in /proc/{pid}/status: has it ended?"))?;
        let digits = line.split_whitespace().next().unwrap_or_default();
        Ok(digits.parse()?)
    };
    Ok(ProcessUsage {
        rss_bytes: number("VmRSS:")? * 1024,
        peak_rss_bytes: number("VmHWM:")? * 1024,
        cpu: cpu(pid)?,
        threads: number("Threads:")?,
        open_files: fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
    })
}

/// The CPU time, user and system, that a process has used so far; in steps of 10 ms.
///
/// # Errors
/// If it does not run.
pub fn cpu(pid: u32) -> Result<Duration> {
    let fields = stat_fields(pid).with_context(|| format!("no process {pid}"))?;
    // man 5 proc: utime and stime are fields 14 and 15; the state, field 3, comes first here.
    let mut ticks = 0;
    for field in fields.split_whitespace().skip(11).take(2) {
        ticks += field.parse::<u64>()?;
    }
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(ticks * 1000 / ticks_per_second))
}

/// The state letter of `/proc/PID/stat`, such as `R`, `S`, `T` (stopped) or `Z`; none if there is no such process.
pub fn state(pid: u32) -> Option<char> {
    stat_fields(pid)?.trim_start().chars().next()
}

/// The fields after the command's name, which may itself hold spaces and parentheses.
fn stat_fields(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.to_owned())
}
