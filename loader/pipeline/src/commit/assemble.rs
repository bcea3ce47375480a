//! Assembling a run: the winners' files are moved into `out-N`, the manifest is written beside it and
//! renamed in, and what lies there is compared with what the manifest says.
//!
//! Nothing is ever opened inside `out-N`: an open file follows a rename, even into a published run.
//! Every step can be repeated after a crash, by this driver or by one that took over.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use loader_store::{EntryKind, StorePath};
use uuid::Uuid;

use super::Place;
use super::staging::Staging;
use super::steps;
use crate::error::Error;
use crate::failpoint::failpoint;
use crate::layout::{MANIFEST, RunNumber, SUCCESS};
use crate::manifest::{LoadedRange, Manifest, PartitionState};
use crate::plan::{Plan, PlannedPartition};
use crate::report::{AttemptReport, REPORT};
use crate::sealed;

/// The tasks that count, and how far they bring each partition.
#[derive(Debug, Default)]
pub struct Selection {
    /// Reports of the tasks that count, by task.
    pub reports: BTreeMap<u32, AttemptReport>,
    /// Whether tasks of the plan are missing.
    pub partial: bool,
}

impl Selection {
    /// Which finished tasks count: per partition those contiguous with its start, behind a missing one
    /// none; a packed task only if it is contiguous for all its partitions.
    #[must_use]
    pub fn choose(plan: &Plan, mut done: BTreeMap<u32, AttemptReport>) -> Self {
        let mut selection = Self {
            partial: done.len() < plan.tasks.len(),
            ..Self::default()
        };
        let mut ends: BTreeMap<_, i64> = plan
            .partitions
            .iter()
            .map(|p| ((&p.topic, p.partition), p.start))
            .collect();
        // Tasks are numbered in the order of their ranges, so one pass suffices.
        for task in &plan.tasks {
            let contiguous = task
                .ranges
                .iter()
                .all(|range| ends.get(&(&range.topic, range.partition)) == Some(&range.start));
            let Some(report) = done.remove(&task.task) else {
                continue;
            };
            if !contiguous {
                selection.partial = true;
                continue;
            }
            for range in &task.ranges {
                ends.insert((&range.topic, range.partition), range.end);
            }
            selection.reports.insert(task.task, report);
        }
        selection
    }

    /// Refuses the run if more records were set aside than the job allows.
    ///
    /// # Errors
    /// [`Error::TooManyRejected`].
    pub fn check_rejected(&self, plan: &Plan) -> Result<(), Error> {
        let (mut rejected, mut records) = (0, 0);
        for range in self.reports.values().flat_map(|report| &report.ranges) {
            rejected += range.counts.rejected;
            records += range.counts.rows + range.counts.rejected + range.counts.tombstones_skipped;
        }
        let most = plan.limits.max_rejected.unwrap_or(u64::MAX);
        let percent = plan.limits.max_rejected_percent;
        #[expect(
            clippy::cast_precision_loss,
            reason = "a share, compared with a percentage"
        )]
        let share = rejected as f64 * 100.0 / records.max(1) as f64;
        if rejected <= most && share <= percent {
            return Ok(());
        }
        let samples = self
            .reports
            .values()
            .flat_map(|r| r.rejected_samples.iter().cloned())
            .take(5)
            .collect();
        let allowed = match plan.limits.max_rejected {
            Some(most) => format!("{most} and {percent} %"),
            None => format!("{percent} %"),
        };
        Err(Error::TooManyRejected {
            rejected,
            records,
            allowed,
            samples,
        })
    }
}

