//! Commits that are checked against every version made since they were begun.
//!
//! Lance checks a commit against the versions it finds above the one the work began on. One that it
//! does not find is not missed: what that version deleted or replaced comes back beside its newer
//! form. Clean-up removes old versions, while a merge, a compaction or a statement of a slow process
//! may still stand on an older one; and where a folder is listed while versions are made in it, the
//! listing may lack one and have the next. So the list has to be whole, or the commit is refused as
//! one that lost against another, and its work is done again on the newest version.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use lance_core::{Error, Result};
use lance_io::object_store::{ObjectStore, ObjectStoreParams};
use lance_table::format::{IndexMetadata, Manifest, Transaction};
use lance_table::io::commit::{
    CommitError, CommitHandler, ManifestLocation, ManifestNamingScheme, ManifestWriter,
    PredecessorIdentity, commit_handler_from_url, uses_version_hint,
};
use object_store::path::Path;

/// The commit handler of a location, behind the check.
///
/// # Errors
/// A location Lance has no commit handler for.
pub(super) async fn whole_history(
    uri: &str,
    params: &ObjectStoreParams,
) -> Result<Arc<dyn CommitHandler>> {
    let inner = commit_handler_from_url(uri, &Some(params.clone())).await?;
    Ok(Arc::new(WholeHistory { inner }))
}

/// A commit handler that refuses to list a part of the versions since another.
#[derive(Debug)]
struct WholeHistory {
    inner: Arc<dyn CommitHandler>,
}

/// What is wrong with a list of the versions after `since`, newest first.
fn gap(since: u64, listed: &[u64]) -> Option<String> {
    let newest = *listed.first()?;
    let expected = (since + 1..=newest).rev();
    (!expected.eq(listed.iter().copied())).then(|| {
        format!(
            "the work began on version {since} and there is version {newest}, but not all between \
             them are left: they were cleaned up meanwhile. Do the work again"
        )
    })
}

fn refused(version: u64, reason: String) -> Error {
    Error::retryable_commit_conflict_source(version, reason.into())
}

#[async_trait]
impl CommitHandler for WholeHistory {
    fn list_manifest_locations_since<'a>(
        &self,
        base_path: &Path,
        object_store: &'a ObjectStore,
        since_version: u64,
    ) -> BoxStream<'a, Result<ManifestLocation>> {
        let inner = self.inner.clone();
        let base_path = base_path.clone();
        futures::stream::once(async move {
            let listed: Vec<_> = inner
                .list_manifest_locations_since(&base_path, object_store, since_version)
                .try_collect()
                .await?;
            let versions: Vec<u64> = listed.iter().map(|location| location.version).collect();
            if let Some(reason) = gap(since_version, &versions) {
                return Err(refused(since_version, reason));
            }
            // Where Lance guesses the newest version and finds none above this one, there is none
            // unless this one is gone too: the oldest go first.
            if listed.is_empty() && uses_version_hint(object_store) {
                let store = object_store.inner.as_ref();
                let scheme = ManifestNamingScheme::V2;
                let exists = inner.version_exists(&base_path, since_version, store, scheme);
                if !exists.await? {
                    let reason =
                        format!("version {since_version}, which the work began on, is gone");
                    return Err(refused(since_version, reason));
                }
            }
            Ok(futures::stream::iter(listed.into_iter().map(Ok)))
        })
        .try_flatten()
        .boxed()
    }

    fn is_version_not_found_definitive(&self) -> bool {
        self.inner.is_version_not_found_definitive()
    }

    fn propagate_commit_error_after_success(&self) -> bool {
        self.inner.propagate_commit_error_after_success()
    }

    async fn resolve_latest_location(
        &self,
        base_path: &Path,
        object_store: &ObjectStore,
    ) -> Result<ManifestLocation> {
        self.inner
            .resolve_latest_location(base_path, object_store)
            .await
    }

    async fn resolve_version_location(
        &self,
        base_path: &Path,
        version: u64,
        object_store: &dyn object_store::ObjectStore,
    ) -> Result<ManifestLocation> {
        self.inner
            .resolve_version_location(base_path, version, object_store)
            .await
    }

    async fn version_exists(
        &self,
        base_path: &Path,
        version: u64,
        object_store: &dyn object_store::ObjectStore,
        naming_scheme: ManifestNamingScheme,
    ) -> Result<bool> {
        self.inner
            .version_exists(base_path, version, object_store, naming_scheme)
            .await
    }

    fn list_detached_manifest_locations<'a>(
        &self,
        base_path: &Path,
        object_store: &'a ObjectStore,
    ) -> BoxStream<'a, Result<ManifestLocation>> {
        self.inner
            .list_detached_manifest_locations(base_path, object_store)
    }

    fn list_manifest_locations<'a>(
        &self,
        base_path: &Path,
        object_store: &'a ObjectStore,
        sorted_descending: bool,
    ) -> BoxStream<'a, Result<ManifestLocation>> {
        self.inner
            .list_manifest_locations(base_path, object_store, sorted_descending)
    }

    async fn commit(
        &self,
        manifest: &mut Manifest,
        indices: Option<Vec<IndexMetadata>>,
        base_path: &Path,
        object_store: &ObjectStore,
        manifest_writer: ManifestWriter,
        naming_scheme: ManifestNamingScheme,
        transaction: Option<Transaction>,
    ) -> std::result::Result<ManifestLocation, CommitError> {
        self.inner
            .commit(
                manifest,
                indices,
                base_path,
                object_store,
                manifest_writer,
                naming_scheme,
                transaction,
            )
            .await
    }

    fn supports_predecessor_condition(&self) -> bool {
        self.inner.supports_predecessor_condition()
    }

    async fn resolve_latest_identity(
        &self,
        base_path: &Path,
        object_store: &ObjectStore,
    ) -> Result<Option<PredecessorIdentity>> {
        self.inner
            .resolve_latest_identity(base_path, object_store)
            .await
    }

    async fn resolve_identity(
        &self,
        base_path: &Path,
        object_store: &ObjectStore,
        version: u64,
    ) -> Result<Option<PredecessorIdentity>> {
        self.inner
            .resolve_identity(base_path, object_store, version)
            .await
    }

    async fn commit_after(
        &self,
        manifest: &mut Manifest,
        indices: Option<Vec<IndexMetadata>>,
        base_path: &Path,
        object_store: &ObjectStore,
        manifest_writer: ManifestWriter,
        naming_scheme: ManifestNamingScheme,
        transaction: Option<Transaction>,
        predecessor: &PredecessorIdentity,
    ) -> std::result::Result<ManifestLocation, CommitError> {
        self.inner
            .commit_after(
                manifest,
                indices,
                base_path,
                object_store,
                manifest_writer,
                naming_scheme,
                transaction,
                predecessor,
            )
            .await
    }

    async fn forget_version(&self, base_path: &Path, version: u64, identity: &str) -> Result<()> {
        self.inner
            .forget_version(base_path, version, identity)
            .await
    }

    async fn delete(&self, base_path: &Path) -> Result<()> {
        self.inner.delete(base_path).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_versions_has_no_holes() {
        for (since, listed, whole) in [
            (5, vec![], true),
            (5, vec![6], true),
            (5, vec![8, 7, 6], true),
            (5, vec![7], false),
            (5, vec![8, 6], false),
            (5, vec![8, 7], false),
        ] {
            assert_eq!(gap(since, &listed).is_none(), whole, "{since} {listed:?}");
        }
    }
}
