//! Random operations and crashes against a `Vec` of batches.
//!
//! A crash may lose everything behind the last flush and nothing before it: the log must be a prefix of the model that
//! reaches at least to what was flushed, whatever the file system kept of the rest. What idempotent producers have sent
//! is known as far as it is in the log: each of a producer's last five batches is recognised, a gap is refused.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Append {
        /// Records and producer; producer 0 is none.
        batches: Vec<(usize, i64)>,
        epoch_step: i32,
    },
    Read {
        at: u16,
        max_bytes: usize,
        up_to: u16,
    },
    Roll,
    Truncate {
        at: u16,
    },
    Advance {
        at: u16,
    },
    Flush,
    Checkpoint,
    Reopen {
        clean: bool,
    },
    Crash {
        seed: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (prop::collection::vec((1usize..30, 0i64..3), 1..4), 0i32..2)
            .prop_map(|(batches, epoch_step)| Step::Append { batches, epoch_step }),
        4 => (any::<u16>(), 1usize..9_000, any::<u16>())
            .prop_map(|(at, max_bytes, up_to)| Step::Read { at, max_bytes, up_to }),
        1 => Just(Step::Roll),
        1 => any::<u16>().prop_map(|at| Step::Truncate { at }),
        1 => any::<u16>().prop_map(|at| Step::Advance { at }),
        2 => Just(Step::Flush),
        1 => Just(Step::Checkpoint),
        1 => any::<bool>().prop_map(|clean| Step::Reopen { clean }),
        2 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
    ]
}

/// The generator `SplitMix64`.
pub(super) fn numbers(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % below as u64).unwrap()
    }
}

/// A batch that is in the log, by its first and end offset.
#[derive(Debug, Clone)]
struct Kept {
    base_offset: i64,
    end_offset: i64,
    epoch: i32,
    producer_id: i64,
    sequence: i32,
    bytes: Bytes,
}

impl Kept {
    fn records(&self) -> i32 {
        i32::try_from(self.end_offset - self.base_offset).unwrap()
    }
}

struct Model {
    batches: Vec<Kept>,
    log_start: i64,
    log_end: i64,
    /// Survives any crash.
    durable_end: i64,
    epoch: i32,
}

impl Model {
    /// An offset in `[log start, log end]`.
    fn offset(&self, at: u16) -> i64 {
        self.log_start + i64::from(at) % (self.log_end - self.log_start + 1)
    }

    fn readable(&self) -> impl Iterator<Item = &Kept> {
        self.batches
            .iter()
            .filter(|kept| kept.end_offset > self.log_start)
    }

    /// Where a producer goes on.
    fn next_sequence(&self, producer_id: i64) -> i32 {
        let last = self
            .batches
            .iter()
            .rfind(|kept| kept.producer_id == producer_id);
        last.map_or(0, |last| last.sequence + last.records())
    }

    /// Repetitions of what is in the log are recognised, gaps are refused.
    fn check_producers(&self, log: &mut PartitionLog) {
        for producer_id in 1..3 {
            let of_it = self
                .readable()
                .filter(|kept| kept.producer_id == producer_id);
            let sent: Vec<&Kept> = of_it.collect();
            if sent.is_empty() {
                continue;
            }
            for kept in sent.iter().rev().take(5) {
                let batch = RecordBatch::parse(kept.bytes.clone()).unwrap();
                let repeated = log.append_one(&batch, kept.epoch, 0).unwrap();
                assert!(repeated.duplicate);
                assert_eq!(repeated.base_offset, kept.base_offset);
                assert_eq!(repeated.end_offset, kept.end_offset);
            }
            let gap = sequenced(producer_id, 0, self.next_sequence(producer_id) + 1, 1);
            let refused = log.append_one(&gap, self.epoch, 0).unwrap_err();
            assert_eq!(
                refused.error_code(),
                broker_protocol::ErrorCode::OutOfOrderSequenceNumber
            );
        }
    }

    fn cut(&mut self, log_end: i64) {
        self.batches.retain(|kept| kept.end_offset <= log_end);
        self.log_end = log_end;
        self.durable_end = self.durable_end.min(log_end);
    }

    /// The whole log equals the model.
    fn check(&self, log: &PartitionLog) {
        assert_eq!(
            (log.log_start_offset(), log.log_end_offset()),
            (self.log_start, self.log_end)
        );
        let got = read_all(&log.reader(), self.log_start).unwrap();
        let expected: Vec<_> = self.readable().collect();
        assert_eq!(got.len(), expected.len());
        for (kept, (base_offset, bytes)) in expected.iter().zip(&got) {
            assert_eq!(kept.base_offset, *base_offset);
            assert_eq!(kept.bytes[16..], bytes[16..]);
        }
        if let Some(last) = expected.last() {
            assert_eq!(log.leader_epoch(), Some(last.epoch));
        }
    }

    fn check_read(&self, log: &PartitionLog, at: u16, max_bytes: usize, up_to: u16) {
        let offset = self.offset(at);
        let up_to_offset = self.offset(up_to);
        let limits = ReadLimits {
            max_bytes,
            min_one_batch: true,
            up_to_offset,
        };
        let slice = log.reader().slice(offset, limits).unwrap();
        let mut expected = self
            .readable()
            .filter(|kept| kept.end_offset > offset && kept.end_offset <= up_to_offset);
        let got: Vec<_> = batches(slice.read().unwrap()).map(Result::unwrap).collect();
        let mut size = 0;
        for got in &got {
            let kept = expected.next().expect("no more batches than there are");
            assert_eq!(got.header().base_offset, kept.base_offset);
            assert_eq!(got.bytes()[16..], kept.bytes[16..]);
            size += kept.bytes.len();
        }
        assert!(got.len() <= 1 || size <= max_bytes);
        if got.is_empty() {
            assert!(
                offset >= up_to_offset || expected.next().is_none(),
                "an empty read means there is nothing"
            );
        }
    }
}

