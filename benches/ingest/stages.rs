//! What planning one INSERT costs, by stage: all of it is CPU, and all clients share the cores.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::harness::figure::Figure;
use super::super::harness::rows::Row;
use super::super::harness::session::Process;
use super::super::harness::stats::percentile;
use super::BENCH;
use super::ways::Writer;

/// Statements planned before the first that counts, and those that count.
const TIMES: u64 = 200;

/// The median time of each stage between the text of a one-row INSERT and its execution plan.
pub async fn measure(process: &Process, writer: &Writer) -> Figure {
    let mut stages: [Vec<Duration>; 5] = Default::default();
    for number in 0..2 * TIMES {
        let statement = writer.statement(Row::new(number));
        let times = plan(process, &statement).await;
        if number >= TIMES {
            for (stage, time) in stages.iter_mut().zip(times) {
                stage.push(time);
            }
        }
    }
    let [state, parse, logical, optimize, physical] =
        stages.map(|times| percentile(&times, 0.5).as_secs_f64() * 1e6);
    Figure::new(
        BENCH,
        "sql_plan_us",
        state + parse + logical + optimize + physical,
        "us",
    )
    .with_all(&json!({
        "state_us": state.round(),
        "parse_us": parse.round(),
        "logical_us": logical.round(),
        "optimize_us": optimize.round(),
        "physical_us": physical.round(),
    }))
}

async fn plan(process: &Process, statement: &str) -> [Duration; 5] {
    let start = Instant::now();
    let state = process.ctx.state();
    let copied = Instant::now();
    let dialect = state.config_options().sql_parser.dialect;
    let parsed = state.sql_to_statement(statement, &dialect).expect("parses");
    let parsed_at = Instant::now();
    let logical = state.statement_to_plan(parsed).await.expect("plans");
    let planned = Instant::now();
    let optimized = state.optimize(&logical).expect("optimizes");
    let optimized_at = Instant::now();
    let planner = state.query_planner().clone();
    planner
        .create_physical_plan(&optimized, &state)
        .await
        .expect("plans");
    [
        copied - start,
        parsed_at - copied,
        planned - parsed_at,
        optimized_at - planned,
        optimized_at.elapsed(),
    ]
}
