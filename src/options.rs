//! Every setting, once: its name, unit, default, the meaning of 0, its environment variable and
//! where it may be given.
//!
//! Precedence, highest first:
//! 1. `OPTIONS ('rollout.…' '…')` of `CREATE EXTERNAL TABLE`, for that table;
//! 2. `SET rollout.…`, for session settings;
//! 3. what the program sets (a flag of the command line, [`RuntimeSettings::set`]);
//! 4. the environment variable;
//! 5. the default.
//!
//! Settings are plain data. An unknown name or a bad value is an error that names the key and the
//! accepted form; nothing is ignored.

mod session;
mod table;
mod value;

use std::time::Duration;

pub use session::{Freshness, RolloutSessionOptions};
pub use table::{AtVersion, OnConflict, RolloutTableOptionsExtension, TableOptions};
use value::{parse_bool, parse_bytes, parse_count, parse_seconds as parse_secs};

use crate::error::{Result, RolloutError};

/// The prefix of every setting in SQL.
pub const PREFIX: &str = "rollout";

/// Where a setting lives and is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Once per process: builder, command-line flag or environment.
    Runtime,
    /// Per SQL session: `SET rollout.<name> = …`.
    Session,
    /// Per table: `OPTIONS ('rollout.<name>' '…')` of `CREATE EXTERNAL TABLE`.
    Table,
}

impl Scope {
    /// The scope's name in `rollout_settings()` and the documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Session => "session",
            Self::Table => "table",
        }
    }
}

/// One setting's documentation.
#[derive(Debug, Clone, Copy)]
pub struct SettingInfo {
    /// The name, without the `rollout.` prefix.
    pub name: &'static str,
    /// Where it is given.
    pub scope: Scope,
    /// The unit of its value.
    pub unit: &'static str,
    /// The default, as it would be written.
    pub default: &'static str,
    /// What 0 means.
    pub zero: &'static str,
    /// The environment variable read by [`RuntimeSettings::from_env`] and the command line.
    pub env: Option<&'static str>,
    /// What it does.
    pub doc: &'static str,
}

