//! A table on storage: the base dataset, its generations and its shards' manifests, all opened
//! with one session and one set of store parameters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::ipc::reader::StreamReader;
use arrow_schema::Schema;
use futures::{FutureExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::builder::DatasetBuilder;
use lance::dataset::mem_wal::util::{
    bit_reversed_filename, parse_bit_reversed_filename, shard_base_path, shard_manifest_path,
};
use lance::dataset::mem_wal::{DatasetMemWalExt, ShardManifestStore};
use lance::dataset::{WriteMode, WriteParams};
use lance::session::Session;
use lance_index::mem_wal::{MemWalIndexDetails, ShardManifest};
use lance_io::object_store::{ObjectStore, ObjectStoreParams};
use lance_table::format::Fragment;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use parking_lot::RwLock;
use uuid::Uuid;

use super::cache::SharedCache;
use super::clock::StampClock;
use super::commits::whole_history;
use super::create::create;
use super::location::Location;
use super::object_store::{install_local_store, probe_put_if_absent};
use super::presence::Presence;
use super::versions;
use crate::error::{Result, RolloutError, is_missing};
use crate::options::{AtVersion, OnConflict};
use crate::schema::TableSchema;

/// Lance's own memtable limits. Replay refuses entries written under larger ones, so no writer
/// goes below what the table records, and the table never records less than these.
const MIN_MEMTABLE_ROWS: usize = 100_000;
const MIN_MEMTABLE_BATCHES: usize = 8_000;

/// How often, and after which pause, a first writer that met others looks again for what they set up.
const SET_UP_ATTEMPTS: u32 = 6;
const SET_UP_PAUSE: Duration = Duration::from_millis(50);

/// HEAD requests sent at once while looking for a shard's newest manifest.
const MANIFEST_SCAN_BATCH: usize = 2;

/// How a table is opened.
pub(crate) struct OpenRequest {
    pub(crate) location: Location,
    pub(crate) cache: SharedCache,
    pub(crate) params: ObjectStoreParams,
    pub(crate) local_fsync: bool,
    /// The schema of a CREATE statement with columns; none takes what is stored, or the rollout
    /// schema for a new table.
    pub(crate) declared: Option<TableSchema>,
    pub(crate) create: bool,
    pub(crate) read_only: bool,
    /// The version to open instead of the newest.
    pub(crate) at: Option<AtVersion>,
    pub(crate) on_conflict: Option<OnConflict>,
}

/// An open table.
pub(crate) struct LanceTable {
    location: Location,
    cache: SharedCache,
    params: ObjectStoreParams,
    object_store: Arc<ObjectStore>,
    base_path: Path,
    schema: RwLock<Arc<TableSchema>>,
    base: RwLock<Arc<Dataset>>,
    memtable_limits: MemtableLimits,
    clock: StampClock,
    read_only: bool,
    /// The version it was opened at, which it stays at.
    pinned: Option<u64>,
    pub(super) presence: Presence,
}

impl std::fmt::Debug for LanceTable {
    /// Where it is: its store parameters may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LanceTable")
            .field("location", &self.location)
            .finish_non_exhaustive()
    }
}

/// The memtable limits every writer of the table keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemtableLimits {
    pub(crate) rows: usize,
    pub(crate) batches: usize,
}

impl MemtableLimits {
    fn recorded_in(details: &MemWalIndexDetails) -> Self {
        let read = |key: &str, least: usize| {
            details
                .writer_config_defaults
                .get(key)
                .and_then(|value| value.parse().ok())
                .unwrap_or(least)
                .max(least)
        };
        Self {
            rows: read("max_memtable_rows", MIN_MEMTABLE_ROWS),
            batches: read("max_memtable_batches", MIN_MEMTABLE_BATCHES),
        }
    }
}

