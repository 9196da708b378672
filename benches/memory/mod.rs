//! Memory over thousands of inserts and flushes on several tables that share one capped cache.
//!
//! A round inserts one row into one of the tables and flushes it. Every now and then the table is
//! merged, read, and, as the background task does it by time, compacted.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use datafusion_rollouts::{RolloutStore, RuntimeSettings};

use super::harness::args::Args;
use super::harness::figure::{Figure, Goal};
use super::harness::process::rss_bytes;
use super::harness::rows::{Row, RowMaker};
use super::harness::session::{Process, quiet, scratch};
use super::harness::stats::slope;

/// The name of this benchmark in its figures.
const BENCH: &str = "memory";

/// Generations of a table that are merged together.
const MERGE_AFTER: u64 = 16;
/// Rounds of a table between two reads.
const READ_AFTER: u64 = 5;
/// Merges of a table between two compactions.
const COMPACT_AFTER: u64 = 8;
/// Rows of all tables where ids come again.
const REWRITTEN: u64 = 1000;
/// Of all rounds, the part that counts as warm-up.
const WARM_UP: f64 = 0.3;

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Inserts, each followed by a flush.
    pub rounds: u64,
    /// Tables they go to in turns.
    pub tables: u64,
    /// Cap of the cache the tables share.
    pub cache_mib: u64,
    /// Rounds between two looks at the memory.
    pub every: u64,
    /// Where the tables are made; none is the system's folder for temporary files.
    pub dir: Option<PathBuf>,
    /// Bytes allocated and not freed, as the program's allocator counts them.
    pub allocated: fn() -> usize,
}

/// What is measured; each in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// One capped cache for all tables, every row a new one.
    Shared,
    /// The same with the allocator's own settings.
    Untuned,
    /// The same, with ids that come again: the tables stay as they are, so what grows follows the
    /// number of inserts and not the rows there are.
    Rewriting,
    /// For contrast, a default session for each table.
    PerStore,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Shared, Self::Untuned, Self::Rewriting, Self::PerStore];

    /// Its main figure.
    pub fn figure(self) -> &'static str {
        match self {
            Self::Shared => "rss_kb_per_append",
            Self::Untuned => "untuned_rss_kb_per_append",
            Self::Rewriting => "rewriting_rss_kb_per_append",
            Self::PerStore => "per_store_session_rss_kb_per_append",
        }
    }

    /// What the allocator is told. Threads keep some of what they freed, and so does each arena until it is full: what
    /// the program keeps is seen where the allocator keeps next to nothing.
    pub fn allocator_settings(self) -> &'static str {
        match self {
            Self::Untuned => "",
            _ => "narenas:1,tcache:false,dirty_decay_ms:1000,muzzy_decay_ms:0",
        }
    }

    fn row(self, round: u64) -> Row {
        match self {
            Self::Rewriting => Row {
                number: round % REWRITTEN,
                version: round / REWRITTEN,
            },
            Self::Shared | Self::Untuned | Self::PerStore => Row::new(round),
        }
    }
}

impl Options {
    /// Reads the options; `--smoke` makes everything tiny.
    pub fn from_args(args: &mut Args, allocated: fn() -> usize) -> Self {
        let start = if args.flag("smoke") {
            Self::smoke()
        } else {
            Self::standard()
        };
        Self {
            allocated,
            rounds: args.get("rounds", start.rounds),
            tables: args.get("tables", start.tables),
            cache_mib: args.get("cache-mib", start.cache_mib),
            every: start.every,
            dir: args.dir(),
        }
    }

    fn standard() -> Self {
        Self {
            rounds: 5000,
            tables: 4,
            cache_mib: 64,
            every: 100,
            dir: None,
            allocated: || 0,
        }
    }

    /// Enough to see that everything runs.
    pub fn smoke() -> Self {
        Self {
            rounds: 80,
            tables: 2,
            every: 10,
            ..Self::standard()
        }
    }
}

