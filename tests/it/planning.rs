//! Planning an INSERT beside rules and planners of the application.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use datafusion::common::config::ConfigOptions;
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::SessionContext;
use datafusion_rollouts::{RolloutRuntime, RolloutSessionExt};
use parking_lot::Mutex;

use crate::common::{Process, quiet};

const INSERT: &str = "INSERT INTO rollouts (id, reward) VALUES ('a', 1)";

/// Looks at every plan, as one does that traces them, and may refuse inserts.
#[derive(Debug, Default)]
struct Watch {
    seen: Mutex<Vec<String>>,
    refuses: bool,
}

impl PhysicalOptimizerRule for Watch {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.seen.lock().push(plan.name().to_string());
        if self.refuses && plan.name() == "RolloutInsertExec" {
            return plan_err!("no inserts today");
        }
        Ok(plan)
    }

    fn name(&self) -> &str {
        "watch"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[derive(Debug, Default)]
struct Counting(AtomicUsize);

#[async_trait]
impl QueryPlanner for Counting {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        state: &SessionState,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let planner = DefaultPhysicalPlanner::default();
        planner.create_physical_plan(plan, state).await
    }
}

async fn process(folder: &std::path::Path, state: SessionStateBuilder) -> Process {
    let runtime = RolloutRuntime::builder().with_settings(quiet()).build();
    let runtime = runtime.expect("valid");
    let state = state.with_default_features().register_rollouts(&runtime);
    let ctx = SessionContext::new_with_state(state.expect("registers").build());
    let process = Process { runtime, ctx };
    process.create(folder).await;
    process
}

#[tokio::test(flavor = "multi_thread")]
async fn a_physical_rule_of_the_application_sees_every_insert() {
    let folder = tempfile::tempdir().expect("folder");
    let watch = Arc::new(Watch::default());
    let state = SessionStateBuilder::new().with_physical_optimizer_rule(watch.clone());
    let process = process(folder.path(), state).await;
    watch.seen.lock().clear();
    assert_eq!(process.number(INSERT).await, 1);
    assert_eq!(*watch.seen.lock(), ["RolloutInsertExec"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_such_a_rule_refuses_is_not_written() {
    let folder = tempfile::tempdir().expect("folder");
    let watch = Arc::new(Watch {
        refuses: true,
        ..Default::default()
    });
    let state = SessionStateBuilder::new().with_physical_optimizer_rule(watch);
    let process = process(folder.path(), state).await;
    let refused = process.try_sql(INSERT).await.expect_err("refused");
    let refused = refused.to_string();
    assert!(
        refused.contains("watch") && refused.contains("no inserts today"),
        "{refused}"
    );
    process.flush().await;
    assert_eq!(process.count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_planner_of_a_session_plans_its_queries_and_one_set_later_everything() {
    let folder = tempfile::tempdir().expect("folder");
    let first = Arc::new(Counting::default());
    let state = SessionStateBuilder::new().with_query_planner(first.clone());
    let mut process = process(folder.path(), state).await;
    let before = first.0.load(Ordering::Relaxed);
    assert_eq!(process.number(INSERT).await, 1);
    assert_eq!(process.count().await, 0);
    assert_eq!(
        first.0.load(Ordering::Relaxed),
        before + 1,
        "the SELECT alone"
    );

    let later = Arc::new(Counting::default());
    let state = SessionStateBuilder::new_from_existing(process.ctx.state())
        .with_query_planner(later.clone());
    process.ctx = SessionContext::new_with_state(state.build());
    assert_eq!(process.number(INSERT).await, 1);
    process.flush().await;
    assert_eq!(process.count().await, 1);
    assert!(
        later.0.load(Ordering::Relaxed) >= 2,
        "the INSERT and the SELECT"
    );
}
