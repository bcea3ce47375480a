use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMillisecondType};
use arrow_select::concat::concat_batches;
use broker_client::protocol::record::{
    BatchBuilder, Compression, RecordBatch as KafkaRecordBatch, stamp,
};
use proptest::prelude::*;

use super::*;
use crate::partitioner::{DEFAULT_PARTITION, EventTimeSource, GroupKey, TimeUnit};
use crate::schema::Column;

/// 2026-11-30T13:05:09.250Z.
const NOW: i64 = 1_796_043_909_250;
const HOUR: i64 = 3_600_000;

type Entry<'a> = (i64, Option<&'a [u8]>, Option<&'a [u8]>);

/// A batch from `base_offset` on, of timestamps, keys and values.
fn batch(base_offset: i64, entries: &[Entry<'_>]) -> Records {
    let mut builder = BatchBuilder::new(Compression::Zstd);
    for (timestamp, key, value) in entries {
        let headers: [(&str, Option<&[u8]>); 3] =
            [("trace", Some(b"1")), ("trace", Some(b"2")), ("none", None)];
        builder.push(*timestamp, *key, *value, &headers).unwrap();
    }
    let mut bytes = builder.build().unwrap().to_vec();
    stamp(&mut bytes, base_offset, 3).unwrap();
    KafkaRecordBatch::parse(bytes.into())
        .unwrap()
        .records(1 << 24)
        .unwrap()
}

fn spec(columns: &[(&str, &str)], policy: RecordPolicy) -> TransformSpec {
    let column = |(name, text): &(&str, &str)| Column::new(*name, text.parse().unwrap());
    let schema = TableSchema {
        columns: columns.iter().map(column).collect(),
        ..TableSchema::default()
    };
    TransformSpec {
        schema,
        grouping: Grouping::default(),
        policy,
        plan_time_ms: NOW,
    }
}

fn reject_all() -> RecordPolicy {
    RecordPolicy {
        tombstones: TombstonePolicy::Reject,
        bad_records: BadRecordPolicy::Reject,
    }
}

fn transform(spec: TransformSpec) -> RecordTransform {
    RecordTransform::new(Arc::new(spec)).unwrap()
}

fn ints(batch: &RecordBatch, column: &str) -> Vec<i64> {
    batch
        .column_by_name(column)
        .unwrap()
        .as_primitive::<Int64Type>()
        .values()
        .to_vec()
}

#[test]
fn rows_go_to_their_hours_with_coordinates() {
    let mut transform = transform(spec(&[("n", "int64")], RecordPolicy::default()));
    let first = batch(
        10,
        &[
            (NOW, Some(b"k"), Some(br#"{"n":1}"#)),
            (NOW - HOUR, None, Some(br#"{"n":2,"new":0}"#)),
            (-1, None, Some(br#"{"n":3}"#)),
            (NOW + 5, None, Some(br#"{"n":4}"#)),
        ],
    );
    let second = batch(7, &[(NOW + 1, None, Some(br#"{}"#))]);
    assert_eq!(transform.push("t", 0, &first, 0..i64::MAX).unwrap(), None);
    assert_eq!(transform.push("t", 1, &second, 0..i64::MAX).unwrap(), None);
    assert_eq!(transform.rows_pending(), 5);
    let chunk = transform.drain().unwrap();
    assert_eq!(
        (transform.rows_pending(), transform.bytes_pending()),
        (0, 0)
    );
    assert!(chunk.rejected.is_none() && chunk.samples.is_empty());

    let directories: Vec<_> = chunk.groups.iter().map(|group| &*group.directory).collect();
    let none = format!("dt={DEFAULT_PARTITION}/hour={DEFAULT_PARTITION}");
    assert_eq!(
        directories,
        ["dt=2026-11-30/hour=13", "dt=2026-11-30/hour=12", &none]
    );
    let now = &chunk.groups[0];
    assert_eq!(now.event_time_ms, Some((NOW, NOW + 5)));
    assert_eq!(chunk.groups[2].event_time_ms, None);
    let spans: Vec<_> = now
        .spans
        .iter()
        .map(|span| {
            (
                span.partition,
                span.first_offset,
                span.last_offset,
                span.rows,
            )
        })
        .collect();
    assert_eq!(spans, [(0, 10, 13, 2), (1, 7, 7, 1)]);

    let rows = &chunk.rows_of(now);
    assert_eq!(ints(rows, "_offset"), [10, 13, 7]);
    let n = rows.column(0).as_primitive::<Int64Type>();
    assert_eq!(n.iter().collect::<Vec<_>>(), [Some(1), Some(4), None]);
    let topics = rows.column_by_name("_topic").unwrap().as_string::<i32>();
    assert!(topics.iter().all(|topic| topic == Some("t")));
    let partitions = rows
        .column_by_name("_partition")
        .unwrap()
        .as_primitive::<Int32Type>();
    assert_eq!(partitions.values().to_vec(), [0, 0, 1]);
    let keys = rows.column_by_name("_key").unwrap().as_binary::<i32>();
    assert_eq!(
        keys.iter().collect::<Vec<_>>(),
        [Some(&b"k"[..]), None, None]
    );
    let rest = chunk.rows_of(&chunk.groups[2]);
    let column = rest.column_by_name("_timestamp").unwrap();
    assert!(column.as_primitive::<TimestampMillisecondType>().is_null(0));

    let counts: Vec<_> = chunk
        .counts
        .iter()
        .map(|((_, partition), counts)| (*partition, counts))
        .collect();
    let expected = Counts {
        rows: 4,
        unknown_fields: 1,
        time_from: vec![3, 1],
        ..Counts::default()
    };
    assert_eq!(counts[0], (0, &expected));
    assert_eq!((counts[1].0, counts[1].1.rows), (1, 1));
}

#[test]
fn only_wanted_offsets_are_taken() {
    let mut transform = transform(spec(&[("n", "int64")], RecordPolicy::default()));
    // Records outside the range are not even decoded.
    let records = batch(
        5,
        &[
            (NOW, None, Some(b"broken")),
            (NOW, None, Some(br#"{"n":6}"#)),
            (NOW, None, Some(br#"{"n":7}"#)),
            (NOW, None, None),
        ],
    );
    transform.push("t", 0, &records, 6..8).unwrap();
    transform.push("t", 1, &records, 100..200).unwrap();
    let chunk = transform.drain().unwrap();
    assert_eq!(ints(&chunk.rows_of(&chunk.groups[0]), "n"), [6, 7]);
    let empty = &chunk.counts[&(Arc::from("t"), 1)];
    assert_eq!(empty.records(), 0);
}

#[test]
fn rejected_records_keep_everything_in_input_order() {
    let mut transform = transform(spec(&[("n", "int64")], reject_all()));
    // A decoder's reject, a window's reject, a tombstone: found in another order than they came.
    let records = batch(
        0,
        &[
            (5, Some(b"far"), Some(br#"{"n":1}"#)),
            (NOW, Some(b"\xff"), Some(b"{\"n\":\xff}")),
            (NOW, None, Some(br#"{"n":2}"#)),
            (-1, None, None),
            (NOW + 100 * 24 * HOUR, None, Some(br#"{"n":3}"#)),
            (NOW, None, Some(b"")),
        ],
    );
    transform.push("a", 2, &records, 0..i64::MAX).unwrap();
    let chunk = transform.drain().unwrap();
    assert_eq!(ints(&chunk.rows_of(&chunk.groups[0]), "n"), [2]);
    let rejected = chunk.rejected.unwrap();
    assert_eq!(rejected.schema(), crate::rejected::rejected_schema());
    assert_eq!(ints(&rejected, "offset"), [0, 1, 3, 4, 5]);
    let values = rejected.column_by_name("value").unwrap().as_binary::<i32>();
    assert_eq!(values.value(1), b"{\"n\":\xff}");
    assert!(values.is_null(2) && values.is_valid(4) && values.value(4).is_empty());
    let keys = rejected.column_by_name("key").unwrap().as_binary::<i32>();
    assert_eq!(keys.value(1), b"\xff");
    assert!(rejected.column_by_name("timestamp").unwrap().is_null(2));
    let headers = rejected
        .column_by_name("headers")
        .unwrap()
        .as_list::<i32>()
        .value(0);
    let names = headers.as_struct().column(0).as_string::<i32>();
    assert_eq!(
        names.iter().flatten().collect::<Vec<_>>(),
        ["trace", "trace", "none"]
    );
    let header_values = headers.as_struct().column(1).as_binary::<i32>();
    assert_eq!(
        header_values.iter().collect::<Vec<_>>(),
        [Some(&b"1"[..]), Some(b"2"), None]
    );
    let reasons = rejected
        .column_by_name("reason")
        .unwrap()
        .as_string::<i32>();
    for (row, expected) in [
        "the event time 1970-01-01T00:00:00.005Z (record timestamp) is before",
        "not UTF-8 at byte 5",
        "tombstone (null value)",
        "is after the window's bound",
        "the value is empty (0 bytes)",
    ]
    .iter()
    .enumerate()
    {
        assert!(
            reasons.value(row).contains(expected),
            "{}",
            reasons.value(row)
        );
    }
    assert_eq!(chunk.samples.len(), 5);
    assert_eq!(chunk.samples[2].offset, 3);
    let counts = &chunk.counts[&(Arc::from("a"), 2)];
    assert_eq!((counts.rows, counts.rejected, counts.records()), (1, 5, 6));
    assert_eq!(counts.time_from, [1, 0]);
}

#[test]
fn the_policy_fail_names_the_record() {
    let records = |value: Option<&[u8]>, timestamp: i64| {
        batch(40, &[(NOW, None, Some(b"{}")), (timestamp, None, value)])
    };
    let run = |records: &Records| {
        let mut transform = transform(spec(&[("n", "int64")], RecordPolicy::default()));
        transform.push("t", 6, records, 0..i64::MAX)?;
        transform.drain()
    };
    for (value, timestamp, expected) in [
        (
            Some(&b"{\"n\":1.5}"[..]),
            NOW,
            "bad record in t-6 at offset 41: column `n` is not an int64 but `1.5`",
        ),
        (
            Some(b""),
            NOW,
            "bad record in t-6 at offset 41: the value is empty (0 bytes)",
        ),
        (None, NOW, "tombstone (null value) in t-6 at offset 41"),
        (
            Some(b"{}"),
            7,
            "bad record in t-6 at offset 41: the event time 1970-01-01T00:00:00.007Z",
        ),
    ] {
        let error = run(&records(value, timestamp)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn tombstones_follow_their_policy_and_are_counted() {
    let records = batch(
        0,
        &[
            (NOW, None, Some(br#"{"n":1}"#)),
            (NOW, Some(b"gone"), None),
            (NOW, None, Some(br#"{"n":2}"#)),
        ],
    );
    let run = |tombstones| {
        let policy = RecordPolicy {
            tombstones,
            ..RecordPolicy::default()
        };
        let mut transform = transform(spec(&[("n", "int64")], policy));
        transform.push("t", 0, &records, 0..i64::MAX).unwrap();
        let chunk = transform.drain().unwrap();
        let counts = chunk.counts[&(Arc::from("t"), 0)].clone();
        (chunk, counts)
    };
    let (chunk, counts) = run(TombstonePolicy::Skip);
    assert_eq!(ints(&chunk.rows_of(&chunk.groups[0]), "_offset"), [0, 2]);
    assert_eq!(
        (counts.rows, counts.tombstones_skipped, counts.records()),
        (2, 1, 3)
    );
    let (chunk, counts) = run(TombstonePolicy::Write);
    let rows = &chunk.rows_of(&chunk.groups[0]);
    assert_eq!(ints(rows, "_offset"), [0, 1, 2]);
    assert!(rows.column(0).is_null(1));
    assert_eq!(
        rows.column_by_name("_key")
            .unwrap()
            .as_binary::<i32>()
            .value(1),
        b"gone"
    );
    assert_eq!(
        (counts.rows, counts.tombstones_written, counts.records()),
        (3, 1, 3)
    );
    let (chunk, counts) = run(TombstonePolicy::Reject);
    assert_eq!(chunk.rejected.unwrap().num_rows(), 1);
    assert_eq!((counts.rows, counts.rejected, counts.records()), (2, 1, 3));
}

#[test]
fn written_tombstones_need_room_for_nulls_and_keys() {
    let policy = RecordPolicy {
        tombstones: TombstonePolicy::Write,
        ..RecordPolicy::default()
    };
    let mut required = spec(&[("n", "int64")], policy);
    required.schema.columns[0].nullable = false;
    let error = RecordTransform::new(Arc::new(required)).unwrap_err();
    assert!(matches!(
        error,
        TransformError::Policy(PolicyProblem::RequiredColumn { .. })
    ));
    let mut bare = spec(&[("n", "int64")], policy);
    bare.schema.coordinates = false;
    let error = RecordTransform::new(Arc::new(bare)).unwrap_err();
    assert!(matches!(
        error,
        TransformError::Policy(PolicyProblem::NoCoordinates)
    ));
}

#[test]
fn a_key_that_is_also_a_column_is_refused() {
    let error = RecordTransform::new(Arc::new(spec(
        &[("hour", "int64")],
        RecordPolicy::default(),
    )));
    let error = error.unwrap_err();
    assert!(matches!(&error, TransformError::Schema(_)), "{error:?}");
}

#[test]
fn without_coordinates_and_columns_only_counts_remain() {
    let mut spec = spec(&[], RecordPolicy::default());
    spec.schema.coordinates = false;
    spec.schema.rest_column = Some("rest".to_owned());
    let mut transform = transform(spec);
    transform
        .push("t", 0, &batch(0, &[(NOW, None, Some(br#"{"a":1}"#))]), 0..9)
        .unwrap();
    let chunk = transform.drain().unwrap();
    assert_eq!(chunk.rows.num_columns(), 1);
    assert_eq!(chunk.groups[0].spans[0].first_offset, 0);
}

/// Everything pushed with the given bound, drained whenever it is reached, put together again.
fn collect(spec: &TransformSpec, batches: &[(i32, Records)], bound: usize) -> Collected {
    let mut transform = RecordTransform::new(Arc::new(spec.clone()))
        .unwrap()
        .with_max_pending(bound);
    let mut all = Collected::default();
    for (partition, records) in batches {
        let mut from = 0;
        while let Some(left) = transform
            .push("t", *partition, records, from..i64::MAX)
            .unwrap()
        {
            assert!(left > from || from == 0);
            from = left;
            all.add(transform.drain().unwrap());
        }
    }
    all.add(transform.drain().unwrap());
    all
}

#[derive(Debug, Default, PartialEq)]
struct Collected {
    groups: BTreeMap<String, RecordBatch>,
    rejected: Option<RecordBatch>,
    counts: BTreeMap<(Arc<str>, i32), Counts>,
    drains: usize,
}

impl Collected {
    fn add(&mut self, chunk: Chunk) {
        self.drains += 1;
        for group in &chunk.groups {
            let rows = chunk.rows_of(group);
            let new = match self.groups.get(&*group.directory) {
                Some(old) => concat_batches(&rows.schema(), [old, &rows]).unwrap(),
                None => rows,
            };
            self.groups.insert(group.directory.to_string(), new);
        }
        if let Some(new) = chunk.rejected {
            self.rejected = Some(match &self.rejected {
                Some(old) => concat_batches(&new.schema(), [old, &new]).unwrap(),
                None => new,
            });
        }
        for (key, counts) in chunk.counts {
            self.counts.entry(key).or_default().add(&counts);
        }
    }
}

/// Case 42: a day of shuffled event times; case 25: bad records among them.
fn shuffled(count: i64) -> (TransformSpec, Vec<(i32, Records)>) {
    let mut spec = spec(&[("ts", "int64"), ("name", "string")], reject_all());
    spec.grouping.event_time = vec![
        EventTimeSource::Column {
            column: "ts".to_owned(),
            unit: TimeUnit::Milliseconds,
        },
        EventTimeSource::RecordTimestamp,
    ];
    spec.grouping.keys.push(GroupKey::column("kind", "name"));
    let values: Vec<String> = (0..count)
        .map(|n| match n % 50 {
            7 => format!("{{\"ts\":{n}.5}}"),
            11 => format!("{{\"ts\":{n}}}"),
            13 => "{}".to_owned(),
            _ => format!(
                "{{\"ts\":{},\"name\":\"n{}\"}}",
                NOW - n * 7_919_123 % (24 * HOUR),
                n % 3
            ),
        })
        .collect();
    let mut batches = Vec::new();
    for (index, values) in values.chunks(37).enumerate() {
        let entries: Vec<Entry<'_>> = values
            .iter()
            .enumerate()
            .map(|(n, value)| (NOW, None, (n % 31 != 30).then_some(value.as_bytes())))
            .collect();
        let base = i64::try_from(index).unwrap() * 40;
        batches.push((i32::try_from(index % 3).unwrap(), batch(base, &entries)));
    }
    (spec, batches)
}

#[test]
fn the_bound_on_pending_bytes_changes_nothing_but_the_cuts() {
    let (spec, batches) = shuffled(3_000);
    let whole = collect(&spec, &batches, usize::MAX);
    assert_eq!(whole.drains, 1);
    let records: u64 = whole.counts.values().map(Counts::records).sum();
    assert_eq!(records, 3_000);
    assert!(whole.groups.len() > 60, "{}", whole.groups.len());
    for bound in [0, 1_000, 20_000] {
        let mut cut = collect(&spec, &batches, bound);
        assert!(cut.drains > 3, "{bound}: {}", cut.drains);
        cut.drains = 1;
        assert!(cut == whole, "{bound}");
    }
}

#[test]
fn a_batch_of_tiny_records_cannot_exceed_the_bound_by_much() {
    // 20,000 records of two bytes, each a row of 100 columns.
    let columns: Vec<(String, &str)> = (0..100).map(|n| (format!("c{n}"), "int64")).collect();
    let columns: Vec<(&str, &str)> = columns
        .iter()
        .map(|(name, text)| (&**name, *text))
        .collect();
    let entries = vec![(NOW, None, Some(&b"{}"[..])); 20_000];
    let records = batch(0, &entries);
    let mut transform =
        transform(spec(&columns, RecordPolicy::default())).with_max_pending(2 << 20);
    let mut from = 0;
    let mut rows = 0;
    loop {
        let left = transform.push("t", 0, &records, from..i64::MAX).unwrap();
        assert!(
            transform.decoder.bytes() < 3 << 20,
            "{}",
            transform.decoder.bytes()
        );
        rows += transform
            .drain()
            .unwrap()
            .groups
            .iter()
            .map(|g| g.rows.len())
            .sum::<usize>();
        let Some(left) = left else { break };
        from = left;
    }
    assert_eq!(rows, 20_000);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    /// I2 for what is decided here: every wanted record is a row, rejected or skipped, once.
    #[test]
    fn every_record_is_accounted_for_once(
        values in prop::collection::vec(
            prop_oneof![
                Just(None),
                Just(Some(b"{}".to_vec())),
                Just(Some(br#"{"n":5}"#.to_vec())),
                prop::collection::vec(any::<u8>(), 0..12).prop_map(Some),
            ],
            1..60,
        ),
        timestamps in prop::collection::vec(prop_oneof![Just(NOW), Just(-1), Just(0), any::<i64>()], 60),
        wanted in (0_i64..70, 0_i64..70),
        bound in 0_usize..4_000,
    ) {
        let entries: Vec<Entry<'_>> = values
            .iter()
            .zip(&timestamps)
            .map(|(value, timestamp)| (*timestamp, None, value.as_deref()))
            .collect();
        let records = batch(0, &entries);
        let policy = RecordPolicy { tombstones: TombstonePolicy::Skip, ..reject_all() };
        let spec = spec(&[("n", "int64")], policy);
        let mut transform = RecordTransform::new(Arc::new(spec)).unwrap().with_max_pending(bound);
        let end = wanted.1.min(i64::try_from(values.len()).unwrap());
        let (mut from, mut all) = (wanted.0, Collected::default());
        while let Some(left) = transform.push("t", 0, &records, from..wanted.1).unwrap() {
            from = left;
            all.add(transform.drain().unwrap());
        }
        all.add(transform.drain().unwrap());
        let tombstones: Vec<i64> = (wanted.0..end)
            .filter(|offset| values[usize::try_from(*offset).unwrap()].is_none())
            .collect();
        let mut seen = tombstones.clone();
        for batch in all.groups.values() {
            seen.extend(ints(batch, "_offset"));
        }
        if let Some(rejected) = &all.rejected {
            seen.extend(ints(rejected, "offset"));
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (wanted.0..end).collect::<Vec<_>>());
        let counts = &all.counts[&(Arc::from("t"), 0)];
        prop_assert_eq!(counts.records(), u64::try_from((end - wanted.0).max(0)).unwrap());
        prop_assert_eq!(counts.tombstones_skipped, u64::try_from(tombstones.len()).unwrap());
        prop_assert_eq!(counts.time_from.iter().sum::<u64>(), counts.rows);
    }
}
