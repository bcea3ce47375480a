//! What an open finds after each way to stop badly.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

use super::*;
use crate::Error;

/// A killed log of 30 batches of 10 records, flushed and checkpointed up to `flushed`.
fn killed(flushed: i64) -> Fixture {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    while log.log_end_offset() < 300 {
        log.append_one(&batch(10), 3, 0).unwrap();
        if log.log_end_offset() == flushed {
            log.flush().unwrap();
            fixture.log_dir().write_checkpoints().unwrap();
        }
    }
    fixture
}

fn segments(fixture: &Fixture) -> Vec<PathBuf> {
    files(&fixture.partition_dir(), ".log")
}

fn base_of(path: &Path) -> i64 {
    path.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

fn append_bytes(path: &Path, bytes: &[u8]) {
    OpenOptions::new()
        .append(true)
        .open(path)
        .unwrap()
        .write_all(bytes)
        .unwrap();
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// The log goes on at its end.
fn goes_on(mut log: PartitionLog, at: i64) {
    assert_eq!(log.log_end_offset(), at);
    assert_eq!(log.append_one(&batch(2), 3, 0).unwrap().base_offset, at);
    let expected: Vec<i64> = (0..=at / 10).map(|i| i * 10).collect();
    assert_eq!(base_offsets(&log.reader(), 0), expected);
}

#[test]
fn an_unclean_stop_without_damage_loses_nothing_and_scans_beyond_the_recovery_point_only() {
    let mut fixture = killed(200);
    let size = u64::try_from(batch(10).bytes().len()).unwrap();
    let (log, report) = fixture.kill_and_reopen();
    assert!(!report.clean);
    assert_eq!(report.recovery_point, 200);
    assert_eq!(
        (report.batches_scanned, report.bytes_scanned),
        (10, 10 * size)
    );
    assert_eq!((report.cut.clone(), report.rebuilt_indexes), (None, 0));
    assert_eq!(
        log.recovery_point(),
        300,
        "what was scanned has been synced"
    );
    goes_on(log, 300);
}

#[test]
fn a_clean_shutdown_scans_nothing() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for _ in 0..30 {
        log.append_one(&batch(10), 3, 0).unwrap();
    }
    let mut fixture = fixture;
    let (log, report) = fixture.shutdown_and_reopen(log);
    assert!(report.clean && fixture.opened.as_ref().unwrap().clean);
    assert_eq!((report.bytes_scanned, report.rebuilt_indexes), (0, 0));
    goes_on(log, 300);
    let (_, report) = fixture.kill_and_reopen();
    assert!(!report.clean, "the marker counts once");
}

#[test]
fn a_torn_tail_is_cut_at_every_byte() {
    for torn in [1, 11, 12, 60, 61, 62, 500, 1_000] {
        let mut fixture = killed(200);
        let last = segments(&fixture).pop().unwrap();
        let whole = len(&last);
        let size = u64::try_from(batch(10).bytes().len()).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&last)
            .unwrap()
            .set_len(whole - size + torn)
            .unwrap();
        let (log, report) = fixture.kill_and_reopen();
        let cut = report.cut.unwrap();
        assert_eq!(
            (cut.at_offset, cut.bytes, cut.position),
            (290, torn, whole - size)
        );
        assert_eq!(cut.path, last);
        assert_eq!(len(&last), whole - size);
        goes_on(log, 290);
    }
}

#[test]
fn zeros_and_garbage_behind_the_end_are_cut() {
    for (tail, reason) in [
        (vec![0; 5_000], "the bytes are zeros"),
        (vec![0; 7], "7 bytes are too few for a batch header"),
        (b"garbage ".repeat(100), "record format"),
    ] {
        let mut fixture = killed(200);
        let last = segments(&fixture).pop().unwrap();
        append_bytes(&last, &tail);
        let (log, report) = fixture.kill_and_reopen();
        let cut = report.cut.unwrap();
        assert_eq!(
            (cut.at_offset, cut.bytes),
            (300, u64::try_from(tail.len()).unwrap())
        );
        assert!(cut.reason.contains(reason), "{}", cut.reason);
        goes_on(log, 300);
    }
}

