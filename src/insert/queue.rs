//! The one queue all lanes take from.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use arrow::compute::concat_batches;
use arrow_array::RecordBatch;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::rows::{MAX_PUT_BYTES, MAX_PUT_ROWS, without_others};
use crate::error::{Result, RolloutError, without_places};
use crate::schema::{TableSchema, with_new_columns, with_stamps};
use crate::store::StampClock;

/// What an acknowledged statement learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// How long its put took.
    pub(crate) put: Duration,
    /// How many statements shared the put.
    pub(crate) group: usize,
}

/// How a put failed, told to each statement of its group.
#[derive(Debug, Clone)]
pub(crate) enum PutFailure {
    /// Nothing was written.
    NotWritten(String),
    /// The put was sent; whether it landed is unknown.
    Unknown(String),
    /// The lane's name now belongs to another process.
    Fenced(String),
}

impl PutFailure {
    pub(super) fn message(&self) -> &str {
        match self {
            Self::NotWritten(message) | Self::Unknown(message) | Self::Fenced(message) => message,
        }
    }
}

struct Waiting {
    batch: RecordBatch,
    bytes: usize,
    reply: oneshot::Sender<Result<Receipt>>,
}

struct State {
    waiting: VecDeque<Waiting>,
    busy: Vec<bool>,
    lanes_open: usize,
    /// Lanes whose put is under way.
    in_flight: usize,
    /// When a lane last took what waited.
    last_take: Instant,
    /// Whether the last group taken held more than one statement.
    grouping: bool,
    closed: bool,
}

/// Statements that wait, and which lanes are at work.
pub(super) struct Queue {
    state: Mutex<State>,
    idle: Notify,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("waiting", &self.state.lock().waiting.len())
            .finish()
    }
}

