//! The interactive session: reads statements from a terminal, with history and completion.

use std::env;

use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Editor};

use crate::Failure;
use crate::line_helper::LineHelper;
use crate::shell::{Flow, Shell};
use crate::statements::Splitter;

/// Reads and runs statements until the user leaves. An error is reported and the session goes on; an interrupt ends
/// the statement that runs. Waits for input where it is, so it needs a thread of its own.
pub(crate) async fn run(mut shell: Shell) -> Result<(), Failure> {
    let mut editor = Editor::<LineHelper, DefaultHistory>::new()?;
    editor.set_completion_type(CompletionType::List);
    let history = env::home_dir().map(|home| home.join(".rollouts_history"));
    if let Some(path) = &history {
        // There is none in the first session.
        let _ = editor.load_history(path);
    }
    loop {
        // Made anew: a statement may have made or dropped what can be completed.
        editor.set_helper(Some(LineHelper::new(&shell.ctx, shell.print.color)));
        match editor.readline("> ") {
            Ok(input) => {
                if !input.trim().is_empty() && !names_a_secret(&input) {
                    editor.add_history_entry(input.trim_end())?;
                }
                if run_input(&mut shell, &input).await == Flow::Quit {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) => println!("^C"),
            Err(ReadlineError::Eof) => {
                println!("\\q");
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(path) = &history
        && let Err(error) = editor.save_history(path)
    {
        eprintln!(
            "The history could not be kept in {}: {error}",
            path.display()
        );
    }
    Ok(())
}

/// Runs what was entered, several statements where they stand together, up to the first error.
async fn run_input(shell: &mut Shell, input: &str) -> Flow {
    let mut splitter = Splitter::default();
    let mut units = Vec::new();
    for line in input.lines() {
        units.extend(splitter.push_line(line));
    }
    units.extend(splitter.finish());
    for unit in units {
        let result = tokio::select! {
            result = shell.run(unit) => result,
            _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        };
        match result {
            Ok(Flow::Continue) => {}
            Ok(Flow::Quit) => return Flow::Quit,
            Err(error) => {
                eprintln!("Error: {error}");
                break;
            }
        }
    }
    Flow::Continue
}

/// Whether a statement looks as if it held a credential: it is then not kept in the history.
fn names_a_secret(input: &str) -> bool {
    let input = input.to_ascii_lowercase();
    ["secret", "password", "access_key", "account_key", "token'"]
        .iter()
        .any(|word| input.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_stay_out_of_the_history() {
        for secret in [
            "CREATE EXTERNAL TABLE r STORED AS ROLLOUT LOCATION 's3://b/r' OPTIONS ('aws.secret_access_key' 'x');",
            "… OPTIONS ('AWS_SESSION_TOKEN' 'x');",
        ] {
            assert!(names_a_secret(secret), "{secret}");
        }
        assert!(!names_a_secret(
            "SELECT output_tokens, num_input_tokens FROM rollouts;"
        ));
    }
}
