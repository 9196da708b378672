//! `rollout_generations('table')`: the flushed generations that wait for a merge.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns, required};
use crate::error::Result;
use crate::runtime::{RolloutRuntime, RolloutStore};

#[derive(Debug)]
pub(super) struct Generations;

#[async_trait]
impl Report for Generations {
    fn name(&self) -> &'static str {
        "rollout_generations"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("shard", DataType::Utf8),
            ("generation", DataType::UInt64),
            ("folder", DataType::Utf8),
            ("?rows", DataType::UInt64),
            ("bytes", DataType::UInt64),
        ])
    }

    async fn run(
        &self,
        _runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        let snapshot = required(store)?
            .snapshot(Duration::from_secs(1), &HashMap::new())
            .await?;
        let waiting = &snapshot.generations;
        let rows = waiting.iter().map(|generation| {
            let rows = generation.fragments.iter();
            let rows = rows.map(|fragment| fragment.num_rows());
            rows.sum::<Option<usize>>().map(|rows| rows as u64)
        });
        Ok(RecordBatch::try_new(
            self.schema(),
            vec![
                Arc::new(StringArray::from_iter_values(
                    waiting.iter().map(|g| g.shard.to_string()),
                )),
                Arc::new(UInt64Array::from_iter_values(
                    waiting.iter().map(|g| g.number),
                )),
                Arc::new(StringArray::from_iter_values(
                    waiting.iter().map(|g| &g.folder),
                )),
                Arc::new(UInt64Array::from_iter(rows)),
                Arc::new(UInt64Array::from_iter_values(
                    waiting.iter().map(|g| g.bytes),
                )),
            ],
        )?)
    }
}
