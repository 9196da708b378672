//! A store that fails: on request, or any operation by a seed.
//!
//! A [`Faults`] is handed to `RolloutRuntime::builder().with_object_store_wrapper`. A [`Fault`] can
//! be asked for on operations that a test picks, so and so often; [`Faults::by_seed`] lets any
//! operation fail, at a rate. [`Faults::heal`] ends all of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use lance_io::object_store::WrappingObjectStore;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result, UploadPart,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;

/// What happens to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Nothing is done, and an error returned.
    Fail,
    /// Nothing happens until the store is healed; then it is done.
    Hang,
    /// It is done, and an error returned.
    LoseAnswer,
    /// Half of it is done, and an error returned. As on a real store no object of the right name is
    /// ever half there, but for data files, which nothing names yet.
    HalfWrite,
    /// It is done late.
    Delay,
    /// A put-if-absent replaces what is there, as on a store that does not know the condition.
    Overwrite,
}

/// Kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Write,
    Read,
    List,
    Delete,
}

type Picks = fn(Operation, &str) -> bool;

#[derive(Debug)]
struct Rule {
    picks: Picks,
    fault: Fault,
    left: usize,
}

#[derive(Debug)]
struct BySeed {
    random: StdRng,
    rate: f64,
}

#[derive(Debug, Default)]
struct Plan {
    rule: Option<Rule>,
    by_seed: Option<BySeed>,
    injected: BTreeMap<Fault, usize>,
}

impl Plan {
    fn next(&mut self, operation: Operation, path: &str) -> Option<Fault> {
        let fault = self.by_rule(operation, path).or_else(|| {
            let by_seed = self.by_seed.as_mut()?;
            // There are many more reads than writes, and less hangs on them.
            let rate = match operation {
                Operation::Write | Operation::Delete => by_seed.rate * 3.0,
                Operation::Read | Operation::List => by_seed.rate,
            };
            let hit = by_seed.random.random::<f64>() < rate;
            let dice = by_seed.random.random_range(0..100);
            hit.then_some(match (operation, dice) {
                (_, 0..20) => Fault::Delay,
                (Operation::Write | Operation::Delete, 20..50) => Fault::LoseAnswer,
                (Operation::Write, 50..65) => Fault::HalfWrite,
                _ => Fault::Fail,
            })
        });
        if let Some(fault) = fault {
            *self.injected.entry(fault).or_default() += 1;
        }
        fault
    }

    fn by_rule(&mut self, operation: Operation, path: &str) -> Option<Fault> {
        let rule = self.rule.as_mut()?;
        if rule.left == 0 || !(rule.picks)(operation, path) {
            return None;
        }
        rule.left -= 1;
        Some(rule.fault)
    }
}

/// The faults of a store. Cheap to clone: clones are the same.
#[derive(Debug, Clone)]
pub struct Faults {
    plan: Arc<Mutex<Plan>>,
    healed: Arc<watch::Sender<bool>>,
    hanging: Arc<AtomicUsize>,
    data_files: Arc<AtomicUsize>,
}

impl Faults {
    /// A store that works.
    pub fn none() -> Self {
        Self {
            plan: Arc::default(),
            healed: Arc::new(watch::Sender::new(true)),
            hanging: Arc::default(),
            data_files: Arc::default(),
        }
    }

    /// The next operations that `picks` chooses meet this fault, so many of them.
    pub fn on(&self, picks: Picks, fault: Fault, times: usize) {
        self.healed.send_replace(false);
        let left = times;
        self.plan.lock().rule = Some(Rule { picks, fault, left });
    }

    /// Operations of every kind meet faults from now on: reads at this rate, writes at three times it.
    pub fn by_seed(&self, seed: u64, rate: f64) {
        let random = StdRng::seed_from_u64(seed);
        self.plan.lock().by_seed = Some(BySeed { random, rate });
    }

    /// Everything works from now on, and what hung goes on.
    pub fn heal(&self) {
        {
            let mut plan = self.plan.lock();
            plan.rule = None;
            plan.by_seed = None;
        }
        self.healed.send_replace(true);
    }

    /// How many operations met each fault.
    pub fn injected(&self) -> BTreeMap<Fault, usize> {
        self.plan.lock().injected.clone()
    }

    /// How many operations met a fault.
    pub fn count(&self) -> usize {
        self.plan.lock().injected.values().sum()
    }

    /// Operations that hang now.
    pub fn hanging(&self) -> usize {
        self.hanging.load(Ordering::SeqCst)
    }

    /// Makes sure that data files went through this store and not past it.
    pub fn assert_saw_data_files(&self) {
        assert!(
            self.data_files.load(Ordering::SeqCst) > 0,
            "no data file passed through the failing store"
        );
    }

