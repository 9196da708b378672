//! What is bounded: generations that wait, what a reopening replays, descriptors, memory.
//!
//! Sizes are small; `ROLLOUT_FULL_SIZE=1` makes them those of the faults they come from.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion_rollouts::RuntimeSettings;

use crate::common::{Process, base_ids, quiet, short_life, until};
use crate::failing::generation_data;
use crate::faults::{Fault, Faults, Operation};
use crate::writers::{large_rows, many_rows};

fn fast() -> RuntimeSettings {
    RuntimeSettings {
        local_fsync: false,
        ..quiet()
    }
}

fn size(small: usize, full: usize) -> usize {
    match std::env::var_os("ROLLOUT_FULL_SIZE") {
        Some(_) => full,
        None => small,
    }
}

/// Resident memory of this process in bytes; zero where that is not told.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

async fn stat(process: &Process, figure: &str) -> i64 {
    // The table of figures may be a second old.
    let sql = format!("SELECT {figure} FROM rollout_stats('rollouts')");
    process.number(&sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_merges_when_too_many_generations_wait() {
    let folder = tempfile::tempdir().expect("folder");
    let bounded = RuntimeSettings {
        max_waiting_generations: 4,
        ..fast()
    };
    let process = Process::open(folder.path(), bounded).await;
    assert_eq!(stat(&process, "generations_waiting_bound").await, 4);
    let waiting = "SELECT count(*) FROM rollout_generations('rollouts')";
    for i in 0..10 {
        process.insert(&format!("r{i}"), 1.0).await;
        process.flush().await;
        assert!(process.number(waiting).await <= 4, "after {i}");
    }
    assert_eq!(stat(&process, "merges_forced").await, 2);
    assert_eq!(process.count().await, 10);
    assert_eq!(base_ids(folder.path()).await.len(), 8);
    let setting =
        "SELECT value FROM rollout_settings() WHERE name = 'rollout.max_waiting_generations'";
    assert_eq!(process.rows(setting).await, ["4"]);
    process.shutdown().await;
}

/// Generations of others count as well, once this process has seen them; and what others merged
/// does not.
#[tokio::test(flavor = "multi_thread")]
async fn the_bound_is_on_what_waits_on_storage() {
    let folder = tempfile::tempdir().expect("folder");
    let bounded = RuntimeSettings {
        max_waiting_generations: 3,
        ..fast()
    };
    let a = Process::open(folder.path(), bounded.clone()).await;
    let b = Process::open(folder.path(), bounded).await;
    for i in 0..3 {
        a.insert(&format!("a{i}"), 1.0).await;
        a.flush().await;
    }
    b.merge().await;
    a.insert("a3", 1.0).await;
    a.flush().await;
    assert_eq!(stat(&a, "merges_forced").await, 0, "b has merged");
    assert_eq!(a.count().await, 4);
}

fn base_commits(operation: Operation, path: &str) -> bool {
    operation == Operation::Write && path.contains("/_versions/") && !path.contains("_mem_wal")
}

/// Where merging fails the flush says so, nothing is lost, and all goes on when merging works.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_that_cannot_make_room_says_so() {
    let folder = tempfile::tempdir().expect("folder");
    let faults = Faults::none();
    let bounded = RuntimeSettings {
        max_waiting_generations: 2,
        ..fast()
    };
    let process = Process::failing(bounded, &faults);
    process.create(folder.path()).await;
    for i in 0..2 {
        process.insert(&format!("r{i}"), 1.0).await;
        process.flush().await;
    }
    faults.on(base_commits, Fault::Fail, usize::MAX);
    process.insert("r2", 1.0).await;
    let flush = process.try_sql("SELECT * FROM rollout_flush('rollouts')");
    let refused = flush.await.expect_err("no room").to_string();
    assert!(
        refused.contains("2 generations")
            && refused.contains("rollout.max_waiting_generations is 2"),
        "{refused}"
    );
    assert_eq!(process.count().await, 2);
    faults.heal();
    process.flush().await;
    assert_eq!(process.count().await, 3);
    faults.assert_saw_data_files();
}

/// The least bound there is, and more lanes and tables than it has room for: inserts wait and go on.
#[tokio::test(flavor = "multi_thread")]
async fn the_least_bound_on_unflushed_bytes_is_no_end() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::new(RuntimeSettings {
        max_memtable_bytes: 64 << 10,
        max_unflushed_bytes: 64 << 10,
        ..fast()
    });
    let all = async {
        process.create(&folder.path().join("large")).await;
        let rows =
            "INSERT INTO rollouts (id) SELECT concat('r', value) FROM generate_series(1, 250001)";
        assert_eq!(process.number(rows).await, 250_001);
        for i in 0..4 {
            let place = folder.path().join(i.to_string());
            let place = place.display();
            let create = format!("CREATE EXTERNAL TABLE t{i} STORED AS ROLLOUT LOCATION '{place}'");
            process.sql(&create).await;
            process
                .sql(&format!("INSERT INTO t{i} (id) VALUES ('a')"))
                .await;
        }
        process.flush().await;
        assert_eq!(process.count().await, 250_001);
        let empty = "SELECT process_unflushed_bytes < 4 * 65536 FROM rollout_stats('rollouts')";
        assert_eq!(process.rows(empty).await, ["true"]);
        process.shutdown().await;
    };
    let ends = tokio::time::timeout(Duration::from_secs(120), all).await;
    ends.expect("nothing waits for ever");
}

