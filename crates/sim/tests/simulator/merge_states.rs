//! Exhaustive exploration of the merge of two groups: a replica that is given what both groups decided in every
//! interleaving, and at every point crashes and starts from a snapshot, or installs one of another replica. Snapshots
//! may be of any state that is reached. It runs the executor of a server, which is frozen and restored before each
//! step.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    rc::Rc,
};

use bytes::Bytes;
use synod_consensus::{Options, ProtocolKind};
use synod_replica::{
    Context, Executor, Frozen, Group, MergeBug, MergedExecutor, SnapshotInfo, StateMachine, Take, plant,
};
use synod_wire::{
    Ballots, Batch, BatchBuilder, CommandKind, GroupId, Incarnation, ReplicaId, SessionId, Slot,
    replica_session,
};

const GROUPS: usize = 2;

/// What a group decides in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Decided {
    /// A batch that writes this letter.
    Batch(char),
    /// A skip to this position.
    Skip(u64),
    Nothing,
}

impl Decided {
    fn batch(self, slot: u64) -> Batch {
        let mut builder = BatchBuilder::new();
        let session: SessionId = replica_session(ReplicaId(1), Incarnation(1), 0);
        match self {
            Decided::Batch(letter) => builder.push(session, slot, slot, letter.to_string().as_bytes()),
            Decided::Skip(to) => {
                builder.push_as(CommandKind::Skip, session, slot, slot, &to.to_le_bytes());
            }
            Decided::Nothing => return Batch::noop(),
        }
        builder.finish()
    }
}

/// Writes down what it executes.
#[derive(Clone, Default)]
struct Written(String);

impl Frozen for Written {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.0.as_bytes())
    }
}

impl StateMachine for Written {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        self.0 += std::str::from_utf8(command).expect("a letter");
        Bytes::new()
    }

    fn query(&self, _: &Bytes) -> Bytes {
        Bytes::new()
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(self.clone())
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        self.0.clear();
        snapshot.read_to_string(&mut self.0).map(drop)
    }

    fn digest(&self) -> u64 {
        0
    }
}

/// What the groups decide, and how many batches of each come in a row.
#[derive(Clone, Debug)]
struct Streams {
    take: Take,
    decided: [Vec<Decided>; GROUPS],
}

impl Streams {
    /// The common order by its definition: each batch at its position, by round, group and position; and what of it
    /// can be executed when all is decided that is here.
    fn order(&self) -> (String, usize) {
        let take = u64::from(self.take.get());
        let (mut keyed, mut ends) = (Vec::new(), Vec::new());
        for (group, decided) in self.decided.iter().enumerate() {
            let mut position = 0;
            for one in decided {
                match *one {
                    Decided::Batch(letter) => {
                        keyed.push(((position / take, group, position), letter));
                        position += 1;
                    }
                    Decided::Skip(to) => position = position.max(to),
                    Decided::Nothing => {}
                }
            }
            ends.push((position / take, group, position));
        }
        keyed.sort_unstable();
        let end = ends.into_iter().min().expect("there are groups");
        let executed = keyed.iter().take_while(|(key, _)| *key < end).count();
        (keyed.into_iter().map(|(_, letter)| letter).collect(), executed)
    }

    fn fresh(&self) -> Executor<Written> {
        let group = Group::of(&Options::of(ProtocolKind::MultiPaxos), [ReplicaId(1), ReplicaId(2)]);
        Executor::merged(Written::default(), vec![group; GROUPS], self.take)
    }

    /// An executor with this frozen state, to which so much of each group was given.
    fn revived(&self, state: &[u8], given: [u64; GROUPS]) -> MergedExecutor<Written, ()> {
        let mut executor = self.fresh();
        executor.restore(&mut &*state).expect("it was frozen before");
        let mut merged = MergedExecutor::of(executor);
        for (group, end) in given.into_iter().enumerate() {
            let applied = merged.executor().applied_of(GroupId(group as u16));
            (applied.0 + 1..=end).for_each(|slot| self.give(&mut merged, group, slot));
        }
        merged
    }

    fn give(&self, to: &mut MergedExecutor<Written, ()>, group: usize, slot: u64) {
        let batch = self.decided[group][slot as usize - 1].batch(slot);
        let handed_back = to.take(GroupId(group as u16), Slot(slot), Ballots::ZERO, batch, ());
        assert!(handed_back.is_none(), "slot {slot} of group {group} came before");
    }
}

fn frozen(executor: &Executor<Written>) -> Rc<[u8]> {
    let mut state = Vec::new();
    executor.freeze().write_to(&mut state).expect("memory takes everything");
    state.into()
}

fn applied(executor: &Executor<Written>) -> [u64; GROUPS] {
    std::array::from_fn(|group| executor.applied_of(GroupId(group as u16)).0)
}

/// A replica: what it executed, frozen, and how much of each group was given to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Replica {
    state: Rc<[u8]>,
    given: [u64; GROUPS],
}

