//! Snapshots: the base version and, per shard, the generations it does not hold yet.
//!
//! The order of reading matters. References to memtables are taken first, then the shards'
//! manifests are read, then the base version; what the base's recorded progress covers is dropped.
//! In any other order rows fall through: a memtable goes when its generation is committed, a merged
//! generation leaves the manifest after the base has it. A generation seen both as memtable and as
//! folder counts once, as folder.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::mem_wal::ShardManifestStore;
use lance_index::mem_wal::ShardManifest;
use lance_table::format::Fragment;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::LanceTable;
use super::masks::{KeyCache, KeySource, Masks};
use crate::error::Result;

/// Shards, or generations, looked at side by side.
const CONCURRENCY: usize = 16;

/// The shards this process writes.
pub(crate) type OwnShards = HashMap<Uuid, OwnShard>;

/// A shard this process writes: its epoch, and the manifest store its writer commits through.
#[derive(Debug, Clone)]
pub(crate) struct OwnShard {
    pub(crate) epoch: u64,
    pub(crate) manifests: Arc<ShardManifestStore>,
}

/// A flushed generation that the base does not hold yet.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) shard: Uuid,
    pub(crate) number: u64,
    /// Its folder within the shard.
    pub(crate) folder: String,
    /// Bytes its rows had in memory; 0 when not recorded.
    pub(crate) bytes: u64,
    pub(crate) dataset: Arc<Dataset>,
    /// What is read of it, see [`LanceTable::generation_fragments`].
    pub(crate) fragments: Vec<Fragment>,
    /// Its keys and matches: cached, as all else that is known of it, while somebody holds this.
    pub(super) keys: KeyCache,
}

impl Generation {
    /// Its name: its folder is written once and never again.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.shard, self.folder)
    }
}

/// A point-in-time view of a table.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) base: Arc<Dataset>,
    /// By number, then shard: the order in which merges would take them.
    pub(crate) generations: Vec<Arc<Generation>>,
    /// Per shard, the first generation number that was not flushed yet.
    pub(crate) flushed_below: HashMap<Uuid, u64>,
    masks: OnceCell<Arc<Masks>>,
}

impl Snapshot {
    pub(crate) fn new(
        base: Arc<Dataset>,
        generations: Vec<Arc<Generation>>,
        flushed_below: HashMap<Uuid, u64>,
    ) -> Self {
        Self {
            base,
            generations,
            flushed_below,
            masks: OnceCell::new(),
        }
    }

    /// Which rows of which source are superseded; worked out once per snapshot.
    ///
    /// # Errors
    /// A source that cannot be read.
    pub(crate) async fn masks(&self, table: &LanceTable, cache: &KeyCache) -> Result<Arc<Masks>> {
        self.masks
            .get_or_try_init(|| async {
                let sources: Vec<_> = self.generations.iter().map(KeySource::generation).collect();
                Masks::build(table, cache, &self.base, &sources)
                    .await
                    .map(Arc::new)
            })
            .await
            .cloned()
    }
}

/// The last snapshot of a table, and what it was made from.
#[derive(Debug, Default)]
pub(crate) struct SnapshotCache {
    last: Mutex<Option<(Arc<Snapshot>, Instant, u64)>>,
    building: tokio::sync::Mutex<Building>,
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct Building {
    manifests: HashMap<Uuid, ShardManifest>,
    open: HashMap<String, Arc<Generation>>,
}

impl SnapshotCache {
    /// Says that this process flushed, merged or otherwise changed what a snapshot holds.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops everything held, open generations included.
    pub(crate) async fn clear(&self) {
        let mut building = self.building.lock().await;
        *self.last.lock() = None;
        *building = Building::default();
    }

