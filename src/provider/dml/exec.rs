//! The plan node of a statement: acts when executed, returns one row, `count`.

use std::sync::Arc;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use datafusion::common::internal_err;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};

use super::{Change, run};
use crate::error::RolloutError;
use crate::runtime::RolloutStore;

/// Carries a statement out.
#[derive(Debug)]
pub(super) struct RolloutDmlExec {
    store: Arc<RolloutStore>,
    change: Arc<dyn Change>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RolloutDmlExec {
    pub(super) fn new(store: Arc<RolloutStore>, change: Arc<dyn Change>) -> Self {
        let count = Field::new("count", DataType::UInt64, false);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::new(Schema::new(vec![count]))),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Self {
            store,
            change,
            properties: Arc::new(properties),
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
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        if children.is_empty() {
            Ok(self)
        } else {
            internal_err!("RolloutDmlExec has no children")
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DataFusionResult<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("RolloutDmlExec has 1 partition, not {partition}");
        }
        let schema = self.properties.eq_properties.schema().clone();
        let (store, change) = (self.store.clone(), self.change.clone());
        let concerned = MetricBuilder::new(&self.metrics).counter("rows_concerned", partition);
        let columns = schema.clone();
        let answer = async move {
            let batch_size = context.session_config().batch_size();
            let rows = run(change.as_ref(), &store, batch_size).await?;
            concerned.add(rows as usize);
            let count = Arc::new(UInt64Array::from(vec![rows]));
            Ok(RecordBatch::try_new(columns, vec![count])?)
        };
        let answer = futures::stream::once(async move {
            answer
                .await
                .map_err(|error: RolloutError| DataFusionError::from(error))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, answer)))
    }
}
