//! The analyzer rule: refuses what DataFusion would hide from the table.

use std::sync::Arc;

use datafusion::catalog::default_table_source::DefaultTableSource;
use datafusion::common::Column;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    DmlStatement, Expr, Filter, LogicalPlan, Projection, SubqueryAlias, TableScan, TableSource,
    WriteOp, lit,
};
use datafusion::optimizer::AnalyzerRule;

use super::super::RolloutTableProvider;
use super::statement::CheckedStatement;
use crate::error::RolloutError;
use crate::runtime::RolloutStore;

/// Lets DELETE and UPDATE of a rollouts table pass only where the table sees all of it: over one
/// scan of that table, with aliases and filters, without subqueries, joins or limits.
#[derive(Debug, Default)]
pub(crate) struct CheckDml;

impl AnalyzerRule for CheckDml {
    fn name(&self) -> &str {
        "rollout_dml"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> DataFusionResult<LogicalPlan> {
        let checked = plan.transform_down_with_subqueries(|node| match node {
            LogicalPlan::Dml(dml) => check(dml),
            other => Ok(Transformed::no(other)),
        })?;
        Ok(checked.data)
    }
}

fn check(dml: DmlStatement) -> DataFusionResult<Transformed<LogicalPlan>> {
    let verb = match dml.op {
        WriteOp::Delete => "DELETE",
        WriteOp::Update => "UPDATE",
        _ => return Ok(Transformed::no(LogicalPlan::Dml(dml))),
    };
    let Some(store) = store_of(&dml.target) else {
        return Ok(Transformed::no(LogicalPlan::Dml(dml)));
    };
    let (projection, source) = match (&dml.op, dml.input.as_ref()) {
        (WriteOp::Update, LogicalPlan::Projection(top)) => (Some(&top.expr), &top.input),
        (WriteOp::Update, other) => return Err(refuse_node(verb, other).into()),
        _ => (None, &dml.input),
    };
    let mut conditions = Vec::new();
    let source = source_without_filters(verb, store, source, &mut conditions)?;
    // A plan may be analyzed more than once.
    if CheckedStatement::among(&conditions).is_some() {
        return Ok(Transformed::no(LogicalPlan::Dml(dml)));
    }
    for condition in &conditions {
        refuse_hidden(verb, condition)?;
    }
    let condition = match conjunction(conditions) {
        Some(condition) => unqualified(condition)?,
        None if dml.op == WriteOp::Update => lit(true),
        None => {
            return Err(RolloutError::Unsupported(format!(
                "DELETE without WHERE would empty the table: use TRUNCATE TABLE {}",
                dml.table_name
            ))
            .into());
        }
    };
    let assignments = match projection {
        Some(values) => assignments(verb, values)?,
        None => Vec::new(),
    };
    let filter = CheckedStatement::new(condition, assignments).into_filter();
    let mut input = LogicalPlan::Filter(Filter::try_new(filter, Arc::new(source))?);
    if let Some(values) = projection {
        input = LogicalPlan::Projection(Projection::try_new(values.clone(), Arc::new(input))?);
    }
    Ok(Transformed::yes(LogicalPlan::Dml(DmlStatement {
        input: Arc::new(input),
        ..dml
    })))
}

fn store_of(source: &Arc<dyn TableSource>) -> Option<&Arc<RolloutStore>> {
    let source = source.downcast_ref::<DefaultTableSource>()?;
    let table = source
        .table_provider
        .downcast_ref::<RolloutTableProvider>()?;
    Some(table.store())
}

/// The plan below a statement without its filters, which are added to `conditions`.
fn source_without_filters(
    verb: &str,
    store: &Arc<RolloutStore>,
    plan: &LogicalPlan,
    conditions: &mut Vec<Expr>,
) -> DataFusionResult<LogicalPlan> {
    match plan {
        LogicalPlan::Filter(filter) => {
            conditions.push(filter.predicate.clone());
            source_without_filters(verb, store, &filter.input, conditions)
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let input = source_without_filters(verb, store, &alias.input, conditions)?;
            let alias = SubqueryAlias::try_new(Arc::new(input), alias.alias.clone())?;
            Ok(LogicalPlan::SubqueryAlias(alias))
        }
        // A prepared statement was optimized before: columns may have been left out.
        LogicalPlan::Projection(columns) if columns.expr.iter().all(is_plain_column) => {
            let input = source_without_filters(verb, store, &columns.input, conditions)?;
            let columns = Projection::try_new(columns.expr.clone(), Arc::new(input))?;
            Ok(LogicalPlan::Projection(columns))
        }
        LogicalPlan::TableScan(scan) if scan.fetch.is_none() => {
            let same = store_of(&scan.source).is_some_and(|own| Arc::ptr_eq(own, store));
            if !same {
                return Err(refuse(verb, "rows of another table", COPY_IDS).into());
            }
            conditions.extend(scan.filters.iter().cloned());
            Ok(LogicalPlan::TableScan(TableScan {
                filters: Vec::new(),
                ..scan.clone()
            }))
        }
        other => Err(refuse_node(verb, other).into()),
    }
}

fn is_plain_column(expr: &Expr) -> bool {
    matches!(expr, Expr::Column(_))
}

/// What an UPDATE sets: every column of its projection that is not just itself.
fn assignments(verb: &str, values: &[Expr]) -> DataFusionResult<Vec<(String, Expr)>> {
    let mut assigned = Vec::new();
    for value in values {
        let Expr::Alias(alias) = value else {
            if is_plain_column(value) {
                continue;
            }
            return Err(refuse(verb, &format!("the value {value}"), "SET column = value").into());
        };
        if matches!(alias.expr.as_ref(), Expr::Column(column) if column.name == alias.name) {
            continue;
        }
        refuse_hidden(verb, &alias.expr)?;
        assigned.push((alias.name.clone(), unqualified(*alias.expr.clone())?));
    }
    Ok(assigned)
}

const COPY_IDS: &str = "run the query first and name the rows: WHERE id IN ('a', 'b')";

/// Refuses expressions that leave the plan before a table sees them.
fn refuse_hidden(verb: &str, expr: &Expr) -> DataFusionResult<()> {
    let mut hidden = None;
    expr.exists(|expr| {
        hidden = match expr {
            Expr::Exists(_) => Some("EXISTS"),
            Expr::InSubquery(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_) => {
                Some("a subquery")
            }
            Expr::OuterReferenceColumn(..) => Some("a column of an outer query"),
            Expr::AggregateFunction(_) | Expr::WindowFunction(_) => {
                Some("an aggregate or window function")
            }
            _ => None,
        };
        Ok(hidden.is_some())
    })?;
    match hidden {
        Some(what) => Err(refuse(verb, what, COPY_IDS).into()),
        None => Ok(()),
    }
}

fn refuse_node(verb: &str, plan: &LogicalPlan) -> RolloutError {
    match plan {
        LogicalPlan::Limit(_) | LogicalPlan::TableScan(_) => {
            refuse(verb, "LIMIT", "name the rows: WHERE id IN ('a', 'b')")
        }
        LogicalPlan::Join(_) => refuse(verb, "a join or another table", COPY_IDS),
        LogicalPlan::EmptyRelation(_) => never_true(verb),
        other => {
            let node = other.display().to_string();
            let node = node
                .split([':', '\n'])
                .next()
                .unwrap_or_default()
                .to_string();
            refuse(
                verb,
                &format!("{node} in the plan"),
                "a plain WHERE on the table's own columns",
            )
        }
    }
}

/// A condition without any row is a mistake in the statement.
pub(super) fn never_true(verb: &str) -> RolloutError {
    RolloutError::Unsupported(format!(
        "{verb} with a condition that is never true (false or NULL for every row) is not supported on \
         a rollouts table, and nothing would be changed: leave the statement out, or mend its WHERE"
    ))
}

fn refuse(verb: &str, what: &str, instead: &str) -> RolloutError {
    RolloutError::Unsupported(format!(
        "{verb} with {what} is not supported on a rollouts table (more rows could be concerned than \
         were asked for). Instead: {instead}"
    ))
}

/// There is one table, so a column's name says which one is meant.
fn unqualified(expr: Expr) -> DataFusionResult<Expr> {
    let plain = expr.transform(|expr| {
        Ok(match expr {
            Expr::Column(column) => {
                Transformed::yes(Expr::Column(Column::new_unqualified(column.name)))
            }
            other => Transformed::no(other),
        })
    })?;
    Ok(plain.data)
}
