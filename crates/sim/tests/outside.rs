//! A protocol that does not stand in this tree is registered, and everything runs it: the example `fixed_leader`.

#[path = "../examples/fixed_leader/protocol.rs"]
mod protocol;

use std::{env, path::Path};

use protocol::{FIXED_LEADER, Message};
use synod_consensus::{
    Combination, Dissemination, ElectionKind, NotRegistered, Options, Outside, ProtocolKind, SlotRecord,
    Survives,
};
use synod_sim::{
    Coverage,
    explore::{Bounds, Walks, explore, walk},
    plan::{Durability, Family, Plan},
    scenario,
};
use synod_wire::{Ballot, BatchBuilder, Reader, ReplicaId, SessionId, Slot, Writer};

fn registered() -> ProtocolKind {
    FIXED_LEADER.register().expect("no other protocol has the name")
}

#[test]
fn it_is_known_by_its_name_like_any_other() {
    assert!("fixed-leader-2".parse::<ProtocolKind>().is_err());
    let kind = registered();
    assert_eq!("fixed-leader".parse(), Ok(kind));
    assert_eq!(kind.to_string(), "fixed-leader");
    assert_eq!(Options::of(kind).election, ElectionKind::None);
    let unknown = "fixed-follower".parse::<ProtocolKind>().unwrap_err().to_string();
    let all = "accepted: multipaxos, sequence-paxos, raft, ring, kernel-paxos, rounds, fixed-leader";
    assert!(unknown.ends_with(all), "{unknown}");
}

#[test]
fn a_name_is_given_once() {
    let other = |name| -> &'static Outside {
        let start = |_, _, _, _, _: &mut _| unreachable!("it is not registered");
        Box::leak(Box::new(Outside::new::<Message, SlotRecord>(
            name,
            &[ElectionKind::None],
            Survives::ALL,
            start,
        )))
    };
    assert_eq!(registered(), registered());
    for name in ["fixed-leader", "raft"] {
        assert_eq!(other(name).register(), Err(NotRegistered::Taken(name)));
    }
    for name in ["", "Fixed", "fixed+leader"] {
        assert_eq!(other(name).register(), Err(NotRegistered::Malformed(name)));
    }
}

#[test]
fn its_messages_and_records_travel_under_its_name() {
    registered();
    let ballot = Ballot { round: 3, replica: ReplicaId(1) };
    let mut batch = BatchBuilder::new();
    batch.push(SessionId(1), 2, 2, b"x");
    let batch = batch.finish();
    let (slot, decided) = (Slot(9), Slot(7));
    let message = FIXED_LEADER.message(Message::Accept { ballot, slot, decided, batch: batch.clone() });
    let record = FIXED_LEADER.record(SlotRecord::Accepted { ballot, slot, decided, batch });
    let encode = |write: &dyn Fn(&mut Writer)| {
        let mut writer = Writer::new();
        write(&mut writer);
        writer.finish().to_bytes()
    };
    let bytes = encode(&|writer| message.encode(writer));
    assert_eq!(synod_consensus::Message::decode(&mut Reader::new(bytes.clone())), Ok(message));
    let kept = encode(&|writer| record.encode(writer));
    assert_eq!(synod_consensus::Record::decode(&mut Reader::new(kept)), Ok(record));
    let strange = bytes.iter().map(|&byte| if byte == b'-' { b'_' } else { byte }).collect::<Vec<u8>>();
    let why = synod_consensus::Message::decode(&mut Reader::new(strange.into())).unwrap_err().to_string();
    assert_eq!(why, "a protocol that is named \"fixed_leader\" is not registered in this program");
}

#[test]
fn a_plan_draws_only_what_it_survives() {
    let kind = registered();
    for seed in 0..500 {
        for &(_, family) in Family::ALL {
            let plan = Plan::draw_general(seed, kind, ElectionKind::None).of_family(family);
            let weights = plan.faults.weights;
            let losses = [weights.lose_log, weights.lose_snapshot, weights.restore, weights.wipe];
            assert_eq!(losses, [0; 4], "seed {seed}, {family}");
            assert_eq!(plan.durability, Durability::Sync, "seed {seed}, {family}");
        }
    }
    let (election, dissemination) = (ElectionKind::None, Dissemination::Leader);
    let with = |durability| Combination::of(kind, election, dissemination, durability).check();
    assert_eq!(with(Durability::Sync), Ok(()));
    assert_eq!(
        with(Durability::View).unwrap_err().to_string(),
        "durability view does not go with fixed-leader, which does not survive the loss of logs; accepted: sync"
    );
    let survives_more = |seed| Plan::draw(seed, ProtocolKind::MultiPaxos).durability != Durability::Sync;
    assert!((0..500).any(survives_more), "others are asked for more");
}

#[test]
fn the_simulator_runs_it() {
    let kind = registered();
    let (mut coverage, mut operations) = (Coverage::default(), 0);
    for seed in 0..150 {
        let plan = Plan::draw(seed, kind);
        let outcome =
            synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(kind, None)));
        operations += outcome.operations;
        coverage.add(&outcome.coverage);
    }
    assert!(operations > 25 * 150, "{operations}");
    for wanted in ["crashes", "partitions", "epochs"] {
        let counted = coverage.counts().into_iter().filter(|(what, _)| what.contains(wanted));
        let counted: Vec<_> = counted.collect();
        assert!(counted.iter().any(|(_, count)| *count >= 20), "{wanted}: {counted:?}");
    }
}

#[test]
fn the_explorer_goes_every_way_that_it_can_go() {
    let kind = registered();
    let bounds = Bounds::default();
    let report = explore(kind, bounds, &mut |_| ());
    assert!(report.is_complete(), "{:?}", report.found.map(|found| found.story));
    assert!(report.count.states > 1_000, "{:?}", report.count);
    let bounds = Bounds { replicas: 5, commands: 3, timeouts: 3, crashes: 2, catch_ups: 2, ..bounds };
    let report = walk(kind, bounds, Walks { walks: 100, steps: 200, seed: 1 }, &mut |_| ());
    assert!(report.found.is_none(), "{:?}", report.found.map(|found| found.story));
}

#[test]
fn its_scenarios_go_as_they_are_written() {
    registered();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/fixed_leader/scenarios");
    let bless = env::var_os("SYNOD_BLESS").is_some_and(|value| value == "1");
    let played = scenario::play_folder(&folder, bless).expect("the scripts can be read");
    assert!(played.wrong.is_empty(), "{}", played.wrong.join("\n\n"));
    assert_eq!(played.scripts, 1);
}
