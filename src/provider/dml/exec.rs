//! The plan node of a statement: acts when executed, returns one row, `count`.

use std::sync::Arc;

use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use super::super::node::{count_stream, one_count, with_no_children};
use super::{Change, run};
use crate::runtime::RolloutStore;

/// Carries a statement out.
#[derive(Debug)]
pub(super) struct RolloutDmlExec {
    store: Arc<RolloutStore>,
    change: Arc<dyn Change>,
    metrics: ExecutionPlanMetricsSet,
}

impl RolloutDmlExec {
    pub(super) fn new(store: Arc<RolloutStore>, change: Arc<dyn Change>) -> Self {
        Self {
            store,
            change,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

impl DisplayAs for RolloutDmlExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let separator = match t {
            DisplayFormatType::TreeRender => "\n",
            _ => {
                f.write_str("RolloutDmlExec: ")?;
                ", "
            }
        };
        write!(
            f,
            "statement={}{separator}table={}{separator}",
            self.change.verb(),
            self.store.location()
        )?;
        self.change.describe(f)
    }
}

impl ExecutionPlan for RolloutDmlExec {
    fn name(&self) -> &str {
        "RolloutDmlExec"
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

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DataFusionResult<SendableRecordBatchStream> {
        let (store, change) = (self.store.clone(), self.change.clone());
        let concerned = MetricBuilder::new(&self.metrics).counter("rows_concerned", partition);
        count_stream(partition, async move {
            let batch_size = context.session_config().batch_size();
            let rows = run(change.as_ref(), &store, batch_size).await?;
            concerned.add(rows as usize);
            Ok(rows)
        })
    }
}