/// Where no flush can make room, a statement is told so in time, and nothing of it is written.
#[tokio::test(flavor = "multi_thread")]
async fn a_bound_that_stays_met_is_told() {
    let folder = tempfile::tempdir().expect("folder");
    let faults = Faults::none();
    let bounded = RuntimeSettings {
        max_memtable_bytes: 64 << 10,
        max_unflushed_bytes: 64 << 10,
        put_timeout: Duration::from_millis(500),
        ..fast()
    };
    let process = Process::failing(bounded, &faults);
    process.create(folder.path()).await;
    faults.on(generation_data, Fault::Fail, usize::MAX);
    let large = |id: &str| {
        format!("INSERT INTO rollouts (id, content) VALUES ('{id}', repeat('x', 100000))")
    };
    process.sql(&large("a")).await;
    let refused = process.try_sql(&large("b")).await.expect_err("no room");
    let refused = refused.to_string();
    assert!(
        refused.contains("nothing of this put was written")
            && refused.contains("rollout.max_unflushed_bytes is 65536"),
        "{refused}"
    );
    faults.heal();
    process.flush().await;
    process.sql(&large("c")).await;
    process.flush().await;
    let ids = "SELECT id FROM rollouts";
    assert_eq!(process.rows(ids).await, ["a", "c"]);
    faults.assert_saw_data_files();
    process.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_waiting_generations_are_read_in_bounded_memory() {
    let generations = size(150, 500);
    let folder = tempfile::tempdir().expect("folder");
    let unbounded = RuntimeSettings {
        max_waiting_generations: 0,
        cache_bytes: 64 << 20,
        ..fast()
    };
    let process = Process::open(folder.path(), unbounded).await;
    let mut warm = 0;
    for i in 0..generations {
        // Every fifth id was there before.
        process
            .insert(&format!("r{}", i - i % 5 / 4), i as f32)
            .await;
        process.flush().await;
        if i == generations / 3 {
            process.sql("SELECT id, reward FROM rollouts").await;
            warm = resident();
        }
    }
    let ids = generations - generations / 5;
    for _ in 0..3 {
        assert_eq!(process.count().await as usize, ids);
    }
    let rows = process.sql("SELECT id, reward FROM rollouts").await;
    assert_eq!(rows.iter().map(|b| b.num_rows()).sum::<usize>(), ids);
    let grown = resident().saturating_sub(warm);
    println!("{generations} generations: {} MiB more", grown >> 20);
    assert!(grown < 1 << 30, "{} MiB more", grown >> 20);
    assert_eq!(process.merge().await as usize, generations);
    assert_eq!(process.count().await as usize, ids);
    process.shutdown().await;
}

fn log_bytes(table: &Path) -> u64 {
    let below = |folder: std::path::PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.expect("entry").path())
    };
    below(table.join("_mem_wal"))
        .flat_map(|shard| below(shard.join("wal")))
        .map(|entry| entry.metadata().expect("entry").len())
        .sum()
}

/// Processes that die right after their first row: with a name of their own each replays what the
/// one before left, without writing it again; without one somebody brings the rows back.
#[tokio::test(flavor = "multi_thread")]
async fn short_lives_leave_their_rows_and_little_else() {
    let lives = size(12, 50);
    for name in [Some("worker-0".to_string()), None] {
        let folder = tempfile::tempdir().expect("folder");
        let settings = RuntimeSettings {
            lease_ttl: Duration::from_millis(400),
            shard_id: name.clone(),
            ..fast()
        };
        let mut sizes = Vec::new();
        for life in 0..lives {
            let (path, settings) = (folder.path().to_path_buf(), settings.clone());
            short_life(async move || {
                let process = Process::open(&path, settings).await;
                let content = "x".repeat(4096);
                process
                    .sql(&format!(
                        "INSERT INTO rollouts (id, content) VALUES ('r{life}', '{content}')"
                    ))
                    .await;
                std::mem::forget(process);
            })
            .await;
            sizes.push(log_bytes(folder.path()));
        }
        let first = sizes[0];
        assert!(
            sizes[lives - 1] <= 2 * first * lives as u64,
            "{name:?}: the log grows faster than the rows: {sizes:?}"
        );
        let living = Process::open(folder.path(), settings).await;
        until("all rows are back", async || {
            living.count().await as usize == lives
        })
        .await;
        living.merge().await;
        assert_eq!(base_ids(folder.path()).await.len(), lives, "{name:?}");
        living.shutdown().await;
    }
}

