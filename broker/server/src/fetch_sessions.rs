//! Fetch sessions (KIP-227): the broker remembers what a client fetches, so that a request need only say what
//! changed, and an answer need only hold what the client does not know yet.
//!
//! ```text
//!  epoch 0            ─► Opening     ─► all partitions answered, session made, epoch 1
//!  epoch 1, 2, 3 …    ─► Continuing  ─► partitions with records, an error or moved offsets answered
//!  epoch −1, or full  ─► Sessionless ─► all partitions answered, session (if one was named) closed
//! ```
//! A partition that gave records goes to the end of its session, so that none starves behind one that always has
//! more than an answer holds.
//!
//! Two requests of one session may be under way at once, on two connections: the epoch lets one of them win.
//! Memory: about 300 bytes a partition of a session, for at most [`MAX_PARTITIONS`] in all sessions, and the names
//! of topics that do not exist, at most 249 bytes each. The lock of the cache and that of a session are never held
//! together.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use broker_protocol::{
    ByteString, ErrorCode, TopicName,
    messages::{
        FetchRequest,
        fetch::{FetchPartition, FetchTopic, PartitionData},
    },
};
use uuid::Uuid;

/// A session unused for so long gives way to any other, and one that lives for so long to a larger one.
/// Kafka: `min.incremental.fetch.session.eviction.ms`.
const EVICTION_AGE: Duration = Duration::from_secs(120);
/// Partitions in all sessions together; clients beyond it send full requests. About 80 MB.
const MAX_PARTITIONS: usize = 256 * 1024;

/// A request without a session that wants one.
const INITIAL_EPOCH: i32 = 0;
/// A request without a session, or the last one of a session.
const FINAL_EPOCH: i32 = -1;

/// How a request names a topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TopicRef {
    /// Up to version 12.
    Name(ByteString),
    /// From version 13.
    Id(Uuid),
}

/// One partition that a fetch is about.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Its topic.
    pub(crate) topic: TopicRef,
    /// The name that a topic id stood for when it was last looked up.
    pub(crate) known_as: Option<TopicName>,
    /// The rest.
    pub(crate) request: FetchPartition,
}

impl Asked {
    fn key(&self) -> Key {
        (self.topic.clone(), self.request.partition)
    }
}

/// A partition and its part of the answer.
#[derive(Debug)]
pub(crate) struct Answered {
    /// As in the request or the session.
    pub(crate) asked: Asked,
    /// What it gave.
    pub(crate) data: PartitionData,
}

/// What the client gets.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Of the request as a whole.
    pub(crate) error: ErrorCode,
    /// 0 for none.
    pub(crate) session_id: i32,
    /// In the order of the answer.
    pub(crate) partitions: Vec<Answered>,
}

/// What a request is to its session, kept from [`FetchSessions::begin`] to [`FetchSessions::finish`].
#[derive(Debug)]
pub(crate) enum Turn {
    /// Nothing is remembered.
    Sessionless,
    /// A session is made when it is answered.
    Opening {
        /// Whether its topics are named by id.
        by_id: bool,
    },
    /// Another request of a session.
    Continuing {
        /// Id of the session.
        id: i32,
        /// The epoch that the next request has.
        next_epoch: i32,
        /// The session.
        session: Arc<Mutex<Session>>,
    },
}

type Key = (TopicRef, i32);

/// One partition of a session.
#[derive(Debug)]
struct Cached {
    asked: Asked,
    /// As the client knows it; −1 for not at all.
    high_watermark: i64,
    log_start_offset: i64,
}

impl Cached {
    fn new(asked: Asked) -> Self {
        Self {
            asked,
            high_watermark: -1,
            log_start_offset: -1,
        }
    }

    /// Takes note of what the partition gave; whether the client has to hear of it.
    fn note(&mut self, data: &PartitionData) -> bool {
        let moved = (self.high_watermark, self.log_start_offset)
            != (data.high_watermark, data.log_start_offset);
        let failed = data.error_code != ErrorCode::None.code();
        // After an error the client knows nothing for sure: it hears of the partition when the error is gone.
        self.high_watermark = if failed { -1 } else { data.high_watermark };
        self.log_start_offset = data.log_start_offset;
        moved || failed || has_records(data) || data.diverging_epoch.epoch >= 0
    }
}

fn has_records(data: &PartitionData) -> bool {
    data.records
        .as_ref()
        .is_some_and(|records| !records.is_empty())
}

/// What one client fetches.
#[derive(Debug)]
pub(crate) struct Session {
    by_id: bool,
    /// Of the next request.
    epoch: i32,
    places: HashMap<Key, u64>,
    /// By place: the first is served first.
    partitions: BTreeMap<u64, Cached>,
    next_place: u64,
}

impl Session {
    fn new(by_id: bool) -> Self {
        Self {
            by_id,
            epoch: next_epoch(INITIAL_EPOCH),
            places: HashMap::new(),
            partitions: BTreeMap::new(),
            next_place: 0,
        }
    }

