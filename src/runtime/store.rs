//! An open table: its write path, its maintenance and its snapshots.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion::scalar::ScalarValue;
use lance::session::Session;
use uuid::Uuid;

use crate::error::Result;
use crate::flush::{CompactionReport, Maintenance, MergeReport, Removal, TaskStatus};
use crate::insert::{InsertPath, MemtableView, RolloutSink, UnflushedBudget};
use crate::metrics::Operation;
use crate::options::{Freshness, RolloutSessionOptions, RuntimeSettings};
use crate::schema::{TableSchema, parse_type};
use crate::store::masks::{IdSet, KeyCache, KeySource, Masks};
use crate::store::{
    BaseVersion, LanceTable, LeaseKeeper, Location, SharedCache, Snapshot, SnapshotCache,
};

/// Ids up to which sources are looked through for them before planning.
const MAX_PRUNING_IDS: usize = 64;

/// An open rollouts table. All tables registered on one location in a process share one.
pub struct RolloutStore {
    table: Arc<LanceTable>,
    insert: Arc<InsertPath>,
    maintenance: Arc<Maintenance>,
    leases: Arc<LeaseKeeper>,
    snapshots: Arc<SnapshotCache>,
    keys: KeyCache,
    budget: Arc<UnflushedBudget>,
}

impl std::fmt::Debug for RolloutStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RolloutStore")
            .field("location", self.location())
            .finish_non_exhaustive()
    }
}

/// What a query reads: a snapshot, the unflushed rows if asked for, and which of all these count.
#[derive(Debug)]
pub(crate) struct ReadView {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) memtables: Vec<MemtableView>,
    /// Sources are the snapshot's generations, then the memtables.
    pub(crate) masks: Arc<Masks>,
}

/// Pieces of a [`ReadView`] that a query about certain ids need not read.
#[derive(Debug, Default)]
pub(crate) struct Pruned {
    /// Fragments of the base, by position.
    pub(crate) fragments: HashSet<usize>,
    /// Generations and memtables, by position among the sources.
    pub(crate) sources: HashSet<usize>,
}

impl RolloutStore {
    pub(super) fn new(
        table: LanceTable,
        budget: Arc<UnflushedBudget>,
        settings: Arc<RuntimeSettings>,
    ) -> Arc<Self> {
        let table = Arc::new(table);
        let leases = Arc::new(LeaseKeeper::new(
            table.clone(),
            settings.shard_id.clone(),
            settings.lease_ttl,
        ));
        let insert = InsertPath::new(table.clone(), leases.clone(), budget.clone(), &settings);
        budget.watch(Arc::downgrade(&insert));
        let snapshots = Arc::new(SnapshotCache::default());
        let keys = KeyCache::new(table.cache(), table.location().uri());
        let maintenance = Maintenance::new(
            table.clone(),
            insert.clone(),
            leases.clone(),
            budget.clone(),
            snapshots.clone(),
            keys.clone(),
            settings,
        );
        maintenance.start();
        Arc::new(Self {
            table,
            insert,
            maintenance,
            leases,
            snapshots,
            keys,
            budget,
        })
    }

    /// Where the table is.
    pub fn location(&self) -> &Location {
        self.table.location()
    }

    /// Says that a session plans by the columns this process knows.
    pub(crate) fn note_columns_asked(&self) {
        self.maintenance.note_columns_asked();
    }

    /// Its columns, key and defaults.
    pub fn schema(&self) -> Arc<TableSchema> {
        self.table.schema()
    }

    /// The Lance session every open and read of this store uses.
    pub fn session(&self) -> &Arc<Session> {
        self.table.session()
    }

    /// Whether nothing is ever written through this store.
    pub fn read_only(&self) -> bool {
        self.table.read_only()
    }

    /// Rows acknowledged since the store was opened; those of a statement that is still running, so
    /// far.
    pub fn rows_acknowledged(&self) -> u64 {
        self.insert.counters().rows.load(Ordering::Relaxed)
    }

