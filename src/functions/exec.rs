//! How a table function is planned and executed.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{
    CatalogProviderList, Session, TableFunctionArgs, TableFunctionImpl, TableProvider,
};
use datafusion::common::ScalarValue;
use datafusion::datasource::TableType;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};
use datafusion::sql::ResolvedTableReference;
use datafusion::sql::TableReference;

use super::Report;
use crate::error::{Result, RolloutError};
use crate::provider::{RolloutTableProvider, with_no_children};
use crate::runtime::{RolloutRuntime, RolloutStore};

/// A [`Report`] as DataFusion calls it.
#[derive(Debug)]
pub(super) struct ReportFunction {
    report: Arc<dyn Report>,
    runtime: RolloutRuntime,
}

impl ReportFunction {
    pub(super) fn new(report: Arc<dyn Report>, runtime: RolloutRuntime) -> Self {
        Self { report, runtime }
    }

    /// The table a call names, and what it says besides.
    fn arguments(&self, exprs: &[Expr]) -> Result<(Option<String>, Vec<String>)> {
        let name = self.report.name();
        let modes = self.report.modes();
        let texts = self.report.texts();
        let nothing = Vec::new();
        if !texts.is_empty() {
            return match exprs {
                [table, more @ ..] if more.len() == texts.len() => {
                    let more = more.iter().zip(texts).map(|(expr, text_name)| {
                        text(expr).map(str::to_string).ok_or_else(|| {
                            RolloutError::invalid(format!(
                                "{name} takes the {text_name} as text, not {expr}"
                            ))
                        })
                    });
                    let more = more.collect::<Result<_>>()?;
                    Ok((Some(self.table_argument(table)?), more))
                }
                _ => Err(RolloutError::invalid(format!(
                    "{name} takes the name of a table, then {}: {name}('rollouts', '{}')",
                    texts.join(" and "),
                    texts.join("', '")
                ))),
            };
        }
        match (self.report.takes_table(), exprs) {
            (false, []) => Ok((None, nothing)),
            (true, []) if self.report.table_is_optional() => Ok((None, nothing)),
            (false, _) => Err(RolloutError::invalid(format!("{name}() takes no argument"))),
            (true, [table]) => Ok((Some(self.table_argument(table)?), nothing)),
            (true, [table, mode]) if !modes.is_empty() => {
                let table = self.table_argument(table)?;
                let given = text(mode);
                match modes.iter().find(|known| given == Some(**known)) {
                    Some(known) => Ok((Some(table), vec![known.to_string()])),
                    None => Err(RolloutError::invalid(format!(
                        "{name} takes '{}' as its second argument, not {mode}",
                        modes.join("' or '")
                    ))),
                }
            }
            (true, _) if self.report.table_is_optional() => Err(RolloutError::invalid(format!(
                "{name} takes the name of a table or nothing: {name}('rollouts'), {name}()"
            ))),
            (true, _) => Err(RolloutError::invalid(format!(
                "{name} takes one argument, the name of a table: {name}('rollouts')"
            ))),
        }
    }

    fn table_argument(&self, expr: &Expr) -> Result<String> {
        let name = self.report.name();
        let table = text(expr).filter(|table| !table.is_empty());
        table.map(str::to_string).ok_or_else(|| {
            RolloutError::invalid(format!(
                "{name} takes the name of a table as text, such as {name}('rollouts'), not {expr}"
            ))
        })
    }
}

/// A text literal.
fn text(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(
            ScalarValue::Utf8(Some(text))
            | ScalarValue::LargeUtf8(Some(text))
            | ScalarValue::Utf8View(Some(text)),
            _,
        ) => Some(text),
        _ => None,
    }
}

impl TableFunctionImpl for ReportFunction {
    fn call_with_args(&self, args: TableFunctionArgs) -> DataFusionResult<Arc<dyn TableProvider>> {
        let (table, more) = self.arguments(args.exprs())?;
        let target = match table {
            None => None,
            Some(table) => Some(Target::resolve(&table, args.session())?),
        };
        Ok(Arc::new(ReportTable {
            report: self.report.clone(),
            runtime: self.runtime.clone(),
            target,
            more,
        }))
    }
}

