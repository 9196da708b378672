//! Names of tracing spans and of their fields.
//!
//! Names of fields are those of OpenTelemetry's semantic conventions for database clients, where they
//! have one. A span is named after what is done: `flush`, `merge`, `compact`, `cleanup` and `adopt` at
//! the level INFO, and at DEBUG, for they are many, `put`, `lease` and `plan`. None holds rows,
//! statements or options of the object store.

use std::fmt::Display;

use tracing::Span;
use tracing::field::Empty;

/// What `db.system.name` says.
const SYSTEM: &str = "datafusion-rollouts";

/// A piece of work that has a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// One WAL object, of one statement or of many.
    Put,
    /// What a query reads is worked out.
    Plan,
    Flush,
    Merge,
    Lease,
    Adopt,
    Compact,
    CleanUp,
}

impl Operation {
    /// Those of the background.
    pub(crate) const BACKGROUND: [Self; 6] = [
        Self::Flush,
        Self::Merge,
        Self::Lease,
        Self::Adopt,
        Self::Compact,
        Self::CleanUp,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Plan => "plan",
            Self::Flush => "flush",
            Self::Merge => "merge",
            Self::Lease => "lease",
            Self::Adopt => "adopt",
            Self::Compact => "compact",
            Self::CleanUp => "cleanup",
        }
    }

    /// A span of this operation on the table.
    pub(crate) fn span(self, table: &impl Display) -> Span {
        macro_rules! span {
            ($level:expr, $name:literal) => {
                tracing::span!(
                    $level,
                    $name,
                    db.system.name = SYSTEM,
                    db.operation.name = self.as_str(),
                    db.collection.name = %table,
                    rows = Empty,
                    bytes = Empty,
                    error.message = Empty,
                )
            };
        }
        use tracing::Level;
        match self {
            Self::Put => span!(Level::DEBUG, "put"),
            Self::Plan => span!(Level::DEBUG, "plan"),
            Self::Flush => span!(Level::INFO, "flush"),
            Self::Merge => span!(Level::INFO, "merge"),
            Self::Lease => span!(Level::DEBUG, "lease"),
            Self::Adopt => span!(Level::INFO, "adopt"),
            Self::Compact => span!(Level::INFO, "compact"),
            Self::CleanUp => span!(Level::INFO, "cleanup"),
        }
    }
}

/// What a piece of work came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl Work {
    /// Puts it into a span.
    pub(crate) fn record_in(self, span: &Span) {
        span.record("rows", self.rows);
        span.record("bytes", self.bytes);
    }
}

/// Puts an error into a span.
pub(crate) fn record_error(span: &Span, error: &impl Display) {
    span.record("error.message", tracing::field::display(error));
}
