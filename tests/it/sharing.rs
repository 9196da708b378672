//! One capped session for every store of a runtime.

use std::sync::Arc;

use datafusion_rollouts::{RolloutRuntime, TableOptions, build_session};

use crate::common::{Process, quiet};

#[tokio::test(flavor = "multi_thread")]
async fn all_stores_share_the_runtimes_session_and_its_cap() {
    let folder = tempfile::tempdir().expect("folder");
    let cap = 4 << 20;
    let runtime = RolloutRuntime::builder()
        .with_settings(quiet())
        .with_cache_bytes(cap)
        .build()
        .expect("builds");
    let process = Process::on(runtime.clone());
    let found = RolloutRuntime::from_session(&process.ctx.state()).expect("registered");
    let session = runtime.session().expect("shared");
    assert!(Arc::ptr_eq(found.session().expect("shared"), session));
    for table in ["t1", "t2"] {
        process
            .sql(&format!(
                "CREATE EXTERNAL TABLE {table} STORED AS ROLLOUT LOCATION '{}/{table}'",
                folder.path().display()
            ))
            .await;
    }
    let stores = runtime.stores().await;
    assert_eq!(stores.len(), 2);
    for store in &stores {
        assert!(Arc::ptr_eq(store.session(), session));
    }
    for round in 0..40 {
        for table in ["t1", "t2"] {
            process
                .sql(&format!("INSERT INTO {table} (id) VALUES ('r{round}')"))
                .await;
            process
                .sql(&format!("SELECT * FROM rollout_flush('{table}')"))
                .await;
            process.sql(&format!("SELECT * FROM {table}")).await;
        }
    }
    assert_eq!(process.number("SELECT count(*) FROM t1").await, 40);
    assert!(
        session.size_bytes() <= cap,
        "{} bytes in a cache of {cap}",
        session.size_bytes()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_session_is_used_and_zero_gives_each_store_its_own() {
    let folder = tempfile::tempdir().expect("folder");
    let given = build_session(8 << 20, 1 << 20);
    let runtime = RolloutRuntime::builder()
        .with_settings(quiet())
        .with_session(given.clone())
        .build()
        .expect("builds");
    let place = folder.path().join("given").display().to_string();
    let handle = runtime
        .open(&place, None, TableOptions::default())
        .await
        .expect("opens");
    assert!(Arc::ptr_eq(handle.store().session(), &given));

    let runtime = RolloutRuntime::builder()
        .with_settings(quiet())
        .with_cache_bytes(0)
        .build()
        .expect("builds");
    assert!(runtime.session().is_none());
    let mut sessions = Vec::new();
    for name in ["a", "b"] {
        let place = folder.path().join(name).display().to_string();
        let handle = runtime
            .open(&place, None, TableOptions::default())
            .await
            .expect("opens");
        sessions.push(handle.store().session().clone());
    }
    assert!(!Arc::ptr_eq(&sessions[0], &sessions[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn tiny_caches_change_nothing_but_speed() {
    for cap in [0, 1 << 20] {
        let folder = tempfile::tempdir().expect("folder");
        let process = Process::open(
            folder.path(),
            datafusion_rollouts::RuntimeSettings {
                cache_bytes: cap,
                ..quiet()
            },
        )
        .await;
        for i in 0..6 {
            process.insert(&format!("r{}", i % 4), i as f32).await;
            process.flush().await;
            if i == 3 {
                process.merge().await;
            }
        }
        assert_eq!(
            process.rows("SELECT id, reward FROM rollouts").await,
            ["r0|4.0", "r1|5.0", "r2|2.0", "r3|3.0"]
        );
    }
}

/// What is cached does not follow the number of flushes.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_cached_of_a_generation_goes_when_it_is_merged() {
    const GENERATIONS: usize = 8;
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    let entries = "SELECT CAST(sum(entries) AS BIGINT) FROM rollout_cache() WHERE kind = 'index'";
    let mut seen = Vec::new();
    for round in 0..6 {
        for i in 0..GENERATIONS {
            process.insert(&format!("r{round}-{i}"), 1.0).await;
            process.flush().await;
        }
        process.sql("SELECT * FROM rollouts").await;
        let before = process.number(entries).await;
        process.merge().await;
        process.sql("SELECT * FROM rollouts").await;
        seen.push((before, process.number(entries).await));
    }
    println!("{seen:?} entries");
    let (_, first) = seen[0];
    for (merges, (before, after)) in seen.into_iter().enumerate() {
        assert!(before > after, "{before} before merging, {after} after");
        // A filter of each new fragment and what is known of each new version of the base.
        let base = 3 * merges as i64;
        assert!(after <= first + base, "{after} after {first}");
    }
}

/// A memtable's keys take one place, however often it is read between inserts.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_cached_of_a_memtable_is_replaced() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    let entries = "SELECT CAST(sum(entries) AS BIGINT) FROM rollout_cache() WHERE kind = 'index'";
    process.sql("SET rollout.freshness = 'latest'").await;
    let mut seen = Vec::new();
    for i in 0..10 {
        process.insert(&format!("r{i}"), 1.0).await;
        assert_eq!(process.count().await, i + 1);
        seen.push(process.number(entries).await);
    }
    assert_eq!(seen[1], seen[9], "{seen:?}");
}
