//! Tests of exploration: small configurations are explored completely, and bugs that are planted are found.

use synod_consensus::{
    Bug, Dissemination, Options, Overrides, ProtocolKind, dissemination, multipaxos, raft, ring,
};
use synod_sim::{
    check::Invariant,
    explore::{Bounds, Count, Incomplete, Report, Walks, explore, explore_with, options, walk, walk_with},
};

/// Bounds under which nothing goes wrong except what a test names besides them.
pub(crate) const CALM: Bounds = Bounds {
    replicas: 3,
    commands: 1,
    timeouts: 1,
    waits: 0,
    crashes: 0,
    losses: 0,
    duplicates: 0,
    catch_ups: 0,
    head_start: false,
    pages: false,
    depth: None,
    states_max: 2_000_000,
};

/// Explores everything, or all near the beginning if a depth bounds it, and checks that every state is right, and that
/// there are at least this many: an error in what bounds a search might end it too early.
pub(crate) fn everything_of(options: Options, bounds: Bounds, states_min: usize) -> Count {
    let protocol = options.protocol;
    let report = explore_with(options, bounds, &mut |_| ());
    if let Some(found) = &report.found {
        panic!("{protocol}, {bounds:?}: {}\n{}", found.violation, found.story.join("\n"));
    }
    println!("{protocol}, {bounds:?}: {:?}", report.count);
    let is_bounded = bounds.depth.is_some() && report.incomplete == Some(Incomplete::Depth);
    assert!(
        report.is_complete() || is_bounded,
        "{protocol}, {bounds:?}: {:?}, {:?}",
        report.incomplete,
        report.count
    );
    assert!(report.count.states >= states_min, "{protocol}, {bounds:?}: {:?}", report.count);
    report.count
}

fn everything(protocol: ProtocolKind, bounds: Bounds, states_min: usize) -> Count {
    everything_of(options(protocol), bounds, states_min)
}

#[test]
fn multipaxos_holds_in_every_state() {
    everything(ProtocolKind::MultiPaxos, Bounds { crashes: 1, ..CALM }, 20_000);
    everything(ProtocolKind::MultiPaxos, Bounds { commands: 2, ..CALM }, 20_000);
    everything(ProtocolKind::MultiPaxos, Bounds { commands: 0, crashes: 1, losses: 1, ..CALM }, 2_000);
    everything(ProtocolKind::MultiPaxos, Bounds { duplicates: 1, ..CALM }, 10_000);
    everything(ProtocolKind::MultiPaxos, Bounds { crashes: 1, catch_ups: 1, ..CALM }, 40_000);
    everything(ProtocolKind::MultiPaxos, Bounds { waits: 1, ..CALM }, 50_000);
}

#[test]
fn sequence_paxos_holds_in_every_state() {
    everything(ProtocolKind::SequencePaxos, Bounds { commands: 0, crashes: 1, ..CALM }, 80_000);
    everything(ProtocolKind::SequencePaxos, Bounds { replicas: 2, crashes: 1, losses: 1, ..CALM }, 30_000);
    everything(ProtocolKind::SequencePaxos, Bounds { replicas: 2, catch_ups: 2, ..CALM }, 100);
    everything(ProtocolKind::SequencePaxos, Bounds { commands: 0, waits: 1, ..CALM }, 70_000);
    // A follower asks the leader for its sequence at intervals: the second time only if it waits.
    let waits = Bounds { replicas: 2, commands: 0, crashes: 1, ..CALM };
    let without = everything(ProtocolKind::SequencePaxos, waits, 100);
    let with = everything(ProtocolKind::SequencePaxos, Bounds { waits: 1, ..waits }, 100);
    assert!(with.states > 2 * without.states && with.replicas > without.replicas, "{without:?}, {with:?}");
}

#[test]
fn raft_holds_in_every_state() {
    everything(ProtocolKind::Raft, Bounds { commands: 0, crashes: 1, ..CALM }, 150_000);
    everything(ProtocolKind::Raft, CALM, 400_000);
    everything(ProtocolKind::Raft, Bounds { replicas: 2, catch_ups: 2, crashes: 1, ..CALM }, 1_000);
}

/// The options with which a protocol orders references to batches that all replicas disseminate.
fn balanced(protocol: ProtocolKind) -> Options {
    let mut options = options(protocol);
    options.dissemination = Dissemination::Balanced;
    options
}

#[test]
fn batches_that_are_ordered_by_reference_hold_in_every_state() {
    use ProtocolKind::{MultiPaxos, Raft, SequencePaxos};
    let bounds = Bounds { replicas: 2, ..CALM };
    let crash = Bounds { crashes: 1, ..bounds };
    for (protocol, bounds, states_min) in [
        (MultiPaxos, Bounds { timeouts: 2, ..bounds }, 50_000),
        (MultiPaxos, crash, 10_000),
        (MultiPaxos, Bounds { commands: 2, ..bounds }, 50_000),
        (Raft, crash, 100_000),
        (SequencePaxos, crash, 100_000),
    ] {
        let Report { count, incomplete, found } = explore_with(balanced(protocol), bounds, &mut |_| ());
        println!("{protocol}, {bounds:?}: {count:?}");
        if let Some(found) = found {
            panic!("{protocol}, {bounds:?}: {}\n{}", found.violation, found.story.join("\n"));
        }
        assert!(incomplete.is_none() && count.states >= states_min, "{protocol}, {bounds:?}: {count:?}");
    }
}

