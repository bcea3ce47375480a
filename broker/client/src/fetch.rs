//! One fetch of one partition: the request, the answer, and the batches in it. No I/O.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use broker_protocol::ids::TopicName;
use broker_protocol::messages::fetch::{FetchPartition, FetchTopic, PartitionData};
use broker_protocol::messages::{FetchRequest, FetchResponse, Payload};
use broker_protocol::record::{self, Batches, RecordBatch};

use crate::aborted::{AbortedTransactions, BatchKind};
use crate::client::Answer;
use crate::connection::FrameFault;
use crate::error::{BatchFault, Error, Result};
use crate::metadata::Leader;
use crate::offsets::IsolationLevel;

/// Versions that name topics.
pub(crate) const BY_NAME: RangeInclusive<i16> = 4..=12;
/// Versions that know topics by id only.
pub(crate) const BY_ID: RangeInclusive<i16> = 13..=i16::MAX;

/// A whole record batch and what it is to its reader. It keeps the response it came in in memory.
#[derive(Debug, Clone)]
pub struct FetchedBatch {
    /// The batch, its CRC checked. It may reach beyond the range asked for at either end.
    pub batch: RecordBatch,
    /// Whether its records count.
    pub kind: BatchKind,
}

/// What to ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) topic: &'a TopicName,
    pub(crate) partition: i32,
    pub(crate) position: i64,
    pub(crate) isolation: IsolationLevel,
    pub(crate) max_wait: Duration,
    pub(crate) max_bytes: usize,
    pub(crate) partition_max_bytes: usize,
}

fn size(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

impl Question<'_> {
    /// A sessionless request for this one partition.
    pub(crate) fn request(&self, leader: &Leader, version: i16) -> FetchRequest {
        let by_id = BY_ID.contains(&version);
        let partition = FetchPartition {
            partition: self.partition,
            current_leader_epoch: leader.leader_epoch.unwrap_or(-1),
            fetch_offset: self.position,
            partition_max_bytes: size(self.partition_max_bytes),
            ..Default::default()
        };
        let topic = FetchTopic {
            topic: if by_id {
                Default::default()
            } else {
                self.topic.to_byte_string()
            },
            topic_id: leader
                .topic_id
                .filter(|_| by_id)
                .map_or_else(Default::default, |id| id.0),
            partitions: vec![partition],
        };
        FetchRequest {
            replica_id: -1,
            max_wait_ms: i32::try_from(self.max_wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: 1,
            max_bytes: size(self.max_bytes.max(self.partition_max_bytes)),
            isolation_level: self.isolation.code(),
            session_id: 0,
            session_epoch: -1,
            topics: vec![topic],
            ..Default::default()
        }
    }

    /// The partition's part of the answer.
    pub(crate) fn read(&self, response: FetchResponse, address: &Arc<str>) -> Result<Answered> {
        let throttle = u64::try_from(response.throttle_time_ms).unwrap_or(0);
        self.check(response.error_code)?;
        let found = response
            .responses
            .into_iter()
            .flat_map(|topic| topic.partitions)
            .find(|found| found.partition_index == self.partition)
            .ok_or_else(|| FrameFault::Incomplete("fetched partition").at(address))?;
        self.check(found.error_code)?;
        Ok(Answered {
            throttle: Duration::from_millis(throttle),
            partition: found,
        })
    }

    fn check(&self, code: i16) -> Result<()> {
        let (topic, partition) = (Some(self.topic), Some(self.partition));
        Answer {
            operation: "Fetch",
            code,
            topic,
            partition,
            message: None,
        }
        .check()
    }
}

/// A partition's part of an answer.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) throttle: Duration,
    partition: PartitionData,
}

impl Answered {
    /// End (exclusive) of what a reader of this isolation level may see now.
    pub(crate) fn visible_end(&self, isolation: IsolationLevel) -> i64 {
        match isolation {
            IsolationLevel::ReadUncommitted => self.partition.high_watermark,
            IsolationLevel::ReadCommitted => self.partition.last_stable_offset,
        }
    }

    pub(crate) fn size_in_bytes(&self) -> usize {
        self.partition.records.as_ref().map_or(0, Payload::len)
    }

