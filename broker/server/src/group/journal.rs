//! The topic in which groups are written down, `__consumer_offsets`: which partition a group has, appending to it,
//! reading it at the start.
//!
//! It is an ordinary compacted topic, in Apache Kafka's record format, made at the first need.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex, PoisonError},
};

use broker_log::{PartitionReader, ReadLimits};
use broker_protocol::{
    ByteString, ErrorCode, TopicName,
    record::{BatchBuilder, Compression, RecordBatch, batches},
};
use bytes::Bytes;
use tracing::{info, warn};

use super::{
    records::{Entry, Key, decode},
    state::Journal,
};
use crate::{
    clock::Clock,
    partition::{Now, Partition},
    topic_config::{CONSUMER_OFFSETS as TOPIC, Overrides},
    topics::{ChangeError, Topic, Topics},
};

/// Bytes read at a time at the start.
const READ_BYTES: usize = 1 << 20;
/// Bound on one decompressed batch. Those written here are far smaller and not compressed.
const MAX_DECOMPRESSED: usize = 128 << 20;

/// The topic.
#[derive(Debug)]
pub(crate) struct OffsetsTopic {
    topics: Arc<Topics>,
    clock: Arc<dyn Clock>,
    partitions: usize,
    /// Held while the topic is made, so that it is made once.
    making: Mutex<()>,
}

impl OffsetsTopic {
    pub(crate) fn new(topics: Arc<Topics>, clock: Arc<dyn Clock>, partitions: usize) -> Self {
        Self {
            topics,
            clock,
            partitions,
            making: Mutex::new(()),
        }
    }

    /// Where a group is written.
    pub(crate) fn of_group(&self, group: ByteString) -> GroupJournal<'_> {
        GroupJournal {
            topic: self,
            group,
            owed: RefCell::default(),
        }
    }

    fn existing(&self) -> Option<Arc<Topic>> {
        self.topics.get(TOPIC)
    }

    /// Whether there is a topic of this name.
    pub(crate) fn knows(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some()
    }

    pub(crate) fn is_there(&self) -> bool {
        self.existing().is_some()
    }

    /// Makes the topic if it is missing. Blocks on the disk then.
    ///
    /// # Errors
    /// It cannot be made now; clients try again.
    pub(crate) fn make(&self) -> Result<(), ErrorCode> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_there() {
            return Ok(());
        }
        self.create().map(|_| ()).map_err(|error| {
            warn!(
                error = &error as &dyn std::error::Error,
                "{TOPIC} cannot be made"
            );
            ErrorCode::CoordinatorNotAvailable
        })
    }

    fn create(&self) -> Result<Arc<Topic>, ChangeError> {
        let name = TopicName::new(TOPIC).map_err(|_| ChangeError::Unknown)?;
        let overrides = [
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", "104857600"),
        ];
        let overrides = overrides.map(|(key, value)| (key.to_owned(), value.to_owned()));
        self.topics
            .create(&name, self.partitions, Overrides::from(overrides))
    }

    /// Reads everything that is there, in order. Blocks on the disk. What cannot be read is logged and left out.
    pub(crate) fn read_all(&self, mut take: impl FnMut(Entry)) {
        let Some(topic) = self.existing() else { return };
        for partition in topic.partitions.iter().flatten() {
            if let Err(error) = read_partition(partition.reader(), &mut take) {
                let error = &*error as &dyn std::error::Error;
                warn!(partition = %partition.id(), error, "group state is read in part only");
            }
        }
    }
}

