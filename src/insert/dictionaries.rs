//! Which values the small dictionary columns of a process's unflushed rows have.
//!
//! They share files, so they may not have more values than the key type can number: see
//! [`DictionaryValues`]. Nearly every statement brings values that are known, and passes without waiting for
//! another: a lock that is handed from task to task would stop them all until the next in line gets its turn
//! on a busy thread, which cost a fifth of the processor with a thousand clients.

use futures::future::BoxFuture;
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::Mutex;

use crate::error::Result;
use crate::schema::DictionaryValues;

/// The values of the rows that may not be flushed yet.
#[derive(Debug, Default)]
pub(super) struct Dictionaries {
    known: RwLock<Known>,
    /// Taken by statements that bring new values, one at a time.
    learning: Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    values: DictionaryValues,
    /// The rows are being flushed, so that others get a file of their own: none may be added.
    ending: bool,
}

/// While it is held, the values it was given for may be added to the unflushed rows.
pub(super) struct Admitted<'a> {
    _known: RwLockReadGuard<'a, Known>,
}

impl Dictionaries {
    /// Waits until rows with these values may be added; `flush` makes all there are a generation.
    ///
    /// # Errors
    /// Too many values even for a file of their own; a flush that failed.
    pub(super) async fn admit<'f>(
        &self,
        values: DictionaryValues,
        flush: impl FnOnce() -> BoxFuture<'f, Result<()>>,
    ) -> Result<Admitted<'_>> {
        if let Some(admitted) = self.if_known(&values) {
            return Ok(admitted);
        }
        let _one = self.learning.lock().await;
        self.learn(values, flush).await?;
        // Nobody else learns before this is had, and nobody ends the file before it is let go.
        let known = self.known.read();
        Ok(Admitted { _known: known })
    }

    fn if_known(&self, values: &DictionaryValues) -> Option<Admitted<'_>> {
        let known = self.known.read();
        let passes = !known.ending && known.values.contains(values);
        passes.then_some(Admitted { _known: known })
    }

    async fn learn<'f>(
        &self,
        values: DictionaryValues,
        flush: impl FnOnce() -> BoxFuture<'f, Result<()>>,
    ) -> Result<()> {
        let joined = self.known.read().values.joined(&values);
        if let Ok(joined) = joined {
            self.known.write().values = joined;
            return Ok(());
        }
        // Too many for one statement is too many; else what is there gets its own file.
        DictionaryValues::default().joined(&values)?;
        let _ending = Ending::begin(&self.known);
        flush().await?;
        self.known.write().values = values;
        Ok(())
    }
}

/// Ends with the statement that began it, also when that is cancelled.
struct Ending<'a>(&'a RwLock<Known>);

impl<'a> Ending<'a> {
    fn begin(known: &'a RwLock<Known>) -> Self {
        known.write().ending = true;
        Self(known)
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.write().ending = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow_array::types::Int8Type;
    use arrow_array::{ArrayRef, DictionaryArray, RecordBatch};
    use futures::FutureExt;
    use tokio::sync::Notify;

    use super::*;
    use crate::error::RolloutError;

    fn roles(prefix: &str, n: usize) -> DictionaryValues {
        let names: Vec<_> = (0..n).map(|i| format!("{prefix}{i}")).collect();
        let column: DictionaryArray<Int8Type> = names.iter().map(String::as_str).collect();
        let batch = RecordBatch::try_from_iter([("role", Arc::new(column) as ArrayRef)]);
        DictionaryValues::of(&batch.expect("a batch")).expect("texts")
    }

    fn nothing() -> BoxFuture<'static, Result<()>> {
        panic!("nothing to flush")
    }

    async fn admit(dictionaries: &Dictionaries, values: DictionaryValues) {
        let admitted = dictionaries.admit(values, nothing).await;
        drop(admitted.expect("without a flush"));
    }

    #[tokio::test]
    async fn known_values_pass_and_new_ones_are_learned() {
        let dictionaries = Dictionaries::default();
        admit(&dictionaries, roles("a", 100)).await;
        // Held by one, and no obstacle for another.
        let first = dictionaries.admit(roles("a", 50), nothing).now_or_never();
        let second = dictionaries.admit(roles("a", 100), nothing).now_or_never();
        assert!(matches!((first, second), (Some(Ok(_)), Some(Ok(_)))));
    }

    #[tokio::test]
    async fn too_many_values_begin_a_file_of_their_own() {
        let dictionaries = Dictionaries::default();
        admit(&dictionaries, roles("a", 100)).await;
        let flushes = AtomicUsize::new(0);
        let flush = || {
            flushes.fetch_add(1, Ordering::Relaxed);
            async { Ok(()) }.boxed()
        };
        drop(
            dictionaries
                .admit(roles("b", 100), flush)
                .await
                .expect("flushes"),
        );
        assert_eq!(flushes.load(Ordering::Relaxed), 1);
        admit(&dictionaries, roles("b", 100)).await;
        let refused = dictionaries.admit(roles("c", 128), nothing).await;
        assert!(refused.is_err(), "too many for any file");
        admit(&dictionaries, roles("b", 100)).await;
    }

    #[tokio::test]
    async fn nothing_is_added_while_a_file_ends() {
        let dictionaries = Dictionaries::default();
        admit(&dictionaries, roles("a", 100)).await;
        let (flushing, flushed) = (Notify::new(), Notify::new());
        let flush = || {
            async {
                flushing.notify_one();
                flushed.notified().await;
                Ok(())
            }
            .boxed()
        };
        let ends = async { dictionaries.admit(roles("b", 100), flush).await.map(drop) };
        let meanwhile = async {
            flushing.notified().await;
            let early = dictionaries.admit(roles("a", 1), nothing).now_or_never();
            flushed.notify_one();
            early.is_none()
        };
        let (ended, waited) = tokio::join!(ends, meanwhile);
        ended.expect("flushes");
        assert!(waited, "a row came into a file that ends");
    }

    #[tokio::test]
    async fn a_file_that_did_not_end_goes_on() {
        let dictionaries = Dictionaries::default();
        admit(&dictionaries, roles("a", 100)).await;
        let fails = || async { Err(RolloutError::Closed("closed".to_string())) }.boxed();
        assert!(dictionaries.admit(roles("b", 100), fails).await.is_err());
        let hangs = || std::future::pending().boxed();
        let cancelled = dictionaries.admit(roles("b", 100), hangs).now_or_never();
        assert!(cancelled.is_none(), "it waits for the flush");
        // It passes beside one that learns.
        let _learning = dictionaries.learning.lock().await;
        let known = dictionaries.admit(roles("a", 100), nothing).now_or_never();
        assert!(matches!(known, Some(Ok(_))), "what was known still is");
    }
}
