//! Beside Lance's own scanner of tables with a write-ahead log, on a smaller base: it is slow.

use std::path::Path;
use std::time::{Duration, Instant};

use arrow_array::Array;
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::mem_wal::{DatasetMemWalExt, LsmScanner, ShardManifestStore, ShardSnapshot};

use super::super::harness::figure::{Figure, Goal};
use super::super::harness::session::{Process, quiet};
use super::queries::{self, Query};
use super::tables::{Case, Template};
use super::{BENCH, Options};

/// Runs of the slow one.
const RUNS: usize = 2;

/// avg(reward) with one percent superseding, ours against LsmScanner.
pub async fn compare(folder: &Path, options: &Options) -> Figure {
    let template = Template::write(folder, options.lsm_rows, options).await;
    let case = Case::build(&template, options, 1).await;
    let process = Process::new(quiet(), None);
    case.open_again(&process, "rollouts").await;
    let sql = Query::AvgReward.sql("rollouts", template.rows);
    queries::time(&process.ctx, &sql).await;
    let mut ours = Vec::new();
    let mut lsm = Vec::new();
    for _ in 0..RUNS {
        for _ in 0..options.runs {
            ours.push(queries::time(&process.ctx, &sql).await);
        }
        lsm.push(scan_rewards(case.rollouts_folder()).await);
    }
    process.shutdown().await;
    case.drop().await;
    Figure::ratio(
        BENCH,
        "avg_reward_1pct_x_lsm",
        ("rollouts", &ours),
        ("lsm", &lsm),
    )
    .with_all(&options.params(1))
    .with("rows", options.lsm_rows)
    .with("lsm_runs", RUNS)
    .goal(Goal::AtMost(0.01))
}

/// Reads every reward through LsmScanner; opening is not counted.
async fn scan_rewards(folder: &Path) -> Duration {
    let base = Dataset::open(&folder.display().to_string())
        .await
        .expect("opens");
    let store = base.object_store(None).await.expect("a store");
    let mut shards = Vec::new();
    for shard in base.list_mem_wal_latest_shard_ids().await.expect("lists") {
        let path = base.branch_location().path;
        let manifests = ShardManifestStore::new(store.clone(), &path, shard, 2);
        let Some(manifest) = manifests.latest().await.expect("reads") else {
            continue;
        };
        let snapshot =
            ShardSnapshot::new(shard).with_current_generation(manifest.current_generation);
        shards.push(
            manifest
                .sstables
                .iter()
                .fold(snapshot, |snapshot, sstable| {
                    snapshot.with_sstable(sstable.generation, sstable.path.clone())
                }),
        );
    }
    let scanner = LsmScanner::new(std::sync::Arc::new(base), shards, vec!["id".to_string()])
        .project(&["reward"])
        .expect("projects");
    let started = Instant::now();
    let batches = scanner.try_into_stream().await.expect("plans");
    let rows = batches
        .try_fold(0, |rows, batch| {
            futures::future::ready(Ok(rows + batch.column(0).len()))
        })
        .await
        .expect("reads");
    assert!(rows > 0, "no rows");
    started.elapsed()
}
