//! The cluster in virtual time: the host that ships, with the costs that were measured, on links, disks and processors
//! as they were found.

use std::{fmt::Write as _, time::Duration};

use serde::Serialize;
use synod_consensus::{ElectionKind, Overrides, ProtocolKind};
use synod_storage::Durability;

use super::{
    cluster::Cluster,
    load::{Measured, Runs},
};
use crate::{
    calibrate::fit,
    ground::{
        Asked, Load, Setup,
        hardware::{Costs, Hardware},
        virtual_time,
    },
    net::Topology,
    study::{Conduct, LabError},
};

/// Virtual time that is measured at least, and in round trips and commits of the cluster.
const WINDOW_MIN: Duration = Duration::from_millis(300);
const WINDOW_ROUNDS: u32 = 40;

/// A load in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Foretold {
    pub(super) puts_per_second: f64,
    pub(super) median_ms: f64,
    pub(super) p99_ms: f64,
}

/// Runs loads in virtual time on a cluster as it was measured.
#[derive(Debug)]
pub(super) struct Foreteller {
    setup: Setup,
    window: Duration,
    /// The longest round trip between two members, in seconds.
    pub(super) round_trip: f64,
    fixes_window: bool,
}

impl Foreteller {
    /// Fits costs to what members counted.
    pub(super) fn new(cluster: &Cluster, runs: &Runs) -> Result<Foreteller, LabError> {
        let costs = costs(runs)?;
        let status = &cluster.members[0].status;
        let unknown =
            |error: &dyn std::fmt::Display| LabError::Replicas(format!("the cluster's settings: {error}"));
        let protocol: ProtocolKind = status.protocol.parse().map_err(|error| unknown(&error))?;
        let election: ElectionKind = status.election.parse().map_err(|error| unknown(&error))?;
        let durability: Durability = status.durability.parse().map_err(|error| unknown(&error))?;
        let mut setup = Setup::new(cluster.voters, protocol, election);
        setup.durability = durability;
        setup.settings.consensus.dissemination =
            status.dissemination.parse().map_err(|error| unknown(&error))?;
        setup.settings.consensus.window_max = cluster.window_max;
        setup.settings.batch_bytes_max = cluster.batch_bytes_max;
        let mut fixes_window = false;
        if let Some(group) = &status.group {
            let options: Overrides = group.options.parse().map_err(|error| unknown(&error))?;
            options.apply(&mut setup.settings.consensus);
            fixes_window = options.window_max().is_some();
        }
        let round_trip = longest_round_trip(cluster);
        let (topology, shared) = if cluster.is_one_machine() {
            (Topology::parse("one machine", ONE_MACHINE)?, Some(runs.cores))
        } else {
            (Topology::parse("as measured", &between_machines(cluster))?, None)
        };
        setup.topology = Some(topology);
        let round = Duration::from_secs_f64(round_trip + costs.fsync_micros / 1e6);
        setup.hardware = Hardware { costs, shared_processors: shared, ..Hardware::default() };
        Ok(Foreteller { setup, window: (round * WINDOW_ROUNDS).max(WINDOW_MIN), round_trip, fixes_window })
    }

    /// The measured costs.
    pub(super) fn costs(&self) -> &Costs {
        &self.setup.hardware.costs
    }

    /// Whether the group's options fix the window.
    pub(super) fn fixes_window(&self) -> bool {
        self.fixes_window
    }

    /// The cluster as it is.
    pub(super) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Foretells a load that was measured.
    pub(super) fn load(&self, measured: &Measured, conduct: &Conduct) -> Result<Foretold, LabError> {
        self.with(&self.setup, (measured.clients, measured.command_bytes()), conduct)
    }

    /// Foretells this many clients with commands of this many bytes, on another cluster.
    pub(super) fn with(
        &self,
        setup: &Setup,
        (clients, bytes): (usize, usize),
        conduct: &Conduct,
    ) -> Result<Foretold, LabError> {
        let mut load = Load::new(clients, self.window);
        load.asked = if clients < setup.replicas { Asked::Leader } else { Asked::All };
        self.run(setup, &load, bytes, conduct)
    }

