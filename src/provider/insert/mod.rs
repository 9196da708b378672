//! An INSERT on its way from SQL to the sink.
//!
//! ```text
//! PlanInsert (analyzer rule) ─▶ InsertTarget, Rows ─▶ RolloutQueryPlanner ─▶ RolloutInsertExec
//! ```
//!
//! Planning is most of what a small INSERT costs, so each of them leaves out what DataFusion would do for
//! nothing. Without one of them, or where rows come from a query, the statement goes DataFusion's own way.

mod exec;
mod planner;
mod rule;
mod target;

pub(super) use exec::{RolloutInsertExec, rows_at_hand};
pub(crate) use planner::RolloutQueryPlanner;
pub(crate) use rule::PlanInsert;
