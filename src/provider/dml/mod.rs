//! DELETE, UPDATE and TRUNCATE.
//!
//! ```text
//! analyzer rule ─▶ TableProvider::{delete_from, update, truncate} ─▶ RolloutDmlExec
//!   (refuses what DataFusion      (condition, assignments: planned)      │ execute()
//!    would hide; vouches for                                             ▼
//!    the rest)                             flush own rows ▶ merge what is visible ▶ find rows in
//!                                          the base ▶ one commit ◀─ again on a conflict ─┘
//! ```
//!
//! A statement acts when it is executed, on the rows that are visible then: this process's rows are
//! flushed and everything flushed, by anybody, is merged, so that the base holds one row per id.
//! What the statement does to the base is one commit; it happens whole or not at all. When another
//! commit stood in the way, the newest base is read and the condition evaluated again: nothing is
//! deleted or changed that does not meet it at the commit.
//!
//! The condition has the meaning it has in a query: the same part is evaluated by storage, the rest by
//! DataFusion. Where it is NULL the row stays as it is.
//!
//! # Beside inserts
//! A statement waits for no insert and no insert waits for it. A row that was inserted and is not
//! visible to the statement survives it: one of another process that is not flushed yet, one that is
//! put while the statement runs. That holds for an older version of a deleted id too: deleting a row does not
//! leave anything behind that would hide what another process flushes later.
//!
//! UPDATE stamps the rows it writes with the time the statement began, so a version inserted after
//! that wins over it, as a whole row, and a version that was stamped before, and was not visible
//! because its process had not flushed it, loses: of two versions of an id the newer counts, also
//! between INSERT and UPDATE. A row that is newer than the statement (another process's clock) is
//! replaced by one stamped just after it.
//!
//! # What is refused
//! DataFusion hands a provider the filters it finds in the *optimized* plan. Subqueries, EXISTS,
//! joins, LIMIT and conditions that are never true are gone by then, alone or as one part of a
//! conjunction: a partial list arrives, which would delete more than was asked, and nobody could tell.
//! So [`CheckDml`], an analyzer rule, sees the statement first. It refuses what would be hidden, and
//! puts condition and assignments where no optimizer reaches them ([`CheckedStatement`]). A
//! statement that comes without, from a session without the rule, is refused.

mod condition;
mod delete;
mod exec;
mod rule;
mod statement;
mod truncate;
mod update;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use lance::Dataset;
use lance::dataset::CommitBuilder;
use lance::dataset::scanner::RowAddrTreeMap;
use lance::dataset::transaction::{Operation, Transaction};
use uuid::Uuid;

pub(crate) use rule::CheckDml;

use delete::Delete;
use exec::RolloutDmlExec;
use statement::CheckedStatement;
use truncate::Truncate;
use update::Update;

use crate::error::{Result, RolloutError};
use crate::flush::is_conflict;
use crate::runtime::RolloutStore;
use crate::schema::TableSchema;

/// How often a statement is worked out anew when other commits stand in its way.
const ATTEMPTS: u32 = 30;

/// What a statement does to the base.
#[async_trait]
trait Change: fmt::Debug + Send + Sync {
    /// The statement's first word.
    fn verb(&self) -> &'static str;

    /// The rest of the statement, for EXPLAIN.
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Works the statement out on a base version; nothing where no row is concerned.
    async fn prepare(&self, on: &On<'_>) -> Result<Option<Prepared>>;
}

/// What a statement is worked out on.
struct On<'a> {
    store: &'a RolloutStore,
    base: Arc<Dataset>,
    /// A stamp taken before anything was read.
    stamp: i64,
    /// Most rows of a batch.
    batch_size: usize,
}

/// A change that is worked out and not yet committed.
struct Prepared {
    operation: Operation,
    /// Base rows it deletes or replaces.
    affected: RowAddrTreeMap,
    rows: u64,
}