    /// Appends rows and waits until they are durable: the same guarantees as an INSERT, without
    /// SQL. The batch has the table's columns in order; the stamp column may hold anything. One of
    /// up to 100,000 rows and 32 MiB is written whole or not at all, a larger one in such parts.
    ///
    /// Returns the number of rows.
    ///
    /// # Errors
    /// A batch that does not fit the table (nothing is written), or a put that failed: see
    /// [`RolloutError::PartlyWritten`](crate::RolloutError::PartlyWritten) and
    /// [`RolloutError::OutcomeUnknown`](crate::RolloutError::OutcomeUnknown).
    pub async fn append(&self, batch: RecordBatch) -> Result<u64> {
        let sink = RolloutSink::new(self.insert.clone(), None, batch.schema());
        let no_limit: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let reservation = MemoryConsumer::new("RolloutAppend").register(&no_limit);
        let rows = futures::stream::iter([Ok(batch)]);
        sink.write(rows, reservation).await
    }

    /// Makes this process's rows visible to everybody, now. Returns generations and rows.
    ///
    /// # Errors
    /// A lane that could not be flushed; its rows stay durable in the log.
    pub async fn flush(&self) -> Result<(usize, u64)> {
        let flushed = self.maintenance.flush_now().await?;
        Ok((flushed.generations, flushed.rows))
    }

    /// Merges everything that is flushed into the base, now.
    ///
    /// # Errors
    /// A source that cannot be read, or commits that kept losing.
    pub async fn merge(&self) -> Result<MergeReport> {
        self.maintenance.merge_now().await
    }

    /// Rewrites the base's small fragments as larger ones, as far as one bounded run goes.
    ///
    /// # Errors
    /// Another process is at it, or commits that kept losing.
    pub async fn compact(&self) -> Result<CompactionReport> {
        self.maintenance.compact_now().await
    }

    /// Deletes what no reader and no writer needs any more; returns what went. A dry run deletes
    /// nothing and returns what would go.
    ///
    /// # Errors
    /// Another process is at it, or storage that cannot be reached.
    pub async fn clean_up(&self, dry_run: bool) -> Result<Vec<Removal>> {
        self.maintenance.clean_up_now(dry_run).await
    }

    /// Adds a nullable column, NULL in every row there is, of a type given in SQL. Returns the type
    /// it is stored as and the base version that has it first. This process has it at once, every
    /// other one within half of `rollout.lease_ttl_secs`; until then they go on without.
    ///
    /// # Errors
    /// A name that is taken or not allowed, a type that cannot be stored, a read-only table,
    /// storage that cannot be reached.
    pub async fn add_column(&self, name: &str, sql_type: &str) -> Result<(DataType, u64)> {
        let data_type = parse_type(sql_type)?;
        let field = Field::new(name, data_type.clone(), true);
        let version = crate::store::add_column(&self.table, &field).await?;
        self.snapshots.changed();
        Ok((data_type, version))
    }

    /// The cache this store uses.
    pub(crate) fn cache(&self) -> &SharedCache {
        self.table.cache()
    }

    /// The base's versions, oldest first.
    pub(crate) async fn versions(&self) -> Result<Vec<BaseVersion>> {
        crate::store::versions(&self.table.base())
            .await
            .map_err(self.table.context("listing the base's versions"))
    }

