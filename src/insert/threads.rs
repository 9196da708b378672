//! The threads on which lanes write.
//!
//! Planning a statement keeps a thread busy for half a millisecond without a pause, and tokio looks
//! at timers and sockets only every 61 tasks while there are others to run: beside a few hundred
//! clients a put whose answer had come long ago was noticed up to 50 ms late, measured. Lanes therefore
//! run on threads that do nothing else, as DataFusion advises for I/O. They wait nearly all the time.

use std::sync::LazyLock;
use std::thread::available_parallelism;

use datafusion::common::runtime::SpawnedTask;
use tokio::runtime::{Builder, EnterGuard, Runtime};

/// As many are never busy at once, for a lane encodes what it puts at the speed of memory.
const MOST_THREADS: usize = 4;

/// Shared by all stores of a process, for as long as it lives; none if the system refuses threads.
static THREADS: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let threads = available_parallelism().map_or(MOST_THREADS, |cores| cores.get());
    Builder::new_multi_thread()
        .worker_threads(threads.clamp(2, MOST_THREADS))
        .thread_name("rollouts-insert")
        .enable_all()
        .build()
        .inspect_err(|error| tracing::warn!(%error, "inserts share the threads of queries"))
        .ok()
});

/// Until the guard goes, what is spawned runs on these threads, or beside its caller where there are none.
fn enter() -> Option<EnterGuard<'static>> {
    THREADS.as_ref().map(Runtime::enter)
}

/// Runs a task on these threads.
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    let _on = enter();
    tokio::spawn(task);
}

/// Runs some work on these threads, so that what it leaves running in the background stays there, and waits for it.
/// The work ends with its caller.
pub(super) async fn run<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let running = {
        let _on = enter();
        SpawnedTask::spawn(work)
    };
    match running.join_unwind().await {
        Ok(result) => result,
        // Only the end of the threads cancels it, and with them goes the caller.
        Err(_) => std::future::pending().await,
    }
}
