//! Offsets of consumer groups, read and committed without being a member: for lag tools and for
//! taking over where another consumer was.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, MutexGuard, PoisonError};

use broker_protocol::ByteString;
use broker_protocol::error_code::ErrorCode;
use broker_protocol::ids::TopicName;
use broker_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use broker_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use broker_protocol::messages::{
    FindCoordinatorRequest, FindCoordinatorResponse, Message, OffsetCommitRequest,
    OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse, Request,
};

use crate::backoff::{Subject, retry};
use crate::client::{Answer, Client};
use crate::config::join_address;
use crate::connection::FrameFault;
use crate::error::{Error, Result};
use crate::pool::Purpose;
use crate::versions::ANY;

/// First version of `FindCoordinator` that asks for several keys.
const FIND_SEVERAL: i16 = 4;
/// First version of `OffsetFetch` that asks for several groups.
const FETCH_SEVERAL: i16 = 8;
/// First version of `OffsetFetch` that can wait for open transactions.
const FETCH_STABLE: i16 = 7;
/// Versions that name topics; later ones know ids only.
const BY_NAME: RangeInclusive<i16> = 1..=9;

impl Client {
    /// The committed offsets of a group, `None` where it has committed none. Waits for transactions
    /// that are about to commit some. Cancel safe.
    ///
    /// # Errors
    /// [`Error::Kafka`], such as `GROUP_AUTHORIZATION_FAILED`; [`Error::UnsupportedApi`];
    /// [`Error::Timeout`].
    pub async fn committed_offsets(
        &self,
        group: &str,
        topic: &TopicName,
        partitions: &[i32],
    ) -> Result<BTreeMap<i32, Option<i64>>> {
        let request = |version| fetch_request(version, group, topic, partitions);
        let read = |response: OffsetFetchResponse| {
            let found = committed(topic, &response)?;
            let offset = |partition: &i32| (*partition, found.get(partition).copied());
            Ok(partitions.iter().map(offset).collect())
        };
        self.on_coordinator(group, topic, &BY_NAME, request, read)
            .await
    }

    /// Commits offsets (the next to be read) for a group without members. Cancel safe; repeating it
    /// changes nothing.
    ///
    /// # Errors
    /// [`Error::Kafka`], such as `UNKNOWN_MEMBER_ID` if the group has members now;
    /// [`Error::UnsupportedApi`]; [`Error::Timeout`].
    pub async fn commit_offsets(
        &self,
        group: &str,
        topic: &TopicName,
        offsets: &BTreeMap<i32, i64>,
    ) -> Result<()> {
        let partition = |(partition, offset): (&i32, &i64)| OffsetCommitRequestPartition {
            partition_index: *partition,
            committed_offset: *offset,
            committed_leader_epoch: -1,
            committed_metadata: Some(ByteString::new()),
        };
        let request = |_| OffsetCommitRequest {
            group_id: ByteString::from(group),
            generation_id_or_member_epoch: -1,
            topics: vec![OffsetCommitRequestTopic {
                name: topic.to_byte_string(),
                partitions: offsets.iter().map(partition).collect(),
            }],
            ..Default::default()
        };
        let read = |response: OffsetCommitResponse| {
            for result in response.topics.iter().flat_map(|topic| &topic.partitions) {
                let partition = Some(result.partition_index);
                let (operation, code) = (OffsetCommitRequest::NAME, result.error_code);
                Answer {
                    operation,
                    code,
                    topic: Some(topic),
                    partition,
                    message: None,
                }
                .check()?;
            }
            Ok(())
        };
        self.on_coordinator(group, topic, &BY_NAME, request, read)
            .await
    }

    /// A request to the coordinator of a group, repeated until the deadline.
    async fn on_coordinator<R: Request, T: Send>(
        &self,
        group: &str,
        topic: &TopicName,
        wanted: &RangeInclusive<i16>,
        request: impl Fn(i16) -> R + Send + Sync,
        read: impl Fn(R::Response) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        let subject = Subject {
            operation: R::NAME,
            topic: Some(topic),
            partition: None,
            offset: None,
        };
        let (request, read) = (&request, &read);
        retry(&self.policy(), subject, || async move {
            let address = self.coordinator(group).await?;
            let call = self.call(&address, Purpose::Control, wanted, request).await;
            let outcome = call.and_then(read);
            if outcome
                .as_ref()
                .is_err_and(|error| error.wants_refresh() || has_moved(error))
            {
                self.coordinators().remove(group);
            }
            outcome
        })
        .await
    }

