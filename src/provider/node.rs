//! What this crate's plan nodes share: none has an input, and those that act on the table answer with
//! one row, `count`.

use std::sync::{Arc, LazyLock};

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use datafusion::common::internal_err;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{
    Boundedness, EmissionType, EvaluationType, SchedulingType,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, Partitioning, PlanProperties};

/// Made once: a statement may be planned for each row.
static ONE_COUNT: LazyLock<Arc<PlanProperties>> = LazyLock::new(|| {
    let count = Field::new("count", DataType::UInt64, false);
    let properties = PlanProperties::new(
        EquivalenceProperties::new(Arc::new(Schema::new(vec![count]))),
        Partitioning::UnknownPartitioning(1),
        EmissionType::Final,
        Boundedness::Bounded,
    );
    Arc::new(
        properties
            .with_scheduling_type(SchedulingType::Cooperative)
            .with_evaluation_type(EvaluationType::Eager),
    )
});

/// The properties of a node that acts and then returns one row, `count`.
pub(super) fn one_count() -> &'static Arc<PlanProperties> {
    &ONE_COUNT
}

/// The stream of such a node, which acts when it is polled.
///
/// # Errors
/// Another partition than the only one.
pub(super) fn count_stream<F>(
    partition: usize,
    count: F,
) -> DataFusionResult<SendableRecordBatchStream>
where
    F: Future<Output = DataFusionResult<u64>> + Send + 'static,
{
    if partition != 0 {
        return internal_err!("there is one partition, not {partition}");
    }
    let schema = ONE_COUNT.eq_properties.schema();
    let row = async move {
        let count = Arc::new(UInt64Array::from(vec![count.await?]));
        Ok(RecordBatch::try_new(schema.clone(), vec![count])?)
    };
    let row = futures::stream::once(row);
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema.clone(), row)))
}

/// A node that has no input, with these inputs: none.
///
/// # Errors
/// Some inputs.
pub(crate) fn with_no_children(
    node: Arc<dyn ExecutionPlan>,
    children: &[Arc<dyn ExecutionPlan>],
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    if children.is_empty() {
        Ok(node)
    } else {
        internal_err!("{} has no children", node.name())
    }
}
