//! The DataFusion sink of an INSERT: checks, chunks, and the put of each chunk.
//!
//! Rows are held back until the input ends or one put is full: a statement that fits one put is all
//! or nothing. A larger one streams, with a bounded number of chunks in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use chrono::Utc;
use datafusion::datasource::sink::DataSink;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use futures::{Stream, StreamExt};
use tokio::sync::oneshot;

use super::rows::{MAX_PUT_BYTES, MAX_PUT_ROWS, part};
use super::{InsertPath, Receipt};
use crate::error::{Result, RolloutError};
use crate::schema::{Filler, Markers, TableSchema, check_and_align};

/// Chunks of one statement that may be on their way at once.
const CHUNKS_IN_FLIGHT: usize = 4;

/// Writes the rows of one INSERT.
#[derive(Debug)]
pub(crate) struct RolloutSink {
    path: Arc<InsertPath>,
    /// Completes rows of some columns only.
    filler: Option<Arc<Filler>>,
    schema: SchemaRef,
    metrics: ExecutionPlanMetricsSet,
}

impl RolloutSink {
    /// A sink for rows of the `given` columns: all, those a `filler` completes, or all that the table had
    /// when the statement was planned.
    pub(crate) fn new(
        path: Arc<InsertPath>,
        filler: Option<Arc<Filler>>,
        given: SchemaRef,
    ) -> Self {
        Self {
            path,
            filler,
            schema: given,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

impl DisplayAs for RolloutSink {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "RolloutSink: table={}", self.path.table().location())?;
        match &self.filler {
            Some(filler) => {
                let given: Vec<_> = filler.given().collect();
                write!(f, ", columns=[{}]", given.join(", "))
            }
            None => Ok(()),
        }
    }
}

#[async_trait]
impl DataSink for RolloutSink {
    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    async fn write_all(
        &self,
        data: SendableRecordBatchStream,
        context: &Arc<TaskContext>,
    ) -> DataFusionResult<u64> {
        Ok(self.write(data, reservation(context)).await?)
    }
}

/// Where the rows of a statement are counted while they wait.
pub(crate) fn reservation(context: &TaskContext) -> MemoryReservation {
    MemoryConsumer::new("RolloutInsert").register(context.memory_pool())
}

impl RolloutSink {
    /// Writes all rows of a stream; returns how many there were.
    pub(crate) async fn write(
        &self,
        mut data: impl Stream<Item = DataFusionResult<RecordBatch>> + Unpin,
        reservation: MemoryReservation,
    ) -> Result<u64> {
        let mut statement = Statement::new(self, reservation);
        while let Some(batch) = data.next().await {
            let step = match batch {
                Ok(batch) => statement.add(batch).await,
                Err(error) => Err(RolloutError::DataFusion(error)),
            };
            if let Err(error) = step {
                return Err(statement.fail(error).await);
            }
        }
        drop(data);
        match statement.finish().await {
            Ok(rows) => {
                self.path.counters().record_statement(rows);
                Ok(rows)
            }
            Err(error) => Err(statement.fail(error).await),
        }
    }
}

type Answer = oneshot::Receiver<Result<Receipt>>;

/// One INSERT on its way.
struct Statement<'a> {
    sink: &'a RolloutSink,
    /// The columns of its rows, also where one is added while it runs.
    schema: Arc<TableSchema>,
    markers: Markers,
    /// In microseconds since the epoch.
    started: i64,
    held: Vec<RecordBatch>,
    held_rows: usize,
    held_bytes: usize,
    in_flight: VecDeque<(Answer, u64, usize)>,
    durable: u64,
    unknown: u64,
    reservation: MemoryReservation,
}

impl<'a> Statement<'a> {
    fn new(sink: &'a RolloutSink, reservation: MemoryReservation) -> Self {
        Self {
            sink,
            schema: sink.path.table().schema(),
            markers: Markers::new(),
            started: Utc::now().timestamp_micros(),
            held: Vec::new(),
            held_rows: 0,
            held_bytes: 0,
            in_flight: VecDeque::new(),
            durable: 0,
            unknown: 0,
            reservation,
        }
    }

