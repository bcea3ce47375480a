//! A disk that is full, or nearly.

use std::{
    fs::File,
    io::{self, IoSlice},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use broker_log::disk::{Disk, DiskFile, FileInfo, OpenMode, RealDisk};
use broker_protocol::messages::{
    DeleteRecordsRequest, DeleteTopicsRequest,
    delete_records::{DeleteRecordsPartition, DeleteRecordsTopic},
};
use broker_server::Broker;
use bytesize::ByteSize;
use test_support::Tmpfs;

use crate::support::{
    PATIENCE, StillClock, TestBroker, Wire, batch, config, name, read_all, values_of,
};

/// The real disk with a switch that makes every write find it full.
#[derive(Debug)]
pub(crate) struct Fillable {
    pub(crate) full: Arc<AtomicBool>,
    free: AtomicU64,
    /// Writes that found it full.
    pub(crate) refused: Arc<AtomicU64>,
}

#[derive(Debug)]
struct FillableFile {
    file: Arc<dyn DiskFile>,
    full: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
}

impl Disk for Fillable {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = RealDisk.open(path, mode)?;
        Ok(Arc::new(FillableFile {
            file,
            full: Arc::clone(&self.full),
            refused: Arc::clone(&self.refused),
        }))
    }
    fn info(&self, path: &Path) -> io::Result<Option<FileInfo>> {
        RealDisk.info(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<FileInfo>> {
        RealDisk.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_file(path)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        RealDisk.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(self.free.load(Ordering::SeqCst))
    }
}

impl DiskFile for FillableFile {
    fn pread(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.pread(buf, position)
    }
    fn pwritev(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        if self.full.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.pwritev(bufs, position)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn file(&self) -> &File {
        self.file.file()
    }
}

async fn broker_on(disk: &Arc<Fillable>) -> TestBroker {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let clock = Arc::new(StillClock(AtomicI64::new(1)));
    TestBroker::start_in(folder, |_| {}, clock, Arc::clone(disk) as Arc<dyn Disk>).await
}

pub(crate) fn disk() -> Arc<Fillable> {
    Arc::new(Fillable {
        full: Arc::default(),
        free: AtomicU64::new(1 << 40),
        refused: Arc::default(),
    })
}

#[tokio::test]
async fn a_full_disk_refuses_appends_and_reads_go_on() {
    let disk = disk();
    let broker = broker_on(&disk).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    wire.append("orders", 0, batch(&["a"])).await;
    disk.full.store(true, Ordering::SeqCst);
    let refused = wire.produce("orders", 0, batch(&["b"])).await;
    assert_eq!(name(refused.error_code), "KAFKA_STORAGE_ERROR");
    let message = refused.error_message.unwrap();
    assert!(message.contains("no space left"), "{message}");
    assert_eq!(
        values_of(&wire.fetch("orders", 0, 0).await),
        [(0, "a".to_owned())]
    );
    assert_eq!(wire.list_offset("orders", 0, -1).await.offset, 1);
    disk.full.store(false, Ordering::SeqCst);
    assert_eq!(wire.append("orders", 0, batch(&["c"])).await, 1);
}

#[tokio::test]
async fn below_the_floor_of_free_bytes_appends_are_refused_before_the_disk_is_full() {
    let disk = disk();
    disk.free.store(64 << 20, Ordering::SeqCst);
    let broker = broker_on(&disk).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let refused = wire.produce("orders", 0, batch(&["a"])).await;
    assert_eq!(name(refused.error_code), "KAFKA_STORAGE_ERROR");
    let message = refused.error_message.unwrap();
    assert!(message.contains("min_free_bytes"), "{message}");
    assert_eq!(wire.fetch("orders", 0, 0).await.high_watermark, 0);
    disk.free.store(65 << 20, Ordering::SeqCst);
    assert_eq!(wire.append("orders", 0, batch(&["a"])).await, 0);
}

async fn delete_records(wire: &mut Wire, topic: &str, offset: i64) -> i16 {
    let request = DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: topic.into(),
            partitions: vec![DeleteRecordsPartition {
                partition_index: 0,
                offset,
            }],
        }],
        timeout_ms: 1_000,
    };
    wire.call(&request, 2).await.topics[0].partitions[0].error_code
}

