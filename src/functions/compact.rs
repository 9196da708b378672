//! `rollout_compact('table')`: rewrites the base's small fragments as larger ones, now.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns, one_row, required};
use crate::error::Result;
use crate::runtime::{RolloutRuntime, RolloutStore};

#[derive(Debug)]
pub(super) struct Compact;

#[async_trait]
impl Report for Compact {
    fn name(&self) -> &'static str {
        "rollout_compact"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("fragments_removed", DataType::UInt64),
            ("fragments_added", DataType::UInt64),
            ("base_version", DataType::UInt64),
        ])
    }

    async fn run(
        &self,
        _runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        let report = required(store)?.compact().await?;
        let figures = [
            report.fragments_removed as u64,
            report.fragments_added as u64,
            report.base_version,
        ];
        one_row(self.schema(), &figures)
    }
}