    async fn add(&mut self, batch: RecordBatch) -> Result<()> {
        let batch = match &self.sink.filler {
            Some(filler) => filler.complete(&batch, self.started)?,
            None => batch,
        };
        let batch = check_and_align(&self.schema, &self.markers, batch)?;
        let mut from = 0;
        while from < batch.num_rows() {
            let (part, bytes) = part(&batch, from, MAX_PUT_ROWS - self.held_rows);
            let rows = part.num_rows();
            from += rows;
            if self.held_bytes + bytes > MAX_PUT_BYTES && !self.held.is_empty() {
                self.send().await?;
            }
            self.reserve(bytes).await?;
            self.held_rows += rows;
            self.held_bytes += bytes;
            self.held.push(part);
            if self.held_rows >= MAX_PUT_ROWS {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// Counts rows in the memory pool; waits for those under way where it has no room beside them.
    async fn reserve(&mut self, bytes: usize) -> Result<()> {
        while let Err(error) = self.reservation.try_grow(bytes) {
            if self.in_flight.is_empty() {
                return Err(RolloutError::DataFusion(error.context(
                    "the rows of one put, up to 32 MiB, do not fit the memory pool and were not written: \
                     raise its limit",
                )));
            }
            self.settle_oldest().await?;
        }
        Ok(())
    }

    /// Puts what is held in the queue; waits first while too much is under way.
    async fn send(&mut self) -> Result<()> {
        while self.in_flight.len() >= CHUNKS_IN_FLIGHT {
            self.settle_oldest().await?;
        }
        let chunk = match self.held.as_slice() {
            [whole] => whole.clone(),
            parts => concat_batches(self.schema.stored(), parts)?,
        };
        let (rows, bytes) = (self.held_rows as u64, self.held_bytes);
        self.held.clear();
        self.held_rows = 0;
        self.held_bytes = 0;
        let answer = self.sink.path.submit(chunk, bytes).await?;
        self.in_flight.push_back((answer, rows, bytes));
        Ok(())
    }

    async fn settle_oldest(&mut self) -> Result<()> {
        let Some((answer, rows, bytes)) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let answer = answer
            .await
            .unwrap_or_else(|_| Err(RolloutError::Closed("the store is shut down".to_string())));
        self.reservation.shrink(bytes);
        match answer {
            Ok(receipt) => {
                self.durable += rows;
                self.record(&receipt);
                Ok(())
            }
            Err(error) => {
                if matches!(error, RolloutError::OutcomeUnknown { .. }) {
                    self.unknown += rows;
                }
                Err(error)
            }
        }
    }

    fn record(&self, receipt: &Receipt) {
        let metrics = MetricBuilder::new(&self.sink.metrics);
        metrics.global_counter("puts").add(1);
        MetricBuilder::new(&self.sink.metrics)
            .subset_time("put_wait", 0)
            .add_duration(receipt.put);
        MetricBuilder::new(&self.sink.metrics)
            .global_gauge("put_group_statements")
            .set_max(receipt.group);
    }

    async fn finish(&mut self) -> Result<u64> {
        if self.held_rows > 0 {
            self.send().await?;
        }
        while !self.in_flight.is_empty() {
            self.settle_oldest().await?;
        }
        Ok(self.durable)
    }

    /// Waits for what is under way, then says how much of the statement is durable.
    async fn fail(&mut self, error: RolloutError) -> RolloutError {
        let streamed = self.durable > 0 || !self.in_flight.is_empty();
        while !self.in_flight.is_empty() {
            let _ = self.settle_oldest().await;
        }
        if self.unknown > 0 {
            let context = match error {
                RolloutError::OutcomeUnknown { context, .. } => context,
                other => other.to_string(),
            };
            return RolloutError::OutcomeUnknown {
                context,
                durable_rows: self.durable,
                unknown_rows: self.unknown,
            };
        }
        match streamed {
            true => RolloutError::PartlyWritten {
                durable_rows: self.durable,
                source: Box::new(error),
            },
            false => error,
        }
    }
}
