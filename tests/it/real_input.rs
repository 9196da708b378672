//! Real input: the sample data of `../shared/data`, through SQL. Skipped, saying so, where that folder
//! is absent. What the files hold is asserted in `sql-tests/data_*.slt`; here is what takes more
//! than one process or a look past SQL: a table written by another program, opened in place, and
//! one dump loaded by two processes at once.

use std::error::Error;
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::prelude::SessionContext;
use datafusion_rollouts::{RolloutRuntime, RolloutSessionExt, RuntimeSettings};
use futures::TryStreamExt;

type TestResult = Result<(), Box<dyn Error>>;

/// The one shard of the table written by the other program.
const PEER_SHARD: &str = "02e81b29-f150-54b9-9a08-ce75944f6889";

fn data() -> Option<PathBuf> {
    let folder = crate::checkout::root().join("../shared/data");
    let found = folder.canonicalize().ok().filter(|folder| folder.is_dir());
    if found.is_none() {
        println!("skipped: the sample data (../shared/data) is absent");
    }
    found
}

/// One process's worth of the library that flushes and merges on request only.
struct Process {
    runtime: RolloutRuntime,
    ctx: SessionContext,
}

impl Process {
    fn start() -> Result<Self, Box<dyn Error>> {
        let mut settings = RuntimeSettings::default();
        settings.set("flush_interval_secs", "0")?;
        settings.set("merge_after_generations", "0")?;
        let runtime = RolloutRuntime::builder().with_settings(settings).build()?;
        let ctx = SessionContext::new();
        ctx.register_rollouts(&runtime)?;
        Ok(Self { runtime, ctx })
    }

    async fn open(&self, folder: &Path, options: &str) -> Result<(), Box<dyn Error>> {
        let folder = folder.display();
        self.rows(&format!(
            "CREATE EXTERNAL TABLE rollouts STORED AS ROLLOUT LOCATION '{folder}' {options}"
        ))
        .await?;
        self.rows("SET rollout.snapshot_max_age_ms = 0").await?;
        Ok(())
    }

    /// The rows of a statement's answer, cells as text.
    async fn rows(&self, sql: &str) -> Result<Vec<Vec<String>>, Box<dyn Error>> {
        let batches = self.ctx.sql(sql).await?.collect().await?;
        let mut rows = Vec::new();
        for batch in &batches {
            for row in 0..batch.num_rows() {
                let cells: Result<Vec<_>, _> = batch
                    .columns()
                    .iter()
                    .map(|column| array_value_to_string(column, row))
                    .collect();
                rows.push(cells?);
            }
        }
        Ok(rows)
    }

    /// The one cell of a statement's answer.
    async fn cell(&self, sql: &str) -> Result<String, Box<dyn Error>> {
        let rows = self.rows(sql).await?;
        match rows.as_slice() {
            [row] if row.len() == 1 => Ok(row[0].clone()),
            rows => Err(format!("{sql}: one cell expected, got {rows:?}").into()),
        }
    }

    async fn count(&self, sql: &str) -> Result<u64, Box<dyn Error>> {
        Ok(self.cell(sql).await?.parse()?)
    }

    async fn flush(&self) -> Result<(), Box<dyn Error>> {
        self.rows("SELECT * FROM rollout_flush('rollouts')").await?;
        Ok(())
    }

    async fn merge(&self) -> Result<(), Box<dyn Error>> {
        self.rows("SELECT * FROM rollout_merge('rollouts')").await?;
        Ok(())
    }
}

/// The ids of the base table as plain Lance reads them, sorted.
async fn ids_in_base(folder: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let base = lance::Dataset::open(&folder.display().to_string()).await?;
    let mut scan = base.scan();
    scan.project(&["id"])?;
    let batches: Vec<RecordBatch> = scan.try_into_stream().await?.try_collect().await?;
    let mut ids = Vec::new();
    for batch in &batches {
        let column = batch.column(0).as_string::<i32>();
        ids.extend((0..column.len()).map(|row| column.value(row).to_string()));
    }
    ids.sort();
    Ok(ids)
}

fn expected_ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("r{n:03}")).collect()
}

