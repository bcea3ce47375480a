//! Appending, reading, cutting at both ends.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use broker_protocol::ErrorCode;
use broker_protocol::record::{BatchBuilder, Compression, RecordBatch, TimestampType};
use bytes::{Bytes, BytesMut};

use super::*;
use crate::disk::faulty::{Fault, Operation};
use crate::{EpochEnd, Error, ErrorKind, Rejected};

fn limits(max_bytes: usize) -> ReadLimits {
    ReadLimits {
        max_bytes,
        ..NO_LIMIT
    }
}

#[test]
fn appended_batches_come_back_stamped_and_otherwise_unchanged() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    let sent: Vec<RecordBatch> = (1..=40).map(batch).collect();
    let mut expected = Vec::new();
    for sent in sent.chunks(3) {
        for outcome in log.append(sent, 7, 0).unwrap() {
            expected.push(outcome.unwrap().base_offset);
        }
    }
    assert!(log.segments() > 10);
    assert_eq!(log.log_end_offset(), 40 * 41 / 2);
    let got = read_all(&log.reader(), 0).unwrap();
    assert_eq!(got.len(), sent.len());
    for ((sent, base_offset), (got_offset, got)) in sent.iter().zip(expected).zip(&got) {
        assert_eq!(*got_offset, base_offset);
        let header = RecordBatch::parse(got.clone()).unwrap().header().clone();
        assert_eq!(header.partition_leader_epoch, 7);
        assert_eq!(got[16..], sent.bytes()[16..]);
    }
}

#[test]
fn read_at_mid_batch_offset_returns_the_whole_batch() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for _ in 0..20 {
        log.append_one(&batch(10), 0, 0).unwrap();
    }
    for offset in 0..200 {
        let slice = log.reader().slice(offset, limits(1)).unwrap();
        assert_eq!(slice.base_offset(), offset / 10 * 10, "offset {offset}");
        assert_eq!(slice.end_offset(), offset / 10 * 10 + 10);
        assert_eq!(
            slice.len(),
            batch(10).bytes().len(),
            "one whole batch above the limit"
        );
    }
}

#[test]
fn reads_keep_to_their_limits_in_whole_batches() {
    let fixture = Fixture::new(LogConfig {
        index_interval_bytes: 500,
        ..LogConfig::default()
    });
    let mut log = fixture.create();
    for _ in 0..50 {
        log.append_one(&batch(2), 0, 0).unwrap();
    }
    let size = batch(2).bytes().len();
    let reader = log.reader();
    for batches in 1..=50 {
        for extra in [0, 1, size - 1] {
            let slice = reader.slice(0, limits(batches * size + extra)).unwrap();
            assert_eq!(slice.len(), batches.min(50) * size);
            assert_eq!(
                slice.end_offset(),
                i64::try_from(batches.min(50) * 2).unwrap()
            );
        }
    }
    let none = ReadLimits {
        min_one_batch: false,
        ..limits(size - 1)
    };
    assert!(reader.slice(0, none).unwrap().is_empty());
    for up_to_offset in 0..=100 {
        let slice = reader
            .slice(
                0,
                ReadLimits {
                    up_to_offset,
                    ..NO_LIMIT
                },
            )
            .unwrap();
        assert_eq!(
            slice.end_offset(),
            up_to_offset / 2 * 2,
            "never a batch that reaches beyond"
        );
        assert_eq!(
            slice.len(),
            usize::try_from(up_to_offset / 2).unwrap() * size
        );
    }
    let end = reader.slice(100, NO_LIMIT).unwrap();
    assert!(end.is_empty() && end.file().is_none() && end.end_offset() == 100);
    assert_eq!(end.read().unwrap(), Bytes::new());
}

#[test]
fn slice_names_the_file_range_that_read_returns() {
    use std::os::unix::fs::FileExt;
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for _ in 0..10 {
        log.append_one(&batch(5), 0, 0).unwrap();
    }
    let slice = log.reader().slice(7, limits(2_000)).unwrap();
    let mut bytes = vec![0; slice.len()];
    slice
        .file()
        .unwrap()
        .read_exact_at(&mut bytes, slice.position())
        .unwrap();
    assert_eq!(slice.read().unwrap(), bytes);
}

