//! Inserts of one row from many clients, on a store whose writes take a set time.
//!
//! Every client writes, waits for the answer and writes again. Times are given as multiples of the
//! time a WAL write took in the very same seconds, measured by the store itself. What stands beside
//! it is a writer that appends and flushes under one lock.

mod load;
mod requests;
mod stages;
mod tuning;
mod ways;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use datafusion_rollouts::RuntimeSettings;
use serde_json::json;

use super::harness::args::Args;
use super::harness::figure::{Figure, Goal, millis};
use super::harness::rows::{Row, RowMaker};
use super::harness::session::{Process, quiet, scratch};
use super::harness::stats::{mean, percentile};
use super::harness::store::{Meter, PutTime};
use load::Load;
use ways::{Way, Writer};

/// The name of this benchmark in its figures.
const BENCH: &str = "ingest";

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long a write takes.
    pub put: PutTime,
    /// Characters of each row's content.
    pub content: usize,
    /// Clients at once.
    pub clients: Vec<usize>,
    /// Writes' time that each load is measured for.
    pub puts: u32,
    /// Rows that wait for a merge while inserts go on.
    pub backlog: u64,
    /// How long an idle process is watched.
    pub idle: Duration,
    /// Whether local writes are synced: the set time stands for a store that is not local.
    pub fsync: bool,
    /// Whether lanes and linger are measured instead.
    pub tune: bool,
    /// Whether everything is tiny.
    pub smoke: bool,
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
        let tail = args.flag("tail");
        let default_ms = match start.put {
            PutTime::Fixed(time) => time.as_millis() as u64,
            _ => 0,
        };
        let median = Duration::from_millis(args.get("put-ms", default_ms));
        let put = match (median.is_zero(), tail) {
            (true, _) => PutTime::AsIs,
            (false, false) => PutTime::Fixed(median),
            (false, true) => PutTime::HeavyTailed { median, seed: 1 },
        };
        let clients: String = args.get("clients", String::new());
        let clients = match clients.as_str() {
            "" => start.clients.clone(),
            list => list
                .split(',')
                .map(|n| {
                    n.trim()
                        .parse()
                        .unwrap_or_else(|_| panic!("--clients '{list}'"))
                })
                .collect(),
        };
        Self {
            put,
            clients,
            content: args.get("content", start.content),
            puts: args.get("puts", start.puts),
            idle: Duration::from_secs(args.get("idle-secs", start.idle.as_secs())),
            fsync: args.get("fsync", start.fsync),
            tune: args.flag("tune"),
            dir: args.dir(),
            ..start
        }
    }

    fn standard() -> Self {
        Self {
            put: PutTime::Fixed(Duration::from_millis(50)),
            content: 4000,
            clients: vec![1, 8, 64, 256, 1000],
            puts: 40,
            backlog: 100_000,
            idle: Duration::from_secs(60),
            fsync: false,
            tune: false,
            smoke: false,
            dir: None,
        }
    }

    /// Enough to see that everything runs.
    pub fn smoke() -> Self {
        Self {
            put: PutTime::Fixed(Duration::from_millis(2)),
            content: 100,
            clients: vec![1, 8],
            puts: 400,
            backlog: 200,
            idle: Duration::from_secs(1),
            smoke: true,
            ..Self::standard()
        }
    }

    /// The clients that figures are asked for, or the most there are.
    fn at_most(&self, clients: usize) -> usize {
        self.clients
            .iter()
            .copied()
            .filter(|n| *n <= clients)
            .max()
            .unwrap_or(1)
    }

    fn settings(&self) -> RuntimeSettings {
        RuntimeSettings {
            local_fsync: self.fsync,
            ..quiet()
        }
    }
}