/// All settings, in the order they are documented.
pub const SETTINGS: &[SettingInfo] = &[
    SettingInfo {
        name: "cache_bytes",
        scope: Scope::Runtime,
        unit: "bytes",
        default: "2GiB",
        zero: "every store gets a default session of its own",
        env: Some("ROLLOUT_CACHE_BYTES"),
        doc: "Cap of the one cache all stores of the process share, split 6:1 between index and \
              metadata cache.",
    },
    SettingInfo {
        name: "flush_interval_secs",
        scope: Scope::Runtime,
        unit: "seconds",
        default: "30",
        zero: "flush only on request and at shutdown",
        env: Some("ROLLOUT_FLUSH_INTERVAL_SECS"),
        doc: "How often unflushed rows are made visible to everybody.",
    },
    SettingInfo {
        name: "merge_after_generations",
        scope: Scope::Runtime,
        unit: "generations",
        default: "16",
        zero: "never by count",
        env: Some("ROLLOUT_MERGE_AFTER_GENERATIONS"),
        doc: "Merge into the base table when this many flushed generations wait.",
    },
    SettingInfo {
        name: "merge_after_bytes",
        scope: Scope::Runtime,
        unit: "bytes",
        default: "1GiB",
        zero: "never by size",
        env: Some("ROLLOUT_MERGE_AFTER_BYTES"),
        doc: "Merge when the generations that wait hold this many bytes.",
    },
    SettingInfo {
        name: "merge_max_age_secs",
        scope: Scope::Runtime,
        unit: "seconds",
        default: "600",
        zero: "never by age",
        env: Some("ROLLOUT_MERGE_MAX_AGE_SECS"),
        doc: "Merge when the oldest waiting generation was first seen this long ago.",
    },
    SettingInfo {
        name: "merge_pass_bytes",
        scope: Scope::Runtime,
        unit: "bytes",
        default: "256MiB",
        zero: "one generation a pass",
        env: Some("ROLLOUT_MERGE_PASS_BYTES"),
        doc: "Most bytes of generations one merge commit takes.",
    },
    SettingInfo {
        name: "max_waiting_generations",
        scope: Scope::Runtime,
        unit: "generations",
        default: "1000",
        zero: "no bound",
        env: Some("ROLLOUT_MAX_WAITING_GENERATIONS"),
        doc: "Bound on flushed generations that wait for a merge: at it a flush merges first, \
              whatever the other settings say, and fails if it cannot.",
    },
    SettingInfo {
        name: "id_index_min_rows",
        scope: Scope::Runtime,
        unit: "rows",
        default: "100000",
        zero: "no index on ids is made or kept up",
        env: Some("ROLLOUT_ID_INDEX_MIN_ROWS"),
        doc: "Rows of the base from which an index on ids is kept, for point lookups and merges.",
    },
    SettingInfo {
        name: "max_lanes",
        scope: Scope::Runtime,
        unit: "lanes",
        default: "4",
        zero: "not allowed",
        env: Some("ROLLOUT_MAX_LANES"),
        doc: "Most puts in flight per store. A second lane opens only when the first is busy and \
              something waits. From 1 to 64.",
    },
    SettingInfo {
        name: "linger_percent",
        scope: Scope::Runtime,
        unit: "percent",
        default: "2",
        zero: "it never waits",
        env: Some("ROLLOUT_LINGER_PERCENT"),
        doc: "How long a put waits for further statements while many write, as a share of the time \
              puts take; at most 20 ms. The lanes' puts are then kept apart, too. At most 100.",
    },
    SettingInfo {
        name: "put_timeout_secs",
        scope: Scope::Runtime,
        unit: "seconds",
        default: "120",
        zero: "wait for ever",
        env: Some("ROLLOUT_PUT_TIMEOUT_SECS"),
        doc: "How long a statement waits for its put before it fails with the outcome unknown.",
    },
    SettingInfo {
        name: "max_memtable_bytes",
        scope: Scope::Runtime,
        unit: "bytes",
        default: "64MiB",
        zero: "not allowed",
        env: Some("ROLLOUT_MAX_MEMTABLE_BYTES"),
        doc: "A lane's memtable is flushed early when it holds this many bytes, at least 64KiB.",
    },
    SettingInfo {
        name: "max_unflushed_bytes",
        scope: Scope::Runtime,
        unit: "bytes",
        default: "1GiB",
        zero: "not allowed",
        env: Some("ROLLOUT_MAX_UNFLUSHED_BYTES"),
        doc: "Bound on unflushed rows over all stores of the process, at least \
              rollout.max_memtable_bytes; inserts wait at it.",
    },
    SettingInfo {
        name: "lease_ttl_secs",
        scope: Scope::Runtime,
        unit: "seconds",
        default: "60",
        zero: "not allowed",
        env: Some("ROLLOUT_LEASE_TTL_SECS"),
        doc: "A process whose lease has not changed for this long, by its own value or the \
              observer's, whichever is longer, counts as dead; its unflushed rows are then flushed \
              by another.",
    },
    SettingInfo {
        name: "generation_grace_secs",
        scope: Scope::Runtime,
        unit: "seconds",
        default: "3600",
        zero: "merged generations go at once (running scans may fail)",
        env: Some("ROLLOUT_GENERATION_GRACE_SECS"),
        doc: "How long a merged generation's files are kept for scans that still read them.",
    },
    SettingInfo {
        name: "compact_interval_secs",
        scope: Scope::Runtime,
        unit: "seconds",
        default: "900",
        zero: "compact only on request",
        env: Some("ROLLOUT_COMPACT_INTERVAL_SECS"),
        doc: "How often the base's small fragments are looked for, and rewritten as larger ones.",
    },
    SettingInfo {
        name: "cleanup_interval_secs",
        scope: Scope::Runtime,
        unit: "seconds",
        default: "3600",
        zero: "clean up only on request",
        env: Some("ROLLOUT_CLEANUP_INTERVAL_SECS"),
        doc: "How often what nobody needs any more is deleted.",
    },
    SettingInfo {
        name: "cleanup_min_age_secs",
        scope: Scope::Runtime,
        unit: "seconds",
        default: "86400",
        zero: "no minimum (a flush or merge under way may lose its files)",
        env: Some("ROLLOUT_CLEANUP_MIN_AGE_SECS"),
        doc: "How old what may still be under way, and old base versions, must be to be deleted.",
    },
    SettingInfo {
        name: "shard_id",
        scope: Scope::Runtime,
        unit: "text or UUID",
        default: "",
        zero: "",
        env: Some("ROLLOUT_SHARD_ID"),
        doc: "A fixed name for this process's shards, stable across restarts; one process per \
              name. Empty: a free shard is leased.",
    },
    SettingInfo {
        name: "local_fsync",
        scope: Scope::Runtime,
        unit: "true or false",
        default: "true",
        zero: "",
        env: Some("ROLLOUT_LOCAL_FSYNC"),
        doc: "Sync file and folder of every write to a local folder. Turned off, acknowledged rows \
              survive the end of the process but not a power cut.",
    },
    SettingInfo {
        name: "freshness",
        scope: Scope::Session,
        unit: "'flushed' or 'latest'",
        default: "flushed",
        zero: "",
        env: Some("ROLLOUT_FRESHNESS"),
        doc: "What SELECT reads: 'flushed' is the base and flushed generations, 'latest' adds this \
              process's unflushed rows.",
    },
    SettingInfo {
        name: "snapshot_max_age_ms",
        scope: Scope::Session,
        unit: "milliseconds",
        default: "1000",
        zero: "every query looks at storage",
        env: Some("ROLLOUT_SNAPSHOT_MAX_AGE_MS"),
        doc: "How old the list of generations and the base version may be that a query plans on. \
              This process's own flushes and merges are always seen.",
    },
    SettingInfo {
        name: "create",
        scope: Scope::Table,
        unit: "true or false",
        default: "true",
        zero: "",
        env: None,
        doc: "Whether CREATE EXTERNAL TABLE may make a new table at an empty location.",
    },
    SettingInfo {
        name: "read_only",
        scope: Scope::Table,
        unit: "true or false",
        default: "false",
        zero: "",
        env: None,
        doc: "Never write anything: no insert, no flush, no merge, no lease.",
    },
    SettingInfo {
        name: "version",
        scope: Scope::Table,
        unit: "a number",
        default: "",
        zero: "",
        env: None,
        doc: "Read this merged version of the table instead of the newest state, read-only.",
    },
    SettingInfo {
        name: "timestamp",
        scope: Scope::Table,
        unit: "an RFC 3339 time",
        default: "",
        zero: "",
        env: None,
        doc: "Read the newest version that was merged by this time, read-only.",
    },
    SettingInfo {
        name: "on_conflict",
        scope: Scope::Table,
        unit: "'update' or 'ignore'",
        default: "update",
        zero: "",
        env: None,
        doc: "What an id does that is inserted again: 'update' replaces the row, 'ignore' leaves \
              the first one as it is. Fixed when the table is made.",
    },
];

