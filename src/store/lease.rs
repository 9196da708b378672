//! Leases: who works on which shards.
//!
//! A lease is a **sequence of objects**, each written only if absent:
//!
//! ```text
//! _rollouts/leases/<slot>/00000000000000000001.json   held by A
//!                         00000000000000000002.json   held by A (renewed)
//!                         00000000000000000003.json   held by B (A was silent for too long)
//! ```
//!
//! Whoever writes the next number has the lease; a holder whose renewal finds its number taken has
//! lost it. That needs nothing but put-if-absent, which every store has. The newest object of a
//! sequence is never deleted. A slot's shards follow from its name, so a slot that was given back
//! is taken again with its shards, and their number stays bounded by the number of processes that
//! ever wrote at once.
//!
//! A lease says who **should** work; the shard's epoch decides who **can**. Expiry is judged by the
//! observer's own monotonic clock, from when it last saw the sequence move: clocks of different
//! machines are never compared.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use parking_lot::Mutex;
use uuid::Uuid;

use super::sequence::{Sequences, SlotView, State};
use super::table::LanceTable;
use crate::error::{Result, RolloutError};

/// Most lanes a process may have, and so most shards a slot stands for.
pub(crate) const MAX_LANES: usize = 64;

/// How many takers may race for one slot before a new one is made.
const TAKE_ATTEMPTS: usize = 8;

/// A lease this process holds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    slot: String,
    sequence: u64,
}

/// A slot whose holder has been silent for longer than its time, now ours to clear.
#[derive(Debug)]
pub(crate) struct Adopted {
    slot: String,
    sequence: AtomicU64,
    /// The shards that may hold unflushed rows.
    pub(crate) shards: Vec<Uuid>,
}

/// This process's dealings with the leases of one table.
#[derive(Debug)]
pub(crate) struct LeaseKeeper {
    table: Arc<LanceTable>,
    sequences: Sequences,
    fixed: Option<String>,
    ttl: Duration,
    held: tokio::sync::Mutex<Option<Held>>,
    /// Moves whenever a lease is taken or lost: what was opened under an earlier term is no longer
    /// this process's, even where the same slot was taken again since.
    term: AtomicU64,
    /// Set when a fixed name was taken by another process: it is not fought for.
    lost: Mutex<Option<String>>,
    seen: Mutex<HashMap<String, (u64, Instant)>>,
    /// When the lease was last taken or renewed; none while none is held.
    renewed: Mutex<Option<Instant>>,
}

