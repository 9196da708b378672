//! Compaction: the base's small fragments are rewritten as larger ones.
//!
//! Every merge leaves a fragment; many small ones make scans slow and the base's manifest long. A
//! run is bounded in bytes read and in what it holds in memory. Lance checks a rewrite against the
//! commits made meanwhile: one that touched the same fragments makes it fail, and the next run
//! plans anew. Row ids are not remapped on the spot (`defer_index_remap`): Lance's way of doing
//! that does not know the table's MemWAL index. Lance joins no fragments that are not in the same
//! segments of every index, so neither does the choice made here.

use std::sync::Arc;

use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::index::DatasetIndexRemapperOptions;
use lance::dataset::index::frag_reuse::cleanup_frag_reuse_index;
use lance::dataset::optimize::{
    CompactionMetrics, CompactionOptions, commit_compaction, plan_compaction,
};
use lance::index::DatasetIndexExt;
use lance_table::format::Fragment;
use lance_table::system_index::is_system_index;
use roaring::RoaringBitmap;

use super::merge::is_conflict;
use crate::error::{Result, RolloutError};
use crate::schema::{DictionaryValues, small_dictionary_columns};
use crate::store::masks::RowSet;
use crate::store::{LanceTable, ScanSpec, scan_dataset};

/// A fragment of fewer rows and bytes than these is small.
const SMALL_ROWS: u64 = 1 << 20;
const SMALL_BYTES: u64 = 256 << 20;

/// Most bytes of data files one run rewrites.
const RUN_BYTES: u64 = 2 << 30;

/// Bytes of rows held at once, aimed at.
const BATCH_BYTES: u64 = 32 << 20;
const IO_BUFFER_BYTES: u64 = 256 << 20;

/// How often a run is planned anew after losing against another commit.
const ATTEMPTS: usize = 5;

/// What a compaction did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompactionReport {
    /// Fragments that were replaced.
    pub fragments_removed: usize,
    /// Fragments that replace them.
    pub fragments_added: usize,
    /// Rows in the fragments that were replaced, deleted ones included.
    pub rows: u64,
    /// Bytes of their data files.
    pub bytes: u64,
    /// The base version afterwards.
    pub base_version: u64,
}

/// A fragment as the policy sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sized {
    pub(super) id: u32,
    pub(super) rows: u64,
    pub(super) deleted: u64,
    pub(super) bytes: u64,
    /// Which of the indexes' segments cover it.
    pub(super) segments: Vec<usize>,
}

impl Sized {
    fn of(fragment: &Fragment, segments: &[RoaringBitmap]) -> Self {
        let bytes = |file: &lance_table::format::DataFile| file.file_size_bytes.get();
        let deleted = fragment
            .deletion_file
            .as_ref()
            .and_then(|file| file.num_deleted_rows);
        Self {
            id: fragment.id as u32,
            rows: fragment.physical_rows.unwrap_or(0) as u64,
            deleted: deleted.unwrap_or(0) as u64,
            bytes: fragment.files.iter().filter_map(bytes).map(u64::from).sum(),
            segments: (0..segments.len())
                .filter(|segment| segments[*segment].contains(fragment.id as u32))
                .collect(),
        }
    }

    fn small(&self) -> bool {
        self.rows < SMALL_ROWS && self.bytes < SMALL_BYTES
    }

    /// A tenth or more of its rows are gone.
    fn worn(&self) -> bool {
        self.deleted * 10 >= self.rows.max(1)
    }
}

/// Which fragments a run rewrites: runs of at least `least` small neighbours in the same segments,
/// and worn fragments, in order, up to `bound` bytes, at least one run.
pub(super) fn choose(fragments: &[Sized], least: usize, bound: u64) -> Vec<u32> {
    let mut chosen: Vec<u32> = Vec::new();
    let mut bytes = 0;
    let alike = |a: &Sized, b: &Sized| a.small() == b.small() && a.segments == b.segments;
    for run in fragments.chunk_by(alike) {
        let whole = run[0].small() && run.len() >= least.max(2);
        for fragment in run.iter().filter(|fragment| whole || fragment.worn()) {
            bytes += fragment.bytes;
            if bytes > bound && chosen.len() > 1 {
                return chosen;
            }
            chosen.push(fragment.id);
        }
    }
    chosen
}

