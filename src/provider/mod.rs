//! The DataFusion half: the table, its factory, the scan, DELETE and UPDATE.

mod dml;
mod factory;
mod filter;
mod insert;
mod insert_exec;
mod leaves;
mod node;
mod partition;
mod scan;
mod table;

pub(crate) use dml::CheckDml;
pub use factory::RolloutTableFactory;
pub(crate) use insert::PlanInsert;
pub(crate) use node::with_no_children;
pub use table::RolloutTableProvider;
