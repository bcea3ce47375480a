//! One group without a network: who joins, who leaves, what each is told, what is written down.

use std::{cell::RefCell, time::Duration};

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{JoinGroupResponse, SyncGroupResponse, leave_group::MemberIdentity},
};
use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};

use super::{
    config::Config,
    member::Profile,
    records::{Committed, Entry, Key, decode},
    requests::{Caller, Join, Sync},
    state::{At, Group, Journal, State},
};

type Joined = oneshot::Receiver<JoinGroupResponse>;
type Synced = oneshot::Receiver<SyncGroupResponse>;

/// Remembers what was written, or refuses it.
struct Notebook {
    written: RefCell<Vec<Entry>>,
    refuses: RefCell<Option<ErrorCode>>,
    limit: RefCell<usize>,
}

impl Default for Notebook {
    fn default() -> Self {
        Self {
            written: RefCell::default(),
            refuses: RefCell::default(),
            limit: RefCell::new(1_000_000),
        }
    }
}

impl Journal for Notebook {
    fn write(&self, records: &[(Key, Option<Bytes>)]) -> Result<(), ErrorCode> {
        if let Some(code) = *self.refuses.borrow() {
            return Err(code);
        }
        let entries = records
            .iter()
            .map(|(key, value)| decode(Some(&key.encode()), value.as_deref()).unwrap());
        self.written.borrow_mut().extend(entries);
        Ok(())
    }

    fn max_record_bytes(&self) -> usize {
        *self.limit.borrow()
    }
}

/// A group, its clock and its journal.
struct Bench {
    group: Group,
    config: Config,
    notebook: Notebook,
    now: Instant,
    wall_ms: i64,
}

const SESSION: Duration = Duration::from_secs(10);
const REBALANCE: Duration = Duration::from_secs(60);

impl Bench {
    fn new() -> Self {
        Self {
            group: Group::new("g".into(), 0),
            config: Config {
                initial_rebalance_delay: Duration::ZERO,
                ..Config::default()
            },
            notebook: Notebook::default(),
            now: Instant::now(),
            wall_ms: 1_000,
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

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.with(Group::tick);
    }

    fn join(&mut self, join: Join) -> Joined {
        let (answer, answered) = oneshot::channel();
        self.with(|group, at| group.join(join, answer, at));
        answered
    }

    fn sync(&mut self, member: &str, generation: i32, parts: &[(&str, &str)]) -> Synced {
        let parts = parts.iter().map(|(member, part)| {
            let part = Bytes::copy_from_slice(part.as_bytes());
            (ByteString::from(*member), part)
        });
        let sync = Sync {
            caller: caller(member, generation),
            protocol_type: None,
            protocol: None,
            assignments: parts.collect(),
        };
        let (answer, answered) = oneshot::channel();
        self.with(|group, at| group.sync(sync, answer, at));
        answered
    }

    fn heartbeat(&mut self, member: &str, generation: i32) -> Result<(), ErrorCode> {
        self.with(|group, at| group.heartbeat(&caller(member, generation), at))
    }

    fn leave(&mut self, member: &str) -> ErrorCode {
        let member = MemberIdentity {
            member_id: member.into(),
            ..MemberIdentity::default()
        };
        self.with(|group, at| group.leave(&[member], at))[0]
    }

    /// A group of one stable member, its id and its generation.
    fn stable() -> (Self, String) {
        let mut bench = Self::new();
        let mut joined = bench.join(new_member());
        let leader = told(&mut joined).member_id.to_string();
        let mut synced = bench.sync(&leader, 1, &[(&leader, "all")]);
        assert_eq!(assignment(&mut synced), "all");
        assert_eq!(bench.group.state(), State::Stable);
        (bench, leader)
    }

    fn state(&self) -> &'static str {
        self.group.state().name()
    }
}

fn profile() -> Profile {
    Profile {
        instance_id: None,
        client_id: "c".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout: SESSION,
        rebalance_timeout: REBALANCE,
        protocols: vec![("range".into(), subscription("orders"))],
    }
}

