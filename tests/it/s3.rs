//! The core of the table on a real S3 server.
//!
//! What is tested runs in a child of this binary: environment variables are those of a process.
//! Where no server is installed (`make s3-server`) the tests say so and pass.

use std::collections::HashMap;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use datafusion_rollouts::RuntimeSettings;

use crate::common::{Process, quiet, short_life, until};
use crate::s3_server::{BUCKET, Server};

const ENDPOINT: &str = "ROLLOUT_S3_ENDPOINT";
const KEY: &str = "the-right-key";
const SECRET: &str = "hush-hush-never-shown";

fn settings() -> RuntimeSettings {
    RuntimeSettings {
        generation_grace: Duration::ZERO,
        cleanup_min_age: Duration::ZERO,
        lease_ttl: Duration::from_secs(30),
        ..quiet()
    }
}

/// `CREATE EXTERNAL TABLE` with everything the store needs to know.
fn with_options(table: &str, path: &str, endpoint: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE {table} STORED AS ROLLOUT LOCATION 's3://{BUCKET}/{path}' OPTIONS (
           'aws.endpoint' '{endpoint}', 'aws.allow_http' 'true',
           'aws.virtual_hosted_style_request' 'false', 'aws.region' 'us-east-1',
           'aws.access_key_id' '{KEY}', 'aws.secret_access_key' '{SECRET}')"
    )
}

/// Runs one test of this binary as a child, with this environment alone.
async fn child(name: &str, variables: &[(&str, &str)]) -> Output {
    let ours: HashMap<String, String> = std::env::vars()
        .filter(|(variable, _)| !variable.starts_with("AWS_"))
        .collect();
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env_clear()
        .envs(ours)
        .envs(variables.iter().copied())
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null());
    let run = tokio::task::spawn_blocking(move || command.output().expect("runs"));
    let limited = tokio::time::timeout(Duration::from_secs(240), run).await;
    limited.expect("ends in time").expect("runs")
}

fn assert_passed(output: &Output) {
    let said = format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");
    assert!(!said.contains(SECRET), "a secret is shown: {said}");
}

