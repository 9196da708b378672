//! Whether the table that was opened is still the one at its place.
//!
//! A folder may be removed while a process has the table open, and another table made there. Rows that the
//! process flushed then would show up among those of a table they do not belong to.

use futures::FutureExt;
use lance::Dataset;
use object_store::ObjectStoreExt;

use super::LanceTable;
use crate::error::{Result, RolloutError};

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
            Ok(found) if self.was_seen(manifest.version, found.e_tag.as_deref()) => None,
            // A tag that was not seen yet may be the same file's: who made it tells.
            Ok(found) => match is_same(&base).await.map_err(context())? {
                true => {
                    *self.seen.lock() = found.e_tag.map(|tag| (manifest.version, tag));
                    None
                }
                false => Some(REPLACED),
            },
            Err(object_store::Error::NotFound { .. }) => {
                match self.refresh_base().await {
                    // Old versions are cleaned up.
                    Ok(newest) if newest.version().version > manifest.version => None,
                    Ok(_) => Some(REPLACED),
                    Err(RolloutError::Storage {
                        source: lance::Error::NotFound { .. } | lance::Error::DatasetNotFound { .. },
                        ..
                    }) => Some(REMOVED),
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(context()(error.into())),
        };
        match lost {
            Some(how) => Err(self.lose(how)),
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

const REMOVED: &str = "was removed while it was open here";
const REPLACED: &str = "was removed while it was open here, and another made in its place";

/// Whether the same commit made the version that is on storage under this one's number.
async fn is_same(base: &Dataset) -> lance::Result<bool> {
    let stored = base
        .checkout_version(base.version().version)
        .boxed()
        .await?;
    Ok(stored.manifest().transaction_file == base.manifest().transaction_file)
}

/// What is said of a table that is gone.
pub(super) fn gone(location: &super::Location, how: &str) -> RolloutError {
    RolloutError::Closed(format!(
        "the table at {location} {how}: rows that were not flushed by then are lost with it. Drop it \
         here and create it again"
    ))
}
