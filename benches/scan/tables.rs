//! The tables: a base written once and shared by links, generations, and the same rows plain.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchIterator};
use datafusion_rollouts::{RolloutStore, TableOptions};
use lance::Dataset;
use lance::datafusion::LanceTableProvider;
use lance::dataset::builder::DatasetBuilder;
use lance::dataset::{WriteMode, WriteParams};
use lance::index::DatasetIndexExt;
use lance_index::IndexType;
use lance_index::scalar::ScalarIndexParams;
use lance_io::object_store::ObjectStoreParams;

use super::super::harness::rows::{BATCH_ROWS, Row, RowMaker};
use super::super::harness::session::{Process, quiet};
use super::super::harness::store::Meter;
use super::Options;
use super::queries::{self, Query};

/// Row numbers that make one step of the policy, of a hundred in the base.
pub fn rows_per_step(rows: u64) -> u64 {
    (rows / 100).max(1)
}

/// The `i`th of `count` rows spread evenly over `rows`.
pub fn spread_out(i: u64, count: u64, rows: u64) -> Row {
    Row::new(i * rows / count.max(1))
}

/// A base on disk that tables are made from: their files are links to its files, which nobody
/// changes.
pub struct Template {
    folder: PathBuf,
    parent: PathBuf,
    pub rows: u64,
    pub maker: RowMaker,
}

impl Template {
    /// Writes a base of `rows` rows with an index on the id.
    pub async fn write(parent: &Path, rows: u64, options: &Options) -> Self {
        let mut maker = RowMaker::new(rows_per_step(rows));
        maker.tokens = options.tokens;
        let folder = parent.join(format!("template-{rows}"));
        write_plain(&folder, &maker, (0..rows).map(Row::new)).await;
        Self {
            folder,
            parent: parent.to_path_buf(),
            rows,
            maker,
        }
    }

