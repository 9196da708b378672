//! Table options: `OPTIONS (…)` of `CREATE EXTERNAL TABLE`.
//!
//! DataFusion hands a key without a dot on as `format.<key>`, lower-cased; a key with a dot arrives
//! as written. The documented spelling is `'rollout.key'`; the others are understood where they
//! arrive. Whatever is not ours must be a storage option (`aws_…`, `aws.…` and their kin); anything
//! else is refused.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, NaiveDateTime, Utc};
use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::error::{DataFusionError, Result as DataFusionResult};

use super::value::{bad_value, parse_bool, parse_count};
use super::{PREFIX, RuntimeSettings, SETTINGS, Scope, find_setting, wrong_scope};
use crate::error::{Result, RolloutError};

/// What is read instead of the newest state: what had been merged by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtVersion {
    /// The base version of this number.
    Number(u64),
    /// The newest base version that was there at this time.
    Timestamp(DateTime<Utc>),
}

/// What becomes of a row whose id is there already. Fixed when a table is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The newest version counts.
    #[default]
    Update,
    /// The oldest version counts: a row that is inserted again changes nothing.
    Ignore,
}

impl OnConflict {
    /// The option's text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Ignore => "ignore",
        }
    }

    /// Whether a version of a row takes the place of one that came before it, by their stamps.
    pub(crate) fn replaces(self, stamp: i64, before: i64) -> bool {
        match self {
            Self::Update => stamp >= before,
            Self::Ignore => stamp < before,
        }
    }
}

impl std::str::FromStr for OnConflict {
    type Err = RolloutError;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim().to_ascii_lowercase().as_str() {
            "update" => Ok(Self::Update),
            "ignore" => Ok(Self::Ignore),
            _ => Err(bad_value("on_conflict", text, "'update' or 'ignore'")),
        }
    }
}

/// What a table is opened with.
#[derive(Clone, PartialEq, Eq)]
pub struct TableOptions {
    /// Whether an empty location may become a new table.
    pub create: bool,
    /// Never write anything.
    pub read_only: bool,
    /// The version to read instead of the newest; nothing is written then.
    pub at: Option<AtVersion>,
    /// What the table does with an id that is there already, where it is new; none takes what is
    /// stored, or the default.
    pub on_conflict: Option<OnConflict>,
    /// The fixed name of this process's shards for this table; overrides the process setting.
    pub shard_id: Option<String>,
    /// Options of the object store: credentials, region, endpoint. Never printed.
    pub storage: BTreeMap<String, String>,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            create: true,
            read_only: false,
            at: None,
            on_conflict: None,
            shard_id: None,
            storage: BTreeMap::new(),
        }
    }
}

impl std::fmt::Debug for TableOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Storage options hold secrets: their names say enough.
        f.debug_struct("TableOptions")
            .field("create", &self.create)
            .field("read_only", &self.read_only)
            .field("at", &self.at)
            .field("on_conflict", &self.on_conflict)
            .field("shard_id", &self.shard_id)
            .field("storage", &self.storage.keys().collect::<Vec<_>>())
            .finish()
    }
}

impl TableOptions {
    /// Reads the options of a CREATE EXTERNAL TABLE statement.
    ///
    /// # Errors
    /// An unknown key, a key given twice in different spellings, or a value of the wrong form.
    pub fn from_map(options: &HashMap<String, String>) -> Result<Self> {
        let mut parsed = Self::default();
        let mut seen = BTreeMap::new();
        for (key, value) in options {
            if let Some(earlier) = seen.insert(canonical_key(key), key) {
                return Err(RolloutError::invalid(format!(
                    "option '{key}' is given twice (also as '{earlier}')"
                )));
            }
            parsed.set(key, value)?;
        }
        // An old version is read-only: what could only be meant for writing contradicts it.
        let contradiction = if parsed.at.is_none() {
            None
        } else if seen.contains_key("read_only") && !parsed.read_only {
            Some("read_only = false")
        } else if parsed.shard_id.is_some() {
            Some("shard_id")
        } else {
            None
        };
        match contradiction {
            Some(other) => Err(RolloutError::invalid(format!(
                "rollout.version and rollout.timestamp open a table read-only: leave \
                 rollout.{other} out"
            ))),
            None => Ok(parsed),
        }
    }

    /// Sets one option by key, in any of its spellings.
    ///
    /// # Errors
    /// An unknown key or a value of the wrong form.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let canonical = canonical_key(key);
        match canonical.as_str() {
            "create" => self.create = parse_bool("create", value)?,
            "read_only" => self.read_only = parse_bool("read_only", value)?,
            "version" => self.read_at(AtVersion::Number(parse_count("version", value)?))?,
            "timestamp" => self.read_at(AtVersion::Timestamp(parse_timestamp(value)?))?,
            "on_conflict" => self.on_conflict = Some(value.parse()?),
            "shard_id" => {
                // Checked as the process setting is, so that both take the same form.
                RuntimeSettings::default().set("shard_id", value)?;
                self.shard_id = Some(value.to_string()).filter(|id| !id.is_empty());
            }
            other => match find_setting(other) {
                Some(info) => return Err(wrong_scope(info)),
                None if is_storage_key(other) => {
                    self.storage.insert(other.to_string(), value.to_string());
                }
                None => return Err(unknown_option(key)),
            },
        }
        Ok(())
    }

    fn read_at(&mut self, at: AtVersion) -> Result<()> {
        match self.at.replace(at) {
            None => Ok(()),
            Some(_) => Err(RolloutError::invalid(
                "rollout.version and rollout.timestamp name one version each: give one of them",
            )),
        }
    }
}

