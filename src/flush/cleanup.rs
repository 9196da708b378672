//! What may be deleted: pure decisions.
//!
//! | what | goes when |
//! |---|---|
//! | a merged generation's folder | its shard's manifest has not named it for the grace |
//! | a folder no manifest names | its newest object is old (a flush under way is in no manifest) |
//! | a log entry | strictly below every position a manifest points at, old, and not a fence |
//!
//! Kept for ever, whatever their age: the log entries a shard's manifest points at and all above,
//! because a successor finds the log's end from there; and each epoch's first entry, because a
//! writer that slept puts at the position after its own last without asking anybody, and the
//! refusal it meets there is all that keeps it from a false acknowledgement. A hole is never left
//! at or above either.

use std::collections::HashSet;
use std::time::Duration;

use lance_index::mem_wal::ShardManifest;

/// What clean-up found, and what it does about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Within the table's folder.
    pub path: String,
    /// What it is.
    pub kind: RemovalKind,
    /// Its size.
    pub bytes: u64,
    /// How old it is, where known.
    pub age: Option<Duration>,
    /// Why it may go.
    pub reason: String,
}

/// The kinds of things that are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RemovalKind {
    /// The folder of a generation whose rows are in the base.
    Generation,
    /// What an interrupted flush left.
    Orphan,
    /// An entry of the write-ahead log whose rows are flushed.
    WalEntry,
    /// An old version of a shard's manifest.
    ShardManifest,
    /// Files only old versions of the base name.
    Base,
}

impl RemovalKind {
    /// The kind's name in `rollout_cleanup`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Generation => "generation",
            Self::Orphan => "orphan",
            Self::WalEntry => "wal entry",
            Self::ShardManifest => "shard manifest",
            Self::Base => "base",
        }
    }
}

/// Minimum ages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ages {
    /// Of what may be under way: orphans, log entries, old versions.
    pub(super) min_age: Duration,
    /// How long a merged generation stays for running scans.
    pub(super) grace: Duration,
}

/// A folder of a shard, as listed.
#[derive(Debug, Clone, Default)]
pub(super) struct Folder {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// The age of its youngest object.
    pub(super) age: Duration,
}

/// What is known of a shard.
#[derive(Debug)]
pub(super) struct Shard<'a> {
    /// Its newest manifest, read after its objects were listed.
    pub(super) newest: &'a ShardManifest,
    /// The newest of its manifests that is at least as old as the grace, if one is left.
    pub(super) before_grace: Option<&'a ShardManifest>,
    /// The last generation the base holds.
    pub(super) merged: u64,
}

/// Why a folder may go, if it may.
pub(super) fn judge_folder(
    folder: &Folder,
    shard: &Shard<'_>,
    ages: Ages,
) -> Option<(RemovalKind, String)> {
    // What does not look like a generation is none of ours.
    let generation = generation_of(&folder.name)?;
    let names = |manifest: &ShardManifest| {
        manifest
            .sstables
            .iter()
            .any(|sstable| sstable.path == folder.name)
    };
    if names(shard.newest) {
        return None;
    }
    if generation <= shard.merged {
        // Merged now says nothing of when: it was, before the grace, if a manifest that old had
        // flushed this number and no longer names the folder.
        let long_ago = shard
            .before_grace
            .is_some_and(|manifest| generation < manifest.current_generation && !names(manifest));
        return (long_ago && folder.age >= ages.grace).then(|| {
            let reason = format!("generation {generation} was merged longer ago than the grace");
            (RemovalKind::Generation, reason)
        });
    }
    let forgotten = shard.before_grace.is_some_and(names);
    (!forgotten && folder.age >= ages.min_age).then(|| {
        let reason = format!("no manifest names this folder of generation {generation}");
        (RemovalKind::Orphan, reason)
    })
}

/// The number in a generation folder's name, `<eight hex digits>_gen_<number>`.
fn generation_of(folder: &str) -> Option<u64> {
    let (hash, number) = folder.split_once("_gen_")?;
    let random = hash.len() == 8 && hash.chars().all(|c| c.is_ascii_hexdigit());
    random.then(|| number.parse().ok()).flatten()
}

/// The position from which on every log entry is kept.
///
/// A successor looks for the end of the log from the last position seen, entry by entry: were there
/// a hole after it, the successor would write into the hole, below what replay reads. So neither
/// position a manifest points at, nor anything between them, may go.
pub(super) fn wal_floor(manifest: &ShardManifest) -> u64 {
    match manifest.wal_entry_position_last_seen {
        // Never seen: the end is found by listing.
        0 => manifest.replay_after_wal_entry_position,
        seen => seen.min(manifest.replay_after_wal_entry_position),
    }
}

/// An entry of a shard's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WalEntry {
    pub(super) position: u64,
    pub(super) bytes: u64,
    pub(super) age: Duration,
}

/// Entries of at most this size are kept without a look inside: a fence is this small, and the
/// little they hold is not worth a request each.
const FENCE_BYTES: u64 = 1024;

/// Whether an entry may go unless it is the first of its epoch.
pub(super) fn wal_candidate(entry: &WalEntry, floor: u64, ages: Ages) -> bool {
    entry.position < floor && entry.age >= ages.min_age && entry.bytes > FENCE_BYTES
}

/// Finds which entries begin an epoch, asking for as few epochs as it can: epochs never decrease
/// along the log, so between two entries of one epoch nothing begins. Ask [`Epochs::next`] for the
/// index to look at, tell [`Epochs::learn`], until there is none.
#[derive(Debug)]
pub(super) struct Epochs {
    known: Vec<Option<u64>>,
    candidates: Vec<bool>,
    open: Vec<(usize, usize)>,
    firsts: HashSet<usize>,
}

impl Epochs {
    /// Over entries in the order of their positions.
    pub(super) fn new(candidates: Vec<bool>) -> Self {
        let last = candidates.iter().rposition(|candidate| *candidate);
        Self {
            known: vec![None; candidates.len()],
            candidates,
            open: last.into_iter().map(|last| (0, last)).collect(),
            // What came before the first is not known.
            firsts: HashSet::from([0]),
        }
    }

    /// The next entry whose epoch is needed.
    pub(super) fn next(&mut self) -> Option<usize> {
        while let Some((low, high)) = self.open.pop() {
            let undecided = self.candidates[low..=high].iter().skip(1).any(|c| *c);
            if low == high || !undecided {
                continue;
            }
            let (Some(first), Some(last)) = (self.known[low], self.known[high]) else {
                self.open.push((low, high));
                return Some(if self.known[low].is_none() { low } else { high });
            };
            if first == last {
                continue;
            }
            if high == low + 1 {
                self.firsts.insert(high);
                continue;
            }
            let middle = low + (high - low) / 2;
            self.open.push((low, middle));
            self.open.push((middle, high));
        }
        None
    }

    /// Takes note of an entry's epoch.
    pub(super) fn learn(&mut self, index: usize, epoch: u64) {
        self.known[index] = Some(epoch);
    }

    /// Whether an entry may be the first of its epoch.
    pub(super) fn is_first(&self, index: usize) -> bool {
        self.firsts.contains(&index)
    }
}

#[cfg(test)]
mod tests;
