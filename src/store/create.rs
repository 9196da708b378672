//! Making a table where there is none.
//!
//! Of first writers that come at once one makes the table, and the others take it. Lance's own way of
//! creating a dataset does not do for that: it looks whether there is one, writes, and looks again
//! before the commit; one that has appeared in between it overwrites, with all its rows. So the commit
//! is made apart, without retries, which refuses to overwrite anything.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::RecordBatchIterator;
use arrow_schema::{Schema, SchemaRef};
use futures::FutureExt;
use lance::Dataset;
use lance::dataset::transaction::Transaction;
use lance::dataset::{CommitBuilder, InsertBuilder, WriteMode, WriteParams};
use lance_io::object_store::ObjectStore;

use super::commits::whole_history;
use super::table::{OpenRequest, load};
use crate::error::{Result, RolloutError};
use crate::options::OnConflict;
use crate::schema::{DEFAULTS_METADATA, ON_CONFLICT_METADATA, TableSchema, render_defaults};

pub(super) async fn create(request: &OpenRequest) -> Result<Dataset> {
    let location = &request.location;
    if request.read_only || !request.create {
        return Err(RolloutError::invalid(format!(
            "there is no rollouts table at {location}, and this statement may not create one \
             (options 'rollout.create', 'rollout.read_only', 'rollout.version' and \
             'rollout.timestamp')"
        )));
    }
    if let Some(path) = location.local_path() {
        refuse_foreign_folder(path)?;
        std::fs::create_dir_all(path).map_err(|error| {
            RolloutError::invalid(format!("LOCATION {location} cannot be written: {error}"))
        })?;
    }
    refuse_remains(request).await?;
    let (schema, mut metadata) = match &request.declared {
        Some(declared) => (
            declared.clone(),
            HashMap::from([(
                DEFAULTS_METADATA.to_string(),
                render_defaults(declared.defaults())?,
            )]),
        ),
        None => (TableSchema::rollouts(), HashMap::new()),
    };
    // What is the default is not written: other programs' tables have no such mark either.
    if let Some(mode) = request
        .on_conflict
        .filter(|mode| *mode != OnConflict::default())
    {
        metadata.insert(ON_CONFLICT_METADATA.to_string(), mode.as_str().to_string());
    }
    let stored = Arc::new(Schema::new_with_metadata(
        schema.stored().fields().clone(),
        metadata,
    ));
    let made = commit_new(request, stored).boxed().await;
    match made {
        Ok(base) => Ok(base),
        // Another first writer was faster: its table is ours too.
        Err(first) => match load(request).await {
            Ok(base) => Ok(base),
            Err(_) => Err(RolloutError::Storage {
                context: format!("creating the table at {location}"),
                source: first,
            }),
        },
    }
}

/// A folder that holds something else, or belongs to another table, is not made into a table by a slip
/// of the pen.
fn refuse_foreign_folder(path: &std::path::Path) -> Result<()> {
    let mut above = path.ancestors().skip(1);
    if let Some(table) = above.find(|folder| folder.join("_versions").is_dir()) {
        return Err(RolloutError::invalid(format!(
            "LOCATION {} lies inside the table at {}: use a folder beside it",
            path.display(),
            table.display()
        )));
    }
    let foreign = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name())
        // What a first writer that was interrupted, or runs right now, leaves.
        .find(|name| !name.to_string_lossy().starts_with('_') && name != "data");
    match foreign {
        Some(name) => Err(RolloutError::invalid(format!(
            "LOCATION {} is not a rollouts table and not empty (it holds '{}'): use a new or empty \
             folder",
            path.display(),
            name.to_string_lossy()
        ))),
        None => Ok(()),
    }
}

