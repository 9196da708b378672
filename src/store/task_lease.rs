//! Leases of a table's upkeep: one process at a time compacts, one cleans up.
//!
//! Such a lease saves work that two would do twice; nothing rests on it. Whoever holds it without
//! knowing that it ran out does no harm: every step is safe beside another process's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;

use super::sequence::{Sequences, State};
use super::table::LanceTable;
use crate::error::{Result, RolloutError};

/// The right to do one kind of upkeep on one table.
#[derive(Debug)]
pub(crate) struct TaskLease {
    sequences: Sequences,
    task: &'static str,
    ttl: Duration,
    /// The newest number seen in another's hands, and since when.
    seen: Mutex<Option<(u64, Instant)>>,
    /// One at a time in this process, too.
    held: tokio::sync::Mutex<()>,
}

impl TaskLease {
    pub(crate) fn new(table: Arc<LanceTable>, task: &'static str, ttl: Duration) -> Self {
        Self {
            sequences: Sequences::new(table, "tasks", ttl),
            task,
            ttl,
            seen: Mutex::new(None),
            held: tokio::sync::Mutex::new(()),
        }
    }

    /// Does the work, given the store's own time, while nobody else does; None where another
    /// process holds the lease for longer than `patience`.
    ///
    /// # Errors
    /// The work's; storage that cannot be reached.
    pub(crate) async fn run<T, F>(
        &self,
        patience: Duration,
        work: impl FnOnce(DateTime<Utc>) -> F,
    ) -> Result<Option<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let _one = self.held.lock().await;
        let asked = Instant::now();
        let mut sequence = loop {
            match self.take().await? {
                Some(sequence) => break sequence,
                None if asked.elapsed() >= patience => return Ok(None),
                None => tokio::time::sleep((self.ttl / 4).min(patience)).await,
            }
        };
        // Ages are told by the clock that stamped the objects.
        let now = self.sequences.written_at(self.task, sequence).await?;
        let mut work = std::pin::pin!(work(now));
        let result = loop {
            tokio::select! {
                result = &mut work => break result,
                () = tokio::time::sleep(self.ttl / 2) => {
                    sequence += 1;
                    if !self.sequences.write(self.task, sequence, State::Held).await? {
                        return Err(RolloutError::Conflict(format!(
                            "another process took over the {} of this table",
                            self.task
                        )));
                    }
                    self.sequences.forget_older(self.task, sequence).await;
                }
            }
        };
        // Not given back it runs out, which costs others only time.
        let released = sequence + 1;
        if self
            .sequences
            .write(self.task, released, State::Released)
            .await?
        {
            self.sequences.forget_older(self.task, released).await;
        }
        result.map(Some)
    }

    /// Takes the lease if it was given back, or its holder has been silent for too long.
    async fn take(&self) -> Result<Option<u64>> {
        let Some(view) = self.sequences.view_of(self.task).await? else {
            let first = self.sequences.write(self.task, 1, State::Held).await?;
            return Ok(first.then_some(1));
        };
        let record = self.sequences.read(self.task, view.sequence).await?;
        let free = match &record {
            Some(record) if record.state == State::Released => true,
            _ => {
                let theirs = record.map_or(Duration::ZERO, |r| Duration::from_millis(r.ttl_ms));
                self.silent_for(view.sequence) >= theirs.max(self.ttl)
            }
        };
        let next = view.sequence + 1;
        let taken = free && self.sequences.write(self.task, next, State::Held).await?;
        Ok(taken.then_some(next))
    }

    fn silent_for(&self, sequence: u64) -> Duration {
        let mut seen = self.seen.lock();
        match *seen {
            Some((known, since)) if known == sequence => since.elapsed(),
            _ => {
                *seen = Some((sequence, Instant::now()));
                Duration::ZERO
            }
        }
    }
}