#[test]
fn offsets_outside_the_log_are_refused_with_its_bounds() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    log.append_one(&batch(5), 0, 0).unwrap();
    for offset in [-1, 6, i64::MAX] {
        let error = log.reader().slice(offset, NO_LIMIT).unwrap_err();
        let Error::OffsetOutOfRange {
            log_start_offset,
            log_end_offset,
            ..
        } = error
        else {
            panic!("{error:?}")
        };
        assert_eq!((log_start_offset, log_end_offset), (0, 5));
    }
}

#[test]
fn bad_batches_are_refused_each_alone() {
    let config = LogConfig {
        max_batch_bytes: 2_000,
        ..LogConfig::default()
    };
    let fixture = Fixture::new(config);
    let mut log = fixture.create();
    let changed = |at: usize, byte: u8| {
        let mut bytes = BytesMut::from(&batch(3).bytes()[..]);
        bytes[at] = byte;
        RecordBatch::parse(bytes.freeze()).unwrap()
    };
    let with_attributes = |attributes: u8| {
        let mut bytes = BytesMut::from(&batch(3).bytes()[..]);
        bytes[22] = attributes;
        let crc = crc32c::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        RecordBatch::parse(bytes.freeze()).unwrap()
    };
    let mut no_sequence = BatchBuilder::new(Compression::None).with_producer(9, 0, -1);
    no_sequence.push(0, None, None, &[]).unwrap();
    let group = [
        batch(1),
        changed(100, 0xff),
        changed(26, 9),
        batch(30),
        with_attributes(0x20),
        with_attributes(0x08),
        RecordBatch::parse(no_sequence.build().unwrap()).unwrap(),
        batch(2),
    ];
    let outcomes = log.append(&group, 0, 0).unwrap();
    let codes: Vec<_> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Ok(appended) => Ok(appended.base_offset),
            Err(rejected) => Err(rejected.error_code()),
        })
        .collect();
    assert_eq!(
        codes,
        [
            Ok(0),
            Err(ErrorCode::CorruptMessage),
            Err(ErrorCode::InvalidRecord),
            Err(ErrorCode::MessageTooLarge),
            Err(ErrorCode::InvalidRecord),
            Err(ErrorCode::InvalidTimestamp),
            Err(ErrorCode::InvalidRecord),
            Ok(1),
        ]
    );
    assert_eq!(base_offsets(&log.reader(), 0), [0, 1]);
    let error = log.append_one(&changed(100, 0xff), 0, 0).unwrap_err();
    assert_eq!(error.to_string(), "cannot append to my-orders-3");
    assert_eq!(error.kind(), ErrorKind::Caller);
}

#[test]
fn idempotent_batches_are_deduplicated_also_after_a_restart_and_within_a_group() {
    let mut fixture = Fixture::small_segments();
    let mut log = fixture.create();
    let group = [
        sequenced(9, 0, 0, 3),
        sequenced(9, 0, 3, 2),
        sequenced(9, 0, 3, 2),
    ];
    let outcomes = log.append(&group, 0, 0).unwrap();
    let offsets: Vec<_> = outcomes
        .into_iter()
        .map(|outcome| {
            outcome
                .map(|a| (a.base_offset, a.end_offset, a.duplicate))
                .unwrap()
        })
        .collect();
    assert_eq!(offsets, [(0, 3, false), (3, 5, false), (3, 5, true)]);
    assert_eq!(log.log_end_offset(), 5);
    drop(log);
    let (log, _) = fixture.kill_and_reopen();
    let (mut log, report) = fixture.shutdown_and_reopen(log);
    assert!(report.clean);
    let again = log.append_one(&sequenced(9, 0, 0, 3), 0, 0).unwrap();
    assert_eq!((again.base_offset, again.duplicate), (0, true));
    let gap = log.append_one(&sequenced(9, 0, 6, 1), 0, 0).unwrap_err();
    assert_eq!(gap.error_code(), ErrorCode::OutOfOrderSequenceNumber);
    log.append_one(&sequenced(9, 1, 0, 1), 0, 0).unwrap();
    let fenced = log.append_one(&sequenced(9, 0, 5, 1), 0, 0).unwrap_err();
    assert_eq!(fenced.error_code(), ErrorCode::InvalidProducerEpoch);
}

