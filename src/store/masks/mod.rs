//! Supersession masks: for each id, the one row that counts.
//!
//! Two sources that hold the same id are compared by stamp (see [`OnConflict`] for which one wins);
//! the loser is masked on its own side, so a base row can win over a generation's. A mask is a set of row addresses: a scan that is given
//! it needs no id column, and where nothing is superseded a scan is a plain one.
//!
//! ```text
//! generation ─▶ KeyTable (ids, stamps, addresses; cached) ─┐
//!                                                          ├─▶ compose ─▶ Masks
//! base ─▶ rows with those ids, per fragment (cached) ──────┘
//! ```
//!
//! What is cached belongs to files that never change: a generation's folder, a fragment's data
//! files. A new generation is probed against the base once; a new fragment once per generation.

mod compose;
mod filters;
mod keys;
mod probe;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow_array::{RecordBatch, StringArray};
use datafusion::scalar::ScalarValue;
use lance::Dataset;
use lance::dataset::scanner::RowAddrTreeMap;
use lance_table::format::Fragment;
use roaring::RoaringBitmap;
use uuid::Uuid;

pub(crate) use filters::make_filters;
pub(crate) use keys::{KeyCache, KeyTable};

use super::LanceTable;
use super::snapshot::Generation;
use crate::error::Result;

/// Rows of one dataset, by fragment: offsets within it.
pub(crate) type RowSet = BTreeMap<u32, RoaringBitmap>;

/// How many rows a [`RowSet`] holds.
pub(crate) fn row_count(rows: &RowSet) -> u64 {
    rows.values().map(RoaringBitmap::len).sum()
}

/// Where the keys of a source that is newer than the base come from.
#[derive(Debug, Clone)]
pub(crate) struct KeySource {
    /// The shard it was written through.
    pub(crate) shard: Uuid,
    /// Its place in the caches.
    slot: String,
    /// What it is called there: the same name always stands for the same rows.
    name: String,
    /// Its rows.
    pub(crate) rows: SourceRows,
}

/// The rows of a [`KeySource`].
#[derive(Debug, Clone)]
pub(crate) enum SourceRows {
    /// A flushed generation.
    Generation(Arc<Generation>),
    /// An unflushed memtable's batches; a row's address is its position.
    Memtable(Vec<RecordBatch>),
}

impl KeySource {
    /// A flushed generation's keys.
    pub(crate) fn generation(generation: &Arc<Generation>) -> Self {
        let name = generation.name();
        Self {
            shard: generation.shard,
            slot: name.clone(),
            name,
            rows: SourceRows::Generation(generation.clone()),
        }
    }

    /// The keys of the unflushed rows of a shard's memtable.
    pub(crate) fn memtable(
        shard: Uuid,
        epoch: u64,
        number: u64,
        batches: Vec<RecordBatch>,
    ) -> Self {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        Self {
            shard,
            // One place for whatever the memtable holds: with every row it is another.
            slot: format!("{shard}/memtable"),
            name: format!("{epoch}-{number}-{rows}"),
            rows: SourceRows::Memtable(batches),
        }
    }
}

/// The superseded rows of every source of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Masks {
    /// Superseded rows of the base.
    pub(crate) base: RowSet,
    /// Superseded rows of each source, in order; deletes of other writers count too.
    pub(crate) sources: Vec<RowSet>,
    /// Rows of each source before masking.
    pub(crate) source_rows: Vec<u64>,
    /// The keys of each source.
    pub(crate) keys: Vec<Arc<KeyTable>>,
}

impl Masks {
    /// Compares the sources with the base and with each other; a later source is the newer one
    /// where stamps do not tell.
    ///
    /// # Errors
    /// A source that cannot be read.
    pub(crate) async fn build(
        table: &LanceTable,
        cache: &KeyCache,
        base: &Arc<Dataset>,
        sources: &[KeySource],
    ) -> Result<Self> {
        if sources.is_empty() {
            return Ok(Self::default());
        }
        let keys = keys::load_all(table, cache, sources).await?;
        let matches = probe::base_matches(table, cache, base, sources, &keys).await?;
        let shards: Vec<_> = sources.iter().map(|source| source.shard).collect();
        let order = table.schema().on_conflict();
        Ok(compose::compose(order, &shards, &keys, &matches))
    }

    /// Rows of the base that count.
    pub(crate) fn base_live_rows(&self, base: &Dataset) -> Option<u64> {
        let total: u64 = base
            .fragments()
            .iter()
            .map(|fragment| fragment.num_rows().map(|rows| rows as u64))
            .sum::<Option<u64>>()?;
        total.checked_sub(row_count(&self.base))
    }

    /// Rows of a source that count.
    pub(crate) fn live_rows(&self, source: usize) -> u64 {
        self.source_rows[source] - row_count(&self.sources[source])
    }

    /// Whether a source has any of these ids.
    pub(crate) fn source_has(&self, source: usize, ids: &IdSet) -> bool {
        let keys = &self.keys[source];
        let found = |i: usize| ids.hashes.contains(&keys.hashes[i]);
        (0..keys.len())
            .any(|i| found(i) && ids.ids.iter().flatten().any(|id| id == keys.ids.value(i)))
    }

    /// The ids of a source's rows that count.
    pub(crate) fn live_ids(&self, source: usize) -> impl Iterator<Item = &str> {
        let keys = &self.keys[source];
        let masked = &self.sources[source];
        (0..keys.len()).filter_map(move |i| {
            let address = keys.addresses[i];
            let lost = masked
                .get(&((address >> 32) as u32))
                .is_some_and(|rows| rows.contains(address as u32));
            (!lost).then(|| keys.ids.value(i))
        })
    }

    /// Rows superseded in all sources.
    pub(crate) fn superseded(&self) -> u64 {
        row_count(&self.base) + self.sources.iter().map(row_count).sum::<u64>()
    }
}

/// A few ids, to be looked for.
#[derive(Debug)]
pub(crate) struct IdSet {
    ids: StringArray,
    hashes: HashSet<u64>,
}

impl IdSet {
    /// The ids among these values; NULL is none.
    pub(crate) fn new(values: Vec<ScalarValue>) -> Result<Self> {
        let ids = keys::as_ids(&ScalarValue::iter_to_array(values)?)?;
        let hashes = keys::hash_ids(&ids)?.into_iter().collect();
        Ok(Self { ids, hashes })
    }

    /// Whether a fragment may have any of them, as far as the cache knows.
    pub(crate) async fn may_be_in(&self, cache: &KeyCache, fragment: &Fragment) -> bool {
        match cache.filter(&filters::name_of(fragment)).await {
            Some(filter) => self.ids.iter().flatten().any(|id| filter.may_hold(id)),
            None => true,
        }
    }
}

/// The rows a scan of these fragments may return, or none when nothing is masked there.
pub(crate) fn allowed_rows(fragments: &[Fragment], masked: &RowSet) -> Option<RowAddrTreeMap> {
    if !fragments
        .iter()
        .any(|f| masked.contains_key(&(f.id as u32)))
    {
        return None;
    }
    let mut allowed = RowAddrTreeMap::new();
    for fragment in fragments {
        let id = fragment.id as u32;
        match (masked.get(&id), fragment.physical_rows) {
            (Some(masked), Some(rows)) => {
                let mut kept = RoaringBitmap::new();
                kept.insert_range(0..rows as u32);
                kept -= masked;
                if !kept.is_empty() {
                    allowed.insert_bitmap(id, kept);
                }
            }
            _ => allowed.insert_fragment(id),
        }
    }
    Some(allowed)
}
