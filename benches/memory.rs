//! Memory over thousands of inserts and flushes on several tables that share one capped cache.
//!
//! ```text
//! cargo bench --bench memory -- [--rounds N] [--tables T] [--cache-mib M] [--dir FOLDER] [--smoke]
//!                               [--only FIGURE]
//! ```
//!
//! Every part runs in a process of its own: memory that an earlier one gave back would hide its growth.

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
use memory::Part;

#[tokio::main]
async fn main() {
    let mut args = Args::from_env();
    let only: String = args.get("only", String::new());
    let options = memory::Options::from_args(&mut args);
    args.finish();
    if only.is_empty() {
        return each_alone();
    }
    let part = Part::ALL.into_iter().find(|part| part.figure() == only);
    let part = part.unwrap_or_else(|| panic!("no figure of this benchmark: {only}"));
    harness::figure::print_all(&memory::run(options, part).await);
}

fn each_alone() {
    let program = std::env::current_exe().expect("this program");
    for part in Part::ALL {
        let done = std::process::Command::new(&program)
            .args(std::env::args().skip(1))
            .args(["--only", part.figure()])
            .status();
        assert!(done.expect("runs").success(), "{} failed", part.figure());
    }
}
