//! A lane: one shard this process writes through, and its resident writer.
//!
//! Fetching the writer from its slot waits for nobody; opening and replacing are done by one caller
//! at a time; nothing is locked across a put. A fenced or poisoned writer is replaced once, by the
//! caller that finds the very same writer still in the slot; others pick the new one up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use async_trait::async_trait;
use futures::FutureExt;
use lance::dataset::mem_wal::scanner::InMemoryMemTableRef;
use lance::dataset::mem_wal::write::{BackpressureController, ShardMemory};
use lance::dataset::mem_wal::{DatasetMemWalExt, ShardWriter, ShardWriterConfig};
use lance_index::mem_wal::ShardManifest;
use parking_lot::RwLock;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::queue::PutFailure;
use super::{FlushReport, InsertCounters, threads};
use crate::error::{Result, RolloutError, without_places};
use crate::schema::TableSchema;
use crate::store::{LanceTable, LeaseKeeper};

/// A put that took this long is checked against the fence before it is acknowledged: by then
/// another process may have cleaned up past it.
const LONG_PUT: Duration = Duration::from_secs(60);

/// How often a lane takes another lease when it lost the one it was opening a shard under.
const OPEN_ATTEMPTS: usize = 3;

/// Only a backstop: every put asks for its own flush.
const WAL_TICK: Duration = Duration::from_secs(1);

/// How long a flush may take before its caller is told; the flush itself goes on.
const FLUSH_PATIENCE: Duration = Duration::from_secs(300);

/// A flush that fails so often, and is not through after this long, is begun anew by another writer:
/// Lance pauses for up to ten minutes before it tries again, also when storage has long been back.
const FLUSH_FAILURES: u64 = 3;
const FLUSH_FAILING: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Lane {
    index: usize,
    table: Arc<LanceTable>,
    leases: Arc<LeaseKeeper>,
    max_memtable_bytes: u64,
    slot: RwLock<Slot>,
    /// Held while the writer is opened or replaced.
    opening: Mutex<()>,
}

#[derive(Debug, Default)]
struct Slot {
    writer: Option<Arc<Resident>>,
    /// The lease's term a writer was last opened under, while the shard may hold acknowledged rows
    /// that only a writer can show.
    term: Option<u64>,
}

/// A writer in its slot.
pub(crate) struct Resident {
    writer: ShardWriter,
    /// The columns it writes.
    schema: RwLock<Arc<TableSchema>>,
    /// Flushes that had failed when one last succeeded.
    failures_before: AtomicU64,
}

impl std::ops::Deref for Resident {
    type Target = ShardWriter;

    fn deref(&self) -> &ShardWriter {
        &self.writer
    }
}

impl std::fmt::Debug for Resident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "writer of shard {} (epoch {})",
            self.shard_id(),
            self.epoch()
        )
    }
}

impl Lane {
    pub(super) fn new(
        index: usize,
        table: Arc<LanceTable>,
        leases: Arc<LeaseKeeper>,
        max_memtable_bytes: u64,
    ) -> Self {
        Self {
            index,
            table,
            leases,
            max_memtable_bytes,
            slot: RwLock::default(),
            opening: Mutex::new(()),
        }
    }

    /// The writer, opened if there is none.
    pub(super) async fn writer(&self) -> Result<Arc<Resident>> {
        if let Some(writer) = self.open_writer() {
            return Ok(writer);
        }
        let _opening = self.opening.lock().await;
        if let Some(writer) = self.open_writer() {
            return Ok(writer);
        }
        self.open_into_slot().await
    }

    /// The writer, if one is open.
    pub(super) fn open_writer(&self) -> Option<Arc<Resident>> {
        self.slot.read().writer.clone()
    }

