//! Two, four and eight real processes that write one table at once.
//!
//! The child is this test binary, running [`processes_child`] alone.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use datafusion_rollouts::RuntimeSettings;

use crate::common::{Process, base_ids, quiet};

const FOLDER: &str = "ROLLOUT_PROCESSES_FOLDER";
const NUMBER: &str = "ROLLOUT_PROCESSES_NUMBER";
const NAME: &str = "ROLLOUT_PROCESSES_NAME";

/// Statements of a child, and rows of each. The last row of each is one all children write.
const STATEMENTS: usize = 15;
const ROWS: usize = 5;

/// Longest that all of them together may take.
const BOUND: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn processes_child() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let number = std::env::var(NUMBER).expect("a number");
    let name = std::env::var(NAME).expect("a name");
    let settings = RuntimeSettings {
        flush_interval: Duration::from_millis(200),
        merge_after_generations: 4,
        lease_ttl: Duration::from_secs(20),
        shard_id: Some(name).filter(|name| !name.is_empty()),
        ..quiet()
    };
    let process = Process::open(&folder.join("table"), settings).await;
    for statement in 0..STATEMENTS {
        let values: Vec<_> = (0..ROWS)
            .map(|row| match row + 1 {
                ROWS => format!("('common-{statement}', {number})"),
                _ => format!("('{number}-{statement}-{row}', {number})"),
            })
            .collect();
        let values = values.join(", ");
        process
            .sql(&format!(
                "INSERT INTO rollouts (id, reward) VALUES {values}"
            ))
            .await;
    }
    let reopens = "SELECT writer_reopens FROM rollout_stats('rollouts')";
    let reopens = process.number(reopens).await;
    process.shutdown().await;
    std::fs::write(folder.join(format!("done-{number}")), reopens.to_string()).expect("reports");
}

/// A child that never outlives its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(folder: &Path, number: usize, name: &str) -> Running {
    let log = std::fs::File::create(folder.join(format!("log-{number}"))).expect("log");
    let child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "processes::processes_child", "--nocapture"])
        .env(FOLDER, folder)
        .env(NUMBER, number.to_string())
        .env(NAME, name)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("starts");
    Running(child)
}

async fn write_at_once(processes: usize) {
    let folder = tempfile::tempdir().expect("folder");
    let started = Instant::now();
    let mut running: Vec<_> = (0..processes)
        .map(|number| {
            // Every third has a name of its own; the others lease.
            let name = match number % 3 {
                2 => format!("worker-{number}"),
                _ => String::new(),
            };
            spawn(folder.path(), number, &name)
        })
        .collect();
    let log = |number: usize| {
        std::fs::read_to_string(folder.path().join(format!("log-{number}"))).unwrap_or_default()
    };
    while let Some((number, child)) = running.iter_mut().enumerate().next_back() {
        match child.0.try_wait().expect("a child") {
            Some(status) => {
                assert!(status.success(), "{number} of {processes}: {}", log(number));
                running.pop();
            }
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        let took = started.elapsed();
        assert!(took < BOUND, "{number} of {processes}: {}", log(number));
    }
    println!("{processes} processes: {:?}", started.elapsed());
    let reopens: Vec<String> = (0..processes)
        .map(|n| std::fs::read_to_string(folder.path().join(format!("done-{n}"))).expect("done"))
        .collect();
    assert_eq!(reopens, vec!["0"; processes], "writers fenced each other");
    let table = folder.path().join("table");
    let reader = Process::open(&table, quiet()).await;
    let rows = processes * STATEMENTS * (ROWS - 1) + STATEMENTS;
    assert_eq!(reader.count().await as usize, rows);
    reader.merge().await;
    assert_eq!(reader.count().await as usize, rows);
    let ids = base_ids(&table).await;
    assert_eq!(ids, reader.rows("SELECT id FROM rollouts").await);
    let distinct = "SELECT count(DISTINCT id) FROM rollouts";
    assert_eq!(reader.number(distinct).await as usize, rows);
    reader.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_four_and_eight_processes_write_at_once() {
    for processes in [2, 4, 8] {
        write_at_once(processes).await;
    }
}
