//! All groups of this broker: finds them, runs their timers, waits for their answers.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{
        JoinGroupResponse, SyncGroupResponse, leave_group::MemberIdentity, list_groups::ListedGroup,
    },
};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use super::{
    config::Config,
    journal::{OffsetsTopic, Owed},
    member::{Answer, own},
    offsets::Offsets,
    records::{Committed, Entry, StoredGroup},
    requests::{Caller, Join, Sync},
    state::{At, Described, Group, State, refused_join, refused_sync},
};
use crate::{clock::Clock, pool::Pool, topics::Topics};

#[cfg(test)]
mod tests;

/// The coordinator of all groups.
#[derive(Debug)]
pub(crate) struct Coordinator {
    config: Arc<crate::Config>,
    clock: Arc<dyn Clock>,
    pool: Pool,
    tasks: TaskTracker,
    topic: Arc<OffsetsTopic>,
    loaded: AtomicBool,
    /// Topics deleted before the groups had been read; held while that ends.
    gone: Mutex<BTreeSet<String>>,
    stop: CancellationToken,
    groups: RwLock<HashMap<ByteString, Arc<Cell>>>,
}

/// A group behind its lock.
#[derive(Debug)]
struct Cell {
    inner: Mutex<Inner>,
    /// A deadline may have come nearer.
    sooner: Notify,
}

#[derive(Debug)]
struct Inner {
    group: Group,
    /// Whether its timer runs.
    timed: bool,
    /// The flush that its last record owes.
    owed: Option<Owed>,
}

