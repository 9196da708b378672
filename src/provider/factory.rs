//! `CREATE EXTERNAL TABLE … STORED AS ROLLOUT`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::Schema;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Constraint, DFSchema};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{CreateExternalTable, Expr, ExprSchemable};

use super::RolloutTableProvider;
use crate::error::{Result, RolloutError};
use crate::options::TableOptions;
use crate::runtime::RolloutRuntime;
use crate::schema::{TableSchema, parse_stored_defaults, render_defaults};

/// Opens or creates rollouts tables for SQL. Registered under `ROLLOUT`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RolloutTableFactory;

#[async_trait]
impl TableProviderFactory for RolloutTableFactory {
    async fn create(
        &self,
        state: &dyn Session,
        cmd: &CreateExternalTable,
    ) -> DataFusionResult<Arc<dyn TableProvider>> {
        refuse_unsupported_clauses(cmd)?;
        let options = TableOptions::from_map(&cmd.options)?;
        let declared = declared_schema(cmd)?;
        let runtime = RolloutRuntime::from_session(state)?;
        let handle = runtime.open(&cmd.location, declared, options).await?;
        Ok(Arc::new(
            RolloutTableProvider::new(handle).with_definition(cmd.definition.clone()),
        ))
    }
}

fn refuse_unsupported_clauses(cmd: &CreateExternalTable) -> Result<()> {
    let clause = if !cmd.table_partition_cols.is_empty() {
        "PARTITIONED BY"
    } else if !cmd.order_exprs.is_empty() {
        "WITH ORDER"
    } else if cmd.unbounded {
        "UNBOUNDED"
    } else {
        return Ok(());
    };
    Err(RolloutError::Unsupported(format!(
        "{clause} is not supported for a rollouts table: leave it out"
    )))
}

/// The schema of the statement's column list; none without one.
fn declared_schema(cmd: &CreateExternalTable) -> Result<Option<TableSchema>> {
    let columns: &Schema = cmd.schema.as_arrow();
    if columns.fields().is_empty() {
        return Ok(None);
    }
    let mut primary_key = None;
    for constraint in cmd.constraints.iter() {
        match constraint {
            Constraint::PrimaryKey(key) if key.len() == 1 => {
                if primary_key
                    .replace(key[0])
                    .is_some_and(|other| other != key[0])
                {
                    return Err(RolloutError::invalid(
                        "two columns are declared PRIMARY KEY: a table has one key, of one column",
                    ));
                }
            }
            Constraint::PrimaryKey(_) => {
                return Err(RolloutError::Unsupported(
                    "a key of several columns is not supported: join them into one text column, for \
                     example concat(run, '/', step, '/', index)"
                        .to_string(),
                ));
            }
            Constraint::Unique(_) => {
                return Err(RolloutError::Unsupported(
                    "UNIQUE is not supported: only the PRIMARY KEY is kept unique".to_string(),
                ));
            }
        }
    }
    let defaults: HashMap<String, Expr> = cmd.column_defaults.clone();
    for (column, default) in &defaults {
        check_default(columns, column, default)?;
    }
    // What cannot be read back would keep everybody from opening the table.
    parse_stored_defaults(&render_defaults(&defaults)?)?;
    TableSchema::declared(columns, primary_key, defaults).map(Some)
}

/// Whether an expression is more than a function of one row's values.
fn needs_rows(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::AggregateFunction(_)
            | Expr::WindowFunction(_)
            | Expr::ScalarSubquery(_)
            | Expr::InSubquery(_)
            | Expr::Exists(_)
            | Expr::SetComparison(_)
            | Expr::Unnest(_)
            | Expr::Placeholder(_)
            | Expr::OuterReferenceColumn(..)
    )
}

/// A default stands for itself: it cannot look at other columns.
fn check_default(columns: &Schema, column: &str, default: &Expr) -> Result<()> {
    let wrong = |error: &dyn std::fmt::Display| {
        RolloutError::invalid(format!("DEFAULT of column '{column}' ({default}): {error}"))
    };
    let nothing = DFSchema::empty();
    default.get_type(&nothing).map_err(|error| wrong(&error))?;
    if default.exists(|expr| Ok(needs_rows(expr)))? {
        return Err(wrong(
            &"it has to be a value or a function of values: subqueries, aggregates and window \
              functions cannot be evaluated for a row",
        ));
    }
    let required = columns
        .field_with_name(column)
        .is_ok_and(|field| !field.is_nullable());
    if required && matches!(default, Expr::Literal(value, _) if value.is_null()) {
        return Err(wrong(&"the column is NOT NULL"));
    }
    if let (Expr::Literal(value, _), Ok(field)) = (default, columns.field_with_name(column)) {
        let cast = value
            .cast_to(field.data_type())
            .map_err(|error| wrong(&error))?;
        if cast.is_null() && !value.is_null() {
            return Err(wrong(&format!("it is not a {}", field.data_type())));
        }
    }
    Ok(())
}
