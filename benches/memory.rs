//! Memory over thousands of inserts and flushes on several tables that share one capped cache.
//!
//! ```text
//! cargo bench --bench memory -- [--rounds N] [--tables T] [--cache-mib M] [--dir FOLDER] [--smoke]
//!                               [--only FIGURE]
//! ```
//!
//! Every part runs in a process of its own: memory that an earlier one gave back would hide its growth. Its allocator
//! is told to keep next to nothing of what was freed, by `_RJEM_MALLOC_CONF`, but for the part that shows its own
//! settings. A part that is run alone, with `--only`, takes what that variable says.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the harness is shared: each benchmark uses a part of it"
)]

mod harness;
#[path = "memory/mod.rs"]
mod memory;

use cap::Cap;
use harness::args::Args;
use memory::Part;
use tikv_jemallocator::Jemalloc;

// As the command line has it, and counted.
#[global_allocator]
static ALLOCATOR: Cap<Jemalloc> = Cap::new(Jemalloc, usize::MAX);

#[tokio::main]
async fn main() {
    let mut args = Args::from_env();
    let only: String = args.get("only", String::new());
    let options = memory::Options::from_args(&mut args, || ALLOCATOR.allocated());
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
        let mut alone = std::process::Command::new(&program);
        alone.args(std::env::args().skip(1));
        alone.args(["--only", part.figure()]);
        alone.env("_RJEM_MALLOC_CONF", part.allocator_settings());
        let done = alone.status();
        assert!(done.expect("runs").success(), "{} failed", part.figure());
    }
}