/// Rewrites what the policy chooses; `least` neighbours make a run.
///
/// # Errors
/// Storage that cannot be reached; other commits that kept coming first.
pub(super) async fn compact(table: &LanceTable, least: usize) -> Result<CompactionReport> {
    forget_moves(table).await?;
    let mut attempts = 0;
    loop {
        let base = table.refresh_base().await?;
        let fragments = fragments(&base)
            .await
            .map_err(table.context("reading the indexes"))?;
        let chosen = fitting(table, &base, choose(&fragments, least, RUN_BYTES)).await?;
        let error = match rewrite(&base, &fragments, &chosen).await {
            Ok(None) => {
                return Ok(CompactionReport {
                    base_version: base.version().version,
                    ..Default::default()
                });
            }
            Ok(Some((compacted, metrics))) => {
                let base = table.advance_base(Arc::new(compacted));
                let (rows, bytes) = totals(&fragments, &chosen);
                return Ok(CompactionReport {
                    rows,
                    bytes,
                    fragments_removed: metrics.fragments_removed,
                    fragments_added: metrics.fragments_added,
                    base_version: base.version().version,
                });
            }
            Err(error) => error,
        };
        attempts += 1;
        if !is_conflict(&error) && !gone(table, &base, &error).await? {
            return Err(table.context("compacting the base")(error));
        }
        if attempts >= ATTEMPTS {
            return Err(RolloutError::Conflict(format!(
                "compacting {} kept losing against other commits: {error}",
                table.location()
            )));
        }
        tracing::debug!(attempts, %error, "a compaction lost against another commit");
    }
}

/// Whether what was not found belongs to a version that was superseded, and cleaned up, meanwhile.
async fn gone(table: &LanceTable, base: &Arc<Dataset>, error: &lance::Error) -> Result<bool> {
    if !matches!(error, lance::Error::NotFound { .. }) {
        return Ok(false);
    }
    let newest = table.refresh_base().await?;
    Ok(newest.version().version > base.version().version)
}

async fn fragments(base: &Dataset) -> lance::Result<Vec<Sized>> {
    let segments: Vec<RoaringBitmap> = base
        .load_indices()
        .await?
        .iter()
        .filter(|index| !is_system_index(index))
        .filter_map(|index| index.fragment_bitmap.clone())
        .collect();
    let fragments = base.fragments().iter();
    Ok(fragments
        .map(|fragment| Sized::of(fragment, &segments))
        .collect())
}

/// Drops the record of moved rows as far as no index needs it any more.
async fn forget_moves(table: &LanceTable) -> Result<()> {
    let mut base = table.refresh_base().await?.as_ref().clone();
    match cleanup_frag_reuse_index(&mut base).await {
        Ok(()) => {
            table.advance_base(Arc::new(base));
        }
        // It only grows until the next run.
        Err(error) => tracing::debug!(%error, "the record of moved rows stays for now"),
    }
    Ok(())
}

/// Those of the chosen fragments that one file may hold, as far as its dictionary columns go.
async fn fitting(table: &LanceTable, base: &Arc<Dataset>, chosen: Vec<u32>) -> Result<Vec<u32>> {
    let columns = small_dictionary_columns(table.schema().stored())?;
    if columns.fields().is_empty() {
        return Ok(chosen);
    }
    let spec = ScanSpec::all(columns);
    let mut fitting = Vec::new();
    let mut values = DictionaryValues::default();
    for id in chosen {
        let fragments = base.fragments().iter();
        let fragment = fragments.filter(|fragment| fragment.id == u64::from(id));
        let fragment = fragment.cloned().collect();
        let mut batches = scan_dataset(base, fragment, &RowSet::new(), &spec).await?;
        let mut own = DictionaryValues::default();
        while let Some(batch) = batches.try_next().await? {
            own = own.joined(&DictionaryValues::of(&batch)?)?;
        }
        match values.joined(&own) {
            Ok(joined) => values = joined,
            Err(_) if fitting.len() > 1 => break,
            Err(_) => {
                fitting.clear();
                values = own;
            }
        }
        fitting.push(id);
    }
    Ok(fitting)
}

