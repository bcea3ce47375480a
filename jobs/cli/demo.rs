//! `logferry demo`

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use broker_client::protocol::ids::TopicName;
use broker_client::{Client, ClientConfig, ProducerConfig, ProducerRecord};
use broker_server::Broker;
use clap::Args;
use loader_pipeline::error::Exit;
use loader_pipeline::load::{Load, Outcome as Loaded, open_place};
use loader_pipeline::verify::{VerifyOptions, verify};
use loader_store::Patience;
use tokio_util::sync::CancellationToken;

use super::broker::broker_failure;
use super::{load, out};
use crate::config;
use crate::failure::{Failure, Outcome};

const TOPIC: &str = "page_views";
const JOB_FILE: &str = "page_views.toml";
const PARTITIONS: i32 = 6;
/// Event times are spread over so many hours before now.
const HOURS: i64 = 3;

/// Run the main job on this machine alone: a broker, a topic of events, two loads, and the proof.
///
/// Everything is kept in one directory, so that it can be looked at and played with afterwards.
#[derive(Debug, Args)]
pub(super) struct Demo {
    /// Directory for everything; must not exist yet, or be a demo's.
    #[arg(long, default_value = "logferry-demo")]
    dir: PathBuf,
    /// Events to produce.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(2..))]
    events: u64,
}

impl Demo {
    pub(super) async fn run(self) -> Outcome {
        self.refuse_foreign_directory()?;
        std::fs::create_dir_all(&self.dir).map_err(|error| {
            let what =
                anyhow::Error::new(error).context(format!("cannot make {}", self.dir.display()));
            Failure::new(Exit::Unavailable, what)
        })?;
        let dir = std::fs::canonicalize(&self.dir)?;
        let config = broker_server::Config {
            listen: "127.0.0.1:0".to_owned(),
            data_dir: dir.join("broker"),
            ..broker_server::Config::default()
        };
        let broker = Broker::open(config).map_err(broker_failure)?;
        let listener = broker.bind().await.map_err(broker_failure)?;
        let address = listener.local_addr()?.to_string();
        out::line(&format!(
            "broker       {address}, its logs in {}",
            dir.join("broker").display()
        ))?;
        let stop = CancellationToken::new();
        let serving = broker.serve(listener, stop.clone());
        let work = async {
            let done = self.work(&dir, &address).await;
            stop.cancel();
            done
        };
        let (served, done) = tokio::join!(serving, work);
        done?;
        served.map_err(broker_failure)?;
        Ok(None)
    }

    fn refuse_foreign_directory(&self) -> Result<(), Failure> {
        let Ok(entries) = std::fs::read_dir(&self.dir) else {
            return Ok(());
        };
        let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        if names.is_empty() || names.iter().any(|name| *name == *JOB_FILE) {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{} is not empty, and no demo's",
            self.dir.display()
        ))
        .try_this("name another directory with --dir"))
    }

    async fn work(&self, dir: &Path, address: &str) -> Result<(), Failure> {
        let client = Client::connect(ClientConfig::new(address)).await?;
        let topic = TopicName::new(TOPIC).map_err(Failure::usage)?;
        let known = client.topics(Some(std::slice::from_ref(&topic))).await?;
        if known.iter().all(|t| t.error.is_some()) {
            client.create_topic(&topic, PARTITIONS, 1, &[]).await?;
        }
        let job_file = dir.join(JOB_FILE);
        std::fs::write(&job_file, job_text(dir, address))?;
        let job = config::read_job(&job_file)?;
        out::line(&format!("job          {}", job_file.display()))?;
        for part in 0..2 {
            let from = self.events * part / 2;
            let until = self.events * (part + 1) / 2;
            produce(&client, &topic, from..until).await?;
            out::line(&format!("produced     {} events to {TOPIC}", until - from))?;
            let load = Load {
                job: job.clone(),
                topics: vec![topic.clone()],
                location: job.output.dataset.clone(),
                create: true,
                accept_gap: false,
                progress: load::quiet(),
                stop: CancellationToken::new(),
                patience: Patience::default(),
                now_ms: jiff::Timestamp::now().as_millisecond(),
            };
            if let Loaded::Published(manifest) = load.run().await? {
                let counts = manifest.counts();
                out::line(&format!(
                    "published    {}: {} rows in {} files",
                    manifest.number.directory(),
                    counts.rows,
                    manifest.files.len()
                ))?;
            }
        }
        let place = open_place(&job, &job.output.dataset).await?;
        let options = VerifyOptions {
            threads: 2,
            ..VerifyOptions::default()
        };
        let report = verify(&place, options).await?;
        if let Some(problem) = report.problems.first() {
            let what = anyhow::anyhow!("{}: {}", problem.path, problem.problem);
            return Err(Failure::new(Exit::Data, what));
        }
        out::line(&format!(
            "verified     {} runs, {} rows: every offset is there once",
            report.runs, report.counts.rows
        ))?;
        for (path, length) in files(dir)? {
            out::line(&format!("  {path}  {length} bytes"))?;
        }
        Ok(out::line(&hints(dir, &job_file, address))?)
    }
}

