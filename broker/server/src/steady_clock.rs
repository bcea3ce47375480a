//! The wall clock as far as it can be believed, for what cannot be taken back: retention and compaction.
//!
//! ```text
//!            wall clock jumps ahead          and back
//!  wall  ────────────┐                   ┌────────────
//!                    └───────────────────┘              (upwards is later)
//!  here  ─────────────────────────────────────────────  goes on with the monotonic timer
//! ```
//! A clock that runs beside the monotonic timer is believed. One that jumps ahead is not, until it has run beside
//! the timer for a [day](DOUBT) since; one that jumps back is followed at once, since that deletes less. So what is
//! younger than its retention time by the monotonic timer stays, whatever the wall clock does for less than a day, and a
//! clock that was wrong at the start and has been set right counts a day later.
//!
//! At the start there is no timer to compare with. If the data directory was written last more than an
//! [hour](GAP) ago by the clock, either the broker was down so long or the clock has jumped: the time goes on
//! from the last write, and the rest is believed a day later, too. Consumers that were down as long get that day.

use std::{sync::Mutex, sync::PoisonError, time::Duration};

use tracing::{info, warn};

use crate::{clock::Clock, topic_config::millis};

/// Time a wall clock must run beside the monotonic timer after a jump until it is believed.
const DOUBT: Duration = Duration::from_secs(24 * 3600);
/// Longest time without a write to the data directory that is taken for an ordinary restart.
const GAP: Duration = Duration::from_secs(3600);
/// A jump that is worth a line in the log.
const NOTABLE_MS: i64 = 60_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct SteadyClock(Mutex<State>);

#[derive(Debug, Clone, Copy)]
struct State {
    /// Wall clock less monotonic timer, in milliseconds, as believed.
    offset_ms: i64,
    /// At the last look.
    seen: Duration,
    /// What the difference has been since, and since when, if it is not what is believed.
    doubted: Option<(i64, Duration)>,
}

impl SteadyClock {
    /// Starts from the wall clock, or from when the data directory was written last if that is long ago.
    pub(crate) fn new(clock: &dyn Clock, last_written_ms: Option<i64>) -> Self {
        let (now_ms, seen) = (clock.now_ms(), clock.monotonic());
        let state = State {
            offset_ms: now_ms.saturating_sub(millis(seen)),
            seen,
            doubted: None,
        };
        let gap_ms = last_written_ms.map_or(0, |last| now_ms.saturating_sub(last));
        if gap_ms <= millis(GAP) {
            return Self(Mutex::new(state));
        }
        warn!(
            gap_ms,
            "the data directory was written long ago; if that was no long stop the clock is wrong. \
             Retention and compaction count this time in a day"
        );
        Self(Mutex::new(State {
            offset_ms: state.offset_ms.saturating_sub(gap_ms),
            doubted: Some((state.offset_ms, seen)),
            ..state
        }))
    }

    /// Milliseconds since the epoch.
    pub(crate) fn now_ms(&self, clock: &dyn Clock) -> i64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.look(clock.now_ms(), clock.monotonic())
    }
}

impl State {
    fn look(&mut self, wall_ms: i64, monotonic: Duration) -> i64 {
        let offset_ms = wall_ms.saturating_sub(millis(monotonic));
        // A clock that is being slewed runs a little faster or slower.
        let slack_ms = millis(monotonic.saturating_sub(self.seen)) / 64 + 1;
        self.seen = monotonic;
        let is_near = |other: i64| offset_ms.saturating_sub(other).saturating_abs() <= slack_ms;
        if is_near(self.offset_ms) {
            self.offset_ms = offset_ms;
            self.doubted = None;
        } else {
            let since = match self.doubted {
                Some((doubted_ms, since)) if is_near(doubted_ms) => since,
                _ => {
                    self.note_jump(offset_ms);
                    monotonic
                }
            };
            self.doubted = Some((offset_ms, since));
            if monotonic.saturating_sub(since) >= DOUBT {
                info!("the wall clock is believed again");
                self.offset_ms = offset_ms;
                self.doubted = None;
            }
        }
        millis(monotonic).saturating_add(self.offset_ms.min(offset_ms))
    }

