//! The replicas' own code in virtual time: as many processors as replicas, and any network, on any machine.
//!
//! What is modelled is what surrounds the replicas: links as a topology describes them, a processor for each replica
//! that works off what waits for it (a fixed price for each message and a price for each command that it carries, in
//! or out, as the specification proposes in section 14.4), and disks that answer at once. The same seed gives the same
//! run. (`synod-sim` looks for errors with the same replicas; here there are no faults but those of links, and all is
//! about time.)

mod client;
mod prepare;
mod replica;
mod world;

use std::time::Duration;

use super::{Load, Outcome, Setup};
use crate::study::{Conduct, LabError};

/// What handling or sending one message costs a processor, in nanoseconds.
const MESSAGE_NANOS: u64 = 2_000;
/// What taking a proposal from a client and answering it costs. With it three replicas peak near the 250,000 proposals a
/// second of the document's machines, to which the specification says to calibrate the model (section 14.4).
const REQUEST_NANOS: u64 = 3_000;
/// What each byte of a message costs; a proposal of 8 bytes takes 37 in a batch, so this is 0.3 microseconds for each.
const BYTE_NANOS: f64 = 300.0 / 37.0;

/// What went over the network in the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Messages between replicas.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that say nothing but that slots are decided.
    pub decides: u64,
    /// Bytes of those that bring followers in line with a new leader.
    pub sync_bytes: u64,
    /// How long the first prepare phase in the window took that came to its end: from when a replica was told to lead
    /// until a majority had accepted what it adopted.
    pub prepare: Option<Duration>,
}

impl Traffic {
    /// The figures of a run that answered so many proposals.
    pub(super) fn figures(&self, answered: u64) -> impl Iterator<Item = (&'static str, f64)> {
        let thousands = answered.max(1) as f64 / 1000.0;
        let counted = [
            ("messages", self.messages as f64 / thousands),
            ("bytes", self.bytes as f64 / thousands),
            ("decides", self.decides as f64 / thousands),
            ("sync_bytes", self.sync_bytes as f64),
        ];
        counted.into_iter().chain(self.prepare.map(|took| ("prepare_ms", took.as_secs_f64() * 1e3)))
    }
}

/// Runs the replicas under the load, and checks that they kept their promises.
///
/// # Errors
/// Nobody leads after a minute of virtual time; replicas disagree, or an acknowledged value is missing; Ctrl-C.
pub fn run(setup: &Setup, load: &Load, conduct: &Conduct) -> Result<(Outcome, Traffic), LabError> {
    let mut world = world::World::new(setup, load)?;
    world.run(conduct)?;
    world.verify()?;
    Ok(world.finish())
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        sync::{Arc, atomic::AtomicBool},
    };

    use synod_consensus::ProtocolKind;

    use super::*;
    use crate::{
        ground::{Act, Ordering, Victim, What},
        net::Topology,
    };

    fn conduct() -> Conduct {
        Conduct::new(Arc::new(AtomicBool::new(false)), PathBuf::new())
    }

    fn setup(replicas: usize, topology: &str) -> Setup {
        let ordering = Ordering::of(ProtocolKind::MultiPaxos);
        Setup {
            topology: Some(Topology::named(topology).unwrap()),
            ..Setup::new(replicas, ordering.protocol, ordering.election)
        }
    }

    /// The closed-loop model of the specification (section 13.13): c over the latency.
    #[test]
    fn latency_and_throughput_are_those_of_the_network() {
        let load = Load::new(100, Duration::from_secs(5));
        let (outcome, traffic) = run(&setup(3, "geo"), &load, &conduct()).unwrap();
        let leader = outcome.leaders.last().unwrap().0 as usize - 1;
        // Round trips from Ireland and to the nearest replica: Cape Town, Sydney, California.
        let expected = [445.0, 402.0, 280.0][leader];
        let median = outcome.latency.value_at_quantile(0.5) as f64 / 1e6;
        assert!((median / expected - 1.0).abs() < 0.03, "{median} ms with leader {leader}");
        let throughput = outcome.answered as f64 / outcome.seconds;
        assert!((throughput / (100.0 / median * 1e3) - 1.0).abs() < 0.1, "{throughput}");
        assert!(traffic.messages > 0 && traffic.bytes > traffic.messages);
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let load = Load::new(10, Duration::from_secs(2));
        let run = |seed| {
            let setup = Setup { seed, ..setup(3, "single-dc") };
            let (outcome, traffic) = run(&setup, &load, &conduct()).unwrap();
            (outcome.answered, outcome.latency.max(), traffic.bytes)
        };
        assert_eq!(run(1), run(1));
    }

    #[test]
    fn a_replica_is_replaced_under_load_and_nothing_is_lost() {
        for victim in [Victim::Follower, Victim::Leader] {
            let mut load = Load::new(50, Duration::from_secs(6));
            load.acts = vec![Act { at: Duration::from_secs(1), what: What::Replace(victim) }];
            let (outcome, _) = run(&setup(3, "single-dc"), &load, &conduct()).unwrap();
            assert_eq!(outcome.acts.len(), 1, "{victim:?} was not replaced");
            assert_eq!(outcome.timed_out, 0);
            assert!(outcome.answered > 1000, "{victim:?}: {}", outcome.answered);
            assert!(outcome.longest_gap < Duration::from_secs(4), "{victim:?}: {:?}", outcome.longest_gap);
        }
    }

    /// Hundreds of proposals are in flight when the leadership is handed over across an ocean: without max AcceptSync
    /// they are all sent again, and the prepare phase takes longer.
    #[test]
    fn the_prepare_phase_is_timed() {
        let run = |max_accept_sync| {
            let ordering = Ordering::of(ProtocolKind::SequencePaxos);
            let mut setup = Setup::new(3, ordering.protocol, ordering.election);
            setup.topology = Some(Topology::named("trans-pacific").unwrap());
            // The leader is alone on its side: followers accept long before they hear that anything is decided.
            setup.priorities = vec![0, 0, 255];
            setup.settings.consensus.heartbeat_interval = Duration::from_millis(300);
            setup.settings.consensus.election_timeout = Duration::from_secs(3);
            setup.settings.batch_bytes_max = 256;
            setup.settings.consensus.window_max = 4096;
            setup.settings.consensus.sequence_paxos.max_accept_sync = max_accept_sync;
            let mut load = Load::new(1000, Duration::from_secs(2));
            load.acts = vec![Act { at: Duration::from_secs(1), what: What::HandOver }];
            run(&setup, &load, &conduct()).unwrap().1
        };
        let (on, off) = (run(true), run(false));
        assert!(on.prepare.unwrap() < off.prepare.unwrap(), "{on:?} {off:?}");
        assert!(on.sync_bytes < off.sync_bytes, "{on:?} {off:?}");
        // A majority is 0.3 ms away, there and back twice; all others are 142 ms away.
        let phase = on.prepare.unwrap();
        assert!((Duration::from_micros(600)..Duration::from_millis(100)).contains(&phase), "{phase:?}");
    }

    #[test]
    fn an_interrupted_run_ends() {
        let conduct = Conduct::new(Arc::new(AtomicBool::new(true)), PathBuf::new());
        let outcome = run(&setup(3, "geo"), &Load::new(1, Duration::from_secs(1)), &conduct);
        assert!(matches!(outcome, Err(LabError::Interrupted)));
    }
}