/// Plans a DELETE.
pub(super) fn delete(
    state: &dyn Session,
    store: &Arc<RolloutStore>,
    schema: &Arc<TableSchema>,
    filters: &[Expr],
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    refuse_read_only(store, "DELETE")?;
    let statement = vouched_for("DELETE", filters)?;
    let change = Delete::plan(state, schema, statement)?;
    Ok(Arc::new(RolloutDmlExec::new(
        store.clone(),
        Arc::new(change),
    )))
}

/// Plans an UPDATE. DataFusion's own list of assignments is not used: the optimizer may have taken
/// pieces out of it.
pub(super) fn update(
    state: &dyn Session,
    store: &Arc<RolloutStore>,
    schema: &Arc<TableSchema>,
    filters: &[Expr],
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    refuse_read_only(store, "UPDATE")?;
    let statement = vouched_for("UPDATE", filters)?;
    let change = Update::plan(state, schema, statement)?;
    Ok(Arc::new(RolloutDmlExec::new(
        store.clone(),
        Arc::new(change),
    )))
}

/// Plans a TRUNCATE. It has no condition that could be lost, so any session may.
pub(super) fn truncate(store: &Arc<RolloutStore>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    refuse_read_only(store, "TRUNCATE")?;
    Ok(Arc::new(RolloutDmlExec::new(
        store.clone(),
        Arc::new(Truncate),
    )))
}

fn refuse_read_only(store: &RolloutStore, verb: &str) -> Result<()> {
    store
        .table()
        .check_writable("written")
        .map_err(|error| RolloutError::Unsupported(format!("{verb}: {error}")))
}

fn vouched_for<'a>(verb: &str, filters: &'a [Expr]) -> Result<&'a CheckedStatement> {
    if filters.is_empty() && verb == "DELETE" {
        return Err(RolloutError::Unsupported(
            "DELETE without a condition is not supported on a rollouts table: use TRUNCATE"
                .to_string(),
        ));
    }
    CheckedStatement::among(filters).ok_or_else(|| {
        RolloutError::Unsupported(format!(
            "{verb} on a rollouts table needs a session that was set up by register_rollouts: without \
             its check DataFusion may drop parts of the condition, and more rows would be concerned \
             than were asked for"
        ))
    })
}

/// Executes a statement and returns the rows it concerned.
async fn run(change: &dyn Change, store: &RolloutStore, batch_size: usize) -> Result<u64> {
    let table = store.table();
    // Taken first: what this process inserts from here on is newer, and what it had acknowledged
    // before is flushed below, and so is seen.
    let stamp = table.clock().reserve(1);
    store.flush().await?;
    store.merge().await?;
    let mut reason = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            // Those who collide once should not march in step.
            let spread = Uuid::new_v4().as_u128() as u64 % (20 * u64::from(attempt) + 1);
            tokio::time::sleep(Duration::from_millis(spread)).await;
        }
        let base = table.refresh_base().await?;
        let on = On {
            store,
            base: base.clone(),
            stamp,
            batch_size,
        };
        let Some(prepared) = change.prepare(&on).await? else {
            return Ok(0);
        };
        fail::fail_point!("dml-before-commit");
        let transaction = Transaction::new(base.version().version, prepared.operation, None);
        let committed = CommitBuilder::new(base)
            .with_affected_rows(prepared.affected)
            .with_skip_auto_cleanup(true)
            .execute(transaction)
            .await;
        match committed {
            Ok(base) => {
                table.advance_base(Arc::new(base));
                store.changed();
                return Ok(prepared.rows);
            }
            Err(error) if is_conflict(&error) => {
                reason = error.to_string();
                tracing::debug!(attempt, reason, "a {} is worked out again", change.verb());
            }
            Err(error) => {
                return Err(table.context(format!("committing a {}", change.verb()))(
                    error,
                ));
            }
        }
    }
    Err(RolloutError::Conflict(format!(
        "{} on {} kept losing against other commits and changed nothing: {reason}",
        change.verb(),
        store.location()
    )))
}
