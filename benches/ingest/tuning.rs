//! How many lanes, and how long a put lingers, over stores of different speed.
//!
//! In a closed loop clients write again when they are answered, so that a slow store has fewer rows
//! to write; in an open loop rows come at a set rate whatever happens, and those that come while
//! a put hangs pile up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datafusion_rollouts::RuntimeSettings;
use serde_json::json;

use super::super::harness::figure::{Figure, millis};
use super::super::harness::rows::RowMaker;
use super::super::harness::session::{Process, scratch};
use super::super::harness::stats::{mean, percentile};
use super::super::harness::store::{Meter, PutTime};
use super::load::{self, Load};
use super::ways::{Way, Writer};
use super::{BENCH, Options};

/// Clients of the closed loop.
const CLIENTS: usize = 64;
/// Rows a second of the open loop.
const RATE: u32 = 1000;

/// Lanes and linger: one is varied at a time.
const CHOICES: [(usize, u64); 7] = [(4, 2), (1, 2), (2, 2), (8, 2), (4, 0), (4, 5), (4, 20)];

/// Every choice on every store, in both loops.
pub async fn run(options: &Options) -> Vec<Figure> {
    let ms = Duration::from_millis;
    let median = ms(50);
    let stores = [
        ("local", PutTime::AsIs, ms(5)),
        ("5ms", PutTime::Fixed(ms(5)), ms(5)),
        ("50ms", PutTime::Fixed(median), median),
        (
            "50ms_tail",
            PutTime::HeavyTailed { median, seed: 1 },
            median,
        ),
        ("200ms", PutTime::Fixed(ms(200)), ms(200)),
    ];
    // Enough to see that everything runs.
    let (stores, choices) = match options.smoke {
        true => (&stores[1..2], &CHOICES[..2]),
        false => (&stores[..], &CHOICES[..]),
    };
    let folder = scratch(options.dir.as_deref());
    let mut figures = Vec::new();
    for (store, put, about) in stores.iter().copied() {
        for (lanes, linger) in choices.iter().copied() {
            let settings = RuntimeSettings {
                max_lanes: lanes,
                linger_percent: linger,
                // The local disk is measured as it is used.
                local_fsync: store == "local",
                ..options.settings()
            };
            let table = folder.path().join(format!("{store}-{lanes}-{linger}"));
            for (name, load) in measure(&table, settings, put, about, options).await {
                figures.extend(describe(name, store, lanes, linger, &load));
            }
        }
    }
    figures
}

async fn measure(
    table: &Path,
    settings: RuntimeSettings,
    put: PutTime,
    about: Duration,
    options: &Options,
) -> [(&'static str, Load); 2] {
    let meter = Meter::new(PutTime::AsIs);
    let process = Process::new(settings, Some(&meter));
    let store = process.open("rollouts", table).await;
    let mut maker = RowMaker::new(1000);
    maker.content = options.content;
    let writer = Writer::new(&process, store.clone(), maker).await;
    meter.set_put_time(put);
    let window = (about * options.puts).max(Duration::from_secs(1).min(about * 200));
    let write = move || {
        let writer: Arc<Writer> = writer.clone();
        async move { writer.write(Way::Append).await }
    };
    let closed = load::drive(&meter, CLIENTS, window / 4, window, write.clone()).await;
    meter.set_put_time(PutTime::AsIs);
    store.flush().await.expect("flushes");
    meter.set_put_time(put);
    let open = load::arrive(&meter, RATE, window / 4, window, write).await;
    meter.set_put_time(PutTime::AsIs);
    store.flush().await.expect("flushes");
    process.shutdown().await;
    [("tune_closed", closed), ("tune_open", open)]
}

fn describe(name: &str, store: &str, lanes: usize, linger: u64, load: &Load) -> [Figure; 2] {
    let put = mean(&load.puts);
    let params = json!({
        "store": store,
        "lanes": lanes,
        "linger_percent": linger,
        "rows_s": load.rows_per_second().round(),
        "mean_ms": millis(mean(&load.latencies)),
        "p99_ms": millis(percentile(&load.latencies, 0.99)),
        "put_mean_ms": millis(put),
        "puts": load.puts.len(),
    });
    eprintln!("{name} {params}");
    [
        ("mean", mean(&load.latencies)),
        ("p99", percentile(&load.latencies, 0.99)),
    ]
    .map(|(what, time)| {
        let name = format!("{name}_{store}_lanes{lanes}_linger{linger}_{what}_x_put");
        let value = time.as_secs_f64() / put.as_secs_f64();
        Figure::new(BENCH, name, value, "x").with_all(&params)
    })
}
