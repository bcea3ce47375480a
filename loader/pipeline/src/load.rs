//! `logferry load`: one run of one dataset, from look to publish.
//!
//! ```text
//! dataset.json ─► staging ─► (take over a dead run | plan, write, read again) ─► tasks ─► assemble ─► publish
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use broker_client::protocol::ids::TopicName;
use broker_client::{Client, ClientConfig};
use loader_store::{Patience, StoreConfig, StorePath};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::claims;
use crate::commit::Place;
use crate::commit::assemble::{Selection, finished};
use crate::commit::dataset::{Dataset, LAYOUT, make_directories};
use crate::commit::newest::{newest, newest_number};
use crate::commit::publish::{publish, write_claims};
use crate::commit::staging::{Staging, TakenOver, read_plan};
use crate::config::{EngineConfig, JobConfig};
use crate::engine::{Engine, attempts};
use crate::error::Error;
use crate::failpoint::failpoint;
use crate::infer;
use crate::layout::{Layout, StagingLayout};
use crate::manifest::{LeftOut, Manifest};
use crate::memory::TaskMemory;
use crate::plan::{Plan, PlanRequest, fingerprint, plan};
use crate::progress::Progress;
use crate::quantity::in_bytes;
use crate::schema::TableSchema;
use crate::snapshot;
use crate::task::TaskContext;

/// Rounds of planning before giving up because other runs keep coming first.
const MAX_PLANS: u32 = 20;

/// One load of one dataset.
#[derive(Debug, Clone)]
pub struct Load {
    /// The job.
    pub job: JobConfig,
    /// Topics of this dataset.
    pub topics: Vec<TopicName>,
    /// Where the dataset is, `{topic}` filled in.
    pub location: String,
    /// Make the dataset if there is none.
    pub create: bool,
    /// Accept jumps and record them (I6).
    pub accept_gap: bool,
    /// Who is told how far it is.
    pub progress: Arc<dyn Progress>,
    /// Cancelled by SIGTERM.
    pub stop: CancellationToken,
    /// For trouble of the store; see [`store_patience`]. Shared by all loads of a job.
    pub patience: Patience,
    /// Plan time, milliseconds since the epoch.
    pub now_ms: i64,
}

/// How a load ended well.
#[derive(Debug)]
pub enum Outcome {
    /// A run was published.
    Published(Box<Manifest>),
    /// There was nothing to do; partitions left out are listed.
    Nothing(Vec<LeftOut>),
    /// The time budget ended before anything could be published.
    OutOfTime,
}

impl Outcome {
    /// The exit status, where it is not 0.
    #[must_use]
    pub fn exit(&self) -> Option<crate::error::Exit> {
        let partial = match self {
            Self::Published(manifest) => manifest.partial || !manifest.left_out.is_empty(),
            Self::Nothing(left_out) => !left_out.is_empty(),
            Self::OutOfTime => true,
        };
        partial.then_some(crate::error::Exit::Partial)
    }
}

impl Load {
    /// Opens the dataset's store, to wait for trouble that passes.
    async fn open(&self) -> Result<Place, Error> {
        let spill = &self.job.engine.spill_dir;
        if let Some(missing) = spill.as_ref().filter(|directory| !directory.is_dir()) {
            let missing = missing.display();
            return Err(config(format!(
                "`engine.spill_dir` is no directory: {missing}"
            )));
        }
        let how = StoreConfig {
            patience: self.patience.clone(),
            ..store_config(&self.job)
        };
        open_with(&how, &self.location).await
    }

    /// Does one run.
    ///
    /// Cancel safety: dropping the future at any point leaves the dataset as it was or one whole run
    /// further, and a staging directory that the next run takes over or clears away.
    ///
    /// # Errors
    /// See [`Error::exit`]; nothing was published then, unless the error says otherwise.
    pub async fn run(&self) -> Result<Outcome, Error> {
        self.run_once()
            .await
            .map_err(|error| self.or_stopped(error))
    }

    async fn run_once(&self) -> Result<Outcome, Error> {
        let place = self.open().await?;
        let client = Client::connect(client_config(&self.job)).await?;
        let dataset = self.dataset(&place, &client).await?;
        let staging = Staging::create(&place, &self.job.name, lease_timeout(&self.job)).await?;
        self.drive(
            Driver {
                place,
                client,
                dataset,
            },
            staging,
        )
        .await
    }

