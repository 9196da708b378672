//! Cuts a stream of lines into SQL statements and shell commands.
//!
//! A statement ends at a `;` that stands in code: not in a quoted string or name, a comment or a dollar-quoted
//! body. The rules are those of DataFusion's generic dialect. Lines go in one at a time and whole statements come
//! out, so a script runs in the memory of its longest statement, and a pipe that is still open is answered as it
//! speaks.

/// One piece of input that can be run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// SQL, with or without its closing `;`.
    Sql {
        text: String,
        /// Where its first word stands, counted from 1.
        line: usize,
    },
    /// A line such as `\d`, without the backslash.
    Command { text: String, line: usize },
}

/// What the last line left open.
#[derive(Debug, Default, PartialEq, Eq)]
enum Open {
    #[default]
    Nothing,
    /// A string or quoted name; `escapes` where a backslash hides the next character.
    Quote { mark: char, escapes: bool },
    /// `/* … */`, which nests.
    Comment { depth: usize },
    /// `$tag$ … $tag$`, both dollars included in the tag.
    Dollar { tag: String },
}

/// Collects lines until they make up a statement.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    text: String,
    open: Open,
    /// Line of the first word of `text`; none while `text` holds only blanks and comments.
    begins: Option<usize>,
    lines: usize,
}

impl Splitter {
    /// Takes the next line (without its line end) and returns what is complete now.
    pub(crate) fn push_line(&mut self, line: &str) -> Vec<Unit> {
        self.lines += 1;
        let at_start = self.begins.is_none() && self.open == Open::Nothing;
        if at_start && line.starts_with("#!") {
            return Vec::new();
        }
        if at_start && let Some(command) = line.strip_prefix('\\') {
            self.text.clear();
            let text = command.split_whitespace().collect::<Vec<_>>().join(" ");
            return vec![Unit::Command {
                text,
                line: self.lines,
            }];
        }
        let mut units = Vec::new();
        self.scan(line, &mut units);
        self.text.push('\n');
        units
    }

    /// The statement that the input ended in, if it did not end in a `;`.
    pub(crate) fn finish(&mut self) -> Option<Unit> {
        let unfinished = self.open != Open::Nothing;
        self.open = Open::Nothing;
        let text = std::mem::take(&mut self.text).trim().to_owned();
        match self.begins.take() {
            Some(line) => Some(Unit::Sql { text, line }),
            // A comment that is never closed: the parser says so.
            None if unfinished => Some(Unit::Sql {
                text,
                line: self.lines,
            }),
            None => None,
        }
    }

    fn scan(&mut self, line: &str, units: &mut Vec<Unit>) {
        let mut rest = line;
        // The two characters before `rest`, on this line.
        let (mut before, mut previous) = (None, None);
        while let Some(c) = rest.chars().next() {
            let taken = match &mut self.open {
                Open::Quote { mark, escapes } => {
                    if *escapes && c == '\\' {
                        1 + rest[1..].chars().next().map_or(0, char::len_utf8)
                    } else {
                        if c == *mark {
                            self.open = Open::Nothing;
                        }
                        c.len_utf8()
                    }
                }
                Open::Comment { depth } => {
                    if rest.starts_with("*/") {
                        *depth -= 1;
                        if *depth == 0 {
                            self.open = Open::Nothing;
                        }
                        2
                    } else if rest.starts_with("/*") {
                        *depth += 1;
                        2
                    } else {
                        c.len_utf8()
                    }
                }
                Open::Dollar { tag } => match rest.find(tag.as_str()) {
                    Some(at) => {
                        let taken = at + tag.len();
                        self.open = Open::Nothing;
                        taken
                    }
                    None => rest.len(),
                },
                Open::Nothing => {
                    if rest.starts_with("--") {
                        rest.len()
                    } else if rest.starts_with("/*") {
                        self.open = Open::Comment { depth: 1 };
                        2
                    } else if c == ';' {
                        self.end_statement(units);
                        1
                    } else {
                        if !c.is_whitespace() && self.begins.is_none() {
                            self.begins = Some(self.lines);
                        }
                        self.opens(rest, c, before, previous)
                    }
                }
            };
            // A `;` has been handed out with its statement.
            if !(c == ';' && self.text.is_empty()) {
                self.text.push_str(&rest[..taken]);
            }
            before = if taken == c.len_utf8() {
                previous
            } else {
                None
            };
            previous = rest[..taken].chars().next_back();
            rest = &rest[taken..];
        }
    }

    /// Notes what the character `c`, the first of `rest`, opens, and returns how many bytes that takes.
    fn opens(
        &mut self,
        rest: &str,
        c: char,
        before: Option<char>,
        previous: Option<char>,
    ) -> usize {
        match c {
            '\'' => {
                let escapes = matches!(previous, Some('e' | 'E')) && !before.is_some_and(is_word);
                self.open = Open::Quote { mark: c, escapes };
                1
            }
            '"' | '`' => {
                self.open = Open::Quote {
                    mark: c,
                    escapes: false,
                };
                1
            }
            '$' if !previous.is_some_and(is_word) => match dollar_tag(rest) {
                Some(tag) => {
                    self.open = Open::Dollar {
                        tag: tag.to_owned(),
                    };
                    tag.len()
                }
                None => 1,
            },
            _ => c.len_utf8(),
        }
    }

