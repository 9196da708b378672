//! The DataFusion half: the table, its factory, the scan, DELETE and UPDATE.

mod dml;
mod factory;
mod filter;
mod leaves;
mod partition;
mod scan;
mod table;

pub(crate) use dml::CheckDml;
pub use factory::RolloutTableFactory;
pub use table::RolloutTableProvider;