    fn next(&self, operation: Operation, path: &Path) -> Option<Fault> {
        if operation == Operation::Write && is_data(path) {
            self.data_files.fetch_add(1, Ordering::SeqCst);
        }
        self.plan.lock().next(operation, path.as_ref())
    }

    /// Waits where the fault is one of time.
    async fn wait(&self, fault: Option<Fault>) {
        match fault {
            Some(Fault::Hang) => {
                self.hanging.fetch_add(1, Ordering::SeqCst);
                let _ = self.healed.subscribe().wait_for(|healed| *healed).await;
                self.hanging.fetch_sub(1, Ordering::SeqCst);
            }
            Some(Fault::Delay) => tokio::time::sleep(Duration::from_millis(30)).await,
            _ => {}
        }
    }

    /// A write or delete, with its fault.
    async fn change<T>(
        &self,
        fault: Option<Fault>,
        change: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.wait(fault).await;
        match fault {
            Some(Fault::Fail | Fault::HalfWrite) => Err(error("nothing was done")),
            Some(Fault::LoseAnswer) => {
                change.await?;
                Err(error("the answer was lost"))
            }
            _ => change.await,
        }
    }

    /// A read, with its fault.
    async fn look<T>(
        &self,
        fault: Option<Fault>,
        look: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.wait(fault).await;
        match fault {
            Some(Fault::Fail | Fault::LoseAnswer | Fault::HalfWrite) => {
                Err(error("nothing was read"))
            }
            _ => look.await,
        }
    }
}

fn is_data(path: &Path) -> bool {
    path.parts().any(|part| part.as_ref() == "data")
}

fn error(what: &str) -> Error {
    Error::Generic {
        store: "failing store",
        source: what.into(),
    }
}

impl WrappingObjectStore for Faults {
    fn wrap(&self, _prefix: &str, original: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(FailingStore {
            inner: original,
            faults: self.clone(),
        })
    }

    // Listings that went past the wrapped store would never fail.
    fn wrap_paginated(
        &self,
        _prefix: &str,
        _original: Arc<dyn PaginatedListStore>,
    ) -> Option<Arc<dyn PaginatedListStore>> {
        None
    }
}

#[derive(Debug)]
struct FailingStore {
    inner: Arc<dyn ObjectStore>,
    faults: Faults,
}

impl fmt::Display for FailingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FailingStore({})", self.inner)
    }
}

impl FailingStore {
    /// What a put that broke off leaves.
    async fn half_of(&self, location: &Path, payload: &PutPayload) {
        let whole: Vec<u8> = payload.iter().flat_map(|part| part.to_vec()).collect();
        let half = PutPayload::from(whole[..whole.len() / 2].to_vec());
        let left = match is_data(location) {
            true => location.clone(),
            false => Path::from(format!("{location}.half")),
        };
        let _ = self.inner.put(&left, half).await;
    }

    fn listing(
        &self,
        prefix: Option<&Path>,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let root = Path::default();
        match self.faults.next(Operation::List, prefix.unwrap_or(&root)) {
            None | Some(Fault::Delay) => listed,
            // In the middle: what came before looks like a whole listing.
            Some(_) => listed
                .take(1)
                .chain(futures::stream::iter([Err(error("the listing broke off"))]))
                .boxed(),
        }
    }
}

#[async_trait]
impl ObjectStore for FailingStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        let fault = self.faults.next(Operation::Write, location);
        if fault == Some(Fault::HalfWrite) {
            self.half_of(location, &payload).await;
        }
        if fault == Some(Fault::Overwrite) {
            opts.mode = PutMode::Overwrite;
        }
        let put = self.inner.put_opts(location, payload, opts);
        self.faults.change(fault, put).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(FailingUpload {
            inner: self.inner.put_multipart_opts(location, opts).await?,
            faults: self.faults.clone(),
            location: location.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.faults.next(Operation::Read, location);
        let get = self.inner.get_opts(location, options);
        self.faults.look(fault, get).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (faults, inner) = (self.faults.clone(), self.inner.clone());
        locations
            .then(move |location| {
                let (faults, inner) = (faults.clone(), inner.clone());
                async move {
                    let location = location?;
                    let fault = faults.next(Operation::Delete, &location);
                    faults.change(fault, inner.delete(&location)).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let root = Path::default();
        let fault = self.faults.next(Operation::List, prefix.unwrap_or(&root));
        let list = self.inner.list_with_delimiter(prefix);
        self.faults.look(fault, list).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let fault = self.faults.next(Operation::Write, to);
        let copy = self.inner.copy_opts(from, to, options);
        self.faults.change(fault, copy).await
    }
}

#[derive(Debug)]
struct FailingUpload {
    inner: Box<dyn MultipartUpload>,
    faults: Faults,
    location: Path,
}

#[async_trait]
impl MultipartUpload for FailingUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let fault = self.faults.next(Operation::Write, &self.location);
        let complete = self.inner.complete();
        self.faults.change(fault, complete).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