/// A log without a base is what is left of a table that was removed, or is written to by a process that
/// has the table still open: its rows would be taken for the new table's.
async fn refuse_remains(request: &OpenRequest) -> Result<()> {
    let location = &request.location;
    let context = || RolloutError::storage(format!("looking for a log at {location}"));
    let registry = request.cache.session.store_registry();
    let opened = ObjectStore::from_uri_and_params(registry, location.uri(), &request.params);
    let (store, path) = opened.await.map_err(context())?;
    let log = path.join("_mem_wal");
    let shards = match store.read_dir(log).await {
        Ok(shards) => shards,
        Err(lance::Error::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(context()(error)),
    };
    // A faster first writer has made a base before its log.
    if shards.is_empty() || load(request).boxed().await.is_ok() {
        return Ok(());
    }
    Err(RolloutError::invalid(format!(
        "LOCATION {location} holds the log of a table whose base is gone (_mem_wal): its rows would \
         show up in a new table. Remove what is left, once no process has that table open, or use \
         another place"
    )))
}

async fn commit_new(request: &OpenRequest, stored: SchemaRef) -> lance::Result<Dataset> {
    let transaction = prepare_new(request, stored).await?;
    commit(request, transaction).await
}

/// A table without rows that is not committed yet.
async fn prepare_new(request: &OpenRequest, stored: SchemaRef) -> lance::Result<Transaction> {
    let params = WriteParams {
        mode: WriteMode::Create,
        session: Some(request.cache.session.clone()),
        store_params: Some(request.params.clone()),
        ..Default::default()
    };
    let empty = RecordBatchIterator::new(std::iter::empty(), stored);
    InsertBuilder::new(request.location.uri())
        .with_params(&params)
        .execute_uncommitted_stream(empty)
        .await
}

/// Commits it as the first version, or fails.
async fn commit(request: &OpenRequest, transaction: Transaction) -> lance::Result<Dataset> {
    let defaults = WriteParams::default();
    let uri = request.location.uri();
    CommitBuilder::new(uri)
        .with_commit_handler(whole_history(uri, &request.params).await?)
        .with_session(request.cache.session.clone())
        .with_store_params(request.params.clone())
        .with_storage_format(defaults.data_storage_version.unwrap_or_default())
        .enable_v2_manifest_paths(defaults.enable_v2_manifest_paths)
        .use_stable_row_ids(defaults.enable_stable_row_ids)
        .with_max_retries(0)
        .execute(transaction)
        .await
}

#[cfg(test)]
mod tests {
    use super::super::cache::SharedCache;
    use super::super::location::Location;
    use super::*;

    fn request(folder: &std::path::Path) -> OpenRequest {
        OpenRequest {
            location: Location::parse(&folder.display().to_string()).expect("a place"),
            cache: SharedCache::with_total(64 << 20),
            params: Default::default(),
            local_fsync: false,
            declared: None,
            create: true,
            read_only: false,
            at: None,
            on_conflict: None,
        }
    }

    #[tokio::test]
    async fn a_table_is_not_made_inside_another() {
        let folder = tempfile::tempdir().expect("folder");
        let outer = request(folder.path());
        crate::store::object_store::install_local_store(&outer.cache.session, false);
        create(&outer).await.expect("creates");
        let within = folder.path().join("data/more");
        let refused = create(&request(&within)).await.expect_err("inside");
        assert!(refused.to_string().contains("lies inside"), "{refused}");
        assert!(!within.exists());
    }

    /// Both saw that there was nothing; the second commits when the first has a table.
    #[tokio::test]
    async fn a_table_made_meanwhile_is_not_overwritten() {
        let folder = tempfile::tempdir().expect("folder");
        let (first, second) = (request(folder.path()), request(folder.path()));
        crate::store::object_store::install_local_store(&first.cache.session, false);
        crate::store::object_store::install_local_store(&second.cache.session, false);
        let stored = TableSchema::rollouts().stored().clone();
        let late = prepare_new(&second, stored).await.expect("prepares");
        let made = create(&first).await.expect("creates");
        assert_eq!(made.version().version, 1);
        commit(&second, late).await.expect_err("there is one");
        let found = load(&second).await.expect("opens");
        assert_eq!(found.version().version, 1);
        let again = create(&second).await.expect("takes what is there");
        assert_eq!(again.version().version, 1);
    }
}
