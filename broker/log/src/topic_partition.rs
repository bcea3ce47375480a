//! Names of partitions and of their directories.

use std::fmt;

use broker_protocol::ids::TopicName;
use uuid::Uuid;

/// A partition of a topic. Displayed as Kafka names its directory: `orders-3`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: TopicName,
    /// The partition, from 0.
    pub partition: i32,
}

/// Longest file name on the usual file systems, in bytes.
const MAX_NAME_BYTES: usize = 255;
const DELETE_SUFFIX: &str = "-delete";

impl TopicPartition {
    /// Names a partition.
    #[must_use]
    pub fn new(topic: TopicName, partition: i32) -> Self {
        Self { topic, partition }
    }

    /// The name of the partition's directory, `<topic>-<partition>`.
    #[must_use]
    pub fn directory_name(&self) -> String {
        self.to_string()
    }

    /// Reads a directory name back: the part behind the last `-` is the partition (topic names may hold `-` too).
    /// `None` for anything else, for example a partition with a sign or leading zeros.
    #[must_use]
    pub fn from_directory_name(name: &str) -> Option<Self> {
        let (topic, digits) = name.rsplit_once('-')?;
        let partition: i32 = digits.parse().ok()?;
        if partition < 0 || partition.to_string() != digits {
            return None;
        }
        Some(Self {
            topic: TopicName::new(topic).ok()?,
            partition,
        })
    }

    /// The name a directory gets before it is removed, as Kafka builds it: `<topic>-<partition>.<32 hex digits>-delete`,
    /// the topic cut so that the whole fits a file name.
    pub(crate) fn deleted_directory_name(&self, unique: Uuid) -> String {
        let suffix = format!("-{}.{}{DELETE_SUFFIX}", self.partition, unique.simple());
        let mut name = self.topic.as_str().to_owned();
        name.truncate(MAX_NAME_BYTES - suffix.len());
        name + &suffix
    }

    /// True for the name of a directory that was being removed.
    pub(crate) fn is_deleted_directory_name(name: &str) -> bool {
        name.strip_suffix(DELETE_SUFFIX)
            .and_then(|rest| rest.rsplit_once('.'))
            .is_some_and(|(_, unique)| {
                unique.len() == 32 && unique.bytes().all(|byte| byte.is_ascii_hexdigit())
            })
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str) -> Option<(String, i32)> {
        TopicPartition::from_directory_name(name)
            .map(|id| (id.topic.as_str().to_owned(), id.partition))
    }

    #[test]
    fn directory_name_splits_at_the_last_dash() {
        assert_eq!(parsed("page-views-12"), Some(("page-views".to_owned(), 12)));
        assert_eq!(parsed("a--0"), Some(("a-".to_owned(), 0)));
        for name in [
            "orders",
            "orders-",
            "-1",
            "orders-x",
            "orders-01",
            "orders-+1",
            "a b-1",
        ] {
            assert_eq!(parsed(name), None, "{name}");
        }
    }

    #[test]
    fn deleted_name_is_known_again_and_never_a_partition() {
        let long = TopicPartition::new(TopicName::new("x".repeat(249)).unwrap(), i32::MAX);
        let name = long.deleted_directory_name(Uuid::from_u128(7));
        assert_eq!(name.len(), MAX_NAME_BYTES);
        assert!(TopicPartition::is_deleted_directory_name(&name));
        assert_eq!(parsed(&name), None);
        assert!(!TopicPartition::is_deleted_directory_name(
            "my.topic-delete"
        ));
    }
}
