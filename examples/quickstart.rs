//! Shows: a table in a local folder, created, written and read with SQL from Rust.
//!
//! Run: `cargo run --example quickstart`
//!
//! Expected output:
//!
//! ```text
//! +------------+----------+-------------+
//! | problem_id | attempts | mean_reward |
//! +------------+----------+-------------+
//! | 7x13       | 2        | 0.5         |
//! +------------+----------+-------------+
//! ```

use datafusion::prelude::SessionContext;
use datafusion_rollouts::{RolloutRuntime, RolloutSessionExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join("rollouts-quickstart");
    let runtime = RolloutRuntime::builder().build()?;
    let ctx = SessionContext::new();
    ctx.register_rollouts(&runtime)?;
    for statement in [
        &format!(
            "CREATE EXTERNAL TABLE rollouts STORED AS ROLLOUT LOCATION '{}'",
            folder.display()
        ),
        // Durable when it returns.
        "INSERT INTO rollouts (id, problem_id, content, reward)
         VALUES ('r1', '7x13', '91', 1.0), ('r2', '7x13', '81', 0.0)",
        // Visible to every process. One comes by itself every 30 seconds.
        "SELECT * FROM rollout_flush('rollouts')",
    ] {
        ctx.sql(statement).await?.collect().await?;
    }
    ctx.sql("SELECT problem_id, count(*) AS attempts, avg(reward) AS mean_reward FROM rollouts GROUP BY problem_id")
        .await?
        .show()
        .await?;
    // Flushes what is left and stops the background work.
    runtime.shutdown().await?;
    Ok(())
}
