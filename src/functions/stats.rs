//! `rollout_stats('table')`: one row of figures, cheap enough to poll.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns, one_row, required};
use crate::error::Result;
use crate::runtime::{RolloutRuntime, RolloutStore};

/// How old the snapshot may be that polling is answered from.
const POLL_AGE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Stats;

const FIGURES: [&str; 21] = [
    "base_version",
    "base_rows",
    "generations_waiting",
    "generation_bytes_waiting",
    "generations_waiting_bound",
    "merges_forced",
    "statements_acknowledged",
    "rows_acknowledged",
    "puts",
    "put_failures",
    "writer_reopens",
    "put_micros_average",
    "lanes_open",
    "rows_queued",
    "unflushed_bytes",
    "process_unflushed_bytes",
    "process_unflushed_bound",
    "backpressure_waits",
    "backpressure_wait_micros",
    "cache_bytes",
    "cache_bound",
];

#[async_trait]
impl Report for Stats {
    fn name(&self) -> &'static str {
        "rollout_stats"
    }

    fn schema(&self) -> SchemaRef {
        columns(&FIGURES.map(|name| (name, DataType::UInt64)))
    }

    async fn run(
        &self,
        runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        let store = required(store)?;
        let snapshot = store.snapshot(POLL_AGE, &HashMap::new()).await?;
        let base_rows: usize = snapshot
            .base
            .fragments()
            .iter()
            .filter_map(|fragment| fragment.num_rows())
            .sum();
        let insert = store.insert_path();
        let counters = insert.counters();
        let (waits, waited) = store.budget().waits();
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let figures: [u64; FIGURES.len()] = [
            snapshot.base.version().version,
            base_rows as u64,
            snapshot.generations.len() as u64,
            snapshot.generations.iter().map(|g| g.bytes).sum(),
            runtime.settings().max_waiting_generations as u64,
            store.merges_forced(),
            read(&counters.statements),
            read(&counters.rows),
            read(&counters.puts),
            read(&counters.failures),
            read(&counters.reopens),
            read(&counters.put_micros),
            insert.lanes_open() as u64,
            insert.queued_rows() as u64,
            insert.unflushed_row_bytes().await,
            store.budget().in_use().await,
            store.budget().bound(),
            waits,
            waited,
            store.session().size_bytes(),
            runtime.settings().cache_bytes,
        ];
        one_row(self.schema(), &figures)
    }
}
