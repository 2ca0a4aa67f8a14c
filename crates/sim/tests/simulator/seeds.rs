//! Some seeds, as a smoke test; `synod sim run` runs as many as there is time for.

use std::collections::BTreeMap;

use synod_consensus::{Bug, Combination, Options, ProtocolKind};
use synod_sim::{
    Coverage,
    check::Invariant,
    plan::{Family, Plan},
};

const PROTOCOL: ProtocolKind = ProtocolKind::MultiPaxos;

/// Situations that occur with Raft: other protocols change voters by a new epoch, unless the group changes to Raft.
const WITHIN_AN_EPOCH: [&str; 3] = [
    "changes of voters within an epoch",
    "changes of voters within an epoch after a lost log",
    "joint changes",
];

/// Situations that occur in families of their own.
const WHERE_LOGS_ROT: [&str; 4] =
    ["logs repaired", "slots kept of damaged logs", "logs that failed", "starts that failed"];

/// What must happen with each dissemination of a protocol, since it has a part in when a replica executes.
const WITH_EACH_DISSEMINATION: [&str; 8] = [
    "leases ended",
    "leases started again",
    "leases renewed at followers",
    "watches",
    "events told",
    "watches after a crash",
    "watches of the past",
    "watches compacted",
];

/// Happens in one of some thousand seeds.
const RARE: &[&str] =
    &["starts without all", "joiners wiped", "wiped joiners whose vote nobody knew whom they asked"];

/// Checks that every seed passes, and that enough happens in them: a world in which nothing happens would pass, too.
fn pass(protocol: ProtocolKind, seeds: std::ops::Range<u64>) {
    let (mut coverage, mut by_dissemination) = (Coverage::default(), BTreeMap::<String, Coverage>::new());
    let (mut events, mut operations, mut commands) = (0, 0, 0);
    for seed in seeds.clone() {
        let plan = Plan::draw(seed, protocol);
        let outcome =
            synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(protocol, None)));
        assert!(!outcome.undecided, "seed {seed}: the history was too hard to check");
        events += outcome.events;
        operations += outcome.operations;
        commands += outcome.commands;
        coverage.add(&outcome.coverage);
        let dissemination = plan.settings.consensus.dissemination.to_string();
        by_dissemination.entry(dissemination).or_default().add(&outcome.coverage);
    }
    let seeds = usize::try_from(seeds.end - seeds.start).unwrap();
    assert!(
        events > 750 * seeds as u64 && operations > 25 * seeds && commands > 12 * seeds,
        "{events} events, {operations} operations, {commands} commands"
    );
    assert!(
        coverage.trials_skipped * 10 < coverage.trials,
        "{} of {} trials were skipped",
        coverage.trials_skipped,
        coverage.trials
    );
    for (what, count) in coverage.counts() {
        let wanted = protocol == ProtocolKind::Raft || !WITHIN_AN_EPOCH.contains(&what);
        let wanted = wanted && !WHERE_LOGS_ROT.contains(&what) && !RARE.contains(&what);
        assert!(count >= 20 || !wanted || what == "trials skipped", "only {count} {what}");
    }
    for (dissemination, coverage) in by_dissemination {
        for (what, count) in coverage.counts() {
            // One of eight seeds has such a watch, and few seeds have one dissemination of one protocol.
            let least = if what == "watches compacted" { 1 } else { 5 };
            assert!(
                count >= least || !WITH_EACH_DISSEMINATION.contains(&what),
                "{dissemination}: only {count} {what}"
            );
        }
    }
}

#[test]
fn every_invariant_holds_for_some_hundred_seeds_of_multipaxos() {
    pass(ProtocolKind::MultiPaxos, 0..480);
}

#[test]
fn every_invariant_holds_for_some_hundred_seeds_of_sequence_paxos() {
    pass(ProtocolKind::SequencePaxos, 0..490);
}

#[test]
fn every_invariant_holds_for_some_hundred_seeds_of_raft() {
    pass(ProtocolKind::Raft, 0..470);
}

#[test]
fn every_invariant_holds_for_some_hundred_seeds_of_the_ring() {
    pass(ProtocolKind::Ring, 0..480);
}

#[test]
fn every_invariant_holds_for_some_hundred_seeds_of_kernel_paxos() {
    pass(ProtocolKind::KernelPaxos, 0..480);
}

