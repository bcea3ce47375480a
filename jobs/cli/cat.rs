//! `logferry cat`

use std::ops::Range;

use broker_client::protocol::ids::TopicName;
use broker_client::protocol::record::Record;
use broker_client::{BatchKind, Client, FetchOptions, IsolationLevel, OffsetSpec, RangeFetch};
use clap::{Args, ValueEnum};
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::Brokers;
use super::out::Out;
use super::topics::{existing, topic_name};
use crate::failure::{Failure, Outcome};
use crate::shutdown;

/// Largest batch after decompression that is looked into.
const MAX_DECOMPRESSED: usize = 256 << 20;

/// Print the records of a topic.
///
/// Partitions are read at the same time; within a partition the order is the log's. Only committed
/// records are printed.
#[derive(Debug, Args)]
pub(super) struct Cat {
    #[command(flatten)]
    brokers: Brokers,
    /// Topic.
    topic: String,
    /// Only these partitions; may be repeated.
    #[arg(long, short)]
    partition: Vec<i32>,
    /// First record: `earliest`, `latest`, an offset, or an RFC 3339 time.
    #[arg(long, default_value = "earliest")]
    from: Position,
    /// Where to stop (exclusive): `latest` (the end as it is now), an offset, or an RFC 3339 time.
    #[arg(long, default_value = "latest", conflicts_with = "follow")]
    to: Position,
    /// Go on with what arrives, until interrupted.
    #[arg(long, short)]
    follow: bool,
    /// Stop after so many records.
    #[arg(long, short = 'n')]
    count: Option<u64>,
    /// `raw`: values, a line each. `json`: an object a record, with coordinates, key, value and headers.
    #[arg(long, default_value = "raw")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Raw,
    Json,
}

/// A place in a log.
#[derive(Debug, Clone, Copy)]
enum Position {
    Earliest,
    Latest,
    Offset(i64),
    Time(jiff::Timestamp),
}

impl std::str::FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "earliest" => return Ok(Self::Earliest),
            "latest" => return Ok(Self::Latest),
            _ => {}
        }
        if let Ok(offset) = text.parse::<i64>() {
            return if offset >= 0 {
                Ok(Self::Offset(offset))
            } else {
                Err("an offset is 0 or more".to_owned())
            };
        }
        text.parse().map(Self::Time).map_err(|_| {
            "is none of earliest, latest, an offset and a time such as 2026-11-30T12:00:00Z"
                .to_owned()
        })
    }
}

impl Cat {
    pub(super) async fn run(self) -> Outcome {
        let client = self.brokers.connect().await?;
        let topic = topic_name(&self.topic)?;
        let stop = shutdown::on_signal()?;
        let mut fetches = FuturesUnordered::new();
        for (partition, range) in self.ranges(&client, &topic).await? {
            let options = FetchOptions {
                isolation: IsolationLevel::ReadCommitted,
                prefetch_bytes: None,
            };
            let fetch = client.fetch_range(topic.clone(), partition, range.clone(), options);
            fetches.push(next(Reading {
                partition,
                range,
                fetch,
            }));
        }
        let mut printer = Printer {
            out: Out::new(),
            output: self.output,
            left: self.count,
            topic,
        };
        loop {
            let (reading, fetched) = tokio::select! {
                next = fetches.next() => match next { Some(next) => next, None => break },
                () = stop.cancelled() => break,
            };
            let Some(fetched) = fetched? else { continue };
            if fetched.kind == BatchKind::Data && !printer.print(&reading, &fetched.batch)? {
                return Ok(None);
            }
            if self.follow && !printer.out.flush()? {
                return Ok(None);
            }
            fetches.push(next(reading));
        }
        printer.out.flush()?;
        Ok(None)
    }

