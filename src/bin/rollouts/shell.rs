//! Runs statements, scripts and shell commands against a session.
//!
//! datafusion-cli plans, runs and prints everything but one statement. Its planning of CREATE EXTERNAL TABLE opens
//! the location's object store and checks the OPTIONS against those of file formats, which is not for a table
//! type with a store and options of its own: a table STORED AS ROLLOUT goes to DataFusion directly.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use datafusion::common::instant::Instant;
use datafusion::common::plan_datafusion_err;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion_cli::command::{Command, OutputFormat};
use datafusion_cli::exec::exec_from_commands;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::{MaxRows, PrintOptions};

use crate::Failure;
use crate::display::{Displayed, ListItems};
use crate::progress::Progress;
use crate::statements::{Splitter, Unit};

/// Whether there is more to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Quit,
}

/// A session and how its results are printed.
pub(crate) struct Shell {
    pub(crate) ctx: SessionContext,
    pub(crate) print: PrintOptions,
    pub(crate) items: ListItems,
    pub(crate) progress: Progress,
}

impl Shell {
    /// Runs a script to its end, to a `\q` or to its first error, which is reported with its place. Waits for
    /// input where it is, so it needs a thread of its own.
    pub(crate) async fn run_script(
        &mut self,
        name: &str,
        input: impl BufRead,
    ) -> Result<Flow, Failure> {
        let mut splitter = Splitter::default();
        for (i, line) in input.lines().enumerate() {
            let line = line.map_err(|error| format!("{name}: {error}"))?;
            // A mark that editors put before the first line.
            let line = match i {
                0 => line.trim_start_matches('\u{feff}'),
                _ => line.as_str(),
            };
            for unit in splitter.push_line(line) {
                if self.run_at(name, unit).await? == Flow::Quit {
                    return Ok(Flow::Quit);
                }
            }
        }
        match splitter.finish() {
            Some(unit) => self.run_at(name, unit).await,
            None => Ok(Flow::Continue),
        }
    }

    /// Runs the script in a file.
    pub(crate) async fn run_file(&mut self, path: &Path) -> Result<Flow, Failure> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| format!("{name}: {error}"))?;
        // A script may include itself through `\i`, so this future needs a size.
        Box::pin(self.run_script(&name, BufReader::new(file))).await
    }

    async fn run_at(&mut self, name: &str, unit: Unit) -> Result<Flow, Failure> {
        let (Unit::Sql { line, .. } | Unit::Command { line, .. }) = unit;
        self.run(unit)
            .await
            .map_err(|error| format!("{name}:{line}: {error}").into())
    }

    /// Runs one statement or command.
    pub(crate) async fn run(&mut self, unit: Unit) -> Result<Flow, Failure> {
        match unit {
            Unit::Sql { text, .. } => {
                self.run_sql(text).await?;
                Ok(Flow::Continue)
            }
            Unit::Command { text, .. } => self.run_command(&text).await,
        }
    }

    /// Runs the text of one statement and prints its result.
    async fn run_sql(&self, sql: String) -> Result<()> {
        self.progress.beside(&self.ctx, self.execute(sql)).await
    }

    async fn execute(&self, sql: String) -> Result<()> {
        if !self.creates_rollouts(&sql)? {
            let displayed = Displayed {
                ctx: &self.ctx,
                format: &self.print.format,
                items: self.items,
            };
            return exec_from_commands(&displayed, vec![sql], &self.print()).await;
        }
        let began = Instant::now();
        let frame = self.ctx.sql(&sql).await?;
        let schema = frame.schema().inner().clone();
        let batches = frame.collect().await?;
        let rows = batches.iter().map(|batch| batch.num_rows()).sum();
        let mut print = self.print();
        if print.format == PrintFormat::Automatic {
            print.format = PrintFormat::Table;
        }
        let formats = &self.ctx.copied_config().options().format.clone();
        print.print_batches(schema, &batches, began, rows, formats)
    }

    /// How results are printed. Only a table may be shortened: what reads another format would take a part for
    /// the whole.
    fn print(&self) -> PrintOptions {
        let mut print = self.print.clone();
        if !matches!(print.format, PrintFormat::Table | PrintFormat::Automatic) {
            print.maxrows = MaxRows::Unlimited;
        }
        print
    }

    /// Whether this is CREATE EXTERNAL TABLE … STORED AS ROLLOUT.
    fn creates_rollouts(&self, sql: &str) -> Result<bool> {
        let dialect = self.ctx.copied_config().options().sql_parser.dialect;
        let dialect = dialect_from_str(dialect)
            .ok_or_else(|| plan_datafusion_err!("Unsupported SQL dialect: {dialect}"))?;
        let statements = DFParser::parse_sql_with_dialect(sql, dialect.as_ref())?;
        Ok(statements.iter().any(|statement| {
            matches!(statement, Statement::CreateExternalTable(table)
                if table.file_type.eq_ignore_ascii_case("ROLLOUT"))
        }))
    }

    /// Runs a shell command, given without its backslash.
    async fn run_command(&mut self, text: &str) -> Result<Flow, Failure> {
        let unknown = || format!("'\\{text}' is not a command; \\? lists them");
        match text.parse::<Command>().map_err(|()| unknown())? {
            Command::Quit => return Ok(Flow::Quit),
            Command::Include(Some(path)) => return self.run_file(Path::new(&path)).await,
            Command::OutputFormat(Some(setting)) => {
                let setting: OutputFormat = setting.parse().map_err(|()| unknown())?;
                setting.execute(&mut self.print).await?;
            }
            Command::OutputFormat(None) => println!("Output format is {:?}.", self.print.format),
            command => command.execute(&self.ctx, &mut self.print).await?,
        }
        Ok(Flow::Continue)
    }
}
