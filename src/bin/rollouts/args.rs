//! The command line: datafusion-cli's flags under their own names, and those of the rollouts table.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::Parser;
use datafusion_cli::DATAFUSION_CLI_VERSION;
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreMode;
use datafusion_cli::pool_type::PoolType;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::MaxRows;
use datafusion_rollouts::RuntimeSettings;
use datafusion_rollouts::options::{SETTINGS, Scope, find_setting};

use crate::display::ListItems;
use crate::progress::Progress;

/// What a session of the command line reads unless it is told otherwise.
pub(crate) const DEFAULT_FRESHNESS: &str = "latest";

/// This program's version and that of the engine in it.
pub(crate) static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} (DataFusion {DATAFUSION_CLI_VERSION})",
        env!("CARGO_PKG_VERSION")
    )
});

const EXAMPLES: &str = "\
Examples:
  rollouts
      An interactive session. \\? lists its commands.
  rollouts -f load.sql
      Runs a script and stops at its first error, with exit code 1.
  rollouts -q --format csv -f table.sql -c \"SELECT avg(reward) FROM rollouts\"
      Prints the result of a query and nothing else; table.sql names the table:
      CREATE EXTERNAL TABLE rollouts STORED AS ROLLOUT LOCATION './rollouts';
  generate | rollouts
      Without -c and -f, SQL is read from standard input when that is not a terminal.

Leaving, by any way but a kill, flushes: rows inserted here are then visible to everybody.";

/// SQL over tables of reinforcement-learning rollouts: datafusion-cli with the table type ROLLOUT
/// built in.
#[derive(Debug, Parser)]
#[command(
    name = "rollouts",
    version = VERSION.as_str(),
    after_help = "Use --help for more, with examples.",
    after_long_help = after_long_help(),
)]
pub(crate) struct Args {
    /// Run these statements, then exit
    ///
    /// Several strings, or one string with several statements, run in order in one session. The
    /// first error ends the run.
    #[arg(short, long, value_name = "SQL", num_args = 1.., value_parser = not_empty, help_heading = "Input")]
    pub(crate) command: Vec<String>,

    /// Run the statements of these files, then exit; before those of -c
    ///
    /// A statement ends at its `;`. The first error ends the run.
    #[arg(short, long, value_name = "FILE", num_args = 1.., value_parser = existing_file, help_heading = "Input")]
    pub(crate) file: Vec<PathBuf>,

    /// Run these files at the start of an interactive session, instead of ~/.datafusionrc
    #[arg(short, long, value_name = "FILE", num_args = 0.., value_parser = existing_file, conflicts_with = "file", help_heading = "Input")]
    pub(crate) rc: Option<Vec<PathBuf>>,

    /// The folder that relative paths start from [default: the current one]
    #[arg(short = 'p', long, value_name = "FOLDER", value_parser = existing_folder, help_heading = "Input")]
    pub(crate) data_path: Option<PathBuf>,

    /// How results are printed
    #[arg(long, value_enum, default_value_t = PrintFormat::Automatic, help_heading = "Output")]
    pub(crate) format: PrintFormat,

    /// Print results only: no start message, row counts or timings
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,

