//! The answers of the Paxos family to the traits, written once: where each input goes, and what the replica around a
//! protocol asks. A protocol has its handlers as methods of its own, beside the messages that they concern, and
//! [`protocol!`] calls them by name. Its `wiring.rs` has what is left, which differs.

/// Makes a replica of the family a [`Protocol`](crate::Protocol) that [`Leads`](crate::leadership::Leads). `$log` is
/// its field that knows the decided prefix; further items, such as a `route` of its own, become part of the
/// [`Protocol`](crate::Protocol).
///
/// | the method of the replica | does what |
/// | --- | --- |
/// | `receive` | takes a message to its handler |
/// | `propose` | takes a batch, which the next flush sends |
/// | `flush_all` | sends what was held back |
/// | `on_durable` | goes on with what waited for the disk |
/// | `resend_to` | sends again what a peer may have lost with its session |
/// | `learn`, `installed` | take what was decided elsewhere: a slot, or a prefix in a snapshot |
/// | `tell_decided` | announces decisions |
/// | `step_down`, `promise` | end what this replica does in its ballot |
/// | `room`, `in_flight`, `for_each_undelivered` | tell of its window, and of what a leader proposed |
macro_rules! protocol {
    ($replica:ident, $log:ident $(, $own:item)*) => {
        impl $crate::Protocol for $replica {
            fn handle(&mut self, now: Time, input: $crate::Input, effects: &mut Effects) {
                use $crate::Input;
                let before = effects.last_lsn();
                self.common.now = now;
                self.yield_after_sleep(now, effects);
                match input {
                    Input::Receive { from, message: $crate::Message::$replica(message) } => {
                        self.receive(now, from, message, effects);
                    }
                    Input::Receive { from, message: $crate::Message::Election(message) } => {
                        self.handle_election(now, from, &message, effects);
                    }
                    // A message of another protocol.
                    Input::Receive { .. } => {}
                    // The flush sends the batch, and does the checks at the end of a step, so this returns early.
                    Input::Propose { batch, awaited } => return self.propose(now, batch, awaited),
                    Input::Durable(lsn) => {
                        self.common.became_durable(now, lsn);
                        self.on_durable(now, effects);
                    }
                    Input::Link { peer, link } => {
                        self.link(now, peer, link, effects);
                        if link.begins_again() {
                            self.resend_to(now, peer, effects);
                        }
                    }
                    Input::Timer => self.on_timer(now, effects),
                    Input::Control(control) => self.control(now, control, effects),
                }
                self.end_of_step(now, before, effects);
            }

            fn promised(&self) -> Ballot {
                self.common.promised
            }

            fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
                self.promise(now, ballot, effects);
            }

            fn options(&self) -> &$crate::Options {
                &self.common.options
            }

            fn flush(&mut self, now: Time, effects: &mut Effects) {
                let before = effects.last_lsn();
                self.common.now = now;
                self.yield_after_sleep(now, effects);
                self.flush_all(now, effects);
                self.end_of_step(now, before, effects);
                self.ask_for_timer(effects);
            }

            fn room(&self) -> usize {
                self.room()
            }

            fn is_congested(&self) -> bool {
                self.common.is_congested()
            }

            fn status(&self) -> $crate::Status {
                let (role, waits_for_disk) = (self.role(), self.waits_for_disk());
                self.common.status(role, self.$log.decided(), self.in_flight(), waits_for_disk)
            }

            fn answers(&self, now: Time, voter: ReplicaId) -> bool {
                self.role() == Role::Leader && self.common.election.answers(now, voter)
            }

            fn election_memory(&self) -> $crate::election::Memory {
                self.common.election.memory()
            }

            fn round_trips(&self) -> Vec<(ReplicaId, std::time::Duration)> {
                let time_to = |peer| Some((peer, self.common.election.round_trip(peer)?));
                self.common.members.peers().filter_map(time_to).collect()
            }

            fn ordered(&mut self, origin: ReplicaId, commands: u64) {
                self.common.election.ordered(origin, commands);
            }

            fn origins(&self) -> Vec<(ReplicaId, u64)> {
                self.common.election.origins()
            }

            fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
                if self.role() == Role::Leader {
                    self.for_each_undelivered(see);
                }
            }

            $($own)*
        }

        impl $crate::leadership::Leads for $replica {
            fn me(&self) -> ReplicaId {
                self.common.members.me()
            }

            fn decided(&self) -> Slot {
                self.$log.decided()
            }

            fn duties(&mut self) -> Option<(&mut $crate::leadership::Leadership, &$crate::VoterSets)> {
                let State::Leader(leader) = &mut self.state else { return None };
                Some((&mut leader.duties, self.common.members.voters()))
            }

            fn tell_heartbeat(&mut self, effects: &mut Effects) {
                self.broadcast_heartbeat(effects);
            }

            fn give_up(&mut self, now: Time, effects: &mut Effects) {
                self.common.election.gave_up(now);
                self.step_down(effects);
            }

            fn report_leader(&mut self, effects: &mut Effects) {
                self.common.report_leader(self.role(), effects);
            }

            fn tell_decided(&mut self, through: Slot, effects: &mut Effects) {
                self.tell_decided(through, effects);
            }

            fn reads_wait_for(&self) -> Option<Slot> {
                self.proposed_if_all_count()
            }
        }

        impl $replica {
            fn control(&mut self, now: Time, control: $crate::Control, effects: &mut Effects) {
                use $crate::Control;
                match control {
                    Control::ReadIndex(token) => self.read_index(token, effects),
                    Control::Learn { slot, ballots, batch, .. } => self.learn(slot, ballots, batch, effects),
                    Control::Installed { slot, delivered, .. } => self.installed(slot, delivered, effects),
                    Control::Trim(slot) => self.trim(slot, effects),
                    Control::Backlogged(backlogged) => self.common.backlogged = backlogged,
                    Control::Transfer(to) => self.transfer(now, to, effects),
                    // The replica layer changes members by a new epoch.
                    Control::ChangeVoters { .. } => {}
                }
                self.knows_more(now, effects);
            }
        }

        impl From<$crate::paxos::FamilyMessage> for Message {
            fn from(message: $crate::paxos::FamilyMessage) -> Message {
                use $crate::paxos::FamilyMessage;
                match message {
                    FamilyMessage::Heartbeat { ballot, decided, round } => {
                        Message::Heartbeat { ballot, decided, round }
                    }
                    FamilyMessage::Reject { promised } => Message::Reject { promised },
                    FamilyMessage::TakeOver { ballot } => Message::TakeOver { ballot },
                }
            }
        }
    };
}
pub(crate) use protocol;
