//! The plan of an INSERT whose few rows are at hand: one node, without input.
//!
//! DataFusion's node for sinks has an input, and its rules for distribution, order and pushdown look at
//! every node that has one: for a row or two they cost more than all the sink does.

use std::any::Any;
use std::sync::Arc;

use arrow_array::RecordBatch;
use datafusion::datasource::memory::{DataSourceExec, MemorySourceConfig};
use datafusion::datasource::sink::DataSink;
use datafusion::datasource::source::DataSource;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use super::super::node::{count_stream, one_count, with_no_children};
use crate::insert::{RolloutSink, reservation};

/// Gives rows to the sink and returns how many there were, as `count`.
#[derive(Debug)]
pub(in crate::provider) struct RolloutInsertExec {
    rows: RecordBatch,
    sink: Arc<RolloutSink>,
}

impl RolloutInsertExec {
    pub(in crate::provider) fn new(rows: RecordBatch, sink: Arc<RolloutSink>) -> Self {
        Self { rows, sink }
    }
}

/// The rows of a plan that has them in memory as one batch, and does nothing else with them.
pub(in crate::provider) fn rows_at_hand(plan: &dyn ExecutionPlan) -> Option<RecordBatch> {
    let source = plan.downcast_ref::<DataSourceExec>()?.data_source();
    let source: &dyn Any = source.as_ref();
    let memory = source.downcast_ref::<MemorySourceConfig>()?;
    match (memory.partitions(), memory.fetch()) {
        ([partition], None) => match partition.as_slice() {
            [rows] => projected(rows, memory.projection().as_deref()),
            _ => None,
        },
        _ => None,
    }
}

/// These columns of some rows, or all.
pub(super) fn projected(rows: &RecordBatch, columns: Option<&[usize]>) -> Option<RecordBatch> {
    match columns {
        None => Some(rows.clone()),
        Some(columns) => rows.project(columns).ok(),
    }
}

impl DisplayAs for RolloutInsertExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let rows = self.rows.num_rows();
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "rows={rows}")?,
            _ => write!(f, "{}: rows={rows}, sink=", self.name())?,
        }
        self.sink.fmt_as(t, f)
    }
}

impl ExecutionPlan for RolloutInsertExec {
    fn name(&self) -> &str {
        "RolloutInsertExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        one_count()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        with_no_children(self, &children)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DataFusionResult<SendableRecordBatchStream> {
        let sink = self.sink.clone();
        let schema = self.rows.schema();
        let rows = MemoryStream::try_new(vec![self.rows.clone()], schema, None)?;
        // Not the context itself: it has a copy of every function's name, and a thousand statements that
        // wait for their puts would keep theirs out of the processor's caches.
        let reservation = reservation(&context);
        count_stream(partition, async move {
            Ok(sink.write(rows, reservation).await?)
        })
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.sink.metrics()
    }
}
