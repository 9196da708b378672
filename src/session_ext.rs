//! One call that teaches a session rollouts.

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::SessionContext;

use crate::error::Result;
use crate::functions::table_functions;
use crate::options::{RolloutSessionOptions, RolloutTableOptionsExtension};
use crate::provider::{CheckDml, PlanInsert, RolloutTableFactory};
use crate::runtime::RolloutRuntime;
use crate::schema::default_udfs;

/// The name after STORED AS.
pub const TABLE_TYPE: &str = "ROLLOUT";

/// Registers the table type, functions and settings of rollouts.
pub trait RolloutSessionExt {
    /// What registration returns: the builder for a builder, nothing for a context.
    type Registered;

    /// Registers everything, backed by `runtime`. The runtime can be reached again by
    /// [`RolloutRuntime::from_session`].
    ///
    /// # Errors
    /// A function of the same name that cannot be replaced.
    fn register_rollouts(self, runtime: &RolloutRuntime) -> Result<Self::Registered>;
}

/// What the table has a say in before DataFusion optimizes a statement.
fn analyzer_rules() -> [Arc<dyn AnalyzerRule + Send + Sync>; 2] {
    [Arc::new(CheckDml), Arc::new(PlanInsert)]
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
            for rule in analyzer_rules() {
                let mut known = state.analyzer().rules.iter();
                if !known.any(|known| known.name() == rule.name()) {
                    state.add_analyzer_rule(rule);
                }
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
        for rule in analyzer_rules() {
            builder = builder.with_analyzer_rule(rule);
        }
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
