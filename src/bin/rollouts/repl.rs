//! The interactive session.

use datafusion_cli::exec::exec_from_repl;

use crate::Failure;
use crate::shell::Shell;

/// Reads and runs statements until the user leaves. An error is reported and the session goes on.
pub(crate) async fn run(mut shell: Shell) -> Result<(), Failure> {
    Ok(exec_from_repl(&shell.ctx, &mut shell.print).await?)
}
