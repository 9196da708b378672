//! A store that counts what passes through it, and whose writes take a set time.
//!
//! A [`Meter`] is handed to `RolloutRuntime::builder().with_object_store_wrapper`, or to Lance
//! through its store parameters; everything opened that way is counted in it. Local tables go
//! through the object store as well, which [`Meter::assert_saw_data_files`] makes sure of.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use lance_io::object_store::WrappingObjectStore;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
    UploadPart,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What is asked of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// A write that replaces what is there; a multipart upload counts once, when it completes.
    Put,
    /// A write that is refused if something is there.
    PutIfAbsent,
    /// A read, whole or a range.
    Get,
    /// A look at an object's size and date.
    Head,
    /// A listing.
    List,
    /// The deletion of one object.
    Delete,
    /// A copy or rename.
    Copy,
}

/// What an object is for, told by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathClass {
    /// An entry of a write-ahead log.
    Wal,
    /// Manifests and transactions, of shards, the base and generations.
    Manifest,
    /// Rows, deletion vectors and indexes.
    Data,
    /// A lease, and whatever else this crate keeps of its own.
    Lease,
    /// Anything else.
    Other,
}

impl PathClass {
    /// The class of an object, or of a listed folder.
    pub fn of(path: &Path) -> Self {
        // The innermost folder that says something: the ones above may be anybody's.
        path.parts()
            .filter_map(|part| match part.as_ref() {
                "_rollouts" => Some(Self::Lease),
                "wal" => Some(Self::Wal),
                "manifest" | "_versions" | "_transactions" => Some(Self::Manifest),
                "data" | "_deletions" | "_indices" | "_pk_index" => Some(Self::Data),
                _ => None,
            })
            .next_back()
            .unwrap_or(Self::Other)
    }
}

/// How long a write takes, at least.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PutTime {
    /// As long as the store below takes.
    AsIs,
    /// This long.
    Fixed(Duration),
    /// Log-normal: about 1 write in 100 takes three times the median.
    HeavyTailed {
        /// Half of the writes are faster.
        median: Duration,
        /// Writes of the same seed take the same times, in order.
        seed: u64,
    },
}

/// The spread of a heavy-tailed write: its logarithm's standard deviation.
const TAIL_SIGMA: f64 = 0.5;

#[derive(Debug)]
struct Delays {
    time: PutTime,
    random: StdRng,
}

impl Delays {
    fn new(time: PutTime) -> Self {
        let seed = match time {
            PutTime::HeavyTailed { seed, .. } => seed,
            _ => 0,
        };
        Self {
            time,
            random: StdRng::seed_from_u64(seed),
        }
    }

    fn next(&mut self) -> Duration {
        match self.time {
            PutTime::AsIs => Duration::ZERO,
            PutTime::Fixed(time) => time,
            PutTime::HeavyTailed { median, .. } => {
                // Box-Muller: two uniform numbers make a normal one.
                let (u, v): (f64, f64) = (self.random.random(), self.random.random());
                let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
                median.mul_f64((TAIL_SIGMA * normal).exp())
            }
        }
    }
}

/// Requests of one kind on one class of paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// How many there were.
    pub requests: u64,
    /// Bytes written or asked for.
    pub bytes: u64,
}

/// All requests counted up to a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<(Request, PathClass), Count>);

impl Counts {
    /// What was counted after `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let newer = self.0.iter().filter_map(|(key, count)| {
            let before = earlier.0.get(key).copied().unwrap_or_default();
            let requests = count.requests - before.requests;
            (requests > 0).then(|| {
                let bytes = count.bytes - before.bytes;
                (*key, Count { requests, bytes })
            })
        });
        Self(newer.collect())
    }

    /// Requests and bytes of those that `wanted` picks.
    pub fn sum(&self, wanted: impl Fn(Request, PathClass) -> bool) -> Count {
        let picked = self
            .0
            .iter()
            .filter(|((kind, class), _)| wanted(*kind, *class));
        picked.fold(Count::default(), |sum, (_, count)| Count {
            requests: sum.requests + count.requests,
            bytes: sum.bytes + count.bytes,
        })
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        self.sum(|_, _| true).requests
    }

    /// Requests of one kind.
    pub fn of(&self, kind: Request) -> u64 {
        self.sum(|k, _| k == kind).requests
    }

    /// Requests on one class of paths.
    pub fn on(&self, class: PathClass) -> u64 {
        self.sum(|_, c| c == class).requests
    }
}

/// `2 Get Data, 1 PutIfAbsent Wal`.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ((kind, class), count)) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{} {kind:?} {class:?}", count.requests)?;
        }
        Ok(())
    }
}

/// Counts requests and delays writes. Cheap to clone: clones are the same meter.
#[derive(Debug, Clone)]
pub struct Meter {
    inner: Arc<MeterInner>,
}

