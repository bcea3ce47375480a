//! When a log is flushed, and what a flush shows to consumers.
//!
//! ```text
//!              recovery_point                 log_end
//! ──────────────────┬────────────────────────────┬────► offset
//!      flushed      │    unflushed_records()     │
//!                   └─ visibility `flushed`      └─ visibility `committed`: the high watermark of one replica
//! ```
//! The log counts; who owns it waits and schedules. Several appends that owe a flush share one: whoever comes first
//! flushes everything up to the log end of that moment.

use crate::config::Visibility;
use crate::error::Result;
use crate::partition_log::{Flush, PartitionLog};

impl PartitionLog {
    /// Records appended since the last flush.
    #[must_use]
    pub fn unflushed_records(&self) -> i64 {
        self.log_end - self.recovery_point
    }

    /// True if `flush.messages` records wait for a flush: the append that made them so many is answered after it.
    #[must_use]
    pub fn owes_flush(&self) -> bool {
        let unflushed = self.unflushed_records();
        unflushed > 0 && unflushed >= self.config.flush_messages
    }

    /// [`PartitionLog::prepare_flush`] for a log that still takes writes. After a failed sync another one may
    /// succeed without having written anything, so it must not be believed.
    ///
    /// # Errors
    /// [`crate::Error::Offline`].
    pub fn begin_flush(&mut self) -> Result<Flush> {
        self.check_online()?;
        Ok(self.prepare_flush())
    }

    /// Moves the high watermark as far as a single replica may: to the log end, or with [`Visibility::Flushed`] to the
    /// recovery point. Never back. Returns true if it moved.
    pub fn advance_high_watermark(&mut self) -> bool {
        let visible = match self.config.visibility {
            Visibility::Committed => self.log_end,
            Visibility::Flushed => self.recovery_point,
        };
        let moves = visible > self.high_watermark;
        if moves {
            self.set_high_watermark(visible);
        }
        moves
    }
}
