//! Keeps a part of the disk free, so that a full one refuses appends while all else goes on.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// The disk is asked at least so often while there are appends, since others write to it, too.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// Appends would leave less than the floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "only {free} bytes are free on the disk of the logs, and min_free_bytes keeps {floor} of them; \
     delete topics or records, or make room"
)]
pub(crate) struct Full {
    /// Free when last measured.
    free: u64,
    /// To be kept free.
    floor: u64,
}

/// An allowance of bytes, renewed from what the disk says.
#[derive(Debug)]
pub(crate) struct Space {
    floor: u64,
    left: AtomicI64,
    /// When, by the monotonic timer.
    measured: Mutex<Option<Duration>>,
}

impl Space {
    /// Keeps `floor` bytes free; 0 asks for nothing.
    pub(crate) fn new(floor: u64) -> Self {
        Self {
            floor,
            left: AtomicI64::new(0),
            measured: Mutex::new(None),
        }
    }

    /// Takes `bytes` out of the allowance at `now`, by the monotonic timer. `measure` gives the free bytes, `None` where
    /// that is unknown, which allows anything.
    pub(crate) fn take(
        &self,
        bytes: usize,
        now: Duration,
        measure: impl FnOnce() -> Option<u64>,
    ) -> Result<(), Full> {
        if self.floor == 0 {
            return Ok(());
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let left = self
            .left
            .fetch_sub(bytes, Ordering::AcqRel)
            .saturating_sub(bytes);
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = measured.is_some_and(|at| now.saturating_sub(at) < MEASURE_INTERVAL);
        if left >= 0 && fresh {
            return Ok(());
        }
        let Some(free) = measure() else { return Ok(()) };
        let above = i64::try_from(free.saturating_sub(self.floor)).unwrap_or(i64::MAX);
        self.left
            .store(above.saturating_sub(bytes).max(0), Ordering::Release);
        *measured = Some(now);
        if above < bytes {
            Err(Full {
                free,
                floor: self.floor,
            })
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn appends_are_refused_below_the_floor_and_taken_again_above_it() {
        let space = Space::new(100);
        assert_eq!(space.take(10, NOW, || Some(120)), Ok(()));
        // Within what was measured: not asked again.
        assert_eq!(space.take(10, NOW, || unreachable!("asked again")), Ok(()));
        assert_eq!(
            space.take(1, NOW, || Some(100)),
            Err(Full {
                free: 100,
                floor: 100
            })
        );
        assert_eq!(
            space.take(1, NOW, || Some(99)),
            Err(Full {
                free: 99,
                floor: 100
            })
        );
        assert_eq!(space.take(1, NOW, || Some(101)), Ok(()));
    }

    #[test]
    fn no_floor_and_an_unknown_disk_allow_everything() {
        assert_eq!(Space::new(0).take(usize::MAX, NOW, || Some(0)), Ok(()));
        assert_eq!(Space::new(1).take(usize::MAX, NOW, || None), Ok(()));
    }
}
