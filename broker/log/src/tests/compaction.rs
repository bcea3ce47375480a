//! What compaction keeps, and what it leaves when it fails.

use std::collections::BTreeMap;
use std::io;

use proptest::prelude::*;

use super::model::numbers;
use super::*;
use crate::disk::faulty::{Fault, Operation};
use crate::{CompactionConfig, CompactionLimits, CompactionReport, Error};

const NOW_MS: i64 = 1_700_000_000_000;
const DAY_MS: i64 = 24 * 3_600_000;

/// Offset, key and value of a record.
type Entry = (i64, Vec<u8>, Option<Vec<u8>>);

fn compacted() -> LogConfig {
    LogConfig {
        segment_bytes: 4_000,
        index_interval_bytes: 300,
        deletes: false,
        compacted: true,
        ..LogConfig::default()
    }
}

fn keyed(compression: Compression, records: &[(&str, Option<&str>)]) -> RecordBatch {
    build(BatchBuilder::new(compression), records)
}

fn build(mut builder: BatchBuilder, records: &[(&str, Option<&str>)]) -> RecordBatch {
    for (key, value) in records {
        let value = value.map(str::as_bytes);
        builder
            .push(NOW_MS, Some(key.as_bytes()), value, &[])
            .unwrap();
    }
    RecordBatch::parse(builder.build().unwrap()).unwrap()
}

fn append(log: &mut PartitionLog, records: &[(&str, Option<&str>)]) -> i64 {
    let batch = keyed(Compression::None, records);
    let appended = log.append_one(&batch, 0, NOW_MS).unwrap();
    log.advance_high_watermark();
    appended.base_offset
}

fn roll(log: &mut PartitionLog) {
    if log.active().unwrap().state().size > 0 {
        log.roll(&[]).unwrap();
        log.publish();
    }
}

const LIMITS: CompactionLimits = CompactionLimits { map_bytes: 1 << 20 };

/// One pass as the server makes it; `None` if there is nothing to do.
fn compact_at(
    log: &mut PartitionLog,
    now_ms: i64,
    limits: CompactionLimits,
) -> Result<Option<CompactionReport>> {
    let Some(mut compaction) = log.prepare_compaction(now_ms, limits)? else {
        return Ok(None);
    };
    compaction.index()?;
    while let Some(segment) = compaction.next_segment()? {
        assert!(log.swap_in(segment)?);
    }
    log.finish_compaction(&compaction).map(Some)
}

fn compact(log: &mut PartitionLog) -> CompactionReport {
    log.flush().unwrap();
    compact_at(log, NOW_MS, LIMITS)
        .unwrap()
        .expect("something to compact")
}

fn entries(log: &PartitionLog) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (_, bytes) in read_all(&log.reader(), log.log_start_offset()).unwrap() {
        let batch = RecordBatch::parse(bytes).unwrap();
        for record in &batch.records(1 << 20).unwrap() {
            let record = record.unwrap();
            let value = record.value.map(<[u8]>::to_vec);
            entries.push((
                record.offset,
                record.key.unwrap_or_default().to_vec(),
                value,
            ));
        }
    }
    entries.retain(|(offset, ..)| *offset >= log.log_start_offset());
    entries
}

fn seen(log: &PartitionLog) -> Vec<(i64, String, Option<String>)> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let entries = entries(log).into_iter();
    entries
        .map(|(offset, key, value)| (offset, text(key), value.map(text)))
        .collect()
}

fn row(offset: i64, key: &str, value: &str) -> (i64, String, Option<String>) {
    (offset, key.to_owned(), Some(value.to_owned()))
}

fn leftovers(fixture: &Fixture) -> Vec<PathBuf> {
    let dir = fixture.partition_dir();
    [".cleaned", ".swap"]
        .iter()
        .flat_map(|suffix| files(&dir, suffix))
        .collect()
}

