//! Compaction and clean-up: rows stay, storage does not grow.

use std::path::Path;
use std::time::Duration;

use datafusion_rollouts::RuntimeSettings;
use futures::TryStreamExt;

use crate::common::{Process, base_ids, quiet};

fn at_once() -> RuntimeSettings {
    RuntimeSettings {
        generation_grace: Duration::ZERO,
        cleanup_min_age: Duration::ZERO,
        ..quiet()
    }
}

/// Files and bytes below a folder, shard manifests aside, which are kept for a day.
fn size_of(folder: &Path) -> (usize, u64) {
    let mut size = (0, 0);
    for entry in std::fs::read_dir(folder).expect("folder") {
        let entry = entry.expect("entry");
        if entry.file_name() == "manifest" {
            continue;
        }
        if entry.path().is_dir() {
            let (files, bytes) = size_of(&entry.path());
            size = (size.0 + files, size.1 + bytes);
        } else {
            size = (
                size.0 + 1,
                size.1 + entry.metadata().expect("metadata").len(),
            );
        }
    }
    size
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_is_bounded_by_the_rows() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), at_once()).await;
    let mut early = (0, 0);
    for round in 0..60 {
        process
            .sql("INSERT INTO rollouts (id, reward) SELECT 'r' || value, 1 FROM generate_series(1, 20)")
            .await;
        process.flush().await;
        process.merge().await;
        if round % 5 == 4 {
            process
                .sql("SELECT * FROM rollout_compact('rollouts')")
                .await;
            process
                .sql("SELECT * FROM rollout_cleanup('rollouts')")
                .await;
            assert_eq!(process.count().await, 20, "round {round}");
        }
        if round == 9 {
            early = size_of(folder.path());
        }
    }
    let late = size_of(folder.path());
    assert!(late.0 <= early.0 + 5, "files: {early:?} then {late:?}");
    assert!(late.1 <= early.1 * 2, "bytes: {early:?} then {late:?}");
    assert_eq!(base_ids(folder.path()).await.len(), 20);
    process.shutdown().await;
    // What is left is enough to open, write and read.
    let again = Process::open(folder.path(), at_once()).await;
    again.insert("new", 1.0).await;
    again.flush().await;
    assert_eq!(again.count().await, 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_lists_and_deletes_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), at_once()).await;
    for i in 0..4 {
        process.insert(&format!("r{i}"), 1.0).await;
        process.flush().await;
    }
    process.merge().await;
    let before = size_of(folder.path());
    let dry = "FROM rollout_cleanup('rollouts', 'dry-run')";
    let kinds = process
        .rows(&format!("SELECT kind, count(*) {dry} GROUP BY kind"))
        .await;
    assert!(kinds.contains(&"generation|4".to_string()), "{kinds:?}");
    assert!(
        kinds.iter().any(|kind| kind.starts_with("wal entry|")),
        "{kinds:?}"
    );
    assert!(
        kinds.iter().any(|kind| kind.starts_with("base|")),
        "{kinds:?}"
    );
    assert_eq!(size_of(folder.path()), before);
    let unexplained = format!("SELECT count(*) {dry} WHERE reason = '' OR bytes = 0");
    assert_eq!(process.number(&unexplained).await, 0);
    process
        .sql("SELECT * FROM rollout_cleanup('rollouts')")
        .await;
    assert!(size_of(folder.path()).0 < before.0);
    let left = format!("SELECT count(*) {dry} WHERE kind <> 'base'");
    assert_eq!(process.number(&left).await, 0);
    assert_eq!(process.count().await, 4);
    let refused = process
        .try_sql("SELECT * FROM rollout_cleanup('rollouts', 'now')")
        .await;
    let refused = refused.expect_err("unknown mode").to_string();
    assert!(refused.contains("'dry-run'"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_young_goes() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    for i in 0..3 {
        process.insert(&format!("r{i}"), 1.0).await;
        process.flush().await;
    }
    process.merge().await;
    assert!(
        process
            .rows("SELECT path FROM rollout_cleanup('rollouts')")
            .await
            .is_empty()
    );
    assert_eq!(process.count().await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_changes_no_value() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    let values = ["NULL", "''", "'text'"];
    for i in 0..12 {
        let value = values[i % 3];
        process
            .sql(&format!(
                "INSERT INTO rollouts (id, content, exclude_reason, reward, output_tokens) VALUES
                 ('r{i:02}', {value}, {value}, {i}, {})",
                ["NULL", "[]", "[1, NULL]"][i / 3 % 3]
            ))
            .await;
        process.flush().await;
        process.merge().await;
    }
    // Replaced in the base, and again in a generation that waits.
    process.insert("r03", 33.0).await;
    process.flush().await;
    process.merge().await;
    process.insert("r04", 44.0).await;
    process.flush().await;
    let all = "SELECT id, content, exclude_reason, reward, array_length(output_tokens), output_tokens IS NULL FROM rollouts";
    let before = process.rows(all).await;
    assert_eq!(before.len(), 12);
    let compact = "SELECT fragments_removed FROM rollout_compact('rollouts')";
    assert!(process.number(compact).await >= 12);
    assert_eq!(process.rows(all).await, before);
    assert_eq!(process.merge().await, 1);
    assert_eq!(process.rows(all).await, before);
    assert_eq!(process.count().await, 12);
    assert_eq!(base_ids(folder.path()).await.len(), 12);
    process.number(compact).await;
    assert_eq!(process.number(compact).await, 0, "nothing is left to do");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_scan_survives_merge_compaction_and_cleanup() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    for i in 0..6 {
        process
            .sql(&format!(
                "INSERT INTO rollouts (id, reward)
                 SELECT 'r' || (value + {i} * 1000), 1 FROM generate_series(1, 1000)"
            ))
            .await;
        process.flush().await;
        if i < 4 {
            process.merge().await;
        }
    }
    let mut rows = process
        .ctx
        .sql("SELECT id FROM rollouts")
        .await
        .expect("plans")
        .execute_stream()
        .await
        .expect("starts");
    let first = rows.try_next().await.expect("reads").expect("a batch");
    for action in ["merge", "compact", "cleanup"] {
        process
            .sql(&format!("SELECT * FROM rollout_{action}('rollouts')"))
            .await;
    }
    let mut total = first.num_rows();
    while let Some(batch) = rows.try_next().await.expect("goes on") {
        total += batch.num_rows();
    }
    assert_eq!(total, 6000);
}

#[tokio::test(flavor = "multi_thread")]
async fn compactions_and_merges_of_several_processes_lose_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let indexed = RuntimeSettings {
        id_index_min_rows: 1,
        ..quiet()
    };
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(Process::open(folder.path(), indexed.clone()).await);
    }
    let work = processes.iter().enumerate().map(|(p, process)| async move {
        for round in 0..8 {
            // Half the ids are the others' too.
            process
                .sql(&format!(
                    "INSERT INTO rollouts (id, reward) SELECT
                     CASE WHEN value % 2 = 0 THEN 'common' || value ELSE '{p}-{round}-' || value END, {round}
                     FROM generate_series(1, 10)"
                ))
                .await;
            process.flush().await;
            process.merge().await;
            if round % 3 == p {
                let compacted = process.try_sql("SELECT * FROM rollout_compact('rollouts')").await;
                if let Err(error) = compacted {
                    assert!(error.to_string().contains("kept losing"), "{error}");
                }
            }
        }
    });
    futures::future::join_all(work).await;
    let ids = base_ids(folder.path()).await;
    let mut unique = ids.clone();
    unique.dedup();
    assert_eq!(ids, unique);
    assert_eq!(ids.len(), 3 * 8 * 5 + 5);
    for process in &processes {
        assert_eq!(process.count().await as usize, ids.len());
    }
    // Through the index, whose rows compactions moved.
    for id in ids.iter().step_by(7) {
        let one = format!("SELECT count(*) FROM rollouts WHERE id = '{id}'");
        assert_eq!(processes[0].number(&one).await, 1, "{id}");
    }
}
