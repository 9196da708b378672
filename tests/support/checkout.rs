//! Where the checkout is.

use std::path::PathBuf;

/// The folder of Cargo.toml. Cargo says it when it runs a test; what was compiled in may be another
/// checkout's, for several may share a target folder.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into())
        .into()
}
