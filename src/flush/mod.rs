//! The background half: flush, merge, leases, each on its own schedule and off the insert path.
//!
//! ```text
//!  timer, pressure ─▶ flush loop ─▶ generation ─┐
//!                                               ├─▶ merge loop ─▶ base
//!  timer ─▶ lease loop: renew, adopt the dead ──┘     ▲
//!                                                     │
//!  timer ─▶ compaction loop: small fragments ─────────┤  one process
//!  timer ─▶ clean-up loop: what nobody needs any more ┘  at a time
//! ```
//!
//! One [`Maintenance`] per store. Requests by SQL run the same work in the caller, one at a time;
//! the loops end when the store is closed, which flushes last.

mod adopt;
mod cleanup;
mod compact;
mod index;
mod merge;
mod policy;
mod status;
mod sweep;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use datafusion::common::runtime::SpawnedTask;
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use cleanup::{Removal, RemovalKind};
pub use compact::CompactionReport;
pub use merge::MergeReport;
use merge::{Committed, PreparedMerge};
pub(crate) use merge::{delete_losers, is_conflict, write_fragments};
use policy::Waiting;
use status::Board;
pub(crate) use status::TaskStatus;

use crate::error::{Result, RolloutError};
use crate::insert::{FlushReport, InsertPath, UnflushedBudget};
use crate::metrics::{Operation, Work};
use crate::options::RuntimeSettings;
use crate::store::masks::KeyCache;
use crate::store::{Generation, LanceTable, LeaseKeeper, Snapshot, SnapshotCache, TaskLease};

/// How often a merge works itself out anew when other commits stand in its way.
const MERGE_ATTEMPTS: usize = 20;

/// A store's background work.
#[derive(Debug)]
pub(crate) struct Maintenance {
    table: Arc<LanceTable>,
    insert: Arc<InsertPath>,
    leases: Arc<LeaseKeeper>,
    budget: Arc<UnflushedBudget>,
    snapshots: Arc<SnapshotCache>,
    keys: KeyCache,
    settings: Arc<RuntimeSettings>,
    recovered: OnceCell<bool>,
    compaction: TaskLease,
    cleaning: TaskLease,
    flushing: tokio::sync::Mutex<()>,
    merging: tokio::sync::Mutex<()>,
    flushed: Notify,
    oldest_waiting: Mutex<Option<Instant>>,
    /// Generations that wait for a merge, as far as this process knows without asking storage.
    known_waiting: AtomicUsize,
    /// Generations made since this process last looked whether a merge is due.
    unlooked: AtomicUsize,
    /// Whether a session asked for the columns since they were last looked for.
    columns_asked: AtomicBool,
    merges_forced: AtomicU64,
    board: Board,
    stop: CancellationToken,
    tasks: Mutex<Vec<SpawnedTask<()>>>,
}

impl Maintenance {
    pub(crate) fn new(
        table: Arc<LanceTable>,
        insert: Arc<InsertPath>,
        leases: Arc<LeaseKeeper>,
        budget: Arc<UnflushedBudget>,
        snapshots: Arc<SnapshotCache>,
        keys: KeyCache,
        settings: Arc<RuntimeSettings>,
    ) -> Arc<Self> {
        let lease = |task| TaskLease::new(table.clone(), task, leases.ttl());
        Arc::new(Self {
            compaction: lease("compaction"),
            cleaning: lease("cleanup"),
            table,
            insert,
            leases,
            budget,
            snapshots,
            keys,
            settings,
            recovered: OnceCell::new(),
            flushing: tokio::sync::Mutex::new(()),
            merging: tokio::sync::Mutex::new(()),
            flushed: Notify::new(),
            oldest_waiting: Mutex::new(None),
            known_waiting: AtomicUsize::new(0),
            unlooked: AtomicUsize::new(0),
            columns_asked: AtomicBool::new(false),
            merges_forced: AtomicU64::new(0),
            board: Board::default(),
            stop: CancellationToken::new(),
            tasks: Mutex::new(Vec::new()),
        })
    }

