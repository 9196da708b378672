//! A DataFusion table of reinforcement-learning rollouts, in Lance format, on object storage or in a
//! local folder.
//!
//! Generation workers append with `INSERT INTO rollouts …`: every insert is a concurrent, durable
//! append to a write-ahead log. Trainers and analysts `SELECT`: one row per id, the newest.
//!
//! ```
//! use datafusion::prelude::SessionContext;
//! use datafusion_rollouts::{RolloutRuntime, RolloutSessionExt};
//!
//! # #[tokio::main(flavor = "multi_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path().display();
//! let runtime = RolloutRuntime::builder().build()?;
//! let ctx = SessionContext::new();
//! ctx.register_rollouts(&runtime)?;
//! ctx.sql(&format!(
//!     "CREATE EXTERNAL TABLE rollouts STORED AS ROLLOUT LOCATION '{folder}/rollouts'"
//! ))
//! .await?;
//! ctx.sql("INSERT INTO rollouts (id, problem_id, reward) VALUES ('r1', 'p1', 1.0)")
//!     .await?
//!     .collect()
//!     .await?;
//! // The row is durable. A flush makes it visible to everybody; one comes by itself every 30 s.
//! ctx.sql("SELECT * FROM rollout_flush('rollouts')").await?.collect().await?;
//! assert_eq!(ctx.table("rollouts").await?.count().await?, 1);
//! runtime.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is where
//! - [`RolloutRuntime`]: one per process; the shared cache, the open stores, the orderly end.
//! - [`RolloutSessionExt`]: teaches a `SessionContext` the table type, its functions and settings.
//! - [`RolloutTableProvider`]: the table; [`RolloutStore`]: the same without SQL.
//! - [`options`]: every setting, its unit, default and place.

mod error;
mod flush;
mod functions;
mod insert;
mod metrics;
pub mod options;
mod provider;
mod runtime;
mod schema;
mod session_ext;
mod store;
#[cfg(test)]
mod testing;

pub use error::{Result, RolloutError};
pub use flush::{CompactionReport, MergeReport, Removal, RemovalKind};
pub use lance::session::Session;
pub use options::{
    AtVersion, Freshness, OnConflict, RolloutSessionOptions, RuntimeSettings, TableOptions,
};
pub use provider::{RolloutTableFactory, RolloutTableProvider};
pub use runtime::{
    RolloutRuntime, RolloutRuntimeBuilder, RolloutStore, StoreHandle, build_session,
};
pub use schema::TableSchema;
pub use session_ext::{RolloutSessionExt, TABLE_TYPE};
pub use store::Location;