    /// Moves the writer to the columns the table has by now, if it was opened before one was added;
    /// returns them. What it holds in the old ones is flushed in the background.
    pub(super) async fn up_to_date(&self, patience: Duration) -> Result<Arc<TableSchema>> {
        let writer = self.writer_within(patience).await?;
        let (base, schema) = self.table.current();
        if Arc::ptr_eq(&*writer.schema.read(), &schema) {
            return Ok(schema);
        }
        let doing = "taking up a new column";
        let evolved = writer.evolve_to(&base).boxed();
        let evolved = async { evolved.await.map_err(self.table.context(doing)) };
        let error = match in_time(&self.table, doing, patience, evolved).await {
            Ok(_) => {
                *writer.schema.write() = schema.clone();
                return Ok(schema);
            }
            Err(error) => error,
        };
        tracing::warn!(shard = %writer.shard_id(), %error, "replacing the shard's writer");
        let replaced = within(patience, self.replace(&writer)).await;
        let writer = replaced.unwrap_or(Err(error))?;
        Ok(writer.schema.read().clone())
    }

    /// Replaces a broken writer, unless somebody has already.
    async fn replace(&self, broken: &Arc<Resident>) -> Result<Arc<Resident>> {
        let _opening = self.opening.lock().await;
        match self.open_writer() {
            Some(current) if !Arc::ptr_eq(&current, broken) => return Ok(current),
            _ => {}
        }
        // The lease tells whether the shard is still this process's to open.
        if !self.leases.renew().await? {
            tracing::warn!(lane = self.index, "the lease was taken by another process");
        }
        let writer = self.open_into_slot().await?;
        retire(broken.clone());
        Ok(writer)
    }

    /// Opens the lane's shard. The lease is renewed after the shard was claimed: whoever takes it from
    /// then on finds the shard and fences it. One that was lost unnoticed may have been given back
    /// already, and nobody would come for rows put under it.
    async fn open_into_slot(&self) -> Result<Arc<Resident>> {
        for _ in 0..OPEN_ATTEMPTS {
            let (shard, term) = self.leases.shard_of_lane(self.index).await?;
            let writer = Arc::new(open_shard(&self.table, shard, self.max_memtable_bytes).await?);
            match self.leases.renew().await {
                Ok(true) if self.leases.term() == term => {
                    *self.slot.write() = Slot {
                        writer: Some(writer.clone()),
                        term: Some(term),
                    };
                    return Ok(writer);
                }
                renewed => {
                    retire(writer);
                    renewed?;
                    tracing::warn!(lane = self.index, "the lease was taken by another process");
                }
            }
        }
        Err(RolloutError::Conflict(format!(
            "the leases of {} keep being taken by other processes while a shard is opened",
            self.table.location()
        )))
    }

    /// The writer, if it can be had in this time: storage that is silent keeps no statement for ever.
    pub(super) async fn writer_within(&self, patience: Duration) -> Result<Arc<Resident>> {
        let doing = "opening a shard for writing";
        in_time(&self.table, doing, patience, self.writer()).await
    }

    /// Writes batches as one WAL object and waits until it has landed.
    pub(super) async fn put(
        &self,
        batches: Vec<RecordBatch>,
        patience: Duration,
        counters: &InsertCounters,
    ) -> Result<Duration, PutFailure> {
        let not_written = |error: RolloutError| match error {
            RolloutError::Fenced(message) => PutFailure::Fenced(message),
            other => PutFailure::NotWritten(other.to_string()),
        };
        let mut writer = self.writer_within(patience).await.map_err(not_written)?;
        let mut first = true;
        loop {
            let started = Instant::now();
            let error = match within(patience, writer.put(batches.clone()).boxed()).await {
                Some(Ok(_)) => {
                    let took = started.elapsed();
                    if took < LONG_PUT {
                        return Ok(took);
                    }
                    match within(patience, still_ours(&writer).boxed()).await {
                        Some(Ok(())) => return Ok(took),
                        Some(Err(error)) => error,
                        None => lance::Error::io(format!(
                            "whether shard {} is still this process's was not answered within \
                             {patience:?}",
                            writer.shard_id()
                        )),
                    }
                }
                Some(Err(error)) => error,
                None => {
                    self.invalidate(&writer).await;
                    return Err(PutFailure::Unknown(format!(
                        "the put of shard {} did not finish within {patience:?}",
                        writer.shard_id()
                    )));
                }
            };
            if matches!(error, lance::Error::InvalidInput { .. }) {
                return Err(PutFailure::NotWritten(error.to_string()));
            }
            if !first {
                self.invalidate(&writer).await;
                return Err(PutFailure::Unknown(error.to_string()));
            }
            // Fenced or poisoned: only a new writer helps. The rows keep ids and stamps, so a
            // first put that landed after all is the same version again.
            first = false;
            counters.reopens.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(shard = %writer.shard_id(), %error, "replacing the shard's writer");
            let doing = "replacing a shard's writer";
            writer = match in_time(&self.table, doing, patience, self.replace(&writer)).await {
                Ok(writer) => writer,
                Err(RolloutError::Fenced(message)) => return Err(PutFailure::Fenced(message)),
                Err(reopen) => {
                    let error = without_places(&error.to_string());
                    return Err(PutFailure::Unknown(format!("{error}; reopening: {reopen}")));
                }
            };
        }
    }

