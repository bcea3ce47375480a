//! The wall clock as a dependency, so that tests own the time.

use std::{
    fmt::Debug,
    sync::LazyLock,
    time::{Duration, Instant},
};

/// What [`Clock::monotonic`] counts from.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Where the broker takes the wall clock from: append times, and the bound on future time stamps.
///
/// Nothing measures a duration with the wall clock; time-outs use the runtime's monotonic timer.
pub trait Clock: Debug + Send + Sync {
    /// Milliseconds since the epoch, UTC.
    fn now_ms(&self) -> i64;

    /// Time since some moment in the life of the process. Never goes back and never jumps; by default the
    /// machine's monotonic timer.
    fn monotonic(&self) -> Duration {
        START.elapsed()
    }
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        jiff::Timestamp::now().as_millisecond()
    }
}
