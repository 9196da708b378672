//! What the tests share: a runtime on a folder, SQL in and rows out.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::faults::Faults;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use datafusion::error::Result;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rollouts::{
    RolloutRuntime, RolloutSessionExt, RolloutStore, RolloutTableProvider, RuntimeSettings,
    TableOptions,
};

/// Settings of a test: nothing happens unless asked for.
pub fn quiet() -> RuntimeSettings {
    RuntimeSettings {
        flush_interval: std::time::Duration::ZERO,
        merge_after_generations: 0,
        merge_after_bytes: 0,
        merge_max_age: std::time::Duration::ZERO,
        compact_interval: std::time::Duration::ZERO,
        cleanup_interval: std::time::Duration::ZERO,
        cache_bytes: 256 << 20,
        ..Default::default()
    }
}

/// One process's worth: a runtime and a session on it.
pub struct Process {
    pub runtime: RolloutRuntime,
    pub ctx: SessionContext,
}

impl Process {
    pub fn new(settings: RuntimeSettings) -> Self {
        let runtime = RolloutRuntime::builder()
            .with_settings(settings)
            .build()
            .expect("valid settings");
        Self::on(runtime)
    }

    pub fn on(runtime: RolloutRuntime) -> Self {
        let config = SessionConfig::new()
            .with_information_schema(true)
            .with_target_partitions(2);
        let ctx = SessionContext::new_with_config(config);
        ctx.register_rollouts(&runtime).expect("registers");
        Self { runtime, ctx }
    }

    /// A process on a store that fails when told to.
    pub fn failing(settings: RuntimeSettings, faults: &Faults) -> Self {
        let runtime = RolloutRuntime::builder()
            .with_settings(settings)
            .with_object_store_wrapper(Arc::new(faults.clone()))
            .build()
            .expect("valid settings");
        Self::on(runtime)
    }

    /// A process with the table `rollouts` open in `folder`.
    pub async fn open(folder: &Path, settings: RuntimeSettings) -> Self {
        let process = Self::new(settings);
        process.create(folder).await;
        process
    }

    pub async fn create(&self, folder: &Path) -> Arc<RolloutStore> {
        self.try_create(folder).await.expect("opens")
    }

    pub async fn try_create(&self, folder: &Path) -> Result<Arc<RolloutStore>> {
        let store = RolloutTableProvider::register(
            &self.ctx,
            "rollouts",
            &folder.display().to_string(),
            TableOptions::default(),
        )
        .await?;
        self.sql("SET rollout.snapshot_max_age_ms = 0").await;
        Ok(store)
    }

    pub async fn try_sql(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        self.ctx.sql(sql).await?.collect().await
    }

    pub async fn sql(&self, sql: &str) -> Vec<RecordBatch> {
        self.try_sql(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The first column of the first row as a number.
    pub async fn number(&self, sql: &str) -> i64 {
        let batches = self.sql(sql).await;
        let batch = batches.iter().find(|b| b.num_rows() > 0).expect("a row");
        let column = arrow::compute::cast(batch.column(0), &arrow_schema::DataType::Int64)
            .expect("a number");
        column
            .as_primitive::<arrow::datatypes::Int64Type>()
            .value(0)
    }

    /// All rows of a query as text, columns joined by '|', sorted.
    pub async fn rows(&self, sql: &str) -> Vec<String> {
        let mut rows = Vec::new();
        for batch in self.sql(sql).await {
            let columns: Vec<_> = batch
                .columns()
                .iter()
                .map(|column| {
                    arrow::compute::cast(column, &arrow_schema::DataType::Utf8).expect("text")
                })
                .collect();
            for row in 0..batch.num_rows() {
                let values: Vec<_> = columns
                    .iter()
                    .map(|column| {
                        let column = column.as_string::<i32>();
                        match arrow_array::Array::is_null(column, row) {
                            true => "NULL",
                            false => column.value(row),
                        }
                    })
                    .collect();
                rows.push(values.join("|"));
            }
        }
        rows.sort();
        rows
    }

    pub async fn insert(&self, id: &str, reward: f32) {
        self.sql(&format!(
            "INSERT INTO rollouts (id, problem_id, reward) VALUES ('{id}', 'p', {reward})"
        ))
        .await;
    }

    pub async fn flush(&self) -> i64 {
        self.number("SELECT rows_flushed FROM rollout_flush('rollouts')")
            .await
    }

    pub async fn merge(&self) -> i64 {
        self.number("SELECT generations_merged FROM rollout_merge('rollouts')")
            .await
    }

    pub async fn count(&self) -> i64 {
        self.number("SELECT count(*) FROM rollouts").await
    }

    /// Waits until every id has at least the reward it was acknowledged with; returns what is still
    /// missing after a minute.
    pub async fn missing(&self, acknowledged: &BTreeMap<String, i64>) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let rows = self
                .rows("SELECT id, CAST(reward AS BIGINT) FROM rollouts")
                .await;
            let found: BTreeMap<&str, i64> = rows
                .iter()
                .filter_map(|row| row.split_once('|'))
                .map(|(id, reward)| (id, reward.parse().expect("a number")))
                .collect();
            let missing: Vec<_> = acknowledged
                .iter()
                .filter(|(id, reward)| found.get(id.as_str()).is_none_or(|found| found < reward))
                .map(|(id, reward)| format!("{id} {reward}: {:?}", found.get(id.as_str())))
                .collect();
            if missing.is_empty() || Instant::now() > deadline {
                return missing;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn latest(&self) {
        self.sql("SET rollout.freshness = 'latest'").await;
    }

    pub async fn shutdown(&self) {
        self.runtime.shutdown().await.expect("shuts down");
    }
}

/// Runs a process's worth of work that ends without a word: its tokio runtime goes, and with it
/// every task. What the work does not want to be closed in order it forgets.
pub async fn short_life<T, F>(work: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let life = tokio::task::spawn_blocking(move || {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("tokio");
        let result = tokio.block_on(work());
        tokio.shutdown_background();
        result
    });
    life.await.expect("lives")
}

/// A life that ends without a word, with a row that only its log holds.
pub async fn leave_a_row(folder: &Path, settings: &RuntimeSettings) {
    let (path, settings) = (folder.to_path_buf(), settings.clone());
    short_life(async move || {
        let process = Process::open(&path, settings).await;
        process.insert("before", 1.0).await;
        std::mem::forget(process);
    })
    .await;
}

/// Waits until something holds; half a minute is long enough for anything.
pub async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..1200 {
        if done().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("{what}: not within half a minute");
}

/// The base table, read by plain Lance: ids, sorted.
pub async fn base_ids(folder: &Path) -> Vec<String> {
    use futures::TryStreamExt;
    let base = lance::Dataset::open(&folder.display().to_string())
        .await
        .expect("a Lance table");
    let mut scan = base.scan();
    scan.project(&["id"]).expect("an id");
    let batches: Vec<RecordBatch> = scan
        .try_into_stream()
        .await
        .expect("reads")
        .try_collect()
        .await
        .expect("reads");
    let mut ids: Vec<String> = batches
        .iter()
        .flat_map(|batch| batch.column(0).as_string::<i32>().iter())
        .map(|id| id.expect("an id").to_string())
        .collect();
    ids.sort();
    ids
}
