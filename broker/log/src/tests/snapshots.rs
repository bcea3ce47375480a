//! Producer snapshots, holes, and how little an open reads.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

use broker_protocol::ErrorCode;

use super::*;
use crate::disk::faulty::{Fault, Operation};

/// A log of 60 idempotent batches of 10 records by two producers in turn, flushed and checkpointed at each third of it.
fn produced() -> (Fixture, PartitionLog) {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for i in 0..60 {
        send(&mut log, i);
        if i % 20 == 19 {
            log.flush().unwrap();
            fixture.log_dir().write_checkpoints().unwrap();
        }
    }
    assert!(log.segments() > 8);
    (fixture, log)
}

/// The `i`th batch of all.
fn nth(i: i32) -> RecordBatch {
    let mut builder =
        BatchBuilder::new(Compression::None).with_producer(7 + i64::from(i % 2), 0, i / 2 * 10);
    for _ in 0..10 {
        builder
            .push(i.into(), None, Some(&[b'v'; 50]), &[])
            .unwrap();
    }
    RecordBatch::parse(builder.build().unwrap()).unwrap()
}

fn send(log: &mut PartitionLog, i: i32) {
    let appended = log.append_one(&nth(i), 0, 0).unwrap();
    assert_eq!(
        (appended.base_offset, appended.duplicate),
        (i64::from(i) * 10, false)
    );
}

/// Each producer's last five batches are known of a log that holds `batches`, and it goes on.
fn producers_are_known(log: &mut PartitionLog, batches: i32) {
    for i in (batches - 10).max(0)..batches {
        let repeated = log.append_one(&nth(i), 0, 0).unwrap();
        assert_eq!(
            (repeated.base_offset, repeated.duplicate),
            (i64::from(i) * 10, true)
        );
    }
    if batches > 10 {
        let old = log.append_one(&nth(batches - 11), 0, 0).unwrap_err();
        assert_eq!(old.error_code(), ErrorCode::OutOfOrderSequenceNumber);
    }
    let gap = log.append_one(&nth(batches + 2), 0, 0).unwrap_err();
    assert_eq!(gap.error_code(), ErrorCode::OutOfOrderSequenceNumber);
    send(log, batches);
}

fn snapshots(fixture: &Fixture) -> Vec<PathBuf> {
    files(&fixture.partition_dir(), ".snapshot")
}

fn offset_of(path: &Path) -> i64 {
    path.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

fn bases(fixture: &Fixture) -> Vec<i64> {
    let logs = files(&fixture.partition_dir(), ".log");
    logs.iter().map(|path| offset_of(path)).collect()
}

fn flip(path: &Path, at: u64) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x04], at).unwrap();
}

#[test]
fn there_is_a_snapshot_for_each_segment_and_for_the_recovery_point() {
    let (mut fixture, log) = produced();
    let mut expected = bases(&fixture);
    expected.remove(0);
    expected.push(600);
    let offsets = |fixture: &Fixture| -> Vec<i64> {
        let snapshots = snapshots(fixture);
        snapshots.iter().map(|path| offset_of(path)).collect()
    };
    let found = offsets(&fixture);
    assert!(expected.iter().all(|offset| found.contains(offset)));
    // And the one before: the checkpoint was written after the flush that could have removed it.
    assert!(found.len() <= expected.len() + 1, "{found:?}");
    let (mut log, report) = fixture.shutdown_and_reopen(log);
    assert!(report.bytes_walked < 8 << 10, "{report}");
    producers_are_known(&mut log, 60);
    log.set_high_watermark(610);
    log.advance_log_start(300).unwrap();
    let first = bases(&fixture)[0];
    assert!(offsets(&fixture).iter().all(|offset| *offset >= first));
    log.truncate_to(455).unwrap();
    assert!(offsets(&fixture).iter().all(|offset| *offset <= 450));
    producers_are_known(&mut log, 45);
    log.truncate_fully_and_start_at(1_000).unwrap();
    assert!(offsets(&fixture).is_empty());
    let unknown = log.append_one(&nth(3), 0, 0).unwrap();
    assert_eq!((unknown.base_offset, unknown.duplicate), (1_000, false));
}

