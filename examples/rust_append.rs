//! Shows: appending Arrow batches without SQL. Eight workers share one store of a table that has
//! columns of its own, and the rows are read back through a DataFrame.
//!
//! Run: `cargo run --example rust_append`
//!
//! Expected output:
//!
//! ```text
//! 32 rows are durable, 32 were made visible
//! +------------+-------------+
//! | problem_id | mean_reward |
//! +------------+-------------+
//! | p0         | 0.0         |
//! | p1         | 1.0         |
//! +------------+-------------+
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema};
use datafusion::functions_aggregate::expr_fn::avg;
use datafusion::prelude::{SessionContext, col};
use datafusion_rollouts::{RolloutRuntime, RolloutTableProvider, TableOptions, TableSchema};

/// Four attempts of one worker, in the table's column order.
fn attempts(schema: &TableSchema, worker: usize) -> Result<RecordBatch, arrow_schema::ArrowError> {
    let ids = (0..4).map(|attempt| format!("run1/{worker}/{attempt}"));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(ids)),
        Arc::new(StringArray::from(vec![format!("p{}", worker % 2); 4])),
        Arc::new(Float32Array::from(vec![(worker % 2) as f32; 4])),
        // ingested_at: the writer stamps it, whatever is given.
        Arc::new(TimestampMicrosecondArray::from(vec![0; 4])),
    ];
    RecordBatch::try_new(schema.sql().clone(), columns)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join("rollouts-rust-append");
    let runtime = RolloutRuntime::builder().build()?;
    let columns = Schema::new(vec![
        Field::new("id", DataType::Utf8, false),
        Field::new("problem_id", DataType::Utf8, false),
        Field::new("reward", DataType::Float32, true),
    ]);
    let declared = TableSchema::declared(&columns, None, HashMap::new())?;
    let location = folder.display().to_string();
    let handle = runtime
        .open(&location, Some(declared), TableOptions::default())
        .await?;

    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let store = handle.store().clone();
        workers.spawn(async move {
            let batch = attempts(&store.schema(), worker)?;
            // Returns when the rows are durable.
            store.append(batch).await
        });
    }
    let mut durable = 0;
    while let Some(appended) = workers.join_next().await {
        durable += appended??;
    }
    let (_generations, visible) = handle.store().flush().await?;
    println!("{durable} rows are durable, {visible} were made visible");

    let ctx = SessionContext::new();
    ctx.read_table(Arc::new(RolloutTableProvider::new(handle)))?
        .aggregate(
            vec![col("problem_id")],
            vec![avg(col("reward")).alias("mean_reward")],
        )?
        .sort(vec![col("problem_id").sort(true, false)])?
        .show()
        .await?;
    runtime.shutdown().await?;
    Ok(())
}
