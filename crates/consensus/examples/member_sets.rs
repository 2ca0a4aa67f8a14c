//! Whether sets with room for 127 members slow small groups down: what a leader does with its members for each answer,
//! beside the sets of at most 63 members that there were before. In memory, in one thread, in one run.
//!
//! `cargo run --release -p synod-consensus --example member_sets`
//!
//! An answer is counted in two ways, as the protocols do: the sender is added to the set of those who answered, which
//! is then a quorum or none; and the highest slot is found that a quorum has reached. Each figure is the median of 61
//! rounds, in which both take turns. Neither is inlined here beyond what the compiler does between crates.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use synod_consensus::{Members, ReplicaSet};
use synod_wire::ReplicaId;

/// The sets of commit d1f2550's parent: a bit of one number for each member, and room for 63 values.
struct Before {
    ids: Vec<ReplicaId>,
    incoming: u128,
    outgoing: u128,
}

impl Before {
    const MEMBERS_MAX: usize = 63;

    #[inline(never)]
    fn only(&self, id: ReplicaId) -> u128 {
        self.ids.binary_search(&id).map_or(0, |index| 1 << index)
    }

    #[inline(never)]
    fn union(set: u128, other: u128) -> u128 {
        set | other
    }

    #[inline(never)]
    fn is_quorum(&self, set: u128) -> bool {
        let has = |half: u128| (set & half).count_ones() > half.count_ones() / 2;
        has(self.incoming) && (self.outgoing == 0 || has(self.outgoing))
    }

    fn quorum_value(&self, mut value: impl FnMut(ReplicaId) -> u64) -> u64 {
        let mut values = [0; Self::MEMBERS_MAX];
        let values = &mut values[..self.ids.len()];
        for (value_of, &id) in values.iter_mut().zip(&self.ids) {
            *value_of = value(id);
        }
        values.sort_unstable();
        values[self.ids.len() - (self.ids.len() / 2 + 1)]
    }
}

/// So few that a round mostly ends before another program takes the processor.
const ANSWERS: usize = 10_000;
const ROUNDS: usize = 61;

/// The time for this many answers.
fn timed(mut answer: impl FnMut(usize) -> u64) -> Duration {
    let began = Instant::now();
    let mut sum = 0;
    for place in 0..ANSWERS {
        sum += answer(place);
    }
    black_box(sum);
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e9 / ANSWERS as f64
}

/// Nanoseconds for an answer, with the sets of today and, if the group is small enough, with those of before.
fn measure(n: u64) -> (f64, Option<f64>) {
    let ids: Vec<ReplicaId> = (1..=n).map(ReplicaId).collect();
    let members = Members::new(ids.clone(), ReplicaId(1));
    let before = Before { ids: ids.clone(), incoming: (1 << n) - 1, outgoing: 0 };
    let slots: Vec<u64> = (0..n).map(|place| place * 7919 % 64).collect();
    let slot_of = |place: usize| {
        let slots = black_box(&slots);
        move |id: ReplicaId| slots[id.0 as usize - 1] + place as u64 % 3
    };
    let (mut now, mut then) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut set = ReplicaSet::default();
        now.push(timed(|place| {
            set = set.union(members.only(ids[place % ids.len()]));
            let reached = members.quorum_value(slot_of(place));
            if members.is_quorum(black_box(set)) {
                set = ReplicaSet::default();
                return reached + 1;
            }
            reached
        }));
        if ids.len() <= Before::MEMBERS_MAX {
            let mut set = 0;
            then.push(timed(|place| {
                set = Before::union(set, before.only(ids[place % ids.len()]));
                let reached = before.quorum_value(slot_of(place));
                if before.is_quorum(black_box(set)) {
                    set = 0;
                    return reached + 1;
                }
                reached
            }));
        }
    }
    (median(now), (!then.is_empty()).then(|| median(then)))
}

fn main() {
    println!("members   now, ns an answer   before, ns   ratio");
    for n in [3, 5, 7, 9, 11, 25, 51, 125] {
        let (now, before) = measure(n);
        let ratio = before.map_or("-".to_owned(), |before| format!("{:.2}", now / before));
        let before = before.map_or("-".to_owned(), |before| format!("{before:.1}"));
        println!("{n:>7}   {now:>17.1}   {before:>10}   {ratio:>5}");
    }
}
