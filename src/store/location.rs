//! Where a table lives: one canonical URI per place, however it was written.
//!
//! Local folders are opened through the `file-object-store` scheme, not `file`: under `file` Lance
//! writes data files by itself, without a sync and past every wrapper; through the object store
//! every write can be synced before it counts (see [`object_store`](super::object_store)).

use std::path::{Component, Path as FsPath, PathBuf};

use url::Url;

use crate::error::{Result, RolloutError};

/// The scheme Lance sends wholly through the object store for local files.
pub(crate) const LOCAL_SCHEME: &str = "file-object-store";

/// A table's canonical place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    uri: String,
    local: Option<PathBuf>,
}

impl Location {
    /// Reads a LOCATION: a folder (relative, absolute, with `~`), a `file://` URL, or the URL of an
    /// object store (`s3://bucket/path`, `az://`, `gs://`).
    ///
    /// # Errors
    /// An empty location, one that is a file, or a URL of an unknown scheme.
    pub fn parse(text: &str) -> Result<Self> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(RolloutError::invalid(
                "LOCATION is empty: give a folder or an object-store URL such as s3://bucket/path",
            ));
        }
        match Url::parse(trimmed) {
            // A one-letter scheme is a Windows drive.
            Ok(url) if url.scheme().len() > 1 => Self::from_url(trimmed, &url),
            _ => Self::from_path(&expand_home(trimmed)?),
        }
    }

    fn from_url(text: &str, url: &Url) -> Result<Self> {
        match url.scheme() {
            "file" | LOCAL_SCHEME => {
                let path = Url::parse(&text.replacen(LOCAL_SCHEME, "file", 1))
                    .ok()
                    .and_then(|url| url.to_file_path().ok())
                    .ok_or_else(|| {
                        RolloutError::invalid(format!("LOCATION '{text}' is not a local path"))
                    })?;
                Self::from_path(&path)
            }
            "s3" if !cfg!(feature = "aws") => Err(not_built_in(text, "aws")),
            "az" | "abfss" if !cfg!(feature = "azure") => Err(not_built_in(text, "azure")),
            "gs" if !cfg!(feature = "gcp") => Err(not_built_in(text, "gcp")),
            "s3" | "az" | "abfss" | "gs" | "memory" | "shared-memory" => {
                if !url.username().is_empty() || url.password().is_some() {
                    return Err(RolloutError::invalid(
                        "LOCATION holds credentials: give them as OPTIONS or by the environment",
                    ));
                }
                if url.query().is_some() || url.fragment().is_some() {
                    return Err(RolloutError::invalid(
                        "LOCATION holds a '?' or '#': it is the place of a table alone. Options and \
                         credentials go into OPTIONS or the environment",
                    ));
                }
                let mut uri = url.to_string();
                while uri.ends_with('/') && !uri.ends_with("://") {
                    uri.pop();
                }
                Ok(Self { uri, local: None })
            }
            other => Err(RolloutError::invalid(format!(
                "LOCATION '{text}': unknown scheme '{other}', expected a folder or one of s3, az, \
                 abfss, gs"
            ))),
        }
    }

    fn from_path(path: &FsPath) -> Result<Self> {
        let shown = path.display();
        let absolute = std::path::absolute(path)
            .map_err(|error| RolloutError::invalid(format!("LOCATION '{shown}': {error}")))?;
        let canonical = canonicalize_existing(&absolute);
        if canonical.is_file() {
            return Err(RolloutError::invalid(format!(
                "LOCATION '{shown}' is a file: a rollouts table is a folder"
            )));
        }
        let url = Url::from_file_path(&canonical)
            .map_err(|()| RolloutError::invalid(format!("LOCATION '{shown}' is not a path")))?;
        let mut uri = format!("{LOCAL_SCHEME}://{}", url.path());
        while uri.ends_with('/') && !uri.ends_with("://") {
            uri.pop();
        }
        Ok(Self {
            uri,
            local: Some(canonical),
        })
    }

    /// The URI Lance opens.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// Whether this is a folder on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// The folder, if local.
    pub(crate) fn local_path(&self) -> Option<&FsPath> {
        self.local.as_deref()
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.local {
            Some(path) => path.display().fmt(f),
            None => f.write_str(&self.uri),
        }
    }
}

fn not_built_in(text: &str, feature: &str) -> RolloutError {
    RolloutError::invalid(format!(
        "LOCATION '{text}': this program was built without the feature '{feature}', which such a \
         location needs"
    ))
}

/// Resolves links and `..`, so two names of one folder are one place. What does not exist yet has no
/// links; `..` above it goes up in the text.
fn canonicalize_existing(path: &FsPath) -> PathBuf {
    let mut real = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                real.pop();
            }
            Component::CurDir => {}
            other => {
                real.push(other);
                if let Ok(resolved) = real.canonicalize() {
                    real = resolved;
                }
            }
        }
    }
    real
}

fn expand_home(text: &str) -> Result<PathBuf> {
    let Some(rest) = text.strip_prefix('~') else {
        return Ok(PathBuf::from(text));
    };
    if !rest.is_empty() && !rest.starts_with('/') {
        return Ok(PathBuf::from(text));
    }
    match std::env::var_os("HOME") {
        Some(home) => Ok(PathBuf::from(home).join(rest.trim_start_matches('/'))),
        None => Err(RolloutError::invalid(format!(
            "LOCATION '{text}': HOME is not set, write the path out"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_has_one_uri() {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().canonicalize().expect("real");
        let plain = root.join("a b").display().to_string();
        let want = Location::parse(&plain).expect("path");
        for other in [
            format!("{plain}/"),
            format!("{}/./a b", root.display()),
            format!("{}/missing/../a b", root.display()),
            format!("file://{}", plain.replace(' ', "%20")),
            want.uri().to_string(),
        ] {
            assert_eq!(Location::parse(&other).expect("same"), want, "{other}");
        }
        assert!(want.uri().starts_with("file-object-store:///"));
        assert_eq!(want.to_string(), plain);
    }

    #[test]
    fn object_stores_and_nonsense() {
        let s3 = Location::parse("s3://bucket/path/").expect("s3");
        assert_eq!(s3.uri(), "s3://bucket/path");
        for bad in [
            "",
            "ftp://x/y",
            "s3://key:secret@bucket/x",
            "s3://bucket/x?X-Amz-Signature=secret",
            "s3://bucket/x#secret",
        ] {
            let error = Location::parse(bad).expect_err(bad).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        let file = tempfile::NamedTempFile::new().expect("file");
        let path = file.path().display().to_string();
        assert!(
            Location::parse(&path)
                .expect_err("file")
                .to_string()
                .contains("is a file")
        );
    }
}