/// Measures everything.
pub async fn run(options: Options) -> Vec<Figure> {
    if options.tune {
        return tuning::run(&options).await;
    }
    let folder = scratch(options.dir.as_deref());
    // It does nothing most of the time, and has that time while the loads run.
    let idle = requests::idle_minute(folder.path().join("idle"), options.clone());
    let idle = datafusion::common::runtime::SpawnedTask::spawn(idle);
    let mut figures = requests::measure(&folder.path().join("requests"), &options).await;
    let meter = Meter::new(PutTime::AsIs);
    let process = Process::new(options.settings(), Some(&meter));
    let store = process.open("rollouts", &folder.path().join("load")).await;
    let mut maker = RowMaker::new(1000);
    maker.content = options.content;
    let bench = Bench {
        writer: Writer::new(&process, store, maker).await,
        meter,
        process,
        options,
    };
    figures.push(stages::measure(&bench.process, &bench.writer).await);
    figures.extend(bench.loads().await);
    figures.extend(bench.heavy_tail().await);
    figures.push(bench.under_maintenance().await);
    bench.meter.assert_saw_data_files();
    bench.process.shutdown().await;
    figures.push(idle.join().await.expect("watches"));
    figures
}

struct Bench {
    writer: Arc<Writer>,
    meter: Meter,
    process: Process,
    options: Options,
}

impl Bench {
    /// Every number of clients by every way, and the writer that locks.
    async fn loads(&self) -> Vec<Figure> {
        self.meter.set_put_time(self.options.put);
        let mut figures = Vec::new();
        let mut busiest = None;
        for way in [Way::Sql, Way::Append, Way::Prepared] {
            for clients in &self.options.clients {
                let load = self.load(way, *clients).await;
                figures.extend(describe(
                    &format!("{}_n{clients}", way.name()),
                    *clients,
                    &load,
                ));
                if way == Way::Sql && *clients == self.options.at_most(256) {
                    figures.push(rows_x_put_rate(*clients, &load));
                    busiest = Some(load);
                }
            }
        }
        let clients = self.options.at_most(256);
        let serial = self.load(Way::Serial, clients).await;
        if let Some(sql) = busiest {
            figures.push(
                Figure::new(
                    BENCH,
                    format!("sql_n{clients}_rows_x_serial"),
                    sql.rows_per_second() / serial.rows_per_second(),
                    "x",
                )
                .with("sql_rows_s", sql.rows_per_second())
                .with("serial_rows_s", serial.rows_per_second()),
            );
        }
        figures
    }

    /// Writes of which some take much longer than most.
    async fn heavy_tail(&self) -> Vec<Figure> {
        let PutTime::Fixed(median) = self.options.put else {
            return Vec::new();
        };
        self.meter
            .set_put_time(PutTime::HeavyTailed { median, seed: 1 });
        let clients = self.options.at_most(64);
        let load = self.load(Way::Sql, clients).await;
        describe(&format!("sql_tail_n{clients}"), clients, &load)
    }

