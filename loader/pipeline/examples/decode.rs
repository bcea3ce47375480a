//! Speed of decoding, grouping and writing, in records per CPU second of one thread:
//! `cargo run --release -p loader-pipeline --example decode [RECORDS] [STAGE]`.
//!
//! The records are page views of about 186 bytes with five fields, in batches of 1,000, their event
//! times rising through one day: 24 directories.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::sync::Arc;

use arrow_array::Array as _;
use broker_client::protocol::record::{BatchBuilder, Compression, RecordBatch, Records, stamp};
use loader_pipeline::decode::json::JsonDecoder;
use loader_pipeline::encode::FileEncoder;
use loader_pipeline::encode::parquet::{DictionaryRule, ParquetEncoder, ParquetOptions};
use loader_pipeline::partitioner::{EventTimeSource, Grouping, TimeUnit};
use loader_pipeline::schema::{Column, ColumnType, TableSchema};
use loader_pipeline::transform::{RecordPolicy, RecordTransform, TransformSpec};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// 2026-11-30T00:00:00Z.
const DAY_MS: u64 = 1_795_996_800_000;
const BATCH: u64 = 1_000;

fn main() -> Result<()> {
    let count = std::env::args()
        .nth(1)
        .map_or(Ok(1_000_000), |text| text.parse::<u64>())?;
    let batches = batches(count)?;
    let bytes: usize = batches.iter().map(Records::size_in_bytes).sum();
    println!(
        "{count} records, {} bytes each with their framing",
        bytes / usize::try_from(count)?
    );
    for _ in 0..2 {
        time("iterate", count, || iterate(&batches))?;
        time("decode", count, || decode(&batches))?;
        time("decode + group", count, || group(&batches))?;
        for (compression, dictionary) in [
            ("zstd:3", DictionaryRule::Auto),
            ("zstd:3", DictionaryRule::Always),
            ("zstd:1", DictionaryRule::Auto),
            ("none", DictionaryRule::Auto),
        ] {
            let compression = compression.parse()?;
            let options = ParquetOptions {
                compression,
                dictionary,
                ..ParquetOptions::default()
            };
            let name = format!("decode + group + Parquet {compression} {dictionary:?}");
            time(&name, count, || write(&batches, &options))?;
        }
    }
    Ok(())
}

fn batches(count: u64) -> Result<Vec<Records>> {
    let events = [
        "page_view",
        "click",
        "add_to_cart",
        "search",
        "login",
        "purchase",
    ];
    let from = ["home", "search", "mail"];
    let mut state = 7_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let urls: Vec<String> = (0..50_000_usize)
        .map(|n| {
            let (catalog, item) = (random() & 0xFF_FFFF, random() & 0xFFFF_FFFF);
            let from = from.get(n % 3).unwrap_or(&"");
            let session = random();
            format!("https://www.example.com/catalog/{catalog:06x}/item/{item:08x}?ref={from}&s={session:016x}")
        })
        .collect();
    let mut batches = Vec::new();
    let mut builder = BatchBuilder::new(Compression::None);
    for n in 0..count {
        let index = usize::try_from(n)?;
        let event = events.get(index % events.len()).unwrap_or(&"");
        let url = urls.get(index % urls.len()).map_or("", String::as_str);
        let (user, time) = (random() & 0xFF_FFFF_FFFF, DAY_MS + n * 86_400_000 / count);
        let (server, center) = (n % 291 % 97, n % 291 % 3);
        let value = format!(
            "{{\"event\":\"{event}\",\"user_id\":{user},\"ts\":{time},\
             \"server\":\"web-{server:03}.dc{center}.example.com\",\"url\":\"{url}\"}}"
        );
        builder.push(i64::try_from(time)?, None, Some(value.as_bytes()), &[])?;
        if (n + 1) % BATCH == 0 || n + 1 == count {
            let full = std::mem::replace(&mut builder, BatchBuilder::new(Compression::None));
            let mut bytes = full.build()?.to_vec();
            stamp(&mut bytes, i64::try_from(n / BATCH * BATCH)?, 0)?;
            batches.push(RecordBatch::parse(bytes.into())?.records(1 << 30)?);
        }
    }
    Ok(batches)
}

