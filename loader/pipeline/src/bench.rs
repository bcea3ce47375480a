//! What a load costs, stage by stage, beside the least that decoding and encoding the same records costs.
//!
//! ```text
//! sample: fetch into memory ─► pure limit: decode + encode, one thread, nothing else
//! load of the same ranges on one thread ─► CPU time by stage (Progress::spent), of the process in all
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::{BinaryArray, RecordBatch};
use broker_client::protocol::record::Records;
use broker_client::{BatchKind, Client, FetchOptions, FetchedBatch};
use rustix::time::ClockId;
use serde::Serialize;

use crate::decode::json::JsonDecoder;
use crate::encode::FileEncoder;
use crate::encode::parquet::ParquetEncoder;
use crate::error::Error;
use crate::load::{Load, Outcome, planned_client_config};
use crate::manifest::Manifest;
use crate::memory::TaskMemory;
use crate::plan::Plan;
use crate::progress::{Progress, Stage, cpu_time};
use crate::snapshot::isolation;
use crate::task::records_of;
use crate::transform::coordinates;

/// Rows decoded before they become a batch, as in a load.
const ROWS: usize = 16 * 1024;

/// CPU times of one round.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Round {
    /// Records loaded.
    pub records: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Fetching alone, nanoseconds of CPU.
    pub fetch: Duration,
    /// By stage.
    pub stages: BTreeMap<&'static str, Duration>,
    /// The whole load.
    pub load: Duration,
    /// Decoding in memory.
    pub pure_decode: Duration,
    /// Encoding in memory.
    pub pure_encode: Duration,
}

