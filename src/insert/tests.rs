//! What a lost lease does to the lanes, step by step.

use crate::testing::Process;

impl Process {
    /// Another process adopts the lease: it flushes the shards and gives the slot back.
    async fn is_adopted_by(&self, other: &Process) {
        let slot = self.store.leases().own_slot().await.expect("a lease");
        other.store.leases().adopt(&slot).await.expect("adopts");
    }
}

/// The loss is noticed by one task and acted on by another, and in between a statement has taken
/// the very same slot again: its writer is not the one that was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_taken_again_keeps_its_lanes() {
    let folder = tempfile::tempdir().expect("folder");
    let writer = Process::open(folder.path()).await;
    let other = Process::open(folder.path()).await;
    writer.insert("before").await;
    writer.store.flush().await.expect("flushes");
    let first = writer.store.leases().own_slot().await;
    writer.is_adopted_by(&other).await;

    assert!(!writer.store.leases().renew().await.expect("renews"));
    let path = writer.store.insert_path();
    path.abandon_lost_lanes().await;
    writer.insert("after").await;
    assert_eq!(writer.store.leases().own_slot().await, first);
    // The other task that noticed comes late.
    path.abandon_lost_lanes().await;
    let (_, rows) = writer.store.flush().await.expect("flushes");
    assert_eq!(rows, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_closes_its_lanes() {
    let folder = tempfile::tempdir().expect("folder");
    let writer = Process::open(folder.path()).await;
    let other = Process::open(folder.path()).await;
    writer.insert("before").await;
    writer.is_adopted_by(&other).await;

    assert!(!writer.store.leases().renew().await.expect("renews"));
    let path = writer.store.insert_path();
    assert_eq!(path.own_shards().len(), 1);
    path.abandon_lost_lanes().await;
    assert!(path.own_shards().is_empty());
}

/// A lease that was taken and given back without this process noticing: nobody would come for rows
/// that are put under it now, so a shard is opened under a lease that is held, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_put_under_a_lease_that_was_lost_unnoticed() {
    let folder = tempfile::tempdir().expect("folder");
    let writer = Process::open(folder.path()).await;
    let other = Process::open(folder.path()).await;
    let leases = writer.store.leases();
    leases.shard_of_lane(0).await.expect("a lease");
    writer.is_adopted_by(&other).await;

    writer.insert("after").await;
    assert!(leases.renew().await.expect("renews"), "it is held");
    let (_, rows) = writer.store.flush().await.expect("flushes");
    assert_eq!(rows, 1);
}
