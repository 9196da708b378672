//! The DataFusion half: the table, its factory, the scan.

mod factory;
mod filter;
mod partition;
mod scan;
mod table;

pub use factory::RolloutTableFactory;
pub use table::RolloutTableProvider;
