//! A log directory with damage: the input says what to change in which file of a sound one. It is opened, read, appended
//! to, and opened again as after a kill: the same records at the same offsets.
//!
//! ```text
//! first byte: bit 0 stopped cleanly; then changes: file (u8), kind (u8), position (u16), number of bytes (u8), the bytes
//! kind % 6:   0 overwrite   1 insert   2 cut here   3 delete the file   4 only these bytes   5 flip one bit
//! kind & 128: make the checksum right again: of a snapshot, or of the batch with the position
//! ```
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use broker_log::{
    LogConfig, LogDir, LogDirConfig, Opened, PartitionLog, ReadLimits, TopicPartition,
};
use broker_protocol::TopicName;
use broker_protocol::record::{BatchBuilder, Compression, RecordBatch, batches};
use libfuzzer_sys::fuzz_target;

const LIMITS: ReadLimits = ReadLimits {
    max_bytes: 1 << 20,
    min_one_batch: true,
    up_to_offset: i64::MAX,
};
/// Answers to look at until a log must have come to its end.
const READS: usize = 1_000;

/// A path below the directory, and what is in the file.
type Files = Vec<(PathBuf, Vec<u8>)>;

/// The files of a log, after a kill and after a clean stop.
static SOUND: LazyLock<[Files; 2]> = LazyLock::new(|| [make(false), make(true)]);

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 1_500,
        index_interval_bytes: 200,
        ..LogConfig::default()
    }
}

fn batch(compression: Compression, producer: Option<(i64, i32)>, records: i32) -> RecordBatch {
    let mut builder = BatchBuilder::new(compression);
    if let Some((id, sequence)) = producer {
        builder = builder.with_producer(id, 0, sequence);
    }
    for timestamp in 0..i64::from(records) {
        let value = [b'v'; 20];
        builder
            .push(1_000 + timestamp, Some(b"key"), Some(&value), &[])
            .expect("a record");
    }
    RecordBatch::parse(builder.build().expect("a batch")).expect("a batch")
}

fn open(dir: &Path) -> Option<Opened> {
    let config = LogDirConfig {
        log: config(),
        max_open_files: 20,
        ..LogDirConfig::default()
    };
    LogDir::open(dir, config).ok()
}

fn make(clean: bool) -> Files {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let opened = open(folder.path()).expect("an empty directory opens");
    let id = TopicPartition::new(TopicName::new("t").expect("a name"), 0);
    let topic_id = "dGhpcyBpcyBhIHRlc3QhIQ".parse().expect("an id");
    let log = opened.dir.create_partition(id, Some(topic_id), config());
    let mut log = log.expect("a partition");
    let codecs = [Compression::None, Compression::Lz4, Compression::Zstd];
    for round in 0..24 {
        let producer = (round % 2 == 0).then_some((7 + i64::from(round % 4), round / 4 * 3));
        let batch = batch(codecs[round as usize % 3], producer, 3);
        log.append_one(&batch, round / 10, 1_000)
            .expect("an append");
        if round == 15 {
            log.flush().expect("a flush");
            opened.dir.write_checkpoints().expect("checkpoints");
        }
    }
    if clean {
        opened.dir.shutdown(vec![log], 1).expect("a clean stop");
    }
    let mut files = Files::new();
    collect(folder.path(), folder.path(), &mut files);
    files.sort();
    files
}

fn collect(root: &Path, dir: &Path, files: &mut Files) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if !path.ends_with(".lock") {
            let below = path.strip_prefix(root).expect("below the root").to_owned();
            files.push((below, fs::read(&path).expect("a file")));
        }
    }
}

/// One change; `None` at the end of the input.
fn change(files: &mut Files, input: &mut &[u8]) -> Option<()> {
    let ([file, kind, high, low, count], rest) = input.split_first_chunk::<5>()?;
    let (bytes, rest) = rest.split_at(usize::from(*count).min(rest.len()));
    *input = rest;
    let place = usize::from(*file) % files.len();
    let (_, content) = files.get_mut(place)?;
    let at = usize::from(u16::from_be_bytes([*high, *low])) % (content.len() + 1);
    match (kind & 127) % 6 {
        0 => {
            let end = content.len().min(at + bytes.len());
            content[at..end].copy_from_slice(&bytes[..end - at]);
        }
        1 => drop(content.splice(at..at, bytes.iter().copied())),
        2 => content.truncate(at),
        3 => drop(files.remove(place)),
        4 => *content = bytes.to_vec(),
        _ => {
            if let Some(byte) = content.get_mut(at) {
                *byte ^= 1 << (count % 8);
            }
        }
    }
    if let Some((path, content)) = files.get_mut(place).filter(|_| kind & 128 != 0) {
        mend(path, content, at);
    } else if files.is_empty() {
        return None;
    }
    Some(())
}