#[tokio::test]
async fn a_file_system_that_fills_up_refuses_appends_until_topics_go() {
    let tmpfs = Tmpfs::mount(16 << 20).unwrap();
    let data_dir = tmpfs.path().join("data");
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let here = |config: &mut broker_server::Config| {
        config.data_dir.clone_from(&data_dir);
        config.min_free_bytes = ByteSize::mib(4);
    };
    let broker = TestBroker::start_on(Arc::clone(&folder), here).await;
    let mut wire = broker.connect().await;
    wire.create_topic("kept", 1).await;
    wire.create_topic("doomed", 1).await;
    wire.append("kept", 0, batch(&["a"])).await;
    let large = batch(&[&"x".repeat(500_000)]);
    let mut appended = 0;
    let refused = loop {
        let answer = wire.produce("doomed", 0, large.clone()).await;
        if answer.error_code != 0 {
            break answer;
        }
        appended += 1;
        assert!(appended < 100, "16 MiB take no end");
    };
    assert_eq!(name(refused.error_code), "KAFKA_STORAGE_ERROR");
    let message = refused.error_message.unwrap();
    assert!(message.contains("min_free_bytes"), "{message}");
    // Reads, settings, deletions go on, and so does a start.
    wire.create_topic("made-meanwhile", 1).await;
    assert_eq!(wire.list_offset("doomed", 0, -1).await.offset, appended);
    assert_eq!(delete_records(&mut wire, "kept", 1).await, 0);
    broker.kill().await;
    let broker = TestBroker::start_on(folder, here).await;
    let mut wire = broker.connect().await;
    assert_eq!(wire.list_offset("doomed", 0, -1).await.offset, appended);
    let request = DeleteTopicsRequest {
        topic_names: vec!["doomed".into()],
        timeout_ms: 1_000,
        ..DeleteTopicsRequest::default()
    };
    assert_eq!(wire.call(&request, 5).await.responses[0].error_code, 0);
    assert_eq!(wire.append("kept", 0, batch(&["b"])).await, 1);
    assert_eq!(
        values_of(&wire.fetch("kept", 0, 1).await),
        [(1, "b".to_owned())]
    );
    broker.stop().await;
}

#[tokio::test]
async fn a_file_system_without_a_byte_left_loses_nothing_that_was_acknowledged() {
    let tmpfs = Tmpfs::mount(4 << 20).unwrap();
    let data_dir = tmpfs.path().join("data");
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let here = |config: &mut broker_server::Config| {
        config.data_dir.clone_from(&data_dir);
        config.min_free_bytes = ByteSize::b(0);
    };
    let broker = TestBroker::start_on(Arc::clone(&folder), here).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let value = "x".repeat(300_000);
    let mut appended = 0_i64;
    // The write stops in the middle of a batch: what there is of it must go.
    loop {
        let answer = wire.produce("orders", 0, batch(&[&value])).await;
        if answer.error_code != 0 {
            assert_eq!(name(answer.error_code), "KAFKA_STORAGE_ERROR");
            let message = answer.error_message.unwrap();
            assert!(message.to_lowercase().contains("space"), "{message}");
            break;
        }
        appended += 1;
        assert!(appended < 100, "4 MiB take no end");
    }
    let found = read_all(&mut wire, "orders", 0).await;
    assert_eq!(i64::try_from(found.len()), Ok(appended));
    assert!(found.iter().all(|(_, found)| *found == value));
    broker.kill().await;
    let opened = Broker::open(config(folder.path(), here)).unwrap();
    let orders = opened
        .recovery()
        .iter()
        .find(|report| report.partition.topic.as_str() == "orders");
    let orders = orders.unwrap();
    assert_eq!((orders.log_end_offset, &orders.cut), (appended, &None));
}

/// Files that were open may be so for a moment after a broker has stopped.
async fn make_read_only(tmpfs: &Tmpfs) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = tmpfs.set_read_only(true) {
        assert!(Instant::now() < deadline, "{error:#}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_read_only_mount_is_named_at_the_start() {
    let tmpfs = Tmpfs::mount(4 << 20).unwrap();
    let data_dir = tmpfs.path().join("data");
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let here = |config: &mut broker_server::Config| {
        config.data_dir.clone_from(&data_dir);
        config.min_free_bytes = ByteSize::b(0);
    };
    tmpfs.set_read_only(true).unwrap();
    for made_before in [false, true] {
        if made_before {
            tmpfs.set_read_only(false).unwrap();
            let broker = TestBroker::start_on(Arc::clone(&folder), here).await;
            let mut wire = broker.connect().await;
            wire.create_topic("orders", 1).await;
            wire.append("orders", 0, batch(&["a"])).await;
            drop(wire);
            broker.stop().await;
            make_read_only(&tmpfs).await;
        }
        let error = Broker::open(config(folder.path(), here)).unwrap_err();
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        let named = text.contains(data_dir.to_str().unwrap());
        assert!(named && text.contains("Read-only file system"), "{text}");
    }
    tmpfs.set_read_only(false).unwrap();
    let broker = TestBroker::start_on(folder, here).await;
    let mut wire = broker.connect().await;
    assert_eq!(
        values_of(&wire.fetch("orders", 0, 0).await),
        [(0, "a".to_owned())]
    );
    broker.stop().await;
}