/// A time with its offset; one without is UTC, as `rollout_versions` shows it.
fn parse_timestamp(value: &str) -> Result<DateTime<Utc>> {
    let text = value.trim();
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.to_utc());
    }
    ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"]
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
        .map(|time| time.and_utc())
        .ok_or_else(|| bad_value("timestamp", value, "a time such as 2026-01-31T12:00:00Z"))
}

/// `Rollout.Create`, `format.create` and `create` are one key; `aws.region` and `aws_region` too.
fn canonical_key(key: &str) -> String {
    let key = key.trim().to_ascii_lowercase();
    let key = key
        .strip_prefix("rollout.")
        .or_else(|| key.strip_prefix("format."))
        .unwrap_or(&key);
    match key.split_once('.') {
        Some((service @ ("aws" | "azure" | "google" | "gcp"), rest)) => {
            let service = if service == "gcp" { "google" } else { service };
            format!("{service}_{rest}")
        }
        _ => key.to_string(),
    }
}

/// Whether the object store knows this key.
fn is_storage_key(key: &str) -> bool {
    use object_store::ClientConfigKey;
    let client = key.parse::<ClientConfigKey>().is_ok();
    #[cfg(feature = "aws")]
    let client = client || key.parse::<object_store::aws::AmazonS3ConfigKey>().is_ok();
    #[cfg(feature = "azure")]
    let client = client || key.parse::<object_store::azure::AzureConfigKey>().is_ok();
    #[cfg(feature = "gcp")]
    let client = client || key.parse::<object_store::gcp::GoogleConfigKey>().is_ok();
    client
}

fn unknown_option(key: &str) -> RolloutError {
    let known: Vec<_> = SETTINGS
        .iter()
        .filter(|info| info.scope == Scope::Table)
        .map(|info| format!("'{PREFIX}.{}'", info.name))
        .collect();
    RolloutError::invalid(format!(
        "unknown option '{key}': expected one of {}, 'rollout.shard_id', or a storage option such \
         as 'aws.region'",
        known.join(", ")
    ))
}

/// Lets hosts that check OPTIONS against registered extensions (datafusion-cli does) accept the
/// `rollout.…` keys; the table factory reads them itself.
#[derive(Debug, Clone, Default)]
pub struct RolloutTableOptionsExtension {
    options: TableOptions,
}

impl ConfigExtension for RolloutTableOptionsExtension {
    const PREFIX: &'static str = PREFIX;
}

impl ExtensionOptions for RolloutTableOptionsExtension {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> DataFusionResult<()> {
        self.options
            .set(key, value)
            .map_err(|error| DataFusionError::Configuration(error.to_string()))
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_arrives() {
        for key in [
            "rollout.create",
            "format.create",
            "ROLLOUT.Create",
            "create",
        ] {
            let mut options = TableOptions::default();
            options.set(key, "false").expect(key);
            assert!(!options.create, "{key}");
        }
    }

    #[test]
    fn unknown_and_misplaced_keys_are_refused() {
        let mut options = TableOptions::default();
        let error = options.set("rollout.creat", "true").expect_err("typo");
        assert!(error.to_string().contains("rollout.create"), "{error}");
        let error = options.set("rollout.cache_bytes", "1").expect_err("scope");
        assert!(error.to_string().contains("ROLLOUT_CACHE_BYTES"), "{error}");
        let error = options.set("rollout.create", "perhaps").expect_err("value");
        assert!(error.to_string().contains("true or false"), "{error}");
    }

    #[test]
    fn twice_in_two_spellings_is_refused() {
        let map = HashMap::from([
            ("rollout.create".to_string(), "true".to_string()),
            ("format.create".to_string(), "false".to_string()),
        ]);
        assert!(TableOptions::from_map(&map).is_err());
    }

    #[test]
    #[cfg(feature = "aws")]
    fn storage_keys_are_known_and_not_printed() {
        let mut options = TableOptions::default();
        options
            .set("aws.secret_access_key", "hush")
            .expect("dotted");
        options.set("aws_region", "eu-west-1").expect("plain");
        options.set("allow_http", "true").expect("client");
        let printed = format!("{options:?}");
        assert!(!printed.contains("hush") && printed.contains("aws_secret_access_key"));
    }

    #[test]
    fn one_version_is_named_in_one_way() {
        let at = |pairs: &[(&str, &str)]| {
            let map = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string()));
            TableOptions::from_map(&map.collect()).map(|options| options.at)
        };
        let noon = "2026-01-31T12:00:00.5Z"
            .parse::<DateTime<Utc>>()
            .expect("a time");
        for (value, want) in [
            ("2026-01-31T12:00:00.5Z", Some(noon)),
            ("2026-01-31T13:00:00.5+01:00", Some(noon)),
            ("2026-01-31T12:00:00.500", Some(noon)),
            ("2026-01-31 12:00:00.5", Some(noon)),
            ("yesterday", None),
            ("2026-01-31", None),
            ("", None),
        ] {
            let got = at(&[("rollout.timestamp", value)]).ok().flatten();
            assert_eq!(got, want.map(AtVersion::Timestamp), "{value}");
        }
        let both = [
            ("rollout.version", "3"),
            ("rollout.timestamp", "2026-01-31T12:00:00Z"),
        ];
        assert!(at(&both).is_err());
        assert!(at(&[("rollout.version", "-1")]).is_err());
        assert!(at(&[("rollout.version", "3"), ("rollout.read_only", "false")]).is_err());
        assert!(at(&[("rollout.version", "3"), ("rollout.read_only", "true")]).is_ok());
        assert!(at(&[("rollout.version", "3"), ("rollout.shard_id", "w")]).is_err());
    }
}
