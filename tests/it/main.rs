//! Integration tests: the public API only, one binary.

mod basics;
mod common;
mod docs;
mod merging;
mod model;
mod real_input;
mod sharing;
mod writers;
