//! One run's private directory: made, leased, taken over when its run died, and cleaned up.
//!
//! A staging directory is fenced by renaming it: whoever lost it finds every one of its paths gone, since
//! nothing inside staging ever creates missing parents. The lease only tells the living from the dead;
//! nobody's correctness rests on it.

use std::cmp::Reverse;
use std::time::Duration;

use loader_store::{Entry, StorePath};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Place;
use super::lease::{self, Lease, Silent};
use super::newest::{is_there, newest};
use super::steps;
use super::trash::{delete_or_leave, discard, empty_trash};
use crate::error::Error;
use crate::failpoint::failpoint;
use crate::layout::{DONE, StagingLayout};
use crate::manifest::Manifest;
use crate::plan::{BUILD, Plan};
use crate::sealed;

/// The staging directory of the run that this process drives.
#[derive(Debug)]
pub struct Staging {
    place: Place,
    run: Uuid,
    paths: StagingLayout,
    /// The store's clock when the directory was made, in milliseconds.
    made_at_ms: i64,
    /// How old this run's lease may get before others take it for dead; written into it.
    lease_timeout: Duration,
    lease: Option<Lease>,
}

impl Staging {
    /// Makes a fresh staging directory under a new uuid.
    ///
    /// # Errors
    /// Whatever the store says. On a full quota or disk room is made first: by emptying the trash, then by
    /// throwing away what runs of this job left for the next one.
    pub async fn create(place: &Place, job: &str, lease_timeout: Duration) -> Result<Self, Error> {
        let mut made = Self::make(place, lease_timeout).await;
        if is_full(&made) {
            empty_trash(place).await;
            made = Self::make(place, lease_timeout).await;
        }
        if is_full(&made) {
            give_way(place, job, lease_timeout).await?;
            made = Self::make(place, lease_timeout).await;
        }
        made
    }

    async fn make(place: &Place, lease_timeout: Duration) -> Result<Self, Error> {
        let run = Uuid::new_v4();
        let paths = place.layout.staging(run);
        steps::make_directory(&*place.store, paths.directory()).await?;
        failpoint!("staging.made");
        let made = place.store.stat(paths.directory()).await?;
        let made_at_ms = made
            .map(|entry| entry.modified_ms)
            .ok_or_else(|| taken_over(&paths))?;
        let staging = Self {
            place: place.clone(),
            run,
            paths,
            made_at_ms,
            lease_timeout,
            lease: None,
        };
        match staging.renew_lease().await {
            Ok(()) => Ok(staging),
            Err(error) => {
                // So that a full quota is not filled further by each try.
                discard(place, staging.paths.directory()).await;
                Err(error)
            }
        }
    }

    async fn renew_lease(&self) -> Result<(), Error> {
        let text = lease::text(self.lease_timeout);
        steps::overwrite(&*self.place.store, &self.paths.lease(), text)
            .await
            .map_err(|e| self.fenced_if_gone(e))
    }

    /// Id of the run: the name of its staging directory.
    #[must_use]
    pub const fn run(&self) -> Uuid {
        self.run
    }

    /// Its paths.
    #[must_use]
    pub const fn paths(&self) -> &StagingLayout {
        &self.paths
    }

    /// Starts the heartbeat. The token is cancelled when the directory turns out to be gone.
    pub fn keep_lease(&mut self) -> CancellationToken {
        let lease = Lease::keep(&self.place, self.paths.lease(), self.lease_timeout);
        let lost = lease.lost.clone();
        self.lease = Some(lease);
        lost
    }