    /// Empties the slot if it still holds this writer; the next use opens a new one, which replays.
    async fn invalidate(&self, broken: &Arc<Resident>) {
        let _opening = self.opening.lock().await;
        let writer = &mut self.slot.write().writer;
        if writer
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, broken))
        {
            *writer = None;
            retire(broken.clone());
        }
    }

    /// Drops a writer whose lease was lost: its shard is no longer this process's. One that was
    /// opened under the present lease stays: its rows are in nobody else's care.
    pub(super) async fn abandon_if_lost(&self) {
        let _opening = self.opening.lock().await;
        let mut slot = self.slot.write();
        if slot.term == Some(self.leases.term()) {
            return;
        }
        if let Some(writer) = std::mem::take(&mut *slot).writer {
            retire(writer);
        }
    }

    /// Whether the lane has rows that are in no generation, or might: a writer that was let go because
    /// its put was not answered may have left acknowledged ones in the log.
    pub(super) async fn has_unflushed(&self) -> bool {
        match self.open_writer() {
            Some(writer) => unflushed(&writer).await.rows > 0,
            None => self.slot.read().term.is_some(),
        }
    }

    /// The writer of a lane that was used; None for one that never was.
    async fn used_writer(&self) -> Result<Option<Arc<Resident>>> {
        let in_use = self.slot.read().term.is_some();
        if in_use {
            self.writer().await.map(Some)
        } else {
            Ok(self.open_writer())
        }
    }

    /// Makes what was put so far a generation.
    pub(super) async fn flush(&self) -> Result<FlushReport> {
        let Some(writer) = self.used_writer().await? else {
            return Ok(FlushReport::default());
        };
        match flush_writer(&self.table, &writer).await {
            Ok(report) => Ok(report),
            // A broken writer's rows are in the log: its replacement replays them, then flushes.
            Err(RolloutError::Storage { source, .. }) if source.fence_reason().is_some() => {
                let writer = self.replace(&writer).await?;
                flush_writer(&self.table, &writer).await
            }
            Err(error) => Err(error),
        }
    }

    /// The lane's unflushed memtables, oldest first.
    pub(super) async fn memtables(&self) -> Result<Vec<(Arc<Resident>, InMemoryMemTableRef)>> {
        let Some(writer) = self.used_writer().await? else {
            return Ok(Vec::new());
        };
        let (writer, memtables) = match writer.in_memory_memtable_refs().boxed().await {
            Ok(memtables) => (writer, memtables),
            // A broken writer no longer shows its rows; its replacement has replayed them.
            Err(_) => {
                let writer = self.replace(&writer).await?;
                let memtables = writer
                    .in_memory_memtable_refs()
                    .await
                    .map_err(self.table.context("reading unflushed rows"))?;
                (writer, memtables)
            }
        };
        let mut found = memtables.frozen;
        found.push(memtables.active);
        found.sort_by_key(|memtable| memtable.generation);
        Ok(found
            .into_iter()
            .filter(|memtable| !memtable.batch_store.is_empty())
            .map(|memtable| (writer.clone(), memtable))
            .collect())
    }

    /// Stops the writer's tasks. Rows must have been flushed before.
    pub(super) async fn close(&self) -> Result<()> {
        let _opening = self.opening.lock().await;
        let Some(writer) = std::mem::take(&mut *self.slot.write()).writer else {
            return Ok(());
        };
        let held = unflushed(&writer).await;
        writer
            .abort()
            .await
            .map_err(self.table.context("closing a shard's writer"))?;
        if held.rows > 0 {
            return Err(RolloutError::Conflict(format!(
                "{} rows of shard {} are durable but not flushed: they are replayed when \
                 the table is next opened for writing",
                held.rows,
                writer.shard_id()
            )));
        }
        Ok(())
    }
}

