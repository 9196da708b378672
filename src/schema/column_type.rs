//! A column's type as SQL text.

use arrow_schema::DataType;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr, ExprSchemable};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::storable_type;
use crate::error::{Result, RolloutError};

/// The type that a column list with this text would have stored.
///
/// # Errors
/// It is no type, or none that can be stored.
pub(crate) fn parse_type(text: &str) -> Result<DataType> {
    let wrong = |why: &dyn std::fmt::Display| {
        RolloutError::invalid(format!(
            "'{text}' is not a type such as 'VARCHAR', 'DOUBLE' or 'INT[]': {why}"
        ))
    };
    let mut parser = Parser::new(&GenericDialect {})
        .try_with_sql(text)
        .map_err(|error| wrong(&error))?;
    let parsed = parser.parse_data_type().map_err(|error| wrong(&error))?;
    if parser.peek_token().token != Token::EOF {
        return Err(wrong(&format!("there is more after {parsed}")));
    }
    // What was parsed, not what was given: nothing but a type gets this far.
    let cast = format!("CAST(NULL AS {parsed})");
    let nothing = DFSchema::empty();
    let cast = SessionContext::new()
        .parse_sql_expr(&cast, &nothing)
        .map_err(|error| wrong(&error))?;
    if !matches!(cast, Expr::Cast(_)) {
        return Err(wrong(&"it is none that a column can have"));
    }
    let data_type = cast.get_type(&nothing).map_err(|error| wrong(&error))?;
    Ok(storable_type(&data_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_nothing_else() {
        assert_eq!(parse_type("VARCHAR").ok(), Some(DataType::Utf8));
        assert_eq!(parse_type(" double ").ok(), Some(DataType::Float64));
        assert_eq!(parse_type("BIGINT").ok(), Some(DataType::Int64));
        assert!(
            matches!(parse_type("INT[]"), Ok(DataType::List(item)) if item.data_type() == &DataType::Int32)
        );
        for wrong in [
            "",
            "NUMBER OF THINGS",
            "INT NOT NULL",
            "INT) + (1",
            "INT; DROP TABLE t",
            "7",
        ] {
            assert!(parse_type(wrong).is_err(), "{wrong}");
        }
    }
}
