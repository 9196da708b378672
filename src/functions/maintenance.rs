//! `rollout_maintenance('table')`: what each kind of background work did last.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::{Float64Array, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns, required};
use crate::error::Result;
use crate::metrics::Operation;
use crate::runtime::{RolloutRuntime, RolloutStore};

#[derive(Debug)]
pub(super) struct MaintenanceTasks;

#[async_trait]
impl Report for MaintenanceTasks {
    fn name(&self) -> &'static str {
        "rollout_maintenance"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("task", DataType::Utf8),
            ("runs", DataType::UInt64),
            ("?seconds_since_last_run", DataType::Float64),
            ("?last_duration_seconds", DataType::Float64),
            ("?last_rows", DataType::UInt64),
            ("?last_bytes", DataType::UInt64),
            ("?last_error", DataType::Utf8),
            ("?seconds_to_next_run", DataType::Float64),
        ])
    }

    async fn run(
        &self,
        _runtime: &RolloutRuntime,
        store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        let store = required(store)?;
        let status: Vec<_> = Operation::BACKGROUND
            .iter()
            .map(|kind| (kind.as_str(), store.maintenance_status(*kind)))
            .collect();
        let ran = |status: &crate::flush::TaskStatus| status.last_run.is_some();
        Ok(RecordBatch::try_new(
            self.schema(),
            vec![
                Arc::new(StringArray::from_iter_values(
                    status.iter().map(|(kind, _)| *kind),
                )),
                Arc::new(UInt64Array::from_iter_values(
                    status.iter().map(|(_, s)| s.runs),
                )),
                Arc::new(Float64Array::from_iter(
                    status
                        .iter()
                        .map(|(_, s)| s.last_run.map(|at| at.elapsed().as_secs_f64())),
                )),
                Arc::new(Float64Array::from_iter(
                    status
                        .iter()
                        .map(|(_, s)| ran(s).then_some(s.last_duration.as_secs_f64())),
                )),
                Arc::new(UInt64Array::from_iter(
                    status
                        .iter()
                        .map(|(_, s)| ran(s).then_some(s.last_work.rows)),
                )),
                Arc::new(UInt64Array::from_iter(
                    status
                        .iter()
                        .map(|(_, s)| ran(s).then_some(s.last_work.bytes)),
                )),
                Arc::new(StringArray::from_iter(
                    status.iter().map(|(_, s)| s.last_error.as_deref()),
                )),
                Arc::new(Float64Array::from_iter(status.iter().map(|(_, s)| {
                    let left = |at: Instant| at.saturating_duration_since(Instant::now());
                    s.next_run.map(|at| left(at).as_secs_f64())
                }))),
            ],
        )?)
    }
}
