//! The query planner: an INSERT whose few rows are at hand is planned without DataFusion's planner, which
//! makes the same node of it, by way of a plan for its rows and of rules that have nothing to do.

use std::any::{Any, TypeId};
use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use arrow_array::RecordBatch;
use async_trait::async_trait;
use datafusion::catalog::TableProvider;
use datafusion::catalog::default_table_source::DefaultTableSource;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::{LogicalPlan, TableScan, TableSource, WriteOp};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use super::exec::projected;
use super::target::{InsertTarget, Rows};

type Inner = Arc<dyn QueryPlanner + Send + Sync>;

/// Plans small INSERTs, and leaves all else to the planner the session had.
#[derive(Debug)]
pub(crate) struct RolloutQueryPlanner {
    /// None is DataFusion's own.
    inner: Option<Inner>,
}

impl RolloutQueryPlanner {
    /// Around the planner a session has; ours twice does no more than once.
    pub(crate) fn around(inner: Option<Inner>) -> Inner {
        Arc::new(Self { inner })
    }
}

#[async_trait]
impl QueryPlanner for RolloutQueryPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        state: &SessionState,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        if let Some((target, rows)) = small_insert(plan, state) {
            let table = target.table()?;
            let node = table.insert_rows(rows, Some(target.filler().clone()))?;
            return with_rules_of(state, node);
        }
        match &self.inner {
            Some(inner) => inner.create_physical_plan(plan, state).await,
            None => {
                let planner = DefaultPhysicalPlanner::default();
                planner.create_physical_plan(plan, state).await
            }
        }
    }
}

/// The target and the rows of an INSERT whose rows are at hand, and no more than a batch.
fn small_insert<'a>(
    plan: &'a LogicalPlan,
    state: &SessionState,
) -> Option<(&'a InsertTarget, RecordBatch)> {
    let LogicalPlan::Dml(dml) = plan else {
        return None;
    };
    let (WriteOp::Insert(_), LogicalPlan::TableScan(scan)) = (&dml.op, dml.input.as_ref()) else {
        return None;
    };
    let target = provider::<InsertTarget>(&dml.target)?;
    let rows = rows_of(scan)?;
    (rows.num_rows() <= state.config().batch_size()).then_some((target, rows))
}

fn rows_of(scan: &TableScan) -> Option<RecordBatch> {
    let rows = provider::<Rows>(&scan.source)?.batch();
    let all_rows = scan.filters.is_empty() && scan.fetch.is_none();
    all_rows.then(|| projected(rows, scan.projection.as_deref()))?
}

fn provider<T: TableProvider>(source: &Arc<dyn TableSource>) -> Option<&T> {
    let source = source.downcast_ref::<DefaultTableSource>()?;
    source.table_provider.downcast_ref()
}

/// DataFusion's own rules: none has anything to do for a node without input.
static USUAL_RULES: LazyLock<HashSet<TypeId>> = LazyLock::new(|| {
    let rules = PhysicalOptimizer::new().rules;
    rules.iter().map(|rule| type_of(rule.as_ref())).collect()
});

fn type_of(rule: &(dyn PhysicalOptimizerRule + Send + Sync)) -> TypeId {
    let rule: &dyn Any = rule;
    rule.type_id()
}

/// What the application's own rules make of a plan: some of them look at every plan, for tracing.
fn with_rules_of(
    state: &SessionState,
    plan: Arc<dyn ExecutionPlan>,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let rules = state.physical_optimizers().iter();
    rules
        .filter(|rule| !USUAL_RULES.contains(&type_of(rule.as_ref())))
        .try_fold(plan, |plan, rule| {
            rule.optimize_with_context(plan, state)
                .map_err(|error| error.context(rule.name()))
        })
}
