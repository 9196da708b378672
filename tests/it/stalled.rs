//! A writer that stops right before its write while the others go on without it: it is adopted,
//! merged and cleaned up past, and must not acknowledge what nobody will ever read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use datafusion_rollouts::{RolloutRuntime, RuntimeSettings};

use crate::common::{Process, quiet, until};
use crate::gate::Gate;

/// No minimum ages: whatever may ever go goes at once.
fn at_once() -> RuntimeSettings {
    RuntimeSettings {
        lease_ttl: Duration::from_millis(300),
        generation_grace: Duration::ZERO,
        cleanup_min_age: Duration::ZERO,
        put_timeout: Duration::ZERO,
        ..quiet()
    }
}

/// The entries of all logs of a table.
fn log_entries(table: &Path) -> Vec<PathBuf> {
    let below = |folder: PathBuf| {
        std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .map(|entry| entry.expect("entry").path())
    };
    below(table.join("_mem_wal"))
        .flat_map(|shard| below(shard.join("wal")))
        .collect()
}

struct Stalled {
    folder: tempfile::TempDir,
    gate: Gate,
    writer: Arc<Process>,
    other: Process,
    insert: tokio::task::JoinHandle<bool>,
}

/// A writer that stands before its next write, and another process that took its shard over.
async fn stalled(flushed: bool) -> Stalled {
    let folder = tempfile::tempdir().expect("folder");
    let gate = Gate::open();
    let runtime = RolloutRuntime::builder()
        .with_settings(at_once())
        .with_object_store_wrapper(Arc::new(gate.clone()))
        .build()
        .expect("runtime");
    let writer = Process::on(runtime);
    writer.create(folder.path()).await;
    let writer = Arc::new(writer);
    // Rows wide enough that a log entry is no fence by its size.
    for id in ["a", "b", "c"] {
        writer.insert(id, 1.0).await;
    }
    if flushed {
        writer.flush().await;
    }
    gate.set_closed(true);
    let insert = {
        let writer = writer.clone();
        let sql = "INSERT INTO rollouts (id, reward) VALUES ('stalled', 1)";
        tokio::spawn(async move { writer.try_sql(sql).await.is_ok() })
    };
    until("the write stands before the gate", async || {
        gate.waiting() > 0
    })
    .await;
    let other = Process::open(folder.path(), at_once()).await;
    let adopted = "SELECT runs FROM rollout_maintenance('rollouts') WHERE task = 'adopt'";
    until("the shard is adopted", async || {
        other.number(adopted).await > 0
    })
    .await;
    assert_eq!(other.count().await, 3);
    other.merge().await;
    Stalled {
        folder,
        gate,
        writer,
        other,
        insert,
    }
}

async fn kinds_removed(process: &Process) -> Vec<String> {
    process
        .rows("SELECT DISTINCT kind FROM rollout_cleanup('rollouts')")
        .await
}

async fn is_acknowledged_only_if_it_is_there(flushed: bool) {
    let stalled = stalled(flushed).await;
    let mut removed = kinds_removed(&stalled.other).await;
    removed.extend(kinds_removed(&stalled.other).await);
    assert!(removed.contains(&"wal entry".to_string()), "{removed:?}");
    stalled.gate.set_closed(false);
    let acknowledged = stalled.insert.await.expect("ends");
    if acknowledged {
        stalled.writer.flush().await;
    }
    stalled.writer.shutdown().await;
    let found = "SELECT count(*) FROM rollouts WHERE id = 'stalled'";
    if acknowledged {
        // On a busy machine its new lease may have run out as well: whoever adopts it flushes.
        until("what was acknowledged is there", async || {
            stalled.other.number(found).await == 1
        })
        .await;
    }
    let there = stalled.other.number(found).await == 1;
    let expected = if there { 4 } else { 3 };
    assert_eq!(stalled.other.count().await, expected);
    stalled.gate.assert_saw_data_files();
    stalled.other.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_writer_does_not_acknowledge_what_is_gone() {
    is_acknowledged_only_if_it_is_there(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_writer_of_an_idle_shard_does_not_either() {
    is_acknowledged_only_if_it_is_there(true).await;
}

/// What the kept log entries are for: with the fence deleted by hand the stalled write lands in the
/// hole, is acknowledged, and nobody ever replays it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hole_in_the_log_would_be_a_false_acknowledgement() {
    let stalled = stalled(true).await;
    for entry in log_entries(stalled.folder.path()) {
        if entry.metadata().expect("entry").len() <= 1024 {
            std::fs::remove_file(entry).expect("deletes");
        }
    }
    let before = log_entries(stalled.folder.path()).len();
    stalled.gate.set_closed(false);
    assert!(stalled.insert.await.expect("ends"), "nothing stopped it");
    assert_eq!(log_entries(stalled.folder.path()).len(), before + 1);
    // The writer is gone before it flushes: whoever replays starts above the hole's successor.
    let found = "SELECT count(*) FROM rollouts WHERE id = 'stalled'";
    stalled.other.flush().await;
    assert_eq!(stalled.other.number(found).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_name_that_comes_back_has_its_rows_seen() {
    let folder = tempfile::tempdir().expect("folder");
    let named = || RuntimeSettings {
        shard_id: Some("worker-7".to_string()),
        ..at_once()
    };
    for life in 0..4 {
        let process = Process::open(folder.path(), named()).await;
        for row in 0..3 {
            process.insert(&format!("{life}-{row}"), 1.0).await;
        }
        process.flush().await;
        process.merge().await;
        process.shutdown().await;
        let other = Process::open(folder.path(), at_once()).await;
        kinds_removed(&other).await;
        kinds_removed(&other).await;
        assert_eq!(other.count().await, 3 * (life + 1));
        other.shutdown().await;
    }
}