/// The manifest that the selected tasks give on top of `base`.
#[must_use]
pub fn compose(plan: &Plan, selection: &Selection, run: Uuid, base: Option<&Manifest>) -> Manifest {
    let ranges = merge_ranges(selection);
    let mut partitions: BTreeMap<_, PartitionState> = base
        .map_or(&[][..], |manifest| &manifest.partitions)
        .iter()
        .map(|state| {
            (
                state.key.clone(),
                PartitionState {
                    start: state.end,
                    ..state.clone()
                },
            )
        })
        .collect();
    for planned in &plan.partitions {
        let key = plan.key(&planned.topic, planned.partition);
        let before = planned.previous.as_ref().and_then(|previous| {
            let cluster_id = previous.cluster_id.clone();
            // A confirmed move: the position goes on under the new cluster's id.
            partitions.remove(&crate::manifest::PartitionKey {
                cluster_id,
                ..key.clone()
            })
        });
        let loaded = ranges
            .iter()
            .find(|r| r.topic == planned.topic && r.partition == planned.partition);
        let state = moved_state(planned, loaded, before.as_ref(), key.clone());
        partitions.insert(key, state);
    }
    let mut files: Vec<_> = selection
        .reports
        .values()
        .flat_map(|report| report.files.values().cloned())
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let claims = claims(plan, selection, base);
    Manifest {
        number: base.map_or(RunNumber(1), |manifest| manifest.number.next()),
        uuid: run,
        previous: base.map(Manifest::run_ref),
        job: plan.job.clone(),
        build: plan.build.clone(),
        planned_at_ms: plan.planned_at_ms,
        schema: plan.schema.clone(),
        grouping: plan.grouping.clone(),
        partitions: partitions.into_values().collect(),
        ranges,
        cluster_id: plan.source.cluster_id.clone(),
        files,
        accepted_gaps: plan.accepted_gaps.clone(),
        left_out: plan.left_out.clone(),
        unknown_fields: selection
            .reports
            .values()
            .map(|report| report.unknown_fields)
            .sum(),
        event_time_from: event_time_from(selection),
        partial: selection.partial,
        complete_hours: claims.0,
        complete_before_ms: claims.1,
    }
}

fn event_time_from(selection: &Selection) -> Vec<u64> {
    let mut sums = Vec::new();
    for report in selection.reports.values() {
        sums.resize(sums.len().max(report.event_time_from.len()), 0);
        for (sum, rows) in sums.iter_mut().zip(&report.event_time_from) {
            *sum += rows;
        }
    }
    sums
}

/// The claims that hold on top of `base`: none by a partial run, none that base has made already.
fn claims(
    plan: &Plan,
    selection: &Selection,
    base: Option<&Manifest>,
) -> (Vec<crate::manifest::HourClaim>, Option<i64>) {
    let before = base.and_then(|manifest| manifest.complete_before_ms);
    if selection.partial {
        return (Vec::new(), before);
    }
    let hours = plan.complete_hours.iter();
    let new = hours.filter(|hour| before.is_none_or(|before| hour.hour_start_ms >= before));
    (new.cloned().collect(), before.max(plan.complete_before_ms))
}

fn moved_state(
    planned: &PlannedPartition,
    loaded: Option<&LoadedRange>,
    before: Option<&PartitionState>,
    key: crate::manifest::PartitionKey,
) -> PartitionState {
    let epoch_of_data = loaded
        .map(|range| range.leader_epoch)
        .filter(|epoch| *epoch >= 0);
    let epoch = match (epoch_of_data, before) {
        (Some(epoch), _) => epoch,
        // Nothing was read: what was known still holds, unless the log is another one now.
        (None, Some(before)) if before.end == planned.start => before.leader_epoch,
        (None, Some(_)) => -1,
        (None, None) => planned.leader_epoch,
    };
    PartitionState {
        key,
        topic_id: planned.topic_id,
        start: planned.start,
        end: loaded.map_or(planned.start, |range| range.end),
        leader_epoch: epoch,
    }
}