impl Round {
    /// How near the load comes to the pure limit: 1 would be a load that costs nothing else.
    #[must_use]
    pub fn share_of_limit(&self) -> f64 {
        let pure = self.pure_decode + self.pure_encode;
        pure.as_secs_f64() / self.load.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Measures one round: `load` must name a location where there is no dataset, and a job of one thread.
///
/// Memory: all records of the plan.
///
/// # Errors
/// As [`Load::run`]; topics without records.
pub async fn round(load: &Load) -> Result<Round, Error> {
    let plan = load.dry_run().await?;
    let mut round = Round::default();
    let before = process_cpu();
    let sample = fetch(load, &plan).await?;
    round.fetch = process_cpu() - before;
    let (decode, encode) = pure_limit(&plan, &sample)?;
    (round.pure_decode, round.pure_encode) = (decode, encode);
    drop(sample);

    let spent = Arc::new(Spent::default());
    let load = Load {
        progress: Arc::<Spent>::clone(&spent),
        ..load.clone()
    };
    let before = process_cpu();
    let outcome = load.run().await?;
    round.load = process_cpu() - before;
    let Outcome::Published(manifest) = outcome else {
        let problem = "there is nothing to measure: the topics have no records";
        return Err(Error::Config {
            problems: vec![problem.to_owned()],
        });
    };
    round.records = manifest.counts().rows;
    round.bytes = manifest.files.iter().map(|file| file.bytes).sum();
    round.stages = spent.take();
    Ok(round)
}

fn process_cpu() -> Duration {
    cpu_time(ClockId::ProcessCPUTime)
}

/// The records of one partition range, as they were fetched.
struct Sample {
    topic: String,
    partition: i32,
    batches: Vec<Records>,
}

async fn fetch(load: &Load, plan: &Plan) -> Result<Vec<Sample>, Error> {
    let client = Client::connect(planned_client_config(plan)).await?;
    let memory = TaskMemory::new(&load.job.engine, 1, plan.parquet.row_group_bytes);
    let options = FetchOptions {
        isolation: isolation(plan.source.isolation),
        prefetch_bytes: Some(memory.prefetch_bytes),
    };
    let cap = usize::try_from(plan.source.max_batch_bytes).unwrap_or(usize::MAX);
    let mut samples = Vec::new();
    for range in plan.tasks.iter().flat_map(|task| &task.ranges) {
        let offsets = range.start..range.end;
        let mut fetch = client.fetch_range(range.topic.clone(), range.partition, offsets, options);
        let mut batches = Vec::new();
        while let Some(FetchedBatch { batch, kind }) = fetch.next().await? {
            if kind == BatchKind::Data {
                batches.push(records_of(range, &batch, cap)?);
            }
        }
        samples.push(Sample {
            topic: range.topic.to_string(),
            partition: range.partition,
            batches,
        });
    }
    Ok(samples)
}

/// CPU time of decoding all samples, and of encoding them, one file a sample.
fn pure_limit(plan: &Plan, samples: &[Sample]) -> Result<(Duration, Duration), Error> {
    let (mut decode, mut encode) = (Duration::ZERO, Duration::ZERO);
    for sample in samples {
        let begin = cpu_time(ClockId::ThreadCPUTime);
        let rows = decode_all(plan, sample)?;
        let decoded = cpu_time(ClockId::ThreadCPUTime);
        encode_all(plan, &rows)?;
        decode += decoded - begin;
        encode += cpu_time(ClockId::ThreadCPUTime) - decoded;
    }
    Ok((decode, encode))
}

fn decode_all(plan: &Plan, sample: &Sample) -> Result<Vec<RecordBatch>, Error> {
    let spec = plan.transform_spec();
    let mut decoder = JsonDecoder::new(&spec.schema);
    let (mut offsets, mut timestamps) = (Vec::new(), Vec::new());
    let mut batches = Vec::new();
    let mut end = |decoder: &mut JsonDecoder, offsets: &mut Vec<i64>, timestamps: &mut Vec<i64>| {
        let mut columns = decoder.finish()?;
        if spec.schema.coordinates {
            let run = (&*sample.topic, sample.partition, offsets.len());
            let rows = offsets.len();
            columns.extend(coordinates(
                &[run],
                std::mem::take(offsets).into(),
                std::mem::take(timestamps),
            )?);
            columns.push(Arc::new(BinaryArray::new_null(rows)));
        }
        batches.push(RecordBatch::try_new(spec.schema.to_arrow(), columns)?);
        Ok::<(), arrow_schema::ArrowError>(())
    };
    for records in &sample.batches {
        for record in records.into_iter().flatten() {
            if record
                .value
                .is_some_and(|value| decoder.decode(value).is_ok())
            {
                offsets.push(record.offset);
                timestamps.push(record.timestamp);
            }
        }
        if offsets.len() >= ROWS {
            end(&mut decoder, &mut offsets, &mut timestamps).map_err(as_bug)?;
        }
    }
    if !offsets.is_empty() {
        end(&mut decoder, &mut offsets, &mut timestamps).map_err(as_bug)?;
    }
    Ok(batches)
}

fn encode_all(plan: &Plan, rows: &[RecordBatch]) -> Result<u64, Error> {
    let Some(first) = rows.first() else {
        return Ok(0);
    };
    let mut encoder = Box::new(ParquetEncoder::new(first.schema(), &plan.parquet)?);
    let mut cut = plan.parquet.row_group_cut();
    let mut group = Vec::new();
    let mut bytes = 0;
    for batch in rows {
        for piece in cut.split(batch, 0..batch.num_rows()) {
            if piece.starts_group {
                bytes += encoder.write_row_group(&group)?.len();
                group.clear();
            }
            group.push(batch.slice(piece.rows.start, piece.rows.len()));
        }
    }
    if !group.is_empty() {
        bytes += encoder.write_row_group(&group)?.len();
    }
    bytes += encoder.close()?.bytes.len();
    Ok(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn as_bug(source: arrow_schema::ArrowError) -> Error {
    Error::Internal {
        what: "decoded columns do not fit together".to_owned(),
        source: Some(Box::new(source)),
    }
}

/// Adds up what the stages cost.
#[derive(Debug, Default)]
struct Spent {
    stages: Mutex<BTreeMap<&'static str, Duration>>,
}

impl Spent {
    fn take(&self) -> BTreeMap<&'static str, Duration> {
        std::mem::take(&mut self.stages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Progress for Spent {
    fn planned(&self, _: &Plan, _: usize) {}
    fn advanced(&self, _: u64, _: u64) {}
    fn task_done(&self, _: u32) {}
    fn task_retried(&self, _: u32, _: &Error) {}
    fn assembling(&self) {}
    fn published(&self, _: &Manifest) {}

    fn spent(&self, stage: Stage, cpu: Duration) {
        let name = match stage {
            Stage::Unpack => "unpack",
            Stage::Decode => "decode",
            Stage::Group => "group",
            Stage::Encode => "encode",
        };
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        *stages.entry(name).or_default() += cpu;
    }
}