#[test]
fn every_invariant_holds_where_logs_rot() {
    for &(_, protocol) in ProtocolKind::ALL {
        let mut coverage = Coverage::default();
        for seed in 0..50 {
            let election = Plan::draw(seed, protocol).settings.consensus.election;
            let plan = Plan::draw_general(seed, protocol, election).of_family(Family::Disk);
            let outcome =
                synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(protocol, None)));
            coverage.add(&outcome.coverage);
        }
        assert!(coverage.logs_repaired > 200 && coverage.slots_kept > 2_000, "{protocol}: {coverage}");
    }
}

#[test]
fn every_invariant_holds_where_logs_of_several_groups_rot() {
    let mut coverage = Coverage::default();
    for (at, &(_, protocol)) in ProtocolKind::ALL.iter().enumerate() {
        for seed in (at as u64 * 10..).take(10) {
            let election = Plan::draw(seed, protocol).settings.consensus.election;
            let plan = Plan::draw_general(seed, protocol, election).of_family(Family::Disk);
            let plan = if seed % 2 == 0 { plan.merging(3) } else { plan.of_groups(3) };
            let outcome =
                synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(protocol, None)));
            coverage.add(&outcome.coverage);
        }
    }
    assert!(coverage.logs_repaired > 100 && coverage.slots_kept > 1_000, "{coverage}");
}

/// What disks of several groups lose, with all protocols.
fn assert_losses(coverage: &Coverage) {
    let &Coverage { logs_lost, recoveries, crashes_within, snapshots_damaged, .. } = coverage;
    let common = [logs_lost, recoveries, crashes_within, snapshots_damaged];
    assert!(common.iter().all(|count| *count >= 20), "{coverage}");
    assert!(coverage.copies_restored > 0 && coverage.wiped > 0 && coverage.stopped > 0, "{coverage}");
}

#[test]
fn every_invariant_holds_on_real_files_that_fail() {
    let run = |seed, protocol| {
        let election = Plan::draw(seed, protocol).settings.consensus.election;
        let plan = Plan::draw_general(seed, protocol, election).of_family(Family::Files);
        synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(protocol, None)))
    };
    for &(_, protocol) in ProtocolKind::ALL {
        let mut coverage = Coverage::default();
        for seed in 0..80 {
            coverage.add(&run(seed, protocol).coverage);
        }
        let Coverage { logs_repaired, logs_failed, starts_failed, copies_found, wiped, .. } = coverage;
        for (what, count) in [
            ("repairs", logs_repaired),
            ("failures", logs_failed),
            ("starts", starts_failed),
            ("copies", copies_found),
            ("wipes", wiped),
        ] {
            assert!(count >= 20, "{protocol}: only {count} {what}; {coverage}");
        }
        assert_eq!(run(3, protocol).fingerprint, run(3, protocol).fingerprint);
    }
}

/// Seeds until the last legal combination has been drawn: the rarest is one of some hundred seeds.
const SEEDS_MAX: u64 = 20_000;

/// What the plan runs in every replica when it begins.
fn combination(plan: &Plan) -> Combination {
    let Options { protocol, election, dissemination, .. } = plan.settings.consensus;
    Combination::of(protocol, election, dissemination, plan.durability)
}

#[test]
fn every_legal_combination_is_drawn_and_run_and_no_other_is_drawn() {
    for &(_, protocol) in ProtocolKind::ALL {
        let legal = || Combination::legal().filter(|it| it.protocol == protocol);
        assert!(legal().count() >= 10, "{protocol}");
        let mut drawn = Vec::new();
        for seed in 0..SEEDS_MAX {
            let plan = Plan::draw(seed, protocol);
            let combination = combination(&plan);
            combination.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            if !drawn.contains(&combination) {
                drawn.push(combination);
                synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(protocol, None)));
            }
            if drawn.len() == legal().count() {
                break;
            }
        }
        let missing: Vec<_> = legal().filter(|it| !drawn.contains(it)).collect();
        assert!(missing.is_empty(), "never drawn: {missing:#?}");
    }
}

#[test]
fn equal_seeds_give_equal_runs_and_others_do_not() {
    let run = |seed| synod_sim::run(&Plan::draw(seed, PROTOCOL)).unwrap();
    for seed in 1000..1020 {
        let (first, second) = (run(seed), run(seed));
        assert_eq!((first.fingerprint, first.events), (second.fingerprint, second.events), "seed {seed}");
        assert_ne!(first.fingerprint, run(seed + 1).fingerprint);
    }
}