/// The log under test beside what it should hold.
struct Pair {
    fixture: Fixture,
    /// `None` only while it is being opened again.
    log: Option<PartitionLog>,
    model: Model,
    sent: u8,
}

impl Pair {
    fn new() -> Self {
        let fixture = Fixture::new(LogConfig {
            segment_bytes: 6_000,
            index_interval_bytes: 700,
            ..LogConfig::default()
        });
        let log = Some(fixture.create());
        let model = Model {
            batches: Vec::new(),
            log_start: 0,
            log_end: 0,
            durable_end: 0,
            epoch: 0,
        };
        Self {
            fixture,
            log,
            model,
            sent: 0,
        }
    }

    fn log(&mut self) -> &mut PartitionLog {
        self.log.as_mut().unwrap()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append {
                batches,
                epoch_step,
            } => self.append(batches, *epoch_step),
            Step::Read {
                at,
                max_bytes,
                up_to,
            } => {
                self.model
                    .check_read(self.log.as_ref().unwrap(), *at, *max_bytes, *up_to);
            }
            Step::Roll => {
                self.log().roll_if_due(1 << 50).unwrap();
            }
            Step::Truncate { at } => self.truncate(*at),
            Step::Advance { at } => {
                let offset = self.model.offset(*at);
                assert_eq!(self.log().advance_log_start(offset).unwrap(), offset);
                self.model.log_start = offset;
            }
            Step::Flush => {
                let flushed = self.log().flush().unwrap();
                assert_eq!(flushed, self.model.log_end);
                self.model.durable_end = flushed;
            }
            Step::Checkpoint => self.fixture.log_dir().write_checkpoints().unwrap(),
            Step::Reopen { clean } => self.reopen(*clean),
            Step::Crash { seed } => self.crash(*seed),
        }
        let log = self.log.as_mut().unwrap();
        self.model.check(log);
        self.model.check_producers(log);
    }

    fn append(&mut self, batches: &[(usize, i64)], epoch_step: i32) {
        self.model.epoch += epoch_step;
        let epoch = self.model.epoch;
        let mut group = Vec::new();
        for (records, producer_id) in batches {
            self.sent = self.sent.wrapping_add(1);
            let records = i32::try_from(*records).unwrap();
            let sequence = self.model.next_sequence(*producer_id);
            let batch = self.batch(records, *producer_id, sequence);
            self.model.batches.push(Kept {
                base_offset: self.model.log_end,
                end_offset: self.model.log_end + i64::from(records),
                epoch,
                producer_id: *producer_id,
                sequence,
                bytes: batch.bytes().clone(),
            });
            self.model.log_end += i64::from(records);
            group.push(batch);
        }
        let outcomes = self.log().append(&group, epoch, 0).unwrap();
        let sent = self.model.batches.len() - group.len();
        for (kept, outcome) in self.model.batches[sent..].iter().zip(outcomes) {
            let appended = outcome.unwrap();
            assert!(!appended.duplicate);
            assert_eq!(
                (appended.base_offset, appended.end_offset),
                (kept.base_offset, kept.end_offset)
            );
        }
        let log_end = self.model.log_end;
        self.log().set_high_watermark(log_end);
    }

    fn batch(&self, records: i32, producer_id: i64, sequence: i32) -> RecordBatch {
        let mut builder = BatchBuilder::new(Compression::None);
        if producer_id > 0 {
            builder = builder.with_producer(producer_id, 0, sequence);
        }
        for _ in 0..records {
            let value = [self.sent; 60];
            builder
                .push(self.sent.into(), Some(b"key"), Some(&value), &[])
                .unwrap();
        }
        RecordBatch::parse(builder.build().unwrap()).unwrap()
    }

    fn truncate(&mut self, at: u16) {
        let model = &mut self.model;
        let offset = model.offset(at);
        let spanning = model.batches.iter().find(|kept| kept.end_offset > offset);
        let end = spanning.map_or(model.log_end, |kept| kept.base_offset);
        // Where the log start is inside the batch that goes, nothing is left.
        let end = end.max(model.log_start);
        model.cut(end);
        self.log().truncate_to(offset).unwrap();
        assert_eq!(self.log().log_end_offset(), end);
    }

    fn reopen(&mut self, clean: bool) {
        let log = self.log.take().unwrap();
        let (log, report) = if clean {
            self.fixture.shutdown_and_reopen(log)
        } else {
            drop(log);
            self.fixture.kill_and_reopen()
        };
        assert_eq!((report.clean, &report.cut), (clean, &None));
        assert!(report.damaged.is_empty(), "{report}");
        assert!(report.holes.is_empty(), "{report}");
        self.log = Some(log);
        self.model.durable_end = self.model.log_end;
    }

    fn crash(&mut self, seed: u64) {
        self.log = None;
        self.fixture.opened = None;
        self.fixture.disk.crash(&mut numbers(seed)).unwrap();
        let (log, report) = self.fixture.reopen();
        self.log = Some(log);
        let model = &mut self.model;
        assert!(report.damaged.is_empty(), "{report}");
        assert!(report.holes.is_empty(), "{report}");
        let end = report.log_end_offset;
        assert!(end >= model.durable_end && end <= model.log_end, "{report}");
        let on_boundary = end == model.log_start.max(model.durable_end)
            || model.batches.iter().any(|kept| kept.end_offset == end);
        assert!(on_boundary, "{report}");
        model.cut(end);
        model.durable_end = end;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn the_log_is_a_vec_that_a_crash_cuts_behind_the_last_flush(
        steps in prop::collection::vec(step(), 1..40)
    ) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.step(step);
        }
    }
}
