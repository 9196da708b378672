//! The ids of a generation, held in memory.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::compute::cast;
use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampMicrosecondType, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_schema::DataType;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use futures::{StreamExt, TryStreamExt};
use lance::dataset::mem_wal::TOMBSTONE;
use lance_core::cache::{CacheKey, LanceCache};
use lance_core::deepsize::{Context, DeepSizeOf};
use roaring::RoaringBitmap;

use super::filters::IdFilter;
use super::probe::BaseMatches;
use super::{KeySource, SourceRows};
use crate::error::Result;
use crate::schema::TableSchema;
use crate::store::{Generation, LanceTable, SharedCache};

/// Generations read side by side.
const CONCURRENCY: usize = 8;

/// The stamp of a row that has none: older than any other.
pub(crate) const NO_STAMP: i64 = i64::MIN;

const ROW_ADDRESS: &str = "_rowaddr";

/// The keys of some rows: id, stamp and address of each.
#[derive(Debug)]
pub(crate) struct KeyTable {
    /// The ids, as text whatever their type.
    pub(crate) ids: StringArray,
    pub(crate) hashes: Vec<u64>,
    pub(crate) addresses: Vec<u64>,
    pub(crate) stamps: Vec<i64>,
    /// Positions of deletes another writer left.
    pub(crate) tombstones: RoaringBitmap,
}

impl KeyTable {
    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// The highest stamp in it.
    pub(crate) fn highest_stamp(&self) -> Option<i64> {
        self.stamps.iter().copied().max().filter(|s| *s != NO_STAMP)
    }
}

impl DeepSizeOf for KeyTable {
    fn deep_size_of_children(&self, _context: &mut Context) -> usize {
        self.ids.get_array_memory_size()
            + (self.hashes.capacity() + self.addresses.capacity() + self.stamps.capacity()) * 8
            + self.tombstones.serialized_size()
    }
}

/// The hash of ids used within a process; never stored.
pub(crate) fn hash_ids(ids: &StringArray) -> Result<Vec<u64>> {
    let mut hashes = vec![0; ids.len()];
    let array: ArrayRef = Arc::new(ids.clone());
    create_hashes([&array], &RandomState::default(), &mut hashes)?;
    Ok(hashes)
}

/// Ids as text, whatever the key column's type.
pub(crate) fn as_ids(column: &ArrayRef) -> Result<StringArray> {
    Ok(cast(column, &DataType::Utf8)?.as_string::<i32>().clone())
}

/// Reads the keys of a generation's rows.
async fn read_keys(
    table: &LanceTable,
    schema: &TableSchema,
    generation: &Generation,
) -> Result<KeyTable> {
    let dataset = &generation.dataset;
    let mut columns = vec![schema.key_name()];
    if let Some(stamp) = schema.stamp_index() {
        let name = schema.sql().field(stamp).name();
        // A generation written before the column was added has no stamps.
        if dataset.schema().field(name).is_some() {
            columns.push(name);
        }
    }
    if dataset.schema().field(TOMBSTONE).is_some() {
        columns.push(TOMBSTONE);
    }
    let mut scanner = dataset.scan();
    let context = || table.context("reading ids");
    scanner.project(&columns).map_err(context())?;
    scanner.with_row_address();
    scanner.with_fragments(generation.fragments.clone());
    let batches: Vec<_> = scanner
        .try_into_stream()
        .await
        .map_err(context())?
        .try_collect()
        .await
        .map_err(context())?;
    let mut keys = KeyParts::default();
    for batch in &batches {
        let addresses = batch[ROW_ADDRESS].as_primitive::<UInt64Type>();
        keys.push(schema, batch, addresses.values().iter().copied())?;
    }
    keys.finish()
}

/// The keys of a memtable's rows, addressed by position.
fn keys_of(schema: &TableSchema, batches: &[RecordBatch]) -> Result<KeyTable> {
    let mut keys = KeyParts::default();
    for batch in batches {
        let first = keys.addresses.len() as u64;
        keys.push(schema, batch, first..first + batch.num_rows() as u64)?;
    }
    keys.finish()
}

/// A [`KeyTable`] in the making.
#[derive(Default)]
struct KeyParts {
    ids: Vec<StringArray>,
    addresses: Vec<u64>,
    stamps: Vec<i64>,
    tombstones: RoaringBitmap,
}

impl KeyParts {
    fn push(
        &mut self,
        schema: &TableSchema,
        batch: &RecordBatch,
        addresses: impl Iterator<Item = u64>,
    ) -> Result<()> {
        let first = self.addresses.len() as u32;
        self.ids.push(as_ids(&batch[schema.key_name()])?);
        self.addresses.extend(addresses);
        push_stamps(schema, batch, &mut self.stamps);
        if let Some(marks) = batch.column_by_name(TOMBSTONE) {
            let marks = marks.as_boolean();
            let marked = (0..marks.len()).filter(|row| marks.value(*row));
            self.tombstones.extend(marked.map(|row| first + row as u32));
        }
        Ok(())
    }

