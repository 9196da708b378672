//! Columns left out of an INSERT, filled by the sink.
//!
//! DataFusion plans an expression for every column of the table, also for those a statement does not
//! name, and planning is most of what a small INSERT costs. Defaults that need no planning are
//! left out of the plan and made here instead.

use std::sync::{Arc, LazyLock};

use arrow_array::{
    ArrayRef, RecordBatch, RecordBatchOptions, StringArray, TimestampMicrosecondArray,
};
use arrow_schema::SchemaRef;
use datafusion::logical_expr::Expr;
use datafusion::scalar::ScalarValue;

use super::column_cast::cast_column;
use super::defaults::{Kind, new_ids, rollout_defaults};
use super::{CREATED_AT, Markers, TableSchema};
use crate::error::{Result, RolloutError};

/// A default that needs no planning.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fill {
    /// The same value in every row, which the array has once.
    Constant(ArrayRef),
    /// When the statement ran.
    Now,
    /// A new id for every row.
    NewId,
    /// The row's own id, by its marker.
    SameAsId,
    /// The row's rollout_id, by its marker.
    SameAsRolloutId,
}

static NOW: LazyLock<Option<Expr>> = LazyLock::new(|| rollout_defaults().remove(CREATED_AT));

impl Fill {
    /// How a default is filled, if it is one that needs no planning.
    pub(crate) fn of(default: &Expr) -> Option<Self> {
        match default {
            Expr::Literal(value, _) => Some(Self::Constant(value.to_array().ok()?)),
            Expr::ScalarFunction(call) => Some(match Kind::of(call)? {
                Kind::Fresh => Self::NewId,
                Kind::OfId => Self::SameAsId,
                Kind::OfRollout => Self::SameAsRolloutId,
            }),
            other => (Some(other) == NOW.as_ref()).then_some(Self::Now),
        }
    }

    fn values(&self, rows: usize, now: i64) -> Result<ArrayRef> {
        Ok(match self {
            // Most statements have one row, and most columns are left out: nothing is made for them.
            Self::Constant(value) if rows == 1 => value.clone(),
            Self::Constant(value) => ScalarValue::try_from_array(value, 0)
                .and_then(|value| value.to_array_of_size(rows))
                .map_err(RolloutError::DataFusion)?,
            Self::Now => Arc::new(TimestampMicrosecondArray::from_value(now, rows)),
            Self::NewId => Arc::new(new_ids(rows)),
            Self::SameAsId => repeated(&Markers::new().same_as_id, rows),
            Self::SameAsRolloutId => repeated(&Markers::new().same_as_rollout_id, rows),
        })
    }
}

fn repeated(text: &str, rows: usize) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(std::iter::repeat_n(
        text, rows,
    )))
}

/// The rows of an INSERT that plans some of the table's columns only.
#[derive(Debug, PartialEq)]
pub(crate) struct Filler {
    schema: SchemaRef,
    key: usize,
    /// By column: where the statement's rows have it; none where it is filled.
    given: Vec<Option<usize>>,
    /// By column. Shared: most columns of most statements are filled.
    fills: Arc<[Option<Fill>]>,
}

impl Filler {
    /// `given` says where the statement's rows have each of the table's columns; `fills` those it leaves out.
    pub(crate) fn new(
        table: &TableSchema,
        given: Vec<Option<usize>>,
        fills: Arc<[Option<Fill>]>,
    ) -> Self {
        Self {
            // NULL is refused later, with the column's name, when markers have their values.
            schema: table.nullable().clone(),
            key: table.key_index(),
            given,
            fills,
        }
    }

    /// The names of the columns a statement gives.
    pub(crate) fn given(&self) -> impl Iterator<Item = &str> {
        let columns = self.schema.fields().iter().zip(&self.given);
        columns
            .filter(|(_, given)| given.is_some())
            .map(|(field, _)| field.name().as_str())
    }

    /// Which of the given columns is the table's key, if it is given.
    pub(crate) fn key_position(&self) -> Option<usize> {
        self.given[self.key]
    }

    /// The batch with all columns of the table, in order; `now` is the statement's time, in
    /// microseconds since the epoch. What is given has the columns' types, unless it took another
    /// when the types of a query were made to agree.
    ///
    /// # Errors
    /// A default that cannot be made, a value that does not fit its column.
    pub(crate) fn complete(&self, batch: &RecordBatch, now: i64) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let columns = self.given.iter().enumerate();
        let columns = columns.map(|(i, given)| {
            let field = self.schema.field(i);
            match (given, self.fills.get(i)) {
                (Some(position), _) => cast_column(batch.column(*position), field, i == self.key),
                (None, Some(Some(fill))) => fill.values(rows, now),
                (None, _) => Err(RolloutError::invalid(format!(
                    "column '{}' is neither given nor has it a default",
                    field.name()
                ))),
            }
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(
            self.schema.clone(),
            columns,
            &options,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::TimestampMicrosecondType;
    use arrow_schema::FieldRef;
    use datafusion::logical_expr::lit;

    use super::*;

    #[test]
    fn every_default_of_the_rollout_schema_needs_no_planning() {
        let defaults = rollout_defaults();
        for (column, default) in &defaults {
            assert!(Fill::of(default).is_some(), "{column}: {default}");
        }
        assert_eq!(Fill::of(&defaults[CREATED_AT]), Some(Fill::Now));
        assert_eq!(Fill::of(&(lit(1_i64) + lit(2_i64))), None);
    }

    #[test]
    fn what_is_left_out_is_filled() {
        let schema = TableSchema::rollouts();
        let table = schema.sql();
        let fill = |field: &FieldRef| match field.name().as_str() {
            "id" => Fill::NewId,
            "rollout_id" => Fill::SameAsId,
            CREATED_AT => Fill::Now,
            _ => {
                let null = ScalarValue::try_from(field.data_type()).expect("a NULL");
                Fill::Constant(null.to_array().expect("an array"))
            }
        };
        let fields = table.fields().iter();
        let fills = fields.clone().map(|field| Some(fill(field))).collect();
        let given = fields.map(|field| (field.name() == "reward").then_some(0));
        let filler = Filler::new(&schema, given.collect(), fills);
        assert_eq!(filler.given().collect::<Vec<_>>(), ["reward"]);
        let rewards = Arc::new(arrow_array::Float32Array::from(vec![0.5, 1.0])) as ArrayRef;
        let rows = RecordBatch::try_from_iter([("column1", rewards)]).expect("a batch");
        let complete = filler.complete(&rows, 7).expect("completes");
        assert_eq!(complete.num_columns(), table.fields().len());
        assert_eq!(complete["reward"].null_count(), 0);
        assert_eq!(complete["score"].null_count(), 2);
        let made = complete[CREATED_AT].as_primitive::<TimestampMicrosecondType>();
        assert_eq!(made.values(), &[7, 7]);
        let ids = complete["id"].as_string::<i32>();
        assert_ne!(ids.value(0), ids.value(1));
        assert_eq!(
            complete["rollout_id"].as_string::<i32>().value(1),
            Markers::new().same_as_id
        );
    }
}
