//! Many writers: in one process, in several, dead and alive.

use std::sync::Arc;
use std::time::Duration;

use datafusion_rollouts::RuntimeSettings;
use lance::dataset::mem_wal::{DatasetMemWalExt, ShardWriterConfig};

use crate::common::{Process, quiet, short_life, until};
use crate::faults::{Fault, Faults, Operation};

#[tokio::test(flavor = "multi_thread")]
async fn fifty_concurrent_inserts_are_all_durable() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Arc::new(Process::open(folder.path(), quiet()).await);
    let inserts = (0..50).map(|i| {
        let process = process.clone();
        tokio::spawn(async move { process.insert(&format!("r{i}"), i as f32).await })
    });
    futures::future::try_join_all(inserts).await.expect("all");
    process.shutdown().await;
    let other = Process::open(folder.path(), quiet()).await;
    assert_eq!(other.count().await, 50);
    assert_eq!(
        other
            .number("SELECT count(DISTINCT id) FROM rollouts")
            .await,
        50
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_first_writers_share_an_empty_folder() {
    let folder = tempfile::tempdir().expect("folder");
    let writers = (0..8).map(|i| {
        let folder = folder.path().to_path_buf();
        tokio::spawn(async move {
            let process = Process::open(&folder, quiet()).await;
            process.insert(&format!("r{i}"), 1.0).await;
            process.shutdown().await;
        })
    });
    futures::future::try_join_all(writers).await.expect("all");
    let reader = Process::open(folder.path(), quiet()).await;
    assert_eq!(reader.count().await, 8);
}

/// A process that ends without a word: its tokio runtime goes, and with it every task; nothing is
/// flushed, closed or given back.
async fn dies_after(folder: &std::path::Path, settings: RuntimeSettings, ids: &[&str]) {
    let folder = folder.to_path_buf();
    let ids: Vec<String> = ids.iter().map(|id| id.to_string()).collect();
    short_life(async move || {
        let process = Process::open(&folder, settings).await;
        for id in &ids {
            process.insert(id, 1.0).await;
        }
        std::mem::forget(process);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_name_finds_its_rows_again() {
    let folder = tempfile::tempdir().expect("folder");
    let named = RuntimeSettings {
        shard_id: Some("worker-0".to_string()),
        ..quiet()
    };
    dies_after(folder.path(), named.clone(), &["a", "b", "c"]).await;
    let again = Process::open(folder.path(), named).await;
    // Replayed and flushed soon after opening, without an insert.
    for _ in 0..200 {
        if again.count().await == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(again.count().await, 3);
    again.insert("d", 1.0).await;
    again.flush().await;
    assert_eq!(again.merge().await, 2);
    assert_eq!(again.count().await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_writers_rows_are_adopted() {
    let folder = tempfile::tempdir().expect("folder");
    let short = RuntimeSettings {
        lease_ttl: Duration::from_millis(400),
        ..quiet()
    };
    dies_after(folder.path(), short.clone(), &["dead"]).await;
    let living = Process::open(folder.path(), short).await;
    for _ in 0..400 {
        if living.count().await == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(living.rows("SELECT id FROM rollouts").await, ["dead"]);
}

fn generations(operation: Operation, path: &str) -> bool {
    operation == Operation::Write && path.contains("_gen_") && path.contains("/data/")
}

/// An adoption that takes many lease times keeps the adopted lease and the adopter's own: nobody
/// takes a process that is at work for a dead one.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_adoption_keeps_its_leases() {
    let folder = tempfile::tempdir().expect("folder");
    let short = RuntimeSettings {
        lease_ttl: Duration::from_secs(1),
        ..quiet()
    };
    let faults = Faults::none();
    let adopter = Process::failing(short.clone(), &faults);
    adopter.create(folder.path()).await;
    adopter.insert("mine", 1.0).await;
    dies_after(folder.path(), short.clone(), &["dead"]).await;
    faults.on(generations, Fault::Hang, usize::MAX);
    until("the adoption is under way", async || faults.hanging() > 0).await;
    let other = Process::open(folder.path(), short).await;
    let adopted = "SELECT runs FROM rollout_maintenance('rollouts') WHERE task = 'adopt'";
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        other.number(adopted).await,
        0,
        "nobody is dead but the dead"
    );
    assert_eq!(other.count().await, 0);
    faults.heal();
    until("the dead writer's row is there", async || {
        other.count().await == 1
    })
    .await;
    adopter.flush().await;
    let all = "SELECT id FROM rollouts";
    assert_eq!(other.rows(all).await, ["dead", "mine"]);
    let reopens = "SELECT writer_reopens FROM rollout_stats('rollouts')";
    assert_eq!(
        adopter.number(reopens).await,
        0,
        "nobody fenced the adopter"
    );
    assert_eq!(other.number(adopted).await, 0);
    faults.assert_saw_data_files();
}

/// The log of one dead writer cannot be read: the others' rows come back all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_read_keeps_nobody_waiting() {
    let folder = tempfile::tempdir().expect("folder");
    let short = RuntimeSettings {
        lease_ttl: Duration::from_millis(400),
        ..quiet()
    };
    for life in 0..4 {
        dies_after(folder.path(), short.clone(), &[&format!("r{life}")]).await;
    }
    let mut logs: Vec<_> = std::fs::read_dir(folder.path().join("_mem_wal"))
        .expect("shards")
        .map(|shard| shard.expect("shard").path().join("wal"))
        .collect();
    logs.sort();
    let entries = std::fs::read_dir(&logs[0]).expect("log");
    let rows = entries
        .map(|entry| entry.expect("entry").path())
        .max_by_key(|entry| entry.metadata().expect("entry").len())
        .expect("an entry");
    let length = rows.metadata().expect("entry").len() as usize;
    // As a power cut leaves a file that was not synced.
    std::fs::write(&rows, vec![0; length]).expect("writes");
    let living = Process::open(folder.path(), short).await;
    until("the others' rows are there", async || {
        living.count().await == 3
    })
    .await;
    let error = "SELECT last_error FROM rollout_maintenance('rollouts') WHERE task = 'adopt'";
    let name = rows.file_name().expect("a name").to_string_lossy();
    until("the error names the object", async || {
        let told = living.rows(error).await.remove(0);
        told.contains(name.as_ref()) || told.contains("WAL")
    })
    .await;
    println!("{}", living.rows(error).await.remove(0));
    living.insert("new", 1.0).await;
    living.flush().await;
    assert_eq!(living.count().await, 4);
    assert!(rows.exists(), "nothing is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_writer_reopens_once_and_nothing_is_lost() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    process.insert("before", 1.0).await;
    let shard = process
        .rows("SELECT shard FROM rollout_shards('rollouts')")
        .await
        .remove(0);
    // Somebody without manners claims the very shard and writes to it.
    let base = lance::Dataset::open(&folder.path().display().to_string())
        .await
        .expect("base");
    let shard = uuid::Uuid::parse_str(&shard).expect("uuid");
    let intruder = base
        .mem_wal_writer(shard, ShardWriterConfig::new(shard))
        .await
        .expect("claims");
    process.insert("after", 2.0).await;
    assert_eq!(
        process
            .number("SELECT writer_reopens FROM rollout_stats('rollouts')")
            .await,
        1
    );
    process.insert("again", 3.0).await;
    assert_eq!(
        process
            .number("SELECT writer_reopens FROM rollout_stats('rollouts')")
            .await,
        1
    );
    process.flush().await;
    assert_eq!(
        process.rows("SELECT id FROM rollouts").await,
        ["after", "again", "before"]
    );
    drop(intruder);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_taken_over_is_not_fought_for() {
    let folder = tempfile::tempdir().expect("folder");
    let named = RuntimeSettings {
        shard_id: Some("worker-0".to_string()),
        ..quiet()
    };
    let first = Process::open(folder.path(), named.clone()).await;
    first.insert("a", 1.0).await;
    let second = Process::open(folder.path(), named).await;
    second.insert("b", 1.0).await;
    let error = first
        .try_sql("INSERT INTO rollouts (id) VALUES ('c')")
        .await
        .expect_err("taken over");
    assert!(error.to_string().contains("worker-0"), "{error}");
    second.insert("d", 1.0).await;
    second.flush().await;
    assert_eq!(
        second.rows("SELECT id FROM rollouts").await,
        ["a", "b", "d"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_alternate_and_lose_nothing() {
    for named in [false, true] {
        let folder = tempfile::tempdir().expect("folder");
        let mut processes = Vec::new();
        for number in 0..2 {
            let settings = RuntimeSettings {
                shard_id: named.then(|| format!("worker-{number}")),
                ..quiet()
            };
            processes.push(Process::open(folder.path(), settings).await);
        }
        for round in 0..20 {
            let process = &processes[round % 2];
            process.insert(&format!("r{round}"), 1.0).await;
            if round % 3 == 0 {
                process.flush().await;
            }
        }
        for process in &processes {
            process.flush().await;
        }
        for process in &processes {
            assert_eq!(process.count().await, 20, "named: {named}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_and_registrations_share_one_store() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Arc::new(Process::open(folder.path(), quiet()).await);
    for i in 1..8 {
        process
            .sql(&format!(
                "CREATE EXTERNAL TABLE again{i} STORED AS ROLLOUT LOCATION '{}'",
                folder.path().display()
            ))
            .await;
    }
    assert_eq!(process.runtime.stores().await.len(), 1);
    let inserts = (0..64).map(|i| {
        let process = process.clone();
        let table = match i % 8 {
            0 => "rollouts".to_string(),
            n => format!("again{n}"),
        };
        tokio::spawn(async move {
            process
                .sql(&format!("INSERT INTO {table} (id) VALUES ('r{i}')"))
                .await;
        })
    });
    futures::future::try_join_all(inserts).await.expect("all");
    process.flush().await;
    assert_eq!(process.count().await, 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_insert_leaves_the_store_usable() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    process.insert("a", 1.0).await;
    for i in 0..20 {
        let insert = process.insert("cancelled", i as f32);
        let _ = tokio::time::timeout(Duration::from_micros(200 * i), insert).await;
    }
    process.insert("b", 1.0).await;
    process.flush().await;
    let rows = process
        .rows("SELECT id FROM rollouts WHERE id <> 'cancelled'")
        .await;
    assert_eq!(rows, ["a", "b"]);
    assert!(process.count().await <= 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_written_with_lances_own_limits_reopens_under_any_of_ours() {
    let folder = tempfile::tempdir().expect("folder");
    let shard = uuid::Uuid::new_v4();
    Process::open(folder.path(), quiet()).await.shutdown().await;
    let base = lance::Dataset::open(&folder.path().display().to_string())
        .await
        .expect("base");
    let theirs = base
        .mem_wal_writer(shard, ShardWriterConfig::new(shard))
        .await
        .expect("opens");
    let schema = Arc::new(arrow_schema::Schema::from(base.schema()));
    let rows = many_rows(&schema, 100_000);
    theirs
        .put(vec![rows])
        .await
        .expect("as many as fit one write");
    drop(theirs);
    let ours = Process::open(
        folder.path(),
        RuntimeSettings {
            shard_id: Some(shard.to_string()),
            max_memtable_bytes: 64 << 10,
            max_unflushed_bytes: 1 << 20,
            ..quiet()
        },
    )
    .await;
    ours.flush().await;
    assert_eq!(ours.count().await, 100_000);
    ours.insert("one more", 1.0).await;
    ours.flush().await;
    assert_eq!(ours.count().await, 100_001);
}

/// Rows of the table with ids of their own and everything else NULL or the same.
pub fn many_rows(schema: &Arc<arrow_schema::Schema>, rows: usize) -> arrow_array::RecordBatch {
    use arrow_array::{ArrayRef, StringArray, new_null_array};
    let columns = schema
        .fields()
        .iter()
        .map(|field| -> ArrayRef {
            if field.name() == "id" {
                Arc::new(StringArray::from_iter_values(
                    (0..rows).map(|i| format!("r{i}")),
                ))
            } else if field.is_nullable() {
                new_null_array(field.data_type(), rows)
            } else {
                let same: ArrayRef =
                    Arc::new(StringArray::from_iter_values((0..rows).map(|_| "0")));
                let through = match field.data_type() {
                    arrow_schema::DataType::Timestamp(_, _) => arrow_schema::DataType::Int64,
                    other => other.clone(),
                };
                let same = arrow::compute::cast(&same, &through).expect("values");
                arrow::compute::cast(&same, field.data_type()).expect("values")
            }
        })
        .collect();
    arrow_array::RecordBatch::try_new(schema.clone(), columns).expect("a batch")
}

/// Such rows with a mebibyte of tokens each.
pub fn large_rows(schema: &Arc<arrow_schema::Schema>, rows: usize) -> arrow_array::RecordBatch {
    use arrow_array::types::Int32Type;
    let batch = many_rows(schema, rows);
    let mut columns = batch.columns().to_vec();
    let tokens = (0..rows).map(|_| Some((0..262_144).map(Some)));
    let tokens = arrow_array::ListArray::from_iter_primitive::<Int32Type, _, _>(tokens);
    let at = schema.index_of("output_tokens").expect("a column");
    columns[at] = Arc::new(tokens);
    arrow_array::RecordBatch::try_new(schema.clone(), columns).expect("a batch")
}