#[test]
fn the_last_record_of_each_key_stays_at_its_offset_and_the_active_segment_is_left_alone() {
    let mut fixture = Fixture::new(compacted());
    let mut log = fixture.create();
    append(&mut log, &[("a", Some("1")), ("b", Some("1"))]);
    append(&mut log, &[("a", Some("2")), ("c", Some("1"))]);
    roll(&mut log);
    append(&mut log, &[("b", Some("2")), ("a", Some("3"))]);
    roll(&mut log);
    append(&mut log, &[("a", Some("4")), ("a", Some("5"))]);
    assert_eq!(log.dirtiness(NOW_MS).unwrap(), None, "nothing is flushed");
    log.flush().unwrap();
    let dirty = log.dirtiness(NOW_MS).unwrap().unwrap();
    assert_eq!((dirty.millionths, dirty.is_due), (1_000_000, true));
    let report = compact(&mut log);
    assert_eq!((report.records_removed, report.is_complete), (3, true));
    assert!(report.bytes_after < report.bytes_before);
    let expected = [
        row(3, "c", "1"),
        row(4, "b", "2"),
        row(5, "a", "3"),
        row(6, "a", "4"),
        row(7, "a", "5"),
    ];
    assert_eq!(seen(&log), expected);
    // The two small segments are one now.
    assert_eq!((log.segments(), log.cleaned_to()), (2, 6));
    assert_eq!(log.dirtiness(NOW_MS).unwrap(), None);
    assert!(leftovers(&fixture).is_empty());
    let (log, report) = fixture.shutdown_and_reopen(log);
    assert_eq!((report.cut, report.rebuilt_indexes), (None, 0));
    assert_eq!(seen(&log), expected);
    // Known over the restart.
    assert_eq!(log.cleaned_to(), 6);
    assert!(compact_at(&mut { log }, NOW_MS, LIMITS).unwrap().is_none());
}

#[test]
fn offsets_in_gaps_lead_to_the_next_record_and_every_codec_stays() {
    for compression in Compression::ALL {
        let fixture = Fixture::new(compacted());
        let mut log = fixture.create();
        for round in 0..5 {
            let value = format!("value {round}").repeat(20);
            let batch = keyed(compression, &[("a", Some(&value)), ("b", Some(&value))]);
            log.append_one(&batch, round, NOW_MS).unwrap();
        }
        log.append_one(&keyed(compression, &[("b", Some("last"))]), 5, NOW_MS)
            .unwrap();
        log.advance_high_watermark();
        roll(&mut log);
        append(&mut log, &[("x", Some("active"))]);
        compact(&mut log);
        let offsets: Vec<i64> = entries(&log)
            .into_iter()
            .map(|(offset, ..)| offset)
            .collect();
        assert_eq!(offsets, [8, 10, 11], "{compression}");
        let reader = log.reader();
        for offset in 0..=8 {
            assert_eq!(reader.slice(offset, NO_LIMIT).unwrap().base_offset(), 8);
        }
        let slice = reader.slice(8, NO_LIMIT).unwrap();
        let first = batches(slice.read().unwrap()).next().unwrap().unwrap();
        assert_eq!(first.header().compression().unwrap(), compression);
        assert_eq!(
            (first.header().last_offset(), first.header().records_count),
            (9, 1)
        );
        assert_eq!(first.header().partition_leader_epoch, 4);
        assert_eq!(
            reader.offset_for_timestamp(NOW_MS).unwrap().unwrap().offset,
            8
        );
    }
}

#[test]
fn a_tombstone_stays_for_its_time_and_takes_its_key_with_it_at_once() {
    let fixture = Fixture::new(compacted());
    let mut log = fixture.create();
    append(&mut log, &[("a", Some("1")), ("b", Some("1")), ("a", None)]);
    roll(&mut log);
    append(&mut log, &[("x", Some("1"))]);
    compact(&mut log);
    assert_eq!(
        seen(&log),
        [
            row(1, "b", "1"),
            (2, "a".to_owned(), None),
            row(3, "x", "1")
        ]
    );
    let slice = log.reader().slice(0, NO_LIMIT).unwrap();
    let batch = batches(slice.read().unwrap()).next().unwrap().unwrap();
    assert_eq!(batch.header().delete_horizon_ms(), Some(NOW_MS + DAY_MS));
    // The next compactions, when there is something to do.
    roll(&mut log);
    append(&mut log, &[("x", Some("2"))]);
    log.flush().unwrap();
    compact_at(&mut log, NOW_MS + DAY_MS - 1, LIMITS).unwrap();
    assert_eq!(seen(&log).len(), 4);
    roll(&mut log);
    append(&mut log, &[("x", Some("3"))]);
    log.flush().unwrap();
    compact_at(&mut log, NOW_MS + DAY_MS, LIMITS).unwrap();
    assert_eq!(
        seen(&log),
        [row(1, "b", "1"), row(4, "x", "2"), row(5, "x", "3")]
    );
}