    /// Stores the plan: the acknowledged write that proves the newest manifest read before it durable.
    ///
    /// # Errors
    /// Whatever the store says.
    pub async fn write_plan(&self, plan: &Plan) -> Result<(), Error> {
        failpoint!("plan.before_write");
        // First: a plan that the next run takes over must have room for its tasks.
        let store = &*self.place.store;
        steps::make_directory(store, &self.paths.tasks())
            .await
            .map_err(|e| self.fenced_if_gone(e))?;
        let bytes = sealed::seal(plan)?;
        let beside = steps::write_beside(store, self.paths.directory(), "plan.json", &bytes)
            .await
            .map_err(|e| self.fenced_if_gone(e))?;
        failpoint!("plan.beside");
        steps::rename_ours(store, &beside, &self.paths.plan())
            .await
            .map_err(|e| self.fenced_if_gone(e))?;
        failpoint!("plan.written");
        Ok(())
    }

    /// Throws away a plan that does not hold any more, and what was made for it.
    ///
    /// # Errors
    /// Whatever the store says.
    pub async fn drop_plan(&self) -> Result<(), Error> {
        let store = &*self.place.store;
        steps::delete(store, &self.paths.plan()).await?;
        steps::delete(store, &self.paths.tasks()).await?;
        for entry in store.list(self.paths.directory()).await? {
            if StagingLayout::out_number(entry.path.name()).is_some() {
                steps::delete(store, &entry.path).await?;
            }
        }
        Ok(())
    }

    /// Ends the lease but leaves plan and finished tasks for the next run to take over at once.
    pub async fn leave_for_next(mut self) {
        self.lease = None;
        if let Err(error) = self.place.store.delete(&self.paths.lease()).await {
            tracing::warn!(%error, "cannot give up the lease; the next run waits for it to expire");
        }
    }

    /// Throws the directory away: renamed first, so that no sleeper can publish from it.
    pub async fn discard(mut self) {
        self.lease = None;
        failpoint!("staging.before_discard");
        discard(&self.place, self.paths.directory()).await;
        failpoint!("staging.discarded");
    }

    /// Takes over a dead run of the same job and build whose plan still continues the newest run.
    ///
    /// What counts is what lies in the directory after the claiming rename: until then a driver that was
    /// only slow may have planned anew. On success the dead run's directory has a new name, `self`'s own
    /// empty directory is thrown away, and the stored plan is returned. `None` when there is nothing to
    /// take over.
    ///
    /// # Errors
    /// Whatever the store says while looking; this run's own directory is thrown away then. A claim that
    /// another driver won is no error.
    pub async fn take_over(self, fingerprint: &str) -> Result<(Self, Option<TakenOver>), Error> {
        match self.taken_from_the_dead(fingerprint).await {
            Ok(Some((claimed, taken))) => {
                self.discard().await;
                Ok((claimed, Some(taken)))
            }
            Ok(None) => Ok((self, None)),
            Err(error) => {
                self.discard().await;
                Err(error)
            }
        }
    }