    /// Starts the loops. A read-only store looks at its columns and has no other.
    pub(crate) fn start(self: &Arc<Self>) {
        if self.table.pinned().is_some() {
            return;
        }
        let mut tasks = self.tasks.lock();
        tasks.push(SpawnedTask::spawn(self.clone().columns_loop()));
        if self.table.read_only() {
            return;
        }
        tasks.push(SpawnedTask::spawn(self.clone().flush_loop()));
        tasks.push(SpawnedTask::spawn(self.clone().merge_loop()));
        tasks.push(SpawnedTask::spawn(self.clone().lease_loop()));
        tasks.push(SpawnedTask::spawn(self.clone().compaction_loop()));
        tasks.push(SpawnedTask::spawn(self.clone().cleanup_loop()));
    }

    /// Merges a flush did because too many generations waited.
    pub(crate) fn merges_forced(&self) -> u64 {
        self.merges_forced.load(Ordering::Relaxed)
    }

    /// Flushes this process's rows now.
    ///
    /// # Errors
    /// A lane that could not be flushed, or too many generations wait and cannot be merged; the rows
    /// stay durable in the log.
    pub(crate) async fn flush_now(&self) -> Result<FlushReport> {
        self.table.check_writable("flushed")?;
        let _one = self.flushing.lock().await;
        let work = async {
            self.recover().await?;
            self.make_room().await?;
            self.insert.flush().await
        };
        let came_to = |report: &FlushReport| {
            Some(Work {
                rows: report.rows,
                bytes: report.bytes,
            })
        };
        let result = self.observe(Operation::Flush, work, came_to).await;
        // Even a failed flush may have made some generations.
        self.snapshots.changed();
        let report = result?;
        if report.generations > 0 {
            self.known_waiting
                .fetch_add(report.generations, Ordering::Relaxed);
            self.oldest_waiting.lock().get_or_insert_with(Instant::now);
            self.generations_made(report.generations);
        }
        Ok(report)
    }

    /// Merges before a flush where too many generations wait already: every read opens all of them.
    async fn make_room(&self) -> Result<()> {
        let bound = self.settings.max_waiting_generations;
        let full = |waiting: usize| bound > 0 && waiting >= bound;
        // What was counted may have been merged by others since: storage decides.
        if !full(self.known_waiting.load(Ordering::Relaxed)) {
            return Ok(());
        }
        let waiting = self.waiting_now().await?.len();
        if !full(waiting) {
            return Ok(());
        }
        tracing::warn!(
            table = %self.table.location(),
            waiting,
            bound,
            "too many generations wait for a merge: merging before the flush"
        );
        self.merges_forced.fetch_add(1, Ordering::Relaxed);
        match self.merge_now().await {
            Ok(_) => Ok(()),
            Err(error) => Err(RolloutError::Exhausted(format!(
                "{waiting} generations of {} wait for a merge, rollout.max_waiting_generations is \
                 {bound}, and merging them failed: {error}. Rows that are not flushed stay durable in \
                 the log",
                self.table.location()
            ))),
        }
    }

    /// The generations that wait at this very moment.
    async fn waiting_now(&self) -> Result<Vec<Waiting>> {
        let snapshot = self.fresh_snapshot().await?;
        self.known_waiting
            .store(snapshot.generations.len(), Ordering::Relaxed);
        Ok(waiting(&snapshot.generations))
    }

    /// Merges everything that is flushed now, in bounded passes.
    ///
    /// # Errors
    /// A source that cannot be read, or commits that kept losing.
    pub(crate) async fn merge_now(&self) -> Result<MergeReport> {
        self.table.check_writable("merged")?;
        let _one = self.merging.lock().await;
        let came_to = |report: &MergeReport| {
            Some(Work {
                rows: report.rows_inserted,
                bytes: report.bytes,
            })
        };
        let work = self.merge_all();
        let result = self.observe(Operation::Merge, work, came_to).await;
        self.snapshots.changed();
        if let Ok(report) = &result {
            *self.oldest_waiting.lock() = None;
            if report.passes > 0 {
                self.keep_up_index().await;
            }
        }
        result
    }

