//! Reading one dataset of a table, base or generation, as the table's rows.

use std::sync::Arc;

use arrow::compute::cast;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StructArray, new_null_array};
use arrow_schema::{DataType, Schema, SchemaRef};
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::metrics::Count;
use datafusion::scalar::ScalarValue;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::scanner::{ExecutionSummaryCounts, MaterializationStyle, Scanner};
use lance_core::ROW_ADDR;
use lance_core::datatypes::Field as LanceField;
use lance_table::format::Fragment;

use super::Generation;
use super::masks::{RowSet, allowed_rows};
use crate::error::{Result, RolloutError};

/// Batches of a scan.
pub(crate) type Batches = BoxStream<'static, Result<RecordBatch>>;

/// What to read of a dataset.
#[derive(Debug, Clone)]
pub(crate) struct ScanSpec {
    /// The columns of the result; `_rowaddr` is a row's address.
    pub(crate) columns: SchemaRef,
    /// A condition over the table's columns, evaluated before the limit.
    pub(crate) filter: Option<Expr>,
    /// Most rows to return.
    pub(crate) limit: Option<usize>,
    /// Most rows of a batch.
    pub(crate) batch_size: Option<usize>,
    /// Where the bytes read from storage are counted.
    pub(crate) bytes_read: Option<Count>,
}

impl ScanSpec {
    /// All rows, in these columns.
    pub(crate) fn all(columns: SchemaRef) -> Self {
        Self {
            columns,
            filter: None,
            limit: None,
            batch_size: None,
            bytes_read: None,
        }
    }
}

/// Reads the rows of `fragments` that are not masked.
///
/// # Errors
/// The dataset cannot be read.
pub(crate) async fn scan_dataset(
    dataset: &Arc<Dataset>,
    fragments: Vec<Fragment>,
    masked: &RowSet,
    spec: &ScanSpec,
) -> Result<Batches> {
    let context = || RolloutError::storage(format!("reading {}", dataset.uri()));
    let mut scanner = dataset.scan();
    let fields = asked_for(dataset, &spec.columns);
    let none = fields.is_empty();
    project(&mut scanner, dataset, fields).map_err(context())?;
    let addressed = spec.columns.column_with_name(ROW_ADDR).is_some();
    if addressed || none {
        // Without columns rows are counted by their addresses, which cost no reading.
        scanner.with_row_address();
    }
    let allowed = allowed_rows(&fragments, masked);
    scanner.with_fragments(fragments);
    if let Some(allowed) = allowed {
        scanner.with_physical_row_addr_prefilter(allowed);
    }
    if let Some(filter) = &spec.filter {
        let mut late = wide_columns(&spec.columns, filter);
        late.retain(|column| dataset.schema().field(column).is_some());
        let style = MaterializationStyle::all_early_except(&late, dataset.schema());
        scanner.materialization_style(style.map_err(context())?);
        scanner.filter_expr(for_dataset(filter, dataset)?);
    }
    if let Some(limit) = spec.limit {
        scanner.limit(Some(limit as i64), None).map_err(context())?;
    }
    if let Some(rows) = spec.batch_size {
        scanner.batch_size(rows);
    }
    if let Some(bytes_read) = spec.bytes_read.clone() {
        scanner.scan_stats_callback(Arc::new(move |counts: &ExecutionSummaryCounts| {
            bytes_read.add(counts.bytes_read);
        }));
    }
    let columns = spec.columns.clone();
    let uri = dataset.uri().to_string();
    let batches = scanner.try_into_stream().boxed().await.map_err(context())?;
    Ok(batches
        .map_err(move |error| RolloutError::storage(format!("reading {uri}"))(error))
        .and_then(move |batch| futures::future::ready(conform(&batch, &columns)))
        .boxed())
}

/// Reads the rows of a generation that are not masked, in the given columns.
///
/// # Errors
/// The generation cannot be read.
pub(crate) async fn scan_generation(
    generation: &Generation,
    masked: &RowSet,
    columns: &SchemaRef,
) -> Result<Batches> {
    let spec = ScanSpec::all(columns.clone());
    let fragments = generation.fragments.clone();
    scan_dataset(&generation.dataset, fragments, masked, &spec).await
}