#[test]
fn a_flipped_bit_beyond_the_recovery_point_cuts_there_and_later_segments_are_set_aside() {
    let mut fixture = killed(50);
    let all = segments(&fixture);
    assert!(all.len() > 5);
    let victim = &all[3];
    let size = u64::try_from(batch(10).bytes().len()).unwrap();
    flip(victim, size + 100);
    let before: u64 = all[3..].iter().map(|path| len(path)).sum();
    let later: Vec<_> = all[4..]
        .iter()
        .map(|path| fs::read(path).unwrap())
        .collect();
    let (log, report) = fixture.kill_and_reopen();
    let cut = report.cut.clone().unwrap();
    assert_eq!((&cut.path, cut.position), (victim, size));
    assert_eq!(cut.at_offset, base_of(victim) + 10);
    assert_eq!(cut.bytes, before - size);
    assert!(cut.reason.starts_with("checksum "), "{}", cut.reason);
    assert_eq!(report.set_aside.len(), later.len());
    for (path, content) in report.set_aside.iter().rev().zip(later) {
        assert_eq!(fs::read(path).unwrap(), content);
    }
    assert_eq!(segments(&fixture).len(), 4);
    let text = report.to_string();
    assert!(text.starts_with("my-orders-3: [0, "), "{text}");
    assert!(text.contains("segments set aside"), "{text}");
    goes_on(log, cut.at_offset);
    let (_, report) = fixture.kill_and_reopen();
    assert_eq!(report.cut, None, "the second time nothing is left to cut");
}

#[test]
fn a_hole_between_segments_is_a_cut() {
    let mut fixture = killed(50);
    let all = segments(&fixture);
    let size = u64::try_from(batch(10).bytes().len()).unwrap();
    let victim = OpenOptions::new().write(true).open(&all[2]).unwrap();
    victim.set_len(size).unwrap();
    let (log, report) = fixture.kill_and_reopen();
    let cut = report.cut.unwrap();
    assert_eq!(cut.at_offset, base_of(&all[2]) + 10);
    assert!(
        cut.reason.contains("the next one begins at"),
        "{}",
        cut.reason
    );
    goes_on(log, cut.at_offset);
}

#[test]
fn later_segments_without_a_sound_batch_are_removed() {
    let mut fixture = killed(50);
    let all = segments(&fixture);
    fs::write(&all[2], b"").unwrap();
    for path in &all[3..] {
        flip(path, 70);
    }
    let (log, report) = fixture.kill_and_reopen();
    assert_eq!(
        (report.set_aside.len(), report.removed_segments),
        (0, all.len() - 3)
    );
    assert_eq!(files(&fixture.partition_dir(), ".cut").len(), 0);
    goes_on(log, base_of(&all[2]));
}

#[test]
fn offsets_that_go_back_are_cut() {
    let mut fixture = killed(200);
    let last = segments(&fixture).pop().unwrap();
    let copy = fs::read(&last).unwrap();
    append_bytes(&last, &copy);
    let (log, report) = fixture.kill_and_reopen();
    assert!(report.cut.unwrap().reason.contains("follows 299"));
    goes_on(log, 300);
}

