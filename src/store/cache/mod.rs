//! The one cache of a process: Lance's session, capped, with this crate's keys and matches in it.
//!
//! What is cached of a generation is dropped with its handle, when it was merged and nobody reads it any
//! more: else memory would follow the number of flushes until the cap.

mod view;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lance::session::{CacheSpec, Session};
use lance_core::cache::{CacheBackend, CacheStats, LanceCache};
use lance_io::object_store::ObjectStoreRegistry;
use view::{CappedCache, View};

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
    keys: Arc<View>,
    /// What the session caches in, where it was made here.
    views: Option<SessionViews>,
}

#[derive(Debug, Clone)]
struct SessionViews {
    index: Arc<View>,
    metadata: Arc<View>,
}

impl SessionViews {
    fn session(&self, registry: Arc<ObjectStoreRegistry>) -> Arc<Session> {
        Arc::new(Session::with_cache_backends(
            CacheSpec::Backend(self.index.clone()),
            CacheSpec::Backend(self.metadata.clone()),
            registry,
        ))
    }
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
    async fn of(kind: &'static str, view: &View) -> Self {
        Self {
            kind,
            bytes: Some(view.size_bytes().await as u64),
            entries: Some(view.num_entries().await as u64),
            bound: view.capacity_bytes().map(|bytes| bytes as u64),
            hits: view.uses().hits.load(Ordering::Relaxed),
            misses: view.uses().misses.load(Ordering::Relaxed),
        }
    }

    /// Of a session that was given, which tells one bound only.
    fn of_given(kind: &'static str, stats: &CacheStats, bound: Option<usize>) -> Self {
        Self {
            kind,
            bytes: Some(stats.size_bytes as u64),
            entries: Some(stats.num_entries as u64),
            bound: bound.map(|bytes| bytes as u64),
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
        let index = CappedCache::new(index_bytes);
        let views = SessionViews {
            index: View::new(&index),
            metadata: View::new(&CappedCache::new(metadata_bytes)),
        };
        Self {
            session: views.session(Arc::default()),
            keys: View::new(&index),
            views: Some(views),
        }
    }

    /// A session the application brought.
    pub(crate) fn beside(session: Arc<Session>) -> Self {
        Self {
            session,
            keys: View::new(&CappedCache::new(KEYS_BESIDE_GIVEN_SESSION)),
            views: None,
        }
    }

    /// A default session, for one store.
    pub(crate) fn of_its_own() -> Self {
        Self::beside(Arc::new(Session::default()))
    }

    /// The same caches and object stores for something that passes: what it caches goes when the last
    /// clone of this is dropped. A session the application brought keeps it.
    pub(crate) fn for_passing(&self) -> Self {
        let views = self.views.as_ref().map(|views| SessionViews {
            index: views.index.passing(),
            metadata: views.metadata.passing(),
        });
        let session = match &views {
            Some(views) => views.session(self.session.store_registry()),
            None => self.session.clone(),
        };
        Self {
            session,
            keys: self.keys.passing(),
            views,
        }
    }

    /// Where keys and matches are cached.
    pub(crate) fn keys(&self) -> LanceCache {
        LanceCache::with_backend(self.keys.clone()).with_key_prefix("rollouts")
    }

    /// What each kind takes now.
    pub(crate) async fn figures(&self) -> Vec<CacheFigures> {
        let mut keys = CacheFigures::of("keys", &self.keys).await;
        match &self.views {
            Some(views) => {
                (keys.bytes, keys.entries, keys.bound) = (None, None, None);
                vec![
                    CacheFigures::of("index", &views.index).await,
                    keys,
                    CacheFigures::of("metadata", &views.metadata).await,
                ]
            }
            None => {
                let index = self.session.index_cache_stats().await;
                let metadata = self.session.metadata_cache_stats().await;
                let bound = self.session.file_metadata_cache().capacity_bytes();
                vec![
                    CacheFigures::of_given("index", &index, None),
                    keys,
                    CacheFigures::of_given("metadata", &metadata, bound),
                ]
            }
        }
    }
}
