//! Inserts of one row from many clients, on a store whose writes take a set time.
//!
//! ```text
//! cargo bench --bench ingest -- [--put-ms MS] [--tail] [--content CHARS] [--puts K]
//!                               [--idle-secs S] [--fsync true] [--dir FOLDER] [--smoke] [--tune]
//!                               [--queue-interval TASKS] [--clients N,N]
//! ```
//!
//! `--queue-interval 0` leaves the order in which clients run to tokio's own tuning.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the harness is shared: each benchmark uses a part of it"
)]

mod harness;
#[path = "ingest/mod.rs"]
mod ingest;

use harness::args::Args;

// As the command line has it: planning a small statement is mostly allocation.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    let mut args = Args::from_env();
    let interval: u32 = args.get("queue-interval", 1);
    let options = ingest::Options::from_args(&mut args);
    args.finish();
    // In the order in which they are woken: else those of thousands of clients that a thread took early wait
    // behind others, see the documentation of operations.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all();
    if interval > 0 {
        runtime.global_queue_interval(interval);
    }
    let runtime = runtime.build().expect("a runtime");
    harness::figure::print_all(&runtime.block_on(ingest::run(options)));
}
