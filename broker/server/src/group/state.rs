//! A group's state, its members and its timers: how a rebalance begins and how it ends.
//!
//! ```text
//!           first join                 all have joined,              the leader's
//!                                      or time is up                 assignment
//!   Empty ─────────────► PreparingRebalance ───► CompletingRebalance ──────────► Stable
//!     ▲                     │    ▲                    │                            │
//!     └── nobody joined ────┘    └── a member joins, leaves or expires ────────────┘
//! ```
//! Here is nothing that waits: requests come in with the channel for their answer (`requests.rs`), time with
//! [`Group::tick`], and what must survive goes to the [`Journal`] before an answer says so.
//!
//! Kafka: `GroupCoordinatorService`'s classic groups, KIP-62 (two timeouts), KIP-134 (initial delay), KIP-345 (static
//! members), KIP-394 (a member must know its id).

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{
        JoinGroupResponse, SyncGroupResponse, describe_groups::DescribedGroupMember,
        join_group::JoinGroupResponseMember, list_groups::ListedGroup,
    },
};
use bytes::Bytes;
use tokio::time::Instant;

use super::{
    config::Config,
    member::{Member, Profile, reply, vote},
    offsets::Offsets,
    records::{Key, StoredGroup, StoredMember},
};

/// Where what must survive the process is written.
pub(crate) trait Journal {
    /// Writes records, all or none; null values take back what the key says.
    ///
    /// # Errors
    /// The code for the client.
    fn write(&self, records: &[(Key, Option<Bytes>)]) -> Result<(), ErrorCode>;

    /// Bytes that key and value of one record may have.
    fn max_record_bytes(&self) -> usize;
}

/// What a transition may use: both clocks, the limits, the journal.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    /// For deadlines.
    pub(crate) now: Instant,
    /// Milliseconds since 1970, for what is written down.
    pub(crate) wall_ms: i64,
    /// What an operator has set.
    pub(crate) config: &'a Config,
    /// Where to write.
    pub(crate) journal: &'a dyn Journal,
}

/// What a group is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// No members; perhaps offsets.
    Empty,
    /// Members are joining.
    PreparingRebalance {
        /// When those that have not joined are given up.
        deadline: Instant,
        /// In the first rebalance of an empty group: until when it may be put off as members come.
        put_off_until: Option<Instant>,
        /// Whether one came since it was last put off.
        grown: bool,
    },
    /// The leader is assigning.
    CompletingRebalance {
        /// When members that have not asked for their assignment are given up.
        deadline: Instant,
    },
    /// Every member can have its assignment.
    Stable,
    /// Deleted; whoever still holds it must look for the group again.
    Dead,
}

impl State {
    /// Kafka's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance { .. } => "PreparingRebalance",
            Self::CompletingRebalance { .. } => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }
}

/// What `DescribeGroups` says of a group.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) state: &'static str,
    pub(crate) protocol_type: ByteString,
    pub(crate) protocol: ByteString,
    pub(crate) members: Vec<DescribedGroupMember>,
}

/// A consumer group, or another that uses the same protocol.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: ByteString,
    pub(super) state: State,
    pub(super) generation: i32,
    /// Of the first member; kept while the group is empty.
    pub(super) protocol_type: Option<ByteString>,
    /// The protocol chosen for this generation.
    pub(super) protocol: Option<ByteString>,
    pub(super) leader: Option<ByteString>,
    pub(super) members: BTreeMap<ByteString, Member>,
    /// Static names and who has them.
    pub(super) instances: HashMap<ByteString, ByteString>,
    /// Ids given to clients that have not joined with them yet, and until when they may.
    pub(super) promised: HashMap<ByteString, Instant>,
    /// Wall clock when the last member left.
    pub(super) empty_since_ms: i64,
    /// Whether the journal has the group, not only offsets.
    pub(super) stored: bool,
    /// What it has read.
    pub(crate) offsets: Offsets,
}

impl Group {
    pub(crate) fn new(id: ByteString, wall_ms: i64) -> Self {
        Self {
            id,
            state: State::Empty,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            instances: HashMap::new(),
            promised: HashMap::new(),
            empty_since_ms: wall_ms,
            stored: false,
            offsets: Offsets::default(),
        }
    }