    fn get_mut(&mut self, key: &Key) -> Option<&mut Cached> {
        self.partitions.get_mut(self.places.get(key)?)
    }

    fn push(&mut self, cached: Cached) {
        self.remove(&cached.asked.key());
        self.places.insert(cached.asked.key(), self.next_place);
        self.partitions.insert(self.next_place, cached);
        self.next_place += 1;
    }

    fn remove(&mut self, key: &Key) -> Option<Cached> {
        let place = self.places.remove(key)?;
        self.partitions.remove(&place)
    }

    /// Whether the partitions that are new here are at most `room`, and of names that may be kept.
    fn has_room_for(&self, asked: &[Asked], room: usize) -> bool {
        let mut new = asked
            .iter()
            .filter(|asked| !self.places.contains_key(&asked.key()));
        new.clone().count() <= room && new.all(|asked| is_storable(&asked.topic))
    }

    /// Adds a partition, or replaces what is asked of it and nothing else.
    fn ask(&mut self, asked: &Asked) {
        match self.get_mut(&asked.key()) {
            Some(cached) => cached.asked.request = asked.request.clone(),
            None => self.push(Cached::new(asked.clone())),
        }
    }

    /// Whether an answer holds this partition; one with records goes to the end.
    fn must_answer(&mut self, answered: &Answered) -> bool {
        let key = answered.asked.key();
        let Some(cached) = self.get_mut(&key) else {
            return true;
        };
        cached.asked.known_as.clone_from(&answered.asked.known_as);
        let must = cached.note(&answered.data);
        if has_records(&answered.data)
            && let Some(cached) = self.remove(&key)
        {
            self.push(cached);
        }
        must
    }

    fn asked(&self) -> Vec<Asked> {
        let partitions = self.partitions.values();
        partitions.map(|cached| cached.asked.clone()).collect()
    }
}

fn next_epoch(epoch: i32) -> i32 {
    match epoch {
        i32::MAX => 1,
        epoch if epoch < 0 => FINAL_EPOCH,
        epoch => epoch + 1,
    }
}

/// What the cache knows of a session without its lock.
#[derive(Debug)]
struct Entry {
    session: Arc<Mutex<Session>>,
    partitions: usize,
    made: Instant,
    used: Instant,
}

#[derive(Debug, Default)]
struct Cache {
    entries: HashMap<i32, Entry>,
    /// In all entries.
    partitions: usize,
}

impl Cache {
    fn remove(&mut self, id: i32) {
        if let Some(entry) = self.entries.remove(&id) {
            self.partitions -= entry.partitions;
        }
    }

    /// Takes one session away that is worth less than a new one of `partitions`; whether there was one.
    fn evict(&mut self, partitions: usize, now: Instant) -> bool {
        let aged = |since: Instant| now.saturating_duration_since(since) > EVICTION_AGE;
        let entries = self.entries.iter();
        let oldest = entries.clone().min_by_key(|(_, entry)| entry.used);
        let stale = oldest.filter(|(_, entry)| aged(entry.used));
        let smallest = || {
            let settled = entries.filter(|(_, entry)| aged(entry.made));
            let smallest = settled.min_by_key(|(_, entry)| entry.partitions);
            smallest.filter(|(_, entry)| entry.partitions < partitions)
        };
        let victim = stale.or_else(smallest).map(|(id, _)| *id);
        if let Some(id) = victim {
            self.remove(id);
        }
        victim.is_some()
    }
}

/// All fetch sessions of the broker.
#[derive(Debug)]
pub(crate) struct FetchSessions {
    max_sessions: usize,
    max_partitions: usize,
    cache: Mutex<Cache>,
}