/// As the consumer protocol has it, version 0.
fn subscription(topic: &str) -> Bytes {
    let mut bytes = b"\0\0\0\0\0\x01\0".to_vec();
    bytes.push(u8::try_from(topic.len()).unwrap());
    bytes.extend_from_slice(topic.as_bytes());
    bytes.extend_from_slice(&(-1_i32).to_be_bytes());
    bytes.into()
}

fn new_member() -> Join {
    Join {
        member_id: ByteString::new(),
        protocol_type: "consumer".into(),
        profile: profile(),
        needs_id: false,
        may_skip_assignment: true,
    }
}

fn again(member: &str) -> Join {
    Join {
        member_id: member.into(),
        ..new_member()
    }
}

fn instance(name: &str) -> Join {
    let mut join = new_member();
    join.profile.instance_id = Some(name.into());
    join
}

fn caller(member: &str, generation: i32) -> Caller {
    Caller {
        member_id: member.into(),
        instance_id: None,
        generation,
    }
}

fn told(joined: &mut Joined) -> JoinGroupResponse {
    joined.try_recv().expect("the join is answered")
}

fn waits(joined: &mut Joined) -> bool {
    matches!(joined.try_recv(), Err(oneshot::error::TryRecvError::Empty))
}

fn assignment(synced: &mut Synced) -> String {
    let response = synced.try_recv().expect("the sync is answered");
    assert_eq!(response.error_code, 0);
    String::from_utf8(response.assignment.to_vec()).unwrap()
}

fn code(code: ErrorCode) -> i16 {
    code.code()
}

#[test]
fn the_leader_hears_of_all_members_and_everybody_gets_a_part() {
    let (mut bench, leader) = Bench::stable();
    let mut second = bench.join(new_member());
    assert!(waits(&mut second));
    assert_eq!(bench.state(), "PreparingRebalance");
    assert_eq!(
        bench.heartbeat(&leader, 1),
        Err(ErrorCode::RebalanceInProgress)
    );
    let mut first = bench.join(again(&leader));
    let (first, second) = (told(&mut first), told(&mut second));
    assert_eq!((first.generation_id, second.generation_id), (2, 2));
    assert_eq!(
        (&first.leader, &second.leader),
        (&first.member_id, &first.member_id)
    );
    assert_eq!((first.members.len(), second.members.len()), (2, 0));
    assert_eq!(first.members[0].metadata, subscription("orders"));

    let mut theirs = bench.sync(&second.member_id, 2, &[]);
    assert!(theirs.try_recv().is_err());
    let parts = [(&*first.member_id, "a"), (&*second.member_id, "b")];
    let mut mine = bench.sync(&first.member_id, 2, &parts);
    assert_eq!(
        (assignment(&mut mine), assignment(&mut theirs)),
        ("a".into(), "b".into())
    );
    let mut asked_again = bench.sync(&second.member_id, 2, &[]);
    assert_eq!(assignment(&mut asked_again), "b");
    assert_eq!(bench.heartbeat(&second.member_id, 2), Ok(()));
}

#[test]
fn a_member_that_is_told_its_id_joins_with_it_or_is_forgotten() {
    let mut bench = Bench::new();
    let mut refused = bench.join(Join {
        needs_id: true,
        ..new_member()
    });
    let refused = told(&mut refused);
    assert_eq!(refused.error_code, code(ErrorCode::MemberIdRequired));
    assert_eq!(bench.state(), "Empty");
    let mut joined = bench.join(again(&refused.member_id));
    assert_eq!(told(&mut joined).member_id, refused.member_id);

    let mut late = bench.join(Join {
        needs_id: true,
        ..new_member()
    });
    let late = told(&mut late).member_id;
    bench.pass(SESSION);
    let mut joined = bench.join(again(&late));
    assert_eq!(
        told(&mut joined).error_code,
        code(ErrorCode::UnknownMemberId)
    );
}

#[test]
fn a_rebalance_waits_for_a_member_that_has_only_its_id() {
    let (mut bench, leader) = Bench::stable();
    let mut promised = bench.join(Join {
        needs_id: true,
        ..new_member()
    });
    let promised = told(&mut promised).member_id;
    let mut first = bench.join(again(&leader));
    assert!(waits(&mut first));
    let mut second = bench.join(again(&promised));
    assert_eq!(told(&mut first).members.len(), 2);
    assert_eq!(told(&mut second).generation_id, 2);
}