    /// Most rows shown in table format: a number, or 'inf'
    #[arg(
        long,
        value_name = "ROWS",
        default_value = "40",
        help_heading = "Output"
    )]
    pub(crate) maxrows: MaxRows,

    /// Most items shown of a list in table format: a number, or 'inf', which shows payloads whole too
    #[arg(
        long,
        value_name = "ITEMS",
        default_value = "8",
        help_heading = "Output"
    )]
    pub(crate) maxitems: ListItems,

    /// Tell on standard error, each second, how many rows a running INSERT has made durable
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        help_heading = "Output"
    )]
    pub(crate) progress: Progress,

    /// Colour SQL while it is typed
    #[arg(long, help_heading = "Output")]
    pub(crate) color: bool,

    /// Report the requests made to object stores by file tables: disabled, summary or trace
    #[arg(long, value_name = "MODE", default_value_t = InstrumentedObjectStoreMode::Disabled, hide_default_value = true, help_heading = "Output")]
    pub(crate) object_store_profiling: InstrumentedObjectStoreMode,

    /// Rows per batch within a query [default: DataFusion's]
    #[arg(short, long, value_name = "ROWS", value_parser = positive, help_heading = "Resources")]
    pub(crate) batch_size: Option<usize>,

    /// Memory for queries, such as 10g [default: no limit]
    #[arg(short, long, value_name = "SIZE", value_parser = size, help_heading = "Resources")]
    pub(crate) memory_limit: Option<usize>,

    /// How queries share that memory: greedy or fair
    #[arg(long, value_name = "TYPE", default_value_t = PoolType::Greedy, help_heading = "Resources")]
    pub(crate) mem_pool_type: PoolType,

    /// How many of the largest users of memory an out-of-memory error names; 0 tracks none
    #[arg(
        long,
        value_name = "N",
        default_value = "3",
        help_heading = "Resources"
    )]
    pub(crate) top_memory_consumers: usize,

    /// Disk for queries that outgrow their memory, such as 10g [default: DataFusion's]
    #[arg(short, long, value_name = "SIZE", value_parser = size, help_heading = "Resources")]
    pub(crate) disk_limit: Option<usize>,

    #[arg(long, value_name = "WHAT", help = freshness_help(), help_heading = "Rollouts")]
    pub(crate) rollout_freshness: Option<String>,

    #[arg(long, value_name = "SIZE", help = setting_help("cache_bytes"), help_heading = "Rollouts")]
    pub(crate) rollout_cache_bytes: Option<String>,

    #[arg(long, value_name = "SECONDS", help = setting_help("flush_interval_secs"), help_heading = "Rollouts")]
    pub(crate) rollout_flush_interval_secs: Option<String>,

    #[arg(long, value_name = "COUNT", help = setting_help("merge_after_generations"), help_heading = "Rollouts")]
    pub(crate) rollout_merge_after_generations: Option<String>,

    #[arg(long, value_name = "NAME", help = setting_help("shard_id"), help_heading = "Rollouts")]
    pub(crate) rollout_shard_id: Option<String>,
}

impl Args {
    /// The settings of the process: the defaults, then the environment, then the flags.
    pub(crate) fn runtime_settings(&self) -> datafusion_rollouts::Result<RuntimeSettings> {
        let mut settings = RuntimeSettings::from_env()?;
        let flags = [
            ("cache_bytes", &self.rollout_cache_bytes),
            ("flush_interval_secs", &self.rollout_flush_interval_secs),
            (
                "merge_after_generations",
                &self.rollout_merge_after_generations,
            ),
            ("shard_id", &self.rollout_shard_id),
        ];
        for (name, value) in flags {
            if let Some(value) = value {
                settings.set(name, value)?;
            }
        }
        settings.validate()?;
        Ok(settings)
    }

    /// The session settings that the session starts with, by name.
    pub(crate) fn session_settings(&self) -> Vec<(&'static str, String)> {
        SETTINGS
            .iter()
            .filter(|info| info.scope == Scope::Session)
            .filter_map(|info| {
                let flag = match info.name {
                    "freshness" => self.rollout_freshness.clone(),
                    _ => None,
                };
                let variable = || info.env.and_then(|name| std::env::var(name).ok());
                let own_default =
                    || (info.name == "freshness").then(|| DEFAULT_FRESHNESS.to_owned());
                let value = flag.or_else(variable).or_else(own_default)?;
                Some((info.name, value))
            })
            .collect()
    }
}

fn setting_help(name: &str) -> String {
    let Some(info) = find_setting(name) else {
        return String::new();
    };
    let mut help = info.doc.to_owned();
    if !info.zero.is_empty() {
        help.push_str(&format!(" 0: {}.", info.zero));
    }
    if !info.default.is_empty() {
        help.push_str(&format!(" [default: {}]", info.default));
    }
    if let Some(variable) = info.env {
        help.push_str(&format!(" [env: {variable}]"));
    }
    wrap(&help)
}

fn freshness_help() -> String {
    wrap(&format!(
        "What SELECT reads: 'latest' includes rows this process has inserted and not flushed yet, \
         'flushed' reads what everybody sees. SET rollout.freshness changes it in a session. \
         [default: {DEFAULT_FRESHNESS}] [env: ROLLOUT_FRESHNESS]"
    ))
}

fn after_long_help() -> String {
    let mut help = format!(
        "{EXAMPLES}\n\nSettings without a flag, by environment variable (a flag wins over its variable):\n"
    );
    let flags = [
        "freshness",
        "cache_bytes",
        "flush_interval_secs",
        "merge_after_generations",
        "shard_id",
    ];
    for info in SETTINGS.iter().filter(|info| !flags.contains(&info.name)) {
        if let Some(variable) = info.env {
            let default = match info.default {
                "" => String::new(),
                default => format!(" [default: {default}]"),
            };
            let text = wrap(&format!("{}{default}", info.doc)).replace('\n', "\n      ");
            help.push_str(&format!("  {variable}\n      {text}\n"));
        }
    }
    help.push_str("  RUST_LOG\n      What is logged to standard error. [default: error]");
    help
}

