//! Whatever single fault lasts, some replica serves again within a bounded number of election time-outs, for
//! every protocol and election. (`planted_bugs.rs` checks that this test finds what it is meant to find.)

use synod_consensus::ProtocolKind;
use synod_sim::{
    outage::{GOODPUT_MIN_PERCENT, Lasting, Row, election_timeout, measure, rows},
    scenario::CASTS,
};

/// How often each case is played; `synod sim outages` plays all of them, and more often.
const SEEDS: u64 = 1;
/// Of a fault that may be at many places this many are played.
const CASES_MAX: usize = 7;

/// Plays each row with each election of the protocol. A protocol is a test, so that they run side by side.
fn serves_soon(protocol: ProtocolKind) {
    let timeout = election_timeout();
    for mut row in rows() {
        let step = row.cases.len().div_ceil(CASES_MAX);
        row.cases = row.cases.into_iter().step_by(step).collect();
        for &cast in CASTS.iter().filter(|cast| cast.protocol == protocol) {
            let measured = measure(cast, &row, SEEDS, None)
                .unwrap_or_else(|violation| panic!("{}, {}: violates {violation}", row.name, cast.name));
            if let Some((percent, lasting, _)) = measured.goodput_min {
                assert!(
                    percent >= GOODPUT_MIN_PERCENT,
                    "{}: {percent} % of before in {lasting:?}",
                    cast.name
                );
            }
            let (after_fault, after_crash) = row.bounds_of(cast);
            for (bound, (longest, case)) in [after_fault, after_crash].into_iter().zip(measured.longest) {
                let within = longest <= timeout * bound;
                assert!(
                    within,
                    "{}, {}: {longest:?}, more than {bound} time-outs, in {case:?}",
                    row.name, cast.name
                );
            }
        }
    }
}

/// The last in line after the coordinator of a ring does not know whether it reaches a quorum before the others have
/// had their turns: it knows no leader for a while, and the ring that it knows is over.
#[test]
fn clients_of_each_member_of_a_ring_that_misses_only_the_coordinator_are_served_soon() {
    let is_asked = |row: &Row| row.cases.iter().any(|case| matches!(case, Lasting::Unlinked { .. }));
    let row = rows().into_iter().find(is_asked).expect("a row measures clients' waiting time");
    for &cast in CASTS.iter().filter(|cast| cast.protocol == ProtocolKind::Ring) {
        let measured = measure(cast, &row, SEEDS, None)
            .unwrap_or_else(|violation| panic!("{}: violates {violation}", cast.name));
        let (after_fault, after_crash) = row.bounds_of(cast);
        for (bound, (longest, case)) in [after_fault, after_crash].into_iter().zip(measured.longest) {
            let within = longest <= election_timeout() * bound;
            assert!(within, "{}: {longest:?}, more than {bound} time-outs, in {case:?}", cast.name);
        }
    }
}

#[test]
fn some_replica_of_multipaxos_serves_soon_whatever_lasts() {
    serves_soon(ProtocolKind::MultiPaxos);
}

#[test]
fn some_replica_of_sequence_paxos_serves_soon_whatever_lasts() {
    serves_soon(ProtocolKind::SequencePaxos);
}

#[test]
fn some_replica_of_raft_serves_soon_whatever_lasts() {
    serves_soon(ProtocolKind::Raft);
}

#[test]
fn some_replica_of_the_ring_serves_soon_whatever_lasts() {
    serves_soon(ProtocolKind::Ring);
}

#[test]
fn some_replica_of_kernel_paxos_serves_soon_whatever_lasts() {
    serves_soon(ProtocolKind::KernelPaxos);
}