    /// Foretells this many puts a second, whether or not earlier ones are answered.
    pub(super) fn at_rate(
        &self,
        setup: &Setup,
        (rate, bytes): (f64, usize),
        conduct: &Conduct,
    ) -> Result<Foretold, LabError> {
        let load = Load { rate: Some(rate), asked: Asked::All, ..Load::new(0, self.window) };
        self.run(setup, &load, bytes, conduct)
    }

    fn run(&self, setup: &Setup, load: &Load, bytes: usize, conduct: &Conduct) -> Result<Foretold, LabError> {
        let load = Load { value_bytes: bytes, ..load.clone() };
        let (outcome, _) = virtual_time::run(setup, &load, conduct)?;
        let ms = |share| outcome.latency.value_at_quantile(share) as f64 / 1e6;
        Ok(Foretold {
            puts_per_second: outcome.answered as f64 / outcome.seconds,
            median_ms: ms(0.5),
            p99_ms: ms(0.99),
        })
    }
}

/// The costs that explain best what members spent under the fitted loads.
fn costs(runs: &Runs) -> Result<Costs, LabError> {
    let rows: Vec<_> = runs.fitted().flat_map(Measured::rows).filter(|row| row.busy > 0.0).collect();
    let price = fit::fit(&rows)
        .ok_or_else(|| LabError::Replicas("the members tell nothing of what they spent".to_owned()))?;
    let (puts, spent) = runs.fitted().fold((0.0, 0.0), |(puts, spent), load| {
        (puts + load.puts_per_second, spent + load.puts_per_second * load.client_nanos)
    });
    // A lone client's puts wait for commits of one record each.
    let alone = &runs.loads[0];
    let commits: Vec<f64> = alone.members.iter().filter_map(|member| member.commit).collect();
    let commit = commits.iter().sum::<f64>() / commits.len().max(1) as f64;
    let costs = Costs {
        about: "Measured by `synod tune`.".into(),
        burst_nanos: price.burst,
        message_nanos: price.message,
        byte_nanos: price.byte,
        request_nanos: price.request,
        execute_nanos: price.execute,
        client_nanos: spent / puts.max(1.0),
        fsync_micros: commit * 1e6,
    };
    Ok(costs.rounded())
}

fn longest_round_trip(cluster: &Cluster) -> f64 {
    let members = 0..cluster.members.len();
    let pairs = members.clone().flat_map(|from| members.clone().map(move |to| (from, to)));
    let trips = pairs.filter(|(from, to)| from < to).filter_map(|(from, to)| cluster.round_trip(from, to));
    trips.fold(0.0, f64::max)
}

/// No delay: what a round trip takes on one machine is work, and that is counted as such.
const ONE_MACHINE: &str = "about = 'one machine'\nreplicas = ['here']\nclient = 'here'\nlink = []";

/// Links as the members and this program measured them. A pair of members that has not measured yet is as far apart as
/// both are from here together.
fn between_machines(cluster: &Cluster) -> String {
    let members = &cluster.members;
    let names: Vec<String> = (0..members.len()).map(|place| format!("'m{place}'")).collect();
    let mut text = format!("about = 'as measured'\nreplicas = [{}]\nclient = 'here'\n", names.join(", "));
    let mut link = |from: String, to: String, round_trip: f64| {
        let delay = round_trip / 2.0 * 1e3;
        let _ = write!(text, "[[link]]\nfrom = '{from}'\nto = '{to}'\ndelay-ms = {delay:.4}\n");
    };
    for from in 0..members.len() {
        link(format!("m{from}"), "here".to_owned(), members[from].way);
        for to in from + 1..members.len() {
            let round_trip = cluster.round_trip(from, to).unwrap_or(members[from].way + members[to].way);
            link(format!("m{from}"), format!("m{to}"), round_trip);
        }
    }
    text
}