impl Cell {
    fn new(group: Group) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                group,
                timed: false,
                owed: None,
            }),
            sooner: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A transition that panicked may have left members without an answer; their timers put that right.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Coordinator {
    pub(crate) fn new(
        config: Arc<crate::Config>,
        clock: Arc<dyn Clock>,
        topics: Arc<Topics>,
        pool: Pool,
        tasks: TaskTracker,
    ) -> Self {
        let partitions = config.groups.offsets_partitions;
        let topic = OffsetsTopic::new(topics, Arc::clone(&clock), partitions);
        Self {
            config,
            clock,
            pool,
            tasks,
            topic: Arc::new(topic),
            loaded: AtomicBool::new(false),
            gone: Mutex::default(),
            stop: CancellationToken::new(),
            groups: RwLock::default(),
        }
    }

    fn config(&self) -> &Config {
        &self.config.groups
    }

    /// Reads what was written down; until it has, requests are told to come again.
    pub(crate) async fn load(self: &Arc<Self>) {
        let this = Arc::clone(self);
        if self.pool.run(move || this.load_blocking()).await.is_err() {
            warn!("reading the groups failed inside the broker; their requests are not served");
        }
    }

    fn load_blocking(self: &Arc<Self>) {
        let mut found: HashMap<ByteString, (Option<StoredGroup>, Offsets)> = HashMap::new();
        self.topic.read_all(|entry| match entry {
            Entry::Group { group, stored } => found.entry(group).or_default().0 = stored,
            Entry::Offset {
                group,
                topic,
                partition,
                committed,
            } => {
                let offsets = &mut found.entry(group).or_default().1;
                match committed {
                    Some(committed) => offsets.insert(topic, partition, committed),
                    None => offsets.remove(&topic, partition),
                }
            }
        });
        let (now, wall_ms) = (Instant::now(), self.clock.now_ms());
        // Of topics that were deleted by a broker that ended before it had forgotten them.
        let mut unknown = BTreeSet::new();
        for (id, (stored, offsets)) in found {
            let topics = offsets.topics().map(|(name, _)| name);
            unknown.extend(topics.filter(|name| !self.topic.knows(name)).cloned());
            let mut group = match stored {
                Some(stored) => Group::restored(id.clone(), stored, now),
                None => Group::new(id.clone(), wall_ms),
            };
            group.offsets = offsets;
            if !group.is_vacant() {
                let cell = Cell::new(group);
                self.arm(&cell);
                self.write_groups().insert(id, cell);
            }
        }
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        for topic in gone
            .iter()
            .map(String::as_str)
            .chain(unknown.iter().map(|name| &**name))
        {
            self.forget_loaded(topic);
        }
        self.loaded.store(true, Ordering::Release);
    }

    /// Answers all that wait, and ends the timers. For shutdown.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    fn read_groups(&self) -> std::sync::RwLockReadGuard<'_, HashMap<ByteString, Arc<Cell>>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_groups(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<ByteString, Arc<Cell>>> {
        self.groups.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether groups can be served.
    ///
    /// # Errors
    /// Not read yet, or the broker stops.
    pub(crate) fn check_ready(&self) -> Result<(), ErrorCode> {
        if self.stop.is_cancelled() {
            Err(ErrorCode::CoordinatorNotAvailable)
        } else if self.loaded.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(ErrorCode::CoordinatorLoadInProgress)
        }
    }

    /// Whether what was written down has been read.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    /// How many groups there are, and members of all of them.
    pub(crate) fn count(&self) -> (usize, usize) {
        let cells: Vec<Arc<Cell>> = self.read_groups().values().cloned().collect();
        let members = cells.iter().map(|cell| cell.lock().group.count_members());
        (cells.len(), members.sum())
    }

    fn find(&self, id: &str) -> Option<Arc<Cell>> {
        self.read_groups().get(id).cloned()
    }

    fn find_or_make(&self, id: &ByteString) -> Result<Arc<Cell>, ErrorCode> {
        if let Some(cell) = self.find(id) {
            return Ok(cell);
        }
        let mut groups = self.write_groups();
        if let Some(cell) = groups.get(id) {
            return Ok(Arc::clone(cell));
        }
        let limit = self.config().max_groups;
        if groups.len() >= limit {
            warn!(group = %id, limit, "group refused: groups.max_groups are there");
            return Err(ErrorCode::PolicyViolation);
        }
        let id = own(id);
        let cell = Cell::new(Group::new(id.clone(), self.clock.now_ms()));
        groups.insert(id, Arc::clone(&cell));
        Ok(cell)
    }

    /// Runs a transition on a group, alone.
    fn change<T>(&self, cell: &Cell, transition: impl FnOnce(&mut Group, &At<'_>) -> T) -> T {
        let mut inner = cell.lock();
        let journal = self.topic.of_group(inner.group.id.clone());
        let at = At {
            now: Instant::now(),
            wall_ms: self.clock.now_ms(),
            config: self.config(),
            journal: &journal,
        };
        let changed = transition(&mut inner.group, &at);
        if let Some(owed) = journal.into_owed() {
            inner.owed = Some(owed);
        }
        changed
    }

    /// Waits for the flush that a group's records owe (`flush.messages`, or a topic that shows only what is flushed).
    /// Dropping it is safe: a flush that has begun ends by itself.
    async fn settle(&self, cell: &Cell) -> Result<(), ErrorCode> {
        let owed = cell.lock().owed.clone();
        let Some(owed) = owed else { return Ok(()) };
        let monotonic = self.clock.monotonic();
        let flushed = owed
            .partition
            .flush_to(&self.pool, owed.end_offset, monotonic);
        flushed.await.map_err(|error| {
            let partition = owed.partition.id();
            warn!(%partition, error = error.message(), "group state not flushed");
            ErrorCode::CoordinatorNotAvailable
        })?;
        let mut inner = cell.lock();
        inner
            .owed
            .take_if(|later| later.end_offset == owed.end_offset);
        Ok(())
    }

    /// Makes sure that the group's timer runs, and looks at its deadlines anew.
    fn arm(self: &Arc<Self>, cell: &Arc<Cell>) {
        let mut inner = cell.lock();
        if inner.group.next_deadline().is_none() {
            return;
        }
        if inner.timed {
            cell.sooner.notify_one();
            return;
        }
        inner.timed = true;
        drop(inner);
        let (this, cell) = (Arc::clone(self), Arc::clone(cell));
        self.tasks.spawn(async move { this.keep_time(&cell).await });
    }

    async fn keep_time(&self, cell: &Cell) {
        loop {
            let Some(deadline) = next_deadline_or_untimed(cell) else {
                return;
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = cell.sooner.notified() => {}
                () = sleep_until(deadline) => self.change(cell, Group::tick),
            }
        }
    }

    /// The topic is made off the runtime's threads, before a group is locked.
    async fn make_topic(&self) -> Result<(), ErrorCode> {
        if self.topic.is_there() {
            return Ok(());
        }
        let topic = Arc::clone(&self.topic);
        let made = self.pool.run(move || topic.make()).await;
        made.unwrap_or(Err(ErrorCode::CoordinatorNotAvailable))
    }

    /// Joins a group; waits until its generation is complete. Dropped, it leaves the member its session timeout.
    pub(crate) async fn join(
        self: &Arc<Self>,
        group: &ByteString,
        join: Join,
    ) -> JoinGroupResponse {
        let member_id = join.member_id.clone();
        let refuse = |code| refused_join(code, member_id.clone());
        let cell = match self.cell_to_change(group).await {
            Ok(cell) => cell,
            Err(code) => return refuse(code),
        };
        let ask = |group: &mut Group, answer, at: &At<'_>| group.join(join, answer, at);
        self.answer(&cell, ask).await.unwrap_or_else(refuse)
    }

    /// Waits for a member's assignment. Dropped, it leaves the member its session timeout.
    pub(crate) async fn sync(self: &Arc<Self>, group: &str, sync: Sync) -> SyncGroupResponse {
        let cell = match self.cell(group) {
            Ok(cell) => cell,
            Err(code) => return refused_sync(code),
        };
        let ask = |group: &mut Group, answer, at: &At<'_>| group.sync(sync, answer, at);
        self.answer(&cell, ask).await.unwrap_or_else(refused_sync)
    }

    /// Asks a group something that it may answer later.
    async fn answer<T>(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        ask: impl FnOnce(&mut Group, Answer<T>, &At<'_>),
    ) -> Result<T, ErrorCode> {
        let (answer, answered) = oneshot::channel();
        self.change(cell, |group, at| ask(group, answer, at));
        self.arm(cell);
        let mut leaving = Leaving {
            coordinator: self,
            cell,
            answered: false,
        };
        let response = tokio::select! {
            biased;
            response = answered => response.map_err(|_| ErrorCode::CoordinatorNotAvailable),
            () = self.stop.cancelled() => Err(ErrorCode::CoordinatorNotAvailable),
        };
        leaving.answered = true;
        self.settle(cell).await?;
        response
    }

    /// The group, made if it is not there, with the topic to write it down.
    async fn cell_to_change(&self, group: &ByteString) -> Result<Arc<Cell>, ErrorCode> {
        self.check_ready()?;
        self.make_topic().await?;
        self.find_or_make(group)
    }

    /// The group, if it is there.
    fn cell(&self, group: &str) -> Result<Arc<Cell>, ErrorCode> {
        self.check_ready()?;
        self.find(group).ok_or(ErrorCode::UnknownMemberId)
    }

    /// A sign of life of a member.
    ///
    /// # Errors
    /// See [`Group::heartbeat`].
    pub(crate) fn heartbeat(&self, group: &str, caller: &Caller) -> Result<(), ErrorCode> {
        let cell = self.cell(group)?;
        self.change(&cell, |group, at| group.heartbeat(caller, at))
    }

    /// Members leave a group; a code for each.
    ///
    /// # Errors
    /// Not served now, or no such group.
    pub(crate) fn leave(
        self: &Arc<Self>,
        group: &str,
        members: &[MemberIdentity],
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        let cell = self.cell(group)?;
        let codes = self.change(&cell, |group, at| group.leave(members, at));
        self.arm(&cell);
        Ok(codes)
    }

    /// Commits offsets, all or none.
    ///
    /// # Errors
    /// See [`Group::check_commit`]; or they could not be written.
    pub(crate) async fn commit(
        &self,
        group: &ByteString,
        caller: &Caller,
        offsets: Vec<(ByteString, i32, Committed)>,
    ) -> Result<(), ErrorCode> {
        self.check_ready()?;
        if caller.generation >= 0 && self.find(group).is_none() {
            return Err(ErrorCode::IllegalGeneration);
        }
        let cell = self.cell_to_change(group).await?;
        self.change(&cell, |group, at| {
            group.check_commit(caller, at)?;
            group.commit(offsets, at)
        })?;
        self.settle(&cell).await
    }

    /// Looks at a group; `None` if there is none.
    ///
    /// # Errors
    /// Not served now.
    pub(crate) fn look<T>(
        &self,
        group: &str,
        look: impl FnOnce(&Group) -> T,
    ) -> Result<Option<T>, ErrorCode> {
        self.check_ready()?;
        let cell = self.find(group);
        Ok(cell.map(|cell| look(&cell.lock().group)))
    }

    /// State and members of a group; `None` if there is none.
    ///
    /// # Errors
    /// Not served now.
    pub(crate) fn describe(&self, group: &str) -> Result<Option<Described>, ErrorCode> {
        let described = self.look(group, Group::describe)?;
        Ok(described.filter(|described| described.state != State::Dead.name()))
    }

    /// All groups.
    ///
    /// # Errors
    /// Not served now.
    pub(crate) fn list(&self) -> Result<Vec<ListedGroup>, ErrorCode> {
        self.check_ready()?;
        let cells: Vec<Arc<Cell>> = self.read_groups().values().cloned().collect();
        let listed = cells.iter().filter_map(|cell| cell.lock().group.listed());
        Ok(listed.collect())
    }

    /// Deletes a group without members.
    ///
    /// # Errors
    /// No such group, it has members, or it could not be written.
    pub(crate) async fn delete(&self, group: &str) -> Result<(), ErrorCode> {
        self.check_ready()?;
        let cell = self.find(group).ok_or(ErrorCode::GroupIdNotFound)?;
        self.change(&cell, Group::delete)?;
        self.drop_dead(group, &cell);
        self.settle(&cell).await
    }

    /// The topics whose offsets a group may not lose now.
    ///
    /// # Errors
    /// No such group, or it may lose none.
    pub(crate) fn check_delete_offsets(
        &self,
        group: &str,
    ) -> Result<BTreeSet<ByteString>, ErrorCode> {
        let checked = self.look(group, Group::check_delete_offsets)?;
        checked.unwrap_or(Err(ErrorCode::GroupIdNotFound))
    }

    /// Forgets offsets of a group.
    ///
    /// # Errors
    /// No such group, or it could not be written.
    pub(crate) async fn delete_offsets(
        &self,
        group: &str,
        offsets: &[(ByteString, i32)],
    ) -> Result<(), ErrorCode> {
        self.check_ready()?;
        let cell = self.find(group).ok_or(ErrorCode::GroupIdNotFound)?;
        self.change(&cell, |group, at| group.delete_offsets(offsets, at))?;
        self.settle(&cell).await
    }

    /// Forgets all groups' offsets of a topic that has been deleted; while groups are being read, at the end of that.
    pub(crate) fn forget_topic(&self, topic: &str) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_loaded() {
            drop(gone);
            self.forget_loaded(topic);
        } else {
            gone.insert(topic.to_owned());
        }
    }

    fn forget_loaded(&self, topic: &str) {
        self.for_each("offsets of a deleted topic not forgotten", |group, at| {
            group.forget_topic(topic, at)
        });
    }

    /// Forgets offsets that have been kept long enough by `steady_ms`, the clock that does not jump, and groups of which
    /// nothing is left.
    pub(crate) fn expire(&self, steady_ms: i64) {
        if self.check_ready().is_err() {
            return;
        }
        self.for_each("old offsets not forgotten", |group, at| {
            let steady = At {
                wall_ms: steady_ms,
                ..*at
            };
            group.expire_offsets(&steady)?;
            group.bury_if_vacant(at).map(|_| ())
        });
    }

    fn for_each(
        &self,
        failure: &'static str,
        change: impl Fn(&mut Group, &At<'_>) -> Result<(), ErrorCode>,
    ) {
        let groups = self.read_groups();
        let cells: Vec<_> = groups
            .iter()
            .map(|(id, cell)| (id.clone(), Arc::clone(cell)))
            .collect();
        drop(groups);
        for (id, cell) in cells {
            if let Err(code) = self.change(&cell, &change) {
                warn!(group = %id, ?code, "{failure}");
            }
            self.drop_dead(&id, &cell);
        }
    }

    fn drop_dead(&self, id: &str, cell: &Arc<Cell>) {
        if cell.lock().group.state() == State::Dead {
            let mut groups = self.write_groups();
            if groups.get(id).is_some_and(|now| Arc::ptr_eq(now, cell)) {
                groups.remove(id);
            }
        }
    }
}

/// The group's next deadline; without one its timer ends.
fn next_deadline_or_untimed(cell: &Cell) -> Option<Instant> {
    let mut inner = cell.lock();
    let deadline = inner.group.next_deadline();
    inner.timed = deadline.is_some();
    deadline
}

/// A client that waits for an answer; dropped before it has it, the client has left.
struct Leaving<'a> {
    coordinator: &'a Arc<Coordinator>,
    cell: &'a Arc<Cell>,
    answered: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.coordinator.change(self.cell, Group::abandon);
            self.coordinator.arm(self.cell);
        }
    }
}