    async fn taken_from_the_dead(
        &self,
        fingerprint: &str,
    ) -> Result<Option<(Self, TakenOver)>, Error> {
        let mut fitting = Vec::new();
        for dead in self.dead().await? {
            let paths = StagingLayout::at(dead.entry.path.clone());
            if let StoredPlan::Sound(plan) = stored_plan(&self.place, &paths).await
                && self.resumed(*plan, fingerprint).await?.is_some()
            {
                fitting.push(dead);
            }
        }
        let mut still_dead = self.still_dead(fitting).await?;
        if still_dead.len() > 1 {
            still_dead = self.most_done_first(still_dead).await?;
        }
        for dead in still_dead {
            let Some(claimed) = self.claim(&dead.path).await? else {
                continue;
            };
            let taken = match read_plan(&self.place, &claimed.paths).await {
                Ok(plan) => self.resumed(plan, fingerprint).await,
                Err(error) => Err(error),
            };
            match taken {
                Ok(Some(taken)) => {
                    tracing::info!(run = %claimed.run, from = dead.path.name(), "took over a run that died");
                    return Ok(Some((claimed, taken)));
                }
                Ok(None)
                | Err(Error::Damaged { .. } | Error::Store(loader_store::Error::NotFound { .. })) =>
                {
                    claimed.discard().await;
                }
                Err(error) => {
                    claimed.leave_for_next().await;
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    async fn most_done_first(&self, dead: Vec<Entry>) -> Result<Vec<Entry>, Error> {
        let store = &*self.place.store;
        let mut counted = Vec::new();
        for entry in dead {
            let paths = StagingLayout::at(entry.path.clone());
            let tasks = match store.list(&paths.tasks()).await {
                // Another driver was faster.
                Err(loader_store::Error::NotFound { .. }) => Vec::new(),
                listed => listed?,
            };
            let mut done = 0_usize;
            for task in tasks {
                let is_done = store.stat(&task.path.join(DONE)).await?.is_some();
                done += usize::from(is_done);
            }
            counted.push((done, entry));
        }
        counted.sort_by_key(|(done, _)| Reverse(*done));
        Ok(counted.into_iter().map(|(_, entry)| entry).collect())
    }

    /// A dead run's plan, if it is this job's and build's and continues the newest run.
    async fn resumed(&self, plan: Plan, fingerprint: &str) -> Result<Option<TakenOver>, Error> {
        let newest = newest(&self.place).await?;
        let ours = plan.fingerprint == fingerprint && plan.build == BUILD;
        let stands = ours && plan.continues(newest.as_ref()).is_ok();
        Ok(stands.then_some(TakenOver { plan, newest }))
    }

    /// Renames a dead run's directory to a new uuid: the fence. `None` if another driver was faster, or
    /// nobody knows: either way it is not ours to use.
    async fn claim(&self, dead: &StorePath) -> Result<Option<Self>, Error> {
        let run = Uuid::new_v4();
        let paths = self.place.layout.staging(run);
        failpoint!("takeover.before_claim");
        if let Err(error) = steps::rename_ours(&*self.place.store, dead, paths.directory()).await {
            tracing::info!(%error, path = %dead, "cannot take over a dead run");
            return Ok(None);
        }
        failpoint!("takeover.claimed");
        let place = self.place.clone();
        let claimed = Self {
            place,
            run,
            paths,
            made_at_ms: self.made_at_ms,
            lease_timeout: self.lease_timeout,
            lease: None,
        };
        if let Err(error) = claimed.clear_attempts().await {
            tracing::warn!(%error, "cannot delete attempts that did not end");
        }
        // At once: without a lease it looks as if it had been given up.
        claimed.renew_lease().await?;
        Ok(Some(claimed))
    }

    /// Deletes attempts that did not end: nobody can go on with them, and they may be what fills the quota or disk.
    async fn clear_attempts(&self) -> Result<(), Error> {
        let store = &*self.place.store;
        let tasks = match store.list(&self.paths.tasks()).await {
            Err(loader_store::Error::NotFound { .. }) => return Ok(()),
            listed => listed?,
        };
        for task in tasks {
            for entry in store.list(&task.path).await? {
                if entry.path.name() != DONE {
                    steps::delete(store, &entry.path).await?;
                }
            }
        }
        Ok(())
    }

    /// Moves dead staging directories that nobody can take over to the trash, and empties it: before
    /// planning, so that a full quota cannot lock the job out.
    ///
    /// Dead runs of other jobs, and those whose plan this build cannot read, are left alone for a day.
    ///
    /// # Errors
    /// Whatever the store says while looking.
    pub async fn clean_up(&self, job: &str) -> Result<(), Error> {
        const LEFT_TO_OTHERS: Duration = Duration::from_secs(24 * 3600);
        empty_trash(&self.place).await;
        self.clear_unborn_datasets().await;
        let mut useless = Vec::new();
        for dead in self.dead().await? {
            let paths = StagingLayout::at(dead.entry.path.clone());
            let left_to_others = match stored_plan(&self.place, &paths).await {
                StoredPlan::None => false,
                StoredPlan::Sound(plan) => plan.job != job,
                StoredPlan::Unreadable => true,
            };
            if !left_to_others || self.age(&dead.entry) >= LEFT_TO_OTHERS {
                useless.push(dead);
            }
        }
        for dead in self.still_dead(useless).await? {
            tracing::info!(path = %dead.path, "clearing away a dead run");
            discard(&self.place, &dead.path).await;
        }
        Ok(())
    }

    /// A load that died while it made the dataset left its `dataset.json` beside the place.
    async fn clear_unborn_datasets(&self) {
        let entries = match self.place.store.list(&self.place.layout.hidden()).await {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(%error, "cannot look for what earlier loads left");
                return;
            }
        };
        let unborn = |entry: &&Entry| {
            !entry.is_directory()
                && entry.name().ends_with(super::dataset::BESIDE)
                && self.age(entry) >= self.lease_timeout
        };
        for entry in entries.iter().filter(unborn) {
            delete_or_leave(&self.place, &entry.path).await;
        }
    }

    /// Staging directories whose lease is stale, oldest first.
    async fn dead(&self) -> Result<Vec<Dead>, Error> {
        let store = &*self.place.store;
        let mut dead = Vec::new();
        for entry in store.list(&self.place.layout.all_staging()).await? {
            if entry.path == *self.paths.directory() {
                continue;
            }
            let paths = StagingLayout::at(entry.path.clone());
            let lease = store.stat(&paths.lease()).await?;
            let is_planned = store.stat(&paths.plan()).await?.is_some();
            let silent = match lease {
                Some(lease) => {
                    let age = self.age(&lease);
                    let timeout = lease::timeout_of(store, &lease, self.lease_timeout).await;
                    let silent = Silent::new(lease, timeout);
                    if age < silent.timeout() {
                        continue;
                    }
                    Some(silent)
                }
                // The lease was given up: take over at once.
                None if is_planned => None,
                // Just being made, or made by one who died in the first instant.
                None if self.age(&entry) < self.lease_timeout => continue,
                None => None,
            };
            dead.push(Dead { entry, silent });
        }
        dead.sort_by_key(|dead| dead.entry.modified_ms);
        Ok(dead)
    }

    /// Those that are still silent a beat later: when a store comes back, every lease looks old.
    async fn still_dead(&self, dead: Vec<Dead>) -> Result<Vec<Entry>, Error> {
        let silent = dead.iter().filter_map(|dead| dead.silent.as_ref());
        if let Some(beat) = silent.map(Silent::next_beat).max() {
            tokio::time::sleep(beat).await;
        }
        let mut still = Vec::new();
        for Dead { entry, silent } in dead {
            let is_still = match silent {
                Some(silent) => silent.is_still(&*self.place.store).await?,
                None => true,
            };
            if is_still {
                still.push(entry);
            }
        }
        Ok(still)
    }

    /// Age by the store's own clock.
    fn age(&self, entry: &Entry) -> Duration {
        let ms = self.made_at_ms.saturating_sub(entry.modified_ms);
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    /// The error of a driver whose directory is no longer its own.
    #[must_use]
    pub fn gone(&self) -> Error {
        taken_over(&self.paths)
    }

    /// Whether an error only shows that another driver took this directory: something in it is missing
    /// because all of it is.
    pub async fn was_taken_over(&self, error: &Error) -> bool {
        let missing = matches!(
            error,
            Error::Store(
                loader_store::Error::NotFound { .. } | loader_store::Error::ParentMissing { .. }
            )
        );
        missing && matches!(self.is_there().await, Ok(false))
    }

    /// Whether the directory is still this driver's.
    ///
    /// # Errors
    /// Whatever the store says.
    pub async fn is_there(&self) -> Result<bool, Error> {
        is_there(&self.place, self.paths.directory()).await
    }

    /// A missing parent inside staging means that another driver has taken the directory.
    pub(crate) fn fenced_if_gone(&self, error: loader_store::Error) -> Error {
        fenced_if_gone(&self.paths, error)
    }
}

/// See [`Staging::fenced_if_gone`]; for tasks, which know only the paths.
pub(crate) fn fenced_if_gone(paths: &StagingLayout, error: loader_store::Error) -> Error {
    match error {
        loader_store::Error::ParentMissing { .. } => taken_over(paths),
        other => other.into(),
    }
}

/// The error of a driver or task whose staging directory is no longer its own.
pub(crate) fn taken_over(paths: &StagingLayout) -> Error {
    Error::Fenced {
        what: format!("{} was taken over or cleared away", paths.directory()),
    }
}

/// A staging directory whose owner seems to be dead.
#[derive(Debug)]
struct Dead {
    entry: Entry,
    /// Its lease, unless it was given up or never written.
    silent: Option<Silent>,
}

/// A dead run that now belongs to this driver.
#[derive(Debug)]
pub struct TakenOver {
    /// Its plan.
    pub plan: Plan,
    /// The newest manifest, read after the claim.
    pub newest: Option<Manifest>,
}

/// What a staging directory holds for a plan.
enum StoredPlan {
    /// There is none: its driver died before it had planned.
    None,
    /// One that this build reads.
    Sound(Box<Plan>),
    /// One that it does not: damaged, another version, or the store does not answer.
    Unreadable,
}

/// Reads once: a plan that nobody may need is not waited for.
async fn stored_plan(place: &Place, paths: &StagingLayout) -> StoredPlan {
    match sealed::read_once(&*place.store, &paths.plan()).await {
        Ok(None) => StoredPlan::None,
        Ok(Some(plan)) => StoredPlan::Sound(Box::new(plan)),
        Err(error) => {
            tracing::warn!(error = %crate::error::chain(&error), "cannot read the plan of a dead run");
            StoredPlan::Unreadable
        }
    }
}

/// Reads the plan of a staging directory.
///
/// # Errors
/// When it is missing or unsound.
pub async fn read_plan(place: &Place, paths: &StagingLayout) -> Result<Plan, Error> {
    let path = paths.plan();
    match sealed::read(&*place.store, &path).await? {
        Some(plan) => Ok(plan),
        None => Err(loader_store::Error::NotFound { path }.into()),
    }
}

fn is_full<T>(made: &Result<T, Error>) -> bool {
    use loader_store::Error::{NoSpace, Quota};
    matches!(made, Err(Error::Store(Quota { .. } | NoSpace { .. })))
}

/// Throws away dead runs of this job: their finished tasks are worth less than a job that is locked out by its
/// own leftovers.
///
/// Without a directory of ours there is no clock to tell how old a lease is: dead is who does not renew it for
/// as long as it lasts, which is waited for.
async fn give_way(place: &Place, job: &str, lease_timeout: Duration) -> Result<(), Error> {
    let store = &*place.store;
    let mut leased = Vec::new();
    for entry in store.list(&place.layout.all_staging()).await? {
        let paths = StagingLayout::at(entry.path.clone());
        let is_ours = match stored_plan(place, &paths).await {
            StoredPlan::Sound(plan) => plan.job == job,
            StoredPlan::None | StoredPlan::Unreadable => false,
        };
        match store.stat(&paths.lease()).await? {
            _ if !is_ours => {}
            None => make_room(place, &entry.path).await,
            Some(lease) => {
                let timeout = lease::timeout_of(store, &lease, lease_timeout).await;
                leased.push((entry, Silent::new(lease, timeout)));
            }
        }
    }
    if let Some(longest) = leased.iter().map(|(_, silent)| silent.timeout()).max() {
        tokio::time::sleep(longest).await;
    }
    for (entry, silent) in leased {
        if silent.is_still(store).await? {
            make_room(place, &entry.path).await;
        }
    }
    Ok(())
}

async fn make_room(place: &Place, dead: &StorePath) {
    tracing::warn!(path = %dead, "the quota or disk is full, throwing a run away that was left for this one");
    discard(place, dead).await;
}
