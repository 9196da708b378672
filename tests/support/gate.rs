//! A store whose writes can be stopped before they reach it, as if the process had been suspended
//! at that moment, and go on later.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use lance_io::object_store::WrappingObjectStore;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::watch;

/// Stops writes while it is closed. Cheap to clone: clones are the same gate.
#[derive(Debug, Clone)]
pub struct Gate {
    closed: Arc<watch::Sender<bool>>,
    waiting: Arc<AtomicUsize>,
    data_files: Arc<AtomicUsize>,
}

impl Gate {
    pub fn open() -> Self {
        Self {
            closed: Arc::new(watch::Sender::new(false)),
            waiting: Arc::default(),
            data_files: Arc::default(),
        }
    }

    pub fn set_closed(&self, closed: bool) {
        self.closed.send_replace(closed);
    }

    /// Log entries that stand before the gate.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Makes sure that data files went through this store and not past it.
    pub fn assert_saw_data_files(&self) {
        assert!(
            self.data_files.load(Ordering::SeqCst) > 0,
            "no data file passed the gate"
        );
    }

    async fn pass(&self, path: &Path) {
        let log = path.as_ref().contains("/wal/");
        if path.as_ref().contains("/data/") {
            self.data_files.fetch_add(1, Ordering::SeqCst);
        }
        if log {
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
        let mut closed = self.closed.subscribe();
        let _ = closed.wait_for(|closed| !closed).await;
        if log {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl WrappingObjectStore for Gate {
    fn wrap(&self, _prefix: &str, original: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(GatedStore {
            inner: original,
            gate: self.clone(),
        })
    }

    fn wrap_paginated(
        &self,
        _prefix: &str,
        original: Arc<dyn PaginatedListStore>,
    ) -> Option<Arc<dyn PaginatedListStore>> {
        Some(original)
    }
}

#[derive(Debug)]
struct GatedStore {
    inner: Arc<dyn ObjectStore>,
    gate: Gate,
}

impl fmt::Display for GatedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GatedStore({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for GatedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.gate.pass(location).await;
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.gate.pass(location).await;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.gate.pass(to).await;
        self.inner.copy_opts(from, to, options).await
    }
}
