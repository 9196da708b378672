//! What is on storage: the table, its leases, snapshots of it, and which row wins in them.

mod cache;
mod clock;
mod columns;
mod commits;
mod create;
mod lease;
mod location;
pub(crate) mod masks;
pub(crate) mod object_store;
mod presence;
mod scan;
mod sequence;
mod snapshot;
mod table;
mod task_lease;
mod versions;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;

pub use cache::build_session;
pub(crate) use cache::{CacheFigures, SharedCache};
pub(crate) use clock::StampClock;
pub(crate) use columns::add_column;
pub(crate) use lease::{Adopted, LeaseKeeper, MAX_LANES, shard_of_slot};
pub use location::Location;
pub(crate) use object_store::store_params;
pub(crate) use scan::{Batches, ScanSpec, conform, scan_dataset, scan_generation};
pub(crate) use snapshot::{Generation, OwnShard, OwnShards, Snapshot, SnapshotCache};
pub(crate) use table::{LanceTable, OpenRequest};
pub(crate) use task_lease::TaskLease;
pub(crate) use versions::{BaseVersion, versions};

/// The highest stamp of a column of stamps.
pub(crate) fn highest_stamp(column: &arrow_array::ArrayRef) -> Option<i64> {
    let stamps = column.as_primitive_opt::<TimestampMicrosecondType>()?;
    if stamps.null_count() == stamps.len() {
        return None;
    }
    arrow::compute::max(stamps)
}
