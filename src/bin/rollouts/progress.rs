//! A line that tells how far a long INSERT has come.

use std::fmt;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use datafusion::prelude::SessionContext;
use datafusion_rollouts::RolloutRuntime;

/// Statements that take less have no line.
const PATIENCE: Duration = Duration::from_secs(1);

/// When the line is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Progress {
    /// Where standard error is a terminal.
    #[default]
    Auto,
    /// Always: one line each time.
    Always,
    /// Never.
    Never,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

impl Progress {
    /// Runs a statement to its end and shows, each second from the first on, how many rows it has
    /// made durable.
    pub(crate) async fn beside<T>(
        self,
        ctx: &SessionContext,
        statement: impl Future<Output = T>,
    ) -> T {
        let terminal = stderr().is_terminal();
        let shown = self == Self::Always || (self == Self::Auto && terminal);
        let Ok(runtime) = RolloutRuntime::from_session(&ctx.state()) else {
            return statement.await;
        };
        if !shown {
            return statement.await;
        }
        let mut statement = std::pin::pin!(statement);
        let before = runtime.rows_acknowledged();
        let began = Instant::now();
        let mut written = false;
        let result = loop {
            tokio::select! {
                result = &mut statement => break result,
                () = tokio::time::sleep(PATIENCE) => {
                    let rows = runtime.rows_acknowledged().saturating_sub(before);
                    if rows > 0 {
                        written = true;
                        show(&line(rows, began.elapsed()), terminal);
                    }
                }
            }
        };
        if written && terminal {
            eprint!("\r\x1b[K");
        }
        result
    }
}

/// A terminal's line is written over; elsewhere each has its own.
fn show(line: &str, terminal: bool) {
    if terminal {
        eprint!("\r\x1b[K{line}");
        // It has no line end that would send it off.
        let _ = stderr().flush();
    } else {
        eprintln!("{line}");
    }
}

fn line(rows: u64, took: Duration) -> String {
    let per_second = rows as f64 / took.as_secs_f64().max(0.001);
    format!(
        "{rows} rows durable after {} s, {per_second:.0} rows/s",
        took.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_rows_and_rate() {
        assert_eq!(
            line(300_000, Duration::from_millis(2_500)),
            "300000 rows durable after 2 s, 120000 rows/s"
        );
    }
}
