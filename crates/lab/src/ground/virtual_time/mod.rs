//! Runs the replicas' own code in virtual time: as if each replica had a processor, over any network, on any machine.
//!
//! The replicas are hosted by the program's own [`Host`](synod_host::Host), and batches are executed in its turns. The
//! model covers what surrounds that: links as a topology describes them; for each replica a processor, which works
//! through its inbox at a price for each message, byte and command ([`Costs`](super::hardware::Costs)), a network card
//! that all of its traffic passes ([`Card`](super::hardware::Card)), and a disk that commits what waits together, one
//! commit after the other. A machine may host the replicas of several groups, which share all of that, and may execute
//! their batches in one order ([`Groups`]). The same seed gives the same run. (`synod-sim` looks for errors with the
//! same replicas. Here only links have faults and machines fail, and the subject is time.)

mod client;
mod discovery;
mod disk;
mod execution;
mod groups;
mod machine;
mod prepare;
mod world;

use std::{collections::BTreeMap, time::Duration};

use synod_wire::ReplicaId;

pub use self::{
    discovery::Delays,
    groups::{Groups, Merged, Merging, Ran, Seats, Sent},
};
use super::{Load, Outcome, Setup};
use crate::study::{Conduct, LabError};

/// Messages between replicas in the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// How many there were.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them only tell that slots are decided.
    pub decides: u64,
    /// Bytes of messages that bring followers in line with a new leader.
    pub sync_bytes: u64,
    /// How long the first completed prepare phase in the window took: from when a replica was told to lead
    /// until a majority had accepted the log that it adopted.
    pub prepare: Option<Duration>,
    /// What the replica did that led in the end.
    pub leader: Usage,
    /// What each of the others did on average.
    pub follower: Usage,
    /// What links carried.
    pub links: Links,
    /// How long after the leader the others found out that a slot is decided.
    pub discovery: Option<Delays>,
}

/// What a replica did in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Seconds in which its processor was busy.
    pub busy: f64,
    /// Bytes that it sent, to replicas and clients.
    pub sent: f64,
    /// Bytes that it received.
    pub received: f64,
    /// Messages that it exchanged with other replicas.
    pub messages: f64,
    /// Bursts in which it handled messages or commands.
    pub bursts: f64,
    /// Commits that its disk ended.
    pub commits: f64,
}

/// Bytes that links carried in the window, of messages between replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Links {
    /// Of the links on which each replica sends most: the one that carried the most.
    pub most: f64,
    /// And the one that carried the least.
    pub least: f64,
    /// Of all other links the one that carried the most.
    pub other: f64,
}

impl Links {
    /// What these links carried, each from one replica to another.
    fn of(carried: &BTreeMap<(ReplicaId, ReplicaId), f64>) -> Links {
        let mut busiest: BTreeMap<ReplicaId, f64> = BTreeMap::new();
        let mut other = 0.0_f64;
        for (&(from, _), &bytes) in carried {
            let most = busiest.entry(from).or_default();
            other = other.max(most.min(bytes));
            *most = most.max(bytes);
        }
        let most = busiest.values().copied().fold(0.0, f64::max);
        Links { most, least: busiest.values().copied().fold(most, f64::min), other }
    }
}

impl Usage {
    /// The mean of several.
    fn mean(all: &[Usage]) -> Usage {
        let mean = |of: fn(&Usage) -> f64| all.iter().map(of).sum::<f64>() / all.len().max(1) as f64;
        Usage {
            busy: mean(|one| one.busy),
            sent: mean(|one| one.sent),
            received: mean(|one| one.received),
            messages: mean(|one| one.messages),
            bursts: mean(|one| one.bursts),
            commits: mean(|one| one.commits),
        }
    }
}