#[test]
fn an_idempotent_producer_is_known_after_its_records_went() {
    let mut fixture = Fixture::new(compacted());
    let mut log = fixture.create();
    let sent = |sequence| {
        let builder = BatchBuilder::new(Compression::None).with_producer(9, 0, sequence);
        build(builder, &[("a", Some("1")), ("a", Some("2"))])
    };
    log.append_one(&sent(0), 0, NOW_MS).unwrap();
    log.append_one(&sent(2), 0, NOW_MS).unwrap();
    append(&mut log, &[("a", Some("3"))]);
    roll(&mut log);
    append(&mut log, &[("x", Some("1"))]);
    compact(&mut log);
    assert_eq!(seen(&log), [row(4, "a", "3"), row(5, "x", "1")]);
    drop(log);
    let (mut log, _) = fixture.kill_and_reopen();
    let repeated = log.append_one(&sent(2), 0, NOW_MS).unwrap();
    assert_eq!((repeated.base_offset, repeated.duplicate), (2, true));
    assert_eq!(log.append_one(&sent(4), 0, NOW_MS).unwrap().base_offset, 6);
}

#[test]
fn a_map_that_is_too_small_takes_several_passes() {
    let fixture = Fixture::new(compacted());
    let mut log = fixture.create();
    for round in 0..4 {
        for key in 0..20 {
            append(
                &mut log,
                &[(&format!("key {key}"), Some(&format!("{round}")))],
            );
        }
        roll(&mut log);
    }
    append(&mut log, &[("x", Some("1"))]);
    log.flush().unwrap();
    let limits = CompactionLimits { map_bytes: 32 * 10 };
    let mut passes = 0;
    while let Some(report) = compact_at(&mut log, NOW_MS, limits).unwrap() {
        passes += 1;
        assert_eq!(report.is_complete, log.cleaned_to() == 80);
        assert!(passes < 20, "no progress");
    }
    assert!(passes > 2, "{passes}");
    let left: Vec<i64> = entries(&log)
        .into_iter()
        .map(|(offset, ..)| offset)
        .collect();
    assert_eq!(left, (60..81).collect::<Vec<i64>>());
}

#[test]
fn a_record_that_a_crash_may_take_makes_no_older_one_superfluous() {
    let mut fixture = Fixture::new(compacted());
    let mut log = fixture.create();
    let large = "x".repeat(3_000);
    append(&mut log, &[("z", Some(&large)), ("a", Some("1"))]);
    roll(&mut log);
    log.flush().unwrap();
    append(&mut log, &[("a", Some(&large))]);
    roll(&mut log);
    append(&mut log, &[("b", Some("1"))]);
    if let Some(mut compaction) = log.prepare_compaction(NOW_MS, LIMITS).unwrap() {
        compaction.index().unwrap();
        if let Some(segment) = compaction.next_segment().unwrap() {
            assert!(log.swap_in(segment).unwrap());
        }
    }
    drop(log);
    fixture.opened = None;
    fixture.disk.crash(&mut |_| 0).unwrap();
    let (log, report) = fixture.reopen();
    let keys: Vec<_> = seen(&log).into_iter().map(|(_, key, _)| key).collect();
    assert_eq!(keys, ["z", "a"], "{report}");
}

#[test]
fn the_lag_and_the_ratio_say_when() {
    let fixture = Fixture::new(compacted());
    let mut log = fixture.create();
    append(&mut log, &[("a", Some("1"))]);
    roll(&mut log);
    append(&mut log, &[("a", Some("2"))]);
    log.flush().unwrap();
    let with = |compaction| LogConfig {
        compaction,
        ..compacted()
    };
    log.set_config(with(CompactionConfig {
        min_lag_ms: 1000,
        ..CompactionConfig::default()
    }));
    assert_eq!(log.dirtiness(NOW_MS + 999).unwrap(), None);
    assert!(log.dirtiness(NOW_MS + 1000).unwrap().unwrap().is_due);
    log.set_config(compacted());
    compact(&mut log);
    for _ in 0..3 {
        append(&mut log, &[("b", Some("1"))]);
    }
    roll(&mut log);
    log.flush().unwrap();
    let picky = CompactionConfig {
        min_dirty_millionths: 999_999,
        max_lag_ms: 5000,
        ..CompactionConfig::default()
    };
    log.set_config(with(picky));
    assert!(!log.dirtiness(NOW_MS + 5000).unwrap().unwrap().is_due);
    assert!(log.dirtiness(NOW_MS + 5001).unwrap().unwrap().is_due);
    log.set_config(LogConfig {
        compacted: false,
        ..compacted()
    });
    assert_eq!(log.dirtiness(NOW_MS).unwrap(), None);
}