/// Breaks a text into lines that fit a terminal of 100 columns beside clap's indentation.
fn wrap(text: &str) -> String {
    let mut wrapped = String::with_capacity(text.len());
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > 88 {
            wrapped.push('\n');
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += width;
    }
    wrapped
}

fn not_empty(sql: &str) -> Result<String, String> {
    match sql.trim() {
        "" => Err("expected at least one statement".to_owned()),
        _ => Ok(sql.to_owned()),
    }
}

fn existing_file(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    // Pipes and devices are as good as files: /dev/stdin, <(generate).
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Err("is a folder, expected a file".to_owned()),
        Ok(_) => Ok(path),
        Err(error) => Err(error.to_string()),
    }
}

fn existing_folder(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Ok(path),
        Ok(_) => Err("is not a folder".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a number above 0".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// `1024`, `512m`, `10GB`, `2GiB`: units are powers of 1024 in any case.
fn size(text: &str) -> Result<usize, String> {
    let expected = || {
        "expected a number of bytes with an optional unit: b, k, m, g or t (10g, 512MB)".to_owned()
    };
    let text = text.trim().to_ascii_lowercase();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: usize = number.parse().map_err(|_| expected())?;
    let shift = match unit.trim_start() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(expected()),
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "is more than this machine can address".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("7b", 7),
            ("2k", 2 << 10),
            ("512m", 512 << 20),
            ("10GB", 10 << 30),
            ("2 GiB", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "g", "-1g", "1.5g", "1x", "99999999999t"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn flags_of_datafusion_cli_are_understood() {
        let args = Args::parse_from([
            "rollouts",
            "-q",
            "-m",
            "1g",
            "-b",
            "100",
            "-d",
            "2g",
            "--format",
            "json",
            "--maxrows",
            "inf",
            "-c",
            "SELECT 1",
            "SELECT 2",
        ]);
        assert_eq!(args.command, ["SELECT 1", "SELECT 2"]);
        assert_eq!(args.memory_limit, Some(1 << 30));
        assert_eq!(args.batch_size, Some(100));
        assert_eq!(args.disk_limit, Some(2 << 30));
        assert_eq!(args.maxrows, MaxRows::Unlimited);
        assert!(args.quiet);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for bad in [
            &["rollouts", "-c", " "][..],
            &["rollouts", "-c"],
            &["rollouts", "-f", "/no/such/file.sql"],
            &["rollouts", "-b", "0"],
            &["rollouts", "-p", "/no/such/folder"],
            &["rollouts", "SELECT 1"],
        ] {
            assert!(Args::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_flag_wins_and_a_bad_one_names_its_key() {
        let args = Args::parse_from(["rollouts", "--rollout-cache-bytes", "64MiB"]);
        let settings = args.runtime_settings().expect("valid");
        assert_eq!(settings.cache_bytes, 64 << 20);

        let args = Args::parse_from(["rollouts", "--rollout-cache-bytes", "lots"]);
        let error = args.runtime_settings().expect_err("invalid").to_string();
        assert!(error.contains("cache_bytes"), "{error}");
    }

    #[test]
    fn a_session_starts_with_latest_unless_told_otherwise() {
        let freshness = |args: &[&str]| {
            Args::parse_from(args)
                .session_settings()
                .into_iter()
                .find(|(name, _)| *name == "freshness")
                .map(|(_, value)| value)
        };
        if std::env::var_os("ROLLOUT_FRESHNESS").is_none() {
            assert_eq!(freshness(&["rollouts"]).as_deref(), Some("latest"));
        }
        assert_eq!(
            freshness(&["rollouts", "--rollout-freshness", "flushed"]).as_deref(),
            Some("flushed")
        );
    }

    #[test]
    fn lines_are_broken_between_words() {
        let text = "word ".repeat(40);
        let wrapped = wrap(text.trim());
        assert!(wrapped.lines().count() > 1);
        assert!(wrapped.lines().all(|line| line.len() <= 88));
        assert_eq!(wrapped.replace('\n', " "), text.trim());
    }

    #[test]
    fn help_names_every_variable() {
        let help = Args::command().render_long_help().to_string();
        for variable in SETTINGS.iter().filter_map(|info| info.env) {
            assert!(help.contains(variable), "{variable} is not in --help");
        }
    }
}
