//! Which filters the storage layer evaluates: a pure decision.
//!
//! A filter is pushed down only as **exact**, and only where Lance evaluates it with the very kernels
//! DataFusion would use: comparisons, ranges, lists, LIKE and NULL tests of plain columns with
//! literals, joined by AND, OR and NOT. Everything else stays with DataFusion above the scan.

use arrow_schema::{DataType, Schema};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{
    BinaryExpr, Expr, Operator, TableProviderFilterPushDown, binary_expr,
};
use datafusion::scalar::ScalarValue;

/// Whether the scan takes a filter over.
pub(super) fn classify(filter: &Expr, schema: &Schema) -> TableProviderFilterPushDown {
    match for_storage(filter, schema) {
        Some(_) => TableProviderFilterPushDown::Exact,
        None => TableProviderFilterPushDown::Unsupported,
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

/// The filter as storage evaluates it, row for row as DataFusion would; none where it cannot.
///
/// It differs from what was asked where a column of single precision was widened to be compared
/// with a number of double precision: the number is narrowed instead, so that nothing is converted
/// per row.
pub(super) fn for_storage(expr: &Expr, schema: &Schema) -> Option<Expr> {
    let inner = |inner: &Expr| for_storage(inner, schema).map(Box::new);
    let column = |expr: &Expr| column_type(expr, schema).map(|_| Box::new(expr.clone()));
    Some(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
            Operator::And | Operator::Or => {
                Expr::BinaryExpr(BinaryExpr::new(inner(left)?, *op, inner(right)?))
            }
            _ => match (&**left, &**right) {
                (column, Expr::Literal(value, _)) => comparison(column, *op, value, schema)?,
                (Expr::Literal(value, _), column) => comparison(column, op.swap()?, value, schema)?,
                _ => return None,
            },
        },
        Expr::Not(negated) => Expr::Not(inner(negated)?),
        Expr::IsNull(tested) => Expr::IsNull(column(tested)?),
        Expr::IsNotNull(tested) => Expr::IsNotNull(column(tested)?),
        Expr::IsTrue(tested) => Expr::IsTrue(inner(tested)?),
        Expr::IsFalse(tested) => Expr::IsFalse(inner(tested)?),
        Expr::IsNotTrue(tested) => Expr::IsNotTrue(inner(tested)?),
        Expr::IsNotFalse(tested) => Expr::IsNotFalse(inner(tested)?),
        Expr::Column(_) if column_type(expr, schema) == Some(&DataType::Boolean) => expr.clone(),
        // What the optimizer folded after the filter was taken.
        Expr::Literal(ScalarValue::Boolean(_) | ScalarValue::Null, _) => expr.clone(),
        Expr::Between(between) => {
            let bound = |op, bound: &Expr| match bound {
                Expr::Literal(value, _) => comparison(&between.expr, op, value, schema),
                _ => None,
            };
            let within =
                bound(Operator::GtEq, &between.low)?.and(bound(Operator::LtEq, &between.high)?);
            match between.negated {
                true => Expr::Not(Box::new(within)),
                false => within,
            }
        }
        Expr::InList(list) => {
            let items = list.list.iter().map(|item| match item {
                Expr::Literal(value, _) => {
                    comparison(&list.expr, Operator::Eq, value, schema).and_then(right_side)
                }
                _ => None,
            });
            Expr::InList(InList {
                expr: Box::new(plain_column(&list.expr, schema)?.clone()),
                list: items.collect::<Option<_>>()?,
                negated: list.negated,
            })
        }
        Expr::Like(like) if is_text(column_type(&like.expr, schema)?) => match &*like.pattern {
            Expr::Literal(value, _)
                if Some(&value.data_type()) == column_type(&like.expr, schema) =>
            {
                expr.clone()
            }
            _ => return None,
        },
        _ => return None,
    })
}

/// A column compared with a literal.
fn comparison(column: &Expr, op: Operator, value: &ScalarValue, schema: &Schema) -> Option<Expr> {
    let narrow = plain_column(column, schema)?;
    let data_type = column_type(narrow, schema)?;
    let (op, value) = match (op, value) {
        (op, value) if &value.data_type() == data_type => (op, value.clone()),
        (op, ScalarValue::Float64(Some(value))) if data_type == &DataType::Float32 => {
            let (op, value) = narrowed(op, *value)?;
            (op, ScalarValue::Float32(Some(value)))
        }
        _ => return None,
    };
    let compares = match (op, data_type) {
        (Operator::Eq | Operator::NotEq, _) => true,
        (_, DataType::Dictionary(_, _)) => false,
        (Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq, _) => true,
        _ => false,
    };
    let exact = compares && zero_does_not_matter(op, &value);
    exact.then(|| binary_expr(narrow.clone(), op, Expr::Literal(value, None)))
}

fn right_side(comparison: Expr) -> Option<Expr> {
    match comparison {
        Expr::BinaryExpr(BinaryExpr { right, .. }) => Some(*right),
        _ => None,
    }
}

/// A column of a plain type, also under a cast that only widens it.
fn plain_column<'a>(expr: &'a Expr, schema: &Schema) -> Option<&'a Expr> {
    let column = match expr {
        Expr::Cast(cast)
            if cast.field.data_type() == &DataType::Float64
                && column_type(&cast.expr, schema) == Some(&DataType::Float32) =>
        {
            &cast.expr
        }
        other => other,
    };
    is_plain(column_type(column, schema)?).then_some(column)
}