    fn finish(self) -> Result<KeyTable> {
        let parts: Vec<&dyn Array> = self.ids.iter().map(|part| part as &dyn Array).collect();
        let ids = match parts.is_empty() {
            true => StringArray::from_iter_values(std::iter::empty::<&str>()),
            false => arrow::compute::concat(&parts)?.as_string::<i32>().clone(),
        };
        Ok(KeyTable {
            hashes: hash_ids(&ids)?,
            ids,
            addresses: self.addresses,
            stamps: self.stamps,
            tombstones: self.tombstones,
        })
    }
}

/// Appends a batch's stamps; rows without one count as oldest.
pub(super) fn push_stamps(schema: &TableSchema, batch: &RecordBatch, stamps: &mut Vec<i64>) {
    let column = schema
        .stamp_index()
        .and_then(|stamp| batch.column_by_name(schema.sql().field(stamp).name()))
        .and_then(|column| column.as_primitive_opt::<TimestampMicrosecondType>());
    match column {
        Some(column) => stamps.extend(column.iter().map(|stamp| stamp.unwrap_or(NO_STAMP))),
        None => stamps.extend(std::iter::repeat_n(NO_STAMP, batch.num_rows())),
    }
}

/// The keys of all generations, from the cache where it has them.
pub(super) async fn load_all(
    table: &LanceTable,
    cache: &KeyCache,
    sources: &[KeySource],
) -> Result<Vec<Arc<KeyTable>>> {
    futures::stream::iter(sources.iter().cloned())
        .map(|source| async move { cache.keys(table, &source).await })
        .buffered(CONCURRENCY)
        .try_collect()
        .await
}

/// The part of the shared, capped cache that holds keys and matches of one table.
#[derive(Debug, Clone)]
pub(crate) struct KeyCache {
    cache: LanceCache,
}

impl KeyCache {
    /// The part of `cache` for the table at `uri`.
    pub(crate) fn new(cache: &SharedCache, uri: &str) -> Self {
        Self {
            cache: cache.keys().with_key_prefix(uri),
        }
    }

    /// Where a source's keys and matches are: those of a generation pass with it.
    fn of<'a>(&'a self, source: &'a KeySource) -> &'a LanceCache {
        match &source.rows {
            SourceRows::Generation(generation) => &generation.keys.cache,
            SourceRows::Memtable(_) => &self.cache,
        }
    }

    async fn known<T>(&self, source: &KeySource) -> Option<Arc<T>>
    where
        Named<T>: Cached + DeepSizeOf,
        T: Send + Sync,
    {
        let key = TextKey::<Named<T>>::new(&source.slot);
        let known = self.of(source).get_with_key(&key).await?;
        (known.name == source.name).then(|| known.value.clone())
    }

    async fn put<T>(&self, source: &KeySource, value: Arc<T>)
    where
        Named<T>: Cached + DeepSizeOf,
        T: Send + Sync,
    {
        let key = TextKey::<Named<T>>::new(&source.slot);
        let name = source.name.clone();
        let named = Arc::new(Named { name, value });
        self.of(source).insert_with_key(&key, named).await;
    }

    async fn keys(&self, table: &LanceTable, source: &KeySource) -> Result<Arc<KeyTable>> {
        if let Some(keys) = self.known(source).await {
            return Ok(keys);
        }
        let schema = table.schema();
        let keys = match &source.rows {
            SourceRows::Generation(generation) => read_keys(table, &schema, generation).await?,
            SourceRows::Memtable(batches) => keys_of(&schema, batches)?,
        };
        if let Some(highest) = keys.highest_stamp() {
            table.clock().observe(highest);
        }
        let keys = Arc::new(keys);
        self.put(source, keys.clone()).await;
        Ok(keys)
    }

    pub(super) async fn matches(&self, source: &KeySource) -> Option<Arc<BaseMatches>> {
        self.known(source).await
    }

    pub(super) async fn put_matches(&self, source: &KeySource, matches: Arc<BaseMatches>) {
        self.put(source, matches).await;
    }

    pub(super) async fn filter(&self, key: &str) -> Option<Arc<IdFilter>> {
        self.cache
            .get_with_key(&TextKey::<IdFilter>::new(key))
            .await
    }

    pub(super) async fn put_filter(&self, key: &str, filter: Arc<IdFilter>) {
        self.cache
            .insert_with_key(&TextKey::<IdFilter>::new(key), filter)
            .await;
    }
}

/// What is known of a source of this name.
struct Named<T> {
    name: String,
    value: Arc<T>,
}

impl<T: DeepSizeOf> DeepSizeOf for Named<T> {
    fn deep_size_of_children(&self, context: &mut Context) -> usize {
        self.name.len() + self.value.deep_size_of_children(context)
    }
}

/// A cache key that is its text.
struct TextKey<T> {
    text: String,
    value: std::marker::PhantomData<fn() -> T>,
}

impl<T> TextKey<T> {
    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            value: std::marker::PhantomData,
        }
    }
}

/// A value of the cache and the name of its kind.
trait Cached: 'static {
    const KIND: &'static str;
}

impl Cached for Named<KeyTable> {
    const KIND: &'static str = "RolloutKeyTable";
}

impl Cached for Named<BaseMatches> {
    const KIND: &'static str = "RolloutBaseMatches";
}

impl Cached for IdFilter {
    const KIND: &'static str = "RolloutIdFilter";
}

impl<T: Cached> CacheKey for TextKey<T> {
    type ValueType = T;

    fn key(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.text)
    }

    fn type_name() -> &'static str {
        T::KIND
    }
}
