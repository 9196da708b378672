//! Which filters the storage layer evaluates: a pure decision.
//!
//! A filter is pushed down only as **exact**, and only where Lance evaluates it with the very kernels
//! DataFusion would use: comparisons, ranges, lists, LIKE and NULL tests of plain columns with
//! literals, joined by AND, OR and NOT. Everything else stays with DataFusion above the scan.

use arrow_schema::{DataType, Schema};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown};
use datafusion::scalar::ScalarValue;

/// Whether the scan takes a filter over.
pub(super) fn classify(filter: &Expr, schema: &Schema) -> TableProviderFilterPushDown {
    if is_exact(filter, schema) {
        TableProviderFilterPushDown::Exact
    } else {
        TableProviderFilterPushDown::Unsupported
    }
}

/// The ids a query can only be about: those of `key = …` or `key IN (…)` among its conjuncts.
pub(super) fn ids_asked_for(filters: &[Expr], key: &str) -> Option<Vec<ScalarValue>> {
    let is_key = |expr: &Expr| matches!(expr, Expr::Column(column) if column.name == key);
    let value = |expr: &Expr| match expr {
        Expr::Literal(value, _) => Some(value.clone()),
        _ => None,
    };
    filters
        .iter()
        .flat_map(datafusion::logical_expr::utils::split_conjunction)
        .find_map(|filter| match filter {
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: Operator::Eq,
                right,
            }) if is_key(left) => value(right).map(|id| vec![id]),
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: Operator::Eq,
                right,
            }) if is_key(right) => value(left).map(|id| vec![id]),
            Expr::InList(list) if is_key(&list.expr) && !list.negated => {
                list.list.iter().map(value).collect()
            }
            _ => None,
        })
}

fn is_exact(expr: &Expr, schema: &Schema) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
            Operator::And | Operator::Or => is_exact(left, schema) && is_exact(right, schema),
            Operator::Eq
            | Operator::NotEq
            | Operator::Lt
            | Operator::LtEq
            | Operator::Gt
            | Operator::GtEq => {
                is_column_with_literal(left, right, schema)
                    || is_column_with_literal(right, left, schema)
            }
            _ => false,
        },
        Expr::Not(inner) => is_exact(inner, schema),
        Expr::IsNull(inner) | Expr::IsNotNull(inner) => column_type(inner, schema).is_some(),
        Expr::IsTrue(inner)
        | Expr::IsFalse(inner)
        | Expr::IsNotTrue(inner)
        | Expr::IsNotFalse(inner) => is_exact(inner, schema),
        Expr::Column(_) => column_type(expr, schema) == Some(&DataType::Boolean),
        Expr::Between(between) => {
            is_column_with_literal(&between.expr, &between.low, schema)
                && is_column_with_literal(&between.expr, &between.high, schema)
        }
        Expr::InList(list) => list
            .list
            .iter()
            .all(|item| is_column_with_literal(&list.expr, item, schema)),
        Expr::Like(like) => {
            matches!(
                column_type(&like.expr, schema),
                Some(DataType::Utf8 | DataType::LargeUtf8)
            ) && is_column_with_literal(&like.expr, &like.pattern, schema)
        }
        _ => false,
    }
}

/// A plain column compared with a literal of the same type, or NULL.
fn is_column_with_literal(column: &Expr, literal: &Expr, schema: &Schema) -> bool {
    let (Some(column), Expr::Literal(value, _)) = (column_type(column, schema), literal) else {
        return false;
    };
    is_plain(column) && &value.data_type() == column && !is_float_zero(value)
}

/// Storage takes -0.0 for 0.0, DataFusion orders one before the other.
fn is_float_zero(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::Float32(Some(value)) => *value == 0.0,
        ScalarValue::Float64(Some(value)) => *value == 0.0,
        _ => false,
    }
}

fn column_type<'a>(expr: &Expr, schema: &'a Schema) -> Option<&'a DataType> {
    match expr {
        Expr::Column(column) => schema
            .field_with_name(&column.name)
            .ok()
            .map(|field| field.data_type()),
        _ => None,
    }
}

/// Types whose comparison needs no conversion on either side.
fn is_plain(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::UInt8
            | DataType::UInt16
            | DataType::UInt32
            | DataType::UInt64
            | DataType::Float32
            | DataType::Float64
            | DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Date32
            | DataType::Timestamp(_, None)
    )
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{col, lit};
    use datafusion::scalar::ScalarValue;

    use super::*;
    use crate::schema::TableSchema;

    #[test]
    fn ids_are_found_among_the_conjuncts() {
        let id = || col("id");
        let some = |ids: &[&str]| {
            Some(
                ids.iter()
                    .map(|id| ScalarValue::from(*id))
                    .collect::<Vec<_>>(),
            )
        };
        for (filters, want) in [
            (vec![id().eq(lit("a"))], some(&["a"])),
            (vec![lit("a").eq(id())], some(&["a"])),
            (
                vec![col("reward").gt(lit(1.0_f32)).and(id().eq(lit("a")))],
                some(&["a"]),
            ),
            (
                vec![id().in_list(vec![lit("a"), lit("b")], false)],
                some(&["a", "b"]),
            ),
            (vec![id().in_list(vec![lit("a")], true)], None),
            (vec![id().eq(lit("a")).or(id().eq(lit("b")))], None),
            (vec![id().eq(col("rollout_id"))], None),
            (vec![], None),
        ] {
            assert_eq!(ids_asked_for(&filters, "id"), want, "{filters:?}");
        }
    }

    #[test]
    fn only_what_storage_evaluates_exactly_is_taken() {
        let schema = TableSchema::rollouts().sql().clone();
        let reward = || col("reward");
        let cases = [
            (reward().gt(lit(0.5_f32)), true),
            (reward().gt(lit(0.5_f64)), false),
            (reward().gt(lit(0.0_f32)), false),
            (reward().gt(lit(-0.0_f32)), false),
            (lit(0.5_f32).lt(reward()), true),
            (
                reward().eq(Expr::Literal(ScalarValue::Float32(None), None)),
                true,
            ),
            (reward().is_null().or(reward().eq(lit(1.0_f32))), true),
            (reward().eq(col("score")), false),
            ((reward() + lit(1.0_f32)).gt(lit(2.0_f32)), false),
            (col("id").in_list(vec![lit("a"), lit("b")], true), true),
            (
                col("id").in_list(vec![lit("a"), col("rollout_id")], false),
                false,
            ),
            (
                col("content").like(Expr::Literal(
                    ScalarValue::LargeUtf8(Some("a%".into())),
                    None,
                )),
                true,
            ),
            (col("include_in_training"), true),
            (Expr::Not(Box::new(col("include_in_training"))), true),
            (col("role").eq(lit("assistant")), false),
            (col("output_tokens").is_null(), true),
            (col("policy_step").between(lit(1_i64), lit(2_i64)), true),
        ];
        for (expr, exact) in cases {
            let want = if exact {
                TableProviderFilterPushDown::Exact
            } else {
                TableProviderFilterPushDown::Unsupported
            };
            assert_eq!(classify(&expr, &schema), want, "{expr}");
        }
    }
}
