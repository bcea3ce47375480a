//! What goes into a producer and what comes back.

use std::pin::Pin;
use std::task::{Context, Poll};

use broker_protocol::ids::TopicName;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// A record to be produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerRecord {
    /// Where to.
    pub topic: TopicName,
    /// The partition; chosen by the key if none, and without a key the producer sticks to one for a
    /// batch.
    pub partition: Option<i32>,
    /// The key.
    pub key: Option<Bytes>,
    /// The value; none is a tombstone.
    pub value: Option<Bytes>,
    /// Headers in order; names may repeat.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// Milliseconds since the epoch; the producer's clock if none.
    pub timestamp_ms: Option<i64>,
}

impl ProducerRecord {
    /// A record with a value and nothing else.
    pub fn new(topic: TopicName, value: impl Into<Bytes>) -> Self {
        Self {
            value: Some(value.into()),
            ..Self::tombstone(topic)
        }
    }

    /// A record without value.
    pub fn tombstone(topic: TopicName) -> Self {
        let (key, value) = (None, None);
        Self {
            topic,
            partition: None,
            key,
            value,
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }

    /// Sets the partition.
    #[must_use]
    pub fn with_partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Sets the key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Option<Bytes>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the timestamp, milliseconds since the epoch.
    #[must_use]
    pub fn with_timestamp_ms(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }

    /// An upper bound of the record's size in a batch, before compression.
    pub(crate) fn size(&self) -> usize {
        /// Length, attributes, two deltas, three lengths or counts: at most this as varints.
        const FIXED: usize = 40;
        /// Two lengths as varints.
        const PER_HEADER: usize = 10;
        let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let headers = self
            .headers
            .iter()
            .map(|(name, value)| PER_HEADER + name.len() + length(value));
        FIXED + length(&self.key) + length(&self.value) + headers.sum::<usize>()
    }
}

/// Where a record came to lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Its partition.
    pub partition: i32,
    /// Its offset; -1 if the broker only knows that the record is in the log already.
    pub offset: i64,
    /// Its timestamp in the log, milliseconds since the epoch.
    pub timestamp_ms: i64,
}

/// The confirmation of a record, to be awaited or dropped; dropping it does not recall the record.
#[derive(Debug)]
pub struct DeliveryHandle {
    pub(crate) confirmed: oneshot::Receiver<Result<Delivery>>,
}

impl Future for DeliveryHandle {
    type Output = Result<Delivery>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.confirmed)
            .poll(cx)
            .map(|confirmed| confirmed.unwrap_or_else(|_| Err(Error::Closed)))
    }
}
