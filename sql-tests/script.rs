//! One `.slt` file: its header, its run, and its rewriting.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use datafusion_sqllogictest::{DFColumnType, df_value_validator, value_normalizer};
use sqllogictest::{
    Connection, Control, Record, Runner, parse_file, strict_column_validator,
    update_record_with_output,
};

use crate::session::{Host, Session};

/// A run goes on after a failure, to show what else is wrong, this many times.
const MAX_FAILURES: usize = 12;

/// What became of a file.
pub(crate) enum Outcome {
    Passed,
    /// Not run, and why.
    Skipped(String),
    /// The records that failed, and how.
    Failed(String),
}

/// Where a run is, for the report of one that panics or hangs.
pub(crate) type Progress = Arc<std::sync::Mutex<Option<String>>>;

/// The place a run had reached.
pub(crate) fn place(progress: &Progress) -> String {
    let place = progress.lock().unwrap_or_else(PoisonError::into_inner);
    place
        .clone()
        .unwrap_or_else(|| "the start of the file".to_string())
}

/// What the comments of a file ask of the runner.
#[derive(Default)]
struct Header {
    /// `# runtime: name = value`
    settings: Vec<(String, String)>,
    /// `# needs: data`
    needs_data: bool,
    /// `# storage: local`
    local: bool,
}

/// Whether a file is about folders.
pub(crate) fn is_local(text: &str) -> bool {
    Header::parse(text).is_ok_and(|header| header.local)
}

impl Header {
    fn parse(text: &str) -> Result<Self, String> {
        let mut header = Self::default();
        for line in text.lines() {
            if let Some(setting) = line.strip_prefix("# runtime:") {
                let (name, value) = setting
                    .split_once('=')
                    .ok_or_else(|| format!("'{line}' is not '# runtime: <setting> = <value>'"))?;
                header
                    .settings
                    .push((name.trim().to_string(), value.trim().to_string()));
            } else if let Some(need) = line.strip_prefix("# needs:") {
                if need.trim() != "data" {
                    return Err(format!("'{line}': only 'data' can be needed"));
                }
                header.needs_data = true;
            } else if let Some(storage) = line.strip_prefix("# storage:") {
                if storage.trim() != "local" {
                    return Err(format!("'{line}': only 'local' can be named"));
                }
                header.local = true;
            }
        }
        Ok(header)
    }
}

/// The sample data, if it is here.
fn data_folder() -> Option<PathBuf> {
    let folder = crate::checkout::root().join("../shared/data");
    folder.canonicalize().ok().filter(|folder| folder.is_dir())
}

/// Runs the file, with its tables in the bucket if there is one; with `rewrite` writes what was
/// answered into it.
pub(crate) async fn run(
    path: PathBuf,
    bucket: Option<String>,
    rewrite: bool,
    progress: Progress,
) -> Outcome {
    match try_run(&path, bucket, rewrite, progress).await {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed(error),
    }
}

