//! `rollout_flush('table')`: makes this process's rows visible to everybody, now.

use std::sync::Arc;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns, required};
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
        Ok(RecordBatch::try_new(
            self.schema(),
            vec![
                Arc::new(UInt64Array::from(vec![generations as u64])),
                Arc::new(UInt64Array::from(vec![rows])),
            ],
        )?)
    }
}
