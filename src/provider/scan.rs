//! The scan: partitions over base fragments, generations and memtables.
//!
//! What the node holds is a recipe — the table's URI, the pinned base version and generations, the
//! projection, the filters, who reads what — and beside it the view it was planned on, from which
//! the same recipe would be cooked again elsewhere. Storage pins keep the view readable: fragments and
//! generation folders outlive the merges and compactions that replace them by a grace.

use std::sync::Arc;

use arrow::compute::filter_record_batch;
use arrow_array::cast::AsArray;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::{DFSchema, Statistics, internal_err};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::conjunction;
use datafusion::physical_expr::execution_props::ExecutionProps;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, create_physical_expr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};
use futures::{StreamExt, TryStreamExt};
use lance_table::format::Fragment;
use uuid::Uuid;

use super::leaves;
use super::node::with_no_children;
use super::partition::{WorkUnit, spread};
use crate::runtime::{Pruned, ReadView};
use crate::store::masks::{RowSet, row_count};
use crate::store::{Batches, ScanSpec, conform, scan_dataset};

/// Sources of one partition that are opened ahead of the one being read.
const OPEN_AHEAD: usize = 4;

/// What is read, in words that could be sent elsewhere.
#[derive(Debug, Clone)]
pub(super) struct ScanRecipe {
    /// The table's place.
    pub(super) uri: String,
    /// The base version it is pinned to.
    pub(super) base_version: u64,
    /// Shard, number and folder of every generation.
    pub(super) generations: Vec<(Uuid, u64, String)>,
    /// The columns of the result.
    pub(super) columns: SchemaRef,
    /// Conditions the scan evaluates itself.
    pub(super) filters: Vec<Expr>,
    /// Most rows any partition needs to return.
    pub(super) limit: Option<usize>,
    /// Who reads what.
    pub(super) partitions: Vec<Vec<WorkUnit>>,
}

