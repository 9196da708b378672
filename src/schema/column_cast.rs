//! The cast of a value into a column: DataFusion's own, but an error names the column, and a key keeps
//! its value.

use std::sync::Arc;

use arrow::compute::kernels::cmp::distinct;
use arrow::compute::{CastOptions, cast_with_options};
use arrow_array::ArrayRef;
use arrow_schema::{DataType, Field, FieldRef};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use crate::error::{Result, RolloutError};

/// The name of the cast in plans.
const NAME: &str = "cast_into_column";

/// `value` cast into `column`. Where `exact`, a value that would become another is refused: 1.7 as an
/// integer key is not 1.
///
/// # Errors
/// A literal that does not fit the column.
pub(crate) fn cast_into(value: Expr, column: &Field, exact: bool) -> Result<Expr> {
    let cast = ColumnCast::new(column, exact);
    if let Expr::Literal(value, metadata) = &value
        && let ColumnarValue::Scalar(value) = cast.cast(&ColumnarValue::Scalar(value.clone()))?
    {
        return Ok(Expr::Literal(value, metadata.clone()));
    }
    Ok(ScalarUDF::from(cast).call(vec![value]))
}

/// The same for values at hand; those of the column's type are returned as they are.
///
/// # Errors
/// A value that does not fit the column.
pub(crate) fn cast_column(values: &ArrayRef, column: &Field, exact: bool) -> Result<ArrayRef> {
    if values.data_type() == column.data_type() {
        return Ok(values.clone());
    }
    let cast = ColumnCast::new(column, exact).cast(&ColumnarValue::Array(values.clone()))?;
    Ok(cast.into_array(values.len())?)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ColumnCast {
    column: String,
    to: DataType,
    exact: bool,
    signature: Signature,
}

impl ColumnCast {
    fn new(column: &Field, exact: bool) -> Self {
        Self {
            column: column.name().clone(),
            to: column.data_type().clone(),
            exact,
            signature: Signature::any(1, Volatility::Immutable),
        }
    }

    fn cast(&self, value: &ColumnarValue) -> Result<ColumnarValue> {
        let cast = value.cast_to(&self.to, None).map_err(|error| {
            RolloutError::invalid(format!(
                "column '{}' takes {}, not every value given: {}",
                self.column,
                self.to,
                error.strip_backtrace()
            ))
        })?;
        let from = value.data_type();
        let compared = self.exact && from != self.to && from.is_numeric() && self.to.is_numeric();
        if compared && changed(value, &cast)? {
            return Err(RolloutError::invalid(format!(
                "column '{}' is the key and takes {}: a value of type {from} would become another key. \
                 Give keys that need no rounding",
                self.column, self.to
            )));
        }
        Ok(cast)
    }
}

/// Whether some value is not the same when it is cast back.
fn changed(value: &ColumnarValue, cast: &ColumnarValue) -> Result<bool> {
    let rows = match value {
        ColumnarValue::Array(values) => values.len(),
        ColumnarValue::Scalar(_) => 1,
    };
    let (value, cast) = (value.to_array(rows)?, cast.to_array(rows)?);
    let back = cast_with_options(&cast, value.data_type(), &CastOptions::default())?;
    Ok(distinct(&value, &back)?.true_count() > 0)
}

impl ScalarUDFImpl for ColumnCast {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(self.to.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DataFusionResult<FieldRef> {
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(NAME, self.to.clone(), nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let [value] = args.args.as_slice() else {
            return Err(RolloutError::invalid(format!("{NAME} takes one value")).into());
        };
        Ok(self.cast(value)?)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::scalar::ScalarValue;

    use super::*;

    fn cast(value: ScalarValue, to: DataType, exact: bool) -> Result<ScalarValue> {
        let cast = ColumnCast::new(&Field::new("a_column", to, true), exact);
        match cast.cast(&ColumnarValue::Scalar(value))? {
            ColumnarValue::Scalar(value) => Ok(value),
            ColumnarValue::Array(values) => panic!("{values:?}"),
        }
    }

    #[test]
    fn errors_name_the_column() {
        let overflow = cast(ScalarValue::from(300_i64), DataType::Int8, false);
        let overflow = overflow.expect_err("out of range").to_string();
        assert!(overflow.contains("'a_column' takes Int8"), "{overflow}");
        assert!(overflow.contains("300"), "{overflow}");
    }

    #[test]
    fn keys_are_never_rounded() {
        let float = |value: f64| ScalarValue::from(value);
        for (value, exact, want) in [
            (float(1.7), false, Some(1)),
            (float(1.7), true, None),
            (float(2.0), true, Some(2)),
            (ScalarValue::from("7"), true, Some(7)),
            (ScalarValue::Float64(None), true, None),
        ] {
            let is_null = value.is_null();
            let cast = cast(value.clone(), DataType::Int64, exact);
            match want {
                Some(want) => assert_eq!(cast.expect("casts"), ScalarValue::from(want as i64)),
                None if is_null => assert!(cast.expect("casts").is_null()),
                None => {
                    let error = cast.expect_err("rounds").to_string();
                    assert!(error.contains("'a_column' is the key"), "{value}: {error}");
                }
            }
        }
    }
}
