//! `rollout_add_column('table', 'name', 'type')`: adds a nullable column to a table that is in use.

use std::sync::Arc;

use arrow_array::{RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns, required};
use crate::error::{Result, RolloutError};
use crate::runtime::{RolloutRuntime, RolloutStore};

#[derive(Debug)]
pub(super) struct AddColumn;

#[async_trait]
impl Report for AddColumn {
    fn name(&self) -> &'static str {
        "rollout_add_column"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("column", DataType::Utf8),
            ("type", DataType::Utf8),
            ("base_version", DataType::UInt64),
        ])
    }

    fn texts(&self) -> &'static [&'static str] {
        &["name", "type"]
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
        let [name, sql_type] = more else {
            return Err(RolloutError::invalid(
                "rollout_add_column takes a name and a type",
            ));
        };
        let (data_type, version) = required(store)?.add_column(name, sql_type).await?;
        Ok(RecordBatch::try_new(
            self.schema(),
            vec![
                Arc::new(StringArray::from(vec![name.as_str()])),
                Arc::new(StringArray::from(vec![data_type.to_string()])),
                Arc::new(UInt64Array::from(vec![version])),
            ],
        )?)
    }
}
