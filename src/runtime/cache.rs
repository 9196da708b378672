//! The one cache of a process: Lance's session, capped, with this crate's keys and matches in it.

use std::sync::Arc;

use lance::session::{CacheSpec, Session};
use lance_core::cache::{CacheStats, LanceCache, QuickCacheBackend, QuickCacheShardPolicy};
use lance_io::object_store::ObjectStoreRegistry;

/// Bytes for keys and matches beside a session that was given, or a store's own default one: their
/// caches cannot be shared from outside.
const KEYS_BESIDE_GIVEN_SESSION: usize = 64 << 20;

/// Builds a Lance session whose caches hold at most `index_bytes` and `metadata_bytes`.
///
/// All stores of a process should use one session: every open dataset and generation keeps its
/// metadata there, so sessions of their own multiply the memory by the number of stores.
pub fn build_session(index_bytes: usize, metadata_bytes: usize) -> Arc<Session> {
    SharedCache::capped(index_bytes, metadata_bytes).session
}

/// A session and the cache of keys that counts against the same cap.
#[derive(Debug, Clone)]
pub(crate) struct SharedCache {
    pub(crate) session: Arc<Session>,
    pub(crate) keys: LanceCache,
    /// The cap of the session's index cache, where it was made here: a session does not tell.
    index_bound: Option<u64>,
    /// Whether keys live in the index cache's room.
    keys_in_index: bool,
}

/// What one kind of cached things takes, and how often it was of use.
#[derive(Debug, Clone)]
pub(crate) struct CacheFigures {
    pub(crate) kind: &'static str,
    /// None where it is counted with another kind.
    pub(crate) bytes: Option<u64>,
    pub(crate) entries: Option<u64>,
    pub(crate) bound: Option<u64>,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl CacheFigures {
    fn of(kind: &'static str, stats: &CacheStats, bound: Option<u64>) -> Self {
        Self {
            kind,
            bytes: Some(stats.size_bytes as u64),
            entries: Some(stats.num_entries as u64),
            bound,
            hits: stats.hits,
            misses: stats.misses,
        }
    }
}

impl SharedCache {
    /// One cap for everything: index and metadata cache share it 6:1.
    pub(crate) fn with_total(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let metadata = bytes / 7;
        Self::capped(bytes - metadata, metadata)
    }

    fn capped(index_bytes: usize, metadata_bytes: usize) -> Self {
        let index = Arc::new(QuickCacheBackend::with_shard_policy(
            index_bytes,
            QuickCacheShardPolicy::Single,
        ));
        let session = Session::with_cache_backends(
            CacheSpec::Backend(index.clone()),
            CacheSpec::Size(metadata_bytes),
            Arc::new(ObjectStoreRegistry::default()),
        );
        Self {
            session: Arc::new(session),
            keys: LanceCache::with_backend(index).with_key_prefix("rollouts"),
            index_bound: Some(index_bytes as u64),
            keys_in_index: true,
        }
    }

    /// A session the application brought.
    pub(crate) fn beside(session: Arc<Session>) -> Self {
        Self {
            session,
            keys: LanceCache::with_backend(Arc::new(QuickCacheBackend::with_shard_policy(
                KEYS_BESIDE_GIVEN_SESSION,
                QuickCacheShardPolicy::Single,
            ))),
            index_bound: None,
            keys_in_index: false,
        }
    }

    /// A default session, for one store.
    pub(crate) fn of_its_own() -> Self {
        Self::beside(Arc::new(Session::default()))
    }

    /// What each kind takes now.
    pub(crate) async fn figures(&self) -> Vec<CacheFigures> {
        let bound = |cache: &LanceCache| cache.capacity_bytes().map(|bytes| bytes as u64);
        let index = self.session.index_cache_stats().await;
        let metadata = self.session.metadata_cache_stats().await;
        let keys = self.keys.stats().await;
        let mut keys = CacheFigures::of("keys", &keys, bound(&self.keys));
        if self.keys_in_index {
            (keys.bytes, keys.entries, keys.bound) = (None, None, None);
        }
        vec![
            CacheFigures::of("index", &index, self.index_bound),
            keys,
            CacheFigures::of(
                "metadata",
                &metadata,
                bound(self.session.file_metadata_cache()),
            ),
        ]
    }
}