#[test]
fn an_open_reads_the_ends_of_what_was_synced_and_no_more() {
    let (mut fixture, log) = produced();
    let size = log.size_in_bytes();
    let last = nth(0).bytes().len() as u64;
    let segments = log.segments() as u64;
    let mut log = Some(log);
    for clean in [true, false] {
        let (log, report) = match log.take() {
            Some(log) => fixture.shutdown_and_reopen(log),
            None => fixture.kill_and_reopen(),
        };
        assert_eq!((report.clean, report.bytes_scanned), (clean, 0));
        assert_eq!(
            (report.rebuilt_indexes, &report.bad_snapshots),
            (0, &vec![])
        );
        // From the last index entry on: with an entry each 500 bytes, three batches at most.
        assert!(report.bytes_walked <= segments * 3 * last, "{report}");
        assert!(report.bytes_walked < size / 2, "{report}");
        drop(log);
    }
}

#[test]
fn a_crash_reads_headers_from_the_newest_snapshot_and_scans_from_the_recovery_point() {
    let (mut fixture, mut log) = produced();
    for i in 60..70 {
        send(&mut log, i);
    }
    drop(log);
    let batch = nth(60).bytes().len() as u64;
    let (mut log, report) = fixture.kill_and_reopen();
    assert_eq!((report.recovery_point, report.batches_scanned), (600, 10));
    assert_eq!(report.bytes_scanned, 10 * batch);
    assert_eq!(
        (report.rebuilt_indexes, &report.bad_snapshots),
        (0, &vec![])
    );
    producers_are_known(&mut log, 70);
}

#[test]
fn a_bad_or_missing_snapshot_costs_reading_only() {
    let (mut fixture, mut log) = produced();
    for i in 60..63 {
        send(&mut log, i);
    }
    drop(log);
    fixture.opened = None;
    let all = snapshots(&fixture);
    let newest = all.iter().rposition(|path| offset_of(path) <= 600).unwrap();
    // Each time one older is what is left.
    let mut walked = 0;
    for (path, how) in all[..=newest].iter().rev().zip(0..) {
        match how % 4 {
            0 => flip(path, 30),
            1 => fs::write(path, b"").unwrap(),
            2 => fs::remove_file(path).unwrap(),
            _ => fs::write(path, &fs::read(path).unwrap()[..20]).unwrap(),
        }
        fs::write(
            fixture.dir().join("recovery-point-offset-checkpoint"),
            "0\n1\nmy-orders 3 600\n",
        )
        .unwrap();
        let kept: Vec<Vec<u8>> = snapshots(&fixture)
            .iter()
            .map(|path| fs::read(path).unwrap())
            .collect();
        let paths = snapshots(&fixture);
        let (mut log, report) = fixture.reopen();
        let expected = usize::from(how % 4 != 2);
        assert_eq!(report.bad_snapshots.len(), expected, "{report}");
        assert!(report.bytes_walked >= walked, "{report}");
        walked = report.bytes_walked;
        assert_eq!(report.cut, None);
        let repeated = log.append_one(&nth(55), 0, 0).unwrap();
        assert!(repeated.duplicate);
        let old = log.append_one(&nth(52), 0, 0).unwrap_err();
        assert_eq!(old.error_code(), ErrorCode::OutOfOrderSequenceNumber);
        drop(log);
        fixture.opened = None;
        // As they were, but for the spoilt one, which is gone for good.
        for path in snapshots(&fixture) {
            fs::remove_file(path).unwrap();
        }
        for (kept_path, bytes) in paths.iter().zip(kept) {
            if kept_path != path {
                fs::write(kept_path, bytes).unwrap();
            }
        }
    }
    let (mut log, report) = fixture.reopen();
    assert_eq!(report.bad_snapshots, []);
    producers_are_known(&mut log, 63);
}

#[test]
fn a_snapshot_behind_the_log_end_is_not_believed() {
    let (mut fixture, log) = produced();
    fixture.log_dir().shutdown(vec![log], -1).unwrap();
    fixture.opened = None;
    let newest = snapshots(&fixture).pop().unwrap();
    assert_eq!(offset_of(&newest), 600);
    let later = newest.with_file_name("00000000000000000700.snapshot");
    let mut states = crate::producer_state::ProducerStates::default();
    states.record(nth(40).header(), 0);
    fs::write(&later, states.encode()).unwrap();
    fs::remove_file(newest).unwrap();
    let (mut log, report) = fixture.reopen();
    assert_eq!(
        report.bad_snapshots,
        [(later.clone(), "the log ends at 600".to_owned())]
    );
    assert!(!later.try_exists().unwrap());
    producers_are_known(&mut log, 60);
}

