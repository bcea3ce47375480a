//! The wall clock as a dependency, so that tests own the time.

use std::fmt::Debug;

/// Where the broker takes the wall clock from: append times, and the bound on future time stamps.
///
/// Nothing measures a duration with it; time-outs use the runtime's monotonic timer.
pub trait Clock: Debug + Send + Sync {
    /// Milliseconds since the epoch, UTC.
    fn now_ms(&self) -> i64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        jiff::Timestamp::now().as_millisecond()
    }
}
