//! A cache of bounded weight, and views of it that take what they put there with them.
//!
//! Lance's own backends never remove a single entry: what they hold of a generation stays there after
//! it was merged, in the place of something useful or, below the cap, for ever. Beneath is the library
//! Lance uses for them, quick_cache (an S3-FIFO).

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use lance_core::cache::{CacheBackend, CacheCodec, CacheEntry, InternalCacheKey};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, Weighter};

/// What an entry takes beside its value: its key and the cache's records of both.
const ENTRY_BYTES: usize = 256;

/// How large an entry is assumed to be when room for their records is made.
const USUAL_ENTRY_BYTES: usize = 64 << 10;

#[derive(Clone)]
struct Entry {
    value: CacheEntry,
    bytes: usize,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<InternalCacheKey, Entry> for Bytes {
    fn weight(&self, _key: &InternalCacheKey, entry: &Entry) -> u64 {
        (ENTRY_BYTES + entry.bytes) as u64
    }
}

/// Entries of all kinds, up to a weight.
pub(super) struct CappedCache {
    entries: Cache<InternalCacheKey, Entry, Bytes>,
    capacity: usize,
}

impl CappedCache {
    /// Room for `capacity` bytes. In one piece: in a part of it, a large entry might not be admitted.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        let options = OptionsBuilder::new()
            .estimated_items_capacity((capacity / USUAL_ENTRY_BYTES).clamp(32, 1_000_000))
            .weight_capacity(capacity as u64)
            .shards(1)
            .build()
            .expect("both capacities are given");
        Arc::new(Self {
            entries: Cache::with_options(options, Bytes, Default::default(), Default::default()),
            capacity,
        })
    }
}

/// How often one kind of cached things was asked for.
#[derive(Debug, Default)]
pub(super) struct Uses {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
}

