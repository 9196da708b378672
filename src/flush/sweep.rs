//! Clean-up's dealings with storage: lists, asks [`cleanup`](super::cleanup), deletes.
//!
//! Order matters: a shard's objects are listed before its newest manifest is read, so a folder that
//! was committed meanwhile is seen as named. What one shard's clean-up meets (a manifest that cannot
//! be read, say) leaves that shard as it is and does not keep the others waiting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::ipc::reader::StreamReader;
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::cleanup::{CleanupFileKind, CleanupPolicy, CleanupPolicyBuilder};
use lance::dataset::mem_wal::ShardManifestStore;
use lance::dataset::mem_wal::util::{
    parse_bit_reversed_filename, shard_base_path, wal_entry_filename,
};
use lance_index::mem_wal::ShardManifest;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use uuid::Uuid;

use super::cleanup::{
    Ages, Epochs, Folder, Removal, RemovalKind, Shard, WalEntry, judge_folder, wal_candidate,
    wal_floor,
};
use super::merge::forget_in;
use crate::error::{Result, RolloutError};
use crate::store::{LanceTable, OwnShards};

/// Most things one run removes; the next goes on.
const MOST_REMOVALS: usize = 10_000;

/// Most old base versions one run removes.
const MOST_VERSIONS: usize = 1_000;

/// Lance prunes no manifest younger than this.
const MANIFEST_AGE: Duration = Duration::from_secs(24 * 3600);

/// Enough of a log entry to hold its schema, which names its epoch.
const HEAD_BYTES: u64 = 64 << 10;

/// The key of the epoch in that schema's metadata. Lance does not export it.
const WRITER_EPOCH_KEY: &str = "writer_epoch";

/// One run of clean-up.
#[derive(Debug)]
pub(super) struct Sweep<'a> {
    pub(super) table: &'a LanceTable,
    pub(super) own: &'a OwnShards,
    pub(super) ages: Ages,
    pub(super) now: DateTime<Utc>,
    pub(super) dry_run: bool,
}

/// What a shard has on storage.
#[derive(Debug, Default)]
struct Listing {
    folders: BTreeMap<String, Folder>,
    wal: Vec<WalEntry>,
    /// Versions with size and age.
    manifests: BTreeMap<u64, (u64, Duration)>,
}

