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

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Fields, Schema};
use datafusion::catalog::default_table_source::DefaultTableSource;
use datafusion::common::DFSchema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{DmlStatement, Expr, LogicalPlan, Projection, Values, WriteOp};
use datafusion::optimizer::AnalyzerRule;
use datafusion::scalar::ScalarValue;

use super::super::RolloutTableProvider;
use super::target::{InsertTarget, Rows};
use crate::schema::{Filler, TableSchema, cast_column, cast_into, nullable};

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
    // 1. A statement that was planned before, and its parameters have values now.
    if let (Some(target), LogicalPlan::Values(values)) =
        (target.downcast_ref::<InsertTarget>(), dml.input.as_ref())
    {
        let fields = target.given().fields();
        let key = target.filler().key_position();
        return match batch_of(&values.values, fields, key, |row, column| &row[column])? {
            Some(batch) => {
                let input = Arc::new(Rows::new(batch).plan()?);
                let bound = DmlStatement { input, ..dml };
                Ok(Transformed::yes(LogicalPlan::Dml(bound)))
            }
            None => Ok(Transformed::no(LogicalPlan::Dml(dml))),
        };
    }
    // 2. One that comes from SQL.
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
    let given = Given::of(table, &columns, &rows.expr);
    if given.columns.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Dml(dml)));
    }
    let input = given.plan(&rows.input)?;
    let filler = Filler::new(&columns, given.positions, table.fills().clone());
    let target = InsertTarget::new(target.clone(), filler, input.schema().inner().clone());
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

/// The columns a statement gives.
struct Given<'a> {
    table: &'a TableSchema,
    /// By column of the table: which of the given ones it is, if it is one.
    positions: Vec<Option<usize>>,
    /// Their positions in the table, and their values.
    columns: Vec<(usize, &'a Expr)>,
}

impl<'a> Given<'a> {
    /// Those of a table's columns that the sink does not fill.
    fn of(provider: &RolloutTableProvider, table: &'a TableSchema, exprs: &'a [Expr]) -> Self {
        let mut columns = Vec::new();
        let mut positions = Vec::with_capacity(exprs.len());
        for (i, expr) in exprs.iter().enumerate() {
            let value = match expr {
                Expr::Alias(alias) => alias.expr.as_ref(),
                other => other,
            };
            let given = !provider.is_filled(i, value);
            positions.push(given.then_some(columns.len()));
            if given {
                columns.push((i, value));
            }
        }
        Self {
            table,
            positions,
            columns,
        }
    }

