//! Two runtimes work at random on one table while storage fails, is late, writes half or loses its
//! answers, by a seed. After it calms every acknowledged row is there exactly once, and nothing is
//! there twice, by every read.
//!
//! `ROLLOUT_FAULTS` says how many faults are injected, `ROLLOUT_FAULT_SEED` which ones. Which
//! operation meets which fault also depends on how the runtimes' tasks interleave.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datafusion_rollouts::RuntimeSettings;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{Process, base_ids, short_life};
use crate::faults::{Fault, Faults};

/// Faults of one round, after which everything is checked.
const FAULTS_OF_A_ROUND: usize = 125;

/// Of all reads, those that meet a fault.
const RATE: f64 = 0.03;

/// Longest that any one statement takes.
const BOUND: Duration = Duration::from_secs(120);

/// Everything happens all the time; nothing is deleted that a stalled operation may still need.
fn restless(name: Option<&str>) -> RuntimeSettings {
    RuntimeSettings {
        flush_interval: Duration::from_millis(200),
        merge_after_generations: 3,
        merge_max_age: Duration::from_millis(700),
        put_timeout: Duration::from_secs(10),
        lease_ttl: Duration::from_millis(500),
        generation_grace: Duration::from_secs(5),
        compact_interval: Duration::from_millis(900),
        cleanup_interval: Duration::from_millis(500),
        cleanup_min_age: Duration::from_secs(5),
        cache_bytes: 256 << 20,
        max_lanes: 2,
        id_index_min_rows: 100,
        local_fsync: false,
        shard_id: name.map(str::to_string),
        ..Default::default()
    }
}

/// What was sent and what was acknowledged: per id, rewards that only rise.
#[derive(Debug, Default)]
struct Ledger {
    sent: BTreeMap<String, i64>,
    acknowledged: BTreeMap<String, i64>,
    doubled: Vec<String>,
    errors: usize,
    statements: usize,
}

struct Round {
    folder: PathBuf,
    faults: Faults,
    ledger: Mutex<Ledger>,
    enough: AtomicBool,
}

impl Round {
    /// One runtime's lives, one after the other, until enough has gone wrong.
    async fn lives(self: Arc<Self>, number: usize, seed: u64) {
        let mut life = 0;
        while !self.enough.load(Ordering::Relaxed) {
            let round = self.clone();
            let random = StdRng::seed_from_u64(seed ^ ((life as u64) << 32));
            let prefix = format!("{number}-{life}");
            // One goes by a name, the other by leases.
            let name = (number == 0).then_some("worker-0");
            short_life(async move || round.life(name, &prefix, random).await).await;
            life += 1;
        }
    }

    async fn life(&self, name: Option<&str>, prefix: &str, mut random: StdRng) {
        let process = Process::failing(restless(name), &self.faults);
        if process.try_create(&self.folder).await.is_err() {
            return;
        }
        let steps = random.random_range(20..80);
        for step in 0..steps {
            if self.enough.load(Ordering::Relaxed) {
                break;
            }
            self.step(&process, &format!("{prefix}-{step}"), &mut random)
                .await;
        }
        // Half of the lives end without a word, and so do those that cannot be closed.
        if random.random_bool(0.5) {
            let _ = tokio::time::timeout(Duration::from_secs(20), process.runtime.shutdown()).await;
        }
        std::mem::forget(process);
    }

    async fn step(&self, process: &Process, prefix: &str, random: &mut StdRng) {
        let act = |name: &str| format!("SELECT * FROM rollout_{name}('rollouts')");
        match random.random_range(0..100) {
            0..70 => self.insert(process, prefix, random).await,
            70..78 => drop(self.run(process, &act("flush")).await),
            78..84 => drop(self.run(process, &act("merge")).await),
            84..87 => drop(self.run(process, &act("compact")).await),
            87..90 => drop(self.run(process, &act("cleanup")).await),
            _ => self.read(process).await,
        }
    }

    async fn run(&self, process: &Process, sql: &str) -> bool {
        let result = tokio::time::timeout(BOUND, process.try_sql(sql)).await;
        let result = result.unwrap_or_else(|_| panic!("{sql}: not within {BOUND:?}"));
        let mut ledger = self.ledger.lock();
        ledger.statements += 1;
        ledger.errors += usize::from(result.is_err());
        result.is_ok()
    }

    async fn insert(&self, process: &Process, prefix: &str, random: &mut StdRng) {
        let mut ids: BTreeSet<String> = (0..random.random_range(1..6))
            .map(|row| format!("{prefix}-{row}"))
            .collect();
        // Some are there already, or were tried: an acknowledged one is not written by the other
        // runtime at the same time, so that its order is known.
        let mine: String = prefix.chars().take(2).collect();
        let reward = {
            let ledger = self.ledger.lock();
            let known: Vec<_> = ledger
                .sent
                .keys()
                .filter(|id| id.starts_with(&mine))
                .collect();
            if !known.is_empty() && random.random_bool(0.4) {
                ids.insert(known[random.random_range(0..known.len())].clone());
            }
            ledger.statements as i64
        };
        let values: Vec<_> = ids
            .iter()
            .map(|id| format!("('{id}', 'p', {reward})"))
            .collect();
        for id in &ids {
            self.ledger.lock().sent.insert(id.clone(), reward);
        }
        let sql = format!(
            "INSERT INTO rollouts (id, problem_id, reward) VALUES {}",
            values.join(", ")
        );
        if self.run(process, &sql).await {
            let mut ledger = self.ledger.lock();
            for id in ids {
                let known = ledger.acknowledged.entry(id).or_default();
                *known = reward.max(*known);
            }
        }
    }

