//! Loading a million rows with one INSERT … SELECT, beside Lance's own write of the same rows.
//!
//! Rows are made while they are read, so the memory that is measured is the insert's own. The
//! session has a bounded memory pool, which the insert has to respect.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatchIterator;
use arrow_schema::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rollouts::RuntimeSettings;
use lance::Dataset;
use lance::dataset::{WriteMode, WriteParams};

use super::harness::args::Args;
use super::harness::figure::{Figure, Goal, millis};
use super::harness::process::{peak_rss_bytes, reset_peak_rss, rss_bytes};
use super::harness::rows::{Row, RowMaker};
use super::harness::session::{Process, scratch};
use super::harness::stats::median;

/// The name of this benchmark in its figures.
const BENCH: &str = "bulk";

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rows of the statement.
    pub rows: u64,
    /// Tokens of a row.
    pub tokens: usize,
    /// Times each side is run, in turns.
    pub runs: usize,
    /// The session's memory pool.
    pub memory_mib: usize,
    /// Whether writes are synced, as they are by default. Lance's own are not.
    pub fsync: bool,
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
            tokens: args.get("tokens", start.tokens),
            runs: args.get("runs", start.runs),
            memory_mib: args.get("memory-mib", start.memory_mib),
            fsync: args.get("fsync", start.fsync),
            dir: args.dir(),
        }
    }

    fn standard() -> Self {
        Self {
            rows: 1_000_000,
            tokens: 16,
            runs: 3,
            memory_mib: 512,
            fsync: true,
            dir: None,
        }
    }

    /// Enough to see that everything runs.
    pub fn smoke() -> Self {
        Self {
            rows: 20_000,
            runs: 1,
            ..Self::standard()
        }
    }

    fn maker(&self) -> RowMaker {
        let mut maker = RowMaker::new((self.rows / 100).max(1));
        maker.tokens = self.tokens;
        maker
    }
}

/// One bulk insert.
struct Insert {
    acknowledged: Duration,
    flushed: Duration,
    rss_before: u64,
    peak_rss: u64,
}

/// Measures everything.
pub async fn run(options: Options) -> Vec<Figure> {
    let folder = scratch(options.dir.as_deref());
    let mut inserts = Vec::new();
    let mut writes = Vec::new();
    for run in 0..options.runs {
        let place = folder.path().join(format!("rollouts-{run}"));
        inserts.push(insert(&place, &options).await);
        writes.push(lance_write(&folder.path().join(format!("plain-{run}")), &options).await);
        // What is left over in a temporary folder goes with the folder.
        let _ = std::fs::remove_dir_all(place);
    }
    let acknowledged: Vec<_> = inserts.iter().map(|insert| insert.acknowledged).collect();
    let flushed: Vec<_> = inserts.iter().map(|insert| insert.flushed).collect();
    let ratio = |name: &str, ours: &[Duration]| {
        let (ours, lance) = (median(ours), median(&writes));
        Figure::new(BENCH, name, lance.as_secs_f64() / ours.as_secs_f64(), "x")
            .with("rollouts_ms", millis(ours))
            .with("lance_ms", millis(lance))
            .with("rows", options.rows)
            .with("tokens", options.tokens)
            .with("runs", options.runs)
            .with("fsync", options.fsync)
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    // The first: afterwards the allocator holds on to what earlier ones used.
    let first = &inserts[0];
    vec![
        ratio("rows_x_lance_write", &acknowledged).goal(Goal::AtLeast(0.5)),
        ratio("rows_flushed_x_lance_write", &flushed),
        Figure::new(BENCH, "peak_rss_mib", mib(first.peak_rss), "MiB")
            .with("rss_before_mib", mib(first.rss_before))
            .with("memory_pool_mib", options.memory_mib)
            .with("rows", options.rows),
    ]
}

async fn insert(folder: &Path, options: &Options) -> Insert {
    let memory = RuntimeEnvBuilder::new()
        .with_memory_limit(options.memory_mib << 20, 1.0)
        .build_arc()
        .expect("a memory pool");
    let ctx = SessionContext::new_with_config_rt(SessionConfig::new(), memory);
    let settings = RuntimeSettings {
        local_fsync: options.fsync,
        ..Default::default()
    };
    let process = Process::on(ctx, settings, None);
    let store = process.open("rollouts", folder).await;
    let source = Generated::table(options.maker(), options.rows);
    process
        .ctx
        .register_table("source", source)
        .expect("registers");
    reset_peak_rss();
    let rss_before = rss_bytes();
    let started = Instant::now();
    process
        .sql("INSERT INTO rollouts SELECT * FROM source")
        .await;
    let acknowledged = started.elapsed();
    store.flush().await.expect("flushes");
    let flushed = started.elapsed();
    let peak_rss = peak_rss_bytes();
    let count = process.text("SELECT count(*) FROM rollouts").await;
    assert!(count.contains(&options.rows.to_string()), "{count}");
    process.shutdown().await;
    eprintln!(
        "insert: {} ms, flushed {} ms",
        millis(acknowledged),
        millis(flushed)
    );
    Insert {
        acknowledged,
        flushed,
        rss_before,
        peak_rss,
    }
}

async fn lance_write(folder: &Path, options: &Options) -> Duration {
    let maker = options.maker();
    let schema = maker.schema().clone();
    let batches = maker.batches((0..options.rows).map(Row::new));
    let reader = RecordBatchIterator::new(batches.map(Ok), schema);
    let params = WriteParams {
        mode: WriteMode::Create,
        ..Default::default()
    };
    let uri = folder.display().to_string();
    let started = Instant::now();
    let written = Dataset::write(reader, &uri, Some(params))
        .await
        .expect("writes");
    let took = started.elapsed();
    assert_eq!(
        written.count_rows(None).await.expect("counts") as u64,
        options.rows
    );
    let _ = std::fs::remove_dir_all(folder);
    eprintln!("lance write: {} ms", millis(took));
    took
}

/// Rows that are made while they are read.
#[derive(Debug)]
struct Generated {
    maker: RowMaker,
    rows: u64,
}

impl Generated {
    fn table(maker: RowMaker, rows: u64) -> Arc<StreamingTable> {
        let schema = maker.schema().clone();
        let partition: Arc<dyn PartitionStream> = Arc::new(Self { maker, rows });
        Arc::new(StreamingTable::try_new(schema, vec![partition]).expect("one schema"))
    }
}

impl PartitionStream for Generated {
    fn schema(&self) -> &SchemaRef {
        self.maker.schema()
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batches = self.maker.batches((0..self.rows).map(Row::new));
        let stream = futures::stream::iter(batches.map(Ok));
        Box::pin(RecordBatchStreamAdapter::new(
            self.maker.schema().clone(),
            stream,
        ))
    }
}
