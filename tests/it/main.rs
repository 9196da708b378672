//! Integration tests: the public API only, one binary.

mod basics;
mod bench_smoke;
mod common;
mod dml;
mod docs;
#[path = "../support/gate.rs"]
mod gate;
mod kill;
mod merging;
mod model;
mod real_input;
mod sharing;
mod stalled;
mod upkeep;
mod writers;
