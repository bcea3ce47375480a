//! Retention: whole segments go from the head, by age and by size.
//!
//! ```text
//!   older than retention.ms     over retention.bytes      stays
//! ┌──────────┬───────────────┬──────────────────────┬──────────────┬────────┐
//! │ segment  │ segment       │ segment              │ segment      │ active │   never above the high watermark
//! └──────────┴───────────────┴──────────────────────┴──────────────┴────────┘
//!                                                   └─ the log start afterwards
//! ```
//! - A segment's age counts from its largest timestamp. Where that is absurd (there is none, or it lies in the future) it
//!   counts from the last change of its file, so that one wrong stamp does not keep a partition for ever (KAFKA-20609).
//! - Age ends at the first segment that is young enough, also if older ones follow: the log has no holes.
//! - The active segment goes like any other; a new, empty one takes its place.
//! - The files go at once: readers that have them open read on (there is no `file.delete.delay.ms`).
//!
//! The time comes in as an argument. It must not jump ahead: deleting cannot be taken back.

use std::sync::Arc;

use tracing::info;

use crate::error::Result;
use crate::partition_log::PartitionLog;
use crate::segment::Segment;

/// A stamp further ahead of the clock than this is not believed, whatever the topic allows.
const MAX_AHEAD_MS: i64 = 24 * 3_600_000;

/// Why a segment was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Its newest record was older than `retention.ms`.
    Age {
        /// How old, in milliseconds.
        age_ms: i64,
    },
    /// The partition was larger than `retention.bytes`.
    Size {
        /// Its size before the segment went, in bytes.
        log_bytes: u64,
    },
}

/// A segment that retention has deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletedSegment {
    /// Its first offset.
    pub base_offset: i64,
    /// Behind its last offset.
    pub end_offset: i64,
    /// Bytes of its log.
    pub bytes: u64,
    /// Why.
    pub expiry: Expiry,
}

impl PartitionLog {
    /// Deletes the segments at the head that are older than [`crate::LogConfig::retention_ms`] or that make the
    /// partition larger than [`crate::LogConfig::retention_bytes`], and moves the log start behind them, durably. Logs
    /// a line for each. `now_ms` is a clock that does not jump ahead.
    ///
    /// # Errors
    /// As [`PartitionLog::advance_log_start`].
    pub fn delete_old_segments(&mut self, now_ms: i64) -> Result<Vec<DeletedSegment>> {
        self.check_online()?;
        let expired = self.expired_segments(now_ms)?;
        let Some(last) = expired.last() else {
            return Ok(expired);
        };
        self.advance_log_start(last.end_offset)?;
        for segment in &expired {
            info!(
                topic = %self.id.topic, partition = self.id.partition,
                base_offset = segment.base_offset, end_offset = segment.end_offset,
                bytes = segment.bytes, expiry = ?segment.expiry, "retention deleted a segment"
            );
        }
        Ok(expired)
    }

    fn expired_segments(&self, now_ms: i64) -> Result<Vec<DeletedSegment>> {
        let mut expired = Vec::new();
        if !self.config.deletes {
            return Ok(expired);
        }
        let mut log_bytes = self.size_in_bytes();
        let mut by_age = self.config.retention_ms;
        for segment in &self.segments {
            let state = segment.state();
            if state.size == 0 || state.end_offset > self.high_watermark {
                break;
            }
            let mut expiry = None;
            if let Some(retention_ms) = by_age {
                let age_ms = now_ms.saturating_sub(self.newest_ms(segment, now_ms)?);
                expiry = (age_ms > retention_ms).then_some(Expiry::Age { age_ms });
                // Younger than it may be: those behind it are not older in the order of the log.
                by_age = by_age.filter(|_| expiry.is_some());
            }
            let over = |limit| log_bytes.saturating_sub(state.size) >= limit;
            if expiry.is_none() && self.config.retention_bytes.is_some_and(over) {
                expiry = Some(Expiry::Size { log_bytes });
            }
            let Some(expiry) = expiry else { break };
            log_bytes = log_bytes.saturating_sub(state.size);
            expired.push(DeletedSegment {
                base_offset: segment.base_offset(),
                end_offset: state.end_offset,
                bytes: state.size,
                expiry,
            });
        }
        Ok(expired)
    }

    /// The time a segment's age counts from, in milliseconds.
    pub(crate) fn newest_ms(&self, segment: &Arc<Segment>, now_ms: i64) -> Result<i64> {
        let ahead_ms = self.config.timestamp_after_max_ms.min(MAX_AHEAD_MS);
        let largest = segment.state().largest.map(|largest| largest.timestamp_ms);
        match largest.filter(|stamp| *stamp <= now_ms.saturating_add(ahead_ms)) {
            Some(stamp) => Ok(stamp),
            None => {
                let info = self.pool.disk().info(segment.path());
                let info = info.map_err(|source| segment.io("look at", source))?;
                // A missing file is somebody's fault that deleting more would not mend.
                Ok(info.map_or(now_ms, |info| info.modified_ms))
            }
        }
    }
}
