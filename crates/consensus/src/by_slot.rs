//! What a protocol from outside still has to write if a [`SlotAcceptor`] keeps its slots.

use std::fmt::Debug;

use synod_wire::{Ballot, Batch, ReplicaId, Slot, Time};

use crate::{Control, Effect, Effects, Input, Options, Protocol, ReadToken, Role, SlotAcceptor, Status};

/// A protocol that decides slot by slot in ballots. Whatever has this is a [`Protocol`]: its [`SlotAcceptor`] answers
/// all questions, and promises, learns and delivers.
///
/// A protocol that needs more, such as news of sessions ([`Input::Link`]) or a [`Protocol::route`] of its own,
/// implements [`Protocol`] itself, and may keep a [`SlotAcceptor`] all the same.
pub trait BySlot: Clone + Debug + Send + 'static {
    /// What its replicas say to each other ([`crate::messages!`]).
    type Message: 'static;

    /// What the replica promised and accepted, and what is decided.
    fn acceptor(&self) -> &SlotAcceptor;

    /// The same, to be changed.
    fn acceptor_mut(&mut self) -> &mut SlotAcceptor;

    /// A message of this protocol arrived.
    fn receive(&mut self, now: Time, from: ReplicaId, message: &Self::Message, effects: &mut Effects);

    /// This leader has to propose a batch, for which its window has room.
    fn propose(&mut self, now: Time, batch: &Batch, effects: &mut Effects);

    /// Answers a read, at once or later: [`Control::ReadIndex`].
    fn read_index(&mut self, token: ReadToken, effects: &mut Effects);

    /// When the replica wants to be woken; [`Time::NEVER`] if nothing is due.
    fn wakes_at(&self) -> Time;

    /// That time has come. A replica that lost its log is not woken: there is nothing that it may say.
    fn wake(&mut self, now: Time, effects: &mut Effects);
}

impl<P: BySlot> Protocol for P {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        match input {
            Input::Receive { from, message } => {
                if let Some(message) = message.outside() {
                    self.receive(now, from, message, effects);
                }
            }
            Input::Propose { batch, .. } if self.room() > 0 => self.propose(now, &batch, effects),
            Input::Durable(lsn) => self.acceptor_mut().durable(lsn, effects),
            Input::Timer if now >= wakes_at(self) => self.wake(now, effects),
            Input::Control(Control::ReadIndex(token)) => self.read_index(token, effects),
            Input::Control(control) => self.acceptor_mut().control(control, effects),
            Input::Propose { .. } | Input::Timer | Input::Link { .. } => {}
        }
    }

    fn promised(&self) -> Ballot {
        self.acceptor().promised().0
    }

    fn promise(&mut self, _: Time, ballot: Ballot, effects: &mut Effects) {
        self.acceptor_mut().promise(ballot, effects);
    }

    fn options(&self) -> &Options {
        self.acceptor().options()
    }

    fn flush(&mut self, _: Time, effects: &mut Effects) {
        effects.push(Effect::Deadline(wakes_at(self)));
    }

    fn room(&self) -> usize {
        self.acceptor().room()
    }

    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
        self.acceptor().accepted_from(Slot::ZERO).for_each(|(_, _, batch, _)| see(batch));
    }

    fn is_congested(&self) -> bool {
        self.acceptor().is_congested()
    }

    fn status(&self) -> Status {
        self.acceptor().status()
    }

    fn answers(&self, now: Time, voter: ReplicaId) -> bool {
        self.acceptor().answers(now, voter)
    }
}

