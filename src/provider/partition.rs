//! How a scan's work is spread over partitions: a pure decision.

/// One piece of a scan, read by one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WorkUnit {
    /// Fragments of the base, by position.
    Base(Vec<usize>),
    /// A flushed generation, by position in the snapshot.
    Generation(usize),
    /// An unflushed memtable, by position in the view.
    Memtable(usize),
}

/// A piece and its size in rows.
#[derive(Debug, Clone, Copy)]
struct Piece {
    unit: Kind,
    rows: u64,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Fragment(usize),
    Generation(usize),
    Memtable(usize),
}

/// Spreads fragments, generations and memtables, given by their rows, over at most `partitions`
/// parts of about equal size. Pieces without rows are left out; there is always one part.
pub(super) fn spread(
    fragments: &[u64],
    generations: &[u64],
    memtables: &[u64],
    partitions: usize,
) -> Vec<Vec<WorkUnit>> {
    let pieces = |kind: fn(usize) -> Kind, rows: &[u64]| -> Vec<Piece> {
        rows.iter()
            .enumerate()
            .filter(|(_, rows)| **rows > 0)
            .map(|(i, rows)| Piece {
                unit: kind(i),
                rows: *rows,
            })
            .collect()
    };
    let mut all = pieces(Kind::Fragment, fragments);
    all.extend(pieces(Kind::Generation, generations));
    all.extend(pieces(Kind::Memtable, memtables));
    let parts = partitions.clamp(1, all.len().max(1));
    // Largest first, each to the part with the least so far.
    all.sort_by_key(|piece| std::cmp::Reverse(piece.rows));
    let mut spread: Vec<(u64, Vec<Piece>)> = vec![(0, Vec::new()); parts];
    for piece in all {
        if let Some((rows, part)) = spread
            .iter_mut()
            .min_by_key(|(rows, part)| (*rows, part.len()))
        {
            *rows += piece.rows;
            part.push(piece);
        }
    }
    spread.into_iter().map(|(_, part)| units(part)).collect()
}

/// A part's pieces, the base's fragments together and in order.
fn units(mut part: Vec<Piece>) -> Vec<WorkUnit> {
    part.sort_by_key(|piece| match piece.unit {
        Kind::Fragment(i) => (0, i),
        Kind::Generation(i) => (1, i),
        Kind::Memtable(i) => (2, i),
    });
    let mut units = Vec::new();
    let mut base = Vec::new();
    for piece in part {
        match piece.unit {
            Kind::Fragment(i) => base.push(i),
            Kind::Generation(i) => units.push(WorkUnit::Generation(i)),
            Kind::Memtable(i) => units.push(WorkUnit::Memtable(i)),
        }
    }
    if !base.is_empty() {
        units.insert(0, WorkUnit::Base(base));
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_read_once() {
        for partitions in [1, 2, 4, 16] {
            let parts = spread(&[100, 0, 50, 70], &[10, 20, 0], &[5], partitions);
            assert!(parts.len() <= partitions.max(1));
            let mut fragments = Vec::new();
            let mut others = Vec::new();
            for unit in parts.into_iter().flatten() {
                match unit {
                    WorkUnit::Base(list) => fragments.extend(list),
                    other => others.push(other),
                }
            }
            fragments.sort_unstable();
            assert_eq!(fragments, [0, 2, 3]);
            assert_eq!(others.len(), 3);
        }
    }

    #[test]
    fn parts_are_about_equal_and_never_none() {
        assert_eq!(spread(&[], &[], &[], 4), vec![Vec::new()]);
        let parts = spread(&[10, 10, 10, 10], &[], &[], 2);
        assert_eq!(
            parts,
            vec![
                vec![WorkUnit::Base(vec![0, 2])],
                vec![WorkUnit::Base(vec![1, 3])]
            ]
        );
    }
}
