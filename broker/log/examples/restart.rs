//! How long a log directory takes to open after a kill: many partitions, many segments, a tail beyond the recovery point.
//!
//! ```text
//! cargo run --release -p broker-log --example restart -- DIRECTORY [partitions] [segments] [segment bytes] [tail bytes]
//! ```
//! Makes the directory (1,000 partitions, 5,000 segments of 1 MiB in all, 64 KiB of tail in each partition, unless told
//! otherwise), drops it as a kill does, opens it with its pages dropped from the cache, then again with them cached, and
//! removes it. Prints seconds, bytes whose checksums were computed, bytes over which headers were read, and bytes that
//! were read from files.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Instant;

use broker_log::{LogConfig, LogDir, LogDirConfig, Opened, TopicPartition};
use broker_protocol::TopicName;
use broker_protocol::record::{BatchBuilder, Compression, RecordBatch};

/// Bytes of the value of a batch's one record.
const VALUE_BYTES: usize = 8_000;

struct Size {
    partitions: i32,
    segments: u64,
    segment_bytes: u64,
    tail_bytes: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("which directory?")?;
    let mut number = |default: u64| match arguments.next() {
        Some(text) => text.parse().map_err(|_| format!("{text} is no number")),
        None => Ok(default),
    };
    let size = Size {
        partitions: i32::try_from(number(1_000)?)?,
        segments: number(5_000)?,
        segment_bytes: number(1 << 20)?,
        tail_bytes: number(64 << 10)?,
    };
    let path = Path::new(&directory);
    let started = Instant::now();
    fill(path, &size)?;
    say(&format!(
        "filled in {:.1} s",
        started.elapsed().as_secs_f64()
    ))?;
    drop_pages(path)?;
    open("after a kill, cold", path, &size)?;
    // The first open has written its recovery points: wind them back, so that the second finds the same.
    fs::copy(
        path.join("before"),
        path.join("recovery-point-offset-checkpoint"),
    )?;
    let opened = open("after a kill, warm", path, &size)?;
    let logs = opened.partitions.into_iter().map(|(log, _)| log).collect();
    opened.dir.shutdown(logs, -1)?;
    drop(opened.dir);
    drop_pages(path)?;
    open("after a clean shutdown, cold", path, &size)?;
    fs::remove_dir_all(path)?;
    Ok(())
}

fn config(size: &Size) -> LogDirConfig {
    LogDirConfig {
        log: LogConfig {
            segment_bytes: size.segment_bytes,
            ..LogConfig::default()
        },
        ..LogDirConfig::default()
    }
}

fn batch(producer_id: i64, sequence: i32) -> Result<RecordBatch, Box<dyn Error>> {
    let mut builder = BatchBuilder::new(Compression::None).with_producer(producer_id, 0, sequence);
    let timestamp = 1_700_000_000_000 + i64::from(sequence);
    builder.push(timestamp, None, Some(&[7; VALUE_BYTES]), &[])?;
    Ok(RecordBatch::parse(builder.build()?)?)
}

fn fill(path: &Path, size: &Size) -> Result<(), Box<dyn Error>> {
    let opened = LogDir::open(path, config(size))?;
    let per_partition = usize::try_from(size.segments)? / usize::try_from(size.partitions)?;
    let mut logs = Vec::new();
    for partition in 0..size.partitions {
        let id = TopicPartition::new(TopicName::new("restart")?, partition);
        let mut log = opened.dir.create_partition(id, None, config(size).log)?;
        let mut sequence = 0;
        let mut append = |log: &mut broker_log::PartitionLog| -> Result<u64, Box<dyn Error>> {
            let batch = batch(i64::from(partition), sequence)?;
            sequence += 1;
            log.append_one(&batch, 1, 0)?;
            Ok(batch.bytes().len() as u64)
        };
        while log.segments() < per_partition {
            append(&mut log)?;
        }
        let mut room = size.segment_bytes.saturating_sub(2 * size.tail_bytes);
        while room > 0 {
            room = room.saturating_sub(append(&mut log)?);
        }
        log.flush()?;
        let mut tail = size.tail_bytes;
        while tail > 0 {
            tail = tail.saturating_sub(append(&mut log)?);
        }
        logs.push(log);
    }
    opened.dir.write_checkpoints()?;
    fs::copy(
        path.join("recovery-point-offset-checkpoint"),
        path.join("before"),
    )?;
    let (segments, bytes) = logs.iter().fold((0, 0), |(segments, bytes), log| {
        (segments + log.segments(), bytes + log.size_in_bytes())
    });
    say(&format!(
        "{} partitions, {segments} segments, {bytes} bytes",
        size.partitions
    ))
}

fn open(name: &str, path: &Path, size: &Size) -> Result<Opened, Box<dyn Error>> {
    let read_before = bytes_read()?;
    let started = Instant::now();
    let opened = LogDir::open(path, config(size))?;
    let seconds = started.elapsed().as_secs_f64();
    let read = bytes_read()? - read_before;
    let reports = || opened.partitions.iter().map(|(_, report)| report);
    let scanned: u64 = reports().map(|report| report.bytes_scanned).sum();
    let walked: u64 = reports().map(|report| report.bytes_walked).sum();
    say(&format!(
        "{name}: {seconds:.3} s, {scanned} bytes scanned, headers of {walked} bytes, {read} bytes read"
    ))?;
    Ok(opened)
}

fn say(line: &str) -> Result<(), Box<dyn Error>> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

/// Bytes this process has read by system calls.
fn bytes_read() -> Result<u64, Box<dyn Error>> {
    let io = fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    Ok(line.ok_or("no rchar in /proc/self/io")?.parse()?)
}

/// Makes the content of all files durable and drops it from the page cache.
fn drop_pages(path: &Path) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            drop_pages(&entry.path())?;
        } else {
            let file = File::open(entry.path())?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}