async fn try_run(
    path: &Path,
    bucket: Option<String>,
    rewrite: bool,
    progress: Progress,
) -> Result<Outcome, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let header = Header::parse(&text)?;
    let data = data_folder();
    if header.needs_data && data.is_none() {
        return Ok(Outcome::Skipped(
            "the sample data (../shared/data) is absent".to_string(),
        ));
    }
    let records: Vec<Record<DFColumnType>> = parse_file(path).map_err(|error| error.to_string())?;

    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let folder_path = folder
        .path()
        .canonicalize()
        .map_err(|error| error.to_string())?;
    // The folder's random name keeps the files apart in the bucket too.
    let tables = bucket.map(|bucket| format!("s3://{bucket}{}", folder_path.to_string_lossy()));
    let elsewhere = tables.is_some();
    let host = Host::new(folder_path.clone(), tables, header.settings);
    let host = Arc::new(host);
    // A connection is made by name, and sqllogictest does not hand that on: the loop below does.
    let connection = Arc::new(std::sync::Mutex::new(String::new()));
    let mut runner = Runner::new({
        let (host, connection) = (Arc::clone(&host), Arc::clone(&connection));
        move || {
            let name = connection
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let host = Arc::clone(&host);
            async move { Ok(Session::new(&host, &name).await) }
        }
    });
    runner.with_column_validator(strict_column_validator);
    runner.with_normalizer(value_normalizer);
    runner.with_validator(df_value_validator);
    runner.set_var(
        "DIR".to_string(),
        folder_path.to_string_lossy().into_owned(),
    );
    runner.set_var("RELDIR".to_string(), relative(&folder_path));
    if let Some(data) = data {
        runner.set_var("DATA".to_string(), data.to_string_lossy().into_owned());
    }

    let mut rewritten = Vec::new();
    let mut failures = Vec::new();
    let on = Record::Control(Control::Substitution(true));
    let mut halted = runner.run_async(on).await.is_err();
    for record in records {
        if let Some((name, place)) = names(&record) {
            *connection.lock().unwrap_or_else(PoisonError::into_inner) = name;
            *progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        }
        halted |= matches!(record, Record::Halt { .. });
        if halted {
            rewritten.push(record);
        } else if rewrite {
            rewritten.push(answer(&mut runner, record).await);
        } else if let Err(error) = runner.run_async(record).await {
            failures.push(error.to_string());
            if failures.len() == MAX_FAILURES {
                failures.push("and no further".to_string());
                break;
            }
        }
    }
    runner.shutdown_async().await;
    drop(runner);
    if let Err(error) = host.stop().await {
        failures.push(format!("the runtime did not stop: {error}"));
    }
    if elsewhere && holds_table(&folder_path) {
        failures.push("a table was made in the folder, not on S3".to_string());
    }
    if rewrite {
        let mut text = String::new();
        for record in rewritten {
            text += &format!("{record}\n");
        }
        let text = format!("{}\n", text.trim_end_matches('\n'));
        std::fs::write(path, text).map_err(|error| error.to_string())?;
    }
    if failures.is_empty() {
        Ok(Outcome::Passed)
    } else {
        Ok(Outcome::Failed(failures.join("\n")))
    }
}

/// Whether there is a Lance table in a folder.
fn holds_table(folder: &Path) -> bool {
    let below = std::fs::read_dir(folder).into_iter().flatten().flatten();
    below
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .any(|entry| entry.file_name() == "_versions" || holds_table(&entry.path()))
}

/// The folder as seen from the working directory, without a leading slash.
fn relative(folder: &Path) -> String {
    let depth = std::env::current_dir().map_or(0, |here| here.components().count());
    let up = "../".repeat(depth.saturating_sub(1));
    format!("{up}{}", folder.to_string_lossy().trim_start_matches('/'))
}

/// The connection a record runs on, and where it stands.
fn names(record: &Record<DFColumnType>) -> Option<(String, String)> {
    let (connection, loc) = match record {
        Record::Statement {
            connection, loc, ..
        }
        | Record::Query {
            connection, loc, ..
        }
        | Record::Let {
            connection, loc, ..
        } => (connection, loc),
        _ => return None,
    };
    let name = match connection {
        Connection::Default => String::new(),
        Connection::Named(name) => name.clone(),
    };
    Some((name, loc.to_string()))
}

/// The record with the answer it got now. One that is retried and succeeds stays as it is.
async fn answer<D, M>(
    runner: &mut Runner<D, M>,
    record: Record<DFColumnType>,
) -> Record<DFColumnType>
where
    D: sqllogictest::AsyncDB<ColumnType = DFColumnType>,
    M: sqllogictest::MakeConnection<Conn = D>,
{
    let retried = matches!(
        &record,
        Record::Statement { retry: Some(_), .. }
            | Record::Query { retry: Some(_), .. }
            | Record::System { retry: Some(_), .. }
    );
    // An expected error is a rule, not an answer: it is kept, and a mismatch shows in the next run.
    let expects_error = matches!(
        &record,
        Record::Statement {
            expected: sqllogictest::StatementExpect::Error(_),
            ..
        } | Record::Query {
            expected: sqllogictest::QueryExpect::Error(_),
            ..
        }
    );
    if retried && runner.run_async(record.clone()).await.is_ok() {
        return record;
    }
    let output = runner.apply_record(record.clone()).await;
    if expects_error {
        return record;
    }
    update_record_with_output(
        &record,
        &output,
        " ",
        df_value_validator,
        value_normalizer,
        strict_column_validator,
    )
    .unwrap_or(record)
}