impl Uses {
    fn count(&self, hit: bool) {
        let counter = if hit { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A [`CappedCache`] as one of its users sees it.
pub(super) struct View {
    cache: Arc<CappedCache>,
    uses: Arc<Uses>,
    /// What goes with this view.
    put: Option<Mutex<HashSet<InternalCacheKey>>>,
}

impl View {
    /// A view whose entries stay until they are evicted.
    pub(super) fn new(cache: &Arc<CappedCache>) -> Arc<Self> {
        Arc::new(Self {
            cache: cache.clone(),
            uses: Arc::default(),
            put: None,
        })
    }

    /// A view of the same cache, counted with this one, whose entries are removed when it is dropped.
    pub(super) fn passing(&self) -> Arc<Self> {
        Arc::new(Self {
            cache: self.cache.clone(),
            uses: self.uses.clone(),
            put: Some(Mutex::default()),
        })
    }

    pub(super) fn uses(&self) -> &Uses {
        &self.uses
    }

    fn note(&self, key: &InternalCacheKey) {
        if let Some(put) = &self.put {
            put.lock().insert(*key);
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        for key in self.put.iter_mut().flat_map(|put| put.get_mut().drain()) {
            self.cache.entries.remove(&key);
        }
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View")
            .field("entries", &self.cache.entries.len())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl CacheBackend for View {
    async fn get_resident(&self, key: &InternalCacheKey) -> Option<CacheEntry> {
        self.get(key, None).await
    }

    async fn peek_resident(&self, key: &InternalCacheKey) -> bool {
        self.cache.entries.contains_key(key)
    }

    async fn get(&self, key: &InternalCacheKey, _codec: Option<CacheCodec>) -> Option<CacheEntry> {
        let found = self.cache.entries.get(key);
        self.uses.count(found.is_some());
        found.map(|entry| entry.value)
    }

    async fn insert(
        &self,
        key: &InternalCacheKey,
        value: CacheEntry,
        bytes: usize,
        _codec: Option<CacheCodec>,
    ) {
        self.note(key);
        self.cache.entries.insert(*key, Entry { value, bytes });
    }

    async fn get_or_insert<'a>(
        &self,
        key: &InternalCacheKey,
        loader: Pin<Box<dyn Future<Output = lance::Result<(CacheEntry, usize)>> + Send + 'a>>,
        _codec: Option<CacheCodec>,
    ) -> lance::Result<(CacheEntry, bool)> {
        let found = self.cache.entries.get_value_or_guard_async(key).await;
        self.uses.count(found.is_ok());
        match found {
            Ok(entry) => Ok((entry.value, true)),
            Err(guard) => {
                let (value, bytes) = loader.await?;
                self.note(key);
                let entry = Entry {
                    value: value.clone(),
                    bytes,
                };
                // Refused where it was removed meanwhile: then it is not kept.
                let _ = guard.insert(entry);
                Ok((value, false))
            }
        }
    }

    async fn clear(&self) {
        self.cache.entries.clear();
    }

    async fn num_entries(&self) -> usize {
        self.cache.entries.len()
    }

    async fn size_bytes(&self) -> usize {
        self.cache.entries.weight() as usize
    }

    fn approx_num_entries(&self) -> usize {
        self.cache.entries.len()
    }

    fn approx_size_bytes(&self) -> usize {
        self.cache.entries.weight() as usize
    }

    fn capacity_bytes(&self) -> Option<usize> {
        Some(self.cache.capacity)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use lance_core::cache::{CacheKey, LanceCache};

    use super::*;

    struct Text(&'static str);

    impl CacheKey for Text {
        type ValueType = String;

        fn key(&self) -> Cow<'_, str> {
            Cow::Borrowed(self.0)
        }

        fn type_name() -> &'static str {
            "Text"
        }
    }

    async fn load(cache: &LanceCache, key: &'static str) -> Arc<String> {
        let value = cache.get_or_insert_with_key(Text(key), || async { Ok(key.to_uppercase()) });
        value.await.expect("loads")
    }

    #[tokio::test]
    async fn what_a_passing_view_put_goes_with_it() {
        let capped = CappedCache::new(1 << 20);
        let staying = View::new(&capped);
        let passing = staying.passing();
        let (here, there) = (
            LanceCache::with_backend(staying.clone()),
            LanceCache::with_backend(passing),
        );
        here.insert_with_key(&Text("mine"), Arc::new("MINE".to_string()))
            .await;
        there
            .insert_with_key(&Text("a"), Arc::new("A".to_string()))
            .await;
        assert_eq!(*load(&there, "b").await, "B");
        assert_eq!(*load(&there, "mine").await, "MINE", "one cache for all");
        assert_eq!(
            here.get_with_key(&Text("a")).await.as_deref(),
            Some(&"A".to_string())
        );
        assert_eq!(staying.num_entries().await, 3);
        drop(there);
        assert_eq!(staying.num_entries().await, 1);
        assert!(here.get_with_key(&Text("mine")).await.is_some());
        let uses = staying.uses();
        assert_eq!(uses.hits.load(Ordering::Relaxed), 3);
        assert_eq!(uses.misses.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn it_never_holds_more_than_its_capacity() {
        let view = View::new(&CappedCache::new(100_000));
        let cache = LanceCache::with_backend(view.clone());
        for key in ["a", "b", "c", "d", "e", "f"] {
            let large = Arc::new(key.repeat(30_000));
            cache.insert_with_key(&Text(key), large).await;
            assert!(view.size_bytes().await <= 100_000);
        }
        assert!(view.num_entries().await >= 2);
    }

    #[tokio::test]
    async fn what_could_not_be_loaded_is_tried_again() {
        let cache = LanceCache::with_backend(View::new(&CappedCache::new(1 << 20)));
        let failed = cache.get_or_insert_with_key(Text("a"), || async {
            Err(lance::Error::io("not today".to_string()))
        });
        assert!(failed.await.is_err());
        assert_eq!(*load(&cache, "a").await, "A");
    }
}
