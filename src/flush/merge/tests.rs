//! Merges prepared at once, and merges prepared too early.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lance::dataset::cleanup::CleanupPolicyBuilder;
use lance::index::DatasetIndexExt;
use lance_index::IndexType;
use lance_index::scalar::ScalarIndexParams;

use super::*;
use crate::testing::Process;

impl Process {
    async fn write(&self, id: &str) {
        self.insert(id).await;
        self.store.flush().await.expect("flushes");
    }

    async fn snapshot(&self) -> Arc<crate::store::Snapshot> {
        self.store
            .snapshot(Duration::ZERO, &HashMap::new())
            .await
            .expect("snapshot")
    }

    /// A merge of everything that waits in one shard, not committed.
    async fn prepare_shard(&self, shard: usize) -> PreparedMerge {
        let snapshot = self.snapshot().await;
        let mut shards: Vec<_> = snapshot.generations.iter().map(|g| g.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        let taken: Vec<_> = snapshot
            .generations
            .iter()
            .filter(|generation| generation.shard == shards[shard])
            .cloned()
            .collect();
        prepare(
            self.store.table(),
            self.store.keys(),
            &snapshot.base,
            &taken,
        )
        .await
        .expect("prepares")
    }

    /// Merges the generations of this process's shards and no others.
    async fn merge_own(&self) {
        let own = self.store.insert_path().own_shards();
        let snapshot = self.snapshot().await;
        let taken: Vec<_> = snapshot
            .generations
            .iter()
            .filter(|generation| own.contains_key(&generation.shard))
            .cloned()
            .collect();
        let (table, keys) = (self.store.table(), self.store.keys());
        let prepared = prepare(table, keys, &snapshot.base, &taken).await;
        assert!(self.commit(&prepared.expect("prepares")).await);
    }

    /// The rows a query finds, by count and by reading.
    async fn rows(&self) -> (usize, usize) {
        let snapshot_age = "SET rollout.snapshot_max_age_ms = 0";
        self.ctx.sql(snapshot_age).await.expect("sets");
        let table = || async { self.ctx.table("rollouts").await.expect("table") };
        let read = table().await.collect().await.expect("reads");
        let read = read.iter().map(|batch| batch.num_rows()).sum();
        (table().await.count().await.expect("counts"), read)
    }

    async fn commit(&self, prepared: &PreparedMerge) -> bool {
        let committed = commit(self.store.table(), prepared).await.expect("answers");
        matches!(committed, Committed::Done(_))
    }

    /// How many rows of the base have this id.
    async fn in_base(&self, id: &str) -> usize {
        let base = self.store.table().refresh_base().await.expect("base");
        base.count_rows(Some(format!("id = '{id}'")))
            .await
            .expect("counts")
    }

    /// Leaves the newest base version alone.
    async fn clean_up_versions(&self) {
        let base = self.store.table().refresh_base().await.expect("base");
        let policy = CleanupPolicyBuilder::default().before_timestamp(chrono::Utc::now());
        base.cleanup_with_policy(policy.build())
            .await
            .expect("cleans up");
        assert_eq!(base.version_refs().await.expect("lists").len(), 1);
    }

    /// An index on the base's ids, which turns Lance's own tracking of inserted keys off.
    async fn index_ids(&self) {
        let mut base = self
            .store
            .table()
            .refresh_base()
            .await
            .expect("base")
            .as_ref()
            .clone();
        let params = ScalarIndexParams::default();
        base.create_index(&["id"], IndexType::BTree, None, &params, true)
            .await
            .expect("indexes");
    }
}

async fn two_processes_with_one_new_id(folder: &Path) -> (Process, Process) {
    let a = Process::open(folder).await;
    let b = Process::open(folder).await;
    a.write("seed").await;
    a.store.merge().await.expect("merges");
    a.index_ids().await;
    a.write("x").await;
    b.write("x").await;
    (a, b)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_prepared_merges_of_one_new_id_the_second_is_refused_and_redone() {
    let folder = tempfile::tempdir().expect("folder");
    let (a, b) = two_processes_with_one_new_id(folder.path()).await;
    let first = a.prepare_shard(0).await;
    let second = b.prepare_shard(1).await;
    assert_eq!((first.rows_inserted, second.rows_inserted), (1, 1));
    assert!(a.commit(&first).await);
    assert!(
        !b.commit(&second).await,
        "the same new id may not go in twice"
    );
    b.store.merge().await.expect("works it out again");
    assert_eq!(b.in_base("x").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_set_of_inserted_keys_the_id_would_be_there_twice() {
    let folder = tempfile::tempdir().expect("folder");
    let (a, b) = two_processes_with_one_new_id(folder.path()).await;
    let mut prepared = [a.prepare_shard(0).await, b.prepare_shard(1).await];
    for merge in &mut prepared {
        if let Operation::Update {
            inserted_rows_filter,
            ..
        } = &mut merge.transaction.operation
        {
            *inserted_rows_filter = None;
        }
    }
    assert!(a.commit(&prepared[0]).await);
    assert!(b.commit(&prepared[1]).await);
    assert_eq!(a.in_base("x").await, 2, "this is what the filter is for");
}

async fn two_processes_with_one_replaced_row(folder: &Path) -> (Process, Process) {
    let (a, b) = Process::open_two(folder).await;
    a.write("x").await;
    a.store.merge().await.expect("merges");
    a.write("x").await;
    b.write("x").await;
    (a, b)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_prepared_merges_of_one_replaced_row_the_second_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let (a, b) = two_processes_with_one_replaced_row(folder.path()).await;
    let (first, second) = (a.prepare_shard(0).await, b.prepare_shard(1).await);
    assert_eq!((first.rows_replaced, second.rows_replaced), (1, 1));
    assert!(a.commit(&first).await);
    assert!(!b.commit(&second).await);
    b.store.merge().await.expect("works it out again");
    assert_eq!(b.in_base("x").await, 1);
}

/// Lance checks a commit against the versions it finds: one that was cleaned up it does not miss.
#[tokio::test(flavor = "multi_thread")]
async fn a_merge_is_refused_when_versions_made_meanwhile_were_cleaned_up() {
    let folder = tempfile::tempdir().expect("folder");
    let (a, b) = two_processes_with_one_replaced_row(folder.path()).await;
    let (first, second) = (a.prepare_shard(0).await, b.prepare_shard(1).await);
    assert!(a.commit(&first).await);
    for other in ["y", "z"] {
        a.write(other).await;
        a.merge_own().await;
    }
    a.clean_up_versions().await;
    assert!(!b.commit(&second).await, "it replaces the same row");
    b.store.merge().await.expect("works it out again");
    assert_eq!(b.in_base("x").await, 1);
    assert_eq!(b.rows().await, (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_came_too_late_brings_nothing_back() {
    let folder = tempfile::tempdir().expect("folder");
    let a = Process::open(folder.path()).await;
    let b = Process::open(folder.path()).await;
    a.write("x").await;
    let stale = b.prepare_shard(0).await;
    a.store.merge().await.expect("merges");
    let mut base = a
        .store
        .table()
        .refresh_base()
        .await
        .expect("base")
        .as_ref()
        .clone();
    base.delete("id = 'x'").await.expect("deletes");
    assert!(!b.commit(&stale).await, "its generation is merged already");
    b.store.merge().await.expect("nothing to do");
    assert_eq!(b.in_base("x").await, 0);
    // A later merge of the same shard that still holds the old generation is refused as well.
    a.write("y").await;
    let base = b.store.table().refresh_base().await.expect("base");
    assert_eq!(base.count_rows(None).await.expect("counts"), 0);
    b.store.merge().await.expect("merges y");
    assert_eq!((b.in_base("x").await, b.in_base("y").await), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_merge_that_reaches_further_is_refused_too() {
    let folder = tempfile::tempdir().expect("folder");
    let a = Process::open(folder.path()).await;
    let b = Process::open(folder.path()).await;
    a.write("x").await;
    a.write("y").await;
    let both = b.prepare_shard(0).await;
    assert_eq!(both.generations, 2);
    // Only the first generation is merged, then its row is deleted.
    let snapshot = a.snapshot().await;
    let first = prepare(
        a.store.table(),
        a.store.keys(),
        &snapshot.base,
        &snapshot.generations[..1],
    )
    .await
    .expect("prepares");
    assert!(a.commit(&first).await);
    let mut base = a
        .store
        .table()
        .refresh_base()
        .await
        .expect("base")
        .as_ref()
        .clone();
    base.delete("id = 'x'").await.expect("deletes");
    // Its progress would grow, so only the keys it inserts tell that it is stale.
    assert!(!b.commit(&both).await);
    b.store.merge().await.expect("works it out again");
    assert_eq!((b.in_base("x").await, b.in_base("y").await), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_worked_out_before_a_column_was_added_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let a = Process::open(folder.path()).await;
    a.write("seed").await;
    a.store.merge().await.expect("merges");
    a.write("x").await;
    let early = a.prepare_shard(0).await;
    a.store.add_column("grade", "INT").await.expect("adds");
    assert!(!a.commit(&early).await, "its rows lack the column");
    a.store.merge().await.expect("works it out again");
    let base = a.store.table().refresh_base().await.expect("base");
    let graded = base.count_rows(Some("grade IS NULL".to_string())).await;
    assert_eq!(graded.expect("counts"), 2);
}

/// What a reader knows of a generation and a fragment outlives the merge that deletes rows of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_base_row_deleted_since_it_was_found_is_not_counted_out_again() {
    let folder = tempfile::tempdir().expect("folder");
    let (a, b) = Process::open_two(folder.path()).await;
    a.insert("other").await;
    a.write("x").await;
    a.store.merge().await.expect("merges");
    b.write("x").await;
    a.write("x").await;
    assert_eq!(a.rows().await, (2, 2));
    // The first fragment's row goes, and the newest version still waits.
    b.merge_own().await;
    assert_eq!(a.rows().await, (2, 2));
}

/// What was found in a newer version of the base says nothing of what an older one holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_from_before_a_merge_is_masked_as_of_then() {
    let folder = tempfile::tempdir().expect("folder");
    let (a, b) = Process::open_two(folder.path()).await;
    a.insert("other").await;
    a.write("x").await;
    a.store.merge().await.expect("merges");
    b.insert("x").await;
    a.write("x").await;
    let early = a.snapshot().await;
    b.store.flush().await.expect("flushes");
    b.merge_own().await;
    assert_eq!(a.rows().await, (2, 2));
    let masks = early.masks(a.store.table(), a.store.keys()).await;
    let base = &masks.expect("masks").base;
    assert_eq!(crate::store::masks::row_count(base), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_row_deleted_since_it_won_lets_nothing_back_in() {
    let folder = tempfile::tempdir().expect("folder");
    let (a, b) = Process::open_two(folder.path()).await;
    b.insert("x").await;
    a.insert("other").await;
    a.write("x").await;
    a.store.merge().await.expect("merges");
    b.store.flush().await.expect("flushes");
    assert_eq!(a.rows().await, (2, 2), "the base has the newer row");
    a.write("x").await;
    a.merge_own().await;
    assert_eq!(a.rows().await, (2, 2), "and now a newer one");
}
