//! Who wins: a pure function over keys and matches.
//!
//! Versions of an id are ordered by stamp, then by rank: the base is oldest, a later generation
//! newer. Without stamps the rank alone decides. The newest wins, or the oldest in a table that
//! ignores conflicts. A delete left by another writer stands right after the version it was written
//! over, so a row stamped later survives it; where the oldest wins, it covers what was there before
//! it and whatever comes later is a first version again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use roaring::RoaringBitmap;
use uuid::Uuid;

use super::keys::{KeyTable, NO_STAMP};
use super::probe::BaseMatch;
use super::{Masks, RowSet};
use crate::options::OnConflict;

/// A generation's row and its place in the order of versions.
#[derive(Debug, Clone, Copy)]
struct Version {
    generation: usize,
    key: u32,
    stamp: i64,
}

/// The winning version of every id among the generations.
///
/// Ids are hashed already, so a map from hash to version does; two ids of one hash, which is next
/// to impossible but not quite, go to the next free number.
struct Winners<'a> {
    keys: &'a [Arc<KeyTable>],
    versions: HashMap<u64, Version, BuildHasherDefault<HashItself>>,
}

impl<'a> Winners<'a> {
    fn new(keys: &'a [Arc<KeyTable>]) -> Self {
        let rows = keys.iter().map(|table| table.len()).sum();
        Self {
            keys,
            versions: HashMap::with_capacity_and_hasher(rows, BuildHasherDefault::default()),
        }
    }

    fn id(&self, version: &Version) -> &'a str {
        self.keys[version.generation]
            .ids
            .value(version.key as usize)
    }

    /// Where the version of this id is, or would be put.
    fn slot(&self, mut hash: u64, id: &str) -> (u64, Option<Version>) {
        loop {
            match self.versions.get(&hash) {
                None => return (hash, None),
                Some(version) if self.id(version) == id => return (hash, Some(*version)),
                Some(_) => hash = hash.wrapping_add(1),
            }
        }
    }
}

/// Hashes a number that is a hash.
#[derive(Default)]
struct HashItself(u64);

impl Hasher for HashItself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// Compares all versions of all ids. `shards` are the generations' shards, in rank order; `matches`
/// are rows that the base holds.
pub(super) fn compose(
    order: OnConflict,
    shards: &[Uuid],
    keys: &[Arc<KeyTable>],
    matches: &[Vec<BaseMatch>],
) -> Masks {
    let mut losers = vec![RoaringBitmap::new(); keys.len()];
    let mut winners = Winners::new(keys);
    // Ids whose rows in the base another writer deleted, where the oldest version wins.
    let mut covered: HashSet<u64> = HashSet::new();
    for (generation, table) in keys.iter().enumerate() {
        for key in 0..table.len() as u32 {
            let hash = table.hashes[key as usize];
            let id = table.ids.value(key as usize);
            let (slot, mut known) = winners.slot(hash, id);
            let mut stamp = table.stamps[key as usize];
            let deletes = table.tombstones.contains(key);
            let same_shard = |known: &&Version| shards[known.generation] == shards[generation];
            if deletes && order == OnConflict::Ignore {
                covered.insert(slot);
                // Any version that comes after it takes its place.
                stamp = i64::MAX;
                if let Some(before) = known.as_ref().filter(same_shard) {
                    losers[before.generation].insert(before.key);
                    known = None;
                }
            } else if deletes {
                let below = known
                    .as_ref()
                    .filter(same_shard)
                    .map_or(NO_STAMP, |known| known.stamp);
                let in_base = matches[generation]
                    .iter()
                    .filter(|found| found.key == key)
                    .map(|found| found.stamp)
                    .max()
                    .unwrap_or(NO_STAMP);
                stamp = below.max(in_base);
            }
            let version = Version {
                generation,
                key,
                stamp,
            };
            match known {
                None => {
                    winners.versions.insert(slot, version);
                }
                Some(known) if order.replaces(version.stamp, known.stamp) => {
                    losers[known.generation].insert(known.key);
                    winners.versions.insert(slot, version);
                }
                Some(_) => {
                    losers[generation].insert(key);
                }
            }
        }
    }
    let mut base: RowSet = BTreeMap::new();
    for (generation, found) in matches.iter().enumerate() {
        for row in found {
            let hash = keys[generation].hashes[row.key as usize];
            let id = keys[generation].ids.value(row.key as usize);
            let (slot, Some(winner)) = winners.slot(hash, id) else {
                continue;
            };
            if covered.contains(&slot) || order.replaces(winner.stamp, row.stamp) {
                base.entry((row.address >> 32) as u32)
                    .or_default()
                    .insert(row.address as u32);
            } else {
                losers[winner.generation].insert(winner.key);
            }
        }
    }
    Masks {
        base,
        sources: keys.iter().zip(losers).map(masked_rows).collect(),
        source_rows: keys.iter().map(|table| table.len() as u64).collect(),
        keys: keys.to_vec(),
    }
}

/// Losing positions become addresses; deletes are masked, winners or not.
fn masked_rows((table, mut losers): (&Arc<KeyTable>, RoaringBitmap)) -> RowSet {
    losers |= &table.tombstones;
    let mut rows: RowSet = BTreeMap::new();
    for position in losers {
        let address = table.addresses[position as usize];
        rows.entry((address >> 32) as u32)
            .or_default()
            .insert(address as u32);
    }
    rows
}

