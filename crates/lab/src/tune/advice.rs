//! What other settings, protocols and machines would bring, by virtual time: each is a ratio to the cluster as it is.

use std::time::Duration;

use serde::Serialize;
use synod_consensus::{Combination, ProtocolKind};
use synod_model::batching::{Costs, Deployment, Headers, Instance, Linear, Load, Network, largest_batch};

use super::{
    foretell::{Foreteller, Foretold},
    load::Runs,
};
use crate::{
    ground::{Setup, hardware},
    study::{Conduct, LabError},
};

/// The settings that are tried.
const WINDOWS: [usize; 4] = [8, 32, 128, 512];
const BATCHES: [usize; 3] = [16 << 10, 64 << 10, 256 << 10];
/// Other settings are proposed if they bring more than this share, and are the smallest within as much of the best.
const WORTH: f64 = 0.03;
/// Something binds if twice as much of it brings more than this share.
pub(super) const BINDS: f64 = 0.05;

/// The settings of a replica that `synod tune` chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Settings {
    pub(super) window_max: usize,
    pub(super) batch_bytes_max: usize,
}

impl Settings {
    fn of(setup: &Setup) -> Settings {
        let window_max = setup.settings.consensus.window_max;
        Settings { window_max, batch_bytes_max: setup.settings.batch_bytes_max }
    }

    fn apply(self, setup: &mut Setup) {
        setup.settings.consensus.window_max = self.window_max;
        setup.settings.batch_bytes_max = self.batch_bytes_max;
    }
}

/// What a step would bring.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Step {
    /// The step, for people.
    pub(super) what: String,
    /// How it is made; empty for one that is bought.
    pub(super) how: String,
    /// Puts a second of all clients, and the median of one client alone, as ratios to the cluster as it is.
    pub(super) throughput: f64,
    pub(super) alone: f64,
}

/// What virtual time says of the cluster and of others.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Advice {
    /// The cluster as it is, with the most clients and with one.
    pub(super) now: Foretold,
    pub(super) alone: Foretold,
    pub(super) settings: Settings,
    pub(super) proposed: Settings,
    /// Puts a second with the proposed settings.
    pub(super) with_proposed: Foretold,
    /// Steps that are made by settings, the best first.
    pub(super) changes: Vec<Step>,
    /// Steps that are made by other machines, and by more clients.
    pub(super) machines: Vec<Step>,
    /// Whether the group's options fix the window, whatever a replica's flag says.
    pub(super) fixed_window: bool,
}

impl Advice {
    /// Tries settings, protocols and machines.
    pub(super) fn find(foreteller: &Foreteller, runs: &Runs, conduct: &Conduct) -> Result<Advice, LabError> {
        let top = runs.top();
        let asked = (top.clients, top.command_bytes());
        let setup = foreteller.setup();
        let now = foreteller.with(setup, asked, conduct)?;
        let alone = foreteller.with(setup, (1, asked.1), conduct)?;
        let settings = Settings::of(setup);
        let mut tried = vec![(settings, now)];
        for tried_settings in candidates(settings) {
            let mut other = setup.clone();
            tried_settings.apply(&mut other);
            tried.push((tried_settings, foreteller.with(&other, asked, conduct)?));
        }
        let (proposed, with_proposed) = choose(&tried);
        let judge = |(what, how, other): (String, String, Setup)| -> Result<Step, LabError> {
            let many = foreteller.with(&other, asked, conduct)?;
            let one = foreteller.with(&other, (1, asked.1), conduct)?;
            Ok(Step {
                what,
                how,
                throughput: many.puts_per_second / now.puts_per_second,
                alone: one.median_ms / alone.median_ms,
            })
        };
        let mut changes = orderings(setup).map(judge).collect::<Result<Vec<_>, _>>()?;
        changes.sort_by(|one, other| other.throughput.total_cmp(&one.throughput));
        let mut machines = machines(setup).into_iter().map(judge).collect::<Result<Vec<_>, _>>()?;
        let more = foreteller.with(setup, (2 * asked.0, asked.1), conduct)?;
        machines.push(Step {
            what: format!("{} clients", 2 * asked.0),
            how: String::new(),
            throughput: more.puts_per_second / now.puts_per_second,
            alone: 1.0,
        });
        let fixed_window = foreteller.fixes_window();
        Ok(Advice { now, alone, settings, proposed, with_proposed, changes, machines, fixed_window })
    }

    /// The share that the proposed settings bring.
    pub(super) fn gain(&self) -> f64 {
        self.with_proposed.puts_per_second / self.now.puts_per_second - 1.0
    }

    /// What binds the cluster: what brings most where there is more of it, and how much that is; `None` if nothing
    /// brings anything.
    pub(super) fn binds(&self) -> Option<(String, f64)> {
        let settings = ("the proposed settings".to_owned(), self.gain());
        let steps = self.machines.iter().map(|step| (step.what.clone(), step.throughput - 1.0));
        let best = steps.chain([settings]).max_by(|one, other| one.1.total_cmp(&other.1));
        best.filter(|(_, gain)| *gain > BINDS)
    }
}

