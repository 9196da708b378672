//! Adoption: the rows of writers that died are flushed by whoever notices.
//!
//! A shard's log may be long. While it is replayed and flushed, this process's own lease and those
//! it adopted are renewed, so that nobody takes either for abandoned.

use std::collections::HashSet;

use uuid::Uuid;

use super::Maintenance;
use crate::error::Result;
use crate::insert::{FlushReport, flush_writer, open_shard};
use crate::metrics::{Operation, Work};
use crate::store::Adopted;

impl Maintenance {
    /// Renews this process's own lease; lets go of its lanes where another has taken it.
    pub(super) async fn renew_lease(&self) {
        let renewed = |_: &bool| Some(Work::default());
        let result = self.observe(Operation::Lease, self.leases.renew(), renewed);
        match result.await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(table = %self.table.location(), "the lease was taken by another process");
                self.insert.abandon_lost_lanes().await;
            }
            Err(error) => {
                tracing::debug!(table = %self.table.location(), %error, "renewing the lease");
            }
        }
    }

    /// Flushes the rows of writers that died. A shard that cannot be flushed keeps neither the
    /// others waiting nor its slot for long: the lease runs out, and somebody tries again.
    pub(super) async fn adopt_dead(&self) -> Result<()> {
        let expired = self.leases.adopt_expired();
        let expired = self.observe(Operation::Adopt, expired, |_| None).await?;
        if expired.is_empty() {
            return Ok(());
        }
        let existing: HashSet<Uuid> = self.table.list_shards().await?.into_iter().collect();
        let mut first_error = None;
        for (i, adopted) in expired.iter().enumerate() {
            let work = self.keeping_leases(&expired[i..], self.adopt(adopted, &existing));
            let result = self
                .observe(Operation::Adopt, work, |work| Some(*work))
                .await;
            // Even a failed adoption may have made some generations.
            self.snapshots.changed();
            self.generations_made(adopted.shards.len());
            first_error = first_error.or(result.err());
        }
        first_error.map_or(Ok(()), Err)
    }

    async fn adopt(&self, adopted: &Adopted, existing: &HashSet<Uuid>) -> Result<Work> {
        let mut done = Work::default();
        let mut first_error = None;
        for shard in adopted.shards.iter().filter(|s| existing.contains(s)) {
            match self.adopt_shard(*shard).await {
                Ok(flushed) => {
                    done.rows += flushed.rows;
                    done.bytes += flushed.bytes;
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        fail::fail_point!("adopt-before-release");
        self.leases.finish_adoption(adopted).await?;
        Ok(done)
    }

    /// Does the work, and renews leases meanwhile. One that was lost is nobody's loss: the shards'
    /// epochs decide who flushes.
    async fn keeping_leases<T>(&self, adopted: &[Adopted], work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                result = &mut work => return result,
                () = tokio::time::sleep(self.leases.ttl() / 2) => {}
            }
            self.renew_lease().await;
            for one in adopted {
                if let Err(error) = self.leases.renew_adopted(one).await {
                    tracing::debug!(%error, "renewing an adopted lease");
                }
            }
        }
    }

    /// Claims a dead writer's shard, which fences the writer should it wake, replays its log and
    /// flushes what that brings.
    async fn adopt_shard(&self, shard: Uuid) -> Result<FlushReport> {
        if self.table.newest_manifest(shard).await?.is_none() {
            return Ok(FlushReport::default());
        }
        let writer = open_shard(&self.table, shard, self.settings.max_memtable_bytes).await?;
        fail::fail_point!("adopt-before-flush");
        let flushed = flush_writer(&self.table, &writer).await;
        let closed = writer.abort().await;
        let flushed = flushed?;
        closed.map_err(self.table.context(format!("closing shard {shard}")))?;
        Ok(flushed)
    }
}
