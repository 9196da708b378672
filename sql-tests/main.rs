//! Runs the `.slt` files of this folder, one topic a file, in the output format of `cargo test`.
//!
//! ```text
//! cargo test --test sqllogictest                  every file
//! cargo test --test sqllogictest -- insert lists  files whose name holds one of these words
//! UPDATE_SLT=1 cargo test --test sqllogictest -- insert
//!                                                 write what was answered into the file, for review
//! ```
//!
//! A file runs on a temporary folder of its own (`$DIR`; `$RELDIR` is the same folder as a relative
//! path), with a runtime of its own that flushes
//! and merges on request only. Where an S3 server is installed (`make s3-server`) every file runs a
//! second time with its tables there, in a process of its own that has the server in its
//! environment; other files than tables stay in the folder. What a file may say beyond plain
//! sqllogictest:
//!
//! - `# runtime: <setting> = <value>` in its header: a setting of the runtime.
//! - `# needs: data` in its header: the file reads the sample data (`$DATA`, the folder
//!   `shared/data` beside this repository) and is ignored where that is absent.
//! - `# storage: local` in its header: what it shows is about folders, so it does not run on S3.
//! - `connection <name>`: a session of its own over the one runtime. Names that begin with
//!   `process` and a digit belong to further runtimes on the same folder, as other processes would
//!   be: `process2` and `process2.b` are two sessions of a second one.
//! - `STOP PROCESS`, as a statement: an orderly stop of the connection's process. The next statement
//!   on any of its connections meets a new process with new sessions.
//! - Variables are replaced as sqllogictest does it (`control substitution` is on from the start), so
//!   a dollar sign is written `\$` and a backslash `\\`. The folder's path in results and errors
//!   is shown as `$DIR`.

#[path = "../tests/support/checkout.rs"]
mod checkout;
#[path = "../tests/support/s3.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses a part of it"
)]
mod s3_server;
mod script;
mod session;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use script::Outcome;

/// Files that run side by side.
const PARALLEL: usize = 2;

/// A file that takes longer hangs.
const FILE_TIMEOUT: Duration = Duration::from_secs(300);

/// What was asked for on the command line: the part of libtest's that makes sense here.
#[derive(Default)]
struct Arguments {
    filters: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
    ignored_only: bool,
    parallel: Option<usize>,
}

impl Arguments {
    /// Flags of libtest that mean nothing here are accepted, so that `cargo test -- --nocapture`
    /// reaches every test binary.
    fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let mut parsed = Self::default();
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let (flag, inline) = match argument.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_string())),
                _ => (argument.as_str(), None),
            };
            let mut value = || inline.clone().or_else(|| arguments.next());
            match flag {
                "--list" => parsed.list = true,
                "--exact" => parsed.exact = true,
                "--ignored" => parsed.ignored_only = true,
                "--skip" => parsed.skip.extend(value()),
                "--test-threads" => parsed.parallel = value().and_then(|n| n.parse().ok()),
                "--color" | "--format" | "--logfile" | "--report-time" | "-Z" => drop(value()),
                flag if flag.starts_with('-') => {}
                filter => parsed.filters.push(filter.to_string()),
            }
        }
        parsed
    }

    fn selects(&self, name: &str) -> bool {
        let matches = |filter: &String| {
            if self.exact {
                name == filter
            } else {
                name.contains(filter.as_str())
            }
        };
        !self.ignored_only
            && (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skip.iter().any(matches)
    }
}

/// In the environment of the process whose tables are on S3: the bucket.
const BUCKET: &str = "ROLLOUT_SLT_BUCKET";

/// Every `.slt` file of this folder with the name it is reported by, in order; on S3 those that are
/// not about folders.
fn files(on_s3: bool) -> std::io::Result<Vec<(String, PathBuf)>> {
    let folder = checkout::root().join("sql-tests");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension() != Some(OsStr::new("slt")) {
            continue;
        }
        let Some(name) = path.file_name().and_then(OsStr::to_str) else {
            continue;
        };
        if !on_s3 {
            files.push((format!("sql-tests/{name}"), path.clone()));
        } else if !script::is_local(&std::fs::read_to_string(&path)?) {
            files.push((format!("sql-tests/{name} on S3"), path.clone()));
        }
    }
    files.sort();
    Ok(files)
}