/// What a comparison of a widened value with `value` says of the value itself.
fn narrowed(op: Operator, value: f64) -> Option<(Operator, f32)> {
    let near = value as f32;
    if value.is_nan() {
        return None;
    }
    if f64::from(near) == value {
        return Some((op, near));
    }
    // No value of single precision equals it: only those above or below it remain.
    match op {
        Operator::Gt | Operator::GtEq => {
            let above = f64::from(near) > value;
            Some((Operator::GtEq, if above { near } else { near.next_up() }))
        }
        Operator::Lt | Operator::LtEq => {
            let below = f64::from(near) < value;
            Some((Operator::LtEq, if below { near } else { near.next_down() }))
        }
        _ => None,
    }
}

/// Storage takes -0.0 for 0.0, DataFusion orders one before the other: only comparisons that put
/// both on one side are the same.
fn zero_does_not_matter(op: Operator, value: &ScalarValue) -> bool {
    let value = match value {
        ScalarValue::Float32(Some(value)) => f64::from(*value),
        ScalarValue::Float64(Some(value)) => *value,
        _ => return true,
    };
    match op {
        _ if value != 0.0 => true,
        Operator::Gt | Operator::LtEq => value.is_sign_positive(),
        Operator::Lt | Operator::GtEq => value.is_sign_negative(),
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

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8)
}

/// Types whose comparison needs no conversion on either side.
fn is_plain(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_text(values),
        _ => {
            is_text(data_type)
                || matches!(
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
                        | DataType::Date32
                        | DataType::Timestamp(_, None)
                )
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use datafusion::prelude::{col, lit};

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
        let role = |value: &str| {
            let value = ScalarValue::Dictionary(Box::new(DataType::Int8), Box::new(value.into()));
            Expr::Literal(value, None)
        };
        let cases = [
            (reward().gt(lit(0.5_f32)), true),
            (reward().gt(lit(0.0_f32)), true),
            (reward().lt_eq(lit(0.0_f32)), true),
            (reward().lt(lit(0.0_f32)), false),
            (reward().gt_eq(lit(0.0_f32)), false),
            (reward().eq(lit(0.0_f32)), false),
            (reward().gt(lit(-0.0_f32)), false),
            (reward().gt_eq(lit(-0.0_f32)), true),
            (lit(0.0_f32).lt(reward()), true),
            (lit(0.0_f32).gt(reward()), false),
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
            (Expr::Literal(ScalarValue::Boolean(None), None), true),
            (col("policy_step").eq(lit(1_i64)).and(lit(false)), true),
            (Expr::Not(Box::new(col("include_in_training"))), true),
            (col("role").eq(lit("assistant")), false),
            (col("role").eq(role("assistant")), true),
            (col("role").gt(role("assistant")), false),
            (
                col("role").in_list(vec![role("user"), role("tool")], true),
                true,
            ),
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

    #[test]
    fn a_widened_column_is_compared_in_its_own_precision() {
        let schema = TableSchema::rollouts().sql().clone();
        let values = [
            f32::NEG_INFINITY,
            f32::MIN,
            -0.1,
            -f32::from_bits(1),
            -0.0,
            0.0,
            f32::from_bits(1),
            0.1_f32.next_down(),
            0.1,
            0.1_f32.next_up(),
            0.5,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
        ];
        let literals = [
            0.1,
            0.5,
            -0.1,
            0.0,
            -0.0,
            1e-50,
            -1e-50,
            1e300,
            -1e300,
            f64::INFINITY,
        ];
        let operators = [
            (Operator::Gt, Ordering::is_gt as fn(Ordering) -> bool),
            (Operator::GtEq, Ordering::is_ge),
            (Operator::Lt, Ordering::is_lt),
            (Operator::LtEq, Ordering::is_le),
            (Operator::Eq, Ordering::is_eq),
            (Operator::NotEq, Ordering::is_ne),
        ];
        let holds = |op: Operator, order: Ordering| {
            let found = operators.iter().find(|(known, _)| *known == op);
            found.expect("a comparison").1(order)
        };
        let mut taken = 0;
        for (op, _) in operators {
            for literal in literals {
                let widened = datafusion::prelude::cast(col("reward"), DataType::Float64);
                let asked = binary_expr(widened, op, lit(literal));
                let Some(Expr::BinaryExpr(stored)) = for_storage(&asked, &schema) else {
                    continue;
                };
                let Expr::Literal(ScalarValue::Float32(Some(narrow)), _) = *stored.right else {
                    panic!("{asked} became a comparison with {}", stored.right);
                };
                taken += 1;
                for value in values {
                    let want = holds(op, f64::from(value).total_cmp(&literal));
                    assert_eq!(
                        holds(stored.op, value.total_cmp(&narrow)),
                        want,
                        "{value} {asked}"
                    );
                    // Storage does not tell the zeros apart.
                    let plain = |zero: f32| if zero == 0.0 { 0.0 } else { zero };
                    let stored = holds(stored.op, plain(value).total_cmp(&plain(narrow)));
                    assert_eq!(stored, want, "{value} {asked}");
                }
            }
        }
        assert!(taken > 30, "{taken}");
    }
}
