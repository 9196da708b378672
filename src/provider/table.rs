//! The table DataFusion sees. It only assembles plans.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Constraint;
use datafusion::common::Constraints;
use datafusion::common::internal_datafusion_err;
use datafusion::datasource::TableType;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use datafusion::sql::TableReference;
use tracing::Instrument;

use super::dml;
use super::filter::{classify, for_storage, ids_asked_for};
use super::insert::{RolloutInsertExec, rows_at_hand};
use super::scan::RolloutScanExec;
use crate::error::{Result, RolloutError};
use crate::insert::RolloutSink;
use crate::metrics::Operation;
use crate::options::{RolloutSessionOptions, TableOptions};
use crate::runtime::{RolloutRuntime, RolloutStore, StoreHandle};
use crate::schema::{Fill, Filler, TableSchema, lacks_only_new_columns, nullable};

/// A rollouts table in a DataFusion catalog.
#[derive(Debug)]
pub struct RolloutTableProvider {
    handle: StoreHandle,
    /// Those it had when it was registered: a column that is added has no default.
    columns: Arc<TableSchema>,
    defaults: HashMap<String, Expr>,
    /// By column, those of them that the sink can make.
    fills: Arc<[Option<Fill>]>,
    constraints: Constraints,
    definition: Option<String>,
}

impl RolloutTableProvider {
    /// A provider over an open store; the store stays open as long as the provider lives.
    pub fn new(handle: StoreHandle) -> Self {
        let schema = handle.store().schema();
        let defaults = typed_defaults(&schema);
        let columns = schema.sql().fields().iter();
        let fills = columns.map(|field| Fill::of(defaults.get(field.name())?));
        Self {
            fills: fills.collect(),
            constraints: Constraints::new_unverified(vec![Constraint::PrimaryKey(vec![
                schema.key_index(),
            ])]),
            defaults,
            columns: schema,
            handle,
            definition: None,
        }
    }

    /// Remembers the statement it was created by, for `information_schema`.
    pub(super) fn with_definition(mut self, definition: Option<String>) -> Self {
        self.definition = definition;
        self
    }

    /// Opens the table at `location`, or makes it, and registers it under `name`.
    ///
    /// # Errors
    /// The session has no runtime; the table cannot be opened; the name is taken.
    pub async fn register(
        ctx: &SessionContext,
        name: impl Into<TableReference>,
        location: &str,
        options: TableOptions,
    ) -> Result<Arc<RolloutStore>> {
        let runtime = RolloutRuntime::from_session(&ctx.state())?;
        let handle = runtime.open(location, None, options).await?;
        let store = handle.store().clone();
        ctx.register_table(name, Arc::new(Self::new(handle)))?;
        Ok(store)
    }

    /// How the sink fills columns that are left out, by their positions. Columns come at the end: one
    /// that was added since has none.
    pub(super) fn fills(&self) -> &Arc<[Option<Fill>]> {
        &self.fills
    }

    /// Whether the sink fills this column, if this is its value: that of one that is left out.
    pub(super) fn is_filled(&self, column: usize, value: &Expr) -> bool {
        let Some(Some(_)) = self.fills.get(column) else {
            return false;
        };
        let name = self.columns.sql().field(column).name();
        match (self.defaults.get(name), value) {
            // Most columns of most statements: NULLs of lists take long to compare.
            (Some(Expr::Literal(own, _)), Expr::Literal(value, _)) if own.is_null() => {
                value.is_null()
            }
            (own, value) => own == Some(value),
        }
    }

    /// The open store behind the table.
    pub fn store(&self) -> &Arc<RolloutStore> {
        self.handle.store()
    }
}

#[async_trait]
impl TableProvider for RolloutTableProvider {
    fn schema(&self) -> SchemaRef {
        self.store().note_columns_asked();
        self.store().schema().sql().clone()
    }