impl LeaseKeeper {
    pub(crate) fn new(table: Arc<LanceTable>, fixed: Option<String>, ttl: Duration) -> Self {
        Self {
            sequences: Sequences::new(table.clone(), "leases", ttl),
            table,
            fixed,
            ttl,
            held: tokio::sync::Mutex::new(None),
            term: AtomicU64::new(0),
            lost: Mutex::new(None),
            seen: Mutex::new(HashMap::new()),
            renewed: Mutex::new(None),
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The shard of one of this process's lanes, and the term it is held under; takes a lease if
    /// none is held.
    ///
    /// # Errors
    /// The fixed name was taken over by another process; storage that cannot be reached.
    pub(crate) async fn shard_of_lane(&self, lane: usize) -> Result<(Uuid, u64)> {
        let mut held = self.held.lock().await;
        self.still_allowed()?;
        let held = match held.as_mut() {
            Some(held) => held,
            None => held.insert(self.take().await?),
        };
        Ok((shard_of_slot(&held.slot, lane), self.term()))
    }

    /// The present term.
    pub(crate) fn term(&self) -> u64 {
        self.term.load(Ordering::Acquire)
    }

    fn next_term(&self) {
        self.term.fetch_add(1, Ordering::AcqRel);
    }

    /// The shards this process writes through, if it holds a lease.
    pub(crate) async fn own_slot(&self) -> Option<String> {
        self.held
            .lock()
            .await
            .as_ref()
            .map(|held| held.slot.clone())
    }

    /// Renews the lease, if one is held. Returns whether it is still ours.
    ///
    /// # Errors
    /// Storage that cannot be reached: whether the lease holds is unknown.
    pub(crate) async fn renew(&self) -> Result<bool> {
        let mut guard = self.held.lock().await;
        let Some(held) = guard.as_mut() else {
            return Ok(true);
        };
        let sequence = held.sequence + 1;
        let started = Instant::now();
        if self
            .sequences
            .write(&held.slot, sequence, State::Held)
            .await?
        {
            held.sequence = sequence;
            *self.renewed.lock() = Some(started);
            let slot = held.slot.clone();
            drop(guard);
            self.sequences.forget_older(&slot, sequence).await;
            return Ok(true);
        }
        let slot = held.slot.clone();
        *guard = None;
        self.next_term();
        *self.renewed.lock() = None;
        if self.fixed.is_some() {
            *self.lost.lock() = Some(slot);
        }
        Ok(false)
    }

    /// Whether this process has been silent for so long that others may count it dead: the lease
    /// must then be renewed before anything more is acknowledged.
    pub(crate) fn overdue(&self) -> bool {
        self.renewed
            .lock()
            .is_some_and(|renewed| renewed.elapsed() >= self.ttl)
    }

    /// Gives the lease back; its shards must be flushed.
    ///
    /// # Errors
    /// Storage that cannot be reached; the lease then runs out by itself.
    pub(crate) async fn release(&self) -> Result<()> {
        let Some(held) = self.held.lock().await.take() else {
            return Ok(());
        };
        *self.renewed.lock() = None;
        self.sequences
            .write(&held.slot, held.sequence + 1, State::Released)
            .await?;
        self.sequences
            .forget_older(&held.slot, held.sequence + 1)
            .await;
        Ok(())
    }

    /// Whether an earlier life of this fixed name left without giving its lease back.
    ///
    /// # Errors
    /// Storage that cannot be reached.
    pub(crate) async fn earlier_life_unfinished(&self) -> Result<bool> {
        let Some(name) = &self.fixed else {
            return Ok(false);
        };
        let slot = fixed_slot(name);
        let Some(view) = self.sequences.view_of(&slot).await? else {
            // No lease was ever taken; a shard given by its id may still hold rows of others.
            return Ok(Uuid::parse_str(name).is_ok());
        };
        let record = self.sequences.read(&slot, view.sequence).await?;
        Ok(record.is_some_and(|record| record.state == State::Held))
    }

    /// All slots of the table, with the newest number of each.
    ///
    /// # Errors
    /// Storage that cannot be reached.
    pub(crate) async fn slots(&self) -> Result<Vec<SlotView>> {
        self.sequences.list(None).await
    }

    /// Looks at all leases and takes those whose holders have been silent for too long.
    ///
    /// # Errors
    /// Storage that cannot be reached.
    pub(crate) async fn adopt_expired(&self) -> Result<Vec<Adopted>> {
        let own = self.own_slot().await;
        let slots = self.slots().await?;
        let now = Instant::now();
        let mut silent = Vec::new();
        {
            let mut seen = self.seen.lock();
            seen.retain(|slot, _| slots.iter().any(|view| &view.slot == slot));
            for view in slots.into_iter().filter(|v| own.as_ref() != Some(&v.slot)) {
                let entry = seen
                    .entry(view.slot.clone())
                    .or_insert((view.sequence, now));
                if entry.0 != view.sequence {
                    *entry = (view.sequence, now);
                } else if now.duration_since(entry.1) >= self.ttl {
                    silent.push((view, now.duration_since(entry.1)));
                }
            }
        }
        let mut adopted = Vec::new();
        for (view, quiet_for) in silent {
            let Some(record) = self.sequences.read(&view.slot, view.sequence).await? else {
                continue;
            };
            let patience = Duration::from_millis(record.ttl_ms).max(self.ttl);
            if record.state != State::Held || quiet_for < patience {
                continue;
            }
            let sequence = view.sequence + 1;
            if self
                .sequences
                .write(&view.slot, sequence, State::Held)
                .await?
            {
                tracing::info!(slot = view.slot, holder = %record.holder, "adopting a dead writer's shards");
                let lanes = 0..MAX_LANES;
                adopted.push(Adopted {
                    shards: lanes.map(|lane| shard_of_slot(&view.slot, lane)).collect(),
                    slot: view.slot,
                    sequence: AtomicU64::new(sequence),
                });
            }
        }
        Ok(adopted)
    }

    /// Takes a slot whoever holds it and gives it back, as an adoption of empty shards would.
    #[cfg(test)]
    pub(crate) async fn adopt(&self, slot: &str) -> Result<()> {
        let view = self.sequences.view_of(slot).await?;
        let sequence = view.map_or(1, |view| view.sequence + 1);
        assert!(self.sequences.write(slot, sequence, State::Held).await?);
        let adopted = Adopted {
            slot: slot.to_string(),
            sequence: AtomicU64::new(sequence),
            shards: Vec::new(),
        };
        self.finish_adoption(&adopted).await
    }

    /// Renews an adopted slot's lease while its shards are flushed. Returns whether it is still
    /// this process's.
    ///
    /// # Errors
    /// Storage that cannot be reached.
    pub(crate) async fn renew_adopted(&self, adopted: &Adopted) -> Result<bool> {
        let next = adopted.sequence.load(Ordering::Acquire) + 1;
        let ours = self
            .sequences
            .write(&adopted.slot, next, State::Held)
            .await?;
        if ours {
            adopted.sequence.store(next, Ordering::Release);
            self.sequences.forget_older(&adopted.slot, next).await;
        }
        Ok(ours)
    }

    /// Gives an adopted slot back for reuse, once its shards are flushed.
    ///
    /// # Errors
    /// Storage that cannot be reached; the slot then expires and is adopted again.
    pub(crate) async fn finish_adoption(&self, adopted: &Adopted) -> Result<()> {
        let released = adopted.sequence.load(Ordering::Acquire) + 1;
        if self
            .sequences
            .write(&adopted.slot, released, State::Released)
            .await?
        {
            self.sequences.forget_older(&adopted.slot, released).await;
        }
        Ok(())
    }

    /// Takes a lease: the fixed name's, a slot that was given back, or a new one.
    async fn take(&self) -> Result<Held> {
        if let Some(name) = &self.fixed {
            let slot = fixed_slot(name);
            for _ in 0..TAKE_ATTEMPTS {
                let next = self
                    .sequences
                    .view_of(&slot)
                    .await?
                    .map_or(1, |v| v.sequence + 1);
                if self.sequences.write(&slot, next, State::Held).await? {
                    return Ok(self.now_held(slot, next));
                }
            }
            return Err(RolloutError::Conflict(format!(
                "shard id '{name}' is being taken by several processes at once: give each its own"
            )));
        }
        let mut free = Vec::new();
        for view in self.slots().await? {
            if !view.slot.starts_with(AUTOMATIC) {
                continue;
            }
            let record = self.sequences.read(&view.slot, view.sequence).await?;
            if record.is_some_and(|record| record.state == State::Released) {
                free.push(view);
            }
        }
        // Takers start at different slots, so that many at once seldom meet.
        if !free.is_empty() {
            let start = self.sequences.holder().as_u128() as usize % free.len();
            free.rotate_left(start);
        }
        for view in free.into_iter().take(TAKE_ATTEMPTS) {
            let next = view.sequence + 1;
            if self.sequences.write(&view.slot, next, State::Held).await? {
                return Ok(self.now_held(view.slot, next));
            }
        }
        let slot = format!("{AUTOMATIC}{}", Uuid::new_v4().simple());
        self.sequences.write(&slot, 1, State::Held).await?;
        Ok(self.now_held(slot, 1))
    }

    fn now_held(&self, slot: String, sequence: u64) -> Held {
        *self.renewed.lock() = Some(Instant::now());
        self.next_term();
        Held { slot, sequence }
    }

    /// A fixed name is never fought for: the one who took it later keeps it.
    fn still_allowed(&self) -> Result<()> {
        match (&*self.lost.lock(), &self.fixed) {
            (Some(_), Some(name)) => Err(RolloutError::Fenced(format!(
                "shard id '{name}' of {} was taken over by another process: nothing more is \
                 written under it here. Give each process its own rollout.shard_id, or none",
                self.table.location()
            ))),
            _ => Ok(()),
        }
    }
}

const AUTOMATIC: &str = "auto-";

/// The slot of a fixed name. Only harmless characters go into the path; a digest keeps two names
/// that look alike apart.
fn fixed_slot(name: &str) -> String {
    if let Ok(uuid) = Uuid::parse_str(name) {
        return format!("shard-{uuid}");
    }
    let readable: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .take(40)
        .collect();
    let digest = Md5::digest(name.as_bytes());
    format!(
        "id-{readable}-{:02x}{:02x}{:02x}{:02x}",
        digest[0], digest[1], digest[2], digest[3]
    )
}

/// The shard of a slot's lane. A slot that is named by a shard's id has that shard first.
pub(crate) fn shard_of_slot(slot: &str, lane: usize) -> Uuid {
    if lane == 0
        && let Some(shard) = slot
            .strip_prefix("shard-")
            .and_then(|s| Uuid::parse_str(s).ok())
    {
        return shard;
    }
    let digest = Md5::digest(format!("datafusion-rollouts/{slot}/{lane}").as_bytes());
    uuid::Builder::from_md5_bytes(digest.into()).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_apart_and_paths_stay_harmless() {
        let plain = fixed_slot("worker-3");
        assert!(plain.starts_with("id-worker-3-"), "{plain}");
        assert_ne!(fixed_slot("a/b"), fixed_slot("a_b"));
        assert!(!fixed_slot("../../etc").contains('/'));
        let shard = Uuid::new_v4();
        assert_eq!(shard_of_slot(&fixed_slot(&shard.to_string()), 0), shard);
    }

    #[test]
    fn lanes_have_shards_of_their_own() {
        let shards: std::collections::HashSet<_> = (0..MAX_LANES)
            .map(|lane| shard_of_slot("auto-x", lane))
            .collect();
        assert_eq!(shards.len(), MAX_LANES);
        assert_eq!(shard_of_slot("auto-x", 2), shard_of_slot("auto-x", 2));
    }
}