    /// A read may fail, and show old rows, but never an id twice.
    async fn read(&self, process: &Process) {
        let Ok(batches) = process.try_sql("SELECT id FROM rollouts").await else {
            return;
        };
        let mut ids: Vec<String> = Vec::new();
        for batch in &batches {
            let column = arrow_array::cast::AsArray::as_string::<i32>(batch.column(0));
            ids.extend(column.iter().flatten().map(str::to_string));
        }
        ids.sort();
        let twice = ids.windows(2).filter(|two| two[0] == two[1]);
        self.ledger
            .lock()
            .doubled
            .extend(twice.map(|two| two[0].clone()));
    }

    /// Storage works again: a new process brings everything back.
    async fn check(&self, what: &str) {
        let process = Process::open(&self.folder, restless(None)).await;
        // The one that goes by a name is never adopted while nobody expects it to be dead: its next
        // life brings its rows back.
        let named = Process::open(&self.folder, restless(Some("worker-0"))).await;
        let (sent, acknowledged, doubled) = {
            let ledger = self.ledger.lock();
            (
                ledger.sent.clone(),
                ledger.acknowledged.clone(),
                ledger.doubled.clone(),
            )
        };
        assert!(doubled.is_empty(), "{what}: read twice: {doubled:?}");
        let missing = process.missing(&acknowledged).await;
        assert!(
            missing.is_empty(),
            "{what}: of {} acknowledged rows {} are missing: {missing:?}\n{}",
            acknowledged.len(),
            missing.len(),
            self.state(&[&process, &named]).await
        );
        named.flush().await;
        named.shutdown().await;
        process.flush().await;
        process.shutdown().await;
        // What appears late is adopted by now; nobody writes any more.
        let still = Process::open(&self.folder, crate::common::quiet()).await;
        still.merge().await;
        let ids = still.rows("SELECT id FROM rollouts").await;
        assert_eq!(
            still.count().await as usize,
            ids.len(),
            "{what}: count(*) and SELECT id"
        );
        let in_base = base_ids(&self.folder).await;
        assert_eq!(in_base, ids, "{what}: plain Lance and the table");
        let twice: Vec<_> = ids.windows(2).filter(|two| two[0] == two[1]).collect();
        assert!(twice.is_empty(), "{what}: there twice: {twice:?}");
        let unknown: Vec<_> = ids.iter().filter(|id| !sent.contains_key(*id)).collect();
        assert!(unknown.is_empty(), "{what}: nobody sent {unknown:?}");
        still.shutdown().await;
    }
}

impl Round {
    /// What could tell why rows are missing.
    async fn state(&self, processes: &[&Process]) -> String {
        let mut state = String::new();
        for process in processes {
            for sql in [
                "SELECT task, last_error FROM rollout_maintenance('rollouts') WHERE last_error IS NOT NULL",
                "SELECT * FROM rollout_shards('rollouts')",
            ] {
                let rows = process.rows(sql).await;
                state += &format!("{}\n", rows.join("\n"));
            }
        }
        let kept = std::env::temp_dir().join(format!("rollout-fault-{}", rand::random::<u32>()));
        let moved = std::fs::rename(&self.folder, &kept);
        state + &format!("the table is in {}: {moved:?}", kept.display())
    }
}

async fn round(seed: u64, wanted: usize) -> (BTreeMap<Fault, usize>, Ledger) {
    let folder = tempfile::tempdir().expect("folder");
    let round = Arc::new(Round {
        folder: folder.path().join("table"),
        faults: Faults::none(),
        ledger: Mutex::default(),
        enough: AtomicBool::new(false),
    });
    create(&round.folder).await;
    round.faults.by_seed(seed, RATE);
    let runtimes: Vec<_> = (0..2)
        .map(|number| tokio::spawn(round.clone().lives(number, seed ^ ((number as u64) << 16))))
        .collect();
    while round.faults.count() < wanted && runtimes.iter().all(|r| !r.is_finished()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    round.enough.store(true, Ordering::Relaxed);
    for runtime in runtimes {
        runtime.await.expect("works");
    }
    round.faults.heal();
    round.faults.assert_saw_data_files();
    round.check(&format!("seed {seed}")).await;
    let ledger = std::mem::take(&mut *round.ledger.lock());
    (round.faults.injected(), ledger)
}

async fn create(folder: &Path) {
    Process::open(folder, crate::common::quiet())
        .await
        .shutdown()
        .await;
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}: a number")),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_by_seed_loses_and_doubles_nothing() {
    let wanted = number("ROLLOUT_FAULTS").unwrap_or(500) as usize;
    let first = number("ROLLOUT_FAULT_SEED").unwrap_or_else(rand::random);
    let mut injected: BTreeMap<Fault, usize> = BTreeMap::new();
    let (mut acknowledged, mut errors, mut statements) = (0, 0, 0);
    let mut rounds = 0;
    while injected.values().sum::<usize>() < wanted {
        let seed = first.wrapping_add(rounds);
        println!("round {rounds}, ROLLOUT_FAULT_SEED={seed}");
        let (faults, ledger) = round(seed, FAULTS_OF_A_ROUND.min(wanted)).await;
        for (fault, count) in faults {
            *injected.entry(fault).or_default() += count;
        }
        acknowledged += ledger.acknowledged.len();
        errors += ledger.errors;
        statements += ledger.statements;
        rounds += 1;
    }
    println!(
        "seed {first}, {rounds} rounds, {} faults injected: {injected:?}; {statements} statements, \
         {errors} failed; {acknowledged} ids acknowledged",
        injected.values().sum::<usize>()
    );
    assert!(
        acknowledged > 0 && errors > 0,
        "nothing was put to the test"
    );
}
