//! Finding the base rows that have a source's ids.
//!
//! The cost follows the new rows, not the base: ids are first held against each fragment's filter,
//! and only those that pass are looked up, through the index on ids where there is one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arrow::compute::cast;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, StringArray};
use datafusion::logical_expr::{Expr, in_list, lit};
use datafusion::scalar::ScalarValue;
use futures::TryStreamExt;
use lance::Dataset;
use lance_core::deepsize::{Context, DeepSizeOf};
use lance_core::utils::deletion::DeletionVector;
use lance_table::format::Fragment;

use super::KeySource;
use super::filters;
use super::keys::{KeyCache, KeyTable, as_ids, push_stamps};
use crate::error::Result;
use crate::store::LanceTable;

/// More candidates than this are found by reading the ids of their fragments instead of one by one.
const MAX_LOOKUPS: usize = 20_000;

/// A base row with an id that a generation has too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaseMatch {
    /// The position of the id in the source's [`KeyTable`].
    pub(crate) key: u32,
    /// The base row's address.
    pub(crate) address: u64,
    /// The base row's stamp.
    pub(crate) stamp: i64,
}

/// What is known of one source: the matches in each fragment it was probed in. One entry of the cache for
/// all fragments, for most have no match, and what the cache needs for an entry is many times that.
#[derive(Debug, Clone, Default)]
pub(crate) struct BaseMatches {
    fragments: HashMap<u64, Probed>,
}

/// The matches of one source in one fragment.
#[derive(Debug, Clone)]
struct Probed {
    /// The fragment's name, by its data files: with others it would be probed again.
    name: Arc<str>,
    matches: Vec<BaseMatch>,
    /// The base version they were found in. Rows of a fragment only ever go: a newer version has
    /// these or fewer, an older one may have more.
    version: u64,
}

impl BaseMatches {
    /// What was found in a fragment, if that is all that this version of the base has.
    fn found_in(&self, fragment: &Fragment, name: &str, version: u64) -> Option<&[BaseMatch]> {
        let probed = self.fragments.get(&fragment.id)?;
        let usable = probed.version <= version && *probed.name == *name;
        usable.then_some(probed.matches.as_slice())
    }

    /// Lets go of fragments that are not in this version of the base, when they are the most: a few are kept
    /// for readers of other versions.
    fn forget_gone(&mut self, base: &Dataset) {
        if self.fragments.len() > 2 * base.fragments().len() {
            let present: HashSet<u64> = base.fragments().iter().map(|f| f.id).collect();
            self.fragments.retain(|id, _| present.contains(id));
        }
    }
}

impl DeepSizeOf for BaseMatches {
    fn deep_size_of_children(&self, _context: &mut Context) -> usize {
        let probed = self.fragments.values();
        let of_one = |probed: &Probed| {
            probed.name.len() + probed.matches.capacity() * size_of::<BaseMatch>()
        };
        self.fragments.capacity() * size_of::<(u64, Probed)>() + probed.map(of_one).sum::<usize>()
    }
}

/// A source's position and a key's position in it.
type Candidate = (usize, u32);

/// For each source, the base rows with its ids.
pub(super) async fn base_matches(
    table: &LanceTable,
    cache: &KeyCache,
    base: &Arc<Dataset>,
    sources: &[KeySource],
    keys: &[Arc<KeyTable>],
) -> Result<Vec<Vec<BaseMatch>>> {
    let mut found: Vec<Vec<BaseMatch>> = vec![Vec::new(); sources.len()];
    let mut known = Vec::with_capacity(sources.len());
    for source in sources {
        let earlier = cache.matches(source).await;
        known.push(earlier.unwrap_or_default());
    }
    let mut unprobed: Vec<(Fragment, Vec<usize>)> = Vec::new();
    let version = base.version().version;
    for fragment in base.fragments().iter() {
        let name = filters::name_of(fragment);
        let mut missing = Vec::new();
        let mut matched = Vec::new();
        for (i, known) in known.iter().enumerate() {
            match known.found_in(fragment, &name, version) {
                Some([]) => {}
                Some(matches) => matched.push((i, matches)),
                None => missing.push(i),
            }
        }
        if !matched.is_empty() {
            // A row that was deleted since it was found supersedes nothing, and is no longer counted.
            let deleted = deleted_rows(table, base, fragment).await?;
            let is_deleted = |row: u32| deleted.as_ref().is_some_and(|rows| rows.contains(row));
            for (i, matches) in matched {
                let live = |row: &&BaseMatch| !is_deleted(row.address as u32);
                found[i].extend(matches.iter().filter(live));
            }
        }
        if !missing.is_empty() {
            unprobed.push((fragment.clone(), missing));
        }
    }
    if unprobed.is_empty() {
        return Ok(found);
    }
    let mut probed = probe(table, cache, base, &unprobed, keys).await?;
    let mut learned: BTreeMap<usize, BaseMatches> = BTreeMap::new();
    for (fragment, missing) in unprobed {
        let name: Arc<str> = filters::name_of(&fragment).into();
        for i in missing {
            let matches = probed.remove(&(fragment.id as u32, i)).unwrap_or_default();
            found[i].extend_from_slice(&matches);
            let known = learned
                .entry(i)
                .or_insert_with(|| known[i].as_ref().clone());
            let probed = Probed {
                name: name.clone(),
                matches,
                version,
            };
            known.fragments.insert(fragment.id, probed);
        }
    }
    for (i, mut matches) in learned {
        matches.forget_gone(base);
        cache.put_matches(&sources[i], Arc::new(matches)).await;
    }
    Ok(found)
}