fn wakes_at(replica: &impl BySlot) -> Time {
    if replica.acceptor().role() == Role::Recovering { Time::NEVER } else { replica.wakes_at() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use synod_wire::{BatchBuilder, Incarnation, Lsn, SessionId};

    use super::*;
    use crate::{
        Claim, Claims, ElectionKind, LeaderView, Members, Outside, Record, Restart, SlotRecord, Survives,
    };

    const A: ReplicaId = ReplicaId(1);
    const B: ReplicaId = ReplicaId(2);

    static ECHO: Outside =
        Outside::new::<Message, SlotRecord>("echo", &[ElectionKind::None], Survives::NOTHING_ELSE, start);

    crate::messages! {
        /// What replicas say to each other.
        enum Message of ECHO {
            /// The leader proposes.
            1, Proposal, claims Propose: Accept { ballot: Ballot, slot: Slot, decided: Slot, batch: Batch },
            /// The sender has written it down.
            2, Vote, claims Vote: Accepted { ballot: Ballot, slot: Slot },
            /// The sender wants to lead.
            3, Prepare, claims by candidacy: Prepare { ballot: Ballot },
            /// The sender is there.
            4, HeartbeatAnswer: Here { ballot: Ballot },
        }
    }

    impl Message {
        fn candidacy(&self) -> Vec<Claim<'_>> {
            if let Message::Prepare { ballot } = *self { vec![Claim::Candidate(ballot)] } else { Vec::new() }
        }
    }

    /// A replica that wakes each second and says that it is there.
    #[derive(Clone, Debug)]
    struct Echo {
        acceptor: SlotAcceptor,
        wakes_at: Time,
    }

    fn start(
        options: Options,
        members: Members,
        restart: Restart,
        now: Time,
        effects: &mut Effects,
    ) -> Box<dyn Protocol> {
        let acceptor = SlotAcceptor::start(&ECHO, options, members, &restart, effects);
        Box::new(Echo { acceptor, wakes_at: now })
    }

    impl BySlot for Echo {
        type Message = Message;

        fn acceptor(&self) -> &SlotAcceptor {
            &self.acceptor
        }

        fn acceptor_mut(&mut self) -> &mut SlotAcceptor {
            &mut self.acceptor
        }

        fn receive(&mut self, now: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
            let acceptor = &mut self.acceptor;
            match *message {
                Message::Accept { ballot, slot, ref batch, .. } if acceptor.obeys(from, ballot, effects) => {
                    if let Some(after) = acceptor.accept(slot, batch, effects) {
                        effects.send(from, Message::Accepted { ballot, slot }, after);
                    }
                }
                Message::Accepted { ballot, slot } if acceptor.hears(now, from, ballot) => {
                    acceptor.vote(slot, ballot, from, effects);
                }
                Message::Here { ballot } => _ = acceptor.hears(now, from, ballot),
                _ => {}
            }
        }

        fn propose(&mut self, _: Time, batch: &Batch, effects: &mut Effects) {
            let slot = self.acceptor.last().next();
            self.acceptor.propose(slot, batch, effects);
        }

        fn read_index(&mut self, token: ReadToken, effects: &mut Effects) {
            effects.push(Effect::ReadIndex { token, slot: None });
        }

        fn wakes_at(&self) -> Time {
            self.wakes_at
        }

        fn wake(&mut self, now: Time, effects: &mut Effects) {
            self.wakes_at = now + Duration::from_secs(1);
            let (ballot, promised) = self.acceptor.promised();
            effects.send(self.acceptor.members().to_peers(), Message::Here { ballot }, promised);
        }
    }

    fn ballot(round: u64, replica: ReplicaId) -> Ballot {
        Ballot { round, replica }
    }

    fn batch(number: u64) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), number, number, b"x");
        builder.finish()
    }

    /// A replica A of three, as it is after a start with these records of an earlier life.
    fn started(records: Vec<SlotRecord>, amnesia: bool, effects: &mut Effects) -> Echo {
        let records = records.into_iter().map(|record| ECHO.record(record)).collect();
        let restart = Restart { records, amnesia, ..Restart::first(Incarnation(2)) };
        let members = Members::new([A, B, ReplicaId(3)], A);
        let acceptor = SlotAcceptor::start(&ECHO, Options::default(), members, &restart, effects);
        Echo { acceptor, wakes_at: Time::ZERO }
    }

    fn fresh(effects: &mut Effects) -> Echo {
        let replica = started(Vec::new(), false, effects);
        effects.drain();
        replica
    }

    fn receive(replica: &mut Echo, from: ReplicaId, message: Message, effects: &mut Effects) {
        replica.step(Time::ZERO, Input::Receive { from, message: message.into() }, effects);
    }

    fn written(effects: &mut Effects) -> Vec<SlotRecord> {
        let record = |effect| match effect {
            Effect::Append { record, .. } => Record::outside(&record).cloned(),
            _ => None,
        };
        effects.drain().filter_map(record).collect()
    }

    fn deadline(replica: &mut Echo, effects: &mut Effects) -> Option<Time> {
        replica.flush(Time::ZERO, effects);
        effects.drain().find_map(|effect| if let Effect::Deadline(at) = effect { Some(at) } else { None })
    }

    #[test]
    fn a_leader_accepts_again_what_its_log_holds_and_has_room_for_the_rest_of_its_window() {
        let (old, new, decided) = (ballot(1, A), ballot(2, A), Slot::ZERO);
        let held = SlotRecord::Accepted { ballot: old, slot: Slot(1), decided, batch: batch(1) };
        let mut effects = Effects::new(Lsn(9));
        let mut replica = started(vec![SlotRecord::Promised(old), held], false, &mut effects);
        assert_eq!((replica.acceptor.role(), replica.room()), (Role::Follower, 0));
        assert!(written(&mut effects).is_empty());
        replica.acceptor.lead(new, &mut effects);
        let again = SlotRecord::Accepted { ballot: new, slot: Slot(1), decided, batch: batch(1) };
        assert_eq!(written(&mut effects), [SlotRecord::Promised(new), again]);
        assert_eq!(replica.status().role, Role::Leader);
        assert_eq!(replica.status().view, LeaderView { ballot: new, leader: Some(A) });
        assert_eq!(replica.room(), replica.options().window_max - 1);
    }

    #[test]
    fn a_quorum_of_votes_delivers_and_a_vote_in_another_ballot_does_not_count() {
        let mut effects = Effects::new(Lsn(9));
        let mut replica = fresh(&mut effects);
        let mine = ballot(2, A);
        replica.acceptor.lead(mine, &mut effects);
        replica.step(Time::ZERO, Input::Propose { batch: batch(1), awaited: true }, &mut effects);
        replica.step(Time::ZERO, Input::Durable(effects.last_lsn()), &mut effects);
        receive(&mut replica, B, Message::Accepted { ballot: ballot(1, A), slot: Slot(1) }, &mut effects);
        assert_eq!((replica.status().decided, replica.status().in_flight), (Slot::ZERO, 1));
        assert!(!replica.answers(Time::ZERO, B));
        effects.drain();
        receive(&mut replica, B, Message::Accepted { ballot: mine, slot: Slot(1) }, &mut effects);
        let delivered = effects.drain().any(|effect| matches!(effect, Effect::Deliver { slot: Slot(1), .. }));
        assert!(delivered && replica.answers(Time::ZERO, B));
        let timeout = replica.options().election_timeout;
        assert!(replica.answers(Time::ZERO + timeout, B) && !replica.answers(Time::ZERO + timeout * 2, B));
    }

    #[test]
    fn a_follower_obeys_the_owner_of_a_ballot_and_none_of_a_lower_one() {
        let mut effects = Effects::new(Lsn(9));
        let mut replica = fresh(&mut effects);
        let accept = |ballot| Message::Accept { ballot, slot: Slot(1), decided: Slot::ZERO, batch: batch(1) };
        receive(&mut replica, B, accept(ballot(3, ReplicaId(3))), &mut effects);
        assert_eq!(effects.drain().count(), 0, "its owner alone proposes in a ballot");
        receive(&mut replica, B, accept(ballot(3, B)), &mut effects);
        assert_eq!(replica.status().view, LeaderView { ballot: ballot(3, B), leader: Some(B) });
        assert_eq!(replica.promised(), ballot(3, B));
        let answers = effects.drain().filter(|effect| matches!(effect, Effect::Send { after: Lsn(12), .. }));
        assert_eq!(answers.count(), 1, "once it is durable that it promised and accepted");
        receive(&mut replica, ReplicaId(3), accept(ballot(2, ReplicaId(3))), &mut effects);
        assert_eq!(effects.drain().count(), 0);
    }

    #[test]
    fn a_leader_that_promises_another_ballot_leads_no_longer() {
        let mut effects = Effects::new(Lsn(9));
        let mut replica = fresh(&mut effects);
        replica.acceptor.lead(ballot(2, A), &mut effects);
        effects.drain();
        replica.heed(Time::ZERO, ballot(3, B), &mut effects);
        assert_eq!((replica.status().role, replica.room()), (Role::Follower, 0));
        assert_eq!(replica.status().view, LeaderView { ballot: ballot(3, B), leader: None });
        replica.step(Time::ZERO, Input::Propose { batch: batch(1), awaited: true }, &mut effects);
        assert_eq!(written(&mut effects), [SlotRecord::Promised(ballot(3, B))]);
        // Also one that the new leader's first message tells.
        replica.acceptor.lead(ballot(4, A), &mut effects);
        let accept =
            |ballot, from| Message::Accept { ballot, slot: Slot(1), decided: Slot::ZERO, batch: batch(from) };
        effects.drain();
        receive(&mut replica, B, accept(ballot(3, B), 3), &mut effects);
        assert_eq!((replica.status().role, effects.drain().count()), (Role::Leader, 0));
        receive(&mut replica, B, accept(ballot(5, B), 5), &mut effects);
        assert_eq!(replica.status().role, Role::Follower);
        assert_eq!(replica.status().view, LeaderView { ballot: ballot(5, B), leader: Some(B) });
        assert_eq!(written(&mut effects).len(), 2, "the promise, and what is accepted");
    }

    #[test]
    fn a_replica_that_lost_its_log_obeys_no_leader_and_is_not_woken_in_later_lives_either() {
        let mut effects = Effects::new(Lsn(9));
        for (records, amnesia) in [(Vec::new(), true), (vec![SlotRecord::Amnesia(true)], false)] {
            let mut replica = started(records, amnesia, &mut effects);
            assert_eq!(written(&mut effects), [SlotRecord::Amnesia(true)]);
            let accept =
                Message::Accept { ballot: ballot(3, B), slot: Slot(1), decided: Slot::ZERO, batch: batch(1) };
            receive(&mut replica, B, accept, &mut effects);
            replica.step(Time::ZERO, Input::Timer, &mut effects);
            assert_eq!(effects.drain().count(), 0);
            assert_eq!(deadline(&mut replica, &mut effects), Some(Time::NEVER));
        }
        let mut whole = fresh(&mut effects);
        assert_eq!(deadline(&mut whole, &mut effects), Some(Time::ZERO));
        whole.step(Time::ZERO, Input::Timer, &mut effects);
        assert!(matches!(effects.drain().next(), Some(Effect::Send { .. })));
        assert_eq!(deadline(&mut whole, &mut effects), Some(Time::ZERO + Duration::from_secs(1)));
    }

    #[test]
    fn a_message_claims_its_fields_or_what_its_method_says_or_nothing() {
        let (mine, slot, decided, value) = (ballot(2, A), Slot(7), Slot(6), batch(1));
        let accept = Message::Accept { ballot: mine, slot, decided, batch: value.clone() };
        let [Claim::Propose { ballot, slot: Slot(7), batch, decided: Slot(6) }] = accept.claims()[..] else {
            panic!("{:?}", accept.claims())
        };
        assert_eq!((ballot, batch), (mine, &value));
        let vote = Message::Accepted { ballot: mine, slot };
        assert!(matches!(vote.claims()[..], [Claim::Vote { ballot, slot: Slot(7) }] if ballot == mine));
        let prepare = Message::Prepare { ballot: mine };
        assert!(matches!(prepare.claims()[..], [Claim::Candidate(ballot)] if ballot == mine));
        assert!(Message::Here { ballot: mine }.claims().is_empty());
    }
}
