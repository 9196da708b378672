//! Merged versions, by number and by time; and which version of an id counts after a takeover.

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use datafusion_rollouts::RuntimeSettings;

use crate::common::{Process, quiet};

impl Process {
    /// Opens another table on a folder with these options; the error where it is refused.
    async fn open_as(&self, name: &str, folder: &std::path::Path, options: &str) -> Option<String> {
        let place = folder.display();
        let create = format!(
            "CREATE EXTERNAL TABLE {name} STORED AS ROLLOUT LOCATION '{place}' OPTIONS ({options})"
        );
        let opened = self.try_sql(&create).await;
        opened.err().map(|error| error.to_string())
    }

    /// When a version was committed, as rollout_versions tells.
    async fn time_of(&self, version: u64) -> DateTime<Utc> {
        let query =
            format!("SELECT timestamp FROM rollout_versions('rollouts') WHERE version = {version}");
        let batches = self.sql(&query).await;
        let times = batches[0]
            .column(0)
            .as_primitive::<TimestampMicrosecondType>();
        DateTime::from_timestamp_micros(times.value(0)).expect("a time")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_opens_the_newest_version_of_that_time() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    let mut versions = Vec::new();
    for id in ["a", "b", "c"] {
        process.insert(id, 1.0).await;
        process.flush().await;
        process.merge().await;
        let stats = "SELECT base_version FROM rollout_stats('rollouts')";
        versions.push(process.number(stats).await as u64);
    }
    for (i, version) in versions.iter().enumerate() {
        let time = process.time_of(*version).await;
        // As it is shown, in another zone, and a moment before.
        let zone = chrono::FixedOffset::east_opt(3600).expect("a zone");
        let shown = time.to_rfc3339_opts(SecondsFormat::Micros, true);
        let elsewhere = time
            .with_timezone(&zone)
            .to_rfc3339_opts(SecondsFormat::Micros, true);
        let before = (time - TimeDelta::microseconds(1)).to_rfc3339();
        for (kind, text, rows) in [
            ("shown", shown, i + 1),
            ("zone", elsewhere, i + 1),
            ("before", before, i),
        ] {
            let name = format!("{kind}{i}");
            let options = format!("'rollout.timestamp' '{text}'");
            assert_eq!(process.open_as(&name, folder.path(), &options).await, None);
            let count = process
                .number(&format!("SELECT count(*) FROM {name}"))
                .await;
            assert_eq!(count, rows as i64, "{name} at {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_was_cleaned_up_is_refused_with_what_is_left() {
    let folder = tempfile::tempdir().expect("folder");
    let settings = RuntimeSettings {
        cleanup_min_age: std::time::Duration::ZERO,
        generation_grace: std::time::Duration::ZERO,
        ..quiet()
    };
    let process = Process::open(folder.path(), settings).await;
    process.insert("a", 1.0).await;
    process.flush().await;
    process.merge().await;
    let old = process.time_of(3).await;
    process.insert("a", 2.0).await;
    process.flush().await;
    process.merge().await;
    assert_eq!(
        process
            .open_as("three", folder.path(), "'rollout.version' '3'")
            .await,
        None
    );
    process
        .sql("SELECT * FROM rollout_cleanup('rollouts')")
        .await;

    let versions = "SELECT count(*) FROM rollout_versions('rollouts')";
    assert_eq!(process.number(versions).await, 1);
    let error = process
        .open_as("gone", folder.path(), "'rollout.version' '2'")
        .await;
    let error = error.expect("refused");
    assert!(
        error.contains("the nearest is 4; 4 is the oldest and 4 the newest"),
        "{error}"
    );
    let options = format!("'rollout.timestamp' '{}'", old.to_rfc3339());
    let error = process
        .open_as("gone", folder.path(), &options)
        .await
        .expect("refused");
    assert!(error.contains("the oldest is version 4 of"), "{error}");
    // The live table and what is opened of it go on.
    assert_eq!(
        process
            .open_as("four", folder.path(), "'rollout.version' '4'")
            .await,
        None
    );
    assert_eq!(process.rows("SELECT id, reward FROM four").await, ["a|2.0"]);
}

/// The log is replayed by whoever takes the shard over: the first version is still the first.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_version_counts_after_a_takeover() {
    let folder = tempfile::tempdir().expect("folder");
    let ignoring = "'rollout.on_conflict' 'ignore', 'rollout.shard_id' 'w'";
    let dead = Process::new(quiet());
    assert_eq!(
        dead.open_as("rollouts", folder.path(), ignoring).await,
        None
    );
    for reward in [1.0, 2.0, 3.0] {
        dead.insert("a", reward).await;
    }
    let heir = Process::new(quiet());
    assert_eq!(
        heir.open_as("rollouts", folder.path(), ignoring).await,
        None
    );
    heir.sql("SET rollout.snapshot_max_age_ms = 0").await;
    heir.insert("a", 4.0).await;
    heir.flush().await;
    assert_eq!(
        heir.rows("SELECT id, reward FROM rollouts").await,
        ["a|1.0"]
    );
    heir.merge().await;
    assert_eq!(
        heir.rows("SELECT id, reward FROM rollouts").await,
        ["a|1.0"]
    );
    assert_eq!(heir.count().await, 1);
}
