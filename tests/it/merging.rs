//! Merges: one row per id, exactly once, whoever does it.

use crate::common::{Process, base_ids, quiet};

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_leaves_one_row_per_id_for_plain_lance_too() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    for i in 0..30 {
        process.insert(&format!("r{:02}", i % 20), i as f32).await;
        process.flush().await;
        if i % 10 == 9 {
            process.merge().await;
            let ids = base_ids(folder.path()).await;
            let mut unique = ids.clone();
            unique.dedup();
            assert_eq!(ids, unique);
        }
    }
    assert_eq!(process.count().await, 20);
    assert_eq!(base_ids(folder.path()).await.len(), 20);
    assert_eq!(process.number("SELECT count(id) FROM rollouts").await, 20);
    assert_eq!(
        process.number("SELECT sum(reward) FROM rollouts").await,
        (10..30).sum::<i64>()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_survives_reopening() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    for i in 0..10 {
        process.insert(&format!("r{i}"), 1.0).await;
    }
    process.flush().await;
    process.merge().await;
    process.shutdown().await;
    let again = Process::open(folder.path(), quiet()).await;
    assert_eq!(again.count().await, 10);
    assert_eq!(
        again
            .number("SELECT count(DISTINCT id) FROM rollouts")
            .await,
        10
    );
    again.insert("r10", 1.0).await;
    again.shutdown().await;
    let third = Process::open(folder.path(), quiet()).await;
    assert_eq!(third.count().await, 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_through_two_shards_is_read_once_in_either_merge_order() {
    for newer_first in [false, true] {
        let folder = tempfile::tempdir().expect("folder");
        let a = Process::open(folder.path(), quiet()).await;
        let b = Process::open(folder.path(), quiet()).await;
        a.insert("x", 1.0).await;
        b.insert("x", 2.0).await;
        let (first, second) = if newer_first { (&b, &a) } else { (&a, &b) };
        first.flush().await;
        first.merge().await;
        second.flush().await;
        let reward = "SELECT reward FROM rollouts";
        assert_eq!(a.rows(reward).await, ["2.0"], "before the second merge");
        assert_eq!(b.count().await, 1);
        second.merge().await;
        assert_eq!(b.rows(reward).await, ["2.0"], "after the second merge");
        assert_eq!(base_ids(folder.path()).await, ["x"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_upserts_of_the_same_new_ids_leave_each_once() {
    let folder = tempfile::tempdir().expect("folder");
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(Process::open(folder.path(), quiet()).await);
    }
    for (i, process) in processes.iter().enumerate() {
        process
            .sql(&format!(
                "INSERT INTO rollouts (id, reward)
                 SELECT 'r' || value, {i} FROM generate_series(1, 100)"
            ))
            .await;
        process.flush().await;
    }
    let merges = processes.iter().map(|process| process.merge());
    futures::future::join_all(merges).await;
    for process in &processes {
        assert_eq!(process.count().await, 100);
        assert_eq!(process.number("SELECT min(reward) FROM rollouts").await, 3);
    }
    let mut ids = base_ids(folder.path()).await;
    assert_eq!(ids.len(), 100);
    ids.dedup();
    assert_eq!(ids.len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_alone_keeps_the_rows() {
    let folder = tempfile::tempdir().expect("folder");
    // The index on ids is made and kept up, too.
    let indexed = datafusion_rollouts::RuntimeSettings {
        id_index_min_rows: 1,
        generation_grace: std::time::Duration::ZERO,
        cleanup_min_age: std::time::Duration::ZERO,
        ..quiet()
    };
    let process = Process::open(folder.path(), indexed).await;
    for i in 0..5 {
        process.insert(&format!("r{i}"), 1.0).await;
    }
    process.flush().await;
    process.merge().await;
    for step in [
        "rollout_flush",
        "rollout_merge",
        "rollout_compact",
        "rollout_cleanup",
        "rollout_merge",
        "rollout_compact",
        "rollout_flush",
        "rollout_cleanup",
    ] {
        process
            .sql(&format!("SELECT * FROM {step}('rollouts')"))
            .await;
        assert_eq!(process.count().await, 5, "{step}");
        assert_eq!(base_ids(folder.path()).await.len(), 5, "{step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_action_does_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    process.insert("a", 1.0).await;
    process
        .sql("EXPLAIN SELECT * FROM rollout_flush('rollouts')")
        .await;
    let planned = process
        .ctx
        .sql("SELECT * FROM rollout_flush('rollouts')")
        .await
        .expect("plans");
    planned.clone().create_physical_plan().await.expect("plans");
    assert_eq!(process.count().await, 0);
    planned.collect().await.expect("runs");
    assert_eq!(process.count().await, 1);
}
