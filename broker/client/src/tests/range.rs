//! Ranges and a peer that serves them badly.

#![expect(
    clippy::single_range_in_vec_init,
    reason = "the offsets of batches are compared as ranges"
)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker_protocol::messages::fetch::PartitionData;
use broker_protocol::messages::{ApiKey, FetchResponse};
use broker_protocol::record::{BatchBuilder, Compression, ControlType, control_batch, stamp};
use bytes::Bytes;
use uuid::Uuid;

use super::peer::{
    Incoming, Peer, Reaction, World, asked, batch, fetch_error, fetched, fetched_with, topic,
};
use crate::error::Error;
use crate::{BatchKind, Client, ClientConfig, FetchOptions, IsolationLevel, RangeFetch};

/// A peer that reacts to fetches in this way; the counter is the number of the fetch, from 0.
async fn fetching(script: impl Fn(&Incoming, usize) -> Reaction + Send + Sync + 'static) -> Peer {
    fetching_in(World::default(), script).await
}

async fn fetching_in(
    world: World,
    script: impl Fn(&Incoming, usize) -> Reaction + Send + Sync + 'static,
) -> Peer {
    let fetches = AtomicUsize::new(0);
    Peer::start_in(world, move |incoming| {
        (incoming.key() == ApiKey::Fetch)
            .then(|| script(incoming, fetches.fetch_add(1, Ordering::SeqCst)))
    })
    .await
}

async fn read(config: ClientConfig, range: Range<i64>) -> RangeFetch {
    let client = Client::connect(config).await.unwrap();
    client.fetch_range(topic(), 0, range, FetchOptions::default())
}

