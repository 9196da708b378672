//! Merging new rows with random ids into a base of N and of five times N rows, and compacting what
//! the merges leave.
//!
//! Warm is a process that has merged into this base before; cold is one that opens it for the first
//! time. Memory is that of this process, at its peak over one merge or compaction.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, RecordBatchIterator};
use datafusion_rollouts::{RolloutStore, RuntimeSettings};
use lance::Dataset;
use lance::dataset::{WriteMode, WriteParams};

use super::harness::args::Args;
use super::harness::figure::{Figure, Goal, millis};
use super::harness::process::{peak_rss_bytes, reset_peak_rss, rss_bytes};
use super::harness::rows::{BATCH_ROWS, Row, RowMaker};
use super::harness::session::{Process, quiet, scratch};
use super::harness::stats::median;

/// The name of this benchmark in its figures.
const BENCH: &str = "merge";

/// The larger base has so many times the rows of the smaller.
const TIMES: u64 = 5;

/// What a merge may need beside the bound of its pass, in MiB.
const CONSTANT_MIB: f64 = 1024.0;

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rows of the smaller base.
    pub rows: u64,
    /// Generations of one merge.
    pub generations: u64,
    /// Rows of a generation.
    pub generation_rows: u64,
    /// Merges that are measured.
    pub runs: u64,
    /// Tokens of a row.
    pub tokens: usize,
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
            runs: args.get("runs", start.runs),
            tokens: args.get("tokens", start.tokens),
            dir: args.dir(),
        }
    }

    fn standard() -> Self {
        Self {
            rows: 1_000_000,
            generations: 8,
            generation_rows: 10_000,
            runs: 3,
            tokens: 16,
            dir: None,
        }
    }

    /// Enough to see that everything runs.
    pub fn smoke() -> Self {
        Self {
            rows: 4_000,
            generations: 2,
            generation_rows: 500,
            runs: 1,
            ..Self::standard()
        }
    }

    fn settings(&self) -> RuntimeSettings {
        RuntimeSettings {
            // Whatever the size, the base has its index.
            id_index_min_rows: self.rows.min(100_000),
            compact_interval: Duration::ZERO,
            cleanup_interval: Duration::ZERO,
            ..quiet()
        }
    }

    fn maker(&self, rows: u64) -> RowMaker {
        let mut maker = RowMaker::new((rows / 100).max(1));
        maker.tokens = self.tokens;
        maker
    }
}

/// A step's time and the memory it took.
struct Step {
    took: Duration,
    rss_before: u64,
    peak_rss: u64,
}

/// What was measured on one size of base.
struct Measured {
    rows: u64,
    warm: Vec<Step>,
    cold: Step,
    compaction: Step,
    fragments: (usize, usize),
}