#[test]
fn a_batch_that_cannot_be_taken_apart_stays_whole_and_tombstones_behind_it_too() {
    let fixture = Fixture::new(LogConfig {
        max_decompressed_bytes: 2_000,
        ..compacted()
    });
    let mut log = fixture.create();
    let large = "x".repeat(3_000);
    let batch = keyed(Compression::Zstd, &[("a", Some(&large)), ("a", Some("1"))]);
    log.append_one(&batch, 0, NOW_MS).unwrap();
    append(&mut log, &[("a", None), ("b", Some("1")), ("b", Some("2"))]);
    roll(&mut log);
    append(&mut log, &[("x", Some("1"))]);
    let report = compact(&mut log);
    assert_eq!(
        (report.batches_kept_whole, report.first_kept_whole),
        (1, Some(0))
    );
    roll(&mut log);
    append(&mut log, &[("x", Some("2"))]);
    log.flush().unwrap();
    compact_at(&mut log, NOW_MS + 2 * DAY_MS, LIMITS).unwrap();
    // Without the tombstone the key would come back to life.
    let offsets: Vec<i64> = entries(&log)
        .into_iter()
        .map(|(offset, ..)| offset)
        .collect();
    assert_eq!(offsets, [0, 1, 2, 4, 5, 6]);
}

#[test]
fn a_log_that_was_cut_meanwhile_is_left_alone() {
    for cut_head in [true, false] {
        let fixture = Fixture::new(compacted());
        let mut log = fixture.create();
        append(&mut log, &[("a", Some("1"))]);
        roll(&mut log);
        append(&mut log, &[("a", Some("2"))]);
        roll(&mut log);
        append(&mut log, &[("a", Some("3"))]);
        log.flush().unwrap();
        let mut compaction = log.prepare_compaction(NOW_MS, LIMITS).unwrap().unwrap();
        compaction.index().unwrap();
        let segment = compaction.next_segment().unwrap().unwrap();
        if cut_head {
            log.advance_log_start(1).unwrap();
        } else {
            log.truncate_to(1).unwrap();
        }
        let before = seen(&log);
        assert!(!log.swap_in(segment).unwrap());
        assert_eq!(seen(&log), before);
        assert!(leftovers(&fixture).is_empty());
        if !cut_head {
            log.finish_compaction(&compaction).unwrap();
            assert_eq!(log.cleaned_to(), 0);
        }
    }
}

#[test]
fn readers_of_the_old_segments_read_on() {
    let fixture = Fixture::new(compacted());
    let mut log = fixture.create();
    for round in 0..6 {
        append(
            &mut log,
            &[("a", Some(&format!("{round}"))), ("b", Some("1"))],
        );
        roll(&mut log);
    }
    append(&mut log, &[("x", Some("1"))]);
    let slice = log.reader().slice(0, NO_LIMIT).unwrap();
    // A view from before, whose files the small pool has closed.
    let view = log.shared.view();
    log.flush().unwrap();
    let mut compaction = log.prepare_compaction(NOW_MS, LIMITS).unwrap().unwrap();
    compaction.index().unwrap();
    let segment = compaction.next_segment().unwrap().unwrap();
    assert!(log.swap_in(segment).unwrap());
    assert_eq!(batches(slice.read().unwrap()).count(), 1);
    for (at, old) in view.segments.iter().enumerate().take(6) {
        let offset = 2 * i64::try_from(at).unwrap();
        let found = old.find(offset, old.state().size).unwrap().unwrap();
        assert_eq!(found.header.base_offset, offset);
    }
    assert_eq!(seen(&log).len(), 3);
}

