//! What every batch passes on its way to a put: names, types, NOT NULL, the marker defaults, and
//! last, under the lane's hand, the stamps.

use std::sync::Arc;

use arrow::compute::{CastOptions, cast_with_options};
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, RecordBatch, RecordBatchOptions, StringArray, TimestampMicrosecondArray,
    new_null_array,
};
use arrow_schema::{DataType, Schema, SchemaRef};

use super::{Markers, TableSchema};
use crate::error::{Result, RolloutError};

/// Brings a batch to the stored schema: columns by position, types cast without loss, markers
/// replaced, NOT NULL checked.
///
/// # Errors
/// A value out of its type's range, a NULL in a NOT NULL column (named), or a batch of other
/// columns.
pub(crate) fn check_and_align(
    schema: &TableSchema,
    markers: &Markers,
    batch: RecordBatch,
) -> Result<RecordBatch> {
    let stored = schema.stored();
    let (_, mut columns, rows) = with_new_columns(stored, batch)?.into_parts();
    if columns.len() != stored.fields().len() {
        return Err(RolloutError::invalid(format!(
            "{} columns were given for the table's {}",
            columns.len(),
            stored.fields().len()
        )));
    }
    for (field, column) in stored.fields().iter().zip(&mut columns) {
        if column.data_type() != field.data_type() {
            *column = align(field.name(), column, field.data_type())?;
        }
    }
    replace_markers(schema, markers, &mut columns)?;
    for (i, field) in stored.fields().iter().enumerate() {
        // The stamp is the writer's: whatever is there is replaced before the put.
        let kept_by_writer = schema.stamp_index() == Some(i);
        if !field.is_nullable() && !kept_by_writer && columns[i].logical_null_count() > 0 {
            return Err(RolloutError::invalid(format!(
                "column '{}' is NOT NULL: a row has NULL there",
                field.name()
            )));
        }
    }
    if let Some(stamp) = schema.stamp_index() {
        columns[stamp] = Arc::new(TimestampMicrosecondArray::from_value(0, rows));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(
        stored.clone(),
        columns,
        &options,
    )?)
}

/// Whether some columns are a table's as they were before nullable ones were added at the end.
pub(crate) fn lacks_only_new_columns(table: &Schema, given: &Schema) -> bool {
    let (Some(missing), known) = (
        table.fields().get(given.fields().len()..),
        given.fields().iter().zip(table.fields()),
    ) else {
        return false;
    };
    !missing.is_empty()
        && missing.iter().all(|field| field.is_nullable())
        && known
            .into_iter()
            .all(|(given, field)| given.name() == field.name())
}

/// The batch with the columns that were added to the table since its rows were planned, all NULL.
pub(crate) fn with_new_columns(table: &SchemaRef, batch: RecordBatch) -> Result<RecordBatch> {
    if !lacks_only_new_columns(table, batch.schema_ref()) {
        return Ok(batch);
    }
    let (given, mut columns, rows) = batch.into_parts();
    let missing = &table.fields()[columns.len()..];
    let mut fields = given.fields().to_vec();
    fields.extend(missing.iter().cloned());
    columns.extend(
        missing
            .iter()
            .map(|field| new_null_array(field.data_type(), rows)),
    );
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let schema = Arc::new(Schema::new_with_metadata(fields, given.metadata().clone()));
    Ok(RecordBatch::try_new_with_options(
        schema, columns, &options,
    )?)
}

fn align(name: &str, column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    if column.data_type() == to {
        return Ok(column.clone());
    }
    let options = CastOptions {
        safe: false,
        ..Default::default()
    };
    cast_with_options(column, to, &options).map_err(|error| {
        RolloutError::invalid(format!(
            "column '{name}' takes {to}, got {}: {error}",
            column.data_type()
        ))
    })
}

/// Puts the row's own id, or its rollout_id, where a default said so.
fn replace_markers(
    schema: &TableSchema,
    markers: &Markers,
    columns: &mut [ArrayRef],
) -> Result<()> {
    for (marker, source) in [
        (&markers.same_as_id, "id"),
        (&markers.same_as_rollout_id, "rollout_id"),
    ] {
        let Ok(source) = schema.sql().index_of(source) else {
            continue;
        };
        for target in 0..columns.len() {
            if target == source || columns[target].data_type() != &DataType::Utf8 {
                continue;
            }
            let values = columns[target].as_string::<i32>();
            // A default fills a whole column of a statement, so its first row tells.
            if !values.iter().any(|value| value == Some(marker)) {
                continue;
            }
            let from = align("id", &columns[source], &DataType::Utf8)?;
            let from = from.as_string::<i32>();
            let replaced: StringArray = values
                .iter()
                .zip(from.iter())
                .map(|(value, own)| if value == Some(marker) { own } else { value })
                .collect();
            columns[target] = Arc::new(replaced);
        }
    }
    Ok(())
}

