//! What was produced and acknowledged, and the proof that a dataset holds exactly that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use serde_json::{Value, json};
use test_support::{Kafka, TransactionEnd};

use super::plan::Batch;
use crate::harness::list;

/// The first of January 2026.
const FIRST_TIME_MS: u64 = 1_767_225_600_000;

/// Records share an hour in such numbers.
const RECORDS_PER_HOUR: u64 = 400;

/// Rows and records set aside, as pyarrow reads them.
const READ: &str = "
import sys, glob, json, pyarrow as pa, pyarrow.parquet as pq
rows, rejected = [], []
for f in glob.glob(sys.argv[1] + '/run=*/**/part-*.parquet', recursive=True):
    t = pq.ParquetFile(f).read()
    if '/_rejected/' in f:
        values = [v.decode() for v in t['value'].to_pylist()]
        rejected += list(zip(t['partition'].to_pylist(), t['offset'].to_pylist(), values))
        continue
    ts = t['ts'].cast(pa.int64()).to_pylist()
    columns = [t[c].to_pylist() for c in ('_partition', '_offset', 'n', 'name')] + [ts, t['g'].to_pylist()]
    rows += list(zip(*columns))
print(json.dumps({'rows': rows, 'rejected': rejected}))
";

type Coordinates = (i32, i64);

/// One topic's truth.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) topic: String,
    pub(super) partitions: u64,
    next: u64,
    /// Every acknowledged and committed record, by partition and offset.
    acknowledged: BTreeMap<Coordinates, String>,
    /// Of transactions that are still open.
    open: Vec<(Coordinates, Vec<String>)>,
    aborted: u64,
    control: u64,
    /// Offsets that were deleted at the source before they were loaded, as far as that is known.
    lost: BTreeMap<i32, Vec<Range<i64>>>,
    /// Log starts that were ordered.
    deleted_to: BTreeMap<i32, i64>,
}

impl Ledger {
    pub(super) fn new(topic: String, partitions: u64) -> Self {
        Self {
            topic,
            partitions,
            next: 0,
            acknowledged: BTreeMap::new(),
            open: Vec::new(),
            aborted: 0,
            control: 0,
            lost: BTreeMap::new(),
            deleted_to: BTreeMap::new(),
        }
    }

    pub(super) fn partition(&self, batch: &Batch) -> i32 {
        i32::try_from(batch.partition % self.partitions).unwrap()
    }

    /// Produces a batch and waits until it is acknowledged.
    pub(super) fn produce(&mut self, kafka: &Kafka, batch: &Batch, padding: usize) {
        let partition = self.partition(batch);
        let values: Vec<String> = (0..batch.count)
            .map(|number| {
                let bad = batch.bad_every > 0 && number % batch.bad_every == 1;
                self.value(bad, padding)
            })
            .collect();
        let (first, last) = match batch.transaction {
            Some(end) => kafka.transaction_of(&self.topic, partition, &values, end),
            None => kafka.produce_values(&self.topic, partition, &values, batch.compression),
        }
        .unwrap();
        assert_eq!(last - first + 1, i64::try_from(values.len()).unwrap());
        match batch.transaction {
            Some(TransactionEnd::Open) => self.open.push(((partition, first), values)),
            Some(TransactionEnd::Abort) => {
                self.control += 1;
                self.aborted += batch.count;
            }
            Some(TransactionEnd::Commit) => {
                self.control += 1;
                self.acknowledge((partition, first), values);
            }
            None => self.acknowledge((partition, first), values),
        }
    }

    /// Ends the open transactions.
    pub(super) fn finish_open(&mut self, kafka: &Kafka, end: TransactionEnd) {
        if self.open.is_empty() {
            return;
        }
        kafka.finish_transactions(end).unwrap();
        for (first, values) in std::mem::take(&mut self.open) {
            self.control += 1;
            if end == TransactionEnd::Abort {
                self.aborted += values.len() as u64;
            } else {
                self.acknowledge(first, values);
            }
        }
    }

    fn acknowledge(&mut self, (partition, first): Coordinates, values: Vec<String>) {
        let offsets = first..;
        let coordinates = offsets.map(|offset| (partition, offset));
        self.acknowledged.extend(coordinates.zip(values));
    }

    fn value(&mut self, bad: bool, padding: usize) -> String {
        let n = self.next;
        self.next += 1;
        if bad {
            return format!("record {n} is no object");
        }
        let ts = FIRST_TIME_MS + n / RECORDS_PER_HOUR * 3_600_000;
        let mut name = format!("{n} ");
        while name.len() < padding {
            let length = name.len() as u64;
            name.push_str(&format!(
                "{:x}",
                (n + length).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ));
        }
        let group = ["a", "b", "c"][usize::try_from(n % 3).unwrap()];
        json!({ "n": n, "name": name, "ts": ts, "g": group }).to_string()
    }

