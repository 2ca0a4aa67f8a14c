//! What keeps this replica from a peer, as far as the attempts to reach it show.

use std::sync::Arc;

use synod_sync::time::Instant;

/// Why there is no session to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Obstacle {
    /// The kind of what is in the way.
    pub kind: ObstacleKind,
    /// What the last attempt said, for people.
    pub why: Arc<str>,
    /// When an attempt said that for the first time; every one since has said the same.
    pub since: Instant,
}

/// The kind of an [`Obstacle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObstacleKind {
    /// The system of the peer refuses connections: nobody listens at its address.
    NobodyListens,
    /// No connection to its address can be made, for another reason: no answer, no such host, no way to it.
    NoConnection,
    /// What listens at its address belongs to another cluster.
    OtherCluster,
    /// What listens at its address refuses this replica, or this replica refuses it, for another reason that more
    /// attempts do not change.
    Misfit,
    /// The handshake with what listens at its address failed in another way, which may pass.
    Handshake,
}

impl Obstacle {
    /// An obstacle that an attempt has just met; `before` is what the one before it met.
    #[must_use]
    pub fn met(before: Option<&Obstacle>, kind: ObstacleKind, why: &str) -> Obstacle {
        match before.filter(|before| before.kind == kind && *before.why == *why) {
            Some(same) => same.clone(),
            None => Obstacle { kind, why: why.into(), since: Instant::now() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_obstacle_is_as_old_as_the_first_attempt_that_met_it() {
        let first = Obstacle::met(None, ObstacleKind::Misfit, "refused: why");
        assert_eq!(Obstacle::met(Some(&first), ObstacleKind::Misfit, "refused: why"), first);
        let other = Obstacle::met(Some(&first), ObstacleKind::NobodyListens, "refused");
        assert_eq!((other.kind, &*other.why), (ObstacleKind::NobodyListens, "refused"));
        assert!(other.since >= first.since);
    }
}
