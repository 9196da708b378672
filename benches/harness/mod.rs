//! What the benchmarks share: arguments, figures, rows, sessions and statistics.

pub mod args;
pub mod figure;
pub mod process;
pub mod rows;
pub mod session;
pub mod stats;
#[path = "../../tests/support/store.rs"]
pub mod store;
