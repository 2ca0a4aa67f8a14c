//! Which elections seeds draw.

use synod_consensus::{ElectionKind, ProtocolKind};

/// The elections of a protocol that suspect leaders in ways of their own, from which seeds draw.
pub(crate) fn suspecting(protocol: ProtocolKind) -> Vec<ElectionKind> {
    protocol.elections().iter().copied().filter(|&election| election != ElectionKind::Latency).collect()
}

/// The latency-aware election in place of a rotating one, whose suspicions it has, or of any where the protocol has no
/// rotating one, if it is its turn. It is decided apart from the draw, so that the other seeds mean what they meant
/// before there was one.
pub(crate) fn latency_aware(protocol: ProtocolKind, drawn: ElectionKind, is_turn: bool) -> ElectionKind {
    let has = |election| protocol.elections().contains(&election);
    let in_place = drawn == ElectionKind::Rotating || !has(ElectionKind::Rotating);
    let takes = in_place && has(ElectionKind::Latency);
    if is_turn && takes { ElectionKind::Latency } else { drawn }
}
