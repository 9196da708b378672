//! `rollout_versions('table')`: the base's versions that can still be read.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns, required};
use crate::error::Result;
use crate::runtime::{RolloutRuntime, RolloutStore};
use crate::schema::stamp_type;
use crate::store::BaseVersion;

#[derive(Debug)]
pub(super) struct Versions;

#[async_trait]
impl Report for Versions {
    fn name(&self) -> &'static str {
        "rollout_versions"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("version", DataType::UInt64),
            ("timestamp", stamp_type()),
            ("?operation", DataType::Utf8),
            ("rows", DataType::UInt64),
            ("fragments", DataType::UInt64),
            ("bytes", DataType::UInt64),
        ])
    }

    async fn run(
        &self,
        _runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        let versions = required(store)?.versions().await?;
        let figures = |of: fn(&BaseVersion) -> u64| -> ArrayRef {
            Arc::new(UInt64Array::from_iter_values(versions.iter().map(of)))
        };
        let timestamps = versions.iter().map(|v| v.timestamp.timestamp_micros());
        let operations = versions.iter().map(|v| v.operation);
        Ok(RecordBatch::try_new(
            self.schema(),
            vec![
                figures(|v| v.number),
                Arc::new(TimestampMicrosecondArray::from_iter_values(timestamps)),
                Arc::new(StringArray::from_iter(operations)),
                figures(|v| v.rows),
                figures(|v| v.fragments),
                figures(|v| v.bytes),
            ],
        )?)
    }
}
