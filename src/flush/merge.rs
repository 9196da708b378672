//! Merging flushed generations into the base: keyed, exactly once.
//!
//! A pass takes, per shard, the generations right after the recorded progress. It works out through
//! the masks which of their rows win, writes those as new fragments, marks the base rows they
//! replace as deleted, and commits rows and progress as one transaction.
//!
//! Any process may merge any shard. What makes two at once safe:
//! - the commit carries the exact set of keys it inserts and the base rows it replaces, so of two
//!   commits that insert the same new id, or replace the same row, the second is refused;
//! - progress must grow, so of two commits of the same generation the second is refused;
//! - a commit that cannot be held against every version since the one it was worked out on, because
//!   some were cleaned up, is refused (`store::commits`);
//! - nothing is ever committed from a refused commit's work: it is thrown away, the progress read
//!   again and the rows worked out anew, so that what was deleted meanwhile stays deleted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;

use arrow_array::RecordBatch;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::Peekable;
use futures::{FutureExt, StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::mem_wal::ShardManifestStore;
use lance::dataset::scanner::RowAddrTreeMap;
use lance::dataset::transaction::{Operation, Transaction, UpdateMode};
use lance::dataset::{CommitBuilder, InsertBuilder, WriteMode};
use lance_index::mem_wal::{CompactedSsTable, ShardManifest};
use lance_table::format::Fragment;
use lance_table::format::key_existence::{FilterType, KeyExistenceFilter, KeyValue};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::error::{Result, RolloutError};
use crate::schema::{DictionaryValues, TableSchema};
use crate::store::masks::{KeyCache, KeySource, Masks, RowSet};
use crate::store::{Generation, LanceTable, OwnShards, scan_generation};

/// What a merge did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergeReport {
    /// Generations whose rows the base now holds.
    pub generations: usize,
    /// Rows with an id that was new to the base.
    pub rows_inserted: u64,
    /// Base rows replaced or deleted.
    pub rows_replaced: u64,
    /// Bytes of those generations, as their rows were in memory.
    pub bytes: u64,
    /// Commits made.
    pub passes: usize,
    /// The base version afterwards.
    pub base_version: u64,
}

/// A merge that is worked out and not yet committed.
#[derive(Debug)]
pub(crate) struct PreparedMerge {
    base: Arc<Dataset>,
    transaction: Transaction,
    replaced: RowAddrTreeMap,
    progress: HashMap<Uuid, u64>,
    pub(crate) rows_inserted: u64,
    pub(crate) rows_replaced: u64,
    pub(crate) generations: usize,
}

/// How a commit ended.
#[derive(Debug)]
pub(crate) enum Committed {
    /// The base now holds the rows.
    Done(Arc<Dataset>),
    /// Another commit stood in the way: nothing changed, work it out again.
    Refused(String),
}

/// Works out one pass over `generations`, which must follow the base's progress shard by shard.
///
/// # Errors
/// A source that cannot be read, or storage that cannot be written.
pub(crate) async fn prepare(
    table: &LanceTable,
    cache: &KeyCache,
    base: &Arc<Dataset>,
    generations: &[Arc<Generation>],
) -> Result<PreparedMerge> {
    // Those of the version the commit is made on: one that lacks a column meets the commit that
    // added it, and is refused.
    let schema = table.schema_of(base)?;
    let sources: Vec<_> = generations.iter().map(KeySource::generation).collect();
    let masks = Masks::build(table, cache, base, &sources).await?;
    let rows_written: u64 = (0..sources.len()).map(|i| masks.live_rows(i)).sum();
    let rows_replaced = crate::store::masks::row_count(&masks.base);
    let live: Vec<_> = (0..sources.len())
        .filter(|i| masks.live_rows(*i) > 0)
        .collect();
    let new_fragments = write_winners(table, &schema, base, generations, &masks, &live).await?;
    let (updated_fragments, removed_fragment_ids) = delete_losers(table, base, &masks.base).await?;
    let mut progress: HashMap<Uuid, u64> = HashMap::new();
    for generation in generations {
        let last = progress.entry(generation.shard).or_default();
        *last = generation.number.max(*last);
    }
    let key_field = base
        .schema()
        .field(schema.key_name())
        .map(|field| field.id)
        .ok_or_else(|| RolloutError::invalid("the base has no key column"))?;
    let hashes: HashSet<u64> = (0..sources.len())
        .flat_map(|source| masks.live_ids(source))
        .map(|id| KeyValue::String(id.to_string()).hash_value())
        .collect();
    let mut replaced = RowAddrTreeMap::new();
    for (fragment, rows) in &masks.base {
        replaced.insert_bitmap(*fragment, rows.clone());
    }
    let operation = Operation::Update {
        removed_fragment_ids,
        updated_fragments,
        new_fragments,
        fields_modified: Vec::new(),
        compacted_sstables: progress
            .iter()
            .map(|(shard, generation)| CompactedSsTable::new(*shard, *generation))
            .collect(),
        fields_for_preserving_frag_bitmap: Vec::new(),
        update_mode: Some(UpdateMode::RewriteRows),
        inserted_rows_filter: Some(KeyExistenceFilter {
            field_ids: vec![key_field],
            filter: FilterType::ExactSet(hashes),
        }),
        updated_fragment_offsets: None,
    };
    Ok(PreparedMerge {
        base: base.clone(),
        transaction: Transaction::new(base.version().version, operation, None),
        replaced,
        progress,
        rows_inserted: rows_written.saturating_sub(rows_replaced),
        rows_replaced,
        generations: generations.len(),
    })
}

