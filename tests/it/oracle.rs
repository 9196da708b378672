//! The same answer by other means: Lance's own scanner of one shard, and plain scans without an
//! index.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::Float32Type;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use datafusion_rollouts::RuntimeSettings;
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::mem_wal::{DatasetMemWalExt, LsmScanner, ShardManifestStore, ShardSnapshot};
use rand::{Rng, SeedableRng};

use crate::common::{Process, quiet};

/// Ids and rewards of a table of one shard, as LsmScanner reads them; sorted.
async fn by_lsm_scanner(folder: &Path) -> Vec<String> {
    let base = Dataset::open(&folder.display().to_string())
        .await
        .expect("opens");
    let store = base.object_store(None).await.expect("a store");
    let ids = base.list_mem_wal_latest_shard_ids().await.expect("lists");
    let [shard] = ids[..] else {
        panic!("one shard, not {ids:?}");
    };
    let path = base.branch_location().path;
    let manifest = ShardManifestStore::new(store, &path, shard, 2)
        .latest()
        .await
        .expect("reads")
        .expect("a manifest");
    let snapshot = ShardSnapshot::new(shard).with_current_generation(manifest.current_generation);
    let snapshot = manifest
        .sstables
        .iter()
        .fold(snapshot, |snapshot, sstable| {
            snapshot.with_sstable(sstable.generation, sstable.path.clone())
        });
    let scanner = LsmScanner::new(Arc::new(base), vec![snapshot], vec!["id".to_string()])
        .project(&["id", "reward"])
        .expect("projects");
    let batches: Vec<RecordBatch> = scanner
        .try_into_stream()
        .await
        .expect("plans")
        .try_collect()
        .await
        .expect("reads");
    let mut rows: Vec<String> = batches
        .iter()
        .flat_map(|batch| {
            let ids = batch["id"].as_string::<i32>().iter();
            let rewards = batch["reward"].as_primitive::<Float32Type>().iter();
            ids.zip(rewards)
                .map(|(id, reward)| format!("{}|{:?}", id.expect("id"), reward.expect("reward")))
        })
        .collect();
    rows.sort();
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn one_shard_reads_as_lances_own_scanner_reads_it() {
    let folder = tempfile::tempdir().expect("folder");
    let one_lane = RuntimeSettings {
        max_lanes: 1,
        ..quiet()
    };
    let process = Process::open(folder.path(), one_lane).await;
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    for generation in 0..6 {
        let rows: Vec<String> = (0..40)
            .map(|row| {
                let id = random.random_range(0..90);
                format!("('id-{id}', 'p', {generation}.{row:02})")
            })
            .collect();
        let insert = format!(
            "INSERT INTO rollouts (id, problem_id, reward) VALUES {}",
            rows.join(", ")
        );
        process.sql(&insert).await;
        process.flush().await;
        let ours = process.rows("SELECT id, reward FROM rollouts").await;
        assert_eq!(ours, by_lsm_scanner(folder.path()).await, "{generation}");
    }
    process.shutdown().await;
}

/// An index changes how rows are found, never which: NULLs, negations and alternatives included.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_on_the_id_changes_no_answer() {
    let filters = [
        "id = 'a1'",
        "id <> 'a1'",
        "NOT (id = 'a1')",
        "id IN ('a1', 'a3', 'none')",
        "id NOT IN ('a1', NULL)",
        "id = 'a1' OR reward IS NULL",
        "NOT (id = 'a1' AND reward = 1)",
        "id > 'a2' AND reward <> 1",
        "id BETWEEN 'a1' AND 'a3' OR NOT (reward < 5)",
        "id LIKE 'a%' AND NOT (reward = 1)",
        "id = NULL OR reward > 0.1",
    ];
    let mut answers = Vec::new();
    for id_index_min_rows in [1, 0] {
        let folder = tempfile::tempdir().expect("folder");
        let settings = RuntimeSettings {
            id_index_min_rows,
            ..quiet()
        };
        let process = Process::open(folder.path(), settings).await;
        let insert = "INSERT INTO rollouts (id, problem_id, reward) VALUES
            ('a0', 'p', NULL), ('a1', 'p', 1), ('a2', 'p', 0), ('a3', 'p', NULL), ('b1', 'p', 0.1)";
        process.sql(insert).await;
        process.flush().await;
        process.merge().await;
        process.insert("a2", 1.0).await;
        process.insert("c1", 7.0).await;
        process.flush().await;
        let mut found = Vec::new();
        for filter in filters {
            let sql = format!("SELECT id, reward FROM rollouts WHERE {filter}");
            found.push((filter, process.rows(&sql).await));
        }
        process.shutdown().await;
        let base = Dataset::open(&folder.path().display().to_string())
            .await
            .expect("opens");
        let indexed = lance::index::DatasetIndexExt::load_indices(&base)
            .await
            .expect("lists")
            .iter()
            .any(|index| index.name == "rollout_id");
        assert_eq!(indexed, id_index_min_rows == 1, "{id_index_min_rows}");
        answers.push(found);
    }
    let [with, without] = &answers[..] else {
        unreachable!("two runs");
    };
    for (with, without) in with.iter().zip(without) {
        assert_eq!(with, without);
    }
    assert_eq!(
        with[1].1,
        ["a0|NULL", "a2|1.0", "a3|NULL", "b1|0.1", "c1|7.0"]
    );
    assert_eq!(with[4].1, Vec::<String>::new());
}
