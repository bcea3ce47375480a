//! The files of one attempt: one per directory of the output, opened when first needed.
//!
//! Each has an encoder that buffers rows; bytes reach the store as row groups are finished, so a small
//! file is opened only when the task ends. Names inside the attempt are `00000.part`, `00001.part` …
//! in the order in which directories were first met.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker_client::protocol::ids::TopicName;
use loader_store::StorePath;

use super::TaskContext;
use super::sink::{Sink, SinkPlace};
use crate::encode::FileEncoder;
use crate::encode::parquet::ParquetEncoder;
use crate::error::Error;
use crate::layout::REJECTED;
use crate::manifest::{FileKind, FileRange, PublishedFile};
use crate::plan::Task;
use crate::rejected::rejected_schema;
use crate::sealed::spell_checksum;
use crate::transform::{Chunk, Counts, GroupRows, PartitionSpan, RecordTransform};

/// Ending of the files: the one format there is.
const EXTENSION: &str = "parquet";
/// Reasons kept in the report.
const MAX_SAMPLES: usize = 10;

/// Everything an attempt has written once all files are closed.
pub(super) struct Written {
    pub(super) files: BTreeMap<String, PublishedFile>,
    pub(super) counts: BTreeMap<(TopicName, i32), Counts>,
    pub(super) samples: Vec<String>,
    pub(super) event_time_from: Vec<u64>,
}

pub(super) struct TaskFiles<'a> {
    context: &'a TaskContext,
    task: u32,
    directory: StorePath,
    /// Name of every file of this task: it follows from the plan alone.
    name: String,
    schema: arrow_schema::SchemaRef,
    open: BTreeMap<Arc<str>, OpenFile>,
    counts: BTreeMap<(TopicName, i32), Counts>,
    samples: Vec<String>,
}

impl<'a> TaskFiles<'a> {
    pub(super) fn new(
        context: &'a TaskContext,
        task: &Task,
        directory: StorePath,
        transform: &RecordTransform,
    ) -> Self {
        let (partition, start) = task
            .ranges
            .first()
            .map_or((0, 0), |r| (r.partition, r.start));
        Self {
            context,
            task: task.task,
            directory,
            name: format!(
                "part-{:05}-{partition}-{start:020}.{}",
                task.task, EXTENSION
            ),
            schema: Arc::clone(transform.schema()),
            open: BTreeMap::new(),
            counts: BTreeMap::new(),
            samples: Vec::new(),
        }
    }

    /// Writes what the transform has decoded.
    pub(super) async fn write(&mut self, chunk: Chunk) -> Result<(), Error> {
        for ((topic, partition), counts) in &chunk.counts {
            let topic = TopicName::new(&**topic).map_err(|error| Error::Internal {
                what: "a topic of the plan is none".to_owned(),
                source: Some(Box::new(error)),
            })?;
            self.counts
                .entry((topic, *partition))
                .or_default()
                .add(counts);
        }
        for sample in chunk.samples {
            if self.samples.len() < MAX_SAMPLES {
                self.samples.push(format!(
                    "{}-{} at offset {}: {}",
                    sample.topic, sample.partition, sample.offset, sample.reason
                ));
            }
        }
        for group in chunk.groups {
            self.write_group(FileKind::Data, group).await?;
        }
        if let Some(rejected) = chunk.rejected {
            let group = GroupRows {
                directory: Arc::from(REJECTED),
                batch: rejected,
                event_time_ms: None,
                spans: Vec::new(),
            };
            self.write_group(FileKind::Rejected, group).await?;
        }
        Ok(())
    }

    async fn write_group(&mut self, kind: FileKind, group: GroupRows) -> Result<(), Error> {
        if !self.open.contains_key(&group.directory) {
            let file = self.begin(kind, &group.directory)?;
            self.open.insert(Arc::clone(&group.directory), file);
        }
        let Some(file) = self.open.get_mut(&group.directory) else {
            return Ok(());
        };
        file.encoder.write(&group.batch)?;
        file.note(&group);
        let ready = file.encoder.take_output();
        file.sink.put(&sink_place(self.context), ready).await
    }

    fn begin(&self, kind: FileKind, directory: &str) -> Result<OpenFile, Error> {
        let limit = self.context.plan.limits.max_groups;
        if kind == FileKind::Data && self.open.len() >= limit {
            return Err(Error::TooManyGroups {
                task: self.task,
                limit,
            });
        }
        let schema = match kind {
            FileKind::Data => Arc::clone(&self.schema),
            FileKind::Rejected => rejected_schema(),
        };
        let path = match directory {
            "" => self.name.clone(),
            directory => format!("{directory}/{}", self.name),
        };
        Ok(OpenFile {
            sink: Sink::new(self.directory.clone(), self.open.len()),
            path,
            kind,
            encoder: Box::new(ParquetEncoder::new(schema, &self.context.plan.parquet)?),
            event_time_ms: None,
            spans: BTreeMap::new(),
        })
    }

    /// Closes every file.
    pub(super) async fn close(self) -> Result<Written, Error> {
        let mut files = BTreeMap::new();
        for file in self.open.into_values() {
            let (name, published) = file.close(self.context, self.task).await?;
            files.insert(name, published);
        }
        let mut event_time_from = Vec::new();
        for counts in self.counts.values() {
            event_time_from.resize(event_time_from.len().max(counts.time_from.len()), 0);
            for (sum, rows) in event_time_from.iter_mut().zip(&counts.time_from) {
                *sum += rows;
            }
        }
        Ok(Written {
            files,
            counts: self.counts,
            samples: self.samples,
            event_time_from,
        })
    }
}

fn sink_place(context: &TaskContext) -> SinkPlace<'_> {
    SinkPlace {
        store: &*context.place.store,
        staging: &context.staging,
    }
}

struct OpenFile {
    path: String,
    kind: FileKind,
    encoder: Box<dyn FileEncoder>,
    sink: Sink,
    event_time_ms: Option<(i64, i64)>,
    spans: BTreeMap<(Arc<str>, i32), (i64, i64)>,
}

impl OpenFile {
    fn note(&mut self, group: &GroupRows) {
        if let Some((min, max)) = group.event_time_ms {
            let (low, high) = self.event_time_ms.unwrap_or((min, max));
            self.event_time_ms = Some((low.min(min), high.max(max)));
        }
        for PartitionSpan {
            topic,
            partition,
            first_offset,
            last_offset,
            ..
        } in &group.spans
        {
            let span = self
                .spans
                .entry((Arc::clone(topic), *partition))
                .or_insert((*first_offset, *last_offset));
            *span = (span.0.min(*first_offset), span.1.max(*last_offset));
        }
    }

    async fn close(
        self,
        context: &TaskContext,
        task: u32,
    ) -> Result<(String, PublishedFile), Error> {
        let tail = self.encoder.close()?;
        let ranges = self
            .spans
            .iter()
            .filter_map(|((topic, partition), (first, last))| {
                let topic = topic.parse().ok()?;
                Some(FileRange {
                    topic,
                    partition: *partition,
                    start: *first,
                    end: last + 1,
                })
            })
            .collect();
        let place = sink_place(context);
        let (name, bytes, crc) = self.sink.close(&place, tail.bytes).await?;
        let published = PublishedFile {
            path: self.path,
            kind: self.kind,
            rows: tail.rows,
            bytes,
            checksum: spell_checksum(crc),
            task,
            min_event_time_ms: self.event_time_ms.map(|(min, _)| min),
            max_event_time_ms: self.event_time_ms.map(|(_, max)| max),
            ranges,
        };
        Ok((name, published))
    }
}
