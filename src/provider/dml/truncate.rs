//! TRUNCATE: drops every fragment of the base, in one commit. Shards, progress and settings stay.

use std::fmt;

use async_trait::async_trait;
use lance::dataset::scanner::RowAddrTreeMap;
use lance::dataset::transaction::Operation;

use super::{Change, On, Prepared};
use crate::error::Result;

/// Deletes all rows.
#[derive(Debug)]
pub(super) struct Truncate;

#[async_trait]
impl Change for Truncate {
    fn verb(&self) -> &'static str {
        "TRUNCATE"
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all rows")
    }

    async fn prepare(&self, on: &On<'_>) -> Result<Option<Prepared>> {
        let deleted_fragment_ids: Vec<u64> = on.base.fragments().iter().map(|f| f.id).collect();
        if deleted_fragment_ids.is_empty() {
            return Ok(None);
        }
        let rows = on
            .base
            .count_rows(None)
            .await
            .map_err(on.store.table().context("counting the rows"))?;
        Ok(Some(Prepared {
            operation: Operation::Delete {
                updated_fragments: Vec::new(),
                deleted_fragment_ids,
                predicate: "true".to_string(),
            },
            // Whole fragments: any other change of them is a conflict.
            affected: RowAddrTreeMap::new(),
            rows: rows as u64,
        }))
    }
}