/// Settings that are tried beside the present ones, the smallest first.
fn candidates(now: Settings) -> impl Iterator<Item = Settings> {
    let all = WINDOWS
        .into_iter()
        .flat_map(|window_max| BATCHES.map(|batch_bytes_max| Settings { window_max, batch_bytes_max }));
    all.filter(move |settings| *settings != now)
}

/// The present settings, unless others bring more than is worth a change; then the smallest of those that are nearly
/// the best. The present ones are the first.
fn choose(tried: &[(Settings, Foretold)]) -> (Settings, Foretold) {
    let best = tried.iter().map(|(_, foretold)| foretold.puts_per_second).fold(0.0, f64::max);
    let near = |(_, foretold): &&(Settings, Foretold)| foretold.puts_per_second >= best * (1.0 - WORTH);
    let smallest = tried[1..]
        .iter()
        .filter(near)
        .min_by_key(|(settings, _)| settings.window_max * settings.batch_bytes_max);
    match smallest {
        Some(other) if !near(&&tried[0]) => *other,
        _ => tried[0],
    }
}

/// Other disseminations and protocols that serve with this durability.
fn orderings(setup: &Setup) -> impl Iterator<Item = (String, String, Setup)> + '_ {
    let now = &setup.settings.consensus;
    let disseminations = Combination::legal().filter(move |one| {
        (one.protocol, one.election, one.durability) == (now.protocol, now.election, setup.durability)
            && one.dissemination != now.dissemination
    });
    let disseminations = disseminations.map(move |one| {
        let mut other = setup.clone();
        other.settings.consensus.dissemination = one.dissemination;
        let how = format!("synod reconfigure --dissemination {}", one.dissemination);
        (format!("dissemination {}", one.dissemination), how, other)
    });
    let protocols = ProtocolKind::ALL.iter().map(|&(_, protocol)| protocol);
    let protocols = protocols.filter(move |protocol| *protocol != now.protocol).filter_map(move |protocol| {
        let fits = Combination::legal().find(|one| {
            (one.protocol, one.dissemination, one.durability)
                == (protocol, now.dissemination, setup.durability)
        })?;
        let mut other = setup.clone();
        other.settings.consensus.protocol = protocol;
        other.settings.consensus.election = fits.election;
        Some((format!("protocol {protocol}"), format!("synod reconfigure --protocol {protocol}"), other))
    });
    disseminations.chain(protocols)
}

/// The same cluster on better machines.
fn machines(setup: &Setup) -> Vec<(String, String, Setup)> {
    let mut processors = setup.clone();
    let what = match &mut processors.hardware.shared_processors {
        Some(number) => {
            *number *= 2;
            format!("{number} processors")
        }
        None => {
            processors.hardware.costs = halved(&setup.hardware.costs);
            "processors twice as fast".to_owned()
        }
    };
    let mut all = vec![(what, String::new(), processors)];
    if setup.durability.syncs_anything() {
        let mut disk = setup.clone();
        disk.hardware.costs.fsync_micros /= 2.0;
        all.push(("disks that sync twice as fast".to_owned(), String::new(), disk));
    }
    all
}

/// What work costs on a processor that is twice as fast.
fn halved(costs: &hardware::Costs) -> hardware::Costs {
    hardware::Costs {
        burst_nanos: costs.burst_nanos / 2.0,
        message_nanos: costs.message_nanos / 2.0,
        byte_nanos: costs.byte_nanos / 2.0,
        request_nanos: costs.request_nanos / 2.0,
        execute_nanos: costs.execute_nanos / 2.0,
        ..costs.clone()
    }
}

/// What the document's model says of a target (Santos 2012, section 8.6): the largest batch that fills and is ordered
/// in time, and the window that leaves the bottleneck no pause with it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Target {
    pub(super) seconds: f64,
    pub(super) rate: f64,
    /// Requests of that batch; `None` if not even a batch of one is in time.
    pub(super) requests: Option<u32>,
    /// Bytes of it.
    pub(super) batch_bytes: usize,
    pub(super) window: u32,
    /// Seconds that an instance with it takes, and the most puts a second.
    pub(super) duration: f64,
    pub(super) puts_per_second: f64,
    /// What virtual time says of that rate with the present settings; `None` if it is more than the cluster can do.
    pub(super) now: Option<Foretold>,
}