#[test]
fn damage_in_what_was_synced_is_left_alone_and_reported() {
    let mut fixture = killed(300);
    let all = segments(&fixture);
    // The length field of the second batch in a sealed segment; its index leads to the third, which is the last.
    let size = u64::try_from(batch(10).bytes().len()).unwrap();
    flip(&all[1], size + 9);
    let before = len(&all[1]);
    let (log, report) = fixture.kill_and_reopen();
    assert_eq!((&report.cut, report.damaged.len()), (&None, 0));
    assert_eq!((len(&all[1]), log.log_end_offset()), (before, 300));
    let reader = log.reader();
    let bad = base_of(&all[1]) + 15;
    let error = reader.slice(bad, NO_LIMIT).unwrap_err();
    let Error::Corrupt { position, path, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!((position, &path), (size, &all[1]));
    assert_eq!(
        reader
            .slice(base_of(&all[2]), NO_LIMIT)
            .unwrap()
            .base_offset(),
        base_of(&all[2])
    );
    // What an open looks at is reported by it: here the last batch, and all of them once the index is gone.
    drop((log, reader));
    fs::remove_file(all[1].with_extension("index")).unwrap();
    flip(&all[2], 2 * size + 9);
    let (log, report) = fixture.kill_and_reopen();
    let found: Vec<_> = report
        .damaged
        .iter()
        .map(|(path, position, _)| (path, *position))
        .collect();
    assert_eq!(found, [(&all[1], size), (&all[2], 2 * size)]);
    assert!(report.to_string().contains("2 damaged places"), "{report}");
    assert_eq!((len(&all[1]), log.log_end_offset()), (before, 300));
}

/// Damages an index file, given what it should hold.
type Spoil = fn(&Path, &[u8]);

/// A closed log of 40 batches of 10 records with growing timestamps, and its index files.
fn indexed() -> (Fixture, Vec<PathBuf>, Vec<Vec<u8>>) {
    let fixture = Fixture::new(LogConfig {
        segment_bytes: 20_000,
        index_interval_bytes: 500,
        ..LogConfig::default()
    });
    let mut fixture = fixture;
    let mut log = fixture.create();
    for i in 0..40 {
        log.append_one(&batch_at(Compression::None, &[i * 5; 10], 100), 0, 0)
            .unwrap();
    }
    let (log, report) = fixture.shutdown_and_reopen(log);
    assert_eq!(report.rebuilt_indexes, 0);
    fixture.log_dir().shutdown(vec![log], -1).unwrap();
    fixture.opened = None;
    let dir = fixture.partition_dir();
    let indexes = [files(&dir, ".index"), files(&dir, ".timeindex")].concat();
    assert!(indexes.len() >= 4);
    let good: Vec<Vec<u8>> = indexes.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(
        good.iter().all(|bytes| bytes.len() >= 24),
        "every index has entries"
    );
    (fixture, indexes, good)
}

/// Every offset and every timestamp leads to where it should.
fn lookups_are_right(log: &PartitionLog, name: &str) {
    let expected: Vec<i64> = (0..40).map(|i| i * 10).collect();
    let reader = log.reader();
    assert_eq!(base_offsets(&reader, 0), expected, "{name}");
    for i in 0..40 {
        let slice = reader.slice(i * 10 + 3, NO_LIMIT).unwrap();
        assert_eq!(slice.base_offset(), i * 10, "{name}");
        let found = reader.offset_for_timestamp(i * 5).unwrap().unwrap();
        assert_eq!(
            (found.offset, found.timestamp_ms),
            (i * 10, i * 5),
            "{name}"
        );
    }
}

#[test]
fn missing_and_wrong_indexes_are_rebuilt_byte_for_byte() {
    let (mut fixture, indexes, good) = indexed();
    let spoil: [(&str, Spoil); 5] = [
        ("missing", |path, _| fs::remove_file(path).unwrap()),
        ("empty", |path, _| fs::write(path, b"").unwrap()),
        ("half an entry", |path, good| {
            fs::write(path, &good[..good.len() - 3]).unwrap();
        }),
        ("zeros", |path, good| {
            fs::write(path, vec![0; good.len()]).unwrap();
        }),
        ("a last entry that is plausible but untrue", |path, good| {
            let mut bytes = good.to_vec();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(path, bytes).unwrap();
        }),
    ];
    for ((name, spoil), clean) in spoil.into_iter().flat_map(|s| [(s, true), (s, false)]) {
        for (path, good) in indexes.iter().zip(&good) {
            spoil(path, good);
        }
        if !clean {
            fs::remove_file(fixture.dir().join(".kafka_cleanshutdown")).unwrap();
        }
        let (log, report) = fixture.reopen();
        assert_eq!((report.clean, &report.cut), (clean, &None));
        // An index that says nothing says nothing untrue: where the batches are walked anyway it is filled up.
        let filled = if name == "empty" && !clean { 2 } else { 0 };
        assert_eq!(report.rebuilt_indexes, indexes.len() - filled, "{name}");
        assert_eq!(report.bytes_scanned, 0, "{name}");
        lookups_are_right(&log, name);
        fixture.log_dir().shutdown(vec![log], -1).unwrap();
        fixture.opened = None;
        for (path, good) in indexes.iter().zip(&good) {
            assert_eq!(&fs::read(path).unwrap(), good, "{name}: {}", path.display());
        }
    }
}

#[test]
fn wrong_index_entries_that_an_open_does_not_look_at_lead_no_lookup_astray() {
    let (mut fixture, indexes, good) = indexed();
    let spoil: [(&str, Spoil); 3] = [
        ("each entry but the last", |path, good| {
            let len = if path.to_string_lossy().ends_with("timeindex") {
                12
            } else {
                8
            };
            let mut bytes = good.to_vec();
            for at in (len - 1..good.len() - len).step_by(len) {
                // A later offset, or another position.
                bytes[at] ^= 0x20;
            }
            fs::write(path, bytes).unwrap();
        }),
        (
            "the timestamp or position of the first entry",
            |path, good| {
                let at = if path.to_string_lossy().ends_with("timeindex") {
                    7
                } else {
                    6
                };
                let mut bytes = good.to_vec();
                bytes[at] ^= 2;
                fs::write(path, bytes).unwrap();
            },
        ),
        ("another one's", |path, good| {
            fs::write(path, [good, good].concat()).unwrap();
        }),
    ];
    for (name, spoil) in spoil {
        for (path, good) in indexes.iter().zip(&good) {
            spoil(path, good);
        }
        let (log, report) = fixture.reopen();
        assert_eq!((report.clean, report.rebuilt_indexes), (true, 0), "{name}");
        lookups_are_right(&log, name);
        drop(log);
        fixture.opened = None;
        fs::write(fixture.dir().join(".kafka_cleanshutdown"), b"").unwrap();
    }
}

#[test]
fn an_index_that_goes_bad_while_open_costs_time_only() {
    let fixture = Fixture::new(LogConfig {
        index_interval_bytes: 500,
        ..LogConfig::default()
    });
    let mut log = fixture.create();
    for _ in 0..30 {
        log.append_one(&batch(10), 0, 0).unwrap();
    }
    let index = files(&fixture.partition_dir(), ".index").pop().unwrap();
    for at in (7..len(&index)).step_by(8) {
        flip(&index, at);
    }
    for offset in 0..300 {
        let slice = log
            .reader()
            .slice(
                offset,
                ReadLimits {
                    max_bytes: 5_000,
                    ..NO_LIMIT
                },
            )
            .unwrap();
        assert_eq!(slice.base_offset(), offset / 10 * 10);
        let size = batch(10).bytes().len();
        assert_eq!(
            slice.len(),
            (5_000 / size).min(usize::try_from(30 - offset / 10).unwrap()) * size
        );
    }
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let mut fixture = killed(200);
    let dir = fixture.partition_dir();
    for name in [
        "00000000000000009999.index",
        "00000000000000009999.timeindex",
        "x.log.deleted",
        "y.tmp",
    ] {
        fs::write(dir.join(name), b"x").unwrap();
    }
    let (log, _) = fixture.kill_and_reopen();
    assert_eq!(
        files(&dir, "9999.index").len() + files(&dir, "9999.timeindex").len(),
        0
    );
    assert_eq!(files(&dir, ".deleted").len() + files(&dir, ".tmp").len(), 0);
    goes_on(log, 300);
}

#[test]
fn leader_epochs_are_cut_with_the_log_and_rebuilt_when_malformed() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for epoch in 0..30 {
        log.append_one(&batch(10), epoch, 0).unwrap();
    }
    drop(log);
    let mut fixture = fixture;
    let all = segments(&fixture);
    flip(&all[2], 100);
    let (log, report) = fixture.kill_and_reopen();
    let end = report.log_end_offset;
    assert_eq!(
        log.leader_epoch(),
        Some(i32::try_from(end / 10).unwrap() - 1)
    );
    drop(log);
    let path = fixture.partition_dir().join("leader-epoch-checkpoint");
    let good = fs::read(&path).unwrap();
    for bad in [&b"0\n2\n5 0\n4 1\n"[..], b"nonsense", b"\xff\xfe"] {
        fixture.opened = None;
        fs::write(&path, bad).unwrap();
        drop(fixture.reopen());
        assert_eq!(fs::read(&path).unwrap(), good);
    }
}

