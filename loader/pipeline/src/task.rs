//! One attempt of one task: ranges in, files and a report out, all of it or nothing.
//!
//! ```text
//! fetch range ─► record batches ─► RecordTransform ─► per directory: encoder ─► attempt/00000.part …
//!                     └ counts by batch headers                                 attempt/attempt.json
//!                                                                               rename to done
//! ```
//! An attempt reads exactly its ranges from their stored starts. It deletes nothing, and its one rename is
//! to `done`: whoever comes second finds the name taken and changes nothing.

mod files;
mod held;
mod range;
mod sink;
mod spill;

use std::sync::Arc;

use broker_client::Client;
use loader_store::StorePath;
use uuid::Uuid;

use self::files::TaskFiles;
use self::range::RangeReader;
pub(crate) use self::range::records_of;
use crate::commit::Place;
use crate::commit::staging::{fenced_if_gone, taken_over};
use crate::commit::steps;
use crate::error::Error;
use crate::failpoint::failpoint;
use crate::layout::StagingLayout;
use crate::memory::TaskMemory;
use crate::plan::{Plan, Task};
use crate::progress::{Progress, Stage, StageClock};
use crate::report::{AttemptReport, REPORT};
use crate::sealed;
use crate::transform::{Counts, RecordTransform};

/// Rows after which decoded records are put in order, unless their bytes come first: as many as stay in
/// the processor's caches meanwhile.
const DRAIN_ROWS: usize = 16 * 1024;

/// What every attempt of a plan needs.
#[derive(Debug, Clone)]
pub struct TaskContext {
    /// The dataset.
    pub place: Place,
    /// The run's staging directory.
    pub staging: StagingLayout,
    /// The plan.
    pub plan: Arc<Plan>,
    /// The source.
    pub client: Client,
    /// The task's part of the memory.
    pub memory: TaskMemory,
    /// Who is told how far it is.
    pub progress: Arc<dyn Progress>,
}

/// Runs one attempt and makes it the task's result, unless another attempt was first.
///
/// CPU work happens on the caller's thread: run it where blocking is allowed. Cancel safety: dropping the
/// future leaves an unfinished attempt directory, which nobody reads.
///
/// # Errors
/// Anything that kept a range from being read and written whole.
pub async fn run_attempt(context: &TaskContext, task: &Task) -> Result<(), Error> {
    let attempt = Uuid::new_v4();
    let directory = context.staging.attempt(task.task, attempt);
    let store = &context.place.store;
    let gone = |error| fenced_if_gone(&context.staging, error);
    for made in [&context.staging.task(task.task), &directory] {
        steps::make_directory(&**store, made).await.map_err(gone)?;
    }
    failpoint!("task.started");

    let report = write_files(context, task, &directory).await?;
    failpoint!("task.files_closed");
    let bytes = sealed::seal(&report)?;
    let beside = steps::write_beside(&**store, &directory, REPORT, &bytes)
        .await
        .map_err(gone)?;
    failpoint!("task.report_beside");
    steps::rename_ours(&**store, &beside, &directory.join(REPORT))
        .await
        .map_err(gone)?;
    failpoint!("task.reported");
    win(context, task.task, &directory).await?;
    failpoint!("task.done");
    Ok(())
}

/// Renames the attempt to `done`. A name that is taken means that another attempt was first.
async fn win(context: &TaskContext, task: u32, directory: &StorePath) -> Result<(), Error> {
    let store = &context.place.store;
    let done = context.staging.done(task);
    let mut last = None;
    for _ in 0..3 {
        let refused = match steps::rename_ours(&**store, directory, &done).await {
            Ok(()) | Err(loader_store::Error::AlreadyExists { .. }) => return Ok(()),
            Err(error) => error,
        };
        match refused {
            loader_store::Error::NotFound { .. } => {}
            ref error if error.kind() == loader_store::ErrorKind::Ambiguous => {}
            other => return Err(fenced_if_gone(&context.staging, other)),
        }
        // Gone or unknown: whoever's attempt is there now is as good as ours.
        if store.stat(&done).await?.is_some() {
            return Ok(());
        }
        if store.stat(directory).await?.is_none() {
            return Err(taken_over(&context.staging));
        }
        last = Some(refused);
    }
    Err(last.map_or_else(|| taken_over(&context.staging), Error::Store))
}

async fn write_files(
    context: &TaskContext,
    task: &Task,
    directory: &StorePath,
) -> Result<AttemptReport, Error> {
    let plan = &context.plan;
    let memory = &context.memory;
    let mut transform = RecordTransform::new(Arc::new(plan.transform_spec()))?
        .with_max_pending(2 * memory.pending_bytes);
    let mut files = TaskFiles::new(context, task, directory.clone(), &transform);
    let mut ranges = Vec::with_capacity(task.ranges.len());
    let mut clock = StageClock::start(&*context.progress);
    for range in &task.ranges {
        let mut reader = RangeReader::new(context, range);
        while let Some(records) = reader.next().await? {
            clock.lap(Stage::Unpack);
            let size = records.records.size_in_bytes();
            let oversize = memory.admit(size).await;
            if oversize.is_some() {
                files.make_room(size)?;
            }
            let mut wanted = records.wanted;
            while let Some(left) = transform.push(
                range.topic.as_str(),
                range.partition,
                &records.records,
                wanted.clone(),
            )? {
                clock.lap(Stage::Decode);
                drain(&mut transform, &mut files, &mut clock).await?;
                wanted.start = left;
            }
            // A large batch is not kept while its rows are written.
            drop(records.records);
            clock.lap(Stage::Decode);
            if transform.rows_pending() >= DRAIN_ROWS
                || transform.bytes_pending() >= memory.pending_bytes
            {
                drain(&mut transform, &mut files, &mut clock).await?;
            }
        }
        ranges.push(reader.finish()?);
    }
    drain(&mut transform, &mut files, &mut clock).await?;
    failpoint!("task.written");
    let written = files.close().await?;
    clock.lap(Stage::Encode);
    for range in &mut ranges {
        let nothing = Counts::default();
        let counts = written
            .counts
            .get(&(range.loaded.topic.clone(), range.loaded.partition));
        range.take_counts(counts.unwrap_or(&nothing));
    }
    let ranges = range::settle(ranges)?;
    Ok(AttemptReport {
        task: task.task,
        ranges,
        files: written.files,
        rejected_samples: written.samples,
        unknown_fields: written.counts.values().map(|c| c.unknown_fields).sum(),
        event_time_from: written.event_time_from,
    })
}

/// Puts what is decoded in order and hands it to the files.
async fn drain(
    transform: &mut RecordTransform,
    files: &mut TaskFiles<'_>,
    clock: &mut StageClock<'_>,
) -> Result<(), Error> {
    let chunk = transform.drain()?;
    clock.lap(Stage::Group);
    files.write(chunk).await?;
    clock.lap(Stage::Encode);
    Ok(())
}