/// Unpacks the table another program wrote, and leaves it as that program left it.
fn unpack_peer(data: &Path, into: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let file = std::fs::File::open(data.join("peer_table.tar.gz"))?;
    tar::Archive::new(flate2::read::GzDecoder::new(file)).unpack(into)?;
    Ok(into.join("peer.lance"))
}

/// Every file below a folder with its size and time: what a reader must not change.
fn files_below(folder: &Path) -> std::io::Result<Vec<(PathBuf, u64, std::time::SystemTime)>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() {
                folders.push(entry.path());
            } else {
                files.push((entry.path(), about.len(), about.modified()?));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Read-only: the 32 flushed rows, the newest version of r005, and not a file changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_program_is_read_in_place() -> TestResult {
    let Some(data) = data() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let table = unpack_peer(&data, folder.path())?;
    let before = files_below(&table)?;

    let reader = Process::start()?;
    reader
        .open(&table, "OPTIONS ('rollout.read_only' 'true')")
        .await?;
    assert_eq!(reader.count("SELECT count(*) FROM rollouts").await?, 32);
    let ids = reader.rows("SELECT id FROM rollouts ORDER BY id").await?;
    assert_eq!(ids.concat(), expected_ids(32));
    assert_eq!(
        reader
            .rows("SELECT content FROM rollouts WHERE id = 'r005'")
            .await?,
        [["second version of r005"]]
    );
    let second = "SELECT count(*) FROM rollouts WHERE content LIKE 'second version%'";
    assert_eq!(reader.count(second).await?, 1);
    // The columns it was made with, and none of ours.
    let columns = reader.rows("DESCRIBE rollouts").await?;
    let names: Vec<_> = columns.iter().map(|row| row[0].as_str()).collect();
    assert!(
        names.contains(&"policy_version") && !names.contains(&"ingested_at"),
        "{names:?}"
    );

    let refused = reader.rows("INSERT INTO rollouts (id) VALUES ('x')").await;
    assert!(refused.is_err_and(|error| error.to_string().contains("read-only")));
    reader.runtime.shutdown().await?;
    assert_eq!(files_below(&table)?, before);
    Ok(())
}

/// Taken over by the name of its shard: the row in the WAL becomes visible with a flush, and the table
/// goes on with our writes and merges, in that shard and in others.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_program_is_taken_over() -> TestResult {
    let Some(data) = data() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let table = unpack_peer(&data, folder.path())?;

    let heir = Process::start()?;
    let by_name = format!("OPTIONS ('rollout.shard_id' '{PEER_SHARD}')");
    heir.open(&table, &by_name).await?;
    assert_eq!(
        heir.count("SELECT count(*) FROM rollouts WHERE id <= 'r031'")
            .await?,
        32
    );
    // r032 is acknowledged and in the WAL only: replayed, flushed, visible.
    heir.flush().await?;
    assert_eq!(heir.count("SELECT count(*) FROM rollouts").await?, 33);
    let ids = heir.rows("SELECT id FROM rollouts ORDER BY id").await?;
    assert_eq!(ids.concat(), expected_ids(33));
    let r005 = "SELECT content FROM rollouts WHERE id = 'r005'";
    assert_eq!(heir.cell(r005).await?, "second version of r005");

    // Written to: a new row, and a third version of r005 in the generation after the second's.
    let written = heir
        .count(
            "INSERT INTO rollouts (id, rollout_id, problem_id, content) VALUES \
             ('r033', 'r033', 'p', 'ours'), ('r005', 'r005', 'p', 'third version of r005')",
        )
        .await?;
    assert_eq!(written, 2);
    heir.flush().await?;
    assert_eq!(heir.count("SELECT count(*) FROM rollouts").await?, 34);
    assert_eq!(heir.cell(r005).await?, "third version of r005");

    // Merged: the base holds every id once, for plain Lance too.
    heir.merge().await?;
    assert_eq!(heir.count("SELECT count(*) FROM rollouts").await?, 34);
    assert_eq!(heir.cell(r005).await?, "third version of r005");
    assert_eq!(ids_in_base(&table).await?, expected_ids(34));
    assert_eq!(
        heir.count("SELECT count(*) FROM rollout_generations('rollouts')")
            .await?,
        0
    );

    // Another process, which leases a shard of its own, writes beside it.
    let other = Process::start()?;
    other.open(&table, "").await?;
    assert_eq!(other.cell(r005).await?, "third version of r005");
    other
        .rows("INSERT INTO rollouts (id) VALUES ('r034')")
        .await?;
    other.flush().await?;
    heir.rows("INSERT INTO rollouts (id) VALUES ('r035')")
        .await?;
    heir.flush().await?;
    other.merge().await?;
    for process in [&heir, &other] {
        assert_eq!(process.count("SELECT count(*) FROM rollouts").await?, 36);
        assert_eq!(
            process
                .count("SELECT count(DISTINCT id) FROM rollouts")
                .await?,
            36
        );
    }
    assert_eq!(ids_in_base(&table).await?, expected_ids(36));
    other.runtime.shutdown().await?;
    heir.runtime.shutdown().await?;

    // And once more from the beginning: nothing is replayed twice.
    let last = Process::start()?;
    last.open(&table, &by_name).await?;
    last.flush().await?;
    last.merge().await?;
    assert_eq!(last.count("SELECT count(*) FROM rollouts").await?, 36);
    assert_eq!(ids_in_base(&table).await?, expected_ids(36));
    last.runtime.shutdown().await?;
    Ok(())
}