#[test]
fn a_member_not_heard_of_is_out_and_the_others_rebalance() {
    let (mut bench, leader) = Bench::stable();
    let mut second = bench.join(new_member());
    let mut first = bench.join(again(&leader));
    let second = told(&mut second).member_id;
    told(&mut first);
    bench.sync(&second, 2, &[]);
    bench.sync(&leader, 2, &[]);
    bench.pass(SESSION - Duration::from_millis(1));
    assert_eq!(bench.heartbeat(&leader, 2), Ok(()));
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.state(), "PreparingRebalance");
    assert_eq!(bench.heartbeat(&second, 2), Err(ErrorCode::UnknownMemberId));
    let mut first = bench.join(again(&leader));
    assert_eq!(told(&mut first).members.len(), 1);
}

#[test]
fn who_does_not_join_again_in_time_is_out() {
    let (mut bench, leader) = Bench::stable();
    let mut second = bench.join(new_member());
    for _ in 0..7 {
        bench.pass(SESSION - Duration::from_secs(1));
        // It lives, and does nothing.
        let _ = bench.heartbeat(&leader, 1);
    }
    let second = told(&mut second);
    assert_eq!((second.generation_id, second.members.len()), (2, 1));
    assert_eq!(bench.heartbeat(&leader, 1), Err(ErrorCode::UnknownMemberId));
}

#[test]
fn who_does_not_sync_in_time_is_out() {
    let mut bench = Bench::new();
    bench.config.initial_rebalance_delay = Duration::from_secs(1);
    let (mut one, mut two) = (bench.join(new_member()), bench.join(new_member()));
    bench.pass(Duration::from_secs(1));
    bench.pass(Duration::from_secs(1));
    let (one, two) = (told(&mut one), told(&mut two));
    let idle = if one.leader == one.member_id {
        &one
    } else {
        &two
    };
    let waiting = if idle.member_id == one.member_id {
        &two
    } else {
        &one
    };
    let mut synced = bench.sync(&waiting.member_id, 1, &[]);
    for _ in 0..6 {
        bench.pass(SESSION - Duration::from_millis(1));
        let _ = bench.heartbeat(&idle.member_id, 1);
    }
    bench.pass(Duration::from_secs(1));
    let response = synced.try_recv().unwrap();
    assert_eq!(response.error_code, code(ErrorCode::RebalanceInProgress));
    assert_eq!(
        bench.heartbeat(&idle.member_id, 1),
        Err(ErrorCode::UnknownMemberId)
    );
}

#[test]
fn the_first_rebalance_waits_for_more_members_but_not_longer_than_they_allow() {
    let mut bench = Bench::new();
    bench.config.initial_rebalance_delay = Duration::from_secs(25);
    let mut members = vec![bench.join(new_member())];
    for _ in 0..2 {
        bench.pass(Duration::from_secs(20));
        members.push(bench.join(new_member()));
        bench.pass(Duration::from_secs(5));
        assert!(members.iter_mut().all(waits));
    }
    bench.pass(Duration::from_secs(10));
    let generations: Vec<i32> = members.iter_mut().map(|m| told(m).generation_id).collect();
    assert_eq!(generations, [1, 1, 1]);
}

#[test]
fn a_member_that_leaves_frees_the_rebalance_and_an_empty_group_is_written_down() {
    let (mut bench, leader) = Bench::stable();
    let mut second = bench.join(new_member());
    assert_eq!(bench.leave(&leader), ErrorCode::None);
    let second = told(&mut second);
    assert_eq!(second.leader, second.member_id);
    assert_eq!(bench.leave(&leader), ErrorCode::UnknownMemberId);
    assert_eq!(bench.leave(&second.member_id), ErrorCode::None);
    assert_eq!(bench.state(), "Empty");
    let written = bench.notebook.written.borrow();
    let Some(Entry::Group {
        stored: Some(stored),
        ..
    }) = written.last()
    else {
        panic!("{written:?}")
    };
    assert_eq!((stored.generation, stored.members.len()), (3, 0));
    assert_eq!(bench.group.next_deadline(), None);
}

