//! A replica that is the only voter leads at once, however it comes to start: it misses, hears and awaits no other.

use synod_consensus::{
    Effect, Effects, Input, Members, Options, Protocol, ProtocolKind, Record, Restart, Role,
};
use synod_wire::{Batch, Incarnation, Lsn, ReplicaId, Slot, Time};

/// Starts, and lets everything become durable; no time passes. The records go to `log`, the delivered slots
/// are returned.
fn start(options: &Options, log: &mut Vec<Record>, incarnation: u64) -> (Box<dyn Protocol>, Vec<Slot>) {
    let mut effects = Effects::new(Lsn(log.len() as u64));
    let members = Members::new([ReplicaId(1)], ReplicaId(1));
    let restart = Restart { records: log.clone(), ..Restart::first(Incarnation(incarnation)) };
    let mut protocol = options.start(members, restart, Time::ZERO, &mut effects);
    let mut delivered = Vec::new();
    settle(protocol.as_mut(), &mut effects, log, &mut delivered);
    protocol.step(Time::ZERO, Input::Propose { batch: Batch::noop(), awaited: false }, &mut effects);
    settle(protocol.as_mut(), &mut effects, log, &mut delivered);
    (protocol, delivered)
}

fn settle(
    protocol: &mut dyn Protocol,
    effects: &mut Effects,
    log: &mut Vec<Record>,
    delivered: &mut Vec<Slot>,
) {
    loop {
        protocol.flush(Time::ZERO, effects);
        let mut durable = None;
        for effect in effects.drain() {
            match effect {
                Effect::Append { lsn, record } => {
                    log.push(record);
                    durable = Some(lsn);
                }
                Effect::Deliver { slot, .. } => delivered.push(slot),
                _ => {}
            }
        }
        let Some(lsn) = durable else { return };
        protocol.step(Time::ZERO, Input::Durable(lsn), effects);
    }
}

#[test]
fn a_single_voter_leads_and_decides_at_once_at_its_first_start_and_at_later_ones() {
    for &(name, protocol) in ProtocolKind::ALL {
        for &election in protocol.elections() {
            let mut options = Options::of(protocol);
            options.election = election;
            let mut log = Vec::new();
            for life in 1..=3 {
                let (protocol, delivered) = start(&options, &mut log, life);
                assert_eq!(protocol.status().role, Role::Leader, "{name} with {election}, life {life}");
                assert!(
                    delivered.len() >= life as usize,
                    "{name} with {election}, life {life}: {delivered:?}"
                );
            }
        }
    }
}