#[test]
fn a_failure_names_the_invariant_its_source_and_the_command_that_replays_it() {
    let fails = |seed: u64| {
        let mut plan = Plan::draw(seed, PROTOCOL);
        plan.settings.consensus.planted = Some(Bug::CommitWithMinority);
        synod_sim::run(&plan).err().filter(|failure| failure.violation.invariant == Invariant::QuorumDurable)
    };
    let failure = (0..20).find_map(fails).expect("one seed in twenty finds it");
    let (report, seed) = (failure.report(PROTOCOL, None), failure.seed);
    assert!(report.contains(&format!("seed {seed} violates quorum-durable: r")), "{report}");
    let again = format!("synod sim run --protocol multipaxos --seeds {seed}..{}", seed + 1);
    assert!(report.contains(&format!("chart:  {again} --html seed-{seed}.html\n")), "{report}");
    assert!(report.ends_with(&format!("replay: {again} --trace")), "{report}");
    // What the slot makes of the group, if it does, comes after that.
    let mut end = failure.trace.iter().rev().take(3);
    assert!(end.any(|line| line.contains("delivers slot ")), "{report}");
}

#[test]
fn invariants_are_named_and_traced_to_their_sources() {
    let mut names: Vec<&str> = Invariant::ALL.iter().map(|invariant| invariant.name()).collect();
    assert!(names.len() >= 10);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Invariant::ALL.len(), "names are distinct");
    assert!(Invariant::ALL.iter().all(|invariant| invariant.source().contains(':')));
}

/// Both ends of a link lose all their data, and a datagram of the time before comes late. A check once took
/// the seed for a violation, since the datagram counted as one of the replica that was begun again.
#[test]
fn what_was_said_under_another_birth_is_not_heard() {
    let plan = Plan::draw(577, PROTOCOL);
    synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(PROTOCOL, None)));
}

/// The others follow the first one.
#[test]
fn every_invariant_holds_for_nodes_with_several_groups() {
    let mut all = Coverage::default();
    for &(_, protocol) in ProtocolKind::ALL {
        let mut coverage = Coverage::default();
        for seed in 0..40 {
            let plan = Plan::draw(seed, protocol).of_groups(3);
            let outcome =
                synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(protocol, None)));
            coverage.add(&outcome.coverage);
        }
        assert!(coverage.sets_followed > 30 && coverage.changes_made > 60, "{protocol}: {coverage}");
        assert!(coverage.snapshots_installed > 0 && coverage.crashes > 100, "{protocol}: {coverage}");
        all.add(&coverage);
    }
    assert_losses(&all);
}

/// Links as of the transport `udp`, for nodes with one group, with several and with merged ones.
#[test]
fn every_invariant_holds_where_small_messages_of_sessions_are_datagrams() {
    for &(_, protocol) in ProtocolKind::ALL {
        let mut coverage = Coverage::default();
        for seed in 0..48 {
            let plan = Plan::draw(seed, protocol);
            let plan = match seed % 4 {
                2 => plan.of_groups(3),
                3 => plan.merging(3),
                _ => plan,
            };
            let outcome = synod_sim::run(&plan.with_datagrams_in_sessions())
                .unwrap_or_else(|failure| panic!("{}", failure.report(protocol, None)));
            coverage.add(&outcome.coverage);
        }
        assert!(coverage.messages_lost > 1_000 && coverage.crashes > 100, "{protocol}: {coverage}");
        assert!(coverage.snapshots_installed > 0 && coverage.changes_made > 20, "{protocol}: {coverage}");
    }
}

/// The groups are merged into one order: they have one store, and its clients ask any of them.
#[test]
fn every_invariant_holds_for_merged_groups_of_each_protocol() {
    let mut all = Coverage::default();
    for &(_, protocol) in ProtocolKind::ALL {
        let mut coverage = Coverage::default();
        for seed in 0..40 {
            let plan = Plan::draw(seed, protocol).merging(3);
            let outcome =
                synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(protocol, None)));
            coverage.add(&outcome.coverage);
        }
        assert!(coverage.sets_followed > 30 && coverage.changes_made > 60, "{protocol}: {coverage}");
        assert!(coverage.snapshots_installed > 0 && coverage.crashes > 100, "{protocol}: {coverage}");
        assert!(coverage.leases_ended > 0 && coverage.watches_after_snapshot > 0, "{protocol}: {coverage}");
        all.add(&coverage);
    }
    assert_losses(&all);
}
