//! Starts the shared services for a run of tests, prints how to find them, and stays until its input ends.
//!
//! `tests/run` reads the printed `export` lines, and closes the input, by its own end if nothing else, to
//! stop the services.

use std::io::{Read, Write};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use test_support::{HDFS_VARIABLE, Hdfs, HdfsOptions, KAFKA_VARIABLE, Kafka, KafkaOptions};

fn main() -> Result<()> {
    let kafka = thread::spawn(|| Kafka::start(&KafkaOptions::default()));
    let hdfs = Hdfs::start(&HdfsOptions::default()).context("no HDFS")?;
    let kafka = kafka
        .join()
        .map_err(|_| anyhow!("starting Kafka panicked"))?;
    let kafka = kafka.context("no Kafka")?;
    let mut output = std::io::stdout().lock();
    write_export(&mut output, KAFKA_VARIABLE, kafka.folder())?;
    write_export(&mut output, HDFS_VARIABLE, hdfs.folder())?;
    writeln!(output, "ready")?;
    output.flush()?;
    drop(output);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn write_export(output: &mut impl Write, variable: &str, folder: &Path) -> Result<()> {
    Ok(writeln!(
        output,
        "export {variable}='{}'",
        folder.display()
    )?)
}