/// Many small writes that nobody flushed: the next process replays them all, in bounded time.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_log_is_replayed() {
    let rows = size(1_500, 20_000);
    let folder = tempfile::tempdir().expect("folder");
    let named = RuntimeSettings {
        shard_id: Some("worker-0".to_string()),
        max_lanes: 1,
        lease_ttl: Duration::from_secs(600),
        ..fast()
    };
    let (path, settings) = (folder.path().to_path_buf(), named.clone());
    let writing = short_life(async move || {
        let process = Process::new(settings);
        let store = process.create(&path).await;
        let all = many_rows(store.schema().sql(), rows);
        let started = Instant::now();
        for row in 0..rows {
            store.append(all.slice(row, 1)).await.expect("appends");
        }
        std::mem::forget((process, store));
        started.elapsed()
    })
    .await;
    let before = resident();
    let started = Instant::now();
    let next = Process::open(folder.path(), named).await;
    next.flush().await;
    let replay = started.elapsed();
    let grown = resident().saturating_sub(before);
    println!(
        "{rows} rows written in {writing:?}, replayed and flushed in {replay:?}, {} MiB more",
        grown >> 20
    );
    assert!(replay < writing.max(Duration::from_secs(30)), "{replay:?}");
    assert!(grown < 1 << 30, "{} MiB more", grown >> 20);
    assert_eq!(next.count().await as usize, rows);
    next.insert("one more", 1.0).await;
    next.shutdown().await;
}

/// Parts and slices of a batch are written, counted and kept as what they are, not as the whole batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_append_is_written_in_parts() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::new(RuntimeSettings {
        max_memtable_bytes: 1 << 30,
        ..fast()
    });
    let store = process.create(folder.path()).await;
    let rows = large_rows(store.schema().sql(), 70);
    let stats = "SELECT statements_acknowledged, rows_acknowledged, puts, unflushed_bytes < 90000000 \
                 FROM rollout_stats('rollouts')";
    assert_eq!(store.append(rows.clone()).await.expect("appends"), 70);
    assert_eq!(process.rows(stats).await, ["1|70|3|true"]);
    let slice = rows.slice(60, 10);
    assert_eq!(store.append(slice).await.expect("appends"), 10);
    assert_eq!(process.rows(stats).await, ["2|80|4|true"]);
    process.flush().await;
    let tokens = "SELECT count(*), sum(array_length(output_tokens)) FROM rollouts";
    assert_eq!(process.rows(tokens).await, ["70|18350080"]);
    process.shutdown().await;
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count())
}

/// Eight registrations, eight threads, many tasks: all succeed. What they open they close: that is
/// measured in a process of its own, where nobody else opens files.
#[test]
fn many_tasks_leave_descriptors_flat() {
    const ALONE: &str = "ROLLOUT_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let alone = std::process::Command::new(std::env::current_exe().expect("this binary"))
            .args([
                "--exact",
                "bounds::many_tasks_leave_descriptors_flat",
                "--nocapture",
            ])
            .env(ALONE, "1")
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&alone.stderr);
        assert!(alone.status.success(), "{said}");
        return;
    }
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(8)
        .enable_all()
        .build()
        .expect("tokio");
    tokio.block_on(async {
        let folder = tempfile::tempdir().expect("folder");
        let process = Arc::new(Process::open(folder.path(), fast()).await);
        for i in 1..8 {
            process
                .sql(&format!(
                    "CREATE EXTERNAL TABLE again{i} STORED AS ROLLOUT LOCATION '{}'",
                    folder.path().display()
                ))
                .await;
        }
        let mut counts = Vec::new();
        for round in 0..6 {
            let inserts = (0..64).map(|task| {
                let process = process.clone();
                let table = match task % 8 {
                    0 => "rollouts".to_string(),
                    n => format!("again{n}"),
                };
                tokio::spawn(async move {
                    process
                        .sql(&format!(
                            "INSERT INTO {table} (id) VALUES ('{round}-{task}')"
                        ))
                        .await;
                })
            });
            futures::future::try_join_all(inserts).await.expect("all");
            process.flush().await;
            assert_eq!(process.count().await, 64 * (round + 1));
            counts.push(descriptors());
        }
        eprintln!("descriptors: {counts:?}");
        assert!(counts[5] <= counts[1] + 8, "{counts:?}");
        process.shutdown().await;
    });
}

