//! Clients in a closed loop, and rows that come at a set rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::runtime::SpawnedTask;
use parking_lot::Mutex;

use super::super::harness::store::Meter;

/// What a load came to.
#[derive(Debug)]
pub struct Load {
    /// How long each statement took that was begun in the window.
    pub latencies: Vec<Duration>,
    /// How long the WAL writes took that ended in the window.
    pub puts: Vec<Duration>,
    /// Statements that ended in the window.
    ended: usize,
    window: Duration,
}

impl Load {
    /// Statements, of one row each, acknowledged in a second.
    pub fn rows_per_second(&self) -> f64 {
        self.ended as f64 / self.window.as_secs_f64()
    }
}

/// Lets `clients` call `write` again and again; what happens in the window after the warm-up counts.
pub async fn drive<F, W>(
    meter: &Meter,
    clients: usize,
    warm: Duration,
    window: Duration,
    write: F,
) -> Load
where
    F: Fn() -> W + Clone + Send + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let begin = Instant::now() + warm;
    let end = begin + window;
    let measured = Arc::new(Mutex::new((Vec::new(), 0)));
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let (write, measured) = (write.clone(), measured.clone());
            SpawnedTask::spawn(async move {
                let mut latencies = Vec::new();
                let mut ended = 0;
                loop {
                    let started = Instant::now();
                    if started >= end {
                        break;
                    }
                    write().await;
                    let now = Instant::now();
                    if started >= begin {
                        latencies.push(now - started);
                    }
                    if (begin..end).contains(&now) {
                        ended += 1;
                    }
                }
                let mut measured = measured.lock();
                measured.0.extend(latencies);
                measured.1 += ended;
            })
        })
        .collect();
    tokio::time::sleep_until(begin.into()).await;
    meter.take_wal_times();
    tokio::time::sleep_until(end.into()).await;
    let puts = meter.take_wal_times();
    for task in tasks {
        task.join().await.expect("a client");
    }
    let (latencies, ended) = std::mem::take(&mut *measured.lock());
    Load {
        latencies,
        puts,
        ended,
        window,
    }
}

/// Calls `write` so many times a second, whether earlier calls have ended or not.
pub async fn arrive<F, W>(
    meter: &Meter,
    rate: u32,
    warm: Duration,
    window: Duration,
    write: F,
) -> Load
where
    F: Fn() -> W,
    W: Future<Output = ()> + Send + 'static,
{
    let start = Instant::now();
    let (begin, end) = (start + warm, start + warm + window);
    let mut timer = tokio::time::interval(Duration::from_secs(1) / rate);
    // Those that are late come at once, as they would.
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let mut calls = Vec::new();
    let mut warming = true;
    loop {
        let due: Instant = timer.tick().await.into();
        if due >= end {
            break;
        }
        if warming && due >= begin {
            warming = false;
            meter.take_wal_times();
        }
        let call = write();
        calls.push(SpawnedTask::spawn(async move {
            call.await;
            (due, Instant::now())
        }));
    }
    let puts = meter.take_wal_times();
    let mut load = Load {
        latencies: Vec::new(),
        puts,
        ended: 0,
        window,
    };
    for call in calls {
        let (due, ended) = call.join().await.expect("a call");
        if due >= begin {
            load.latencies.push(ended - due);
        }
        if (begin..end).contains(&ended) {
            load.ended += 1;
        }
    }
    load
}