#[test]
fn a_snapshot_that_cannot_be_written_fails_nothing() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    fixture.disk.inject(Fault {
        times: usize::MAX,
        ..Fault::once(
            Operation::Write,
            ".snapshot.tmp",
            io::ErrorKind::StorageFull,
        )
    });
    for i in 0..60 {
        send(&mut log, i);
    }
    log.flush().unwrap();
    assert_eq!((snapshots(&fixture), log.is_offline()), (vec![], false));
    assert_eq!(files(&fixture.partition_dir(), ".tmp").len(), 0);
    drop(log);
    fixture.disk.heal();
    let mut fixture = fixture;
    let (mut log, _) = fixture.kill_and_reopen();
    producers_are_known(&mut log, 60);
}

#[test]
fn a_group_that_rolls_in_the_middle_is_in_no_snapshot_before_it_is_in_the_log() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    let group: Vec<_> = (0..60).map(nth).collect();
    log.append(&group, 0, 0).unwrap();
    log.flush().unwrap();
    fixture.log_dir().write_checkpoints().unwrap();
    let second = bases(&fixture)[1];
    drop(log);
    let mut fixture = fixture;
    fixture.opened = None;
    // All but the first segment is lost.
    for path in files(&fixture.partition_dir(), ".log").split_off(1) {
        fs::remove_file(path).unwrap();
    }
    let (mut log, report) = fixture.reopen();
    assert_eq!(report.log_end_offset, second);
    assert_eq!((report.holes.len(), &report.holes[0]), (1, &(second..600)));
    producers_are_known(&mut log, i32::try_from(second / 10).unwrap());
}

#[test]
fn offsets_that_had_been_synced_and_are_gone_are_reported() {
    for clean in [true, false] {
        let (mut fixture, log) = produced();
        fixture.log_dir().shutdown(vec![log], -1).unwrap();
        fixture.opened = None;
        let marker = fixture.dir().join(".kafka_cleanshutdown");
        if !clean {
            fs::remove_file(&marker).unwrap();
        }
        let all = files(&fixture.partition_dir(), ".log");
        let bases = bases(&fixture);
        // A whole segment, and the end of another.
        fs::remove_file(&all[3]).unwrap();
        let size = nth(0).bytes().len() as u64;
        let torn = fs::OpenOptions::new().write(true).open(&all[5]).unwrap();
        torn.set_len(2 * size).unwrap();
        let (log, report) = fixture.reopen();
        assert_eq!(report.cut, None);
        let expected = [bases[3]..bases[4], bases[5] + 20..bases[6]];
        assert_eq!(report.holes, expected, "{report}");
        let text = report.to_string();
        let named = format!("[{}, {}) is missing", bases[3], bases[4]);
        assert!(text.contains(&named), "{text}");
        let reader = log.reader();
        for hole in expected {
            for offset in hole.clone() {
                let slice = reader.slice(offset, NO_LIMIT).unwrap();
                assert_eq!(slice.base_offset(), hole.end, "reads go on behind it");
            }
        }
        drop((log, reader));
        // The same in a compacted topic is no news.
        fixture.config.compacted = true;
        let (_, report) = fixture.kill_and_reopen();
        assert_eq!(report.holes, []);
    }
}

#[test]
fn producers_of_a_log_that_was_lost_below_its_start_may_go_on() {
    let (mut fixture, mut log) = produced();
    log.set_high_watermark(600);
    log.advance_log_start(455).unwrap();
    drop(log);
    fixture.opened = None;
    let all = files(&fixture.partition_dir(), ".log");
    fs::write(&all[0], b"").unwrap();
    for path in &all[1..] {
        fs::remove_file(path).unwrap();
    }
    let (mut log, report) = fixture.reopen();
    assert_eq!((report.log_start_offset, report.log_end_offset), (455, 455));
    let next = log.append_one(&nth(60), 0, 0).unwrap();
    assert_eq!((next.base_offset, next.duplicate), (455, false));
}

#[test]
fn a_flipped_bit_in_the_recovery_points_costs_no_record() {
    let (mut fixture, log) = produced();
    drop(log);
    fixture.opened = None;
    let path = fixture.dir().join("recovery-point-offset-checkpoint");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        for bit in [0, 3] {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            fs::write(&path, bytes).unwrap();
            let (mut log, report) = fixture.reopen();
            assert_eq!((report.cut, report.log_end_offset), (None, 600));
            let repeated = log.append_one(&nth(55), 0, 0).unwrap();
            assert!(repeated.duplicate, "{at} {bit}");
            drop(log);
            fixture.opened = None;
        }
    }
}
