//! Session settings: `SET rollout.…`, seen in `SHOW ALL`.

use std::any::Any;
use std::time::Duration;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::error::{DataFusionError, Result as DataFusionResult};

use super::value::{bad_value, parse_count};
use super::{PREFIX, Scope, find_setting, unknown_setting, wrong_scope};
use crate::error::Result;

/// What a SELECT reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freshness {
    /// The base table and flushed generations.
    #[default]
    Flushed,
    /// These, and the unflushed rows this process has acknowledged.
    Latest,
}

impl Freshness {
    /// The setting's text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flushed => "flushed",
            Self::Latest => "latest",
        }
    }
}

impl std::str::FromStr for Freshness {
    type Err = crate::RolloutError;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim().to_ascii_lowercase().as_str() {
            "flushed" => Ok(Self::Flushed),
            "latest" => Ok(Self::Latest),
            _ => Err(bad_value("freshness", text, "'flushed' or 'latest'")),
        }
    }
}

/// The session's settings, an extension of DataFusion's `ConfigOptions`.
#[derive(Debug, Clone)]
pub struct RolloutSessionOptions {
    /// What SELECT reads.
    pub freshness: Freshness,
    /// How old the snapshot may be that a query plans on.
    pub snapshot_max_age: Duration,
}

impl Default for RolloutSessionOptions {
    fn default() -> Self {
        Self {
            freshness: Freshness::Flushed,
            snapshot_max_age: Duration::from_millis(1000),
        }
    }
}

impl RolloutSessionOptions {
    /// Sets one session setting by name, with or without the prefix.
    ///
    /// # Errors
    /// An unknown name, a setting of another scope, or a value of the wrong form.
    pub fn set_by_name(&mut self, key: &str, value: &str) -> Result<()> {
        let Some(info) = find_setting(key) else {
            return Err(unknown_setting(key, Scope::Session));
        };
        match info.name {
            "freshness" => self.freshness = value.parse()?,
            "snapshot_max_age_ms" => {
                self.snapshot_max_age = Duration::from_millis(parse_count(info.name, value)?);
            }
            _ => return Err(wrong_scope(info)),
        }
        Ok(())
    }
}

impl ConfigExtension for RolloutSessionOptions {
    const PREFIX: &'static str = PREFIX;
}

impl ExtensionOptions for RolloutSessionOptions {
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
        self.set_by_name(key, value)
            .map_err(|error| DataFusionError::Configuration(error.to_string()))
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let entry = |name: &str, value: String| ConfigEntry {
            key: format!("{PREFIX}.{name}"),
            value: Some(value),
            description: find_setting(name).map(|info| info.doc).unwrap_or_default(),
        };
        vec![
            entry("freshness", self.freshness.as_str().to_string()),
            entry(
                "snapshot_max_age_ms",
                self.snapshot_max_age.as_millis().to_string(),
            ),
        ]
    }
}
