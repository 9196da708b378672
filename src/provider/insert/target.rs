//! What the rule makes of an INSERT: the table as the target of that statement, and its rows as a table.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::internal_datafusion_err;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::{TableType, provider_as_source};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::ExecutionPlan;

use super::super::RolloutTableProvider;
use crate::schema::Filler;

/// The table as the target of one statement that gives some of its columns.
#[derive(Debug)]
pub(super) struct InsertTarget {
    table: Arc<dyn TableProvider>,
    filler: Arc<Filler>,
    given: SchemaRef,
}

impl InsertTarget {
    /// The target of an INSERT that gives the `given` columns and leaves the others to the `filler`.
    pub(super) fn new(table: Arc<dyn TableProvider>, filler: Filler, given: SchemaRef) -> Self {
        let filler = Arc::new(filler);
        Self {
            table,
            filler,
            given,
        }
    }

    pub(super) fn table(&self) -> DataFusionResult<&RolloutTableProvider> {
        let table = self.table.downcast_ref::<RolloutTableProvider>();
        table.ok_or_else(|| internal_datafusion_err!("an INSERT planned for another table"))
    }

    pub(super) fn filler(&self) -> &Arc<Filler> {
        &self.filler
    }

    pub(super) fn given(&self) -> &SchemaRef {
        &self.given
    }
}

#[async_trait]
impl TableProvider for InsertTarget {
    /// The columns the statement gives.
    fn schema(&self) -> SchemaRef {
        self.given.clone()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        self.table.scan(state, projection, filters, limit).await
    }

    async fn insert_into(
        &self,
        state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        insert_op: InsertOp,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let filler = Some(self.filler.clone());
        self.table()?.insert(state, input, insert_op, filler)
    }
}

/// The name of the rows of VALUES in plans.
const VALUES: &str = "values";

/// The rows of VALUES, as the table an INSERT reads. DataFusion's own, for rows of any origin, keeps them
/// behind a lock that only its scan can wait for.
#[derive(Debug)]
pub(super) struct Rows(RecordBatch);

impl Rows {
    pub(super) fn new(rows: RecordBatch) -> Self {
        Self(rows)
    }

    /// Reads all of them.
    pub(super) fn plan(self) -> DataFusionResult<LogicalPlan> {
        // Said, since the optimizer would say it, see that it changed the plan, and begin anew.
        let all = (0..self.0.num_columns()).collect();
        LogicalPlanBuilder::scan(VALUES, provider_as_source(Arc::new(self)), Some(all))?.build()
    }

    pub(super) fn batch(&self) -> &RecordBatch {
        &self.0
    }
}

#[async_trait]
impl TableProvider for Rows {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let rows = vec![self.0.clone()];
        let scan = MemorySourceConfig::try_new_exec(&[rows], self.schema(), projection.cloned())?;
        Ok(scan)
    }
}
