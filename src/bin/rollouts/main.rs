//! `rollouts`: datafusion-cli with the table type ROLLOUT built in.
//!
//! ```text
//! args ─► session ─► shell ── scripts (-f, -c, standard input) and shell commands
//!                      │        └─ statements: cuts the input into statements
//!                      └──── repl: the interactive session
//! signals ─► every way out ─► flush and stop ─► exit code
//! ```
//!
//! However the session ends (its end, an error, a signal), the runtime is shut down in order, which flushes: rows
//! inserted here are visible to everybody afterwards. Results go to standard output, everything else to standard
//! error.

mod args;
mod display;
mod line_helper;
mod progress;
mod repl;
mod session;
mod shell;
mod signals;
mod statements;

use std::env;
use std::ffi::OsString;
use std::io::{IsTerminal, stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use datafusion_rollouts::options::SETTINGS;
use datafusion_rollouts::{RolloutError, RolloutRuntime};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::args::{Args, VERSION};
use crate::shell::{Flow, Shell};
use crate::signals::{StopSignal, StopSignals, Watch};

/// What is logged unless RUST_LOG says otherwise. What goes wrong in a log's writer comes back as the error of a
/// statement or of a flush; said by Lance alone, it looks like more than it is.
const LOGGED: &str = "error,lance::dataset::mem_wal=off";

// Planning a small statement is mostly allocation. Of those tried, the quickest with many clients, and the one
// that keeps least of what was freed.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Any error, on its way to being printed.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// As large as a main thread's: planning recurses with the depth of an expression.
const WORK_STACK: usize = 8 << 20;

fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOGGED)),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // What is asked for with RUST_LOG tells how long it took.
        .with_span_events(FmtSpan::CLOSE)
        .init();
    let executor = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(executor) => executor,
        Err(error) => return fail(&error.into()),
    };
    let code = executor.block_on(run(args));
    // A statement may still run.
    executor.shutdown_background();
    code
}

/// What there is to run.
enum Input {
    Script {
        files: Vec<PathBuf>,
        commands: Vec<String>,
    },
    Pipe,
    Terminal {
        first: Vec<PathBuf>,
    },
}

impl Input {
    /// Paths become absolute, for `-p` changes what relative ones mean.
    fn of(args: &mut Args) -> Result<Self, Failure> {
        let absolute = |paths: Vec<PathBuf>| -> std::io::Result<Vec<PathBuf>> {
            paths.iter().map(std::path::absolute).collect()
        };
        let files = absolute(std::mem::take(&mut args.file))?;
        let commands = std::mem::take(&mut args.command);
        if !files.is_empty() || !commands.is_empty() {
            return Ok(Self::Script { files, commands });
        }
        if !stdin().is_terminal() {
            return Ok(Self::Pipe);
        }
        let first = match args.rc.take() {
            Some(files) => absolute(files)?,
            None => {
                let home = env::home_dir().map(|home| home.join(".datafusionrc"));
                home.filter(|path| path.exists()).into_iter().collect()
            }
        };
        Ok(Self::Terminal { first })
    }
}

async fn run(mut args: Args) -> ExitCode {
    let input = match Input::of(&mut args) {
        Ok(input) => input,
        Err(error) => return fail(&error),
    };
    let interactive = matches!(input, Input::Terminal { .. });
    let watch = if interactive {
        Watch::AllButInterrupt
    } else {
        Watch::All
    };
    let mut signals = match StopSignals::watch(watch) {
        Ok(signals) => signals,
        Err(error) => return fail(&error.into()),
    };
    let (shell, runtime) = match start(&args, interactive).await {
        Ok(started) => started,
        Err(error) => return fail(&error),
    };
    // Keeps the tables, and so their stores, until the last flush.
    let ctx = shell.ctx.clone();

    let (code, stopped) = tokio::select! {
        result = work_aside(shell, input) => (result.map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS), None),
        signal = signals.next() => (ExitCode::from(signal.exit_code()), Some(signal)),
    };
    if interactive && stopped.is_some() {
        restore_terminal();
    }
    let flushed = shut_down(&runtime, stopped).await;
    drop(ctx);
    match flushed {
        Ok(()) => code,
        Err(error) => {
            let failed = fail(&error);
            if code == ExitCode::SUCCESS {
                failed
            } else {
                code
            }
        }
    }
}

