//! The offsets a group has committed, and what becomes of them: commit, delete, expire.

use std::collections::{BTreeMap, BTreeSet};

use broker_protocol::{
    ByteString, DecodeError, ErrorCode,
    primitives::{LengthForm, get_i16, get_length, get_string},
};
use bytes::Bytes;

use super::{
    records::{Committed, Key},
    state::{At, Group, State},
};

/// The kind of group whose members' metadata is a subscription.
const CONSUMER: &str = "consumer";

/// Offsets by topic and partition.
#[derive(Debug, Default)]
pub(crate) struct Offsets {
    topics: BTreeMap<ByteString, BTreeMap<i32, Committed>>,
}

impl Offsets {
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    pub(crate) fn get(&self, topic: &str, partition: i32) -> Option<&Committed> {
        self.topics.get(topic)?.get(&partition)
    }

    /// By topic, then partition.
    pub(crate) fn topics(&self) -> impl Iterator<Item = (&ByteString, &BTreeMap<i32, Committed>)> {
        self.topics.iter()
    }

    pub(crate) fn insert(&mut self, topic: ByteString, partition: i32, committed: Committed) {
        let partitions = self.topics.entry(topic).or_default();
        partitions.insert(partition, committed);
    }

    pub(crate) fn remove(&mut self, topic: &str, partition: i32) {
        if let Some(partitions) = self.topics.get_mut(topic) {
            partitions.remove(&partition);
            if partitions.is_empty() {
                self.topics.remove(topic);
            }
        }
    }

    fn all_where(
        &self,
        wanted: impl Fn(&ByteString, &Committed) -> bool,
    ) -> Vec<(ByteString, i32)> {
        let mut found = Vec::new();
        for (topic, partitions) in &self.topics {
            let partitions = partitions.iter().filter(|(_, c)| wanted(topic, c));
            found.extend(partitions.map(|(partition, _)| (topic.clone(), *partition)));
        }
        found
    }
}

impl Group {
    /// Commits offsets that [`Group::check_commit`] has allowed, all or none.
    ///
    /// # Errors
    /// From the journal.
    pub(crate) fn commit(
        &mut self,
        offsets: Vec<(ByteString, i32, Committed)>,
        at: &At<'_>,
    ) -> Result<(), ErrorCode> {
        if offsets.is_empty() {
            return Ok(());
        }
        let records = offsets.iter().map(|(topic, partition, committed)| {
            (self.offset_key(topic, *partition), Some(committed.encode()))
        });
        at.journal.write(&records.collect::<Vec<_>>())?;
        for (topic, partition, committed) in offsets {
            self.offsets.insert(topic, partition, committed);
        }
        Ok(())
    }

    fn offset_key(&self, topic: &ByteString, partition: i32) -> Key {
        Key::Offset {
            group: self.id.clone(),
            topic: topic.clone(),
            partition,
        }
    }

    /// Whether offsets may be deleted at all, and of which topics not, as Kafka does it.
    ///
    /// # Errors
    /// The group has members and is none of consumers.
    pub(crate) fn check_delete_offsets(&self) -> Result<BTreeSet<ByteString>, ErrorCode> {
        match self.state() {
            State::Dead => Err(ErrorCode::GroupIdNotFound),
            State::Empty => Ok(BTreeSet::new()),
            State::PreparingRebalance { .. }
            | State::CompletingRebalance { .. }
            | State::Stable => {
                if self.protocol_type.as_deref() == Some(CONSUMER) {
                    self.subscriptions().map_err(|_| ErrorCode::NonEmptyGroup)
                } else {
                    Err(ErrorCode::NonEmptyGroup)
                }
            }
        }
    }

