//! Inserts of one row from many clients, on a store whose writes take a set time.
//!
//! ```text
//! cargo bench --bench ingest -- [--put-ms MS] [--tail] [--content CHARS] [--puts K]
//!                               [--idle-secs S] [--fsync true] [--dir FOLDER] [--smoke] [--tune]
//! ```

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
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() {
    let mut args = Args::from_env();
    let options = ingest::Options::from_args(&mut args);
    args.finish();
    harness::figure::print_all(&ingest::run(options).await);
}
