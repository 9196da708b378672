//! Whether the table that was opened is still the one at its place.
//!
//! A folder may be removed while a process has the table open, and another table made there. Rows that the
//! process flushed then would show up among those of a table they do not belong to.

use std::sync::OnceLock;

use futures::FutureExt;
use lance::Dataset;
use object_store::ObjectStoreExt;
use parking_lot::Mutex;

use super::{LanceTable, Location};
use crate::error::{Result, RolloutError, is_missing};

const REMOVED: &str = "was removed while it was open here";
const REPLACED: &str = "was removed while it was open here, and another made in its place";

/// What is known of a table's presence.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// What became of it, once it was found to be gone.
    lost: OnceLock<&'static str>,
    /// The base version last found to be this table's, and its manifest's tag.
    seen: Mutex<Option<(u64, String)>>,
}

impl Presence {
    /// Refuses to go on with a table that was found to be gone.
    pub(super) fn check(&self, location: &Location) -> Result<()> {
        match self.lost.get() {
            Some(how) => Err(RolloutError::Closed(format!(
                "the table at {location} {how}: rows that were not flushed by then are lost with \
                 it. Drop it here and create it again"
            ))),
            None => Ok(()),
        }
    }

    /// Whether this version was looked at before, and had this tag.
    fn was_seen(&self, version: u64, tag: Option<&str>) -> bool {
        let seen = self.seen.lock();
        let known = seen.as_ref();
        known.is_some_and(|(known, seen)| *known == version && Some(seen.as_str()) == tag)
    }
}

impl LanceTable {
    /// Refuses to go on where the table was removed, or another was made in its place: from then on
    /// [`check_writable`](Self::check_writable) refuses everything. One request, as long as the base version
    /// this process knows is there.
    ///
    /// # Errors
    /// The table is gone, or storage cannot be reached.
    pub(crate) async fn check_present(&self) -> Result<()> {
        self.check_writable("flushed")?;
        let base = self.base();
        let manifest = base.manifest_location();
        let context = || self.context("looking whether the table is still there");
        let lost = match self.object_store().inner.head(&manifest.path).await {
            Ok(found) => {
                let tag = found.e_tag;
                // A tag that was not seen yet may be the same file's: who made it tells.
                let same = self.presence.was_seen(manifest.version, tag.as_deref())
                    || is_same(&base).await.map_err(context())?;
                if same {
                    *self.presence.seen.lock() = tag.map(|tag| (manifest.version, tag));
                }
                (!same).then_some(REPLACED)
            }
            Err(object_store::Error::NotFound { .. }) => match self.refresh_base().await {
                // Old versions are cleaned up.
                Ok(newest) if newest.version().version > manifest.version => None,
                Ok(_) => Some(REPLACED),
                Err(RolloutError::Storage { source, .. }) if is_missing(&source) => Some(REMOVED),
                Err(error) => return Err(error),
            },
            Err(error) => return Err(context()(error.into())),
        };
        if let Some(how) = lost {
            self.presence.lost.get_or_init(|| how);
        }
        self.check_writable("flushed")
    }
}

/// Whether the same commit made the version that is on storage under this one's number.
async fn is_same(base: &Dataset) -> lance::Result<bool> {
    let stored = base
        .checkout_version(base.version().version)
        .boxed()
        .await?;
    Ok(stored.manifest().transaction_file == base.manifest().transaction_file)
}