#[cfg(test)]
mod tests {
    use arrow_array::StringArray;

    use super::super::keys::hash_ids;
    use super::*;

    fn table(rows: &[(&str, i64)], tombstones: &[u32]) -> Arc<KeyTable> {
        let ids = StringArray::from_iter_values(rows.iter().map(|(id, _)| *id));
        Arc::new(KeyTable {
            hashes: hash_ids(&ids).expect("hashes"),
            ids,
            addresses: (0..rows.len() as u64).collect(),
            stamps: rows.iter().map(|(_, stamp)| *stamp).collect(),
            tombstones: tombstones.iter().copied().collect(),
        })
    }

    fn masked(masks: &RowSet) -> Vec<u32> {
        masks.values().flatten().collect()
    }

    fn base_row(key: u32, offset: u64, stamp: i64) -> BaseMatch {
        BaseMatch {
            key,
            address: offset,
            stamp,
        }
    }

    #[test]
    fn the_newer_stamp_wins_on_either_side() {
        let shards = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let keys = [
            table(&[("a", 5), ("b", 9)], &[]),
            table(&[("a", 7), ("b", 2)], &[]),
        ];
        let matches = vec![
            vec![base_row(0, 10, 6), base_row(1, 11, 20)],
            vec![base_row(0, 10, 6), base_row(1, 11, 20)],
        ];
        let masks = compose(OnConflict::Update, &shards, &keys, &matches);
        // a: the second generation (7) beats base (6) and the first (5).
        // b: the base (20) beats both.
        assert_eq!(masked(&masks.base), [10]);
        assert_eq!(masked(&masks.sources[0]), [0, 1]);
        assert_eq!(masked(&masks.sources[1]), [1]);
    }

    #[test]
    fn ties_and_missing_stamps_go_to_the_later_source() {
        let shards = [Uuid::from_u128(1), Uuid::from_u128(1)];
        for stamp in [NO_STAMP, 4] {
            let keys = [table(&[("a", stamp)], &[]), table(&[("a", stamp)], &[])];
            let matches = vec![vec![base_row(0, 3, stamp)], vec![base_row(0, 3, stamp)]];
            let masks = compose(OnConflict::Update, &shards, &keys, &matches);
            assert_eq!(masked(&masks.base), [3]);
            assert_eq!(masked(&masks.sources[0]), [0]);
            assert!(masked(&masks.sources[1]).is_empty());
        }
    }

    #[test]
    fn a_delete_covers_what_it_was_written_over_and_no_more() {
        let same = [Uuid::from_u128(1), Uuid::from_u128(1)];
        let keys = [table(&[("a", 5)], &[]), table(&[("a", NO_STAMP)], &[0])];
        let none = vec![Vec::new(), Vec::new()];
        let masks = compose(OnConflict::Update, &same, &keys, &none);
        assert_eq!(masked(&masks.sources[0]), [0]);
        assert_eq!(masked(&masks.sources[1]), [0]);
        // Another shard's row is not the version it was written over.
        let other = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let masks = compose(OnConflict::Update, &other, &keys, &none);
        assert!(masked(&masks.sources[0]).is_empty());
        // A base row is.
        let keys = [table(&[("a", NO_STAMP)], &[0])];
        let masks = compose(
            OnConflict::Update,
            &same[..1],
            &keys,
            &[vec![base_row(0, 8, 3)]],
        );
        assert_eq!(masked(&masks.base), [8]);
    }

    #[test]
    fn the_older_stamp_wins_where_conflicts_are_ignored() {
        let shards = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let keys = [
            table(&[("a", 5), ("b", 9), ("a", 6), ("c", 3)], &[]),
            table(&[("a", 7), ("b", 2), ("c", 3)], &[]),
        ];
        let matches = vec![
            vec![base_row(0, 10, 6), base_row(1, 11, 1), base_row(2, 10, 6)],
            vec![base_row(0, 10, 6), base_row(1, 11, 1)],
        ];
        let masks = compose(OnConflict::Ignore, &shards, &keys, &matches);
        // a: the first generation's first row (5) came before the base's (6). b: the base (1) was
        // first. c: a tie goes to the earlier source.
        assert_eq!(masked(&masks.base), [10]);
        assert_eq!(masked(&masks.sources[0]), [1, 2]);
        assert_eq!(masked(&masks.sources[1]), [0, 1, 2]);
    }

    #[test]
    fn what_comes_after_a_delete_is_a_first_version() {
        let same = [Uuid::from_u128(1), Uuid::from_u128(1)];
        // Row, delete, row; then a retry.
        let keys = [
            table(&[("a", 5), ("a", NO_STAMP), ("a", 8)], &[1]),
            table(&[("a", 9)], &[]),
        ];
        let base = vec![base_row(0, 3, 1), base_row(1, 3, 1), base_row(2, 3, 1)];
        let masks = compose(
            OnConflict::Ignore,
            &same,
            &keys,
            &[base, vec![base_row(0, 3, 1)]],
        );
        assert_eq!(masked(&masks.base), [3]);
        assert_eq!(masked(&masks.sources[0]), [0, 1]);
        assert_eq!(masked(&masks.sources[1]), [0]);
    }
}
