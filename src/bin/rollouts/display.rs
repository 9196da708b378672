//! What long values look like: in tables the first items of a list and the first bytes of a payload,
//! and in CSV and TSV lists as text, which those formats have no form for.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::execution::{SessionState, TaskContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::object_store::ObjectStore;
use datafusion::prelude::SessionContext;
use datafusion_cli::cli_context::CliSessionContext;
use datafusion_cli::print_format::PrintFormat;

/// Bytes of a payload that a table shows.
const SHOWN_BYTES: usize = 16;

/// How many items of a list are shown; all, if there is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ListItems(Option<usize>);

impl std::str::FromStr for ListItems {
    type Err = String;

    fn from_str(items: &str) -> Result<Self, Self::Err> {
        if items.eq_ignore_ascii_case("inf") {
            return Ok(Self(None));
        }
        let items = items.parse().map_err(|_| "a number, or 'inf'")?;
        Ok(Self(Some(items)))
    }
}

/// The session as statements are run in it: results come in the form they are printed in.
pub(crate) struct Displayed<'a> {
    pub(crate) ctx: &'a SessionContext,
    pub(crate) format: &'a PrintFormat,
    pub(crate) items: ListItems,
}

impl Displayed<'_> {
    /// How a format shows a column of this type, where that is not as it is.
    fn shown(&self, data_type: &DataType) -> Option<Shown> {
        let list = matches!(
            data_type,
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)
        );
        let bytes = matches!(
            data_type,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView
        );
        match self.format {
            PrintFormat::Table | PrintFormat::Automatic => match self.items.0 {
                Some(_) if list || bytes => Some(Shown::new(self.items)),
                _ => None,
            },
            PrintFormat::Csv | PrintFormat::Tsv if list => Some(Shown::new(ListItems(None))),
            _ => None,
        }
    }
}

#[async_trait]
impl CliSessionContext for Displayed<'_> {
    fn task_ctx(&self) -> Arc<TaskContext> {
        self.ctx.task_ctx()
    }

    fn session_state(&self) -> SessionState {
        self.ctx.state()
    }

    fn register_object_store(
        &self,
        url: &url::Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        self.ctx.register_object_store(url, store)
    }

    fn register_table_options_extension_from_scheme(&self, scheme: &str) {
        CliSessionContext::register_table_options_extension_from_scheme(self.ctx, scheme);
    }

    async fn execute_logical_plan(&self, plan: LogicalPlan) -> Result<DataFrame> {
        let frame = self.ctx.execute_logical_plan(plan).await?;
        let is_query = !matches!(
            frame.logical_plan(),
            LogicalPlan::Explain(_)
                | LogicalPlan::Analyze(_)
                | LogicalPlan::DescribeTable(_)
                | LogicalPlan::Dml(_)
                | LogicalPlan::Ddl(_)
                | LogicalPlan::Copy(_)
                | LogicalPlan::Statement(_)
        );
        let shown: Vec<_> = frame
            .schema()
            .fields()
            .iter()
            .map(|field| self.shown(field.data_type()))
            .collect();
        if !is_query || shown.iter().all(Option::is_none) {
            return Ok(frame);
        }
        let columns = frame.schema().columns();
        let columns = columns.into_iter().zip(shown);
        let columns: Vec<Expr> = columns
            .map(|(column, shown)| match shown {
                Some(shown) => {
                    let name = column.name.clone();
                    ScalarUDF::from(shown)
                        .call(vec![Expr::Column(column)])
                        .alias(name)
                }
                None => Expr::Column(column),
            })
            .collect();
        frame.select(columns)
    }
}

/// A list or payload as text.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Shown {
    items: ListItems,
    signature: Signature,
}

