//! One group driven by bytes: joins, syncs, leaves, time that passes, a journal that refuses, a restart. What must
//! hold after each step is checked by [`check`].

use std::{cell::RefCell, time::Duration};

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{JoinGroupResponse, SyncGroupResponse, leave_group::MemberIdentity},
};
use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};

use super::{
    config::Config,
    member::{Member, Profile},
    records::{Committed, Entry, Key, decode},
    requests::{Caller, Join, Sync},
    state::{At, Group, Journal, State},
};

/// Members that are remembered, to speak as them later.
const KNOWN: usize = 8;
/// Steps of a rebalance that may be due at the same time.
const STEPS: usize = 4;
/// Timers due one after the other until every waiting member must have its answer.
const PATIENCE: usize = 64;

/// Keeps what was written, decoded from its bytes.
#[derive(Default)]
struct Notebook {
    last: RefCell<Option<Entry>>,
    refuses: bool,
}

impl Journal for Notebook {
    fn write(&self, records: &[(Key, Option<Bytes>)]) -> Result<(), ErrorCode> {
        if self.refuses {
            return Err(ErrorCode::NotEnoughReplicas);
        }
        for (key, value) in records {
            let entry = decode(Some(&key.encode()), value.as_deref());
            let entry = entry.expect("what is written can be read");
            if let Entry::Group { .. } = entry {
                *self.last.borrow_mut() = Some(entry);
            }
        }
        Ok(())
    }

    fn max_record_bytes(&self) -> usize {
        usize::MAX
    }
}

/// The input, a byte at a time; zeros behind its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn text(&mut self) -> ByteString {
        let letters = self.next() % 4;
        let letter = char::from(b'a' + self.next() % 4);
        (0..letters).map(|_| letter).collect::<String>().into()
    }

    fn bytes(&mut self) -> Bytes {
        let count = usize::from(self.next() % 12);
        (0..count).map(|_| self.next()).collect()
    }
}

struct Bench {
    group: Group,
    config: Config,
    notebook: Notebook,
    now: Instant,
    wall_ms: i64,
    known: Vec<ByteString>,
    joins: Vec<oneshot::Receiver<JoinGroupResponse>>,
    syncs: Vec<oneshot::Receiver<SyncGroupResponse>>,
}

/// Decodes the bytes as a record of the journal, and plays them as requests against a group.
pub(crate) fn run(input: &[u8]) {
    decode_record(input);
    let mut script = Script(input);
    let mut bench = Bench::new(script.next());
    while !script.0.is_empty() {
        bench.step(&mut script);
        check(&bench.group);
    }
    bench.settle();
}

/// A record whose key has the first byte's length; a group that it says is restored and checked.
fn decode_record(input: &[u8]) {
    let Some((length, rest)) = input.split_first() else {
        return;
    };
    let (key, value) = rest.split_at(rest.len().min(usize::from(*length)));
    let Ok(entry) = decode(Some(key), Some(value)) else {
        return;
    };
    if let Entry::Group {
        group: id,
        stored: Some(stored),
    } = entry
    {
        let encoded = stored.encode();
        let again = decode(
            Some(&Key::Group { group: id.clone() }.encode()),
            Some(&encoded),
        );
        assert!(again.is_ok(), "{again:?}");
        check(&Group::restored(id, stored, Instant::now()));
    }
}

impl Bench {
    fn new(shape: u8) -> Self {
        let delay = if shape & 1 == 0 { 0 } else { 3 };
        Self {
            group: Group::new("g".into(), 0),
            config: Config {
                initial_rebalance_delay: Duration::from_secs(delay),
                max_members: 6,
                ..Config::default()
            },
            notebook: Notebook::default(),
            now: Instant::now(),
            wall_ms: 1_000,
            known: Vec::new(),
            joins: Vec::new(),
            syncs: Vec::new(),
        }
    }