/// Looks a setting up by name, with or without the `rollout.` prefix, in any case.
pub fn find_setting(name: &str) -> Option<&'static SettingInfo> {
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix("rollout.").unwrap_or(&name);
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// The settings of a process. Defaults are those of [`SETTINGS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// Cap of the shared cache, in bytes; 0 gives every store a default session of its own.
    pub cache_bytes: u64,
    /// Time between flushes; zero flushes only on request.
    pub flush_interval: Duration,
    /// Merge when this many generations wait; 0 never by count.
    pub merge_after_generations: usize,
    /// Merge when waiting generations hold this many bytes; 0 never by size.
    pub merge_after_bytes: u64,
    /// Merge when the oldest waiting generation is this old; zero never by age.
    pub merge_max_age: Duration,
    /// Most bytes of generations one merge commit takes.
    pub merge_pass_bytes: u64,
    /// Generations that may wait for a merge before a flush merges by itself; 0 sets no bound.
    pub max_waiting_generations: usize,
    /// Rows of the base from which an index on ids is kept; 0 never.
    pub id_index_min_rows: u64,
    /// Most puts in flight per store.
    pub max_lanes: usize,
    /// How long a put waits for further statements, in hundredths of the time puts take; 0 never.
    pub linger_percent: u64,
    /// How long a statement waits for its put; zero waits for ever.
    pub put_timeout: Duration,
    /// A memtable is flushed early at this size in bytes.
    pub max_memtable_bytes: u64,
    /// Bound on unflushed bytes over all stores of the process.
    pub max_unflushed_bytes: u64,
    /// Time after which an unchanged lease counts as dead.
    pub lease_ttl: Duration,
    /// How long merged generations are kept for running scans.
    pub generation_grace: Duration,
    /// Time between compactions; zero compacts only on request.
    pub compact_interval: Duration,
    /// Time between clean-ups; zero cleans up only on request.
    pub cleanup_interval: Duration,
    /// Least age of what may still be under way, to be deleted.
    pub cleanup_min_age: Duration,
    /// The fixed name of this process's shards, if any.
    pub shard_id: Option<String>,
    /// Whether writes to local folders are synced.
    pub local_fsync: bool,
}

