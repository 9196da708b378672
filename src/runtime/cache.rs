//! The one cache of a process: Lance's session, capped, with this crate's keys and matches in it.

use std::sync::Arc;

use lance::session::{CacheSpec, Session};
use lance_core::cache::{LanceCache, QuickCacheBackend, QuickCacheShardPolicy};
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
        }
    }

    /// A default session, for one store.
    pub(crate) fn of_its_own() -> Self {
        Self::beside(Arc::new(Session::default()))
    }
}
