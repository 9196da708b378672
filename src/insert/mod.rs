//! The write path.
//!
//! ```text
//! INSERT ─▶ sink ─▶ queue ─┬─▶ lane 0 ─▶ resident ShardWriter ─▶ one WAL object ─▶ acknowledged
//!   (checks, chunks)       ├─▶ lane 1        (slot: locked to fetch, open or replace,
//!   append ────────────────┘   …                    never across a put)
//! ```
//!
//! Statements wait in one queue; whichever lane is free takes what waits, whole statements only, as
//! one put, and acknowledges them together. So nobody waits for a particular lane's round trip, a
//! lone statement goes at once, and low traffic stays on one lane: a second opens only when the
//! first is busy and something waits.
//!
//! Rows are stamped when they are taken, in queue order, so within a lane the order of stamps is the
//! order of puts.

mod budget;
mod dictionaries;
mod lane;
mod queue;
mod rows;
mod sink;
#[cfg(test)]
mod tests;
mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::FutureExt;
use lance::dataset::mem_wal::scanner::InMemoryMemTableRef;
use tracing::Instrument;
use uuid::Uuid;

pub(crate) use budget::UnflushedBudget;
use dictionaries::Dictionaries;
use lane::Lane;
pub(crate) use lane::{flush_writer, open_shard};
use queue::{Queue, Receipt};
pub(crate) use sink::{RolloutSink, reservation};

use crate::error::{Result, RolloutError};
use crate::metrics::{Operation, Work, record_error};
use crate::options::RuntimeSettings;
use crate::schema::DictionaryValues;
use crate::store::{LanceTable, LeaseKeeper, OwnShard, OwnShards};

/// A timer rings to the millisecond: a shorter pause would be none, or too long.
const SHORTEST_PAUSE: Duration = Duration::from_micros(500);

/// However long puts take, a statement is not kept waiting longer than this for others.
const LONGEST_LINGER: Duration = Duration::from_millis(20);

/// Counters of one store's inserts, for `rollout_stats`.
#[derive(Debug, Default)]
pub(crate) struct InsertCounters {
    /// Statements (and `append` calls) that ended and had rows.
    pub(crate) statements: AtomicU64,
    /// Rows acknowledged.
    pub(crate) rows: AtomicU64,
    /// WAL puts that were acknowledged.
    pub(crate) puts: AtomicU64,
    /// Puts that failed.
    pub(crate) failures: AtomicU64,
    /// Times a fenced or poisoned writer was replaced.
    pub(crate) reopens: AtomicU64,
    /// Moving average of the time a put takes, in microseconds.
    pub(crate) put_micros: AtomicU64,
}

impl InsertCounters {
    /// A statement, or a call of `append`, of which all rows are durable.
    pub(crate) fn record_statement(&self, rows: u64) {
        self.statements
            .fetch_add(u64::from(rows > 0), Ordering::Relaxed);
    }

    fn record_put(&self, took: Duration, rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.puts.fetch_add(1, Ordering::Relaxed);
        let took = took.as_micros() as u64;
        // A plain moving average; two lanes racing lose a sample, which does no harm.
        let known = self.put_micros.load(Ordering::Relaxed);
        let next = if known == 0 {
            took
        } else {
            (known * 7 + took) / 8
        };
        self.put_micros.store(next, Ordering::Relaxed);
    }
}

/// What a flush of this process's rows did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FlushReport {
    /// Generations written.
    pub(crate) generations: usize,
    /// Rows in them.
    pub(crate) rows: u64,
    /// Bytes the rows had in memory.
    pub(crate) bytes: u64,
}

/// A lane's unflushed rows, as seen by a reader.
#[derive(Clone)]
pub(crate) struct MemtableView {
    pub(crate) shard: Uuid,
    /// The writer's epoch: a generation number may come back with other rows under a new one.
    pub(crate) epoch: u64,
    pub(crate) generation: u64,
    pub(crate) batches: Vec<RecordBatch>,
}

impl std::fmt::Debug for MemtableView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "memtable {}/{}", self.shard, self.generation)
    }
}

/// A store's write path: its queue and lanes.
#[derive(Debug)]
pub(crate) struct InsertPath {
    table: Arc<LanceTable>,
    leases: Arc<LeaseKeeper>,
    budget: Arc<UnflushedBudget>,
    lanes: Vec<Arc<Lane>>,
    queue: Queue,
    counters: InsertCounters,
    put_timeout: Duration,
    linger_percent: u64,
    dictionaries: Dictionaries,
}

impl InsertPath {
    pub(crate) fn new(
        table: Arc<LanceTable>,
        leases: Arc<LeaseKeeper>,
        budget: Arc<UnflushedBudget>,
        settings: &RuntimeSettings,
    ) -> Arc<Self> {
        let lanes = (0..settings.max_lanes)
            .map(|index| {
                Arc::new(Lane::new(
                    index,
                    table.clone(),
                    leases.clone(),
                    settings.max_memtable_bytes,
                ))
            })
            .collect();
        Arc::new(Self {
            table,
            leases,
            budget,
            lanes,
            queue: Queue::new(settings.max_lanes),
            counters: InsertCounters::default(),
            put_timeout: settings.put_timeout,
            linger_percent: settings.linger_percent,
            dictionaries: Dictionaries::default(),
        })
    }