fn read_partition(
    reader: &PartitionReader,
    take: &mut impl FnMut(Entry),
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (mut offset, end) = (reader.offsets().log_start, reader.offsets().log_end);
    while offset < end {
        let limits = ReadLimits {
            max_bytes: READ_BYTES,
            min_one_batch: true,
            up_to_offset: end,
        };
        let slice = reader.slice(offset, limits)?;
        if slice.is_empty() {
            return Ok(());
        }
        let next = slice.end_offset();
        for batch in batches(slice.read()?) {
            let records = batch?.records(MAX_DECOMPRESSED)?;
            for record in &records {
                let record = record?;
                match decode(record.key, record.value) {
                    Ok(entry) => take(entry),
                    Err(error) => warn!(
                        offset = record.offset,
                        error = &error as &dyn std::error::Error,
                        "a record of {TOPIC} is not understood and left out"
                    ),
                }
            }
        }
        offset = next;
    }
    info!(records_end = end, "group state read");
    Ok(())
}

/// Where one group is written: always the same partition, so that its records stay in order.
#[derive(Debug)]
pub(crate) struct GroupJournal<'a> {
    topic: &'a OffsetsTopic,
    group: ByteString,
    owed: RefCell<Option<Owed>>,
}

/// A flush that is to come before an answer says that something is written: up to where, of which partition.
#[derive(Debug, Clone)]
pub(crate) struct Owed {
    pub(crate) partition: Arc<Partition>,
    pub(crate) end_offset: i64,
}

/// Bytes of a batch and its one record that are neither key nor value, at most.
const BATCH_OVERHEAD: usize = 100;

impl GroupJournal<'_> {
    fn partition(&self) -> Result<Arc<Partition>, ErrorCode> {
        let topic = self.topic.existing();
        let topic = topic.ok_or(ErrorCode::CoordinatorNotAvailable)?;
        let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        let index = java_hash(&self.group) & i32::MAX;
        let index = index.checked_rem(count).unwrap_or(0);
        topic.partition(index).cloned()
    }

    /// The flush that what was written owes, if any.
    pub(crate) fn into_owed(self) -> Option<Owed> {
        self.owed.into_inner()
    }
}

impl Journal for GroupJournal<'_> {
    fn write(&self, records: &[(Key, Option<Bytes>)]) -> Result<(), ErrorCode> {
        let now_ms = self.topic.clock.now_ms();
        let mut builder = BatchBuilder::new(Compression::None);
        for (key, value) in records {
            builder
                .push(now_ms, Some(&key.encode()), value.as_deref(), &[])
                .map_err(|_| ErrorCode::InvalidCommitOffsetSize)?;
        }
        let batch = builder.build().ok();
        let batch = batch.and_then(|bytes| RecordBatch::parse(bytes).ok());
        let batch = batch.ok_or(ErrorCode::InvalidCommitOffsetSize)?;
        let now = Now {
            wall_ms: now_ms,
            monotonic: self.topic.clock.monotonic(),
        };
        let partition = self.partition()?;
        // As with acks=all: where only what is flushed counts, this does too.
        let placed = partition.append_one(batch, now).map_err(|error| {
            warn!(group = %self.group, error = error.message(), "group state not written");
            let too_large = [ErrorCode::MessageTooLarge, ErrorCode::RecordListTooLarge];
            if too_large.contains(&error.error_code()) {
                ErrorCode::InvalidCommitOffsetSize
            } else {
                // Clients look for the coordinator again, and retry.
                ErrorCode::CoordinatorNotAvailable
            }
        })?;
        if placed.owes_flush(true) {
            self.owed.replace(Some(Owed {
                end_offset: placed.appended.end_offset,
                partition,
            }));
        }
        Ok(())
    }

    fn max_record_bytes(&self) -> usize {
        let topic = self.topic.existing();
        topic.map_or(usize::MAX, |topic| {
            let largest = topic.config.log().max_batch_bytes;
            largest.saturating_sub(BATCH_OVERHEAD)
        })
    }
}

/// Java's `String.hashCode`, by which Apache Kafka finds a group's partition.
fn java_hash(text: &str) -> i32 {
    let units = text.encode_utf16();
    units.fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hash_as_java_does() {
        for (text, hash) in [("", 0), ("a", 97), ("group", 98_629_247), ("日本", 835_047)] {
            assert_eq!(java_hash(text), hash, "{text}");
        }
        assert!(java_hash("a rather long name of a group") != java_hash("another"));
    }
}
