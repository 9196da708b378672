//! The queries, and reading them to the end.

use std::time::{Duration, Instant};

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_schema::DataType;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use super::super::harness::rows::Row;

/// A query every table is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Query {
    /// One narrow column of all rows.
    AvgReward,
    /// A few thousand groups.
    GroupBy,
    /// The last tenth of the policy's steps.
    Filter,
    /// All tokens, as a trainer reads them.
    Tokens,
}

impl Query {
    pub const ALL: [Self; 4] = [Self::AvgReward, Self::GroupBy, Self::Filter, Self::Tokens];

    pub fn name(self) -> &'static str {
        match self {
            Self::AvgReward => "avg_reward",
            Self::GroupBy => "group_by",
            Self::Filter => "filter",
            Self::Tokens => "tokens",
        }
    }

    /// Whether it is measured where so many percent of the generations' rows supersede.
    pub fn measured_at(self, percent: u64) -> bool {
        percent == 1 || self == Self::AvgReward
    }

    /// The query on a table whose base has so many rows.
    pub fn sql(self, table: &str, rows: u64) -> String {
        match self {
            Self::AvgReward => format!("SELECT avg(reward) FROM {table}"),
            Self::GroupBy => format!(
                "SELECT problem_id, avg(reward), count(*) FROM {table}
                 GROUP BY problem_id ORDER BY problem_id"
            ),
            Self::Filter => {
                let step = rows * 9 / 10 / super::tables::rows_per_step(rows);
                format!("SELECT avg(reward), count(*) FROM {table} WHERE policy_step >= {step}")
            }
            Self::Tokens => format!("SELECT output_tokens FROM {table}"),
        }
    }
}

/// Plans and runs a query, reading every batch and keeping none. Returns how long that took.
pub async fn time(ctx: &SessionContext, sql: &str) -> Duration {
    let started = Instant::now();
    let frame = ctx
        .sql(sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let stream = frame.execute_stream().await;
    let mut batches = stream.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let mut rows = 0;
    loop {
        match batches.try_next().await {
            Ok(Some(batch)) => rows += batch.num_rows(),
            Ok(None) => break,
            Err(error) => panic!("{sql}: {error}"),
        }
    }
    assert!(rows > 0, "{sql}: no rows");
    started.elapsed()
}

/// Rows and sum of all tokens: what a scan of them must agree on, in whatever order.
pub async fn token_sum(ctx: &SessionContext, table: &str) -> (usize, i64) {
    let sql = format!("SELECT output_tokens FROM {table}");
    let frame = ctx.sql(&sql).await.expect("plans");
    let batches = frame.execute_stream().await.expect("runs");
    batches
        .try_fold((0, 0), |(rows, sum), batch| {
            let lists = batch.column(0).as_list::<i32>();
            assert!(
                matches!(lists.value_type(), DataType::Int32),
                "tokens are Int32"
            );
            let tokens = lists
                .values()
                .as_primitive::<arrow_array::types::Int32Type>();
            let (from, to) = (lists.value_offsets()[0], lists.value_offsets()[lists.len()]);
            let these: i64 = tokens.values()[from as usize..to as usize]
                .iter()
                .map(|token| i64::from(*token))
                .sum();
            futures::future::ready(Ok((rows + batch.num_rows(), sum + these)))
        })
        .await
        .expect("reads")
}

/// A query for one row.
pub fn lookup(table: &str, row: Row) -> String {
    format!("SELECT reward FROM {table} WHERE id = '{}'", row.id())
}
