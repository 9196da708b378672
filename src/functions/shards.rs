//! `rollout_shards('table')`: every shard that has left anything on storage.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;
use uuid::Uuid;

use super::{Report, columns, required};
use crate::error::Result;
use crate::runtime::{RolloutRuntime, RolloutStore};
use crate::store::{MAX_LANES, shard_of_slot};

#[derive(Debug)]
pub(super) struct Shards;

#[async_trait]
impl Report for Shards {
    fn name(&self) -> &'static str {
        "rollout_shards"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("shard", DataType::Utf8),
            ("?lease", DataType::Utf8),
            ("mine", DataType::Boolean),
            ("writer_epoch", DataType::UInt64),
            ("next_generation", DataType::UInt64),
            ("merged_generation", DataType::UInt64),
            ("generations_waiting", DataType::UInt64),
            ("replay_after", DataType::UInt64),
        ])
    }

    async fn run(
        &self,
        _runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        let store = required(store)?;
        let table = store.table();
        let merged = {
            let base = table.refresh_base().await?;
            table.merge_progress(&base).await?
        };
        let mut leases: HashMap<Uuid, String> = HashMap::new();
        for view in store.leases().slots().await? {
            for lane in 0..MAX_LANES {
                leases.insert(shard_of_slot(&view.slot, lane), view.slot.clone());
            }
        }
        let own = store.insert_path().own_shards();
        let mut manifests = Vec::new();
        for shard in table.list_shards().await? {
            manifests.extend(table.newest_manifest(shard).await?);
        }
        let done = |shard: &Uuid| merged.get(shard).copied().unwrap_or(0);
        let figures = |figure: &dyn Fn(&lance_index::mem_wal::ShardManifest) -> u64| {
            Arc::new(UInt64Array::from_iter_values(manifests.iter().map(figure)))
        };
        Ok(RecordBatch::try_new(
            self.schema(),
            vec![
                Arc::new(StringArray::from_iter_values(
                    manifests.iter().map(|m| m.shard_id.to_string()),
                )),
                Arc::new(StringArray::from_iter(
                    manifests.iter().map(|m| leases.get(&m.shard_id)),
                )),
                Arc::new(BooleanArray::from_iter(
                    manifests
                        .iter()
                        .map(|m| Some(own.contains_key(&m.shard_id))),
                )),
                figures(&|m| m.writer_epoch),
                figures(&|m| m.current_generation),
                figures(&|m| done(&m.shard_id)),
                figures(&|m| {
                    let waiting = m
                        .sstables
                        .iter()
                        .filter(|s| s.generation > done(&m.shard_id));
                    waiting.count() as u64
                }),
                figures(&|m| m.replay_after_wal_entry_position),
            ],
        )?)
    }
}