impl Default for RuntimeSettings {
    fn default() -> Self {
        Self {
            cache_bytes: 2 << 30,
            flush_interval: Duration::from_secs(30),
            merge_after_generations: 16,
            merge_after_bytes: 1 << 30,
            merge_max_age: Duration::from_secs(600),
            merge_pass_bytes: 256 << 20,
            max_waiting_generations: 1000,
            id_index_min_rows: 100_000,
            max_lanes: 4,
            linger_percent: 2,
            put_timeout: Duration::from_secs(120),
            max_memtable_bytes: 64 << 20,
            max_unflushed_bytes: 1 << 30,
            lease_ttl: Duration::from_secs(60),
            generation_grace: Duration::from_secs(3600),
            compact_interval: Duration::from_secs(900),
            cleanup_interval: Duration::from_secs(3600),
            cleanup_min_age: Duration::from_secs(86400),
            shard_id: None,
            local_fsync: true,
        }
    }
}

impl RuntimeSettings {
    /// The defaults, overridden by the environment variables of [`SETTINGS`].
    ///
    /// # Errors
    /// A variable that is set to a value of the wrong form, named with the accepted form.
    pub fn from_env() -> Result<Self> {
        let mut settings = Self::default();
        for info in SETTINGS.iter().filter(|info| info.scope == Scope::Runtime) {
            let Some(variable) = info.env else { continue };
            match std::env::var(variable) {
                Ok(value) => settings.set(info.name, &value).map_err(|error| {
                    RolloutError::invalid(format!("environment variable {variable}: {error}"))
                })?,
                Err(std::env::VarError::NotPresent) => {}
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err(RolloutError::invalid(format!(
                        "environment variable {variable} is not valid Unicode"
                    )));
                }
            }
        }
        settings.validate()?;
        Ok(settings)
    }

    /// Sets one setting by name from text. Bytes take a number with an optional unit
    /// (`64MiB`, `1GB`), durations a number of seconds.
    ///
    /// # Errors
    /// An unknown name, a name that is not a process setting, or a value of the wrong form.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let Some(info) = find_setting(name) else {
            return Err(unknown_setting(name, Scope::Runtime));
        };
        if info.scope != Scope::Runtime {
            return Err(wrong_scope(info));
        }
        match info.name {
            "cache_bytes" => self.cache_bytes = parse_bytes(info.name, value)?,
            "flush_interval_secs" => self.flush_interval = parse_secs(info.name, value)?,
            "merge_after_generations" => {
                self.merge_after_generations = parse_count(info.name, value)? as usize;
            }
            "merge_after_bytes" => self.merge_after_bytes = parse_bytes(info.name, value)?,
            "merge_max_age_secs" => self.merge_max_age = parse_secs(info.name, value)?,
            "merge_pass_bytes" => self.merge_pass_bytes = parse_bytes(info.name, value)?,
            "max_waiting_generations" => {
                self.max_waiting_generations = parse_count(info.name, value)? as usize;
            }
            "id_index_min_rows" => self.id_index_min_rows = parse_count(info.name, value)?,
            "max_lanes" => self.max_lanes = parse_count(info.name, value)? as usize,
            "linger_percent" => self.linger_percent = parse_count(info.name, value)?,
            "put_timeout_secs" => self.put_timeout = parse_secs(info.name, value)?,
            "max_memtable_bytes" => self.max_memtable_bytes = parse_bytes(info.name, value)?,
            "max_unflushed_bytes" => self.max_unflushed_bytes = parse_bytes(info.name, value)?,
            "lease_ttl_secs" => self.lease_ttl = parse_secs(info.name, value)?,
            "generation_grace_secs" => self.generation_grace = parse_secs(info.name, value)?,
            "compact_interval_secs" => self.compact_interval = parse_secs(info.name, value)?,
            "cleanup_interval_secs" => self.cleanup_interval = parse_secs(info.name, value)?,
            "cleanup_min_age_secs" => self.cleanup_min_age = parse_secs(info.name, value)?,
            "shard_id" => self.shard_id = Some(value.to_string()).filter(|id| !id.is_empty()),
            "local_fsync" => self.local_fsync = parse_bool(info.name, value)?,
            other => {
                return Err(RolloutError::invalid(format!(
                    "rollout.{other} cannot be set here"
                )));
            }
        }
        Ok(())
    }

    /// The current value of a process setting, as text.
    pub fn get(&self, name: &str) -> Option<String> {
        Some(match name {
            "cache_bytes" => self.cache_bytes.to_string(),
            "flush_interval_secs" => self.flush_interval.as_secs_f64().to_string(),
            "merge_after_generations" => self.merge_after_generations.to_string(),
            "merge_after_bytes" => self.merge_after_bytes.to_string(),
            "merge_max_age_secs" => self.merge_max_age.as_secs_f64().to_string(),
            "merge_pass_bytes" => self.merge_pass_bytes.to_string(),
            "max_waiting_generations" => self.max_waiting_generations.to_string(),
            "id_index_min_rows" => self.id_index_min_rows.to_string(),
            "max_lanes" => self.max_lanes.to_string(),
            "linger_percent" => self.linger_percent.to_string(),
            "put_timeout_secs" => self.put_timeout.as_secs_f64().to_string(),
            "max_memtable_bytes" => self.max_memtable_bytes.to_string(),
            "max_unflushed_bytes" => self.max_unflushed_bytes.to_string(),
            "lease_ttl_secs" => self.lease_ttl.as_secs_f64().to_string(),
            "generation_grace_secs" => self.generation_grace.as_secs_f64().to_string(),
            "compact_interval_secs" => self.compact_interval.as_secs_f64().to_string(),
            "cleanup_interval_secs" => self.cleanup_interval.as_secs_f64().to_string(),
            "cleanup_min_age_secs" => self.cleanup_min_age.as_secs_f64().to_string(),
            "shard_id" => self.shard_id.clone().unwrap_or_default(),
            "local_fsync" => self.local_fsync.to_string(),
            _ => return None,
        })
    }

    /// Checks what holds between settings.
    ///
    /// # Errors
    /// The first rule that is broken, with the settings it concerns.
    pub fn validate(&self) -> Result<()> {
        let fail = |message: &str| Err(RolloutError::invalid(message));
        if self.max_lanes == 0 || self.max_lanes > 64 {
            return fail("rollout.max_lanes must be between 1 and 64");
        }
        if self.linger_percent > 100 {
            return fail("rollout.linger_percent must be at most 100");
        }
        if self.max_memtable_bytes < 1 << 16 {
            return fail("rollout.max_memtable_bytes must be at least 64KiB");
        }
        if self.max_unflushed_bytes < self.max_memtable_bytes {
            return fail(&format!(
                "rollout.max_unflushed_bytes ({}) must be at least rollout.max_memtable_bytes ({})",
                self.max_unflushed_bytes, self.max_memtable_bytes
            ));
        }
        if self.lease_ttl < Duration::from_millis(100) {
            return fail("rollout.lease_ttl_secs must be at least 0.1");
        }
        Ok(())
    }
}

fn unknown_setting(name: &str, scope: Scope) -> RolloutError {
    let known: Vec<_> = SETTINGS
        .iter()
        .filter(|info| info.scope == scope)
        .map(|info| format!("{PREFIX}.{}", info.name))
        .collect();
    RolloutError::invalid(format!(
        "unknown setting '{name}': expected one of {}",
        known.join(", ")
    ))
}

/// The error for a setting given in the wrong place, naming the right one.
fn wrong_scope(info: &SettingInfo) -> RolloutError {
    let place = match info.scope {
        Scope::Runtime => format!(
            "it belongs to the process: use the environment variable {}, RuntimeSettings, or the \
             command line's flag where there is one (rollouts --help)",
            info.env.unwrap_or_default()
        ),
        Scope::Session => format!(
            "it belongs to the session: use SET rollout.{} = …",
            info.name
        ),
        Scope::Table => format!(
            "it belongs to the table: use OPTIONS ('rollout.{}' '…') of CREATE EXTERNAL TABLE",
            info.name
        ),
    };
    RolloutError::invalid(format!("rollout.{} cannot be set here: {place}", info.name))
}

#[cfg(test)]
mod tests;