impl LanceTable {
    /// Opens the table, or makes it when nothing is there and the request allows it.
    ///
    /// # Errors
    /// No table and `create` is off; something else is there; a declared schema that differs; a
    /// store without put-if-absent; storage that cannot be reached.
    pub(crate) async fn open_or_create(request: OpenRequest) -> Result<Self> {
        if request.location.is_local() {
            install_local_store(&request.cache.session, request.local_fsync);
        }
        let mut base = match load(&request).await {
            Ok(base) => base,
            Err(error) if is_missing(&error) => create(&request).await?,
            Err(source) => {
                return Err(RolloutError::Storage {
                    context: format!("opening the table at {}", request.location),
                    source,
                });
            }
        };
        if let Some(at) = request.at {
            base = versions::at(base, at, &request.location).await?;
        }
        let schema = schema_in(&base)
            .map_err(|error| RolloutError::invalid(format!("{}: {error}", request.location)))?;
        if let Some(declared) = &request.declared
            && let Some(difference) = schema.difference_from(declared)
        {
            return Err(RolloutError::invalid(format!(
                "the table at {} differs from the declared columns: {difference}. Leave the column \
                 list out to take what is stored",
                request.location
            )));
        }
        schema.check_on_conflict(&request.location, request.on_conflict)?;
        let details = initialized(&request, &mut base).await?;
        let object_store = base
            .object_store(None)
            .await
            .map_err(RolloutError::storage("opening the object store"))?;
        let base_path = base.branch_location().path;
        let wrapped = request.params.object_store_wrapper.is_some();
        if !request.read_only && (wrapped || !request.location.is_local()) {
            probe_put_if_absent(&object_store, &base_path).await?;
        }
        Ok(Self {
            location: request.location,
            cache: request.cache,
            params: request.params,
            object_store,
            base_path,
            schema: RwLock::new(Arc::new(schema)),
            pinned: request.at.map(|_| base.version().version),
            base: RwLock::new(Arc::new(base)),
            memtable_limits: MemtableLimits::recorded_in(&details),
            clock: StampClock::default(),
            read_only: request.read_only,
            presence: Presence::default(),
        })
    }

    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.cache.session
    }

    pub(crate) fn cache(&self) -> &SharedCache {
        &self.cache
    }

    pub(crate) fn schema(&self) -> Arc<TableSchema> {
        self.schema.read().clone()
    }

    pub(crate) fn object_store(&self) -> &Arc<ObjectStore> {
        &self.object_store
    }

    /// The table's folder within the object store.
    pub(crate) fn base_path(&self) -> &Path {
        &self.base_path
    }

    pub(crate) fn memtable_limits(&self) -> MemtableLimits {
        self.memtable_limits
    }

    pub(crate) fn clock(&self) -> &StampClock {
        &self.clock
    }

    pub(crate) fn read_only(&self) -> bool {
        self.read_only
    }

    /// The version the table was opened at, if it was.
    pub(crate) fn pinned(&self) -> Option<u64> {
        self.pinned
    }

    /// Refuses what a table that was opened to be read only, or is gone, does not do.
    pub(crate) fn check_writable(&self, done: &str) -> Result<()> {
        self.presence.check(&self.location)?;
        let how = match self.pinned {
            Some(version) => format!("open at version {version}, read-only"),
            None if self.read_only => "open read-only".to_string(),
            None => return Ok(()),
        };
        Err(RolloutError::Unsupported(format!(
            "the table at {} is {how}: nothing is {done}",
            self.location
        )))
    }

    /// The newest base version this process knows.
    pub(crate) fn base(&self) -> Arc<Dataset> {
        self.base.read().clone()
    }

    /// Takes note of a base version, unless a newer one is known.
    pub(crate) fn advance_base(&self, base: Arc<Dataset>) -> Arc<Dataset> {
        let mut known = self.base.write();
        if base.version().version > known.version().version {
            if base.schema() != known.schema() {
                match schema_in(&base) {
                    Ok(schema) => *self.schema.write() = Arc::new(schema),
                    Err(error) => {
                        tracing::warn!(table = %self.location, %error, "the table's new columns cannot be used");
                    }
                }
            }
            *known = base;
        }
        known.clone()
    }

    /// The newest base version this process knows, and its columns.
    pub(crate) fn current(&self) -> (Arc<Dataset>, Arc<TableSchema>) {
        let base = self.base.read();
        (base.clone(), self.schema())
    }

    /// The columns of a base version, which may be older or newer than those this process uses.
    ///
    /// # Errors
    /// It is no rollouts table any more.
    pub(crate) fn schema_of(&self, base: &Dataset) -> Result<Arc<TableSchema>> {
        let (known, schema) = self.current();
        if base.schema() == known.schema() {
            return Ok(schema);
        }
        schema_in(base).map(Arc::new)
    }

    /// Looks for the newest base version on storage.
    ///
    /// # Errors
    /// Storage that cannot be reached.
    pub(crate) async fn refresh_base(&self) -> Result<Arc<Dataset>> {
        let known = self.base();
        if self.pinned.is_some() {
            return Ok(known);
        }
        let newest = known
            .latest_version_id()
            .boxed()
            .await
            .map_err(self.context("looking for the newest base version"))?;
        if newest == known.version().version {
            return Ok(known);
        }
        let mut base = known.as_ref().clone();
        base.checkout_latest()
            .boxed()
            .await
            .map_err(self.context("reading the newest base version"))?;
        Ok(self.advance_base(Arc::new(base)))
    }

    /// The merge progress recorded in a base version: per shard, the last generation it holds.
    ///
    /// # Errors
    /// The MemWAL index of the base cannot be read.
    pub(crate) async fn merge_progress(&self, base: &Dataset) -> Result<HashMap<Uuid, u64>> {
        let details = base
            .mem_wal_index_details()
            .await
            .map_err(self.context("reading the merge progress"))?
            .unwrap_or_default();
        Ok(details
            .compacted_sstables
            .into_iter()
            .map(|done| (done.shard_id, done.generation))
            .collect())
    }

    /// The ids of all shards that have left anything on storage. They belong to the newest state: a
    /// table that is open at a version has none.
    ///
    /// # Errors
    /// Storage that cannot be reached.
    pub(crate) async fn list_shards(&self) -> Result<Vec<Uuid>> {
        if self.pinned.is_some() {
            return Ok(Vec::new());
        }
        self.base()
            .list_mem_wal_latest_shard_ids()
            .await
            .map_err(self.context("listing the shards"))
    }

    /// A fresh view of a shard's manifests. A shard this process writes has its own store, the
    /// writer's: commits to it go through that one.
    pub(crate) fn manifest_store(&self, shard: Uuid) -> ShardManifestStore {
        ShardManifestStore::new(
            self.object_store.clone(),
            &self.base_path,
            shard,
            MANIFEST_SCAN_BATCH,
        )
    }

    /// A shard's newest manifest; none if it has none.
    ///
    /// # Errors
    /// Storage that cannot be reached, or a manifest that cannot be read.
    pub(crate) async fn newest_manifest(&self, shard: Uuid) -> Result<Option<ShardManifest>> {
        self.manifest_store(shard)
            .latest()
            .await
            .map_err(self.context(format!("reading shard {shard}")))
    }

    /// Whether a shard has a manifest of this version.
    ///
    /// # Errors
    /// Storage that cannot be reached.
    pub(crate) async fn manifest_exists(&self, shard: &Uuid, version: u64) -> Result<bool> {
        let path = shard_manifest_path(&self.base_path, shard)
            .join(bit_reversed_filename(version, "binpb").as_str());
        match self.object_store.inner.head(&path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.context(format!("looking at {path}"))(error.into())),
        }
    }

    /// The log entry that made opening a shard fail, if it was one: Lance does not name it.
    pub(crate) async fn unreadable_log_entry(
        &self,
        shard: Uuid,
        error: &lance::Error,
    ) -> Option<Path> {
        if !error.to_string().contains("WAL IPC stream") {
            return None;
        }
        let store = &self.object_store.inner;
        let folder = shard_base_path(&self.base_path, &shard).join("wal");
        let mut entries: Vec<_> = store
            .list(Some(&folder))
            .try_filter_map(|object| {
                let position = object
                    .location
                    .filename()
                    .and_then(parse_bit_reversed_filename);
                futures::future::ok(position.map(|position| (position, object.location)))
            })
            .try_collect()
            .await
            .ok()?;
        // What a crash leaves behind unfinished is the newest.
        entries.sort_unstable_by(|a, b| b.cmp(a));
        for (_, entry) in entries {
            let bytes = store.get(&entry).await.ok()?.bytes().await.ok()?;
            let whole = StreamReader::try_new(std::io::Cursor::new(bytes), None)
                .is_ok_and(|mut batches| batches.all(|batch| batch.is_ok()));
            if !whole {
                return Some(entry);
            }
        }
        None
    }

    /// Opens a flushed generation, which is cached in `cache`.
    ///
    /// # Errors
    /// The generation cannot be read, naming it.
    pub(crate) async fn open_generation(
        &self,
        cache: &SharedCache,
        shard: Uuid,
        folder: &str,
    ) -> Result<Dataset> {
        let uri = format!("{}/_mem_wal/{shard}/{folder}", self.location.uri());
        DatasetBuilder::from_uri(&uri)
            .with_session(cache.session.clone())
            .with_store_params(self.params.clone())
            .load()
            .boxed()
            .await
            .map_err(self.context(format!("opening generation {folder} of shard {shard}")))
    }

    /// A generation's fragments as this table reads them. Flushing marks the older of two rows of one
    /// id deleted; where the older one is the one that counts, that mark is not looked at.
    pub(crate) fn generation_fragments(&self, generation: &Dataset) -> Vec<Fragment> {
        let mut fragments = generation.fragments().as_ref().clone();
        if self.schema().on_conflict() == OnConflict::Ignore {
            for fragment in &mut fragments {
                fragment.deletion_file = None;
            }
        }
        fragments
    }

    /// How the session and store parameters are given to Lance's writers.
    pub(crate) fn write_params(&self, mode: WriteMode) -> WriteParams {
        WriteParams {
            mode,
            session: Some(self.session().clone()),
            store_params: Some(self.params.clone()),
            skip_auto_cleanup: true,
            ..Default::default()
        }
    }

    /// Wraps a storage error with what was being done, and on which table.
    pub(crate) fn context(
        &self,
        doing: impl Into<String>,
    ) -> Box<dyn FnOnce(lance::Error) -> RolloutError + Send> {
        let context = format!("{} ({})", self.location, doing.into());
        Box::new(move |source| RolloutError::Storage { context, source })
    }
}

