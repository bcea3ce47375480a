//! What an operator can set about consumer groups.

use std::time::Duration;

use bytesize::ByteSize;
use jiff::fmt::serde::unsigned_duration::friendly::compact::required as text_duration;
use serde::{Deserialize, Serialize};

use crate::config::Problem;

/// Configuration of the group coordinator, `[broker.groups]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Shortest session timeout that a member may ask for. Default 6 s.
    /// Kafka: `group.min.session.timeout.ms`.
    #[serde(with = "text_duration")]
    pub min_session_timeout: Duration,
    /// Longest session timeout that a member may ask for. Default 30 min.
    /// Kafka: `group.max.session.timeout.ms`.
    #[serde(with = "text_duration")]
    pub max_session_timeout: Duration,
    /// How long the first rebalance of an empty group waits for more members; begun anew as they come, at most
    /// for their rebalance timeout. Default 3 s. Kafka: `group.initial.rebalance.delay.ms`.
    #[serde(with = "text_duration")]
    pub initial_rebalance_delay: Duration,
    /// Members of one group. Default 10000. Kafka: `group.max.size`, which has no bound by default.
    pub max_members: usize,
    /// Groups in total; a request that would make one more gets `POLICY_VIOLATION`. Default 100000. No Kafka
    /// property; it bounds memory.
    pub max_groups: usize,
    /// Largest sum of a member's protocols and their metadata. Default 1 MiB. No Kafka property; it bounds memory.
    pub max_member_bytes: ByteSize,
    /// Time that offsets of a group without members are kept, from when the last member left or, without
    /// members ever, from each commit. Default 168 h. Kafka: `offsets.retention.minutes`.
    #[serde(with = "text_duration")]
    pub offsets_retention: Duration,
    /// Longest note kept with an offset, in bytes. Default 4096. Kafka: `offset.metadata.max.bytes`.
    pub max_offset_metadata_bytes: usize,
    /// Partitions of `__consumer_offsets` when it is made, which is at the first need. Default 1.
    /// Kafka: `offsets.topic.num.partitions`, 50.
    pub offsets_partitions: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min_session_timeout: Duration::from_secs(6),
            max_session_timeout: Duration::from_secs(1800),
            initial_rebalance_delay: Duration::from_secs(3),
            max_members: 10_000,
            max_groups: 100_000,
            max_member_bytes: ByteSize::mib(1),
            offsets_retention: Duration::from_secs(168 * 3600),
            max_offset_metadata_bytes: 4096,
            offsets_partitions: 1,
        }
    }
}

impl Config {
    /// All problems, for the broker's own check.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let checks = [
            (
                self.min_session_timeout >= Duration::from_millis(1),
                "groups.min_session_timeout",
                "must be above 0",
            ),
            (
                self.max_session_timeout >= self.min_session_timeout,
                "groups.max_session_timeout",
                "is below groups.min_session_timeout: no member could join",
            ),
            (
                self.max_session_timeout <= Duration::from_millis(i32::MAX as u64),
                "groups.max_session_timeout",
                "is longer than the 24 days that the protocol can say",
            ),
            (
                self.max_members >= 1,
                "groups.max_members",
                "must be at least 1",
            ),
            (
                self.max_groups >= 1,
                "groups.max_groups",
                "must be at least 1",
            ),
            (
                (1..=1000).contains(&self.offsets_partitions),
                "groups.offsets_partitions",
                "is outside 1..=1000",
            ),
        ];
        let wrong = checks.into_iter().filter(|(ok, ..)| !ok);
        wrong
            .map(|(_, key, what)| Problem {
                key,
                what: what.to_owned(),
            })
            .collect()
    }
}