#[test]
fn a_full_disk_leaves_the_log_as_it_was() {
    let fixture = Fixture::new(compacted());
    let mut log = fixture.create();
    for _ in 0..30 {
        append(&mut log, &[("a", Some("1")), ("b", Some("2"))]);
    }
    roll(&mut log);
    append(&mut log, &[("a", Some("3"))]);
    log.flush().unwrap();
    let before = seen(&log);
    for space in [0, 50, 78] {
        fixture.disk.set_space(space);
        let error = compact_at(&mut log, NOW_MS, LIMITS).unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
        fixture.disk.heal();
        assert!(!log.is_offline());
        assert_eq!((seen(&log), log.cleaned_to()), (before.clone(), 0));
        assert!(leftovers(&fixture).is_empty());
    }
    compact(&mut log);
    assert_eq!(seen(&log).len(), 3);
}

#[derive(Debug, Clone)]
enum Step {
    Append {
        records: Vec<(u8, Option<u8>)>,
        codec: u8,
    },
    Roll,
    Flush,
    Checkpoint,
    Compact {
        small: bool,
    },
    Later,
    Advance {
        at: u8,
    },
    Truncate {
        at: u8,
    },
    Reopen,
    Crash {
        seed: u64,
    },
    FailAndCrash {
        operation: u8,
        after: usize,
        seed: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let record = (0u8..6, prop::option::weighted(0.75, any::<u8>()));
    prop_oneof![
        10 => (prop::collection::vec(record, 1..6), 0u8..5)
            .prop_map(|(records, codec)| Step::Append { records, codec }),
        5 => Just(Step::Roll),
        4 => Just(Step::Flush),
        1 => Just(Step::Checkpoint),
        5 => any::<bool>().prop_map(|small| Step::Compact { small }),
        2 => Just(Step::Later),
        1 => any::<u8>().prop_map(|at| Step::Advance { at }),
        1 => any::<u8>().prop_map(|at| Step::Truncate { at }),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
        4 => (0u8..6, 0usize..16, any::<u64>())
            .prop_map(|(operation, after, seed)| Step::FailAndCrash { operation, after, seed }),
    ]
}

/// The log beside all records that were appended and not cut off.
struct World {
    fixture: Fixture,
    log: Option<PartitionLog>,
    all: Vec<Entry>,
    now_ms: i64,
    durable_end: i64,
    /// Nothing at or above it may ever have been compacted.
    cleanable_end: i64,
}

impl World {
    fn new() -> Self {
        let fixture = Fixture::new(LogConfig {
            segment_bytes: 700,
            index_interval_bytes: 100,
            ..compacted()
        });
        let log = Some(fixture.create());
        Self {
            fixture,
            log,
            all: Vec::new(),
            now_ms: NOW_MS,
            durable_end: 0,
            cleanable_end: 0,
        }
    }

    fn log(&mut self) -> &mut PartitionLog {
        self.log.as_mut().unwrap()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append { records, codec } => self.append(records, *codec),
            Step::Roll => roll(self.log()),
            Step::Flush => {
                self.durable_end = self.log().flush().unwrap();
            }
            Step::Checkpoint => self.fixture.log_dir().write_checkpoints().unwrap(),
            Step::Compact { small } => {
                if self.compact(*small).unwrap() {
                    self.check_that_keys_are_unique();
                }
            }
            Step::Later => self.now_ms += DAY_MS,
            Step::Advance { at } => {
                let log = self.log();
                let (start, end) = (log.log_start_offset(), log.log_end_offset());
                let offset = start + i64::from(*at) % (end - start + 1);
                log.advance_log_start(offset).unwrap();
            }
            Step::Truncate { at } => {
                // What has been committed is never cut, and no more is compacted.
                let cleanable_end = self.cleanable_end;
                let log = self.log();
                let start = log.log_start_offset().max(cleanable_end);
                let end = log.log_end_offset();
                log.truncate_to(start + i64::from(*at) % (end - start + 1))
                    .unwrap();
                let end = log.log_end_offset();
                self.cut(end);
            }
            Step::Reopen => {
                let log = self.log.take().unwrap();
                let (log, report) = self.fixture.shutdown_and_reopen(log);
                assert_eq!((report.cut, report.rebuilt_indexes), (None, 0));
                self.log = Some(log);
            }
            Step::Crash { seed } => self.crash(*seed),
            Step::FailAndCrash {
                operation,
                after,
                seed,
            } => self.fail_and_crash(*operation, *after, *seed),
        }
        self.check();
    }

