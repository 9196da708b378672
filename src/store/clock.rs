//! Stamps: the order of versions.
//!
//! A stamp is `max(now, highest seen) + 1` microseconds, so a clock that is behind or steps back
//! does not lose an update this process has seen.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Hands out stamps, each higher than all before and all observed.
#[derive(Debug, Default)]
pub(crate) struct StampClock {
    last: AtomicI64,
}

impl StampClock {
    /// Takes `rows` consecutive stamps and returns the first.
    pub(crate) fn reserve(&self, rows: usize) -> i64 {
        self.reserve_at(now_micros(), rows)
    }

    fn reserve_at(&self, now: i64, rows: usize) -> i64 {
        let rows = rows as i64;
        let before = self
            .last
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
                Some(last.max(now) + rows)
            })
            .unwrap_or_else(|last| last);
        before.max(now) + 1
    }

    /// Takes note of a stamp made elsewhere.
    pub(crate) fn observe(&self, stamp: i64) {
        self.last.fetch_max(stamp, Ordering::AcqRel);
    }
}

fn now_micros() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_micros() as i64)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_steps_back_still_counts_up() {
        let clock = StampClock::default();
        assert_eq!(clock.reserve_at(1_000, 3), 1_001);
        assert_eq!(clock.reserve_at(500, 2), 1_004);
        assert_eq!(clock.reserve_at(2_000, 1), 2_001);
    }

    #[test]
    fn what_was_seen_is_passed() {
        let clock = StampClock::default();
        clock.observe(9_000);
        assert_eq!(clock.reserve_at(1_000, 1), 9_001);
    }
}
