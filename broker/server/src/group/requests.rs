//! What members ask of a group, one transition each: join, sync, heartbeat, leave, and whether a commit is theirs.

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{JoinGroupResponse, SyncGroupResponse, leave_group::MemberIdentity},
};
use bytes::Bytes;

use super::{
    member::{Answer, Profile, new_member_id, reply},
    state::{At, Group, State, answer_sync, dismiss, refused_join, refused_sync},
};

/// A request to join.
#[derive(Debug, Clone)]
pub(crate) struct Join {
    /// Empty for a new member.
    pub(crate) member_id: ByteString,
    /// What kind of group the member takes this for.
    pub(crate) protocol_type: ByteString,
    /// Who it is.
    pub(crate) profile: Profile,
    /// Whether a new member without a static name must join again with the id it is given (version 4, KIP-394).
    pub(crate) needs_id: bool,
    /// Whether the client understands "do not assign" (version 9, KIP-814).
    pub(crate) may_skip_assignment: bool,
}

/// Who asks, in which generation.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) member_id: ByteString,
    pub(crate) instance_id: Option<ByteString>,
    pub(crate) generation: i32,
}

/// A request for an assignment.
#[derive(Debug, Clone)]
pub(crate) struct Sync {
    pub(crate) caller: Caller,
    pub(crate) protocol_type: Option<ByteString>,
    pub(crate) protocol: Option<ByteString>,
    /// From the leader: everybody's part.
    pub(crate) assignments: Vec<(ByteString, Bytes)>,
}

/// What becomes of a join.
enum Admission {
    Answered(JoinGroupResponse),
    /// When the generation is complete.
    Waits(ByteString),
}

impl Group {
    /// Joins; the answer comes when the generation is complete, or at once.
    pub(crate) fn join(&mut self, join: Join, answer: Answer<JoinGroupResponse>, at: &At<'_>) {
        let member_id = join.member_id.clone();
        let admission = self.admit(join, at);
        let admission =
            admission.unwrap_or_else(|code| Admission::Answered(refused_join(code, member_id)));
        match admission {
            Admission::Answered(response) => {
                reply(answer, response);
            }
            Admission::Waits(member_id) => {
                if let Some(member) = self.members.get_mut(&member_id) {
                    member.seen = at.now;
                    member.joining = Some(answer);
                }
            }
        }
        self.complete_join_if_all_are_here(at);
    }