    /// A new folder with the base in it.
    pub fn table(&self, name: &str) -> PathBuf {
        let folder = self.parent.join(name);
        link_all(&self.folder, &folder).expect("links");
        folder
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// Writes a Lance table with an index on the id.
async fn write_plain(
    folder: &Path,
    maker: &RowMaker,
    rows: impl Iterator<Item = Row> + Send + 'static,
) {
    let schema = maker.keyed_schema();
    let keyed = schema.clone();
    let batches = maker
        .batches(rows)
        .map(move |batch| RecordBatch::try_new(keyed.clone(), batch.columns().to_vec()));
    let reader = RecordBatchIterator::new(batches, schema);
    let params = WriteParams {
        mode: WriteMode::Create,
        ..Default::default()
    };
    let uri = folder.display().to_string();
    let mut dataset = Dataset::write(reader, &uri, Some(params))
        .await
        .expect("writes");
    let params = ScalarIndexParams::default();
    dataset
        .create_index(&["id"], IndexType::BTree, None, &params, true)
        .await
        .expect("indexes");
}

fn link_all(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link_all(&entry.path(), &target)?;
        } else if std::fs::hard_link(entry.path(), &target).is_err() {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// What is left over in a temporary folder goes with the folder.
pub fn remove(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
}

/// Appends rows and makes them a generation.
pub async fn add_generation(store: &RolloutStore, maker: &RowMaker, rows: &[Row]) {
    for rows in rows.chunks(BATCH_ROWS) {
        store.append(maker.batch(rows)).await.expect("appends");
    }
    let (generations, flushed) = store.flush().await.expect("flushes");
    assert_eq!(
        (generations, flushed),
        (1, rows.len() as u64),
        "one generation"
    );
}

/// A rollouts table and the same rows as a plain Lance table, open in one session as `rollouts`
/// and `plain`.
pub struct Case {
    process: Process,
    rollouts: PathBuf,
    plain: PathBuf,
    rows: u64,
}

impl Case {
    /// Makes both. `percent` of the generations' rows supersede rows of the base.
    pub async fn build(template: &Template, options: &Options, percent: u64) -> Self {
        let total = options.generations * options.generation_rows;
        let superseding = total * percent / 100;
        let replaced = |i: u64| Row {
            version: 1,
            ..spread_out(i, superseding, template.rows)
        };
        let newer: Vec<Row> = (0..superseding)
            .map(replaced)
            .chain((0..total - superseding).map(|i| Row::new(template.rows + i)))
            .collect();
        // Each generation gets its share of both kinds.
        let generations = options.generations as usize;
        let shares: Vec<Vec<Row>> = (0..generations)
            .map(|g| newer.iter().copied().skip(g).step_by(generations).collect())
            .collect();

        let rollouts = template.table(&format!("rollouts-{percent}pct"));
        let process = Process::new(quiet(), None);
        let store = process.open("rollouts", &rollouts).await;
        for share in &shares {
            add_generation(&store, &template.maker, share).await;
        }

        let plain = template.parent.join(format!("plain-{percent}pct"));
        let mut gone: Vec<u64> = newer[..superseding as usize]
            .iter()
            .map(|r| r.number)
            .collect();
        gone.sort_unstable();
        let base = (0..template.rows).filter(move |number| gone.binary_search(number).is_err());
        write_plain(&plain, &template.maker, base.map(Row::new).chain(newer)).await;
        let dataset = Dataset::open(&plain.display().to_string())
            .await
            .expect("opens");
        let provider = LanceTableProvider::new(Arc::new(dataset), false, false);
        process
            .ctx
            .register_table("plain", Arc::new(provider))
            .expect("registers");
        Self {
            process,
            rollouts,
            plain,
            rows: template.rows,
        }
    }

    pub fn rollouts_folder(&self) -> &Path {
        &self.rollouts
    }

    pub fn plain_folder(&self) -> &Path {
        &self.plain
    }

    /// Opens the rollouts table in another process's runtime.
    pub async fn open_again(&self, process: &Process, name: &str) {
        let options = TableOptions {
            read_only: true,
            ..Default::default()
        };
        process.open_with(name, &self.rollouts, options).await;
    }

    /// Both tables give the same answers. Run once before measuring, it also warms the caches.
    pub async fn check(&self) {
        for query in Query::ALL
            .into_iter()
            .filter(|query| *query != Query::Tokens)
        {
            let ours = self.process.text(&query.sql("rollouts", self.rows)).await;
            let plain = self.process.text(&query.sql("plain", self.rows)).await;
            assert_eq!(values(&ours), values(&plain), "{query:?}");
        }
        let ours = queries::token_sum(&self.process.ctx, "rollouts").await;
        let plain = queries::token_sum(&self.process.ctx, "plain").await;
        assert_eq!(ours, plain, "tokens");
        for row in [Row::new(0), Row::new(self.rows / 2)] {
            let ours = self.process.text(&queries::lookup("rollouts", row)).await;
            assert_eq!(
                ours,
                self.process.text(&queries::lookup("plain", row)).await
            );
        }
    }

    /// Times a query on both tables in turns, and who goes first changes each time.
    pub async fn interleave(
        &self,
        sql: &dyn Fn(&str) -> String,
        runs: usize,
    ) -> (Vec<Duration>, Vec<Duration>) {
        let ctx = &self.process.ctx;
        let (ours_sql, plain_sql) = (sql("rollouts"), sql("plain"));
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for run in 0..runs {
            if run % 2 == 0 {
                ours.push(queries::time(ctx, &ours_sql).await);
                plain.push(queries::time(ctx, &plain_sql).await);
            } else {
                plain.push(queries::time(ctx, &plain_sql).await);
                ours.push(queries::time(ctx, &ours_sql).await);
            }
        }
        (ours, plain)
    }

    /// Closes both and removes their files.
    pub async fn drop(self) {
        self.process.shutdown().await;
        remove(&self.rollouts);
        remove(&self.plain);
    }
}

/// A plain Lance table whose reads a meter counts.
pub async fn open_counted(folder: &Path, meter: &Meter) -> Arc<LanceTableProvider> {
    // Under the scheme of plain files Lance reads past every object store.
    let uri = format!("file-object-store://{}", folder.display());
    let params = ObjectStoreParams {
        object_store_wrapper: Some(meter.wrapper()),
        ..Default::default()
    };
    let dataset = DatasetBuilder::from_uri(&uri)
        .with_store_params(params)
        .load()
        .await;
    let dataset = Arc::new(dataset.expect("opens"));
    Arc::new(LanceTableProvider::new(dataset, false, false))
}

/// The values of a printed table, without the names of its columns: those tell which table it is.
fn values(printed: &str) -> Vec<&str> {
    printed
        .lines()
        .skip(3)
        .flat_map(|line| line.split('|'))
        .map(str::trim)
        .filter(|value| !value.is_empty() && !value.starts_with('+'))
        .collect()
}