#[test]
fn an_assignment_that_cannot_be_written_is_not_given_out() {
    let mut bench = Bench::new();
    let mut joined = bench.join(new_member());
    let leader = told(&mut joined).member_id;
    *bench.notebook.refuses.borrow_mut() = Some(ErrorCode::CoordinatorNotAvailable);
    let mut synced = bench.sync(&leader, 1, &[(&leader, "all")]);
    let response = synced.try_recv().unwrap();
    assert_eq!(
        response.error_code,
        code(ErrorCode::CoordinatorNotAvailable)
    );
    assert_eq!(bench.state(), "PreparingRebalance");
    *bench.notebook.refuses.borrow_mut() = None;
    let mut joined = bench.join(again(&leader));
    assert_eq!(told(&mut joined).generation_id, 2);
}

#[test]
fn a_generation_too_large_for_the_journal_is_refused_and_the_group_stays() {
    let (mut bench, leader) = Bench::stable();
    *bench.notebook.limit.borrow_mut() = 300;
    let mut large = new_member();
    large.profile.protocols[0].1 = Bytes::from(vec![0; 300]);
    let mut refused = bench.join(large);
    let full = code(ErrorCode::GroupMaxSizeReached);
    assert_eq!(told(&mut refused).error_code, full);
    assert_eq!(bench.state(), "Stable", "nobody else hears of it");
    let mut second = bench.join(new_member());
    assert!(waits(&mut second), "a small one has its place");
    let mut first = bench.join(again(&leader));
    assert_eq!(told(&mut first).members.len(), 2);
    // With the assignments it is too large.
    *bench.notebook.refuses.borrow_mut() = Some(ErrorCode::InvalidCommitOffsetSize);
    let mut synced = bench.sync(&leader, 2, &[(&leader, "all")]);
    let response = synced.try_recv().unwrap();
    assert_eq!(response.error_code, code(ErrorCode::UnknownServerError));
    assert_eq!(bench.state(), "PreparingRebalance");
}

#[test]
fn old_generations_and_strangers_are_told_so() {
    let (mut bench, leader) = Bench::stable();
    assert_eq!(
        bench.heartbeat(&leader, 0),
        Err(ErrorCode::IllegalGeneration)
    );
    assert_eq!(bench.heartbeat("x", 1), Err(ErrorCode::UnknownMemberId));
    let mut synced = bench.sync(&leader, 7, &[]);
    assert_eq!(
        synced.try_recv().unwrap().error_code,
        code(ErrorCode::IllegalGeneration)
    );
    let mut stranger = new_member();
    stranger.protocol_type = "connect".into();
    let mut joined = bench.join(stranger);
    assert_eq!(
        told(&mut joined).error_code,
        code(ErrorCode::InconsistentGroupProtocol)
    );
    let mut stranger = new_member();
    stranger.profile.protocols = vec![("other".into(), Bytes::new())];
    let mut joined = bench.join(stranger);
    assert_eq!(
        told(&mut joined).error_code,
        code(ErrorCode::InconsistentGroupProtocol)
    );
    bench.config.max_members = 1;
    let mut joined = bench.join(new_member());
    assert_eq!(
        told(&mut joined).error_code,
        code(ErrorCode::GroupMaxSizeReached)
    );
    assert_eq!(bench.heartbeat(&leader, 1), Ok(()), "nobody was disturbed");
}

