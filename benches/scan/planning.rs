//! Planning a query over many shards and generations.

use std::path::Path;
use std::time::{Duration, Instant};

use datafusion_rollouts::TableOptions;

use super::super::harness::figure::{Figure, Goal};
use super::super::harness::rows::Row;
use super::super::harness::session::{Process, quiet};
use super::super::harness::store::{Meter, PutTime};
use super::tables::{Template, add_generation};
use super::{BENCH, Options, in_ms};

/// Generations of each shard.
const GENERATIONS: u64 = 5;
/// Rows of a generation.
const ROWS: u64 = 100;

/// Planning with everything known, with a fresh look at storage, and with nothing known.
pub async fn measure(folder: &Path, options: &Options) -> Vec<Figure> {
    let rows = (options.rows / 100).max(1000);
    let template = Template::write(folder, rows, options).await;
    let table = template.table("planning");
    for shard in 0..options.plan_shards {
        let writer = Process::new(quiet(), None);
        let named = TableOptions {
            shard_id: Some(format!("writer-{shard}")),
            ..Default::default()
        };
        let store = writer.open_with("rollouts", &table, named).await;
        for generation in 0..GENERATIONS {
            let first = rows + (shard * GENERATIONS + generation) * ROWS;
            let rows: Vec<Row> = (first..first + ROWS).map(Row::new).collect();
            add_generation(&store, &template.maker, &rows).await;
        }
        writer.shutdown().await;
    }
    let meter = Meter::new(PutTime::AsIs);
    let reader = Process::new(quiet(), Some(&meter));
    reader.open("rollouts", &table).await;
    let cold = plan(&reader).await;
    let runs = options.runs * 10;
    let before = meter.counts();
    let mut warm = Vec::new();
    for _ in 0..runs {
        warm.push(plan(&reader).await);
    }
    let asked_warm = meter.counts().since(&before).total();
    reader.sql("SET rollout.snapshot_max_age_ms = 0").await;
    let before = meter.counts();
    let mut fresh = Vec::new();
    for _ in 0..runs {
        fresh.push(plan(&reader).await);
    }
    let asked_fresh = meter.counts().since(&before).total();
    reader.shutdown().await;
    super::tables::remove(&table);
    let described = |figure: Figure| {
        figure
            .with("shards", options.plan_shards)
            .with("generations", options.plan_shards * GENERATIONS)
            .with("base_rows", rows)
    };
    let per_plan = |requests: u64| requests as f64 / runs as f64;
    vec![
        described(in_ms("plan_ms_warm_100gen", &warm))
            .with("requests_per_plan", per_plan(asked_warm))
            .goal(Goal::AtMost(50.0)),
        described(in_ms("plan_ms_fresh_100gen", &fresh))
            .with("requests_per_plan", per_plan(asked_fresh)),
        described(Figure::new(
            BENCH,
            "plan_ms_cold_100gen",
            cold.as_secs_f64() * 1000.0,
            "ms",
        )),
    ]
}

async fn plan(process: &Process) -> Duration {
    let started = Instant::now();
    let frame = process
        .ctx
        .sql("SELECT avg(reward) FROM rollouts")
        .await
        .expect("plans");
    frame.create_physical_plan().await.expect("plans");
    started.elapsed()
}