    pub(crate) fn counters(&self) -> &InsertCounters {
        &self.counters
    }

    pub(crate) fn table(&self) -> &Arc<LanceTable> {
        &self.table
    }

    /// Puts checked rows, of so many bytes, in the queue; the receiver hears when they are durable.
    ///
    /// # Errors
    /// The store is read-only or closed, or a dictionary column would hold too many values.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        batch: RecordBatch,
        bytes: usize,
    ) -> Result<tokio::sync::oneshot::Receiver<Result<Receipt>>> {
        self.table.check_writable("written")?;
        let values = DictionaryValues::of(&batch)?;
        let flush = || {
            async {
                self.queue.drained().await;
                self.flush().await.map(drop)
            }
            .boxed()
        };
        let _admitted = self.dictionaries.admit(values, flush).await?;
        let (receiver, lane) = self
            .queue
            .push(batch, bytes)
            .ok_or_else(|| RolloutError::Closed(self.closed_message()))?;
        if let Some(lane) = lane {
            let path = self.clone();
            // Detached on purpose: a statement that is cancelled must not take others' rows along.
            threads::spawn(async move { path.drain(lane).await });
        }
        Ok(receiver)
    }

    fn closed_message(&self) -> String {
        format!("the store at {} is shut down", self.table.location())
    }

    /// One lane's turn: take what waits, put it, again, until nothing waits.
    async fn drain(self: Arc<Self>, lane: usize) {
        loop {
            // Opened before anything is taken: what waits may go by a lane that is ready.
            let opened = self.ready(lane).await;
            self.linger().await;
            let Some(mut group) = self.queue.take(lane, self.table.clock()) else {
                return;
            };
            let result = match opened {
                Ok(()) => self.put(lane, &mut group).await,
                Err(RolloutError::Fenced(message)) => Err(queue::PutFailure::Fenced(message)),
                Err(error) => Err(queue::PutFailure::NotWritten(error.to_string())),
            };
            if result.is_err() {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
            }
            let idle = self.queue.rest(lane);
            group.answer(&result);
            if idle {
                return;
            }
        }
    }

    /// Makes sure that this process may write and the lane's writer is open.
    async fn ready(&self, lane: usize) -> Result<()> {
        if self.leases.overdue() && !self.renewed().await? {
            self.abandon_lost_lanes().await;
        }
        let writer = self.lanes[lane].writer_within(self.put_timeout).await;
        writer.map(|_| ())
    }

    async fn renewed(&self) -> Result<bool> {
        let renewed = self.leases.renew();
        lane::in_time(&self.table, "renewing the lease", self.put_timeout, renewed).await
    }

    async fn put(
        &self,
        lane: usize,
        group: &mut queue::Group,
    ) -> Result<Duration, queue::PutFailure> {
        let not_written = |error: RolloutError| match error {
            RolloutError::Fenced(message) => queue::PutFailure::Fenced(message),
            other => queue::PutFailure::NotWritten(other.to_string()),
        };
        let admitted = self.budget.admit(self.put_timeout).await;
        admitted.map_err(not_written)?;
        let columns = self.lanes[lane].up_to_date(self.put_timeout).await;
        let schema = columns.map_err(not_written)?;
        let batches = group.stamped(&schema).map_err(not_written)?;
        let span = Operation::Put.span(self.table.location());
        let put = self.lanes[lane].put(batches, self.put_timeout, &self.counters);
        let took = put.instrument(span.clone()).await;
        match &took {
            Ok(took) => {
                let put = Work {
                    rows: group.rows() as u64,
                    bytes: group.bytes() as u64,
                };
                put.record_in(&span);
                self.counters.record_put(*took, group.rows());
            }
            Err(failure) => record_error(&span, &failure.message()),
        }
        took
    }

    /// Lets those who were just acknowledged rejoin before the queue is taken, a small part of a put, and
    /// keeps the lanes' puts apart; nothing where nobody else is about. Measured by the benchmark `ingest` with `--tune`:
    /// see the documentation of operations.
    async fn linger(&self) {
        if !self.queue.contended() {
            return;
        }
        let put = Duration::from_micros(self.counters.put_micros.load(Ordering::Relaxed));
        if self.linger_percent == 0 {
            return;
        }
        let linger = (put * self.linger_percent as u32 / 100).min(LONGEST_LINGER);
        if linger >= SHORTEST_PAUSE {
            tokio::time::sleep(linger).await;
        }
        // Another lane may take in the meantime, and the next should keep its distance from that one.
        loop {
            let pause = self.queue.gathers_for(put);
            if pause < SHORTEST_PAUSE {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Whether any lane holds rows that are not flushed.
    pub(crate) async fn has_unflushed(&self) -> bool {
        for lane in &self.lanes {
            if lane.has_unflushed().await {
                return true;
            }
        }
        false
    }

    /// Freezes and flushes every lane that has rows; lanes without any cost nothing. Rows put
    /// while it runs are not waited for.
    ///
    /// # Errors
    /// The table is gone, and nothing was flushed; or the first lane that failed, and the others were flushed
    /// all the same.
    pub(crate) async fn flush(&self) -> Result<FlushReport> {
        if self.has_unflushed().await {
            self.table.check_present().await?;
        }
        let flushes = self.lanes.iter().map(|lane| lane.flush());
        let mut report = FlushReport::default();
        let mut first_error = None;
        for result in futures::future::join_all(flushes).await {
            match result {
                Ok(lane) => {
                    report.generations += lane.generations;
                    report.rows += lane.rows;
                    report.bytes += lane.bytes;
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        self.budget.wake();
        match first_error {
            Some(error) => Err(error),
            None => Ok(report),
        }
    }

    /// The unflushed rows of this process, each lane's in the order they were put.
    ///
    /// # Errors
    /// A lane whose writer is broken and cannot be reopened: its acknowledged rows cannot be read.
    pub(crate) async fn memtables(&self) -> Result<Vec<MemtableView>> {
        let mut views = Vec::new();
        for lane in &self.lanes {
            for (writer, memtable) in lane.memtables().await? {
                views.push(view_of(&writer, &memtable));
            }
        }
        Ok(views)
    }

    /// Per lane, the generation its active memtable will become: all lower ones were flushed or
    /// are held in memory.
    pub(crate) async fn next_generations(&self) -> Vec<(Uuid, u64)> {
        let mut next = Vec::new();
        for lane in &self.lanes {
            if let Some(writer) = lane.open_writer()
                && let Ok(stats) = writer.memtable_stats().await
                && stats.frozen_count == 0
            {
                next.push((writer.shard_id(), stats.generation));
            }
        }
        next
    }

    /// The shards this process writes now.
    pub(crate) fn own_shards(&self) -> OwnShards {
        let writers = self.lanes.iter().filter_map(|lane| lane.open_writer());
        writers
            .map(|writer| {
                let own = OwnShard {
                    epoch: writer.epoch(),
                    manifests: writer.manifest_store(),
                };
                (writer.shard_id(), own)
            })
            .collect()
    }

    /// Opens every lane whose shard was used in an earlier life, which replays its unflushed rows.
    ///
    /// # Errors
    /// Storage that cannot be reached, or a log that cannot be read (naming the object).
    pub(crate) async fn recover(&self) -> Result<()> {
        for (index, lane) in self.lanes.iter().enumerate() {
            let (shard, _) = self.leases.shard_of_lane(index).await?;
            if self.table.newest_manifest(shard).await?.is_some() {
                lane.writer().await?;
            }
        }
        Ok(())
    }

    /// Drops the writers of a lease that was lost: nothing more is put under its shards. What they
    /// had acknowledged is durable, and flushed by whoever took them.
    pub(crate) async fn abandon_lost_lanes(&self) {
        for lane in &self.lanes {
            lane.abandon_if_lost().await;
        }
    }

    /// Refuses new statements, waits for those that were accepted, flushes, and closes the writers.
    ///
    /// # Errors
    /// Rows that could not be flushed: they are durable in the log and replayed by the next life.
    pub(crate) async fn close(&self) -> Result<()> {
        self.queue.close();
        self.queue.drained().await;
        let flushed = self.flush().await;
        let mut first_error = flushed.err();
        for lane in &self.lanes {
            if let Err(error) = lane.close().await {
                first_error = first_error.or(Some(error));
            }
        }
        match first_error {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Bytes of the memtables that hold unflushed rows, with all they need. An empty one has an index, too,
    /// which no flush takes away: it counts for nothing.
    pub(crate) async fn unflushed_bytes(&self) -> u64 {
        let mut bytes = 0;
        for lane in &self.lanes {
            if let Some(writer) = lane.open_writer() {
                let memory = writer.memory();
                bytes += match memory.row_bytes() {
                    0 => memory.frozen_bytes() as u64,
                    _ => memory.unflushed_bytes() as u64,
                };
            }
        }
        bytes
    }

    /// Bytes of the rows that are in no generation yet, without what their memtables need besides.
    pub(crate) async fn unflushed_row_bytes(&self) -> u64 {
        let mut bytes = 0;
        for view in self.memtables().await.unwrap_or_default() {
            bytes += view
                .batches
                .iter()
                .map(RecordBatch::get_array_memory_size)
                .sum::<usize>();
        }
        bytes as u64
    }

    /// Rows that wait for a lane.
    pub(crate) fn queued_rows(&self) -> usize {
        self.queue.waiting_rows()
    }

    /// Lanes that were ever opened.
    pub(crate) fn lanes_open(&self) -> usize {
        self.queue.lanes_open()
    }
}

fn view_of(writer: &lane::Resident, memtable: &InMemoryMemTableRef) -> MemtableView {
    let visible = memtable.index_store.visible_count();
    MemtableView {
        shard: writer.shard_id(),
        epoch: writer.epoch(),
        generation: memtable.generation,
        batches: memtable
            .batch_store
            .visible_batches(visible)
            .into_iter()
            .map(|stored| stored.data.clone())
            .collect(),
    }
}
