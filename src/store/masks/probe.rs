//! Finding the base rows that have a generation's ids.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use datafusion::common::HashMap as HashbrownMap;
use futures::TryStreamExt;
use lance::Dataset;
use lance_core::deepsize::{Context, DeepSizeOf};
use lance_table::format::Fragment;

use super::KeySource;
use super::keys::{KeyCache, KeyTable, as_ids, hash_ids, push_stamps};
use crate::error::Result;
use crate::store::LanceTable;

/// A base row with an id that a generation has too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaseMatch {
    /// The position of the id in the generation's [`KeyTable`].
    pub(crate) key: u32,
    /// The base row's address.
    pub(crate) address: u64,
    /// The base row's stamp.
    pub(crate) stamp: i64,
}

/// The matches of one generation in one fragment.
#[derive(Debug, Default)]
pub(crate) struct BaseMatches(pub(crate) Vec<BaseMatch>);

impl DeepSizeOf for BaseMatches {
    fn deep_size_of_children(&self, _context: &mut Context) -> usize {
        self.0.capacity() * size_of::<BaseMatch>()
    }
}

/// For each source, the base rows with its ids.
pub(super) async fn base_matches(
    table: &LanceTable,
    cache: &KeyCache,
    base: &Arc<Dataset>,
    sources: &[KeySource],
    keys: &[Arc<KeyTable>],
) -> Result<Vec<Vec<BaseMatch>>> {
    let mut found: Vec<Vec<BaseMatch>> = vec![Vec::new(); sources.len()];
    let mut unprobed: Vec<(Fragment, Vec<usize>)> = Vec::new();
    for fragment in base.fragments().iter() {
        let mut missing = Vec::new();
        for (i, source) in sources.iter().enumerate() {
            match cache.matches(&pair_key(source, fragment)).await {
                Some(matches) => found[i].extend_from_slice(&matches.0),
                None => missing.push(i),
            }
        }
        if !missing.is_empty() {
            unprobed.push((fragment.clone(), missing));
        }
    }
    if unprobed.is_empty() {
        return Ok(found);
    }
    let mut wanted: Vec<usize> = unprobed.iter().flat_map(|(_, m)| m.iter().copied()).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let fragments = unprobed.iter().map(|(f, _)| f.clone()).collect();
    let mut probed = scan(table, base, fragments, &wanted, keys).await?;
    for (fragment, missing) in unprobed {
        for i in missing {
            let matches = probed.remove(&(fragment.id as u32, i)).unwrap_or_default();
            found[i].extend_from_slice(&matches);
            let key = pair_key(&sources[i], &fragment);
            cache.put_matches(&key, Arc::new(BaseMatches(matches))).await;
        }
    }
    Ok(found)
}

/// Sources and data files never change under their names, so a pair of them is probed once.
fn pair_key(source: &KeySource, fragment: &Fragment) -> String {
    let mut key = format!("{}@{}", source.cache_key, fragment.id);
    for file in &fragment.files {
        key.push(':');
        key.push_str(&file.path);
    }
    key
}

/// Reads the ids of some fragments and looks each up in the generations' keys.
async fn scan(
    table: &LanceTable,
    base: &Arc<Dataset>,
    fragments: Vec<Fragment>,
    wanted: &[usize],
    keys: &[Arc<KeyTable>],
) -> Result<HashMap<(u32, usize), Vec<BaseMatch>>> {
    let schema = table.schema();
    let mut directory: HashbrownMap<u64, Vec<(usize, u32)>> = HashbrownMap::default();
    for i in wanted {
        for (position, hash) in keys[*i].hashes.iter().enumerate() {
            directory.entry(*hash).or_default().push((*i, position as u32));
        }
    }
    let context = || table.context("reading the base's ids");
    let mut columns = vec![schema.key_name()];
    if let Some(stamp) = schema.stamp_index() {
        columns.push(schema.sql().field(stamp).name());
    }
    let mut scanner = base.scan();
    scanner.project(&columns).map_err(context())?;
    scanner.with_row_address();
    scanner.with_fragments(fragments);
    let mut batches = scanner.try_into_stream().await.map_err(context())?;
    let mut found: HashMap<(u32, usize), Vec<BaseMatch>> = HashMap::new();
    while let Some(batch) = batches.try_next().await.map_err(context())? {
        let ids = as_ids(batch.column(0))?;
        let hashes = hash_ids(&ids)?;
        let addresses = batch["_rowaddr"].as_primitive::<UInt64Type>().values();
        let mut stamps = Vec::new();
        for (row, hash) in hashes.iter().enumerate() {
            let Some(candidates) = directory.get(hash) else {
                continue;
            };
            if stamps.is_empty() {
                push_stamps(&schema, &batch, &mut stamps);
            }
            for (i, key) in candidates {
                if keys[*i].ids.value(*key as usize) == ids.value(row) {
                    let address = addresses[row];
                    table.clock().observe(stamps[row]);
                    found
                        .entry(((address >> 32) as u32, *i))
                        .or_default()
                        .push(BaseMatch {
                            key: *key,
                            address,
                            stamp: stamps[row],
                        });
                }
            }
        }
    }
    Ok(found)
}
