//! The runtime: one per process.
//!
//! It holds what all stores share — Lance's session with its one cap, the bound on unflushed bytes,
//! the settings — and the open stores, one per location. Dropping the last table of a location
//! stops that store after a flush; [`RolloutRuntime::shutdown`] stops all of them and waits.

mod store;

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::catalog::Session as DataFusionSession;
use lance::session::Session;
use lance_io::object_store::WrappingObjectStore;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

pub use store::RolloutStore;
pub(crate) use store::{Pruned, ReadView};

use crate::error::{Result, RolloutError};
use crate::insert::UnflushedBudget;
use crate::options::{AtVersion, RuntimeSettings, TableOptions};
use crate::schema::TableSchema;
pub use crate::store::build_session;
use crate::store::{LanceTable, Location, OpenRequest, SharedCache, store_params};

/// Builds a [`RolloutRuntime`].
#[derive(Debug, Default)]
pub struct RolloutRuntimeBuilder {
    settings: RuntimeSettings,
    session: Option<Arc<Session>>,
    wrapper: Option<Arc<dyn WrappingObjectStore>>,
}

impl RolloutRuntimeBuilder {
    /// Uses these settings instead of the defaults.
    pub fn with_settings(mut self, settings: RuntimeSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Caps the shared cache; 0 gives every store a default session of its own.
    pub fn with_cache_bytes(mut self, bytes: u64) -> Self {
        self.settings.cache_bytes = bytes;
        self
    }

    /// Uses an existing Lance session, for an application that reads other Lance tables too.
    pub fn with_session(mut self, session: Arc<Session>) -> Self {
        self.session = Some(session);
        self
    }

    /// Wraps every object store that is opened: for metering, and for tests of failures.
    pub fn with_object_store_wrapper(mut self, wrapper: Arc<dyn WrappingObjectStore>) -> Self {
        self.wrapper = Some(wrapper);
        self
    }

    /// Builds the runtime.
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub fn build(self) -> Result<RolloutRuntime> {
        self.settings.validate()?;
        let shared = match self.session {
            Some(session) => Some(SharedCache::beside(session)),
            None if self.settings.cache_bytes == 0 => None,
            None => Some(SharedCache::with_total(self.settings.cache_bytes)),
        };
        Ok(RolloutRuntime {
            inner: Arc::new(Inner {
                budget: Arc::new(UnflushedBudget::new(self.settings.max_unflushed_bytes)),
                settings: self.settings,
                shared,
                wrapper: self.wrapper,
                places: Mutex::new(HashMap::new()),
            }),
        })
    }
}

/// What the stores of a process share. Cheap to clone: clones are the same runtime.
#[derive(Debug, Clone)]
pub struct RolloutRuntime {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: RuntimeSettings,
    shared: Option<SharedCache>,
    wrapper: Option<Arc<dyn WrappingObjectStore>>,
    budget: Arc<UnflushedBudget>,
    /// A version that is read for its own sake is a store of its own.
    places: Mutex<HashMap<PlaceKey, Arc<Place>>>,
}

/// Where a store is, and at which version it was opened if not the newest.
type PlaceKey = (Location, Option<AtVersion>);

/// A location and the store open there, if any. The lock is held while a store is opened or
/// closed, so that the next opener waits for the last closer.
#[derive(Debug, Default)]
struct Place {
    open: Arc<tokio::sync::Mutex<Option<OpenStore>>>,
}

#[derive(Debug)]
struct OpenStore {
    store: Arc<RolloutStore>,
    options: TableOptions,
    handles: usize,
}

impl RolloutRuntime {
    /// Starts building a runtime.
    pub fn builder() -> RolloutRuntimeBuilder {
        RolloutRuntimeBuilder::default()
    }

    /// The runtime registered in a session.
    ///
    /// # Errors
    /// None is registered.
    pub fn from_session(session: &dyn DataFusionSession) -> Result<Self> {
        session
            .config()
            .get_extension::<Self>()
            .map(|runtime| runtime.as_ref().clone())
            .ok_or_else(|| {
                RolloutError::invalid(
                    "this session knows no rollouts: call register_rollouts on its SessionContext",
                )
            })
    }

    /// The settings it was built with.
    pub fn settings(&self) -> &RuntimeSettings {
        &self.inner.settings
    }

    /// The Lance session all stores share; none when every store has its own.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.inner.shared.as_ref().map(|shared| &shared.session)
    }

    /// The cache all stores share; none when every store has its own.
    pub(crate) fn cache(&self) -> Option<&SharedCache> {
        self.inner.shared.as_ref()
    }

    /// The open stores.
    pub async fn stores(&self) -> Vec<Arc<RolloutStore>> {
        let places: Vec<_> = self.inner.places.lock().values().cloned().collect();
        let mut stores = Vec::new();
        for place in places {
            if let Some(open) = &*place.open.lock().await {
                stores.push(open.store.clone());
            }
        }
        stores
    }

