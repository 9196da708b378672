//! What each kind of background work did last, and when it is due again. Every run is a tracing span.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::Instrument;

use super::Maintenance;
use crate::error::Result;
use crate::metrics::{Operation, Work, record_error};

/// What one kind of maintenance did last.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaskStatus {
    pub(crate) runs: u64,
    pub(crate) last_run: Option<Instant>,
    pub(crate) last_duration: Duration,
    pub(crate) last_work: Work,
    pub(crate) last_error: Option<String>,
    /// When its timer rings; none where it has no timer, or the timer is off.
    pub(crate) next_run: Option<Instant>,
}

/// The status of every kind.
#[derive(Debug, Default)]
pub(super) struct Board(Mutex<HashMap<Operation, TaskStatus>>);

impl Maintenance {
    /// What each kind of maintenance did last.
    pub(crate) fn status(&self, kind: Operation) -> TaskStatus {
        self.board.0.lock().get(&kind).cloned().unwrap_or_default()
    }

    /// Does one run of a task and keeps what it came to; a run that came to nothing is none.
    pub(super) async fn observe<T>(
        &self,
        kind: Operation,
        work: impl Future<Output = Result<T>>,
        came_to: impl FnOnce(&T) -> Option<Work>,
    ) -> Result<T> {
        let started = Instant::now();
        let span = kind.span(self.table.location());
        let result = work.instrument(span.clone()).await;
        let done = match &result {
            Ok(done) => match came_to(done) {
                Some(work) => work,
                None => return result,
            },
            Err(error) => {
                record_error(&span, error);
                Work::default()
            }
        };
        done.record_in(&span);
        let mut board = self.board.0.lock();
        let status = board.entry(kind).or_default();
        status.runs += 1;
        status.last_run = Some(started);
        status.last_duration = started.elapsed();
        status.last_work = done;
        status.last_error = result.as_ref().err().map(ToString::to_string);
        result
    }

    /// Waits for a task's timer, and tells until when; zero never rings.
    pub(super) async fn pause(&self, kind: Operation, interval: Duration) {
        let next_run = match interval.is_zero() {
            true => None,
            false => Some(Instant::now() + interval),
        };
        self.board.0.lock().entry(kind).or_default().next_run = next_run;
        match next_run {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }
}
