//! The most commands a second that an arrangement allows.

use synod_wire::COMMAND_HEADER_BYTES;

use super::{Arrangement, Regime};
use crate::ground::hardware::Hardware;

/// What a replica has to do for a command of the group, on average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Commands that it takes from clients and answers.
    pub(crate) taken: f64,
    /// Copies of the body that it sends to replicas.
    pub(crate) sent: f64,
    /// Copies of the body that it receives from replicas.
    pub(crate) received: f64,
}

/// Commands a second at which the busiest resource of any replica is full, if only the bodies of commands are sent, and
/// what orders them costs nothing. No implementation of the arrangement is faster; the ratio of two bounds is what the
/// better one can gain.
pub(super) fn bound(hardware: &Hardware, regime: Regime, arrangement: Arrangement, replicas: usize) -> f64 {
    let n = replicas as f64;
    let (leader, follower) = match arrangement {
        Arrangement::AtLeader => (
            Share { taken: 1.0, sent: n - 1.0, received: 0.0 },
            Share { taken: 0.0, sent: 0.0, received: 1.0 },
        ),
        Arrangement::Forwarded => (
            Share { taken: 1.0 / n, sent: n - 1.0, received: (n - 1.0) / n },
            Share { taken: 1.0 / n, sent: 1.0 / n, received: 1.0 },
        ),
        // Of its own batches the leader sends n - 1 bodies, of those of each other replica one less.
        Arrangement::References => (
            Share { taken: 1.0 / n, sent: (n - 1.0) * (n - 1.0) / n, received: (n - 1.0) / n },
            Share { taken: 1.0 / n, sent: 1.0 / n, received: (n - 1.0) / n },
        ),
        Arrangement::Balanced => {
            let all = Share { taken: 1.0 / n, sent: (n - 1.0) / n, received: (n - 1.0) / n };
            (all, all)
        }
    };
    bound_of(hardware, regime, &[leader, follower])
}

/// The same if replicas have these shares.
pub(crate) fn bound_of(hardware: &Hardware, regime: Regime, shares: &[Share]) -> f64 {
    let busiest = shares.iter().map(|&share| seconds(hardware, regime, share));
    1.0 / busiest.fold(f64::MIN_POSITIVE, f64::max)
}

/// How long the busiest resource of a replica works for a command.
fn seconds(hardware: &Hardware, regime: Regime, share: Share) -> f64 {
    let (costs, card) = (&hardware.costs, &hardware.card);
    let body = (regime.value_bytes + COMMAND_HEADER_BYTES) as f64;
    let answer = (COMMAND_HEADER_BYTES + 8) as f64;
    let processor = share.taken * costs.request(regime.value_bytes)
        + costs.execute_nanos
        + (share.sent + share.received) * body * costs.byte_nanos;
    let out = share.sent * body + share.taken * answer;
    let into = (share.received + share.taken) * body;
    let carried = card.bytes_per_second.map_or(0.0, |rate| out.max(into) / rate);
    (processor / 1e9).max(carried)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{EXECUTION, LINK, PROCESSOR},
        *,
    };
    use crate::ground::hardware::{Card, Costs};

    fn gain_over(other: Arrangement, regime: Regime, replicas: usize, hardware: &Hardware) -> f64 {
        let of = |arrangement| bound(hardware, regime, arrangement, replicas);
        of(Arrangement::Balanced) / of(other)
    }

    fn gain(regime: Regime, replicas: usize, hardware: &Hardware) -> f64 {
        gain_over(Arrangement::AtLeader, regime, replicas, hardware)
    }

    fn hardware(card: Card, execute_nanos: f64) -> Hardware {
        let costs = Costs::named("ng-2020").unwrap();
        Hardware { costs: Costs { execute_nanos, byte_nanos: 0.0, ..costs }, card, ..Hardware::default() }
    }

    #[test]
    fn the_gain_is_the_one_of_the_bottleneck() {
        let link = hardware(Card { bytes_per_second: Some(1e5) }, 0.0);
        let none = hardware(Card::default(), 0.0);
        let executing = hardware(Card::default(), 1e6);
        for n in [3, 5, 11] {
            // Without answers it is n - 1 exactly.
            let ratio = gain(LINK, n, &link) / (n as f64 - 1.0);
            assert!((1.0..1.05).contains(&ratio), "{n}: {ratio}");
            // With balanced a card receives each body once, from a client or a replica.
            let over_references = gain_over(Arrangement::References, LINK, n, &link);
            let sent = (n as f64 - 1.0).powi(2) / n as f64;
            assert!((1.0..1.05).contains(&(over_references / sent)), "{n}: {over_references} of {sent}");
            assert!((gain(PROCESSOR, n, &none) - n as f64).abs() < 1e-9, "clients are spread over all");
            assert!((gain(EXECUTION, n, &executing) - 1.0).abs() < 0.01, "all execute everything");
        }
    }
}
