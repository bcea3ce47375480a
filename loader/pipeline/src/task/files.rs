//! The files of one attempt: one per directory of the output.
//!
//! ```text
//! chunk ─► rows held per file (memory, beyond a bound local disk)
//!              └ row group full, or the end ─► encoder ─► sink ─► store
//! ```
//! Between row groups a file costs little more than its rows. Names inside the attempt are `00000.part`,
//! `00001.part` … in the order in which directories were first met.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use broker_client::protocol::ids::TopicName;
use loader_store::StorePath;
use tokio::task::JoinSet;

use super::TaskContext;
use super::held::{HeldBatch, HeldRows, WaitingRows};
use super::sink::{Closed, Ending, Sink, Target};
use crate::encode::parquet::ParquetEncoder;
use crate::encode::{FileEncoder, RowGroupCut};
use crate::error::Error;
use crate::layout::REJECTED;
use crate::manifest::{FileKind, FileRange, PublishedFile};
use crate::memory::Piece;
use crate::plan::Task;
use crate::rejected::rejected_schema;
use crate::sealed::spell_checksum;
use crate::transform::{Chunk, Counts, GroupRows, PartitionSpan, RecordTransform};

/// Ending of the files: the one format there is.
const EXTENSION: &str = "parquet";
/// Files that are being made durable at once: each waits for the disk, or for its replicas.
const MOST_CLOSING: usize = 16;
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
    schema: SchemaRef,
    held: HeldRows,
    target: Target,
    open: BTreeMap<Arc<str>, OpenFile>,
    /// Directories whose files have full row groups.
    with_full: Vec<Arc<str>>,
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
            held: HeldRows::new(&context.memory),
            target: Target {
                store: Arc::clone(&context.place.store),
                staging: context.staging.clone(),
            },
            open: BTreeMap::new(),
            with_full: Vec::new(),
            counts: BTreeMap::new(),
            samples: Vec::new(),
        }
    }

    /// Takes what the transform has decoded; writes the row groups that are full.
    pub(super) async fn write(&mut self, chunk: Chunk) -> Result<(), Error> {
        self.count(&chunk)?;
        let batch = self.held.hold(chunk.rows);
        let oversize = batch.bytes > self.context.memory.pending_bytes * 2;
        for group in chunk.groups {
            self.add(FileKind::Data, group, &batch)?;
        }
        drop(batch);
        if let Some(rejected) = chunk.rejected {
            let group = GroupRows {
                directory: Arc::from(REJECTED),
                rows: 0..rejected.num_rows(),
                event_time_ms: None,
                spans: Vec::new(),
            };
            let batch = self.held.hold(rejected);
            self.add(FileKind::Rejected, group, &batch)?;
        }
        if oversize {
            // Not even until the row groups before it are written.
            self.spill_all()?;
        }
        self.write_full().await?;
        self.make_room(0)
    }

    /// Moves the rows that wait to local disk if so many bytes more would be too many. Blocks.
    pub(super) fn make_room(&mut self, bytes: usize) -> Result<(), Error> {
        if self.held.is_full(bytes) {
            self.spill_all()?;
        }
        Ok(())
    }

    fn spill_all(&mut self) -> Result<(), Error> {
        for file in self.open.values_mut() {
            for rows in file.full.iter_mut().chain([&mut file.waiting]) {
                self.held.spill(rows, &file.schema)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, chunk: &Chunk) -> Result<(), Error> {
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
        for sample in &chunk.samples {
            if self.samples.len() < MAX_SAMPLES {
                self.samples.push(format!(
                    "{}-{} at offset {}: {}",
                    sample.topic, sample.partition, sample.offset, sample.reason
                ));
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        kind: FileKind,
        group: GroupRows,
        batch: &Arc<HeldBatch>,
    ) -> Result<(), Error> {
        if !self.open.contains_key(&group.directory) {
            let file = self.begin(kind, &group.directory)?;
            self.open.insert(Arc::clone(&group.directory), file);
        }
        let Some(file) = self.open.get_mut(&group.directory) else {
            return Ok(());
        };
        file.note(&group);
        for piece in file.cut.split(&batch.rows, group.rows) {
            if piece.starts_group {
                if file.full.is_empty() {
                    self.with_full.push(Arc::clone(&group.directory));
                }
                file.full.push(std::mem::take(&mut file.waiting));
            }
            file.waiting.push(batch, piece.rows);
        }
        Ok(())
    }

    /// Writes the row groups that became full.
    async fn write_full(&mut self) -> Result<(), Error> {
        for directory in std::mem::take(&mut self.with_full) {
            let Some(file) = self.open.get_mut(&directory) else {
                continue;
            };
            for rows in std::mem::take(&mut file.full) {
                let piece = file.encode(rows, self.context, &mut self.held).await?;
                file.sink.put(&self.target, piece).await?;
            }
        }
        Ok(())
    }

    fn begin(&self, kind: FileKind, directory: &str) -> Result<OpenFile, Error> {
        let limit = self.context.plan.limits.max_groups;
        let of_data = |file: &&OpenFile| file.kind == FileKind::Data;
        if kind == FileKind::Data && self.open.values().filter(of_data).count() >= limit {
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
            encoder: Box::new(ParquetEncoder::new(
                Arc::clone(&schema),
                &self.context.plan.parquet,
            )?),
            schema,
            cut: self.context.plan.parquet.row_group_cut(),
            full: Vec::new(),
            waiting: WaitingRows::default(),
            event_time_ms: None,
            spans: BTreeMap::new(),
        })
    }

    /// Writes what waits and closes every file.
    pub(super) async fn close(mut self) -> Result<Written, Error> {
        let mut files = BTreeMap::new();
        let mut closing = JoinSet::new();
        for mut file in std::mem::take(&mut self.open).into_values() {
            let rows = std::mem::take(&mut file.waiting);
            let last = file.encode(rows, self.context, &mut self.held).await?;
            let (ending, published) = file.end(last, &self.target, self.task).await?;
            if closing.len() >= MOST_CLOSING {
                note_closed(&mut closing, &mut files).await?;
            }
            closing.spawn(async move { Ok((ending.finish().await?, published)) });
        }
        while !closing.is_empty() {
            note_closed(&mut closing, &mut files).await?;
        }
        let bytes = self.held.spilled_bytes();
        if bytes > 0 {
            tracing::info!(task = self.task, bytes, "rows waited on local disk");
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

/// Waits for one of the files that are being closed.
async fn note_closed(
    closing: &mut JoinSet<Result<(Closed, PublishedFile), Error>>,
    files: &mut BTreeMap<String, PublishedFile>,
) -> Result<(), Error> {
    let Some(closed) = closing.join_next().await else {
        return Ok(());
    };
    let (closed, mut published) = closed.unwrap_or_else(|source| {
        Err(Error::Internal {
            what: "closing a file panicked".to_owned(),
            source: Some(Box::new(source)),
        })
    })?;
    published.bytes = closed.bytes;
    published.checksum = spell_checksum(closed.crc);
    files.insert(closed.name, published);
    Ok(())
}

struct OpenFile {
    path: String,
    kind: FileKind,
    schema: SchemaRef,
    cut: RowGroupCut,
    /// Row groups that are to be written.
    full: Vec<WaitingRows>,
    /// The row group that fills.
    waiting: WaitingRows,
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

    /// Encodes rows as one row group and waits for room for its bytes; none without rows.
    async fn encode(
        &mut self,
        rows: WaitingRows,
        context: &TaskContext,
        held: &mut HeldRows,
    ) -> Result<Piece, Error> {
        if rows.is_empty() {
            return Ok(Piece::default());
        }
        // Kept until there is room: what was encoded and waits counts as being encoded.
        let _permit = context.memory.encoder().await;
        let rows = held.take(rows, &self.schema)?;
        let bytes = self.encoder.write_row_group(&rows)?;
        drop(rows);
        Ok(context.memory.send(bytes).await)
    }

    /// Ends the file's bytes, `last` being those of its last row group; what is left is to make them
    /// durable.
    async fn end(
        self,
        last: Piece,
        target: &Target,
        task: u32,
    ) -> Result<(Ending, PublishedFile), Error> {
        let tail = self.encoder.close()?;
        let ending = self
            .sink
            .end(target, [last, Piece::tail(tail.bytes)])
            .await?;
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
        let published = PublishedFile {
            path: self.path,
            kind: self.kind,
            rows: tail.rows,
            // Known once the file is closed.
            bytes: 0,
            checksum: String::new(),
            task,
            min_event_time_ms: self.event_time_ms.map(|(min, _)| min),
            max_event_time_ms: self.event_time_ms.map(|(_, max)| max),
            ranges,
        };
        Ok((ending, published))
    }
}
