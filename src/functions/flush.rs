//! `rollout_flush('table')`: makes this process's rows visible to everybody, now.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns, one_row, required};
use crate::error::Result;
use crate::runtime::{RolloutRuntime, RolloutStore};

#[derive(Debug)]
pub(super) struct Flush;

#[async_trait]
impl Report for Flush {
    fn name(&self) -> &'static str {
        "rollout_flush"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("generations_flushed", DataType::UInt64),
            ("rows_flushed", DataType::UInt64),
        ])
    }

    async fn run(
        &self,
        _runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        let (generations, rows) = required(store)?.flush().await?;
        one_row(self.schema(), &[generations as u64, rows])
    }
}
