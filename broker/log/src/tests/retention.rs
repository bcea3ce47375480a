//! Which segments retention takes, and that they stay gone.

use std::fs::File;
use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::{DeletedSegment, Expiry};

const HOUR_MS: i64 = 3_600_000;
/// The clock of these tests: some days after the time that files have by default here.
const NOW_MS: i64 = 4_000_000_000_000;

/// A log of segments with one batch of these timestamps each; the last is active.
fn log_of(fixture: &Fixture, stamps: &[i64]) -> PartitionLog {
    let mut log = fixture.create();
    for (at, stamp) in stamps.iter().enumerate() {
        if at > 0 {
            log.roll(&[]).unwrap();
        }
        log.append_one(&batch_at(Compression::None, &[*stamp; 2], 50), 0, NOW_MS)
            .unwrap();
    }
    log.advance_high_watermark();
    log.publish();
    log
}

fn keeping(retention_ms: Option<i64>, retention_bytes: Option<u64>) -> Fixture {
    Fixture::new(LogConfig {
        retention_ms,
        retention_bytes,
        ..LogConfig::default()
    })
}

fn bases(deleted: &[DeletedSegment]) -> Vec<i64> {
    deleted.iter().map(|segment| segment.base_offset).collect()
}

/// Gives the file of the segment at `base_offset` this time.
fn touch(fixture: &Fixture, base_offset: i64, modified_ms: i64) {
    let path = fixture
        .partition_dir()
        .join(format!("{base_offset:020}.log"));
    let time = UNIX_EPOCH + Duration::from_millis(u64::try_from(modified_ms).unwrap());
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(time)
        .unwrap();
}

#[test]
fn segments_go_by_age_from_the_head_up_to_the_first_that_is_young() {
    let fixture = keeping(Some(HOUR_MS), None);
    let old = NOW_MS - 2 * HOUR_MS;
    let mut log = log_of(&fixture, &[old, old + 5, NOW_MS, old, NOW_MS]);
    let deleted = log.delete_old_segments(NOW_MS).unwrap();
    assert_eq!(bases(&deleted), [0, 2]);
    assert_eq!(
        deleted[1].expiry,
        Expiry::Age {
            age_ms: 2 * HOUR_MS - 5
        }
    );
    assert_eq!(log.log_start_offset(), 4);
    assert_eq!(base_offsets(&log.reader(), 4), [4, 6, 8]);
    assert_eq!(files(&fixture.partition_dir(), ".log").len(), 3);
    assert_eq!(log.delete_old_segments(NOW_MS).unwrap(), []);
}

#[test]
fn absurd_timestamps_give_way_to_the_time_of_the_file() {
    for absurd in [-1, NOW_MS + HOUR_MS + 1, i64::MAX] {
        let fixture = keeping(Some(HOUR_MS), None);
        let mut log = log_of(&fixture, &[absurd, absurd, NOW_MS]);
        touch(&fixture, 0, NOW_MS - 2 * HOUR_MS);
        touch(&fixture, 2, NOW_MS);
        assert_eq!(
            bases(&log.delete_old_segments(NOW_MS).unwrap()),
            [0],
            "{absurd}"
        );
    }
    // An hour ahead is what the topic takes.
    let fixture = keeping(Some(HOUR_MS), None);
    let mut log = log_of(&fixture, &[NOW_MS + HOUR_MS, NOW_MS]);
    touch(&fixture, 0, 0);
    assert_eq!(log.delete_old_segments(NOW_MS).unwrap(), []);
}

#[test]
fn segments_go_by_size_until_the_partition_fits() {
    let fixture = keeping(None, None);
    let mut log = log_of(&fixture, &[0, 0, 0, 0]);
    let bytes = log.size_in_bytes();
    let limited = |limit| LogConfig {
        retention_bytes: Some(limit),
        ..fixture.config.clone()
    };
    log.set_config(limited(bytes - 1));
    assert_eq!(log.delete_old_segments(NOW_MS).unwrap(), []);
    log.set_config(limited(bytes / 2));
    let deleted = log.delete_old_segments(NOW_MS).unwrap();
    assert_eq!(bases(&deleted), [0, 2]);
    assert_eq!(deleted[0].expiry, Expiry::Size { log_bytes: bytes });
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (4, 8));
}

#[test]
fn nothing_goes_above_the_high_watermark_or_without_the_policy() {
    let fixture = keeping(Some(HOUR_MS), Some(1));
    let mut log = log_of(&fixture, &[0, 0, 0]);
    log.set_high_watermark(3);
    assert_eq!(bases(&log.delete_old_segments(NOW_MS).unwrap()), [0]);
    log.advance_high_watermark();
    log.set_config(LogConfig {
        deletes: false,
        compacted: true,
        ..fixture.config.clone()
    });
    assert_eq!(log.delete_old_segments(NOW_MS).unwrap(), []);
    log.set_config(LogConfig {
        deletes: true,
        compacted: true,
        ..fixture.config.clone()
    });
    assert_eq!(bases(&log.delete_old_segments(NOW_MS).unwrap()), [2, 4]);
}

#[test]
fn the_active_segment_goes_too_and_offsets_go_on() {
    let fixture = keeping(Some(HOUR_MS), None);
    let mut log = log_of(&fixture, &[0, 0]);
    assert_eq!(bases(&log.delete_old_segments(NOW_MS).unwrap()), [0, 2]);
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (4, 4));
    assert_eq!(log.size_in_bytes(), 0);
    assert_eq!(log.append_one(&batch(1), 0, NOW_MS).unwrap().base_offset, 4);
}

#[test]
fn a_slice_taken_before_is_read_after_its_segment_is_gone() {
    let fixture = keeping(Some(HOUR_MS), None);
    let mut log = log_of(&fixture, &[0, NOW_MS]);
    let slice = log.reader().slice(0, NO_LIMIT).unwrap();
    assert_eq!(bases(&log.delete_old_segments(NOW_MS).unwrap()), [0]);
    assert_eq!(batches(slice.read().unwrap()).count(), 1);
    assert!(log.reader().slice(0, NO_LIMIT).is_err());
}

#[test]
fn what_was_deleted_stays_gone_over_any_crash() {
    for seed in 0..40u64 {
        let mut fixture = keeping(Some(HOUR_MS), None);
        let mut log = log_of(&fixture, &[0, 0, NOW_MS, NOW_MS]);
        log.flush().unwrap();
        fixture.log_dir().write_checkpoints().unwrap();
        assert_eq!(log.delete_old_segments(NOW_MS).unwrap().len(), 2);
        // Another partition's change writes what is noted of this one.
        fixture.log_dir().write_checkpoints().unwrap();
        drop(log);
        fixture.opened = None;
        let mut number = seed;
        let mut choose = |below: usize| {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(number >> 33).unwrap() % below
        };
        fixture.disk.crash(&mut choose).unwrap();
        let (log, report) = fixture.reopen();
        assert_eq!(
            (log.log_start_offset(), log.log_end_offset()),
            (4, 8),
            "{report}"
        );
    }
}