    async fn ranges(
        &self,
        client: &Client,
        topic: &TopicName,
    ) -> Result<Vec<(i32, Range<i64>)>, Failure> {
        let metadata = existing(client, topic).await?;
        let all: Vec<i32> = metadata.partitions.iter().map(|p| p.partition).collect();
        if let Some(unknown) = self.partition.iter().find(|p| !all.contains(p)) {
            let partition = *unknown;
            return Err(broker_client::Error::UnknownPartition {
                topic: topic.clone(),
                partition,
            }
            .into());
        }
        let wanted = if self.partition.is_empty() {
            all
        } else {
            self.partition.clone()
        };
        let level = IsolationLevel::ReadCommitted;
        let mut earliest = client
            .list_offsets(topic, &wanted, OffsetSpec::Earliest, level)
            .await?;
        let mut latest = client
            .list_offsets(topic, &wanted, OffsetSpec::Latest, level)
            .await?;
        let mut ranges = Vec::new();
        for partition in wanted {
            let (Some(first), Some(last)) =
                (earliest.remove(&partition), latest.remove(&partition))
            else {
                continue;
            };
            let log = first?.offset..last?.offset;
            let place = async |at: Position| -> Result<i64, Failure> {
                Ok(match at {
                    Position::Earliest => log.start,
                    Position::Latest => log.end,
                    Position::Offset(offset) => offset,
                    Position::Time(time) => {
                        let at = OffsetSpec::Timestamp(time.as_millisecond());
                        let mut listed =
                            client.list_offsets(topic, &[partition], at, level).await?;
                        match listed.remove(&partition).transpose()? {
                            Some(listed) if listed.offset >= 0 => listed.offset,
                            _ => log.end,
                        }
                    }
                })
            };
            let start = place(self.from).await?.max(log.start);
            let end = if self.follow {
                i64::MAX
            } else {
                place(self.to).await?.min(log.end)
            };
            if start < end {
                ranges.push((partition, start..end));
            }
        }
        Ok(ranges)
    }
}

struct Reading {
    partition: i32,
    range: Range<i64>,
    fetch: RangeFetch,
}

type Fetched = Result<Option<broker_client::FetchedBatch>, broker_client::Error>;

async fn next(mut reading: Reading) -> (Reading, Fetched) {
    let fetched = reading.fetch.next().await;
    (reading, fetched)
}

struct Printer {
    out: Out,
    output: Output,
    left: Option<u64>,
    topic: TopicName,
}

impl Printer {
    /// Prints a batch; false when enough was printed or nobody reads any more.
    fn print(
        &mut self,
        reading: &Reading,
        batch: &broker_client::protocol::record::RecordBatch,
    ) -> Result<bool, Failure> {
        let damaged = |source: broker_client::protocol::record::Error| {
            Failure::from(broker_client::Error::CorruptBatch {
                topic: self.topic.clone(),
                partition: reading.partition,
                offset: batch.header().base_offset,
                source: source.into(),
            })
        };
        let records = batch.records(MAX_DECOMPRESSED).map_err(damaged)?;
        let mut line = Vec::new();
        for record in &records {
            let record = record.map_err(damaged)?;
            if !reading.range.contains(&record.offset) {
                continue;
            }
            if self.left == Some(0) {
                self.out.flush()?;
                return Ok(false);
            }
            line.clear();
            match self.output {
                Output::Raw => line.extend_from_slice(record.value.unwrap_or_default()),
                Output::Json => {
                    let object = json_record(&self.topic, reading.partition, &record);
                    serde_json::to_writer(&mut line, &object)?;
                }
            }
            line.push(b'\n');
            if !self.out.write(&line)? {
                return Ok(false);
            }
            self.left = self.left.map(|left| left - 1);
        }
        Ok(true)
    }
}

/// A record as one JSON object. Bytes that are JSON stay JSON, other text is a string, other bytes are
/// `{"hex": "…"}`.
fn json_record(topic: &TopicName, partition: i32, record: &Record<'_>) -> serde_json::Value {
    let headers: Vec<_> = record
        .headers
        .iter()
        .map(|(name, value)| serde_json::json!([text(Some(name)), text(value)]))
        .collect();
    let value = match record.value {
        Some(bytes) => serde_json::from_slice(bytes).unwrap_or_else(|_| text(record.value)),
        None => serde_json::Value::Null,
    };
    serde_json::json!({
        "topic": topic.as_str(),
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text(record.key),
        "headers": headers,
        "value": value,
    })
}

fn text(bytes: Option<&[u8]>) -> serde_json::Value {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => serde_json::Value::Null,
        Some((Ok(text), _)) => text.into(),
        Some((Err(_), bytes)) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            serde_json::json!({ "hex": hex })
        }
    }
}
