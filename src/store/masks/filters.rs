//! A filter per base fragment: which ids a fragment may hold.
//!
//! A new generation's ids are probed against every fragment of the base, whose ids may be random:
//! a B-tree would be asked for nearly every page. So each fragment has a split block Bloom filter of
//! its ids, about two bytes a row, kept in the capped cache and beside the table; only ids that pass
//! one are looked up. A fragment's ids never change under its data files' names, so neither does its
//! filter; one that is missing is made from the id column the first time it is wanted.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance_core::deepsize::{Context, DeepSizeOf};
use lance_core::utils::bloomfilter::sbbf::Sbbf;
use lance_table::format::Fragment;
use md5::{Digest, Md5};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::keys::{KeyCache, as_ids};
use crate::error::{Result, RolloutError};
use crate::store::LanceTable;
use crate::store::object_store::ROLLOUTS_DIR;

/// Ids that pass a filter without being there: one in a thousand.
const FALSE_POSITIVES: f64 = 0.001;

/// What a stored filter starts with; another version is not read.
const MAGIC: &[u8; 8] = b"rollidf1";

/// Bytes of the digest that follows it.
const DIGEST_BYTES: usize = 16;

/// Fragments whose filters are fetched or made side by side.
const CONCURRENCY: usize = 8;

/// The ids a fragment may hold.
pub(crate) struct IdFilter(Sbbf);

impl std::fmt::Debug for IdFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IdFilter({} bytes)", self.0.size_bytes())
    }
}

impl DeepSizeOf for IdFilter {
    fn deep_size_of_children(&self, _context: &mut Context) -> usize {
        self.0.estimated_memory_size()
    }
}

impl IdFilter {
    fn with_room_for(ids: usize) -> Result<Self> {
        Sbbf::with_ndv_fpp(ids.max(1) as u64, FALSE_POSITIVES)
            .map(Self)
            .map_err(|error| RolloutError::invalid(format!("a filter for {ids} ids: {error}")))
    }

    /// Whether the fragment may hold this id.
    pub(super) fn may_hold(&self, id: &str) -> bool {
        self.0.check(id.as_bytes())
    }

    fn to_bytes(&self) -> Bytes {
        let bits = self.0.to_bytes();
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&Md5::digest(&bits));
        bytes.extend_from_slice(&bits);
        bytes.into()
    }

    /// Reads a stored filter; none if it is not one, or damaged: a filter that lost bits would hide
    /// rows that have to be replaced.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (digest, bits) = bytes.strip_prefix(MAGIC)?.split_at_checked(DIGEST_BYTES)?;
        let whole = !bits.is_empty() && Md5::digest(bits).as_slice() == digest;
        whole.then(|| Sbbf::new(bits).ok().map(Self)).flatten()
    }
}

/// Makes the filters of all fragments that have none yet, so that no query has to, and drops those
/// of fragments that are gone: whoever still reads such a fragment makes its filter again.
///
/// # Errors
/// A fragment whose ids cannot be read.
pub(crate) async fn make_filters(
    table: &LanceTable,
    cache: &KeyCache,
    base: &Arc<Dataset>,
) -> Result<()> {
    of_fragments(table, cache, base, base.fragments()).await?;
    let kept: HashSet<Path> = base
        .fragments()
        .iter()
        .map(|fragment| path_of(table, &name_of(fragment)))
        .collect();
    let store = &table.object_store().inner;
    let gone = store
        .list(Some(&folder(table)))
        .map_ok(|object| object.location)
        .try_filter(move |path| futures::future::ready(!kept.contains(path)))
        .boxed();
    let mut deleted = store.delete_stream(gone);
    while let Some(result) = deleted.next().await {
        if let Err(error) = result {
            tracing::debug!(%error, "an id filter of a fragment that is gone stays for now");
        }
    }
    Ok(())
}

/// The filters of some fragments, in order.
///
/// # Errors
/// A fragment whose ids cannot be read.
pub(super) async fn of_fragments(
    table: &LanceTable,
    cache: &KeyCache,
    base: &Arc<Dataset>,
    fragments: &[Fragment],
) -> Result<Vec<Arc<IdFilter>>> {
    futures::stream::iter(fragments.iter().cloned())
        .map(|fragment| async move { of_fragment(table, cache, base, fragment).await })
        .buffered(CONCURRENCY)
        .try_collect()
        .await
}

async fn of_fragment(
    table: &LanceTable,
    cache: &KeyCache,
    base: &Arc<Dataset>,
    fragment: Fragment,
) -> Result<Arc<IdFilter>> {
    let name = name_of(&fragment);
    if let Some(filter) = cache.filter(&name).await {
        return Ok(filter);
    }
    let path = path_of(table, &name);
    let filter = match stored(table, &path).await {
        Some(filter) => filter,
        None => {
            let filter = read_ids(table, base, fragment).await?;
            if !table.read_only() {
                let put = table
                    .object_store()
                    .inner
                    .put(&path, filter.to_bytes().into());
                // Only a convenience for the next process.
                if let Err(error) = put.await {
                    tracing::debug!(%path, %error, "a fragment's id filter was not stored");
                }
            }
            filter
        }
    };
    let filter = Arc::new(filter);
    cache.put_filter(&name, filter.clone()).await;
    Ok(filter)
}

