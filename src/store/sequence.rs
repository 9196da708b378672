//! Sequences of objects, each written only if absent: whoever writes the next number holds the
//! sequence. That needs nothing but put-if-absent, which every store has. The newest object of a
//! sequence is never deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::object_store::ROLLOUTS_DIR;
use super::table::LanceTable;
use crate::error::{Result, RolloutError};

/// The content of an object of a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) holder: Uuid,
    pub(super) state: State,
    pub(super) ttl_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Held,
    Released,
}

/// A sequence as it stands on storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotView {
    /// Its name.
    pub(crate) slot: String,
    /// Its newest number.
    pub(crate) sequence: u64,
}

/// The sequences of one folder of a table, as one holder writes them.
#[derive(Debug)]
pub(super) struct Sequences {
    table: Arc<LanceTable>,
    folder: Path,
    holder: Uuid,
    ttl: Duration,
}

impl Sequences {
    pub(super) fn new(table: Arc<LanceTable>, folder: &str, ttl: Duration) -> Self {
        let folder = table.base_path().clone().join(ROLLOUTS_DIR).join(folder);
        Self {
            table,
            folder,
            holder: Uuid::new_v4(),
            ttl,
        }
    }

    pub(super) fn holder(&self) -> Uuid {
        self.holder
    }

    /// Writes the next number of a sequence. Returns whether this holder has it.
    pub(super) async fn write(&self, slot: &str, sequence: u64, state: State) -> Result<bool> {
        let record = Record {
            holder: self.holder,
            state,
            ttl_ms: self.ttl.as_millis() as u64,
        };
        let body = serde_json::to_vec(&record)
            .map_err(|error| RolloutError::invalid(format!("lease of {slot}: {error}")))?;
        let options = PutOptions {
            mode: PutMode::Create,
            ..Default::default()
        };
        let path = self.path(slot, sequence);
        let store = &self.table.object_store().inner;
        match store.put_opts(&path, body.into(), options).await {
            Ok(_) => Ok(true),
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. },
            ) => {
                // A put whose answer was lost finds itself: then the number is ours after all.
                let there = self.read(slot, sequence).await?;
                Ok(there.as_ref() == Some(&record))
            }
            Err(error) => Err(self.table.context(format!("writing lease {path}"))(
                error.into(),
            )),
        }
    }

    pub(super) async fn read(&self, slot: &str, sequence: u64) -> Result<Option<Record>> {
        let path = self.path(slot, sequence);
        let store = &self.table.object_store().inner;
        let bytes = match store.get(&path).await {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        match bytes {
            // What cannot be read is left to its holder, who will write a newer one.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.table.context(format!("reading lease {path}"))(
                error.into(),
            )),
        }
    }

    /// When the store says a number was written.
    pub(super) async fn written_at(&self, slot: &str, sequence: u64) -> Result<DateTime<Utc>> {
        let path = self.path(slot, sequence);
        match self.table.object_store().inner.head(&path).await {
            Ok(meta) => Ok(meta.last_modified),
            Err(error) => Err(self.table.context(format!("reading lease {path}"))(
                error.into(),
            )),
        }
    }

    pub(super) async fn view_of(&self, slot: &str) -> Result<Option<SlotView>> {
        Ok(self.list(Some(slot)).await?.into_iter().next())
    }

    pub(super) async fn list(&self, slot: Option<&str>) -> Result<Vec<SlotView>> {
        let prefix = match slot {
            Some(slot) => self.folder.clone().join(slot),
            None => self.folder.clone(),
        };
        let store = &self.table.object_store().inner;
        let objects: Vec<_> = store
            .list(Some(&prefix))
            .try_collect()
            .await
            .map_err(|error| self.table.context("listing the leases")(error.into()))?;
        let mut newest: BTreeMap<String, u64> = BTreeMap::new();
        for object in objects {
            if let Some((slot, sequence)) = parse_path(&object.location) {
                let known = newest.entry(slot).or_default();
                *known = sequence.max(*known);
            }
        }
        Ok(newest
            .into_iter()
            .map(|(slot, sequence)| SlotView { slot, sequence })
            .collect())
    }

    /// Deletes numbers that can no longer matter; the newest two always stay.
    pub(super) async fn forget_older(&self, slot: &str, newest: u64) {
        // Deleting one request per renewal would double the bill: every fourth clears four.
        if newest < 4 || !newest.is_multiple_of(4) {
            return;
        }
        let paths: Vec<_> = (newest.saturating_sub(6)..newest - 1)
            .filter(|sequence| *sequence > 0)
            .map(|sequence| Ok(self.path(slot, sequence)))
            .collect();
        let store = &self.table.object_store().inner;
        let mut deleted = store.delete_stream(futures::stream::iter(paths).boxed());
        while deleted.next().await.is_some() {}
    }

    fn path(&self, slot: &str, sequence: u64) -> Path {
        self.folder
            .clone()
            .join(slot)
            .join(format!("{sequence:020}.json"))
    }
}

fn parse_path(path: &Path) -> Option<(String, u64)> {
    let parts: Vec<_> = path.parts().collect();
    let [.., slot, file] = &parts[..] else {
        return None;
    };
    let sequence = file.as_ref().strip_suffix(".json")?.parse().ok()?;
    Some((slot.as_ref().to_string(), sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_parse_back() {
        let path = Path::from("t/_rollouts/leases/auto-1/00000000000000000042.json");
        assert_eq!(parse_path(&path), Some(("auto-1".to_string(), 42)));
        assert_eq!(
            parse_path(&Path::from("t/_rollouts/leases/auto-1/x.json")),
            None
        );
    }
}