/// Commits a prepared merge.
///
/// # Errors
/// Storage that cannot be reached: whether the commit landed is then unknown, which the recorded
/// progress settles before the next attempt.
pub(crate) async fn commit(table: &LanceTable, prepared: &PreparedMerge) -> Result<Committed> {
    fail::fail_point!("merge-before-commit");
    let committed = CommitBuilder::new(prepared.base.clone())
        .with_affected_rows(prepared.replaced.clone())
        .with_skip_auto_cleanup(true)
        .execute(prepared.transaction.clone())
        .boxed()
        .await;
    match committed {
        Ok(base) => Ok(Committed::Done(table.advance_base(Arc::new(base)))),
        Err(error) if is_conflict(&error) => Ok(Committed::Refused(error.to_string())),
        Err(error) => Err(table.context("committing a merge")(error)),
    }
}

/// Whether an error of a commit means that another one was first.
pub(crate) fn is_conflict(error: &lance::Error) -> bool {
    match error {
        lance::Error::RetryableCommitConflict { .. }
        | lance::Error::CommitConflict { .. }
        | lance::Error::IncompatibleTransaction { .. }
        | lance::Error::TooMuchWriteContention { .. } => true,
        // Lance has no kind of its own for a generation that somebody merged already.
        lance::Error::InvalidInput { source, .. } => {
            source.to_string().contains("Stale SSTable compaction")
        }
        _ => false,
    }
}

/// Drops merged generations from their shards' manifests. What stays behind does no harm: readers
/// drop it by the base's progress, and the next merge tries again.
pub(crate) async fn forget_merged(table: &LanceTable, own: &OwnShards, prepared: &PreparedMerge) {
    fail::fail_point!("merge-before-forget", |_| ());
    for (shard, merged) in &prepared.progress {
        let result = match own.get(shard) {
            Some(own) => forget_in(&own.manifests, own.epoch, *merged).await,
            None => {
                let store = table.manifest_store(*shard);
                match store.refresh_latest().boxed().await {
                    Ok(Some(manifest)) => forget_in(&store, manifest.writer_epoch, *merged).await,
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                }
            }
        };
        if let Err(error) = result {
            tracing::debug!(%shard, %error, "merged generations stay in their manifest for now");
        }
    }
}

pub(super) async fn forget_in(
    store: &ShardManifestStore,
    epoch: u64,
    merged: u64,
) -> lance::Result<()> {
    store
        .commit_update(epoch, |current| ShardManifest {
            version: current.next_version(),
            sstables: current
                .sstables
                .iter()
                .filter(|sstable| sstable.generation > merged)
                .cloned()
                .collect(),
            ..current.clone()
        })
        .await
        .map(|_| ())
}