fn spec() -> TransformSpec {
    let columns = [
        ("event", ColumnType::String),
        ("user_id", ColumnType::Int64),
        ("ts", ColumnType::TimestampMs),
        ("server", ColumnType::String),
        ("url", ColumnType::String),
    ];
    let columns = columns
        .into_iter()
        .map(|(name, column_type)| Column::new(name, column_type));
    let time = EventTimeSource::Column {
        column: "ts".to_owned(),
        unit: TimeUnit::default(),
    };
    TransformSpec {
        schema: TableSchema {
            columns: columns.collect(),
            ..TableSchema::default()
        },
        grouping: Grouping {
            event_time: vec![time],
            ..Grouping::default()
        },
        policy: RecordPolicy::default(),
        plan_time_ms: i64::try_from(DAY_MS).unwrap_or(0) + 86_400_000,
    }
}

fn iterate(batches: &[Records]) -> Result<u64> {
    let mut bytes = 0;
    for records in batches {
        for record in records {
            bytes += u64::try_from(record?.value.map_or(0, <[u8]>::len))?;
        }
    }
    Ok(bytes)
}

fn decode(batches: &[Records]) -> Result<u64> {
    let mut decoder = JsonDecoder::new(&spec().schema);
    let mut rows = 0;
    for (index, records) in batches.iter().enumerate() {
        for record in records {
            if let Some(value) = record?.value {
                decoder.decode(value).map_err(|reject| reject.reason)?;
            }
        }
        if index % 16 == 15 || index + 1 == batches.len() {
            rows += decoder.finish()?.first().map_or(0, |column| column.len());
        }
    }
    Ok(u64::try_from(rows)?)
}

fn group(batches: &[Records]) -> Result<u64> {
    let mut rows = 0;
    run(batches, |_, batch| {
        rows += batch.num_rows();
        Ok(())
    })?;
    Ok(u64::try_from(rows)?)
}

fn write(batches: &[Records], options: &ParquetOptions) -> Result<u64> {
    let schema = spec().schema.to_arrow();
    let mut files: BTreeMap<Arc<str>, Vec<arrow_array::RecordBatch>> = BTreeMap::new();
    run(batches, |directory, batch| {
        files.entry(directory).or_default().push(batch);
        Ok(())
    })?;
    let mut bytes = 0;
    for rows in files.into_values() {
        let mut file = Box::new(ParquetEncoder::new(Arc::clone(&schema), options)?);
        bytes += file.write_row_group(&rows)?.len();
        bytes += file.close()?.bytes.len();
    }
    Ok(u64::try_from(bytes)?)
}

fn run(
    batches: &[Records],
    mut take: impl FnMut(Arc<str>, arrow_array::RecordBatch) -> Result<()>,
) -> Result<()> {
    let mut transform = RecordTransform::new(Arc::new(spec()))?;
    let mut drain = |transform: &mut RecordTransform| {
        let chunk = transform.drain()?;
        let mut groups = chunk.groups.iter();
        groups.try_for_each(|group| take(Arc::clone(&group.directory), chunk.rows_of(group)))
    };
    for records in batches {
        let mut from = 0;
        while let Some(left) = transform.push("views", 0, records, from..i64::MAX)? {
            drain(&mut transform)?;
            from = left;
        }
        if transform.rows_pending() >= 16 * 1024 {
            drain(&mut transform)?;
        }
    }
    drain(&mut transform)
}

fn time(name: &str, count: u64, work: impl FnOnce() -> Result<u64>) -> Result<()> {
    if std::env::args().nth(2).is_some_and(|wanted| wanted != name) {
        return Ok(());
    }
    let before = cpu_ticks()?;
    let result = work()?;
    let ticks = cpu_ticks()? - before;
    // Linux counts in hundredths of a second.
    let per_second = count * 100 / ticks.max(1);
    println!("{name:45} {per_second:>10} records per CPU second (result {result})");
    Ok(())
}

/// utime + stime of this process.
fn cpu_ticks() -> Result<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(')').ok_or("no command in stat")?.1;
    let ticks = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<u64>);
    Ok(ticks.sum::<std::result::Result<u64, _>>()?)
}
