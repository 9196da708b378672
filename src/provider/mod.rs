//! The DataFusion half: the table, its factory, the scan, DELETE and UPDATE.

mod dml;
mod factory;
mod filter;
mod insert;
mod leaves;
mod node;
mod partition;
mod scan;
mod table;

pub(crate) use dml::CheckDml;
pub use factory::RolloutTableFactory;
pub(crate) use insert::{PlanInsert, RolloutQueryPlanner};
pub(crate) use node::with_no_children;
pub use table::RolloutTableProvider;