/// The table a function is asked about. It is looked up when the function runs.
#[derive(Debug, Clone)]
struct Target {
    catalogs: Arc<dyn CatalogProviderList>,
    table: ResolvedTableReference,
}

impl Target {
    fn resolve(table: &str, session: &dyn Session) -> Result<Self> {
        let state = session
            .as_any()
            .downcast_ref::<SessionState>()
            .ok_or_else(|| {
                RolloutError::Unsupported(
                    "rollout functions need DataFusion's own session state".to_string(),
                )
            })?;
        let defaults = &state.config_options().catalog;
        Ok(Self {
            catalogs: state.catalog_list().clone(),
            table: TableReference::from(table)
                .resolve(&defaults.default_catalog, &defaults.default_schema),
        })
    }

    async fn store(&self) -> Result<Arc<RolloutStore>> {
        let schema = self
            .catalogs
            .catalog(&self.table.catalog)
            .and_then(|catalog| catalog.schema(&self.table.schema));
        let provider = match schema {
            Some(schema) => schema.table(&self.table.table).await?,
            None => None,
        };
        let Some(provider) = provider else {
            return Err(RolloutError::invalid(format!(
                "there is no table '{}'",
                self.table
            )));
        };
        let provider: &dyn std::any::Any = provider.as_ref();
        provider
            .downcast_ref::<RolloutTableProvider>()
            .map(|provider| provider.store().clone())
            .ok_or_else(|| {
                RolloutError::invalid(format!(
                    "'{}' is not a rollouts table (STORED AS ROLLOUT)",
                    self.table
                ))
            })
    }
}

#[derive(Debug)]
struct ReportTable {
    report: Arc<dyn Report>,
    runtime: RolloutRuntime,
    target: Option<Target>,
    more: Vec<String>,
}

#[async_trait]
impl TableProvider for ReportTable {
    fn schema(&self) -> SchemaRef {
        self.report.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(projection) => Arc::new(self.report.schema().project(projection)?),
            None => self.report.schema(),
        };
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Ok(Arc::new(ReportExec {
            report: self.report.clone(),
            runtime: self.runtime.clone(),
            target: self.target.clone(),
            more: self.more.clone(),
            projection: projection.cloned(),
            properties: Arc::new(properties),
        }))
    }
}

/// Runs a [`Report`] when it is executed.
#[derive(Debug)]
struct ReportExec {
    report: Arc<dyn Report>,
    runtime: RolloutRuntime,
    target: Option<Target>,
    more: Vec<String>,
    projection: Option<Vec<usize>>,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for ReportExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        if t != DisplayFormatType::TreeRender {
            f.write_str("RolloutFunctionExec: ")?;
        }
        write!(f, "function={}", self.report.name())?;
        if let Some(target) = &self.target {
            write!(f, ", table={}", target.table)?;
        }
        match &self.more[..] {
            [] => Ok(()),
            more => write!(f, ", arguments=[{}]", more.join(", ")),
        }
    }
}

impl ExecutionPlan for ReportExec {
    fn name(&self) -> &str {
        "RolloutFunctionExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        with_no_children(self, &children)
    }

    fn execute(
        &self,
        _partition: usize,
        _context: Arc<TaskContext>,
    ) -> DataFusionResult<SendableRecordBatchStream> {
        let report = self.report.clone();
        let runtime = self.runtime.clone();
        let target = self.target.clone();
        let projection = self.projection.clone();
        let more = self.more.clone();
        let answer = async move {
            let store = match &target {
                Some(target) => Some(target.store().await?),
                None => None,
            };
            let batch = report.run_with(&more, &runtime, store.as_ref()).await?;
            match projection {
                Some(projection) => Ok(batch.project(&projection)?),
                None => Ok(batch),
            }
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.properties.eq_properties.schema().clone(),
            futures::stream::once(async move {
                answer
                    .await
                    .map_err(|e: RolloutError| DataFusionError::from(e))
            }),
        )))
    }
}