    fn end_statement(&mut self, units: &mut Vec<Unit>) {
        let text = std::mem::take(&mut self.text);
        if let Some(line) = self.begins.take() {
            let mut text = text.trim_start().to_owned();
            text.push(';');
            units.push(Unit::Sql { text, line });
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `$$` or `$name$` at the start of `rest`. `$1` is a parameter, not a tag.
fn dollar_tag(rest: &str) -> Option<&str> {
    let name = &rest[1..];
    let end = name.find('$')?;
    let name = &name[..end];
    let valid = name.chars().all(is_word) && !name.starts_with(|c: char| c.is_ascii_digit());
    valid.then(|| &rest[..end + 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(input: &str) -> Vec<Unit> {
        let mut splitter = Splitter::default();
        let mut units: Vec<Unit> = input
            .lines()
            .flat_map(|line| splitter.push_line(line))
            .collect();
        units.extend(splitter.finish());
        units
    }

    fn texts(input: &str) -> Vec<String> {
        split(input)
            .into_iter()
            .map(|unit| match unit {
                Unit::Sql { text, .. } => text,
                Unit::Command { text, .. } => format!("\\{text}"),
            })
            .collect()
    }

    #[test]
    fn statements_end_at_a_semicolon_in_code() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            (" \n\t\n", &[]),
            (";;", &[]),
            ("SELECT 1", &["SELECT 1"]),
            ("SELECT 1;", &["SELECT 1;"]),
            ("SELECT 1; SELECT 2", &["SELECT 1;", "SELECT 2"]),
            ("SELECT 1;;SELECT 2;", &["SELECT 1;", "SELECT 2;"]),
            ("SELECT\n 1\n;\n", &["SELECT\n 1\n;"]),
            ("SELECT ';';", &["SELECT ';';"]),
            ("SELECT 'it''s;';", &["SELECT 'it''s;';"]),
            (
                "SELECT 'a\n;\nb'; SELECT 2;",
                &["SELECT 'a\n;\nb';", "SELECT 2;"],
            ),
            (
                "SELECT 1 AS \"a;b\", `c;d`;",
                &["SELECT 1 AS \"a;b\", `c;d`;"],
            ),
            ("SELECT '\\'; SELECT 2;", &["SELECT '\\';", "SELECT 2;"]),
            (
                "SELECT E'\\';'; SELECT 2;",
                &["SELECT E'\\';';", "SELECT 2;"],
            ),
            (
                "SELECT like'\\'; SELECT 2;",
                &["SELECT like'\\';", "SELECT 2;"],
            ),
            ("SELECT e'\\é;'; SELECT 2", &["SELECT e'\\é;';", "SELECT 2"]),
            (
                "SELECT $$a;b$$; SELECT $t$;$$;$t$;",
                &["SELECT $$a;b$$;", "SELECT $t$;$$;$t$;"],
            ),
            ("SELECT $1; SELECT $2;", &["SELECT $1;", "SELECT $2;"]),
            (
                "SELECT 'naïve; ünïcode';SELECT 2",
                &["SELECT 'naïve; ünïcode';", "SELECT 2"],
            ),
        ];
        for (input, expected) in cases {
            assert_eq!(texts(input), *expected, "input: {input:?}");
        }
    }

    #[test]
    fn comments_never_end_a_statement_and_are_none_by_themselves() {
        let cases: &[(&str, &[&str])] = &[
            ("-- only a comment;", &[]),
            ("/* only; */ -- this;", &[]),
            (
                "-- it's; quoted\nSELECT 1;",
                &["-- it's; quoted\nSELECT 1;"],
            ),
            (
                "SELECT 1 -- one; more\n, 2;",
                &["SELECT 1 -- one; more\n, 2;"],
            ),
            (
                "SELECT /* a; /* b; */ c; */ 1;",
                &["SELECT /* a; /* b; */ c; */ 1;"],
            ),
            ("SELECT 1 /* a\n;\n*/;", &["SELECT 1 /* a\n;\n*/;"]),
            ("SELECT 1; -- done", &["SELECT 1;"]),
            ("SELECT '--';", &["SELECT '--';"]),
            ("SELECT 1 - -1;", &["SELECT 1 - -1;"]),
            ("#!/usr/bin/env rollouts -f\nSELECT 1;", &["SELECT 1;"]),
        ];
        for (input, expected) in cases {
            assert_eq!(texts(input), *expected, "input: {input:?}");
        }
    }

    #[test]
    fn what_is_never_closed_is_handed_out_for_the_parser_to_refuse() {
        assert_eq!(texts("SELECT 'a;\nb;"), ["SELECT 'a;\nb;"]);
        assert_eq!(texts("/* a;"), ["/* a;"]);
    }

    #[test]
    fn commands_stand_at_the_start_of_a_statement() {
        assert_eq!(
            texts("\\d   rollouts \nSELECT 1\n\\d\n;"),
            ["\\d rollouts", "SELECT 1\n\\d\n;"]
        );
        assert_eq!(texts("-- note\n\\q"), ["\\q"]);
    }

    #[test]
    fn lines_are_where_the_first_word_stands() {
        let lines: Vec<usize> = split("-- head\n\nSELECT 1; SELECT\n2;\n\n/* x */ SELECT 3;\n\\d")
            .iter()
            .map(|unit| match unit {
                Unit::Sql { line, .. } | Unit::Command { line, .. } => *line,
            })
            .collect();
        assert_eq!(lines, [3, 3, 6, 7]);
    }
}
