//! Tables of what stays and what goes.

use std::collections::HashMap;

use lance_index::mem_wal::{ShardStatus, SsTable};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

const AGES: Ages = Ages {
    min_age: Duration::from_secs(24 * 3600),
    grace: HOUR,
};

fn manifest(current_generation: u64, named: &[&str]) -> ShardManifest {
    ShardManifest {
        shard_id: uuid::Uuid::nil(),
        version: 1,
        shard_spec_id: 0,
        shard_field_values: HashMap::new(),
        writer_epoch: 1,
        replay_after_wal_entry_position: 0,
        wal_entry_position_last_seen: 0,
        current_generation,
        sstables: named
            .iter()
            .map(|name| {
                let number = generation_of(name).expect("a generation");
                SsTable::unmeasured(number, name.to_string())
            })
            .collect(),
        status: ShardStatus::Active,
    }
}

#[test]
fn folders() {
    let three = "aaaaaaaa_gen_3";
    let named = manifest(4, &[three]);
    let dropped = manifest(4, &[]);
    let unflushed = manifest(3, &[]);
    let day = 25 * HOUR;
    let (kept, merged, orphan) = (
        None,
        Some(RemovalKind::Generation),
        Some(RemovalKind::Orphan),
    );
    for (what, newest, before_grace, base, age, want) in [
        ("named", &named, Some(&named), 3, day, kept),
        (
            "named, whatever the base says",
            &named,
            Some(&dropped),
            3,
            day,
            kept,
        ),
        (
            "merged and dropped before the grace",
            &dropped,
            Some(&dropped),
            3,
            2 * HOUR,
            merged,
        ),
        (
            "dropped within the grace",
            &dropped,
            Some(&named),
            3,
            day,
            kept,
        ),
        (
            "flushed within the grace",
            &dropped,
            Some(&unflushed),
            3,
            2 * HOUR,
            kept,
        ),
        ("no manifest that old", &dropped, None, 3, day, kept),
        ("young", &dropped, Some(&dropped), 3, HOUR / 2, kept),
        (
            "of a crashed flush",
            &dropped,
            Some(&dropped),
            2,
            day,
            orphan,
        ),
        (
            "of a flush under way",
            &unflushed,
            Some(&unflushed),
            2,
            HOUR,
            kept,
        ),
        (
            "dropped by somebody, not merged",
            &dropped,
            Some(&named),
            2,
            day,
            kept,
        ),
    ] {
        let folder = Folder {
            name: three.to_string(),
            bytes: 1,
            age,
        };
        let shard = Shard {
            newest,
            before_grace,
            merged: base,
        };
        let got = judge_folder(&folder, &shard, AGES).map(|(kind, _)| kind);
        assert_eq!(got, want, "{what}");
    }
}

#[test]
fn what_is_no_generation_is_left_alone() {
    for (name, want) in [
        ("aaaaaaaa_gen_3", Some(3)),
        ("wal", None),
        ("manifest", None),
        ("_gen_3", None),
        ("aaaaaaaa_gen_", None),
        ("aaaaaaaa_gen_3x", None),
        ("notahex!_gen_3", None),
    ] {
        assert_eq!(generation_of(name), want, "{name}");
    }
}

#[test]
fn the_floor_is_the_lower_of_both_positions() {
    for (replay_after, seen, want) in [
        (10, 12, 10),
        (10, 7, 7),
        (10, 10, 10),
        (10, 0, 10),
        (0, 4, 0),
    ] {
        let manifest = ShardManifest {
            replay_after_wal_entry_position: replay_after,
            wal_entry_position_last_seen: seen,
            ..manifest(1, &[])
        };
        assert_eq!(wal_floor(&manifest), want, "{replay_after} {seen}");
    }
}

#[test]
fn entries() {
    let old = 25 * HOUR;
    for (what, position, age, bytes, want) in [
        ("below the floor and old", 9, old, 5000, true),
        ("at the floor", 10, old, 5000, false),
        ("above", 11, old, 5000, false),
        ("young", 9, HOUR, 5000, false),
        ("a fence", 9, old, 300, false),
    ] {
        let entry = WalEntry {
            position,
            bytes,
            age,
        };
        assert_eq!(wal_candidate(&entry, 10, AGES), want, "{what}");
    }
}

/// Runs the search over known epochs; returns the firsts among the candidates and how many epochs
/// were asked for.
fn search(epochs: &[u64], candidates: Vec<bool>) -> (Vec<usize>, usize) {
    let mut search = Epochs::new(candidates.clone());
    let mut asked = 0;
    while let Some(index) = search.next() {
        asked += 1;
        search.learn(index, epochs[index]);
    }
    let firsts = (0..epochs.len())
        .filter(|index| candidates[*index] && search.is_first(*index))
        .collect();
    (firsts, asked)
}

#[test]
fn each_epochs_first_entry_is_found() {
    for (epochs, want) in [
        (vec![1], vec![0]),
        (vec![1, 1, 1], vec![0]),
        (vec![1, 1, 2, 2, 5], vec![0, 2, 4]),
        (vec![1, 2, 3, 4], vec![0, 1, 2, 3]),
        (vec![7, 7, 7, 7, 7, 8], vec![0, 5]),
    ] {
        let all = vec![true; epochs.len()];
        assert_eq!(search(&epochs, all).0, want, "{epochs:?}");
    }
    assert_eq!(search(&[], vec![]).0, Vec::<usize>::new());
}

#[test]
fn few_epochs_are_asked_for() {
    let mut epochs = vec![3; 1000];
    epochs[700..].fill(4);
    let (firsts, asked) = search(&epochs, vec![true; 1000]);
    assert_eq!(firsts, [0, 700]);
    assert!(asked < 15, "{asked}");
    // Fences that stay anyway are not looked into.
    let fences: Vec<u64> = (0..1000).collect();
    let (_, asked) = search(&fences, vec![false; 1000]);
    assert_eq!(asked, 0);
    let mut one = vec![false; 1000];
    one[1] = true;
    assert_eq!(search(&fences, one), (vec![1], 2));
}
