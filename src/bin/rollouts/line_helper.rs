//! What the line editor knows of SQL: when a statement is complete, which names can be completed, how to colour it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use datafusion::config::Dialect;
use datafusion::prelude::SessionContext;
use datafusion_cli::highlighter::SyntaxHighlighter;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use crate::statements::Splitter;

/// Words of SQL that begin or join the statements people write here.
const KEYWORDS: &[&str] = &[
    "ANALYZE",
    "BETWEEN",
    "COPY",
    "CREATE EXTERNAL TABLE",
    "DELETE FROM",
    "DESCRIBE",
    "DISTINCT",
    "DROP TABLE",
    "EXPLAIN",
    "FROM",
    "GROUP BY",
    "HAVING",
    "INSERT INTO",
    "INTERVAL",
    "LIMIT",
    "LOCATION",
    "OFFSET",
    "OPTIONS",
    "ORDER BY",
    "PARTITION BY",
    "SELECT",
    "SHOW TABLES",
    "STORED AS ROLLOUT",
    "UNION ALL",
    "UPDATE",
    "VALUES",
    "WHERE",
];

pub(crate) struct LineHelper {
    files: FilenameCompleter,
    names: Vec<String>,
    /// Whose words to colour, if any.
    colours: Option<Dialect>,
}

impl LineHelper {
    /// Knows the tables, functions and settings that the session has now.
    pub(crate) fn new(ctx: &SessionContext, color: bool) -> Self {
        let dialect = ctx.copied_config().options().sql_parser.dialect;
        Self {
            files: FilenameCompleter::new(),
            names: names_of(ctx),
            colours: color.then_some(dialect),
        }
    }
}

fn names_of(ctx: &SessionContext) -> Vec<String> {
    let state = ctx.state();
    let mut names: BTreeSet<String> = KEYWORDS.iter().map(|word| (*word).to_owned()).collect();
    names.extend(state.scalar_functions().keys().cloned());
    names.extend(state.aggregate_functions().keys().cloned());
    names.extend(state.window_functions().keys().cloned());
    names.extend(state.table_functions().keys().cloned());
    names.extend(
        state
            .config()
            .options()
            .entries()
            .into_iter()
            .map(|entry| entry.key),
    );
    let default = &state.config().options().catalog;
    if let Some(schema) = state
        .catalog_list()
        .catalog(&default.default_catalog)
        .and_then(|catalog| catalog.schema(&default.default_schema))
    {
        names.extend(schema.table_names());
    }
    names.into_iter().collect()
}

/// Where the word that ends at `pos` begins.
fn word_start(line: &str, pos: usize) -> usize {
    line[..pos]
        .rfind(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'))
        .map_or(0, |at| {
            at + line[at..].chars().next().map_or(1, char::len_utf8)
        })
}

/// Whether the text ends within a string.
fn in_string(text: &str) -> bool {
    text.chars().filter(|c| *c == '\'').count() % 2 == 1
}

/// The names that begin with `word`, in any case.
fn completions<'a>(names: &'a [String], word: &str) -> Vec<&'a str> {
    let matches = |name: &&str| {
        name.get(..word.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(word))
    };
    if word.is_empty() {
        return Vec::new();
    }
    names.iter().map(String::as_str).filter(matches).collect()
}

/// Whether nothing is missing: a command, or statements that all have their `;`.
fn is_complete(input: &str) -> bool {
    let mut splitter = Splitter::default();
    for line in input.lines() {
        splitter.push_line(line);
    }
    splitter.finish().is_none()
}

impl Completer for LineHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        ctx: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        if in_string(&line[..pos]) {
            return self.files.complete(line, pos, ctx);
        }
        let start = word_start(line, pos);
        let pairs = completions(&self.names, &line[start..pos])
            .into_iter()
            .map(|name| Pair {
                display: name.to_owned(),
                replacement: name.to_owned(),
            })
            .collect();
        Ok((start, pairs))
    }
}

impl Validator for LineHelper {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_complete(ctx.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Highlighter for LineHelper {
    fn highlight<'l>(&self, line: &'l str, pos: usize) -> Cow<'l, str> {
        match &self.colours {
            Some(dialect) => SyntaxHighlighter::new(dialect).highlight(line, pos),
            None => Cow::Borrowed(line),
        }
    }

    fn highlight_char(&self, line: &str, pos: usize, kind: CmdKind) -> bool {
        self.colours
            .is_some_and(|dialect| SyntaxHighlighter::new(&dialect).highlight_char(line, pos, kind))
    }
}

impl Hinter for LineHelper {
    type Hint = String;
}

impl Helper for LineHelper {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_complete_at_a_semicolon_or_as_a_command() {
        for complete in [
            "",
            "  ",
            "\\d",
            "SELECT 1;",
            "SELECT 1; SELECT 2;",
            "SELECT ';';  -- done",
        ] {
            assert!(is_complete(complete), "{complete}");
        }
        for open in [
            "SELECT 1",
            "SELECT ';",
            "SELECT 1; SELECT 2",
            "SELECT 1 /* ; ",
        ] {
            assert!(!is_complete(open), "{open}");
        }
    }

    #[test]
    fn words_are_completed_in_any_case() {
        let names = [
            "rollout_flush",
            "rollout_merge",
            "rollout.freshness",
            "SELECT",
            "sum",
        ]
        .map(str::to_owned);
        assert_eq!(
            completions(&names, "ROLLOUT_"),
            ["rollout_flush", "rollout_merge"]
        );
        assert_eq!(completions(&names, "rollout.f"), ["rollout.freshness"]);
        assert_eq!(completions(&names, "s"), ["SELECT", "sum"]);
        assert!(completions(&names, "").is_empty());
        assert!(completions(&names, "é").is_empty());
    }

    #[test]
    fn a_word_begins_after_what_is_no_part_of_a_name() {
        for (line, start) in [
            ("sel", 0),
            ("SELECT su", 7),
            ("SET rollout.fr", 4),
            ("(é)ab", 4),
            ("sum(", 4),
        ] {
            assert_eq!(word_start(line, line.len()), start, "{line}");
        }
        assert!(in_string("LOCATION './da"));
        assert!(!in_string("SELECT 'it''s' || na"));
    }

    #[test]
    fn tables_functions_and_settings_are_known() {
        let names = names_of(&SessionContext::new());
        for name in [
            "array_length",
            "avg",
            "row_number",
            "datafusion.execution.batch_size",
            "SELECT",
        ] {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
    }
}
