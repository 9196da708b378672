//! UPDATE: the rows written anew with their assignments, the old ones deleted, in one commit.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::compute::cast;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{Array, ArrayRef, RecordBatch, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use lance::dataset::transaction::{Operation, UpdateMode};
use lance_table::format::key_existence::{FilterType, KeyExistenceFilter, KeyValue};
use parking_lot::Mutex;

use super::condition::{Condition, Read, collect, physical, simplified};
use super::delete::affected;
use super::rule::never_true;
use super::statement::CheckedStatement;
use super::{Change, On, Prepared};
use crate::error::{Result, RolloutError};
use crate::flush::{delete_losers, write_fragments};
use crate::options::OnConflict;
use crate::schema::{INGESTED_AT, Markers, TableSchema, check_and_align};
use crate::store::LanceTable;
use crate::store::masks::{RowSet, row_count};

/// Changes the rows that meet a condition.
#[derive(Debug)]
pub(super) struct Update {
    condition: Condition,
    writer: Arc<RowWriter>,
}

impl Update {
    pub(super) fn plan(
        state: &dyn Session,
        schema: &Arc<TableSchema>,
        statement: &CheckedStatement,
    ) -> DataFusionResult<Self> {
        let columns = schema.sql();
        let condition = Condition::plan(state, columns, &statement.condition, Read::All)?;
        if condition.constant() == Some(false) {
            return Err(never_true("UPDATE").into());
        }
        let mut assignments = Vec::new();
        for (name, value) in &statement.assignments {
            let column = assignable(schema, name)?;
            let value = simplified(state, columns, value.clone())?;
            refuse_null(columns.field(column), &value)?;
            assignments.push(Assignment {
                column,
                text: format!("{name} = {value}"),
                value: physical(state, columns, &value)?,
            });
        }
        Ok(Self {
            condition,
            writer: Arc::new(RowWriter {
                schema: schema.clone(),
                assignments,
            }),
        })
    }
}

/// The position of a column that a user may set.
fn assignable(schema: &TableSchema, name: &str) -> Result<usize> {
    let column = schema
        .sql()
        .index_of(name)
        .map_err(|_| RolloutError::invalid(format!("UPDATE: there is no column '{name}'")))?;
    if column == schema.key_index() {
        return Err(RolloutError::Unsupported(format!(
            "UPDATE of '{name}', the key, is not supported: INSERT the row under its new key and \
             DELETE the old one"
        )));
    }
    if schema.stamp_index() == Some(column) {
        return Err(RolloutError::Unsupported(format!(
            "UPDATE of '{INGESTED_AT}' is not supported: the table stamps every row it writes"
        )));
    }
    Ok(column)
}

