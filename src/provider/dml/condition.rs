//! A statement's condition, and the rows of the base that meet it.

use std::sync::Arc;

use arrow::compute::filter_record_batch;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use chrono::Utc;
use datafusion::catalog::Session;
use datafusion::common::DFSchema;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion::scalar::ScalarValue;
use futures::{StreamExt, TryStreamExt};
use lance_core::ROW_ADDR;

use super::super::filter::for_storage;
use super::On;
use crate::error::{Result, RolloutError};
use crate::schema::small_dictionary_columns;
use crate::store::masks::RowSet;
use crate::store::{Batches, ScanSpec, scan_dataset};

/// Columns a statement reads of the rows it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// Those the condition needs.
    Needed,
    /// All of them.
    All,
}

/// A condition: one part for storage, one for DataFusion, divided as in a query.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    whole: Expr,
    by_storage: Option<Expr>,
    by_engine: Option<Arc<dyn PhysicalExpr>>,
    columns: SchemaRef,
}

impl Condition {
    pub(super) fn plan(
        state: &dyn Session,
        schema: &SchemaRef,
        condition: &Expr,
        read: Read,
    ) -> DataFusionResult<Self> {
        let whole = simplified(state, schema, condition.clone())?;
        let (mut exact, mut rest) = (Vec::new(), Vec::new());
        for part in split_conjunction(&whole) {
            match for_storage(part, schema) {
                Some(part) => exact.push(part),
                None => rest.push(part.clone()),
            }
        }
        let by_storage = conjunction(exact);
        let rest = conjunction(rest);
        let needed: Vec<usize> = match (read, &rest) {
            (Read::All, _) => (0..schema.fields().len()).collect(),
            (Read::Needed, None) => Vec::new(),
            (Read::Needed, Some(rest)) => {
                let used = rest.column_refs();
                (0..schema.fields().len())
                    .filter(|i| {
                        used.iter()
                            .any(|column| &column.name == schema.field(*i).name())
                    })
                    .collect()
            }
        };
        let mut fields: Vec<_> = needed.iter().map(|i| schema.fields()[*i].clone()).collect();
        fields.push(Arc::new(Field::new(ROW_ADDR, DataType::UInt64, true)));
        let columns = Arc::new(Schema::new(fields));
        let by_engine = match &rest {
            Some(rest) => Some(physical(state, &columns, rest)?),
            None => None,
        };
        Ok(Self {
            whole,
            by_storage,
            by_engine,
            columns,
        })
    }

    /// What the condition is for every row, where that is known beforehand.
    pub(super) fn constant(&self) -> Option<bool> {
        match &self.whole {
            Expr::Literal(ScalarValue::Boolean(value), _) => Some(value.unwrap_or(false)),
            Expr::Literal(value, _) if value.is_null() => Some(false),
            _ => None,
        }
    }

    /// Reads the base. Lance may join rows of neighbouring fragments in one batch, whose dictionaries
    /// together may have more values than their keys can number: such columns are read one fragment at
    /// a time.
    async fn read(&self, on: &On<'_>, spec: ScanSpec) -> Result<Batches> {
        let fragments = on.base.fragments().as_ref().clone();
        if small_dictionary_columns(&self.columns)?.fields().is_empty() {
            return scan_dataset(&on.base, fragments, &RowSet::new(), &spec).await;
        }
        let base = on.base.clone();
        let read = futures::stream::iter(fragments).then(move |fragment| {
            let (base, spec) = (base.clone(), spec.clone());
            async move { scan_dataset(&base, vec![fragment], &RowSet::new(), &spec).await }
        });
        Ok(read.try_flatten().boxed())
    }

    /// The rows that meet the condition, with their addresses.
    pub(super) async fn rows(&self, on: &On<'_>) -> Result<Batches> {
        let spec = ScanSpec {
            filter: self.by_storage.clone(),
            batch_size: Some(on.batch_size),
            ..ScanSpec::all(self.columns.clone())
        };
        let read = self.read(on, spec).await?;
        let rest = self.by_engine.clone();
        Ok(read
            .and_then(move |batch| futures::future::ready(passing(rest.as_ref(), batch)))
            .try_filter(|batch| futures::future::ready(batch.num_rows() > 0))
            .boxed())
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.whole)
    }
}

/// The rows for which the condition is true: not those where it is NULL.
fn passing(condition: Option<&Arc<dyn PhysicalExpr>>, batch: RecordBatch) -> Result<RecordBatch> {
    let Some(condition) = condition else {
        return Ok(batch);
    };
    let passed = condition.evaluate(&batch)?.into_array(batch.num_rows())?;
    let passed = passed.as_boolean_opt().ok_or_else(|| {
        RolloutError::invalid(format!(
            "the condition is {}, not a Boolean",
            passed.data_type()
        ))
    })?;
    Ok(filter_record_batch(&batch, passed)?)
}

/// The addresses of rows that were read with them.
pub(super) fn addresses(batch: &RecordBatch) -> Result<&UInt64Array> {
    batch
        .column_by_name(ROW_ADDR)
        .and_then(|column| column.as_primitive_opt::<UInt64Type>())
        .ok_or_else(|| RolloutError::invalid("rows were read without their addresses"))
}

/// Adds the rows of a batch to a set.
pub(super) fn collect(batch: &RecordBatch, into: &mut RowSet) -> Result<()> {
    for address in addresses(batch)?.values() {
        into.entry((address >> 32) as u32)
            .or_default()
            .insert(*address as u32);
    }
    Ok(())
}

/// An expression with constants folded, and `now()` the time the statement began.
pub(super) fn simplified(
    state: &dyn Session,
    schema: &SchemaRef,
    expr: Expr,
) -> DataFusionResult<Expr> {
    let schema = Arc::new(DFSchema::try_from(schema.as_ref().clone())?);
    let began = state.execution_props().query_execution_start_time;
    let context = SimplifyContext::builder()
        .with_schema(schema.clone())
        .with_config_options(state.config().options().clone())
        .with_query_execution_start_time(Some(began.unwrap_or_else(Utc::now)))
        .build();
    let simplifier = ExprSimplifier::new(context);
    let expr = simplifier.coerce(expr, &schema)?;
    simplifier.simplify(expr)
}

/// An expression as it is evaluated over batches of these columns.
pub(super) fn physical(
    state: &dyn Session,
    columns: &SchemaRef,
    expr: &Expr,
) -> DataFusionResult<Arc<dyn PhysicalExpr>> {
    let schema = DFSchema::try_from(columns.as_ref().clone())?;
    create_physical_expr(expr, &schema, state.execution_props())
}
