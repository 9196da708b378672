//! A column that is added while writers, logs and generations know nothing of it.

use std::path::Path;

use datafusion_rollouts::RuntimeSettings;

use crate::common::{Process, quiet};

/// A process that never looks at the base by itself.
async fn open(folder: &Path, shard: &str) -> Process {
    let settings = RuntimeSettings {
        lease_ttl: std::time::Duration::from_secs(3600),
        shard_id: Some(shard.to_string()),
        ..quiet()
    };
    Process::open(folder, settings).await
}

impl Process {
    async fn add_column(&self) {
        self.sql("SELECT * FROM rollout_add_column('rollouts', 'grade', 'INT')")
            .await;
    }

    async fn grades(&self) -> Vec<String> {
        self.rows("SELECT id, reward, grade FROM rollouts").await
    }
}

/// The log holds rows from before and after; whoever replays it has them all, value by value.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_with_rows_of_both_kinds_is_replayed() {
    let folder = tempfile::tempdir().expect("folder");
    let dead = open(folder.path(), "w").await;
    // Opened before the column was there, and not looked at the base since.
    let heir = open(folder.path(), "other").await;
    dead.insert("before", 1.0).await;
    dead.add_column().await;
    dead.sql("INSERT INTO rollouts (id, reward, grade) VALUES ('after', 2, 20)")
        .await;
    dead.insert("again", 3.0).await;

    let successor = open(folder.path(), "w").await;
    successor.flush().await;
    let all = ["after|2.0|20", "again|3.0|NULL", "before|1.0|NULL"];
    assert_eq!(successor.grades().await, all);
    heir.insert("heir", 4.0).await;
    heir.flush().await;
    heir.merge().await;
    let all = [
        "after|2.0|20",
        "again|3.0|NULL",
        "before|1.0|NULL",
        "heir|4.0|NULL",
    ];
    assert_eq!(heir.grades().await, all);
}

/// A process that does not know the column yet takes over a log that has it.
#[tokio::test(flavor = "multi_thread")]
async fn who_takes_a_log_over_looks_for_columns_first() {
    let folder = tempfile::tempdir().expect("folder");
    let dead = open(folder.path(), "w").await;
    let heir = open(folder.path(), "w").await;
    dead.add_column().await;
    dead.sql("INSERT INTO rollouts (id, reward, grade) VALUES ('after', 2, 20)")
        .await;
    // The first row opens its writer, which replays.
    heir.insert("heir", 4.0).await;
    heir.flush().await;
    assert_eq!(heir.grades().await, ["after|2.0|20", "heir|4.0|NULL"]);
    heir.merge().await;
    assert_eq!(heir.grades().await, ["after|2.0|20", "heir|4.0|NULL"]);
}

/// Statements that were planned before the column was there still run.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_planned_before_runs_after() {
    let folder = tempfile::tempdir().expect("folder");
    let process = open(folder.path(), "w").await;
    process.insert("a", 1.0).await;
    process.flush().await;
    let insert = "INSERT INTO rollouts (id, reward) VALUES ('b', 2)";
    let insert = process.ctx.sql(insert).await.expect("plans");
    let insert = insert.create_physical_plan().await.expect("plans");
    let select = process
        .ctx
        .sql("SELECT * FROM rollouts")
        .await
        .expect("plans");
    let planned = select.clone().create_physical_plan().await.expect("plans");
    process.add_column().await;

    let context = process.ctx.task_ctx();
    let read = datafusion::physical_plan::collect(planned, context.clone()).await;
    assert_eq!(read.expect("reads")[0].num_columns(), 38);
    // Optimized and planned only now, from the statement as it was.
    let read = select.collect().await.expect("reads");
    assert_eq!(read[0].num_columns(), 38);
    let inserted = datafusion::physical_plan::collect(insert, context).await;
    inserted.expect("inserts");
    process.flush().await;
    assert_eq!(process.grades().await, ["a|1.0|NULL", "b|2.0|NULL"]);
}

/// Two processes add the same column: one of them is told.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_add_one_column_one_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let (a, b) = (
        open(folder.path(), "a").await,
        open(folder.path(), "b").await,
    );
    let add = "SELECT * FROM rollout_add_column('rollouts', 'grade', 'INT')";
    let (first, second) = tokio::join!(a.try_sql(add), b.try_sql(add));
    assert!(first.is_ok() != second.is_ok());
    let error = first.err().or(second.err()).expect("one is refused");
    assert!(
        error.to_string().contains("a column 'grade' already"),
        "{error}"
    );
    a.insert("a", 1.0).await;
    b.insert("b", 2.0).await;
    a.flush().await;
    b.flush().await;
    assert_eq!(a.grades().await, ["a|1.0|NULL", "b|2.0|NULL"]);
}
