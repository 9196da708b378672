//! Reading: each query beside plain Lance on the same rows, and how cost grows with the base.
//!
//! ```text
//! cargo bench --bench scan -- [--rows N] [--generations G] [--generation-rows R] [--tokens T]
//!                             [--runs K] [--lsm-rows N] [--dir FOLDER] [--smoke]
//! ```

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the harness is shared: each benchmark uses a part of it"
)]

mod harness;
#[path = "scan/mod.rs"]
mod scan;

use harness::args::Args;

// As the command line has it: planning a small statement is mostly allocation.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() {
    let mut args = Args::from_env();
    let options = scan::Options::from_args(&mut args);
    args.finish();
    harness::figure::print_all(&scan::run(options).await);
}
