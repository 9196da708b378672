//! Storage that fails, hangs or loses its answers under an insert: the statement ends in a bounded
//! time, it never says that rows are durable which are not, and the table works again when storage
//! does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::error::DataFusionError;
use datafusion_rollouts::{RolloutError, RuntimeSettings};

use crate::common::{Process, base_ids, leave_a_row, quiet, short_life, until};
use crate::faults::{Fault, Faults, Operation};
use crate::writers::large_rows;

/// Longer than any statement may take here.
const BOUND: Duration = Duration::from_secs(20);

fn log_writes(operation: Operation, path: &str) -> bool {
    operation == Operation::Write && path.contains("/wal/")
}

fn writes(operation: Operation, _path: &str) -> bool {
    operation == Operation::Write
}

fn everything(_operation: Operation, _path: &str) -> bool {
    true
}

fn impatient() -> RuntimeSettings {
    RuntimeSettings {
        put_timeout: Duration::from_millis(500),
        ..quiet()
    }
}

struct Failing {
    folder: tempfile::TempDir,
    faults: Faults,
    process: Arc<Process>,
}

impl Failing {
    /// A table that holds the row 'before', acknowledged and not flushed.
    async fn new(settings: RuntimeSettings) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let faults = Faults::none();
        let process = Process::failing(settings, &faults);
        process.create(folder.path()).await;
        process.insert("before", 1.0).await;
        Self {
            folder,
            faults,
            process: Arc::new(process),
        }
    }

    /// Inserts one row, which ends in time, one way or the other.
    async fn insert(&self, id: &str) -> Result<(), DataFusionError> {
        let sql = format!("INSERT INTO rollouts (id, reward) VALUES ('{id}', 1)");
        let ends = tokio::time::timeout(BOUND, self.process.try_sql(&sql)).await;
        ends.expect("the statement ends").map(|_| ())
    }

    /// What a failed statement says.
    async fn refused(&self, id: &str) -> String {
        let error = self.insert(id).await.expect_err("a false success");
        error.to_string()
    }

    /// After all is over these ids are there, each once, for this process, the next one, and plain
    /// Lance.
    async fn holds(self, ids: &[&str]) {
        let mut wanted: Vec<_> = ids.iter().map(|id| id.to_string()).collect();
        wanted.sort();
        self.process.flush().await;
        let all = "SELECT id FROM rollouts";
        assert_eq!(self.process.rows(all).await, wanted);
        self.faults.assert_saw_data_files();
        self.process.shutdown().await;
        let next = Process::open(self.folder.path(), quiet()).await;
        assert_eq!(next.rows(all).await, wanted, "the next process");
        next.merge().await;
        assert_eq!(next.count().await as usize, wanted.len());
        assert_eq!(base_ids(self.folder.path()).await, wanted, "plain Lance");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_fails_some_times_and_then_works() {
    for times in 1..=7 {
        let table = Failing::new(quiet()).await;
        table.faults.on(log_writes, Fault::Fail, times);
        let first = table.insert("new").await;
        if let Err(error) = &first {
            // Four tries of one writer, then those of another's first write.
            assert!(times > 4, "{times} failures: {error}");
            let error = error.to_string();
            assert!(error.contains("outcome of the last put"), "{error}");
            assert!(!error.contains(".rs:"), "a place in sources: {error}");
            let mut repeats = 1;
            while let Err(error) = table.insert("new").await {
                repeats += 1;
                assert!(repeats <= times, "storage works: {error}");
            }
        }
        assert_eq!(table.faults.count(), times);
        table.holds(&["before", "new"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_fails_for_good_is_told_and_the_next_one_works_again() {
    let table = Failing::new(quiet()).await;
    table.faults.on(writes, Fault::Fail, usize::MAX);
    for id in ["lost", "lost too"] {
        let error = table.refused(id).await;
        assert!(error.contains("nothing was done"), "the cause: {error}");
        assert!(
            error.contains("outcome of the last put") || error.contains("nothing of this put"),
            "{error}"
        );
    }
    table.faults.heal();
    table.insert("after").await.expect("storage works again");
    table.process.latest().await;
    let all = "SELECT id FROM rollouts";
    assert_eq!(table.process.rows(all).await, ["after", "before"]);
    table.holds(&["after", "before"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_append_that_fails_says_what_is_known_of_its_rows() {
    let folder = tempfile::tempdir().expect("folder");
    let faults = Faults::none();
    let process = Process::failing(quiet(), &faults);
    let store = process.create(folder.path()).await;
    let rows = large_rows(store.schema().sql(), 40);
    faults.on(log_writes, Fault::Fail, usize::MAX);
    let appends = tokio::time::timeout(BOUND, store.append(rows.clone())).await;
    let error = appends.expect("it ends").expect_err("a false success");
    let durable = match error {
        RolloutError::OutcomeUnknown { durable_rows, .. } => durable_rows,
        RolloutError::PartlyWritten { durable_rows, .. } => durable_rows,
        other => panic!("{other}"),
    };
    assert_eq!(durable, 0);
    faults.heal();
    assert_eq!(store.append(rows).await.expect("storage works"), 40);
    process.flush().await;
    assert_eq!(process.count().await, 40);
    process.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_no_second_row() {
    for times in [1, 2, 4, 6] {
        let table = Failing::new(quiet()).await;
        table.faults.on(log_writes, Fault::LoseAnswer, times);
        if table.insert("new").await.is_err() {
            table.faults.heal();
            table.insert("new").await.expect("a repeat");
        }
        table.faults.heal();
        table.holds(&["before", "new"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_lost_for_good_are_unknown_and_a_repeat_is_safe() {
    let table = Failing::new(quiet()).await;
    table.faults.on(writes, Fault::LoseAnswer, usize::MAX);
    let error = table.refused("new").await;
    assert!(
        error.contains("repeating the statement with the same ids is safe"),
        "{error}"
    );
    table.faults.heal();
    table.insert("new").await.expect("a repeat");
    table.holds(&["before", "new"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_hangs_ends_the_statement_and_comes_too_late() {
    let table = Failing::new(impatient()).await;
    table.faults.on(log_writes, Fault::Hang, 1);
    let error = table.refused("late").await;
    assert!(error.contains("did not finish within 500ms"), "{error}");
    assert_eq!(table.faults.hanging(), 1);
    // The next writer takes over in front of the put that hangs: it can only come too late.
    table.insert("next").await.expect("a new writer");
    table.faults.heal();
    until("the late put is refused", async || {
        table.faults.hanging() == 0
    })
    .await;
    table.insert("late").await.expect("a repeat");
    table.holds(&["before", "late", "next"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_that_is_silent_keeps_no_statement_for_ever() {
    let table = Failing::new(impatient()).await;
    table.faults.on(everything, Fault::Hang, usize::MAX);
    let started = Instant::now();
    for id in ["one", "two", "three"] {
        table.refused(id).await;
    }
    let took = started.elapsed();
    assert!(took < BOUND, "{took:?}");
    table.faults.heal();
    until("storage works again", async || {
        table.insert("after").await.is_ok()
    })
    .await;
    for id in ["one", "two", "three"] {
        table.insert(id).await.expect("a repeat");
    }
    table
        .holds(&["after", "before", "one", "three", "two"])
        .await;
}

/// Rows acknowledged before a put was given up are in the log and in no writer: the next flush on
/// the timer brings them back all the same.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_writer_that_was_let_go_become_visible_in_time() {
    let table = Failing::new(RuntimeSettings {
        flush_interval: Duration::from_secs(2),
        ..impatient()
    })
    .await;
    table.faults.on(log_writes, Fault::Hang, 1);
    table.refused("late").await;
    table.faults.heal();
    let found = "SELECT count(*) FROM rollouts WHERE id = 'before'";
    until("the earlier row is visible", async || {
        table.process.number(found).await == 1
    })
    .await;
    table.process.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_statements_share_the_failure_of_one_put() {
    let table = Arc::new(Failing::new(quiet()).await);
    table.faults.on(log_writes, Fault::LoseAnswer, 9);
    let inserts = (0..32).map(|i| {
        let table = table.clone();
        tokio::spawn(async move {
            let id = format!("r{i}");
            while let Err(error) = table.insert(&id).await {
                let error = error.to_string();
                assert!(error.contains("put"), "{error}");
            }
        })
    });
    futures::future::try_join_all(inserts).await.expect("all");
    let table = Arc::into_inner(table).expect("the tasks have ended");
    let mut ids: Vec<_> = (0..32).map(|i| format!("r{i}")).collect();
    ids.push("before".to_string());
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    table.holds(&ids).await;
}

pub fn generation_data(operation: Operation, path: &str) -> bool {
    operation == Operation::Write && path.contains("_gen_1/") && path.contains("/data/")
}

/// One generation cannot be written while later rows go on, and the process is killed in the middle.
#[tokio::test(flavor = "multi_thread")]
async fn a_generation_that_cannot_be_written_loses_nothing() {
    for killed in [false, true] {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().to_path_buf();
        let named = RuntimeSettings {
            shard_id: Some("worker-0".to_string()),
            max_lanes: 1,
            // Small, so that rows that are put meanwhile fill memtables of their own.
            max_memtable_bytes: 64 << 10,
            ..quiet()
        };
        let again = named.clone();
        let written = short_life(async move || {
            let faults = Faults::none();
            let process = Arc::new(Process::failing(named, &faults));
            process.create(&path).await;
            process.insert("first", 1.0).await;
            faults.on(generation_data, Fault::Fail, if killed { 1000 } else { 2 });
            let flush = {
                let process = process.clone();
                tokio::spawn(async move { process.flush().await })
            };
            until("the flush fails", async || faults.count() > 0).await;
            let mut ids = vec!["first".to_string()];
            for batch in 0..20 {
                process
                    .sql(&format!(
                        "INSERT INTO rollouts (id, content) SELECT '{batch}-' || value, repeat('x', 500)
                         FROM generate_series(1, 20)"
                    ))
                    .await;
                ids.extend((1..=20).map(|value| format!("{batch}-{value}")));
            }
            if killed {
                assert_eq!(process.count().await, 0, "a later generation came first");
                std::mem::forget(process);
            } else {
                flush.await.expect("flushes in the end");
                process.flush().await;
                faults.assert_saw_data_files();
                assert_eq!(process.count().await, 401);
                process.shutdown().await;
            }
            ids.sort();
            ids
        })
        .await;
        let next = Process::open(folder.path(), again).await;
        next.flush().await;
        let all = "SELECT id FROM rollouts";
        assert_eq!(next.rows(all).await, written, "killed: {killed}");
        next.merge().await;
        assert_eq!(base_ids(folder.path()).await, written, "killed: {killed}");
        next.shutdown().await;
    }
}

/// A generation that cannot be written for a while is written soon after storage works again, however
/// long the pauses between the attempts have become.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_does_not_sleep_past_the_failure() {
    let table = Failing::new(quiet()).await;
    table.faults.on(generation_data, Fault::Fail, usize::MAX);
    let flush = {
        let process = table.process.clone();
        tokio::spawn(async move {
            process
                .try_sql("SELECT * FROM rollout_flush('rollouts')")
                .await
        })
    };
    // The sixth attempt is half a minute after the first, the seventh another half.
    until("it fails again and again", async || {
        table.faults.count() >= 5
    })
    .await;
    table.faults.heal();
    let flushed = tokio::time::timeout(BOUND, flush).await;
    flushed.expect("soon").expect("runs").expect("flushes");
    assert_eq!(table.process.count().await, 1);
    table.holds(&["before"]).await;
}

fn log_reads(operation: Operation, path: &str) -> bool {
    operation == Operation::Read && path.contains("/wal/")
}

/// A process with a name of its own.
fn named() -> RuntimeSettings {
    RuntimeSettings {
        shard_id: Some("worker-0".to_string()),
        lease_ttl: Duration::from_millis(500),
        ..quiet()
    }
}

/// A process with a name of its own looks for what its earlier life left until it has found it,
/// though nothing is inserted and nobody asks for a flush.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_life_is_recovered_when_storage_works() {
    let folder = tempfile::tempdir().expect("folder");
    let named = named();
    leave_a_row(folder.path(), &named).await;
    let faults = Faults::none();
    let next = Process::failing(named, &faults);
    faults.on(log_reads, Fault::Fail, 3);
    next.create(folder.path()).await;
    until("the earlier life's row is there", async || {
        next.count().await == 1
    })
    .await;
    assert_eq!(faults.count(), 3);
    faults.assert_saw_data_files();
    next.shutdown().await;
}

/// What an earlier life left and cannot be read is named and kept: the lease is not given back, so
/// the next life looks again.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_life_that_cannot_be_read_is_not_given_up() {
    let folder = tempfile::tempdir().expect("folder");
    let named = named();
    leave_a_row(folder.path(), &named).await;
    let entry = newest_log_entry(folder.path());
    let name = entry.file_name().expect("a name").to_string_lossy();
    let whole = std::fs::read(&entry).expect("reads");
    for damaged in [Vec::new(), vec![0; whole.len()]] {
        std::fs::write(&entry, damaged).expect("writes");
        let next = Process::open(folder.path(), named.clone()).await;
        let errors = "SELECT count(*) FROM rollout_maintenance('rollouts')
                      WHERE last_error LIKE '%' || $1 || ' is damaged%'";
        let errors = errors.replace("$1", &format!("'{name}'"));
        until("the damaged entry is named", async || {
            next.number(&errors).await > 0
        })
        .await;
        let closed = next.runtime.shutdown().await;
        let closed = closed.expect_err("rows are left").to_string();
        assert!(closed.contains(&*name), "{closed}");
    }
    std::fs::write(&entry, whole).expect("writes");
    let last = Process::open(folder.path(), named).await;
    until("the earlier life's row is there", async || {
        last.count().await == 1
    })
    .await;
    last.shutdown().await;
}

fn newest_log_entry(folder: &Path) -> PathBuf {
    let below = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path())
    };
    below(folder.join("_mem_wal"))
        .filter(|shard| shard.join("wal").is_dir())
        .flat_map(|shard| below(shard.join("wal")))
        .max_by_key(|entry| {
            let written = entry.metadata().expect("metadata").modified();
            written.expect("a time")
        })
        .expect("an entry")
}

fn probes(operation: Operation, path: &str) -> bool {
    operation == Operation::Write && path.contains("/probe/")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_put_if_absent_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let faults = Faults::none();
    faults.on(probes, Fault::Overwrite, usize::MAX);
    let process = Process::failing(quiet(), &faults);
    let refused = process.try_create(folder.path()).await;
    let refused = refused.expect_err("it overwrites").to_string();
    assert!(refused.contains("put-if-absent"), "{refused}");
    faults.heal();
    process.try_create(folder.path()).await.expect("it works");
}

/// Filled through its threshold, a memtable is flushed early, beside the inserts.
#[tokio::test(flavor = "multi_thread")]
async fn early_flushes_by_size_disturb_nobody() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(
        folder.path(),
        RuntimeSettings {
            max_memtable_bytes: 64 << 10,
            ..quiet()
        },
    )
    .await;
    for batch in 0..50 {
        process
            .sql(&format!(
                "INSERT INTO rollouts (id, content) SELECT '{batch}-' || value, repeat('x', 100)
                 FROM generate_series(1, 100)"
            ))
            .await;
    }
    let early = "SELECT generations_waiting FROM rollout_stats('rollouts')";
    until("generations nobody asked for", async || {
        process.number(early).await > 1
    })
    .await;
    process.flush().await;
    assert_eq!(process.count().await, 5000);
    process.shutdown().await;
}
