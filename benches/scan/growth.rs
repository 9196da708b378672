//! How cost grows: everything on a base of N and of five times N rows.

use std::path::Path;
use std::time::Duration;

use super::super::harness::figure::{Figure, Goal, millis};
use super::super::harness::rows::Row;
use super::super::harness::session::{Process, quiet};
use super::super::harness::stats::median;
use super::super::harness::store::{Meter, PathClass, PutTime, Request};
use super::queries::{self, Query};
use super::tables::{Template, add_generation, spread_out};
use super::{BENCH, Options, in_ms};

/// The larger base has so many times the rows of the smaller.
const TIMES: u64 = 5;

/// What was measured on one size of base.
struct Growth {
    rows: u64,
    /// From the flush of a new generation to its first query's answer.
    mask_build: Vec<Duration>,
    mask_bytes: u64,
    /// The first query of a process that has nothing in its caches.
    cold: Duration,
    counts: Vec<Duration>,
    queries: Vec<(Query, Vec<Duration>)>,
}

/// Measures both sizes; `large` is the template of the larger.
pub async fn measure(folder: &Path, large: &Template, options: &Options) -> Vec<Figure> {
    let small = Template::write(folder, large.rows / TIMES, options).await;
    let (small, large) = (one(&small, options).await, one(large, options).await);
    let sizes = |figure: Figure| {
        figure
            .with("rows_n", small.rows)
            .with("rows_5n", large.rows)
            .with("generation_rows", options.generation_rows)
    };
    let ratio = |name: &str, of_5n: &[Duration], of_n: &[Duration]| {
        sizes(Figure::ratio(BENCH, name, ("at_5n", of_5n), ("at_n", of_n)))
    };
    let mut figures = vec![
        in_ms("count_star_ms_small", &small.counts).with("rows", small.rows),
        in_ms("count_star_ms_large", &large.counts).with("rows", large.rows),
        in_ms("mask_build_ms_n", &small.mask_build)
            .with("rows", small.rows)
            .with("data_bytes_read", small.mask_bytes),
        in_ms("mask_build_ms_5n", &large.mask_build)
            .with("rows", large.rows)
            .with("data_bytes_read", large.mask_bytes),
        ratio("mask_build_5n_x_n", &large.mask_build, &small.mask_build).goal(Goal::AtMost(2.0)),
        sizes(
            Figure::new(
                BENCH,
                "mask_build_bytes_5n_x_n",
                large.mask_bytes as f64 / small.mask_bytes as f64,
                "x",
            )
            .with("at_n_bytes", small.mask_bytes)
            .with("at_5n_bytes", large.mask_bytes),
        ),
        ratio("mask_build_cold_5n_x_n", &[large.cold], &[small.cold]),
    ];
    for ((query, of_n), (_, of_5n)) in small.queries.iter().zip(&large.queries) {
        figures.push(ratio(&format!("{}_5n_x_n", query.name()), of_5n, of_n));
    }
    figures
}

async fn one(template: &Template, options: &Options) -> Growth {
    let folder = template.table(&format!("growth-{}", template.rows));
    let meter = Meter::new(PutTime::AsIs);
    let process = Process::new(quiet(), Some(&meter));
    let store = process.open("rollouts", &folder).await;
    let count = "SELECT count(*) FROM rollouts";
    let mut mask_build = Vec::new();
    let mut mask_bytes = Vec::new();
    // The first generation warms what can be kept warm and is not counted.
    for generation in 0..=options.runs.min(5) as u64 {
        let superseding = options.generation_rows / 100;
        let rows: Vec<Row> = (0..options.generation_rows)
            .map(|i| match i < superseding {
                true => Row {
                    version: generation + 1,
                    ..spread_out(i, superseding, template.rows)
                },
                false => Row::new(template.rows + generation * options.generation_rows + i),
            })
            .collect();
        add_generation(&store, &template.maker, &rows).await;
        let before = meter.counts();
        let took = queries::time(&process.ctx, count).await;
        let read = meter.counts().since(&before);
        if generation > 0 {
            mask_build.push(took);
            mask_bytes.push(
                read.sum(|kind, class| kind == Request::Get && class == PathClass::Data)
                    .bytes,
            );
        }
    }
    meter.assert_saw_data_files();
    mask_bytes.sort_unstable();
    let mut counts = Vec::new();
    for _ in 0..options.runs * 3 {
        counts.push(queries::time(&process.ctx, count).await);
    }
    let mut times = Vec::new();
    for query in Query::ALL {
        let sql = query.sql("rollouts", template.rows);
        let mut runs = Vec::new();
        for _ in 0..options.runs.min(5) {
            runs.push(queries::time(&process.ctx, &sql).await);
        }
        times.push((query, runs));
    }
    process.shutdown().await;

    let fresh = Process::new(quiet(), None);
    fresh.open("rollouts", &folder).await;
    let cold = queries::time(&fresh.ctx, count).await;
    fresh.shutdown().await;
    super::tables::remove(&folder);
    eprintln!(
        "base of {} rows: masks of a new generation {} ms, of all anew {} ms",
        template.rows,
        millis(median(&mask_build)),
        millis(cold)
    );
    Growth {
        rows: template.rows,
        mask_bytes: mask_bytes[mask_bytes.len() / 2],
        mask_build,
        cold,
        counts,
        queries: times,
    }
}
