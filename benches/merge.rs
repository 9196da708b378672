//! Merging new rows into a large base, and compacting what merges leave.
//!
//! ```text
//! cargo bench --bench merge -- [--rows N] [--generations G] [--generation-rows R] [--runs K]
//!                              [--tokens T] [--dir FOLDER] [--smoke]
//! ```

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the harness is shared: each benchmark uses a part of it"
)]

mod harness;
#[path = "merge/mod.rs"]
mod merge;

use harness::args::Args;

// As the command line has it: planning a small statement is mostly allocation.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() {
    let mut args = Args::from_env();
    let options = merge::Options::from_args(&mut args);
    args.finish();
    let figures = merge::run(options).await;
    harness::figure::print_all(&figures);
}
