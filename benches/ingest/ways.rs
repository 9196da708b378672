//! The ways a row gets in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use datafusion::common::ParamValues;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use datafusion_rollouts::RolloutStore;
use tokio::sync::Mutex;

use super::super::harness::rows::{Row, RowMaker};
use super::super::harness::session::Process;

/// How a client writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A statement of its own for each row.
    Sql,
    /// One statement planned once, given values for each row.
    Prepared,
    /// The store's `append`, without SQL.
    Append,
    /// `append` and `flush` under one lock: as a table without a queue would do it.
    Serial,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sql => "sql",
            Self::Prepared => "prepared",
            Self::Append => "append",
            Self::Serial => "serial",
        }
    }
}

/// Writes rows one at a time, each with a new id.
pub struct Writer {
    ctx: SessionContext,
    store: Arc<RolloutStore>,
    maker: RowMaker,
    prepared: LogicalPlan,
    content: String,
    next: AtomicU64,
    one_at_a_time: Mutex<()>,
}

impl Writer {
    pub async fn new(process: &Process, store: Arc<RolloutStore>, maker: RowMaker) -> Arc<Self> {
        let state = process.ctx.state();
        let prepared = state
            .create_logical_plan(
                "INSERT INTO rollouts (id, problem_id, policy_step, reward, content)
                 VALUES ($1, $2, $3, $4, $5)",
            )
            .await
            .expect("plans");
        let prepared = state.optimize(&prepared).expect("plans");
        let batch = maker.batch(&[Row::new(0)]);
        let content = batch["content"].as_string::<i64>().value(0).to_string();
        Arc::new(Self {
            ctx: process.ctx.clone(),
            store,
            maker,
            prepared,
            content,
            next: AtomicU64::new(0),
            one_at_a_time: Mutex::new(()),
        })
    }

    pub fn store(&self) -> &Arc<RolloutStore> {
        &self.store
    }

    /// Writes one row and waits until it is acknowledged.
    pub async fn write(&self, way: Way) {
        let row = Row::new(self.next.fetch_add(1, Ordering::Relaxed));
        match way {
            Way::Sql => self.insert(row).await,
            Way::Prepared => self.insert_prepared(row).await,
            Way::Append => self.append(row).await,
            Way::Serial => {
                let _one = self.one_at_a_time.lock().await;
                self.append(row).await;
                self.store.flush().await.expect("flushes");
            }
        }
    }

    /// The statement that inserts one row.
    pub fn statement(&self, row: Row) -> String {
        format!(
            "INSERT INTO rollouts (id, problem_id, policy_step, reward, content)
             VALUES ('{}', 'problem-{}', {}, 0.5, '{}')",
            row.id(),
            row.number % 100,
            row.number / 1000,
            self.content
        )
    }

    async fn insert(&self, row: Row) {
        let frame = self.ctx.sql(&self.statement(row)).await.expect("plans");
        frame.collect().await.expect("inserts");
    }

    async fn insert_prepared(&self, row: Row) {
        let values = ParamValues::from(vec![
            ScalarValue::from(row.id()),
            ScalarValue::from(format!("problem-{}", row.number % 100)),
            ScalarValue::from((row.number / 1000) as i64),
            ScalarValue::from(0.5_f32),
            ScalarValue::LargeUtf8(Some(self.content.clone())),
        ]);
        let plan = self
            .prepared
            .clone()
            .with_param_values(values)
            .expect("binds");
        let frame = self.ctx.execute_logical_plan(plan).await.expect("plans");
        frame.collect().await.expect("inserts");
    }

    async fn append(&self, row: Row) {
        let batch = self.maker.batch(&[row]);
        self.store.append(batch).await.expect("appends");
    }
}
