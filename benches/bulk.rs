//! Loading a million rows with one INSERT … SELECT, beside Lance's own write of the same rows.
//!
//! ```text
//! cargo bench --bench bulk -- [--rows N] [--tokens T] [--runs K] [--memory-mib M] [--fsync true]
//!                             [--dir FOLDER] [--smoke]
//! ```

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the harness is shared: each benchmark uses a part of it"
)]

#[path = "bulk/mod.rs"]
mod bulk;
mod harness;

use harness::args::Args;

// As the command line has it: planning a small statement is mostly allocation.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() {
    let mut args = Args::from_env();
    let options = bulk::Options::from_args(&mut args);
    args.finish();
    harness::figure::print_all(&bulk::run(options).await);
}
