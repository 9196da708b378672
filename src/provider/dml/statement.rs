//! What the analyzer rule vouches for, in a form that no optimizer rule takes apart.
//!
//! Condition and assignments travel *inside* a function without arguments, of a kind that is never
//! folded, moved or shared. So a provider that finds it has the whole statement, and the proof that
//! the rule has seen it.

use std::any::Any;
use std::sync::Arc;

use arrow_schema::DataType;
use datafusion::common::internal_err;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// A checked DELETE or UPDATE: columns are without qualifier, types are coerced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CheckedStatement {
    pub(super) condition: Expr,
    pub(super) assignments: Vec<(String, Expr)>,
    signature: Signature,
}

impl CheckedStatement {
    pub(super) fn new(condition: Expr, assignments: Vec<(String, Expr)>) -> Self {
        Self {
            condition,
            assignments,
            signature: Signature::nullary(Volatility::Volatile),
        }
    }

    /// The statement as a filter of a plan.
    pub(super) fn into_filter(self) -> Expr {
        let function = Arc::new(ScalarUDF::new_from_impl(self));
        Expr::ScalarFunction(ScalarFunction::new_udf(function, Vec::new()))
    }

    /// The statement a filter carries.
    pub(super) fn within(filter: &Expr) -> Option<&Self> {
        let Expr::ScalarFunction(call) = filter else {
            return None;
        };
        let function: &dyn Any = call.func.inner().as_ref();
        function.downcast_ref()
    }

    /// The statement, where it is the only filter.
    pub(super) fn among(filters: &[Expr]) -> Option<&Self> {
        match filters {
            [filter] => Self::within(filter),
            _ => None,
        }
    }
}

impl ScalarUDFImpl for CheckedStatement {
    fn name(&self) -> &str {
        "rollout_where"
    }

    fn display_name(&self, _args: &[Expr]) -> DataFusionResult<String> {
        Ok(format!("rollout_where({})", self.condition))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, _args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        internal_err!("a checked statement is carried out by its table, not evaluated")
    }
}
