//! Whether a leader that is chosen by latency ends where it should (Santos 2012, Proposition 6.2 and Corollary 6.1):
//! in a group whose links have drawn delays, after losses and crashes. `world/choice.rs` plays one seed.

use std::time::Duration;

use fastrand::Rng;
use synod_consensus::Bug;

use crate::{
    check::Violation, network::Wire, odds::Odds, outage::unhurried_plan, plan::Plan, scenario::Cast,
    trace::Trace, world::World,
};

/// The leaders of one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Members of the group.
    pub replicas: usize,
    /// Members that crashed and did not start again, at most a minority.
    pub gone: usize,
    /// Crashes before that, each of a member that started again.
    pub crashes: u64,
    /// Messages that were lost before the faults ended.
    pub lost: u64,
    /// How far the delay of a link may be from its usual one (ε).
    pub tolerance: Duration,
    /// The usual majority time of the first leader after the faults.
    pub before: Duration,
    /// The usual majority time of the leader in the end.
    pub after: Duration,
    /// The lowest usual majority time of all members that run.
    pub best: Duration,
    /// Members that began to lead after that first leader.
    pub changes: u64,
}

/// The delays that messages of each link have beside the network's own, by sender and receiver.
pub(crate) type Lengths = Vec<Vec<Duration>>;

/// How far the delay of a link is from its usual one at most, in milliseconds. A seed draws one of them.
const TOLERANCES_MS: [u64; 3] = [1, 2, 5];
/// A message usually takes less than this longer in one direction of a link, in milliseconds: with a time-out of one
/// second every delay is below Δ, a third of it.
const DELAY_MAX_MS: u64 = 120;

/// A group of three to seven. Datagrams are lost, and sessions of streams end.
fn plan(cast: Cast, seed: u64, rng: &mut Rng) -> Plan {
    let replicas = [3, 5, 5, 7][rng.usize(0..4)];
    let mut plan = unhurried_plan(replicas, cast, seed);
    let timeout = plan.settings.consensus.election_timeout;
    let tolerance = Duration::from_millis(TOLERANCES_MS[rng.usize(0..TOLERANCES_MS.len())]);
    plan.settings.consensus.latency.tolerance = tolerance;
    plan.network.wire = if rng.bool() { Wire::Stream } else { Wire::Datagram };
    plan.network.loss = Odds::percent(rng.u32(1..=5));
    plan.network.reset = Odds::per_million(1000);
    (plan.network.delay_min, plan.network.delay_max) = (timeout / 2000, timeout / 2000 + tolerance * 2);
    plan
}

/// Links of drawn lengths, which differ by direction.
fn lengths(replicas: usize, rng: &mut Rng) -> Lengths {
    let mut longer = || Duration::from_millis(rng.u64(0..DELAY_MAX_MS));
    (0..replicas).map(|_| (0..replicas).map(|_| longer()).collect()).collect()
}

/// Plays one seed.
///
/// # Errors
/// An invariant is violated: in the end the leader is far, or leadership moves without end.
pub fn play(cast: Cast, seed: u64, planted: Option<Bug>) -> Result<Chosen, Violation> {
    let mut rng = Rng::with_seed(seed);
    let mut plan = plan(cast, seed, &mut rng);
    plan.settings.consensus.planted = planted;
    // Before the faults end, delays need not be those that links have afterwards.
    let [early, late] = [(); 2].map(|()| lengths(plan.replicas, &mut rng));
    World::new(plan, Trace::Off).choice(&early, &late)
}