/// A NULL that is known beforehand is refused before anything runs.
fn refuse_null(field: &Field, value: &Expr) -> Result<()> {
    match value {
        Expr::Literal(value, _) if value.is_null() && !field.is_nullable() => {
            Err(RolloutError::invalid(format!(
                "UPDATE: column '{}' is NOT NULL and cannot be set to NULL",
                field.name()
            )))
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl Change for Update {
    fn verb(&self) -> &'static str {
        "UPDATE"
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set: Vec<_> = self
            .writer
            .assignments
            .iter()
            .map(|a| a.text.as_str())
            .collect();
        write!(f, "set=[{}], condition={}", set.join(", "), self.condition)
    }

    async fn prepare(&self, on: &On<'_>) -> Result<Option<Prepared>> {
        let table = on.store.table();
        let schema = &self.writer.schema;
        refuse_unknown_columns(schema, on)?;
        let rows = self.condition.rows(on).await?;
        let mut rows = Box::pin(rows.peekable());
        if rows.as_mut().peek().await.is_none() {
            return Ok(None);
        }
        let replaced = Arc::new(Mutex::new(Replaced::default()));
        let (writer, seen) = (self.writer.clone(), replaced.clone());
        let (stamped_by, stamp) = (table.clone(), on.stamp);
        let rewritten = rows.map(move |batch| {
            let rewritten = batch.and_then(|batch| {
                let mut seen = seen.lock();
                writer.rewrite(&batch, &stamped_by, stamp, &mut seen)
            });
            rewritten.map_err(|error| {
                // Lance makes one kind of whatever it is given: the error is kept aside.
                let text = DataFusionError::Execution(error.to_string());
                seen.lock().failed = Some(error);
                text
            })
        });
        let source = RecordBatchStreamAdapter::new(schema.stored().clone(), rewritten.boxed());
        let source = Box::pin(source) as SendableRecordBatchStream;
        let written = write_fragments(table, &on.base, source).await;
        let replaced = std::mem::take(&mut *replaced.lock());
        if let Some(error) = replaced.failed {
            return Err(error);
        }
        let new_fragments = written?;
        let (updated_fragments, removed_fragment_ids) =
            delete_losers(table, &on.base, &replaced.rows).await?;
        let key = on
            .base
            .schema()
            .field(schema.key_name())
            .map(|field| field.id);
        let key = key.ok_or_else(|| RolloutError::invalid("the base has no key column"))?;
        Ok(Some(Prepared {
            operation: Operation::Update {
                removed_fragment_ids,
                updated_fragments,
                new_fragments,
                fields_modified: Vec::new(),
                compacted_sstables: Vec::new(),
                fields_for_preserving_frag_bitmap: Vec::new(),
                update_mode: Some(UpdateMode::RewriteRows),
                inserted_rows_filter: Some(KeyExistenceFilter {
                    field_ids: vec![key],
                    filter: FilterType::ExactSet(replaced.keys),
                }),
                updated_fragment_offsets: None,
            },
            affected: affected(&replaced.rows),
            rows: row_count(&replaced.rows),
        }))
    }
}

/// Rows are written whole: a column this process does not know would be lost.
fn refuse_unknown_columns(schema: &TableSchema, on: &On<'_>) -> Result<()> {
    let unknown = on
        .base
        .schema()
        .fields
        .iter()
        .find(|field| schema.sql().index_of(&field.name).is_err());
    match unknown {
        Some(field) => Err(RolloutError::invalid(format!(
            "UPDATE: a column '{}' was added to the table while the statement was planned: run it \
             again",
            field.name
        ))),
        None => Ok(()),
    }
}

/// What the rows written so far replace.
#[derive(Debug, Default)]
struct Replaced {
    rows: RowSet,
    /// Hashes of their keys, for the commit.
    keys: HashSet<u64>,
    failed: Option<RolloutError>,
}

/// A column and its new value.
#[derive(Debug)]
struct Assignment {
    column: usize,
    text: String,
    value: Arc<dyn PhysicalExpr>,
}

/// Makes the new version of rows.
#[derive(Debug)]
struct RowWriter {
    schema: Arc<TableSchema>,
    assignments: Vec<Assignment>,
}

impl RowWriter {
    fn rewrite(
        &self,
        old: &RecordBatch,
        table: &LanceTable,
        stamp: i64,
        replaced: &mut Replaced,
    ) -> Result<RecordBatch> {
        collect(old, &mut replaced.rows)?;
        let keys = cast(old.column(self.schema.key_index()), &DataType::Utf8)?;
        let keys = keys.as_string::<i32>().iter().flatten();
        replaced
            .keys
            .extend(keys.map(|key| KeyValue::String(key.to_string()).hash_value()));
        let width = self.schema.sql().fields().len();
        let mut columns: Vec<ArrayRef> = old.columns()[..width].to_vec();
        for assignment in &self.assignments {
            let name = self.schema.sql().field(assignment.column).name();
            columns[assignment.column] = assignment
                .value
                .evaluate(old)
                .and_then(|value| value.into_array(old.num_rows()))
                .map_err(|error| {
                    RolloutError::invalid(format!("UPDATE: the value of column '{name}': {error}"))
                })?;
        }
        let fields: Vec<Field> = columns
            .iter()
            .zip(self.schema.sql().fields())
            .map(|(column, field)| Field::new(field.name(), column.data_type().clone(), true))
            .collect();
        let new = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?;
        let new = check_and_align(&self.schema, &Markers::new(), new)?;
        self.stamped(new, old, table, stamp)
    }

    /// The statement's stamp, or just above the replaced row's where that is not lower. Where the
    /// oldest version of an id counts the row keeps its stamp: with a later one, a version inserted
    /// again in the meantime would be older.
    fn stamped(
        &self,
        new: RecordBatch,
        old: &RecordBatch,
        table: &LanceTable,
        stamp: i64,
    ) -> Result<RecordBatch> {
        let Some(column) = self.schema.stamp_index() else {
            return Ok(new);
        };
        if self.schema.on_conflict() == OnConflict::Ignore {
            let mut columns = new.columns().to_vec();
            columns[column] = old.column(column).clone();
            return Ok(RecordBatch::try_new(new.schema(), columns)?);
        }
        let before = old
            .column(column)
            .as_primitive::<TimestampMicrosecondType>();
        let stamps: TimestampMicrosecondArray = (0..old.num_rows())
            .map(|row| match before.is_valid(row) {
                true => stamp.max(before.value(row).saturating_add(1)),
                false => stamp,
            })
            .map(Some)
            .collect();
        if let Some(highest) = arrow::compute::max(&stamps) {
            table.clock().observe(highest);
        }
        let mut columns = new.columns().to_vec();
        columns[column] = Arc::new(stamps);
        Ok(RecordBatch::try_new(new.schema(), columns)?)
    }
}
