//! One call that teaches a session rollouts.

use std::sync::Arc;

use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::optimizer::{Analyzer, AnalyzerRule};
use datafusion::prelude::SessionContext;

use crate::error::Result;
use crate::functions::table_functions;
use crate::options::{RolloutSessionOptions, RolloutTableOptionsExtension};
use crate::provider::{CheckDml, PlanInsert, RolloutQueryPlanner, RolloutTableFactory};
use crate::runtime::RolloutRuntime;
use crate::schema::default_udfs;

/// The name after STORED AS.
pub const TABLE_TYPE: &str = "ROLLOUT";

/// Registers the table type, functions and settings of rollouts.
pub trait RolloutSessionExt {
    /// What registration returns: the builder for a builder, nothing for a context.
    type Registered;

    /// Registers everything, backed by `runtime`. The runtime can be reached again by
    /// [`RolloutRuntime::from_session`]. Do it first: the first time, a context forgets the statements
    /// it was given by `PREPARE` before. A query planner that is set later takes the place of the one around
    /// the session's own; small inserts are then planned as slowly as others, and no less rightly.
    ///
    /// # Errors
    /// A function of the same name that cannot be replaced.
    fn register_rollouts(self, runtime: &RolloutRuntime) -> Result<Self::Registered>;
}

/// What the table has a say in before DataFusion optimizes a statement: of an INSERT first, since what
/// it takes away costs the other rules most of their time; of a DELETE or UPDATE last.
fn with_rules(analyzer: &Analyzer) -> Analyzer {
    let mut analyzer = analyzer.clone();
    let ours = [PlanInsert.name(), CheckDml.name()];
    analyzer.rules.retain(|rule| !ours.contains(&rule.name()));
    analyzer.rules.insert(0, Arc::new(PlanInsert));
    analyzer.rules.push(Arc::new(CheckDml));
    analyzer
}

/// The same session with our rules and planner: DataFusion adds rules at the end only. What it keeps of
/// `PREPARE` cannot be carried over.
fn replace_planning(state: &mut SessionState) {
    let analyzer = with_rules(state.analyzer());
    let planner = RolloutQueryPlanner::around(Some(state.query_planner().clone()));
    let options = &state.config().options().catalog;
    let makes_catalog = options.create_default_catalog_and_schema;
    let id = state.session_id().to_string();
    let mut builder = SessionStateBuilder::new_from_existing(state.clone())
        .with_session_id(id)
        .with_query_planner(planner);
    *builder.analyzer() = Some(analyzer);
    *state = builder.build();
    let options = &mut state.config_mut().options_mut().catalog;
    options.create_default_catalog_and_schema = makes_catalog;
}

impl RolloutSessionExt for &SessionContext {
    type Registered = ();

    fn register_rollouts(self, runtime: &RolloutRuntime) -> Result<()> {
        {
            let state = self.state_ref();
            let mut state = state.write();
            let config = state.config_mut();
            config.set_extension(Arc::new(runtime.clone()));
            let extensions = &mut config.options_mut().extensions;
            if extensions.get::<RolloutSessionOptions>().is_none() {
                extensions.insert(RolloutSessionOptions::default());
            }
            state
                .table_factories_mut()
                .insert(TABLE_TYPE.to_string(), Arc::new(RolloutTableFactory));
            let mut rules = state.analyzer().rules.iter();
            if !rules.any(|rule| rule.name() == PlanInsert.name()) {
                replace_planning(&mut state);
            }
        }
        self.register_table_options_extension(RolloutTableOptionsExtension::default());
        for udf in default_udfs() {
            self.register_udf(udf.as_ref().clone());
        }
        for (name, function) in table_functions(runtime) {
            self.register_udtf(name, function);
        }
        Ok(())
    }
}

impl RolloutSessionExt for SessionStateBuilder {
    type Registered = Self;

    fn register_rollouts(mut self, runtime: &RolloutRuntime) -> Result<Self> {
        let mut config = self.config().take().unwrap_or_default();
        config.set_extension(Arc::new(runtime.clone()));
        let extensions = &mut config.options_mut().extensions;
        if extensions.get::<RolloutSessionOptions>().is_none() {
            extensions.insert(RolloutSessionOptions::default());
        }
        let mut builder = self
            .with_config(config)
            .with_table_factory(TABLE_TYPE.to_string(), Arc::new(RolloutTableFactory));
        let analyzer = builder.analyzer().take().unwrap_or_default();
        *builder.analyzer() = Some(with_rules(&analyzer));
        let planner = builder.query_planner();
        *planner = Some(RolloutQueryPlanner::around(planner.take()));
        builder
            .scalar_functions()
            .get_or_insert_default()
            .extend(default_udfs());
        let functions = builder.table_functions().get_or_insert_default();
        for (name, function) in table_functions(runtime) {
            functions.insert(
                name.to_string(),
                Arc::new(datafusion::catalog::TableFunction::new(
                    name.to_string(),
                    function,
                )),
            );
        }
        Ok(builder)
    }
}