#[test]
fn log_append_time_is_stamped_with_a_new_crc() {
    let timestamp_type = TimestampType::LogAppendTime;
    let fixture = Fixture::new(LogConfig {
        timestamp_type,
        ..LogConfig::default()
    });
    let mut log = fixture.create();
    let appended = log.append_one(&batch(3), 0, 77_000).unwrap();
    assert_eq!(appended.log_append_time_ms, 77_000);
    let stored = RecordBatch::parse(log.reader().read(0, NO_LIMIT).unwrap()).unwrap();
    stored.check_crc().unwrap();
    assert_eq!(
        stored.header().timestamp_type(),
        TimestampType::LogAppendTime
    );
    assert_eq!(stored.header().max_timestamp, 77_000);
    let found = log.reader().offset_for_timestamp(76_000).unwrap().unwrap();
    assert_eq!((found.offset, found.timestamp_ms), (0, 77_000));
    assert_eq!(log.reader().offset_for_timestamp(77_001).unwrap(), None);
}

#[test]
fn a_timestamp_leads_to_the_exact_record_in_every_codec() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    let codecs = [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];
    // Record i has timestamp 10 * i, but every seventh goes far back.
    let mut timestamps = Vec::new();
    for i in 0..200i64 {
        let times: Vec<i64> = (0..5)
            .map(|k| {
                if (i * 5 + k) % 7 == 6 {
                    3
                } else {
                    (i * 5 + k) * 10
                }
            })
            .collect();
        log.append_one(
            &batch_at(codecs[usize::try_from(i % 5).unwrap()], &times, 50),
            4,
            0,
        )
        .unwrap();
        timestamps.extend(times);
    }
    assert!(log.segments() > 3);
    log.set_high_watermark(log.log_end_offset());
    log.advance_log_start(23).unwrap();
    let reader = log.reader();
    assert_eq!(reader.max_timestamp_ms(), Some(9_990));
    for wanted in (0..10_000).step_by(37).chain([9_990, 9_991]) {
        let expected = (23..1000).find(|offset| timestamps[*offset] >= wanted);
        let found = reader.offset_for_timestamp(wanted).unwrap();
        assert_eq!(
            found.map(|found| usize::try_from(found.offset).unwrap()),
            expected,
            "{wanted}"
        );
        if let Some(found) = found {
            assert_eq!(
                found.timestamp_ms,
                timestamps[usize::try_from(found.offset).unwrap()]
            );
            assert_eq!(found.leader_epoch, Some(4));
        }
    }
}

#[test]
fn segments_roll_by_age_without_writes_and_never_by_a_clock_that_goes_back() {
    let fixture = Fixture::new(LogConfig {
        segment_ms: 1_000,
        ..LogConfig::default()
    });
    let mut log = fixture.create();
    assert!(
        !log.roll_if_due(1 << 40).unwrap(),
        "an empty segment has no age"
    );
    log.append_one(&batch(1), 0, 50_000).unwrap();
    log.append_one(&batch(1), 0, 10).unwrap();
    log.append_one(&batch(1), 0, 51_000).unwrap();
    assert_eq!(log.segments(), 1);
    assert!(log.roll_if_due(51_001).unwrap());
    assert!(!log.roll_if_due(99_999).unwrap());
    log.append_one(&batch(1), 0, 99_999).unwrap();
    log.append_one(&batch(1), 0, 101_001).unwrap();
    assert_eq!(log.segments(), 3);
    assert_eq!(base_offsets(&log.reader(), 0), [0, 1, 2, 3, 4]);
}

#[test]
fn a_batch_above_the_segment_size_gets_a_segment_to_itself() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    log.append(&[batch(1), batch(60), batch(1)], 0, 0).unwrap();
    assert_eq!(files(&fixture.partition_dir(), ".log").len(), 3);
    assert_eq!(base_offsets(&log.reader(), 0), [0, 1, 61]);
}