    fn note_jump(&self, offset_ms: i64) {
        let jump_ms = offset_ms.saturating_sub(self.offset_ms);
        if jump_ms.saturating_abs() >= NOTABLE_MS {
            warn!(
                jump_ms,
                "the wall clock jumped. Retention and compaction go on with the monotonic timer and believe a \
                 jump ahead in a day; to make them believe it now, restart the broker within an hour"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const YEAR_MS: i64 = 365 * 24 * 3_600_000;
    const START_MS: i64 = 1_700_000_000_000;

    fn state() -> State {
        State {
            offset_ms: START_MS,
            seen: Duration::ZERO,
            doubted: None,
        }
    }

    #[test]
    fn a_year_ahead_and_back_moves_nothing_but_the_timer() {
        let mut state = state();
        let right = |hours: u32| START_MS + millis(hours * HOUR);
        assert_eq!(state.look(right(1), HOUR), right(1));
        assert_eq!(state.look(right(2) + YEAR_MS, 2 * HOUR), right(2));
        assert_eq!(state.look(right(20) + YEAR_MS, 20 * HOUR), right(20));
        assert_eq!(state.look(right(21), 21 * HOUR), right(21));
        assert_eq!(state.doubted, None);
    }

    #[test]
    fn a_jump_ahead_that_lasts_a_day_is_believed() {
        let mut state = state();
        let jumped = |hours: u32| START_MS + YEAR_MS + millis(hours * HOUR);
        assert_eq!(state.look(jumped(1), HOUR), START_MS + millis(HOUR));
        assert_eq!(
            state.look(jumped(24), 24 * HOUR),
            START_MS + 24 * millis(HOUR)
        );
        assert_eq!(state.look(jumped(25), 25 * HOUR), jumped(25));
    }

    #[test]
    fn a_second_jump_begins_the_day_anew() {
        let mut state = state();
        state.look(START_MS + YEAR_MS, HOUR);
        state.look(START_MS + 2 * YEAR_MS, 20 * HOUR);
        let late = state.look(START_MS + 2 * YEAR_MS + millis(10 * HOUR), 30 * HOUR);
        assert_eq!(late, START_MS + millis(30 * HOUR));
    }

    #[test]
    fn a_jump_back_is_followed_and_the_way_forward_again_too() {
        let mut state = state();
        let right = |hours: u32| START_MS + millis(hours * HOUR);
        assert_eq!(state.look(right(1) - YEAR_MS, HOUR), right(1) - YEAR_MS);
        assert_eq!(state.look(right(2), 2 * HOUR), right(2));
    }

    #[test]
    fn a_slewed_clock_is_believed() {
        let mut state = state();
        for hours in 1..100 {
            let slewed = START_MS + millis(hours * HOUR) + i64::from(hours) * 1000;
            assert_eq!(state.look(slewed, hours * HOUR), slewed);
        }
    }

    #[derive(Debug)]
    struct Fixed;

    impl Clock for Fixed {
        fn now_ms(&self) -> i64 {
            START_MS
        }
        fn monotonic(&self) -> Duration {
            HOUR
        }
    }

    #[test]
    fn a_start_long_after_the_last_write_goes_on_from_there() {
        let long_ago = START_MS - YEAR_MS;
        assert_eq!(
            SteadyClock::new(&Fixed, Some(long_ago)).now_ms(&Fixed),
            long_ago
        );
        for last in [None, Some(START_MS - 60_000), Some(START_MS + YEAR_MS)] {
            assert_eq!(SteadyClock::new(&Fixed, last).now_ms(&Fixed), START_MS);
        }
    }
}
