//! Dictionary columns: how many values a file may hold.
//!
//! Lance joins the dictionaries of the batches of a file. With more values than the key type can
//! number the file is written, and cannot be read. So what goes into one file is bounded: the unflushed
//! rows of a process at the insert, the generations of one file at the merge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::compute::cast;
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Schema, SchemaRef};

use crate::error::{Result, RolloutError};

/// How many values a dictionary column's key type can number; none for other columns, and for
/// dictionaries that are never full in practice.
fn capacity(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Dictionary(key, _) => match key.as_ref() {
            DataType::Int8 => Some(i8::MAX as usize),
            DataType::UInt8 => Some(u8::MAX as usize),
            DataType::Int16 => Some(i16::MAX as usize),
            DataType::UInt16 => Some(u16::MAX as usize),
            _ => None,
        },
        _ => None,
    }
}

/// The small dictionary columns of a schema.
///
/// # Errors
/// None in practice: the columns are the schema's own.
pub(crate) fn small_dictionary_columns(schema: &Schema) -> Result<SchemaRef> {
    let small: Vec<usize> = (0..schema.fields().len())
        .filter(|i| capacity(schema.field(*i).data_type()).is_some())
        .collect();
    Ok(Arc::new(schema.project(&small)?))
}

/// The values of the small dictionary columns of some rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct DictionaryValues {
    columns: BTreeMap<String, (usize, BTreeSet<String>)>,
}

impl DictionaryValues {
    /// The values of a batch.
    ///
    /// # Errors
    /// Values that are not text.
    pub(crate) fn of(batch: &RecordBatch) -> Result<Self> {
        let mut values = Self::default();
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
            let Some(capacity) = capacity(field.data_type()) else {
                continue;
            };
            let Some(dictionary) = column.as_any_dictionary_opt() else {
                continue;
            };
            let texts = cast(dictionary.values(), &DataType::Utf8)?;
            let texts = texts.as_string::<i32>();
            let keys = dictionary.normalized_keys();
            let used = (0..column.len())
                .filter(|row| dictionary.keys().is_valid(*row))
                .map(|row| keys[row])
                .collect::<BTreeSet<_>>();
            let used = used
                .into_iter()
                .filter(|key| texts.is_valid(*key))
                .map(|key| texts.value(key).to_string());
            values
                .columns
                .insert(field.name().clone(), (capacity, used.collect()));
        }
        Ok(values)
    }

    /// Whether these are all known: most statements bring nothing new.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        other.columns.iter().all(|(column, (_, values))| {
            let known = self.columns.get(column);
            known.is_some_and(|(_, known)| values.is_subset(known))
        })
    }

    /// Both together, if every column still fits its key type.
    ///
    /// # Errors
    /// The column that is too full, and how full.
    pub(crate) fn joined(&self, other: &Self) -> Result<Self> {
        let mut joined = self.clone();
        for (column, (capacity, values)) in &other.columns {
            let (_, known) = joined
                .columns
                .entry(column.clone())
                .or_insert_with(|| (*capacity, BTreeSet::new()));
            known.extend(values.iter().cloned());
            if known.len() > *capacity {
                return Err(RolloutError::invalid(format!(
                    "column '{column}' takes at most {capacity} different values in one put, these \
                     rows have {}: it is meant for a few kinds, use a text column for names",
                    known.len()
                )));
            }
        }
        Ok(joined)
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int8Type;
    use arrow_array::{ArrayRef, DictionaryArray};

    use super::*;

    fn roles(names: impl Iterator<Item = String>) -> RecordBatch {
        let names: Vec<_> = names.collect();
        let column: DictionaryArray<Int8Type> = names.iter().map(|name| name.as_str()).collect();
        RecordBatch::try_from_iter([("role", Arc::new(column) as ArrayRef)]).expect("batch")
    }

    #[test]
    fn values_are_counted_over_batches() {
        let some = |prefix: &str, n: usize| {
            let prefix = prefix.to_string();
            DictionaryValues::of(&roles((0..n).map(move |i| format!("{prefix}{i}"))))
                .expect("texts")
        };
        let joined = some("a", 100).joined(&some("a", 120)).expect("fits");
        assert!(joined.joined(&some("b", 7)).is_ok());
        let error = joined.joined(&some("b", 8)).expect_err("too many");
        assert!(error.to_string().contains("'role'"), "{error}");
    }
}