    fn with<T>(&mut self, change: impl FnOnce(&mut Group, &At<'_>) -> T) -> T {
        let at = At {
            now: self.now,
            wall_ms: self.wall_ms,
            config: &self.config,
            journal: &self.notebook,
        };
        change(&mut self.group, &at)
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.next() % 13 {
            0..=2 => self.join(script),
            3 | 4 => self.sync(script),
            5 => {
                let caller = self.caller(script);
                self.with(|group, at| group.heartbeat(&caller, at)).ok();
            }
            6 => {
                let member = MemberIdentity {
                    member_id: self.member(script),
                    group_instance_id: instance(script),
                    ..MemberIdentity::default()
                };
                let codes = self.with(|group, at| group.leave(&[member], at));
                assert_eq!(codes.len(), 1);
            }
            7 => self.commit(script),
            8 => self.pass(Duration::from_millis(u64::from(script.next()) * 100)),
            9 => self.pass_to_deadline(),
            10 => {
                let count = usize::from(script.next()).min(self.joins.len());
                self.joins.drain(..count);
                self.syncs.clear();
                self.with(Group::abandon);
            }
            11 => self.notebook.refuses = script.next() & 1 == 1,
            _ => self.sweep_or_restart(script.next()),
        }
        self.hear();
    }

    fn join(&mut self, script: &mut Script<'_>) {
        let protocols = 1 + script.next() % 2;
        let join = Join {
            member_id: self.member(script),
            protocol_type: script.text(),
            profile: Profile {
                instance_id: instance(script),
                client_id: "c".into(),
                client_host: "/h".into(),
                session_timeout: Duration::from_secs(6 + u64::from(script.next() % 8)),
                rebalance_timeout: Duration::from_secs(u64::from(script.next() % 16)),
                protocols: (0..protocols)
                    .map(|_| (script.text(), script.bytes()))
                    .collect(),
            },
            needs_id: script.next() & 1 == 1,
            may_skip_assignment: script.next() & 1 == 1,
        };
        let (answer, answered) = oneshot::channel();
        self.with(|group, at| group.join(join, answer, at));
        self.joins.push(answered);
    }

    fn sync(&mut self, script: &mut Script<'_>) {
        let parts = script.next() % 4;
        let sync = Sync {
            caller: self.caller(script),
            protocol_type: (script.next() & 3 == 3).then(|| script.text()),
            protocol: None,
            assignments: (0..parts)
                .map(|_| (self.member(script), script.bytes()))
                .collect(),
        };
        let (answer, answered) = oneshot::channel();
        self.with(|group, at| group.sync(sync, answer, at));
        self.syncs.push(answered);
    }

    fn commit(&mut self, script: &mut Script<'_>) {
        let caller = self.caller(script);
        let committed = Committed {
            offset: i64::from(script.next()),
            leader_epoch: -1,
            metadata: script.text(),
            committed_ms: self.wall_ms,
        };
        let offsets = vec![(script.text(), i32::from(script.next() % 4), committed)];
        self.with(|group, at| {
            group.check_commit(&caller, at)?;
            group.commit(offsets, at)
        })
        .ok();
    }

    fn sweep_or_restart(&mut self, choice: u8) {
        match choice % 5 {
            0 => self.restart(),
            1 => {
                self.wall_ms += 24 * 3600 * 1000 * i64::from(choice);
                self.with(Group::expire_offsets).ok();
            }
            2 => drop(self.with(|group, at| group.forget_topic("a", at)).ok()),
            3 => drop(self.with(Group::delete).ok()),
            _ => drop(self.group.check_delete_offsets()),
        }
        if self.group.state() == State::Dead {
            self.group = Group::new("g".into(), self.wall_ms);
            self.known.clear();
        }
    }

    /// As if the broker had been killed: what was written last is there again.
    fn restart(&mut self) {
        self.joins.clear();
        self.syncs.clear();
        let last = self.notebook.last.borrow().clone();
        self.group = match last {
            Some(Entry::Group {
                stored: Some(stored),
                ..
            }) => Group::restored("g".into(), stored, self.now),
            _ => Group::new("g".into(), self.wall_ms),
        };
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.with(Group::tick);
    }

    /// The timer as the coordinator runs it: behind the deadline there is a later one, or it would spin. Steps that
    /// have no time at all may follow each other.
    fn pass_to_deadline(&mut self) {
        let Some(deadline) = self.group.next_deadline() else {
            return;
        };
        self.now = self.now.max(deadline);
        for _ in 0..STEPS {
            self.with(Group::tick);
            if self
                .group
                .next_deadline()
                .is_none_or(|next| next > self.now)
            {
                return;
            }
        }
        panic!("due again at once: {:?}", self.group);
    }

    /// With time alone, everybody who waits is answered.
    fn settle(&mut self) {
        for _ in 0..PATIENCE {
            self.pass_to_deadline();
            check(&self.group);
            self.hear();
        }
        assert!(
            self.joins.is_empty() && self.syncs.is_empty(),
            "{} joins and {} syncs hang: {:?}",
            self.joins.len(),
            self.syncs.len(),
            self.group
        );
    }

    /// Takes the answers that are there, and remembers the members they name.
    fn hear(&mut self) {
        let mut known = Vec::new();
        self.joins.retain_mut(|answer| match answer.try_recv() {
            Ok(response) => {
                known.push(response.member_id);
                false
            }
            Err(oneshot::error::TryRecvError::Empty) => true,
            Err(oneshot::error::TryRecvError::Closed) => panic!("a join without an answer"),
        });
        self.syncs.retain_mut(|answer| match answer.try_recv() {
            Ok(_) => false,
            Err(oneshot::error::TryRecvError::Empty) => true,
            Err(oneshot::error::TryRecvError::Closed) => panic!("a sync without an answer"),
        });
        self.known
            .extend(known.into_iter().filter(|id| !id.is_empty()));
        let surplus = self.known.len().saturating_sub(KNOWN);
        self.known.drain(..surplus);
    }

    /// A member that was told its id, nobody, or a stranger.
    fn member(&self, script: &mut Script<'_>) -> ByteString {
        let choice = usize::from(script.next());
        match choice % 4 {
            0 => ByteString::new(),
            1 if choice > 200 => script.text(),
            _ => self
                .known
                .get(choice / 4 % KNOWN)
                .cloned()
                .unwrap_or_default(),
        }
    }

    fn caller(&self, script: &mut Script<'_>) -> Caller {
        let generation = match script.next() % 8 {
            0 => -1,
            1 => i32::from(script.next()),
            _ => self.group.generation,
        };
        Caller {
            member_id: self.member(script),
            instance_id: instance(script),
            generation,
        }
    }
}

fn instance(script: &mut Script<'_>) -> Option<ByteString> {
    let choice = script.next();
    (choice & 3 == 3).then(|| char::from(b'x' + (choice >> 2) % 3).to_string().into())
}

/// What holds of every group at any time.
fn check(group: &Group) {
    let waits = |member: &Member| member.joining.is_some();
    match group.state {
        State::Empty | State::Dead => assert!(group.members.is_empty(), "{group:?}"),
        State::Stable | State::CompletingRebalance { .. } => {
            assert!(!group.members.is_empty(), "{group:?}");
            assert!(!group.members.values().any(waits), "{group:?}");
        }
        State::PreparingRebalance { .. } => {}
    }
    for (instance, id) in &group.instances {
        let member = group.members.get(id);
        let names_it = member.and_then(|member| member.profile.instance_id.as_ref());
        assert_eq!(names_it, Some(instance), "{group:?}");
    }
    drop(group.describe());
    drop(group.listed());
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_group_keeps_its_rules_whatever_is_asked_of_it() {
        // A generator of our own: the same bytes in each run.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        };
        for _ in 0..3_000 {
            let input: Vec<u8> = (0..300).map(|_| next()).collect();
            super::run(&input);
        }
    }
}