    fn coordinators(&self) -> MutexGuard<'_, BTreeMap<String, Arc<str>>> {
        self.inner
            .coordinators
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn coordinator(&self, group: &str) -> Result<Arc<str>> {
        if let Some(address) = self.coordinators().get(group) {
            return Ok(Arc::clone(address));
        }
        let request = |version| {
            let key = ByteString::from(group);
            if version < FIND_SEVERAL {
                return FindCoordinatorRequest {
                    key,
                    ..Default::default()
                };
            }
            FindCoordinatorRequest {
                coordinator_keys: vec![key],
                ..Default::default()
            }
        };
        let address = coordinator_in(&self.on_any(&ANY, request).await?)?;
        self.coordinators()
            .insert(group.to_owned(), Arc::clone(&address));
        Ok(address)
    }
}

fn has_moved(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable)
    )
}

fn coordinator_in(response: &FindCoordinatorResponse) -> Result<Arc<str>> {
    let (code, message, host, port) = match response.coordinators.first() {
        Some(found) => (
            found.error_code,
            &found.error_message,
            &found.host,
            found.port,
        ),
        None => (
            response.error_code,
            &response.error_message,
            &response.host,
            response.port,
        ),
    };
    let operation = FindCoordinatorRequest::NAME;
    Answer {
        operation,
        code,
        topic: None,
        partition: None,
        message: message.as_ref(),
    }
    .check()?;
    if host.is_empty() {
        return Err(FrameFault::Incomplete("coordinator").at(&Arc::from("the broker")));
    }
    Ok(Arc::from(join_address(host, port)))
}

fn fetch_request(
    version: i16,
    group: &str,
    topic: &TopicName,
    partitions: &[i32],
) -> OffsetFetchRequest {
    let group_id = ByteString::from(group);
    let (name, partition_indexes) = (topic.to_byte_string(), partitions.to_vec());
    let require_stable = version >= FETCH_STABLE;
    if version < FETCH_SEVERAL {
        let topics = Some(vec![OffsetFetchRequestTopic {
            name,
            partition_indexes,
        }]);
        return OffsetFetchRequest {
            group_id,
            topics,
            require_stable,
            ..Default::default()
        };
    }
    let topics = Some(vec![OffsetFetchRequestTopics {
        name,
        partition_indexes,
    }]);
    let groups = vec![OffsetFetchRequestGroup {
        group_id,
        topics,
        ..Default::default()
    }];
    OffsetFetchRequest {
        groups,
        require_stable,
        ..Default::default()
    }
}

/// The offsets in an answer of either form; a partition without one is left out.
fn committed(topic: &TopicName, response: &OffsetFetchResponse) -> Result<BTreeMap<i32, i64>> {
    let operation = OffsetFetchRequest::NAME;
    let check = |code, partition| {
        Answer {
            operation,
            code,
            topic: Some(topic),
            partition,
            message: None,
        }
        .check()
    };
    check(response.error_code, None)?;
    let mut offsets = BTreeMap::new();
    let mut add = |partition, offset: i64, code| {
        check(code, Some(partition))?;
        if offset >= 0 {
            offsets.insert(partition, offset);
        }
        Ok(())
    };
    let old = response
        .topics
        .iter()
        .filter(|found| &*found.name == topic.as_str());
    for found in old.flat_map(|found| &found.partitions) {
        add(
            found.partition_index,
            found.committed_offset,
            found.error_code,
        )?;
    }
    for group in &response.groups {
        check(group.error_code, None)?;
        let new = group
            .topics
            .iter()
            .filter(|found| &*found.name == topic.as_str());
        for found in new.flat_map(|found| &found.partitions) {
            add(
                found.partition_index,
                found.committed_offset,
                found.error_code,
            )?;
        }
    }
    Ok(offsets)
}