#[test]
fn a_static_member_comes_back_without_a_rebalance_and_its_former_self_is_fenced() {
    let mut bench = Bench::new();
    let mut joined = bench.join(instance("one"));
    let old = told(&mut joined).member_id;
    bench.sync(&old, 1, &[(&old, "all")]);

    let mut joined = bench.join(instance("one"));
    let back = told(&mut joined);
    assert_eq!((back.error_code, back.generation_id), (0, 1));
    assert!(back.skip_assignment && back.member_id != old);
    assert_eq!((&back.leader, back.members.len()), (&back.member_id, 1));
    let mut synced = bench.sync(&back.member_id, 1, &[]);
    assert_eq!(assignment(&mut synced), "all");
    let fenced = Caller {
        instance_id: Some("one".into()),
        ..caller(&old, 1)
    };
    let beaten = bench.with(|group, at| group.heartbeat(&fenced, at));
    assert_eq!(beaten, Err(ErrorCode::FencedInstanceId));

    let mut older_client = instance("one");
    older_client.may_skip_assignment = false;
    let mut joined = bench.join(older_client);
    let again = told(&mut joined);
    assert_eq!((&again.leader, again.members.len()), (&back.member_id, 0));
}

#[test]
fn a_static_member_that_joins_again_by_its_id_alone_keeps_its_name() {
    let mut bench = Bench::new();
    let mut joined = bench.join(instance("one"));
    let old = told(&mut joined).member_id;
    let mut nameless = bench.join(again(&old));
    // The same protocols while the generation is being completed: the answer again.
    assert_eq!(told(&mut nameless).error_code, 0);
    let mut changed = again(&old);
    changed.profile.protocols[0].1 = subscription("payments");
    let mut changed = bench.join(changed);
    assert_eq!(told(&mut changed).generation_id, 2);
    assert_eq!(bench.leave(&old), ErrorCode::None);
    let mut joined = bench.join(instance("one"));
    let response = told(&mut joined);
    assert_eq!(response.error_code, 0, "the name is free again");
    assert_ne!(response.member_id, old);
}

#[test]
fn static_members_without_time_to_join_are_waited_for_until_their_session_ends() {
    let mut bench = Bench::new();
    // The rebalance waits for one that has only its id, until the static one has left in the middle of its join.
    drop(bench.join(Join {
        needs_id: true,
        ..new_member()
    }));
    let mut join = instance("one");
    join.profile.rebalance_timeout = Duration::ZERO;
    drop(bench.join(join));
    bench.with(Group::abandon);
    let mut dues = 0;
    while let Some(due) = bench.group.next_deadline().filter(|_| dues < 20) {
        bench.pass(due.saturating_duration_since(bench.now));
        dues += 1;
    }
    assert!(dues < 20, "the timer spins: {:?}", bench.group);
    assert_eq!(bench.state(), "Empty");
}

#[test]
fn a_static_member_that_waits_is_fenced_by_its_later_self() {
    let (mut bench, _) = Bench::stable();
    let mut first = bench.join(instance("one"));
    let mut second = bench.join(instance("one"));
    assert_eq!(
        told(&mut first).error_code,
        code(ErrorCode::FencedInstanceId)
    );
    assert!(waits(&mut second));
}

#[test]
fn a_replacement_that_cannot_be_written_leaves_the_member_as_it_was() {
    let mut bench = Bench::new();
    let mut joined = bench.join(instance("one"));
    let old = told(&mut joined).member_id;
    bench.sync(&old, 1, &[(&old, "all")]);
    *bench.notebook.refuses.borrow_mut() = Some(ErrorCode::CoordinatorNotAvailable);
    let mut joined = bench.join(instance("one"));
    assert_eq!(
        told(&mut joined).error_code,
        code(ErrorCode::CoordinatorNotAvailable)
    );
    assert_eq!(bench.heartbeat(&old, 1), Ok(()));
}

#[test]
fn a_client_that_leaves_while_it_waits_has_its_session_to_return() {
    let (mut bench, leader) = Bench::stable();
    let gone = bench.join(new_member());
    drop(gone);
    bench.with(Group::abandon);
    let mut first = bench.join(again(&leader));
    assert!(waits(&mut first), "the one that left may return");
    bench.pass(SESSION);
    assert_eq!(told(&mut first).members.len(), 1);
}

