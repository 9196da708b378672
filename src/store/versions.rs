//! The base's versions: what can still be read, and what made each.

use chrono::{DateTime, SecondsFormat, Utc};
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::transaction::Operation;

use super::Location;
use crate::error::{Result, RolloutError, is_missing};
use crate::options::AtVersion;

/// Versions looked at side by side.
const CONCURRENCY: usize = 16;

/// A version of the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BaseVersion {
    pub(crate) number: u64,
    pub(crate) timestamp: DateTime<Utc>,
    /// What made it; none where that was not recorded.
    pub(crate) operation: Option<&'static str>,
    pub(crate) rows: u64,
    pub(crate) fragments: u64,
    /// Bytes of its data files.
    pub(crate) bytes: u64,
}

/// All versions on storage, oldest first. Reads each one's manifest, and no data.
pub(crate) async fn versions(base: &Dataset) -> lance::Result<Vec<BaseVersion>> {
    let numbers = base.version_refs().await?;
    futures::stream::iter(numbers)
        .map(|found| describe(base, found.version))
        .buffered(CONCURRENCY)
        .try_filter_map(|version| futures::future::ready(Ok(version)))
        .try_collect()
        .await
}

async fn describe(base: &Dataset, number: u64) -> lance::Result<Option<BaseVersion>> {
    let dataset = match base.checkout_version(number).await {
        Ok(dataset) => dataset,
        // Cleaned up since it was listed.
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let operation = match dataset.read_transaction().await {
        Ok(transaction) => transaction.map(|transaction| name_of(&transaction.operation)),
        // It says nothing about the rows.
        Err(error) => {
            tracing::debug!(number, %error, "what made a version cannot be read");
            None
        }
    };
    let version = dataset.version();
    let figure = |name: &str| {
        let figure = version.metadata.get(name);
        figure.and_then(|figure| figure.parse().ok()).unwrap_or(0)
    };
    Ok(Some(BaseVersion {
        number,
        timestamp: version.timestamp,
        operation,
        rows: figure("total_rows"),
        fragments: figure("total_fragments"),
        bytes: figure("total_files_size"),
    }))
}

/// An operation in this crate's words.
fn name_of(operation: &Operation) -> &'static str {
    match operation {
        Operation::Update {
            compacted_sstables, ..
        } if !compacted_sstables.is_empty() => "merge",
        Operation::Update { .. } => "update",
        Operation::Delete { .. } => "delete",
        Operation::Overwrite { .. } => "create",
        Operation::Append { .. } => "append",
        Operation::Rewrite { .. } | Operation::ReserveFragments { .. } => "compact",
        Operation::CreateIndex { .. } => "index",
        Operation::Merge { .. } | Operation::Project { .. } => "columns",
        Operation::Restore { .. } => "restore",
        _ => "settings",
    }
}

/// The version asked for.
///
/// # Errors
/// There is none such, naming what there is; storage that cannot be reached.
pub(crate) async fn at(base: Dataset, at: AtVersion, location: &Location) -> Result<Dataset> {
    let listing = || RolloutError::storage(format!("listing the versions of {location}"));
    let number = match at {
        AtVersion::Number(number) => {
            let known = base.version_refs().await.map_err(listing())?;
            let known: Vec<u64> = known.iter().map(|version| version.version).collect();
            if !known.contains(&number) {
                return Err(no_such_version(number, &known, location));
            }
            number
        }
        AtVersion::Timestamp(time) => {
            let known = versions(&base).await.map_err(listing())?;
            // Compared as they are shown.
            let by_then = |version: &&BaseVersion| {
                version.timestamp.timestamp_micros() <= time.timestamp_micros()
            };
            match known.iter().rev().find(by_then) {
                Some(version) => version.number,
                None => return Err(nothing_that_old(time, known.first(), location)),
            }
        }
    };
    base.checkout_version(number)
        .await
        .map_err(RolloutError::storage(format!(
            "opening version {number} of {location}"
        )))
}

fn no_such_version(number: u64, known: &[u64], location: &Location) -> RolloutError {
    let nearest = known.iter().min_by_key(|known| known.abs_diff(number));
    let there = match (nearest, known.first(), known.last()) {
        (Some(nearest), Some(first), Some(last)) => {
            format!("the nearest is {nearest}; {first} is the oldest and {last} the newest")
        }
        _ => "it has none".to_string(),
    };
    RolloutError::invalid(format!(
        "there is no version {number} of the table at {location}: {there}. \
         rollout_versions('table') lists them"
    ))
}

fn nothing_that_old(
    time: DateTime<Utc>,
    oldest: Option<&BaseVersion>,
    location: &Location,
) -> RolloutError {
    let shown = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Micros, true);
    let there = match oldest {
        Some(oldest) => format!(
            "the oldest is version {} of {}",
            oldest.number,
            shown(oldest.timestamp)
        ),
        None => "it has none".to_string(),
    };
    RolloutError::invalid(format!(
        "the table at {location} has no version as old as {}: {there}. rollout_versions('table') \
         lists them",
        shown(time)
    ))
}