fn schema_in(base: &Dataset) -> Result<TableSchema> {
    let arrow: Schema = base.schema().into();
    TableSchema::stored_in(&arrow)
}

pub(super) async fn load(request: &OpenRequest) -> lance::Result<Dataset> {
    let uri = request.location.uri();
    DatasetBuilder::from_uri(uri)
        .with_commit_handler(whole_history(uri, &request.params).await?)
        .with_session(request.cache.session.clone())
        .with_store_params(request.params.clone())
        .load()
        .boxed()
        .await
}

/// The table's MemWAL details; sets MemWAL up where it is missing.
async fn initialized(request: &OpenRequest, base: &mut Dataset) -> Result<MemWalIndexDetails> {
    let location = &request.location;
    let reading = || format!("reading the write-ahead log's settings of {location}");
    let mut failed = None;
    for attempt in 0..SET_UP_ATTEMPTS {
        // Whoever was first set it up for all: only what is there counts.
        if let Some(details) = base
            .mem_wal_index_details()
            .await
            .map_err(RolloutError::storage(reading()))?
        {
            return Ok(details);
        }
        if request.read_only {
            return Ok(MemWalIndexDetails::default());
        }
        if !request.create {
            return Err(RolloutError::invalid(format!(
                "the Lance table at {location} has no write-ahead log yet, and this statement may \
                 not set one up (option 'rollout.create')"
            )));
        }
        tokio::time::sleep(SET_UP_PAUSE * attempt).await;
        let set_up = base
            .initialize_mem_wal()
            .maintained_indexes(Vec::<String>::new())
            .add_writer_config_default("max_memtable_rows", MIN_MEMTABLE_ROWS.to_string())
            .add_writer_config_default("max_memtable_batches", MIN_MEMTABLE_BATCHES.to_string())
            .execute()
            .boxed()
            .await;
        failed = set_up.err();
        base.checkout_latest()
            .boxed()
            .await
            .map_err(RolloutError::storage(reading()))?;
    }
    match failed {
        Some(source) => Err(RolloutError::Storage {
            context: format!("setting up the write-ahead log of {location}"),
            source,
        }),
        None => Err(RolloutError::Conflict(format!(
            "the table at {location} was replaced while it was being opened"
        ))),
    }
}