    /// Trouble that would have been waited for, had nobody said stop.
    fn or_stopped(&self, error: Error) -> Error {
        match error {
            Error::Store(trouble) if self.stop.is_cancelled() && trouble.may_pass() => {
                tracing::warn!(error = %trouble, "stopped while the store was in trouble");
                Error::Stopped
            }
            error => error,
        }
    }

    /// The plan that [`Load::run`] would make now; nothing is written.
    ///
    /// # Errors
    /// As [`Load::run`] up to planning.
    pub async fn dry_run(&self) -> Result<Plan, Error> {
        let place = self.open().await?;
        let client = Client::connect(client_config(&self.job)).await?;
        let (dataset, newest) = match Dataset::read(&place).await? {
            Some(dataset) => (dataset, newest(&place).await?),
            None => (self.new_dataset(&client).await?, None),
        };
        let driver = Driver {
            place,
            client,
            dataset,
        };
        self.plan(&driver, newest.as_ref()).await
    }

    /// Makes and stores a plan for `load task`, and leaves it for the next `load` to assemble.
    ///
    /// # Errors
    /// As [`Load::run`] up to planning.
    pub async fn plan_only(&self) -> Result<Option<(Plan, String)>, Error> {
        let place = self.open().await?;
        let client = Client::connect(client_config(&self.job)).await?;
        let dataset = self.dataset(&place, &client).await?;
        let mut staging = Staging::create(&place, &self.job.name, lease_timeout(&self.job)).await?;
        drop(staging.keep_lease());
        let driver = Driver {
            place,
            client,
            dataset,
        };
        match self.stored_plan(&driver, &staging).await {
            Ok((plan, _)) if plan.is_worth_publishing() => {
                let uri = driver.place.store.uri(&staging.paths().plan());
                staging.leave_for_next().await;
                Ok(Some((plan, uri)))
            }
            Ok(_) => {
                staging.discard().await;
                Ok(None)
            }
            Err(error) => {
                staging.discard().await;
                Err(error)
            }
        }
    }

    async fn dataset(&self, place: &Place, client: &Client) -> Result<Dataset, Error> {
        if let Some(dataset) = Dataset::read(place).await? {
            make_directories(place).await?;
            return Ok(dataset);
        }
        if !self.create {
            return Err(Error::NoDataset {
                location: self.location.clone(),
            });
        }
        self.new_dataset(client).await?.make(place).await
    }

    /// What `dataset.json` would say; columns are inferred where the job declares none.
    async fn new_dataset(&self, client: &Client) -> Result<Dataset, Error> {
        let snapshot = snapshot::take(client, &self.job, &self.topics, None, None).await?;
        if !snapshot.missing.is_empty() {
            return Err(Error::UnknownTopics {
                topics: snapshot.missing,
            });
        }
        let schema = match &self.job.schema {
            Some(schema) => schema.clone(),
            None => infer::columns(client, &self.job, &snapshot).await?,
        };
        self.check(&schema)?;
        Ok(Dataset {
            uuid: Uuid::new_v4(),
            job: self.job.name.clone(),
            cluster_id: snapshot.cluster_id,
            layout: LAYOUT.to_owned(),
            schema_inferred: self.job.schema.is_none(),
            schema,
            grouping: self.job.grouping.clone(),
            made_at_ms: self.now_ms,
        })
    }