#[test]
fn truncate_cuts_whole_batches_and_appends_go_on_there() {
    let mut fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for epoch in 0..30 {
        log.append_one(&batch(10), epoch, 0).unwrap();
    }
    log.set_high_watermark(300);
    log.flush().unwrap();
    fixture.log_dir().write_checkpoints().unwrap();
    log.truncate_to(1_000).unwrap();
    assert_eq!(log.log_end_offset(), 300, "nothing to cut");
    log.truncate_to(155).unwrap();
    assert_eq!(
        (
            log.log_end_offset(),
            log.high_watermark(),
            log.recovery_point()
        ),
        (150, 150, 150)
    );
    assert_eq!(log.leader_epoch(), Some(14));
    assert_eq!(log.reader().offsets().log_end, 150);
    assert!(log.reader().slice(151, NO_LIMIT).is_err());
    let points = fixture.dir().join("recovery-point-offset-checkpoint");
    assert!(
        std::fs::read_to_string(&points)
            .unwrap()
            .contains(" 3 150\n"),
        "before any new byte"
    );
    assert_eq!(log.append_one(&batch(4), 50, 0).unwrap().base_offset, 150);
    let expected: Vec<i64> = (0..=15).map(|i| i * 10).collect();
    assert_eq!(base_offsets(&log.reader(), 0), expected);
    log.truncate_to(150).unwrap();
    log.truncate_to(0).unwrap();
    assert_eq!(
        (log.log_end_offset(), log.segments(), log.size_in_bytes()),
        (0, 1, 0)
    );
    assert!(log.truncate_to(-1).is_err());
    log.append_one(&batch(1), 60, 0).unwrap();
    drop(log);
    let (log, report) = fixture.kill_and_reopen();
    assert_eq!(
        (report.cut, report.rebuilt_indexes),
        (None, 0),
        "indexes were cut too"
    );
    assert_eq!(base_offsets(&log.reader(), 0), [0]);
    assert_eq!(
        log.end_offset_for_leader_epoch(60),
        EpochEnd {
            leader_epoch: 60,
            end_offset: 1
        }
    );
}

#[test]
fn truncation_takes_back_what_producers_had_sent() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    log.append_one(&sequenced(9, 0, 0, 3), 0, 0).unwrap();
    log.append_one(&sequenced(9, 0, 3, 3), 0, 0).unwrap();
    log.truncate_to(3).unwrap();
    let again = log.append_one(&sequenced(9, 0, 3, 3), 0, 0).unwrap();
    assert_eq!((again.base_offset, again.duplicate), (3, false));
}

#[test]
fn advancing_the_log_start_removes_whole_segments_and_survives_a_crash() {
    let mut fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for _ in 0..30 {
        log.append_one(&batch(10), 2, 0).unwrap();
    }
    let segments = log.segments();
    let beyond = log.advance_log_start(1).unwrap_err();
    assert!(
        matches!(
            beyond,
            Error::OffsetOutOfRange {
                log_end_offset: 0,
                ..
            }
        ),
        "above the high watermark"
    );
    log.set_high_watermark(300);
    assert_eq!(log.advance_log_start(155).unwrap(), 155);
    assert_eq!(
        log.advance_log_start(100).unwrap(),
        155,
        "it never goes back"
    );
    assert!(log.segments() < segments);
    let reader = log.reader();
    assert!(reader.slice(154, NO_LIMIT).is_err());
    assert_eq!(reader.slice(155, NO_LIMIT).unwrap().base_offset(), 150);
    assert_eq!(
        log.end_offset_for_leader_epoch(1),
        EpochEnd {
            leader_epoch: 1,
            end_offset: 155
        }
    );
    drop((log, reader));
    let (mut log, report) = fixture.kill_and_reopen();
    assert_eq!((report.log_start_offset, report.log_end_offset), (155, 300));
    assert_eq!(log.advance_log_start(300).unwrap(), 300);
    assert_eq!(
        (log.segments(), log.size_in_bytes()),
        (1, 0),
        "the last segment is gone too"
    );
    assert_eq!(files(&fixture.partition_dir(), ".log").len(), 1);
    let (mut log, report) = fixture.shutdown_and_reopen(log);
    assert_eq!((report.log_start_offset, report.log_end_offset), (300, 300));
    assert_eq!(log.append_one(&batch(1), 2, 0).unwrap().base_offset, 300);
}