/// Measures one part.
pub async fn run(options: Options, part: Part) -> Vec<Figure> {
    let folder = scratch(options.dir.as_deref());
    let settings = RuntimeSettings {
        cache_bytes: match part {
            Part::Shared | Part::Untuned | Part::Rewriting => options.cache_mib << 20,
            Part::PerStore => 0,
        },
        local_fsync: false,
        ..quiet()
    };
    let process = Process::new(settings, None);
    let mut stores = Vec::new();
    for table in 0..options.tables {
        let name = format!("rollouts{table}");
        stores.push(process.open(&name, &folder.path().join(&name)).await);
    }
    let started = Instant::now();
    let series = rounds(&process, &stores, &options, part).await;
    let Series {
        points,
        allocated,
        cached,
    } = series;
    let seconds = started.elapsed().as_secs_f64();
    process.shutdown().await;

    let warm = options.rounds as f64 * WARM_UP;
    let measured = |points: &[(f64, f64)]| -> Vec<_> {
        let warm = |(round, _): &(f64, f64)| *round >= warm;
        points.iter().copied().filter(warm).collect()
    };
    let cached_kb_per_append = slope(&measured(&cached)) / 1024.0;
    let allocated_kb_per_append = slope(&measured(&allocated)) / 1024.0;
    let measured = measured(&points);
    let kb_per_append = slope(&measured) / 1024.0;
    let mut late: Vec<f64> = measured[measured.len() / 2..]
        .iter()
        .map(|(_, rss)| *rss)
        .collect();
    late.sort_by(f64::total_cmp);
    let plateau = late[late.len() / 2] / f64::from(1 << 20);
    let mib = |points: &[(f64, f64)]| -> Vec<u64> {
        points
            .iter()
            .map(|(_, bytes)| *bytes as u64 >> 20)
            .collect()
    };
    let described = |figure: Figure| {
        figure
            .with("rounds", options.rounds)
            .with("tables", options.tables)
            .with("cache_mib", options.cache_mib)
            .with("seconds", seconds.round())
    };
    let growth = described(Figure::new(BENCH, part.figure(), kb_per_append, "KB"))
        .with("rss_mib", mib(&points))
        .with("cached_mib", mib(&cached))
        .with("rss_every_rounds", options.every);
    match part {
        Part::Shared => vec![
            growth.goal(Goal::AtMost(1.0)),
            described(Figure::new(
                BENCH,
                "allocated_kb_per_append",
                allocated_kb_per_append,
                "KB",
            ))
            .with("allocated_mib", mib(&allocated)),
            described(Figure::new(
                BENCH,
                "cached_kb_per_append",
                cached_kb_per_append,
                "KB",
            )),
            described(Figure::new(BENCH, "rss_plateau_mib", plateau, "MiB")),
        ],
        Part::Untuned | Part::Rewriting | Part::PerStore => vec![growth],
    }
}

/// Bytes after every so many rounds.
#[derive(Debug, Default)]
struct Series {
    /// Resident in the process.
    points: Vec<(f64, f64)>,
    /// Allocated and not freed.
    allocated: Vec<(f64, f64)>,
    /// Of the shared cache, which grows until it reaches its cap.
    cached: Vec<(f64, f64)>,
}

/// Does the rounds.
async fn rounds(
    process: &Process,
    stores: &[Arc<RolloutStore>],
    options: &Options,
    part: Part,
) -> Series {
    let mut maker = RowMaker::new(100);
    maker.content = 1000;
    maker.tokens = 64;
    let mut series = Series::default();
    for round in 0..options.rounds {
        let table = round % options.tables;
        let store = &stores[table as usize];
        store
            .append(maker.batch(&[part.row(round)]))
            .await
            .expect("appends");
        store.flush().await.expect("flushes");
        let turn = round / options.tables + 1;
        if turn.is_multiple_of(MERGE_AFTER) {
            store.merge().await.expect("merges");
            if turn.is_multiple_of(MERGE_AFTER * COMPACT_AFTER) {
                store.compact().await.expect("compacts");
            }
        }
        if turn.is_multiple_of(READ_AFTER) {
            let id = part.row(round).id();
            process
                .sql(&format!(
                    "SELECT avg(reward), count(*) FROM rollouts{table}"
                ))
                .await;
            process
                .sql(&format!("SELECT * FROM rollouts{table} WHERE id = '{id}'"))
                .await;
        }
        if (round + 1) % options.every == 0 {
            let done = (round + 1) as f64;
            series.points.push((done, rss_bytes() as f64));
            series.allocated.push((done, (options.allocated)() as f64));
            if part != Part::PerStore {
                series.cached.push((done, cached(process).await as f64));
            }
        }
    }
    series
}

/// Bytes in the cache that all tables share.
async fn cached(process: &Process) -> u64 {
    let bytes = process
        .sql("SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT UNSIGNED) FROM rollout_cache()")
        .await;
    bytes[0].column(0).as_primitive::<UInt64Type>().value(0)
}