    /// A group as the journal has it. Its members have their session timeout to show that they live.
    pub(crate) fn restored(id: ByteString, stored: StoredGroup, now: Instant) -> Self {
        let mut group = Self::new(id, stored.since_ms);
        group.stored = true;
        group.generation = stored.generation;
        group.protocol_type = Some(stored.protocol_type).filter(|name| !name.is_empty());
        group.protocol = stored.protocol;
        for member in stored.members {
            let protocol = group.protocol.clone().unwrap_or_default();
            let (member_id, member) = restored_member(member, protocol, now);
            group.insert(member_id, member);
        }
        if !group.members.is_empty() {
            group.state = State::Stable;
            group.leader = stored.leader;
        }
        group
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Whether it can be forgotten: no members, nobody about to join, no offsets.
    pub(super) fn is_vacant(&self) -> bool {
        self.state == State::Empty && self.promised.is_empty() && self.offsets.is_empty()
    }

    /// Members that have joined.
    pub(super) fn count_members(&self) -> usize {
        self.members.len()
    }

    /// When the next timer is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let state = match self.state {
            State::PreparingRebalance { deadline, .. }
            | State::CompletingRebalance { deadline } => Some(deadline),
            State::Empty | State::Stable | State::Dead => None,
        };
        let members = self.members.values().filter_map(Member::expires);
        let promised = self.promised.values().copied();
        members.chain(promised).chain(state).min()
    }

    /// Does what is due: forgets ids not used, removes members not heard of, ends a rebalance whose time is up.
    pub(crate) fn tick(&mut self, at: &At<'_>) {
        self.promised.retain(|_, until| *until > at.now);
        let due = |member: &Member| member.expires().is_some_and(|expires| expires <= at.now);
        if self.remove_where(due) {
            self.rebalance(at);
        }
        match self.state {
            State::CompletingRebalance { deadline } if deadline <= at.now => {
                if self.remove_where(|member| member.syncing.is_none()) {
                    self.rebalance(at);
                }
            }
            State::PreparingRebalance { deadline, .. } if deadline <= at.now => {
                self.time_to_join_is_up(at);
            }
            State::Empty
            | State::Stable
            | State::Dead
            | State::PreparingRebalance { .. }
            | State::CompletingRebalance { .. } => {}
        }
        self.complete_join_if_all_are_here(at);
    }

    /// Takes members out; whether there were any.
    fn remove_where(&mut self, gone: impl Fn(&Member) -> bool) -> bool {
        let members = self.members.iter().filter(|(_, member)| gone(member));
        let ids: Vec<ByteString> = members.map(|(id, _)| id.clone()).collect();
        for id in &ids {
            self.remove(id);
        }
        !ids.is_empty()
    }

    /// Adds a member; the caller begins a rebalance.
    pub(super) fn add(
        &mut self,
        member_id: ByteString,
        profile: Profile,
        protocol_type: ByteString,
        at: &At<'_>,
    ) {
        self.protocol_type = Some(protocol_type);
        self.leader.get_or_insert_with(|| member_id.clone());
        self.insert(member_id, Member::new(profile, at.now));
        if let State::PreparingRebalance { grown, .. } = &mut self.state {
            *grown = true;
        }
    }

    fn insert(&mut self, member_id: ByteString, member: Member) {
        if let Some(instance_id) = &member.profile.instance_id {
            self.instances
                .insert(instance_id.clone(), member_id.clone());
        }
        self.members.insert(member_id, member);
    }

    /// Takes a member out; whatever it waits for is answered with `UNKNOWN_MEMBER_ID`.
    pub(super) fn remove(&mut self, member_id: &ByteString) {
        let Some(mut member) = self.members.remove(member_id) else {
            return;
        };
        dismiss(&mut member, member_id, ErrorCode::UnknownMemberId);
        if let Some(instance_id) = &member.profile.instance_id {
            self.instances.remove(instance_id);
        }
        if self.leader.as_ref() == Some(member_id) {
            self.leader = self.members.keys().next().cloned();
        }
    }

    /// Begins a rebalance, unless one is being prepared.
    pub(super) fn rebalance(&mut self, at: &At<'_>) {
        let delay = at.config.initial_rebalance_delay;
        match self.state {
            State::PreparingRebalance { .. } | State::Dead => return,
            State::Empty if !delay.is_zero() => {
                let timeout = self.rebalance_timeout();
                self.state = State::PreparingRebalance {
                    deadline: at.now + delay.min(timeout),
                    put_off_until: Some(at.now + timeout),
                    grown: false,
                };
                return;
            }
            State::CompletingRebalance { .. } => {
                for member in self.members.values_mut() {
                    member.assignment = Bytes::new();
                    if member.syncing.is_some() {
                        member.seen = at.now;
                        answer_sync(member, refused_sync(ErrorCode::RebalanceInProgress));
                    }
                }
            }
            State::Empty | State::Stable => {}
        }
        self.prepare(at);
    }

    fn prepare(&mut self, at: &At<'_>) {
        self.state = State::PreparingRebalance {
            deadline: at.now + self.rebalance_timeout(),
            put_off_until: None,
            grown: false,
        };
    }

    /// Static members only, and none is here: waits for one, or for their sessions to end. Nothing else can change it, so
    /// that a time to join of 0 would have the timer spin.
    fn wait_for_static_members(&mut self, at: &At<'_>) {
        self.prepare(at);
        let sessions = self.members.values().filter_map(Member::expires).min();
        if let State::PreparingRebalance { deadline, .. } = &mut self.state {
            *deadline = sessions.map_or(*deadline, |first| first.max(*deadline));
        }
    }

    /// The longest that any member may need.
    fn rebalance_timeout(&self) -> Duration {
        let timeouts = self
            .members
            .values()
            .map(|member| member.profile.rebalance_timeout);
        timeouts.max().unwrap_or_default()
    }

    /// Ends the joining if nobody is missing; the first rebalance of an empty group waits for its time all the same.
    pub(super) fn complete_join_if_all_are_here(&mut self, at: &At<'_>) {
        let State::PreparingRebalance {
            put_off_until: None,
            ..
        } = self.state
        else {
            return;
        };
        let all_joined = self.members.values().all(|member| member.joining.is_some());
        if all_joined && self.promised.is_empty() {
            self.complete_join(at);
        }
    }

    fn time_to_join_is_up(&mut self, at: &At<'_>) {
        if let State::PreparingRebalance {
            deadline,
            put_off_until: Some(until),
            grown: true,
        } = self.state
            && deadline < until
        {
            self.state = State::PreparingRebalance {
                deadline: until.min(at.now + at.config.initial_rebalance_delay),
                put_off_until: Some(until),
                grown: false,
            };
            return;
        }
        self.complete_join(at);
    }

    /// Begins a generation with those that have joined. Static members may be missing, others are out.
    fn complete_join(&mut self, at: &At<'_>) {
        let missing = |member: &Member| member.joining.is_none();
        self.remove_where(|member| missing(member) && member.profile.instance_id.is_none());
        if !self.members.is_empty() && self.members.values().all(missing) {
            self.wait_for_static_members(at);
            return;
        }
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        if self.members.is_empty() {
            self.become_empty(at);
            return;
        }
        let here = |id: &&ByteString| self.members.get(*id).is_some_and(|member| !missing(member));
        if self.leader.as_ref().filter(here).is_none() {
            self.leader = self.members.keys().find(here).cloned();
        }
        self.protocol = self.choose();
        self.state = State::CompletingRebalance {
            deadline: at.now + self.rebalance_timeout(),
        };
        let ids: Vec<ByteString> = self.members.keys().cloned().collect();
        for id in &ids {
            let response = self.joined(id, false);
            if let Some(member) = self.members.get_mut(id)
                && let Some(answer) = member.joining.take()
            {
                member.seen = at.now;
                reply(answer, response);
            }
        }
    }

    fn become_empty(&mut self, at: &At<'_>) {
        self.state = State::Empty;
        self.protocol = None;
        self.leader = None;
        self.empty_since_ms = at.wall_ms;
        if let Err(code) = self.store(at) {
            // At worst a restart brings back members that nobody hears of, and they expire.
            tracing::warn!(group = %self.id, ?code, "the empty group could not be written down");
        }
    }

    /// The protocol that the members agree on.
    pub(super) fn choose(&self) -> Option<ByteString> {
        let profiles = self.members.values().map(|member| &member.profile);
        vote(&profiles.collect::<Vec<_>>())
    }

    /// The answer to a member's join in this generation.
    pub(super) fn joined(
        &self,
        member_id: &ByteString,
        skip_assignment: bool,
    ) -> JoinGroupResponse {
        let is_leader = self.leader.as_ref() == Some(member_id);
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let members = self.members.iter().filter(|_| is_leader);
        let members = members.map(|(id, member)| JoinGroupResponseMember {
            member_id: id.clone(),
            group_instance_id: member.profile.instance_id.clone(),
            metadata: member.profile.metadata(protocol),
        });
        JoinGroupResponse {
            generation_id: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            skip_assignment: skip_assignment && is_leader,
            member_id: member_id.clone(),
            members: members.collect(),
            ..JoinGroupResponse::default()
        }
    }

    /// For `DescribeGroups`: metadata and assignments only when the generation is complete.
    pub(crate) fn describe(&self) -> Described {
        let stable = self.state == State::Stable;
        let protocol = self.protocol.clone().filter(|_| stable).unwrap_or_default();
        let part = |bytes: Bytes| if stable { bytes } else { Bytes::new() };
        let members = self
            .members
            .iter()
            .map(|(id, member)| DescribedGroupMember {
                member_id: id.clone(),
                group_instance_id: member.profile.instance_id.clone(),
                client_id: member.profile.client_id.clone(),
                client_host: member.profile.client_host.clone(),
                member_metadata: part(member.profile.metadata(&protocol)),
                member_assignment: part(member.assignment.clone()),
            });
        Described {
            state: self.state.name(),
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            members: members.collect(),
            protocol,
        }
    }

    /// For `ListGroups`; `None` once it is dead.
    pub(crate) fn listed(&self) -> Option<ListedGroup> {
        (self.state != State::Dead).then(|| ListedGroup {
            group_id: self.id.clone(),
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            group_state: ByteString::from_static(self.state.name()),
            group_type: ByteString::from_static("classic"),
        })
    }

    /// Writes the generation down.
    ///
    /// # Errors
    /// From the journal; `UNKNOWN_SERVER_ERROR` if it is too large, as Kafka says it.
    pub(super) fn store(&mut self, at: &At<'_>) -> Result<(), ErrorCode> {
        let millis = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let members = self.members.iter().map(|(id, member)| StoredMember {
            member_id: id.clone(),
            instance_id: member.profile.instance_id.clone(),
            client_id: member.profile.client_id.clone(),
            client_host: member.profile.client_host.clone(),
            rebalance_timeout_ms: millis(member.profile.rebalance_timeout),
            session_timeout_ms: millis(member.profile.session_timeout),
            metadata: member.profile.metadata(protocol),
            assignment: member.assignment.clone(),
        });
        let stored = StoredGroup {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            since_ms: at.wall_ms,
            members: members.collect(),
        };
        let key = Key::Group {
            group: self.id.clone(),
        };
        let written = at.journal.write(&[(key, Some(stored.encode()))]);
        written.map_err(|code| {
            if code == ErrorCode::InvalidCommitOffsetSize {
                ErrorCode::UnknownServerError
            } else {
                code
            }
        })?;
        self.stored = true;
        Ok(())
    }

    /// Whether the generation could be written down with this member in it, assignments aside; with whichever protocol
    /// is chosen.
    pub(super) fn has_room(&self, member_id: &str, profile: &Profile, at: &At<'_>) -> bool {
        let replaced = |id: &str, member: &Member| {
            let instance_id = &member.profile.instance_id;
            id == member_id || (instance_id.is_some() && *instance_id == profile.instance_id)
        };
        let others = self.members.iter();
        let others = others.filter(|(id, member)| !replaced(id, member));
        let others = others.map(|(id, member)| member.profile.least_stored_bytes(id));
        let all: usize = others.sum::<usize>() + profile.least_stored_bytes(member_id);
        all + self.id.len() <= at.journal.max_record_bytes()
    }
}