    /// Refuses a schema and job that do not fit together, naming every problem.
    fn check(&self, schema: &TableSchema) -> Result<(), Error> {
        let mut problems = Vec::new();
        let keys = self.job.grouping.key_names().chain(["run"]);
        if let Err(found) = schema.validate(keys) {
            problems.extend(found.0.iter().map(ToString::to_string));
        }
        if let Err(found) = self.job.grouping.validate(schema) {
            problems.extend(found.0.iter().map(ToString::to_string));
        }
        if let Err(problem) = self.job.records.validate(schema) {
            problems.push(problem.to_string());
        }
        if let Err(problem) = self.job.output.parquet.validate() {
            problems.push(problem.to_string());
        }
        if self.job.completeness.is_some() && !claims::is_hourly(&self.job.grouping) {
            problems.push("`completeness` needs a grouping with one directory an hour".to_owned());
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::Config { problems })
        }
    }

    async fn plan(&self, driver: &Driver, newest: Option<&Manifest>) -> Result<Plan, Error> {
        let columns_now = newest.map_or(&driver.dataset.schema, |manifest| &manifest.schema);
        let problems = driver.dataset.contradictions(&self.job, columns_now);
        if !problems.is_empty() {
            return Err(Error::Config { problems });
        }
        let schema = self.job.schema.as_ref().unwrap_or(columns_now);
        self.check(schema)?;
        let complete_at = claims::boundary_ms(&self.job, self.now_ms);
        let source =
            snapshot::take(&driver.client, &self.job, &self.topics, newest, complete_at).await?;
        plan(&PlanRequest {
            job: &self.job,
            schema,
            newest,
            source: &source,
            accept_gap: self.accept_gap,
            now_ms: self.now_ms,
        })
    }

    /// Read, plan, write, read again, until the newest run stands still.
    async fn stored_plan(
        &self,
        driver: &Driver,
        staging: &Staging,
    ) -> Result<(Plan, Option<Manifest>), Error> {
        for _ in 0..MAX_PLANS {
            let newest = newest(&driver.place).await?;
            let plan = self.plan(driver, newest.as_ref()).await?;
            if !plan.is_worth_publishing() {
                return Ok((plan, newest));
            }
            staging.write_plan(&plan).await?;
            if newest_number(&driver.place).await? == newest.as_ref().map(|m| m.number) {
                failpoint!("plan.settled");
                return Ok((plan, newest));
            }
            staging.drop_plan().await?;
        }
        Err(Error::Fenced {
            what: format!("other runs were published during {MAX_PLANS} plans"),
        })
    }

    async fn drive(&self, driver: Driver, staging: Staging) -> Result<Outcome, Error> {
        let started = tokio::time::Instant::now();
        let fingerprint = fingerprint(&self.job)?;
        let (mut staging, taken) = staging.take_over(&fingerprint).await?;
        let lost = staging.keep_lease();
        let planned = tokio::select! {
            planned = self.planned(&driver, &staging, taken) => planned,
            () = self.stop.cancelled() => Err(Error::Stopped),
            () = lost.cancelled() => Err(staging.gone()),
        };
        let outcome = match planned {
            Ok((plan, _)) if !plan.is_worth_publishing() => Ok(Outcome::Nothing(plan.left_out)),
            Ok((plan, newest)) => {
                let budget = self
                    .job
                    .limits
                    .time_budget
                    .map(|budget| duration_ms(budget.as_ms()));
                let engine = Engine {
                    threads: threads(&self.job),
                    attempts: self.job.engine.attempts,
                    deadline: budget.map(|budget| started + budget),
                };
                let planned = Planned {
                    plan: Arc::new(plan),
                    newest,
                };
                self.finish(&driver, &staging, planned, &engine, &lost)
                    .await
            }
            Err(error) => Err(error),
        };
        let outcome = match outcome {
            Err(error) if staging.was_taken_over(&error).await => Err(staging.gone()),
            outcome => outcome,
        };
        match &outcome {
            Err(error) if error.leaves_work() => staging.leave_for_next().await,
            Ok(Outcome::OutOfTime) => staging.leave_for_next().await,
            _ => staging.discard().await,
        }
        outcome
    }

    /// The plan to carry out, after dead runs were cleared away, and the newest manifest under it.
    async fn planned(
        &self,
        driver: &Driver,
        staging: &Staging,
        taken: Option<TakenOver>,
    ) -> Result<(Plan, Option<Manifest>), Error> {
        staging.clean_up(&self.job.name).await?;
        if let Some(TakenOver { plan, newest }) = taken {
            // The claim was the acknowledged write between the two looks at the newest run.
            let now = self.plan(driver, newest.as_ref()).await?;
            if plan.still_fits(&now) {
                return Ok((plan, newest));
            }
            tracing::info!(
                "the source has changed since the run that died was planned, planning anew"
            );
            staging.drop_plan().await?;
        }
        let (plan, newest) = self.stored_plan(driver, staging).await?;
        if let Some(manifest) = &newest {
            // A kill right after the rename may have kept them back.
            write_claims(&driver.place, manifest).await;
        }
        Ok((plan, newest))
    }

    /// From a stored plan to a published run.
    async fn finish(
        &self,
        driver: &Driver,
        staging: &Staging,
        planned: Planned,
        engine: &Engine,
        lost: &CancellationToken,
    ) -> Result<Outcome, Error> {
        let Planned { plan, newest } = planned;
        let done: BTreeSet<u32> = finished(&driver.place, staging, &plan)
            .await?
            .into_keys()
            .collect();
        self.progress.planned(&plan, done.len());
        let context = TaskContext {
            place: driver.place.clone(),
            staging: staging.paths().clone(),
            plan: Arc::clone(&plan),
            client: driver.client.clone(),
            memory: TaskMemory::new(
                &self.job.engine,
                engine.threads,
                plan.parquet.row_group_bytes,
            ),
            progress: Arc::clone(&self.progress),
        };
        let waiting = plan
            .tasks
            .iter()
            .filter(|t| !done.contains(&t.task))
            .cloned()
            .collect();
        tokio::select! {
            done = engine.run(&context, waiting, &self.stop) => done?,
            () = lost.cancelled() => return Err(staging.gone()),
        }
        // From here on a lost lease is no reason to stop: each step finds out by itself whether it is
        // fenced, and after the rename the run is published whatever became of the staging directory.
        let selection = Selection::choose(&plan, finished(&driver.place, staging, &plan).await?);
        if selection.reports.is_empty() && !plan.tasks.is_empty() {
            // No task was done in time, or all of them lie in a directory that is another driver's now.
            return match staging.is_there().await? {
                true => Ok(Outcome::OutOfTime),
                false => Err(staging.gone()),
            };
        }
        selection.check_rejected(&plan)?;
        self.progress.assembling();
        self.confirm_topics(&driver.client, &plan).await?;
        let manifest = publish(&driver.place, staging, &plan, &selection, newest).await?;
        self.progress.published(&manifest);
        self.export_offsets(&driver.client, &manifest).await;
        Ok(Outcome::Published(Box::new(manifest)))
    }

    /// A topic deleted and made again while it was read would have mixed two logs: the ids must still be
    /// those of the plan (I6).
    async fn confirm_topics(&self, client: &Client, plan: &Plan) -> Result<(), Error> {
        if plan.tasks.is_empty() {
            return Ok(());
        }
        let now = client.topics(Some(&self.topics)).await?;
        for planned in plan.partitions.iter().filter(|p| p.topic_id.is_some()) {
            let found = now.iter().find(|topic| topic.name == planned.topic);
            if found
                .is_some_and(|topic| topic.error.is_none() && topic.topic_id != planned.topic_id)
            {
                let topic = planned.topic.clone();
                return Err(broker_client::Error::TopicReplaced { topic }.into());
            }
        }
        Ok(())
    }

    /// Consumer-group offsets for lag tools. Never read back; an error here fails nothing.
    async fn export_offsets(&self, client: &Client, manifest: &Manifest) {
        let Some(group) = &self.job.source.lag_group else {
            return;
        };
        for topic in &self.topics {
            let ends = manifest
                .partitions
                .iter()
                .filter(|s| s.key.topic == *topic && s.key.cluster_id == manifest.cluster_id)
                .map(|s| (s.key.partition, s.end))
                .collect();
            if let Err(error) = client.commit_offsets(group, topic, &ends).await {
                tracing::warn!(%error, group, %topic, "cannot commit offsets for lag tools");
            }
        }
    }
}

