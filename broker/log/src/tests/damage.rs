//! Damage in any file of a directory, disks that are full or read-only, producers that fall silent.

use std::fs;
use std::io;

use super::*;
use crate::disk::faulty::{Fault, Operation};
use crate::{Error, ErrorKind};

/// Where the bytes begin that a batch's checksum covers.
const CRC_FROM: usize = 21;

/// A log of 24 batches, some of them of idempotent producers, with everything beside it that a log can have; closed
/// in order, or killed behind a checkpoint.
fn filled(clean: bool) -> Fixture {
    let mut fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for round in 0..24 {
        let batch = match round % 3 {
            0 => sequenced(7, 0, round / 3 * 4, 4),
            1 => batch_at(Compression::Lz4, &[i64::from(round); 4], 100),
            _ => batch_at(Compression::None, &[i64::from(round); 4], 100),
        };
        log.append_one(&batch, round / 10, 0).unwrap();
        if round == 12 {
            log.flush().unwrap();
            fixture.log_dir().write_checkpoints().unwrap();
        }
    }
    if clean {
        fixture.log_dir().shutdown(vec![log], -1).unwrap();
    } else {
        drop(log);
    }
    fixture.opened = None;
    fixture
}

/// Every file below a directory but the lock, with its bytes.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else if !path.ends_with(".lock") {
            let bytes = fs::read(&path).unwrap();
            all.push((path, bytes));
        }
    }
    all.sort();
    all
}

/// The batches that can be read from `offset` on, each checked, up to the first that cannot.
fn readable(reader: &PartitionReader, offset: i64) -> Vec<(i64, Bytes)> {
    let mut position = offset;
    let mut all = Vec::new();
    while let Ok(slice) = reader.slice(position, NO_LIMIT) {
        if slice.is_empty() {
            break;
        }
        for batch in batches(slice.read().unwrap()) {
            let Ok(batch) = batch else { return all };
            if batch.check_crc().is_err() {
                return all;
            }
            all.push((batch.header().base_offset, batch.into_bytes()));
        }
        position = slice.end_offset();
    }
    all
}

#[test]
fn a_flipped_bit_in_any_file_never_gives_another_record() {
    for clean in [true, false] {
        let mut fixture = filled(clean);
        let sound = contents(&fixture.dir());
        let (log, _) = fixture.reopen();
        let expected = read_all(&log.reader(), 0).unwrap();
        drop(log);
        fixture.opened = None;
        assert_eq!(expected.len(), 24);
        // Offset, length and leader epoch are before what the checksum covers, as Kafka has it.
        let covered: Vec<&[u8]> = expected
            .iter()
            .map(|(_, batch)| &batch[CRC_FROM..])
            .collect();
        for (victim, bytes) in &sound {
            // Every byte of a small file, and as many of a large one.
            for at in (0..bytes.len()).step_by(bytes.len() / 60 + 1) {
                fs::remove_dir_all(fixture.dir()).unwrap();
                fs::create_dir_all(fixture.partition_dir()).unwrap();
                for (path, bytes) in &sound {
                    fs::write(path, bytes).unwrap();
                }
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                fs::write(victim, flipped).unwrap();
                let what = format!("byte {at} of {}, clean: {clean}", victim.display());
                let opened = fixture.open();
                let Some((log, _)) = opened.partitions.pop() else {
                    // Only what says which topic this is may keep a partition from being opened.
                    assert!(victim.ends_with("partition.metadata"), "{what}");
                    continue;
                };
                let start = log.log_start_offset();
                for (_, found) in readable(&log.reader(), start) {
                    assert!(covered.contains(&&found[CRC_FROM..]), "{what}");
                }
                if victim.extension().is_none_or(|kind| kind != "log") {
                    let found = read_all(&log.reader(), start);
                    assert_eq!(found.unwrap(), expected, "{what}");
                }
                drop(log);
                fixture.opened = None;
            }
        }
    }
}

