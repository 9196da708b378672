//! What the background task does of itself.

use crate::testing::Process;

/// On a busy machine it begins when statements have already put rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_begins_late_leaves_the_rows_of_this_life() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path()).await;
    process.insert("a").await;
    let begins = process.store.maintenance().flush_earlier_life();
    begins.await.expect("looks");
    assert!(process.store.insert_path().has_unflushed().await);
    let (_, rows) = process.store.flush().await.expect("flushes");
    assert_eq!(rows, 1);
}