#[test]
fn planted_bugs_of_dissemination_are_found() {
    let found = |found: Report, protocol: ProtocolKind| {
        let count = found.count;
        let violation = found.found.unwrap_or_else(|| panic!("{protocol}: not found in {count:?}")).violation;
        let lacks_it = matches!(violation.invariant, Invariant::QuorumDurable | Invariant::OrderedOnce);
        assert!(lacks_it, "{protocol}: {violation}");
    };
    for &(_, protocol) in ProtocolKind::ALL {
        let mut options = balanced(protocol);
        options.planted = Some(Bug::Dissemination(dissemination::Bug::HoldUnrecorded));
        // With the ring a batch of the coordinator is ordered a time-out later.
        let timeouts = if protocol == ProtocolKind::Ring { 4 } else { 2 };
        let bounds = Bounds { replicas: 2, timeouts, ..CALM };
        found(explore_with(options.clone(), bounds, &mut |_| ()), protocol);

        // Two replicas hold the batch, and a third one hears of its order first.
        options.planted = Some(Bug::Dissemination(dissemination::Bug::VoteWithoutBatch));
        let bounds = Bounds { commands: 3, timeouts: 8, ..CALM };
        let walks = Walks { walks: 2_000, steps: 200, seed: 1 };
        found(walk_with(options, bounds, walks, &mut |_| ()), protocol);
    }
}

/// The options with which a protocol is explored, and these.
fn given(protocol: ProtocolKind, text: &str) -> Options {
    let given: Overrides = text.parse().expect("they are options");
    given.check(protocol).expect("of this protocol");
    let mut options = options(protocol);
    given.apply(&mut options);
    options
}

/// Explores everything with these options, in which every state has to be right; at least this many states, in one of
/// which all commands are delivered.
pub(crate) fn everything_given(options: Options, bounds: Bounds, states_min: usize) {
    let protocol = options.protocol;
    let count = everything_of(options, bounds, states_min);
    assert_eq!(count.commands, usize::from(bounds.commands), "{protocol}, {bounds:?}: nothing was ordered");
}

/// Any message may never arrive, so each of these includes all runs in which a member is lost. The first ring has those
/// members whose promise came: two of three, or three of four. Without a head start the first elections take three
/// time-outs, and nothing is ordered before.
#[test]
fn a_ring_holds_in_every_state() {
    let ring = || options(ProtocolKind::Ring);
    let led = Bounds { timeouts: 0, head_start: true, ..CALM };
    everything_given(ring(), Bounds { crashes: 1, ..led }, 5_000);
    everything_given(ring(), Bounds { timeouts: 1, ..led }, 80_000);
    everything_given(ring(), Bounds { commands: 2, crashes: 1, ..led }, 80_000);
    everything_given(ring(), Bounds { replicas: 4, ..led }, 10_000);
}

/// Raft, whose entries and commit statuses go round by gossip: a round with entries takes a time-out.
#[test]
fn commit_statuses_hold_in_every_state() {
    let raft = given(ProtocolKind::Raft, "replication=gossip-status,status-echoes=0");
    everything_given(raft, Bounds { replicas: 2, timeouts: 2, head_start: true, ..CALM }, 30_000);
}

#[test]
fn planted_bugs_of_the_ring_and_of_commit_statuses_are_found() {
    use ProtocolKind::{Raft, Ring};
    let led = Bounds { timeouts: 0, head_start: true, ..CALM };
    let bugs: [(ProtocolKind, &str, Bug, Bounds); 3] = [
        (Ring, "", ring::Bug::DecideEarly.into(), Bounds { replicas: 4, ..led }),
        (Ring, "", ring::Bug::CountVotes.into(), Bounds { timeouts: 1, ..led }),
        (
            Raft,
            "replication=gossip-status,status-echoes=0",
            raft::Bug::CommitEverything.into(),
            Bounds { timeouts: 2, ..led },
        ),
    ];
    for (protocol, text, bug, bounds) in bugs {
        let mut options = given(protocol, text);
        options.planted = Some(bug);
        let Report { count, found, .. } = explore_with(options, bounds, &mut |_| ());
        let found = found.unwrap_or_else(|| panic!("{protocol}, {bug:?}: not found in {count:?}"));
        println!("{protocol}, {bug:?}, {count:?}: {}\n{}\n", found.violation, found.story.join("\n"));
        // A ring says that something is decided before it delivers it.
        let invariant = found.violation.invariant;
        let announces = protocol == Ring && invariant == Invariant::AnnouncedDecided;
        assert!(announces || invariant == Invariant::QuorumDurable, "{bug:?}: {}", found.violation);
    }
}

