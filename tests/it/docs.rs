//! The documentation is run: every SQL block of README.md and docs/ in order, file by file, each on a
//! folder of its own; what stands beside the code in tables is compared with the code.
//!
//! - A block `sql` must succeed, statement by statement. One whose first line is
//!   `-- error: <text>` must fail with that text.
//! - A block `text` right after it is the answer of its last statement.
//! - A block `sql,ignore` is only parsed.
//! - Sessions start as those of the command line do, with `rollout.freshness = 'latest'`, and
//!   nothing is flushed or merged unless the text does it.
//! - `'./samples/…'` is docs/samples; every other `'./…'` and `'/data/…'` is in the fresh folder.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use arrow::util::display::FormatOptions;
use arrow::util::pretty::pretty_format_batches_with_options;
use datafusion::error::DataFusionError;
use datafusion::sql::parser::DFParser;
use datafusion_rollouts::options::{PREFIX, SETTINGS, SettingInfo};

use crate::checkout::root;
use crate::common::{Process, quiet};

/// README.md and the files of docs/.
fn documents() -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(root().join("docs"))
        .expect("docs/")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    files.sort();
    files.insert(0, root().join("README.md"));
    files
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A fenced block.
#[derive(Debug)]
struct Block {
    info: String,
    line: usize,
    text: String,
    /// Whether only blank lines stand between it and the block before.
    adjacent: bool,
}

fn blocks(document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<Block> = None;
    let mut adjacent = false;
    for (number, line) in document.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(info)) => {
                open = Some(Block {
                    info: info.trim().to_string(),
                    line: number + 1,
                    text: String::new(),
                    adjacent,
                });
            }
            (Some(_), Some(_)) => {
                blocks.extend(open.take());
                adjacent = true;
            }
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) if line.trim().is_empty() => {}
            (None, None) => adjacent = false,
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

/// Runs a block's statements; the answer of the last one, as a table.
async fn run(process: &Process, sql: &str) -> Result<String, DataFusionError> {
    let mut answer = Vec::new();
    for statement in DFParser::parse_sql(sql)? {
        let plan = process.ctx.state().statement_to_plan(statement).await?;
        answer = process
            .ctx
            .execute_logical_plan(plan)
            .await?
            .collect()
            .await?;
    }
    // As the command line shows them.
    let format = FormatOptions::default().with_null("NULL");
    Ok(pretty_format_batches_with_options(&answer, &format)?.to_string())
}

fn lines(text: &str) -> Vec<&str> {
    text.trim().lines().map(str::trim_end).collect()
}