#[test]
fn a_disk_that_is_full_at_the_start_leaves_no_mark_of_a_clean_stop() {
    for space in [0, 30, 3_000] {
        let mut fixture = filled(false);
        fixture.disk.set_space(space);
        let config = LogDirConfig {
            log: fixture.config.clone(),
            max_open_files: 5,
            disk: Arc::new(fixture.disk.clone()),
        };
        let stopped = LogDir::open(fixture.dir(), config).and_then(|mut opened| {
            let logs = opened.partitions.drain(..).map(|(log, _)| log);
            opened.dir.shutdown(logs.collect(), -1)
        });
        assert_eq!(
            stopped.is_ok(),
            space == 3_000,
            "{space} bytes: {stopped:?}"
        );
        fixture.disk.heal();
        let (log, report) = fixture.reopen();
        assert_eq!(report.clean, stopped.is_ok(), "with {space} bytes");
        assert_eq!(log.log_end_offset(), 96, "with {space} bytes");
        assert_eq!(read_all(&log.reader(), 0).unwrap().len(), 24);
    }
}

#[test]
fn a_disk_that_turns_read_only_refuses_appends_and_reads_go_on() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    log.append_one(&batch(10), 0, 0).unwrap();
    fixture.disk.inject(Fault {
        times: usize::MAX,
        ..Fault::once(Operation::Write, "", io::ErrorKind::ReadOnlyFilesystem)
    });
    for _ in 0..3 {
        let error = log.append_one(&batch(10), 0, 0).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        assert!(
            error.to_string().contains("00000000000000000000.log"),
            "{error}"
        );
        assert_ne!(error.kind(), ErrorKind::Caller);
    }
    assert_eq!(base_offsets(&log.reader(), 0), [0]);
    fixture.disk.heal();
    assert_eq!(log.append_one(&batch(10), 0, 0).unwrap().base_offset, 10);
}

#[test]
fn a_producer_is_known_until_it_was_silent_for_its_time() {
    let fixture = Fixture::new(LogConfig {
        producer_id_expiration_ms: 1_000,
        ..LogConfig::default()
    });
    let mut log = fixture.create();
    log.append_one(&sequenced(7, 0, 0, 2), 0, 10_000).unwrap();
    log.append_one(&sequenced(8, 0, 0, 2), 0, 10_500).unwrap();
    log.expire_producers(10_999);
    let again = log.append_one(&sequenced(7, 0, 0, 2), 0, 11_000).unwrap();
    assert!(again.duplicate, "an idle producer was forgotten too early");
    log.expire_producers(11_499);
    let known: Vec<i64> = log
        .active_producers()
        .iter()
        .map(|p| p.producer_id)
        .collect();
    assert_eq!(known, [8]);
    // Who is not known may begin with any sequence.
    log.append_one(&sequenced(7, 0, 44, 2), 0, 11_500).unwrap();
}

#[test]
fn an_offset_beyond_the_log_is_damage_and_not_the_end() {
    // The checksum of a batch does not cover its base offset.
    for high in [0x7f, 0x01] {
        let mut fixture = filled(true);
        let segment = files(&fixture.partition_dir(), ".log").remove(0);
        let mut bytes = fs::read(&segment).unwrap();
        bytes[..8].copy_from_slice(&[high, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        fs::write(&segment, bytes).unwrap();
        let (log, _) = fixture.reopen();
        let error = log.reader().slice(0, NO_LIMIT).unwrap_err();
        assert!(
            matches!(error, Error::Corrupt { position: 0, .. }),
            "{error:?}"
        );
        let error = log.reader().offset_for_timestamp(0).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    }
}

#[test]
fn an_offset_that_no_segment_reaches_is_cut_off_the_end_and_the_log_goes_on() {
    for clean in [true, false] {
        for offset in [i64::MAX - 100, 1 << 40] {
            let mut fixture = filled(clean);
            let segment = files(&fixture.partition_dir(), ".log").pop().unwrap();
            let mut bytes = fs::read(&segment).unwrap();
            let last = batches(bytes.clone().into()).last().unwrap().unwrap();
            let at = bytes.len() - last.bytes().len();
            bytes[at..at + 8].copy_from_slice(&offset.to_be_bytes());
            fs::write(&segment, bytes).unwrap();
            let (mut log, report) = fixture.reopen();
            let end = last.header().base_offset;
            assert_eq!(log.log_end_offset(), end, "{clean} {offset}: {report}");
            let cut = report.cut.unwrap();
            assert!(cut.reason.contains("too far"), "{}", cut.reason);
            let appended = log.append_one(&batch(2), 3, 0).unwrap();
            assert_eq!(appended.base_offset, end);
            drop(log);
            let (log, _) = fixture.kill_and_reopen();
            assert_eq!(log.log_end_offset(), end + 2);
        }
    }
}