/// Opens a shard for writing: claims its epoch and replays its log.
pub(crate) async fn open_shard(
    table: &Arc<LanceTable>,
    shard: Uuid,
    max_memtable_bytes: u64,
) -> Result<Resident> {
    // The log may hold columns that were added since this process last looked: replayed under older
    // ones they would be lost.
    table.refresh_base().await?;
    let (base, schema) = table.current();
    let limits = table.memtable_limits();
    let mut config = ShardWriterConfig::new(shard)
        .with_durable_write(true)
        .with_max_wal_buffer_size(1)
        .with_max_wal_flush_interval(WAL_TICK)
        .with_max_memtable_rows(limits.rows)
        .with_max_memtable_batches(limits.batches)
        .with_max_memtable_size(max_memtable_bytes as usize)
        .with_stats_log_interval(None)
        .with_backpressure(Arc::new(AdmitAll));
    config.max_unflushed_memtable_bytes = usize::MAX;
    let opening = async move { base.mem_wal_writer(shard, config).await };
    let writer = match threads::run(opening.boxed()).await {
        Ok(writer) => writer,
        Err(error) => {
            let mut doing = format!("opening shard {shard} for writing");
            if let Some(entry) = table.unreadable_log_entry(shard, &error).await {
                doing += &format!("; its log entry {entry} is damaged");
            }
            return Err(table.context(doing)(error));
        }
    };
    observe_stamps(table, &writer).await;
    Ok(Resident {
        writer,
        schema: RwLock::new(schema),
        failures_before: AtomicU64::new(0),
    })
}

/// Asks storage whether a writer's shard is still its own.
async fn still_ours(writer: &Resident) -> lance::Result<()> {
    let manifest = writer.manifest_store().refresh_latest().await?;
    match fenced_by(manifest.as_ref(), writer.epoch()) {
        None => Ok(()),
        Some(by) => Err(lance::Error::fenced_by_peer(format!(
            "shard {} was {by} while a put took long",
            writer.shard_id()
        ))),
    }
}

/// What happened to the shard of a writer with this epoch, if it is no longer its own. A shard
/// without a manifest was cleaned up past the writer: nobody would read what it put.
fn fenced_by(newest: Option<&ShardManifest>, epoch: u64) -> Option<&'static str> {
    match newest {
        None => Some("deleted"),
        Some(manifest) if manifest.writer_epoch > epoch => Some("opened by another writer"),
        Some(_) => None,
    }
}

/// Replayed rows carry stamps of an earlier life, whose clock may have been ahead.
async fn observe_stamps(table: &LanceTable, writer: &ShardWriter) {
    let schema = table.schema();
    let Some(stamp) = schema.stamp_index() else {
        return;
    };
    let Ok(memtables) = writer.in_memory_memtable_refs().boxed().await else {
        return;
    };
    for memtable in memtables.frozen.iter().chain([&memtables.active]) {
        for batch in memtable.batch_store.to_vec() {
            let stamps = batch.column_by_name(schema.sql().field(stamp).name());
            if let Some(highest) = stamps.and_then(crate::store::highest_stamp) {
                table.clock().observe(highest);
            }
        }
    }
}

/// Freezes and flushes what a writer holds.
pub(crate) async fn flush_writer(table: &LanceTable, writer: &Resident) -> Result<FlushReport> {
    let held = unflushed(writer).await;
    if held.rows == 0 {
        return Ok(FlushReport::default());
    }
    let shard = writer.shard_id();
    fail::fail_point!("flush-before-freeze");
    let fence = writer
        .force_freeze_active()
        .boxed()
        .await
        .map_err(table.context(format!("freezing shard {shard}")))?;
    fail::fail_point!("flush-under-way");
    let mut flushed = fence.wait().boxed();
    let started = Instant::now();
    loop {
        let failures = || writer.stats().memtable_flush_failures;
        let failed = match tokio::time::timeout(FLUSH_FAILING, &mut flushed).await {
            Ok(done) => {
                done.map_err(table.context(format!("flushing shard {shard}")))?;
                writer.failures_before.store(failures(), Ordering::Relaxed);
                break;
            }
            Err(_) => failures() - writer.failures_before.load(Ordering::Relaxed),
        };
        if failed >= FLUSH_FAILURES {
            let context = table.context(format!("flushing shard {shard}"));
            return Err(context(lance::Error::writer_poisoned(format!(
                "{failed} attempts failed"
            ))));
        }
        if started.elapsed() >= FLUSH_PATIENCE {
            return Err(RolloutError::Conflict(format!(
                "flushing shard {shard} of {} has taken {FLUSH_PATIENCE:?} and goes on in the \
                 background",
                table.location()
            )));
        }
    }
    Ok(FlushReport {
        generations: held.memtables,
        rows: held.rows,
        bytes: held.bytes,
    })
}

