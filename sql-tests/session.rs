//! The sessions of a file, and the processes (runtimes) they belong to.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datafusion::error::Result as DataFusionResult;
use datafusion::physical_plan::common::collect;
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rollouts::{RolloutRuntime, RolloutSessionExt, RuntimeSettings};
use datafusion_sqllogictest::{
    DFColumnType, DFOutput, DFSqlLogicTestError, convert_batches, convert_schema_to_types,
};
use sqllogictest::{AsyncDB, DBOutput};
use tokio::sync::Mutex;

/// What the processes of one file share: the folder, where the tables are if not there, and the
/// settings their runtimes start with.
pub(crate) struct Host {
    folder: PathBuf,
    tables: Option<String>,
    settings: Vec<(String, String)>,
    processes: Mutex<BTreeMap<String, Arc<Process>>>,
}

impl Host {
    pub(crate) fn new(
        folder: PathBuf,
        tables: Option<String>,
        settings: Vec<(String, String)>,
    ) -> Self {
        Self {
            folder,
            tables,
            settings,
            processes: Mutex::default(),
        }
    }

    /// `process2` and `process2.b` belong to process2, every other name to the first process.
    async fn process_of(&self, connection: &str) -> Arc<Process> {
        let name = match connection.strip_prefix("process") {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
                connection.split('.').next().unwrap_or(connection)
            }
            _ => "process1",
        };
        let mut processes = self.processes.lock().await;
        Arc::clone(processes.entry(name.to_string()).or_insert_with(|| {
            Arc::new(Process {
                settings: self.settings.clone(),
                life: Mutex::default(),
            })
        }))
    }

    /// Stops every process, the last one first.
    pub(crate) async fn stop(&self) -> Result<(), String> {
        let mut first = Ok(());
        for process in self.processes.lock().await.values().rev() {
            let stopped = process.stop().await;
            first = first.and(stopped);
        }
        first.map_err(|error: DFSqlLogicTestError| error.to_string())
    }
}

/// One process's worth of the library: a runtime that begins with the first statement.
struct Process {
    settings: Vec<(String, String)>,
    life: Mutex<Life>,
}

/// The runtime while there is one, and how many came before it.
#[derive(Default)]
struct Life {
    number: u64,
    runtime: Option<RolloutRuntime>,
}

impl Process {
    /// The runtime, begun if need be, and its number.
    async fn runtime(&self) -> Result<(RolloutRuntime, u64), DFSqlLogicTestError> {
        let mut life = self.life.lock().await;
        let runtime = match &life.runtime {
            Some(runtime) => runtime.clone(),
            None => {
                let mut settings = RuntimeSettings::default();
                // A file flushes and merges when it says so.
                for name in ["flush_interval_secs", "merge_after_generations"] {
                    settings.set(name, "0").map_err(other)?;
                }
                for (name, value) in &self.settings {
                    settings.set(name, value).map_err(other)?;
                }
                let runtime = RolloutRuntime::builder().with_settings(settings).build();
                life.runtime.insert(runtime.map_err(other)?).clone()
            }
        };
        Ok((runtime, life.number))
    }

    async fn stop(&self) -> Result<(), DFSqlLogicTestError> {
        let mut life = self.life.lock().await;
        life.number += 1;
        match life.runtime.take() {
            Some(runtime) => runtime.shutdown().await.map_err(other),
            None => Ok(()),
        }
    }
}

/// One connection: a session of its process.
pub(crate) struct Session {
    process: Arc<Process>,
    folder: String,
    tables: Option<String>,
    /// The session, and the life of the process it belongs to.
    context: Option<(SessionContext, u64)>,
}

impl Session {
    pub(crate) async fn new(host: &Host, connection: &str) -> Self {
        Self {
            process: host.process_of(connection).await,
            folder: host.folder.to_string_lossy().into_owned(),
            tables: host.tables.clone(),
            context: None,
        }
    }

    /// The session; a new one where the process is a new one.
    async fn context(&mut self) -> Result<SessionContext, DFSqlLogicTestError> {
        let (runtime, life) = self.process.runtime().await?;
        match &self.context {
            Some((context, number)) if *number == life => Ok(context.clone()),
            _ => {
                let config = SessionConfig::new()
                    .with_information_schema(true)
                    // Plans must not depend on the machine.
                    .with_target_partitions(4);
                let context = SessionContext::new_with_config(config);
                context.register_rollouts(&runtime).map_err(other)?;
                self.context = Some((context.clone(), life));
                Ok(context)
            }
        }
    }

    async fn execute(&mut self, sql: &str) -> Result<DFOutput, DFSqlLogicTestError> {
        if sql.trim().eq_ignore_ascii_case("STOP PROCESS") {
            self.context = None;
            self.process.stop().await?;
            return Ok(DBOutput::StatementComplete(0));
        }
        let context = self.context().await?;
        match &self.tables {
            Some(tables) if sql.contains("STORED AS ROLLOUT") => {
                let sql = sql.replace(&self.folder, tables);
                query(&context, &sql).await
            }
            _ => query(&context, sql).await,
        }
    }

    /// Shows the temporary folder as `$DIR`, and where the tables are too.
    fn hide_folder(&self, text: String) -> String {
        let text = match &self.tables {
            Some(tables) => text.replace(tables, "$DIR"),
            None => text,
        };
        text.replace(&self.folder, "$DIR")
            .replace(self.folder.trim_start_matches('/'), "$DIR")
    }
}

/// Plans, runs and formats one statement as DataFusion's own engine does.
async fn query(context: &SessionContext, sql: &str) -> Result<DFOutput, DFSqlLogicTestError> {
    let frame = context.sql(sql).await?;
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await?;
    let schema = plan.schema();
    let stream = execute_stream(plan, task)?;
    let types = convert_schema_to_types(stream.schema().fields());
    let batches: DataFusionResult<_> = collect(stream).await;
    let rows = convert_batches(&schema, batches?, false)?;
    if rows.is_empty() && types.is_empty() {
        Ok(DBOutput::StatementComplete(0))
    } else {
        Ok(DBOutput::Rows { types, rows })
    }
}

fn other(error: impl std::fmt::Display) -> DFSqlLogicTestError {
    DFSqlLogicTestError::Other(error.to_string())
}

#[async_trait]
impl AsyncDB for Session {
    type Error = DFSqlLogicTestError;
    type ColumnType = DFColumnType;

    async fn run(&mut self, sql: &str) -> Result<DFOutput, DFSqlLogicTestError> {
        match self.execute(sql).await {
            Ok(DBOutput::Rows { types, rows }) => {
                let hide =
                    |row: Vec<String>| row.into_iter().map(|v| self.hide_folder(v)).collect();
                Ok(DBOutput::Rows {
                    types,
                    rows: rows.into_iter().map(hide).collect(),
                })
            }
            Ok(complete) => Ok(complete),
            Err(error) => Err(DFSqlLogicTestError::Other(
                self.hide_folder(error.to_string()),
            )),
        }
    }

    fn engine_name(&self) -> &str {
        "DataFusion"
    }

    async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn shutdown(&mut self) {
        self.context = None;
    }
}
