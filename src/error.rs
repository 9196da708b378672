//! The errors of this crate: few kinds, each telling the caller what to do next.
//!
//! Storage and engine errors keep their typed source. [`RolloutError`] turns into a
//! [`DataFusionError`] in one place, here: what is wrong with a statement becomes a planning
//! error, a bound that was met becomes `ResourcesExhausted`, everything else is carried whole.

use datafusion::error::DataFusionError;

/// The result of this crate's own functions.
pub type Result<T, E = RolloutError> = std::result::Result<T, E>;

/// What went wrong, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// A statement, option or argument is wrong. Nothing was written; mend it and try again.
    #[error("{0}")]
    Invalid(String),

    /// The request is understood and not offered. The message names what to use instead.
    #[error("{0}")]
    Unsupported(String),

    /// Storage answered with an error after bounded retries. What was acknowledged before is
    /// intact; the same call works again when the storage does.
    #[error("{context}: {}", without_places(&source.to_string()))]
    Storage {
        /// What was being done, and on which object.
        context: String,
        /// The error of the storage layer.
        #[source]
        source: lance::Error,
    },

    /// An append failed after it was sent. Its rows may or may not be durable.
    #[error(
        "{context}; {durable_rows} rows of this statement are durable, the outcome of the last \
         put of {unknown_rows} rows is unknown: repeating the statement with the same ids is safe \
         (ids made by default would double its rows)"
    )]
    OutcomeUnknown {
        /// What failed.
        context: String,
        /// Rows of the statement acknowledged by storage before the failure.
        durable_rows: u64,
        /// Rows whose fate is unknown.
        unknown_rows: u64,
    },

    /// A statement of more than one put failed after the first ones; what was not durable by then was not
    /// written.
    #[error("{}: {source}", partly_written(*durable_rows))]
    PartlyWritten {
        /// Rows of the statement that are durable.
        durable_rows: u64,
        /// What failed.
        source: Box<RolloutError>,
    },

    /// Another process took over what this one was writing through. Nothing more is
    /// acknowledged under the lost name.
    #[error("{0}")]
    Fenced(String),

    /// A commit kept losing against other writers. Nothing changed; try again.
    #[error("{0}")]
    Conflict(String),

    /// A bound was met and waiting did not help.
    #[error("{0}")]
    Exhausted(String),

    /// The store, or its runtime, was shut down, or the table was removed while it was open.
    #[error("{0}")]
    Closed(String),

    /// DataFusion failed while serving this crate (reading an input, planning an expression).
    #[error(transparent)]
    DataFusion(#[from] DataFusionError),
}

impl RolloutError {
    /// An [`RolloutError::Invalid`] with this message.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    /// Wraps a storage error with what was being done.
    pub fn storage(context: impl Into<String>) -> impl FnOnce(lance::Error) -> Self {
        let context = context.into();
        move |source| Self::Storage { context, source }
    }
}

impl From<arrow::error::ArrowError> for RolloutError {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::DataFusion(error.into())
    }
}

impl From<RolloutError> for DataFusionError {
    fn from(error: RolloutError) -> Self {
        match error {
            RolloutError::Invalid(message) => Self::Plan(message),
            RolloutError::Unsupported(message) => Self::NotImplemented(message),
            RolloutError::Exhausted(message) => Self::ResourcesExhausted(message),
            RolloutError::DataFusion(error) => error,
            RolloutError::PartlyWritten {
                durable_rows,
                source,
            } => Self::from(*source).context(partly_written(durable_rows)),
            other => Self::External(Box::new(other)),
        }
    }
}

fn partly_written(durable_rows: u64) -> String {
    format!(
        "{durable_rows} rows of this statement are durable, the rest was not written; repeating it with \
         the same ids is safe (ids made by default would double its rows)"
    )
}

/// Whether there is no such table, version or file.
pub(crate) fn is_missing(error: &lance::Error) -> bool {
    matches!(
        error,
        lance::Error::DatasetNotFound { .. } | lance::Error::NotFound { .. }
    )
}

/// Lance's errors end with the place in its sources where they arose, which tells a user nothing
/// and shows where the program was built.
pub(crate) fn without_places(message: &str) -> String {
    let is_place = |part: &str| {
        let mut end = part.rsplitn(3, ':');
        let numbers = [end.next(), end.next()];
        let numeric = |n: &Option<&str>| {
            n.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        numbers.iter().all(numeric) && end.next().is_some_and(|file| file.ends_with(".rs"))
    };
    message
        .split(", ")
        .filter(|part| !is_place(part.trim()))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_sources_are_left_out() {
        let lance = "LanceError(IO): gone, or so, /home/me/.cargo/registry/src/x/lance-14.0.2/src/io.rs:12:34";
        assert_eq!(without_places(lance), "LanceError(IO): gone, or so");
        for kept in ["plain", "a, b", "see main.rs, line 3", "1:2, 3:4"] {
            assert_eq!(without_places(kept), kept);
        }
    }
}
