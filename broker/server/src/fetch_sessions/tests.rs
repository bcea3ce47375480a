//! Sessions without sockets: what is answered, in which order, and who gives way.

use super::*;
use bytes::Bytes;

const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(121);

fn request(session_id: i32, session_epoch: i32, asked: &[(&str, i32, i64)]) -> FetchRequest {
    let topic = |&(topic, partition, fetch_offset): &(&str, i32, i64)| FetchTopic {
        topic: topic.into(),
        partitions: vec![FetchPartition {
            partition,
            fetch_offset,
            ..FetchPartition::default()
        }],
        ..FetchTopic::default()
    };
    FetchRequest {
        session_id,
        session_epoch,
        topics: asked.iter().map(topic).collect(),
        ..FetchRequest::default()
    }
}

/// What a partition at rest gives.
fn at_rest() -> PartitionData {
    PartitionData {
        high_watermark: 5,
        log_start_offset: 0,
        records: Some(Bytes::new().into()),
        ..PartitionData::default()
    }
}

fn with_records() -> PartitionData {
    PartitionData {
        records: Some(Bytes::from_static(b"records").into()),
        ..at_rest()
    }
}

fn failed() -> PartitionData {
    PartitionData {
        error_code: ErrorCode::KafkaStorageError.code(),
        ..at_rest()
    }
}

fn named(asked: &Asked) -> String {
    match &asked.topic {
        TopicRef::Name(name) => format!("{name}-{}", asked.request.partition),
        TopicRef::Id(id) => format!("{id}-{}", asked.request.partition),
    }
}

/// One request and its answer: the id of the session, what was looked at, what was answered.
fn exchange(
    sessions: &FetchSessions,
    mut request: FetchRequest,
    now: Instant,
    gives: impl Fn(&str) -> PartitionData,
) -> Result<(i32, Vec<String>, Vec<String>), ErrorCode> {
    let (turn, asked) = sessions.begin(&mut request, false, now)?;
    let looked_at: Vec<String> = asked.iter().map(named).collect();
    let answered = asked.into_iter().map(|asked| Answered {
        data: gives(&named(&asked)),
        asked,
    });
    let answer = sessions.finish(turn, answered.collect(), now);
    answer.error.into_result()?;
    let told = answer.partitions.iter();
    let told = told.map(|answered| named(&answered.asked)).collect();
    Ok((answer.session_id, looked_at, told))
}

fn open(sessions: &FetchSessions, asked: &[(&str, i32, i64)], now: Instant) -> i32 {
    exchange(sessions, request(0, 0, asked), now, |_| at_rest())
        .unwrap()
        .0
}

#[test]
fn an_incremental_answer_holds_what_is_new() {
    let (sessions, now) = (FetchSessions::new(10), Instant::now());
    let all = [("a", 0, 5), ("a", 1, 5), ("b", 0, 5)];
    let (id, _, told) = exchange(&sessions, request(0, 0, &all), now, |_| at_rest()).unwrap();
    assert!(id > 0);
    assert_eq!(told, ["a-0", "a-1", "b-0"]);
    let mut epoch = 0;
    let mut next = |gives: &dyn Fn(&str) -> PartitionData| {
        epoch += 1;
        let (same, looked_at, told) =
            exchange(&sessions, request(id, epoch, &[]), now, gives).unwrap();
        assert_eq!((same, looked_at.len()), (id, 3));
        told
    };
    assert!(next(&|_| at_rest()).is_empty());
    let only = |wanted: &'static str, data: PartitionData| {
        move |name: &str| {
            if name == wanted {
                data.clone()
            } else {
                at_rest()
            }
        }
    };
    assert_eq!(next(&only("a-1", with_records())), ["a-1"]);
    let risen = PartitionData {
        high_watermark: 6,
        ..at_rest()
    };
    assert_eq!(next(&only("b-0", risen.clone())), ["b-0"]);
    assert!(next(&only("b-0", risen)).is_empty());
    assert_eq!(next(&|_| at_rest()), ["b-0"]);
    let cut = PartitionData {
        log_start_offset: 2,
        ..at_rest()
    };
    assert_eq!(next(&only("a-0", cut)), ["a-0"]);
    assert_eq!(next(&|_| at_rest()), ["a-0"]);
    // An error is told each time, and that it is gone, too.
    assert_eq!(next(&only("a-0", failed())), ["a-0"]);
    assert_eq!(next(&only("a-0", failed())), ["a-0"]);
    assert_eq!(next(&|_| at_rest()), ["a-0"]);
    assert!(next(&|_| at_rest()).is_empty());
}

