//! Real services for tests: Apache Kafka, HDFS; each started once, stopped by pid.
//!
//! ```text
//! jars (Maven) ──► cache ──► Kafka, Hdfs ──► Process ──► guard ──► JVM
//!                    └─────► Helper (a JVM that takes commands), Python (a venv), node_modules, Go programs
//! ```
//!
//! [`kafka`] and [`hdfs`] give the instances that all tests of a run share: those that `tests/run` started, named by
//! `LOGFERRY_TEST_KAFKA` and `LOGFERRY_TEST_HDFS`, or else one of this process's own, started by the first test
//! that asks. Nobody may stop, pause or reconfigure a shared instance, which is why that takes `&mut`: a test
//! that wants to starts its own with [`Kafka::start`] or [`Hdfs::start`].
//!
//! Everything here is synchronous but the proxy; starting a service blocks its thread for some seconds.
//! Nothing outlives the process that started it, see [`process`].

pub mod cache;
mod certificates;
mod go;
mod hdfs;
pub mod jars;
mod java;
mod kafka;
mod net;
mod npm;
pub mod probe;
pub mod process;
mod proxy;
mod python;
mod service;
mod tmpfs;
mod webhdfs;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

pub use certificates::{Authority, Identity};
pub use go::{go_build, go_package_folder};
pub use hdfs::{Hdfs, HdfsNode, HdfsOptions, HdfsStatus};
pub use java::{Answer, compile as compile_java, java};
pub use kafka::{Endpoint, Kafka, KafkaOptions, TestRecords, TransactionEnd};
pub use net::free_ports;
pub use npm::node_modules;
pub use process::{Process, Scratch};
pub use proxy::{Fault, TcpProxy};
pub use python::{Python, python};
pub use tmpfs::Tmpfs;
pub use webhdfs::{WebEntry, WebHdfs};

/// Names the folder of a running Kafka, as `test-services` prints it.
pub const KAFKA_VARIABLE: &str = "LOGFERRY_TEST_KAFKA";

/// Names the folder of a running HDFS, as `test-services` prints it.
pub const HDFS_VARIABLE: &str = "LOGFERRY_TEST_HDFS";

/// The Apache Kafka (one broker) that all tests share.
///
/// # Panics
/// If it cannot be had: the test that needs it cannot pass.
pub fn kafka() -> &'static Kafka {
    static SHARED: OnceLock<Result<Kafka>> = OnceLock::new();
    shared(&SHARED, || match service::folder_from(KAFKA_VARIABLE) {
        Some(folder) => Kafka::attach(&folder),
        None => Kafka::start(&KafkaOptions::default()),
    })
}

/// The HDFS (NameNode and three `DataNodes`) that all tests share.
///
/// # Panics
/// If it cannot be had: the test that needs it cannot pass.
pub fn hdfs() -> &'static Hdfs {
    static SHARED: OnceLock<Result<Hdfs>> = OnceLock::new();
    shared(&SHARED, || match service::folder_from(HDFS_VARIABLE) {
        Some(folder) => Hdfs::attach(&folder),
        None => Hdfs::start(&HdfsOptions::default()),
    })
}

fn shared<T>(cell: &'static OnceLock<Result<T>>, start: impl FnOnce() -> Result<T>) -> &'static T {
    match cell.get_or_init(start) {
        Ok(service) => service,
        #[expect(
            clippy::panic,
            reason = "a test without its service must fail, with the cause"
        )]
        Err(error) => panic!("no service for this test: {error:#}"),
    }
}

/// A topic name that no other test uses: the prefix and 16 hexadecimal digits.
pub fn random_topic(prefix: &str) -> String {
    format!("{prefix}-{:016x}", net::random())
}

/// Waits until `condition` holds, looking every 20 ms; blocks the thread.
///
/// # Errors
/// If it does not within `timeout`.
pub fn wait_until(timeout: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + timeout;
    while !condition() {
        ensure!(
            Instant::now() < deadline,
            "the condition does not hold after {timeout:?}"
        );
        process::pause_for(Duration::from_millis(20));
    }
    Ok(())
}

/// As [`wait_until`], for async tests and conditions. Cancel safe.
///
/// # Errors
/// If it does not within `timeout`.
pub async fn wait_until_async<F: Future<Output = bool>>(
    timeout: Duration,
    mut condition: impl FnMut() -> F,
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    while !condition().await {
        ensure!(
            Instant::now() < deadline,
            "the condition does not hold after {timeout:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