    /// Deletes records below an offset.
    pub(super) fn delete(&mut self, kafka: &Kafka, partition: i32, to: i64) {
        kafka.delete_records(&self.topic, partition, to).unwrap();
        self.deleted_to.insert(partition, to);
    }

    /// Notes the gaps that a run accepted; each must end at a log start that was ordered.
    pub(super) fn lose(&mut self, accepted_gaps: &Value) {
        for gap in accepted_gaps.as_array().unwrap() {
            let (partition, offsets) = retention(gap);
            assert_eq!(self.deleted_to.get(&partition), Some(&offsets.end), "{gap}");
            self.lost.entry(partition).or_default().push(offsets);
        }
    }

    fn is_lost(&self, (partition, offset): Coordinates) -> bool {
        let ranges = self.lost.get(&partition);
        ranges.is_some_and(|ranges| ranges.iter().any(|range| range.contains(&offset)))
    }

    /// Every record that a dataset with everything loaded must hold.
    fn expected(&self) -> BTreeMap<Coordinates, &str> {
        let all = self.acknowledged.iter();
        all.filter(|(place, _)| !self.is_lost(**place))
            .map(|(place, value)| (*place, value.as_str()))
            .collect()
    }

    /// What `verify` counted is what was produced, given that everything is loaded.
    pub(super) fn check_counts(&self, counts: &Value) {
        let count = |name: &str| counts[name].as_u64().unwrap();
        let expected = self.expected().len() as u64;
        assert_eq!(count("rows") + count("rejected"), expected, "{counts}");
        if self.lost.is_empty() {
            assert_eq!(count("aborted"), self.aborted, "{counts}");
            assert_eq!(count("control"), self.control, "{counts}");
        }
        assert_eq!(count("tombstones_skipped") + count("holes"), 0, "{counts}");
    }

    /// The proof: a copy of the dataset holds every acknowledged record that was not given up, once, as it was
    /// produced, and nothing else; what was given up is in the manifests. Returns the number of records.
    pub(super) fn prove(&self, dataset: &Path) -> u64 {
        let mut given_up: BTreeMap<i32, Vec<Range<i64>>> = BTreeMap::new();
        for run in list(dataset).iter().filter(|name| name.starts_with("run=")) {
            let text = fs::read(dataset.join(run).join("_manifest.json")).unwrap();
            let manifest: Value = serde_json::from_slice(&text).unwrap();
            for gap in manifest["body"]["accepted_gaps"].as_array().unwrap() {
                let (partition, offsets) = retention(gap);
                given_up.entry(partition).or_default().push(offsets);
            }
        }
        assert_eq!(given_up, self.lost, "accepted gaps");
        let mut found = BTreeMap::new();
        let printed = test_support::python()
            .run(READ, &[dataset.to_str().unwrap()])
            .unwrap();
        let read: Value = serde_json::from_str(&printed).unwrap();
        for row in read["rows"].as_array().unwrap() {
            let value = json!({ "n": row[2], "name": row[3], "ts": row[4], "g": row[5] });
            insert(&mut found, row, value.to_string());
        }
        for record in read["rejected"].as_array().unwrap() {
            insert(&mut found, record, record[2].as_str().unwrap().to_owned());
        }
        let expected = self.expected();
        let places = |of: &mut dyn Iterator<Item = Coordinates>| of.collect::<BTreeSet<_>>();
        let (there, wanted) = (
            places(&mut found.keys().copied()),
            places(&mut expected.keys().copied()),
        );
        let missing: Vec<_> = wanted.difference(&there).take(5).collect();
        let foreign: Vec<_> = there.difference(&wanted).take(5).collect();
        assert!(
            missing.is_empty() && foreign.is_empty(),
            "{} of {} records are there; missing: {missing:?} …, not to be there: {foreign:?} …",
            there.len(),
            wanted.len()
        );
        for (place, value) in &expected {
            assert_eq!(found[place], *value, "{place:?}");
        }
        found.len() as u64
    }
}

fn insert(found: &mut BTreeMap<Coordinates, String>, row: &Value, value: String) {
    let partition = i32::try_from(row[0].as_i64().unwrap()).unwrap();
    let place = (partition, row[1].as_i64().unwrap());
    let before = found.insert(place, value);
    assert!(before.is_none(), "{place:?} is there twice");
}

/// The offsets that an accepted gap gave up.
fn retention(gap: &Value) -> (i32, Range<i64>) {
    assert_eq!(gap["reason"], "retention", "{gap}");
    let offset = |name: &str| gap[name].as_i64().unwrap();
    let partition = i32::try_from(gap["partition"].as_i64().unwrap()).unwrap();
    (partition, offset("previous_end")..offset("start"))
}
