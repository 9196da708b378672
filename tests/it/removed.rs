//! A folder that is removed while a process has the table in it open.

use std::path::Path;

use crate::common::{Process, quiet, short_life};

fn remove(folder: &Path) {
    std::fs::remove_dir_all(folder).expect("removes");
}

async fn insert(process: &Process, id: &str) -> Result<(), String> {
    let insert = format!("INSERT INTO rollouts (id) VALUES ('{id}')");
    let done = process.try_sql(&insert).await;
    done.map(drop).map_err(|error| error.to_string())
}

/// What the process says of its table, when it flushes, writes and leaves.
async fn refused(process: &Process, why: &str) {
    let flush = process
        .try_sql("SELECT * FROM rollout_flush('rollouts')")
        .await;
    let flush = flush.expect_err("nothing to flush to").to_string();
    assert!(flush.contains(why), "{flush}");
    let more = insert(process, "more")
        .await
        .expect_err("nothing to write to");
    assert!(more.contains(why), "{more}");
    let left = process.runtime.shutdown().await;
    let left = left.expect_err("rows are lost").to_string();
    assert!(left.contains(why), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_table_takes_no_more_rows() {
    let above = tempfile::tempdir().expect("folder");
    let folder = above.path().join("t");
    let process = Process::open(&folder, quiet()).await;
    insert(&process, "old").await.expect("inserts");
    remove(&folder);
    refused(&process, "was removed while it was open here: rows").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_removed_table_do_not_show_up_in_the_next() {
    let above = tempfile::tempdir().expect("folder");
    let folder = above.path().join("t");
    let old = Process::open(&folder, quiet()).await;
    insert(&old, "flushed").await.expect("inserts");
    old.sql("SELECT * FROM rollout_flush('rollouts')").await;
    insert(&old, "old").await.expect("inserts");
    remove(&folder);

    let new = Process::open(&folder, quiet()).await;
    insert(&new, "new").await.expect("inserts");
    new.sql("SELECT * FROM rollout_flush('rollouts')").await;
    refused(&old, "another made in its place").await;
    assert_eq!(new.number("SELECT count(*) FROM rollouts").await, 1);
    new.shutdown().await;

    let later = Process::open(&folder, quiet()).await;
    assert_eq!(later.number("SELECT count(*) FROM rollouts").await, 1);
    later.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_not_made_over_the_log_of_another() {
    let folder = tempfile::tempdir().expect("folder");
    let place = folder.path().to_path_buf();
    short_life(move || async move {
        let process = Process::open(&place, quiet()).await;
        insert(&process, "old").await.expect("inserts");
        std::mem::forget(process);
    })
    .await;
    remove(&folder.path().join("_versions"));
    let process = Process::new(quiet());
    let refused = process.try_create(folder.path()).await;
    let refused = refused.expect_err("there is a log").to_string();
    assert!(refused.contains("(_mem_wal)"), "{refused}");
    // Nothing was made: what the user wants to keep is still there to be looked at.
    assert!(!folder.path().join("_versions").exists());
}
