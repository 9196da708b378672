//! When to merge and what one pass takes: pure decisions.

use std::time::Duration;

use crate::options::RuntimeSettings;

/// A generation that waits, as the policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Bytes its rows had in memory.
    pub(super) bytes: u64,
}

/// Whether the waiting generations should be merged now. `age` is how long the oldest has waited.
pub(super) fn should_merge(waiting: &[Waiting], age: Duration, settings: &RuntimeSettings) -> bool {
    if waiting.is_empty() {
        return false;
    }
    let bytes: u64 = waiting.iter().map(|generation| generation.bytes).sum();
    let by_count =
        settings.merge_after_generations > 0 && waiting.len() >= settings.merge_after_generations;
    let by_bytes = settings.merge_after_bytes > 0 && bytes >= settings.merge_after_bytes;
    let by_age = !settings.merge_max_age.is_zero() && age >= settings.merge_max_age;
    by_count || by_bytes || by_age
}

/// Whether this process has made enough generations since it last looked to ask storage how many
/// wait by now. Each look costs a few requests, so not every flush is followed by one: a quarter of
/// what a merge would take is enough, also where many processes make them.
pub(super) fn worth_a_look(made: usize, settings: &RuntimeSettings) -> bool {
    let by_count = settings.merge_after_generations > 0
        && made.saturating_mul(4) >= settings.merge_after_generations;
    let most_bytes = (made as u64).saturating_mul(settings.max_memtable_bytes);
    let by_bytes = settings.merge_after_bytes > 0
        && most_bytes.saturating_mul(4) >= settings.merge_after_bytes;
    made > 0 && (by_count || by_bytes)
}

/// How many of the waiting generations, in order, one pass takes: as many as fit the bound, at
/// least one. Order is by number, so what is taken is a prefix of every shard.
pub(super) fn pass_length(waiting: &[Waiting], bound: u64) -> usize {
    let mut bytes = 0;
    let fitting = waiting
        .iter()
        .take_while(|generation| {
            bytes += generation.bytes;
            bytes <= bound
        })
        .count();
    fitting.max(1).min(waiting.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(bytes: &[u64]) -> Vec<Waiting> {
        bytes
            .iter()
            .map(|bytes| Waiting { bytes: *bytes })
            .collect()
    }

    #[test]
    fn storage_is_asked_after_a_quarter_of_what_a_merge_takes() {
        let with = |merge_after_generations, merge_after_bytes| RuntimeSettings {
            merge_after_generations,
            merge_after_bytes,
            max_memtable_bytes: 64 << 20,
            ..Default::default()
        };
        for (made, settings, want) in [
            (0, with(16, 1 << 30), false),
            (3, with(16, 1 << 30), false),
            (4, with(16, 0), true),
            (4, with(0, 1 << 30), true),
            (1, with(2, 0), true),
            (1, with(0, 1), true),
            (1000, with(0, 0), false),
            (usize::MAX, with(16, 1 << 30), true),
        ] {
            assert_eq!(worth_a_look(made, &settings), want, "{made} {settings:?}");
        }
    }

    #[test]
    fn any_one_reason_is_enough() {
        let settings = RuntimeSettings {
            merge_after_generations: 3,
            merge_after_bytes: 100,
            merge_max_age: Duration::from_secs(60),
            ..Default::default()
        };
        let young = Duration::from_secs(1);
        for (bytes, age, want) in [
            (vec![], Duration::from_secs(1000), false),
            (vec![1, 1], young, false),
            (vec![1, 1, 1], young, true),
            (vec![60, 60], young, true),
            (vec![1], Duration::from_secs(60), true),
        ] {
            assert_eq!(
                should_merge(&waiting(&bytes), age, &settings),
                want,
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn zero_turns_a_reason_off() {
        let settings = RuntimeSettings {
            merge_after_generations: 0,
            merge_after_bytes: 0,
            merge_max_age: Duration::ZERO,
            ..Default::default()
        };
        let many = waiting(&[1 << 40; 1000]);
        assert!(!should_merge(
            &many,
            Duration::from_secs(1 << 30),
            &settings
        ));
    }

    #[test]
    fn a_pass_takes_what_fits_and_at_least_one() {
        for (bytes, bound, want) in [
            (vec![10, 10, 10], 25, 2),
            (vec![10, 10, 10], 30, 3),
            (vec![100, 1], 25, 1),
            (vec![1], 0, 1),
            (vec![], 10, 0),
        ] {
            assert_eq!(
                pass_length(&waiting(&bytes), bound),
                want,
                "{bytes:?} {bound}"
            );
        }
    }
}