impl Traffic {
    /// The figures of a run with this many answers.
    pub(super) fn figures(&self, answered: u64, seconds: f64) -> impl Iterator<Item = (&'static str, f64)> {
        let thousands = answered.max(1) as f64 / 1000.0;
        let counted = [
            ("messages", self.messages as f64 / thousands),
            ("bytes", self.bytes as f64 / thousands),
            ("decides", self.decides as f64 / thousands),
            ("sync_bytes", self.sync_bytes as f64),
        ];
        let megabits = |bytes: f64| bytes * 8e-6 / seconds;
        let used = [
            ("leader_busy", 100.0 * self.leader.busy / seconds),
            ("follower_busy", 100.0 * self.follower.busy / seconds),
            ("leader_sent", megabits(self.leader.sent)),
            ("follower_sent", megabits(self.follower.sent)),
            ("leader_received", megabits(self.leader.received)),
            ("follower_received", megabits(self.follower.received)),
            ("leader_messages", self.leader.messages / seconds),
            ("follower_messages", self.follower.messages / seconds),
            ("leader_bursts", self.leader.bursts / seconds),
            ("follower_bursts", self.follower.bursts / seconds),
            ("leader_commits", self.leader.commits / seconds),
            ("follower_commits", self.follower.commits / seconds),
            ("link_most", megabits(self.links.most)),
            ("link_least", megabits(self.links.least)),
            ("link_other", megabits(self.links.other)),
        ];
        counted
            .into_iter()
            .chain(used)
            .chain(self.prepare.map(|took| ("prepare_ms", took.as_secs_f64() * 1e3)))
            .chain(self.discovery.into_iter().flat_map(|delays| {
                [
                    ("after_leader_p5_ms", delays.least),
                    ("after_leader_ms", delays.median),
                    ("after_leader_p95_ms", delays.most),
                ]
            }))
    }
}

/// Runs the replicas under the load, and checks that they kept their promises.
///
/// # Errors
/// No replica leads after a minute of virtual time, or what was proposed has no answer two minutes after the load
/// ([`LabError::Stalled`]); replicas disagree, an acknowledged value is missing, or Ctrl-C was pressed.
pub fn run(setup: &Setup, load: &Load, conduct: &Conduct) -> Result<(Outcome, Traffic), LabError> {
    let groups = Groups::single(setup, load);
    let mut world = world::World::new(setup, &groups)?;
    world.run(conduct)?;
    world.verify()?;
    Ok(world.finish())
}

