//! `logferry produce`

use std::collections::VecDeque;
use std::path::PathBuf;

use broker_client::protocol::ids::TopicName;
use broker_client::protocol::record::Compression;
use broker_client::{DeliveryHandle, Producer, ProducerConfig, ProducerRecord};
use clap::{Args, ValueEnum};
use loader_pipeline::error::Exit;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};

use super::topics::topic_name;
use super::{Brokers, out};
use crate::failure::{Failure, Outcome};

/// Longest line that is taken.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Deliveries waited for at once.
const MAX_WAITING: usize = 10_000;

/// Produce records from a file or standard input, one a line.
#[derive(Debug, Args)]
pub(super) struct Produce {
    #[command(flatten)]
    brokers: Brokers,
    /// Topic.
    topic: String,
    /// File to read. Default: standard input.
    #[arg(long, short)]
    file: Option<PathBuf>,
    /// `lines`: any text. `json`: every line must be a JSON object.
    #[arg(long, default_value = "lines")]
    format: Format,
    /// With `json`: the field whose value is the record's key. Same keys go to the same partition.
    #[arg(long, value_name = "FIELD", conflicts_with = "key_separator")]
    key: Option<String>,
    /// With `lines`: text that separates key and value.
    #[arg(long, value_name = "TEXT")]
    key_separator: Option<String>,
    /// With `json`: the field with the record's timestamp, in milliseconds since the epoch or RFC 3339.
    /// Default: now.
    #[arg(long, value_name = "FIELD")]
    timestamp: Option<String>,
    /// Send everything to this partition.
    #[arg(long, short)]
    partition: Option<i32>,
    /// Codec of the batches: none, gzip, snappy, lz4 or zstd.
    #[arg(long, default_value = "none")]
    compression: Compression,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Lines,
    Json,
}

impl Produce {
    pub(super) async fn run(self) -> Outcome {
        if self.format == Format::Lines && (self.key.is_some() || self.timestamp.is_some()) {
            return Err(Failure::usage("--key and --timestamp need --format json"));
        }
        let topic = topic_name(&self.topic)?;
        let client = self.brokers.connect().await?;
        let producer = client.producer(ProducerConfig {
            compression: self.compression,
            ..ProducerConfig::default()
        })?;
        let mut input = self.input().await?;
        let mut waiting = VecDeque::new();
        let sent = self
            .send_lines(&topic, &producer, &mut *input, &mut waiting)
            .await;
        // Whatever ended the input: what was sent before is delivered, or said not to be.
        producer.flush().await?;
        for delivery in waiting {
            delivery.await?;
        }
        out::line(&format!("{} records produced to {topic}", sent?))?;
        Ok(None)
    }

    /// Sends line by line; returns how many.
    async fn send_lines(
        &self,
        topic: &TopicName,
        producer: &Producer,
        input: &mut (dyn AsyncBufRead + Unpin),
        waiting: &mut VecDeque<DeliveryHandle>,
    ) -> Result<u64, Failure> {
        let mut sent = 0_u64;
        let mut line = Vec::new();
        while read_line(input, &mut line, sent + 1).await? {
            let record = self
                .record(topic, &line)
                .map_err(|problem| bad_line(sent + 1, &problem))?;
            waiting.push_back(producer.send(record).await?);
            sent += 1;
            if waiting.len() > MAX_WAITING
                && let Some(first) = waiting.pop_front()
            {
                first.await?;
            }
        }
        Ok(sent)
    }

    async fn input(&self) -> Result<Box<dyn AsyncBufRead + Unpin>, Failure> {
        let Some(path) = &self.file else {
            return Ok(Box::new(BufReader::with_capacity(
                1 << 20,
                tokio::io::stdin(),
            )));
        };
        let file = tokio::fs::File::open(path).await.map_err(|error| {
            let what = anyhow::Error::new(error).context(format!("cannot open {}", path.display()));
            Failure::new(Exit::Usage, what)
        })?;
        Ok(Box::new(BufReader::with_capacity(1 << 20, file)))
    }

    fn record(&self, topic: &TopicName, line: &[u8]) -> Result<ProducerRecord, String> {
        let (key, value) = self.split(line);
        let mut record = ProducerRecord::new(topic.clone(), value.to_vec());
        record.partition = self.partition;
        record.key = key.map(|key| key.to_vec().into());
        if self.format == Format::Json {
            let object: serde_json::Map<String, serde_json::Value> =
                serde_json::from_slice(value).map_err(|e| format!("is not a JSON object: {e}"))?;
            if let Some(field) = &self.key {
                let key = object
                    .get(field)
                    .ok_or_else(|| format!("has no field `{field}`"))?;
                record.key = Some(match key {
                    serde_json::Value::String(text) => text.clone().into(),
                    other => other.to_string().into(),
                });
            }
            if let Some(field) = &self.timestamp {
                let time = object
                    .get(field)
                    .ok_or_else(|| format!("has no field `{field}`"))?;
                record.timestamp_ms = Some(
                    time_ms(time).ok_or_else(|| format!("field `{field}` is no time: {time}"))?,
                );
            }
        }
        Ok(record)
    }

    fn split<'a>(&self, line: &'a [u8]) -> (Option<&'a [u8]>, &'a [u8]) {
        let Some(separator) = self.key_separator.as_deref().filter(|s| !s.is_empty()) else {
            return (None, line);
        };
        let at = line
            .windows(separator.len())
            .position(|window| window == separator.as_bytes());
        match at.and_then(|at| line.split_at_checked(at)) {
            Some((key, rest)) => (Some(key), rest.get(separator.len()..).unwrap_or_default()),
            None => (None, line),
        }
    }
}

fn time_ms(value: &serde_json::Value) -> Option<i64> {
    match value {
        serde_json::Value::String(text) => text
            .parse::<jiff::Timestamp>()
            .ok()
            .map(jiff::Timestamp::as_millisecond),
        other => other.as_i64(),
    }
}

fn bad_line(number: u64, problem: &str) -> Failure {
    Failure::new(Exit::Data, anyhow::anyhow!("line {number} {problem}"))
        .try_this("correct the line; the lines before it were produced")
}

/// Reads a line without its end; false at the end of the input.
async fn read_line(
    input: &mut (dyn AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    number: u64,
) -> Result<bool, Failure> {
    line.clear();
    let read = input.take(MAX_LINE_BYTES).read_until(b'\n', line).await?;
    if read == 0 {
        return Ok(false);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    } else if u64::try_from(read).unwrap_or(u64::MAX) >= MAX_LINE_BYTES {
        return Err(bad_line(
            number,
            &format!("is longer than {MAX_LINE_BYTES} bytes"),
        ));
    }
    Ok(true)
}
