//! Compaction and clean-up: each on its own schedule, by one process at a time, beside everything
//! else.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::cleanup::Ages;
use super::sweep::Sweep;
use super::{CompactionReport, Maintenance, Removal, compact};
use crate::error::{Result, RolloutError};
use crate::metrics::{Operation, Work};

/// Small neighbours that are worth a compaction nobody asked for.
const LEAST_NEIGHBOURS: usize = 8;

impl Maintenance {
    pub(super) async fn compaction_loop(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.pause(Operation::Compact, self.settings.compact_interval) => {}
            }
            let work = self.compact_unless_busy(Duration::ZERO, LEAST_NEIGHBOURS);
            tokio::select! {
                // Dropped midway it leaves files no version names, like a crash.
                () = self.stop.cancelled() => return,
                result = work => if let Err(error) = result {
                    tracing::warn!(table = %self.table.location(), %error, "compaction failed, will be tried again");
                }
            }
        }
    }

    pub(super) async fn cleanup_loop(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.pause(Operation::CleanUp, self.settings.cleanup_interval) => {}
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                result = self.clean_up_unless_busy(Duration::ZERO) => if let Err(error) = result {
                    tracing::warn!(table = %self.table.location(), %error, "clean-up failed, will be tried again");
                }
            }
        }
    }

    /// Compacts the base's small fragments now.
    ///
    /// # Errors
    /// Another process is at it and does not end; storage that cannot be reached.
    pub(crate) async fn compact_now(&self) -> Result<CompactionReport> {
        self.table.check_writable("compacted")?;
        self.compact_unless_busy(self.patience(), 2)
            .await?
            .ok_or_else(|| self.busy("compacting"))
    }

    /// Deletes what is no longer needed now, or says what would be deleted.
    ///
    /// # Errors
    /// Another process is at it and does not end; storage that cannot be reached.
    pub(crate) async fn clean_up_now(&self, dry_run: bool) -> Result<Vec<Removal>> {
        if dry_run && self.table.pinned().is_none() {
            return self.sweep(Utc::now(), true).await;
        }
        self.table.check_writable("deleted")?;
        self.clean_up_unless_busy(self.patience())
            .await?
            .ok_or_else(|| self.busy("cleaning up"))
    }

    async fn compact_unless_busy(
        &self,
        patience: Duration,
        least: usize,
    ) -> Result<Option<CompactionReport>> {
        let work = |_| compact::compact(&self.table, least);
        let work = self.compaction.run(patience, work);
        let came_to = |report: &Option<CompactionReport>| {
            report.as_ref().map(|report| Work {
                rows: report.rows,
                bytes: report.bytes,
            })
        };
        let result = self.observe(Operation::Compact, work, came_to).await;
        if !matches!(result, Ok(None)) {
            self.snapshots.changed();
        }
        result
    }

    async fn clean_up_unless_busy(&self, patience: Duration) -> Result<Option<Vec<Removal>>> {
        let work = |now| self.sweep(now, false);
        let work = self.cleaning.run(patience, work);
        let came_to = |removed: &Option<Vec<Removal>>| {
            removed.as_ref().map(|removed| Work {
                rows: 0,
                bytes: removed.iter().map(|removal| removal.bytes).sum(),
            })
        };
        self.observe(Operation::CleanUp, work, came_to).await
    }

    async fn sweep(&self, now: DateTime<Utc>, dry_run: bool) -> Result<Vec<Removal>> {
        let sweep = Sweep {
            table: &self.table,
            own: &self.insert.own_shards(),
            ages: Ages {
                min_age: self.settings.cleanup_min_age,
                grace: self.settings.generation_grace,
            },
            now,
            dry_run,
        };
        sweep.run().await
    }

    /// Long enough for a dead holder's lease to run out.
    fn patience(&self) -> Duration {
        self.leases.ttl() * 2
    }

    fn busy(&self, doing: &str) -> RolloutError {
        RolloutError::Conflict(format!(
            "another process is {doing} {}: try again later",
            self.table.location()
        ))
    }
}