async fn stored(table: &LanceTable, path: &Path) -> Option<IdFilter> {
    let found = table.object_store().inner.get(path).await.ok()?;
    IdFilter::from_bytes(&found.bytes().await.ok()?)
}

async fn read_ids(
    table: &LanceTable,
    base: &Arc<Dataset>,
    mut fragment: Fragment,
) -> Result<IdFilter> {
    let context = || table.context("reading the base's ids");
    // Whoever still reads an older version has the rows there that were deleted since.
    fragment.deletion_file = None;
    let rows = fragment.physical_rows.unwrap_or_default();
    let mut filter = IdFilter::with_room_for(rows)?;
    let schema = table.schema();
    let mut scanner = base.scan();
    scanner.project(&[schema.key_name()]).map_err(context())?;
    scanner.with_fragments(vec![fragment]);
    let mut batches = scanner.try_into_stream().await.map_err(context())?;
    while let Some(batch) = batches.try_next().await.map_err(context())? {
        for id in as_ids(batch.column(0))?.iter().flatten() {
            filter.0.insert(id.as_bytes());
        }
    }
    Ok(filter)
}

/// A fragment's data files name its ids.
pub(super) fn name_of(fragment: &Fragment) -> String {
    let names: Vec<_> = fragment
        .files
        .iter()
        .map(|file| file.path.trim_end_matches(".lance"))
        .collect();
    format!("{}-{}", fragment.id, names.join("+"))
}

fn folder(table: &LanceTable) -> Path {
    table
        .base_path()
        .clone()
        .join(ROLLOUTS_DIR)
        .join("id_filters")
}

fn path_of(table: &LanceTable, name: &str) -> Path {
    folder(table).join(format!("{name}.sbbf"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use super::super::{KeySource, Masks, row_count};
    use super::*;
    use crate::store::SharedCache;
    use crate::testing::Process;

    /// A filter made from a newer version of the base serves whoever still reads an older one.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_filter_knows_rows_that_were_deleted_before_it_was_made() {
        let folder = tempfile::tempdir().expect("folder");
        let process = Process::open(folder.path()).await;
        let table = process.store.table();
        process.insert("x").await;
        process.insert("y").await;
        process.store.flush().await.expect("flushes");
        process.store.merge().await.expect("merges");
        let older = table.base();
        let stored = folder.path().join(ROLLOUTS_DIR).join("id_filters");
        std::fs::remove_dir_all(&stored).expect("the filter merging made");
        let fresh = KeyCache::new(&SharedCache::with_total(1 << 20), "table");

        process.insert("x").await;
        process.store.flush().await.expect("flushes");
        let snapshot = process
            .store
            .snapshot(Duration::ZERO, &HashMap::new())
            .await
            .expect("snapshot");
        let sources: Vec<_> = snapshot
            .generations
            .iter()
            .map(KeySource::generation)
            .collect();
        let mut newer = older.as_ref().clone();
        newer.delete("id = 'x'").await.expect("deletes");
        let newer = Arc::new(newer);
        for (base, superseded) in [(&newer, 0), (&older, 1)] {
            let masks = Masks::build(table, &fresh, base, &sources).await;
            let masks = masks.expect("masks");
            assert_eq!(
                row_count(&masks.base),
                superseded,
                "{:?}",
                base.version().version
            );
        }
    }

    #[test]
    fn a_stored_filter_answers_as_before() {
        let mut filter = IdFilter::with_room_for(1_000).expect("room");
        for i in 0..1_000 {
            filter.0.insert(format!("id-{i}").as_bytes());
        }
        let back = IdFilter::from_bytes(&filter.to_bytes()).expect("reads");
        assert!((0..1_000).all(|i| back.may_hold(&format!("id-{i}"))));
        let stored = filter.to_bytes();
        assert!(
            IdFilter::from_bytes(&stored[..stored.len() - 32]).is_none(),
            "cut short"
        );
        let mut flipped = stored.to_vec();
        flipped[100] ^= 1;
        assert!(IdFilter::from_bytes(&flipped).is_none(), "a bit lost");
        let wrong = (1_000..11_000)
            .filter(|i| back.may_hold(&format!("id-{i}")))
            .count();
        assert!(wrong < 100, "{wrong} of 10000 absent ids passed");
    }

    #[test]
    fn what_is_not_a_filter_is_not_read() {
        for bytes in [
            &b""[..],
            b"rollidf",
            b"something else entirely",
            b"rollidf1",
            b"rollidf1abc",
        ] {
            assert!(IdFilter::from_bytes(bytes).is_none(), "{bytes:?}");
        }
    }
}
