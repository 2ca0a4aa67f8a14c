//! Those who wait at a replica, for the outcome of a command or the answer to a query: the host keeps them, and hands
//! them out with what they wait for.

use std::collections::BTreeMap;

use bytes::Bytes;
use synod_host::{Effect, Input, ReadAt};
use synod_replica::{ChangeRequest, Event, Outcome, ReadId, RequestError, SessionCommand};
use synod_wire::{CommandKind, GroupId};

#[cfg(feature = "kv")]
use super::clients::{Ask, Response};
use super::{
    World,
    machine::{Life, Task},
};
use crate::{check::Checked, situations::Sight};

/// Somebody who waits for the outcome of a command.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A client of the store, or a script.
    #[cfg(feature = "kv")]
    Client(Ask),
    /// A client of the guest.
    Guest(usize),
    /// The replica itself, for its guest.
    OfGuest,
    /// The operator, who asked for this change of a group.
    Operator(GroupId, ChangeRequest),
}

/// A query, and who asks.
#[derive(Debug)]
pub(crate) enum Question {
    /// A client of the store, or a script.
    #[cfg(feature = "kv")]
    Client(Ask),
    /// A client of the guest.
    Guest(usize),
}

impl World {
    /// A command reaches the replica of a group.
    pub(super) fn command(
        &mut self,
        of: usize,
        group: GroupId,
        (kind, session, payload): (CommandKind, Option<SessionCommand>, Bytes),
        client: Waiter,
    ) -> Checked {
        self.take(of, Input::Command { group, kind, session, payload, client })
    }

    /// A query reaches the replica of a group.
    pub(super) fn query(&mut self, of: usize, group: GroupId, question: Question) -> Checked {
        // The host asks with one such event for all queries of a burst.
        self.checks[group].situations.see(&Sight::Takes { of, event: &Event::Read(ReadId(0)) });
        self.take(of, Input::Query(group, question))
    }

    /// A replica has the outcome of a command.
    pub(super) fn answer_request(&mut self, of: usize, waiter: Waiter, outcome: Outcome) -> Checked {
        match waiter {
            #[cfg(feature = "kv")]
            Waiter::Client(ask) => self.client_answered(of, &ask, outcome),
            Waiter::Guest(client) => self.guest_answered(of, client, &outcome)?,
            Waiter::OfGuest => self.guest_looked(of, outcome),
            Waiter::Operator(group, request) => self.change_answered(of, (group, request), outcome)?,
        }
        Ok(())
    }

    pub(super) fn fail_request(
        &mut self,
        of: usize,
        group: GroupId,
        waiter: Waiter,
        error: RequestError,
    ) -> Checked {
        self.checks[group].situations.see(&Sight::Fails(error));
        self.answer_request(of, waiter, Outcome::Error(error))
    }

    pub(super) fn fail_read(&mut self, question: Question, error: RequestError) {
        match question {
            #[cfg(feature = "kv")]
            Question::Client(ask) => self.respond(&ask, Response::Failed(error)),
            Question::Guest(client) => self.guest_read_failed(client, error),
        }
    }

    /// Answers the queries of a state whose slots are executed.
    pub(super) fn answer_reads(&mut self, of: usize, at: GroupId) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let state = &mut life.states[at];
        let Some(executor) = state.whole().filter(|_| !state.reads.is_empty()) else { return Ok(()) };
        let applied = executor.cut().slots;
        let ready = state.reads.reached(|at| match at {
            ReadAt::Slot(slot) => *slot <= applied[0],
            ReadAt::Slots(slots) => slots.iter().zip(&applied).all(|(slot, applied)| slot <= applied),
        });
        let ready: Vec<_> = ready.collect();
        for question in ready {
            match question {
                #[cfg(feature = "kv")]
                Question::Client(ask) => self.client_reads(of, &ask),
                Question::Guest(client) => self.guest_read(of, client)?,
            }
        }
        Ok(())
    }

    /// A replica crashes, which everybody notices who waits for it.
    pub(super) fn hang_up(&mut self, of: usize, life: &mut Life) {
        let (mut waiters, mut questions) = life.host.stop();
        for state in life.states.all_mut() {
            for (_, task) in state.execution.hand_over() {
                match task {
                    Task::Execute { waiters: of_batch, .. } => {
                        waiters.extend(of_batch.into_iter().map(|(_, waiter)| waiter));
                    }
                    Task::GoOn(_, part) => {
                        self.coverage.crashes_within_batches += 1;
                        waiters.extend(part.into_clients().into_iter().map(|(_, waiter)| waiter));
                    }
                    Task::Read { questions: confirmed, .. } => questions.extend(confirmed),
                    Task::Turns | Task::Snapshot | Task::Install(_) => {}
                }
            }
            questions.extend(state.reads.reached(|_| true));
            let turns = state.merged().map(|merged| std::mem::take(&mut merged.waiting));
            let awaited = turns.into_iter().flat_map(BTreeMap::into_values);
            waiters.extend(awaited.flat_map(|awaited| awaited.waiters).map(|(_, waiter)| waiter));
        }
        waiters.into_iter().for_each(|waiter| self.loses(of, waiter));
        questions.into_iter().for_each(|question| self.loses_question(question));
    }

    /// A replica died before it came to do this: only those who wait for it notice.
    pub(super) fn is_never_done(&mut self, of: usize, effect: Effect<Waiter, Question>) {
        match effect {
            Effect::Execute { clients, .. } => {
                clients.into_iter().for_each(|(_, waiter)| self.loses(of, waiter));
            }
            Effect::CommandFailed(waiter, _) => self.loses(of, waiter),
            Effect::Read(_, questions) | Effect::ReadFailed(questions, _) => {
                questions.into_iter().for_each(|question| self.loses_question(question));
            }
            Effect::Action(_) => {}
        }
    }

    /// A client that waits for a command loses its connection.
    fn loses(&mut self, of: usize, waiter: Waiter) {
        match waiter {
            #[cfg(feature = "kv")]
            Waiter::Client(ask) => self.respond(&ask, Response::Broken),
            Waiter::Guest(client) => self.guest_hangs_up(client),
            Waiter::OfGuest => self.guest_looks_no_more(of),
            Waiter::Operator(group, request) => self.operator.hangs_up(group, request),
        }
    }

    /// A client that waits for an answer loses its connection.
    fn loses_question(&mut self, question: Question) {
        match question {
            #[cfg(feature = "kv")]
            Question::Client(ask) => self.respond(&ask, Response::Broken),
            Question::Guest(client) => self.guest_hangs_up(client),
        }
    }
}
