//! What the tests inside the crate share: a process on a folder, in which nothing happens unless a
//! test does it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datafusion::prelude::SessionContext;

use crate::options::{RuntimeSettings, TableOptions};
use crate::runtime::RolloutStore;
use crate::{RolloutRuntime, RolloutSessionExt, RolloutTableProvider};

/// A runtime and a session with the table `rollouts`.
pub(crate) struct Process {
    pub(crate) ctx: SessionContext,
    pub(crate) store: Arc<RolloutStore>,
}

impl Process {
    pub(crate) async fn open(folder: &Path) -> Self {
        let settings = RuntimeSettings {
            flush_interval: Duration::ZERO,
            merge_after_generations: 0,
            merge_max_age: Duration::ZERO,
            lease_ttl: Duration::from_secs(3600),
            ..Default::default()
        };
        let runtime = RolloutRuntime::builder()
            .with_settings(settings)
            .build()
            .expect("builds");
        let ctx = SessionContext::new();
        ctx.register_rollouts(&runtime).expect("registers");
        let place = folder.display().to_string();
        let options = TableOptions::default();
        let store = RolloutTableProvider::register(&ctx, "rollouts", &place, options)
            .await
            .expect("opens");
        Self { ctx, store }
    }

    pub(crate) async fn open_two(folder: &Path) -> (Self, Self) {
        (Self::open(folder).await, Self::open(folder).await)
    }

    pub(crate) async fn insert(&self, id: &str) {
        let insert = format!("INSERT INTO rollouts (id) VALUES ('{id}')");
        let plan = self.ctx.sql(&insert).await.expect("plans");
        plan.collect().await.expect("inserts");
    }
}