/// Writes the winning rows of some generations as fragments no version names yet.
async fn write_winners(
    table: &LanceTable,
    schema: &TableSchema,
    base: &Arc<Dataset>,
    generations: &[Arc<Generation>],
    masks: &Masks,
    sources: &[usize],
) -> Result<Vec<Fragment>> {
    let streams: Vec<_> = sources
        .iter()
        .map(|i| (generations[*i].clone(), masks.sources[*i].clone()))
        .collect();
    let stored = schema.stored().clone();
    let columns = stored.clone();
    let rows = futures::stream::iter(streams)
        .then(move |(generation, masked)| {
            let columns = columns.clone();
            async move {
                scan_generation(&generation, &masked, &columns)
                    .await
                    .map_err(datafusion::error::DataFusionError::from)
            }
        })
        .map_ok(|batches| batches.map_err(datafusion::error::DataFusionError::from))
        .try_flatten();
    let source = Box::pin(RecordBatchStreamAdapter::new(stored, rows.boxed()));
    write_fragments(table, base, source).await
}

/// Writes rows of the stored schema as fragments no version names yet: as few files as their
/// dictionary columns allow, for one with more values than its keys can number cannot be read.
pub(crate) async fn write_fragments(
    table: &LanceTable,
    base: &Arc<Dataset>,
    rows: SendableRecordBatchStream,
) -> Result<Vec<Fragment>> {
    let schema = rows.schema();
    let rows = Arc::new(Mutex::new(rows.peekable()));
    let mut fragments = Vec::new();
    while Pin::new(&mut *rows.lock().await).peek().await.is_some() {
        let file = futures::stream::unfold(
            (rows.clone(), Some(DictionaryValues::default())),
            |(rows, values)| async move {
                let (batch, values) = next_of_file(&rows, values?).await?;
                Some((batch, (rows, values)))
            },
        );
        let file = RecordBatchStreamAdapter::new(schema.clone(), file.boxed());
        fragments.extend(write_file(table, base, Box::pin(file)).await?);
    }
    Ok(fragments)
}

type Rows = Mutex<Peekable<SendableRecordBatchStream>>;

/// The next batch, if the file has room for its values, and what the file holds then. What cannot be
/// read or does not even fit alone is the file's last.
async fn next_of_file(
    rows: &Rows,
    values: DictionaryValues,
) -> Option<(DataFusionResult<RecordBatch>, Option<DictionaryValues>)> {
    let mut rows = rows.lock().await;
    let joined = match Pin::new(&mut *rows).peek().await? {
        Ok(batch) => DictionaryValues::of(batch).and_then(|own| {
            let alone = DictionaryValues::default().joined(&own);
            alone.map(|_| values.joined(&own).ok())
        }),
        Err(_) => return rows.next().await.map(|error| (error, None)),
    };
    match joined {
        Ok(Some(joined)) => rows.next().await.map(|batch| (batch, Some(joined))),
        Ok(None) => None,
        Err(error) => Some((Err(error.into()), None)),
    }
}

async fn write_file(
    table: &LanceTable,
    base: &Arc<Dataset>,
    rows: SendableRecordBatchStream,
) -> Result<Vec<Fragment>> {
    let params = table.write_params(WriteMode::Append);
    let written = InsertBuilder::new(base.clone())
        .with_params(&params)
        .execute_uncommitted_stream(rows)
        .boxed()
        .await
        .map_err(table.context("writing rows to the base"))?;
    match written.operation {
        Operation::Append { fragments } => Ok(fragments),
        other => Err(RolloutError::invalid(format!(
            "writing rows to the base was planned as {other:?}, not as an append"
        ))),
    }
}

/// Writes deletion vectors for replaced base rows; returns changed and emptied fragments.
pub(crate) async fn delete_losers(
    table: &LanceTable,
    base: &Arc<Dataset>,
    losers: &RowSet,
) -> Result<(Vec<Fragment>, Vec<u64>)> {
    let changes: BTreeMap<u32, Option<Fragment>> = futures::stream::iter(losers.clone())
        .map(|(id, rows)| async move {
            let fragment = base.get_fragment(id as usize).ok_or_else(|| {
                RolloutError::Conflict(format!("fragment {id} of the base is gone"))
            })?;
            let changed = fragment
                .extend_deletions(rows)
                .boxed()
                .await
                .map_err(table.context("marking replaced rows"))?;
            Ok::<_, RolloutError>((id, changed.map(|fragment| fragment.metadata().clone())))
        })
        .buffer_unordered(8)
        .try_collect()
        .await?;
    let mut updated = Vec::new();
    let mut removed = Vec::new();
    for (id, change) in changes {
        match change {
            Some(fragment) => updated.push(fragment),
            None => removed.push(u64::from(id)),
        }
    }
    Ok((updated, removed))
}

#[cfg(test)]
mod tests;