/// Visits every state that a replica can reach, breadth first, where any state may have been written as a snapshot, by
/// this replica or another one; returns how many there are, or what is wrong in one.
fn explore(streams: &Streams) -> Result<usize, String> {
    let (order, executed) = streams.order();
    let first = Replica { state: frozen(&streams.fresh()), given: [0; GROUPS] };
    let mut snapshots = vec![Rc::clone(&first.state)];
    let (mut known, mut all) = (BTreeSet::from([first.clone()]), vec![first]);
    // The snapshots that each of these states has met.
    let mut met = vec![0];
    let mut at = 0;
    while at < all.len() {
        let replica = all[at].clone();
        let mut next = if met[at] == 0 { steps(streams, &replica) } else { Vec::new() };
        if met[at] == 0 && next.is_empty() {
            let text = streams.revived(&replica.state, [0; GROUPS]).executor().machine().0.clone();
            if text != order[..executed] {
                let wanted = &order[..executed];
                return Err(format!("{streams:?}: a replica ends with {text}, and could execute {wanted}"));
            }
        }
        for snapshot in &snapshots[met[at]..] {
            next.push(crashed(streams, snapshot));
            next.extend(installed(streams, &replica, snapshot));
        }
        met[at] = snapshots.len();
        for replica in next {
            let merged = streams.revived(&replica.state, [0; GROUPS]);
            let text = &merged.executor().machine().0;
            if !order.starts_with(text.as_str()) {
                return Err(format!("{streams:?}: a replica executes {text}, in the common order {order}"));
            }
            if !snapshots.contains(&replica.state) {
                snapshots.push(Rc::clone(&replica.state));
            }
            if known.insert(replica.clone()) {
                all.push(replica);
                met.push(0);
            }
        }
        // A state that was written later is a snapshot for those that were visited before, too.
        at = met.iter().position(|&met| met < snapshots.len()).unwrap_or(all.len());
    }
    Ok(all.len())
}

/// What a replica does by itself: it is given the next batch of a group, or executes those whose turn it is.
fn steps(streams: &Streams, replica: &Replica) -> Vec<Replica> {
    let mut steps = Vec::new();
    for group in 0..GROUPS {
        if replica.given[group] < streams.decided[group].len() as u64 {
            let mut next = replica.clone();
            next.given[group] += 1;
            steps.push(next);
        }
    }
    // Also several in a row, without a restart between them.
    let mut merged = streams.revived(&replica.state, replica.given);
    while merged.execute(|(), _| true).is_some() {
        steps.push(Replica { state: frozen(merged.executor()), ..replica.clone() });
    }
    steps
}

/// A replica that crashed, and starts again from this snapshot.
fn crashed(streams: &Streams, snapshot: &[u8]) -> Replica {
    let restored = streams.revived(snapshot, [0; GROUPS]);
    Replica { state: frozen(restored.executor()), given: applied(restored.executor()) }
}

/// A replica after this snapshot came for one of its groups.
fn installed(streams: &Streams, replica: &Replica, snapshot: &[u8]) -> Vec<Replica> {
    let their = applied(streams.revived(snapshot, [0; GROUPS]).executor());
    let install = |group: usize| {
        let info = SnapshotInfo { slot: Slot(their[group]), bytes: snapshot.len() as u64 };
        let mut merged = streams.revived(&replica.state, replica.given);
        let installed = merged.restore(GroupId(group as u16), info, || Ok(snapshot));
        installed.expect("it is a snapshot of the same groups");
        let applied = applied(merged.executor());
        let given = std::array::from_fn(|group| applied[group].max(replica.given[group]));
        Replica { state: frozen(merged.executor()), given }
    };
    (0..GROUPS).filter(|&group| their[group] > 0).map(install).collect()
}

/// Every way to divide two batches and two skips among two groups; and two batches, a skip and an empty slot.
fn all_streams() -> Vec<Streams> {
    let mut all = Vec::new();
    for target in 2..=3 {
        let skips = (target..=3).map(Decided::Skip);
        for last in skips.chain([Decided::Nothing]) {
            let kinds = [Decided::Batch('a'), Decided::Batch('b'), Decided::Skip(target), last];
            for (order, places) in orders(&kinds)
                .iter()
                .flat_map(|order| (0..1 << kinds.len()).map(move |places| (order, places)))
            {
                let mut decided = [Vec::new(), Vec::new()];
                for (at, one) in order.iter().enumerate() {
                    decided[places >> at & 1].push(*one);
                }
                all.extend([(1, decided.clone()), (2, decided)]);
            }
        }
    }
    all.sort();
    all.dedup();
    let streams = |(take, decided)| Streams { take: Take::new(take).expect("not 0"), decided };
    all.into_iter().map(streams).collect()
}

/// All orders of these, but for what the names of batches make of it: `a` comes before `b`.
fn orders(kinds: &[Decided]) -> Vec<Vec<Decided>> {
    if kinds.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in kinds.iter().enumerate() {
        if *first == Decided::Batch('b') && kinds.contains(&Decided::Batch('a')) {
            continue;
        }
        let rest: Vec<Decided> =
            kinds.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, kind)| *kind).collect();
        all.extend(orders(&rest).into_iter().map(|rest| [vec![*first], rest].concat()));
    }
    all
}

#[test]
fn two_groups_are_executed_in_one_order_in_every_state() {
    let (mut states, streams) = (0, all_streams());
    for streams in &streams {
        states += explore(streams).unwrap_or_else(|why| panic!("{why}"));
    }
    println!(
        "{} divisions of two batches and two skips, or one and an empty slot; {states} states",
        streams.len()
    );
    assert!(states > 5_000, "{states}");
}

/// Those bugs of the merge that change the order, or what a snapshot says of it.
#[test]
fn planted_bugs_of_the_merge_are_found_in_some_state() {
    let bugs = [
        MergeBug::RelativeSkips,
        MergeBug::ConflateSkips,
        MergeBug::ForgetPlace,
        MergeBug::ForgetFurtherHead,
        MergeBug::SilentTakesPosition,
        MergeBug::DoNotWait,
    ];
    for bug in bugs {
        plant(Some(bug));
        let found = all_streams().iter().find_map(|streams| {
            std::panic::catch_unwind(|| explore(streams))
                .unwrap_or_else(|_| Err(format!("{streams:?}: an assertion fails")))
                .err()
        });
        plant(None);
        println!("{bug:?}: {}", found.unwrap_or_else(|| panic!("{bug:?} is not found")));
    }
}
