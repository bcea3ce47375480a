//! From a seed to what will be done: a pure function, so that a seed can be repeated.

use std::time::Duration;

use test_support::{Fault, TransactionEnd};

use crate::kills::STEPS;
use crate::rng::Rng;

/// What strikes in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// `kill -9` of a load at a step of the commit protocol.
    KilledAtStep,
    /// `kill -9` of a load at any time.
    KilledAnyTime,
    /// A load sleeps at a step while others run, then wakes.
    SleepsAtStep,
    /// A load sleeps at any time while others run, then wakes.
    SleepsAnyTime,
    /// Two or three loads at once.
    LoadsAtOnce,
    /// The wall clock of a load jumps.
    ClockStepped,
    /// The connection to the NameNode fails.
    NamenodeLink,
    /// The connections to one DataNode or all of them fail.
    DatanodeLink,
    /// The connections to one broker or all of them fail.
    BrokerLink,
    /// The NameNode is killed and started again.
    NamenodeKilled,
    /// The NameNode refuses changes for a while.
    SafeMode,
    /// A DataNode is killed and started again.
    DatanodeKilled,
    /// No more space by quota, for a while.
    SpaceQuota,
    /// The broker that leads a partition is killed and started again.
    LeaderKilled,
    /// Records are deleted at the source before they were loaded.
    Retention,
    /// A topic gets more partitions.
    PartitionAdded,
    /// Transactions that are committed, aborted, and open while a load looks.
    Transactions,
}

pub(super) const KINDS: [Kind; 17] = [
    Kind::KilledAtStep,
    Kind::NamenodeLink,
    Kind::Retention,
    Kind::SleepsAtStep,
    Kind::BrokerLink,
    Kind::SpaceQuota,
    Kind::LoadsAtOnce,
    Kind::DatanodeLink,
    Kind::Transactions,
    Kind::ClockStepped,
    Kind::SafeMode,
    Kind::PartitionAdded,
    Kind::KilledAnyTime,
    Kind::DatanodeKilled,
    Kind::SleepsAnyTime,
    Kind::NamenodeKilled,
    Kind::LeaderKilled,
];

impl Kind {
    /// Whether only a dataset on HDFS feels it.
    pub(super) const fn needs_hdfs(self) -> bool {
        matches!(
            self,
            Self::NamenodeLink
                | Self::DatanodeLink
                | Self::NamenodeKilled
                | Self::SafeMode
                | Self::DatanodeKilled
                | Self::SpaceQuota
        )
    }

    pub(super) const fn is_at_source(self) -> bool {
        matches!(self, Self::BrokerLink | Self::LeaderKilled)
    }

    /// Whether a load ends by it.
    pub(super) const fn kills_loads(self) -> bool {
        matches!(self, Self::KilledAtStep | Self::KilledAnyTime)
    }

    pub(super) const fn puts_loads_to_sleep(self) -> bool {
        matches!(self, Self::SleepsAtStep | Self::SleepsAnyTime)
    }

    /// Two of one group would be in each other's way.
    const fn group(self) -> u8 {
        match self {
            Self::KilledAtStep
            | Self::KilledAnyTime
            | Self::SleepsAtStep
            | Self::SleepsAnyTime
            | Self::ClockStepped => 0,
            Self::NamenodeLink
            | Self::DatanodeLink
            | Self::BrokerLink
            | Self::NamenodeKilled
            | Self::SafeMode
            | Self::DatanodeKilled
            | Self::SpaceQuota
            | Self::LeaderKilled => 1,
            Self::Retention | Self::PartitionAdded | Self::Transactions => 2,
            Self::LoadsAtOnce => 3,
        }
    }

    /// Whether a server process has to start again, which takes seconds.
    const fn is_slow(self) -> bool {
        matches!(
            self,
            Self::NamenodeKilled | Self::DatanodeKilled | Self::LeaderKilled
        )
    }
}

/// When a fault strikes the first load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// So long after its start.
    After(Duration),
    /// When it passes this fail-point, after passing it so often before.
    Step(&'static str, u64),
}

/// Records that are produced together to one partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    /// Modulo the number of partitions.
    pub(super) partition: u64,
    pub(super) count: u64,
    /// Every so manieth record cannot be decoded; none for 0.
    pub(super) bad_every: u64,
    pub(super) compression: &'static str,
    /// In a transaction that ends like this.
    pub(super) transaction: Option<TransactionEnd>,
}

