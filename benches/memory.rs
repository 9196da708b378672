//! Memory over thousands of inserts and flushes on several tables that share one capped cache.
//!
//! ```text
//! cargo bench --bench memory -- [--rounds N] [--tables T] [--cache-mib M] [--dir FOLDER] [--smoke]
//! ```
//!
//! The contrast, a session for each store, runs in a process of its own: memory that the first
//! part gave back would hide its growth.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the harness is shared: each benchmark uses a part of it"
)]

mod harness;
#[path = "memory/mod.rs"]
mod memory;

use harness::args::Args;

// As the command line has it: planning a small statement is mostly allocation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
use memory::Sharing;

#[tokio::main]
async fn main() {
    let mut args = Args::from_env();
    let contrast = args.flag("contrast-only");
    let options = memory::Options::from_args(&mut args);
    args.finish();
    let sharing = if contrast {
        Sharing::PerStore
    } else {
        Sharing::Shared
    };
    let figures = memory::run(options, sharing).await;
    harness::figure::print_all(&figures);
    if !contrast {
        let again = std::env::current_exe().expect("this program");
        let done = std::process::Command::new(again)
            .args(std::env::args().skip(1))
            .arg("--contrast-only")
            .status();
        assert!(done.expect("runs").success(), "the contrast failed");
    }
}