/// Runs one file in a task of its own, so that a panic or a hang is that file's failure.
async fn run(path: PathBuf, bucket: Option<String>, rewrite: bool) -> Outcome {
    let progress = Arc::default();
    let task = tokio::spawn(script::run(path, bucket, rewrite, Arc::clone(&progress)));
    let abort = task.abort_handle();
    match tokio::time::timeout(FILE_TIMEOUT, task).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Outcome::Failed(format!("{panic}\nat {}", script::place(&progress))),
        Err(_) => {
            abort.abort();
            Outcome::Failed(format!(
                "no answer within {} seconds\nat {}",
                FILE_TIMEOUT.as_secs(),
                script::place(&progress)
            ))
        }
    }
}

/// Whether the files pass once more, in a process that knows an S3 server, where one is installed.
async fn passes_on_s3() -> bool {
    let Some(server) = s3_server::Server::start().await else {
        return true;
    };
    let this = std::env::current_exe().expect("this binary");
    let status = tokio::process::Command::new(this)
        .args(std::env::args().skip(1))
        .env(BUCKET, s3_server::BUCKET)
        .env("AWS_ENDPOINT", server.endpoint())
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .kill_on_drop(true)
        .status()
        .await
        .expect("starts");
    status.success()
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse(std::env::args().skip(1));
    let bucket = std::env::var(BUCKET).ok();
    let all = match files(bucket.is_some()) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("cannot list the sql-tests folder: {error}");
            return ExitCode::FAILURE;
        }
    };
    let total = all.len();
    let selected: Vec<_> = all
        .into_iter()
        .filter(|(name, _)| arguments.selects(name))
        .collect();
    let filtered_out = total - selected.len();
    if arguments.list {
        for (name, _) in &selected {
            println!("{name}: test");
        }
        println!("\n{} tests, 0 benchmarks", selected.len());
        return ExitCode::SUCCESS;
    }

    let rewrite = std::env::var_os("UPDATE_SLT").is_some_and(|value| value != *"0");
    let plural = if selected.len() == 1 { "" } else { "s" };
    println!("\nrunning {} test{plural}", selected.len());
    let start = Instant::now();
    let (mut passed, mut ignored, mut failures) = (0, 0, Vec::new());
    let mut outcomes = stream::iter(selected)
        .map(|(name, path)| {
            let bucket = bucket.clone();
            async move { (name, run(path, bucket, rewrite).await) }
        })
        .buffer_unordered(arguments.parallel.unwrap_or(PARALLEL).max(1));
    while let Some((name, outcome)) = outcomes.next().await {
        match outcome {
            Outcome::Passed => {
                passed += 1;
                println!("test {name} ... ok");
            }
            Outcome::Skipped(why) => {
                ignored += 1;
                println!("test {name} ... ignored, skipped: {why}");
            }
            Outcome::Failed(why) => {
                println!("test {name} ... FAILED");
                failures.push((name, why));
            }
        }
    }
    if !failures.is_empty() {
        println!("\nfailures:");
        for (name, why) in &failures {
            println!("\n---- {name} ----\n{why}");
        }
        println!("\nfailures:");
        for (name, _) in &failures {
            println!("    {name}");
        }
    }
    println!(
        "\ntest result: {}. {passed} passed; {} failed; {ignored} ignored; 0 measured; \
         {filtered_out} filtered out; finished in {:.2}s\n",
        if failures.is_empty() { "ok" } else { "FAILED" },
        failures.len(),
        start.elapsed().as_secs_f64(),
    );
    let passed = failures.is_empty();
    // What was answered is written into a file on the first way.
    let passed_again = bucket.is_some() || rewrite || passes_on_s3().await;
    match passed && passed_again {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