impl Queue {
    pub(super) fn new(max_lanes: usize) -> Self {
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                busy: vec![false; max_lanes],
                lanes_open: 0,
                in_flight: 0,
                last_take: Instant::now(),
                grouping: false,
                closed: false,
            }),
            idle: Notify::new(),
        }
    }

    /// Adds a statement, or a part of one, of so many bytes. Returns where its answer arrives and the lane to
    /// start, if one is free.
    #[allow(clippy::type_complexity)]
    pub(super) fn push(
        &self,
        batch: RecordBatch,
        bytes: usize,
    ) -> Option<(oneshot::Receiver<Result<Receipt>>, Option<usize>)> {
        let (reply, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.waiting.push_back(Waiting {
            batch,
            bytes,
            reply,
        });
        let lane = choose_lane(&state.busy, state.lanes_open);
        if let Some(lane) = lane {
            state.busy[lane] = true;
            state.lanes_open = state.lanes_open.max(lane + 1);
        }
        Some((receiver, lane))
    }

    /// What waits, up to one put, with its stamps. None when nothing waits: the lane is then idle.
    pub(super) fn take(&self, lane: usize, clock: &StampClock) -> Option<Group> {
        let mut state = self.state.lock();
        let mut group = Group::default();
        while let Some(next) = state.waiting.front() {
            // A statement that was cancelled before it was taken is not written.
            if next.reply.is_closed() {
                state.waiting.pop_front();
                continue;
            }
            let rows = next.batch.num_rows();
            let full = group.rows + rows > MAX_PUT_ROWS || group.bytes + next.bytes > MAX_PUT_BYTES;
            if full && !group.batches.is_empty() {
                break;
            }
            if let Some(next) = state.waiting.pop_front() {
                group.rows += rows;
                group.bytes += next.bytes;
                group.batches.push(next.batch);
                group.replies.push((next.reply, rows));
            }
        }
        if group.batches.is_empty() {
            state.busy[lane] = false;
            if !state.busy.contains(&true) {
                self.idle.notify_waiters();
            }
            return None;
        }
        state.grouping = group.batches.len() > 1;
        state.in_flight += 1;
        state.last_take = Instant::now();
        group.first_stamp = clock.reserve(group.rows);
        Some(group)
    }

    /// Marks a lane idle if nothing waits. Done before its statements hear that they are durable:
    /// the next one of the same client then finds this lane free and opens no other.
    pub(super) fn rest(&self, lane: usize) -> bool {
        let mut state = self.state.lock();
        let idle = state.waiting.is_empty();
        state.in_flight = state.in_flight.saturating_sub(1);
        if idle {
            state.busy[lane] = false;
            if !state.busy.contains(&true) {
                self.idle.notify_waiters();
            }
        }
        idle
    }

    /// Whether others are about: a lane at work beside this one, or statements that share puts.
    pub(super) fn contended(&self) -> bool {
        let state = self.state.lock();
        state.grouping || state.busy.iter().filter(|busy| **busy).count() > 1
    }

    /// How long a lane should leave what waits to gather, if a put takes as long as this.
    pub(super) fn gathers_for(&self, put: Duration) -> Duration {
        let state = self.state.lock();
        let (mut rows, mut bytes) = (0, 0);
        for waiting in &state.waiting {
            rows += waiting.batch.num_rows();
            bytes += waiting.bytes;
            if rows >= MAX_PUT_ROWS || bytes >= MAX_PUT_BYTES {
                return Duration::ZERO;
            }
        }
        let apart = puts_apart(put, state.in_flight, state.busy.len());
        apart.saturating_sub(state.last_take.elapsed())
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Waits until nothing waits and no lane is at work.
    pub(super) async fn drained(&self) {
        loop {
            let notified = self.idle.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            {
                let state = self.state.lock();
                if state.waiting.is_empty() && !state.busy.contains(&true) {
                    return;
                }
            }
            notified.await;
        }
    }

    pub(super) fn waiting_rows(&self) -> usize {
        let state = self.state.lock();
        state.waiting.iter().map(|w| w.batch.num_rows()).sum()
    }

    pub(super) fn lanes_open(&self) -> usize {
        self.state.lock().lanes_open
    }
}

/// How far apart two puts should begin, so that the lanes' puts end spread over the time that one
/// takes: statements that come at any moment then wait for a part of it. Where all lanes begin
/// together, as they do after a burst, statements wait for half a put. With few puts in flight the
/// distance is short: lanes that are idle cost nothing.
fn puts_apart(put: Duration, in_flight: usize, lanes: usize) -> Duration {
    let lanes = lanes.max(1) as u32;
    put / lanes * (in_flight as u32).min(lanes) / lanes
}

/// The lane that should start: the lowest idle one already open, else a new one when all are busy.
fn choose_lane(busy: &[bool], open: usize) -> Option<usize> {
    (0..open)
        .find(|lane| !busy[*lane])
        .or((open < busy.len()).then_some(open))
}

/// Statements that go in one put.
#[derive(Default)]
pub(super) struct Group {
    batches: Vec<RecordBatch>,
    /// Where each statement hears of its rows.
    replies: Vec<(oneshot::Sender<Result<Receipt>>, usize)>,
    rows: usize,
    bytes: usize,
    first_stamp: i64,
}

impl Group {
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the rows to put, stamped in order; one batch where they can be joined.
    pub(super) fn stamped(&mut self, schema: &TableSchema) -> Result<Vec<RecordBatch>> {
        let columns = schema.stored();
        let batches = std::mem::take(&mut self.batches).into_iter();
        let batches = batches.map(|batch| with_new_columns(columns, batch));
        let mut batches = batches.collect::<Result<Vec<_>>>()?;
        // A memtable counts batches, so many small ones are joined. Dictionaries that do not fit
        // one key type together stay as they are.
        if batches.len() > 1
            && let Ok(joined) = concat_batches(columns, &batches)
        {
            batches = vec![joined];
        } else if let [only] = batches.as_mut_slice() {
            *only = without_others(only.clone(), self.bytes)?;
        }
        let mut next = self.first_stamp;
        let stamped = batches.into_iter().map(|batch| {
            let first = next;
            next += batch.num_rows() as i64;
            with_stamps(schema, batch, first)
        });
        stamped.collect()
    }

    /// Tells every statement how it went.
    pub(super) fn answer(self, result: &Result<Duration, PutFailure>) {
        let group = self.replies.len();
        for (reply, rows) in self.replies {
            let answer = match result {
                Ok(put) => Ok(Receipt { put: *put, group }),
                Err(PutFailure::NotWritten(context)) => Err(RolloutError::Storage {
                    context: "nothing of this put was written".to_string(),
                    source: lance::Error::io(without_places(context)),
                }),
                Err(PutFailure::Fenced(message)) => Err(RolloutError::Fenced(message.clone())),
                Err(PutFailure::Unknown(context)) => Err(RolloutError::OutcomeUnknown {
                    context: without_places(context),
                    durable_rows: 0,
                    unknown_rows: rows as u64,
                }),
            };
            // A statement that was cancelled does not listen any more.
            let _ = reply.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, StringArray};

    use super::super::rows::row_bytes;
    use super::*;

    fn rows(n: usize) -> RecordBatch {
        let ids: ArrayRef = Arc::new(StringArray::from_iter_values((0..n).map(|i| i.to_string())));
        RecordBatch::try_from_iter([("id", ids)]).expect("batch")
    }

    type Pushed = Option<(oneshot::Receiver<Result<Receipt>>, Option<usize>)>;

    fn push(queue: &Queue, n: usize) -> Pushed {
        let rows = rows(n);
        let bytes = row_bytes(&rows);
        queue.push(rows, bytes)
    }

    #[test]
    fn lanes_open_only_when_needed() {
        for (busy, open, want) in [
            (vec![false, false, false], 0, Some(0)),
            (vec![false, false, false], 1, Some(0)),
            (vec![true, false, false], 1, Some(1)),
            (vec![true, false, false], 2, Some(1)),
            (vec![true, true, true], 3, None),
            (vec![false, true, true], 3, Some(0)),
        ] {
            assert_eq!(choose_lane(&busy, open), want, "{busy:?} {open}");
        }
    }

    #[test]
    fn puts_are_spread_over_the_time_one_takes() {
        let put = Duration::from_millis(160);
        for (in_flight, lanes, want) in [(0, 4, 0), (1, 4, 10), (3, 4, 30), (9, 4, 40), (0, 1, 0)] {
            let want = Duration::from_millis(want);
            assert_eq!(puts_apart(put, in_flight, lanes), want, "{in_flight}");
        }
    }

    #[test]
    fn what_waits_gathers_unless_nothing_is_under_way_or_a_put_is_full() {
        let queue = Queue::new(2);
        let clock = StampClock::default();
        let long = Duration::from_secs(1000);
        let _first = push(&queue, 1).expect("open");
        assert_eq!(queue.gathers_for(long), Duration::ZERO, "nothing under way");
        assert!(queue.take(0, &clock).is_some());
        let _second = push(&queue, 1).expect("open");
        assert!(queue.gathers_for(long) > Duration::from_secs(100));
        let _large = push(&queue, MAX_PUT_ROWS).expect("open");
        assert_eq!(queue.gathers_for(long), Duration::ZERO, "a put is full");
        assert!(!queue.rest(0), "something waits");
        assert!(queue.take(0, &clock).is_some());
    }

    #[test]
    fn a_group_takes_whole_statements_in_order() {
        let queue = Queue::new(1);
        let clock = StampClock::default();
        let mut receivers = Vec::new();
        for n in [60_000, 30_000, 20_000] {
            receivers.push(push(&queue, n).expect("open").0);
        }
        let first = queue.take(0, &clock).expect("waiting");
        assert_eq!((first.replies.len(), first.rows()), (2, 90_000));
        let second = queue.take(0, &clock).expect("waiting");
        assert_eq!((second.replies.len(), second.rows()), (1, 20_000));
        assert!(second.first_stamp >= first.first_stamp + 90_000);
        assert!(queue.take(0, &clock).is_none());
    }

    #[test]
    fn a_lane_rests_only_when_nothing_waits() {
        let queue = Queue::new(2);
        let clock = StampClock::default();
        let (_first, lane) = push(&queue, 1).expect("open");
        assert_eq!(lane, Some(0));
        assert!(queue.take(0, &clock).is_some());
        assert!(queue.rest(0), "nothing waits");
        let (_second, lane) = push(&queue, 1).expect("open");
        assert_eq!(
            lane,
            Some(0),
            "the lane that rests is taken before another opens"
        );
        assert!(!queue.rest(0), "something waits");
    }

    #[test]
    fn a_cancelled_statement_is_not_written() {
        let queue = Queue::new(1);
        let clock = StampClock::default();
        drop(push(&queue, 1).expect("open").0);
        let kept = push(&queue, 2).expect("open").0;
        let group = queue.take(0, &clock).expect("waiting");
        assert_eq!(group.rows(), 2);
        drop(kept);
    }

    #[test]
    fn a_closed_queue_takes_nothing() {
        let queue = Queue::new(1);
        queue.close();
        assert!(push(&queue, 1).is_none());
    }
}
