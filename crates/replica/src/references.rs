//! References in the leader's proposals to the replica that a batch came from.
//!
//! A follower sends the batches of its clients to the leader, and gets each of them back in a proposal. With
//! `dissemination=references` the leader sends it a reference in the place of such a batch
//! (`Replica::send_of_protocol`). The follower finds the batch among those that it waits for, and gives its protocol
//! the message with the batch in it (`Replica::filled`): no protocol ever sees a reference, and logs hold batches.
//!
//! A reference names one batch, with its length and checksum, and a name is used once. So the message that the protocol
//! gets is the one that the leader's protocol sent, or none: a follower that does not have the batch any more (it began
//! again, gave the batch up, or has delivered it) treats the message as lost, and says that it missed something. From
//! then on the leader carries what the follower had sent to it before. `docs/dissemination.md` has more.

use synod_consensus::{Bug, Class, Message, To, dissemination};
use synod_wire::{Batch, Epoch, Lsn, ReplicaId};

use crate::{Action, PeerMessage, Replica};

impl Replica {
    /// Sends a message of the protocol, to each receiver in the form in which it needs it.
    pub(crate) fn send_of_protocol(
        &self,
        epoch: Epoch,
        to: To,
        message: Message,
        after: Lsn,
        actions: &mut Vec<Action>,
    ) {
        // The last messages of an epoch leave once the next group is known, which says nothing of their receivers.
        let spares = epoch == self.group.epoch
            && self.group.spares_origins()
            && self.forwarded.len() > 0
            && message.body().class() == Class::Proposal;
        let mut whole = Vec::new();
        for &id in to.ids().iter().filter(|_| spares) {
            match self.with_references(&message, id) {
                Some(message) => {
                    let message = PeerMessage::Protocol { epoch, message };
                    actions.push(Action::Send { to: id.into(), message, after });
                }
                None => whole.push(id),
            }
        }
        let to = if whole.len() == to.ids().len() || !spares { to } else { To::Each(whole.into()) };
        if !to.ids().is_empty() {
            actions.push(Action::Send { to, message: PeerMessage::Protocol { epoch, message }, after });
        }
    }

    /// The message with references to the batches that its receiver has sent here; `None` if there are none.
    fn with_references(&self, message: &Message, to: ReplicaId) -> Option<Message> {
        message.body().with_batches(&mut |batch| {
            batch.id().filter(|&id| self.forwarded.is_spared(id, to))?;
            batch.reference().filter(|reference| reference.bytes().len() < batch.bytes().len())
        })
    }

    /// The message with this replica's batches in the place of references to them; `None` if one of these is not here.
    pub(crate) fn filled(&self, message: Message) -> Option<Message> {
        if self.group.disseminates() {
            // The protocol itself resolves references.
            return Some(message);
        }
        let another = self.has(Bug::Dissemination(dissemination::Bug::FillWithAnother));
        let any = || self.requests.any().filter(|_| another);
        let ours = |batch: &Batch| self.requests.referred_to(batch).or_else(any);
        let refers = |batch: &&Batch| batch.is_reference();
        let filled = message.body().with_batches(&mut |batch| Some(batch).filter(refers).and_then(ours));
        let message = filled.unwrap_or(message);
        // A protocol that took a reference for a batch would lose what it stands for. Where leaders do not send
        // references, and in messages that are no proposals, there are none.
        let mut refers = false;
        message.body().for_each_batch(&mut |batch| refers |= batch.is_reference());
        (!refers).then_some(message)
    }
}