    /// The rows are merged already: an index or a filter that lags only makes lookups slower.
    async fn keep_up_index(&self) {
        let min_rows = self.settings.id_index_min_rows;
        let base = self.table.base();
        if let Err(error) = crate::store::masks::make_filters(&self.table, &self.keys, &base).await
        {
            tracing::warn!(table = %self.table.location(), %error, "keeping up the filters of ids");
        }
        if let Err(error) = index::keep_up(&self.table, min_rows).await {
            tracing::warn!(table = %self.table.location(), %error, "keeping up the index on ids");
        }
        self.snapshots.changed();
    }

    async fn merge_all(&self) -> Result<MergeReport> {
        let mut report = MergeReport::default();
        let mut refusals = 0;
        loop {
            let snapshot = self.fresh_snapshot().await?;
            report.base_version = snapshot.base.version().version;
            let waiting = waiting(&snapshot.generations);
            if waiting.is_empty() {
                self.known_waiting.store(0, Ordering::Relaxed);
                return Ok(report);
            }
            let pass = policy::pass_length(&waiting, self.settings.merge_pass_bytes);
            let taken = &snapshot.generations[..pass];
            let prepared = merge::prepare(&self.table, &self.keys, &snapshot.base, taken).await?;
            match merge::commit(&self.table, &prepared).await? {
                Committed::Done(base) => {
                    report.bytes += waiting[..pass].iter().map(|taken| taken.bytes).sum::<u64>();
                    self.merged(&prepared, &mut report).await;
                    report.base_version = base.version().version;
                }
                Committed::Refused(reason) if refusals >= MERGE_ATTEMPTS => {
                    return Err(RolloutError::Conflict(format!(
                        "merging {} kept losing against other commits: {reason}",
                        self.table.location()
                    )));
                }
                Committed::Refused(reason) => {
                    refusals += 1;
                    tracing::debug!(
                        refusals,
                        reason,
                        "a merge was refused and is worked out again"
                    );
                    // Those who collide once should not march in step.
                    let spread = Uuid::new_v4().as_u128() as u64 % (20 * refusals as u64 + 1);
                    tokio::time::sleep(Duration::from_millis(spread)).await;
                }
            }
            self.snapshots.changed();
        }
    }

    async fn merged(&self, prepared: &PreparedMerge, report: &mut MergeReport) {
        report.generations += prepared.generations;
        report.rows_inserted += prepared.rows_inserted;
        report.rows_replaced += prepared.rows_replaced;
        report.passes += 1;
        merge::forget_merged(&self.table, &self.insert.own_shards(), prepared).await;
    }

    /// A snapshot of this very moment.
    async fn fresh_snapshot(&self) -> Result<Arc<Snapshot>> {
        let own = self.insert.own_shards();
        self.snapshots
            .get(&self.table, &own, Duration::ZERO, &HashMap::new())
            .await
    }

