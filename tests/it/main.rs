//! Integration tests: the public API only, one binary.

#![allow(
    unreachable_pub,
    missing_debug_implementations,
    reason = "modules of a test binary have no public API"
)]

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
mod versions;
mod writers;