/// The batch with its stamp column counting up from `first`, in microseconds.
pub(crate) fn with_stamps(
    schema: &TableSchema,
    batch: RecordBatch,
    first: i64,
) -> Result<RecordBatch> {
    let Some(stamp) = schema.stamp_index() else {
        return Ok(batch);
    };
    let (columns_of, mut columns, rows) = batch.into_parts();
    let stamps = (0..rows as i64).map(|row| first + row);
    columns[stamp] = Arc::new(TimestampMicrosecondArray::from_iter_values(stamps));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(
        columns_of, columns, &options,
    )?)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow_array::{Int32Array, Int64Array};
    use arrow_schema::Field;

    use super::*;

    fn schema() -> TableSchema {
        let columns = Schema::new(vec![
            Field::new("id", DataType::Utf8, false),
            Field::new("rollout_id", DataType::Utf8, false),
            Field::new("mask", DataType::Int8, true),
        ]);
        TableSchema::declared(&columns, None, HashMap::new()).expect("usable")
    }

    fn batch(ids: Vec<Option<&str>>, rollouts: Vec<&str>, masks: Vec<i32>) -> RecordBatch {
        let rows = ids.len();
        RecordBatch::try_from_iter_with_nullable([
            ("id", Arc::new(StringArray::from(ids)) as ArrayRef, true),
            (
                "rollout_id",
                Arc::new(StringArray::from(rollouts)) as _,
                true,
            ),
            ("mask", Arc::new(Int32Array::from(masks)) as _, true),
            (
                "ingested_at",
                Arc::new(Int64Array::from(vec![7; rows])) as _,
                true,
            ),
        ])
        .expect("batch")
    }

    #[test]
    fn markers_become_the_rows_own_id() {
        let markers = Markers::new();
        let given = batch(
            vec![Some("a"), Some("b")],
            vec![&markers.same_as_id, "own"],
            vec![1, 2],
        );
        let aligned = check_and_align(&schema(), &markers, given).expect("aligns");
        let rollouts = aligned.column(1).as_string::<i32>();
        assert_eq!(rollouts.value(0), "a");
        assert_eq!(rollouts.value(1), "own");
    }

    #[test]
    fn null_keys_and_overflows_name_their_column() {
        let markers = Markers::new();
        let error = check_and_align(&schema(), &markers, batch(vec![None], vec!["r"], vec![1]))
            .expect_err("null key");
        assert!(error.to_string().contains("'id'"), "{error}");
        let error = check_and_align(
            &schema(),
            &markers,
            batch(vec![Some("a")], vec!["r"], vec![300]),
        )
        .expect_err("overflow");
        assert!(error.to_string().contains("'mask'"), "{error}");
    }

    #[test]
    fn columns_added_since_are_null_and_no_others_may_lack() {
        let ours = schema();
        let fields = |names: &[&str]| {
            let field = |name: &&str| Field::new(*name, DataType::Utf8, true);
            Schema::new(names.iter().map(field).collect::<Vec<_>>())
        };
        let table = fields(&["id", "ingested_at", "added"]);
        assert!(lacks_only_new_columns(
            &table,
            &fields(&["id", "ingested_at"])
        ));
        assert!(!lacks_only_new_columns(&table, &fields(&["id", "added"])));
        assert!(!lacks_only_new_columns(&table, &table));
        assert!(!lacks_only_new_columns(&fields(&["id"]), &table));
        // ingested_at is NOT NULL: a batch without it is no older one.
        let stored = ours.stored().as_ref();
        let short = stored.project(&[0, 1, 2]).expect("columns");
        assert!(!lacks_only_new_columns(stored, &short));

        let mut grown = stored.fields().to_vec();
        grown.push(Arc::new(Field::new("added", DataType::Int32, true)));
        let grown = TableSchema::declared(&Schema::new(grown), Some(0), HashMap::new());
        let markers = Markers::new();
        let old = batch(vec![Some("a")], vec!["r"], vec![1]);
        let aligned = check_and_align(&ours, &markers, old).expect("aligns");
        let grown = grown.expect("usable");
        let padded = with_new_columns(grown.stored(), aligned).expect("pads");
        let stamped = with_stamps(&grown, padded, 7).expect("stamps");
        assert_eq!(stamped.num_columns(), 5);
        assert_eq!(stamped.column(4).null_count(), 1);
    }

    #[test]
    fn stamps_count_up() {
        let markers = Markers::new();
        let given = batch(vec![Some("a"), Some("b")], vec!["r", "r"], vec![1, 2]);
        let aligned = check_and_align(&schema(), &markers, given).expect("aligns");
        let stamped = with_stamps(&schema(), aligned, 100).expect("stamps");
        let stamps = stamped
            .column(3)
            .as_primitive::<arrow::datatypes::TimestampMicrosecondType>();
        assert_eq!(stamps.values(), &[100, 101]);
    }
}