    fn admit(&mut self, join: Join, at: &At<'_>) -> Result<Admission, ErrorCode> {
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if join.protocol_type.is_empty() || join.profile.protocols.is_empty() || !self.fits(&join) {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        if !self.has_room(&join.member_id, &join.profile, at) {
            tracing::warn!(
                group = %self.id, client = %join.profile.client_id,
                "member refused: the group would not fit a record of __consumer_offsets; raise its max.message.bytes"
            );
            return Err(ErrorCode::GroupMaxSizeReached);
        }
        if join.member_id.is_empty() {
            self.admit_new(join, at)
        } else {
            self.admit_known(join, at)
        }
    }

    /// Whether the members would still have a protocol in common.
    fn fits(&self, join: &Join) -> bool {
        if self.members.is_empty() {
            return true;
        }
        let known_to_all = |name: &str| self.members.values().all(|m| m.profile.knows(name));
        self.protocol_type.as_ref() == Some(&join.protocol_type)
            && join
                .profile
                .protocols
                .iter()
                .any(|(name, _)| known_to_all(name))
    }

    fn admit_new(&mut self, join: Join, at: &At<'_>) -> Result<Admission, ErrorCode> {
        let holder = join.profile.instance_id.as_ref();
        if let Some(holder) = holder.and_then(|name| self.instances.get(name)).cloned() {
            return self.replace(&holder, join, at);
        }
        if self.members.len() + self.promised.len() >= at.config.max_members {
            return Err(ErrorCode::GroupMaxSizeReached);
        }
        let member_id = new_member_id(&join.profile);
        if join.needs_id && join.profile.instance_id.is_none() {
            self.promised
                .insert(member_id.clone(), at.now + join.profile.session_timeout);
            return Ok(Admission::Answered(refused_join(
                ErrorCode::MemberIdRequired,
                member_id,
            )));
        }
        self.add(member_id.clone(), join.profile, join.protocol_type, at);
        self.rebalance(at);
        Ok(Admission::Waits(member_id))
    }

    fn admit_known(&mut self, join: Join, at: &At<'_>) -> Result<Admission, ErrorCode> {
        let member_id = join.member_id.clone();
        if join.profile.instance_id.is_none() && self.promised.remove(&member_id).is_some() {
            self.add(member_id.clone(), join.profile, join.protocol_type, at);
            self.rebalance(at);
            return Ok(Admission::Waits(member_id));
        }
        self.check_member(&member_id, join.profile.instance_id.as_ref())?;
        let Some(member) = self.members.get_mut(&member_id) else {
            return Err(ErrorCode::UnknownMemberId);
        };
        let unchanged = member.profile.protocols == join.profile.protocols;
        let leads = self.leader.as_ref() == Some(&member_id);
        let answer_again = match self.state {
            // The answer was lost.
            State::CompletingRebalance { .. } => unchanged,
            // A leader that joins again wants a new assignment.
            State::Stable => unchanged && !leads,
            State::PreparingRebalance { .. } => false,
            State::Empty | State::Dead => return Err(ErrorCode::UnknownMemberId),
        };
        member.seen = at.now;
        if answer_again {
            return Ok(Admission::Answered(self.joined(&member_id, false)));
        }
        // A static member keeps its name, whoever asks with its id alone.
        let instance_id = member.profile.instance_id.take();
        member.profile = Profile {
            instance_id,
            ..join.profile
        };
        if let Some(earlier) = member.joining.take() {
            // The same member asks twice at once: the later request is the one it waits for.
            let code = ErrorCode::RebalanceInProgress;
            reply(earlier, refused_join(code, member_id.clone()));
        }
        self.rebalance(at);
        Ok(Admission::Waits(member_id))
    }

    /// A static member has come back under its name: it takes the place of its former self, which is fenced.
    fn replace(
        &mut self,
        holder: &ByteString,
        join: Join,
        at: &At<'_>,
    ) -> Result<Admission, ErrorCode> {
        let Some(mut member) = self.members.remove(holder) else {
            return Err(ErrorCode::UnknownMemberId);
        };
        dismiss(&mut member, holder, ErrorCode::FencedInstanceId);
        let former = std::mem::replace(&mut member.profile, join.profile);
        member.seen = at.now;
        let member_id = new_member_id(&member.profile);
        let led = self.leader.as_ref() == Some(holder);
        self.take_place(holder, &member_id, led);
        self.members.insert(member_id.clone(), member);
        if self.state == State::Stable && self.choose() == self.protocol {
            if let Err(code) = self.store(at) {
                self.put_back(holder, &member_id, led, former);
                return Err(code);
            }
            let mut response = self.joined(&member_id, join.may_skip_assignment);
            if led && !join.may_skip_assignment {
                // A client that would assign anew must not take itself for the leader.
                response.leader = holder.clone();
                response.members = Vec::new();
            }
            return Ok(Admission::Answered(response));
        }
        self.rebalance(at);
        Ok(Admission::Waits(member_id))
    }

    fn take_place(&mut self, old: &ByteString, new: &ByteString, leads: bool) {
        for holder in self.instances.values_mut().filter(|holder| *holder == old) {
            *holder = new.clone();
        }
        if leads {
            self.leader = Some(new.clone());
        }
    }

    fn put_back(
        &mut self,
        holder: &ByteString,
        member_id: &ByteString,
        led: bool,
        former: Profile,
    ) {
        if let Some(mut member) = self.members.remove(member_id) {
            member.profile = former;
            self.take_place(member_id, holder, led);
            self.members.insert(holder.clone(), member);
        }
    }

    /// Whether this is a member, and the one that has its static name now.
    fn check_member(
        &self,
        member_id: &ByteString,
        instance_id: Option<&ByteString>,
    ) -> Result<(), ErrorCode> {
        if let Some(instance_id) = instance_id {
            match self.instances.get(instance_id) {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(holder) if holder != member_id => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains_key(member_id) {
            Ok(())
        } else {
            Err(ErrorCode::UnknownMemberId)
        }
    }

    fn check_caller(&self, caller: &Caller) -> Result<(), ErrorCode> {
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.check_member(&caller.member_id, caller.instance_id.as_ref())?;
        if caller.generation == self.generation {
            Ok(())
        } else {
            Err(ErrorCode::IllegalGeneration)
        }
    }

    fn see(&mut self, member_id: &ByteString, at: &At<'_>) {
        if let Some(member) = self.members.get_mut(member_id) {
            member.seen = at.now;
        }
    }

    /// Hands in the leader's assignment, or waits for it.
    pub(crate) fn sync(&mut self, sync: Sync, answer: Answer<SyncGroupResponse>, at: &At<'_>) {
        let member_id = sync.caller.member_id.clone();
        if let Err(code) = self.check_sync(&sync) {
            reply(answer, refused_sync(code));
            return;
        }
        if let Some(member) = self.members.get_mut(&member_id) {
            member.seen = at.now;
            if let Some(earlier) = member.syncing.replace(answer) {
                // The same member asks twice at once: the later request is the one it waits for.
                reply(earlier, refused_sync(ErrorCode::RebalanceInProgress));
            }
        }
        match self.state {
            State::Stable => self.answer_syncs(at),
            State::CompletingRebalance { .. } if self.leader.as_ref() == Some(&member_id) => {
                self.assign(sync.assignments, at);
            }
            State::CompletingRebalance { .. }
            | State::PreparingRebalance { .. }
            | State::Empty
            | State::Dead => {}
        }
    }

    fn check_sync(&self, sync: &Sync) -> Result<(), ErrorCode> {
        self.check_caller(&sync.caller)?;
        let agrees = |mine: &Option<ByteString>, theirs: &Option<ByteString>| {
            theirs.is_none() || mine.is_none() || mine == theirs
        };
        if !agrees(&self.protocol_type, &sync.protocol_type)
            || !agrees(&self.protocol, &sync.protocol)
        {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        match self.state {
            State::CompletingRebalance { .. } | State::Stable => Ok(()),
            State::PreparingRebalance { .. } => Err(ErrorCode::RebalanceInProgress),
            State::Empty | State::Dead => Err(ErrorCode::UnknownMemberId),
        }
    }

    /// Takes the leader's assignment, durably, and gives everybody its part.
    fn assign(&mut self, assignments: Vec<(ByteString, Bytes)>, at: &At<'_>) {
        for (member_id, assignment) in assignments {
            if let Some(member) = self.members.get_mut(&member_id) {
                // Not a part of the request, whose memory it would keep.
                member.assignment = Bytes::copy_from_slice(&assignment);
            }
        }
        match self.store(at) {
            Ok(()) => {
                self.state = State::Stable;
                self.answer_syncs(at);
            }
            Err(code) => {
                for member in self.members.values_mut() {
                    member.assignment = Bytes::new();
                    answer_sync(member, refused_sync(code));
                }
                self.rebalance(at);
            }
        }
    }

    fn answer_syncs(&mut self, at: &At<'_>) {
        for member in self.members.values_mut() {
            if member.syncing.is_some() {
                member.seen = at.now;
                let response = SyncGroupResponse {
                    protocol_type: self.protocol_type.clone(),
                    protocol_name: self.protocol.clone(),
                    assignment: member.assignment.clone(),
                    ..SyncGroupResponse::default()
                };
                answer_sync(member, response);
            }
        }
    }

    /// A sign of life.
    ///
    /// # Errors
    /// What the member must do: join again, or begin anew.
    pub(crate) fn heartbeat(&mut self, caller: &Caller, at: &At<'_>) -> Result<(), ErrorCode> {
        self.check_caller(caller)?;
        self.see(&caller.member_id, at);
        match self.state {
            State::PreparingRebalance { .. } => Err(ErrorCode::RebalanceInProgress),
            State::Empty | State::Dead => Err(ErrorCode::UnknownMemberId),
            State::CompletingRebalance { .. } | State::Stable => Ok(()),
        }
    }

    /// Members leave; a code for each.
    pub(crate) fn leave(&mut self, members: &[MemberIdentity], at: &At<'_>) -> Vec<ErrorCode> {
        let left = members.iter().map(|member| self.leave_one(member));
        let left: Vec<Result<(), ErrorCode>> = left.collect();
        if left.iter().any(Result::is_ok) && !matches!(self.state, State::Empty) {
            self.rebalance(at);
        }
        self.complete_join_if_all_are_here(at);
        let code = |left: Result<(), ErrorCode>| left.err().unwrap_or(ErrorCode::None);
        left.into_iter().map(code).collect()
    }

    fn leave_one(&mut self, member: &MemberIdentity) -> Result<(), ErrorCode> {
        if member.group_instance_id.is_none() && self.promised.remove(&member.member_id).is_some() {
            return Ok(());
        }
        let instance_id = member.group_instance_id.as_ref();
        let named = instance_id.and_then(|name| self.instances.get(name));
        let member_id = match named {
            Some(holder) if member.member_id.is_empty() => holder.clone(),
            _ => member.member_id.clone(),
        };
        self.check_member(&member_id, instance_id)?;
        self.remove(&member_id);
        Ok(())
    }

    /// A join or sync is not waited for any more: its client has left. The member has its session timeout to return.
    pub(crate) fn abandon(&mut self, at: &At<'_>) {
        for member in self.members.values_mut() {
            let joining = member.joining.take_if(|answer| answer.is_closed());
            let syncing = member.syncing.take_if(|answer| answer.is_closed());
            if joining.is_some() || syncing.is_some() {
                member.seen = at.now;
            }
        }
    }

    /// Whether offsets may be committed by this caller; a member's commit is a sign of life.
    ///
    /// # Errors
    /// Not a member, not of this generation, or the generation is not complete.
    pub(crate) fn check_commit(&mut self, caller: &Caller, at: &At<'_>) -> Result<(), ErrorCode> {
        let from_outside = caller.generation < 0;
        if from_outside && self.members.is_empty() && self.state != State::Dead {
            return Ok(());
        }
        if from_outside && caller.member_id.is_empty() && caller.instance_id.is_none() {
            return Err(ErrorCode::UnknownMemberId);
        }
        self.check_caller(caller)?;
        if matches!(self.state, State::CompletingRebalance { .. }) {
            return Err(ErrorCode::RebalanceInProgress);
        }
        self.see(&caller.member_id, at);
        Ok(())
    }
}