    fn plan(&self, source: &Arc<LogicalPlan>) -> DataFusionResult<LogicalPlan> {
        if let LogicalPlan::Values(values) = source.as_ref()
            && let Some(origins) = self.origins_in(values)?
        {
            let key = self.positions[self.table.key_index()];
            let value = |row, column: usize| origins[column].value(row);
            return match batch_of(&values.values, &self.fields(), key, value)? {
                Some(batch) => Rows::new(batch).plan(),
                None => self.values(values, &origins),
            };
        }
        let columns = self.columns.iter();
        let exprs = columns.map(|(column, value)| {
            let field = self.table.sql().field(*column);
            let value = match value {
                Expr::Cast(_) => self.cast(*column, field, (*value).clone())?,
                other => (*other).clone(),
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
    fn origins_in(&self, values: &Values) -> DataFusionResult<Option<Vec<Origin<'a>>>> {
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

    /// The columns as VALUES have them, see [`TableSchema::plain`].
    fn fields(&self) -> Fields {
        let plain = self.table.plain().fields();
        let columns = self.columns.iter();
        columns.map(|(column, _)| plain[*column].clone()).collect()
    }

    fn values(&self, values: &Values, origins: &[Origin<'_>]) -> DataFusionResult<LogicalPlan> {
        let fields = self.fields();
        let mut rows = Vec::with_capacity(values.values.len());
        for row in &values.values {
            let columns = self.columns.iter().zip(&fields).zip(origins);
            let row = columns.map(|(((column, _), to), origin)| {
                self.cast(*column, to, origin.value(row).clone())
            });
            rows.push(row.collect::<DataFusionResult<Vec<_>>>()?);
        }
        Ok(LogicalPlan::Values(Values {
            schema: Arc::new(DFSchema::try_from(Schema::new(fields))?),
            values: rows,
        }))
    }

    fn is_key(&self, column: usize) -> bool {
        column == self.table.key_index()
    }

    /// The cast of a value into a column, which is `to` where the rows are; DataFusion's own cast becomes
    /// ours. Also for a value of the column's type: one that is computed may take another when types are
    /// made to agree.
    fn cast(&self, column: usize, to: &Field, value: Expr) -> DataFusionResult<Expr> {
        // A parameter takes its type from the cast around it.
        if has_parameter(&value)? {
            return Ok(value);
        }
        let of_column = self.table.sql().field(column).data_type();
        let value = match value {
            Expr::Cast(cast) if cast.field.data_type() == of_column => *cast.expr,
            other => other,
        };
        Ok(cast_into(value, to, self.is_key(column))?)
    }
}

/// Where a column of an INSERT with VALUES comes from.
enum Origin<'a> {
    /// A column of VALUES.
    Position(usize),
    /// The default of a column that is left out.
    Default(&'a Expr),
}

impl<'a> Origin<'a> {
    fn value<'b>(&self, row: &'b [Expr]) -> &'b Expr
    where
        'a: 'b,
    {
        match self {
            Origin::Position(position) => &row[*position],
            Origin::Default(default) => default,
        }
    }
}

/// The rows of VALUES as a batch of these columns, one of which may be the key, if they are plain values.
fn batch_of<'a>(
    rows: &'a [Vec<Expr>],
    fields: &Fields,
    key: Option<usize>,
    value: impl Fn(&'a [Expr], usize) -> &'a Expr,
) -> DataFusionResult<Option<RecordBatch>> {
    let mut columns = Vec::with_capacity(fields.len());
    for (i, field) in fields.iter().enumerate() {
        let literals = rows.iter().map(|row| {
            let value = literal(value(row, i), field.data_type());
            value.cloned()
        });
        let Some(literals) = literals.collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        columns.push(cast_literals(literals, field, key == Some(i))?);
    }
    let schema = Arc::new(Schema::new(fields.clone()));
    Ok(Some(RecordBatch::try_new(schema, columns)?))
}

/// A plain value, also one that DataFusion casts into its column.
fn literal<'a>(value: &'a Expr, column: &DataType) -> Option<&'a ScalarValue> {
    let of_column = |to: &DataType| match to {
        DataType::Dictionary(_, value) => value.as_ref() == column || to == column,
        other => other == column,
    };
    match value {
        Expr::Literal(value, _) => Some(value),
        Expr::Cast(cast) if of_column(cast.field.data_type()) => match cast.expr.as_ref() {
            Expr::Literal(value, _) => Some(value),
            _ => None,
        },
        _ => None,
    }
}

/// The values of a column: cast together if they are of one type.
fn cast_literals(
    mut literals: Vec<ScalarValue>,
    field: &Field,
    exact: bool,
) -> DataFusionResult<ArrayRef> {
    let alike = |pair: &[ScalarValue]| pair[0].data_type() == pair[1].data_type();
    if !literals.windows(2).all(alike) {
        for value in &mut literals {
            let cast = cast_column(&value.to_array()?, field, exact)?;
            *value = ScalarValue::try_from_array(&cast, 0)?;
        }
    }
    let values = ScalarValue::iter_to_array(literals)?;
    Ok(cast_column(&values, field, exact)?)
}

fn has_parameter(value: &Expr) -> DataFusionResult<bool> {
    value.exists(|expr| Ok(matches!(expr, Expr::Placeholder(_))))
}