/// Rows and bytes of the chosen fragments.
fn totals(fragments: &[Sized], chosen: &[u32]) -> (u64, u64) {
    fragments
        .iter()
        .filter(|fragment| chosen.contains(&fragment.id))
        .fold((0, 0), |(rows, bytes), fragment| {
            (rows + fragment.rows, bytes + fragment.bytes)
        })
}

async fn rewrite(
    base: &Arc<Dataset>,
    fragments: &[Sized],
    chosen: &[u32],
) -> lance::Result<Option<(Dataset, CompactionMetrics)>> {
    if chosen.is_empty() {
        return Ok(None);
    }
    let (rows, bytes) = totals(fragments, chosen);
    let options = CompactionOptions {
        target_rows_per_fragment: SMALL_ROWS as usize,
        excluded_fragment_ids: fragments
            .iter()
            .map(|fragment| fragment.id)
            .filter(|id| !chosen.contains(id))
            .collect(),
        batch_size: Some((BATCH_BYTES * rows.max(1) / bytes.max(1)).clamp(1, 8192) as usize),
        io_buffer_size: Some(IO_BUFFER_BYTES),
        defer_index_remap: true,
        ..Default::default()
    };
    let plan = plan_compaction(base, &options).await?;
    let mut results = Vec::new();
    // One after another: the bound on memory is that of one.
    for task in plan.compaction_tasks() {
        results.push(task.execute(base).await?);
    }
    if results.is_empty() {
        return Ok(None);
    }
    fail::fail_point!("compact-before-commit");
    let mut compacted = base.as_ref().clone();
    let remap = Arc::new(DatasetIndexRemapperOptions::default());
    let metrics = commit_compaction(&mut compacted, results, remap, plan.options()).await?;
    Ok(Some((compacted, metrics)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn fragments(sizes: &[(u64, u64, u64)]) -> Vec<Sized> {
        let sized = |(id, (rows, deleted, bytes)): (usize, &(u64, u64, u64))| Sized {
            id: id as u32,
            rows: *rows,
            deleted: *deleted,
            bytes: *bytes,
            segments: vec![0],
        };
        sizes.iter().enumerate().map(sized).collect()
    }

    #[test]
    fn runs_of_small_neighbours_and_worn_fragments() {
        let (small, large) = ((1000, 0, MIB), (2 * SMALL_ROWS, 0, MIB));
        let heavy = (1000, 0, SMALL_BYTES);
        let worn = (2 * SMALL_ROWS, SMALL_ROWS, MIB);
        let scratched = (1000, 1, MIB);
        for (what, sizes, least, want) in [
            ("nothing", vec![], 2, vec![]),
            ("one alone", vec![small], 2, vec![]),
            ("two", vec![small, small], 2, vec![0, 1]),
            ("too few", vec![small, small], 3, vec![]),
            ("apart", vec![small, large, small], 2, vec![]),
            (
                "by rows or bytes",
                vec![large, heavy, small, small],
                2,
                vec![2, 3],
            ),
            ("worn", vec![large, worn], 2, vec![1]),
            ("hardly worn", vec![scratched], 2, vec![]),
            ("worn and small", vec![(1000, 500, MIB)], 2, vec![0]),
        ] {
            assert_eq!(choose(&fragments(&sizes), least, 1 << 40), want, "{what}");
        }
    }

    #[test]
    fn only_neighbours_in_the_same_segments_are_joined() {
        let mut many = fragments(&[(1000, 0, MIB); 5]);
        many[3].segments = vec![0, 1];
        many[4].segments = Vec::new();
        assert_eq!(choose(&many, 2, 1 << 40), [0, 1, 2]);
    }

    #[test]
    fn a_run_is_bounded() {
        let many = fragments(&[(1000, 0, 10); 10]);
        assert_eq!(choose(&many, 2, 45), [0, 1, 2, 3]);
        assert_eq!(
            choose(&many, 2, 1),
            [0, 1],
            "never less than two, or nothing would ever go"
        );
    }
}