    /// The topics that members of a consumer group have subscribed to.
    fn subscriptions(&self) -> Result<BTreeSet<ByteString>, DecodeError> {
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            for (_, metadata) in &member.profile.protocols {
                subscription(metadata.clone(), &mut topics)?;
            }
        }
        Ok(topics)
    }

    /// Forgets offsets, all or none.
    ///
    /// # Errors
    /// From the journal.
    pub(crate) fn delete_offsets(
        &mut self,
        offsets: &[(ByteString, i32)],
        at: &At<'_>,
    ) -> Result<(), ErrorCode> {
        let known = offsets
            .iter()
            .filter(|(topic, partition)| self.offsets.get(topic, *partition).is_some());
        let records: Vec<_> = known
            .map(|(topic, partition)| (self.offset_key(topic, *partition), None))
            .collect();
        if records.is_empty() {
            return Ok(());
        }
        at.journal.write(&records)?;
        for (topic, partition) in offsets {
            self.offsets.remove(topic, *partition);
        }
        Ok(())
    }

    /// Forgets the offsets of a topic that is gone.
    ///
    /// # Errors
    /// From the journal.
    pub(crate) fn forget_topic(&mut self, gone: &str, at: &At<'_>) -> Result<(), ErrorCode> {
        let offsets = self.offsets.all_where(|topic, _| **topic == *gone);
        self.delete_offsets(&offsets, at)
    }

    /// Forgets what has been kept long enough: offsets of a group without members, from when its last member left, or
    /// from the commit if that was later.
    ///
    /// # Errors
    /// From the journal.
    pub(crate) fn expire_offsets(&mut self, at: &At<'_>) -> Result<(), ErrorCode> {
        if self.state() != State::Empty {
            return Ok(());
        }
        let retention = i64::try_from(at.config.offsets_retention.as_millis()).unwrap_or(i64::MAX);
        let had_members = self.protocol_type.is_some();
        let since = self.empty_since_ms;
        let old = |_: &ByteString, committed: &Committed| {
            let from = if had_members {
                committed.committed_ms.max(since)
            } else {
                committed.committed_ms
            };
            at.wall_ms.saturating_sub(from) >= retention
        };
        let offsets = self.offsets.all_where(old);
        self.delete_offsets(&offsets, at)
    }

    /// Deletes the group, which must have no members, and its offsets.
    ///
    /// # Errors
    /// It has members, it is gone, or the journal's.
    pub(crate) fn delete(&mut self, at: &At<'_>) -> Result<(), ErrorCode> {
        match self.state() {
            State::Dead => return Err(ErrorCode::GroupIdNotFound),
            State::Empty => {}
            State::PreparingRebalance { .. }
            | State::CompletingRebalance { .. }
            | State::Stable => return Err(ErrorCode::NonEmptyGroup),
        }
        let all = self.offsets.all_where(|_, _| true);
        let mut records: Vec<_> = all
            .iter()
            .map(|(topic, partition)| (self.offset_key(topic, *partition), None))
            .collect();
        if self.stored {
            let group = self.id.clone();
            records.push((Key::Group { group }, None));
        }
        if !records.is_empty() {
            at.journal.write(&records)?;
        }
        self.offsets = Offsets::default();
        self.state = State::Dead;
        Ok(())
    }

    /// Deletes the group if there is nothing left of it; whether it is gone.
    ///
    /// # Errors
    /// From the journal.
    pub(crate) fn bury_if_vacant(&mut self, at: &At<'_>) -> Result<bool, ErrorCode> {
        if self.is_vacant() {
            self.delete(at)?;
        }
        Ok(self.state() == State::Dead)
    }
}

/// Adds the topics of a consumer's subscription: a version, then an array of names; what follows does not matter here.
fn subscription(mut metadata: Bytes, topics: &mut BTreeSet<ByteString>) -> Result<(), DecodeError> {
    get_i16(&mut metadata)?;
    for _ in 0..get_length(&mut metadata, LengthForm::Int32)?.unwrap_or(0) {
        topics.extend(get_string(&mut metadata, LengthForm::Int16)?);
    }
    Ok(())
}
