//! Offsets of a partition: first, last, by time, and the end of a leader epoch.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker_protocol::ids::TopicName;
use broker_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use broker_protocol::messages::offset_for_leader_epoch::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use broker_protocol::messages::{
    ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
};
use futures::future::join_all;
use tokio::time::Instant;

use crate::backoff::{Subject, worth_retrying};
use crate::client::{Answer, Client};
use crate::connection::FrameFault;
use crate::error::{Error, ErrorKind, Result};
use crate::metadata::Leader;
use crate::pool::Purpose;

/// What transactions a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IsolationLevel {
    /// Everything below the high watermark, aborted data too.
    ReadUncommitted,
    /// Only what is committed, below the last stable offset.
    #[default]
    ReadCommitted,
}

impl IsolationLevel {
    pub(crate) fn code(self) -> i8 {
        match self {
            Self::ReadUncommitted => 0,
            Self::ReadCommitted => 1,
        }
    }
}

/// Which offset to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetSpec {
    /// The log start offset.
    Earliest,
    /// The end (exclusive): the last stable offset or the high watermark, by isolation level.
    Latest,
    /// The first record whose timestamp is at or after these milliseconds since the epoch.
    Timestamp(i64),
}

impl OffsetSpec {
    fn code(self) -> i64 {
        match self {
            Self::Latest => -1,
            Self::Earliest => -2,
            Self::Timestamp(ms) => ms.max(0),
        }
    }
}

/// A listed offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedOffset {
    /// The offset; -1 if no record is at or after the time asked for.
    pub offset: i64,
    /// The record's timestamp in milliseconds; -1 unless asked for by time.
    pub timestamp: i64,
    /// Leader epoch of the record, or of the log's end, where the broker says.
    pub leader_epoch: Option<i32>,
}

/// Where a leader epoch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch not above the one asked for; -1 if the broker knows none.
    pub leader_epoch: i32,
    /// End (exclusive) of that epoch's records; -1 if the broker knows none.
    pub end_offset: i64,
}

type Listed = BTreeMap<i32, Result<ListedOffset>>;

impl Client {
    /// Lists one offset of each partition, from their leaders, at the same time. What can heal is
    /// repeated until the deadline; what remains is the error of its partition. Cancel safe.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`] for the whole call. By partition: [`Error::UnknownPartition`],
    /// [`Error::NoLeader`], [`Error::Timeout`], [`Error::Kafka`].
    pub async fn list_offsets(
        &self,
        topic: &TopicName,
        partitions: &[i32],
        at: OffsetSpec,
        isolation: IsolationLevel,
    ) -> Result<Listed> {
        let policy = self.policy();
        let started = Instant::now();
        let end = started + policy.deadline;
        let mut delays = policy.delays();
        let mut pending: BTreeMap<i32, Option<Error>> = partitions
            .iter()
            .map(|partition| (*partition, None))
            .collect();
        let mut done = Listed::new();
        while !pending.is_empty() {
            let ask: Vec<i32> = pending.keys().copied().collect();
            let round = self.list_offsets_once(topic, &ask, at, isolation);
            let Ok(round) = tokio::time::timeout_at(end, round).await else {
                for (partition, last) in std::mem::take(&mut pending) {
                    let error = subject(topic, partition).timed_out(policy.deadline, last);
                    done.insert(partition, Err(error));
                }
                break;
            };
            for (partition, outcome) in round {
                match outcome {
                    Err(error) if worth_retrying(&policy, &error, started.elapsed()) => {
                        pending.insert(partition, Some(error));
                    }
                    Err(error) if error.kind() == ErrorKind::Retriable => {
                        pending.remove(&partition);
                        let subject = subject(topic, partition);
                        done.insert(
                            partition,
                            Err(subject.timed_out(policy.deadline, Some(error))),
                        );
                    }
                    Err(error @ Error::UnknownTopic { .. }) => return Err(error),
                    outcome => {
                        pending.remove(&partition);
                        done.insert(partition, outcome);
                    }
                }
            }
            if !pending.is_empty() {
                tokio::time::sleep_until(end.min(Instant::now() + delays.next())).await;
            }
        }
        Ok(done)
    }

