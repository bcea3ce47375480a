//! Stores that refuse: full disk, read-only, quota, safe mode, permissions. Each is exit 69 with its name and a
//! remedy, publishes nothing, and once the store is well again the next run has everything.

use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;
use test_support::{Hdfs, HdfsOptions, Tmpfs};

use crate::harness::{Job, Loaded, OurBroker, events};

fn broker_with(records: u64) -> OurBroker {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, &events(0, records, 2_000));
    broker
}

fn job_in(dir: &std::path::Path, broker: &OurBroker) -> Job {
    let dataset = dir.join("dataset").to_str().unwrap().to_owned();
    Job::at(
        TempDir::new().unwrap(),
        &broker.address,
        &["events"],
        dataset,
        "",
    )
}

#[test]
fn a_full_disk_publishes_nothing_and_is_named() {
    let tmpfs = Tmpfs::mount(96 << 10).unwrap();
    let broker = broker_with(90_000);
    let job = job_in(tmpfs.path(), &broker);
    job.load().expect(69).says(&["dataset", "space"]);
    assert_eq!(job.runs(), 0);
}

#[test]
fn a_read_only_mount_is_named() {
    let tmpfs = Tmpfs::mount(16 << 20).unwrap();
    let broker = broker_with(10);
    let job = job_in(tmpfs.path(), &broker);
    job.load().expect(0);
    tmpfs.set_read_only(true).unwrap();
    job.load().expect(69).says(&["read-only"]);
    tmpfs.set_read_only(false).unwrap();
    job.load().expect(0);
    job.verify();
}

#[test]
fn an_unprivileged_user_is_told_what_may_not_be_written() {
    let broker = broker_with(10);
    let closed = TempDir::new().unwrap();
    std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let job = job_in(closed.path(), &broker);
    for path in [job.dir.path(), job.file.as_path()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    // Anybody may run a copy of the binary: the build folder may be closed to others.
    let binary = job.dir.path().join("logferry");
    std::fs::copy(env!("CARGO_BIN_EXE_logferry"), &binary).unwrap();
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .arg("load")
        .arg(&job.file)
        .arg("--create")
        .output()
        .unwrap();
    Loaded::from(output)
        .expect(69)
        .says(&["permission", "dataset"]);
}

#[test]
fn hdfs_that_refuses_is_named_and_well_again_has_everything() {
    let hdfs = Hdfs::start(&HdfsOptions {
        datanodes: 1,
        ..HdfsOptions::default()
    })
    .unwrap();
    let broker = broker_with(2_000);
    let root = format!("{}/quota", hdfs.uri());
    let dataset = format!("{root}/dataset");
    let mut job = Job::at(
        TempDir::new().unwrap(),
        &broker.address,
        &["events"],
        dataset,
        "",
    );
    job.set("HADOOP_CONF_DIR", hdfs.conf_dir().to_str().unwrap());
    hdfs.dfs(&["-mkdir", "/quota"]).unwrap();

    hdfs.dfsadmin(&["-safemode", "enter"]).unwrap();
    job.load().expect(69).says(&["safe mode"]);
    hdfs.dfsadmin(&["-safemode", "leave"]).unwrap();

    hdfs.dfsadmin(&["-setQuota", "3", "/quota"]).unwrap();
    job.load().expect(69).says(&["quota", "/quota"]);
    hdfs.dfsadmin(&["-clrQuota", "/quota"]).unwrap();

    hdfs.dfsadmin(&["-setSpaceQuota", "1m", "/quota"]).unwrap();
    job.load().expect(69).says(&["quota"]);
    hdfs.dfsadmin(&["-clrSpaceQuota", "/quota"]).unwrap();

    let mut other = job.load_command(&[]);
    other.env("HADOOP_USER_NAME", "nobody");
    Loaded::from(other.output().unwrap())
        .expect(69)
        .says(&["permission"]);

    assert_eq!(job.runs(), 0, "nothing was published");
    assert_eq!(job.load().expect(0).rows(), 2_000);
    job.verify();
}

#[test]
fn a_namenode_that_is_not_there_is_said_in_seconds() {
    let broker = broker_with(10);
    let port = test_support::free_ports(1).unwrap()[0];
    let dataset = format!("hdfs://127.0.0.1:{port}/dataset");
    let job = Job::at(
        TempDir::new().unwrap(),
        &broker.address,
        &["events"],
        dataset,
        "",
    );
    job.load().expect(69).says(&[&port.to_string()]);
}
