//! The process-wide bound on unflushed bytes.
//!
//! Every lane asks before a put. Over the bound, flushes of all stores are asked for and the put
//! waits until they have made room; it then goes on. The bound is soft by what is already being
//! put, and nothing is refused for it while flushes make any room.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::InsertPath;
use crate::error::{Result, RolloutError};

/// How often a waiting put looks again when no flush has told of room.
const RECHECK: Duration = Duration::from_millis(50);

/// The budget all stores of a runtime share.
#[derive(Debug)]
pub(crate) struct UnflushedBudget {
    bound: u64,
    paths: Mutex<Vec<Weak<InsertPath>>>,
    room: Notify,
    /// Heard by every store's maintenance: flush now.
    pressure: Notify,
    waits: AtomicU64,
    waited_micros: AtomicU64,
}

impl UnflushedBudget {
    pub(crate) fn new(bound: u64) -> Self {
        Self {
            bound,
            paths: Mutex::new(Vec::new()),
            room: Notify::new(),
            pressure: Notify::new(),
            waits: AtomicU64::new(0),
            waited_micros: AtomicU64::new(0),
        }
    }

    /// Counts a store's rows from now on.
    pub(crate) fn watch(&self, path: Weak<InsertPath>) {
        let mut paths = self.paths.lock();
        paths.retain(|path| path.strong_count() > 0);
        paths.push(path);
    }

    pub(crate) fn bound(&self) -> u64 {
        self.bound
    }

    /// Puts that had to wait, and for how long in all, in microseconds.
    pub(crate) fn waits(&self) -> (u64, u64) {
        (
            self.waits.load(Ordering::Relaxed),
            self.waited_micros.load(Ordering::Relaxed),
        )
    }

    /// Bytes unflushed in all stores.
    pub(crate) async fn in_use(&self) -> u64 {
        let paths: Vec<_> = self.paths.lock().iter().filter_map(Weak::upgrade).collect();
        let mut bytes = 0;
        for path in paths {
            bytes += path.unflushed_bytes().await;
        }
        bytes
    }

    /// Waits until the process is below its bound.
    ///
    /// # Errors
    /// No flush made any room for as long as `patience`, which is for ever if it is zero.
    pub(super) async fn admit(&self, patience: Duration) -> Result<()> {
        let mut in_use = self.in_use().await;
        if in_use < self.bound {
            return Ok(());
        }
        let started = Instant::now();
        self.waits.fetch_add(1, Ordering::Relaxed);
        let mut made_room = started;
        while in_use >= self.bound && (patience.is_zero() || made_room.elapsed() < patience) {
            let room = self.room.notified();
            self.pressure.notify_waiters();
            let _ = tokio::time::timeout(RECHECK, room).await;
            let before = in_use;
            in_use = self.in_use().await;
            if in_use < before {
                made_room = Instant::now();
            }
        }
        let waited = started.elapsed().as_micros() as u64;
        self.waited_micros.fetch_add(waited, Ordering::Relaxed);
        match in_use < self.bound {
            true => Ok(()),
            false => Err(RolloutError::Exhausted(format!(
                "{in_use} bytes of this process are not flushed, rollout.max_unflushed_bytes is {}, and no \
                 flush made room for {patience:?}: rollout_maintenance tells why",
                self.bound
            ))),
        }
    }

    /// Tells waiting puts that a flush has made room.
    pub(super) fn wake(&self) {
        self.room.notify_waiters();
    }

    /// Resolves when puts wait for room.
    pub(crate) async fn pressed(&self) {
        self.pressure.notified().await;
    }
}
