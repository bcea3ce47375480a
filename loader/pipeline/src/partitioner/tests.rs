use arrow_array::ArrayRef;
use jiff::Timestamp;

use super::directories::{TimeSegments, segment, step_ms};
use super::*;
use crate::decode::json::JsonDecoder;
use crate::schema::Column;

/// 2026-11-30T13:05:09.250Z.
const NOW: i64 = 1_796_043_909_250;
const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

fn schema(columns: &[(&str, &str)]) -> TableSchema {
    let column = |(name, text): &(&str, &str)| Column::new(*name, text.parse().unwrap());
    TableSchema {
        columns: columns.iter().map(column).collect(),
        ..TableSchema::default()
    }
}

fn by(column: &str, unit: TimeUnit) -> EventTimeSource {
    EventTimeSource::Column {
        column: column.to_owned(),
        unit,
    }
}

/// Directories (or reasons) of rows given as JSON, with their record timestamps.
fn place(schema: &TableSchema, grouping: &Grouping, rows: &[(&str, i64)]) -> Vec<String> {
    let mut decoder = JsonDecoder::new(schema);
    for (row, _) in rows {
        decoder.decode(row.as_bytes()).unwrap();
    }
    let columns: Vec<ArrayRef> = decoder.finish().unwrap();
    let timestamps: Vec<i64> = rows.iter().map(|(_, timestamp)| *timestamp).collect();
    let mut partitioner = Partitioner::new(grouping, schema, NOW).unwrap();
    let found = partitioner.assign(schema, &columns, &timestamps);
    let mut rejects = found.rejects.iter();
    let shown = found.group_of_row.iter().enumerate().map(|(row, group)| {
        if *group == Assignment::REJECTED {
            let (rejected, reason) = rejects.next().unwrap();
            assert_eq!(*rejected, row);
            return reason.clone();
        }
        let source = found.source_of_row[row];
        format!(
            "{} from {source}",
            found.directories[usize::try_from(*group).unwrap()]
        )
    });
    shown.collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn every_unusable_or_unlikely_time_has_its_place() {
    let schema = schema(&[("ts", "int64"), ("text", "string")]);
    let grouping = Grouping {
        event_time: vec![
            by("ts", TimeUnit::Milliseconds),
            by("text", TimeUnit::Milliseconds),
            EventTimeSource::RecordTimestamp,
        ],
        ..Grouping::default()
    };
    let before = "is before the window's bound 2026-10-31T13:05:09.25Z (max_past)";
    let after = "is after the window's bound 2026-12-01T13:05:09.25Z (max_future)";
    for (row, record_timestamp, expected) in [
        (
            r#"{"ts":1796043909250}"#,
            1,
            "dt=2026-11-30/hour=13 from 0".to_owned(),
        ),
        (
            r#"{"ts":null}"#,
            NOW,
            "dt=2026-11-30/hour=13 from 2".to_owned(),
        ),
        (r#"{}"#, NOW, "dt=2026-11-30/hour=13 from 2".to_owned()),
        (
            r#"{"ts":-1}"#,
            NOW,
            "dt=2026-11-30/hour=13 from 2".to_owned(),
        ),
        (
            r#"{"ts":0}"#,
            NOW,
            "dt=2026-11-30/hour=13 from 2".to_owned(),
        ),
        (
            r#"{"text":""}"#,
            NOW,
            "dt=2026-11-30/hour=13 from 2".to_owned(),
        ),
        (
            r#"{"text":"abc"}"#,
            NOW,
            "dt=2026-11-30/hour=13 from 2".to_owned(),
        ),
        (
            r#"{"text":"99999-01-01T00:00:00Z"}"#,
            NOW,
            "dt=2026-11-30/hour=13 from 2".to_owned(),
        ),
        (
            r#"{"text":"2026-11-29T00:30:00+01:00"}"#,
            NOW,
            "dt=2026-11-28/hour=23 from 1".to_owned(),
        ),
        (
            r#"{"ts":0,"text":""}"#,
            -1,
            format!("dt={DEFAULT_PARTITION}/hour={DEFAULT_PARTITION} from 3"),
        ),
        (
            r#"{}"#,
            0,
            format!("dt={DEFAULT_PARTITION}/hour={DEFAULT_PARTITION} from 3"),
        ),
        (
            r#"{"ts":1}"#,
            NOW,
            format!("the event time 1970-01-01T00:00:00.001Z (column `ts`) {before}"),
        ),
        // Seconds, and microseconds, where milliseconds were meant.
        (
            r#"{"ts":1796043909}"#,
            NOW,
            format!("the event time 1970-01-21T18:54:03.909Z (column `ts`) {before}"),
        ),
        (
            r#"{"ts":1796043909250000}"#,
            NOW,
            format!("the event time 1796043909250000 ms since 1970 (column `ts`) {after}"),
        ),
        // Year 99999, and 2099.
        (
            r#"{"ts":3093527980799000}"#,
            NOW,
            format!("the event time 3093527980799000 ms since 1970 (column `ts`) {after}"),
        ),
        (
            r#"{"ts":4070908800000}"#,
            NOW,
            format!("the event time 2099-01-01T00:00:00Z (column `ts`) {after}"),
        ),
        (
            r#"{"ts":-2}"#,
            NOW,
            format!("the event time 1969-12-31T23:59:59.998Z (column `ts`) {before}"),
        ),
        (
            r#"{"text":"1970-01-01T00:00:00Z"}"#,
            NOW,
            format!("the event time 1970-01-01T00:00:00Z (column `text`) {before}"),
        ),
        (
            r#"{}"#,
            5,
            format!("the event time 1970-01-01T00:00:00.005Z (record timestamp) {before}"),
        ),
        (
            r#"{"ts":9223372036854775807}"#,
            NOW,
            format!("the event time 9223372036854775807 ms since 1970 (column `ts`) {after}"),
        ),
    ] {
        assert_eq!(
            place(&schema, &grouping, &[(row, record_timestamp)]),
            [expected],
            "{row}"
        );
    }
}

#[test]
fn window_bounds_are_inclusive() {
    let schema = schema(&[]);
    let rows = [NOW - 30 * DAY, NOW - 30 * DAY - 1, NOW + DAY, NOW + DAY + 1];
    let placed = place(&schema, &Grouping::default(), &rows.map(|at| ("{}", at)));
    let rejected: Vec<bool> = placed
        .iter()
        .map(|text| text.starts_with("the event"))
        .collect();
    assert_eq!(rejected, [false, true, false, true], "{placed:?}");
}

#[test]
fn units_and_types_of_event_times_agree() {
    let schema = schema(&[
        ("s", "int64"),
        ("us", "int64"),
        ("small", "int32"),
        ("tms", "timestamp_ms"),
        ("tus", "timestamp_us"),
        ("day", "date"),
    ]);
    for (source, row, hour) in [
        (by("s", TimeUnit::Seconds), r#"{"s":1796043909}"#, "13"),
        (
            by("us", TimeUnit::Microseconds),
            r#"{"us":1796043909250999}"#,
            "13",
        ),
        (
            by("small", TimeUnit::Seconds),
            r#"{"small":1796043909}"#,
            "13",
        ),
        (
            by("tms", TimeUnit::Milliseconds),
            r#"{"tms":1796043909250}"#,
            "13",
        ),
        (
            by("tus", TimeUnit::Milliseconds),
            r#"{"tus":"2026-11-30T13:05:09.000001Z"}"#,
            "13",
        ),
        (
            by("day", TimeUnit::Milliseconds),
            r#"{"day":"2026-11-30"}"#,
            "00",
        ),
    ] {
        let grouping = Grouping {
            event_time: vec![source],
            ..Grouping::default()
        };
        let placed = place(&schema, &grouping, &[(row, -1)]);
        assert_eq!(
            placed,
            [format!("dt=2026-11-30/hour={hour} from 0")],
            "{row}"
        );
    }
    let seconds = Grouping {
        event_time: vec![by("s", TimeUnit::Seconds)],
        ..Grouping::default()
    };
    let placed = place(&schema, &seconds, &[(r#"{"s":9223372036854775807}"#, -1)]);
    assert_eq!(placed, ["the event time (column `s`) is beyond all years"]);
}

#[test]
fn columns_make_directories_with_hive_escapes() {
    let schema = schema(&[
        ("c", "string"),
        ("n", "int32"),
        ("b", "boolean"),
        ("d", "date"),
    ]);
    let keys = [("kc", "c"), ("kn", "n"), ("kb", "b"), ("kd", "d")];
    let keys = keys
        .map(|(name, column)| GroupKey::column(name, column))
        .into();
    let grouping = Grouping {
        keys,
        ..Grouping::default()
    };
    let placed = place(
        &schema,
        &grouping,
        &[
            (r#"{"c":"a/b=c:d%","n":-5,"b":true,"d":"2026-11-30"}"#, -1),
            (r#"{"c":"","b":false}"#, -1),
            (r#"{"c":"../..","n":1}"#, -1),
            (r#"{"c":"a/b=c:d%","n":-5,"b":true,"d":"2026-11-30"}"#, -1),
            ("{\"c\":\"é x\\u0000\\u007f\"}", -1),
        ],
    );
    let none = DEFAULT_PARTITION;
    assert_eq!(
        placed[0],
        "kc=a%2Fb%3Dc%3Ad%25/kn=-5/kb=true/kd=2026-11-30 from 1"
    );
    assert_eq!(
        placed[1],
        format!("kc={none}/kn={none}/kb=false/kd={none} from 1")
    );
    assert_eq!(
        placed[2],
        format!("kc=..%2F../kn=1/kb={none}/kd={none} from 1")
    );
    assert_eq!(placed[3], placed[0]);
    assert_eq!(
        placed[4],
        format!("kc=é x%00%7F/kn={none}/kb={none}/kd={none} from 1")
    );
    let long = format!("{{\"c\":\"{}\"}}", "/".repeat(85));
    let placed = place(&schema, &grouping, &[(&long, -1)]);
    assert_eq!(
        placed,
        ["the directory for `kc` would need 258 bytes, more than 255"]
    );
}

#[test]
fn times_and_columns_mix_in_the_order_of_the_keys() {
    let schema = schema(&[("c", "string")]);
    let keys = vec![
        GroupKey::time("dt", "%Y-%m-%d"),
        GroupKey::column("kc", "c"),
        GroupKey::time("at", "%H:%M"),
    ];
    let grouping = Grouping {
        keys,
        ..Grouping::default()
    };
    let placed = place(
        &schema,
        &grouping,
        &[(r#"{"c":"x"}"#, NOW), (r#"{"c":"y"}"#, NOW), ("{}", -1)],
    );
    let none = DEFAULT_PARTITION;
    assert_eq!(placed[0], "dt=2026-11-30/kc=x/at=13%3A05 from 0");
    assert_eq!(placed[1], "dt=2026-11-30/kc=y/at=13%3A05 from 0");
    assert_eq!(placed[2], format!("dt={none}/kc={none}/at={none} from 1"));
}

#[test]
fn ungrouped_rows_are_not_judged_by_their_time() {
    let placed = place(
        &schema(&[]),
        &Grouping::none(),
        &[("{}", NOW), ("{}", 5), ("{}", -1)],
    );
    assert_eq!(placed, [" from 0", " from 1", " from 1"]);
}

#[test]
fn zones_follow_their_rules_on_every_side_of_a_change() {
    // The end of summer time in Berlin; a zone between hours; a change of half an hour.
    for (zone, cases) in [
        (
            "Europe/Berlin",
            vec![
                ("2026-10-24T23:59:59Z", "dt=2026-10-25/hour=01"),
                ("2026-10-25T00:59:59.999Z", "dt=2026-10-25/hour=02"),
                ("2026-10-25T01:00:00Z", "dt=2026-10-25/hour=02"),
                ("2026-10-25T02:00:00Z", "dt=2026-10-25/hour=03"),
            ],
        ),
        (
            "Asia/Kolkata",
            vec![
                ("2026-11-30T18:29:59Z", "dt=2026-11-30/hour=23"),
                ("2026-11-30T18:30:00Z", "dt=2026-12-01/hour=00"),
            ],
        ),
        (
            "Australia/Lord_Howe",
            vec![
                ("2026-10-03T15:15:00Z", "dt=2026-10-04/hour=01"),
                ("2026-10-03T15:29:59Z", "dt=2026-10-04/hour=01"),
                ("2026-10-03T15:30:00Z", "dt=2026-10-04/hour=02"),
                ("2026-10-03T15:45:00Z", "dt=2026-10-04/hour=02"),
            ],
        ),
    ] {
        let grouping = Grouping {
            zone: zone.to_owned(),
            max_past: Period::days(365),
            ..Grouping::default()
        };
        // Both ways, since what was looked up before is kept.
        for backwards in [false, true] {
            let mut cases = cases.clone();
            if backwards {
                cases.reverse();
            }
            let at = |time: &str| time.parse::<Timestamp>().unwrap().as_millisecond();
            let rows: Vec<_> = cases.iter().map(|(time, _)| ("{}", at(time))).collect();
            let placed = place(&schema(&[]), &grouping, &rows);
            let expected: Vec<_> = cases
                .iter()
                .map(|(_, path)| format!("{path} from 0"))
                .collect();
            assert_eq!(placed, expected, "{zone}");
        }
    }
}

#[test]
fn cached_segments_equal_fresh_ones() {
    let formats = vec![
        ("dt".to_owned(), "%Y-%m-%d".to_owned()),
        ("m".to_owned(), "%j %H%M".to_owned()),
    ];
    for zone in ["UTC", "America/St_Johns", "Australia/Lord_Howe"] {
        let zone = time_zone(zone).unwrap();
        let mut cached = TimeSegments::new(formats.clone(), zone.clone());
        let mut at = NOW - 400 * DAY;
        for step in 0..20_000_i64 {
            at += (step * 7_919_123).rem_euclid(97 * 60_000);
            let number = cached.find(at).unwrap();
            let mut fresh = TimeSegments::new(formats.clone(), zone.clone());
            let fresh_number = fresh.find(at).unwrap();
            assert_eq!(
                cached.segments(number),
                fresh.segments(fresh_number),
                "{at}"
            );
            let utc = Timestamp::from_millisecond(at).unwrap();
            let local = zone.to_datetime(utc);
            assert_eq!(
                cached.segments(number)[0],
                segment("dt", &local.date().to_string())
            );
        }
    }
}

#[test]
fn thousands_of_hours_make_as_many_groups() {
    let grouping = Grouping {
        max_past: Period::days(1_000),
        ..Grouping::default()
    };
    let rows: Vec<_> = (0..10_000)
        .map(|n| ("{}", NOW - (n * 7_919 % 5_000) * HOUR))
        .collect();
    let placed = place(&schema(&[]), &grouping, &rows);
    let distinct: std::collections::HashSet<_> = placed.iter().collect();
    assert_eq!(distinct.len(), 5_000);
}

#[test]
fn formats_are_limited_to_what_keeps_still_within_a_step() {
    assert_eq!(step_ms("%Y-%m-%d"), Some(DAY));
    assert_eq!(step_ms("%Y%j %H"), Some(HOUR));
    assert_eq!(step_ms("%H:%M"), Some(60_000));
    for format in ["", "dt", "%S", "%", "%Y%", "%%Y", "%Y\n", "%Z"] {
        assert_eq!(step_ms(format), None, "{format}");
    }
}

#[test]
fn job_file_form_round_trips_and_defaults() {
    let json = r#"{"keys":[{"name":"dt","time":"%Y-%m-%d"},{"name":"k","column":"c"}],"event_time":["ts",{"column":"t2","unit":"s"},"record timestamp"],"zone":"Europe/Berlin","max_past":"90d"}"#;
    let grouping: Grouping = serde_json::from_str(json).unwrap();
    assert_eq!(grouping.event_time[1], by("t2", TimeUnit::Seconds));
    assert_eq!(grouping.event_time[2], EventTimeSource::RecordTimestamp);
    assert_eq!(grouping.max_future, Period::days(1));
    let again = serde_json::to_string(&grouping).unwrap();
    assert_eq!(serde_json::from_str::<Grouping>(&again).unwrap(), grouping);
    assert_eq!(
        serde_json::from_str::<Grouping>("{}").unwrap(),
        Grouping::default()
    );
    assert!(serde_json::from_str::<Grouping>(r#"{"max_pats":"1d"}"#).is_err());
    let wrong_unit = json.replace("\"s\"", "\"h\"");
    let error = serde_json::from_str::<Grouping>(&wrong_unit)
        .unwrap_err()
        .to_string();
    assert!(error.contains("an event_time source is"), "{error}");
}

#[test]
fn every_problem_of_a_grouping_is_reported() {
    let schema = schema(&[("x", "float64"), ("ts", "timestamp_ms")]);
    let both = GroupKey {
        column: Some("x".to_owned()),
        ..GroupKey::time("b", "%Y")
    };
    let grouping = Grouping {
        keys: vec![
            GroupKey::time("_dt", "%Y"),
            GroupKey::time("dt", "%S"),
            GroupKey::column("DT", "x"),
            GroupKey::column("k", "nope"),
            both,
        ],
        event_time: vec![
            by("missing", TimeUnit::Seconds),
            by("ts", TimeUnit::Seconds),
            by("x", TimeUnit::Milliseconds),
        ],
        zone: "Mars/Olympus".to_owned(),
        ..Grouping::default()
    };
    let text = grouping.validate(&schema).unwrap_err().to_string();
    for expected in [
        "grouping key `_dt` must be a word",
        "grouping key `dt`: the format `%S`",
        "grouping key `DT` is declared twice",
        "cannot use the column `x` of type float64 as a key",
        "names the column `nope`",
        "grouping key `b` needs exactly one",
        "names the column `missing`",
        "gives a unit for `ts`",
        "cannot use the column `x` of type float64 as an event time",
        "names the time zone `Mars/Olympus`",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(Partitioner::new(&grouping, &schema, NOW).is_err());
}
