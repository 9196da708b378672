//! Processes killed with SIGKILL, at random moments and at chosen ones inside flush, merge,
//! compaction, adoption, clean-up and DELETE or UPDATE. Afterwards every acknowledged row is there
//! exactly once, and what was deleted is not.
//!
//! The child is this test binary, running [`kill_child`] alone. It inserts rows of known ids, some
//! again with a higher reward, updates and deletes some, and writes each acknowledgement to a file
//! before it goes on.
//! `ROLLOUT_KILL_ROUNDS` says how many are killed, `ROLLOUT_KILL_ONLY` at which fail point alone.

use std::collections::{BTreeMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::util::pretty::pretty_format_batches;
use arrow_array::cast::AsArray;
use datafusion_rollouts::RuntimeSettings;
use rand::{Rng, SeedableRng};

use crate::common::{Process, base_ids};

const FOLDER: &str = "ROLLOUT_KILL_FOLDER";
const ROUND: &str = "ROLLOUT_KILL_ROUND";
const POINT: &str = "ROLLOUT_KILL_POINT";
const PASSES: &str = "ROLLOUT_KILL_PASSES";
const NAME: &str = "ROLLOUT_KILL_NAME";

/// Where a child is killed: a fail point, or nowhere in particular.
const POINTS: &[Option<&str>] = &[
    None,
    Some("flush-before-freeze"),
    Some("dml-before-commit"),
    Some("flush-under-way"),
    Some("merge-before-commit"),
    Some("merge-before-forget"),
    Some("adopt-before-flush"),
    Some("compact-before-commit"),
    Some("cleanup-in-folder"),
    None,
    Some("cleanup-in-wal"),
    Some("cleanup-before-base"),
    Some("adopt-before-release"),
];

/// Everything happens all the time, and old is what is a second old.
fn restless() -> RuntimeSettings {
    RuntimeSettings {
        flush_interval: Duration::from_millis(150),
        merge_after_generations: 3,
        merge_max_age: Duration::from_millis(700),
        lease_ttl: Duration::from_millis(400),
        generation_grace: Duration::from_millis(1500),
        compact_interval: Duration::from_millis(500),
        cleanup_interval: Duration::from_millis(300),
        cleanup_min_age: Duration::from_millis(1500),
        cache_bytes: 256 << 20,
        max_lanes: 2,
        id_index_min_rows: 200,
        local_fsync: false,
        ..Default::default()
    }
}

/// Rounds after which the next begin with a new table.
const ROUNDS_OF_A_TABLE: usize = 100;

/// The folder of a run: the table, and beside it what children report.
struct Place(PathBuf);

impl Place {
    fn table(&self) -> PathBuf {
        self.0.join("table")
    }

    /// Ids and rewards, one a line, acknowledged.
    fn acknowledged(&self) -> PathBuf {
        self.0.join("acknowledged")
    }

    /// Ids that were sent, whatever became of them.
    fn sent(&self) -> PathBuf {
        self.0.join("sent")
    }

    /// Ids that a DELETE was sent for: whether they are there is open.
    fn deleting(&self) -> PathBuf {
        self.0.join("deleting")
    }

    /// Ids whose DELETE was acknowledged.
    fn deleted(&self) -> PathBuf {
        self.0.join("deleted")
    }

    /// There when a child has come to its fail point.
    fn reached(&self) -> PathBuf {
        self.0.join("reached")
    }

    /// What a child saw that must not be.
    fn faults(&self) -> PathBuf {
        self.0.join("faults")
    }

    fn spawn(&self, round: usize, point: Option<&str>, passes: usize, name: &str) -> Running {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.0.join("log"))
            .expect("log");
        let _ = std::fs::remove_file(self.reached());
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args([
                "--exact",
                "kill::kill_child",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(FOLDER, &self.0)
            .env(ROUND, round.to_string())
            .env(POINT, point.unwrap_or_default())
            .env(PASSES, passes.to_string())
            .env(NAME, name)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("starts");
        Running(child)
    }
}

/// A child that never outlives its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("opens");
    file.write_all(text.as_bytes()).expect("writes");
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // A line the kill cut short was never acknowledged to anybody.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(str::to_string).collect()
}

/// Not a test of its own: what a child does. It ends when it is killed.
#[test]
fn kill_child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let variable = |name| std::env::var(name).expect("set by the parent");
    let place = Arc::new(Place(folder.into()));
    let point = variable(POINT);
    let compacts = point.starts_with("compact");
    if !point.is_empty() {
        let passes: usize = variable(PASSES).parse().expect("a number");
        let reached = place.reached();
        let seen = AtomicUsize::new(0);
        fail::cfg_callback(point, move || {
            if seen.fetch_add(1, Ordering::Relaxed) >= passes {
                append(&reached, "here\n");
                loop {
                    std::thread::park();
                }
            }
        })
        .expect("a fail point");
    }
    let name = variable(NAME);
    let settings = RuntimeSettings {
        shard_id: Some(name).filter(|name| !name.is_empty()),
        ..restless()
    };
    let round = variable(ROUND);
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("tokio");
    tokio.block_on(async {
        let process = Arc::new(Process::open(&place.table(), settings).await);
        let mut tasks = Vec::new();
        for task in 0..3 {
            let (process, place) = (process.clone(), place.clone());
            let prefix = format!("{round}-{task}");
            tasks.push(tokio::spawn(async move {
                insert_for_ever(&process, &place, &prefix).await
            }));
        }
        if compacts {
            // On its own it waits for more fragments than a short life leaves.
            let process = process.clone();
            tasks.push(tokio::spawn(async move {
                loop {
                    let compact = "SELECT * FROM rollout_compact('rollouts')";
                    if let Err(error) = process.try_sql(compact).await {
                        eprintln!("compacting: {error}");
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }));
        }
        tasks.push(tokio::spawn(async move {
            read_for_ever(&process, &place).await
        }));
        for task in tasks {
            task.await.expect("runs");
        }
    });
}

/// Inserts one to twenty rows at a time; every third statement writes the first again.
async fn insert_for_ever(process: &Process, place: &Place, prefix: &str) {
    for statement in 0.. {
        let rows: Vec<(String, usize)> = match statement % 3 {
            2 => vec![(format!("{prefix}-0-0"), statement)],
            _ => (0..1 + statement * 7 % 20)
                .map(|row| (format!("{prefix}-{statement}-{row}"), statement))
                .collect(),
        };
        let values: Vec<_> = rows
            .iter()
            .map(|(id, reward)| format!("('{id}', 'p', {reward})"))
            .collect();
        let text = |(id, reward): &(String, usize)| format!("{id} {reward}\n");
        let report: String = rows.iter().map(text).collect();
        append(&place.sent(), &report);
        let sql = format!(
            "INSERT INTO rollouts (id, problem_id, reward) VALUES {}",
            values.join(", ")
        );
        match process.try_sql(&sql).await {
            Ok(_) => append(&place.acknowledged(), &report),
            Err(error) => eprintln!("{prefix}: {error}"),
        }
        match statement % 12 {
            // The first row of all, which is written again and again.
            5 => update(process, place, &format!("{prefix}-0-0"), statement + 1).await,
            // A row that is written once: it is not the first one.
            10 => delete(process, place, &format!("{prefix}-{}-0", statement - 1)).await,
            _ => {}
        }
    }
}

async fn update(process: &Process, place: &Place, id: &str, reward: usize) {
    let sql = format!("UPDATE rollouts SET reward = {reward} WHERE id = '{id}'");
    match changed(process, &sql).await {
        Ok(0) => {}
        Ok(_) => append(&place.acknowledged(), &format!("{id} {reward}\n")),
        Err(error) => eprintln!("updating {id}: {error}"),
    }
}

async fn delete(process: &Process, place: &Place, id: &str) {
    append(&place.deleting(), &format!("{id}\n"));
    let sql = format!("DELETE FROM rollouts WHERE id = '{id}'");
    match changed(process, &sql).await {
        // Not visible yet: its shard was taken over, and it survives.
        Ok(0) => {}
        Ok(_) => append(&place.deleted(), &format!("{id}\n")),
        Err(error) => eprintln!("deleting {id}: {error}"),
    }
}

/// Rows a statement says it changed.
async fn changed(process: &Process, sql: &str) -> datafusion::error::Result<u64> {
    let batches = process.try_sql(sql).await?;
    let counts = batches.iter().filter(|batch| batch.num_rows() > 0);
    let count = |batch: &arrow_array::RecordBatch| {
        batch
            .column(0)
            .as_primitive::<arrow::datatypes::UInt64Type>()
            .value(0)
    };
    Ok(counts.map(count).sum())
}

async fn read_for_ever(process: &Process, place: &Place) {
    let sql = "SELECT id, count(*) AS rows, min(reward), max(reward) FROM rollouts \
               GROUP BY id HAVING count(*) > 1";
    loop {
        match process.try_sql(sql).await {
            Ok(twice) if twice.iter().all(|batch| batch.num_rows() == 0) => {}
            Ok(twice) => {
                let rows = pretty_format_batches(&twice).expect("prints");
                append(&place.faults(), &format!("ids seen twice:\n{rows}\n"));
            }
            Err(error) => eprintln!("reading: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What must be there: per id, the reward acknowledged last.
fn expected(place: &Place) -> BTreeMap<String, i64> {
    let mut expected = BTreeMap::new();
    for line in lines(&place.acknowledged()) {
        let (id, reward) = line.split_once(' ').expect("id and reward");
        let reward: i64 = reward.parse().expect("a number");
        let known = expected.entry(id.to_string()).or_insert(reward);
        *known = reward.max(*known);
    }
    for id in lines(&place.deleting()) {
        expected.remove(&id);
    }
    expected
}

/// A new process: adopts, flushes, merges, and finds every acknowledged row exactly once.
async fn verify(place: &Place, what: &str) -> usize {
    let settings = RuntimeSettings {
        flush_interval: Duration::ZERO,
        compact_interval: Duration::ZERO,
        cleanup_interval: Duration::ZERO,
        ..restless()
    };
    let process = Process::open(&place.table(), settings).await;
    let expected = expected(place);
    let sent: HashSet<String> = lines(&place.sent())
        .iter()
        .filter_map(|line| line.split_once(' ').map(|(id, _)| id.to_string()))
        .collect();
    let missing = process.missing(&expected).await;
    assert!(
        missing.is_empty(),
        "{what}: {} acknowledged rows missing: {missing:?}",
        missing.len()
    );
    process.flush().await;
    process.merge().await;
    let mut ids = process.rows("SELECT id FROM rollouts").await;
    assert_eq!(
        process.count().await as usize,
        ids.len(),
        "{what}: count(*) and SELECT id"
    );
    let in_base = base_ids(&place.table()).await;
    assert_eq!(in_base, ids, "{what}: plain Lance and the table");
    let rows = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), rows, "{what}: an id is there twice");
    let unknown: Vec<_> = ids.iter().filter(|id| !sent.contains(*id)).collect();
    assert!(unknown.is_empty(), "{what}: rows nobody sent: {unknown:?}");
    let deleted: HashSet<String> = lines(&place.deleted()).into_iter().collect();
    let back: Vec<_> = ids.iter().filter(|id| deleted.contains(*id)).collect();
    assert!(back.is_empty(), "{what}: deleted and back: {back:?}");
    assert_eq!(lines(&place.faults()), [""; 0], "{what}");
    process.shutdown().await;
    rows
}

async fn until(deadline: Instant, mut done: impl FnMut() -> bool) -> bool {
    loop {
        if done() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_at_random_and_at_fail_points() {
    let rounds: usize = std::env::var("ROLLOUT_KILL_ROUNDS")
        .ok()
        .map_or(25, |rounds| rounds.parse().expect("a number of rounds"));
    let only = std::env::var("ROLLOUT_KILL_ONLY").ok();
    let mut folder = tempfile::tempdir().expect("folder");
    let mut place = Place(folder.path().to_path_buf());
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut kills: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut rows, mut deleted) = (0, 0);
    for round in 0..rounds {
        // Lives are too short for a compaction of very many fragments, and rounds would take ever longer.
        if round > 0 && round % ROUNDS_OF_A_TABLE == 0 {
            println!("{round} rounds, {rows} rows in this table");
            deleted += lines(&place.deleted()).len();
            folder = tempfile::tempdir().expect("folder");
            place = Place(folder.path().to_path_buf());
        }
        let point = only.as_deref().or(POINTS[round % POINTS.len()]);
        let name = if round % 4 == 3 { "worker-0" } else { "" };
        if point.is_some_and(|point| point.starts_with("adopt")) {
            // Somebody to adopt: killed with rows that only its log holds.
            let before = lines(&place.acknowledged()).len();
            let victim = place.spawn(round * 10 + 1, None, 0, "");
            let deadline = Instant::now() + Duration::from_secs(20);
            until(deadline, || {
                lines(&place.acknowledged()).len() > before + 10
            })
            .await;
            drop(victim);
        }
        // There is one to adopt: the first time is the last.
        let passes = match point {
            Some(point) if point.starts_with("adopt") => 0,
            _ => random.random_range(0..3),
        };
        let child = place.spawn(round * 10, point, passes, name);
        let reached = match point {
            // A point that is not come to in time makes the kill one at a random moment.
            Some(_) => {
                let deadline = Instant::now() + Duration::from_secs(20);
                until(deadline, || place.reached().exists()).await
            }
            None => {
                let before = lines(&place.acknowledged()).len();
                let deadline = Instant::now() + Duration::from_secs(20);
                until(deadline, || lines(&place.acknowledged()).len() > before).await;
                let moment = random.random_range(0..1500);
                tokio::time::sleep(Duration::from_millis(moment)).await;
                true
            }
        };
        drop(child);
        let at = point.filter(|_| reached).unwrap_or("random moment");
        *kills.entry(at).or_default() += 1;
        rows = verify(
            &place,
            &format!("round {round}, killed at {at}, seed {seed}"),
        )
        .await;
    }
    deleted += lines(&place.deleted()).len();
    println!(
        "{rounds} rounds, {rows} rows in the last table, {deleted} deleted, killed at: {kills:?}"
    );
    // A point nobody ever comes to would prove nothing.
    if rounds >= 25 && only.is_none() {
        let missed: Vec<_> = POINTS
            .iter()
            .flatten()
            .filter(|point| !kills.contains_key(**point))
            .collect();
        assert!(missed.is_empty(), "never reached: {missed:?}");
    }
}