/// Measures everything.
pub async fn run(options: Options) -> Vec<Figure> {
    let folder = scratch(options.dir.as_deref());
    let n = one(folder.path(), options.rows, &options).await;
    let n5 = one(folder.path(), options.rows * TIMES, &options).await;

    let new_rows = options.generations * options.generation_rows;
    let described = |figure: Figure, of: &Measured| {
        figure
            .with("rows", of.rows)
            .with("new_rows", new_rows)
            .with("generations", options.generations)
            .with("tokens", options.tokens)
    };
    let times = |of: &Measured| -> Vec<Duration> { of.warm.iter().map(|s| s.took).collect() };
    let in_ms = |name: &str, of: &Measured| {
        let times = times(of);
        let figure = Figure::new(BENCH, name, millis(median(&times)), "ms");
        described(figure.with("runs", times.len()), of)
    };
    let ratio = |name: &str, of_5n: &[Duration], of_n: &[Duration]| {
        Figure::ratio(BENCH, name, ("at_5n", of_5n), ("at_n", of_n))
            .with("rows_n", n.rows)
            .with("rows_5n", n5.rows)
            .with("new_rows", new_rows)
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let peak = |name: &str, step: &Step, of: &Measured| {
        let figure = Figure::new(BENCH, name, mib(step.peak_rss), "MiB");
        described(figure.with("rss_before_mib", mib(step.rss_before)), of)
    };
    let pass_mib = mib(options.settings().merge_pass_bytes);
    let most = |step: &Step| Goal::AtMost(mib(step.rss_before) + pass_mib + CONSTANT_MIB);
    let first = &n5.warm[0];
    vec![
        in_ms("merge_80k_ms", &n),
        in_ms("merge_80k_ms_5n", &n5),
        ratio("merge_5n_x_n", &times(&n5), &times(&n)).goal(Goal::AtMost(2.0)),
        ratio("merge_cold_5n_x_n", &[n5.cold.took], &[n.cold.took]),
        peak("merge_peak_rss_mib", first, &n5)
            .goal(most(first))
            .with("merge_pass_mib", pass_mib),
        described(
            Figure::new(BENCH, "compact_ms", millis(n.compaction.took), "ms"),
            &n,
        )
        .with("fragments_before", n.fragments.0)
        .with("fragments_after", n.fragments.1),
        ratio(
            "compact_5n_x_n",
            &[n5.compaction.took],
            &[n.compaction.took],
        ),
        peak("compact_peak_rss_mib", &n5.compaction, &n5),
    ]
}

/// Runs a step and looks at the memory it takes.
async fn step(work: impl Future<Output = ()>) -> Step {
    reset_peak_rss();
    let rss_before = rss_bytes();
    let started = Instant::now();
    work.await;
    Step {
        took: started.elapsed(),
        rss_before,
        peak_rss: peak_rss_bytes(),
    }
}

async fn one(parent: &Path, rows: u64, options: &Options) -> Measured {
    let folder = parent.join(format!("rollouts-{rows}"));
    let maker = options.maker(rows);
    write_base(&folder, &maker, rows).await;
    let mut next = rows;
    let process = Process::new(options.settings(), None);
    let store = process.open("rollouts", &folder).await;
    let mut warm = Vec::new();
    // The first merge makes the index and warms what can be kept warm; it is not counted.
    for run in 0..=options.runs {
        add(&store, &maker, &mut next, options).await;
        let merged = step(merge(&store, options)).await;
        eprintln!("base of {rows} rows: merge {} ms", millis(merged.took));
        if run > 0 {
            warm.push(merged);
        }
    }
    add(&store, &maker, &mut next, options).await;
    process.shutdown().await;

    let fresh = Process::new(options.settings(), None);
    let store = fresh.open("rollouts", &folder).await;
    let cold = step(merge(&store, options)).await;
    eprintln!("base of {rows} rows: cold merge {} ms", millis(cold.took));
    let mut fragments = (0, 0);
    let compaction = step(async {
        let report = store.compact().await.expect("compacts");
        fragments = (report.fragments_removed, report.fragments_added);
    })
    .await;
    eprintln!(
        "base of {rows} rows: compaction {} ms",
        millis(compaction.took)
    );
    let count = fresh.text("SELECT count(*) AS n FROM rollouts").await;
    assert!(count.contains(&next.to_string()), "{next} rows: {count}");
    fresh.shutdown().await;
    // What is left over in a temporary folder goes with the folder.
    let _ = std::fs::remove_dir_all(&folder);
    Measured {
        rows,
        warm,
        cold,
        compaction,
        fragments,
    }
}

/// Appends rows nobody has seen and flushes them, as many generations as a merge takes.
async fn add(store: &RolloutStore, maker: &RowMaker, next: &mut u64, options: &Options) {
    for _ in 0..options.generations {
        let until = *next + options.generation_rows;
        let rows: Vec<Row> = (*next..until).map(Row::new).collect();
        for rows in rows.chunks(BATCH_ROWS) {
            store.append(maker.batch(rows)).await.expect("appends");
        }
        store.flush().await.expect("flushes");
        *next = until;
    }
}

async fn merge(store: &RolloutStore, options: &Options) {
    let report = store.merge().await.expect("merges");
    assert_eq!(
        report.rows_inserted,
        options.generations * options.generation_rows
    );
}

/// Writes the base as plain Lance would.
async fn write_base(folder: &Path, maker: &RowMaker, rows: u64) {
    let schema = maker.keyed_schema();
    let keyed = schema.clone();
    let batches = maker
        .batches((0..rows).map(Row::new))
        .map(move |batch| RecordBatch::try_new(keyed.clone(), batch.columns().to_vec()));
    let reader = RecordBatchIterator::new(batches, schema);
    let params = WriteParams {
        mode: WriteMode::Create,
        ..Default::default()
    };
    let uri = folder.display().to_string();
    Dataset::write(reader, &uri, Some(params))
        .await
        .expect("writes");
}
