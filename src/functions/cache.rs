//! `rollout_cache()`: what the process's cache holds, by kind; `rollout_cache('table')`: the cache
//! that table uses, which is the same one unless every store has its own.

use std::sync::Arc;

use arrow_array::{RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns};
use crate::error::{Result, RolloutError};
use crate::runtime::{RolloutRuntime, RolloutStore};
use crate::store::CacheFigures;

#[derive(Debug)]
pub(super) struct Cache;

#[async_trait]
impl Report for Cache {
    fn name(&self) -> &'static str {
        "rollout_cache"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("kind", DataType::Utf8),
            ("?bytes", DataType::UInt64),
            ("?entries", DataType::UInt64),
            ("?bound", DataType::UInt64),
            ("hits", DataType::UInt64),
            ("misses", DataType::UInt64),
        ])
    }

    fn table_is_optional(&self) -> bool {
        true
    }

    async fn run(
        &self,
        runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        let cache = match store {
            Some(store) => store.cache(),
            None => runtime.cache().ok_or_else(|| {
                RolloutError::invalid(
                    "every store has a cache of its own (rollout.cache_bytes = 0): name a table, \
                     as in rollout_cache('rollouts')",
                )
            })?,
        };
        let kinds = cache.figures().await;
        let figures = |of: fn(&CacheFigures) -> Option<u64>| {
            Arc::new(UInt64Array::from_iter(kinds.iter().map(of)))
        };
        let kind = StringArray::from_iter_values(kinds.iter().map(|figures| figures.kind));
        Ok(RecordBatch::try_new(
            self.schema(),
            vec![
                Arc::new(kind),
                figures(|figures| figures.bytes),
                figures(|figures| figures.entries),
                figures(|figures| figures.bound),
                figures(|figures| Some(figures.hits)),
                figures(|figures| Some(figures.misses)),
            ],
        )?)
    }
}