/// Ranges of the selected tasks, joined where one ends where the next starts.
fn merge_ranges(selection: &Selection) -> Vec<LoadedRange> {
    let mut all: Vec<_> = selection
        .reports
        .values()
        .flat_map(|report| report.ranges.iter().cloned())
        .collect();
    all.sort_by(|a, b| (&a.topic, a.partition, a.start).cmp(&(&b.topic, b.partition, b.start)));
    let mut merged: Vec<LoadedRange> = Vec::new();
    for range in all {
        match merged.last_mut() {
            Some(last)
                if last.topic == range.topic
                    && last.partition == range.partition
                    && last.end == range.start =>
            {
                last.end = range.end;
                last.counts.add(&range.counts);
                if range.leader_epoch >= 0 {
                    last.leader_epoch = range.leader_epoch;
                }
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Reads the reports of all finished tasks.
///
/// # Errors
/// A `done` without a sound report is damage: an attempt writes its report before its rename.
pub async fn finished(
    place: &Place,
    staging: &Staging,
    plan: &Plan,
) -> Result<BTreeMap<u32, AttemptReport>, Error> {
    let mut done = BTreeMap::new();
    for task in &plan.tasks {
        let path = staging.paths().done(task.task).join(REPORT);
        let Some(report) = sealed::read::<AttemptReport>(&*place.store, &path).await? else {
            continue;
        };
        if !report.is_of(task) {
            let problem = "the attempt read other ranges than the plan's".to_owned();
            return Err(Error::Inconsistent { path, problem });
        }
        done.insert(task.task, report);
    }
    Ok(done)
}

/// Moves everything into `out-N` for `manifest`'s number and writes the manifest.
///
/// # Errors
/// [`Error::Fenced`] when the staging directory was taken over meanwhile; [`Error::Inconsistent`] when a
/// file is neither where the attempt left it nor, with its length, where it belongs.
pub async fn assemble(
    place: &Place,
    staging: &Staging,
    selection: &Selection,
    manifest: &Manifest,
) -> Result<(), Error> {
    let assembly = Assembly {
        place,
        staging,
        out: staging.paths().out(manifest.number),
    };
    assembly.take_out_directory().await?;
    failpoint!("assemble.out_made");
    assembly.move_files(selection).await?;
    failpoint!("assemble.moved");
    assembly.write_documents(manifest).await?;
    assembly.compare(manifest).await?;
    failpoint!("assemble.compared");
    Ok(())
}

struct Assembly<'a> {
    place: &'a Place,
    staging: &'a Staging,
    out: StorePath,
}

impl Assembly<'_> {
    /// Makes `out-N`, or gives an `out-…` begun for another number this one's name.
    async fn take_out_directory(&self) -> Result<(), Error> {
        let store = &self.place.store;
        for entry in store.list(self.staging.paths().directory()).await? {
            let begun = crate::layout::StagingLayout::out_number(entry.path.name());
            if begun.is_some() && entry.path != self.out {
                steps::rename_ours(&**store, &entry.path, &self.out).await?;
                return Ok(());
            }
        }
        self.mkdir(&self.out).await
    }

    /// One level; one that is there is fine.
    async fn mkdir(&self, path: &StorePath) -> Result<(), Error> {
        steps::make_directory(&*self.place.store, path)
            .await
            .map_err(|e| self.staging.fenced_if_gone(e))
    }

    async fn move_files(&self, selection: &Selection) -> Result<(), Error> {
        let mut made = BTreeSet::new();
        for (task, report) in &selection.reports {
            let done = self.staging.paths().done(*task);
            for (name, file) in &report.files {
                self.make_directories(&file.path, &mut made).await?;
                self.move_file(&done.join(name), &self.out.join(&file.path), file.bytes)
                    .await?;
                failpoint!("assemble.file_moved");
            }
        }
        Ok(())
    }

    /// The directories between `out-N` and a file, one by one.
    async fn make_directories(&self, file: &str, made: &mut BTreeSet<String>) -> Result<(), Error> {
        for (at, _) in file.match_indices('/') {
            let directory = file.get(..at).unwrap_or_default();
            if made.insert(directory.to_owned()) {
                self.mkdir(&self.out.join(directory)).await?;
            }
        }
        Ok(())
    }

    /// Source there: moved. Target there with its length: done before. Anything else is an error.
    async fn move_file(&self, from: &StorePath, to: &StorePath, length: u64) -> Result<(), Error> {
        let store = &self.place.store;
        let refused = match steps::rename_ours(&**store, from, to).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match refused {
            loader_store::Error::NotFound { .. }
            | loader_store::Error::AlreadyExists { .. }
            | loader_store::Error::ParentMissing { .. } => {}
            ref error if error.kind() == loader_store::ErrorKind::Ambiguous => {}
            other => return Err(other.into()),
        }
        match store.stat(to).await? {
            Some(entry) if entry.kind == EntryKind::File && entry.len == length => Ok(()),
            Some(entry) => Err(Error::Inconsistent {
                path: to.clone(),
                problem: format!("has {} bytes, the attempt wrote {length}", entry.len),
            }),
            None if !self.staging.is_there().await? => Err(self.staging.gone()),
            None => Err(refused.into()),
        }
    }

    /// Manifest and `_SUCCESS` are written beside `out-N`, closed, and renamed into it.
    async fn write_documents(&self, manifest: &Manifest) -> Result<(), Error> {
        self.write_beside(MANIFEST, sealed::seal(manifest)?).await?;
        failpoint!("assemble.manifest_in");
        self.write_beside(SUCCESS, Bytes::new()).await
    }

    async fn write_beside(&self, name: &str, bytes: Bytes) -> Result<(), Error> {
        let store = &self.place.store;
        let staging = self.staging.paths().directory();
        let target = self.out.join(name);
        let beside = steps::write_beside(&**store, staging, name, &bytes)
            .await
            .map_err(|e| self.staging.fenced_if_gone(e))?;
        failpoint!("assemble.document_beside");
        match steps::rename_ours(&**store, &beside, &target).await {
            Err(loader_store::Error::AlreadyExists { .. }) => {
                // From an earlier assembly for another base or by a dead driver: out of the way first.
                let old = staging.join(&format!("old-{}{name}", Uuid::new_v4()));
                steps::rename_ours(&**store, &target, &old).await?;
                failpoint!("assemble.document_out");
                steps::rename_ours(&**store, &beside, &target).await?;
            }
            renamed => renamed.map_err(|e| self.staging.fenced_if_gone(e))?,
        }
        Ok(())
    }

    /// The exact set of names and lengths in `out-N` is what the manifest says.
    async fn compare(&self, manifest: &Manifest) -> Result<(), Error> {
        let found = list_files(self.place, &self.out).await?.files;
        let mut expected: BTreeMap<String, Option<u64>> = manifest
            .files
            .iter()
            .map(|file| (file.path.clone(), Some(file.bytes)))
            .collect();
        expected.insert(MANIFEST.to_owned(), None);
        expected.insert(SUCCESS.to_owned(), Some(0));
        for (path, length) in &found {
            let wrong = match expected.remove(path) {
                Some(Some(expected)) if expected != *length => {
                    format!("has {length} bytes, the manifest says {expected}")
                }
                Some(_) => continue,
                None => "is not in the manifest".to_owned(),
            };
            return Err(Error::Inconsistent {
                path: self.out.join(path),
                problem: wrong,
            });
        }
        match expected.keys().next() {
            Some(missing) => Err(Error::Inconsistent {
                path: self.out.join(missing),
                problem: "is in the manifest and not there".to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// Everything below a directory, by its path below it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Files with their lengths.
    pub files: BTreeMap<String, u64>,
    /// Directories, empty ones too.
    pub directories: BTreeSet<String>,
}

/// Lists all that is below `directory`.
///
/// # Errors
/// Whatever the store says.
pub async fn list_files(place: &Place, directory: &StorePath) -> Result<Tree, Error> {
    let mut tree = Tree::default();
    let mut open = vec![(directory.clone(), String::new())];
    while let Some((at, prefix)) = open.pop() {
        for entry in place.store.list(&at).await? {
            let path = format!("{prefix}{}", entry.path.name());
            match entry.kind {
                EntryKind::Directory => {
                    open.push((entry.path.clone(), format!("{path}/")));
                    tree.directories.insert(path);
                }
                EntryKind::File => {
                    tree.files.insert(path, entry.len);
                }
            }
        }
    }
    Ok(tree)
}