    fn append(&mut self, records: &[(u8, Option<u8>)], codec: u8) {
        let mut builder = BatchBuilder::new(Compression::from_code(codec).unwrap());
        let base_offset = self.log().log_end_offset();
        for ((key, value), offset) in records.iter().zip(base_offset..) {
            let key = vec![b'k', *key];
            let value = value.map(|value| vec![value; 20]);
            builder
                .push(NOW_MS, Some(&key), value.as_deref(), &[])
                .unwrap();
            self.all.push((offset, key, value));
        }
        let batch = RecordBatch::parse(builder.build().unwrap()).unwrap();
        let log = self.log();
        let appended = log.append_one(&batch, 0, NOW_MS).unwrap();
        log.advance_high_watermark();
        assert_eq!(appended.base_offset, base_offset);
    }

    fn compact(&mut self, small: bool) -> Result<bool> {
        let now_ms = self.now_ms;
        let map_bytes = if small { 32 * 4 } else { 1 << 16 };
        let log = self.log();
        let active = log.active().unwrap().base_offset();
        let report = compact_at(log, now_ms, CompactionLimits { map_bytes });
        self.cleanable_end = self.cleanable_end.max(active);
        report.map(|report| report.is_some())
    }

    fn check_that_keys_are_unique(&mut self) {
        let cleaned_to = self.log().cleaned_to();
        let mut last = BTreeMap::new();
        for (offset, key, _) in entries(self.log()) {
            if offset < cleaned_to {
                assert_eq!(last.insert(key, offset), None, "two records of a key");
            }
        }
    }

    fn fail_and_crash(&mut self, operation: u8, after: usize, seed: u64) {
        let operation = [
            Operation::Rename,
            Operation::SyncDir,
            Operation::Remove,
            Operation::Write,
            Operation::Sync,
            Operation::Open,
        ][usize::from(operation)];
        let mut fault = Fault::once(operation, "", io::ErrorKind::Other);
        fault.after = after;
        fault.times = usize::MAX;
        self.fixture.disk.inject(fault);
        let failed = self.compact(seed.is_multiple_of(2));
        self.fixture.disk.heal();
        if failed.is_ok() && seed.is_multiple_of(3) {
            return;
        }
        if failed.is_err() && !self.log().is_offline() {
            self.check();
        }
        self.crash(seed);
    }

    fn crash(&mut self, seed: u64) {
        self.log = None;
        self.fixture.opened = None;
        self.fixture.disk.crash(&mut numbers(seed)).unwrap();
        let (log, report) = self.fixture.reopen();
        let end = log.log_end_offset();
        assert!(
            end >= self.durable_end,
            "{report} but {} was flushed",
            self.durable_end
        );
        assert!(leftovers(&self.fixture).is_empty());
        self.log = Some(log);
        self.cut(end);
    }

    fn cut(&mut self, end: i64) {
        self.all.retain(|(offset, ..)| *offset < end);
        self.durable_end = self.durable_end.min(end);
        self.cleanable_end = self.cleanable_end.min(end);
    }

    fn check(&mut self) {
        let log = self.log.as_ref().unwrap();
        let start = log.log_start_offset();
        let left = entries(log);
        assert!(left.is_sorted_by(|a, b| a.0 < b.0), "order");
        for entry in &left {
            assert!(self.all.contains(entry), "{entry:?} was never appended");
        }
        let readable = self.all.iter().filter(|(offset, ..)| *offset >= start);
        let mut last: BTreeMap<&[u8], &Entry> = BTreeMap::new();
        for entry in readable {
            last.insert(&entry.1, entry);
            if entry.0 >= self.cleanable_end {
                assert!(
                    left.contains(entry),
                    "{entry:?} is above what was compacted"
                );
            }
        }
        for (key, entry) in last {
            let of_key: Vec<_> = left.iter().filter(|left| left.1 == key).collect();
            match &entry.2 {
                Some(_) => assert_eq!(of_key.last(), Some(&entry), "the last value is gone"),
                None => assert!(
                    of_key.is_empty() || of_key.last() == Some(&entry),
                    "{of_key:?} outlived its tombstone {entry:?}"
                ),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn the_last_value_of_each_key_outlives_compactions_and_crashes(
        steps in prop::collection::vec(step(), 1..50)
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
    }
}
