//! What a seed draws for Raft: how entries reach the voters, and what else only Raft has.

use std::time::Duration;

use fastrand::Rng;
use synod_consensus::{
    Dissemination, Options,
    raft::{self, Merge, Replication},
};
use synod_replica::Settings;

use super::{MS, pick};

/// Draws what only Raft has, separately. Returns whether its epoch should last.
pub(super) fn draw_raft(seed: u64, settings: &mut Settings) -> bool {
    let mut rng = Rng::with_seed(seed ^ 0xc_4a_96);
    settings.consensus.raft = draw_appends(&mut rng);
    draw_gossip(seed, &mut settings.consensus);
    rng.u8(0..3) == 0
}

/// Draws how the entries of a leader of Raft reach the voters, separately: for half of all seeds by gossip.
fn draw_gossip(seed: u64, consensus: &mut Options) {
    let rng = &mut Rng::with_seed(seed ^ 0xd2_1f_70);
    let raft = &mut consensus.raft;
    raft.replication = pick(
        rng,
        &[
            Replication::Direct,
            Replication::Direct,
            Replication::Direct,
            Replication::Unbatched,
            Replication::GossipReplies,
            Replication::GossipReplies,
            Replication::GossipStatus,
            Replication::GossipStatus,
        ],
    );
    if raft.replication == Replication::Unbatched && consensus.dissemination == Dissemination::Balanced {
        // One name at a time does not catch up with what every replica disseminates.
        raft.replication = Replication::Direct;
    }
    raft.status_merge = pick(rng, &[Merge::Vector, Merge::Vector, Merge::LowerIfNews]);
    raft.status_echoes = pick(rng, &[0, 0, 1, 3]);
    (raft.vote_gossip, raft.peer_repair) = (pick(rng, &[false, false, true]), rng.bool());
    (raft.round_interval, raft.round_fan_out) = draw_rounds(rng, consensus.election_timeout);
    // For a third of them rounds are passed on without large entries, or without any.
    let rng = &mut Rng::with_seed(seed ^ 0x1a_27_9d);
    raft.lazy_push = pick(rng, &[None, None, None, None, Some(0), Some(200)]);
    // A leader that does not find out that it reaches no quorum is slow to be replaced, and does no harm.
    raft.check_quorum = pick(rng, &[true, true, true, true, false]);
}

/// The time from round to round, and the fan-out. For a quarter of all seeds the leader finds the time by itself.
pub(super) fn draw_rounds(rng: &mut Rng, election_timeout: Duration) -> (Option<Duration>, Option<u8>) {
    let mut separate = rng.clone();
    let interval = pick(rng, &[MS, election_timeout / 100, election_timeout / 20]);
    let fan_out = pick(rng, &[None, None, Some(1), Some(2)]);
    (Some(interval).filter(|_| !separate.u64(..).is_multiple_of(4)), fan_out)
}

/// How much of the log is under way to a voter.
pub(super) fn draw_appends(rng: &mut Rng) -> raft::Tuning {
    let mut tuning = raft::Tuning::default();
    tuning.inflight_max = pick(rng, &[1, 2, 64]);
    tuning.inflight_bytes_max = pick(rng, &[1, 1_000, 1 << 20]);
    tuning.append_bytes_max = pick(rng, &[1, 1_000, 1 << 20]);
    tuning
}