#[test]
fn replicated_batches_keep_offsets_and_epochs() {
    let mut fixture = Fixture::small_segments();
    let mut log = fixture.create();
    let placed = |base_offset, epoch| {
        let mut bytes = BytesMut::from(&batch(10).bytes()[..]);
        broker_protocol::record::stamp(&mut bytes, base_offset, epoch).unwrap();
        RecordBatch::parse(bytes.freeze()).unwrap()
    };
    assert_eq!(log.append_replicated(&[], 0).unwrap(), None);
    let group = [
        placed(5, 1),
        placed(20, 3),
        placed(30, 3),
        placed(40, 3),
        placed(90, 4),
    ];
    let appended = log.append_replicated(&group, 0).unwrap().unwrap();
    assert_eq!((appended.base_offset, appended.end_offset), (5, 100));
    let error = log
        .append_replicated(&[placed(100, 4), placed(105, 4)], 0)
        .unwrap_err();
    let Error::Rejected { source, .. } = error else {
        panic!("{error:?}")
    };
    let expected = Rejected::OffsetBehindLogEnd {
        base_offset: 105,
        log_end_offset: 110,
    };
    assert_eq!(source.to_string(), expected.to_string());
    assert_eq!(log.log_end_offset(), 100, "all or nothing");
    drop(log);
    let (mut log, report) = fixture.kill_and_reopen();
    assert_eq!((report.cut, report.log_end_offset), (None, 100));
    assert_eq!(base_offsets(&log.reader(), 0), [5, 20, 30, 40, 90]);
    assert_eq!(
        log.reader().slice(16, NO_LIMIT).unwrap().base_offset(),
        20,
        "from inside a gap"
    );
    assert_eq!(
        log.end_offset_for_leader_epoch(3),
        EpochEnd {
            leader_epoch: 3,
            end_offset: 90
        }
    );
    log.truncate_to(60).unwrap();
    assert_eq!(log.log_end_offset(), 50, "the log ends with a batch");
    log.truncate_fully_and_start_at(500).unwrap();
    assert_eq!(
        (
            log.log_start_offset(),
            log.log_end_offset(),
            log.leader_epoch()
        ),
        (500, 500, None)
    );
    log.append_replicated(&[placed(500, 9)], 0).unwrap();
    drop(log);
    let (log, report) = fixture.kill_and_reopen();
    assert_eq!((report.log_start_offset, report.log_end_offset), (500, 510));
    assert_eq!(log.leader_epoch(), Some(9));
}

#[test]
fn a_full_disk_undoes_the_append_and_says_so() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    log.append_one(&sequenced(9, 0, 0, 3), 0, 0).unwrap();
    for space in [0, 1, 100, 1_000, 4_500, 6_000] {
        fixture.disk.set_space(space);
        let group = [sequenced(9, 0, 3, 3), batch(30), batch(30)];
        let error = log.append(&group, 0, 0).unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Retriable);
        assert_eq!(
            (log.log_end_offset(), log.segments(), log.is_offline()),
            (3, 1, false)
        );
        assert_eq!(files(&fixture.partition_dir(), ".log").len(), 1);
        assert_eq!(base_offsets(&log.reader(), 0), [0]);
        let segment = files(&fixture.partition_dir(), ".log").pop().unwrap();
        let left = std::fs::metadata(segment).unwrap().len();
        assert_eq!(left, log.size_in_bytes(), "nothing half written stays");
    }
    fixture.disk.heal();
    let outcome = log.append_one(&sequenced(9, 0, 3, 3), 0, 0).unwrap();
    assert_eq!((outcome.base_offset, outcome.duplicate), (3, false));
    assert_eq!(base_offsets(&log.reader(), 0), [0, 3]);
}

#[test]
fn a_failed_index_write_does_not_fail_the_append() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    let kind = io::ErrorKind::StorageFull;
    for suffix in ["index", "timeindex"] {
        fixture.disk.inject(Fault {
            times: usize::MAX,
            ..Fault::once(Operation::Write, suffix, kind)
        });
    }
    for _ in 0..30 {
        log.append_one(&batch(10), 0, 0).unwrap();
    }
    let expected: Vec<i64> = (0..30).map(|i| i * 10).collect();
    assert_eq!(base_offsets(&log.reader(), 0), expected);
}

#[test]
fn a_failed_sync_takes_the_log_off_line_until_it_is_opened_again() {
    let mut fixture = Fixture::small_segments();
    let mut log = fixture.create();
    log.append_one(&batch(1), 0, 0).unwrap();
    fixture
        .disk
        .inject(Fault::once(Operation::Sync, ".log", io::ErrorKind::Other));
    let error = log.flush().unwrap_err();
    assert!(
        matches!(
            error,
            Error::Io {
                operation: "sync",
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(log.recovery_point(), 0);
    for error in [
        log.append_one(&batch(1), 0, 0).unwrap_err(),
        log.truncate_to(0).unwrap_err(),
        log.advance_log_start(0).unwrap_err(),
        log.roll_if_due(0).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Offline { .. }), "{error:?}");
    }
    assert_eq!(base_offsets(&log.reader(), 0), [0], "reads go on");
    let error = fixture.log_dir().shutdown(vec![log], -1).unwrap_err();
    assert!(
        matches!(error, Error::Offline { .. }),
        "no clean shutdown: {error:?}"
    );
    let (mut log, report) = fixture.reopen();
    assert!(!report.clean);
    log.append_one(&batch(1), 0, 0).unwrap();
}

#[test]
fn a_flush_runs_elsewhere_and_proves_nothing_after_a_truncation() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for _ in 0..10 {
        log.append_one(&batch(10), 0, 0).unwrap();
    }
    assert!(log.unflushed_bytes() > 0);
    let flush = log.prepare_flush();
    assert_eq!(flush.end_offset(), 100);
    log.append_one(&batch(10), 0, 0).unwrap();
    let flushed = thread::spawn(move || flush.run()).join().unwrap().unwrap();
    assert_eq!(log.finish_flush(&flushed), 100);
    let flushed = log.prepare_flush().run().unwrap();
    log.truncate_to(50).unwrap();
    log.append_one(&batch(10), 0, 0).unwrap();
    assert_eq!(log.finish_flush(&flushed), 50);
    assert_eq!(log.flush().unwrap(), 60);
    let idle = log.prepare_flush();
    assert!(idle.is_empty());
    let flush = log.prepare_flush();
    log.set_high_watermark(60);
    log.advance_log_start(60).unwrap();
    flush.run().unwrap();
}