impl Shown {
    fn new(items: ListItems) -> Self {
        Self {
            items,
            signature: Signature::any(1, Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for Shown {
    fn name(&self) -> &str {
        "shown"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let formats = args.config_options.format.clone();
        let formats: FormatOptions<'_> = (&formats).try_into()?;
        let values = ColumnarValue::values_to_arrays(&args.args)?;
        let rows = values
            .iter()
            .map(|values| texts(values, self.items, &formats))
            .next()
            .transpose()?
            .unwrap_or_default();
        Ok(ColumnarValue::Array(Arc::new(StringArray::from(rows))))
    }
}

fn texts(
    values: &ArrayRef,
    items: ListItems,
    formats: &FormatOptions<'_>,
) -> Result<Vec<Option<String>>, ArrowError> {
    let most = items.0.unwrap_or(usize::MAX);
    let texts = (0..values.len()).map(|row| {
        if values.is_null(row) {
            return Ok(None);
        }
        let text = match values.data_type() {
            DataType::List(_) => list(&values.as_list::<i32>().value(row), most, formats)?,
            DataType::LargeList(_) => list(&values.as_list::<i64>().value(row), most, formats)?,
            DataType::FixedSizeList(..) => {
                list(&values.as_fixed_size_list().value(row), most, formats)?
            }
            DataType::Binary => bytes(values.as_binary::<i32>().value(row)),
            DataType::LargeBinary => bytes(values.as_binary::<i64>().value(row)),
            DataType::BinaryView => bytes(values.as_binary_view().value(row)),
            other => {
                return Err(ArrowError::NotYetImplemented(format!(
                    "showing a value of type {other}"
                )));
            }
        };
        Ok(Some(text))
    });
    texts.collect()
}

fn list(items: &ArrayRef, most: usize, formats: &FormatOptions<'_>) -> Result<String, ArrowError> {
    let formatter = ArrayFormatter::try_new(items, formats)?;
    let mut shown = Vec::new();
    for item in 0..items.len().min(most) {
        shown.push(formatter.value(item).try_to_string()?);
    }
    Ok(match items.len() - shown.len() {
        0 => format!("[{}]", shown.join(", ")),
        more if shown.is_empty() => format!("[… {more} items]"),
        more => format!("[{}, … {more} more]", shown.join(", ")),
    })
}

fn bytes(value: &[u8]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match value.get(..SHOWN_BYTES) {
        Some(first) if value.len() > SHOWN_BYTES => {
            let first: String = hex(first);
            format!("{first}… {} more bytes", value.len() - SHOWN_BYTES)
        }
        _ => hex(value),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{BinaryArray, Int32Array, ListArray};
    use datafusion::arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn long_lists_show_their_first_items() {
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), None, Some(3)]),
            Some(vec![]),
            None,
        ]));
        let formats = FormatOptions::default().with_null("NULL");
        for (items, want) in [
            ("inf", ["[1, NULL, 3]", "[]"]),
            ("3", ["[1, NULL, 3]", "[]"]),
            ("2", ["[1, NULL, … 1 more]", "[]"]),
            ("0", ["[… 3 items]", "[]"]),
        ] {
            let texts = texts(&lists, items.parse().expect("a number"), &formats);
            let texts = texts.expect("shows");
            assert_eq!(texts[2], None, "{items}");
            let texts: Vec<_> = texts.into_iter().flatten().collect();
            assert_eq!(texts, want, "{items}");
        }
        assert!("many".parse::<ListItems>().is_err());
    }

    #[test]
    fn lists_within_lists_and_other_items() {
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![7]));
        let formats = FormatOptions::default();
        assert_eq!(list(&numbers, 5, &formats).expect("shows"), "[7]");
        assert!(texts(&numbers, ListItems(None), &formats).is_err());
    }

    #[test]
    fn long_payloads_show_their_first_bytes() {
        let long = [0xab; SHOWN_BYTES + 2];
        let payloads: ArrayRef = Arc::new(BinaryArray::from_opt_vec(vec![
            Some(&long),
            Some(&long[..SHOWN_BYTES]),
            Some(&[]),
            None,
        ]));
        let texts = texts(&payloads, ListItems(Some(1)), &FormatOptions::default());
        let short = "ab".repeat(SHOWN_BYTES);
        assert_eq!(
            texts.expect("shows"),
            [
                Some(format!("{short}… 2 more bytes")),
                Some(short),
                Some(String::new()),
                None
            ]
        );
    }
}