/// What is wrong with a document's blocks.
async fn faults_of(path: &Path) -> Vec<String> {
    let folder = tempfile::tempdir().expect("folder");
    let samples = root().join("docs/samples");
    let place = |sql: &str| {
        sql.replace("'./samples/", &format!("'{}/", samples.display()))
            .replace("'./", &format!("'{}/", folder.path().display()))
            .replace("'/data/", &format!("'{}/data/", folder.path().display()))
    };
    let process = Process::new(quiet());
    process.latest().await;
    let mut faults = Vec::new();
    let mut last_answer = None;
    for block in blocks(&read(path)) {
        let answer = last_answer.take();
        let name = path.strip_prefix(root()).unwrap_or(path).display();
        let mut fault =
            |what: String| faults.push(format!("{name}:{}: {what}\n{}", block.line, block.text));
        match block.info.as_str() {
            "sql,ignore" => match DFParser::parse_sql(&block.text) {
                Ok(statements) if statements.is_empty() => fault("no statement".to_string()),
                Ok(_) => {}
                Err(error) => fault(format!("does not parse: {error}")),
            },
            "sql" => {
                let result = run(&process, &place(&block.text)).await;
                match (block.text.strip_prefix("-- error: "), result) {
                    (None, Ok(answer)) => last_answer = Some(answer),
                    (None, Err(error)) => fault(format!("fails: {error}")),
                    (Some(_), Ok(_)) => fault("succeeds, an error is expected".to_string()),
                    (Some(expected), Err(error)) => {
                        let expected = expected.lines().next().unwrap_or_default().trim();
                        if expected.is_empty() || !error.to_string().contains(expected) {
                            fault(format!("fails otherwise: {error}"));
                        }
                    }
                }
            }
            "text" if block.adjacent => {
                if let Some(answer) = answer
                    && lines(&answer) != lines(&block.text)
                {
                    fault(format!("the answer is\n{answer}\nnot"));
                }
            }
            _ => {}
        }
    }
    process.shutdown().await;
    faults
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sql_block_runs() {
    let mut faults = Vec::new();
    let mut found = 0;
    for path in documents() {
        found += blocks(&read(&path))
            .iter()
            .filter(|block| block.info == "sql")
            .count();
        faults.extend(faults_of(&path).await);
    }
    assert!(found > 20, "only {found} SQL blocks were found");
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// The settings as README.md and docs/sql.md list them.
fn settings_table() -> String {
    let mut table =
        String::from("| Setting | Scope | Default | What it does |\n| --- | --- | --- | --- |\n");
    for info in SETTINGS {
        let SettingInfo {
            name,
            unit,
            default,
            zero,
            doc,
            ..
        } = info;
        let default = match default.is_empty() {
            true => "none".to_string(),
            false => format!("`{default}`"),
        };
        write!(
            table,
            "| `{PREFIX}.{name}` | {} | {default} | {doc} Takes: {unit}.",
            info.scope.as_str()
        )
        .expect("a String takes text");
        if !zero.is_empty() {
            write!(table, " 0: {zero}.").expect("a String takes text");
        }
        if let Some(variable) = info.env {
            write!(table, " `{variable}`").expect("a String takes text");
        }
        table.push_str(" |\n");
    }
    table
}

#[test]
fn the_settings_are_those_of_the_code() {
    let expected = settings_table();
    for file in ["README.md", "docs/sql.md"] {
        let document = read(&root().join(file));
        let table = document
            .split_once("<!-- settings -->")
            .and_then(|(_, rest)| rest.split_once("<!-- end of settings -->"))
            .map(|(table, _)| table)
            .unwrap_or_else(|| panic!("{file} does not mark its table of settings"));
        assert!(
            lines(table) == lines(&expected),
            "{file}: put this between <!-- settings --> and <!-- end of settings -->\n\n{expected}"
        );
    }
}

#[test]
fn the_readmes_rust_example_is_the_quick_start() {
    let example = read(&root().join("examples/quickstart.rs"));
    let rust: Vec<_> = blocks(&read(&root().join("README.md")))
        .into_iter()
        .filter(|block| block.info == "rust")
        .collect();
    assert_eq!(rust.len(), 1, "one Rust block");
    let code = example
        .split_once("\n\n")
        .map(|(_header, code)| code)
        .expect("a header, then code");
    assert_eq!(
        lines(&rust[0].text),
        lines(code),
        "the block is examples/quickstart.rs without its header:\n{code}"
    );
}

/// Every function of ours has a section in docs/sql.md, `### name(…)`, whose first table lists its
/// columns by name and type.
#[tokio::test(flavor = "multi_thread")]
async fn every_function_is_documented_with_its_columns() {
    let folder = tempfile::tempdir().expect("folder");
    let process = Process::open(folder.path(), quiet()).await;
    let document = read(&root().join("docs/sql.md"));
    let mut functions: Vec<String> = process
        .ctx
        .state()
        .table_functions()
        .keys()
        .filter(|name| name.starts_with("rollout_"))
        .cloned()
        .collect();
    functions.sort();
    let mut faults = Vec::new();
    for function in functions {
        let heading = format!("\n### {function}(");
        let section = document
            .split_once(&heading)
            .and_then(|(_, rest)| rest.split("\n### ").next())
            .unwrap_or_default();
        let documented: Vec<String> = section
            .lines()
            .skip_while(|line| !line.starts_with("| ---"))
            .skip(1)
            .take_while(|line| line.starts_with("| "))
            .map(|line| {
                let cells: Vec<_> = line.split('|').map(str::trim).collect();
                format!("{} {}", cells[1].trim_matches('`'), cells[2])
            })
            .collect();
        let call = match process
            .ctx
            .sql(&format!("SELECT * FROM {function}()"))
            .await
        {
            Ok(frame) => Ok(frame),
            Err(_) => {
                let call = format!("SELECT * FROM {function}('rollouts')");
                process.ctx.sql(&call).await
            }
        };
        let Ok(frame) = call else {
            // Takes more arguments: its section is all that can be asked for here.
            if documented.is_empty() {
                faults.push(format!("{function}: no section with a table of columns"));
            }
            continue;
        };
        let columns: Vec<String> = frame
            .schema()
            .fields()
            .iter()
            .map(|field| {
                let null = if field.is_nullable() {
                    ", may be NULL"
                } else {
                    ""
                };
                format!("{} {}{null}", field.name(), field.data_type())
            })
            .collect();
        if documented != columns {
            faults.push(format!(
                "{function}: {documented:?} is documented, it has {columns:?}"
            ));
        }
    }
    process.shutdown().await;
    assert!(faults.is_empty(), "docs/sql.md:\n{}", faults.join("\n"));
}

/// Links between the documents lead somewhere.
#[test]
fn links_between_documents_hold() {
    let mut broken = Vec::new();
    for path in documents() {
        let text = read(&path);
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let found = path.parent().map(|folder| folder.join(file));
            if !found.is_some_and(|found| found.exists()) {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