    /// A snapshot no older than `max_age`, in which every shard of `at_least` is flushed up to the
    /// given generation number.
    ///
    /// `own` are the shards this process writes, with their writers' manifest stores.
    ///
    /// # Errors
    /// Storage that cannot be reached; a generation that cannot be opened, naming it.
    pub(crate) async fn get(
        &self,
        table: &LanceTable,
        own: &OwnShards,
        max_age: Duration,
        at_least: &HashMap<Uuid, u64>,
    ) -> Result<Arc<Snapshot>> {
        if let Some(snapshot) = self.usable(max_age, at_least) {
            return Ok(snapshot);
        }
        let asked = Instant::now();
        let mut building = self.building.lock().await;
        // Somebody else may have built one while this caller waited for its turn.
        let waited = max_age.max(asked.elapsed());
        if let Some(snapshot) = self.usable(waited, at_least) {
            return Ok(snapshot);
        }
        let changes = self.changes.load(Ordering::Acquire);
        let started = Instant::now();
        let snapshot = Arc::new(building.build(table, own).await?);
        *self.last.lock() = Some((snapshot.clone(), started, changes));
        Ok(snapshot)
    }

    fn usable(&self, max_age: Duration, at_least: &HashMap<Uuid, u64>) -> Option<Arc<Snapshot>> {
        let last = self.last.lock();
        let (snapshot, taken, changes) = last.as_ref()?;
        let current = *changes == self.changes.load(Ordering::Acquire)
            && taken.elapsed() <= max_age
            && at_least.iter().all(|(shard, generation)| {
                snapshot.flushed_below.get(shard).copied().unwrap_or(1) >= *generation
            });
        current.then(|| snapshot.clone())
    }
}

impl Building {
    async fn build(&mut self, table: &LanceTable, own: &OwnShards) -> Result<Snapshot> {
        self.read_manifests(table, own).await?;
        let base = table.refresh_base().await?;
        let merged = table.merge_progress(&base).await?;
        let mut wanted: BTreeMap<(u64, Uuid), (String, u64)> = BTreeMap::new();
        let mut flushed_below = HashMap::new();
        for (shard, manifest) in &self.manifests {
            flushed_below.insert(*shard, manifest.current_generation);
            let done = merged.get(shard).copied().unwrap_or(0);
            for sstable in manifest.sstables.iter().filter(|s| s.generation > done) {
                wanted.insert(
                    (sstable.generation, *shard),
                    (sstable.path.clone(), sstable.in_memory_bytes.unwrap_or(0)),
                );
            }
        }
        let open = &self.open;
        let generations: Vec<Arc<Generation>> = futures::stream::iter(wanted)
            .map(|((number, shard), (folder, bytes))| async move {
                if let Some(known) = open.get(&format!("{shard}/{folder}")) {
                    return Ok(known.clone());
                }
                let cache = table.cache().for_passing();
                let dataset = table.open_generation(&cache, shard, &folder).await?;
                Ok::<_, crate::RolloutError>(Arc::new(Generation {
                    shard,
                    number,
                    folder,
                    bytes,
                    fragments: table.generation_fragments(&dataset),
                    dataset: Arc::new(dataset),
                    keys: KeyCache::new(&cache, table.location().uri()),
                }))
            })
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        self.open = generations
            .iter()
            .map(|generation| (generation.name(), generation.clone()))
            .collect();
        Ok(Snapshot::new(base, generations, flushed_below))
    }

    async fn read_manifests(&mut self, table: &LanceTable, own: &OwnShards) -> Result<()> {
        let shards = table.list_shards().await?;
        let known = &self.manifests;
        let read: Vec<(Uuid, Option<ShardManifest>)> = futures::stream::iter(shards)
            .map(|shard| async move {
                let manifest = match own.get(&shard) {
                    // The writer's own store answers from its last commit.
                    Some(own) => own
                        .manifests
                        .latest()
                        .await
                        .map_err(table.context(format!("reading shard {shard}")))?,
                    None => newest_manifest(table, shard, known.get(&shard)).await?,
                };
                Ok::<_, crate::RolloutError>((shard, manifest))
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        self.manifests = read
            .into_iter()
            .filter_map(|(shard, manifest)| Some((shard, manifest?)))
            .collect();
        Ok(())
    }
}

/// A foreign shard's newest manifest. One that has not changed costs a single look for its
/// successor.
async fn newest_manifest(
    table: &LanceTable,
    shard: Uuid,
    known: Option<&ShardManifest>,
) -> Result<Option<ShardManifest>> {
    if let Some(known) = known
        && !table.manifest_exists(&shard, known.version + 1).await?
    {
        return Ok(Some(known.clone()));
    }
    table.newest_manifest(shard).await
}
