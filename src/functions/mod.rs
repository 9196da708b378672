//! Table functions: what a store is doing, and doing it now.
//!
//! A function is planned like a table and runs when its scan is executed, once per execution: never
//! when it is only planned or explained.

mod add_column;
mod cache;
mod cleanup;
mod compact;
mod exec;
mod flush;
mod generations;
mod maintenance;
mod merge;
mod settings;
mod shards;
mod stats;
mod versions;

use std::sync::Arc;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::TableFunctionImpl;

use crate::error::Result;
use crate::runtime::{RolloutRuntime, RolloutStore};

/// A table function's work.
#[async_trait]
pub(crate) trait Report: std::fmt::Debug + Send + Sync + 'static {
    /// The function's name.
    fn name(&self) -> &'static str;

    /// The columns of its answer.
    fn schema(&self) -> SchemaRef;

    /// Whether its argument is the name of a table.
    fn takes_table(&self) -> bool {
        true
    }

    /// Whether the name may be left out.
    fn table_is_optional(&self) -> bool {
        false
    }

    /// What may be given as a second argument, if anything.
    fn modes(&self) -> &'static [&'static str] {
        &[]
    }

    /// What is given as text after the table, by name.
    fn texts(&self) -> &'static [&'static str] {
        &[]
    }

    /// Does the work in one of its [`modes`](Self::modes), or with its [`texts`](Self::texts).
    async fn run_with(
        &self,
        _more: &[String],
        runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        self.run(runtime, store).await
    }

    /// Does the work and answers. `store` is there for functions that take a table.
    async fn run(
        &self,
        runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch>;
}

/// All functions, by name.
pub(crate) fn table_functions(
    runtime: &RolloutRuntime,
) -> Vec<(&'static str, Arc<dyn TableFunctionImpl>)> {
    let reports: Vec<Arc<dyn Report>> = vec![
        Arc::new(flush::Flush),
        Arc::new(merge::Merge),
        Arc::new(compact::Compact),
        Arc::new(cleanup::CleanUp),
        Arc::new(add_column::AddColumn),
        Arc::new(stats::Stats),
        Arc::new(shards::Shards),
        Arc::new(generations::Generations),
        Arc::new(versions::Versions),
        Arc::new(cache::Cache),
        Arc::new(maintenance::MaintenanceTasks),
        Arc::new(settings::Settings),
    ];
    reports
        .into_iter()
        .map(|report| {
            let name = report.name();
            let function = exec::ReportFunction::new(report, runtime.clone());
            (name, Arc::new(function) as Arc<dyn TableFunctionImpl>)
        })
        .collect()
}

/// A schema of columns that are never NULL unless marked by `?` in front of the name.
fn columns(columns: &[(&str, DataType)]) -> SchemaRef {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, data_type)| match name.strip_prefix('?') {
            Some(name) => Field::new(name, data_type.clone(), true),
            None => Field::new(*name, data_type.clone(), false),
        })
        .collect();
    Arc::new(Schema::new(fields))
}

/// One row of figures, which are all the columns there are.
fn one_row(schema: SchemaRef, figures: &[u64]) -> Result<RecordBatch> {
    let figures = figures.iter();
    let columns = figures.map(|figure| Arc::new(UInt64Array::from(vec![*figure])) as _);
    Ok(RecordBatch::try_new(schema, columns.collect())?)
}

/// The store of a function that takes a table.
fn required(store: Option<&Arc<RolloutStore>>) -> Result<&Arc<RolloutStore>> {
    store.ok_or_else(|| crate::RolloutError::invalid("the function takes the name of a table"))
}
