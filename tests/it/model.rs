//! The table against a plain model.
//!
//! Random sequences of inserts, deletes, updates, flushes, merges and reopenings by several processes'
//! worth of runtimes, on tables that keep the newest or the first version of an id, and after each the same queries of the table and of a DataFusion `MemTable` that holds
//! what the model says is visible. `ROLLOUT_MODEL_STEPS` sets how many steps are tried.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use datafusion::datasource::MemTable;
use datafusion_rollouts::RuntimeSettings;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::common::{Process, quiet};

const PROCESSES: usize = 3;
const STEPS_PER_CASE: usize = 40;

/// What a row holds, as far as the queries look.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    reward: Option<i8>,
    policy_step: Option<i8>,
    problem: u8,
}

#[derive(Debug, Clone)]
enum Step {
    Insert {
        process: usize,
        rows: Vec<(u8, Row)>,
    },
    Delete {
        process: usize,
        condition: usize,
        argument: i8,
    },
    Update {
        process: usize,
        condition: usize,
        argument: i8,
    },
    Flush(usize),
    Merge(usize),
    Reopen(usize),
    Query {
        process: usize,
        latest: bool,
        query: usize,
        argument: i8,
        partitions: usize,
        batch_size: usize,
    },
}

/// A condition in SQL, with argument `$a`, and what it says of a row.
type Condition = (&'static str, fn(u8, &Row, i8) -> bool);

/// Conditions of DELETE and UPDATE: for storage, for the engine, for both.
const CONDITIONS: &[Condition] = &[
    ("reward = $a", |_, row, a| row.reward == Some(a)),
    ("NOT (policy_step >= $a)", |_, row, a| {
        row.policy_step.is_some_and(|step| step < a)
    }),
    ("reward IS NULL", |_, row, _| row.reward.is_none()),
    ("id IN ('r$a', 'r1', 'r2')", |id, _, a| {
        [1, 2, a as u8].contains(&id)
    }),
    (
        "reward + policy_step > $a AND problem_id <> 'p0'",
        |_, row, a| {
            let sum = row.reward.zip(row.policy_step).map(|(r, s)| r + s);
            row.problem != 0 && sum.is_some_and(|sum| sum > a)
        },
    ),
];

/// Queries over table `$t` with argument `$a`; results are compared as sets of rows.
const QUERIES: &[&str] = &[
    "SELECT count(*) FROM $t",
    "SELECT count(*), count(reward), sum(reward), min(policy_step), max(policy_step) FROM $t",
    "SELECT id, reward, policy_step, problem_id FROM $t",
    "SELECT id FROM $t WHERE reward = $a",
    "SELECT id FROM $t WHERE NOT (reward = $a)",
    "SELECT id FROM $t WHERE reward <> $a OR policy_step < $a",
    "SELECT id FROM $t WHERE reward IS NULL AND policy_step IS NOT NULL",
    "SELECT id, policy_step FROM $t WHERE policy_step BETWEEN $a AND $a + 2",
    "SELECT id FROM $t WHERE policy_step NOT IN ($a, NULL)",
    "SELECT id FROM $t WHERE policy_step IN ($a, 1, 3)",
    "SELECT reward FROM $t WHERE id = 'r$a'",
    "SELECT id, reward FROM $t WHERE id IN ('r$a', 'r1', 'r2')",
    "SELECT problem_id, count(*), avg(reward) FROM $t GROUP BY problem_id",
    "SELECT id, reward FROM $t ORDER BY id LIMIT 3 OFFSET 2",
    "SELECT id FROM $t ORDER BY reward DESC NULLS LAST, id LIMIT 4",
    "SELECT a.id FROM $t a JOIN $t b ON a.problem_id = b.problem_id AND a.reward < b.reward",
    "SELECT id, row_number() OVER (PARTITION BY problem_id ORDER BY id) FROM $t",
    "SELECT count(*) FROM (SELECT 1 FROM $t LIMIT 3)",
    "SELECT count(*) FROM (SELECT id FROM $t WHERE reward >= $a LIMIT 2)",
    "SELECT id FROM $t WHERE id LIKE 'r1%' AND (reward > $a OR reward IS NULL)",
    "SELECT role, count(*) FROM $t WHERE role = 'assistant' GROUP BY role",
];

fn row() -> impl Strategy<Value = Row> {
    (
        proptest::option::weighted(0.7, -1..4_i8),
        proptest::option::weighted(0.8, 0..5_i8),
        0..4_u8,
    )
        .prop_map(|(reward, policy_step, problem)| Row {
            reward,
            policy_step,
            problem,
        })
}

fn step() -> impl Strategy<Value = Step> {
    let process = || 0..PROCESSES;
    let rows = proptest::collection::vec((0..24_u8, row()), 1..8);
    let query = (
        process(),
        any::<bool>(),
        0..QUERIES.len(),
        0..4_i8,
        prop_oneof![Just(1_usize), Just(4), Just(16)],
        prop_oneof![Just(1_usize), Just(7), Just(8192)],
    )
        .prop_map(
            |(process, latest, query, argument, partitions, batch_size)| Step::Query {
                process,
                latest,
                query,
                argument,
                partitions,
                batch_size,
            },
        );
    let change = || (process(), 0..CONDITIONS.len(), 0..4_i8);
    prop_oneof![
        1 => change().prop_map(|(process, condition, argument)| Step::Delete {
            process,
            condition,
            argument,
        }),
        1 => change().prop_map(|(process, condition, argument)| Step::Update {
            process,
            condition,
            argument,
        }),
        6 => (process(), rows).prop_map(|(process, rows)| Step::Insert { process, rows }),
        3 => process().prop_map(Step::Flush),
        1 => process().prop_map(Step::Merge),
        1 => process().prop_map(Step::Reopen),
        9 => query,
    ]
}

/// A version of a row, in the order of acknowledgement.
struct Version {
    id: u8,
    row: Row,
    writer: usize,
    flushed: bool,
}

struct Model {
    /// Whether the first version of an id counts, not the newest.
    first_counts: bool,
    versions: Vec<Version>,
}

impl Model {
    fn flush(&mut self, process: usize) {
        for version in &mut self.versions {
            version.flushed |= version.writer == process;
        }
    }

    /// What a process sees: per id the version that counts among those visible to it.
    fn visible(&self, process: usize, latest: bool) -> BTreeMap<u8, Row> {
        let mut rows = BTreeMap::new();
        for version in &self.versions {
            if version.flushed || (latest && version.writer == process) {
                if self.first_counts && rows.contains_key(&version.id) {
                    continue;
                }
                rows.insert(version.id, version.row.clone());
            }
        }
        rows
    }

    /// Drops flushed versions that do not count: a statement finds them merged away.
    fn merge(&mut self) {
        let mut seen = std::collections::BTreeSet::new();
        let mut versions = std::mem::take(&mut self.versions);
        if !self.first_counts {
            versions.reverse();
        }
        versions.retain(|version| !version.flushed || seen.insert(version.id));
        if !self.first_counts {
            versions.reverse();
        }
        self.versions = versions;
    }

    /// Deletes the flushed rows that meet a condition; versions that are not flushed stay.
    fn delete(&mut self, (_, meets): Condition, argument: i8) -> usize {
        self.merge();
        let before = self.versions.len();
        self.versions
            .retain(|v| !(v.flushed && meets(v.id, &v.row, argument)));
        before - self.versions.len()
    }

    /// Changes the flushed rows that meet a condition. They become the newest versions, or, where
    /// the first one counts, keep their place.
    fn update(&mut self, (_, meets): Condition, argument: i8) -> usize {
        self.merge();
        let mut newest = Vec::new();
        let mut rest = Vec::new();
        let mut changed = 0;
        for mut version in std::mem::take(&mut self.versions) {
            if !(version.flushed && meets(version.id, &version.row, argument)) {
                rest.push(version);
                continue;
            }
            changed += 1;
            version.row.reward = version.row.reward.map(|reward| reward + 1);
            version.row.policy_step = Some(argument);
            match self.first_counts {
                true => rest.push(version),
                false => newest.push(version),
            }
        }
        rest.append(&mut newest);
        self.versions = rest;
        changed
    }

    fn batch(&self, process: usize, latest: bool) -> RecordBatch {
        let rows = self.visible(process, latest);
        let reals = |of: fn(&Row) -> Option<i8>| {
            Float32Array::from_iter(rows.values().map(|row| of(row).map(f32::from)))
        };
        let ids: ArrayRef = Arc::new(StringArray::from_iter_values(
            rows.keys().map(|id| format!("r{id}")),
        ));
        let problems: ArrayRef = Arc::new(StringArray::from_iter_values(
            rows.values().map(|row| format!("p{}", row.problem)),
        ));
        let roles: ArrayRef = Arc::new(StringArray::from_iter_values(
            rows.keys().map(|_| "assistant"),
        ));
        let steps = rows.values().map(|row| row.policy_step.map(i64::from));
        RecordBatch::try_from_iter_with_nullable([
            ("id", ids, false),
            ("reward", Arc::new(reals(|row| row.reward)) as _, true),
            (
                "policy_step",
                Arc::new(Int64Array::from_iter(steps)) as _,
                true,
            ),
            ("problem_id", problems, false),
            ("role", roles, false),
        ])
        .expect("a batch")
    }
}

fn insert_statement(rows: &[(u8, Row)]) -> String {
    let number = |value: Option<i8>| value.map_or("NULL".to_string(), |value| value.to_string());
    let values: Vec<String> = rows
        .iter()
        .map(|(id, row)| {
            format!(
                "('r{id}', 'p{}', {}, {})",
                row.problem,
                number(row.reward),
                number(row.policy_step)
            )
        })
        .collect();
    format!(
        "INSERT INTO rollouts (id, problem_id, reward, policy_step) VALUES {}",
        values.join(", ")
    )
}

fn settings() -> RuntimeSettings {
    RuntimeSettings {
        local_fsync: false,
        cache_bytes: 16 << 20,
        ..quiet()
    }
}

struct World {
    processes: Vec<Process>,
    model: Model,
}

impl World {
    async fn new(folder: &Path, first_counts: bool) -> Self {
        if first_counts {
            let maker = Process::new(settings());
            let place = folder.display();
            let make = format!(
                "CREATE EXTERNAL TABLE rollouts STORED AS ROLLOUT LOCATION '{place}' \
                 OPTIONS ('rollout.on_conflict' 'ignore')"
            );
            maker.sql(&make).await;
            maker.shutdown().await;
        }
        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            processes.push(Process::open(folder, settings()).await);
        }
        Self {
            processes,
            model: Model {
                first_counts,
                versions: Vec::new(),
            },
        }
    }

    async fn take(&mut self, folder: &Path, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Insert { process, rows } => {
                // With smaller batches the engine spreads a statement's rows over partitions, and
                // which of two rows of one id comes last is no longer the statement's order.
                let writer = &self.processes[*process];
                writer
                    .sql("SET datafusion.execution.batch_size = 8192")
                    .await;
                let statement = insert_statement(rows);
                let count = self.processes[*process].number(&statement).await;
                prop_assert_eq!(count, rows.len() as i64);
                for (id, row) in rows {
                    self.model.versions.push(Version {
                        id: *id,
                        row: row.clone(),
                        writer: *process,
                        flushed: false,
                    });
                }
            }
            Step::Delete {
                process,
                condition,
                argument,
            } => {
                let condition = CONDITIONS[*condition];
                let meets = condition.0.replace("$a", &argument.to_string());
                let statement = format!("DELETE FROM rollouts WHERE {meets}");
                self.model.flush(*process);
                let deleted = self.model.delete(condition, *argument);
                let count = self.processes[*process].number(&statement).await;
                prop_assert_eq!(count, deleted as i64, "{}", statement);
            }
            Step::Update {
                process,
                condition,
                argument,
            } => {
                let condition = CONDITIONS[*condition];
                let meets = condition.0.replace("$a", &argument.to_string());
                let statement = format!(
                    "UPDATE rollouts SET reward = reward + 1, policy_step = {argument} WHERE {meets}"
                );
                self.model.flush(*process);
                let changed = self.model.update(condition, *argument);
                let count = self.processes[*process].number(&statement).await;
                prop_assert_eq!(count, changed as i64, "{}", statement);
            }
            Step::Flush(process) => {
                self.processes[*process].flush().await;
                self.model.flush(*process);
            }
            Step::Merge(process) => {
                self.processes[*process].merge().await;
            }
            Step::Reopen(process) => {
                self.processes[*process].shutdown().await;
                self.model.flush(*process);
                self.processes[*process] = Process::open(folder, settings()).await;
            }
            Step::Query { .. } => self.query(step).await?,
        }
        Ok(())
    }

    async fn query(&self, step: &Step) -> Result<(), TestCaseError> {
        let Step::Query {
            process,
            latest,
            query,
            argument,
            partitions,
            batch_size,
        } = step
        else {
            return Ok(());
        };
        let reader = &self.processes[*process];
        let freshness = if *latest { "latest" } else { "flushed" };
        reader
            .sql(&format!("SET rollout.freshness = '{freshness}'"))
            .await;
        reader
            .sql(&format!(
                "SET datafusion.execution.target_partitions = {partitions}"
            ))
            .await;
        reader
            .sql(&format!(
                "SET datafusion.execution.batch_size = {batch_size}"
            ))
            .await;
        let batch = self.model.batch(*process, *latest);
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a table");
        reader.ctx.deregister_table("model").expect("forgets");
        reader
            .ctx
            .register_table("model", Arc::new(table))
            .expect("registers");
        let sql = |table: &str| {
            QUERIES[*query]
                .replace("$t", table)
                .replace("$a", &argument.to_string())
        };
        let got = reader.rows(&sql("rollouts")).await;
        let want = reader.rows(&sql("model")).await;
        prop_assert_eq!(
            got,
            want,
            "{} of process {}, {}",
            sql("rollouts"),
            process,
            freshness
        );
        Ok(())
    }
}

#[test]
fn model_random_steps_read_like_a_plain_table() {
    let steps: usize = std::env::var("ROLLOUT_MODEL_STEPS")
        .ok()
        .and_then(|steps| steps.parse().ok())
        .unwrap_or(2_000);
    let mut runner = TestRunner::new(Config {
        cases: steps.div_ceil(STEPS_PER_CASE) as u32,
        max_shrink_iters: 60,
        failure_persistence: None,
        ..Config::default()
    });
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("tokio");
    let sequences = (
        any::<bool>(),
        proptest::collection::vec(step(), STEPS_PER_CASE),
    );
    let outcome = runner.run(&sequences, |(first_counts, steps)| {
        tokio.block_on(async {
            let folder = tempfile::tempdir().expect("folder");
            let mut world = World::new(folder.path(), first_counts).await;
            for step in &steps {
                world.take(folder.path(), step).await?;
            }
            Ok(())
        })
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    println!("model: {steps} steps");
}
