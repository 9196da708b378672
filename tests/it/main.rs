//! Integration tests: the public API only, one binary.

#![allow(
    unreachable_pub,
    missing_debug_implementations,
    reason = "modules of a test binary have no public API"
)]

mod basics;
mod bench_smoke;
mod bounds;
#[path = "../support/checkout.rs"]
mod checkout;
mod cli;
mod columns;
mod common;
mod dml;
mod docs;
mod failing;
mod fault;
#[path = "../support/faults.rs"]
mod faults;
mod following;
#[path = "../support/gate.rs"]
mod gate;
mod kill;
mod merging;
mod model;
mod oracle;
mod planning;
mod processes;
mod real_input;
mod removed;
mod s3;
#[path = "../support/s3.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod s3_server;
mod sharing;
mod stalled;
mod upkeep;
mod versions;
mod writers;