/// The dataset's fields that are asked for, structs narrowed to the leaves that are.
fn asked_for(dataset: &Dataset, columns: &Schema) -> Vec<LanceField> {
    let known = columns.fields().iter().filter_map(|column| {
        let field = dataset.schema().field(column.name())?;
        Some(narrowed_to(field, column.data_type()))
    });
    known.collect()
}

fn narrowed_to(field: &LanceField, data_type: &DataType) -> LanceField {
    let mut narrow = field.clone();
    if let DataType::Struct(kept) = data_type {
        let kept_as = |name: &str| kept.iter().find(|kept| kept.name() == name);
        narrow.children = field
            .children
            .iter()
            .filter_map(|child| Some(narrowed_to(child, kept_as(&child.name)?.data_type())))
            .collect();
    }
    narrow
}

fn project(scanner: &mut Scanner, dataset: &Dataset, fields: Vec<LanceField>) -> lance::Result<()> {
    let whole = |field: &LanceField| dataset.schema().field_by_id(field.id) == Some(field);
    if fields.iter().all(whole) {
        let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        scanner.project(&names)?;
    } else {
        let mut narrowed = dataset.schema().clone();
        narrowed.fields = fields;
        scanner.project_with_schema(&narrowed)?;
    }
    Ok(())
}

/// Columns worth reading only for the rows that pass a filter: texts, payloads and lists that the
/// filter does not look at.
fn wide_columns(columns: &Schema, filter: &Expr) -> Vec<String> {
    let looked_at = filter.column_refs();
    columns
        .fields()
        .iter()
        .filter(|field| {
            matches!(
                field.data_type(),
                DataType::LargeUtf8
                    | DataType::LargeBinary
                    | DataType::Binary
                    | DataType::List(_)
                    | DataType::LargeList(_)
                    | DataType::FixedSizeList(_, _)
                    | DataType::Struct(_)
            )
        })
        .filter(|field| !looked_at.iter().any(|column| column.name() == field.name()))
        .map(|field| field.name().clone())
        .collect()
}

/// A batch in the columns asked for. What the source does not have is NULL.
pub(crate) fn conform(batch: &RecordBatch, columns: &SchemaRef) -> Result<RecordBatch> {
    let rows = batch.num_rows();
    let arrays: Vec<ArrayRef> = columns
        .fields()
        .iter()
        .map(|field| match batch.column_by_name(field.name()) {
            Some(array) if array.data_type() == field.data_type() => Ok(array.clone()),
            Some(array) => Ok(cast(&narrow(array, field.data_type())?, field.data_type())?),
            None => Ok(new_null_array(field.data_type(), rows)),
        })
        .collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(
        columns.clone(),
        arrays,
        &options,
    )?)
}

/// A struct without the children that are not asked for.
fn narrow(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    let (DataType::Struct(kept), Some(whole)) = (data_type, array.as_struct_opt()) else {
        return Ok(array.clone());
    };
    if kept.len() == whole.num_columns() {
        return Ok(array.clone());
    }
    let children = kept
        .iter()
        .map(|field| match whole.column_by_name(field.name()) {
            Some(child) => Ok(cast(&narrow(child, field.data_type())?, field.data_type())?),
            None => Ok(new_null_array(field.data_type(), whole.len())),
        })
        .collect::<Result<_>>()?;
    let nulls = whole.nulls().cloned();
    Ok(Arc::new(StructArray::try_new(
        kept.clone(),
        children,
        nulls,
    )?))
}

/// The filter as this dataset can evaluate it: a column it does not have yet is NULL.
fn for_dataset(filter: &Expr, dataset: &Dataset) -> Result<Expr> {
    let known = filter.clone().transform(|expr| {
        Ok(match expr {
            Expr::Column(column) if dataset.schema().field(&column.name).is_none() => {
                Transformed::yes(Expr::Literal(ScalarValue::Null, None))
            }
            Expr::Column(column) => {
                Transformed::yes(Expr::Column(Column::new_unqualified(column.name)))
            }
            other => Transformed::no(other),
        })
    })?;
    Ok(known.data)
}