impl Target {
    pub(super) fn of(
        foreteller: &Foreteller,
        runs: &Runs,
        (target, rate): (Duration, f64),
        conduct: &Conduct,
    ) -> Result<Target, LabError> {
        let bytes = runs.loads[0].command_bytes();
        let (deployment, load, headers, costs) = model(foreteller, bytes);
        let seconds = target.as_secs_f64();
        let requests = largest_batch(&deployment, &load, &headers, &costs, (seconds, rate));
        let instance = Instance::foretell(&deployment, &load, &headers, &costs, requests.unwrap_or(1))
            .ok_or_else(|| LabError::Model("a measured cost is negative or not finite".to_owned()))?;
        let most = runs.top().puts_per_second;
        let now = if rate < most {
            Some(foreteller.at_rate(foreteller.setup(), (rate, bytes), conduct)?)
        } else {
            None
        };
        Ok(Target {
            seconds,
            rate,
            requests,
            batch_bytes: instance.proposal.ceil() as usize,
            window: instance.window(),
            duration: instance.duration,
            puts_per_second: instance.requests_per_second(),
            now,
        })
    }
}

/// Bytes of an answer to a put, of a command's and a batch's head, and of a vote.
const ANSWER_BYTES: f64 = 40.0;
const HEADERS: Headers = Headers { request: 25.0, batch: 40.0, vote: 60.0 };

/// The document's model with measured costs. It knows no disk: a commit on each side of a vote counts as part of the
/// round trip. Nor does it know a bandwidth here, since nothing measures one.
pub(super) fn model(foreteller: &Foreteller, bytes: usize) -> (Deployment, Load, Headers, Costs) {
    let (setup, costs) = (foreteller.setup(), foreteller.costs());
    let commit = if setup.durability.syncs_anything() { costs.fsync_micros / 1e6 } else { 0.0 };
    let deployment = Deployment {
        replicas: setup.replicas,
        network: Network::Local,
        bandwidth: f64::INFINITY,
        delay: (foreteller.round_trip + commit) / 2.0,
    };
    let nanos = |per_byte: f64, fixed: f64| Linear { per_byte: per_byte / 1e9, fixed: fixed / 1e9 };
    // A lone replica has no round trip.
    let alone = if setup.replicas == 1 { commit } else { 0.0 };
    let costs = Costs {
        client: nanos(costs.byte_nanos, costs.request_nanos),
        // A proposal is sent, and a vote received.
        replica: nanos(costs.byte_nanos, 2.0 * costs.message_nanos),
        execute: costs.execute_nanos / 1e9,
        burst: costs.burst_nanos / 1e9 + alone,
    };
    let load = Load { request: bytes as f64, answer: ANSWER_BYTES };
    (deployment, load, HEADERS, costs)
}

#[cfg(test)]
mod tests {
    use synod_storage::Durability;

    use super::*;
    use crate::ground::Ordering;

    fn foretold(puts_per_second: f64) -> Foretold {
        Foretold { puts_per_second, median_ms: 1.0, p99_ms: 2.0 }
    }

    const NOW: Settings = Settings { window_max: 32, batch_bytes_max: 64 << 10 };

    #[test]
    fn settings_stay_unless_others_are_worth_it() {
        let other = Settings { window_max: 128, ..NOW };
        assert_eq!(choose(&[(NOW, foretold(100.0)), (other, foretold(102.0))]).0, NOW);
        assert_eq!(choose(&[(NOW, foretold(100.0)), (other, foretold(120.0))]).0, other);
        let largest = Settings { window_max: 512, ..NOW };
        let tried = [(NOW, foretold(100.0)), (largest, foretold(121.0)), (other, foretold(120.0))];
        assert_eq!(choose(&tried).0, other, "the smallest of those that are nearly the best");
    }

    #[test]
    fn the_present_settings_are_not_tried_twice() {
        assert_eq!(candidates(NOW).count(), WINDOWS.len() * BATCHES.len() - 1);
        assert_eq!(candidates(Settings { window_max: 7, ..NOW }).count(), WINDOWS.len() * BATCHES.len());
    }

    #[test]
    fn every_other_ordering_that_serves_is_tried() {
        let ordering = Ordering::of(ProtocolKind::MultiPaxos);
        let mut setup = Setup::new(3, ordering.protocol, ordering.election);
        setup.durability = Durability::Sync;
        let tried: Vec<String> = orderings(&setup).map(|(what, ..)| what).collect();
        assert!(tried.contains(&"dissemination balanced".to_owned()), "{tried:?}");
        assert!(!tried.contains(&"dissemination leader".to_owned()), "{tried:?}");
        assert!(tried.contains(&"protocol raft".to_owned()), "{tried:?}");
        assert!(!tried.contains(&"protocol multipaxos".to_owned()), "{tried:?}");
    }

    #[test]
    fn a_disk_is_faster_only_where_replicas_wait_for_it() {
        let ordering = Ordering::of(ProtocolKind::MultiPaxos);
        let mut setup = Setup::new(3, ordering.protocol, ordering.election);
        setup.hardware.shared_processors = Some(2);
        let names = |setup: &Setup| machines(setup).into_iter().map(|(what, ..)| what).collect::<Vec<_>>();
        assert_eq!(names(&setup), ["4 processors"]);
        setup.durability = Durability::Sync;
        setup.hardware.shared_processors = None;
        assert_eq!(names(&setup), ["processors twice as fast", "disks that sync twice as fast"]);
    }
}
