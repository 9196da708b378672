//! Insert, flush, read.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use datafusion::common::ParamValues;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::displayable;
use datafusion::scalar::ScalarValue;

use crate::common::{Process, quiet};

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_row_is_not_visible_until_a_flush() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    process.insert("a", 1.0).await;
    assert_eq!(process.count().await, 0);
    process.latest().await;
    assert_eq!(process.count().await, 1);
    process.sql("SET rollout.freshness = 'flushed'").await;
    assert_eq!(process.flush().await, 1);
    assert_eq!(process.count().await, 1);
    assert_eq!(
        process
            .rows("SELECT id, rollout_id, problem_id, role, sequence_order, reward FROM rollouts")
            .await,
        ["a|a|p|assistant|0|1.0"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_without_writes_makes_no_generation() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    assert_eq!(process.flush().await, 0);
    process.insert("a", 1.0).await;
    process.flush().await;
    process.flush().await;
    let waiting = "SELECT count(*) FROM rollout_generations('rollouts')";
    assert_eq!(process.number(waiting).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_input_reports_zero() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    let inserted = process
        .number("INSERT INTO rollouts (id) SELECT 'x' WHERE false")
        .await;
    assert_eq!(inserted, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_version_alone_is_judged() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    process.insert("a", 0.0).await;
    process.insert("b", 0.0).await;
    process.insert("a", 1.0).await;
    process.latest().await;
    let old = "SELECT id FROM rollouts WHERE reward = 0";
    assert_eq!(process.rows(old).await, ["b"], "both in the memtable");
    process.flush().await;
    assert_eq!(process.rows(old).await, ["b"], "in one generation");
    process.insert("b", 1.0).await;
    assert!(
        process.rows(old).await.is_empty(),
        "memtable over generation"
    );
    process.flush().await;
    assert!(process.rows(old).await.is_empty(), "two generations");
    process.merge().await;
    assert!(process.rows(old).await.is_empty(), "base");
    process.insert("a", 5.0).await;
    process.flush().await;
    assert_eq!(
        process
            .rows("SELECT id FROM rollouts WHERE reward < 5")
            .await,
        ["b"],
        "generation over base"
    );
    assert_eq!(process.count().await, 2);
    assert_eq!(
        process.rows("SELECT id FROM rollouts LIMIT 2").await.len(),
        2
    );
    assert_eq!(
        process
            .rows("SELECT id FROM rollouts LIMIT 1 OFFSET 1")
            .await
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_reads_what_was_flushed() {
    let folder = tempfile::tempdir().expect("folder");
    let first = Process::open(folder.path(), quiet()).await;
    let second = Process::open(folder.path(), quiet()).await;
    first.insert("a", 1.0).await;
    assert_eq!(second.count().await, 0);
    first.shutdown().await;
    assert_eq!(second.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_table_is_flushed_and_keeps_its_data() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    process.insert("a", 1.0).await;
    process.sql("DROP TABLE rollouts").await;
    // The next opener of the place waits for the close, which flushes.
    process.create(folder.path()).await;
    assert_eq!(process.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_was_deleted_starts_anew() {
    let folder = tempfile::tempdir().expect("folder");
    let place = folder.path().join("t");
    let process = Process::open(&place, quiet()).await;
    process.insert("old", 1.0).await;
    process.flush().await;
    process.merge().await;
    assert_eq!(process.count().await, 1);
    process.sql("DROP TABLE rollouts").await;
    process.shutdown().await;
    std::fs::remove_dir_all(&place).expect("deletes");
    process.create(&place).await;
    assert_eq!(process.count().await, 0);
    process.insert("new", 1.0).await;
    process.flush().await;
    process.merge().await;
    assert_eq!(process.rows("SELECT id FROM rollouts").await, ["new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_partition_of_the_input_is_written_also_without_the_planner() {
    use datafusion::logical_expr::dml::InsertOp;
    use datafusion::physical_plan::{ExecutionPlanProperties, collect};
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    process
        .sql("SET datafusion.execution.target_partitions = 8")
        .await;
    let columns: Vec<String> = process
        .rows("SELECT column_name FROM information_schema.columns WHERE table_name = 'rollouts'")
        .await;
    assert!(columns.len() > 30);
    // All columns in order, taken from the table itself so that types and order fit.
    process.insert("seed", 1.0).await;
    process.flush().await;
    let source = process
        .ctx
        .sql(
            "SELECT 'r' || g.value AS id, r.* EXCEPT (id)
             FROM (SELECT value FROM generate_series(1, 10000) GROUP BY value) g CROSS JOIN rollouts r",
        )
        .await
        .expect("plans");
    let plan = source.create_physical_plan().await.expect("plans");
    assert!(plan.output_partitioning().partition_count() > 1);
    let provider = process
        .ctx
        .table_provider("rollouts")
        .await
        .expect("registered");
    let insert = provider
        .insert_into(&process.ctx.state(), plan.clone(), InsertOp::Append)
        .await
        .expect("plans");
    collect(insert, process.ctx.task_ctx())
        .await
        .expect("inserts");
    process.flush().await;
    assert_eq!(process.count().await, 10_001);
    for refused in [InsertOp::Overwrite, InsertOp::Replace] {
        let error = provider
            .insert_into(&process.ctx.state(), plan.clone(), refused)
            .await
            .expect_err("only appends");
        assert!(error.to_string().contains("not supported"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_batch_between_two_full_ones_is_no_end() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    let batch = |ids: Vec<&str>| {
        let ids = Arc::new(StringArray::from(ids)) as ArrayRef;
        RecordBatch::try_from_iter([("id", ids)]).expect("a batch")
    };
    let batches = vec![batch(vec!["a", "b"]), batch(vec![]), batch(vec!["c"])];
    let source = MemTable::try_new(batches[0].schema(), vec![batches]).expect("a table");
    process
        .ctx
        .register_table("src", Arc::new(source))
        .expect("registers");
    process
        .sql("INSERT INTO rollouts (id) SELECT id FROM src")
        .await;
    process
        .sql("INSERT INTO rollouts (id) SELECT id FROM src WHERE false")
        .await;
    process.flush().await;
    assert_eq!(process.count().await, 3);
}

/// Values a program binds have the types it has, and are cast into the columns.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_planned_once_takes_values_again_and_again() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    let state = process.ctx.state();
    let planned = state
        .create_logical_plan(
            "INSERT INTO rollouts (id, role, policy_step, reward) VALUES ($1, $2, $3, $4)",
        )
        .await
        .expect("plans");
    let optimized = state.optimize(&planned).expect("optimizes");
    let bind = |plan: &datafusion::logical_expr::LogicalPlan, id: String, reward: &str| {
        let values = ParamValues::from(vec![
            ScalarValue::from(id),
            ScalarValue::from("user"),
            ScalarValue::from(7_u8),
            ScalarValue::from(reward),
        ]);
        plan.clone().with_param_values(values).expect("binds")
    };
    for (name, plan) in [("planned", &planned), ("optimized", &optimized)] {
        for i in 0..2 {
            let bound = bind(plan, format!("{name}-{i}"), "0.5");
            let frame = process.ctx.execute_logical_plan(bound).await;
            let physical = frame.expect("runs").create_physical_plan().await;
            let physical = physical.expect("plans");
            let shown = displayable(physical.as_ref()).one_line().to_string();
            assert!(shown.starts_with("RolloutInsertExec: rows=1"), "{shown}");
            let counts = datafusion::physical_plan::collect(physical, process.ctx.task_ctx());
            counts.await.expect("inserts");
        }
        let bound = bind(plan, "bad".to_string(), "much");
        let frame = process.ctx.execute_logical_plan(bound).await;
        let refused = frame.expect("runs").collect().await;
        let refused = refused.expect_err("no number").to_string();
        assert!(
            refused.contains("column 'reward' takes Float32"),
            "{refused}"
        );
    }
    process.flush().await;
    let rows = "SELECT id, rollout_id, role, policy_step, reward FROM rollouts ORDER BY id";
    assert_eq!(
        process.rows(rows).await,
        [
            "optimized-0|optimized-0|user|7|0.5",
            "optimized-1|optimized-1|user|7|0.5",
            "planned-0|planned-0|user|7|0.5",
            "planned-1|planned-1|user|7|0.5"
        ]
    );
}

/// A dictionary takes few different values, however many rows have them.
#[tokio::test(flavor = "multi_thread")]
async fn many_rows_of_values_share_a_dictionary() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    let insert = |name: &str, role: &dyn Fn(usize) -> String| {
        let rows: Vec<_> = (0..300)
            .map(|i| format!("('{name}{i}', {})", role(i)))
            .collect();
        format!("INSERT INTO rollouts (id, role) VALUES {}", rows.join(", "))
    };
    for (name, role) in [
        ("plain", "'user'"),
        ("computed", "concat('us', 'er')"),
        ("cast", "CAST('user' AS VARCHAR)"),
    ] {
        let inserted = process.number(&insert(name, &|_| role.to_string())).await;
        assert_eq!(inserted, 300, "{name}");
    }
    let refused = process
        .try_sql(&insert("many", &|i| format!("'r{i}'")))
        .await;
    let refused = refused.expect_err("300 roles").to_string();
    assert!(refused.contains("'role'"), "{refused}");
    process.flush().await;
    let users = "SELECT count(*) FROM rollouts WHERE role = 'user'";
    assert_eq!(process.number(users).await, 900);
}
