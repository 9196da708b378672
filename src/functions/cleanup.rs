//! `rollout_cleanup('table')`: deletes what nobody needs any more, now, and lists it;
//! `rollout_cleanup('table', 'dry-run')` lists what would go and deletes nothing.

use std::sync::Arc;

use arrow_array::{Float64Array, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns, required};
use crate::error::Result;
use crate::runtime::{RolloutRuntime, RolloutStore};

const DRY_RUN: &str = "dry-run";

#[derive(Debug)]
pub(super) struct CleanUp;

#[async_trait]
impl Report for CleanUp {
    fn name(&self) -> &'static str {
        "rollout_cleanup"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("path", DataType::Utf8),
            ("kind", DataType::Utf8),
            ("bytes", DataType::UInt64),
            ("?age_seconds", DataType::Float64),
            ("reason", DataType::Utf8),
        ])
    }

    fn modes(&self) -> &'static [&'static str] {
        &[DRY_RUN]
    }

    async fn run(
        &self,
        runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        self.run_with(&[], runtime, store).await
    }

    async fn run_with(
        &self,
        more: &[String],
        _runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        let removals = required(store)?.clean_up(more == [DRY_RUN]).await?;
        let ages = removals.iter().map(|r| r.age.map(|age| age.as_secs_f64()));
        Ok(RecordBatch::try_new(
            self.schema(),
            vec![
                Arc::new(StringArray::from_iter_values(
                    removals.iter().map(|r| &r.path),
                )),
                Arc::new(StringArray::from_iter_values(
                    removals.iter().map(|r| r.kind.as_str()),
                )),
                Arc::new(UInt64Array::from_iter_values(
                    removals.iter().map(|r| r.bytes),
                )),
                Arc::new(Float64Array::from_iter(ages)),
                Arc::new(StringArray::from_iter_values(
                    removals.iter().map(|r| &r.reason),
                )),
            ],
        )?)
    }
}