/// Reads one row per id.
#[derive(Debug)]
pub(crate) struct RolloutScanExec {
    recipe: Arc<ScanRecipe>,
    view: Arc<ReadView>,
    table_schema: SchemaRef,
    rows: Option<u64>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RolloutScanExec {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        uri: String,
        view: ReadView,
        pruned: &Pruned,
        table_schema: SchemaRef,
        projection: Option<&Vec<usize>>,
        filters: Vec<Expr>,
        limit: Option<usize>,
        target_partitions: usize,
    ) -> DataFusionResult<Self> {
        let columns = match projection {
            Some(projection) => Arc::new(table_schema.project(projection)?),
            None => table_schema.clone(),
        };
        let fragments: Vec<u64> = view
            .snapshot
            .base
            .fragments()
            .iter()
            .enumerate()
            .map(|(i, fragment)| {
                if pruned.fragments.contains(&i) {
                    return 0;
                }
                let masked = view.masks.base.get(&(fragment.id as u32));
                let masked = masked.map_or(0, |rows| rows.len());
                // A fragment that does not tell its size is read all the same.
                fragment
                    .num_rows()
                    .map_or(1, |rows| rows as u64 - masked.min(rows as u64))
            })
            .collect();
        let generations = view.snapshot.generations.len();
        let live = |source: usize| match pruned.sources.contains(&source) {
            true => 0,
            false => view.masks.live_rows(source),
        };
        let generation_rows: Vec<u64> = (0..generations).map(live).collect();
        let memtable_rows: Vec<u64> = (generations..generations + view.memtables.len())
            .map(live)
            .collect();
        let partitions = spread(
            &fragments,
            &generation_rows,
            &memtable_rows,
            target_partitions,
        );
        let rows = view
            .masks
            .base_live_rows(&view.snapshot.base)
            .map(|base| base + generation_rows.iter().chain(&memtable_rows).sum::<u64>());
        let properties = properties(&columns, partitions.len());
        let recipe = ScanRecipe {
            uri,
            base_version: view.snapshot.base.version().version,
            generations: view
                .snapshot
                .generations
                .iter()
                .map(|g| (g.shard, g.number, g.folder.clone()))
                .collect(),
            columns,
            filters,
            limit,
            partitions,
        };
        Ok(Self {
            recipe: Arc::new(recipe),
            view: Arc::new(view),
            table_schema,
            rows,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// The same scan of fewer leaves.
    fn with_columns(&self, columns: SchemaRef) -> Self {
        let properties = properties(&columns, self.recipe.partitions.len());
        Self {
            recipe: Arc::new(ScanRecipe {
                columns,
                ..self.recipe.as_ref().clone()
            }),
            view: self.view.clone(),
            table_schema: self.table_schema.clone(),
            rows: self.rows,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The filter for rows in memory, over the table's columns.
    fn memtable_filter(&self) -> DataFusionResult<Option<Arc<dyn PhysicalExpr>>> {
        let Some(filter) = conjunction(self.recipe.filters.clone()) else {
            return Ok(None);
        };
        let filter = unqualified(filter)?;
        let schema = DFSchema::try_from(self.table_schema.as_ref().clone())?;
        create_physical_expr(&filter, &schema, &ExecutionProps::new()).map(Some)
    }
}

fn properties(columns: &SchemaRef, partitions: usize) -> PlanProperties {
    PlanProperties::new(
        EquivalenceProperties::new(columns.clone()),
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Incremental,
        Boundedness::Bounded,
    )
}

fn unqualified(expr: Expr) -> DataFusionResult<Expr> {
    use datafusion::common::Column;
    use datafusion::common::tree_node::{Transformed, TreeNode};
    let plain = expr.transform(|expr| {
        Ok(match expr {
            Expr::Column(column) => {
                Transformed::yes(Expr::Column(Column::new_unqualified(column.name)))
            }
            other => Transformed::no(other),
        })
    })?;
    Ok(plain.data)
}

impl DisplayAs for RolloutScanExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let recipe = &self.recipe;
        let names = leaves::names(&recipe.columns, &self.table_schema);
        let filters: Vec<_> = recipe.filters.iter().map(ToString::to_string).collect();
        let lines = t == DisplayFormatType::TreeRender;
        let separator = if lines { "\n" } else { ", " };
        if !lines {
            write!(f, "RolloutScanExec: table={}, ", recipe.uri)?;
        }
        write!(
            f,
            "base_version={}{separator}generations={}{separator}memtables={}{separator}superseded={}",
            recipe.base_version,
            recipe.generations.len(),
            self.view.memtables.len(),
            self.view.masks.superseded(),
        )?;
        if lines {
            write!(f, "\ncolumns={}", names.join(", "))?;
        } else {
            write!(f, ", projection=[{}]", names.join(", "))?;
        }
        if !filters.is_empty() {
            write!(f, "{separator}filters=[{}]", filters.join(", "))?;
        }
        if let Some(limit) = recipe.limit {
            write!(f, "{separator}limit={limit}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for RolloutScanExec {
    fn name(&self) -> &str {
        "RolloutScanExec"
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

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExec,
    ) -> DataFusionResult<Option<Arc<dyn ExecutionPlan>>> {
        let used = projection.expr().iter().map(|used| &used.expr);
        let Some(columns) = leaves::narrowed(&self.recipe.columns, used) else {
            return Ok(None);
        };
        let scan = Arc::new(self.with_columns(columns));
        let above = ProjectionExec::try_new(projection.expr().to_vec(), scan)?;
        Ok(Some(Arc::new(above)))
    }

    fn partition_statistics(&self, partition: Option<usize>) -> DataFusionResult<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.recipe.columns);
        // The masks are known, so the rows that count are counted. Values are another matter: a
        // fragment's own statistics know nothing of masks, so none are given.
        if partition.is_none()
            && self.recipe.filters.is_empty()
            && self.recipe.limit.is_none()
            && let Some(rows) = self.rows
        {
            statistics.num_rows = Precision::Exact(rows as usize);
        }
        Ok(Arc::new(statistics))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> DataFusionResult<SendableRecordBatchStream> {
        let Some(units) = self.recipe.partitions.get(partition) else {
            return internal_err!(
                "RolloutScanExec has {} partitions, not {partition}",
                self.recipe.partitions.len()
            );
        };
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let opened = MetricBuilder::new(&self.metrics).counter("sources_opened", partition);
        let bytes_read = MetricBuilder::new(&self.metrics).counter("bytes_read", partition);
        let superseded = MetricBuilder::new(&self.metrics).counter("rows_superseded", partition);
        let spec = Arc::new(ScanSpec {
            columns: self.recipe.columns.clone(),
            filter: conjunction(self.recipe.filters.clone()),
            limit: self.recipe.limit,
            batch_size: Some(context.session_config().batch_size()),
            bytes_read: Some(bytes_read),
        });
        let reader = Arc::new(UnitReader {
            view: self.view.clone(),
            table_schema: self.table_schema.clone(),
            memtable_filter: self.memtable_filter()?,
            spec,
        });
        let batches = futures::stream::iter(units.clone())
            .map(move |unit| {
                let reader = reader.clone();
                opened.add(1);
                superseded.add(reader.superseded_in(&unit) as usize);
                async move { reader.open(&unit).await }
            })
            .buffered(OPEN_AHEAD)
            .try_flatten()
            .map_err(DataFusionError::from);
        let limit = self.recipe.limit;
        let mut returned = 0;
        let stream = batches
            .try_filter(|batch| futures::future::ready(batch.num_rows() > 0))
            .inspect_ok(move |batch| {
                batch.record_output(&baseline);
            })
            .try_take_while(move |batch| {
                // Each source stops at the limit by itself; together they may pass it once.
                let more = limit.is_none_or(|limit| returned < limit);
                returned += batch.num_rows();
                futures::future::ready(Ok(more))
            });
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.recipe.columns.clone(),
            stream,
        )))
    }
}

/// Opens the pieces of a partition.
struct UnitReader {
    view: Arc<ReadView>,
    table_schema: SchemaRef,
    memtable_filter: Option<Arc<dyn PhysicalExpr>>,
    spec: Arc<ScanSpec>,
}

impl UnitReader {
    fn fragments(&self, positions: &[usize]) -> Vec<Fragment> {
        let all = self.view.snapshot.base.fragments();
        positions.iter().map(|i| all[*i].clone()).collect()
    }

    fn superseded_in(&self, unit: &WorkUnit) -> u64 {
        let masks = &self.view.masks;
        match unit {
            WorkUnit::Base(positions) => self
                .fragments(positions)
                .iter()
                .filter_map(|fragment| masks.base.get(&(fragment.id as u32)))
                .map(|rows| rows.len())
                .sum(),
            WorkUnit::Generation(i) => row_count(&masks.sources[*i]),
            WorkUnit::Memtable(i) => row_count(&masks.sources[self.memtable_source(*i)]),
        }
    }

    fn memtable_source(&self, memtable: usize) -> usize {
        self.view.snapshot.generations.len() + memtable
    }

    async fn open(&self, unit: &WorkUnit) -> crate::Result<Batches> {
        let snapshot = &self.view.snapshot;
        let masks = &self.view.masks;
        match unit {
            WorkUnit::Base(positions) => {
                let fragments = self.fragments(positions);
                scan_dataset(&snapshot.base, fragments, &masks.base, &self.spec).await
            }
            WorkUnit::Generation(i) => {
                let generation = &snapshot.generations[*i];
                let fragments = generation.fragments.clone();
                let masked = &masks.sources[*i];
                scan_dataset(&generation.dataset, fragments, masked, &self.spec).await
            }
            WorkUnit::Memtable(i) => {
                let masked = &masks.sources[self.memtable_source(*i)];
                let batches = self.memtable(*i, masked)?;
                Ok(futures::stream::iter(batches.into_iter().map(Ok)).boxed())
            }
        }
    }

    /// A memtable's rows that count and pass the filter. Rows are addressed by position.
    fn memtable(&self, memtable: usize, masked: &RowSet) -> crate::Result<Vec<RecordBatch>> {
        let masked = masked.get(&0);
        let mut first = 0_u32;
        let mut batches = Vec::new();
        for batch in &self.view.memtables[memtable].batches {
            let rows = batch.num_rows() as u32;
            let kept: BooleanArray = (first..first + rows)
                .map(|row| Some(masked.is_none_or(|masked| !masked.contains(row))))
                .collect();
            first += rows;
            let kept = filter_record_batch(batch, &kept)?;
            let mut batch = conform(&kept, &self.table_schema)?;
            if let Some(filter) = &self.memtable_filter {
                let passed = filter.evaluate(&batch)?.into_array(batch.num_rows())?;
                batch = filter_record_batch(&batch, passed.as_boolean())?;
            }
            batches.push(conform(&batch, &self.spec.columns)?);
        }
        Ok(batches)
    }
}