#[test]
fn readers_run_along_with_appends_rolls_and_deletions() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    let reader = log.reader();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let follow = || {
            let mut position = 0;
            loop {
                let finished = done.load(Ordering::Acquire);
                let slice = match reader.slice(position, limits(3_000)) {
                    Ok(slice) => slice,
                    Err(Error::OffsetOutOfRange {
                        log_start_offset, ..
                    }) => {
                        assert!(log_start_offset > position);
                        position = log_start_offset;
                        continue;
                    }
                    Err(error) => panic!("{error:?}"),
                };
                for batch in batches(slice.read().unwrap()) {
                    let batch = batch.unwrap();
                    batch.check_crc().unwrap();
                    assert!(batch.header().base_offset <= position);
                    position = batch.header().next_offset();
                }
                assert_eq!(position, slice.end_offset());
                if finished && slice.is_empty() {
                    return position;
                }
            }
        };
        let readers = [scope.spawn(follow), scope.spawn(follow)];
        for i in 0..400 {
            log.append(&[batch(3), batch(7)], 0, 0).unwrap();
            log.set_high_watermark(log.log_end_offset());
            if i % 50 == 49 {
                log.advance_log_start(log.log_end_offset() - 100).unwrap();
            }
        }
        done.store(true, Ordering::Release);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), 4_000);
        }
    });
}

#[test]
fn open_files_are_bounded_whatever_is_read() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for _ in 0..60 {
        log.append_one(&batch(20), 0, 0).unwrap();
    }
    assert!(log.segments() > 20);
    assert_eq!(read_all(&log.reader(), 0).unwrap().len(), 60);
    assert!(log.pool.open_files() <= 5, "{}", log.pool.open_files());
}

#[test]
fn a_segment_that_cannot_be_made_leaves_nothing_behind() {
    let mut fixture = Fixture::small_segments();
    let mut log = fixture.create();
    log.append_one(&batch(30), 0, 0).unwrap();
    for suffix in [".log", ".index", ".timeindex"] {
        let name = format!("{:020}{suffix}", 30);
        fixture.disk.inject(Fault::once(
            Operation::Open,
            &name,
            io::ErrorKind::StorageFull,
        ));
        let error = log.append_one(&batch(30), 0, 0).unwrap_err();
        assert!(
            matches!(
                error,
                Error::DiskFull {
                    operation: "create",
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(files(&fixture.partition_dir(), ".log").len(), 1, "{suffix}");
    }
    // The first segment grows past the offset at which the second one could not be made.
    log.append_one(&batch(1), 0, 0).unwrap();
    log.append_one(&batch(30), 0, 0).unwrap();
    drop(log);
    let (log, report) = fixture.kill_and_reopen();
    assert_eq!(report.cut, None);
    assert_eq!(base_offsets(&log.reader(), 0), [0, 30, 31]);
}

#[test]
fn a_segment_does_not_become_young_by_a_restart() {
    let mut fixture = Fixture::new(LogConfig {
        segment_ms: 1_000_000,
        ..LogConfig::default()
    });
    let mut log = fixture.create();
    // Written in 1970 by its timestamps, now by the file's time.
    log.append_one(&batch(1), 0, 1_000).unwrap();
    drop(log);
    let (mut log, _) = fixture.kill_and_reopen();
    assert!(!log.roll_if_due(1_001_000).unwrap());
    assert!(log.roll_if_due(1_001_001).unwrap());
}