/// Offsets and kinds until the end or the error.
async fn drain(range: &mut RangeFetch) -> (Vec<(Range<i64>, BatchKind)>, Option<Error>) {
    let mut found = Vec::new();
    loop {
        let next = tokio::time::timeout(Duration::from_secs(20), range.next());
        match next.await.expect("progress") {
            Ok(Some(batch)) => {
                let header = batch.batch.header();
                found.push((header.base_offset..header.next_offset(), batch.kind));
            }
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}

async fn offsets(range: &mut RangeFetch) -> (Vec<Range<i64>>, Option<Error>) {
    let (found, error) = drain(range).await;
    (
        found.into_iter().map(|(offsets, _)| offsets).collect(),
        error,
    )
}

/// Ten offsets a batch, one batch a fetch, up to 1000.
fn tens(incoming: &Incoming) -> FetchResponse {
    let (position, _) = asked(incoming);
    let base = position / 10 * 10;
    if base < 1000 {
        fetched(1000, &[], &[batch(base, 10, 10)])
    } else {
        fetched(1000, &[], &[])
    }
}

#[tokio::test]
async fn range_yields_whole_batches_from_start_to_end() {
    let peer = fetching(|incoming, _| incoming.answer(&tens(incoming))).await;
    let mut range = read(peer.config(), 5..25).await;
    let (found, error) = offsets(&mut range).await;
    assert_eq!((found, range.position()), (vec![0..10, 10..20, 20..30], 30));
    assert!(error.is_none(), "{error:?}");
    assert!(range.next().await.unwrap().is_none());
}

#[tokio::test]
async fn empty_range_asks_nothing() {
    let peer = fetching(|_, _| panic!("asked")).await;
    let mut range = read(peer.config(), 7..7).await;
    assert!(range.next().await.unwrap().is_none());
    assert_eq!(range.position(), 7);
    assert_eq!(peer.count(ApiKey::Fetch), 0);
}

#[tokio::test]
async fn connection_cut_in_mid_fetch_goes_on_from_the_position() {
    let peer = fetching(|incoming, nth| {
        let frame = incoming.frame(&tens(incoming));
        if nth % 2 == 1 {
            Reaction::WriteAndClose(frame.slice(..frame.len() / 2))
        } else {
            Reaction::Write(frame)
        }
    })
    .await;
    let mut range = read(peer.config(), 0..100).await;
    let (found, error) = offsets(&mut range).await;
    assert_eq!(
        found,
        (0..10).map(|n| n * 10..n * 10 + 10).collect::<Vec<_>>()
    );
    assert!(error.is_none(), "{error:?}");
    assert!(peer.connections() >= 10, "{}", peer.connections());
}

#[tokio::test]
async fn peer_that_never_answers_ends_in_a_timeout_with_place_and_cause() {
    let peer =
        fetching(|incoming, _| Reaction::WriteAndClose(incoming.frame(&tens(incoming)).slice(..9)))
            .await;
    let deadline = Duration::from_millis(200);
    let mut range = read(
        ClientConfig {
            retry_deadline: deadline,
            ..peer.config()
        },
        3..9,
    )
    .await;
    let (found, error) = offsets(&mut range).await;
    assert!(found.is_empty());
    let error = error.unwrap();
    let Error::Timeout {
        offset, partition, ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!((*offset, *partition), (Some(3), Some(0)));
    assert!(
        matches!(error.root(), Error::Disconnected { .. }),
        "{error:?}"
    );
    assert!(range.next().await.is_err(), "the error stays");
    assert_eq!(range.position(), 3);
}

#[tokio::test]
async fn empty_answer_is_no_end() {
    let peer = fetching(|incoming, nth| {
        let empty = fetched(1000, &[], &[]);
        incoming.answer(&if nth % 3 == 2 { tens(incoming) } else { empty })
    })
    .await;
    let mut range = read(peer.config(), 0..30).await;
    let (found, error) = offsets(&mut range).await;
    assert_eq!(found, [0..10, 10..20, 20..30]);
    assert!(error.is_none(), "{error:?}");
}

#[tokio::test]
async fn range_that_is_there_and_does_not_come_is_a_timeout() {
    let peer = fetching(|incoming, _| incoming.answer(&fetched(1000, &[], &[]))).await;
    let deadline = Duration::from_millis(200);
    let config = ClientConfig {
        retry_deadline: deadline,
        ..peer.config()
    };
    let (_, error) = offsets(&mut read(config, 40..50).await).await;
    let error = error.unwrap();
    assert!(
        matches!(
            error,
            Error::Timeout {
                offset: Some(40),
                source: None,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn range_beyond_the_end_waits_without_a_deadline() {
    let peer = fetching(|incoming, nth| {
        let grown = if nth < 30 {
            fetched(40, &[], &[])
        } else {
            tens(incoming)
        };
        incoming.answer(&grown)
    })
    .await;
    let deadline = Duration::from_millis(50);
    let config = ClientConfig {
        retry_deadline: deadline,
        ..peer.config()
    };
    let started = tokio::time::Instant::now();
    let (found, error) = offsets(&mut read(config, 40..50).await).await;
    assert_eq!((found, error.is_none()), (vec![40..50], true));
    assert!(started.elapsed() > deadline * 3, "{:?}", started.elapsed());
}

#[tokio::test]
async fn batch_that_comes_in_part_is_asked_for_whole() {
    let whole = batch(0, 1, 300_000);
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sizes);
    let peer = fetching(move |incoming, _| {
        let (position, size) = asked(incoming);
        seen.lock().unwrap().push(size);
        let batches = if position == 0 {
            whole.clone()
        } else {
            batch(1, 1, 10)
        };
        let batches = batches.slice(..batches.len().min(size));
        incoming.answer(&fetched(1000, &[], &[batches]))
    })
    .await;
    let config = ClientConfig {
        fetch_partition_max_bytes: 1000,
        ..peer.config()
    };
    let (found, error) = offsets(&mut read(config, 0..2).await).await;
    assert_eq!(
        (found, error.is_none()),
        (vec![0..1, 1..2], true),
        "{error:?}"
    );
    let needed = batch(0, 1, 300_000).len();
    assert_eq!(*sizes.lock().unwrap(), [1000, needed, 1000]);
}

#[tokio::test]
async fn fetch_size_doubles_while_not_even_the_length_has_come() {
    let whole = batch(0, 1, 100);
    let peer = fetching(move |incoming, _| {
        let (_, size) = asked(incoming);
        incoming.answer(&fetched(1000, &[], &[whole.slice(..whole.len().min(size))]))
    })
    .await;
    let config = ClientConfig {
        fetch_partition_max_bytes: 5,
        ..peer.config()
    };
    let (found, error) = offsets(&mut read(config, 0..1).await).await;
    assert_eq!((found, error.is_none()), (vec![0..1], true), "{error:?}");
    assert_eq!(peer.count(ApiKey::Fetch), 4, "5, 10, 20, whole");
}

#[tokio::test]
async fn batch_above_the_cap_is_refused_by_name_whole_or_in_part() {
    for cut in [false, true] {
        let (small, large) = (batch(0, 5, 10), batch(5, 1, 20_000));
        let size = large.len();
        let peer = fetching(move |incoming, _| {
            let (position, _) = asked(incoming);
            let large = if cut {
                large.slice(..500)
            } else {
                large.clone()
            };
            let batches = if position < 5 {
                vec![small.clone(), large]
            } else {
                vec![large]
            };
            incoming.answer(&fetched(1000, &[], &batches))
        })
        .await;
        let config = ClientConfig {
            max_batch_bytes: 10_000,
            ..peer.config()
        };
        let (found, error) = offsets(&mut read(config, 0..9).await).await;
        assert_eq!(found, [0..5], "what is good comes first");
        let error = error.unwrap();
        let Error::BatchTooLarge {
            offset,
            size: found,
            cap,
            ..
        } = error
        else {
            panic!("{error:?}")
        };
        assert_eq!((offset, found, cap), (5, size, 10_000));
    }
}

#[tokio::test]
async fn response_too_large_to_read_is_a_batch_too_large() {
    let peer = fetching(|_, _| Reaction::Write(Bytes::from_static(&[0x7f, 0, 0, 0]))).await;
    let (_, error) = offsets(&mut read(peer.config(), 3..9).await).await;
    let error = error.unwrap();
    assert!(
        matches!(
            error,
            Error::BatchTooLarge {
                offset: 3,
                size: 0x7f00_0000,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn corrupt_batch_is_named_and_what_precedes_it_comes() {
    let mut corrupt = batch(10, 5, 10).to_vec();
    *corrupt.last_mut().unwrap() ^= 1;
    let corrupt = Bytes::from(corrupt);
    let peer = fetching(move |incoming, _| {
        let batches = [batch(0, 10, 10), corrupt.clone(), batch(15, 5, 10)];
        incoming.answer(&fetched(1000, &[], &batches))
    })
    .await;
    let mut range = read(peer.config(), 0..20).await;
    let (found, error) = offsets(&mut range).await;
    assert_eq!((found, range.position()), (vec![0..10], 10));
    let error = error.unwrap();
    assert!(
        matches!(
            error,
            Error::CorruptBatch {
                offset: 10,
                partition: 0,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn batches_out_of_order_are_corrupt() {
    let peer = fetching(|incoming, _| {
        incoming.answer(&fetched(1000, &[], &[batch(0, 10, 10), batch(5, 10, 10)]))
    })
    .await;
    let (found, error) = offsets(&mut read(peer.config(), 0..20).await).await;
    assert_eq!(found, [0..10]);
    let error = error.unwrap();
    assert!(
        matches!(error, Error::CorruptBatch { offset: 5, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn hole_is_passed_by_the_header_behind_it() {
    let peer = fetching(|incoming, _| {
        incoming.answer(&fetched(1000, &[], &[batch(0, 3, 10), batch(50, 10, 10)]))
    })
    .await;
    let mut range = read(peer.config(), 0..20).await;
    let (found, error) = offsets(&mut range).await;
    assert_eq!((found, range.position()), (vec![0..3], 20));
    assert!(error.is_none(), "{error:?}");
}

/// One record of producer 9, in a transaction.
fn transactional(base_offset: i64) -> Bytes {
    let builder = BatchBuilder::new(Compression::None).with_producer(9, 0, 0);
    let mut builder = builder.transactional(true);
    builder.push(0, None, Some(b"x"), &[]).unwrap();
    let mut bytes = builder.build().unwrap().to_vec();
    stamp(&mut bytes, base_offset, 0).unwrap();
    bytes.into()
}

fn marker(base_offset: i64, control: ControlType) -> Bytes {
    let mut bytes = control_batch(control, 9, 0, 0, 0).unwrap().to_vec();
    stamp(&mut bytes, base_offset, 0).unwrap();
    bytes.into()
}

#[tokio::test]
async fn aborted_batches_are_told_from_committed_ones() {
    use BatchKind::{Aborted, Control, Data};
    let peer = fetching(|incoming, _| {
        let batches = [
            transactional(0),
            marker(1, ControlType::Abort),
            batch(2, 1, 10),
            transactional(3),
            marker(4, ControlType::Commit),
        ];
        incoming.answer(&fetched(5, &[(9, 0)], &batches))
    })
    .await;
    let client = Client::connect(peer.config()).await.unwrap();
    let expected = [
        (IsolationLevel::ReadCommitted, Aborted),
        (IsolationLevel::ReadUncommitted, Data),
    ];
    for (isolation, first) in expected {
        let options = FetchOptions {
            isolation,
            ..Default::default()
        };
        let (found, error) = drain(&mut client.fetch_range(topic(), 0, 0..5, options)).await;
        let kinds: Vec<BatchKind> = found.into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(
            (kinds, error.is_none()),
            (vec![first, Control, Data, Data, Control], true)
        );
    }
}

#[tokio::test]
async fn offset_out_of_range_tells_where_the_log_is() {
    let world = World::default();
    *world.offsets.lock().unwrap() = (100, 200);
    let peer = fetching_in(world, |incoming, _| incoming.answer(&fetch_error(1))).await;
    let (_, error) = offsets(&mut read(peer.config(), 50..150).await).await;
    let error = error.unwrap();
    let Error::OffsetOutOfRange {
        offset,
        log_start_offset,
        log_end_offset,
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((offset, log_start_offset, log_end_offset), (50, 100, 200));
}

#[tokio::test]
async fn offset_that_is_in_range_after_all_is_asked_for_again() {
    let peer = fetching(|incoming, nth| {
        incoming.answer(&if nth == 0 {
            fetch_error(1)
        } else {
            tens(incoming)
        })
    })
    .await;
    let (found, error) = offsets(&mut read(peer.config(), 0..10).await).await;
    assert_eq!((found, error.is_none()), (vec![0..10], true), "{error:?}");
}

#[tokio::test]
async fn moved_leader_is_followed() {
    let new = fetching(|incoming, _| incoming.answer(&tens(incoming))).await;
    let world = World::default();
    let (leader, address) = (Arc::clone(&world.leader), new.address.clone());
    let old = fetching_in(world, move |incoming, nth| {
        if nth == 0 {
            return incoming.answer(&tens(incoming));
        }
        *leader.lock().unwrap() = Some(address.clone());
        incoming.answer(&fetch_error(6))
    })
    .await;
    let (found, error) = offsets(&mut read(old.config(), 0..30).await).await;
    assert_eq!(
        (found, error.is_none()),
        (vec![0..10, 10..20, 20..30], true),
        "{error:?}"
    );
    assert_eq!((old.count(ApiKey::Fetch), new.count(ApiKey::Fetch)), (2, 2));
}

#[tokio::test]
async fn topic_made_again_is_not_read_on() {
    let world = World::default();
    let id = Arc::clone(&world.topic_id);
    let peer = fetching_in(world, move |incoming, nth| {
        if nth == 0 {
            return incoming.answer(&tens(incoming));
        }
        *id.lock().unwrap() = Uuid::from_u128(2);
        incoming.answer(&fetch_error(3))
    })
    .await;
    let (found, error) = offsets(&mut read(peer.config(), 0..30).await).await;
    assert_eq!(found, [0..10]);
    let error = error.unwrap();
    assert!(matches!(error, Error::TopicReplaced { .. }), "{error:?}");
}

#[tokio::test]
async fn error_that_cannot_heal_is_told_at_once() {
    let peer = fetching(|incoming, _| incoming.answer(&fetch_error(29))).await;
    let (_, error) = offsets(&mut read(peer.config(), 0..30).await).await;
    let error = error.unwrap();
    assert!(
        matches!(
            error,
            Error::Kafka {
                partition: Some(0),
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(peer.count(ApiKey::Fetch), 1);
}

#[tokio::test]
async fn prefetch_stops_at_its_bound_and_with_the_range() {
    const BATCH: usize = 49_000;
    let peer = fetching(|incoming, _| {
        let (position, _) = asked(incoming);
        incoming.answer(&fetched(i64::MAX, &[], &[batch(position, 1, BATCH)]))
    })
    .await;
    let config = ClientConfig {
        prefetch_bytes: 400_000,
        fetch_partition_max_bytes: 100_000,
        ..peer.config()
    };
    let mut range = read(config, 0..i64::MAX).await;
    let reaches = async |count| {
        tokio::time::timeout(Duration::from_secs(10), async {
            while peer.count(ApiKey::Fetch) < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("fetches go on");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(peer.count(ApiKey::Fetch), count);
    };
    // A fetch of 100 kB starts while at most 300 kB are held: 6 batches, and one more.
    reaches(7).await;
    // What the consumer has gone beyond no longer counts; what it has at hand does.
    range.next().await.unwrap();
    reaches(7).await;
    range.next().await.unwrap();
    range.next().await.unwrap();
    reaches(9).await;
    drop(range);
    reaches(9).await;
}

#[tokio::test]
async fn next_that_is_dropped_loses_nothing() {
    let peer = fetching(|incoming, _| {
        Reaction::Later(Duration::from_millis(7), incoming.frame(&tens(incoming)))
    })
    .await;
    let mut range = read(peer.config(), 0..100).await;
    let mut found = Vec::new();
    while found.len() < 10 {
        let next = tokio::time::timeout(Duration::from_millis(2), range.next());
        if let Ok(batch) = next.await {
            found.push(batch.unwrap().unwrap().batch.header().base_offset);
        }
    }
    assert_eq!(found, (0..10).map(|n| n * 10).collect::<Vec<i64>>());
}

#[tokio::test]
async fn closed_client_is_an_error_and_not_an_end() {
    let peer = fetching(|incoming, nth| {
        if nth == 0 {
            incoming.answer(&tens(incoming))
        } else {
            Reaction::Ignore
        }
    })
    .await;
    let client = Client::connect(peer.config()).await.unwrap();
    let mut range = client.fetch_range(topic(), 0, 0..30, FetchOptions::default());
    assert!(range.next().await.unwrap().is_some());
    client.close().await;
    assert!(matches!(range.next().await, Err(Error::Closed)));
}

#[tokio::test]
async fn partition_that_does_not_exist_is_named() {
    let peer = Peer::start(|incoming| {
        (incoming.key() == ApiKey::Fetch)
            .then(|| incoming.answer(&fetched_with(PartitionData::default())))
    })
    .await;
    let deadline = Duration::from_millis(200);
    let config = ClientConfig {
        retry_deadline: deadline,
        ..peer.config()
    };
    let client = Client::connect(config).await.unwrap();
    let mut range = client.fetch_range(topic(), 7, 0..30, FetchOptions::default());
    let (_, error) = offsets(&mut range).await;
    let error = error.unwrap();
    assert!(
        matches!(error, Error::UnknownPartition { partition: 7, .. }),
        "{error:?}"
    );
}
