//! Runtimes and sessions of a benchmark.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use datafusion::prelude::SessionContext;
use datafusion_rollouts::{
    RolloutRuntime, RolloutSessionExt, RolloutStore, RolloutTableProvider, RuntimeSettings,
    TableOptions,
};

use super::store::Meter;

/// The default settings, but nothing happens in the background: what is measured is measured alone.
pub fn quiet() -> RuntimeSettings {
    RuntimeSettings {
        flush_interval: Duration::ZERO,
        merge_after_generations: 0,
        merge_after_bytes: 0,
        merge_max_age: Duration::ZERO,
        ..Default::default()
    }
}

/// A folder for the tables, gone at the end.
pub fn scratch(dir: Option<&Path>) -> tempfile::TempDir {
    let folder = match dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    folder.expect("a folder")
}

/// A runtime and a session on it: as much as one process has.
#[derive(Clone)]
pub struct Process {
    pub runtime: RolloutRuntime,
    pub ctx: SessionContext,
}

impl Process {
    /// A process whose storage is counted, if a meter is given.
    pub fn new(settings: RuntimeSettings, meter: Option<&Meter>) -> Self {
        Self::on(SessionContext::new(), settings, meter)
    }

    /// A process on a context of its own making.
    pub fn on(ctx: SessionContext, settings: RuntimeSettings, meter: Option<&Meter>) -> Self {
        let mut builder = RolloutRuntime::builder().with_settings(settings);
        if let Some(meter) = meter {
            builder = builder.with_object_store_wrapper(meter.wrapper());
        }
        let runtime = builder.build().expect("valid settings");
        ctx.register_rollouts(&runtime).expect("registers");
        Self { runtime, ctx }
    }

    /// Opens the table in `folder`, or makes it, under `name`.
    pub async fn open(&self, name: &str, folder: &Path) -> Arc<RolloutStore> {
        self.open_with(name, folder, TableOptions::default()).await
    }

    /// The same, with options.
    pub async fn open_with(
        &self,
        name: &str,
        folder: &Path,
        options: TableOptions,
    ) -> Arc<RolloutStore> {
        let location = folder.display().to_string();
        RolloutTableProvider::register(&self.ctx, name, &location, options)
            .await
            .expect("opens")
    }

    /// Runs a statement.
    pub async fn sql(&self, sql: &str) -> Vec<RecordBatch> {
        let frame = self.ctx.sql(sql).await;
        let frame = frame.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let rows = frame.collect().await;
        rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The rows of a query as text.
    pub async fn text(&self, sql: &str) -> String {
        let rows = self.sql(sql).await;
        arrow::util::pretty::pretty_format_batches(&rows)
            .expect("prints")
            .to_string()
    }

    /// Stops all stores.
    pub async fn shutdown(&self) {
        self.runtime.shutdown().await.expect("shuts down");
    }
}