/// One step: records are produced, loads run, a fault strikes, and what is published is proved.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) kinds: Vec<Kind>,
    pub(super) before: Vec<Batch>,
    /// Produced while the fault lasts.
    pub(super) meanwhile: Vec<Batch>,
    /// Bytes that fill up each record.
    pub(super) padding: usize,
    pub(super) loads: u64,
    pub(super) moment: Moment,
    pub(super) lasting: Duration,
    /// What happens to a connection.
    pub(super) link: Fault,
    /// Which of several servers; all for 3.
    pub(super) node: usize,
    /// The clock's two errors in seconds, before and after it jumps.
    pub(super) clock: [i64; 2],
    /// How open transactions end.
    pub(super) open_ends: TransactionEnd,
    /// Whether everything is loaded before the next step.
    pub(super) settle: bool,
    pub(super) tuning: Tuning,
}

impl Step {
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    pub(super) fn any(&self, is: impl Fn(Kind) -> bool) -> bool {
        self.kinds.iter().any(|kind| is(*kind))
    }
}

/// What the job file says differently.
#[derive(Debug, Clone)]
pub(super) struct Tuning {
    pub(super) source: String,
    /// Of `source`, too: short time-outs, for a source that fails.
    pub(super) source_patience: String,
    pub(super) parquet: String,
    pub(super) limits: String,
    /// Of `limits`, too: the time after which no task starts.
    pub(super) budget: String,
    pub(super) engine: String,
    /// Of `engine`, too: a short time-out, for a store that fails.
    pub(super) store_timeout: String,
}

/// Everything that follows from a seed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) on_hdfs: bool,
    pub(super) partitions: u64,
    /// 1: a killed leader leaves a partition without any.
    pub(super) replication: i16,
    pub(super) grouping: &'static str,
    pub(super) steps: Vec<Step>,
}

/// How rows may be grouped; the window is wide, because clocks jump by months.
const GROUPINGS: &[&str] = &[
    "keys = []\n",
    "event_time = ['ts']\nmax_past = '4000d'\nmax_future = '4000d'\n",
    "keys = [{name = 'dt', time = '%Y-%m-%d'}, {name = 'kind', column = 'g'}]\nevent_time = ['ts']\n\
     max_past = '4000d'\nmax_future = '4000d'\n",
];

pub(super) const STEPS_PER_SEED: usize = 3;

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let mut rng = Rng(seed);
        // Neighbouring seeds begin with different kinds.
        let first = KINDS[usize::try_from(seed).unwrap() % KINDS.len()];
        let on_hdfs = first.needs_hdfs() || rng.chance(60);
        let mut steps: Vec<Step> = Vec::new();
        for number in 0..STEPS_PER_SEED {
            let slow = rng.chance(40);
            let fits = |kind: Kind| (on_hdfs || !kind.needs_hdfs()) && (slow || !kind.is_slow());
            let kind = if number == 0 {
                first
            } else {
                any_kind(&mut rng, fits)
            };
            let mut step = step(&mut rng, kind, number, on_hdfs);
            // Mostly the same job, which takes over what a dead run left; `engine` may differ.
            if let Some(last) = steps.last().filter(|last| last.padding == step.padding)
                && rng.chance(65)
            {
                step.tuning = Tuning {
                    engine: step.tuning.engine,
                    store_timeout: step.tuning.store_timeout,
                    ..last.tuning.clone()
                };
            }
            steps.push(step);
        }
        Self {
            seed,
            on_hdfs,
            partitions: 1 + rng.below(3),
            replication: if rng.chance(30) { 1 } else { 3 },
            grouping: rng.pick(GROUPINGS),
            steps,
        }
    }
}

fn step(rng: &mut Rng, kind: Kind, number: usize, on_hdfs: bool) -> Step {
    let mut kinds = vec![kind];
    // What retention does must be known exactly, so it comes alone or with loads at once.
    if rng.chance(40) && kind != Kind::Retention {
        let fits = |other: Kind| {
            other.group() != kind.group()
                && (on_hdfs || !other.needs_hdfs())
                && !other.is_slow()
                && other != Kind::Retention
        };
        kinds.push(any_kind(rng, fits));
    }
    let has = |kind: Kind| kinds.contains(&kind);
    let loads = if has(Kind::LoadsAtOnce) {
        2 + rng.below(2)
    } else {
        1
    };
    let bulk = has(Kind::DatanodeKilled) || has(Kind::DatanodeLink) || rng.chance(8);
    let transactions = has(Kind::Transactions);
    Step {
        before: batches(rng, bulk, transactions),
        meanwhile: if rng.chance(35) {
            batches(rng, false, false)
        } else {
            Vec::new()
        },
        padding: if bulk { 200 } else { 0 },
        loads,
        moment: moment(rng, &kinds, number),
        lasting: Duration::from_millis(100 + rng.below(1_900)),
        link: link(rng),
        node: usize::try_from(rng.below(4)).unwrap(),
        clock: [clock_error(rng), clock_error(rng)],
        open_ends: rng.pick(&[TransactionEnd::Commit, TransactionEnd::Abort]),
        settle: rng.chance(50),
        tuning: tuning(rng, bulk),
        kinds,
    }
}

