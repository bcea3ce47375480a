//! What a message of 200 bytes costs on the disk beside its 200 bytes, by how many share a batch.
//!
//! ```text
//! cargo run --release -p broker-log --example storage -- DIRECTORY [messages]
//! ```
//! Makes the directory, appends 200,000 messages (unless told otherwise) without key and headers for each size of batch and
//! of segment, sums up the files, and removes it. Kafka's paper (Kreps et al., "Kafka: a Distributed Messaging System for Log
//! Processing", 2011) reports 9 bytes a message for the Kafka of that time and 144 for `ActiveMQ`. The batch format of
//! today has a header of 61 bytes, and every record 7 to 9 bytes of lengths, flags and deltas.

use std::error::Error;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use broker_log::{LogConfig, LogDir, LogDirConfig, TopicPartition};
use broker_protocol::TopicName;
use broker_protocol::record::{BatchBuilder, Compression, RecordBatch};

const MESSAGE_BYTES: u32 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("which directory?")?;
    let messages: u32 = match arguments.next() {
        Some(text) => text.parse()?,
        None => 200_000,
    };
    say("bytes a message beyond its 200 (the paper: Kafka 9, ActiveMQ 144)")?;
    say("messages a batch | log | indexes | producer snapshots | all")?;
    for batch in [1, 50, 1000] {
        let path = Path::new(&directory);
        fill(path, messages, batch)?;
        let sizes = sizes(path)?;
        fs::remove_dir_all(path)?;
        let each = |bytes: f64| bytes / f64::from(messages);
        let log = each(sizes.log) - f64::from(MESSAGE_BYTES);
        let (indexes, snapshots) = (each(sizes.indexes), each(sizes.snapshots));
        let all = log + indexes + snapshots;
        say(&format!(
            "{batch:>16} | {log:.2} | {indexes:.3} | {snapshots:.4} | {all:.2}"
        ))?;
    }
    Ok(())
}

/// Appends the messages as an idempotent producer sends them.
fn fill(path: &Path, messages: u32, per_batch: u32) -> Result<(), Box<dyn Error>> {
    let opened = LogDir::open(path, LogDirConfig::default())?;
    let id = TopicPartition::new(TopicName::new("storage")?, 0);
    let mut log = opened
        .dir
        .create_partition(id, None, LogConfig::default())?;
    let mut sent = 0;
    while sent < messages {
        let count = per_batch.min(messages - sent);
        let mut builder =
            BatchBuilder::new(Compression::None).with_producer(1, 0, i32::try_from(sent)?);
        for number in sent..sent + count {
            let timestamp = 1_700_000_000_000 + i64::from(number) / 100;
            builder.push(timestamp, None, Some(&[7; MESSAGE_BYTES as usize]), &[])?;
        }
        log.append_one(&RecordBatch::parse(builder.build()?)?, 1, 0)?;
        sent += count;
    }
    opened.dir.shutdown(vec![log], -1)?;
    Ok(())
}

/// Bytes in the files of a partition.
#[derive(Default)]
struct Sizes {
    log: f64,
    indexes: f64,
    snapshots: f64,
}

fn sizes(path: &Path) -> Result<Sizes, Box<dyn Error>> {
    let mut sizes = Sizes::default();
    for entry in fs::read_dir(path.join("storage-0"))? {
        let entry = entry?;
        let bytes = f64::from(u32::try_from(entry.metadata()?.len())?);
        let name = entry.file_name();
        match Path::new(&name)
            .extension()
            .and_then(|suffix| suffix.to_str())
        {
            Some("log") => sizes.log += bytes,
            Some("index" | "timeindex") => sizes.indexes += bytes,
            Some("snapshot") => sizes.snapshots += bytes,
            _ => {}
        }
    }
    Ok(sizes)
}

fn say(line: &str) -> Result<(), Box<dyn Error>> {
    Ok(writeln!(io::stdout(), "{line}")?)
}
