//! What is asked of the store, counted: on S3 that is the bill.

use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchIterator};
use lance::Dataset;
use lance::dataset::mem_wal::{DatasetMemWalExt, ShardWriterConfig};
use lance::dataset::{WriteMode, WriteParams};
use lance_io::object_store::ObjectStoreParams;
use uuid::Uuid;

use super::super::harness::figure::{Figure, Goal};
use super::super::harness::rows::{Row, RowMaker};
use super::super::harness::session::Process;
use super::super::harness::store::{Counts, Meter, PathClass, PutTime};
use super::ways::{Way, Writer};
use super::{BENCH, Options};

/// Times each thing is done.
const TIMES: u64 = 10;

/// Requests of an insert, a flush and a query, and of Lance's own flush.
pub async fn measure(folder: &Path, options: &Options) -> Vec<Figure> {
    let meter = Meter::new(PutTime::AsIs);
    let process = Process::new(options.settings(), Some(&meter));
    let store = process.open("rollouts", folder).await;
    let mut maker = RowMaker::new(1000);
    maker.content = options.content;
    let writer = Writer::new(&process, store.clone(), maker).await;
    // The first insert and the first flush open what the later ones find open.
    writer.write(Way::Sql).await;
    store.flush().await.expect("flushes");

    let mut inserting = Vec::new();
    let mut flushing = Vec::new();
    for _ in 0..TIMES {
        let start = meter.counts();
        writer.write(Way::Sql).await;
        let inserted = meter.counts();
        store.flush().await.expect("flushes");
        inserting.push(inserted.since(&start));
        flushing.push(meter.counts().since(&inserted));
    }
    let lance = lance_flushes(&folder.with_extension("lance")).await;
    let lance_requests = average(&lance, Counts::total);
    let mut figures = vec![
        figure("requests_per_insert", &inserting, Counts::total).goal(Goal::AtMost(1.0)),
        figure("requests_per_flush", &flushing, Counts::total)
            .goal(Goal::AtMost(lance_requests + 2.0)),
        figure("requests_per_lance_flush", &lance, Counts::total),
    ];
    figures.extend(warm_queries(&process, &meter).await);
    meter.assert_saw_data_files();
    process.shutdown().await;
    figures
}

/// A query that was asked before, within the staleness that is allowed and with none allowed.
/// Reading the rows themselves is not counted.
async fn warm_queries(process: &Process, meter: &Meter) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (name, max_age_ms) in [("requests_warm_query", 60_000), ("requests_fresh_query", 0)] {
        process
            .sql(&format!("SET rollout.snapshot_max_age_ms = {max_age_ms}"))
            .await;
        process.sql("SELECT avg(reward) FROM rollouts").await;
        let mut asked = Vec::new();
        for _ in 0..TIMES {
            let before = meter.counts();
            process.sql("SELECT avg(reward) FROM rollouts").await;
            asked.push(meter.counts().since(&before));
        }
        let beside_rows = |counts: &Counts| counts.total() - counts.on(PathClass::Data);
        let figure = figure(name, &asked, beside_rows)
            .with("snapshot_max_age_ms", max_age_ms)
            .with(
                "data_requests",
                average(&asked, |counts| counts.on(PathClass::Data)),
            );
        figures.push(match max_age_ms {
            0 => figure,
            _ => figure.goal(Goal::AtMost(0.0)),
        });
    }
    figures
}

/// A process that wrote, and now does nothing. Scaled to a minute.
pub async fn idle_minute(folder: PathBuf, options: Options) -> Figure {
    let meter = Meter::new(PutTime::AsIs);
    // As registered by default: whatever wakes by itself counts.
    let settings = datafusion_rollouts::RuntimeSettings {
        local_fsync: options.fsync,
        ..Default::default()
    };
    let process = Process::new(settings, Some(&meter));
    let store = process.open("rollouts", &folder).await;
    let maker = RowMaker::new(1000);
    store
        .append(maker.batch(&[Row::new(0)]))
        .await
        .expect("appends");
    store.flush().await.expect("flushes");
    // The merge loop looks once after a flush.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = meter.counts();
    tokio::time::sleep(options.idle).await;
    let asked = meter.counts().since(&before);
    process.shutdown().await;
    let minutes = options.idle.as_secs_f64() / 60.0;
    Figure::new(
        BENCH,
        "requests_idle_minute",
        asked.total() as f64 / minutes,
        "requests",
    )
    .with("seconds", options.idle.as_secs())
    .with("asked", asked.to_string())
    .goal(Goal::AtMost(6.0))
}

/// What Lance's own writer asks to freeze and flush one row.
async fn lance_flushes(folder: &Path) -> Vec<Counts> {
    let meter = Meter::new(PutTime::AsIs);
    let maker = RowMaker::new(1000);
    let schema = maker.keyed_schema();
    let params = WriteParams {
        mode: WriteMode::Create,
        store_params: Some(ObjectStoreParams {
            object_store_wrapper: Some(meter.wrapper()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let uri = format!("file-object-store://{}", folder.display());
    let empty = RecordBatchIterator::new(std::iter::empty(), schema.clone());
    let mut base = Dataset::write(empty, &uri, Some(params))
        .await
        .expect("creates");
    base.initialize_mem_wal()
        .maintained_indexes(Vec::<String>::new())
        .execute()
        .await
        .expect("sets up");
    let config = ShardWriterConfig::new(Uuid::new_v4())
        .with_durable_write(true)
        .with_max_wal_buffer_size(1);
    let writer = base
        .mem_wal_writer(config.shard_id, config)
        .await
        .expect("opens");
    let mut flushes = Vec::new();
    for number in 0..=TIMES {
        let row = maker.batch(&[Row::new(number)]);
        let row = RecordBatch::try_new(schema.clone(), row.columns().to_vec()).expect("keyed");
        writer.put(vec![row]).await.expect("puts");
        let before = meter.counts();
        let fence = writer.force_freeze_active().await.expect("freezes");
        fence.wait().await.expect("flushes");
        // The first opens what the later ones find open.
        if number > 0 {
            flushes.push(meter.counts().since(&before));
        }
    }
    writer.abort().await.expect("closes");
    meter.assert_saw_data_files();
    flushes
}

fn average(counts: &[Counts], of: impl Fn(&Counts) -> u64) -> f64 {
    counts.iter().map(of).sum::<u64>() as f64 / counts.len() as f64
}

fn figure(name: &str, counts: &[Counts], of: impl Fn(&Counts) -> u64) -> Figure {
    let last = counts.last().map(ToString::to_string).unwrap_or_default();
    Figure::new(BENCH, name, average(counts, of), "requests")
        .with("times", counts.len())
        .with("asked", last)
}