/// The table's own options count everywhere, whatever the environment says: its endpoint leads
/// nowhere, and its credentials are others.
#[tokio::test(flavor = "multi_thread")]
async fn s3_with_options_and_a_wrong_environment() {
    let Some(server) = Server::start().await else {
        return;
    };
    let proxy = server.proxy().await;
    let output = child(
        "s3::s3_child_core",
        &[
            (ENDPOINT, &proxy.endpoint()),
            ("AWS_ENDPOINT", "http://127.0.0.1:9"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
            ("AWS_REGION", "eu-nowhere-1"),
            ("AWS_DEFAULT_REGION", "eu-nowhere-1"),
            ("AWS_ACCESS_KEY_ID", "a-wrong-key"),
            ("AWS_SECRET_ACCESS_KEY", "a-wrong-secret"),
        ],
    )
    .await;
    assert_passed(&output);
    assert_eq!(proxy.keys(), [KEY], "every request is signed with OPTIONS");
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_with_the_environment_alone() {
    let Some(server) = Server::start().await else {
        return;
    };
    let proxy = server.proxy().await;
    let endpoint = proxy.endpoint();
    let output = child(
        "s3::s3_child_environment",
        &[
            (ENDPOINT, &endpoint),
            ("AWS_ENDPOINT", &endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ],
    )
    .await;
    assert_passed(&output);
    assert_eq!(proxy.keys(), [KEY]);
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_child_environment() {
    if std::env::var_os(ENDPOINT).is_none() {
        return;
    }
    let process = Process::new(settings());
    process
        .sql(&format!(
            "CREATE EXTERNAL TABLE rollouts STORED AS ROLLOUT LOCATION 's3://{BUCKET}/environment'"
        ))
        .await;
    process.insert("a", 1.0).await;
    process.flush().await;
    process.merge().await;
    assert_eq!(process.count().await, 1);
    process.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_child_core() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else {
        return;
    };
    let process = opened(&endpoint, settings()).await;
    one_writer(&process).await;
    secrets_stay_secret(&process, &endpoint).await;
    two_writers(&process, &endpoint).await;
    clean_up(&process).await;
    many_writers(&endpoint).await;
    a_dead_writer(&endpoint).await;
    process.shutdown().await;
}

async fn opened(endpoint: &str, settings: RuntimeSettings) -> Process {
    let process = Process::new(settings);
    process
        .sql(&with_options("rollouts", "core", endpoint))
        .await;
    process.sql("SET rollout.snapshot_max_age_ms = 0").await;
    process
}

async fn one_writer(process: &Process) {
    for (id, reward) in [("a", 0.0), ("b", 1.0), ("c", 2.0), ("a", 3.0)] {
        process.insert(id, reward).await;
    }
    assert_eq!(process.count().await, 0);
    assert_eq!(process.flush().await, 4);
    let rewards = "SELECT id, reward FROM rollouts";
    assert_eq!(process.rows(rewards).await, ["a|3.0", "b|1.0", "c|2.0"]);
    assert_eq!(process.merge().await, 1);
    assert_eq!(process.rows(rewards).await, ["a|3.0", "b|1.0", "c|2.0"]);
    let one = "SELECT reward FROM rollouts WHERE id = 'b'";
    assert_eq!(process.rows(one).await, ["1.0"]);
    process
        .sql("UPDATE rollouts SET reward = 9 WHERE id = 'b'")
        .await;
    process.sql("DELETE FROM rollouts WHERE id = 'c'").await;
    assert_eq!(process.rows(rewards).await, ["a|3.0", "b|9.0"]);
    process.insert("d", 4.0).await;
    process.latest().await;
    assert_eq!(process.count().await, 3, "its own unflushed row too");
    process.sql("SET rollout.freshness = 'flushed'").await;
    for function in ["shards", "generations", "stats", "maintenance"] {
        process
            .sql(&format!("SELECT * FROM rollout_{function}('rollouts')"))
            .await;
    }
}

async fn secrets_stay_secret(process: &Process, endpoint: &str) {
    let mut shown = String::new();
    for sql in [
        "EXPLAIN VERBOSE SELECT id FROM rollouts WHERE reward > 1",
        "EXPLAIN VERBOSE INSERT INTO rollouts (id) VALUES ('x')",
        "EXPLAIN ANALYZE SELECT count(*) FROM rollouts",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM information_schema.views",
        "SELECT * FROM information_schema.df_settings",
        "SHOW CREATE TABLE rollouts",
        "SELECT * FROM rollout_settings()",
    ] {
        let rows = process.sql(sql).await;
        shown += &arrow::util::pretty::pretty_format_batches(&rows)
            .expect("prints")
            .to_string();
    }
    for (what, sql) in [
        (
            "no such bucket",
            with_options("t", "x", endpoint).replace(BUCKET, "nowhere"),
        ),
        (
            "another server",
            with_options("t", "x", "http://127.0.0.1:9"),
        ),
        (
            "other options",
            with_options("t", "core", endpoint).replace("us-east-1", "eu-1"),
        ),
        (
            "unknown",
            with_options("t", "x", endpoint).replace("aws.region", "aws.regoin"),
        ),
    ] {
        let refused = tokio::time::timeout(Duration::from_secs(60), process.try_sql(&sql)).await;
        // Some stores take minutes to give up on a server that is not there: that says nothing.
        if let Ok(refused) = refused {
            let error = refused.err().unwrap_or_else(|| panic!("{what}: accepted"));
            shown += &format!("{error}\n{error:?}\n");
        }
    }
    shown += &format!("{:?}", process.runtime.stores().await);
    assert!(!shown.contains(SECRET), "{shown}");
}

async fn two_writers(process: &Process, endpoint: &str) {
    let other = opened(endpoint, settings()).await;
    let before = process.count().await;
    let write = |process: &Process, name: &'static str| {
        let ctx = process.ctx.clone();
        async move {
            for i in 0..10 {
                let sql = format!("INSERT INTO rollouts (id) VALUES ('{name}{i}')");
                let frame = ctx.sql(&sql).await.expect("plans");
                frame.collect().await.expect("inserts");
            }
        }
    };
    futures::future::join(write(process, "p"), write(&other, "o")).await;
    process.flush().await;
    other.flush().await;
    // 'd' was not flushed before.
    assert_eq!(other.count().await, before + 21);
    futures::future::join(process.merge(), other.merge()).await;
    for one in [process, &other] {
        assert_eq!(one.count().await, before + 21);
        let reopens = "SELECT writer_reopens FROM rollout_stats('rollouts')";
        assert_eq!(one.number(reopens).await, 0);
    }
    other.shutdown().await;
}

async fn clean_up(process: &Process) {
    let before = process.count().await;
    process
        .sql("SELECT * FROM rollout_compact('rollouts')")
        .await;
    let dry = "SELECT count(*) FROM rollout_cleanup('rollouts', 'dry-run')";
    let wanted = process.number(dry).await;
    assert!(wanted > 0);
    let gone = "SELECT count(*) FROM rollout_cleanup('rollouts')";
    assert!(process.number(gone).await > 0);
    assert!(process.number(dry).await < wanted);
    assert_eq!(process.count().await, before);
    process.insert("after the clean-up", 1.0).await;
    process.flush().await;
    process.merge().await;
    assert_eq!(process.count().await, before + 1);
}

/// Sixteen that come at once find or make the table together, and lose nothing.
async fn many_writers(endpoint: &str) {
    let writers = (0..16).map(|i| async move {
        let process = Process::new(settings());
        process
            .sql(&with_options("rollouts", "many", endpoint))
            .await;
        process.insert(&format!("r{i}"), 1.0).await;
        process.shutdown().await;
    });
    futures::future::join_all(writers).await;
    let reader = Process::new(settings());
    reader
        .sql(&with_options("rollouts", "many", endpoint))
        .await;
    assert_eq!(reader.count().await, 16);
    reader.merge().await;
    assert_eq!(reader.count().await, 16);
    reader.shutdown().await;
}

async fn a_dead_writer(endpoint: &str) {
    let short = RuntimeSettings {
        lease_ttl: Duration::from_millis(800),
        ..settings()
    };
    let (place, settings) = (endpoint.to_string(), short.clone());
    short_life(async move || {
        let process = Process::new(settings);
        process.sql(&with_options("rollouts", "dead", &place)).await;
        process.insert("dead", 1.0).await;
        std::mem::forget(process);
    })
    .await;
    let living = Process::new(short);
    living
        .sql(&with_options("rollouts", "dead", endpoint))
        .await;
    until("the dead writer's row is there", async || {
        living.count().await == 1
    })
    .await;
    living.shutdown().await;
}
