//! Adding a column to a table that is in use.
//!
//! The column is nullable, and NULL in every row there is: nothing is rewritten, and generations and
//! log entries that do not have it yet are read as if it were there. One commit on the base makes it
//! known; every process that looks at the base afterwards, for whatever reason, takes it up. Until
//! then it goes on with the columns it knows.

use std::sync::Arc;
use std::time::Duration;

use arrow_schema::{Field, Schema};
use futures::FutureExt;
use lance::Dataset;
use lance::dataset::NewColumnTransform;
use uuid::Uuid;

use super::LanceTable;
use crate::error::{Result, RolloutError};
use crate::flush::is_conflict;
use crate::schema::{check_column_name, check_storable};

/// How often the commit is tried again when others stand in its way.
const ATTEMPTS: u64 = 30;

/// Adds a column; returns the base version that has it.
///
/// # Errors
/// A name that is taken or not allowed, a type that cannot be stored, commits that kept losing,
/// storage that cannot be reached.
pub(crate) async fn add_column(table: &LanceTable, field: &Field) -> Result<u64> {
    table.check_writable("added")?;
    check_column_name(field.name())?;
    check_storable(field)?;
    let new = Arc::new(Schema::new(vec![field.clone().with_nullable(true)]));
    let mut reason = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            // Those who collide once should not march in step.
            let spread = Uuid::new_v4().as_u128() as u64 % (20 * attempt + 1);
            tokio::time::sleep(Duration::from_millis(spread)).await;
        }
        let base = table.refresh_base().await?;
        check_free(&base, field.name())?;
        let mut changed = base.as_ref().clone();
        let nulls = NewColumnTransform::AllNulls(new.clone());
        let added = changed.add_columns(nulls, None, None).boxed().await;
        match added {
            Ok(()) => {
                let base = table.advance_base(Arc::new(changed));
                return Ok(base.version().version);
            }
            Err(error) if is_conflict(&error) => reason = error.to_string(),
            Err(
                error @ (lance::Error::InvalidInput { .. }
                | lance::Error::NotSupported { .. }
                | lance::Error::Schema { .. }),
            ) => {
                return Err(RolloutError::invalid(format!(
                    "column '{}' of type {} cannot be added: {error}",
                    field.name(),
                    field.data_type()
                )));
            }
            Err(error) => {
                return Err(table.context(format!("adding column '{}'", field.name()))(
                    error,
                ));
            }
        }
    }
    Err(RolloutError::Conflict(format!(
        "adding a column to {} kept losing against other commits and changed nothing: {reason}",
        table.location()
    )))
}

fn check_free(base: &Dataset, name: &str) -> Result<()> {
    let fields = &base.schema().fields;
    // Names that differ in case only can be told apart by quotes alone.
    let taken = fields
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case(name));
    match taken {
        Some(field) => Err(RolloutError::invalid(format!(
            "the table has a column '{}' already, of type {}",
            field.name,
            field.data_type()
        ))),
        None => Ok(()),
    }
}