/// Runs several groups on the machines of the setup, each under its load, and checks that they kept their promises.
///
/// # Errors
/// Those of [`run()`].
pub fn run_groups(setup: &Setup, groups: &Groups, conduct: &Conduct) -> Result<Ran, LabError> {
    let mut world = world::World::new(setup, groups)?;
    world.run(conduct)?;
    world.verify()?;
    Ok(world.finish_all())
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        sync::{Arc, atomic::AtomicBool},
    };

    use synod_consensus::ProtocolKind;
    use synod_replica::{Skips, Take};

    use super::*;
    use crate::{
        ground::{Act, Asked, Ordering, Victim, What},
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

    /// The model of a closed loop: throughput is the number of outstanding proposals divided by the latency.
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

    /// What a burst wants sent leaves before the batches of earlier ones are executed, so no replica waits for another
    /// that executes.
    #[test]
    fn execution_that_is_the_bottleneck_has_the_whole_processor() {
        let mut setup = setup(3, "single-dc");
        setup.hardware.costs.execute_nanos = 50_000.0;
        setup.hardware.costs.request_nanos = 0.0;
        let (outcome, traffic) = run(&setup, &Load::new(2000, Duration::from_secs(1)), &conduct()).unwrap();
        let share = outcome.answered as f64 * 50e-6 / outcome.seconds;
        assert!(share > 0.9 && share <= 1.05, "{share}");
        assert!(traffic.leader.busy > 0.97 && traffic.follower.busy > 0.95, "{traffic:?}");
        assert_eq!(outcome.leaders.len(), 1, "heartbeats are in time");
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

    /// Hundreds of proposals are in flight when the leadership is handed over across an ocean. Without max
    /// AcceptSync they are all sent again, and the prepare phase takes longer.
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
        // A majority is 0.3 ms away, which is crossed twice in both directions; all other replicas are 142 ms away.
        let phase = on.prepare.unwrap();
        assert!((Duration::from_micros(600)..Duration::from_millis(100)).contains(&phase), "{phase:?}");
    }

    #[test]
    fn what_comes_while_a_machine_stops_waits() {
        let mut load = Load { rate: Some(1000.0), ..Load::new(0, Duration::from_secs(2)) };
        let pause = What::Pause(Duration::from_millis(400));
        load.acts = vec![Act { at: Duration::from_secs(1), what: pause }];
        let (outcome, _) = run(&setup(3, "single-dc"), &load, &conduct()).unwrap();
        assert_eq!((outcome.leaders.len(), outcome.timed_out), (1, 0));
        let gap = outcome.longest_gap.as_millis();
        assert!((395..450).contains(&gap), "{gap} ms");
    }

    #[test]
    fn the_answers_of_each_replica_are_counted() {
        let load = Load { asked: Asked::All, ..Load::new(6, Duration::from_millis(100)) };
        let (outcome, _) = run(&setup(3, "single-dc"), &load, &conduct()).unwrap();
        assert_eq!(outcome.answered_by.len(), 3);
        assert_eq!(outcome.answered_by.values().sum::<u64>(), outcome.answered);
        let leader = outcome.answered_by[outcome.leaders.last().unwrap()];
        let share = leader as f64 * 3.0 / outcome.answered as f64;
        let figures = outcome.sample(&[]).figures;
        assert!(
            (figures["leader_share"] - share).abs() < 1e-9 && figures["least_share"] < 1.0,
            "{figures:?}"
        );
        assert_eq!(figures["most_share"], figures["leader_share"], "followers ask the leader first");
        let (soonest, latest) = (figures["soonest_mean_ms"], figures["latest_mean_ms"]);
        assert!(soonest < figures["mean_ms"] && figures["mean_ms"] < latest, "{figures:?}");
        // Two clients at each replica: their number over the latency is what it answers.
        let of_leader = 2e3 / soonest * outcome.seconds / leader as f64;
        assert!((0.95..1.05).contains(&of_leader), "{of_leader}");
    }

    #[test]
    fn the_busiest_links_of_replicas_are_told_from_the_others() {
        let link = |from, to, bytes| ((ReplicaId(from), ReplicaId(to)), bytes);
        let carried =
            [link(1, 2, 80.0), link(1, 3, 7.0), link(2, 1, 9.0), link(2, 3, 70.0), link(3, 1, 75.0)];
        let links = Links::of(&carried.into_iter().collect());
        assert_eq!(links, Links { most: 80.0, least: 70.0, other: 9.0 });
        assert_eq!(Links::of(&BTreeMap::new()), Links::default());
    }

    /// Two groups of three machines each, and a seventh that learns both. One has clients.
    fn two_groups(skips: Skips) -> Ran {
        let load = |rate| Load { rate, beside: true, ..Load::new(0, Duration::from_secs(2)) };
        let seats = |first: usize, rate| Seats {
            voters: (first..first + 3).collect(),
            learners: vec![6],
            leader: Some(first),
            load: load(rate),
        };
        let merge = Merging { take: Take::MIN, skips, at: vec![6] };
        let groups = Groups { groups: vec![seats(0, Some(1000.0)), seats(3, None)], merge: Some(merge) };
        let ran = run_groups(&setup(7, "single-dc"), &groups, &conduct()).unwrap();
        assert_eq!(
            ran.merged.iter().map(|merged| (merged.place, merged.group)).collect::<Vec<_>>(),
            [(6, 0), (6, 1)]
        );
        assert_eq!((ran.groups[1].answered, ran.merged[1].latency.len()), (0, 0));
        ran
    }

    #[test]
    fn a_busy_group_waits_in_the_merge_until_an_idle_one_skips() {
        let ran = two_groups(Skips::Lambda(1_000_000));
        let (decided, merged) = (&ran.groups[0].latency, &ran.merged[0].latency);
        assert_eq!(ran.sent[1].skips, 20, "one in each tenth of a second");
        // What was proposed before the window is executed in it, and the last of it only afterwards.
        let ratio = merged.len() as f64 / decided.len() as f64;
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
        assert!(merged.mean() > decided.mean() && merged.max() < 300_000_000, "{} ns", merged.max());
        assert!(ran.merged[0].waiting.iter().all(|&waiting| waiting > 0));
    }

    /// The machines of a group that learn no other know of nobody who waits for them.
    #[test]
    #[should_panic(expected = "Stalled")]
    fn a_group_that_never_skips_stops_the_merge() {
        two_groups(Skips::Demand);
    }

    #[test]
    fn an_interrupted_run_ends() {
        let conduct = Conduct::new(Arc::new(AtomicBool::new(true)), PathBuf::new());
        let outcome = run(&setup(3, "geo"), &Load::new(1, Duration::from_secs(1)), &conduct);
        assert!(matches!(outcome, Err(LabError::Interrupted)));
    }
}