/// What a writer holds that is in no generation yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unflushed {
    memtables: usize,
    rows: u64,
    bytes: u64,
}

/// Looks at what a writer holds. A broken writer does not tell: it counts as holding something, so
/// that a flush looks closer.
async fn unflushed(writer: &Resident) -> Unflushed {
    let Ok(memtables) = writer.in_memory_memtable_refs().boxed().await else {
        return Unflushed {
            memtables: 1,
            rows: 1,
            bytes: 0,
        };
    };
    // A flush tells its waiters a moment before its memtable is let go.
    let flushed_below = match memtables.frozen.is_empty() {
        true => 0,
        false => match writer.manifest().boxed().await {
            Ok(Some(manifest)) => manifest.current_generation,
            _ => 0,
        },
    };
    let mut unflushed = Unflushed {
        memtables: 0,
        rows: 0,
        bytes: 0,
    };
    let held = memtables
        .frozen
        .iter()
        .filter(|memtable| memtable.generation >= flushed_below)
        .chain([&memtables.active])
        .map(|memtable| &memtable.batch_store)
        .filter(|store| store.total_rows() > 0);
    for store in held {
        unflushed.memtables += 1;
        unflushed.rows += store.total_rows() as u64;
        unflushed.bytes += store.row_bytes() as u64;
    }
    unflushed
}

/// Ends a broken writer's tasks without waiting for them.
fn retire(writer: Arc<Resident>) {
    tokio::spawn(async move {
        if let Err(error) = writer.abort().await {
            tracing::debug!(shard = %writer.shard_id(), %error, "stopping a replaced writer");
        }
    });
}

/// The result of some work on storage, or an error that says what was not answered in time.
pub(super) async fn in_time<T>(
    table: &LanceTable,
    doing: &str,
    patience: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    within(patience, work).await.unwrap_or_else(|| {
        Err(RolloutError::Storage {
            context: format!("{doing} at {}", table.location()),
            source: lance::Error::io(format!("no answer within {patience:?}")),
        })
    })
}

/// The result of some work, if it comes in time; zero is patient for ever.
async fn within<T>(patience: Duration, work: impl Future<Output = T>) -> Option<T> {
    if patience.is_zero() {
        return Some(work.await);
    }
    tokio::time::timeout(patience, work).await.ok()
}

/// The process-wide budget decides before a put; Lance's own valve is left open.
#[derive(Debug)]
struct AdmitAll;

#[async_trait]
impl BackpressureController for AdmitAll {
    async fn maybe_apply_backpressure(&self, _shard: ShardMemory) -> lance::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use lance_index::mem_wal::ShardStatus;

    use super::*;

    #[test]
    fn a_missing_manifest_is_a_fence() {
        let of_epoch = |writer_epoch| ShardManifest {
            shard_id: uuid::Uuid::nil(),
            version: 1,
            shard_spec_id: 0,
            shard_field_values: HashMap::new(),
            writer_epoch,
            replay_after_wal_entry_position: 0,
            wal_entry_position_last_seen: 0,
            current_generation: 1,
            sstables: Vec::new(),
            status: ShardStatus::Active,
        };
        assert_eq!(fenced_by(Some(&of_epoch(3)), 3), None);
        assert_eq!(
            fenced_by(Some(&of_epoch(4)), 3),
            Some("opened by another writer")
        );
        assert_eq!(fenced_by(None, 3), Some("deleted"));
    }
}
