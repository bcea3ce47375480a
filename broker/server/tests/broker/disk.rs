//! A disk that is full, or nearly.

use std::{
    fs::File,
    io::{self, IoSlice},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use broker_log::disk::{Disk, DiskFile, FileInfo, OpenMode, RealDisk};

use crate::support::{StillClock, TestBroker, batch, name, values_of};

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
