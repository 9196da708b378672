//! Reading: each query beside plain Lance on the same rows, and how cost grows with the base.
//!
//! A **case** is a rollouts table of a base and some generations, a share of whose rows supersede
//! rows of the base, and beside it a plain Lance table of exactly the rows that count. Both are read
//! with the same SQL, in turns, and must give the same answer.

mod growth;
mod lsm;
mod planning;
mod queries;
mod tables;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::harness::args::Args;
use super::harness::figure::{Figure, Goal, millis};
use super::harness::session::{Process, quiet, scratch};
use super::harness::stats::median;
use super::harness::store::{Meter, PathClass, PutTime, Request};
use queries::Query;
use tables::{Case, Template};

/// The name of this benchmark in its figures.
const BENCH: &str = "scan";

/// Rows of the base that the goals are meant at; a smaller one has some time's grace.
const GOAL_ROWS: u64 = 10_000_000;
const GRACE: Duration = Duration::from_millis(5);

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rows of the base.
    pub rows: u64,
    /// Generations that are not merged.
    pub generations: u64,
    /// Rows of each.
    pub generation_rows: u64,
    /// Tokens of a row.
    pub tokens: usize,
    /// Times each query is run on each table.
    pub runs: usize,
    /// Rows of the base that Lance's own scanner of such tables is tried on: it is slow.
    pub lsm_rows: u64,
    /// Shards, and generations in each, of the table that only planning is measured on.
    pub plan_shards: u64,
    /// Where the tables are made; none is the system's folder for temporary files.
    pub dir: Option<PathBuf>,
}

impl Options {
    /// Reads the options; `--smoke` makes everything tiny.
    pub fn from_args(args: &mut Args) -> Self {
        let start = if args.flag("smoke") {
            Self::smoke()
        } else {
            Self::standard()
        };
        Self {
            rows: args.get("rows", start.rows),
            generations: args.get("generations", start.generations),
            generation_rows: args.get("generation-rows", start.generation_rows),
            tokens: args.get("tokens", start.tokens),
            runs: args.get("runs", start.runs),
            lsm_rows: args.get("lsm-rows", start.lsm_rows),
            plan_shards: start.plan_shards,
            dir: args.dir(),
        }
    }

    fn standard() -> Self {
        Self {
            rows: 2_000_000,
            generations: 8,
            generation_rows: 10_000,
            tokens: 16,
            runs: 9,
            lsm_rows: 100_000,
            plan_shards: 20,
            dir: None,
        }
    }

    /// Enough to see that everything runs.
    pub fn smoke() -> Self {
        Self {
            rows: 3_000,
            generations: 2,
            generation_rows: 100,
            tokens: 2,
            runs: 2,
            lsm_rows: 1_000,
            plan_shards: 2,
            dir: None,
        }
    }

    fn params(&self, percent: u64) -> Value {
        json!({
            "rows": self.rows,
            "generations": self.generations,
            "generation_rows": self.generation_rows,
            "superseding_pct": percent,
        })
    }
}

/// Measures everything.
pub async fn run(options: Options) -> Vec<Figure> {
    let folder = scratch(options.dir.as_deref());
    let mut figures = Vec::new();
    let template = Template::write(folder.path(), options.rows, &options).await;
    for percent in [1, 0, 100] {
        let case = Case::build(&template, &options, percent).await;
        case.check().await;
        for query in Query::ALL
            .into_iter()
            .filter(|query| query.measured_at(percent))
        {
            figures.push(compare(&case, query, &options, percent).await);
        }
        if percent == 1 {
            figures.push(point_lookup(&case, &options).await);
            figures.push(bytes_read(&case, &options).await);
        }
        case.drop().await;
    }
    figures.extend(growth::measure(folder.path(), &template, &options).await);
    drop(template);
    figures.push(lsm::compare(folder.path(), &options).await);
    figures.extend(planning::measure(folder.path(), &options).await);
    figures
}

async fn compare(case: &Case, query: Query, options: &Options, percent: u64) -> Figure {
    let (ours, plain) = case
        .interleave(&|table| query.sql(table, options.rows), options.runs)
        .await;
    let most = match percent {
        0 => 1.05,
        _ => 1.15,
    };
    // Opening the generations takes a few milliseconds, whatever the size of the base.
    let grace = match options.rows < GOAL_ROWS {
        true => GRACE.as_secs_f64() / median(&plain).as_secs_f64(),
        false => 0.0,
    };
    let figure = Figure::ratio(
        BENCH,
        format!("{}_{percent}pct_x_plain", query.name()),
        ("rollouts", &ours),
        ("plain", &plain),
    )
    .with_all(&options.params(percent));
    // What supersedes everything is shown, and promised nothing.
    if percent == 100 {
        figure
    } else {
        figure
            .with("grace_ms", millis(GRACE))
            .goal(Goal::AtMost(most + grace))
    }
}

/// Rows of the base by id, each a different one.
async fn point_lookup(case: &Case, options: &Options) -> Figure {
    let lookups = options.runs * 10;
    let mut ours = Vec::new();
    let mut plain = Vec::new();
    for lookup in 0..lookups as u64 {
        let id = tables::spread_out(lookup, lookups as u64, options.rows).id();
        let sql = |table: &str| format!("SELECT reward FROM {table} WHERE id = '{id}'");
        let (first, second) = case.interleave(&sql, 1).await;
        ours.extend(first);
        plain.extend(second);
    }
    Figure::ratio(
        BENCH,
        "point_lookup_x_plain",
        ("rollouts", &ours),
        ("plain", &plain),
    )
    .with_all(&options.params(1))
    .goal(Goal::AtMost(2.0))
}

/// Bytes of data files that a warm query reads which has no use for ids.
async fn bytes_read(case: &Case, options: &Options) -> Figure {
    let mut bytes = Vec::new();
    for rollouts in [true, false] {
        let meter = Meter::new(PutTime::AsIs);
        let process = Process::new(quiet(), Some(&meter));
        if rollouts {
            case.open_again(&process, "read").await;
        } else {
            let plain = tables::open_counted(case.plain_folder(), &meter).await;
            process
                .ctx
                .register_table("read", plain)
                .expect("registers");
        }
        process.sql("SELECT avg(reward) FROM read").await;
        meter.assert_saw_data_files();
        let before = meter.counts();
        process.sql("SELECT avg(reward) FROM read").await;
        let read = meter.counts().since(&before);
        bytes.push(
            read.sum(|kind, class| kind == Request::Get && class == PathClass::Data)
                .bytes,
        );
        process.shutdown().await;
    }
    Figure::new(
        BENCH,
        "bytes_without_id_x_plain",
        bytes[0] as f64 / bytes[1] as f64,
        "x",
    )
    .with_all(&options.params(1))
    .with("rollouts_bytes", bytes[0])
    .with("plain_bytes", bytes[1])
    .goal(Goal::AtMost(1.01))
}

/// A figure in milliseconds: the median of some times.
fn in_ms(name: &str, times: &[Duration]) -> Figure {
    Figure::new(BENCH, name, millis(median(times)), "ms").with("runs", times.len())
}