fn restored_member(
    stored: StoredMember,
    protocol: ByteString,
    now: Instant,
) -> (ByteString, Member) {
    let duration = |ms: i32| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    let profile = Profile {
        instance_id: stored.instance_id,
        client_id: stored.client_id,
        client_host: stored.client_host,
        session_timeout: duration(stored.session_timeout_ms),
        rebalance_timeout: duration(stored.rebalance_timeout_ms),
        protocols: vec![(protocol, stored.metadata)],
    };
    let member = Member {
        assignment: stored.assignment,
        ..Member::new(profile, now)
    };
    (stored.member_id, member)
}

/// Answers whatever a member waits for with an error.
pub(super) fn dismiss(member: &mut Member, member_id: &ByteString, code: ErrorCode) {
    if let Some(answer) = member.joining.take() {
        reply(answer, refused_join(code, member_id.clone()));
    }
    answer_sync(member, refused_sync(code));
}

pub(super) fn answer_sync(member: &mut Member, response: SyncGroupResponse) {
    if let Some(answer) = member.syncing.take() {
        reply(answer, response);
    }
}

pub(crate) fn refused_join(code: ErrorCode, member_id: ByteString) -> JoinGroupResponse {
    JoinGroupResponse {
        error_code: code.code(),
        protocol_name: None,
        member_id,
        ..JoinGroupResponse::default()
    }
}

pub(crate) fn refused_sync(code: ErrorCode) -> SyncGroupResponse {
    SyncGroupResponse {
        error_code: code.code(),
        ..SyncGroupResponse::default()
    }
}
