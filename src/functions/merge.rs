//! `rollout_merge('table')`: merges everything that is flushed into the base, now.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns, one_row, required};
use crate::error::Result;
use crate::runtime::{RolloutRuntime, RolloutStore};

#[derive(Debug)]
pub(super) struct Merge;

#[async_trait]
impl Report for Merge {
    fn name(&self) -> &'static str {
        "rollout_merge"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("generations_merged", DataType::UInt64),
            ("rows_inserted", DataType::UInt64),
            ("rows_replaced", DataType::UInt64),
            ("commits", DataType::UInt64),
            ("base_version", DataType::UInt64),
        ])
    }

    async fn run(
        &self,
        _runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        let report = required(store)?.merge().await?;
        let figures = [
            report.generations as u64,
            report.rows_inserted,
            report.rows_replaced,
            report.passes as u64,
            report.base_version,
        ];
        one_row(self.schema(), &figures)
    }
}
