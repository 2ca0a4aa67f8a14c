//! Situations with messages that overtake others, come late, or do not fit.

use std::collections::BTreeMap;

use synod_consensus::{PromisePage, Role};
use synod_replica::{Event, PeerMessage, RequestError};
use synod_wire::{Ballot, Epoch, Slot};

use super::{Reached, Sight, Situation, scene::Scene};

/// Earlier messages that matter.
#[derive(Debug)]
pub(super) struct Watcher {
    /// The pages of promises, by sender and receiver: for the ballot that was answered last, the life that
    /// sent the page with this first slot. A lost page is sent again.
    pages: BTreeMap<(usize, usize), (Ballot, BTreeMap<Slot, u64>)>,
    /// The epoch in which each replica last asked for decided slots.
    asked: Vec<Epoch>,
}

impl Watcher {
    pub(super) fn new(capacity: usize) -> Watcher {
        Watcher { pages: BTreeMap::new(), asked: vec![Epoch(u64::MAX); capacity] }
    }

    pub(super) fn see(&mut self, scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
        match *sight {
            Sight::Overtakes { message } => {
                reached.mark(Situation::Overtaken, true);
                reached.mark(Situation::OvertakenByDecided, hands_out(message));
            }
            Sight::Sends { from, message: PeerMessage::Fetch { .. }, .. } => {
                self.asked[from] = scene.actors[from].face.epoch;
            }
            Sight::Sends { from, to, message: PeerMessage::Protocol { message, .. } } => {
                if let Some(PromisePage { ballot, first, delivered, .. }) = message.body().promise_page() {
                    let life = scene.actors[from].lives;
                    let (answered, pages) = self.pages.entry((from, to)).or_default();
                    if *answered != ballot {
                        *answered = ballot;
                        pages.clear();
                    }
                    let before = pages.range(..first).next_back().map(|(_, sent_by)| *sent_by);
                    pages.insert(first, life);
                    reached.mark(Situation::PagesOfTwoLives, before.is_some_and(|sent_by| sent_by != life));
                    reached.mark(Situation::DropsBetweenPages, before.is_some() && delivered >= first);
                }
            }
            Sight::Fails(error) => {
                reached.mark(Situation::RefusedForSize, error == RequestError::TooLarge);
                reached.mark(Situation::Overload, error == RequestError::Overloaded);
            }
            Sight::Takes { of, event: Event::Receive { message, .. } } => {
                let actor = &scene.actors[of];
                match message {
                    PeerMessage::Protocol { message, epoch } => {
                        let late = actor.face.role == Role::Candidate
                            && *epoch == actor.face.epoch
                            && message
                                .body()
                                .answers(actor.id)
                                .is_some_and(|ballot| scene.above(actor.face.ballot, ballot));
                        reached.mark(Situation::LateAnswer, late);
                    }
                    _ if hands_out(message) => {
                        reached.mark(Situation::LateCatchUp, actor.face.epoch > self.asked[of]);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

/// Whether a message brings decided slots.
fn hands_out(message: &PeerMessage) -> bool {
    match message {
        PeerMessage::Fetched { batches, .. } | PeerMessage::Pushed { batches, .. } => !batches.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_consensus::sequence_paxos;
    use synod_wire::ReplicaId;

    #[test]
    fn a_request_may_be_too_large() {
        let mut seen = crate::situations::stories::three();
        assert!(!seen.reached().has(Situation::RefusedForSize));
        seen.see(&Sight::Fails(RequestError::TooLarge));
        assert!(seen.reached().has(Situation::RefusedForSize));
    }

    #[test]
    fn what_a_page_begins_with_may_be_dropped_since_the_page_before() {
        let ballot = Ballot { round: 3, replica: ReplicaId(1) };
        let promise = |page: u64, first: u64| {
            let (page, first, batches) = (Slot(page), Slot(first), [synod_wire::Batch::noop()].into());
            let has = sequence_paxos::Extent { accepted_in: Ballot::ZERO, last: Slot(9), decided: Slot(1) };
            let promise = sequence_paxos::Promise { ballot, has, page, first, batches, more: true };
            PeerMessage::Protocol {
                epoch: Epoch(1),
                message: sequence_paxos::Message::Promise(promise).into(),
            }
        };
        let mut seen = crate::situations::stories::three();
        // The first page begins wherever the elements do.
        for (page, first) in [(0, 4), (5, 5), (6, 6)] {
            seen.see(&Sight::Sends { from: 1, to: 0, message: &promise(page, first) });
            assert!(!seen.reached().has(Situation::DropsBetweenPages), "page {page}");
        }
        seen.see(&Sight::Sends { from: 1, to: 0, message: &promise(7, 9) });
        assert!(seen.reached().has(Situation::DropsBetweenPages));
    }

    #[test]
    fn decided_slots_are_late_if_they_were_asked_for_in_an_earlier_epoch() {
        let mut seen = crate::situations::stories::three();
        let ask = PeerMessage::Fetch { from: Slot(1), through: Slot(1) };
        let known =
            synod_replica::Decided { ballots: synod_wire::Ballots::ZERO, batch: synod_wire::Batch::noop() };
        let (from, kept, decided) = (Slot(1), Slot(1), Slot(1));
        let answer = PeerMessage::Fetched { from, kept, decided, batches: vec![known] };
        let answer = Event::Receive { from: ReplicaId(1), message: answer };
        seen.follows(1, 1, 1);
        seen.see(&Sight::Sends { from: 1, to: 0, message: &ask });
        seen.takes(1, &answer);
        assert!(!seen.reached().has(Situation::LateCatchUp));
        seen.follows(1, 2, 1);
        seen.takes(1, &answer);
        assert!(seen.reached().has(Situation::LateCatchUp));
    }
}