    /// One try: an outcome for every partition.
    async fn list_offsets_once(
        &self,
        topic: &TopicName,
        partitions: &[i32],
        at: OffsetSpec,
        isolation: IsolationLevel,
    ) -> Listed {
        let mut outcomes = Listed::new();
        let mut by_leader: BTreeMap<i32, Vec<(i32, Leader)>> = BTreeMap::new();
        for partition in partitions {
            match self.leader(topic, *partition).await {
                Ok(leader) => by_leader
                    .entry(leader.node_id)
                    .or_default()
                    .push((*partition, leader)),
                Err(error) => {
                    outcomes.insert(*partition, Err(error));
                }
            }
        }
        let calls = by_leader.values().map(async |led| {
            let answered = self.list_offsets_at(topic, led, at, isolation).await;
            led.iter()
                .map(|(partition, leader)| {
                    let outcome = match &answered {
                        Ok((address, response)) => listed(topic, *partition, address, response),
                        Err(error) => Err(error.clone()),
                    };
                    if outcome.as_ref().is_err_and(Error::wants_refresh) {
                        self.inner.metadata.forget(topic, leader.generation);
                    }
                    (*partition, outcome)
                })
                .collect::<Vec<_>>()
        });
        outcomes.extend(join_all(calls).await.into_iter().flatten());
        outcomes
    }

    async fn list_offsets_at(
        &self,
        topic: &TopicName,
        led: &[(i32, Leader)],
        at: OffsetSpec,
        isolation: IsolationLevel,
    ) -> Result<(Arc<str>, ListOffsetsResponse)> {
        let Some((_, leader)) = led.first() else {
            return Err(Error::UnknownTopic {
                topic: topic.clone(),
            });
        };
        let partitions = led
            .iter()
            .map(|(partition, leader)| ListOffsetsPartition {
                partition_index: *partition,
                current_leader_epoch: leader.leader_epoch.unwrap_or(-1),
                timestamp: at.code(),
            })
            .collect();
        let request = ListOffsetsRequest {
            replica_id: -1,
            isolation_level: isolation.code(),
            topics: vec![ListOffsetsTopic {
                name: topic.to_byte_string(),
                partitions,
            }],
            ..Default::default()
        };
        // The isolation level came with version 2.
        let call = self.call(&leader.address, Purpose::Control, &(2..=i16::MAX), |_| {
            request
        });
        Ok((Arc::clone(&leader.address), call.await?))
    }

    /// The end of a leader epoch, from the partition's leader: how a reader finds out whether the
    /// offsets it has read were truncated since. Cancel safe.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`], [`Error::UnknownPartition`], [`Error::NoLeader`],
    /// [`Error::UnsupportedApi`], [`Error::Timeout`].
    pub async fn offset_for_leader_epoch(
        &self,
        topic: &TopicName,
        partition: i32,
        leader_epoch: i32,
    ) -> Result<EpochEnd> {
        let request = |leader: &Leader| OffsetForLeaderEpochRequest {
            replica_id: -1,
            topics: vec![OffsetForLeaderTopic {
                topic: topic.to_byte_string(),
                partitions: vec![OffsetForLeaderPartition {
                    partition,
                    current_leader_epoch: leader.leader_epoch.unwrap_or(-1),
                    leader_epoch,
                }],
            }],
        };
        let read = |response: OffsetForLeaderEpochResponse| {
            let found = response
                .topics
                .iter()
                .filter(|found| &*found.topic == topic.as_str())
                .flat_map(|found| &found.partitions)
                .find(|found| found.partition == partition)
                .ok_or_else(|| {
                    FrameFault::Incomplete("end of a leader epoch").at(&Arc::from("the leader"))
                })?;
            Answer {
                operation: "OffsetForLeaderEpoch",
                code: found.error_code,
                topic: Some(topic),
                partition: Some(partition),
                message: None,
            }
            .check()?;
            Ok(EpochEnd {
                leader_epoch: found.leader_epoch,
                end_offset: found.end_offset,
            })
        };
        self.on_leader(topic, partition, &(2..=i16::MAX), request, read)
            .await
    }
}

fn subject(topic: &TopicName, partition: i32) -> Subject<'_> {
    Subject {
        operation: "ListOffsets",
        topic: Some(topic),
        partition: Some(partition),
        offset: None,
    }
}

fn listed(
    topic: &TopicName,
    partition: i32,
    address: &Arc<str>,
    response: &ListOffsetsResponse,
) -> Result<ListedOffset> {
    let found = response
        .topics
        .iter()
        .filter(|found| &*found.name == topic.as_str())
        .flat_map(|found| &found.partitions)
        .find(|found| found.partition_index == partition)
        .ok_or_else(|| FrameFault::Incomplete("offset of a partition").at(address))?;
    Answer {
        operation: "ListOffsets",
        code: found.error_code,
        topic: Some(topic),
        partition: Some(partition),
        message: None,
    }
    .check()?;
    Ok(ListedOffset {
        offset: found.offset,
        timestamp: found.timestamp,
        leader_epoch: Some(found.leader_epoch).filter(|epoch| *epoch >= 0),
    })
}