fn moment(rng: &mut Rng, kinds: &[Kind], number: usize) -> Moment {
    let any_time = |kind: &Kind| matches!(kind, Kind::KilledAnyTime | Kind::SleepsAnyTime);
    let at_step = |kind: &Kind| matches!(kind, Kind::KilledAtStep | Kind::SleepsAtStep);
    if kinds.iter().any(any_time) || !kinds.iter().any(at_step) && rng.chance(40) {
        return Moment::After(Duration::from_millis(rng.below(700)));
    }
    let later = ["takeover.before_claim", "takeover.claimed"];
    let steps: Vec<&'static str> = STEPS
        .iter()
        .copied()
        .filter(|step| number == 0 || !step.starts_with("dataset."))
        .chain(later.into_iter().filter(|_| number > 0))
        .collect();
    let step = rng.pick(&steps);
    let is_repeated = step.starts_with("task.")
        || ["assemble.file_moved", "assemble.document_beside"].contains(&step);
    let before = if is_repeated { rng.below(2) } else { 0 };
    Moment::Step(step, before)
}

fn batches(rng: &mut Rng, bulk: bool, transactions: bool) -> Vec<Batch> {
    let count = 1 + rng.below(4);
    let ends = [
        TransactionEnd::Commit,
        TransactionEnd::Abort,
        TransactionEnd::Open,
    ];
    (0..count)
        .map(|number| Batch {
            partition: rng.below(6),
            count: if bulk {
                800 + rng.below(1_500)
            } else {
                1 + rng.below(300)
            },
            bad_every: if rng.chance(25) {
                20 + rng.below(80)
            } else {
                0
            },
            compression: rng.pick(&["none", "gzip", "snappy", "lz4", "zstd"]),
            transaction: match (transactions, number) {
                (false, _) => None,
                (true, 0) => Some(TransactionEnd::Abort),
                (true, _) => Some(rng.pick(&ends)),
            },
        })
        .collect()
}

fn link(rng: &mut Rng) -> Fault {
    match rng.below(6) {
        0 => Fault::CutAnswersAfter(rng.below(3_000)),
        1 => Fault::CutRequestsAfter(rng.below(3_000)),
        2 => Fault::DropAnswers,
        3 => Fault::Stall,
        4 => Fault::DelayAnswers(Duration::from_millis(20 + rng.below(400))),
        _ => Fault::Refuse,
    }
}

/// Seconds, from a moment to most of a year, before or behind.
fn clock_error(rng: &mut Rng) -> i64 {
    let size = [1, 61, 3_700, 90_000, 25_000_000][usize::try_from(rng.below(5)).unwrap()];
    if rng.chance(50) { size } else { -size }
}

fn tuning(rng: &mut Rng, bulk: bool) -> Tuning {
    let source_patience = format!(
        "request_timeout = '{}ms'\nretry_deadline = '{}s'\n",
        800 + rng.below(2_000),
        2 + rng.below(15),
    );
    let source = if rng.chance(20) {
        "lag_group = 'campaign'\n".to_owned()
    } else {
        String::new()
    };
    let parquet = format!(
        "compression = '{}'\ndelta = {}\nrow_group_bytes = '{}'\n",
        rng.pick(&["none", "snappy", "lz4", "gzip:1", "zstd:1", "zstd:9"]),
        rng.below(8) < 4,
        rng.pick(&["4KiB", "64KiB", "16MiB"]),
    );
    let task_bytes: &[&str] = if bulk {
        &["128KiB", "512KiB", "4MiB"]
    } else {
        &["6KiB", "12KiB", "32KiB", "1MiB"]
    };
    let limit = if bulk || !rng.chance(15) {
        String::new()
    } else {
        format!("max_offsets_per_partition = {}\n", 200 + rng.below(800))
    };
    let limits = format!("task_bytes = '{}'\n{limit}", rng.pick(task_bytes));
    let budget = if rng.chance(12) {
        format!("time_budget = '{}ms'\n", 50 + rng.below(1_000))
    } else {
        String::new()
    };
    let engine = format!(
        "threads = {}\nattempts = {}\nprefetch_bytes = '{}'\nlease_timeout = '{}'\n",
        1 + rng.below(4),
        1 + rng.below(3),
        rng.pick(&["1KiB", "64KiB", "16MiB"]),
        rng.pick(&["100ms", "400ms", "2s", "60s"]),
    );
    let store_timeout = format!(
        "store_timeout = '{}ms'\nstore_patience = '60s'\n",
        800 + rng.below(2_500)
    );
    Tuning {
        source,
        source_patience,
        parquet,
        limits,
        budget,
        engine,
        store_timeout,
    }
}

fn any_kind(rng: &mut Rng, fits: impl Fn(Kind) -> bool) -> Kind {
    let fitting: Vec<Kind> = KINDS.into_iter().filter(|kind| fits(*kind)).collect();
    rng.pick(&fitting)
}