#[derive(Debug)]
struct MeterInner {
    counts: Mutex<Counts>,
    delays: Mutex<Delays>,
    wal_times: Mutex<Vec<Duration>>,
}

impl Meter {
    /// A meter whose writes take `time`.
    pub fn new(time: PutTime) -> Self {
        Self {
            inner: Arc::new(MeterInner {
                counts: Mutex::default(),
                delays: Mutex::new(Delays::new(time)),
                wal_times: Mutex::default(),
            }),
        }
    }

    /// Writes take this long from now on.
    pub fn set_put_time(&self, time: PutTime) {
        *self.inner.delays.lock() = Delays::new(time);
    }

    /// The wrapper to open stores with.
    pub fn wrapper(&self) -> Arc<dyn WrappingObjectStore> {
        Arc::new(self.clone())
    }

    /// Everything counted so far.
    pub fn counts(&self) -> Counts {
        self.inner.counts.lock().clone()
    }

    /// How long each write of a WAL entry took since this was last asked.
    pub fn take_wal_times(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.inner.wal_times.lock())
    }

    /// Makes sure that data files went through this store and not past it.
    pub fn assert_saw_data_files(&self) {
        let data = self.counts().on(PathClass::Data);
        assert!(data > 0, "no data file passed through the counting store");
    }

    fn count(&self, kind: Request, path: &Path, bytes: u64) {
        let mut counts = self.inner.counts.lock();
        let count = counts.0.entry((kind, PathClass::of(path))).or_default();
        count.requests += 1;
        count.bytes += bytes;
    }

    /// Runs a write for at least the set time.
    async fn write<T>(&self, path: &Path, write: impl Future<Output = Result<T>>) -> Result<T> {
        let started = Instant::now();
        let delay = self.inner.delays.lock().next();
        let result = if delay.is_zero() {
            write.await
        } else {
            futures::join!(write, tokio::time::sleep(delay)).0
        };
        if PathClass::of(path) == PathClass::Wal {
            self.inner.wal_times.lock().push(started.elapsed());
        }
        result
    }
}

impl WrappingObjectStore for Meter {
    fn wrap(&self, _prefix: &str, original: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(MeteredStore {
            inner: original,
            meter: self.clone(),
        })
    }

    // Listings that went past the wrapped store would not be counted.
    fn wrap_paginated(
        &self,
        _prefix: &str,
        _original: Arc<dyn PaginatedListStore>,
    ) -> Option<Arc<dyn PaginatedListStore>> {
        None
    }
}

#[derive(Debug)]
struct MeteredStore {
    inner: Arc<dyn ObjectStore>,
    meter: Meter,
}

impl fmt::Display for MeteredStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeteredStore({})", self.inner)
    }
}

// `get_ranges` is left to its default, which reads through `get_opts` and so is counted.
#[async_trait]
impl ObjectStore for MeteredStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let kind = match opts.mode {
            PutMode::Create => Request::PutIfAbsent,
            _ => Request::Put,
        };
        self.meter
            .count(kind, location, payload.content_length() as u64);
        let put = self.inner.put_opts(location, payload, opts);
        self.meter.write(location, put).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(MeteredUpload {
            inner: self.inner.put_multipart_opts(location, opts).await?,
            meter: self.meter.clone(),
            location: location.clone(),
            bytes: 0,
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let head = options.head;
        let result = self.inner.get_opts(location, options).await;
        let bytes = match &result {
            Ok(got) if !head => got.range.end - got.range.start,
            _ => 0,
        };
        let kind = if head { Request::Head } else { Request::Get };
        self.meter.count(kind, location, bytes);
        result
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let meter = self.meter.clone();
        let counted = locations.inspect(move |location| {
            if let Ok(location) = location {
                meter.count(Request::Delete, location, 0);
            }
        });
        self.inner.delete_stream(counted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.meter
            .count(Request::List, prefix.unwrap_or(&Path::default()), 0);
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.meter
            .count(Request::List, prefix.unwrap_or(&Path::default()), 0);
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.meter
            .count(Request::List, prefix.unwrap_or(&Path::default()), 0);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.meter.count(Request::Copy, to, 0);
        let copy = self.inner.copy_opts(from, to, options);
        self.meter.write(to, copy).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.meter.count(Request::Copy, to, 0);
        let rename = self.inner.rename_opts(from, to, options);
        self.meter.write(to, rename).await
    }
}

#[derive(Debug)]
struct MeteredUpload {
    inner: Box<dyn MultipartUpload>,
    meter: Meter,
    location: Path,
    bytes: u64,
}

#[async_trait]
impl MultipartUpload for MeteredUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.bytes += data.content_length() as u64;
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.meter.count(Request::Put, &self.location, self.bytes);
        let complete = self.inner.complete();
        self.meter.write(&self.location, complete).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
