//! When records are on the disk, and what is seen before.

use std::{
    fs::File,
    io::{self, IoSlice},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use broker_log::disk::{Disk, DiskFile, FileInfo, OpenMode, RealDisk};
use broker_protocol::messages::{
    ListGroupsRequest, OffsetCommitRequest,
    offset_commit::{OffsetCommitRequestPartition, OffsetCommitRequestTopic},
};
use tokio::{sync::Semaphore, time::timeout};

use crate::support::{
    PATIENCE, StillClock, TestBroker, batch, fetch_request, name, only_partition, produce_request,
    values_of,
};

/// The real disk; syncs of segments are counted, and each waits for a permit.
#[derive(Debug)]
struct Gated {
    syncs: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    fails: bool,
}

#[derive(Debug)]
struct GatedFile {
    file: Arc<dyn DiskFile>,
    disk: Option<Arc<Gated>>,
}

#[derive(Debug, Clone)]
struct GatedDisk(Arc<Gated>);

impl Disk for GatedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = RealDisk.open(path, mode)?;
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        let disk = is_log.then(|| Arc::clone(&self.0));
        Ok(Arc::new(GatedFile { file, disk }))
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
    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        RealDisk.free_bytes(path)
    }
}

impl DiskFile for GatedFile {
    fn pread(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.pread(buf, position)
    }
    fn pwritev(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        self.file.pwritev(bufs, position)
    }
    fn sync(&self) -> io::Result<()> {
        if let Some(disk) = &self.disk {
            disk.syncs.fetch_add(1, Ordering::SeqCst);
            if disk.fails {
                return Err(io::ErrorKind::Other.into());
            }
            let waiting = async { disk.gate.acquire().await.unwrap().forget() };
            tokio::runtime::Handle::current().block_on(waiting);
        }
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

fn disk(permits: usize, fails: bool) -> GatedDisk {
    GatedDisk(Arc::new(Gated {
        syncs: Arc::default(),
        gate: Arc::new(Semaphore::new(permits)),
        fails,
    }))
}

impl GatedDisk {
    fn syncs(&self) -> usize {
        self.0.syncs.load(Ordering::SeqCst)
    }
}

async fn broker_on(disk: &GatedDisk, flush_interval: Duration) -> TestBroker {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let clock = Arc::new(StillClock(AtomicI64::new(1_700_000_000_000)));
    let edit = |config: &mut broker_server::Config| config.flush_interval = flush_interval;
    TestBroker::start_in(folder, edit, clock, Arc::new(disk.clone())).await
}

const NEVER: Duration = Duration::from_secs(1_000_000);

#[tokio::test]
async fn a_produce_request_that_owes_a_flush_is_answered_after_it() {
    let disk = disk(0, false);
    let broker = broker_on(&disk, NEVER).await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("orders", 1, &[("flush.messages", "2")])
        .await;
    // One record waits for no flush.
    wire.append("orders", 0, batch(&["a"])).await;
    wire.send(&produce_request("orders", 0, batch(&["b"])), 9)
        .await;
    let mut other = broker.connect().await;
    let flushing = async {
        while disk.syncs() == 0 {
            other.fetch("orders", 0, 0).await;
        }
    };
    timeout(PATIENCE, flushing).await.unwrap();
    // It is being flushed, and seen by the default rule; the answer is not there.
    assert_eq!(values_of(&other.fetch("orders", 0, 0).await).len(), 2);
    let early = timeout(Duration::from_millis(20), wire.stream.peek(&mut [0])).await;
    assert!(early.is_err(), "answered before the flush");
    disk.0.gate.add_permits(1);
    let (_, answer) = wire
        .receive::<broker_protocol::messages::ProduceRequest>(9)
        .await;
    assert_eq!(answer.responses[0].partition_responses[0].base_offset, 1);
    assert_eq!(disk.syncs(), 1);
}

#[tokio::test]
async fn requests_that_wait_share_one_flush() {
    let disk = disk(0, false);
    let broker = broker_on(&disk, NEVER).await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("orders", 1, &[("flush.messages", "1")])
        .await;
    let mut waiting = Vec::new();
    for number in 0..8 {
        let mut wire = broker.connect().await;
        wire.send(
            &produce_request("orders", 0, batch(&[&number.to_string()])),
            9,
        )
        .await;
        waiting.push(wire);
    }
    let all_appended = async { while wire.list_offset("orders", 0, -1).await.offset < 8 {} };
    timeout(PATIENCE, all_appended).await.unwrap();
    disk.0.gate.add_permits(8);
    for wire in &mut waiting {
        let (_, answer) = wire
            .receive::<broker_protocol::messages::ProduceRequest>(9)
            .await;
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    }
    // The one that had begun, and one for all that came meanwhile.
    assert!((1..=2).contains(&disk.syncs()), "{}", disk.syncs());
}

#[tokio::test]
async fn with_visibility_flushed_records_are_seen_once_they_are_on_the_disk() {
    let disk = disk(0, false);
    let broker = broker_on(&disk, NEVER).await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("orders", 1, &[("logferry.visibility", "flushed")])
        .await;
    // acks=1 is answered at once.
    wire.append("orders", 0, batch(&["a"])).await;
    let hidden = wire.fetch("orders", 0, 0).await;
    assert_eq!((hidden.high_watermark, values_of(&hidden).len()), (0, 0));
    assert_eq!(wire.list_offset("orders", 0, -1).await.offset, 0);
    // A fetch that waits, and an acks=all that flushes.
    let mut consumer = broker.connect().await;
    let mut fetch = fetch_request("orders", 0, 0);
    fetch.max_wait_ms = 60_000;
    consumer.send(&fetch, 12).await;
    let mut all = produce_request("orders", 0, batch(&["b"]));
    all.acks = -1;
    wire.send(&all, 9).await;
    let early = timeout(Duration::from_millis(20), consumer.stream.peek(&mut [0])).await;
    assert!(early.is_err(), "seen before the flush");
    disk.0.gate.add_permits(1);
    let (_, answer) = wire
        .receive::<broker_protocol::messages::ProduceRequest>(9)
        .await;
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    let (_, seen) = consumer
        .receive::<broker_protocol::messages::FetchRequest>(12)
        .await;
    let seen = only_partition(seen);
    assert_eq!(seen.high_watermark, 2);
    assert_eq!(values_of(&seen).len(), 2);
}

#[tokio::test]
async fn a_log_is_flushed_after_flush_ms_and_its_recovery_point_kept() {
    let disk = disk(100, false);
    let broker = broker_on(&disk, NEVER).await;
    let mut wire = broker.connect().await;
    let configs = [("flush.ms", "20"), ("logferry.visibility", "flushed")];
    wire.create_topic_with("orders", 1, &configs).await;
    wire.append("orders", 0, batch(&["a", "b"])).await;
    let mut fetch = fetch_request("orders", 0, 0);
    fetch.max_wait_ms = 60_000;
    let seen = only_partition(wire.call(&fetch, 12).await);
    assert_eq!(seen.high_watermark, 2);
    assert_eq!(disk.syncs(), 1);
}

#[tokio::test]
async fn a_failed_flush_is_an_error_and_no_later_request_believes_in_another() {
    let disk = disk(0, true);
    let broker = broker_on(&disk, NEVER).await;
    let mut wire = broker.connect().await;
    wire.create_topic_with("orders", 1, &[("flush.messages", "1")])
        .await;
    for value in ["a", "b"] {
        let refused = wire.produce("orders", 0, batch(&[value])).await;
        assert_eq!(name(refused.error_code), "KAFKA_STORAGE_ERROR");
    }
    assert_eq!(disk.syncs(), 1);
}

#[tokio::test]
async fn a_commit_is_answered_after_the_flush_that_its_topic_asks_for() {
    let disk = disk(0, false);
    let broker = broker_on(&disk, NEVER).await;
    let mut wire = broker.connect().await;
    wire.create_topic("orders", 1).await;
    let configs = [("cleanup.policy", "compact"), ("flush.messages", "1")];
    wire.create_topic_with("__consumer_offsets", 1, &configs)
        .await;
    let commit = OffsetCommitRequest {
        group_id: "readers".into(),
        topics: vec![OffsetCommitRequestTopic {
            name: "orders".into(),
            partitions: vec![OffsetCommitRequestPartition {
                committed_offset: 7,
                ..OffsetCommitRequestPartition::default()
            }],
        }],
        ..OffsetCommitRequest::default()
    };
    let mut other = broker.connect().await;
    let loading = ListGroupsRequest::default();
    while name(other.call(&loading, 4).await.error_code) != "NONE" {
        tokio::task::yield_now().await;
    }
    wire.send(&commit, 8).await;
    let flushing = async {
        while disk.syncs() == 0 {
            other.fetch("orders", 0, 0).await;
        }
    };
    timeout(PATIENCE, flushing).await.expect("it is flushed");
    let early = timeout(Duration::from_millis(20), wire.stream.peek(&mut [0])).await;
    assert!(early.is_err(), "answered before the flush");
    disk.0.gate.add_permits(1);
    let (_, answer) = wire.receive::<OffsetCommitRequest>(8).await;
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    disk.0.gate.add_permits(10);
}