    async fn flush_loop(self: Arc<Self>) {
        while let Err(error) = self.flush_earlier_life().await {
            tracing::warn!(table = %self.table.location(), %error, "recovering an earlier life's rows");
            if matches!(error, RolloutError::Fenced(_)) {
                break;
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(self.leases.ttl() / 2) => {}
            }
        }
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.pause(Operation::Flush, self.settings.flush_interval) => {}
                () = self.budget.pressed() => {}
            }
            if self.insert.has_unflushed().await
                && let Err(error) = self.flush_now().await
            {
                tracing::warn!(table = %self.table.location(), %error, "flush failed, will be tried again");
            }
        }
    }

    /// A fixed name whose earlier life ended without a word: its rows are replayed, once. Returns
    /// whether there was such a life.
    async fn recover(&self) -> Result<bool> {
        let recovered = self.recovered.get_or_try_init(|| async {
            let unfinished = self.leases.earlier_life_unfinished().await?;
            if unfinished {
                self.insert.recover().await?;
            }
            Ok(unfinished)
        });
        recovered.await.copied()
    }

    async fn flush_earlier_life(&self) -> Result<()> {
        let came_to = |unfinished: &bool| unfinished.then(Work::default);
        let recovery = self.observe(Operation::Adopt, self.recover(), came_to);
        // Rows of this life are there by now if the task was late: they wait for their own flush.
        if recovery.await? && self.insert.has_unflushed().await {
            self.flush_now().await?;
        }
        Ok(())
    }

    pub(super) fn generations_made(&self, generations: usize) {
        self.unlooked.fetch_add(generations, Ordering::AcqRel);
        self.flushed.notify_one();
    }

    async fn merge_loop(self: Arc<Self>) {
        let mut looked = Instant::now();
        loop {
            let age = self.settings.merge_max_age;
            let left = age.saturating_sub(looked.elapsed());
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.flushed.notified() => {
                    let made = self.unlooked.load(Ordering::Acquire);
                    if !policy::worth_a_look(made, &self.settings) {
                        continue;
                    }
                }
                () = self.pause(Operation::Merge, left.max(age.min(Duration::from_millis(1)))) => {}
            }
            looked = Instant::now();
            self.unlooked.store(0, Ordering::Release);
            if let Err(error) = self.merge_if_due().await {
                tracing::warn!(table = %self.table.location(), %error, "merge failed, will be tried again");
            }
        }
    }

    async fn merge_if_due(&self) -> Result<()> {
        let waiting = self.waiting_now().await?;
        let age = match waiting.is_empty() {
            true => Duration::ZERO,
            // Whoever made them, they have waited since this process first saw them.
            false => self
                .oldest_waiting
                .lock()
                .get_or_insert_with(Instant::now)
                .elapsed(),
        };
        if policy::should_merge(&waiting, age, &self.settings) {
            self.merge_now().await?;
        }
        Ok(())
    }

    /// Says that a session plans by the columns this process knows.
    pub(crate) fn note_columns_asked(&self) {
        self.columns_asked.store(true, Ordering::Relaxed);
    }

    /// Looks for columns that another process added. Every look at the base would find them; where
    /// nobody reads there is none. While nobody asks for the columns either, it rests.
    async fn columns_loop(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(self.leases.ttl() / 2) => {}
            }
            if self.columns_asked.swap(false, Ordering::Relaxed)
                && let Err(error) = self.table.refresh_base().await
            {
                tracing::debug!(table = %self.table.location(), %error, "looking for new columns");
            }
        }
    }

    async fn lease_loop(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.pause(Operation::Lease, self.leases.ttl() / 2) => {}
            }
            self.renew_lease().await;
            if let Err(error) = self.adopt_dead().await {
                tracing::warn!(table = %self.table.location(), %error, "adopting dead writers' shards");
            }
        }
    }

    /// Ends the loops, flushes what is left, closes the writers and gives the lease back.
    ///
    /// # Errors
    /// Rows that could not be flushed, or an earlier life's that could not be replayed: they are
    /// durable, and the lease is not given back, so that another process flushes them.
    pub(crate) async fn close(&self) -> Result<()> {
        self.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            // A loop that panicked has been reported by its panic.
            let _ = task.join().await;
        }
        let recovered = match self.table.read_only() {
            true => Ok(false),
            false => self.recover().await,
        };
        self.insert.close().await?;
        match recovered {
            // Another process has the name, and the rows.
            Err(RolloutError::Fenced(_)) | Ok(_) => self.leases.release().await,
            Err(error) => Err(error),
        }
    }
}

fn waiting(generations: &[Arc<Generation>]) -> Vec<Waiting> {
    generations
        .iter()
        .map(|generation| Waiting {
            bytes: generation.bytes,
        })
        .collect()
}