    /// Inserts while a flush and a merge of a backlog run, beside the same with nothing else.
    async fn under_maintenance(&self) -> Figure {
        let store = self.writer.store();
        self.meter.set_put_time(PutTime::AsIs);
        let maker = RowMaker::new(1000);
        // Far from the numbers of the rows that are inserted.
        let backlog: Vec<Row> = (0..self.options.backlog)
            .map(|i| Row::new((1 << 40) + i))
            .collect();
        for rows in backlog.chunks(backlog.len().div_ceil(20)) {
            store.append(maker.batch(rows)).await.expect("appends");
            store.flush().await.expect("flushes");
        }
        self.meter.set_put_time(self.options.put);
        let clients = self.options.at_most(64);
        let quiet = self.load(Way::Sql, clients).await;

        let stop = Arc::new(AtomicBool::new(false));
        let merged = Arc::new(AtomicU64::new(0));
        let rounds = Arc::new(AtomicU64::new(0));
        let maintenance = {
            let (store, stop) = (store.clone(), stop.clone());
            let (merged, rounds) = (merged.clone(), rounds.clone());
            datafusion::common::runtime::SpawnedTask::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    store.flush().await.expect("flushes");
                    let report = store.merge().await.expect("merges");
                    merged.fetch_add(report.rows_inserted, Ordering::Relaxed);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let busy = self.load(Way::Sql, clients).await;
        stop.store(true, Ordering::Relaxed);
        maintenance.join().await.expect("maintains");
        let p99 = |load: &Load| percentile(&load.latencies, 0.99);
        Figure::new(
            BENCH,
            format!("sql_n{clients}_p99_under_maintenance_x_quiet"),
            p99(&busy).as_secs_f64() / p99(&quiet).as_secs_f64(),
            "x",
        )
        .with("busy_p99_ms", millis(p99(&busy)))
        .with("quiet_p99_ms", millis(p99(&quiet)))
        .with("backlog_rows", self.options.backlog)
        .with("rows_merged", merged.load(Ordering::Relaxed))
        .with("flush_and_merge_rounds", rounds.load(Ordering::Relaxed))
        .goal(Goal::AtMost(1.5))
    }

    async fn load(&self, way: Way, clients: usize) -> Load {
        let put = match self.options.put {
            PutTime::AsIs => Duration::from_millis(50),
            PutTime::Fixed(time) => time,
            PutTime::HeavyTailed { median, .. } => median,
        };
        let (warm, window) = (put * self.options.puts / 4, put * self.options.puts);
        let writer = self.writer.clone();
        let load = load::drive(&self.meter, clients, warm, window, move || {
            let writer = writer.clone();
            async move { writer.write(way).await }
        })
        .await;
        // The next load starts with nothing unflushed.
        self.writer.store().flush().await.expect("flushes");
        eprintln!(
            "{} from {clients}: {:.0} rows/s, mean {} ms, p99 {} ms, put {} ms",
            way.name(),
            load.rows_per_second(),
            millis(mean(&load.latencies)),
            millis(percentile(&load.latencies, 0.99)),
            millis(mean(&load.puts)),
        );
        load
    }
}

/// Mean and p99 of a load in puts; what else is known of it as parameters.
fn describe(name: &str, clients: usize, load: &Load) -> Vec<Figure> {
    let put = mean(&load.puts);
    let at = |share: f64| millis(percentile(&load.latencies, share));
    let params = json!({
        "clients": clients,
        "rows_s": load.rows_per_second().round(),
        "mean_ms": millis(mean(&load.latencies)),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "max_ms": at(1.0),
        "put_mean_ms": millis(put),
        "put_p99_ms": millis(percentile(&load.puts, 0.99)),
        "puts": load.puts.len(),
        "statements": load.latencies.len(),
    });
    let x_put = |what: &str, time: Duration| {
        let name = format!("{name}_{what}_x_put");
        let figure = Figure::new(BENCH, name, time.as_secs_f64() / put.as_secs_f64(), "x");
        figure.with_all(&params)
    };
    [
        x_put("mean", mean(&load.latencies)),
        x_put("p99", percentile(&load.latencies, 0.99)),
    ]
    .into_iter()
    .map(with_goal)
    .collect()
}

fn with_goal(figure: Figure) -> Figure {
    let most = match figure.name() {
        "sql_n1_mean_x_put" => 1.15,
        "sql_n64_mean_x_put" => 1.25,
        "sql_n64_p99_x_put" => 1.6,
        "sql_n256_mean_x_put" => 1.4,
        "sql_n1000_p99_x_put" => 4.0,
        _ => return figure,
    };
    figure.goal(Goal::AtMost(most))
}

/// Rows acknowledged in the time of one put.
fn rows_x_put_rate(clients: usize, load: &Load) -> Figure {
    let put = mean(&load.puts);
    let figure = Figure::new(
        BENCH,
        format!("sql_n{clients}_rows_x_put_rate"),
        load.rows_per_second() * put.as_secs_f64(),
        "x",
    )
    .with("rows_s", load.rows_per_second().round())
    .with("put_mean_ms", millis(put));
    if clients == 256 {
        figure.goal(Goal::AtLeast(180.0))
    } else {
        figure
    }
}
