//! The faults of a run: which kinds there are, how often each happens, and what a seed draws of that.

use std::time::Duration;

use fastrand::Rng;

use super::{Span, pick};
use crate::odds::Odds;

/// The faults, and how often each happens.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// Time from one fault to the next.
    pub gap: Span,
    /// How long a fault lasts.
    pub lasts: Span,
    /// How often a pause lasts far longer than every time-out.
    pub long_pauses: Odds,
    /// How often the leader is the victim of a fault that hits one replica.
    pub leader: Odds,
    /// How often a replica crashes between any two of its steps.
    pub any_step: Odds,
    /// The weight of each kind of fault; zero if it does not happen.
    pub weights: FaultWeights,
    /// How often a replica crashes right after it has sent a page of a promise that is not the last.
    pub between_pages: Odds,
    /// What happens together with a bridge.
    pub bridge: BridgePlan,
    /// What happens as soon as two groups of voters must agree.
    pub joint: JointPlan,
}

/// What happens together with [`FaultWeights::bridge`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BridgePlan {
    /// The leader is asked just before to hand over to the other side.
    pub transfer: Odds,
    /// The disk of the leader stalls.
    pub stall: Odds,
    /// A replica on the leader's side is asked to lead as well: it becomes a candidate that reaches no quorum.
    pub rival: Odds,
    /// An operator on the other side asks for a new epoch.
    pub epoch: Odds,
    /// Whether only a leader with a long time-out is cut off, so that the others elect another by themselves
    /// while it goes on. Mostly the bridge reaches its side only after that, and brings many slots at once.
    pub elects: bool,
}

/// Crashes within some time after a change of voters has begun that takes two steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct JointPlan {
    /// How often the leader crashes.
    pub leader: Odds,
    /// How often all replicas crash.
    pub all: Odds,
    /// The longest time from the beginning of the change to the crash.
    pub wait_max: Duration,
}

/// Weights of faults; see [`FaultPlan`].
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultWeights {
    /// A replica crashes and is restarted.
    pub crash: u32,
    /// All replicas crash at once.
    pub crash_all: u32,
    /// A replica crashes and finds its log lost or damaged.
    pub lose_log: u32,
    /// A replica crashes and finds its newest snapshot damaged.
    pub lose_snapshot: u32,
    /// A replica stops, and continues with its old state.
    pub pause: u32,
    /// A replica's clock jumps forward, by up to many time-outs.
    pub jump: u32,
    /// Two groups of replicas do not reach each other.
    pub split: u32,
    /// Some pairs of replicas do not reach each other, in both directions or in one.
    pub partial: u32,
    /// A replica reaches no other, or no other reaches it.
    pub one_way: u32,
    /// The leader and some others are cut off from a quorum, and one replica reaches both sides; mostly the leader is
    /// asked to hand over to the other side just before.
    pub bridge: u32,
    /// A disk does not answer.
    pub stall: u32,
    /// Sessions end.
    pub reset: u32,
    /// An operator asks for changes of the group.
    pub change: u32,
    /// An operator wants another replica to lead.
    pub transfer: u32,
    /// A replica's disk is copied, or an older copy takes its place.
    pub restore: u32,
    /// A replica loses all its data, and is started as if it had never run.
    pub wipe: u32,
}

/// What a seed draws first; others of its draws add to that.
pub(super) fn draw_faults(rng: &mut Rng, election_timeout: Duration) -> FaultPlan {
    let mut weight = |most: u32| if rng.u8(0..3) > 0 { rng.u32(1..=most) } else { 0 };
    let weights = FaultWeights {
        crash: weight(10),
        crash_all: weight(2),
        lose_log: weight(3),
        lose_snapshot: weight(2),
        pause: weight(5),
        jump: 0,
        split: weight(5),
        partial: weight(5),
        one_way: weight(5),
        bridge: 0,
        stall: weight(4),
        reset: weight(4),
        change: 0,
        transfer: 0,
        restore: 0,
        wipe: 0,
    };
    // The time from one fault to the next ranges from rare faults to faults before the last one is over.
    let gap = election_timeout * pick(rng, &[1, 3, 6]);
    FaultPlan {
        gap: (gap / 4, gap * 2),
        lasts: (election_timeout / 20, election_timeout * pick(rng, &[1, 3])),
        long_pauses: Odds::NEVER,
        leader: Odds::percent(50),
        any_step: Odds::per_million(pick(rng, &[0, 0, 200, 1_000])),
        weights,
        between_pages: Odds::NEVER,
        bridge: BridgePlan::default(),
        joint: JointPlan::default(),
    }
}

/// Draws pauses and jumps of clocks, separately.
pub(super) fn draw_time(seed: u64, faults: &mut FaultPlan) {
    let mut rng = Rng::with_seed(seed ^ 0xc1_0c_45);
    faults.long_pauses = pick(&mut rng, &[Odds::NEVER, Odds::percent(20), Odds::percent(60)]);
    faults.weights.jump = pick(&mut rng, &[0, 1, 4]);
}
