//! The index on the base's ids: made when the base is worth one, kept up after merges.
//!
//! It serves point lookups and the masks' lookups of ids that passed a filter. Tables without it
//! answer the same, slower: fragments it does not cover are read.

use std::sync::Arc;

use futures::FutureExt;
use lance::Dataset;
use lance::index::DatasetIndexExt;
use lance_index::IndexType;
use lance_index::optimize::OptimizeOptions;
use lance_index::scalar::ScalarIndexParams;
use roaring::RoaringBitmap;

use super::merge::is_conflict;
use crate::error::Result;
use crate::store::LanceTable;

/// The index's name.
const ID_INDEX: &str = "rollout_id";

/// Segments at which all are joined into one: every lookup asks each.
const MAX_SEGMENTS: usize = 8;

/// What the index needs: a pure decision over rows and segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upkeep {
    Nothing,
    Create,
    /// Index the new fragments as a segment of their own.
    Append,
    /// Join all segments.
    Join,
}

fn upkeep(rows: u64, unindexed: u64, segments: usize, min_rows: u64) -> Upkeep {
    if min_rows == 0 || rows < min_rows {
        Upkeep::Nothing
    } else if segments == 0 {
        Upkeep::Create
    } else if unindexed * 20 < rows && unindexed < min_rows {
        Upkeep::Nothing
    } else if segments >= MAX_SEGMENTS {
        Upkeep::Join
    } else {
        Upkeep::Append
    }
}

/// Brings the index up to date with the newest base. A commit that stood in the way leaves it for
/// the next time.
///
/// # Errors
/// The index cannot be read or written.
pub(super) async fn keep_up(table: &LanceTable, min_rows: u64) -> Result<()> {
    let base = table.base();
    let schema = table.schema();
    let segments = base
        .load_indices_by_name(ID_INDEX)
        .await
        .map_err(table.context("reading the index on ids"))?;
    let covered: RoaringBitmap = segments
        .iter()
        .filter_map(|segment| segment.fragment_bitmap.clone())
        .fold(RoaringBitmap::new(), |all, some| all | some);
    let count = |all: bool| -> u64 {
        base.fragments()
            .iter()
            .filter(|fragment| all || !covered.contains(fragment.id as u32))
            .filter_map(|fragment| fragment.num_rows())
            .map(|rows| rows as u64)
            .sum()
    };
    let wanted = upkeep(count(true), count(false), segments.len(), min_rows);
    let mut indexed = base.as_ref().clone();
    let outcome = match wanted {
        Upkeep::Nothing => return Ok(()),
        Upkeep::Create => create(&mut indexed, schema.key_name()).boxed().await,
        Upkeep::Append => {
            let new = only(OptimizeOptions::append());
            indexed.optimize_indices(&new).boxed().await
        }
        Upkeep::Join => {
            let all = OptimizeOptions::merge(segments.len());
            indexed.optimize_indices(&only(all)).boxed().await
        }
    };
    match outcome {
        Ok(()) => {
            table.advance_base(Arc::new(indexed));
            Ok(())
        }
        Err(error) if is_conflict(&error) => {
            tracing::debug!(%error, "the index on ids is brought up to date another time");
            Ok(())
        }
        Err(error) => Err(table.context("keeping up the index on ids")(error)),
    }
}

async fn create(base: &mut Dataset, key: &str) -> lance::Result<()> {
    let params = ScalarIndexParams::default();
    let name = Some(ID_INDEX.to_string());
    base.create_index(&[key], IndexType::BTree, name, &params, false)
        .await
        .map(|_| ())
}

fn only(mut options: OptimizeOptions) -> OptimizeOptions {
    options.index_names = Some(vec![ID_INDEX.to_string()]);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_when_it_pays() {
        for (rows, unindexed, segments, want) in [
            (10, 10, 0, Upkeep::Nothing),
            (1_000, 1_000, 0, Upkeep::Create),
            (1_000_000, 0, 1, Upkeep::Nothing),
            (1_000_000, 50, 1, Upkeep::Nothing),
            (1_000_000, 500, 1, Upkeep::Append),
            (1_000_000, 80_000, 1, Upkeep::Append),
            (1_000_000, 80_000, 8, Upkeep::Join),
        ] {
            assert_eq!(
                upkeep(rows, unindexed, segments, 100),
                want,
                "{rows} {unindexed} {segments}"
            );
        }
        assert_eq!(upkeep(1 << 40, 1 << 40, 0, 0), Upkeep::Nothing);
    }
}
