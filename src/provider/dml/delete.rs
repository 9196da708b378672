//! DELETE: deletion vectors on the base, in one commit.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::error::Result as DataFusionResult;
use futures::TryStreamExt;
use lance::dataset::scanner::RowAddrTreeMap;
use lance::dataset::transaction::Operation;

use super::condition::{Condition, Read, collect};
use super::rule::never_true;
use super::statement::CheckedStatement;
use super::{Change, On, Prepared};
use crate::error::{Result, RolloutError};
use crate::flush::delete_losers;
use crate::schema::TableSchema;
use crate::store::masks::{RowSet, row_count};

/// Deletes the rows that meet a condition.
#[derive(Debug)]
pub(super) struct Delete {
    condition: Condition,
}

impl Delete {
    pub(super) fn plan(
        state: &dyn Session,
        schema: &Arc<TableSchema>,
        statement: &CheckedStatement,
    ) -> DataFusionResult<Self> {
        let condition = Condition::plan(state, schema.sql(), &statement.condition, Read::Needed)?;
        match condition.constant() {
            Some(false) => Err(never_true("DELETE").into()),
            Some(true) => Err(RolloutError::Unsupported(
                "DELETE with a condition that is true for every row would empty the table: use \
                 TRUNCATE"
                    .to_string(),
            )
            .into()),
            None => Ok(Self { condition }),
        }
    }
}

#[async_trait]
impl Change for Delete {
    fn verb(&self) -> &'static str {
        "DELETE"
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "condition={}", self.condition)
    }

    async fn prepare(&self, on: &On<'_>) -> Result<Option<Prepared>> {
        let mut rows = self.condition.rows(on).await?;
        let mut deleted = RowSet::new();
        while let Some(batch) = rows.try_next().await? {
            collect(&batch, &mut deleted)?;
        }
        if deleted.is_empty() {
            return Ok(None);
        }
        let (updated_fragments, deleted_fragment_ids) =
            delete_losers(on.store.table(), &on.base, &deleted).await?;
        Ok(Some(Prepared {
            operation: Operation::Delete {
                updated_fragments,
                deleted_fragment_ids,
                predicate: self.condition.to_string(),
            },
            affected: affected(&deleted),
            rows: row_count(&deleted),
        }))
    }
}

/// Rows in the form a commit compares with those of other commits.
pub(super) fn affected(rows: &RowSet) -> RowAddrTreeMap {
    let mut affected = RowAddrTreeMap::new();
    for (fragment, offsets) in rows {
        affected.insert_bitmap(*fragment, offsets.clone());
    }
    affected
}