    /// The batches of the answer, from `position` to `end` (exclusive).
    pub(crate) fn batches(self, place: Place, isolation: IsolationLevel) -> AnsweredBatches {
        let aborted = match isolation {
            IsolationLevel::ReadUncommitted => AbortedTransactions::default(),
            IsolationLevel::ReadCommitted => AbortedTransactions::new(
                self.partition
                    .aborted_transactions
                    .as_deref()
                    .unwrap_or_default(),
            ),
        };
        AnsweredBatches {
            place,
            batches: record::batches(self.partition.records.unwrap_or_default().into_bytes()),
            aborted,
            found: false,
        }
    }
}

/// Where a reader is and what it accepts.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) topic: TopicName,
    pub(crate) partition: i32,
    /// Next offset to read.
    pub(crate) position: i64,
    /// End (exclusive) of the range.
    pub(crate) end: i64,
    /// Largest batch.
    pub(crate) max_batch_bytes: usize,
}

impl Place {
    fn corrupt(&self, offset: i64, fault: impl Into<BatchFault>) -> Error {
        Error::CorruptBatch {
            topic: self.topic.clone(),
            partition: self.partition,
            offset,
            source: fault.into(),
        }
    }

    pub(crate) fn too_large(&self, offset: i64, size: usize) -> Error {
        Error::BatchTooLarge {
            topic: self.topic.clone(),
            partition: self.partition,
            offset,
            size,
            cap: self.max_batch_bytes,
        }
    }
}

/// Checks and classifies batch by batch; moves the position by their headers.
#[derive(Debug)]
pub(crate) struct AnsweredBatches {
    place: Place,
    batches: Batches,
    aborted: AbortedTransactions,
    found: bool,
}

impl AnsweredBatches {
    /// Where the next fetch goes on.
    pub(crate) fn position(&self) -> i64 {
        self.place.position
    }

    /// After the end: what to make of an incomplete batch if no whole one came. `asked` is the size
    /// the answer could have had. The size to ask for instead, or the reason to give up.
    pub(crate) fn grow(&self, asked: usize) -> Result<Option<usize>> {
        if self.found || !self.batches.is_partial_tail() {
            return Ok(None);
        }
        let place = &self.place;
        match self.batches.partial_size() {
            Some(size) if size > place.max_batch_bytes => {
                Err(place.too_large(place.position, size))
            }
            // All of it was asked for and not all of it came.
            Some(needed) if needed <= asked => {
                let available = self.batches.remaining();
                Err(place.corrupt(
                    place.position,
                    record::Error::Truncated { needed, available },
                ))
            }
            Some(size) => Ok(Some(size)),
            None if asked >= place.max_batch_bytes => Err(place.too_large(place.position, asked)),
            None => Ok(Some(asked.saturating_mul(2).min(place.max_batch_bytes))),
        }
    }

    fn accept(&mut self, batch: RecordBatch) -> Result<Option<FetchedBatch>> {
        let place = &self.place;
        let header = batch.header();
        let base_offset = header.base_offset;
        let size = batch.bytes().len();
        if size > place.max_batch_bytes {
            return Err(place.too_large(base_offset.max(place.position), size));
        }
        batch
            .check_crc()
            .map_err(|fault| place.corrupt(base_offset, fault))?;
        // Brokers start with the batch that holds the offset: only the first may begin before it.
        if self.found && base_offset < place.position {
            let fault = BatchFault::OutOfOrder {
                expected: place.position,
                found: base_offset,
            };
            return Err(place.corrupt(base_offset, fault));
        }
        let control = batch
            .control_type()
            .map_err(|fault| place.corrupt(base_offset, fault))?;
        let kind = self.aborted.classify(header, control);
        let next_offset = header.next_offset();
        if next_offset <= place.position {
            return Ok(None);
        }
        self.found = true;
        if base_offset >= place.end {
            // The log has nothing between the last batch and this one.
            self.place.position = place.end;
            return Ok(None);
        }
        self.place.position = next_offset;
        Ok(Some(FetchedBatch { batch, kind }))
    }
}

impl Iterator for AnsweredBatches {
    type Item = Result<FetchedBatch>;

    /// After an error the position is that of the batch at fault.
    fn next(&mut self) -> Option<Self::Item> {
        while self.place.position < self.place.end {
            let accepted = match self.batches.next()? {
                Ok(batch) => self.accept(batch),
                Err(fault) => Err(self.place.corrupt(self.place.position, fault)),
            };
            if let Some(item) = accepted.transpose() {
                return Some(item);
            }
        }
        None
    }
}
