//! The analyzer rule of INSERT: what DataFusion would plan for every column of the table, it leaves to
//! the sink. It is the first of a session's rules, so that the others do not have to look at what it
//! takes away.
//!
//! 1. Columns a statement does not name are left out of the plan; the sink fills them. That is most
//!    of the columns of most statements, and planning them is most of what a small INSERT costs.
//! 2. Values are cast into their columns by a cast that names the column when it fails.
//! 3. Rows of VALUES become a table of their own, or are renamed where they are if they are not all
//!    plain values, so that no expression is left to plan.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::default_table_source::DefaultTableSource;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, internal_datafusion_err};
use datafusion::datasource::{MemTable, TableType, provider_as_source};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{
    DmlStatement, Expr, LogicalPlan, LogicalPlanBuilder, Projection, Values, WriteOp,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::scalar::ScalarValue;

use super::RolloutTableProvider;
use crate::schema::{Filler, Source, cast_into, nullable};

/// Leaves to the sink what it can do without planning.
#[derive(Debug, Default)]
pub(crate) struct PlanInsert;

impl AnalyzerRule for PlanInsert {
    fn name(&self) -> &str {
        "rollout_insert"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> DataFusionResult<LogicalPlan> {
        let planned = plan.transform_down(|node| match node {
            LogicalPlan::Dml(dml) => plan_insert(dml),
            other => Ok(Transformed::no(other)),
        })?;
        Ok(planned.data)
    }
}

fn plan_insert(dml: DmlStatement) -> DataFusionResult<Transformed<LogicalPlan>> {
    let target = match (&dml.op, dml.target.downcast_ref::<DefaultTableSource>()) {
        (WriteOp::Insert(InsertOp::Append), Some(source)) => source.table_provider.clone(),
        _ => return Ok(Transformed::no(LogicalPlan::Dml(dml))),
    };
    // Its own target, of a statement that was analyzed before, is another type.
    let (Some(table), LogicalPlan::Projection(rows)) = (
        target.downcast_ref::<RolloutTableProvider>(),
        dml.input.as_ref(),
    ) else {
        return Ok(Transformed::no(LogicalPlan::Dml(dml)));
    };
    // Looked at once: a column may be added at any moment.
    let columns = table.store().schema();
    if !are_columns_of(columns.sql(), rows) {
        return Ok(Transformed::no(LogicalPlan::Dml(dml)));
    }
    let (sources, given) = split(table, columns.sql(), &rows.expr);
    if given.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Dml(dml)));
    }
    let input = Given {
        key: columns.key_name().to_string(),
        columns: given,
    }
    .plan(&rows.input)?;
    let target = InsertTarget {
        filler: Filler::new(&columns, sources),
        table: target,
    };
    Ok(Transformed::yes(LogicalPlan::Dml(DmlStatement {
        target: Arc::new(DefaultTableSource::new(Arc::new(target))),
        input: Arc::new(input),
        ..dml
    })))
}

/// Whether a projection is what SQL makes of an INSERT: all columns in order, in their own types or,
/// where parameters were given values, in theirs.
fn are_columns_of(schema: &Schema, rows: &Projection) -> bool {
    let any_type = matches!(rows.input.as_ref(), LogicalPlan::Values(_));
    let columns = rows.schema.fields().iter().zip(schema.fields());
    rows.schema.fields().len() == schema.fields().len()
        && columns.into_iter().all(|(given, column)| {
            given.name() == column.name() && (any_type || given.data_type() == column.data_type())
        })
}

/// Where each column comes from, and those that come from the statement.
fn split(
    table: &RolloutTableProvider,
    schema: &Schema,
    exprs: &[Expr],
) -> (Vec<Source>, Vec<(Field, Expr)>) {
    let mut given = Vec::new();
    let mut sources = Vec::with_capacity(exprs.len());
    for (field, expr) in schema.fields().iter().zip(exprs) {
        let value = match expr {
            Expr::Alias(alias) => alias.expr.as_ref(),
            other => other,
        };
        sources.push(match table.fill_of(field.name(), value) {
            Some(fill) => Source::Filled(fill.clone()),
            None => {
                given.push((field.as_ref().clone(), value.clone()));
                Source::Given(given.len() - 1)
            }
        });
    }
    (sources, given)
}

/// The columns a statement gives.
struct Given {
    key: String,
    columns: Vec<(Field, Expr)>,
}

impl Given {
    fn plan(self, source: &Arc<LogicalPlan>) -> DataFusionResult<LogicalPlan> {
        if let LogicalPlan::Values(values) = source.as_ref()
            && let Some(origins) = self.origins_in(values)?
        {
            return self.values(values, &origins);
        }
        let columns = self.columns.iter();
        let exprs = columns.map(|(field, value)| {
            let value = match value {
                Expr::Cast(_) => self.cast(field, field, value.clone())?,
                other => other.clone(),
            };
            Ok(value.alias(field.name().as_str()))
        });
        let exprs = exprs.collect::<DataFusionResult<Vec<_>>>()?;
        let source = match source.as_ref() {
            LogicalPlan::Values(values) => {
                let fields = values.schema.fields().iter().map(AsRef::as_ref);
                Arc::new(LogicalPlan::Values(Values {
                    schema: Arc::new(DFSchema::try_from(nullable(fields))?),
                    values: values.values.clone(),
                }))
            }
            _ => source.clone(),
        };
        Projection::try_new(exprs, source).map(LogicalPlan::Projection)
    }