#[test]
fn a_log_start_beyond_what_is_left_begins_a_new_log_there() {
    let fixture = Fixture::small_segments();
    let mut log = fixture.create();
    for _ in 0..30 {
        log.append_one(&batch(10), 0, 0).unwrap();
    }
    log.set_high_watermark(300);
    log.advance_log_start(255).unwrap();
    drop(log);
    let mut fixture = fixture;
    fixture.opened = None;
    flip(&segments(&fixture)[0], 70);
    let (mut log, report) = fixture.reopen();
    assert!(report.cut.is_some());
    assert_eq!((report.log_start_offset, report.log_end_offset), (255, 255));
    assert_eq!(log.append_one(&batch(1), 0, 0).unwrap().base_offset, 255);
}

#[test]
fn malformed_recovery_points_mean_that_everything_is_scanned() {
    let mut fixture = killed(300);
    fixture.opened = None;
    fs::write(
        fixture.dir().join("recovery-point-offset-checkpoint"),
        "0\n7\n",
    )
    .unwrap();
    let opened = fixture.open();
    assert_eq!(opened.warnings.len(), 1);
    assert!(
        opened.warnings[0].contains("malformed at line 2"),
        "{}",
        opened.warnings[0]
    );
    assert_eq!(opened.partitions[0].1.batches_scanned, 30);
}