impl Sweep<'_> {
    /// Cleans up everything; returns what went, or would go.
    pub(super) async fn run(&self) -> Result<Vec<Removal>> {
        let base = self.table.refresh_base().await?;
        let progress = self.table.merge_progress(&base).await?;
        let mut removals = Vec::new();
        let mut first_error = None;
        for shard in self.table.list_shards().await? {
            if removals.len() >= MOST_REMOVALS {
                break;
            }
            let merged = progress.get(&shard).copied().unwrap_or(0);
            if let Err(error) = self.shard(shard, merged, &mut removals).await {
                tracing::warn!(%shard, %error, "a shard was not cleaned up");
                first_error = first_error.or(Some(error));
            }
        }
        self.base(&base, &mut removals).await?;
        match first_error {
            Some(error) if removals.is_empty() => Err(error),
            _ => Ok(removals),
        }
    }

    async fn shard(&self, shard: Uuid, merged: u64, removals: &mut Vec<Removal>) -> Result<()> {
        let listing = self.list(shard).await?;
        let store = self.table.manifest_store(shard);
        let reading = || self.table.context(format!("reading shard {shard}"));
        let Some(newest) = store.refresh_latest().await.map_err(reading())? else {
            return Ok(());
        };
        let old_version = listing
            .manifests
            .iter()
            .rev()
            .find(|(_, (_, age))| *age >= self.ages.grace)
            .map(|(version, _)| *version);
        let before_grace = match old_version {
            Some(version) => Some(store.read_version(version).await.map_err(reading())?),
            None => None,
        };
        let known = Shard {
            newest: &newest,
            before_grace: before_grace.as_ref(),
            merged,
        };
        for folder in listing.folders.values() {
            if removals.len() >= MOST_REMOVALS {
                return Ok(());
            }
            if let Some((kind, reason)) = judge_folder(folder, &known, self.ages) {
                self.remove_folder(shard, &folder.name).await?;
                removals.push(Removal {
                    path: format!("_mem_wal/{shard}/{}", folder.name),
                    kind,
                    bytes: folder.bytes,
                    age: Some(folder.age),
                    reason,
                });
            }
        }
        self.wal(shard, &newest, &listing.wal, removals).await?;
        if let Some(version) = old_version {
            self.manifests(&store, shard, version, &listing, removals)
                .await?;
        }
        self.forget(shard, &newest, merged).await;
        Ok(())
    }

    async fn list(&self, shard: Uuid) -> Result<Listing> {
        let mut listing = Listing::default();
        let folder = shard_base_path(self.table.base_path(), &shard);
        let depth = folder.parts().count();
        let mut objects = self.table.object_store().inner.list(Some(&folder));
        while let Some(object) = objects.next().await {
            let object = object.map_err(|error| {
                self.table.context(format!("listing shard {shard}"))(error.into())
            })?;
            let age = (self.now - object.last_modified)
                .to_std()
                .unwrap_or_default();
            let parts: Vec<_> = object.location.parts().skip(depth).collect();
            let [first, rest @ ..] = &parts[..] else {
                continue;
            };
            let number = match rest {
                [file] => parse_bit_reversed_filename(file.as_ref()),
                _ => None,
            };
            match (first.as_ref(), number) {
                ("wal", Some(position)) => listing.wal.push(WalEntry {
                    position,
                    bytes: object.size,
                    age,
                }),
                ("manifest", Some(version)) => {
                    listing.manifests.insert(version, (object.size, age));
                }
                ("wal" | "manifest", None) => {}
                (name, _) if !rest.is_empty() => {
                    let fresh = || Folder {
                        name: name.to_string(),
                        bytes: 0,
                        age,
                    };
                    let folder = listing
                        .folders
                        .entry(name.to_string())
                        .or_insert_with(fresh);
                    folder.bytes += object.size;
                    folder.age = folder.age.min(age);
                }
                _ => {}
            }
        }
        listing.wal.sort_unstable_by_key(|entry| entry.position);
        Ok(listing)
    }

    async fn remove_folder(&self, shard: Uuid, name: &str) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        let store = self.table.object_store();
        let path = shard_base_path(self.table.base_path(), &shard).join(name);
        let objects = store
            .inner
            .list(Some(&path))
            .map_ok(|object| object.location);
        let mut deleted = store.inner.delete_stream(objects.boxed());
        while let Some(result) = deleted.next().await {
            self.gone(&path, result)?;
            fail::fail_point!("cleanup-in-folder");
        }
        drop(deleted);
        // A local folder outlives its files.
        match store.remove_dir_all(path.clone()).await {
            Err(error) if !error.is_not_found() => {
                tracing::debug!(%path, %error, "an emptied folder stays");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn wal(
        &self,
        shard: Uuid,
        newest: &ShardManifest,
        entries: &[WalEntry],
        removals: &mut Vec<Removal>,
    ) -> Result<()> {
        let floor = wal_floor(newest);
        let candidates: Vec<bool> = entries
            .iter()
            .map(|entry| wal_candidate(entry, floor, self.ages))
            .collect();
        let mut epochs = Epochs::new(candidates.clone());
        while let Some(index) = epochs.next() {
            let epoch = self.epoch(shard, entries[index].position).await?;
            epochs.learn(index, epoch);
        }
        for (index, entry) in entries.iter().enumerate() {
            if !candidates[index] || epochs.is_first(index) || removals.len() >= MOST_REMOVALS {
                continue;
            }
            if !self.dry_run {
                let path = self.wal_path(shard, entry.position);
                let deleted = self.table.object_store().inner.delete(&path).await;
                self.gone(&path, deleted)?;
                fail::fail_point!("cleanup-in-wal");
            }
            removals.push(Removal {
                path: format!(
                    "_mem_wal/{shard}/wal/{}",
                    wal_entry_filename(entry.position)
                ),
                kind: RemovalKind::WalEntry,
                bytes: entry.bytes,
                age: Some(entry.age),
                reason: format!(
                    "log position {} is flushed: kept from {floor} on",
                    entry.position
                ),
            });
        }
        Ok(())
    }

    fn wal_path(&self, shard: Uuid, position: u64) -> Path {
        shard_base_path(self.table.base_path(), &shard)
            .join("wal")
            .join(wal_entry_filename(position))
    }

    /// The epoch of the writer that put a log entry.
    async fn epoch(&self, shard: Uuid, position: u64) -> Result<u64> {
        let path = self.wal_path(shard, position);
        let store = &self.table.object_store().inner;
        let failed = |error: object_store::Error| {
            self.table.context(format!("reading log entry {path}"))(error.into())
        };
        let size = store.head(&path).await.map_err(failed)?.size;
        let mut until = HEAD_BYTES.min(size);
        loop {
            let head = store.get_range(&path, 0..until).await.map_err(failed)?;
            let epoch = StreamReader::try_new(std::io::Cursor::new(head), None)
                .ok()
                .and_then(|reader| {
                    reader
                        .schema()
                        .metadata()
                        .get(WRITER_EPOCH_KEY)?
                        .parse()
                        .ok()
                });
            match epoch {
                Some(epoch) => return Ok(epoch),
                None if until < size => until = size,
                None => {
                    return Err(RolloutError::invalid(format!(
                        "log entry {path} cannot be read: nothing of its shard's log is deleted"
                    )));
                }
            }
        }
    }

    /// Old manifest versions, by Lance's own rules, which keep what a sleeping writer may collide
    /// with; and what tells how long ago a generation was dropped.
    async fn manifests(
        &self,
        store: &ShardManifestStore,
        shard: Uuid,
        keep_from: u64,
        listing: &Listing,
        removals: &mut Vec<Removal>,
    ) -> Result<()> {
        let old: Vec<_> = listing
            .manifests
            .range(..keep_from)
            .take_while(|(_, (_, age))| *age >= MANIFEST_AGE)
            .collect();
        if old.is_empty() {
            return Ok(());
        }
        if !self.dry_run {
            store.prune_versions_before(keep_from).await.map_err(
                self.table
                    .context(format!("pruning the manifests of shard {shard}")),
            )?;
        }
        removals.extend(old.into_iter().map(|(version, (bytes, age))| Removal {
            path: format!("_mem_wal/{shard}/manifest/ (version {version})"),
            kind: RemovalKind::ShardManifest,
            bytes: *bytes,
            age: Some(*age),
            reason: format!("superseded: versions from {keep_from} on are kept"),
        }));
        Ok(())
    }

    /// Drops merged generations a merge that was interrupted left in the manifest: their folders
    /// go once the grace has passed over that.
    async fn forget(&self, shard: Uuid, newest: &ShardManifest, merged: u64) {
        if self.dry_run || newest.sstables.iter().all(|s| s.generation > merged) {
            return;
        }
        let forgotten = match self.own.get(&shard) {
            Some(own) => forget_in(&own.manifests, own.epoch, merged).await,
            None => {
                let store = self.table.manifest_store(shard);
                forget_in(&store, newest.writer_epoch, merged).await
            }
        };
        if let Err(error) = forgotten {
            tracing::debug!(%shard, %error, "merged generations stay in their manifest for now");
        }
    }

    /// What only old versions of the base name, by Lance's own clean-up.
    async fn base(&self, base: &Arc<Dataset>, removals: &mut Vec<Removal>) -> Result<()> {
        let failed = || self.table.context("cleaning up old base versions");
        let age = self.ages.min_age.max(self.ages.grace);
        let Ok(age) = chrono::Duration::from_std(age) else {
            return Ok(());
        };
        let versions = base.version_refs().await.map_err(failed())?;
        let mut policy = CleanupPolicyBuilder::default()
            .before_timestamp(self.now - age)
            .error_if_tagged_old_versions(false);
        if versions.len() > MOST_VERSIONS {
            let oldest = versions.iter().take(MOST_VERSIONS);
            policy = policy
                .versions(oldest.map(|version| version.version).collect())
                .map_err(failed())?;
        }
        if self.dry_run {
            return self.explain_base(base, policy.build(), removals).await;
        }
        fail::fail_point!("cleanup-before-base");
        let stats = base
            .cleanup_with_policy(policy.build())
            .await
            .map_err(failed())?;
        if stats.old_versions > 0 || stats.bytes_removed > 0 {
            removals.push(Removal {
                path: "_versions, data".to_string(),
                kind: RemovalKind::Base,
                bytes: stats.bytes_removed,
                age: None,
                reason: format!(
                    "{} old versions, {} data files and {} deletion files only they named",
                    stats.old_versions, stats.data_files_removed, stats.deletion_files_removed
                ),
            });
        }
        Ok(())
    }

    async fn explain_base(
        &self,
        base: &Arc<Dataset>,
        policy: CleanupPolicy,
        removals: &mut Vec<Removal>,
    ) -> Result<()> {
        let explained = base
            .cleanup(policy)
            .explain()
            .await
            .map_err(self.table.context("looking for old base versions"))?;
        removals.extend(explained.candidate_files.into_iter().map(|file| Removal {
            path: file.path,
            kind: RemovalKind::Base,
            bytes: file.size_bytes,
            age: None,
            reason: match file.kind {
                CleanupFileKind::Manifest => "an old version".to_string(),
                _ => "only old versions name it".to_string(),
            },
        }));
        Ok(())
    }

    /// What another clean-up deleted is gone too.
    fn gone<T>(&self, path: &Path, deleted: object_store::Result<T>) -> Result<()> {
        match deleted {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.table.context(format!("deleting {path}"))(error.into())),
        }
    }
}
