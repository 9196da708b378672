//! A reader that follows a table and is stopped and resumed: as the guide tells, by the highest
//! `ingested_at` it has had, a step back, and the ids it has had since.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::{Process, quiet};

/// A writer flushes at least every so many rounds: that far the reader steps back.
const ROUNDS_UNFLUSHED: usize = 3;

/// What a reader keeps between its lives.
#[derive(Default)]
struct Position {
    /// The highest stamp of each round.
    stamps: Vec<i64>,
    had: BTreeSet<String>,
    doubled: usize,
    /// Rows that only the step back found.
    late: usize,
}

impl Position {
    /// One life of the reader: reads what is new and remembers where it was.
    async fn resume(&mut self, folder: &Path) {
        let reader = Process::open(folder, quiet()).await;
        let highest = self.stamps.last().copied().unwrap_or(0);
        let back = self.stamps.len().checked_sub(ROUNDS_UNFLUSHED + 1);
        let above = back.map_or(0, |round| self.stamps[round]);
        let rows = reader
            .rows(&format!(
                "SELECT id, CAST(ingested_at AS BIGINT) FROM rollouts
                 WHERE CAST(ingested_at AS BIGINT) > {above}"
            ))
            .await;
        let mut newest = highest;
        let mut seen = BTreeSet::new();
        for row in rows {
            let (id, stamp) = row.split_once('|').expect("two columns");
            let stamp = stamp.parse().expect("a stamp");
            newest = newest.max(stamp);
            self.doubled += usize::from(!seen.insert(id.to_string()));
            if self.had.insert(id.to_string()) {
                self.late += usize::from(stamp < highest);
            }
        }
        self.stamps.push(newest);
        reader.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_reader_misses_nothing_and_reads_nothing_twice() {
    let folder = tempfile::tempdir().expect("folder");
    let writers = [
        Process::open(folder.path(), quiet()).await,
        Process::open(folder.path(), quiet()).await,
    ];
    let mut position = Position::default();
    let mut written = BTreeSet::new();
    for round in 0..10 {
        for (number, writer) in writers.iter().enumerate() {
            // Clocks that are minutes apart, one of them behind: they stand in created_at alone.
            let minutes = if number == 0 { 7 } else { -11 };
            let id = format!("{number}-{round}");
            writer
                .sql(&format!(
                    "INSERT INTO rollouts (id, created_at)
                     VALUES ('{id}', now() + INTERVAL '{minutes} minutes')"
                ))
                .await;
            written.insert(id);
        }
        writers[0].flush().await;
        // The other flushes late, in its last round even later than the reader's last look.
        if round % ROUNDS_UNFLUSHED == ROUNDS_UNFLUSHED - 1 {
            writers[1].flush().await;
        }
        if round == 5 {
            writers[0].merge().await;
        }
        position.resume(folder.path()).await;
    }
    writers[1].flush().await;
    position.resume(folder.path()).await;
    assert_eq!(position.had, written);
    assert_eq!(position.doubled, 0);
    assert!(position.late > 0, "without the step back they are missed");
}
