//! The command line, run as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

fn rollouts(args: &[&str]) -> Output {
    rollouts_logging("error", args)
}

fn create_in(folder: &Path) -> String {
    format!(
        "CREATE EXTERNAL TABLE rollouts STORED AS ROLLOUT LOCATION '{}'",
        folder.display()
    )
}

fn rollouts_logging(filter: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rollouts"))
        .args(args)
        .env("RUST_LOG", filter)
        .output()
        .expect("runs")
}

#[test]
fn a_long_insert_tells_how_far_it_has_come() {
    let folder = tempfile::tempdir().expect("folder");
    let create = create_in(folder.path());
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

#[test]
fn a_mistyped_variable_is_told() {
    let output = Command::new(env!("CARGO_BIN_EXE_rollouts"))
        .args(["-q", "-c", "SELECT 1"])
        .env("ROLLOUT_CACHE_BYTE", "1GiB")
        .env("ROLLOUT_CACHE_BYTES", "64MiB")
        .output()
        .expect("runs");
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("variable ROLLOUT_CACHE_BYTE is no"), "{told}");
    assert!(!told.contains("ROLLOUT_CACHE_BYTES is no"), "{told}");
}

#[test]
fn only_tables_are_cut_at_maxrows() {
    let query = "SELECT value FROM generate_series(1, 30000)";
    for (format, lines) in [("csv", 30_001), ("tsv", 30_001), ("nd-json", 30_000)] {
        let output = rollouts(&["-q", "--format", format, "-c", query]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.lines().count(), lines, "{format}");
    }
    let output = rollouts(&["-q", "--maxrows", "5", "-c", query]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().count() < 20, "{text}");
}

#[test]
fn errors_tell_where_they_were_made() {
    let output = rollouts(&[
        "-q",
        "-c",
        "SELECT 1",
        "-c",
        "SELECT 2",
        "-c",
        "SELECT nope",
    ]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("-c number 3:1: "), "{told}");
    // A mark before the first line is no part of it.
    let folder = tempfile::tempdir().expect("folder");
    let script = folder.path().join("script.sql");
    std::fs::write(&script, "\u{feff}SELECT 1;\nSELECT nope;\n").expect("writes");
    let output = rollouts(&["-q", "-f", &script.display().to_string()]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("script.sql:2: "), "{told}");
}

#[test]
fn long_lists_and_payloads_are_shortened_in_tables_only() {
    let folder = tempfile::tempdir().expect("folder");
    let create = create_in(folder.path());
    let insert = "INSERT INTO rollouts (id, output_tokens, binary_payload)
        VALUES ('a', range(0, 1000), arrow_cast(repeat('x', 40), 'LargeBinary')), ('b', [1, NULL], NULL)";
    let query = "SELECT id, output_tokens, binary_payload FROM rollouts ORDER BY id";
    let shown = |flags: &[&str]| {
        let statements = ["-c", &create, "-c", insert, "-c", query];
        let output = rollouts(&[&["-q"], flags, &statements].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8_lossy(&output.stdout).to_string()
    };

    let table = shown(&[]);
    assert!(
        table.contains("[0, 1, 2, 3, 4, 5, 6, 7, … 992 more]"),
        "{table}"
    );
    assert!(table.contains("[1, NULL]"), "{table}");
    assert!(
        table.contains("78787878787878787878787878787878… 24 more bytes"),
        "{table}"
    );
    assert!(shown(&["--maxitems", "1"]).contains("[0, … 999 more]"));
    let whole = shown(&["--maxitems", "inf"]);
    assert!(whole.contains("998, 999]"), "{whole}");
    assert!(whole.contains(&"78".repeat(40)), "{whole}");
    let csv = shown(&["--format", "csv"]);
    assert!(csv.contains("998, 999]\""), "{csv}");
    let json = shown(&["--format", "nd-json"]);
    assert!(json.contains("998,999]"), "{json}");
}

#[test]
fn every_piece_of_work_is_a_span() {
    let folder = tempfile::tempdir().expect("folder");
    let create = create_in(folder.path());
    let mut statements = vec!["-q", "-c", &create];
    for statement in [
        "INSERT INTO rollouts (id, content) VALUES ('a', 'not for the log')",
        "SELECT * FROM rollout_flush('rollouts')",
        "SELECT * FROM rollout_merge('rollouts')",
        "SELECT * FROM rollout_compact('rollouts')",
        "SELECT * FROM rollout_cleanup('rollouts')",
        "SELECT id FROM rollouts",
    ] {
        statements.extend(["-c", statement]);
    }
    let output = rollouts_logging("datafusion_rollouts=debug", &statements);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    for (span, rows) in [
        ("put", "rows=1"),
        ("flush", "rows=1"),
        ("merge", "rows=1"),
        ("compact", "rows=0"),
        ("cleanup", "rows=0"),
        ("plan", ""),
    ] {
        let name = format!("{span}{{");
        let closed = log
            .lines()
            .find(|line| line.contains(&name) && line.contains("close"))
            .unwrap_or_else(|| panic!("no span {span} in: {log}"));
        assert!(closed.contains(rows), "{closed}");
        assert!(closed.contains("db.collection.name="), "{closed}");
    }
    assert!(!log.contains("not for the log"), "{log}");
}