fn mend(path: &Path, content: &mut [u8], at: usize) {
    if path.extension().is_some_and(|kind| kind == "snapshot") && content.len() > 6 {
        let crc = crc32c::crc32c(&content[6..]);
        content[2..6].copy_from_slice(&crc.to_be_bytes());
    }
    if path.extension().is_none_or(|kind| kind != "log") {
        return;
    }
    let mut start = 0;
    while let Some(header) = content.get(start..start + 61) {
        let length = i32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        let Ok(length) = usize::try_from(length) else {
            return;
        };
        let end = start + 12 + length;
        if length < 49 || end > content.len() {
            return;
        }
        if at < end {
            let crc = crc32c::crc32c(&content[start + 21..end]);
            content[start + 17..start + 21].copy_from_slice(&crc.to_be_bytes());
            return;
        }
        start = end;
    }
}

/// Base offset and bytes of the batches from the log start on, up to what cannot be read.
fn read(log: &PartitionLog) -> Vec<(i64, Vec<u8>)> {
    let reader = log.reader();
    let (start, end) = (log.log_start_offset(), log.log_end_offset());
    assert!(0 <= start && start <= end, "{start}..{end}");
    let (mut offset, mut next) = (start, 0);
    let mut all = Vec::new();
    for _ in 0..READS {
        let Ok(slice) = reader.slice(offset, LIMITS) else {
            return all;
        };
        if slice.is_empty() {
            return all;
        }
        let Ok(bytes) = slice.read() else { return all };
        for batch in batches(bytes) {
            let Ok(batch) = batch else { return all };
            let header = batch.header();
            // A batch's checksum does not cover its offset: a client that looks at it finds damage here.
            if header.base_offset < next || header.last_offset() >= end {
                return all;
            }
            next = header.next_offset();
            all.push((header.base_offset, batch.into_bytes().to_vec()));
        }
        assert!(
            slice.end_offset() > offset,
            "no headway at {offset} of {start}..{end}"
        );
        offset = slice.end_offset();
    }
    panic!("does not end: {start}..{end}, at {offset}");
}

fn look_up(log: &PartitionLog) {
    let reader = log.reader();
    for timestamp in [i64::MIN, 0, 1_001, i64::MAX] {
        drop(reader.offset_for_timestamp(timestamp));
    }
    for epoch in [-1, 0, 1, i32::MAX] {
        let end = reader.end_offset_for_leader_epoch(epoch).end_offset;
        assert!(end <= log.log_end_offset(), "epoch {epoch} ends at {end}");
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((first, mut rest)) = input.split_first() else {
        return;
    };
    let mut files = SOUND[usize::from(first & 1)].clone();
    while change(&mut files, &mut rest).is_some() {}
    let folder = tempfile::tempdir().expect("a temporary directory");
    for (path, content) in &files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
        fs::write(path, content).expect("a file");
    }
    let Some(mut opened) = open(folder.path()) else {
        return;
    };
    let Some((mut log, _)) = opened.partitions.pop() else {
        return;
    };
    look_up(&log);
    let before = read(&log);
    let end = log.log_end_offset();
    let appended = log.append_one(&batch(Compression::None, None, 2), 9, 2_000);
    let appended = appended.is_ok_and(|appended| {
        assert_eq!(appended.base_offset, end);
        true
    });
    let expected = (read(&log), log.log_start_offset(), log.log_end_offset());
    assert!(expected.0.starts_with(&before));
    drop((log, opened));
    let mut opened = open(folder.path()).expect("what was opened opens again");
    let (log, report) = opened.partitions.pop().expect("its partition too");
    let found = (read(&log), log.log_start_offset(), log.log_end_offset());
    assert!(
        found == expected,
        "appended: {appended}\n{report:?}\n{:?}\n{:?}",
        found.2,
        expected.2
    );
});