#[test]
fn a_restored_group_goes_on_where_it_was() {
    let (mut bench, leader) = Bench::stable();
    let stored = match bench.notebook.written.borrow().last().cloned() {
        Some(Entry::Group {
            stored: Some(stored),
            ..
        }) => stored,
        other => panic!("{other:?}"),
    };
    bench.group = Group::restored("g".into(), stored, bench.now);
    assert_eq!(bench.heartbeat(&leader, 1), Ok(()));
    let mut synced = bench.sync(&leader, 1, &[]);
    assert_eq!(assignment(&mut synced), "all");
    bench.pass(SESSION);
    assert_eq!(bench.state(), "Empty", "nobody came back");
}

fn commit(bench: &mut Bench, topic: &str, offset: i64) {
    let committed = Committed {
        offset,
        leader_epoch: 2,
        metadata: "note".into(),
        committed_ms: bench.wall_ms,
    };
    let offsets = vec![(topic.into(), 0, committed)];
    bench.with(|group, at| group.commit(offsets, at)).unwrap();
}

#[test]
fn who_may_commit_depends_on_the_state() {
    let (mut bench, leader) = Bench::stable();
    let mut check = |caller: &Caller| bench.with(|group, at| group.check_commit(caller, at));
    assert_eq!(check(&caller(&leader, 1)), Ok(()));
    assert_eq!(
        check(&caller(&leader, 0)),
        Err(ErrorCode::IllegalGeneration)
    );
    assert_eq!(check(&caller("", -1)), Err(ErrorCode::UnknownMemberId));
    let mut second = bench.join(new_member());
    let mut check = |caller: &Caller| bench.with(|group, at| group.check_commit(caller, at));
    assert_eq!(check(&caller(&leader, 1)), Ok(()), "before it joins again");
    let mut first = bench.join(again(&leader));
    told(&mut first);
    told(&mut second);
    let mut check = |caller: &Caller| bench.with(|group, at| group.check_commit(caller, at));
    assert_eq!(
        check(&caller(&leader, 2)),
        Err(ErrorCode::RebalanceInProgress)
    );
    let mut empty = Bench::new();
    let check = empty.with(|group, at| group.check_commit(&caller("", -1), at));
    assert_eq!(check, Ok(()), "from outside, while there are no members");
}

#[test]
fn offsets_of_a_living_group_never_expire_and_of_an_empty_one_after_the_retention() {
    let (mut bench, leader) = Bench::stable();
    bench.config.offsets_retention = Duration::from_secs(100);
    commit(&mut bench, "orders", 7);
    bench.wall_ms += 1_000_000;
    bench.with(Group::expire_offsets).unwrap();
    assert_eq!(bench.group.offsets.get("orders", 0).unwrap().offset, 7);
    bench.leave(&leader);
    bench.wall_ms += 99_999;
    bench.with(Group::expire_offsets).unwrap();
    assert!(!bench.with(Group::bury_if_vacant).unwrap());
    bench.wall_ms += 1;
    bench.with(Group::expire_offsets).unwrap();
    assert!(bench.group.offsets.is_empty());
    assert!(bench.with(Group::bury_if_vacant).unwrap());
    let gone = bench.notebook.written.borrow().last().cloned();
    assert!(
        matches!(gone, Some(Entry::Group { stored: None, .. })),
        "{gone:?}"
    );
}

#[test]
fn offsets_of_topics_that_members_read_are_not_deleted() {
    let (mut bench, leader) = Bench::stable();
    commit(&mut bench, "orders", 7);
    commit(&mut bench, "other", 8);
    let subscribed = bench.group.check_delete_offsets().unwrap();
    assert_eq!(subscribed, ["orders".into()].into());
    bench
        .with(|group, at| group.delete_offsets(&[("other".into(), 0)], at))
        .unwrap();
    assert_eq!(bench.group.offsets.get("other", 0), None);
    assert_eq!(bench.with(Group::delete), Err(ErrorCode::NonEmptyGroup));
    bench.leave(&leader);
    assert_eq!(bench.group.check_delete_offsets().unwrap(), [].into());
    assert_eq!(bench.with(Group::delete), Ok(()));
    assert_eq!(bench.with(Group::delete), Err(ErrorCode::GroupIdNotFound));
    assert_eq!(
        bench.heartbeat(&leader, 1),
        Err(ErrorCode::CoordinatorNotAvailable)
    );
}
