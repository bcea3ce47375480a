//! A consumer that commits as it reads, through all kills.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker_client::protocol::ids::TopicName;
use broker_client::{Client, FetchOptions, RangeFetch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::proof::Read;

const GROUP: &str = "readers";

/// Batches of one partition between two commits, at most.
const BATCHES: usize = 40;

/// How long a partition may have nothing before the others get their turn.
const TURN: Duration = Duration::from_millis(10);

/// What the consumer did.
#[derive(Debug, Default)]
struct State {
    /// Next offsets by partition: those it last asked to commit, and those it was told are committed.
    asked: BTreeMap<i32, i64>,
    committed: BTreeMap<i32, i64>,
    /// By partition and offset: the producer's number and the record's.
    seen: BTreeMap<(i32, i64), (u64, u64)>,
}

/// The group of one seed.
#[derive(Debug)]
pub(super) struct Group {
    topic: TopicName,
    state: Arc<Mutex<State>>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Group {
    /// Begins to read from the start, in the runtime it is called in.
    pub(super) fn start(client: &Client, topic: &TopicName, partitions: i32) -> Self {
        let (state, stop) = (Arc::default(), CancellationToken::new());
        let ranges = (0..partitions).map(|partition| {
            let options = FetchOptions::default();
            let range = client.fetch_range(topic.clone(), partition, 0..i64::MAX, options);
            (partition, range)
        });
        let task = consume(
            client.clone(),
            topic.clone(),
            ranges.collect(),
            Arc::clone(&state),
            stop.clone(),
        );
        Self {
            topic: topic.clone(),
            state,
            stop,
            task: Mutex::new(Some(super::spawn(task))),
        }
    }

    /// What it was told is committed.
    pub(super) fn committed(&self) -> BTreeMap<i32, i64> {
        self.state.lock().unwrap().committed.clone()
    }

    /// Asserts that no offset committed `before` is lost or has gone back, and that none is there that was never asked for.
    pub(super) async fn check(&self, client: &Client, before: &BTreeMap<i32, i64>) {
        let partitions: Vec<i32> = before.keys().copied().collect();
        let found = client.committed_offsets(GROUP, &self.topic, &partitions);
        let found = found.await.unwrap();
        let asked = self.state.lock().unwrap().asked.clone();
        for (partition, least) in before {
            let most = asked[partition];
            let offset = found[partition].unwrap_or(-1);
            assert!(
                (*least..=most).contains(&offset),
                "partition {partition}: committed was {least}, found is {offset}, asked for at most {most}"
            );
        }
    }

    /// Panics if the consumer has.
    pub(super) fn check_alive(&self) {
        let task = self.task.lock().unwrap();
        let ended = task.as_ref().is_some_and(JoinHandle::is_finished);
        assert!(!ended, "the consumer has failed");
    }

    /// Ends it after a last commit.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap().take().unwrap();
        tokio::time::timeout(super::PATIENCE, task)
            .await
            .unwrap()
            .unwrap();
    }

    /// Asserts that it read nothing that is not there at last.
    pub(super) fn prove(&self, partition: i32, read: &[Read]) {
        let there: BTreeMap<i64, (u64, u64)> = read
            .iter()
            .map(|record| (record.offset, record.identity()))
            .collect();
        let state = self.state.lock().unwrap();
        let seen = state.seen.range((partition, 0)..(partition + 1, 0));
        let mut count = 0;
        for ((_, offset), identity) in seen {
            assert_eq!(
                there.get(offset),
                Some(identity),
                "partition {partition}, offset {offset}"
            );
            count += 1;
        }
        assert_eq!(
            Some(&count),
            state.committed.get(&partition),
            "read without gaps"
        );
    }
}

async fn consume(
    client: Client,
    topic: TopicName,
    mut ranges: Vec<(i32, RangeFetch)>,
    state: Arc<Mutex<State>>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let mut next = BTreeMap::new();
        for (partition, range) in &mut ranges {
            take(*partition, range, &state).await;
            next.insert(*partition, range.position());
        }
        state.lock().unwrap().asked.clone_from(&next);
        client.commit_offsets(GROUP, &topic, &next).await.unwrap();
        state.lock().unwrap().committed = next;
    }
}

/// Takes what a partition has.
async fn take(partition: i32, range: &mut RangeFetch, state: &Mutex<State>) {
    for _ in 0..BATCHES {
        let Ok(fetched) = tokio::time::timeout(TURN, range.next()).await else {
            return;
        };
        let fetched = fetched.unwrap().unwrap();
        let read = super::proof::records_of(&fetched);
        let seen = read
            .iter()
            .map(|record| ((partition, record.offset), record.identity()));
        let mut state = state.lock().unwrap();
        for (place, identity) in seen {
            let before = state.seen.insert(place, identity);
            assert_eq!(before, None, "read twice: {place:?}");
        }
    }
}