async fn start(args: &Args, interactive: bool) -> Result<(Shell, RolloutRuntime), Failure> {
    if let Some(folder) = &args.data_path {
        env::set_current_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let (ctx, print, runtime) = session::start(args).await?;
    for variable in unknown_variables(env::vars_os()) {
        eprintln!(
            "Warning: the environment variable {variable} is no setting and changes nothing; \
             SELECT * FROM rollout_settings() lists those there are"
        );
    }
    if !args.quiet {
        println!("{}", start_message(args, interactive));
    }
    let shell = Shell {
        ctx,
        print,
        items: args.maxitems,
        progress: args.progress,
    };
    Ok((shell, runtime))
}

/// Variables that are named like a setting and are none: a mistyped one would go unnoticed.
fn unknown_variables(set: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    let known = |name: &String| SETTINGS.iter().any(|info| info.env == Some(name.as_str()));
    let mut unknown: Vec<_> = set
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("ROLLOUT_") && !known(name))
        .collect();
    unknown.sort();
    unknown
}

fn start_message(args: &Args, interactive: bool) -> String {
    let mut message = format!("rollouts {}", *VERSION);
    for (name, value) in args.session_settings() {
        message.push_str(&format!(", rollout.{name} = '{value}'"));
    }
    if interactive {
        message.push_str(
            "\nA statement ends with ';'. \\? lists commands, \\q leaves, and leaving flushes.",
        );
    }
    message
}

/// Works on a thread of its own. Reading input blocks, and a query may keep its thread busy for long: a signal to stop
/// is noticed all the same, and what still runs then ends with the process.
async fn work_aside(shell: Shell, input: Input) -> Result<(), Failure> {
    let (done, outcome) = oneshot::channel();
    let executor = Handle::current();
    std::thread::Builder::new()
        .name("statements".to_owned())
        .stack_size(WORK_STACK)
        .spawn(move || {
            // Nobody waits for the outcome any more when the process is stopping.
            let _ = done.send(executor.block_on(work(shell, input)));
        })?;
    outcome
        .await
        .unwrap_or_else(|_| Err("the statement panicked".into()))
}

async fn work(mut shell: Shell, input: Input) -> Result<(), Failure> {
    match input {
        Input::Script { files, commands } => {
            for file in files {
                if shell.run_file(&file).await? == Flow::Quit {
                    return Ok(());
                }
            }
            let many = commands.len() > 1;
            for (i, command) in commands.iter().enumerate() {
                let name = match many {
                    true => format!("-c number {}", i + 1),
                    false => "-c".to_owned(),
                };
                if shell.run_script(&name, command.as_bytes()).await? == Flow::Quit {
                    return Ok(());
                }
            }
        }
        Input::Pipe => {
            shell.run_script("standard input", stdin().lock()).await?;
        }
        Input::Terminal { first } => {
            for file in first {
                // What fails at the start of a session is no reason to have none.
                match shell.run_file(&file).await {
                    Ok(Flow::Continue) => {}
                    Ok(Flow::Quit) => return Ok(()),
                    Err(error) => eprintln!("Error: {error}"),
                }
            }
            repl::run(shell).await?;
        }
    }
    Ok(())
}

/// Flushes and stops. The signals that ended the session, sent once more, end the wait too.
async fn shut_down(runtime: &RolloutRuntime, stopped: Option<StopSignal>) -> Result<(), Failure> {
    let mut signals = StopSignals::watch(Watch::All)?;
    if stopped.is_some() {
        eprintln!("Stopping: what is unflushed is flushed first.");
    }
    tokio::select! {
        result = runtime.shutdown() => result.map_err(|error| match error {
            // Of a table that was removed nothing stays.
            RolloutError::Closed(error) => format!("the last flush failed: {error}").into(),
            error => format!("the last flush failed, acknowledged rows stay durable: {error}").into(),
        }),
        _ = signals.next() => Err(
            "left before the last flush ended; acknowledged rows stay durable and are flushed by a later process".into(),
        ),
    }
}

/// Brings the terminal back from the line editor's mode; the editor's own guard is lost with its thread.
fn restore_terminal() {
    let _ = std::process::Command::new("stty").arg("sane").status();
}

fn fail(error: &Failure) -> ExitCode {
    eprintln!("Error: {error}");
    ExitCode::FAILURE
}