    fn constraints(&self) -> Option<&Constraints> {
        Some(&self.constraints)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn get_table_definition(&self) -> Option<&str> {
        self.definition.as_deref()
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.defaults.get(column)
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        let schema = self.schema();
        Ok(filters
            .iter()
            .map(|filter| classify(filter, &schema))
            .collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let options = session_options(state);
        let store = self.store();
        let ids = ids_asked_for(filters, self.columns.key_name()).unwrap_or_default();
        let span = Operation::Plan.span(store.location());
        let (view, pruned) = async {
            let view = store.read_view(&options).await?;
            let pruned = store.prune(&view, ids).await?;
            Ok::<_, RolloutError>((view, pruned))
        }
        .instrument(span)
        .await?;
        let schema = self.schema();
        let filters = filters
            .iter()
            .map(|filter| {
                for_storage(filter, &schema).ok_or_else(|| {
                    internal_datafusion_err!(
                        "the scan was given a filter it did not take: {filter}"
                    )
                })
            })
            .collect::<DataFusionResult<Vec<_>>>()?;
        let scan = RolloutScanExec::new(
            store.location().to_string(),
            view,
            &pruned,
            schema,
            projection,
            filters,
            limit,
            state.config().target_partitions(),
        )?;
        Ok(Arc::new(scan))
    }

    async fn insert_into(
        &self,
        state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        insert_op: InsertOp,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        self.insert(state, input, insert_op, None)
    }

    async fn delete_from(
        &self,
        state: &dyn Session,
        filters: Vec<Expr>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        dml::delete(state, self.store(), &self.store().schema(), &filters)
    }

    async fn update(
        &self,
        state: &dyn Session,
        _assignments: Vec<(String, Expr)>,
        filters: Vec<Expr>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        dml::update(state, self.store(), &self.store().schema(), &filters)
    }

    async fn truncate(&self, _state: &dyn Session) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        dml::truncate(self.store())
    }
}

impl RolloutTableProvider {
    /// The plan that inserts rows of all columns, or of those a `filler` completes.
    pub(super) fn insert(
        &self,
        state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        insert_op: InsertOp,
        filler: Option<Arc<Filler>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        // 1. Only appending: an id that is there already is superseded, not overwritten in place.
        if insert_op != InsertOp::Append {
            return Err(RolloutError::Unsupported(format!(
                "{insert_op} is not supported on a rollouts table: INSERT INTO replaces rows of the \
                 same id by itself"
            ))
            .into());
        }
        // 2. Refuse early what could never be written.
        self.store().table().check_writable("written")?;
        if filler.is_none() {
            check_columns(&self.schema(), &input.schema())?;
        }
        // 3. One stream into the sink, also when the caller did not plan for it.
        let input = match input.output_partitioning().partition_count() {
            1 => input,
            _ => Arc::new(CoalescePartitionsExec::new(input)) as Arc<dyn ExecutionPlan>,
        };
        // 4. A batch at hand needs no plan of its own; more rows than that come as a stream of batches.
        let batch_size = state.config().batch_size();
        if let Some(rows) =
            rows_at_hand(input.as_ref()).filter(|rows| rows.num_rows() <= batch_size)
        {
            return self.insert_rows(rows, filler);
        }
        let schema = input.schema();
        // NULL is refused by the sink, which names the column.
        let any = Arc::new(nullable(schema.fields().iter().map(AsRef::as_ref)));
        let sink = self.sink(filler, any);
        Ok(Arc::new(DataSinkExec::new(input, sink, None)))
    }

    /// The plan that inserts a batch of rows: one node. Its columns were checked.
    pub(super) fn insert_rows(
        &self,
        rows: RecordBatch,
        filler: Option<Arc<Filler>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        self.store().table().check_writable("written")?;
        let sink = self.sink(filler, rows.schema());
        Ok(Arc::new(RolloutInsertExec::new(rows, sink)))
    }

    fn sink(&self, filler: Option<Arc<Filler>>, columns: SchemaRef) -> Arc<RolloutSink> {
        let path = self.store().insert_path().clone();
        Arc::new(RolloutSink::new(path, filler, columns))
    }
}

/// What DataFusion puts into columns left out of an INSERT, in the columns' own types: it would wrap
/// every other value in a cast, and folding a cast for each column takes a good part of the time a
/// small INSERT is planned in.
fn typed_defaults(columns: &TableSchema) -> HashMap<String, Expr> {
    let fields = columns.sql().fields().iter();
    fields
        .filter_map(|field| {
            let default = match columns.default_of(field.name()) {
                Some(Expr::Literal(value, metadata)) => match value.cast_to(field.data_type()) {
                    Ok(value) => Expr::Literal(value, metadata.clone()),
                    Err(_) => Expr::Literal(value.clone(), metadata.clone()),
                },
                Some(other) => other.clone(),
                None if field.is_nullable() => {
                    Expr::Literal(ScalarValue::try_from(field.data_type()).ok()?, None)
                }
                None => return None,
            };
            Some((field.name().clone(), default))
        })
        .collect()
}

/// The session's rollout settings, or the defaults in a session without the extension.
pub(crate) fn session_options(state: &dyn Session) -> RolloutSessionOptions {
    state
        .config_options()
        .extensions
        .get::<RolloutSessionOptions>()
        .cloned()
        .unwrap_or_default()
}

fn check_columns(table: &Schema, input: &Schema) -> Result<()> {
    // A statement planned before a column was added knows nothing of it.
    let older = lacks_only_new_columns(table, input);
    if table.fields().len() != input.fields().len() && !older {
        return Err(RolloutError::invalid(format!(
            "{} columns were given for the table's {}: name the columns, or give all in order",
            input.fields().len(),
            table.fields().len()
        )));
    }
    Ok(())
}