    /// Rows that the open stores have acknowledged since they were opened: how far a long INSERT has
    /// come. A store that is being opened or closed at this moment is left out.
    pub fn rows_acknowledged(&self) -> u64 {
        let places = self.inner.places.lock();
        places
            .values()
            .filter_map(|place| place.open.try_lock().ok())
            .filter_map(|open| open.as_ref().map(|open| open.store.rows_acknowledged()))
            .sum()
    }

    /// Opens the table at a location, or makes it where the options allow. The store stays open
    /// until every handle is dropped.
    ///
    /// # Errors
    /// No usable location, a table of other columns, storage that cannot be reached.
    pub async fn open(
        &self,
        location: &str,
        declared: Option<TableSchema>,
        options: TableOptions,
    ) -> Result<StoreHandle> {
        let location = Location::parse(location)?;
        let place = self
            .inner
            .places
            .lock()
            .entry((location.clone(), options.at))
            .or_default()
            .clone();
        let mut open = place.open.clone().lock_owned().await;
        if let Some(known) = &mut *open {
            if known.options.read_only != options.read_only
                || known.options.shard_id != options.shard_id
                || known.options.storage != options.storage
            {
                return Err(RolloutError::invalid(format!(
                    "the table at {location} is already open in this process with other options \
                     (read_only, shard_id or storage): use the same, or drop the other table first"
                )));
            }
            if let Some(declared) = &declared
                && let Some(difference) = known.store.schema().difference_from(declared)
            {
                return Err(RolloutError::invalid(format!(
                    "the table at {location} differs from the declared columns: {difference}. \
                     Leave the column list out to take what is stored"
                )));
            }
            known
                .store
                .schema()
                .check_on_conflict(&location, options.on_conflict)?;
            known.handles += 1;
            return Ok(StoreHandle {
                store: known.store.clone(),
                place: place.clone(),
            });
        }
        let store = self.open_store(location, declared, &options).await?;
        *open = Some(OpenStore {
            store: store.clone(),
            options,
            handles: 1,
        });
        Ok(StoreHandle {
            store,
            place: place.clone(),
        })
    }

    async fn open_store(
        &self,
        location: Location,
        declared: Option<TableSchema>,
        options: &TableOptions,
    ) -> Result<Arc<RolloutStore>> {
        let cache = match &self.inner.shared {
            Some(shared) => shared.clone(),
            None => SharedCache::of_its_own(),
        };
        let mut settings = self.inner.settings.clone();
        if options.shard_id.is_some() {
            settings.shard_id.clone_from(&options.shard_id);
        }
        let table = LanceTable::open_or_create(OpenRequest {
            location,
            cache,
            params: store_params(options, self.inner.wrapper.clone()),
            local_fsync: settings.local_fsync,
            declared,
            create: options.create,
            read_only: options.read_only || options.at.is_some(),
            at: options.at,
            on_conflict: options.on_conflict,
        })
        .await?;
        Ok(RolloutStore::new(
            table,
            self.inner.budget.clone(),
            Arc::new(settings),
        ))
    }

    /// Stops every open store after a flush, and waits. The runtime can be used again afterwards.
    ///
    /// # Errors
    /// The first store that could not be flushed; its rows are durable and replayed later.
    pub async fn shutdown(&self) -> Result<()> {
        let places: Vec<_> = self.inner.places.lock().values().cloned().collect();
        let closing = places.into_iter().map(|place| async move {
            let mut open = place.open.clone().lock_owned().await;
            match open.take() {
                Some(known) => known.store.close().await,
                None => Ok(()),
            }
        });
        futures::future::join_all(closing)
            .await
            .into_iter()
            .collect()
    }
}

/// Keeps a store open. Dropping the last handle of a store stops it after a flush, in the
/// background; [`RolloutRuntime::shutdown`] waits for that.
#[derive(Debug)]
pub struct StoreHandle {
    store: Arc<RolloutStore>,
    place: Arc<Place>,
}

impl StoreHandle {
    /// The store.
    pub fn store(&self) -> &Arc<RolloutStore> {
        &self.store
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        let store = self.store.clone();
        let place = self.place.clone();
        // Without a tokio runtime there is nothing left to flush with: the log keeps the rows.
        let Ok(tokio) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let release = move |mut open: OwnedMutexGuard<Option<OpenStore>>| async move {
            let Some(known) = open
                .as_mut()
                .filter(|known| Arc::ptr_eq(&known.store, &store))
            else {
                return;
            };
            known.handles -= 1;
            if known.handles > 0 {
                return;
            }
            if let Err(error) = store.close().await {
                tracing::warn!(table = %store.location(), %error, "closing a dropped table");
            }
            *open = None;
        };
        // Taken here when it is free, so that whoever opens next waits for this close.
        match place.open.clone().try_lock_owned() {
            Ok(guard) => drop(tokio.spawn(release(guard))),
            Err(_) => drop(
                tokio.spawn(async move { release(place.open.clone().lock_owned().await).await }),
            ),
        }
    }
}