#[test]
fn partitions_that_gave_records_move_to_the_end() {
    let (sessions, now) = (FetchSessions::new(10), Instant::now());
    let id = open(&sessions, &[("a", 0, 0), ("a", 1, 0), ("a", 2, 0)], now);
    let gives = |wanted: &'static str| {
        move |name: &str| {
            if name == wanted {
                with_records()
            } else {
                at_rest()
            }
        }
    };
    let order = |epoch, wanted| {
        exchange(&sessions, request(id, epoch, &[]), now, gives(wanted))
            .unwrap()
            .1
    };
    assert_eq!(order(1, "a-0"), ["a-0", "a-1", "a-2"]);
    assert_eq!(order(2, "a-2"), ["a-1", "a-2", "a-0"]);
    assert_eq!(order(3, "none"), ["a-1", "a-0", "a-2"]);
}

#[test]
fn partitions_are_changed_added_and_forgotten() {
    let (sessions, now) = (FetchSessions::new(10), Instant::now());
    let id = open(&sessions, &[("a", 0, 1), ("b", 0, 1)], now);
    let mut change = request(id, 1, &[("a", 0, 9), ("c", 0, 3)]);
    change.forgotten_topics_data = vec![broker_protocol::messages::fetch::ForgottenTopic {
        topic: "b".into(),
        partitions: vec![0, 7],
        ..Default::default()
    }];
    let (turn, asked) = sessions.begin(&mut change, false, now).unwrap();
    let asked: Vec<_> = asked
        .iter()
        .map(|asked| (named(asked), asked.request.fetch_offset))
        .collect();
    assert_eq!(asked, [("a-0".to_owned(), 9), ("c-0".to_owned(), 3)]);
    assert!(matches!(turn, Turn::Continuing { .. }));
    assert_eq!(sessions.lock().partitions, 2);
}

#[test]
fn a_session_without_partitions_ends() {
    let (sessions, now) = (FetchSessions::new(10), Instant::now());
    let id = open(&sessions, &[("a", 0, 1)], now);
    let mut last = request(id, 1, &[]);
    last.forgotten_topics_data = vec![broker_protocol::messages::fetch::ForgottenTopic {
        topic: "a".into(),
        partitions: vec![0],
        ..Default::default()
    }];
    let (closed, looked_at, _) = exchange(&sessions, last, now, |_| at_rest()).unwrap();
    assert_eq!((closed, looked_at.len()), (0, 0));
    let gone = exchange(&sessions, request(id, 2, &[]), now, |_| at_rest());
    assert_eq!(gone, Err(ErrorCode::FetchSessionIdNotFound));
    assert_eq!(sessions.lock().partitions, 0);
}

#[test]
fn requests_that_do_not_go_on_with_their_session_are_refused() {
    let (sessions, now) = (FetchSessions::new(10), Instant::now());
    let id = open(&sessions, &[("a", 0, 0)], now);
    let begin = |id, epoch, by_id| {
        let begun = sessions.begin(&mut request(id, epoch, &[]), by_id, now);
        begun.map(|(_, asked)| asked.len())
    };
    assert_eq!(
        begin(id, 2, false),
        Err(ErrorCode::InvalidFetchSessionEpoch)
    );
    assert_eq!(begin(id, 1, true), Err(ErrorCode::FetchSessionTopicIdError));
    assert_eq!(
        begin(id ^ 1, 1, false),
        Err(ErrorCode::FetchSessionIdNotFound)
    );
    assert_eq!(begin(0, 1, false), Err(ErrorCode::FetchSessionIdNotFound));
    assert_eq!(begin(id, 1, false), Ok(1));
    assert_eq!(
        begin(id, 1, false),
        Err(ErrorCode::InvalidFetchSessionEpoch)
    );
    // A full request closes the session it names.
    assert_eq!(begin(id, -1, false), Ok(0));
    assert_eq!(begin(id, 2, false), Err(ErrorCode::FetchSessionIdNotFound));
}

