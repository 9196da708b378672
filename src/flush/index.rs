//! The index on the base's ids: made when the base is worth one, kept up after merges.
//!
//! It serves point lookups and the masks' lookups of ids that passed a filter. Tables without it
//! answer the same, slower: fragments it does not cover are read.
//!
//! New fragments become a segment, joined at once with the newest segments that hold no more rows
//! than it: each segment then holds more than all newer ones together, so there are at most as many
//! as the rows can be halved, and a row is written again as often at most (the logarithmic method
//! of Bentley and Saxe, 1980, as log-structured merge trees use it).

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

/// What the index needs: a pure decision over rows and segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upkeep {
    Nothing,
    Create,
    /// Index the new fragments in one segment with so many of the newest segments.
    Extend(usize),
}

/// `segments` are the rows of each, the oldest first.
fn upkeep(rows: u64, unindexed: u64, segments: &[u64], min_rows: u64) -> Upkeep {
    if min_rows == 0 || rows < min_rows {
        Upkeep::Nothing
    } else if segments.is_empty() {
        Upkeep::Create
    } else if unindexed * 20 < rows && unindexed < min_rows {
        Upkeep::Nothing
    } else {
        let mut joined = unindexed;
        let smaller = segments.iter().rev().take_while(|segment| {
            let smaller = **segment <= joined;
            joined += **segment;
            smaller
        });
        Upkeep::Extend(smaller.count())
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
    let covered: Vec<RoaringBitmap> = segments
        .iter()
        .filter_map(|segment| segment.fragment_bitmap.clone())
        .collect();
    let mut unindexed = 0;
    let mut by_segment = vec![0; covered.len()];
    for fragment in base.fragments().iter() {
        let segment = covered
            .iter()
            .position(|segment| segment.contains(fragment.id as u32));
        let rows = fragment.num_rows().unwrap_or(0) as u64;
        *segment.map_or(&mut unindexed, |segment| &mut by_segment[segment]) += rows;
    }
    let rows = unindexed + by_segment.iter().sum::<u64>();
    let wanted = upkeep(rows, unindexed, &by_segment, min_rows);
    let mut indexed = base.as_ref().clone();
    let outcome = match wanted {
        Upkeep::Nothing => return Ok(()),
        Upkeep::Create => create(&mut indexed, schema.key_name()).boxed().await,
        Upkeep::Extend(segments) => {
            let newest = only(OptimizeOptions::merge(segments));
            indexed.optimize_indices(&newest).boxed().await
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
            (10, 10, vec![], Upkeep::Nothing),
            (1_000, 1_000, vec![], Upkeep::Create),
            (1_000_000, 0, vec![1_000_000], Upkeep::Nothing),
            (1_000_000, 50, vec![999_950], Upkeep::Nothing),
            (1_000_000, 500, vec![999_500], Upkeep::Extend(0)),
            (1_000_000, 80_000, vec![920_000], Upkeep::Extend(0)),
            (1_000_000, 80_000, vec![840_000, 80_000], Upkeep::Extend(1)),
            (900, 100, vec![500, 200, 100], Upkeep::Extend(2)),
            (900, 100, vec![500, 300, 0], Upkeep::Extend(1)),
            (900, 300, vec![300, 300], Upkeep::Extend(2)),
        ] {
            assert_eq!(
                upkeep(rows, unindexed, &segments, 100),
                want,
                "{rows} {unindexed} {segments:?}"
            );
        }
        assert_eq!(upkeep(1 << 40, 1 << 40, &[], 0), Upkeep::Nothing);
    }

    #[test]
    fn segments_stay_few_and_rows_are_seldom_written_again() {
        let mut segments: Vec<u64> = vec![1];
        let mut written = 1;
        for round in 1..1000 {
            let Upkeep::Extend(joined) = upkeep(round + 1, 1, &segments, 1) else {
                panic!("round {round}: {segments:?}");
            };
            let newest = segments.split_off(segments.len() - joined);
            segments.push(newest.iter().sum::<u64>() + 1);
            written += segments.last().expect("the new one");
            assert!(segments.len() <= 10, "round {round}: {segments:?}");
        }
        assert!(written <= 10 * 1000, "{written}");
    }
}
