//! The times of produced records: `message.timestamp.before.max.ms`, `message.timestamp.after.max.ms` and, as
//! a warning, `retention.ms`.
//!
//! Deviations from Apache Kafka: whether a record lies too far ahead is first asked of the batch's largest time, and
//! its records are looked at only if that does; a batch that understates it is believed. What lies too far behind
//! is asked of the records themselves, if the topic sets such a limit. Records without a time (−1) pass, as in Kafka.

use broker_log::{LogConfig, TimestampType};
use broker_protocol::{
    messages::produce::BatchIndexAndErrorMessage,
    record::{BatchHeader, RecordBatch},
};

/// A record without a time.
const NO_TIME: i64 = -1;
/// The time around which seconds since 1970 lie today, as milliseconds: 1970 + 11 days to 1970 + 46 days.
const LIKELY_SECONDS: std::ops::Range<i64> = 1_000_000_000..4_000_000_000;

/// What a topic takes at a moment; both ends inclusive, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    from_ms: i64,
    to_ms: i64,
    keeps_from_ms: i64,
    /// The broker stamps them itself.
    ignores: bool,
}

impl Window {
    /// The window of a topic now.
    pub(super) fn new(log: &LogConfig, now_ms: i64) -> Self {
        let retention_ms = log.retention_ms.filter(|_| log.deletes);
        Self {
            from_ms: now_ms.saturating_sub(log.timestamp_before_max_ms),
            to_ms: now_ms.saturating_add(log.timestamp_after_max_ms),
            keeps_from_ms: retention_ms.map_or(i64::MIN, |age| now_ms.saturating_sub(age)),
            ignores: log.timestamp_type == TimestampType::LogAppendTime,
        }
    }

    /// Whether the records must be looked at.
    pub(super) fn is_doubtful(&self, header: &BatchHeader) -> bool {
        // Before 1970 nothing has a time but by mistake, and a limit that reaches there is none.
        !self.ignores && (header.max_timestamp > self.to_ms || self.from_ms > 0)
    }

    /// Looks at every record. Decompresses within `limit` bytes.
    ///
    /// # Errors
    /// The sentence for the client, and one for each record at fault.
    pub(super) fn check(
        &self,
        batch: &RecordBatch,
        limit: usize,
    ) -> Result<(), (String, Vec<BatchIndexAndErrorMessage>)> {
        let records = match batch.records(limit) {
            Ok(records) => records,
            Err(error) => return Err((error.to_string(), Vec::new())),
        };
        let mut faults = Vec::new();
        for (batch_index, record) in (0..).zip(records.iter()) {
            match record {
                Ok(record) if self.takes(record.timestamp) => {}
                Ok(record) => faults.push(BatchIndexAndErrorMessage {
                    batch_index,
                    batch_index_error_message: Some(self.sentence(record.timestamp).into()),
                }),
                Err(error) => return Err((error.to_string(), Vec::new())),
            }
        }
        let largest = batch.header().max_timestamp;
        if !faults.is_empty() {
            let what = "one or more records have been refused: their timestamps are out of range";
            return Err((what.to_owned(), faults));
        }
        if self.takes(largest) {
            Ok(())
        } else {
            Err((self.sentence(largest), faults))
        }
    }

    fn takes(&self, time_ms: i64) -> bool {
        time_ms == NO_TIME || (self.from_ms..=self.to_ms).contains(&time_ms)
    }

    fn sentence(&self, time_ms: i64) -> String {
        let Self { from_ms, to_ms, .. } = self;
        format!(
            "timestamp {time_ms} is outside [{from_ms}, {to_ms}] \
             (message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
        )
    }

    /// Whether retention would delete a record of this time at once.
    pub(super) fn is_expired(&self, time_ms: i64) -> bool {
        !self.ignores && time_ms >= 0 && time_ms < self.keeps_from_ms
    }
}

/// What a time looks like, for a warning.
pub(super) fn likely_unit(time_ms: i64) -> &'static str {
    if LIKELY_SECONDS.contains(&time_ms) {
        "looks like seconds where milliseconds are meant"
    } else {
        "milliseconds"
    }
}

#[cfg(test)]
mod tests {
    use broker_protocol::record::{BatchBuilder, Compression};

    use super::*;

    const NOW_MS: i64 = 1_700_000_000_000;

    fn batch(times: &[i64]) -> RecordBatch {
        let mut builder = BatchBuilder::new(Compression::Lz4);
        for time in times {
            builder.push(*time, None, Some(b"value"), &[]).unwrap();
        }
        RecordBatch::parse(builder.build().unwrap()).unwrap()
    }

    fn faults(window: Window, times: &[i64]) -> Vec<i32> {
        let batch = batch(times);
        if !window.is_doubtful(batch.header()) {
            return Vec::new();
        }
        match window.check(&batch, 1 << 20) {
            Ok(()) => Vec::new(),
            Err((_, faults)) => faults.iter().map(|fault| fault.batch_index).collect(),
        }
    }

    #[test]
    fn records_outside_the_window_are_named_and_those_without_a_time_pass() {
        let window = Window::new(&LogConfig::default(), NOW_MS);
        let hour = 3_600_000;
        assert_eq!(faults(window, &[0, -1, NOW_MS + hour]), [] as [i32; 0]);
        assert_eq!(
            faults(window, &[0, NOW_MS + hour + 1, 5, NOW_MS * 1000]),
            [1, 3]
        );
        let both = LogConfig {
            timestamp_before_max_ms: 1000,
            ..LogConfig::default()
        };
        let window = Window::new(&both, NOW_MS);
        assert_eq!(
            faults(window, &[-1, NOW_MS - 1000, NOW_MS - 1001, NOW_MS]),
            [2]
        );
        let broker_time = LogConfig {
            timestamp_type: TimestampType::LogAppendTime,
            ..both
        };
        assert!(!Window::new(&broker_time, NOW_MS).is_doubtful(batch(&[i64::MAX]).header()));
    }

    #[test]
    fn what_retention_would_delete_at_once_is_known() {
        let window = Window::new(&LogConfig::default(), NOW_MS);
        let week = 7 * 24 * 3_600_000;
        assert!(window.is_expired(NOW_MS - week - 1) && window.is_expired(NOW_MS / 1000));
        assert!(!window.is_expired(NOW_MS - week) && !window.is_expired(-1));
        assert!(likely_unit(NOW_MS / 1000).contains("seconds"));
        assert_eq!(likely_unit(NOW_MS), "milliseconds");
        let compacted = LogConfig {
            deletes: false,
            ..LogConfig::default()
        };
        assert!(!Window::new(&compacted, NOW_MS).is_expired(0));
    }
}