#[test]
fn a_request_that_was_overtaken_is_told_so_and_changes_nothing() {
    let (sessions, now) = (FetchSessions::new(10), Instant::now());
    let id = open(&sessions, &[("a", 0, 0)], now);
    let (slow, asked) = sessions
        .begin(&mut request(id, 1, &[]), false, now)
        .unwrap();
    exchange(&sessions, request(id, 2, &[]), now, |_| at_rest()).unwrap();
    let answered = asked.into_iter().map(|asked| Answered {
        asked,
        data: with_records(),
    });
    let answer = sessions.finish(slow, answered.collect(), now);
    assert_eq!(answer.error, ErrorCode::InvalidFetchSessionEpoch);
    assert!(answer.partitions.is_empty());
}

#[test]
fn epochs_go_round_without_zero() {
    assert_eq!((next_epoch(0), next_epoch(7)), (1, 8));
    assert_eq!((next_epoch(i32::MAX), next_epoch(-1)), (1, -1));
}

#[test]
fn the_unused_and_then_the_smaller_give_way_and_nobody_else() {
    let (sessions, start) = (FetchSessions::new(2), Instant::now());
    let alive = |id| sessions.lock().entries.contains_key(&id);
    let small = open(&sessions, &[("a", 0, 0)], start);
    let large = open(&sessions, &[("a", 0, 0), ("a", 1, 0)], start);
    // Both are young: no room.
    assert_eq!(
        open(&sessions, &[("b", 0, 0), ("b", 1, 0)], start + SOON),
        0
    );
    // Both are in use and settled: the larger newcomer takes the place of the smaller one.
    let used = start + LATER;
    for id in [small, large] {
        exchange(&sessions, request(id, 1, &[]), used, |_| at_rest()).unwrap();
    }
    assert_eq!(open(&sessions, &[("c", 0, 0)], used + SOON), 0);
    let newcomer = open(&sessions, &[("b", 0, 0), ("b", 1, 0)], used + SOON);
    assert!(newcomer != 0 && !alive(small) && alive(large));
    // Unused for long: any newcomer takes the place of the one longest unused.
    let last = open(&sessions, &[("c", 0, 0)], used + LATER);
    assert!(last != 0 && !alive(large) && alive(newcomer));
    assert_eq!(sessions.lock().entries.len(), 2);
    assert_eq!(sessions.lock().partitions, 3);
}

#[test]
fn sessions_hold_a_bounded_number_of_partitions_and_no_long_names() {
    let mut sessions = FetchSessions::new(10);
    sessions.max_partitions = 3;
    let now = Instant::now();
    let id = open(&sessions, &[("a", 0, 0), ("a", 1, 0)], now);
    assert_eq!(open(&sessions, &[("a", 0, 0), ("a", 1, 0)], now), 0);
    // A session that would outgrow the bound ends; its client sends everything again.
    let grown = request(id, 1, &[("a", 2, 0), ("a", 3, 0)]);
    let grown = exchange(&sessions, grown, now, |_| at_rest());
    assert_eq!(grown, Err(ErrorCode::FetchSessionIdNotFound));
    assert_eq!(sessions.lock().partitions, 0);
    let long = "x".repeat(250);
    assert_eq!(open(&sessions, &[(&long, 0, 0)], now), 0);
    assert_eq!(open(&FetchSessions::new(0), &[("a", 0, 0)], now), 0);
}