    /// Where in VALUES each comes from, unchanged, or which default is the same for all rows.
    fn origins_in(&self, values: &Values) -> DataFusionResult<Option<Vec<Origin<'_>>>> {
        let mut origins = Vec::with_capacity(self.columns.len());
        for (_, value) in &self.columns {
            origins.push(match value {
                Expr::Column(column) => Origin::Position(values.schema.index_of_column(column)?),
                default if default.column_refs().is_empty() => Origin::Default(default),
                _ => return Ok(None),
            });
        }
        Ok(Some(origins))
    }

    fn values(&self, values: &Values, origins: &[Origin<'_>]) -> DataFusionResult<LogicalPlan> {
        let fields: Vec<_> = self.columns.iter().map(|(field, _)| plain(field)).collect();
        let mut rows = Vec::with_capacity(values.values.len());
        for row in &values.values {
            let columns = self.columns.iter().zip(&fields).zip(origins);
            let row = columns.map(|(((column, _), to), origin)| {
                let value = match origin {
                    Origin::Position(position) => &row[*position],
                    Origin::Default(default) => default,
                };
                match value {
                    Expr::Literal(literal, _) if literal.data_type() == *to.data_type() => {
                        Ok(value.clone())
                    }
                    other => self.cast(column, to, other.clone()),
                }
            });
            rows.push(row.collect::<DataFusionResult<Vec<_>>>()?);
        }
        let schema = nullable(fields.iter());
        if let Some(batch) = literals(&schema, &rows)? {
            let table = MemTable::try_new(batch.schema(), vec![vec![batch]])?;
            let source = provider_as_source(Arc::new(table));
            return LogicalPlanBuilder::scan(VALUES, source, None)?.build();
        }
        Ok(LogicalPlan::Values(Values {
            schema: Arc::new(DFSchema::try_from(schema)?),
            values: rows,
        }))
    }

    /// The cast of a value into a column, which is `to` where the rows are; DataFusion's own cast becomes
    /// ours. Also for a value of the column's type: one that is computed may take another when types are
    /// made to agree.
    fn cast(&self, column: &Field, to: &Field, value: Expr) -> DataFusionResult<Expr> {
        // A parameter takes its type from the cast around it.
        if has_parameter(&value)? {
            return Ok(value);
        }
        let value = match value {
            Expr::Cast(cast) if cast.field.data_type() == column.data_type() => *cast.expr,
            other => other,
        };
        Ok(cast_into(value, to, column.name() == &self.key)?)
    }
}

/// Where a column of an INSERT with VALUES comes from.
enum Origin<'a> {
    /// A column of VALUES.
    Position(usize),
    /// The default of a column that is left out.
    Default(&'a Expr),
}

/// A column as VALUES have it: without its dictionary, which DataFusion would make of all the rows' values,
/// with their repeats, and which the sink makes.
fn plain(field: &Field) -> Field {
    match field.data_type() {
        DataType::Dictionary(_, value) => field.clone().with_data_type(value.as_ref().clone()),
        _ => field.clone(),
    }
}

fn has_parameter(value: &Expr) -> DataFusionResult<bool> {
    value.exists(|expr| Ok(matches!(expr, Expr::Placeholder(_))))
}

/// The name of the rows of VALUES in plans.
const VALUES: &str = "values";

/// The rows as a batch, if they are plain values.
fn literals(schema: &Schema, rows: &[Vec<Expr>]) -> DataFusionResult<Option<RecordBatch>> {
    let mut columns = Vec::with_capacity(schema.fields().len());
    for (i, field) in schema.fields().iter().enumerate() {
        let mut values = Vec::with_capacity(rows.len());
        for row in rows {
            match &row[i] {
                Expr::Literal(value, _) if value.data_type() == *field.data_type() => {
                    values.push(value.clone());
                }
                _ => return Ok(None),
            }
        }
        columns.push(ScalarValue::iter_to_array(values)?);
    }
    Ok(Some(RecordBatch::try_new(
        Arc::new(schema.clone()),
        columns,
    )?))
}

/// The table as the target of one statement that gives some of its columns.
#[derive(Debug)]
struct InsertTarget {
    table: Arc<dyn TableProvider>,
    filler: Filler,
}

#[async_trait]
impl TableProvider for InsertTarget {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
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
        let table = self.table.downcast_ref::<RolloutTableProvider>();
        let table =
            table.ok_or_else(|| internal_datafusion_err!("an INSERT planned for another table"))?;
        table.insert(state, input, insert_op, Some(self.filler.clone()))
    }
}
