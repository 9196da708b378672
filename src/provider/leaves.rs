//! Which leaves of its structs a projection takes: a pure decision.
//!
//! `SELECT s.x` needs one leaf of `s`. The scan's columns are narrowed to what is taken by name, so
//! that the rest is never read; a struct that is used as a whole stays whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::scalar::ScalarValue;

/// What is taken of a column or of a struct's field.
#[derive(Debug)]
enum Taken {
    Whole,
    Parts(BTreeMap<String, Taken>),
}

impl Taken {
    fn add(&mut self, path: &[String]) {
        match (self, path) {
            (Self::Whole, _) => {}
            (taken, []) => *taken = Self::Whole,
            (Self::Parts(parts), [first, rest @ ..]) => parts
                .entry(first.clone())
                .or_insert_with(|| Self::Parts(BTreeMap::new()))
                .add(rest),
        }
    }
}

/// The columns with their structs narrowed to what the expressions take of them; none where there
/// is nothing to leave out.
pub(super) fn narrowed<'a>(
    columns: &SchemaRef,
    exprs: impl Iterator<Item = &'a Arc<dyn PhysicalExpr>>,
) -> Option<SchemaRef> {
    let mut taken: BTreeMap<usize, Taken> = BTreeMap::new();
    for expr in exprs {
        collect(expr, &mut taken);
    }
    let fields: Vec<FieldRef> = columns
        .fields()
        .iter()
        .enumerate()
        .map(|(i, field)| match taken.get(&i) {
            Some(taken) => narrow(field, taken),
            None => field.clone(),
        })
        .collect();
    let narrowed = Schema::new_with_metadata(fields, columns.metadata().clone());
    (&narrowed != columns.as_ref()).then(|| Arc::new(narrowed))
}

/// The columns' names, for display; of a narrowed struct the leaves that are left.
pub(super) fn names(columns: &Schema, whole: &Schema) -> Vec<String> {
    let mut names = Vec::new();
    for column in columns.fields() {
        match whole.field_with_name(column.name()) {
            Ok(whole) if whole.data_type() != column.data_type() => {
                push_leaves(column.name(), column.data_type(), &mut names);
            }
            _ => names.push(column.name().clone()),
        }
    }
    names
}

fn push_leaves(path: &str, data_type: &DataType, names: &mut Vec<String>) {
    match data_type {
        DataType::Struct(children) => {
            for child in children {
                push_leaves(
                    &format!("{path}.{}", child.name()),
                    child.data_type(),
                    names,
                );
            }
        }
        _ => names.push(path.to_string()),
    }
}

fn collect(expr: &Arc<dyn PhysicalExpr>, taken: &mut BTreeMap<usize, Taken>) {
    if let Some((column, path)) = path_of(expr) {
        taken
            .entry(column)
            .or_insert_with(|| Taken::Parts(BTreeMap::new()))
            .add(&path);
        return;
    }
    for child in expr.children() {
        collect(child, taken);
    }
}

/// The column, and the way to a field in it, that an expression stands for.
fn path_of(expr: &Arc<dyn PhysicalExpr>) -> Option<(usize, Vec<String>)> {
    if let Some(column) = expr.downcast_ref::<Column>() {
        return Some((column.index(), Vec::new()));
    }
    let function = expr.downcast_ref::<ScalarFunctionExpr>()?;
    if function.fun().name() != "get_field" {
        return None;
    }
    let [of, names @ ..] = function.args() else {
        return None;
    };
    let (column, mut path) = path_of(of)?;
    for name in names {
        match name.downcast_ref::<Literal>()?.value() {
            ScalarValue::Utf8(Some(name))
            | ScalarValue::Utf8View(Some(name))
            | ScalarValue::LargeUtf8(Some(name)) => path.push(name.clone()),
            _ => return None,
        }
    }
    Some((column, path))
}

/// Fields of anything but a struct (a map's values, say) are not fields of the column.
fn narrow(field: &FieldRef, taken: &Taken) -> FieldRef {
    let (Taken::Parts(parts), DataType::Struct(children)) = (taken, field.data_type()) else {
        return field.clone();
    };
    if !parts
        .keys()
        .all(|part| children.iter().any(|child| child.name() == part))
    {
        return field.clone();
    }
    let kept = children
        .iter()
        .filter_map(|child| Some(narrow(child, parts.get(child.name())?)))
        .collect();
    let narrow: Field = field.as_ref().clone();
    Arc::new(narrow.with_data_type(DataType::Struct(kept)))
}

#[cfg(test)]
mod tests {
    use datafusion::functions::core::get_field;
    use datafusion::logical_expr::{Expr, ScalarUDF};
    use datafusion::physical_expr::create_physical_expr;
    use datafusion::physical_expr::execution_props::ExecutionProps;
    use datafusion::prelude::{col, lit};

    use super::*;

    fn of(names: &[(&str, DataType)]) -> DataType {
        let fields = names.iter().map(|(n, t)| Field::new(*n, t.clone(), true));
        DataType::Struct(fields.collect())
    }

    fn take(path: &[&str]) -> Expr {
        let (column, rest) = path.split_first().expect("a column");
        rest.iter().fold(col(*column), |of, name| {
            let function: &Arc<ScalarUDF> = &get_field();
            function.call(vec![of, lit(*name)])
        })
    }

    #[test]
    fn only_what_is_taken_by_name_is_kept() {
        let inner = of(&[("p", DataType::Int32), ("q", DataType::Utf8)]);
        let outer = of(&[("x", DataType::Int64), ("y", inner)]);
        let schema = Arc::new(Schema::new(vec![
            Field::new("id", DataType::Utf8, false),
            Field::new("s", outer.clone(), true),
        ]));
        let x = of(&[("x", DataType::Int64)]);
        let q = of(&[("y", of(&[("q", DataType::Utf8)]))]);
        let cases = [
            (vec![take(&["s", "x"])], Some(x)),
            (vec![take(&["s", "y", "q"]), col("id")], Some(q)),
            (vec![take(&["s", "x"]), col("s")], None),
            (vec![take(&["s", "x"]), take(&["s", "y"])], None),
            (vec![take(&["s", "x"]).is_null(), take(&["s", "y"])], None),
            (vec![col("s").is_null()], None),
            (vec![col("id")], None),
        ];
        let known =
            datafusion::common::DFSchema::try_from(schema.as_ref().clone()).expect("schema");
        for (exprs, want) in cases {
            let physical: Vec<_> = exprs
                .iter()
                .map(|e| create_physical_expr(e, &known, &ExecutionProps::new()).expect("plans"))
                .collect();
            let got = narrowed(&schema, physical.iter());
            let got = got.map(|schema| schema.field(1).data_type().clone());
            assert_eq!(got, want, "{exprs:?}");
        }
    }
}
