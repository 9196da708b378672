//! How large the rows of a batch are, and what of them fits one put.

use arrow_array::cast::AsArray;
use arrow_array::{Array, GenericListArray, OffsetSizeTrait, RecordBatch};
use arrow_schema::DataType;
use lance_arrow::deepcopy::deep_copy_batch_sliced;

use crate::error::Result;

/// Most rows of one put: Lance refuses a larger write.
pub(super) const MAX_PUT_ROWS: usize = 100_000;
/// Most bytes of one put, but for a single row that has more.
pub(super) const MAX_PUT_BYTES: usize = 32 << 20;

/// Batches that hold on to less are not measured closer: looking into every column takes a good part of
/// the time of a small statement.
const MEASURED_FROM: usize = 64 << 10;

/// The bytes of a batch's own rows, without what its buffers hold of others; of a small batch with that.
pub(super) fn row_bytes(batch: &RecordBatch) -> usize {
    let held = batch.get_array_memory_size();
    if held < MEASURED_FROM {
        return held;
    }
    let columns = batch.columns().iter();
    columns.map(|column| array_bytes(column)).sum()
}

/// Arrow's own figure takes all the items that a slice's list holds on to for those of its rows.
fn array_bytes(array: &dyn Array) -> usize {
    let nulls = array.nulls().map_or(0, |_| array.len().div_ceil(8));
    match array.data_type() {
        DataType::List(_) => nulls + list_bytes(array.as_list::<i32>()),
        DataType::LargeList(_) => nulls + list_bytes(array.as_list::<i64>()),
        DataType::Struct(_) => {
            let columns = array.as_struct().columns().iter();
            nulls + columns.map(|column| array_bytes(column)).sum::<usize>()
        }
        _ => array.to_data().get_slice_memory_size().unwrap_or(0),
    }
}

fn list_bytes<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> usize {
    let offsets = list.offsets();
    let (first, end) = (offsets[0].as_usize(), offsets[list.len()].as_usize());
    size_of_val(&offsets[..]) + array_bytes(&list.values().slice(first, end - first))
}

/// The rows from one on, at most `most` of them and as many as fit a put, at least one; and their bytes.
pub(super) fn part(batch: &RecordBatch, from: usize, most: usize) -> (RecordBatch, usize) {
    let rest = rows_of(batch, from, most.min(batch.num_rows() - from));
    let bytes = row_bytes(&rest);
    if bytes <= MAX_PUT_BYTES {
        return (rest, bytes);
    }
    let (mut fit, mut too_many) = (1, rest.num_rows());
    while too_many - fit > 1 {
        let middle = fit.midpoint(too_many);
        match row_bytes(&rows_of(&rest, 0, middle)) <= MAX_PUT_BYTES {
            true => fit = middle,
            false => too_many = middle,
        }
    }
    let part = rows_of(&rest, 0, fit);
    let bytes = row_bytes(&part);
    (part, bytes)
}

/// Some rows of a batch. Of all of them nothing is made anew: slicing every column takes time.
fn rows_of(batch: &RecordBatch, from: usize, rows: usize) -> RecordBatch {
    match rows == batch.num_rows() {
        true => batch.clone(),
        false => batch.slice(from, rows),
    }
}

/// The batch, copied if it holds on to far more than its rows, of which there are `bytes`: it stays in memory
/// until it is flushed, and a memtable takes all the items its lists hold on to for those of its rows.
pub(super) fn without_others(batch: RecordBatch, bytes: usize) -> Result<RecordBatch> {
    let held = batch.get_array_memory_size();
    match held > 2 * bytes {
        true => Ok(deep_copy_batch_sliced(&batch)?),
        false => Ok(batch),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{ArrayRef, ListArray, StringArray, StructArray};
    use arrow_schema::Field;

    use super::*;

    fn batch(column: impl Array + 'static) -> RecordBatch {
        let column: ArrayRef = Arc::new(column);
        RecordBatch::try_from_iter([("column", column)]).expect("a batch")
    }

    /// A thousand items each.
    fn lists(rows: usize) -> ListArray {
        let list = || Some((0..1000).map(Some).collect::<Vec<_>>());
        ListArray::from_iter_primitive::<Int32Type, _, _>((0..rows).map(|_| list()))
    }

    fn texts(rows: usize, length: usize) -> StringArray {
        StringArray::from_iter_values((0..rows).map(|_| "x".repeat(length)))
    }

    #[test]
    fn rows_are_counted_without_what_their_buffers_share() {
        let list = lists(100);
        let field = Arc::new(Field::new("list", list.data_type().clone(), true));
        let structs = StructArray::from(vec![(field, Arc::new(list.clone()) as ArrayRef)]);
        for (name, all, row) in [
            ("texts", batch(texts(100, 4000)), 4000),
            ("lists", batch(list), 4000),
            ("lists in structs", batch(structs), 4000),
        ] {
            let tenth = row_bytes(&all.slice(50, 10));
            assert!((10 * row..11 * row).contains(&tenth), "{name}: {tenth}");
        }
        assert!(row_bytes(&batch(texts(1, 1))) < 1000);
    }

    #[test]
    fn a_batch_is_parted_by_rows_and_by_bytes() {
        let mib = 1 << 20;
        for (all, from, most, want) in [
            (batch(texts(10, 1)), 0, 20, 10),
            (batch(texts(10, 1)), 2, 5, 5),
            (batch(texts(70, mib)), 0, 70, 31),
            (batch(texts(70, mib)), 62, 70, 8),
            (batch(texts(2, 40 * mib)), 1, 1, 1),
            (batch(texts(2, 40 * mib)), 0, 2, 1),
        ] {
            let (part, bytes) = part(&all, from, most);
            assert_eq!(part, all.slice(from, want));
            assert_eq!(bytes, row_bytes(&part));
        }
    }

    #[test]
    fn what_is_kept_is_no_more_than_its_rows() {
        let all = batch(lists(100));
        let one = all.slice(7, 1);
        let bytes = row_bytes(&one);
        let copied = without_others(one.clone(), bytes).expect("copies");
        assert_eq!(copied, one);
        assert!(copied.get_array_memory_size() < 10_000);
        let whole = without_others(all.clone(), row_bytes(&all)).expect("keeps");
        let items =
            |batch: &RecordBatch| batch.column(0).to_data().child_data()[0].buffers()[0].as_ptr();
        assert_eq!(items(&whole), items(&all));
    }
}
