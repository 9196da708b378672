//! The command line, run as a user runs it.

use std::process::{Command, Output};

fn rollouts(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rollouts"))
        .args(args)
        .output()
        .expect("runs")
}

#[test]
fn a_long_insert_tells_how_far_it_has_come() {
    let folder = tempfile::tempdir().expect("folder");
    let create = format!(
        "CREATE EXTERNAL TABLE rollouts STORED AS ROLLOUT LOCATION '{}'",
        folder.path().display()
    );
    let insert = "INSERT INTO rollouts (id, content)
        SELECT concat('r', value), repeat('x', 400) FROM generate_series(1, 400000)";
    let output = rollouts(&["--progress", "always", "-c", &create, "-c", insert]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let rows: Vec<u64> = told
        .lines()
        .filter_map(|line| line.split_once(" rows durable after "))
        .map(|(rows, _)| rows.parse().expect("a number of rows"))
        .collect();
    assert!(!rows.is_empty(), "no progress in: {told}");
    assert!(rows.is_sorted(), "{rows:?}");
    assert!(
        rows.iter().all(|rows| *rows > 0 && *rows <= 400_000),
        "{rows:?}"
    );

    let quiet = rollouts(&[
        "-c",
        &create,
        "-c",
        "INSERT INTO rollouts (id) VALUES ('a')",
    ]);
    assert!(quiet.stderr.is_empty(), "{quiet:?}");
}