/// Without the shard's name the row in its WAL stays where it is: nobody knows that its writer is
/// gone. The table is read and written all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_without_a_lease_is_left_alone() -> TestResult {
    let Some(data) = data() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let table = unpack_peer(&data, folder.path())?;
    let shard = table.join("_mem_wal").join(PEER_SHARD);
    let before = files_below(&shard)?;

    let process = Process::start()?;
    process.open(&table, "").await?;
    process
        .rows("INSERT INTO rollouts (id) VALUES ('r100')")
        .await?;
    process.flush().await?;
    assert_eq!(process.count("SELECT count(*) FROM rollouts").await?, 33);
    let unseen = "SELECT count(*) FROM rollouts WHERE id = 'r032'";
    assert_eq!(process.count(unseen).await?, 0);
    assert_eq!(files_below(&shard)?, before);
    process.runtime.shutdown().await?;
    Ok(())
}

/// Two processes load the same dump at the same time: 60 rows, each once, whoever was later.
#[tokio::test(flavor = "multi_thread")]
async fn one_dump_loaded_by_two_processes_is_there_once() -> TestResult {
    let Some(data) = data() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let table = folder.path().join("rollouts");
    let load = async |loader: &str| -> Result<Process, Box<dyn Error>> {
        let process = Process::start()?;
        process.open(&table, "").await?;
        let dump = data.join("areal_aime24_dump.jsonl");
        process
            .rows(&format!(
                "CREATE EXTERNAL TABLE dump STORED AS JSON LOCATION '{}'",
                dump.display()
            ))
            .await?;
        let rows = process
            .count(&format!(
                "INSERT INTO rollouts (id, problem_id, dataset, reward, model_output_string) \
                 SELECT concat('aime24/', task_id, '/', sample_idx), concat('aime24/', task_id), \
                 '{loader}', reward, completion FROM dump"
            ))
            .await?;
        assert_eq!(rows, 60);
        Ok(process)
    };
    let (first, second) = tokio::try_join!(load("first"), load("second"))?;
    tokio::try_join!(first.flush(), second.flush())?;
    let facts = "SELECT count(*), count(DISTINCT id), count(DISTINCT problem_id), sum(reward) FROM rollouts";
    for process in [&first, &second] {
        assert_eq!(process.rows(facts).await?, [["60", "60", "30", "28.0"]]);
    }
    // Which loader's row it is may differ from row to row, and must not differ between readers,
    // before the merge and after it.
    let whose = "SELECT id, dataset FROM rollouts ORDER BY id";
    let seen = first.rows(whose).await?;
    assert_eq!(second.rows(whose).await?, seen);
    tokio::try_join!(first.merge(), second.merge())?;
    for process in [&first, &second] {
        assert_eq!(process.rows(facts).await?, [["60", "60", "30", "28.0"]]);
        assert_eq!(process.rows(whose).await?, seen);
    }
    assert_eq!(ids_in_base(&table).await?.len(), 60);
    first.runtime.shutdown().await?;
    second.runtime.shutdown().await?;
    Ok(())
}