/// A stored plan, and the newest manifest under it.
struct Planned {
    plan: Arc<Plan>,
    newest: Option<Manifest>,
}

struct Driver {
    place: Place,
    client: Client,
    dataset: Dataset,
}

/// Runs one task of a stored plan (`logferry load task`), for schedulers of their own.
///
/// # Errors
/// [`Error::Config`] for a task number that the plan lacks; otherwise as a task within a load.
pub async fn run_task(
    plan_location: &str,
    task: u32,
    store: &StoreConfig,
    attempts_allowed: u32,
    progress: Arc<dyn Progress>,
) -> Result<(), Error> {
    let (store, path) = loader_store::open(plan_location, store).await?;
    let Some(directory) = path.parent().filter(|_| path.name() == "plan.json") else {
        return Err(config(format!(
            "{plan_location} is not the plan.json of a staging directory"
        )));
    };
    let staging = StagingLayout::at(directory.clone());
    let place = Place {
        store,
        layout: Layout::new(dataset_root(&directory)?),
    };
    let plan = Arc::new(read_plan(&place, &staging).await?);
    let Some(work) = plan.tasks.iter().find(|t| t.task == task).cloned() else {
        return Err(config(format!(
            "the plan has {} tasks and none numbered {task}",
            plan.tasks.len()
        )));
    };
    if place.store.stat(&staging.done(task)).await?.is_some() {
        return Ok(());
    }
    let client = Client::connect(planned_client_config(&plan)).await?;
    let found = client.cluster().await?.cluster_id.unwrap_or_default();
    if found != plan.source.cluster_id {
        return Err(Error::WrongCluster {
            planned: plan.source.cluster_id.clone(),
            found,
        });
    }
    progress.planned(&plan, 0);
    let context = TaskContext {
        place,
        staging,
        plan: Arc::clone(&plan),
        client,
        memory: TaskMemory::new(&EngineConfig::default(), 1, plan.parquet.row_group_bytes),
        progress,
    };
    let retries = usize::try_from(attempts_allowed.saturating_sub(1)).unwrap_or(0);
    attempts(&context, &work, retries).await
}