fn job_text(dir: &Path, address: &str) -> String {
    format!(
        "# Made by `logferry demo`. docs/job-file.md describes every key.\n\
         [source]\n\
         brokers = [\"{address}\"]\n\
         topics = [\"{TOPIC}\"]\n\n\
         [output]\n\
         dataset = \"{}\"\n\n\
         [schema]\n\
         columns = [\n\
         \x20 {{ name = \"event\", type = \"string\", nullable = false }},\n\
         \x20 {{ name = \"user_id\", type = \"int64\", nullable = false }},\n\
         \x20 {{ name = \"ts\", type = \"timestamp_ms\", nullable = false }},\n\
         \x20 {{ name = \"server\", type = \"string\" }},\n\
         \x20 {{ name = \"url\", type = \"string\" }},\n\
         ]\n\n\
         [grouping]\n\
         event_time = [\"ts\"]\n",
        dir.join("warehouse").join(TOPIC).display()
    )
}

fn hints(dir: &Path, job: &Path, address: &str) -> String {
    let binary = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("logferry"));
    let logferry = binary.display();
    format!(
        "\nread it      duckdb -c \"select dt, hour, count(*) from '{}/*/*/*/*.parquet' group by all\"\n\
         go on        {logferry} broker --data-dir {} --listen {address} &\n\
         \x20            echo '{{\"event\":\"login\",\"user_id\":1,\"ts\":{}}}' | {logferry} produce --brokers {address} {TOPIC}\n\
         \x20            {logferry} load {}\n\
         \x20            {logferry} status {}",
        dir.join("warehouse").join(TOPIC).display(),
        dir.join("broker").display(),
        jiff::Timestamp::now().as_millisecond(),
        job.display(),
        job.display()
    )
}

async fn produce(
    client: &Client,
    topic: &TopicName,
    numbers: std::ops::Range<u64>,
) -> Result<(), Failure> {
    let producer = client.producer(ProducerConfig::default())?;
    let now = jiff::Timestamp::now().as_millisecond();
    let total = i64::try_from(numbers.end - numbers.start)
        .unwrap_or(i64::MAX)
        .max(1);
    let mut deliveries = Vec::new();
    let mut value = String::new();
    for (at, number) in numbers.enumerate() {
        let at = i64::try_from(at).unwrap_or(i64::MAX);
        event(
            number,
            now - HOURS * 3_600_000 * (total - at) / total,
            &mut value,
        );
        let record = ProducerRecord::new(topic.clone(), value.clone().into_bytes());
        deliveries.push(producer.send(record).await?);
    }
    producer.flush().await?;
    for delivery in deliveries {
        delivery.await?;
    }
    Ok(())
}

/// A made-up event, the same for the same number.
fn event(number: u64, time_ms: i64, into: &mut String) {
    const EVENTS: [&str; 5] = ["page_view", "click", "add_to_cart", "search", "purchase"];
    let mixed = mix(number);
    let event = EVENTS
        .get(usize::try_from(mixed % 5).unwrap_or(0))
        .copied()
        .unwrap_or("page_view");
    into.clear();
    let written = write!(
        into,
        r#"{{"event":"{event}","user_id":{},"ts":{time_ms},"server":"web-{:02}.example.com","url":"https://www.example.com/item/{:06x}"}}"#,
        (mixed >> 8) % 1_000_000,
        (mixed >> 32) % 40,
        (mixed >> 40) & 0xff_ffff,
    );
    debug_assert!(written.is_ok(), "writing to a string cannot fail");
}

/// Bits that look random, from a number (the finalizer of `SplitMix64`).
const fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// All published files below the warehouse with their lengths.
fn files(dir: &Path) -> std::io::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    let mut open = vec![dir.join("warehouse")];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(at)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                open.push(entry.path());
            } else {
                found.push((entry.path().display().to_string(), metadata.len()));
            }
        }
    }
    found.sort();
    Ok(found)
}