/// Explores a protocol with a bug until the bug is found.
fn find(protocol: ProtocolKind, bug: Bug, bounds: Bounds) -> Report {
    let mut planted = options(protocol);
    planted.planted = Some(bug);
    explore_with(planted, bounds, &mut |_| ())
}

#[test]
fn planted_bugs_are_found_on_a_shortest_way() {
    use ProtocolKind::{MultiPaxos, Raft, SequencePaxos};
    let crash = Bounds { timeouts: 2, crashes: 1, ..CALM };
    let calm = Bounds { timeouts: 2, ..CALM };
    let bugs = [
        (MultiPaxos, Bug::VoteBeforeDurable, calm, Invariant::DurableBeforePromise),
        (MultiPaxos, Bug::CommitWithMinority, calm, Invariant::QuorumDurable),
        (
            MultiPaxos,
            Bug::MultiPaxos(multipaxos::Bug::DeliverOutOfOrder),
            Bounds { commands: 2, ..calm },
            Invariant::QuorumDurable,
        ),
        (MultiPaxos, Bug::MultiPaxos(multipaxos::Bug::DropAcceptedValue), calm, Invariant::ChosenStays),
        (MultiPaxos, Bug::ForgetPromise, crash, Invariant::PromiseKept),
        (MultiPaxos, Bug::ReuseBallot, crash, Invariant::OneLeader),
        (SequencePaxos, Bug::VoteBeforeDurable, calm, Invariant::DurableBeforePromise),
        (SequencePaxos, Bug::CommitWithMinority, calm, Invariant::QuorumDurable),
        (SequencePaxos, Bug::ForgetPromise, crash, Invariant::PromiseKept),
        (Raft, Bug::Raft(raft::Bug::VoteTwice), calm, Invariant::DurableBeforePromise),
        (Raft, Bug::Raft(raft::Bug::VoteBeforeDurable), calm, Invariant::DurableBeforePromise),
        (Raft, Bug::Raft(raft::Bug::AckBeforeDurable), calm, Invariant::DurableBeforePromise),
        (Raft, Bug::Raft(raft::Bug::ForgetVote), crash, Invariant::PromiseKept),
    ];
    for (protocol, bug, bounds, invariant) in bugs {
        let Report { count, found, .. } = find(protocol, bug, bounds);
        let found = found.unwrap_or_else(|| panic!("{protocol}, {bug:?}: not found in {count:?}"));
        println!("{protocol}, {bug:?}, {count:?}: {}\n{}\n", found.violation, found.story.join("\n"));
        assert_eq!(found.violation.invariant, invariant, "{protocol}, {bug:?}: {}", found.violation);
        // The story has a numbered line for each step, as many as the search is deep, and the last one.
        let steps = found.story.iter().filter(|line| !line.starts_with("      ")).count();
        assert_eq!(steps, count.depth + 1, "{protocol}, {bug:?}");
    }
}

#[test]
fn random_walks_find_what_takes_five_replicas_and_nothing_without_it() {
    let bounds = Bounds { replicas: 5, commands: 3, timeouts: 4, catch_ups: 2, ..CALM };
    let walks = |walks| Walks { walks, steps: 200, seed: 1 };
    for &(_, protocol) in ProtocolKind::ALL {
        let report = walk(protocol, Bounds { pages: true, crashes: 1, ..bounds }, walks(50), &mut |_| ());
        assert!(
            report.found.is_none(),
            "{protocol}: {}",
            report.found.expect("it is there").story.join("\n")
        );
        assert_eq!(report.incomplete, Some(Incomplete::Random));
        // In a ring a message has one receiver, so there are fewer orders of them.
        let states_min = if protocol == ProtocolKind::Ring { 1_000 } else { 2_000 };
        assert!(report.count.states > states_min, "{protocol}: {:?}", report.count);
    }
    let mut planted = options(ProtocolKind::MultiPaxos);
    planted.planted = Some(Bug::LearnWithoutPromise);
    let report = walk_with(planted, bounds, walks(2_000), &mut |_| ());
    let found = report.found.unwrap_or_else(|| panic!("not found in {:?}", report.count));
    println!("{:?}: {}\n{}", report.count, found.violation, found.story.join("\n"));
    let steps = found.story.iter().filter(|line| !line.starts_with("      ")).count();
    assert!(steps < 60, "what is not needed is left out: {steps} steps");
}

#[test]
fn bounds_end_a_search_and_say_so() {
    let depth = explore(ProtocolKind::Raft, Bounds { depth: Some(3), ..CALM }, &mut |_| ());
    assert_eq!((depth.incomplete, depth.count.depth), (Some(Incomplete::Depth), 3));
    let states = explore(ProtocolKind::Raft, Bounds { states_max: 1000, ..CALM }, &mut |_| ());
    assert_eq!(states.incomplete, Some(Incomplete::States));
    assert!(!states.is_complete() && states.count.states <= 1001);
}

#[test]
fn equal_bounds_equal_explorations() {
    let bounds = Bounds { commands: 0, ..CALM };
    let count = || everything(ProtocolKind::MultiPaxos, bounds, 100);
    assert_eq!(count(), count());
}
