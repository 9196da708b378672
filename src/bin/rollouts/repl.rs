//! The interactive session.

use datafusion_cli::exec::exec_from_repl;
use tokio::sync::oneshot;

use crate::Failure;
use crate::shell::Shell;

/// Reads and runs statements until the user leaves.
///
/// Reading a line blocks, so the session has a thread of its own: a signal to stop is noticed while it waits.
pub(crate) async fn run(mut shell: Shell) -> Result<(), Failure> {
    let (done, outcome) = oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new()
        .name("session".to_owned())
        .spawn(move || {
            let result = runtime.block_on(exec_from_repl(&shell.ctx, &mut shell.print));
            // Nobody waits any more once the process is stopping.
            let _ = done.send(result.map_err(Failure::from));
        })?;
    outcome.await?
}
