//! Defaults of columns left out of an INSERT.
//!
//! DataFusion plans a default without seeing the row's other columns, and fills NULL where there
//! is none. So every required column has a default of its own, and the two that mean "the same as
//! another column" are markers: volatile functions whose value, unique to the process, the sink
//! replaces row by row.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use arrow_array::StringArray;
use arrow_schema::DataType;
use datafusion::common::DFSchema;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, cast,
    lit,
};
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use datafusion::sql::unparser::expr_to_sql;
use uuid::Uuid;

use super::{CREATED_AT, stamp_type};
use crate::error::{Result, RolloutError};

/// What a row-less default function makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Fresh,
    OfId,
    OfRollout,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Fresh, Self::OfId, Self::OfRollout];

    fn name(self) -> &'static str {
        match self {
            Self::Fresh => "rollout_new_id",
            Self::OfId => "rollout_same_as_id",
            Self::OfRollout => "rollout_same_as_rollout_id",
        }
    }

    /// Which of them is called, if one is.
    pub(super) fn of(call: &ScalarFunction) -> Option<Self> {
        let function: &dyn Any = call.func.inner().as_ref();
        Some(function.downcast_ref::<DefaultFunction>()?.kind)
    }
}

/// The text a marker leaves in a column until the sink replaces it; made anew in every process,
/// so no input can hold it.
static MARKER_SECRET: LazyLock<String> = LazyLock::new(|| Uuid::new_v4().simple().to_string());

/// The marker values the sink looks for.
#[derive(Debug, Clone)]
pub(crate) struct Markers {
    pub(crate) same_as_id: String,
    pub(crate) same_as_rollout_id: String,
}

impl Markers {
    pub(crate) fn new() -> Self {
        Self {
            same_as_id: format!("\u{0}id:{}", *MARKER_SECRET),
            same_as_rollout_id: format!("\u{0}rollout_id:{}", *MARKER_SECRET),
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DefaultFunction {
    kind: Kind,
    signature: Signature,
}

impl DefaultFunction {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            signature: Signature::nullary(Volatility::Volatile),
        }
    }
}

impl ScalarUDFImpl for DefaultFunction {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let constant = |text: String| ColumnarValue::Scalar(ScalarValue::Utf8(Some(text)));
        Ok(match self.kind {
            Kind::Fresh => ColumnarValue::Array(Arc::new(new_ids(args.number_rows))),
            Kind::OfId => constant(Markers::new().same_as_id),
            Kind::OfRollout => constant(Markers::new().same_as_rollout_id),
        })
    }
}

/// A new id for each row.
pub(super) fn new_ids(rows: usize) -> StringArray {
    StringArray::from_iter_values((0..rows).map(|_| Uuid::now_v7().to_string()))
}

/// The functions that defaults call, to be known to every session.
pub(crate) fn default_udfs() -> Vec<Arc<ScalarUDF>> {
    Kind::ALL
        .into_iter()
        .map(|kind| Arc::new(ScalarUDF::from(DefaultFunction::new(kind))))
        .collect()
}

fn call(kind: Kind) -> Expr {
    ScalarUDF::from(DefaultFunction::new(kind)).call(vec![])
}

/// The defaults of the rollout schema.
pub(super) fn rollout_defaults() -> HashMap<String, Expr> {
    let now = datafusion::functions::datetime::expr_fn::now();
    HashMap::from([
        ("id".to_string(), call(Kind::Fresh)),
        ("rollout_id".to_string(), call(Kind::OfId)),
        ("problem_id".to_string(), call(Kind::OfRollout)),
        ("sequence_order".to_string(), lit(0_i32)),
        ("role".to_string(), lit("assistant")),
        ("content_type".to_string(), lit("text/plain")),
        (CREATED_AT.to_string(), cast(now, stamp_type())),
    ])
}

/// DEFAULT clauses as JSON: column name to SQL text.
///
/// # Errors
/// A default that cannot be written as SQL.
pub(crate) fn render_defaults(defaults: &HashMap<String, Expr>) -> Result<String> {
    let mut texts = BTreeMap::new();
    for (column, default) in defaults {
        let sql = expr_to_sql(default).map_err(|error| {
            RolloutError::invalid(format!("DEFAULT of column '{column}': {error}"))
        })?;
        texts.insert(column.clone(), sql.to_string());
    }
    serde_json::to_string(&texts)
        .map_err(|error| RolloutError::invalid(format!("DEFAULT clauses: {error}")))
}

/// A default as it is stored, to compare and to show.
pub(super) fn default_sql(default: &Expr) -> String {
    match expr_to_sql(default) {
        Ok(sql) => sql.to_string(),
        Err(_) => default.to_string(),
    }
}

/// Reads what [`render_defaults`] wrote.
///
/// # Errors
/// JSON or SQL that cannot be read, naming the column.
pub(crate) fn parse_stored_defaults(json: &str) -> Result<HashMap<String, Expr>> {
    let texts: BTreeMap<String, String> = serde_json::from_str(json).map_err(|error| {
        RolloutError::invalid(format!("the table's stored DEFAULT clauses: {error}"))
    })?;
    // Most tables have none, and a session that knows all functions is not made for nothing.
    if texts.is_empty() {
        return Ok(HashMap::new());
    }
    let mut state = SessionStateBuilder::new().with_default_features().build();
    for udf in default_udfs() {
        datafusion::execution::FunctionRegistry::register_udf(&mut state, udf)?;
    }
    let ctx = SessionContext::new_with_state(state);
    texts
        .into_iter()
        .map(|(column, sql)| {
            let default = ctx
                .parse_sql_expr(&sql, &DFSchema::empty())
                .map_err(|error| {
                    RolloutError::invalid(format!("stored DEFAULT of column '{column}': {error}"))
                })?;
            Ok((column, default))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_survive_storage() {
        let defaults = HashMap::from([
            ("a".to_string(), lit("it's")),
            ("b".to_string(), lit(3_i64) + lit(4_i64)),
            ("c".to_string(), call(Kind::Fresh)),
        ]);
        let json = render_defaults(&defaults).expect("renders");
        let back = parse_stored_defaults(&json).expect("parses");
        assert_eq!(back.len(), 3);
        assert_eq!(back["a"], lit("it's"));
    }

    #[test]
    fn markers_differ() {
        let markers = Markers::new();
        assert_ne!(markers.same_as_id, markers.same_as_rollout_id);
    }
}