    #[cfg(test)]
    pub(crate) fn maintenance(&self) -> &Arc<Maintenance> {
        &self.maintenance
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> &KeyCache {
        &self.keys
    }

    pub(crate) fn table(&self) -> &Arc<LanceTable> {
        &self.table
    }

    pub(crate) fn insert_path(&self) -> &Arc<InsertPath> {
        &self.insert
    }

    pub(crate) fn leases(&self) -> &Arc<LeaseKeeper> {
        &self.leases
    }

    pub(crate) fn budget(&self) -> &Arc<UnflushedBudget> {
        &self.budget
    }

    pub(crate) fn maintenance_status(&self, kind: Operation) -> TaskStatus {
        self.maintenance.status(kind)
    }

    /// Merges a flush did because too many generations waited.
    pub(crate) fn merges_forced(&self) -> u64 {
        self.maintenance.merges_forced()
    }

    /// Says that this process changed the base by other means than a merge.
    pub(crate) fn changed(&self) {
        self.snapshots.changed();
    }

    /// The flushed state of the table, no older than `max_age`.
    pub(crate) async fn snapshot(
        &self,
        max_age: Duration,
        at_least: &HashMap<Uuid, u64>,
    ) -> Result<Arc<Snapshot>> {
        let own = self.insert.own_shards();
        self.snapshots
            .get(&self.table, &own, max_age, at_least)
            .await
    }

    /// What a query of this session reads.
    pub(crate) async fn read_view(&self, options: &RolloutSessionOptions) -> Result<ReadView> {
        if options.freshness == Freshness::Flushed {
            let snapshot = self
                .snapshot(options.snapshot_max_age, &HashMap::new())
                .await?;
            let masks = snapshot.masks(&self.table, &self.keys).await?;
            return Ok(ReadView {
                snapshot,
                memtables: Vec::new(),
                masks,
            });
        }
        // Memtables first: what is flushed after this moment is then in both, and counted once.
        let mut memtables = self.insert.memtables().await?;
        let mut at_least: HashMap<Uuid, u64> = HashMap::new();
        for memtable in &memtables {
            let lowest = at_least
                .entry(memtable.shard)
                .or_insert(memtable.generation);
            *lowest = memtable.generation.min(*lowest);
        }
        for (shard, next) in self.insert.next_generations().await {
            at_least.entry(shard).or_insert(next);
        }
        let snapshot = self.snapshot(options.snapshot_max_age, &at_least).await?;
        memtables.retain(|memtable| {
            let flushed = snapshot.flushed_below.get(&memtable.shard).copied();
            memtable.generation >= flushed.unwrap_or(1)
        });
        memtables.retain(|memtable| memtable.batches.iter().any(|b| b.num_rows() > 0));
        if memtables.is_empty() {
            let masks = snapshot.masks(&self.table, &self.keys).await?;
            return Ok(ReadView {
                snapshot,
                memtables,
                masks,
            });
        }
        let mut sources: Vec<_> = snapshot
            .generations
            .iter()
            .map(KeySource::generation)
            .collect();
        sources.extend(memtables.iter().map(|memtable| {
            KeySource::memtable(
                memtable.shard,
                memtable.epoch,
                memtable.generation,
                memtable.batches.clone(),
            )
        }));
        let masks = Masks::build(&self.table, &self.keys, &snapshot.base, &sources).await?;
        Ok(ReadView {
            snapshot,
            memtables,
            masks: Arc::new(masks),
        })
    }

    /// What a query about these ids need not read.
    pub(crate) async fn prune(&self, view: &ReadView, ids: Vec<ScalarValue>) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        if ids.is_empty() || ids.len() > MAX_PRUNING_IDS {
            return Ok(pruned);
        }
        let ids = IdSet::new(ids)?;
        for (i, fragment) in view.snapshot.base.fragments().iter().enumerate() {
            if !ids.may_be_in(&self.keys, fragment).await {
                pruned.fragments.insert(i);
            }
        }
        let sources = 0..view.snapshot.generations.len() + view.memtables.len();
        pruned
            .sources
            .extend(sources.filter(|source| !view.masks.source_has(*source, &ids)));
        Ok(pruned)
    }

    /// Stops the background work after a flush.
    pub(super) async fn close(&self) -> Result<()> {
        let closed = self.maintenance.close().await;
        self.snapshots.clear().await;
        closed
    }
}