/// `<dataset>/.logferry/staging/<uuid>` → `<dataset>`
fn dataset_root(staging: &StorePath) -> Result<StorePath, Error> {
    let root = staging
        .parent()
        .and_then(|p| p.parent())
        .and_then(|p| p.parent());
    root.ok_or_else(|| {
        config(format!(
            "{staging} is not the staging directory of a dataset"
        ))
    })
}

fn config(problem: String) -> Error {
    Error::Config {
        problems: vec![problem],
    }
}

/// Opens the store of a dataset.
///
/// # Errors
/// Whatever the store says.
pub async fn open_place(job: &JobConfig, location: &str) -> Result<Place, Error> {
    open_with(&store_config(job), location).await
}

/// How long the loads of a job wait for trouble of its store; until `stop` is cancelled.
#[must_use]
pub fn store_patience(engine: &EngineConfig, stop: &CancellationToken) -> Patience {
    Patience::until(duration_ms(engine.store_patience.as_ms()), stop)
}

async fn open_with(how: &StoreConfig, location: &str) -> Result<Place, Error> {
    let (store, root) = loader_store::open(location, how).await?;
    let text = root.to_string();
    let inside = |part: &str| part.starts_with("run=") || part == ".logferry";
    if text == "/" || text.split('/').any(inside) {
        return Err(config(format!(
            "{location} cannot hold a dataset: it is the root of a store, or lies inside another dataset"
        )));
    }
    Ok(Place {
        store,
        layout: Layout::new(root),
    })
}

/// How the store is used by a job.
#[must_use]
pub fn store_config(job: &JobConfig) -> StoreConfig {
    StoreConfig {
        operation_timeout: duration_ms(job.engine.store_timeout.as_ms()),
        ..StoreConfig::default()
    }
}

fn client_config(job: &JobConfig) -> ClientConfig {
    ClientConfig {
        bootstrap: job.source.brokers.clone(),
        tls: job.source.tls.clone(),
        sasl: job.source.sasl.clone(),
        client_id: format!("logferry-load-{}", job.name),
        request_timeout: duration_ms(job.source.request_timeout.as_ms()),
        retry_deadline: duration_ms(job.source.retry_deadline.as_ms()),
        max_batch_bytes: in_bytes(job.source.max_batch_bytes),
        ..ClientConfig::default()
    }
}

pub(crate) fn planned_client_config(plan: &Plan) -> ClientConfig {
    ClientConfig {
        bootstrap: plan.source.brokers.clone(),
        tls: plan.source.tls.clone(),
        sasl: plan.source.sasl.clone(),
        client_id: format!("logferry-load-{}", plan.job),
        request_timeout: duration_ms(plan.source.request_timeout_ms),
        retry_deadline: duration_ms(plan.source.retry_deadline_ms),
        max_batch_bytes: usize::try_from(plan.source.max_batch_bytes).unwrap_or(usize::MAX),
        ..ClientConfig::default()
    }
}

fn lease_timeout(job: &JobConfig) -> Duration {
    duration_ms(job.engine.lease_timeout.as_ms())
}

fn threads(job: &JobConfig) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    job.engine.threads.unwrap_or_else(cores).max(1)
}

fn duration_ms(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
