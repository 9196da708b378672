//! `rollout_settings()`: every setting with its value and meaning.

use std::sync::Arc;

use arrow_array::{RecordBatch, StringArray};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;

use super::{Report, columns};
use crate::error::Result;
use crate::options::{PREFIX, SETTINGS};
use crate::runtime::{RolloutRuntime, RolloutStore};

#[derive(Debug)]
pub(super) struct Settings;

#[async_trait]
impl Report for Settings {
    fn name(&self) -> &'static str {
        "rollout_settings"
    }

    fn schema(&self) -> SchemaRef {
        columns(&[
            ("name", DataType::Utf8),
            ("scope", DataType::Utf8),
            ("?value", DataType::Utf8),
            ("default", DataType::Utf8),
            ("unit", DataType::Utf8),
            ("zero_means", DataType::Utf8),
            ("?environment_variable", DataType::Utf8),
            ("description", DataType::Utf8),
        ])
    }

    fn takes_table(&self) -> bool {
        false
    }

    async fn run(
        &self,
        runtime: &RolloutRuntime,
        _store: Option<&Arc<RolloutStore>>,
    ) -> Result<RecordBatch> {
        // Session and table settings have a value per session and per table: SHOW tells the former.
        let values = SETTINGS
            .iter()
            .map(|info| runtime.settings().get(info.name));
        let text = |of: fn(&crate::options::SettingInfo) -> &'static str| {
            Arc::new(StringArray::from_iter_values(SETTINGS.iter().map(of)))
        };
        Ok(RecordBatch::try_new(
            self.schema(),
            vec![
                Arc::new(StringArray::from_iter_values(
                    SETTINGS
                        .iter()
                        .map(|info| format!("{PREFIX}.{}", info.name)),
                )),
                text(|info| info.scope.as_str()),
                Arc::new(StringArray::from_iter(values)),
                text(|info| info.default),
                text(|info| info.unit),
                text(|info| info.zero),
                Arc::new(StringArray::from_iter(SETTINGS.iter().map(|info| info.env))),
                text(|info| info.doc),
            ],
        )?)
    }
}
