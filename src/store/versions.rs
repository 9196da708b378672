//! The base's versions: what can still be read, and what made each.

use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::transaction::Operation;

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
        Err(lance::Error::DatasetNotFound { .. } | lance::Error::NotFound { .. }) => {
            return Ok(None);
        }
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
