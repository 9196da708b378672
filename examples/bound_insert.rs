//! Shows: an INSERT that is planned once and given values for each row, from many tasks at once.
//! Planning is most of what a small INSERT costs; binding values costs a third of it.
//!
//! Run: `cargo run --example bound_insert`
//!
//! Expected output:
//!
//! ```text
//! +------+---------+-------------+
//! | rows | problem | mean_reward |
//! +------+---------+-------------+
//! | 4    | p0      | 0.0         |
//! | 4    | p1      | 1.0         |
//! +------+---------+-------------+
//! ```

use datafusion::common::ParamValues;
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use datafusion_rollouts::{RolloutRuntime, RolloutSessionExt, RolloutTableProvider, TableOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join("rollouts-bound-insert");
    let runtime = RolloutRuntime::builder().build()?;
    let ctx = SessionContext::new();
    ctx.register_rollouts(&runtime)?;
    let location = folder.display().to_string();
    RolloutTableProvider::register(&ctx, "rollouts", &location, TableOptions::default()).await?;

    let sql = "INSERT INTO rollouts (id, problem_id, reward) VALUES ($1, $2, $3)";
    let state = ctx.state();
    let planned = state.optimize(&state.create_logical_plan(sql).await?)?;

    let mut workers = tokio::task::JoinSet::new();
    for attempt in 0..8 {
        let problem = attempt % 2;
        let values = ParamValues::from(vec![
            ScalarValue::from(format!("run1/{attempt}")),
            ScalarValue::from(format!("p{problem}")),
            ScalarValue::from(problem as f32),
        ]);
        let bound = planned.clone().with_param_values(values)?;
        let ctx = ctx.clone();
        // Returns when the row is durable.
        workers.spawn(async move { ctx.execute_logical_plan(bound).await?.collect().await });
    }
    while let Some(inserted) = workers.join_next().await {
        inserted??;
    }
    ctx.sql("SELECT * FROM rollout_flush('rollouts')")
        .await?
        .collect()
        .await?;
    ctx.sql(
        "SELECT count(*) AS rows, problem_id AS problem, avg(reward) AS mean_reward
         FROM rollouts GROUP BY problem_id ORDER BY problem_id",
    )
    .await?
    .show()
    .await?;
    runtime.shutdown().await?;
    Ok(())
}