/// A thousand rounds over the same ids: what is held does not follow the number of rounds.
#[tokio::test(flavor = "multi_thread")]
async fn rewriting_the_same_ids_does_not_grow() {
    let rounds = size(60, 2_000);
    let folder = tempfile::tempdir().expect("folder");
    let settings = RuntimeSettings {
        generation_grace: Duration::ZERO,
        cleanup_min_age: Duration::ZERO,
        cache_bytes: 32 << 20,
        ..fast()
    };
    let process = Process::open(folder.path(), settings).await;
    let mut points = Vec::new();
    for round in 0..rounds {
        process
            .sql(&format!(
                "INSERT INTO rollouts (id, reward) SELECT 'r' || value, {round} FROM generate_series(1, 100)"
            ))
            .await;
        process.flush().await;
        process.merge().await;
        if round % 10 == 9 {
            process
                .sql("SELECT * FROM rollout_cleanup('rollouts')")
                .await;
            points.push(resident() >> 20);
        }
    }
    println!("{rounds} rounds: {points:?} MiB");
    assert_eq!(process.count().await, 100);
    let least = format!("SELECT min(reward) = {} FROM rollouts", rounds - 1);
    assert_eq!(process.rows(&least).await, ["true"]);
    // Other tests of this binary may grow it meanwhile: alone and at full size the bound is tight.
    if std::env::var_os("ROLLOUT_FULL_SIZE").is_some() {
        let (half, last) = (points[points.len() / 2], points[points.len() - 1]);
        assert!(last <= half + 100, "{points:?} MiB");
    }
    process.shutdown().await;
}

/// Rows of random text, which takes the place it says.
async fn wide_rows(process: &Process, table: &str, from: usize, rows: usize, bytes: usize) {
    let until = from + rows - 1;
    process
        .sql(&format!(
            "INSERT INTO {table} (id, content) SELECT lpad(CAST(value AS VARCHAR), 8, '0'),
             repeat(encode(sha256(CAST(value AS VARCHAR)), 'hex'), {}) FROM generate_series({from}, {until})",
            bytes / 64
        ))
        .await;
}

/// A backlog larger than a pass is merged in several, with the memory of one.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_merged_in_passes() {
    let (generations, bytes) = (size(12, 50), size(1 << 20, 20 << 20));
    let folder = tempfile::tempdir().expect("folder");
    let settings = RuntimeSettings {
        merge_pass_bytes: 4 * bytes as u64,
        max_waiting_generations: 0,
        cache_bytes: 32 << 20,
        ..fast()
    };
    let process = Process::open(folder.path(), settings).await;
    for generation in 0..generations {
        wide_rows(&process, "rollouts", generation * 20, 20, bytes / 20).await;
        process.flush().await;
    }
    let before = resident();
    let passes = "SELECT commits FROM rollout_merge('rollouts')";
    let passes = process.number(passes).await as usize;
    let grown = resident().saturating_sub(before);
    println!(
        "{generations} generations of {bytes} bytes: {passes} passes, {} MiB more",
        grown >> 20
    );
    assert!(
        (generations / 4..=generations).contains(&passes),
        "{passes} passes"
    );
    assert!(grown < 1 << 30, "{} MiB more", grown >> 20);
    assert_eq!(process.count().await as usize, generations * 20);
    assert_eq!(base_ids(folder.path()).await.len(), generations * 20);
    process.shutdown().await;
}

/// Text in a column with 32-bit offsets is merged and compacted whole; at full size it is more than
/// such offsets can count.
#[tokio::test(flavor = "multi_thread")]
async fn wide_text_is_merged_and_compacted() {
    let (rounds, rows) = (6, size(20, 10_000));
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::new(fast());
    process
        .sql(&format!(
            "CREATE EXTERNAL TABLE wide (id VARCHAR NOT NULL, content VARCHAR, PRIMARY KEY (id))
             STORED AS ROLLOUT LOCATION '{}'",
            folder.path().display()
        ))
        .await;
    process.sql("SET rollout.snapshot_max_age_ms = 0").await;
    for round in 0..rounds {
        wide_rows(&process, "wide", round * rows, rows, 40_000).await;
        process.sql("SELECT * FROM rollout_flush('wide')").await;
        process.sql("SELECT * FROM rollout_merge('wide')").await;
    }
    let whole =
        "SELECT count(*), sum(octet_length(content)), count(DISTINCT sha256(content)) FROM wide";
    let before = process.rows(whole).await;
    let all = rounds * rows;
    assert_eq!(before, [format!("{all}|{}|{all}", all * 40_000)]);
    let compacted = "SELECT fragments_removed FROM rollout_compact('wide')";
    assert!(process.number(compacted).await >= 2);
    assert_eq!(process.rows(whole).await, before);
    process.shutdown().await;
}
