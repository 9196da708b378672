//! DELETE, UPDATE and TRUNCATE: the rows that were asked for, all of them and no other.

use std::sync::{Arc, Mutex};

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::datasource::empty::EmptyTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_rollouts::{RolloutRuntime, RolloutSessionExt, RolloutTableProvider, TableOptions};

use crate::common::{Process, base_ids, quiet};

const REWARDS: &str = "SELECT id, reward FROM rollouts";

/// A process with rows a=1, b=2, c=3 and d=NULL: merged, flushed, and not flushed.
async fn four_rows() -> (tempfile::TempDir, Process) {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    process.insert("a", 1.0).await;
    process.insert("b", 0.0).await;
    process.flush().await;
    process.merge().await;
    process.insert("b", 2.0).await;
    process.flush().await;
    process.insert("c", 3.0).await;
    process.sql("INSERT INTO rollouts (id) VALUES ('d')").await;
    (folder, process)
}

async fn refused(process: &Process, sql: &str, because: &str) {
    let error = process.try_sql(sql).await.expect_err(sql).to_string();
    assert!(error.contains(because), "{sql}: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_takes_what_matches_wherever_it_is_and_leaves_null() {
    let (folder, process) = four_rows().await;
    assert_eq!(
        process
            .number("DELETE FROM rollouts WHERE reward >= 2")
            .await,
        2
    );
    assert_eq!(process.rows(REWARDS).await, ["a|1.0", "d|NULL"]);
    assert_eq!(process.count().await, 2);
    assert_eq!(base_ids(folder.path()).await, ["a", "d"]);
    assert_eq!(
        process
            .number("DELETE FROM rollouts WHERE reward >= 2")
            .await,
        0
    );
    // What was deleted may come again.
    process.insert("b", 7.0).await;
    process.flush().await;
    process.merge().await;
    assert_eq!(process.rows(REWARDS).await, ["a|1.0", "b|7.0", "d|NULL"]);
    process.shutdown().await;
    let again = Process::open(folder.path(), quiet()).await;
    assert_eq!(again.rows(REWARDS).await, ["a|1.0", "b|7.0", "d|NULL"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_mean_what_they_mean_in_a_query() {
    for condition in [
        "reward <> 1",
        "NOT (reward > 1)",
        "reward IS NULL",
        "reward + 1 > 2 AND id <> 'c'",
        "upper(id) IN ('A', 'D')",
        "role = 'assistant' AND reward < 3.0",
        "(reward + 1) * 2 > 4 OR (reward + 1) * 3 < 7",
        "coalesce(reward, 9) > 2",
        "created_at <= now()",
        "reward = 'NaN' OR id LIKE '_'",
        "id = rollout_id AND reward > 1",
    ] {
        let (_folder, process) = four_rows().await;
        process.flush().await;
        let meant = process
            .rows(&format!("SELECT id FROM rollouts WHERE {condition}"))
            .await;
        let kept = process
            .rows(&format!(
                "SELECT id FROM rollouts WHERE ({condition}) IS NOT TRUE"
            ))
            .await;
        let deleted = process
            .number(&format!("DELETE FROM rollouts WHERE {condition}"))
            .await;
        assert_eq!(deleted as usize, meant.len(), "{condition}");
        assert_eq!(
            process.rows("SELECT id FROM rollouts").await,
            kept,
            "{condition}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn planning_and_explaining_change_nothing() {
    let (_folder, process) = four_rows().await;
    for sql in [
        "DELETE FROM rollouts WHERE reward > 0",
        "UPDATE rollouts SET reward = 9",
        "TRUNCATE TABLE rollouts",
    ] {
        let frame = process.ctx.sql(sql).await.expect("plans");
        frame.create_physical_plan().await.expect("plans");
        let plan = process.rows(&format!("EXPLAIN {sql}")).await.join("\n");
        assert!(plan.contains("RolloutDmlExec: statement="), "{plan}");
    }
    process.latest().await;
    assert_eq!(
        process.rows(REWARDS).await,
        ["a|1.0", "b|2.0", "c|3.0", "d|NULL"]
    );
    process
        .sql("EXPLAIN ANALYZE DELETE FROM rollouts WHERE id = 'a'")
        .await;
    assert_eq!(process.count().await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_hidden_from_the_table_is_refused() {
    let (_folder, process) = four_rows().await;
    process.sql("CREATE TABLE other AS VALUES ('a')").await;
    let cases = [
        ("DELETE FROM rollouts", "TRUNCATE"),
        ("DELETE FROM rollouts WHERE true", "TRUNCATE"),
        ("DELETE FROM rollouts WHERE 1 = 1", "TRUNCATE"),
        ("DELETE FROM rollouts WHERE false", "never true"),
        (
            "DELETE FROM rollouts WHERE reward > 0 AND 1 = 2",
            "never true",
        ),
        ("DELETE FROM rollouts WHERE NULL", "never true"),
        ("UPDATE rollouts SET reward = 0 WHERE false", "never true"),
        (
            "DELETE FROM rollouts WHERE reward > 0 AND id IN (SELECT column1 FROM other)",
            "a subquery",
        ),
        (
            "DELETE FROM rollouts WHERE EXISTS (SELECT 1 FROM other WHERE column1 = rollouts.id)",
            "EXISTS",
        ),
        (
            "DELETE FROM rollouts WHERE reward > (SELECT avg(reward) FROM rollouts)",
            "a subquery",
        ),
        ("DELETE FROM rollouts WHERE reward > 0 LIMIT 1", "LIMIT"),
        ("DELETE FROM rollouts LIMIT 1", "LIMIT"),
        ("UPDATE rollouts SET reward = (SELECT 1)", "a subquery"),
        (
            "UPDATE rollouts SET reward = 0 WHERE id IN (SELECT column1 FROM other)",
            "a subquery",
        ),
        (
            "UPDATE rollouts SET reward = 0 FROM other WHERE id = column1",
            "not supported",
        ),
        (
            "UPDATE rollouts JOIN other ON id = column1 SET reward = 0",
            "a join",
        ),
    ];
    for (sql, because) in cases {
        refused(&process, sql, because).await;
    }
    // Prepared statements are optimized before anybody checks them.
    for (sql, because) in [
        ("DELETE FROM rollouts WHERE false", "never true"),
        (
            "DELETE FROM rollouts WHERE reward > 0 AND id IN (SELECT column1 FROM other)",
            "a join",
        ),
        ("DELETE FROM rollouts LIMIT 1", "LIMIT"),
        (
            "UPDATE rollouts SET reward = 0 WHERE reward > 0 AND false",
            "never true",
        ),
    ] {
        process.sql(&format!("PREPARE hidden AS {sql}")).await;
        refused(&process, "EXECUTE hidden", because).await;
        process.sql("DEALLOCATE hidden").await;
    }
    process.flush().await;
    assert_eq!(
        process.rows(REWARDS).await,
        ["a|1.0", "b|2.0", "c|3.0", "d|NULL"]
    );
}

/// A table that notes the filters a DELETE brings.
#[derive(Debug)]
struct Spy {
    schema: SchemaRef,
    seen: Mutex<Vec<String>>,
}

#[async_trait]
impl TableProvider for Spy {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
        let empty = EmptyTable::new(self.schema.clone());
        empty.scan(state, projection, filters, limit).await
    }

    async fn delete_from(
        &self,
        state: &dyn Session,
        filters: Vec<Expr>,
    ) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
        *self.seen.lock().expect("lock") = filters.iter().map(ToString::to_string).collect();
        self.scan(state, None, &[], None).await
    }
}

/// Why the rule is needed. Should this fail with a newer DataFusion, it may be less strict.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_rule_a_partial_condition_arrives() {
    let spy = Arc::new(Spy {
        schema: Arc::new(Schema::new(vec![
            Field::new("id", DataType::Utf8, false),
            Field::new("reward", DataType::Float32, true),
        ])),
        seen: Mutex::default(),
    });
    let ctx = SessionContext::new();
    ctx.register_table("rollouts", spy.clone())
        .expect("registers");
    ctx.sql("CREATE TABLE other AS VALUES ('a')")
        .await
        .expect("other");
    for (condition, arrives) in [
        (
            "WHERE reward < 0 AND id IN (SELECT column1 FROM other)",
            vec!["reward < Float32(0)"],
        ),
        ("WHERE id IN (SELECT column1 FROM other)", vec![]),
        ("WHERE false", vec![]),
        ("LIMIT 1", vec![]),
    ] {
        let delete = ctx.sql(&format!("DELETE FROM rollouts {condition}")).await;
        let plan = delete.expect("plans").create_physical_plan().await;
        plan.expect("plans");
        assert_eq!(*spy.seen.lock().expect("lock"), arrives, "{condition}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_the_rule_is_refused() {
    let (folder, process) = four_rows().await;
    process.flush().await;
    let plain = SessionContext::new();
    let handle = process
        .runtime
        .open(
            &folder.path().display().to_string(),
            None,
            TableOptions::default(),
        )
        .await
        .expect("opens");
    let table = Arc::new(RolloutTableProvider::new(handle));
    plain
        .register_table("rollouts", table.clone())
        .expect("registers");
    for sql in [
        "DELETE FROM rollouts WHERE id = 'a'",
        "UPDATE rollouts SET reward = 0 WHERE id = 'a'",
        "UPDATE rollouts SET reward = 0",
    ] {
        let frame = plain.sql(sql).await.expect("plans");
        let error = frame.collect().await.expect_err(sql).to_string();
        assert!(error.contains("register_rollouts"), "{sql}: {error}");
    }
    // No way round by calling the table itself.
    let state = process.ctx.state();
    let error = table
        .delete_from(&state, Vec::new())
        .await
        .expect_err("refused");
    assert!(error.to_string().contains("TRUNCATE"), "{error}");
    assert_eq!(process.count().await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_built_session_has_the_rule_and_registering_twice_is_once() {
    let folder = tempfile::tempdir().expect("folder");
    let runtime = RolloutRuntime::builder()
        .with_settings(quiet())
        .build()
        .expect("valid");
    let state = SessionStateBuilder::new()
        .with_default_features()
        .register_rollouts(&runtime)
        .expect("registers")
        .build();
    let ctx = SessionContext::new_with_state(state);
    ctx.register_rollouts(&runtime).expect("registers");
    let rules = ctx.state().analyzer().rules.clone();
    assert_eq!(
        rules
            .iter()
            .filter(|rule| rule.name() == "rollout_dml")
            .count(),
        1
    );
    let process = Process { runtime, ctx };
    process.create(folder.path()).await;
    process.insert("a", 1.0).await;
    assert_eq!(
        process.number("DELETE FROM rollouts WHERE id = 'a'").await,
        1
    );
    assert_eq!(process.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn update_sets_values_and_stamps() {
    let (folder, process) = four_rows().await;
    process.flush().await;
    let stamps = "SELECT ingested_at FROM rollouts WHERE id = 'a'";
    let (before, others) = (
        process.rows(stamps).await,
        process
            .rows("SELECT ingested_at FROM rollouts WHERE id = 'd'")
            .await,
    );
    let updated = process
        .number(
            "UPDATE rollouts SET reward = (reward + 1) * 2, score = (reward + 1) * 3, \
             role = 'user', content = concat(id, '!'), output_tokens = make_array(1, 2), \
             created_at = now() WHERE reward < 3",
        )
        .await;
    assert_eq!(updated, 2);
    let rows = "SELECT id, reward, score, role, content, array_length(output_tokens) FROM rollouts";
    assert_eq!(
        process.rows(rows).await,
        [
            "a|4.0|6.0|user|a!|2",
            "b|6.0|9.0|user|b!|2",
            "c|3.0|NULL|assistant|NULL|NULL",
            "d|NULL|NULL|assistant|NULL|NULL",
        ]
    );
    assert!(process.rows(stamps).await > before);
    assert_eq!(
        process
            .rows("SELECT ingested_at FROM rollouts WHERE id = 'd'")
            .await,
        others
    );
    assert_eq!(base_ids(folder.path()).await, ["a", "b", "c", "d"]);
    // All rows, through an alias, and by a prepared statement.
    assert_eq!(
        process
            .number("UPDATE rollouts SET advantage = reward")
            .await,
        4
    );
    assert_eq!(
        process
            .number("UPDATE rollouts AS r SET reward = r.reward + 1 WHERE r.id = 'c'")
            .await,
        1
    );
    process
        .sql("PREPARE mark(float, text) AS UPDATE rollouts SET score = $1 WHERE id = $2")
        .await;
    assert_eq!(process.number("EXECUTE mark(0.5, 'd')").await, 1);
    process
        .sql("PREPARE gone(text) AS DELETE FROM rollouts WHERE id = $1 AND reward > 1")
        .await;
    assert_eq!(process.number("EXECUTE gone('b')").await, 1);
    assert_eq!(
        process
            .rows("SELECT id, reward, score, advantage FROM rollouts")
            .await,
        ["a|4.0|6.0|4.0", "c|4.0|NULL|3.0", "d|NULL|0.5|NULL"]
    );
    // An older version that comes later does not undo it; a newer one replaces it.
    process.insert("a", 9.0).await;
    process.flush().await;
    assert_eq!(
        process
            .rows("SELECT reward FROM rollouts WHERE id = 'a'")
            .await,
        ["9.0"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_that_cannot_be_are_refused_and_change_nothing() {
    let (_folder, process) = four_rows().await;
    process
        .sql("UPDATE rollouts SET payload_size = 300 WHERE id = 'a'")
        .await;
    let before = process
        .rows("SELECT id, reward, ingested_at FROM rollouts")
        .await;
    for (sql, because) in [
        ("UPDATE rollouts SET id = 'z' WHERE id = 'a'", "the key"),
        (
            "UPDATE rollouts SET ingested_at = now()",
            "stamps every row",
        ),
        (
            "UPDATE rollouts SET problem_id = NULL",
            "'problem_id' is NOT NULL",
        ),
        // Not known before the rows are read.
        (
            "UPDATE rollouts SET problem_id = nullif(problem_id, 'p')",
            "'problem_id' is NOT NULL",
        ),
        (
            "UPDATE rollouts SET problem_id = content",
            "'problem_id' is NOT NULL",
        ),
        (
            "UPDATE rollouts SET sequence_order = payload_size * 100000000 WHERE id = 'a'",
            "'sequence_order'",
        ),
        (
            "UPDATE rollouts SET sequence_order = 1 / (payload_size - 300) WHERE id = 'a'",
            "'sequence_order'",
        ),
        ("UPDATE rollouts SET nothing = 1", "nothing"),
    ] {
        refused(&process, sql, because).await;
    }
    assert_eq!(
        process
            .rows("SELECT id, reward, ingested_at FROM rollouts")
            .await,
        before
    );
    // A NULL that can be seen is refused at planning.
    let sql = "UPDATE rollouts SET problem_id = NULL";
    let frame = process.ctx.sql(sql).await.expect("is valid");
    let error = frame.create_physical_plan().await.expect_err(sql);
    assert!(error.to_string().contains("'problem_id'"), "{error}");
    // A value that would fail is not worked out for rows that are not concerned.
    process
        .sql("UPDATE rollouts SET payload_size = 1 WHERE id <> 'a'")
        .await;
    let sql = "UPDATE rollouts SET sequence_order = 1 / (payload_size - 300) WHERE id <> 'a'";
    assert_eq!(process.number(sql).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_statement_cannot_see_survives_it() {
    let folder = tempfile::tempdir().expect("folder");
    let a = Process::open(folder.path(), quiet()).await;
    let b = Process::open(folder.path(), quiet()).await;
    b.insert("x", 1.0).await;
    b.insert("y", 1.0).await;
    a.insert("x", 2.0).await;
    assert_eq!(a.number("DELETE FROM rollouts WHERE reward > 0").await, 1);
    assert_eq!(a.count().await, 0);
    b.flush().await;
    assert_eq!(a.rows(REWARDS).await, ["x|1.0", "y|1.0"]);
    a.merge().await;
    assert_eq!(a.rows(REWARDS).await, ["x|1.0", "y|1.0"]);
    // Flushed by anybody is visible.
    b.insert("z", 1.0).await;
    b.flush().await;
    assert_eq!(a.number("DELETE FROM rollouts WHERE reward > 0").await, 3);
    // Of two versions the newer counts, also when one is an UPDATE's.
    a.insert("u", 1.0).await;
    a.flush().await;
    b.insert("u", 5.0).await;
    assert_eq!(
        a.number("UPDATE rollouts SET reward = 2 WHERE id = 'u'")
            .await,
        1
    );
    b.insert("v", 1.0).await;
    b.flush().await;
    a.merge().await;
    assert_eq!(b.rows(REWARDS).await, ["u|2.0", "v|1.0"]);
    b.insert("u", 6.0).await;
    b.flush().await;
    assert_eq!(a.rows(REWARDS).await, ["u|6.0", "v|1.0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn truncate_empties_what_is_visible_and_the_table_goes_on() {
    let (folder, process) = four_rows().await;
    let other = Process::open(folder.path(), quiet()).await;
    other.insert("later", 1.0).await;
    assert_eq!(process.number("TRUNCATE TABLE rollouts").await, 4);
    assert_eq!(process.count().await, 0);
    assert_eq!(process.number("TRUNCATE TABLE rollouts").await, 0);
    other.flush().await;
    process.insert("a", 8.0).await;
    process.flush().await;
    assert_eq!(process.merge().await, 2);
    assert_eq!(process.rows(REWARDS).await, ["a|8.0", "later|1.0"]);
    assert_eq!(base_ids(folder.path()).await, ["a", "later"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_table_refuses() {
    let (folder, process) = four_rows().await;
    process.shutdown().await;
    let reader = Process::new(quiet());
    reader
        .sql(&format!(
            "CREATE EXTERNAL TABLE rollouts STORED AS ROLLOUT LOCATION '{}' \
             OPTIONS ('rollout.read_only' 'true')",
            folder.path().display()
        ))
        .await;
    for sql in [
        "DELETE FROM rollouts WHERE id = 'a'",
        "UPDATE rollouts SET reward = 0",
        "TRUNCATE TABLE rollouts",
    ] {
        // At planning already.
        let frame = reader.ctx.sql(sql).await.expect("is valid");
        let error = frame.create_physical_plan().await.expect_err(sql);
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    assert_eq!(reader.count().await, 4);
}

/// Two processes change and delete different rows of one fragment: both changes stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn statements_on_one_fragment_do_not_undo_each_other() {
    let folder = tempfile::tempdir().expect("folder");
    let a = Arc::new(Process::open(folder.path(), quiet()).await);
    let b = Arc::new(Process::open(folder.path(), quiet()).await);
    let rows = ["a", "b", "other"].map(|name| {
        let rows = (0..8).map(|i| format!("('{name}{i}', 0), ('{name}x{i}', 0)"));
        rows.collect::<Vec<_>>().join(", ")
    });
    a.sql(&format!(
        "INSERT INTO rollouts (id, reward) VALUES {}",
        rows.join(", ")
    ))
    .await;
    a.flush().await;
    a.merge().await;
    let tasks = [(a.clone(), "a"), (b.clone(), "b")].map(|(process, name)| {
        tokio::spawn(async move {
            for i in 0..8 {
                let update = format!("UPDATE rollouts SET reward = 1 WHERE id = '{name}{i}'");
                assert_eq!(process.number(&update).await, 1);
                let delete = format!("DELETE FROM rollouts WHERE id = '{name}x{i}'");
                assert_eq!(process.number(&delete).await, 1);
            }
        })
    });
    for task in tasks {
        task.await.expect("runs");
    }
    let ids = base_ids(folder.path()).await;
    assert_eq!(ids.len(), 32, "{ids:?}");
    let changed = "SELECT id FROM rollouts WHERE reward = 1";
    assert_eq!(a.rows(changed).await.len(), 16);
}

/// Two processes count up the same rows while others insert, flush and merge: no increment and no
/// row is lost, whatever stood in whose way.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn statements_beside_inserts_and_merges_lose_nothing() {
    const ROUNDS: i64 = 6;
    let folder = tempfile::tempdir().expect("folder");
    let a = Arc::new(Process::open(folder.path(), quiet()).await);
    let b = Arc::new(Process::open(folder.path(), quiet()).await);
    for i in 0..8 {
        a.insert(&format!("r{i}"), 0.0).await;
    }
    a.flush().await;
    a.merge().await;
    let mut tasks = Vec::new();
    for (process, name) in [(a.clone(), "a"), (b.clone(), "b")] {
        let updates = process.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let sql = "UPDATE rollouts SET reward = reward + 1 WHERE id LIKE 'r%'";
                assert_eq!(updates.number(sql).await, 8);
            }
        }));
        tasks.push(tokio::spawn(async move {
            for i in 0..3 * ROUNDS {
                process.insert(&format!("{name}{i:02}"), 1.0).await;
                process.insert(&format!("{name}x{i:02}"), -1.0).await;
                if i % 2 == 0 {
                    process.flush().await;
                    process.merge().await;
                }
                if i % 4 == 3 {
                    let own = format!("id LIKE '{name}x%'");
                    process
                        .sql(&format!("DELETE FROM rollouts WHERE reward < 0 AND {own}"))
                        .await;
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("runs");
    }
    for process in [&a, &b] {
        process.flush().await;
    }
    a.merge().await;
    a.sql("DELETE FROM rollouts WHERE reward < 0").await;
    let (rows, sum) = (8 + 2 * 3 * ROUNDS, 8 * 2 * ROUNDS);
    assert_eq!(b.count().await, rows);
    assert_eq!(base_ids(folder.path()).await.len() as i64, rows);
    let counted = b
        .number("SELECT sum(reward) FROM rollouts WHERE id LIKE 'r%'")
        .await;
    assert_eq!(counted, sum);
}
