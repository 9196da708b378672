//! A folder that is removed while a process has the table in it open.

use std::path::Path;

use crate::common::{Process, leave_a_row, quiet};

fn remove(folder: &Path) {
    std::fs::remove_dir_all(folder).expect("removes");
}

/// What the process says of its table, when it flushes, writes and leaves.
async fn refused(process: &Process, why: &str) {
    let flush = process
        .try_sql("SELECT * FROM rollout_flush('rollouts')")
        .await;
    let flush = flush.expect_err("nothing to flush to").to_string();
    assert!(flush.contains(why), "{flush}");
    let more = process
        .try_sql("INSERT INTO rollouts (id) VALUES ('more')")
        .await;
    let more = more.expect_err("nothing to write to").to_string();
    assert!(more.contains(why), "{more}");
    let left = process.runtime.shutdown().await;
    let left = left.expect_err("rows are lost").to_string();
    assert!(left.contains(why), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_table_takes_no_more_rows() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    process.insert("old", 1.0).await;
    remove(folder.path());
    refused(&process, "was removed while it was open here: rows").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_removed_table_do_not_show_up_in_the_next() {
    let folder = tempfile::tempdir().expect("folder");
    let old = Process::open(folder.path(), quiet()).await;
    old.insert("flushed", 1.0).await;
    old.flush().await;
    old.insert("old", 1.0).await;
    remove(folder.path());

    let new = Process::open(folder.path(), quiet()).await;
    new.insert("new", 1.0).await;
    new.flush().await;
    refused(&old, "another made in its place").await;
    assert_eq!(new.number("SELECT count(*) FROM rollouts").await, 1);
    new.shutdown().await;

    let later = Process::open(folder.path(), quiet()).await;
    assert_eq!(later.number("SELECT count(*) FROM rollouts").await, 1);
    later.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_not_made_over_the_log_of_another() {
    let folder = tempfile::tempdir().expect("folder");
    leave_a_row(folder.path(), &quiet()).await;
    remove(&folder.path().join("_versions"));
    let process = Process::new(quiet());
    let refused = process.try_create(folder.path()).await;
    let refused = refused.expect_err("there is a log").to_string();
    assert!(refused.contains("(_mem_wal)"), "{refused}");
    // Nothing was made: what the user wants to keep is still there to be looked at.
    assert!(!folder.path().join("_versions").exists());
}