impl FetchSessions {
    /// Room for `max_sessions`; with 0 every client sends full requests.
    pub(crate) fn new(max_sessions: usize) -> Self {
        Self {
            max_sessions,
            max_partitions: MAX_PARTITIONS,
            cache: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        // Nothing panics half-way through a change.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the topics out of a request; the partitions to look at, in the order they are served.
    ///
    /// # Errors
    /// Kafka's three codes for a request that does not go on with its session; the client opens a new one.
    pub(crate) fn begin(
        &self,
        request: &mut FetchRequest,
        by_id: bool,
        now: Instant,
    ) -> Result<(Turn, Vec<Asked>), ErrorCode> {
        let asked = asked(std::mem::take(&mut request.topics), by_id);
        let (id, epoch) = (request.session_id, request.session_epoch);
        if epoch == INITIAL_EPOCH || epoch == FINAL_EPOCH {
            if id != 0 {
                self.lock().remove(id);
            }
            let turn = match epoch {
                INITIAL_EPOCH => Turn::Opening { by_id },
                _ => Turn::Sessionless,
            };
            return Ok((turn, asked));
        }
        let (shared, room) = {
            let mut cache = self.lock();
            let room = self.max_partitions.saturating_sub(cache.partitions);
            let entry = cache.entries.get_mut(&id);
            let entry = entry.ok_or(ErrorCode::FetchSessionIdNotFound)?;
            entry.used = now;
            (Arc::clone(&entry.session), room)
        };
        let mut session = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if session.epoch != epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if session.by_id != by_id {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        if !session.has_room_for(&asked, room) {
            drop(session);
            self.lock().remove(id);
            return Err(ErrorCode::FetchSessionIdNotFound);
        }
        for asked in &asked {
            session.ask(asked);
        }
        for topic in std::mem::take(&mut request.forgotten_topics_data) {
            let forgotten = topic_ref(topic.topic, topic.topic_id, by_id);
            for partition in topic.partitions {
                session.remove(&(forgotten.clone(), partition));
            }
        }
        session.epoch = next_epoch(epoch);
        let (next_epoch, asked_of_session) = (session.epoch, session.asked());
        drop(session);
        self.resized(id, &shared, asked_of_session.len());
        if asked_of_session.is_empty() {
            return Ok((Turn::Sessionless, asked));
        }
        let turn = Turn::Continuing {
            id,
            next_epoch,
            session: shared,
        };
        Ok((turn, asked_of_session))
    }

    /// Notes how many partitions a session has; one without any ends.
    fn resized(&self, id: i32, session: &Arc<Mutex<Session>>, partitions: usize) {
        let mut cache = self.lock();
        let Some(entry) = cache.entries.get_mut(&id) else {
            return;
        };
        if !Arc::ptr_eq(&entry.session, session) {
            return;
        }
        let before = std::mem::replace(&mut entry.partitions, partitions);
        cache.partitions = cache.partitions - before + partitions;
        if partitions == 0 {
            cache.remove(id);
        }
    }

    /// Remembers what was answered, and leaves out of the answer what the client knows.
    pub(crate) fn finish(&self, turn: Turn, answered: Vec<Answered>, now: Instant) -> Answer {
        let (id, next_epoch, session) = match turn {
            Turn::Continuing {
                id,
                next_epoch,
                session,
            } => (id, next_epoch, session),
            Turn::Sessionless => return whole(0, answered),
            Turn::Opening { by_id } => return whole(self.open(by_id, &answered, now), answered),
        };
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        if session.epoch != next_epoch {
            // A later request of the session overtook this one.
            return Answer {
                error: ErrorCode::InvalidFetchSessionEpoch,
                session_id: id,
                partitions: Vec::new(),
            };
        }
        let mut partitions = answered;
        partitions.retain(|answered| session.must_answer(answered));
        whole(id, partitions)
    }

    /// Makes a session of what a client was answered, if there is room; its id, or 0.
    fn open(&self, by_id: bool, answered: &[Answered], now: Instant) -> i32 {
        let storable = answered
            .iter()
            .all(|answered| is_storable(&answered.asked.topic));
        if answered.is_empty() || !storable || self.max_sessions == 0 {
            return 0;
        }
        let mut session = Session::new(by_id);
        for Answered { asked, data } in answered {
            let mut cached = Cached::new(asked.clone());
            cached.note(data);
            session.push(cached);
        }
        let partitions = session.partitions.len();
        let mut cache = self.lock();
        while cache.entries.len() >= self.max_sessions
            || cache.partitions + partitions > self.max_partitions
        {
            if !cache.evict(partitions, now) {
                return 0;
            }
        }
        let id = unused_id(&cache);
        cache.partitions += partitions;
        let entry = Entry {
            session: Arc::new(Mutex::new(session)),
            partitions,
            made: now,
            used: now,
        };
        cache.entries.insert(id, entry);
        id
    }
}

fn whole(session_id: i32, partitions: Vec<Answered>) -> Answer {
    Answer {
        error: ErrorCode::None,
        session_id,
        partitions,
    }
}

/// A positive number that no session has, and that nobody can guess.
fn unused_id(cache: &Cache) -> i32 {
    loop {
        let [a, b, c, d, ..] = Uuid::new_v4().into_bytes();
        let id = i32::from_be_bytes([a & 0x7f, b, c, d]);
        if id != 0 && !cache.entries.contains_key(&id) {
            return id;
        }
    }
}

fn topic_ref(name: ByteString, id: Uuid, by_id: bool) -> TopicRef {
    if by_id {
        TopicRef::Id(id)
    } else {
        TopicRef::Name(name)
    }
}

/// The partitions of a request. Names are copied: a slice of the request would keep all of it.
fn asked(topics: Vec<FetchTopic>, by_id: bool) -> Vec<Asked> {
    let mut asked = Vec::new();
    for topic in topics {
        let name = ByteString::from(topic.topic.to_string());
        let named = topic_ref(name, topic.topic_id, by_id);
        asked.extend(topic.partitions.into_iter().map(|request| Asked {
            topic: named.clone(),
            known_as: None,
            request,
        }));
    }
    asked
}

/// Whether the name is short enough to be remembered; longer ones are no topics'.
fn is_storable(topic: &TopicRef) -> bool {
    match topic {
        TopicRef::Id(_) => true,
        TopicRef::Name(name) => name.len() <= TopicName::MAX_LEN,
    }
}

#[cfg(test)]
mod tests;