/// The rows of a fragment that this version of the base no longer holds.
async fn deleted_rows(
    table: &LanceTable,
    base: &Arc<Dataset>,
    fragment: &Fragment,
) -> Result<Option<Arc<DeletionVector>>> {
    let Some(fragment) = base.get_fragment(fragment.id as usize) else {
        return Ok(None);
    };
    fragment
        .get_deletion_vector()
        .await
        .map_err(table.context("reading a deletion vector of the base"))
}

/// Probes fragments for the keys of the sources they were not probed for yet.
async fn probe(
    table: &LanceTable,
    cache: &KeyCache,
    base: &Arc<Dataset>,
    unprobed: &[(Fragment, Vec<usize>)],
    keys: &[Arc<KeyTable>],
) -> Result<HashMap<(u32, usize), Vec<BaseMatch>>> {
    let fragments: Vec<Fragment> = unprobed.iter().map(|(f, _)| f.clone()).collect();
    let filters = filters::of_fragments(table, cache, base, &fragments).await?;
    // Ids that may be in some fragment, and who has them.
    let mut candidates: BTreeMap<&str, BTreeSet<Candidate>> = BTreeMap::new();
    let mut wanted = Vec::new();
    for ((fragment, missing), filter) in unprobed.iter().zip(&filters) {
        let mut any = false;
        for i in missing {
            for key in 0..keys[*i].len() {
                let id = keys[*i].ids.value(key);
                if filter.may_hold(id) {
                    any = true;
                    candidates.entry(id).or_default().insert((*i, key as u32));
                }
            }
        }
        if any {
            wanted.push(fragment.clone());
        }
    }
    if candidates.is_empty() {
        return Ok(HashMap::new());
    }
    look_up(table, base, wanted, &candidates).await
}

/// Reads the rows of some fragments that have one of the candidate ids.
async fn look_up(
    table: &LanceTable,
    base: &Arc<Dataset>,
    fragments: Vec<Fragment>,
    candidates: &BTreeMap<&str, BTreeSet<Candidate>>,
) -> Result<HashMap<(u32, usize), Vec<BaseMatch>>> {
    let schema = table.schema();
    let context = || table.context("looking ids up in the base");
    let mut columns = vec![schema.key_name()];
    if let Some(stamp) = schema.stamp_index() {
        columns.push(schema.sql().field(stamp).name());
    }
    let mut scanner = base.scan();
    scanner.project(&columns).map_err(context())?;
    scanner.with_row_address();
    scanner.with_fragments(fragments);
    if candidates.len() <= MAX_LOOKUPS {
        let ids = StringArray::from_iter_values(candidates.keys());
        scanner.filter_expr(id_filter(table, ids)?);
    }
    let mut batches = scanner.try_into_stream().await.map_err(context())?;
    let mut found: HashMap<(u32, usize), Vec<BaseMatch>> = HashMap::new();
    while let Some(batch) = batches.try_next().await.map_err(context())? {
        let ids = as_ids(&batch[schema.key_name()])?;
        let addresses = batch["_rowaddr"].as_primitive::<UInt64Type>().values();
        let mut stamps = Vec::with_capacity(batch.num_rows());
        push_stamps(&schema, &batch, &mut stamps);
        for row in 0..batch.num_rows() {
            let Some(owners) = candidates.get(ids.value(row)) else {
                continue;
            };
            let (address, stamp) = (addresses[row], stamps[row]);
            table.clock().observe(stamp);
            for (source, key) in owners {
                let matches = found.entry(((address >> 32) as u32, *source)).or_default();
                matches.push(BaseMatch {
                    key: *key,
                    address,
                    stamp,
                });
            }
        }
    }
    Ok(found)
}

/// `key IN (ids)`, in the key column's own type.
fn id_filter(table: &LanceTable, ids: StringArray) -> Result<Expr> {
    let schema = table.schema();
    let key = schema.sql().field(schema.key_index());
    let ids: ArrayRef = cast(&(Arc::new(ids) as ArrayRef), key.data_type())?;
    let list = (0..ids.len())
        .map(|i| Ok(lit(ScalarValue::try_from_array(&ids, i)?)))
        .collect::<Result<Vec<_>>>()?;
    Ok(in_list(
        Expr::Column(datafusion::common::Column::new_unqualified(key.name())),
        list,
        false,
    ))
}
